//! Walks over syntax trees, all through one copy of the walk.
//!
//! sqlparser's `Visit` is generic over its visitor, and the walk over its grammar has over a
//! thousand functions. Each of our sixty visitors had all of them for itself: half of the functions
//! of the binary, and most of the time that this crate took to compile. Here a visitor is called
//! through a pointer, so that they share them; `clippy.toml` refuses sqlparser's own.

use std::ops::ControlFlow;

use datafusion::sql::parser::{CopyToSource, Statement as ParsedStatement};
use datafusion::sql::sqlparser::ast::{
    Expr, ObjectName, Query, Select, Statement, TableFactor, ValueWithSpan, Visit, VisitMut,
    Visitor, VisitorMut,
};

/// Has a visitor go through a part of a syntax tree.
#[allow(clippy::disallowed_methods)]
pub(crate) fn walk<V: Visitor>(part: &impl Visit, visitor: &mut V) -> ControlFlow<V::Break> {
    let mut kept = Kept {
        visitor,
        found: None,
    };
    let _ = part.visit(&mut Shared(&mut kept));
    broken(kept.found)
}

/// Has a visitor go through a part of a syntax tree, which it may change.
#[allow(clippy::disallowed_methods)]
pub(crate) fn walk_mut<V: VisitorMut>(
    part: &mut impl VisitMut,
    visitor: &mut V,
) -> ControlFlow<V::Break> {
    let mut kept = KeptMut {
        visitor,
        found: None,
    };
    let _ = part.visit(&mut SharedMut(&mut kept));
    broken(kept.found)
}

/// Has a visitor go through all queries and expressions of a statement.
pub(crate) fn walk_statement<V: VisitorMut>(
    statement: &mut ParsedStatement,
    visitor: &mut V,
) -> ControlFlow<V::Break> {
    match statement {
        ParsedStatement::Statement(statement) => walk_mut(statement, visitor),
        ParsedStatement::Explain(explain) => walk_statement(&mut explain.statement, visitor),
        ParsedStatement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => walk_mut(query, visitor),
            CopyToSource::Relation(_) => ControlFlow::Continue(()),
        },
        ParsedStatement::CreateExternalTable(_) | ParsedStatement::Reset(_) => {
            ControlFlow::Continue(())
        }
    }
}

/// Calls a function for each expression, those around others first.
pub(crate) fn visit_expressions<B>(
    part: &impl Visit,
    each: impl FnMut(&Expr) -> ControlFlow<B>,
) -> ControlFlow<B> {
    walk(part, &mut EachExpr(each))
}

/// Calls a function for each expression, those within others first.
pub(crate) fn visit_expressions_mut<B>(
    part: &mut impl VisitMut,
    each: impl FnMut(&mut Expr) -> ControlFlow<B>,
) -> ControlFlow<B> {
    walk_mut(part, &mut EachExpr(each))
}

/// Calls a function for the name of each relation.
pub(crate) fn visit_relations<B>(
    part: &impl Visit,
    each: impl FnMut(&ObjectName) -> ControlFlow<B>,
) -> ControlFlow<B> {
    walk(part, &mut EachRelation(each))
}

fn broken<B>(found: Option<B>) -> ControlFlow<B> {
    found.map_or(ControlFlow::Continue(()), ControlFlow::Break)
}

/// A visitor behind a pointer: the only one that sqlparser's walk is compiled for.
struct Shared<'a>(&'a mut dyn Visitor<Break = ()>);

/// As [`Shared`].
struct SharedMut<'a>(&'a mut dyn VisitorMut<Break = ()>);

/// A visitor, and what it broke off with, for which a pointer to visitors of all kinds has no type.
struct Kept<'a, V: Visitor> {
    visitor: &'a mut V,
    found: Option<V::Break>,
}

/// As [`Kept`].
struct KeptMut<'a, V: VisitorMut> {
    visitor: &'a mut V,
    found: Option<V::Break>,
}

/// Passes all calls of a visitor on, to the visitor within.
macro_rules! pass_on {
    ($visitor:ident, $shared:ident, $kept:ident, $($hook:ident($part:ty),)+) => {
        impl $visitor for $shared<'_> {
            type Break = ();

            $(fn $hook(&mut self, part: $part) -> ControlFlow<()> {
                self.0.$hook(part)
            })+
        }

        impl<V: $visitor> $visitor for $kept<'_, V> {
            type Break = ();

            $(fn $hook(&mut self, part: $part) -> ControlFlow<()> {
                match self.visitor.$hook(part) {
                    ControlFlow::Continue(()) => ControlFlow::Continue(()),
                    ControlFlow::Break(found) => {
                        self.found = Some(found);
                        ControlFlow::Break(())
                    }
                }
            })+
        }
    };
}

/// All calls that sqlparser makes of its visitors.
macro_rules! pass_all_on {
    ($visitor:ident, $shared:ident, $kept:ident $(, $access:tt)?) => {
        pass_on! {
            $visitor, $shared, $kept,
            pre_visit_query(&$($access)? Query),
            post_visit_query(&$($access)? Query),
            pre_visit_select(&$($access)? Select),
            post_visit_select(&$($access)? Select),
            pre_visit_relation(&$($access)? ObjectName),
            post_visit_relation(&$($access)? ObjectName),
            pre_visit_table_factor(&$($access)? TableFactor),
            post_visit_table_factor(&$($access)? TableFactor),
            pre_visit_expr(&$($access)? Expr),
            post_visit_expr(&$($access)? Expr),
            pre_visit_statement(&$($access)? Statement),
            post_visit_statement(&$($access)? Statement),
            pre_visit_value(&$($access)? ValueWithSpan),
            post_visit_value(&$($access)? ValueWithSpan),
        }
    };
}

pass_all_on!(Visitor, Shared, Kept);
pass_all_on!(VisitorMut, SharedMut, KeptMut, mut);

struct EachExpr<F>(F);

impl<B, F: FnMut(&Expr) -> ControlFlow<B>> Visitor for EachExpr<F> {
    type Break = B;

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<B> {
        self.0(expr)
    }
}

impl<B, F: FnMut(&mut Expr) -> ControlFlow<B>> VisitorMut for EachExpr<F> {
    type Break = B;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<B> {
        self.0(expr)
    }
}

struct EachRelation<F>(F);

impl<B, F: FnMut(&ObjectName) -> ControlFlow<B>> Visitor for EachRelation<F> {
    type Break = B;

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<B> {
        self.0(relation)
    }
}

//! `SELECT price * n AS total, total * 0.19 AS tax … WHERE total > 100`: aliases of a SELECT that are used in
//! it, which DataFusion knows in GROUP BY, HAVING and ORDER BY alone. A column of that name goes before.

use std::ops::ControlFlow;

use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::logical_expr::Volatility;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{Expr, Ident, Query, Select, SelectItem, VisitorMut};

use crate::names::name_of;
use crate::walk::{visit_expressions, walk_mut, walk_statement};

/// A longer text is not written in the place of its alias: one of twenty aliases that each use the one before
/// twice would be a million times as long as the first.
const LONGEST: usize = 10_000;

/// The name without a table that a statement could not be planned for, since no column has it.
pub(crate) fn missing(error: &DataFusionError) -> Option<String> {
    not_found(error, &|field, _| {
        field.relation.is_none().then(|| field.name.clone())
    })
}

/// The first that `f` makes of a column which no table has, and of those that there are.
pub(crate) fn not_found<T>(
    error: &DataFusionError,
    f: &impl Fn(&Column, &[Column]) -> Option<T>,
) -> Option<T> {
    match error.find_root() {
        DataFusionError::SchemaError(error, _) => match error.as_ref() {
            SchemaError::FieldNotFound {
                field,
                valid_fields,
            } => f(field, valid_fields),
            _ => None,
        },
        DataFusionError::Collection(errors) => errors.iter().find_map(|error| not_found(error, f)),
        _ => None,
    }
}

/// Writes out an alias where its SELECT uses it; whether it did. It does where one SELECT alone has such an
/// alias and uses it: of two, one may mean a column.
pub(crate) fn write_out(statement: &mut ParsedStatement, name: &str, state: &SessionState) -> bool {
    let mut looking = Looking {
        name,
        state,
        found: 0,
        writes: false,
    };
    let _ = walk_statement(statement, &mut looking);
    if looking.found != 1 {
        return false;
    }
    looking.writes = true;
    let _ = walk_statement(statement, &mut looking);
    true
}

/// Looks for SELECTs that use an alias of theirs.
struct Looking<'a> {
    name: &'a str,
    state: &'a SessionState,
    found: usize,
    writes: bool,
}

impl VisitorMut for Looking<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let of = |item: &SelectItem| match item {
            SelectItem::ExprWithAlias { expr, alias } if name_of(alias) == self.name => {
                Some(expr.clone())
            }
            _ => None,
        };
        let items = select.projection.iter().enumerate();
        let mut found = items.filter_map(|(place, item)| Some((place, of(item)?)));
        let (Some((place, expr)), None) = (found.next(), found.next()) else {
            return ControlFlow::Continue(());
        };
        if !may_stand_twice(&expr, self.state) {
            return ControlFlow::Continue(());
        }
        let mut using = Using {
            name: self.name,
            expr: &expr,
            writes: self.writes,
            within: 0,
            found: false,
        };
        let mut has_found = false;
        for item in &mut select.projection[place + 1..] {
            let written = match &*item {
                SelectItem::UnnamedExpr(Expr::Identifier(name)) => name_of(name),
                item => item.to_string(),
            };
            let _ = walk_mut(item, &mut using);
            // It is called as it was written.
            let is_found = std::mem::take(&mut using.found);
            has_found |= is_found;
            if let SelectItem::UnnamedExpr(expr) = item
                && self.writes
                && is_found
            {
                *item = SelectItem::ExprWithAlias {
                    expr: expr.clone(),
                    alias: Ident::with_quote('"', written),
                };
            }
        }
        let clauses = [&mut select.selection, &mut select.qualify];
        for clause in clauses.into_iter().flatten() {
            let _ = walk_mut(clause, &mut using);
        }
        self.found += usize::from(has_found || using.found);
        ControlFlow::Continue(())
    }
}

/// Whether an expression is the same value wherever it stands, and short enough.
fn may_stand_twice(expr: &Expr, state: &SessionState) -> bool {
    if expr.to_string().len() > LONGEST {
        return false;
    }
    let changes = visit_expressions(expr, |part| {
        let is_query = matches!(
            part,
            Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. }
        );
        let is_volatile = match part {
            Expr::Function(call) => {
                let name = call.name.0.last().and_then(|part| part.as_ident());
                let name = name.map(name_of).unwrap_or_default();
                let is_another = state.aggregate_functions().contains_key(&name)
                    || state.window_functions().contains_key(&name)
                    || state.higher_order_functions().contains_key(&name);
                match state.scalar_functions().get(&name) {
                    Some(known) => known.signature().volatility == Volatility::Volatile,
                    None => !is_another,
                }
            }
            _ => false,
        };
        match is_query || is_volatile {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    changes.is_continue()
}

/// Finds uses of an alias, but in queries within, whose tables may have such a column, and in lambda functions
/// with a parameter of that name.
struct Using<'a> {
    name: &'a str,
    expr: &'a Expr,
    writes: bool,
    within: usize,
    found: bool,
}

impl VisitorMut for Using<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.within += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.within -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        self.within += usize::from(self.is_hidden_in(expr));
        ControlFlow::Continue(())
    }

    // What is put there is not looked through.
    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        self.within -= usize::from(self.is_hidden_in(expr));
        let is_use = matches!(expr, Expr::Identifier(name) if name_of(name) == self.name);
        if is_use && self.within == 0 {
            self.found = true;
            if self.writes {
                *expr = Expr::Nested(Box::new(self.expr.clone()));
            }
        }
        ControlFlow::Continue(())
    }
}

impl Using<'_> {
    fn is_hidden_in(&self, expr: &Expr) -> bool {
        let Expr::Lambda(lambda) = expr else {
            return false;
        };
        let mut parameters = lambda.params.iter();
        parameters.any(|parameter| name_of(&parameter.name) == self.name)
    }
}

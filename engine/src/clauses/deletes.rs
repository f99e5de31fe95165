//! `DELETE FROM t AS x WHERE x.a = 1`: the planner knows the table by its own name alone.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Delete, Expr, FromTable, Ident, ObjectNamePart, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, Statement, TableFactor, Visitor, VisitorMut,
};

use super::sample::alias_of;
use crate::names::name_of;
use crate::walk::{walk, walk_mut};

/// Calls the table by its own name, where nothing else in the statement has that.
pub(super) fn by_its_name(statement: &mut Statement) {
    let Statement::Delete(Delete { from, .. }) = &mut *statement else {
        return;
    };
    let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = from;
    let [only] = from.as_mut_slice() else { return };
    let TableFactor::Table { name, alias, .. } = &mut only.relation else {
        return;
    };
    let own = name.0.last().and_then(|part| part.as_ident()).cloned();
    let (Some(own), Some(called)) = (own, alias.take()) else {
        return;
    };
    let mut others = Others {
        names: [name_of(&own), name_of(&called.name)],
        // The table itself is the first.
        seen: 0,
        has_own: false,
    };
    let is_taken = name_of(&own) != name_of(&called.name)
        && (walk(&*statement, &mut others).is_break() || !called.columns.is_empty());
    if others.has_own && !is_taken {
        let mut inner = Inner {
            own: name_of(&own),
            seen: 0,
        };
        let _ = walk_mut(statement, &mut inner);
    }
    if is_taken {
        // The planner refuses it.
        if let Statement::Delete(Delete { from, .. }) = statement
            && let FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from) = from
            && let [only] = from.as_mut_slice()
            && let TableFactor::Table { alias, .. } = &mut only.relation
        {
            *alias = Some(called);
        }
        return;
    }
    let mut renamed = Renamed {
        from: name_of(&called.name),
        to: own,
    };
    let _ = walk_mut(statement, &mut renamed);
}

/// Breaks at another table of one of the names, but for the same table under its own name, which may be given another.
struct Others {
    names: [String; 2],
    seen: usize,
    /// Whether the table is there again.
    has_own: bool,
}

impl Visitor for Others {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        self.seen += 1;
        let alias = match factor {
            TableFactor::Table { alias, .. }
            | TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. }
            | TableFactor::NestedJoin { alias, .. } => alias.as_ref(),
            _ => None,
        };
        let name = match (alias, factor) {
            (Some(alias), _) => Some(&alias.name),
            (None, TableFactor::Table { name, .. }) => {
                name.0.last().and_then(|part| part.as_ident())
            }
            _ => None,
        };
        let is_other = self.seen > 1 && name.is_some_and(|name| self.has(name));
        let is_own = alias.is_none() && name.is_some_and(|name| self.names[0] == name_of(name));
        self.has_own |= is_other && is_own;
        match is_other && !is_own {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            // With its schema before it, it is either one.
            Expr::CompoundIdentifier(parts)
                if parts.len() > 2 && self.names[0] == name_of(&parts[1]) =>
            {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let named = query.with.iter().flat_map(|with| &with.cte_tables);
        match named.into_iter().any(|table| self.has(&table.alias.name)) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

impl Others {
    fn has(&self, name: &Ident) -> bool {
        self.names.contains(&name_of(name))
    }
}

/// Gives the same table another name where a subquery reads it: its own is that of the table that is changed.
struct Inner {
    own: String,
    seen: usize,
}

/// That name, which no text has.
const INNER: &str = "flashmesh:read";

impl VisitorMut for Inner {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        self.seen += 1;
        if let TableFactor::Table {
            name,
            alias: alias @ None,
            ..
        } = factor
            && self.seen > 1
            && let Some(last) = name.0.last().and_then(|part| part.as_ident())
            && name_of(last) == self.own
        {
            *alias = Some(alias_of(Ident::with_quote('"', INNER)));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for item in &mut select.projection {
            if let SelectItem::QualifiedWildcard(
                SelectItemQualifiedWildcardKind::ObjectName(name),
                _,
            ) = item
                && let [ObjectNamePart::Identifier(only)] = name.0.as_mut_slice()
                && name_of(only) == self.own
            {
                *only = Ident::with_quote('"', INNER);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(parts) = expr
            && name_of(&parts[0]) == self.own
        {
            parts[0] = Ident::with_quote('"', INNER);
        }
        ControlFlow::Continue(())
    }
}

struct Renamed {
    from: String,
    to: Ident,
}

impl VisitorMut for Renamed {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(parts) = expr
            && let [table, _, ..] = parts.as_mut_slice()
            && name_of(table) == self.from
        {
            *table = self.to.clone();
        }
        ControlFlow::Continue(())
    }
}

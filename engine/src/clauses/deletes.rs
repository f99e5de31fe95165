//! `DELETE FROM t AS x WHERE x.a = 1`: the planner knows the table by its own name alone.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Delete, Expr, FromTable, Ident, Query, Statement, TableFactor, Visit, VisitMut, Visitor,
    VisitorMut,
};

use crate::names::name_of;

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
    };
    let is_taken = name_of(&own) != name_of(&called.name)
        && (Visit::visit(&*statement, &mut others).is_break() || !called.columns.is_empty());
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
    let _ = VisitMut::visit(statement, &mut renamed);
}

/// Breaks at another table of one of the names.
struct Others {
    names: [String; 2],
    seen: usize,
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
        match is_other {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
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

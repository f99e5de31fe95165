//! `WITH a AS (…) INSERT INTO t SELECT … FROM a`, and UPDATE, DELETE and MERGE so, which the parser takes for
//! queries.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Query, SetExpr, Statement, TableFactor, VisitorMut, With};

use super::parsed;
use crate::error::Error;
use crate::names::name_of;
use crate::walk::walk_mut;

/// Makes it the change that it is: an INSERT's query has the tables of WITH, and in the others a query
/// stands where one of them is named.
pub(super) fn with_its_tables(statement: &mut Statement) -> ControlFlow<Error> {
    let Statement::Query(query) = &mut *statement else {
        return ControlFlow::Continue(());
    };
    let (SetExpr::Insert(change)
    | SetExpr::Update(change)
    | SetExpr::Delete(change)
    | SetExpr::Merge(change)) = query.body.as_mut()
    else {
        return ControlFlow::Continue(());
    };
    let mut change = change.clone();
    if let Some(mut with) = query.with.take() {
        match &mut change {
            Statement::Insert(insert) => {
                if let Some(source) = &mut insert.source {
                    if let Some(inner) = source.with.take() {
                        with.recursive |= inner.recursive;
                        with.cte_tables.extend(inner.cte_tables);
                    }
                    source.with = Some(with);
                }
            }
            other => {
                let mut tables = Tables {
                    with,
                    hidden: Vec::new(),
                    seen: 0,
                };
                walk_mut(other, &mut tables)?;
            }
        }
    }
    *statement = change;
    ControlFlow::Continue(())
}

/// Writes the tables of a WITH out where they are named.
struct Tables {
    with: With,
    /// Names that queries around have given to tables of their own.
    hidden: Vec<Vec<String>>,
    /// The first table is the one that is changed.
    seen: usize,
}

impl VisitorMut for Tables {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let own = query.with.iter().flat_map(|with| &with.cte_tables);
        let names = own.map(|table| name_of(&table.alias.name));
        self.hidden.push(names.collect());
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.hidden.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        self.seen += 1;
        let TableFactor::Table {
            name,
            alias,
            args: None,
            ..
        } = &mut *factor
        else {
            return ControlFlow::Continue(());
        };
        let [only] = name.0.as_slice() else {
            return ControlFlow::Continue(());
        };
        let Some(only) = only.as_ident().filter(|_| self.seen > 1) else {
            return ControlFlow::Continue(());
        };
        let called = name_of(only);
        let mut tables = self.with.cte_tables.iter();
        let is_known = tables.any(|table| name_of(&table.alias.name) == called);
        if !is_known || self.hidden.iter().flatten().any(|name| *name == called) {
            return ControlFlow::Continue(());
        }
        let text = format!("(SELECT * FROM {only}) AS {only}");
        let written = match parsed(&text, |parser| parser.parse_table_factor()) {
            Ok(written) => written,
            Err(error) => return ControlFlow::Break(error),
        };
        let own = alias.take();
        *factor = written;
        if let TableFactor::Derived {
            subquery, alias, ..
        } = factor
        {
            subquery.with = Some(self.with.clone());
            if own.is_some() {
                *alias = own;
            }
        }
        ControlFlow::Continue(())
    }
}

//! `INSERT INTO t … FROM (VALUES …)`: to the planner all VALUES of an INSERT are rows of the table.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Query, SetExpr, Statement, TableFactor, VisitorMut};

use super::parsed;
use crate::error::Error;
use crate::walk::walk_mut;

/// Has VALUES that an INSERT's query reads stand in a FROM, where they are planned by themselves.
pub(super) fn read_values(statement: &mut Statement) -> ControlFlow<Error> {
    let Statement::Insert(insert) = statement else {
        return ControlFlow::Continue(());
    };
    let Some(source) = &mut insert.source else {
        return ControlFlow::Continue(());
    };
    if matches!(source.body.as_ref(), SetExpr::Values(_)) && source.with.is_none() {
        return ControlFlow::Continue(());
    }
    // The source itself gives rows of the table.
    walk_mut(source, &mut Reading { stands_apart: true })
}

struct Reading {
    /// Nothing is to be done to the next query.
    stands_apart: bool,
}

impl VisitorMut for Reading {
    type Break = Error;

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        self.stands_apart = matches!(factor, TableFactor::Derived { .. });
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        // With an order or a limit behind them they are no relation, but a query.
        let is_whole = query.order_by.is_none() && query.limit_clause.is_none();
        let stands_apart = std::mem::take(&mut self.stands_apart) && is_whole;
        if stands_apart || !matches!(query.body.as_ref(), SetExpr::Values(_)) {
            return ControlFlow::Continue(());
        }
        let mut reading = match parsed("SELECT * FROM (SELECT 1)", |parser| parser.parse_query()) {
            Ok(reading) => reading.body,
            Err(error) => return ControlFlow::Break(error),
        };
        if let SetExpr::Select(select) = reading.as_mut()
            && let Some(table) = select.from.first_mut()
            && let TableFactor::Derived { subquery, .. } = &mut table.relation
        {
            std::mem::swap(&mut subquery.body, &mut query.body);
            query.body = reading;
        }
        ControlFlow::Continue(())
    }
}

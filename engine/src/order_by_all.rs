//! `SELECT * … ORDER BY ALL`: how many columns there are is asked for before the statement is planned. The planner looks
//! for them by their names without quotes, and finds none that has capitals.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{Query, TableFactor, VisitorMut};

use crate::Session;
use crate::asked_first::{Pending, Search, first};
use crate::clauses::{order_by_columns, orders_by_all};
use crate::columns::merged_without;
use crate::parameters::Values;
use crate::walk::walk_statement;

impl Session {
    /// Says ORDER BY ALL by the places of the columns. Of a query that can't be planned by itself, as it uses columns of
    /// one around it, that is left to the planner.
    pub(crate) async fn write_out_orders(
        &self,
        statement: &mut ParsedStatement,
        variables: &Values,
    ) {
        while let Some((scopes, ByAll(query))) = first(statement) {
            let table = TableFactor::Derived {
                lateral: false,
                subquery: Box::new(Query {
                    order_by: None,
                    limit_clause: None,
                    ..query
                }),
                alias: None,
                sample: None,
            };
            let with = merged_without::<Search<ByAll>>(&scopes);
            let text = "SELECT * FROM nothing";
            let Ok(plan) = self.plan_over(text, table, with, variables).await else {
                return;
            };
            let _ = walk_statement(statement, &mut Replace(plan.schema().fields().len()));
        }
    }
}

/// Such a query.
struct ByAll(Query);

impl Pending for ByAll {
    fn in_query(query: &mut Query) -> Option<Self> {
        orders_by_all(query).then(|| Self(query.clone()))
    }
}

/// Orders the first of them by that many columns.
struct Replace(usize);

impl VisitorMut for Replace {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if !orders_by_all(query) {
            return ControlFlow::Continue(());
        }
        if let Some(order_by) = &mut query.order_by {
            order_by_columns(order_by, self.0);
        }
        ControlFlow::Break(())
    }
}

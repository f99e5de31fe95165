//! `LIMIT 10%`: how many rows there are is asked for before the statement is planned.

use std::ops::ControlFlow;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, LimitClause, Query, TableFactor, Value,
    VisitorMut, With,
};

use crate::Session;
use crate::asked_first::{Pending, Search, first, makes_view};
use crate::clauses;
use crate::columns::merged_without;
use crate::error::{Error, Result};
use crate::parameters::Values;
use crate::spelling::PERCENT;

impl Session {
    /// Writes out LIMITs that are shares of a query's rows.
    ///
    /// # Errors
    /// [`Error::Usage`] for shares that are none, and in a view, which would keep the number of now; those of
    /// the query.
    pub(crate) async fn write_out_limits(
        &self,
        statement: &mut ParsedStatement,
        variables: &Values,
    ) -> Result<()> {
        while let Some((scopes, Share(query, share))) = first(statement) {
            if makes_view(statement) {
                return Err(Error::usage(
                    "a view takes no LIMIT in percent, which would stay that of now; write it in the query that reads it",
                ));
            }
            let percent = share.to_string().parse().ok();
            let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
            let percent: f64 = percent.ok_or_else(|| {
                Error::usage(format!(
                    "LIMIT {share}% is no share; write a number from 0 to 100"
                ))
            })?;
            let rows = self.counted_rows(&scopes, query, variables).await?;
            let limit = (rows as f64 * (percent / 100.0)) as u64;
            let _ = clauses::visit(statement, &mut Replace(limit));
        }
        Ok(())
    }

    /// How many rows a query gives.
    async fn counted_rows(&self, scopes: &[With], query: Query, variables: &Values) -> Result<i64> {
        let counted = TableFactor::Derived {
            lateral: false,
            subquery: Box::new(Query {
                limit_clause: None,
                order_by: None,
                ..query
            }),
            alias: None,
            sample: None,
        };
        let with = merged_without::<Search<Share>>(scopes);
        let text = "SELECT count(*) FROM nothing";
        let batches = self.rows_over(text, counted, with, variables).await?;
        let counts = batches.iter().filter(|batch| batch.num_rows() > 0);
        let counts = counts.map(|batch| {
            let count = batch.column(0).as_primitive_opt::<Int64Type>();
            count.map_or(0, |count| count.value(0))
        });
        Ok(counts.sum())
    }
}

/// The share that a query's LIMIT is.
fn share_of(query: &mut Query) -> Option<&mut Expr> {
    match &mut query.limit_clause {
        Some(LimitClause::LimitOffset {
            limit: Some(limit), ..
        }) => share(limit).is_some().then_some(limit),
        _ => None,
    }
}

fn share(limit: &Expr) -> Option<&Expr> {
    let Expr::Function(function) = limit else {
        return None;
    };
    let is_share = matches!(function.name.0.as_slice(), [name]
        if name.as_ident().is_some_and(|name| name.value == PERCENT));
    match &function.args {
        FunctionArguments::List(list) if is_share => match list.args.as_slice() {
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(share))] => Some(share),
            _ => None,
        },
        _ => None,
    }
}

/// A query with such a LIMIT, and the share.
struct Share(Query, Expr);

impl Pending for Share {
    fn in_query(query: &mut Query) -> Option<Self> {
        let found = share_of(query).and_then(|limit| share(limit).cloned());
        found.map(|share| Self(query.clone(), share))
    }
}

/// Puts a number in the place of the first [`Share`].
struct Replace(u64);

impl VisitorMut for Replace {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        match share_of(query) {
            Some(limit) => {
                *limit = Expr::value(Value::Number(self.0.to_string(), false));
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        }
    }
}

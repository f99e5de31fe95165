//! `LIMIT 10%`: how many rows there are is asked for before the statement is planned.

use std::ops::ControlFlow;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    self, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, LimitClause, Query, TableFactor,
    Value, VisitorMut, With,
};

use crate::Session;
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
        loop {
            let mut search = Search::default();
            let _ = clauses::visit(statement, &mut search);
            let Some((scopes, query, share)) = search.found else {
                return Ok(());
            };
            if let ParsedStatement::Statement(parsed) = &*statement
                && matches!(parsed.as_ref(), ast::Statement::CreateView { .. })
            {
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
    }

    /// How many rows a query gives.
    async fn counted_rows(&self, scopes: &[With], query: Query, variables: &Values) -> Result<i64> {
        let parsed = self.parse("SELECT count(*) FROM nothing")?.pop();
        let Some(ParsedStatement::Statement(mut parsed)) = parsed else {
            return Err(Error::usage("LIMIT without a query"));
        };
        if let ast::Statement::Query(counting) = parsed.as_mut()
            && let ast::SetExpr::Select(select) = counting.body.as_mut()
            && let Some(from) = select.from.first_mut()
        {
            from.relation = TableFactor::Derived {
                lateral: false,
                subquery: Box::new(Query {
                    limit_clause: None,
                    order_by: None,
                    ..query
                }),
                alias: None,
                sample: None,
            };
            counting.with = merged_without::<Search>(scopes);
        }
        let plan = Box::pin(self.plan_in(ParsedStatement::Statement(parsed), variables)).await?;
        let batches = Box::pin(self.execute(plan)).await?.collect().await?;
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

/// Looks for a query with such a LIMIT within which is none, with the queries of WITH around it that it may
/// name.
#[derive(Default)]
struct Search {
    scopes: Vec<With>,
    found: Option<(Vec<With>, Query, Expr)>,
}

impl VisitorMut for Search {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        self.scopes.extend(query.with.clone());
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if query.with.is_some() {
            self.scopes.pop();
        }
        match share_of(query).and_then(|limit| share(limit).cloned()) {
            Some(share) => {
                self.found = Some((std::mem::take(&mut self.scopes), query.clone(), share));
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        }
    }
}

/// Puts a number in the place of the share that [`Search`] finds.
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

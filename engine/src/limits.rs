//! `LIMIT 10%` and `LIMIT (SELECT …)`: how many rows that is is asked for before the statement is planned.

use std::ops::ControlFlow;

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, LimitClause, Query, SetExpr,
    TableFactor, Value, VisitorMut, With,
};

use crate::Session;
use crate::asked_first::{Pending, Search, first, makes_view};
use crate::columns::merged_without;
use crate::error::{Error, Result};
use crate::parameters::Values;
use crate::spelling::PERCENT;
use crate::walk::walk_statement;

impl Session {
    /// Writes out LIMITs that are shares of a query's rows, and LIMITs and OFFSETs that queries give.
    ///
    /// # Errors
    /// [`Error::Usage`] for shares and numbers that are none, and in a view, which would keep those of now; those of
    /// the query.
    pub(crate) async fn write_out_limits(
        &self,
        statement: &mut ParsedStatement,
        variables: &Values,
    ) -> Result<()> {
        while let Some((scopes, Asked(query, part))) = first(statement) {
            if makes_view(statement) {
                return Err(Error::usage(
                    "a view takes no LIMIT in percent or of a query, which would stay that of now; write it in the \
                     query that reads it",
                ));
            }
            let limit = match share(&part) {
                Some(share) => Some(self.rows_of_share(&scopes, query, share, variables).await?),
                None => self.number_of(&scopes, query, &part, variables).await?,
            };
            let limit = limit.map_or(Value::Null, |rows| Value::Number(rows.to_string(), false));
            let _ = walk_statement(statement, &mut Replace(limit));
        }
        Ok(())
    }

    /// How many rows of a query a share in percent is.
    async fn rows_of_share(
        &self,
        scopes: &[With],
        query: Query,
        share: &Expr,
        variables: &Values,
    ) -> Result<u64> {
        let percent = share.to_string().parse().ok();
        let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
        let percent: f64 = percent.ok_or_else(|| {
            Error::usage(format!(
                "LIMIT {share}% is no share; write a number from 0 to 100"
            ))
        })?;
        let rows = self.counted_rows(scopes, query, variables).await?;
        Ok((rows as f64 * (percent / 100.0)) as u64)
    }

    /// The number that a query in LIMIT or OFFSET gives; `None` of NULL, which is no limit.
    async fn number_of(
        &self,
        scopes: &[With],
        around: Query,
        part: &Expr,
        variables: &Values,
    ) -> Result<Option<u64>> {
        let Some(query) = query_of(part) else {
            return Ok(None);
        };
        let table = TableFactor::Derived {
            lateral: false,
            subquery: Box::new(Query {
                body: Box::new(SetExpr::Query(Box::new(query.clone()))),
                limit_clause: None,
                order_by: None,
                ..around
            }),
            alias: None,
            sample: None,
        };
        let with = merged_without::<Search<Asked>>(scopes);
        let text = "SELECT * FROM nothing";
        let batches = self.rows_over(text, table, with, variables).await?;
        let wrong = |why: &str| {
            Error::usage(format!(
                "LIMIT and OFFSET take one number of rows, and {part} gives {why}"
            ))
        };
        let mut rows = batches.iter().filter(|batch| batch.num_rows() > 0);
        let Some(row) = rows.next() else {
            return Ok(None);
        };
        if row.num_rows() > 1 || rows.next().is_some() || row.num_columns() != 1 {
            return Err(wrong("several values"));
        }
        let number = cast(row.column(0), &DataType::Int64)?;
        if number.is_null(0) {
            return match row.column(0).is_null(0) {
                true => Ok(None),
                false => Err(wrong("none")),
            };
        }
        let number = u64::try_from(number.as_primitive::<Int64Type>().value(0));
        number.map(Some).map_err(|_| wrong("less than none"))
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
        let with = merged_without::<Search<Asked>>(scopes);
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

/// What of a query's LIMIT and OFFSET is to be asked for.
fn asked_part(query: &mut Query) -> Option<&mut Expr> {
    let Some(LimitClause::LimitOffset { limit, offset, .. }) = &mut query.limit_clause else {
        return None;
    };
    let offset = offset.as_mut().map(|offset| &mut offset.value);
    let mut parts = limit.as_mut().into_iter().chain(offset);
    parts.find(|part| share(part).is_some() || query_of(part).is_some())
}

fn query_of(part: &Expr) -> Option<&Query> {
    match part {
        Expr::Nested(inner) => query_of(inner),
        Expr::Subquery(query) => Some(query),
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

/// A query with such a part, and that.
struct Asked(Query, Expr);

impl Pending for Asked {
    fn in_query(query: &mut Query) -> Option<Self> {
        let found = asked_part(query).cloned();
        found.map(|part| Self(query.clone(), part))
    }
}

/// Puts a number in the place of the first [`Asked`].
struct Replace(Value);

impl VisitorMut for Replace {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        match asked_part(query) {
            Some(part) => {
                *part = Expr::value(self.0.clone());
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        }
    }
}

//! PIVOT without values: those that there are are asked for before the statement is planned.

use std::ops::ControlFlow;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::lit;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    Expr, ExprWithAlias, Ident, PivotValueSource, TableFactor, VisitorMut, With,
};
use datafusion::sql::unparser::expr_to_sql;

use crate::Session;
use crate::asked_first::{Pending, Search, first, makes_view};
use crate::clauses;
use crate::columns::merged_without;
use crate::error::{Error, Result};
use crate::parameters::Values;
use crate::walk::walk_statement;

/// Values that become columns, at most.
const MOST: usize = 1000;

impl Session {
    /// Writes out the values of PIVOTs that name none.
    ///
    /// # Errors
    /// [`Error::Usage`] for too many of them, and in a view, which would keep those of now; those of the query
    /// for them.
    pub(crate) async fn write_out_pivots(
        &self,
        statement: &mut ParsedStatement,
        variables: &Values,
    ) -> Result<()> {
        let mut has_any = false;
        while let Some((scopes, Pivot(table, by))) = first(statement) {
            if makes_view(statement) {
                return Err(Error::usage(
                    "a view takes no PIVOT without values, which would stay those of now; write them: IN ('a', 'b')",
                ));
            }
            let values = self.values_of(&scopes, table, &by, variables).await?;
            let _ = walk_statement(statement, &mut Replace(values));
            has_any = true;
        }
        match has_any {
            true => clauses::correct(statement),
            false => Ok(()),
        }
    }

    /// The values that a column of a table has, and what columns of theirs are called.
    async fn values_of(
        &self,
        scopes: &[With],
        table: TableFactor,
        by: &Expr,
        variables: &Values,
    ) -> Result<Vec<ExprWithAlias>> {
        let most = MOST + 1;
        let query = format!(
            "SELECT DISTINCT {by} AS v FROM nothing WHERE {by} IS NOT NULL ORDER BY 1 LIMIT {most}"
        );
        let with = merged_without::<Search<Pivot>>(scopes);
        let batches = self.rows_over(&query, table, with, variables).await?;
        let mut values = Vec::new();
        for batch in &batches {
            for row in 0..batch.num_rows() {
                let value = ScalarValue::try_from_array(batch.column(0), row)?;
                let called = value.to_string();
                values.push(ExprWithAlias {
                    expr: expr_to_sql(&lit(value))?,
                    alias: Some(Ident::with_quote('"', called)),
                });
            }
        }
        match values.len() {
            0 => Err(Error::usage(format!(
                "PIVOT ON {by}: there are no values to make columns of; write them: IN ('a', 'b')"
            ))),
            1..=MOST => Ok(values),
            _ => Err(Error::usage(format!(
                "PIVOT ON {by}: more than {MOST} values would be columns; write those that are wanted: IN ('a', 'b')"
            ))),
        }
    }
}

/// What a PIVOT without values is of, if a table is one.
fn without_values(factor: &TableFactor) -> Option<(&TableFactor, &Expr)> {
    match factor {
        TableFactor::Pivot {
            table,
            value_column,
            value_source: PivotValueSource::Any(_),
            ..
        } => value_column.first().map(|by| (table.as_ref(), by)),
        _ => None,
    }
}

/// One, and the column that is pivoted on.
struct Pivot(TableFactor, Expr);

impl Pending for Pivot {
    fn in_table(factor: &mut TableFactor) -> Option<Self> {
        without_values(factor).map(|(table, by)| Self(table.clone(), by.clone()))
    }
}

/// Puts values into the first [`Pivot`].
struct Replace(Vec<ExprWithAlias>);

impl VisitorMut for Replace {
    type Break = ();

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if without_values(factor).is_some()
            && let TableFactor::Pivot { value_source, .. } = factor
        {
            *value_source = PivotValueSource::List(std::mem::take(&mut self.0));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

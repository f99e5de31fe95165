//! `FROM (DESCRIBE t)`, `FROM (SUMMARIZE t)` and `FROM (SHOW TABLES)`: the statement is run before the one around it
//! is planned, and its rows stand in its place.

use std::ops::ControlFlow;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::common::ScalarValue;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{LogicalPlan, lit};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Ident, ObjectNamePart, Query, Statement, TableFactor,
    VisitorMut,
};
use datafusion::sql::unparser::expr_to_sql;
use flashmesh_planner::type_name;

use crate::Session;
use crate::asked_first::{Pending, first, makes_view};
use crate::error::{Error, Result};
use crate::names::quoted_text;
use crate::own_statement::OwnStatement;
use crate::parameters::Values;
use crate::returning::Returning;
use crate::spelling::SHOWN;
use crate::walk::walk_statement;

impl Session {
    /// Puts the rows of statements in FROM into their places.
    ///
    /// # Errors
    /// [`Error::Usage`] in a view, which would keep those of now; those of the statement.
    pub(crate) async fn write_out_shown(
        &self,
        statement: &mut ParsedStatement,
        variables: &Values,
    ) -> Result<()> {
        while let Some((_, Shown(text))) = first(statement) {
            if makes_view(statement) {
                return Err(Error::usage(format!(
                    "a view takes no ({text}), which would stay that of now; write it in the query that reads it"
                )));
            }
            let rows = self.rows_shown(&text, variables).await?;
            let schema = rows.schema().inner().as_ref().clone();
            let query = self.query_for(&schema, &rows.collect().await?)?;
            let _ = walk_statement(statement, &mut Replace(Some(query)));
        }
        Ok(())
    }

    async fn rows_shown(&self, text: &str, variables: &Values) -> Result<DataFrame> {
        let other = || Error::usage(format!("({text}) is no table"));
        let Ok([mut shown]) = <[_; 1]>::try_from(self.parse(text)?) else {
            return Err(other());
        };
        if first::<Shown>(&mut shown).is_some() {
            return Err(Error::usage(format!(
                "({text}) shows what another statement shows; name a table or a query"
            )));
        }
        let plan = Box::pin(self.plan_in(shown, variables)).await?;
        // What changes something does so where it is run, and not where it is planned.
        let is_other = matches!(
            plan,
            LogicalPlan::Analyze(_)
                | LogicalPlan::Copy(_)
                | LogicalPlan::Ddl(_)
                | LogicalPlan::Dml(_)
                | LogicalPlan::Statement(_)
        );
        if is_other || OwnStatement::of(&plan).is_some() || Returning::of(&plan).is_some() {
            return Err(other());
        }
        Box::pin(self.execute(plan)).await
    }

    /// A query that gives such rows.
    fn query_for(&self, schema: &Schema, batches: &[RecordBatch]) -> Result<Box<Query>> {
        let quoted = |name: &str| Ident::with_quote('"', name).to_string();
        let fields = schema.fields().iter();
        let columns = fields.enumerate().map(|(at, field)| {
            let of = type_name(field.data_type());
            format!("CAST(c{at} AS {of}) AS {}", quoted(field.name()))
        });
        let columns: Vec<_> = columns.collect();
        let names: Vec<_> = (0..columns.len()).map(|at| format!("c{at}")).collect();
        let mut rows = Vec::new();
        for batch in batches {
            for row in 0..batch.num_rows() {
                let values = batch.columns().iter().map(|column| {
                    let value = ScalarValue::try_from_array(column, row)?;
                    Ok(expr_to_sql(&lit(value))?.to_string())
                });
                rows.push(format!(
                    "({})",
                    values.collect::<Result<Vec<_>>>()?.join(", ")
                ));
            }
        }
        let condition = match rows.is_empty() {
            true => "WHERE false",
            false => "",
        };
        if rows.is_empty() {
            rows.push(format!("({})", vec!["NULL"; columns.len()].join(", ")));
        }
        let text = format!(
            "SELECT {} FROM (VALUES {}) AS shown({}) {condition}",
            columns.join(", "),
            rows.join(", "),
            names.join(", ")
        );
        match self.parse(&text)?.pop() {
            Some(ParsedStatement::Statement(parsed)) => match *parsed {
                Statement::Query(query) => Ok(query),
                _ => Err(Error::usage("rows that are no query")),
            },
            _ => Err(Error::usage("rows that are no query")),
        }
    }
}

/// The statement that a table of FROM is.
fn text_of(factor: &TableFactor) -> Option<&str> {
    let TableFactor::Table {
        name,
        args: Some(args),
        ..
    } = factor
    else {
        return None;
    };
    match (name.0.as_slice(), args.args.as_slice()) {
        (
            [ObjectNamePart::Identifier(name)],
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(text @ Expr::Value(_)))],
        ) if name.value == SHOWN => quoted_text(text),
        _ => None,
    }
}

/// One of those.
struct Shown(String);

impl Pending for Shown {
    fn in_table(factor: &mut TableFactor) -> Option<Self> {
        text_of(factor).map(|text| Self(text.to_owned()))
    }
}

/// Puts a query in the place of the first.
struct Replace(Option<Box<Query>>);

impl VisitorMut for Replace {
    type Break = ();

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if text_of(factor).is_none() {
            return ControlFlow::Continue(());
        }
        if let TableFactor::Table { alias, .. } = factor
            && let Some(subquery) = self.0.take()
        {
            *factor = TableFactor::Derived {
                lateral: false,
                subquery,
                alias: alias.take(),
                sample: None,
            };
        }
        ControlFlow::Break(())
    }
}

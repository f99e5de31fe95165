//! Prepared statements and their parameters. What is kept is the statement, not its plan: each
//! execution plans it on the tables and with the rights of that time.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use arrow_flight::sql::SubstraitPlan;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, ParamValues, ScalarValue};
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use flashmesh_planner::walk::{Walk as _, WalkPlan as _};
use parking_lot::Mutex;

use super::columns::{self, client_schema};
use super::statements::{gives_rows, parse_one, substrait};
use crate::assign::assign;
use crate::error::Error;
use crate::parameters::{Values, inserts_one_row, variable};
use crate::returning::Returning;
use crate::server::shares::Kept;
use crate::{Result, Session};

/// What stands for the text of a Substrait plan in logs.
pub(super) const SUBSTRAIT: &str = "/* Substrait plan */";

/// Queries that one request runs, one for each row of parameters: each has a plan.
const EXECUTIONS: usize = 1_000;

/// A statement with parameters.
#[derive(Debug)]
pub(in crate::server) struct Prepared {
    sql: String,
    statement: Source,
    /// `$1`, `$2`, … in this order, with the types that clients are told.
    parameters: Vec<FieldRef>,
    bound: Mutex<Option<(RecordBatch, Kept)>>,
}

#[derive(Debug)]
enum Source {
    Sql(ParsedStatement),
    Substrait(SubstraitPlan),
}

/// A statement with the columns of its result: none for one that changes something and returns
/// nothing of it, which is how clients tell the two apart.
pub(super) type Described = (Prepared, SchemaRef);

impl Prepared {
    /// Prepares one statement, with parameters written `?` or `$1`, `$2`, …
    pub async fn new(session: &Session, sql: &str) -> Result<Described> {
        let statement = parse_one(session, &number_parameters(session, sql)?)?;
        Self::of(session, sql, Source::Sql(statement)).await
    }

    /// Prepares a plan.
    pub async fn of_substrait(session: &Session, plan: SubstraitPlan) -> Result<Described> {
        Self::of(session, SUBSTRAIT, Source::Substrait(plan)).await
    }

    async fn of(session: &Session, sql: &str, statement: Source) -> Result<Described> {
        let (parameters, result) = statement.describe(session).await?;
        let prepared = Self {
            sql: sql.to_string(),
            statement,
            parameters,
            bound: Mutex::default(),
        };
        Ok((prepared, result))
    }

    /// The columns of its result, as [`Described`] has them.
    pub async fn result_schema(&self, session: &Session) -> Result<SchemaRef> {
        Ok(self.statement.describe(session).await?.1)
    }

    /// Its text.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// Its parameters.
    pub fn parameter_schema(&self) -> SchemaRef {
        let schema = Arc::new(Schema::new(self.parameters.clone()));
        client_schema(&schema)
    }

    /// Whether it has parameters.
    pub fn has_parameters(&self) -> bool {
        !self.parameters.is_empty()
    }

    /// Sets the parameters of the executions that follow: one a row.
    pub fn bind(&self, schema: &SchemaRef, rows: &[RecordBatch], kept: Kept) -> Result<()> {
        if schema.fields().len() != self.parameters.len() {
            return Err(Error::usage(format!(
                "the statement has {} parameters, {} were given",
                self.parameters.len(),
                schema.fields().len()
            )));
        }
        *self.bound.lock() = Some((concat_batches(schema, rows)?, kept));
        Ok(())
    }

    /// The plans of its executions: one for each row of parameters, or one for all where it
    /// inserts them.
    pub async fn plans(&self, session: &Session) -> Result<Vec<LogicalPlan>> {
        if self.parameters.is_empty() {
            return Ok(vec![self.statement.plan(session, Vec::new()).await?]);
        }
        let bound = self.bound.lock().as_ref().map(|(rows, _)| rows.clone());
        let Some(bound) = bound else {
            return Err(Error::usage(format!(
                "the statement has {} parameters that were not bound",
                self.parameters.len()
            )));
        };
        if let Source::Sql(statement) = &self.statement
            && inserts_one_row(statement)
            && let Some(plan) = insert_of(session, statement, &bound).await?
        {
            return Ok(vec![plan]);
        }
        if bound.num_rows() > EXECUTIONS {
            return Err(Error::usage(format!(
                "{} rows of parameters would be as many queries, and a request runs {EXECUTIONS}; bind fewer, or ingest them into a table and join it",
                bound.num_rows()
            )));
        }
        let mut plans = Vec::with_capacity(bound.num_rows());
        for row in 0..bound.num_rows() {
            let values = bound.columns().iter();
            let values = values.map(|column| ScalarValue::try_from_array(column, row));
            let values = values.collect::<datafusion::error::Result<Vec<_>>>()?;
            plans.push(self.statement.plan(session, values).await?);
        }
        Ok(plans)
    }
}

impl Source {
    /// The parameters, with the types that clients are told, and the columns of the result.
    async fn describe(&self, session: &Session) -> Result<(Vec<FieldRef>, SchemaRef)> {
        let (parameters, plan) = match self {
            Self::Sql(statement) => session.describe(statement).await?,
            Self::Substrait(plan) => {
                let plan = substrait(session, Some(plan.clone())).await?;
                let mut names: Vec<_> = plan.get_parameter_names()?.into_iter().collect();
                names.sort_by_key(|name| (name.len(), name.clone()));
                let types = plan.get_parameter_types()?;
                let parameters = names.into_iter().map(|name| {
                    let data_type = types.get(&name).cloned().flatten();
                    let data_type = data_type.unwrap_or(arrow::datatypes::DataType::Utf8);
                    Arc::new(Field::new(name, data_type, true))
                });
                (parameters.collect(), plan)
            }
        };
        let result = match gives_rows(&plan) {
            true => columns::of_plan(session, &plan)?,
            false => Arc::new(Schema::empty()),
        };
        Ok((parameters, result))
    }

    /// The plan of one execution.
    async fn plan(&self, session: &Session, values: Vec<ScalarValue>) -> Result<LogicalPlan> {
        match self {
            Self::Sql(statement) => session.plan_with(statement, &Values::new(values)).await,
            Self::Substrait(plan) => {
                let plan = substrait(session, Some(plan.clone())).await?;
                Ok(plan.with_param_values(ParamValues::from(values))?)
            }
        }
    }
}

/// `INSERT … VALUES (?, …)` of many rows as one statement: the rows of the parameters take the
/// place of the one row of VALUES. `None` where parameters are elsewhere, too.
async fn insert_of(
    session: &Session,
    statement: &ParsedStatement,
    bound: &RecordBatch,
) -> Result<Option<LogicalPlan>> {
    let given = bound.schema();
    let types = given.fields().iter().map(|field| field.data_type());
    let nulls = types.map(ScalarValue::try_from);
    let nulls = nulls.collect::<datafusion::error::Result<Vec<_>>>()?;
    let plan = session.plan_typed(statement, &Values::new(nulls)).await?;
    let (plan, returned) = match Returning::of(&plan) {
        Some(returning) => (returning.change.clone(), Some(returning.rows.clone())),
        None => (plan, None),
    };
    let LogicalPlan::Dml(mut insert) = plan else {
        return Ok(None);
    };
    // While VALUES are there to be seen.
    insert.input = Arc::new(assign(Arc::unwrap_or_clone(insert.input))?);
    let mut plan = LogicalPlan::Dml(insert);
    if let Some(rows) = returned {
        plan = Returning::plan(plan, rows)?;
    }

    let fields = given.fields().iter().enumerate();
    let fields = fields
        .map(|(place, field)| Field::new(variable(place + 1), field.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let rows = RecordBatch::try_new(Arc::clone(&schema), bound.columns().to_vec())?;
    let table = provider_as_source(Arc::new(MemTable::try_new(schema, vec![vec![rows]])?));
    let plan = plan.transform_up(|node| {
        let LogicalPlan::Values(values) = &node else {
            return Ok(Transformed::no(node));
        };
        let [row] = values.values.as_slice() else {
            return Ok(Transformed::no(node));
        };
        let exprs = row.iter().zip(values.schema.fields()).map(|(expr, field)| {
            let expr = expr.clone().transform_up(|expr| match &expr {
                Expr::ScalarVariable(_, names) => {
                    let column = Column::from_name(names.concat());
                    Ok(Transformed::yes(Expr::Column(column)))
                }
                _ => Ok(Transformed::no(expr)),
            })?;
            Ok(expr.data.alias(field.name()))
        });
        let exprs = exprs.collect::<datafusion::error::Result<Vec<_>>>()?;
        let scan = LogicalPlanBuilder::scan("parameters", Arc::clone(&table), None)?;
        Ok(Transformed::yes(scan.project(exprs)?.build()?))
    })?;
    let mut variables = false;
    plan.data.walk_with_subqueries(|node| {
        node.walk_expressions(|expr| {
            variables |= expr.exists(|e| Ok(matches!(e, Expr::ScalarVariable(..))))?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok((!variables).then_some(plan.data))
}

/// `sql` with its `?` as `$1`, `$2`, …
fn number_parameters(session: &Session, sql: &str) -> Result<String> {
    let dialect = dialect_from_str(session.options().sql_parser.dialect)
        .ok_or_else(|| Error::usage("the session's SQL dialect is not known"))?;
    let tokens = Tokenizer::new(dialect.as_ref(), sql).tokenize_with_location();
    // What can't be cut into tokens can't be parsed either; the parser says why.
    let Ok(tokens) = tokens else {
        return Ok(sql.to_string());
    };
    let is_parameter = |token: &Token| matches!(token, Token::Placeholder(name) if name == "?");
    let mut parameters = tokens
        .iter()
        .filter(|token| is_parameter(&token.token))
        .map(|token| token.span.start);
    let mut next = parameters.next();
    let mut numbered = String::with_capacity(sql.len() + 16);
    let (mut line, mut column, mut number) = (1, 1, 0);
    for char in sql.chars() {
        match next {
            Some(at) if (at.line, at.column) == (line, column) => {
                number += 1;
                numbered.push_str(&format!("${number}"));
                next = parameters.next();
            }
            _ => numbered.push(char),
        }
        match char {
            '\n' => (line, column) = (line + 1, 1),
            _ => column += 1,
        }
    }
    Ok(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_marks_become_numbers_but_not_in_text() {
        let session = crate::Engine::open(Default::default()).unwrap();
        let session = session.session().unwrap();
        for (sql, expected) in [
            ("SELECT ?, ?", "SELECT $1, $2"),
            (
                "SELECT 'it''s ?', \"a?\", ? -- ?\n + ? /* ? */",
                "SELECT 'it''s ?', \"a?\", $1 -- ?\n + $2 /* ? */",
            ),
            ("SELECT 'ä\n€', ?", "SELECT 'ä\n€', $1"),
            ("SELECT $1", "SELECT $1"),
        ] {
            assert_eq!(number_parameters(&session, sql).unwrap(), expected);
        }
    }
}

//! Prepared statements and their parameters.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, ParamValues, ScalarValue};
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast};
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use parking_lot::Mutex;

use super::results::client_schema;
use super::statements::{is_query, plan_one};
use crate::error::Error;
use crate::server::shares::Kept;
use crate::{Result, Session};

/// Marks a parameter whose type the statement does not tell: it has that of the value.
const UNTYPED: &str = "flashmesh.untyped";

/// Queries that one request runs, one for each row of parameters: each has a plan.
const EXECUTIONS: usize = 1_000;

/// A statement with parameters.
#[derive(Debug)]
pub(in crate::server) struct Prepared {
    sql: String,
    plan: LogicalPlan,
    /// `$1`, `$2`, … in this order, with their types as far as the statement tells.
    parameters: Vec<FieldRef>,
    bound: Mutex<Option<(RecordBatch, Kept)>>,
}

impl Prepared {
    /// Prepares one statement, with parameters written `?` or `$1`, `$2`, …
    pub async fn new(session: &Session, sql: &str) -> Result<Self> {
        let numbered = number_parameters(session, sql)?;
        let plan = plan_one(session, &numbered).await?;
        Self::of_plan(sql, plan)
    }

    /// Prepares a plan.
    pub fn of_plan(sql: &str, plan: LogicalPlan) -> Result<Self> {
        let types = plan.get_parameter_fields()?;
        let mut names: Vec<_> = types.keys().cloned().collect();
        names.sort_by_key(|name| (name.len(), name.clone()));
        for (position, name) in names.iter().enumerate() {
            let number = name.strip_prefix('$').and_then(|n| n.parse().ok());
            if number.is_some_and(|number: usize| number != position + 1) {
                return Err(Error::usage(format!(
                    "parameters are numbered from $1 without gaps; there is {name} and no ${}",
                    position + 1
                )));
            }
        }
        let parameters = names.into_iter().map(|name| {
            let known = types.get(&name).cloned().flatten();
            Arc::new(match known {
                Some(field) => Field::new(name, field.data_type().clone(), true),
                None => Field::new(name, DataType::Utf8, true)
                    .with_metadata(HashMap::from([(UNTYPED.into(), String::new())])),
            }) as FieldRef
        });
        Ok(Self {
            sql: sql.to_string(),
            parameters: parameters.collect(),
            plan,
            bound: Mutex::default(),
        })
    }

    /// The columns of its result; none for a statement that changes something, which is how
    /// clients tell the two apart.
    pub fn result_schema(&self) -> SchemaRef {
        match is_query(&self.plan) {
            true => client_schema(self.plan.schema().inner()),
            false => Arc::new(Schema::empty()),
        }
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
    pub fn plans(&self) -> Result<Vec<LogicalPlan>> {
        if self.parameters.is_empty() {
            return Ok(vec![self.plan.clone()]);
        }
        let bound = self.bound.lock().as_ref().map(|(rows, _)| rows.clone());
        let Some(bound) = bound else {
            return Err(Error::usage(format!(
                "the statement has {} parameters that were not bound",
                self.parameters.len()
            )));
        };
        if let Some(plan) = self.insert_of(&bound)? {
            return Ok(vec![plan]);
        }
        if bound.num_rows() > EXECUTIONS {
            return Err(Error::usage(format!(
                "{} rows of parameters would be as many queries, and a request runs {EXECUTIONS}; bind fewer, or ingest them into a table and join it",
                bound.num_rows()
            )));
        }
        (0..bound.num_rows())
            .map(|row| {
                let values = self.parameters.iter().zip(bound.columns());
                let values = values.map(|(parameter, column)| {
                    let value = ScalarValue::try_from_array(column, row)?;
                    match parameter.metadata().contains_key(UNTYPED) {
                        true => Ok(value),
                        false => value.cast_to(parameter.data_type()),
                    }
                });
                let values = values.collect::<datafusion::error::Result<Vec<_>>>()?;
                let plan = self.plan.clone();
                Ok(plan.with_param_values(ParamValues::from(values))?)
            })
            .collect()
    }

    /// `INSERT … VALUES (?, …)` of many rows as one statement: the rows of the parameters take
    /// the place of the one row of VALUES. `None` for other statements.
    fn insert_of(&self, bound: &RecordBatch) -> Result<Option<LogicalPlan>> {
        let LogicalPlan::Dml(_) = &self.plan else {
            return Ok(None);
        };
        let schema = Arc::new(Schema::new(
            self.parameters
                .iter()
                .zip(bound.schema().fields())
                .map(|(parameter, given)| {
                    Field::new(parameter.name(), given.data_type().clone(), true)
                })
                .collect::<Vec<_>>(),
        ));
        let rows = RecordBatch::try_new(Arc::clone(&schema), bound.columns().to_vec())?;
        let table = provider_as_source(Arc::new(MemTable::try_new(schema, vec![vec![rows]])?));
        let types: HashMap<_, _> = self
            .parameters
            .iter()
            .map(|field| (field.name().clone(), field.data_type().clone()))
            .collect();
        let mut replaced = 0;
        let plan = self.plan.clone().transform_up(|node| {
            let LogicalPlan::Values(values) = &node else {
                return Ok(Transformed::no(node));
            };
            let [row] = values.values.as_slice() else {
                return Ok(Transformed::no(node));
            };
            replaced += 1;
            let exprs = row.iter().zip(values.schema.fields()).map(|(expr, field)| {
                let expr = expr.clone().transform_up(|expr| match &expr {
                    Expr::Placeholder(placeholder) => {
                        let column = Expr::Column(Column::from_name(&placeholder.id));
                        let data_type = types.get(&placeholder.id).cloned();
                        let data_type = data_type.unwrap_or(DataType::Utf8);
                        Ok(Transformed::yes(cast(column, data_type)))
                    }
                    _ => Ok(Transformed::no(expr)),
                })?;
                Ok(expr.data.alias(field.name()))
            });
            let exprs = exprs.collect::<datafusion::error::Result<Vec<_>>>()?;
            let scan = LogicalPlanBuilder::scan("parameters", Arc::clone(&table), None)?;
            Ok(Transformed::yes(scan.project(exprs)?.build()?))
        })?;
        let mut placeholders = false;
        plan.data.apply_with_subqueries(|node| {
            node.apply_expressions(|expr| {
                placeholders |= expr.exists(|e| Ok(matches!(e, Expr::Placeholder(_))))?;
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok((replaced == 1 && !placeholders).then_some(plan.data))
    }
}

/// `sql` with its `?` as `$1`, `$2`, …
fn number_parameters(session: &Session, sql: &str) -> Result<String> {
    let state = session.context().state();
    let dialect = dialect_from_str(state.config_options().sql_parser.dialect)
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

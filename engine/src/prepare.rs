//! `PREPARE`, `EXECUTE` and `DEALLOCATE`. What is kept is the statement, not its plan: it is
//! planned each time that it is executed, on the tables and with the rights of that time.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Schema};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, Statement};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast;

use crate::Session;
use crate::error::{Error, Result};
use crate::exact::cast_exactly;
use crate::own_statement::PreparedStatement;
use crate::parameters::{self, Values};

/// Statements that a session may have prepared.
const PREPARED_STATEMENTS: usize = 10_000;
/// Bytes of their text.
const PREPARED_BYTES: usize = 16 << 20;

impl Session {
    /// What a parsed PREPARE says; the statement is planned, too, so that its errors show now.
    pub(crate) async fn parsed_prepare(
        &self,
        state: &SessionState,
        prepare: ast::Statement,
    ) -> Result<PreparedStatement> {
        let ast::Statement::Prepare {
            name,
            data_types,
            statement,
        } = &prepare
        else {
            return Err(Error::usage("this is no PREPARE"));
        };
        let name = self.normalise(name);
        let statement = statement.clone();
        let parsed = ParsedStatement::Statement(statement.clone());
        let count = parameters::count(&parsed)?;
        if !data_types.is_empty() && data_types.len() != count {
            return Err(Error::usage(format!(
                "PREPARE {name} names {} types, and the statement has {count} parameters",
                data_types.len()
            )));
        }
        let (types, plan) = match data_types.is_empty() {
            true => (Vec::new(), self.describe(&parsed).await?.1),
            false => {
                let types = declared(state, prepare).await?;
                let values = Values::of_types(types.iter().map(Some))?;
                let plan = self.plan_typed(&parsed, &values).await?;
                (types, plan)
            }
        };
        if matches!(
            plan,
            LogicalPlan::Ddl(_) | LogicalPlan::Copy(_) | LogicalPlan::Statement(_)
        ) {
            return Err(Error::usage("only queries and INSERT can be prepared"));
        }
        Ok(PreparedStatement {
            name,
            types,
            bytes: statement.to_string().len(),
            statement,
        })
    }

    /// Keeps a prepared statement.
    pub(crate) fn prepare(&self, statement: PreparedStatement) -> Result<()> {
        let name = &statement.name;
        let mut prepared = self.prepared().lock();
        if prepared.contains_key(name) {
            return Err(Error::usage(format!(
                "there is a prepared statement '{name}' already; DEALLOCATE it first, or choose another name"
            )));
        }
        if prepared.len() >= PREPARED_STATEMENTS {
            return Err(Error::usage(format!(
                "the session has {PREPARED_STATEMENTS} prepared statements; DEALLOCATE some"
            )));
        }
        let bytes: usize = prepared.values().map(|kept| kept.bytes).sum();
        if bytes + statement.bytes > PREPARED_BYTES {
            return Err(Error::usage(format!(
                "the session's prepared statements would be longer than {PREPARED_BYTES} bytes; DEALLOCATE some"
            )));
        }
        prepared.insert(name.clone(), Arc::new(statement));
        Ok(())
    }

    /// Forgets a prepared statement, or with ALL each of them.
    pub(crate) fn deallocate(&self, name: &str) -> Result<()> {
        let mut prepared = self.prepared().lock();
        if prepared.remove(name).is_some() {
            return Ok(());
        }
        if name.eq_ignore_ascii_case("all") {
            prepared.clear();
            return Ok(());
        }
        Err(no_such_statement(name))
    }

    /// The plan of EXECUTE: that of the statement, with values.
    pub(crate) async fn plan_execute(
        &self,
        state: &SessionState,
        execute: ast::Statement,
    ) -> Result<LogicalPlan> {
        let parsed = ParsedStatement::Statement(Box::new(execute));
        let LogicalPlan::Statement(Statement::Execute(execute)) =
            state.statement_to_plan(parsed).await?
        else {
            return Err(Error::usage("this is no EXECUTE"));
        };
        let prepared = self.prepared().lock().get(&execute.name).cloned();
        let prepared = prepared.ok_or_else(|| no_such_statement(&execute.name))?;
        let statement = ParsedStatement::Statement(prepared.statement.clone());
        let count = parameters::count(&statement)?;
        if execute.parameters.len() != count {
            return Err(Error::usage(format!(
                "prepared statement '{}' has {count} parameters, {} were given",
                prepared.name,
                execute.parameters.len()
            )));
        }
        let values = execute.parameters.into_iter().enumerate();
        let values = values.map(|(place, expr)| {
            let value = constant(state, expr)?;
            match prepared.types.get(place) {
                None => Ok(value),
                Some(declared) => {
                    let name = format!("${}", place + 1);
                    let value = cast_exactly(&value.to_array()?, declared, &name)?;
                    Ok(ScalarValue::try_from_array(&value, 0)?)
                }
            }
        });
        let values = Values::new(values.collect::<Result<Vec<_>>>()?);
        self.plan_with(&statement, &values).await
    }
}

fn no_such_statement(name: &str) -> Error {
    Error::usage(format!(
        "there is no prepared statement '{name}' in this session; PREPARE it first"
    ))
}

/// The types that PREPARE names.
async fn declared(state: &SessionState, prepare: ast::Statement) -> Result<Vec<DataType>> {
    let parsed = ParsedStatement::Statement(Box::new(prepare));
    let LogicalPlan::Statement(Statement::Prepare(prepare)) =
        state.statement_to_plan(parsed).await?
    else {
        return Err(Error::usage("this is no PREPARE"));
    };
    let types = prepare.fields.iter().map(|field| field.data_type().clone());
    Ok(types.collect())
}

/// The value of an expression without columns.
fn constant(state: &SessionState, expr: Expr) -> Result<ScalarValue> {
    let plan = LogicalPlanBuilder::empty(true).project([expr])?.build()?;
    // With what is of a statement, as `now()`.
    let plan = state.optimize(&plan)?;
    let exprs = plan.expressions();
    let [expr] = exprs.as_slice() else {
        return Err(Error::usage("a parameter is a value, and no set of rows"));
    };
    let expr = state.create_physical_expr(expr.clone(), &DFSchema::empty())?;
    let one_row = RecordBatch::try_new_with_options(
        Arc::new(Schema::empty()),
        Vec::<ArrayRef>::new(),
        &RecordBatchOptions::new().with_row_count(Some(1)),
    )?;
    Ok(match expr.evaluate(&one_row)? {
        ColumnarValue::Scalar(value) => value,
        ColumnarValue::Array(values) => ScalarValue::try_from_array(&values, 0)?,
    })
}

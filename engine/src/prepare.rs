//! PREPARE, EXECUTE and DEALLOCATE.
//!
//! What is kept of a prepared statement is the statement as it was parsed. Each EXECUTE plans it
//! again, so that it means what the same text would mean then: a table that was dropped is an
//! error, and one that was made anew is read with its new columns.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, DFSchemaRef, ParamValues};
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    Execute, Expr, Extension, LogicalPlan, Prepare, Statement, UserDefinedLogicalNodeCore,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::scalar::ScalarValue;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast;
use parking_lot::Mutex;

use crate::Session;
use crate::error::{Error, Result};

/// Prepared statements that a session may hold: each keeps its text.
const MAX_PREPARED: usize = 1_000;

/// The prepared statements of a session, by name.
#[derive(Debug, Default)]
pub(crate) struct PreparedStatements(Mutex<HashMap<String, Arc<Prepared>>>);

/// What PREPARE keeps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Prepared {
    statement: ast::Statement,
    /// The types of the parameters where it names them; else each value has its own.
    types: Vec<DataType>,
}

/// PREPARE or DEALLOCATE, as a plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PrepareStatement {
    name: String,
    /// `None`: DEALLOCATE.
    prepared: Option<Arc<Prepared>>,
    schema: DFSchemaRef,
}

impl PartialOrd for PrepareStatement {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self == other).then_some(std::cmp::Ordering::Equal)
    }
}

impl UserDefinedLogicalNodeCore for PrepareStatement {
    fn name(&self) -> &str {
        match self.prepared {
            Some(_) => "Prepare",
            None => "Deallocate",
        }
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{}: {}",
            UserDefinedLogicalNodeCore::name(self),
            self.name
        )
    }

    fn with_exprs_and_inputs(
        &self,
        _: Vec<Expr>,
        _: Vec<LogicalPlan>,
    ) -> datafusion::error::Result<Self> {
        Ok(self.clone())
    }
}

impl PrepareStatement {
    fn plan(name: String, prepared: Option<Prepared>) -> LogicalPlan {
        LogicalPlan::Extension(Extension {
            node: Arc::new(Self {
                name,
                prepared: prepared.map(Arc::new),
                schema: Arc::new(DFSchema::empty()),
            }),
        })
    }
}

impl Session {
    /// The plan of PREPARE, EXECUTE or DEALLOCATE; that of any other statement comes back as
    /// `None`. EXECUTE is planned as the statement that it names.
    pub(crate) async fn plan_prepared(
        &self,
        statement: &ast::Statement,
    ) -> Result<Option<LogicalPlan>> {
        let whole = || ParsedStatement::Statement(Box::new(statement.clone()));
        match statement {
            ast::Statement::Prepare {
                statement: inner,
                data_types,
                ..
            } => {
                let (name, fields, plan) = match self.plan_other(whole()).await? {
                    LogicalPlan::Statement(Statement::Prepare(Prepare {
                        name,
                        fields,
                        input,
                    })) => (name, fields, input),
                    other => return Ok(Some(other)),
                };
                if matches!(*plan, LogicalPlan::Ddl(_) | LogicalPlan::Statement(_)) {
                    return Err(Error::usage("only queries and INSERT can be prepared"));
                }
                let types = match data_types.is_empty() {
                    true => Vec::new(),
                    false => fields.iter().map(|f| f.data_type().clone()).collect(),
                };
                let statement = inner.as_ref().clone();
                let prepared = Prepared { statement, types };
                Ok(Some(PrepareStatement::plan(name, Some(prepared))))
            }
            ast::Statement::Execute { .. } => match self.plan_other(whole()).await? {
                LogicalPlan::Statement(Statement::Execute(execute)) => {
                    Ok(Some(self.plan_execute(execute).await?))
                }
                other => Ok(Some(other)),
            },
            ast::Statement::Deallocate { .. } => match self.plan_other(whole()).await? {
                LogicalPlan::Statement(Statement::Deallocate(deallocate)) => {
                    Ok(Some(PrepareStatement::plan(deallocate.name, None)))
                }
                other => Ok(Some(other)),
            },
            _ => Ok(None),
        }
    }

    /// The statement that EXECUTE names, with its parameters.
    async fn plan_execute(&self, execute: Execute) -> Result<LogicalPlan> {
        let Execute { name, parameters } = execute;
        let prepared = self.prepared().0.lock().get(&name).cloned();
        let Some(prepared) = prepared else {
            return Err(Error::usage(format!(
                "there is no prepared statement '{name}' in this session; PREPARE {name} AS … makes it"
            )));
        };
        let types = &prepared.types;
        if !types.is_empty() && types.len() != parameters.len() {
            return Err(Error::usage(format!(
                "prepared statement '{name}' takes {} parameters, {} were given",
                types.len(),
                parameters.len()
            )));
        }
        let mut values = Vec::with_capacity(parameters.len());
        for (position, parameter) in parameters.into_iter().enumerate() {
            let value = self.constant(parameter)?;
            values.push(match types.get(position) {
                Some(data_type) => value.cast_to(data_type)?,
                None => value,
            });
        }
        let statement = Box::new(prepared.statement.clone());
        let plan = self
            .plan_other(ParsedStatement::Statement(statement))
            .await?;
        Ok(plan.with_param_values(ParamValues::from(values))?)
    }

    /// The value of a parameter, which may be computed of constants.
    fn constant(&self, parameter: Expr) -> Result<ScalarValue> {
        let state = self.context().state();
        let context = SimplifyContext::builder()
            .with_schema(Arc::new(DFSchema::empty()))
            .with_config_options(Arc::clone(state.config_options()))
            .with_query_execution_start_time(state.execution_props().query_execution_start_time)
            .build();
        match ExprSimplifier::new(context).simplify(parameter)? {
            Expr::Literal(value, _) => Ok(value),
            other => Err(Error::usage(format!(
                "a parameter of EXECUTE is a constant, not {other}"
            ))),
        }
    }

    /// Runs PREPARE or DEALLOCATE.
    pub(crate) fn prepare(&self, statement: &PrepareStatement) -> Result<DataFrame> {
        let mut known = self.prepared().0.lock();
        let (name, count) = (&statement.name, known.len());
        match (&statement.prepared, known.entry(name.clone())) {
            (Some(_), Entry::Occupied(_)) => {
                return Err(Error::usage(format!(
                    "prepared statement '{name}' already exists; DEALLOCATE {name} removes it"
                )));
            }
            (Some(_), Entry::Vacant(_)) if count >= MAX_PREPARED => {
                return Err(Error::usage(format!(
                    "a session holds {MAX_PREPARED} prepared statements; DEALLOCATE some"
                )));
            }
            (Some(prepared), Entry::Vacant(entry)) => {
                entry.insert(Arc::clone(prepared));
            }
            (None, Entry::Occupied(entry)) => {
                entry.remove();
            }
            (None, Entry::Vacant(_)) => {
                return Err(Error::usage(format!(
                    "there is no prepared statement '{name}' in this session"
                )));
            }
        }
        self.nothing()
    }
}

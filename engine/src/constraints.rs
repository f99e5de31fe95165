//! CHECK constraints: what CREATE TABLE says of them, their texts, and what tests them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, TableReference};
use datafusion::error::DataFusionError;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    DdlStatement, Expr, ExprSchemable, LogicalPlan, Volatility, table_scan,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast::{
    self, CheckConstraint, ColumnOption, Query, TableConstraint, Visitor,
};
use datafusion::sql::unparser::Unparser;
use flashmesh_planner::walk::Walk as _;
use flashmesh_storage::StorageError;
use flashmesh_storage::table::{Check, CheckLanguage, RowTest};
use parking_lot::Mutex;

use crate::bounded::bound_functions;
use crate::defaults::parsed_text;
use crate::error::{Error, Result};
use crate::names::name_of;
use crate::resources::session_config;
use crate::table_options::with_marks;
use crate::types::SqlTypes;
use crate::walk::walk;

/// What marks the plan of CREATE TABLE with constraints: pairs of name and text, in JSON.
const CHECKS: &str = "flashmesh.checks";
/// The table that a condition is over while it is planned.
const TABLE: &str = "checked";
/// Tables whose conditions stay ready.
const KEPT: usize = 64;

/// A constraint as CREATE TABLE has it.
#[derive(Debug)]
pub(crate) struct Written {
    name: Option<String>,
    /// The column that it stands behind.
    column: Option<String>,
    condition: ast::Expr,
}

/// Takes the CHECK constraints out of CREATE TABLE, which DataFusion refuses.
///
/// # Errors
/// [`Error::Usage`] for one that would not be enforced.
pub(crate) fn take_checks(statement: &mut ast::Statement) -> Result<Vec<Written>> {
    let ast::Statement::CreateTable(create) = statement else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for column in &mut create.columns {
        found.extend(take_checks_of(column)?);
    }
    for constraint in std::mem::take(&mut create.constraints) {
        match constraint {
            TableConstraint::Check(check) => {
                let name = check.name.clone();
                found.push(Written::of(check, name, None)?);
            }
            _ => create.constraints.push(constraint),
        }
    }
    Ok(found)
}

/// The same of a column's definition.
///
/// # Errors
/// As [`take_checks`].
pub(crate) fn take_checks_of(column: &mut ast::ColumnDef) -> Result<Vec<Written>> {
    let mut found = Vec::new();
    for option in std::mem::take(&mut column.options) {
        match option.option {
            ColumnOption::Check(check) => {
                let name = option.name.or(check.name.clone());
                found.push(Written::of(check, name, Some(name_of(&column.name)))?);
            }
            _ => column.options.push(option),
        }
    }
    Ok(found)
}

impl Written {
    /// A constraint that ALTER TABLE adds.
    ///
    /// # Errors
    /// As [`take_checks`].
    pub fn added(check: &CheckConstraint) -> Result<Self> {
        Self::of(check.clone(), check.name.clone(), None)
    }

    fn of(
        check: CheckConstraint,
        name: Option<ast::Ident>,
        column: Option<String>,
    ) -> Result<Self> {
        if check.enforced == Some(false) {
            return Err(Error::usage(format!(
                "{check}: constraints are always enforced; leave it out"
            )));
        }
        Ok(Self {
            name: name.as_ref().map(name_of),
            column,
            condition: *check.expr,
        })
    }
}

/// The plan of CREATE TABLE with its constraints in it, each of which gets a name.
///
/// # Errors
/// [`Error::Usage`] for what is no condition on the columns of one row, and for a name given twice.
pub(crate) fn with_checks(
    plan: LogicalPlan,
    written: Vec<Written>,
    state: &SessionState,
) -> Result<LogicalPlan> {
    let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) = plan else {
        return Ok(plan);
    };
    if written.is_empty() {
        return Ok(LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)));
    }
    let columns = create.input.schema().as_arrow();
    let checks = named(create.name.table(), columns, &[], written, state)?;
    let checks = checks.into_iter().map(|check| (check.name, check.text));
    let checks: Vec<_> = checks.collect();
    let checks = serde_json::json!(checks).to_string();
    with_marks(create, HashMap::from([(CHECKS.to_owned(), checks)]))
}

/// Constraints on a table of these columns beside those that are there, each with a name.
///
/// # Errors
/// As [`with_checks`].
pub(crate) fn named(
    table: &str,
    columns: &Schema,
    present: &[Check],
    written: Vec<Written>,
    state: &SessionState,
) -> Result<Vec<Check>> {
    let columns = DFSchema::try_from_qualified_schema(TableReference::bare(table), columns)?;
    let said = written.iter().filter_map(|check| check.name.clone());
    let mut names: HashSet<_> = present.iter().map(|check| check.name.clone()).collect();
    for name in said {
        if !names.insert(name.clone()) {
            return Err(Error::usage(format!(
                "table '{table}' would have two constraints named '{name}'"
            )));
        }
    }
    let mut checks = Vec::with_capacity(written.len());
    for check in written {
        let name = match check.name {
            Some(name) => name,
            None => {
                let name = match &check.column {
                    Some(column) => format!("{table}_{column}_check"),
                    None => format!("{table}_check"),
                };
                let numbered = (1..).map(|number| format!("{name}{number}"));
                let mut free = std::iter::once(name.clone()).chain(numbered);
                let free = free.find(|name| !names.contains(name)).unwrap_or(name);
                names.insert(free.clone());
                free
            }
        };
        let condition = planned(&name, check.condition, &columns, state)?;
        let text = text_of(&condition, columns.as_arrow(), state)?;
        let text = text.ok_or_else(|| {
            Error::usage(format!(
                "CHECK constraint '{name}' can't be kept as text; write it in other words"
            ))
        })?;
        checks.push(Check { name, text });
    }
    Ok(checks)
}

/// The constraints that [`with_checks`] has put into a plan.
pub(crate) fn checks_of(input: &LogicalPlan) -> Vec<Check> {
    let mark = input.schema().metadata().get(CHECKS);
    let pairs = mark.and_then(|mark| serde_json::from_str(mark).ok());
    let pairs: Vec<(String, String)> = pairs.unwrap_or_default();
    let checks = pairs.into_iter().map(|(name, text)| Check { name, text });
    checks.collect()
}

/// A condition on columns, which are called by their names alone.
fn planned(
    name: &str,
    condition: ast::Expr,
    columns: &DFSchema,
    state: &SessionState,
) -> Result<Expr> {
    let refused = |what: &str| {
        Err(Error::usage(format!(
            "CHECK constraint '{name}' takes no {what}: it is about the columns of one row, and says the same of it at all times"
        )))
    };
    if walk(&condition, &mut Subqueries).is_break() {
        return refused("subquery");
    }
    let written = condition.to_string();
    let condition = ast::ExprWithAlias {
        expr: condition,
        alias: None,
    };
    let condition = state.create_logical_expr_from_sql_expr(condition, columns)?;
    if let Some(what) = foreign(&condition)? {
        return refused(&what);
    }
    let data_type = condition.get_type(columns)?;
    if !matches!(data_type, DataType::Boolean | DataType::Null) {
        return Err(Error::usage(format!(
            "CHECK constraint '{name}' is no condition: {written} is of type {data_type}"
        )));
    }
    bare(condition)
}

/// The expression with columns by their names alone, and without names for its parts.
fn bare(expr: Expr) -> Result<Expr> {
    let bare = |expr| match expr {
        Expr::Column(column) => Transformed::yes(Expr::Column(Column::from_name(column.name))),
        Expr::Alias(alias) => Transformed::yes(*alias.expr),
        other => Transformed::no(other),
    };
    Ok(expr.transform_up(|expr| Ok(bare(expr)))?.data)
}

struct Subqueries;

impl Visitor for Subqueries {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

/// What an expression has that is not of one row, or not always the same.
fn foreign(condition: &Expr) -> Result<Option<String>> {
    let mut found = None;
    condition.apply(|expr| {
        found = match expr {
            Expr::AggregateFunction(_) => Some("aggregate".to_owned()),
            Expr::WindowFunction(_) => Some("window function".to_owned()),
            Expr::Exists(_)
            | Expr::InSubquery(_)
            | Expr::ScalarSubquery(_)
            | Expr::SetComparison(_) => Some("subquery".to_owned()),
            Expr::Lambda(_) => Some("lambda function".to_owned()),
            Expr::Unnest(_) => Some("unnest".to_owned()),
            Expr::Placeholder(_) => Some("parameter".to_owned()),
            Expr::ScalarVariable(..) => Some("variable".to_owned()),
            Expr::ScalarFunction(call)
                if call.func.signature().volatility != Volatility::Immutable =>
            {
                Some(format!("function such as {}()", call.func.name()))
            }
            _ => None,
        };
        Ok(match found {
            Some(_) => TreeNodeRecursion::Stop,
            None => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(found)
}

/// The text of a condition over columns, with as few parentheses as will do; `None` where none means what it
/// does.
fn text_of(condition: &Expr, columns: &Schema, state: &SessionState) -> Result<Option<String>> {
    let columns = DFSchema::try_from(columns.clone())?;
    for is_pretty in [true, false] {
        let unparser = Unparser::default().with_pretty(is_pretty);
        let text = unparser.expr_to_sql(condition)?.to_string();
        let again = parsed_text(&text)
            .and_then(|again| state.create_logical_expr_from_sql_expr(again, &columns));
        if let Ok(again) = again
            && bare(again)? == *condition
        {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// Tests constraints with the functions that every database has, whatever the options of the session
/// whose rows come in.
pub(crate) struct Constraints {
    threads: usize,
    memory_limit: usize,
    /// Made for the first condition. Types are planned by way of the context.
    session: OnceLock<(SessionContext, SessionState)>,
    /// Those last used.
    ready: Mutex<VecDeque<Arc<Conditions>>>,
}

impl std::fmt::Debug for Constraints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraints").finish_non_exhaustive()
    }
}

impl Constraints {
    pub fn new(threads: usize, memory_limit: usize) -> Self {
        Self {
            threads,
            memory_limit,
            session: OnceLock::new(),
            ready: Mutex::default(),
        }
    }

    fn state(&self) -> Result<&SessionState> {
        if let Some((_, state)) = self.session.get() {
            return Ok(state);
        }
        let types = Arc::new(SqlTypes::default());
        let builder = SessionStateBuilder::new()
            .with_config(session_config(self.threads, self.memory_limit)?)
            .with_default_features()
            .with_type_planner(Arc::clone(&types) as _);
        let state = flashmesh_planner::configure(builder).build();
        let context = SessionContext::new_with_state(state);
        bound_functions(&context, self.memory_limit)?;
        types.use_session(context.state_weak_ref());
        let state = context.state();
        let (_, state) = self.session.get_or_init(|| (context, state));
        Ok(state)
    }

    /// The condition over columns of a table.
    fn condition(&self, columns: &Schema, check: &Check) -> Result<Expr> {
        let columns = DFSchema::try_from(columns.clone())?;
        let text = parsed_text(&check.text)?;
        let condition = self
            .state()?
            .create_logical_expr_from_sql_expr(text, &columns);
        bare(condition.map_err(|error| broken(check, &error.strip_backtrace()))?)
    }

    /// Whether a constraint is about a column.
    ///
    /// # Errors
    /// [`Error::Usage`] for one that means nothing any more.
    pub fn names(&self, columns: &Schema, check: &Check, column: &str) -> Result<bool> {
        let condition = self.condition(columns, check)?;
        Ok(condition.column_refs().iter().any(|of| of.name == column))
    }

    /// A constraint when a column has another name.
    ///
    /// # Errors
    /// As [`Constraints::names`].
    pub fn renamed(&self, columns: &Schema, check: &Check, from: &str, to: &str) -> Result<Check> {
        let condition = self.condition(columns, check)?;
        let renamed = |expr| match expr {
            Expr::Column(column) if column.name == from => {
                Transformed::yes(Expr::Column(Column::from_name(to)))
            }
            other => Transformed::no(other),
        };
        let condition = condition.transform_up(|expr| Ok(renamed(expr)))?.data;
        let columns = columns
            .fields()
            .iter()
            .map(|field| match field.name() == from {
                true => Arc::new(field.as_ref().clone().with_name(to)),
                false => Arc::clone(field),
            });
        let columns = Schema::new(columns.collect::<Vec<_>>());
        let text = text_of(&condition, &columns, self.state()?)?;
        Ok(Check {
            name: check.name.clone(),
            text: text.ok_or_else(|| broken(check, "it can't be kept with another name in it"))?,
        })
    }

    /// What computes a condition over rows of these columns.
    fn physical(&self, columns: &Schema, check: &Check) -> Result<Arc<dyn PhysicalExpr>> {
        let state = self.state()?;
        let condition = self.condition(columns, check)?;
        let plan = table_scan(Some(TABLE), columns, None)?;
        let plan = plan.project([condition]).and_then(|plan| plan.build());
        let plan = plan.map_err(|error| broken(check, &error.strip_backtrace()))?;
        // The same arithmetic as queries have.
        let planned = state
            .analyzer()
            .execute_and_check(plan, state.config_options(), |_, _| {});
        let planned = planned.map_err(|error| broken(check, &error.strip_backtrace()))?;
        let LogicalPlan::Projection(projection) = planned else {
            return Err(broken(check, "it is more than an expression"));
        };
        let [condition] = projection.expr.as_slice() else {
            return Err(broken(check, "it is more than an expression"));
        };
        let columns = projection.input.schema();
        // Some functions are there to be written out.
        let simplifier = SimplifyContext::builder().with_schema(Arc::clone(columns));
        let simplifier = ExprSimplifier::new(simplifier.build());
        let condition = simplifier.simplify(condition.clone().unalias());
        let physical = condition.and_then(|of| state.create_physical_expr(of, columns));
        physical.map_err(|error| broken(check, &error.strip_backtrace()))
    }
}

/// That a constraint means nothing (any more).
fn broken(check: &Check, why: &str) -> Error {
    Error::usage(format!(
        "CHECK constraint '{}' ({}) can't be tested: {why}; it takes the functions that every database has",
        check.name, check.text
    ))
}

impl CheckLanguage for Constraints {
    fn test(
        &self,
        table: &str,
        schema: &SchemaRef,
        checks: &[Check],
    ) -> flashmesh_storage::Result<Arc<dyn RowTest>> {
        let is_it = |known: &Arc<Conditions>| {
            known.table == table && known.checks == checks && known.schema == *schema
        };
        let mut ready = self.ready.lock();
        if let Some(known) = ready.iter().find(|known| is_it(known)) {
            return Ok(Arc::clone(known) as _);
        }
        let conditions = checks.iter().map(|check| {
            let condition = self.physical(schema, check);
            condition.map_err(|error| StorageError::Invalid(format!("table '{table}': {error}")))
        });
        let new = Arc::new(Conditions {
            table: table.to_owned(),
            schema: Arc::clone(schema),
            conditions: conditions.collect::<std::result::Result<_, _>>()?,
            checks: checks.to_vec(),
        });
        ready.truncate(KEPT - 1);
        ready.push_front(Arc::clone(&new));
        Ok(new)
    }
}

/// The constraints of a table with these columns.
#[derive(Debug)]
struct Conditions {
    table: String,
    schema: SchemaRef,
    checks: Vec<Check>,
    conditions: Vec<Arc<dyn PhysicalExpr>>,
}

impl RowTest for Conditions {
    fn test(&self, rows: &RecordBatch) -> flashmesh_storage::Result<()> {
        for (check, condition) in self.checks.iter().zip(&self.conditions) {
            let said = |what: &str| {
                let Check { name, text } = check;
                StorageError::Invalid(format!(
                    "table '{}': {what} CHECK constraint '{name}': {text}",
                    self.table
                ))
            };
            let failed = |error: DataFusionError| {
                let error = error.strip_backtrace();
                said(&format!("{error}, in"))
            };
            let met = condition.evaluate(rows).map_err(failed)?;
            let met = met.into_array(rows.num_rows()).map_err(failed)?;
            // NULL is as good as TRUE.
            let is_met = match met.as_boolean_opt() {
                Some(met) => met.true_count() + met.null_count() == met.len(),
                None => met.logical_null_count() == met.len(),
            };
            if !is_met {
                return Err(said("a row violates"));
            }
        }
        Ok(())
    }
}

//! Parameters of statements. A parameter means what the literal of its own type means: it is
//! planned as a variable of that type, and a literal takes its place before types are coerced.
//! What is told of its type before there is a value is a hint for clients, no more.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::execution::SessionState;
use datafusion::logical_expr::var_provider::{VarProvider, VarType};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Operator};
use datafusion::sql::parser::{CopyToSource, Statement as ParsedStatement};
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, LimitClause, SetExpr, Value, VisitMut, Visitor,
};
use flashmesh_planner::map_named_expressions;
use flashmesh_planner::walk::{Walk as _, WalkPlan as _};

use crate::Session;
use crate::error::{Error, Result};
use crate::walk::{visit_expressions_mut, walk};

/// The type that a client is told where nothing says more.
const UNKNOWN: DataType = DataType::Utf8;

/// Values of `$1`, `$2`, … in this order. `None` where only the type is to be found out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Values(Arc<[Option<ScalarValue>]>);

impl Values {
    /// All of them.
    pub fn new(values: impl IntoIterator<Item = ScalarValue>) -> Self {
        Self(values.into_iter().map(plain).map(Some).collect())
    }

    /// NULLs of these types, which stand for values that are not there yet.
    pub fn of_types<'a>(types: impl IntoIterator<Item = Option<&'a DataType>>) -> Result<Self> {
        let values = types.into_iter();
        let values = values.map(|known| known.map(ScalarValue::try_from).transpose());
        Ok(Self(values.collect::<datafusion::error::Result<_>>()?))
    }

    /// Tells a state of the variables that stand for them.
    pub fn declare(&self, state: &mut SessionState) {
        if !self.0.is_empty() {
            let properties = state.execution_props_mut();
            properties.add_var_provider(VarType::UserDefined, Arc::new(self.clone()));
        }
    }

    fn get(&self, names: &[String]) -> Option<&ScalarValue> {
        let [name] = names else { return None };
        self.0.get(number(name.strip_prefix('@')?)? - 1)?.as_ref()
    }
}

/// A value of a dictionary as itself: as a literal is.
fn plain(value: ScalarValue) -> ScalarValue {
    match value {
        ScalarValue::Dictionary(_, value) => *value,
        value => value,
    }
}

impl VarProvider for Values {
    fn get_value(&self, names: Vec<String>) -> datafusion::error::Result<ScalarValue> {
        let value = self.get(&names).cloned();
        value.ok_or_else(|| datafusion::common::plan_datafusion_err!("{names:?} has no value"))
    }

    fn get_type(&self, names: &[String]) -> Option<DataType> {
        self.get(names).map(ScalarValue::data_type)
    }
}

/// The name of the variable that stands for a parameter.
pub(crate) fn variable(number: usize) -> String {
    format!("@${number}")
}

/// The number in `$1`.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix('$')?.parse().ok().filter(|n| *n > 0)
}

impl Session {
    /// The plan of a statement with values in the place of its parameters.
    pub(crate) async fn plan_with(
        &self,
        statement: &ParsedStatement,
        values: &Values,
    ) -> Result<LogicalPlan> {
        let plan = self.plan_typed(statement, values).await?;
        match values.0.is_empty() {
            true => Ok(plan),
            false => literals(plan, values),
        }
    }

    /// The same with variables in the place of its parameters. They have the types of the values.
    pub(crate) async fn plan_typed(
        &self,
        statement: &ParsedStatement,
        values: &Values,
    ) -> Result<LogicalPlan> {
        let mut statement = statement.clone();
        name_variables(&mut statement, values);
        // A statement that EXECUTE names is planned within another.
        Box::pin(self.plan_in(statement, values)).await
    }

    /// The parameters of a statement, with the types that a client is to be told, and its plan
    /// with NULL or nothing in their places.
    pub(crate) async fn describe(
        &self,
        statement: &ParsedStatement,
    ) -> Result<(Vec<FieldRef>, LogicalPlan)> {
        let count = count(statement)?;
        let mut hints = Hints(vec![None; count]);
        visit(statement, &mut hints);
        let mut types = hints.0;
        let plan = self.plan_untyped(statement, &mut types).await?;
        for (name, field) in plan.get_parameter_fields()? {
            if let (Some(number), Some(field)) = (number(&name), field) {
                types[number - 1] = Some(field.data_type().clone());
            }
        }
        note_types(&plan, &mut types)?;
        let fields = types.into_iter().enumerate().map(|(place, known)| {
            let advertised = advertised(known.unwrap_or(UNKNOWN));
            Arc::new(Field::new(format!("${}", place + 1), advertised, true))
        });
        Ok((fields.collect(), plan))
    }

    /// The plan of a statement whose parameters have these types, as far as they are known. The
    /// planner finds out some of the others; where it can't do without, they are tried as numbers
    /// and as texts, and what fits is noted.
    async fn plan_untyped(
        &self,
        statement: &ParsedStatement,
        types: &mut [Option<DataType>],
    ) -> Result<LogicalPlan> {
        let values = Values::of_types(types.iter().map(Option::as_ref))?;
        let error = match self.plan_typed(statement, &values).await {
            Ok(plan) => return Ok(plan),
            Err(error) => error,
        };
        if types.iter().all(Option::is_some) {
            return Err(error);
        }
        for guess in [DataType::Int64, DataType::Utf8, DataType::Float64] {
            let guessed = types.iter().map(|known| known.as_ref().or(Some(&guess)));
            let values = Values::of_types(guessed)?;
            if let Ok(plan) = self.plan_typed(statement, &values).await {
                for known in types {
                    known.get_or_insert_with(|| guess.clone());
                }
                return Ok(plan);
            }
        }
        Err(error)
    }
}

/// What a client is told of a type. Arrow's JDBC driver makes numbers fit without a word, so it
/// gets the widest, and writes milliseconds whatever the unit is.
fn advertised(data_type: DataType) -> DataType {
    use DataType::{Float16, Float32, Int8, Int16, Int32, UInt8, UInt16, UInt32};
    match data_type {
        Int8 | Int16 | Int32 | UInt8 | UInt16 | UInt32 => DataType::Int64,
        Float16 | Float32 => DataType::Float64,
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Millisecond, zone),
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time32(TimeUnit::Millisecond),
        other => other,
    }
}

/// The number of a statement's parameters, which are numbered from 1 without gaps.
pub(crate) fn count(statement: &ParsedStatement) -> Result<usize> {
    let mut found = Found(Vec::new());
    visit(statement, &mut found);
    let mut numbers = Vec::with_capacity(found.0.len());
    for name in found.0 {
        numbers.push(number(&name).ok_or_else(|| {
            Error::usage(format!(
                "parameters are written ? or $1, $2, …; there is {name}"
            ))
        })?);
    }
    numbers.sort_unstable();
    numbers.dedup();
    match numbers.iter().zip(1..).find(|(number, n)| *number != n) {
        Some((number, missing)) => Err(Error::usage(format!(
            "parameters are numbered from $1 without gaps; there is ${number} and no ${missing}"
        ))),
        None => Ok(numbers.len()),
    }
}

/// Whether a statement inserts the one row that its VALUES have.
pub(crate) fn inserts_one_row(statement: &ParsedStatement) -> bool {
    let ParsedStatement::Statement(statement) = statement else {
        return false;
    };
    let ast::Statement::Insert(insert) = statement.as_ref() else {
        return false;
    };
    let source = insert.source.as_ref().map(|query| query.body.as_ref());
    // Each row of ON CONFLICT has to see the one before it, and so has a query in one.
    insert.on.is_none()
        && insert.or.is_none()
        && !insert.overwrite
        && !insert.replace_into
        && matches!(source, Some(SetExpr::Values(values))
            if values.rows.len() == 1 && walk(values, &mut Queries).is_continue())
}

/// Ends at a query.
struct Queries;

impl Visitor for Queries {
    type Break = ();

    fn pre_visit_query(&mut self, _: &ast::Query) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

/// Looks at what may hold parameters of the statement; those of a function that it makes or a
/// statement that it prepares are not its own.
fn visit<V: Visitor>(statement: &ParsedStatement, visitor: &mut V) {
    let _ = match statement {
        ParsedStatement::Statement(statement) if !has_own_parameters(statement) => {
            walk(statement, visitor)
        }
        ParsedStatement::CopyTo(copy) => match &copy.source {
            CopyToSource::Query(query) => walk(query, visitor),
            CopyToSource::Relation(_) => return,
        },
        ParsedStatement::Explain(explain) => return visit(&explain.statement, visitor),
        _ => return,
    };
}

fn has_own_parameters(statement: &ast::Statement) -> bool {
    matches!(
        statement,
        ast::Statement::CreateFunction(_) | ast::Statement::Prepare { .. }
    )
}

/// Puts variables in the places of the parameters whose types are known.
fn name_variables(statement: &mut ParsedStatement, values: &Values) {
    match statement {
        ParsedStatement::Statement(statement) if !has_own_parameters(statement) => {
            name_variables_in(statement.as_mut(), values);
        }
        ParsedStatement::CopyTo(copy) => {
            if let CopyToSource::Query(query) = &mut copy.source {
                name_variables_in(query.as_mut(), values);
            }
        }
        ParsedStatement::Explain(explain) => name_variables(&mut explain.statement, values),
        _ => {}
    }
}

fn name_variables_in(tree: &mut impl VisitMut, values: &Values) {
    let _ = visit_expressions_mut(tree, |expr| {
        if let Some(number) = parameter(expr)
            && values.0.get(number - 1).is_some_and(Option::is_some)
        {
            *expr = ast::Expr::Identifier(ast::Ident::new(variable(number)));
        }
        ControlFlow::<()>::Continue(())
    });
}

/// The number of the parameter that an expression is.
fn parameter(expr: &ast::Expr) -> Option<usize> {
    match expr {
        ast::Expr::Value(value) => match &value.value {
            Value::Placeholder(name) => number(name),
            _ => None,
        },
        ast::Expr::Nested(expr) => parameter(expr),
        _ => None,
    }
}

/// The names of the parameters.
struct Found(Vec<String>);

impl Visitor for Found {
    type Break = ();

    fn pre_visit_value(&mut self, value: &ast::ValueWithSpan) -> ControlFlow<()> {
        if let Value::Placeholder(name) = &value.value {
            self.0.push(name.clone());
        }
        ControlFlow::Continue(())
    }
}

/// Types of parameters that meet nothing but parameters, which leaves the planner without a clue,
/// and of those that count rows.
struct Hints(Vec<Option<DataType>>);

impl Hints {
    fn tell<'a>(&mut self, exprs: impl IntoIterator<Item = &'a ast::Expr>, data_type: &DataType) {
        for number in exprs.into_iter().filter_map(parameter) {
            self.0[number - 1].get_or_insert_with(|| data_type.clone());
        }
    }
}

impl Visitor for Hints {
    type Break = ();

    fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<()> {
        match &query.limit_clause {
            Some(LimitClause::LimitOffset { limit, offset, .. }) => {
                let offset = offset.as_ref().map(|offset| &offset.value);
                self.tell(limit.iter().chain(offset), &DataType::Int64);
            }
            Some(LimitClause::OffsetCommaLimit { offset, limit }) => {
                self.tell([offset, limit], &DataType::Int64);
            }
            None => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
        use BinaryOperator::{Divide, Minus, Modulo, Multiply, Plus};
        match expr {
            ast::Expr::BinaryOp { left, op, right }
                if parameter(left).is_some() && parameter(right).is_some() =>
            {
                let data_type = match op {
                    Plus | Minus | Multiply | Divide | Modulo => DataType::Int64,
                    _ => DataType::Utf8,
                };
                self.tell([left.as_ref(), right], &data_type);
            }
            ast::Expr::Between {
                expr, low, high, ..
            } if parameter(expr).is_some() => {
                self.tell([expr.as_ref(), low, high], &DataType::Utf8);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// The types that parameters get from what the planner leaves open.
fn note_types(plan: &LogicalPlan, types: &mut [Option<DataType>]) -> Result<()> {
    plan.walk_with_subqueries(|node| {
        node.walk_expressions(|expr| {
            expr.apply(|expr| {
                match expr {
                    Expr::BinaryExpr(binary)
                        if matches!(binary.op, Operator::Plus | Operator::Minus) =>
                    {
                        note_shift(&binary.left, &binary.right, node, types);
                        note_shift(&binary.right, &binary.left, node, types);
                    }
                    // Drivers bind no number to a text. (A text is cast to a date or a moment as
                    // often as not.)
                    Expr::Cast(cast) if cast.field.data_type().is_numeric() => {
                        if let Some(number) = planned_parameter(&cast.expr) {
                            types[number - 1].get_or_insert_with(|| cast.field.data_type().clone());
                        }
                    }
                    _ => {}
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(())
}

/// What is added to a date or taken from it is a number of days, not a date, as the planner has
/// it; what is added to a timestamp is an interval.
fn note_shift(shift: &Expr, of: &Expr, node: &LogicalPlan, types: &mut [Option<DataType>]) {
    let Some(number) = planned_parameter(shift) else {
        return;
    };
    let mut inputs = node.inputs().into_iter();
    types[number - 1] = match inputs.find_map(|input| of.get_type(input.schema()).ok()) {
        Some(DataType::Date32 | DataType::Date64) => Some(DataType::Int64),
        Some(DataType::Timestamp(..)) => Some(DataType::Interval(IntervalUnit::MonthDayNano)),
        _ => return,
    };
}

/// The same in a plan.
fn planned_parameter(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Placeholder(placeholder) => number(&placeholder.id),
        _ => None,
    }
}

/// `plan` with literals in the place of variables; its columns keep their names.
fn literals(plan: LogicalPlan, values: &Values) -> Result<LogicalPlan> {
    let plan = plan.change_up_with_subqueries(|node| {
        map_named_expressions(node, |expr| {
            expr.transform_up(|expr| match &expr {
                Expr::ScalarVariable(_, names) => match values.get(names) {
                    Some(value) => Ok(Transformed::yes(Expr::Literal(value.clone(), None))),
                    None => Ok(Transformed::no(expr)),
                },
                _ => Ok(Transformed::no(expr)),
            })
        })?
        .map_data(LogicalPlan::recompute_schema)
    })?;
    Ok(plan.data)
}

//! `a ASOF JOIN b ON a.k = b.k AND a.t >= b.t`: for each row of the left side the row of the right side with
//! the same keys whose time is the nearest in one direction.
//!
//! The statement arrives as a join whose condition holds a call of [`MARK`]. Here it becomes a node of its
//! own, so that nothing is pushed below it that would change which row is the nearest; what only asks for
//! columns of the left side may be. Both sides are sorted by keys and time, and merged ([`exec`]).

mod exec;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::catalog::Session;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{
    DFSchema, DFSchemaRef, JoinType, Result, ScalarValue, internal_err, not_impl_err, plan_err,
};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Extension, Filter, Join, LogicalPlan, Operator,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, UserDefinedLogicalNode,
    UserDefinedLogicalNodeCore, Volatility, build_join_schema,
};
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::PhysicalPlanner;

use self::exec::AsOfJoinExec;
use crate::tree::has_subquery;
use crate::walk::{Walk as _, WalkPlan as _};

/// The function in the condition of a join that makes it such a one.
pub const MARK: &str = "flashmesh:asof";

/// Whether a node of a plan is such a join.
pub fn is_as_of_join(node: &dyn UserDefinedLogicalNode) -> bool {
    sides_of(node).is_some()
}

/// [`MARK`] as a function.
pub(crate) fn mark() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Mark(Signature::nullary(
        Volatility::Volatile,
    ))))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Mark(Signature);

impl ScalarUDFImpl for Mark {
    fn name(&self) -> &str {
        MARK
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        not_impl_err!("ASOF stands before JOIN alone")
    }
}

/// A join of each row with the nearest one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct AsOfJoin {
    left: LogicalPlan,
    right: LogicalPlan,
    /// What is equal on both sides.
    keys: Vec<(Expr, Expr)>,
    time: (Expr, Expr),
    /// Of the left time against the right one: one of `>=`, `>`, `<=`, `<`.
    op: Operator,
    /// `Inner` or `Left`.
    join_type: JoinType,
    schema: DFSchemaRef,
}

impl PartialOrd for AsOfJoin {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let of = |join: &Self| (join.keys.clone(), join.time.clone());
        of(self).partial_cmp(&of(other))
    }
}

impl AsOfJoin {
    fn try_new(
        (left, right): (LogicalPlan, LogicalPlan),
        keys: Vec<(Expr, Expr)>,
        time: (Expr, Expr),
        op: Operator,
        join_type: JoinType,
    ) -> Result<Self> {
        let schema = build_join_schema(left.schema(), right.schema(), &join_type)?;
        Ok(Self {
            left,
            right,
            keys,
            time,
            op,
            join_type,
            schema: Arc::new(schema),
        })
    }

    /// What a marked join says; `None` for one that has no mark.
    ///
    /// # Errors
    /// For conditions that such a join can't have.
    fn of(join: &Join) -> Result<Option<Self>> {
        let is_mark = |expr: &Expr| matches!(expr, Expr::ScalarFunction(ScalarFunction { func, .. }) if func.name() == MARK);
        let mut parts = join
            .filter
            .iter()
            .cloned()
            .flat_map(split_conjunction_owned);
        if !parts.clone().any(|part| is_mark(&part)) {
            let is_within = |part: &Expr| part.exists(|part| Ok(is_mark(part)));
            return match join.filter.as_ref().map(is_within).transpose()? {
                Some(true) => plan_err!("{ADVICE}"),
                _ => Ok(None),
            };
        }
        if !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
            return plan_err!(
                "ASOF JOIN is ASOF JOIN or ASOF LEFT JOIN, not {}; put the tables the other way round",
                join.join_type
            );
        }
        let (left, right) = (join.left.schema(), join.right.schema());
        let outer = join.right.all_out_ref_exprs();
        let mut outer = outer.iter().filter_map(|expr| match expr {
            Expr::OuterReferenceColumn(_, column) => Some(column),
            _ => None,
        });
        if outer.any(|column| left.has_column(column)) {
            return plan_err!(
                "ASOF JOIN LATERAL is not supported; put the condition on the left table into ON"
            );
        }
        let mut keys = join.on.clone();
        let mut time = None;
        let all = parts.try_for_each(|part| {
            if is_mark(&part) {
                return Ok(());
            }
            let sides = sides(part, left, right)?;
            match sides {
                Some((key, Operator::Eq)) => keys.push(key),
                Some((both, op)) if time.is_none() => time = Some((both, op)),
                _ => return plan_err!("{ADVICE}"),
            }
            Ok(())
        });
        all?;
        let Some((time, op)) = time else {
            return plan_err!("{ADVICE}");
        };
        let one_zero = |(a, b): (Expr, Expr)| Ok((one_zero(a, left)?, one_zero(b, right)?));
        let keys = keys.into_iter().map(one_zero).collect::<Result<_>>()?;
        let time = one_zero(time)?;
        let sides = [&join.left, &join.right].map(|side| side.as_ref().clone());
        Self::try_new(sides.into(), keys, time, op, join.join_type).map(Some)
    }
}

const ADVICE: &str = "ASOF JOIN takes one comparison by >=, >, <= or < of a time of the left table with one \
                      of the right, and equalities of their columns beside it by AND; put other conditions \
                      into WHERE, or into a subquery in place of the right table";

/// A float whose two zeros are one: what sorts and merges has them in an order, what compares has not.
fn one_zero(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let data_type = expr.get_type(schema)?;
    Ok(match data_type.is_floating() {
        true => expr + Expr::Literal(ScalarValue::new_zero(&data_type)?, None),
        false => expr,
    })
}

/// An expression of the left side, one of the right, and how the first is compared with the second.
fn sides(
    part: Expr,
    left: &DFSchema,
    right: &DFSchema,
) -> Result<Option<((Expr, Expr), Operator)>> {
    let Expr::BinaryExpr(BinaryExpr {
        left: a,
        op,
        right: b,
    }) = part
    else {
        return Ok(None);
    };
    if !matches!(
        op,
        Operator::Eq | Operator::GtEq | Operator::Gt | Operator::LtEq | Operator::Lt
    ) {
        return Ok(None);
    }
    let is_of = |expr: &Expr, schema: &DFSchema| {
        let columns = expr.column_refs();
        !columns.is_empty()
            && columns.iter().all(|column| schema.has_column(column))
            && is_of_row(expr)
    };
    Ok(if is_of(&a, left) && is_of(&b, right) {
        Some(((*a, *b), op))
    } else if is_of(&b, left) && is_of(&a, right) {
        op.swap().map(|op| ((*b, *a), op))
    } else {
        None
    })
}

/// Whether an expression is of a row's own values, the same each time.
fn is_of_row(expr: &Expr) -> bool {
    !expr.is_volatile() && !expr.contains_outer() && !has_subquery(expr).unwrap_or(true)
}

impl UserDefinedLogicalNodeCore for AsOfJoin {
    fn name(&self) -> &str {
        "AsOfJoin"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.left, &self.right]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        let pairs = self.keys.iter().chain([&self.time]);
        pairs
            .flat_map(|(left, right)| [left.clone(), right.clone()])
            .collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsOfJoin: {}", self.join_type)?;
        for (left, right) in &self.keys {
            write!(f, " {left} = {right} AND")?;
        }
        let (left, right) = &self.time;
        write!(f, " {left} {} {right}", self.op)
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let mut exprs = exprs.into_iter();
        let mut pairs = Vec::with_capacity(self.keys.len() + 1);
        while let (Some(left), Some(right)) = (exprs.next(), exprs.next()) {
            pairs.push((left, right));
        }
        let (Some(time), Ok([left, right])) = (pairs.pop(), <[LogicalPlan; 2]>::try_from(inputs))
        else {
            return internal_err!("an AsOfJoin has two inputs, and times");
        };
        Self::try_new((left, right), pairs, time, self.op, self.join_type)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let count = self.left.schema().fields().len();
        let mut of_left: Vec<usize> = Vec::new();
        let mut of_right: Vec<usize> = Vec::new();
        for column in output_columns {
            match column.checked_sub(count) {
                None => of_left.push(*column),
                Some(column) => of_right.push(column),
            }
        }
        for (left, right) in self.keys.iter().chain([&self.time]) {
            let places = |expr: &Expr, schema: &DFSchema| -> Option<Vec<usize>> {
                let columns = expr.column_refs();
                columns
                    .iter()
                    .map(|column| schema.maybe_index_of_column(column))
                    .collect()
            };
            of_left.extend(places(left, self.left.schema())?);
            of_right.extend(places(right, self.right.schema())?);
        }
        for columns in [&mut of_left, &mut of_right] {
            columns.sort_unstable();
            columns.dedup();
        }
        Some(vec![of_left, of_right])
    }
}

/// The two sides of such a join; `None` for all other nodes.
pub(crate) fn sides_of(node: &dyn UserDefinedLogicalNode) -> Option<(&LogicalPlan, &LogicalPlan)> {
    let join = node.as_any().downcast_ref::<AsOfJoin>()?;
    Some((&join.left, &join.right))
}

/// Has marked joins be [`AsOfJoin`]s.
#[derive(Debug)]
pub(crate) struct AsOfJoins;

impl AnalyzerRule for AsOfJoins {
    fn name(&self) -> &str {
        "as_of_joins"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let plan = plan.change_up_with_subqueries(|plan| {
            let LogicalPlan::Join(join) = &plan else {
                return Ok(Transformed::no(plan));
            };
            Ok(match AsOfJoin::of(join)? {
                Some(join) => Transformed::yes(LogicalPlan::Extension(Extension {
                    node: Arc::new(join),
                })),
                None => Transformed::no(plan),
            })
        })?;
        Ok(plan.data)
    }
}

/// Has conditions on the left side alone be met before the join. On the right side they would make another
/// row the nearest.
#[derive(Debug)]
pub(crate) struct AsOfFilters;

impl OptimizerRule for AsOfFilters {
    fn name(&self) -> &str {
        "as_of_filters"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Filter(filter) = &plan else {
            return Ok(Transformed::no(plan));
        };
        let LogicalPlan::Extension(extension) = filter.input.as_ref() else {
            return Ok(Transformed::no(plan));
        };
        let Some(join) = extension.node.as_any().downcast_ref::<AsOfJoin>() else {
            return Ok(Transformed::no(plan));
        };
        let left = join.left.schema();
        let is_of_left = |part: &Expr| {
            let columns = part.column_refs();
            is_of_row(part) && columns.iter().all(|column| left.has_column(column))
        };
        let parts = split_conjunction_owned(filter.predicate.clone());
        let (before, after): (Vec<_>, Vec<_>) = parts.into_iter().partition(is_of_left);
        let Some(before) = conjunction(before) else {
            return Ok(Transformed::no(plan));
        };
        let filtered = Filter::try_new(before, Arc::new(join.left.clone()))?;
        let join = AsOfJoin {
            left: LogicalPlan::Filter(filtered),
            ..join.clone()
        };
        let join = LogicalPlan::Extension(Extension {
            node: Arc::new(join),
        });
        Ok(Transformed::yes(match conjunction(after) {
            Some(after) => LogicalPlan::Filter(Filter::try_new(after, Arc::new(join))?),
            None => join,
        }))
    }
}

/// The operator of such a join; `None` for all other nodes.
pub(crate) fn as_of_join(
    node: &dyn UserDefinedLogicalNode,
    planner: &dyn PhysicalPlanner,
    logical_inputs: &[&LogicalPlan],
    inputs: &[Arc<dyn ExecutionPlan>],
    state: &dyn Session,
    planning: &PhysicalPlanningContext,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(join) = node.as_any().downcast_ref::<AsOfJoin>() else {
        return Ok(None);
    };
    let ([left_plan, right_plan], [left, right]) = (logical_inputs, inputs) else {
        return internal_err!("an AsOfJoin has two inputs");
    };
    let physical = |expr: &Expr, input: &LogicalPlan| {
        planner.create_physical_expr(expr, input.schema(), state, planning)
    };
    let pairs = join.keys.iter().chain([&join.time]);
    let pairs = pairs.map(|(of_left, of_right)| {
        Ok((
            physical(of_left, left_plan)?,
            physical(of_right, right_plan)?,
        ))
    });
    Ok(Some(Arc::new(AsOfJoinExec::new(
        (Arc::clone(left), Arc::clone(right)),
        pairs.collect::<Result<_>>()?,
        join.op,
        join.join_type,
        Arc::clone(join.schema.inner()),
    ))))
}

//! Groups below a join: `SELECT c.id, count(o.id) FROM c LEFT JOIN o ON o.c = c.id GROUP BY c.id`.
//!
//! Where all aggregates are over one side of a join that has many rows of each key, that side is grouped by the keys
//! first, which the store does beside the pages; the join then meets a row of each key, and its groups put those
//! together (Yan and Larson, "Eager aggregation and lazy aggregation", VLDB 1995).

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, JoinType, Result};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_aggregate::expr_fn::sum;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion::logical_expr::{
    Aggregate, Expr, ExprSchemable, Join, LogicalPlan, LogicalPlanBuilder, Projection, cast, lit,
};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::cost::Estimate;
use crate::walk::Walk as _;

/// Rows of a key at which to group them first costs less than to join them all.
const WORTH_ROWS: f64 = 4.0;
/// Fewer rows are joined faster than anything is planned.
const FEW_ROWS: f64 = 65_536.0;
/// The share of rows that a join has to leave: where it keeps few, their keys reach the scan, and the others are not
/// read at all.
const LEAST_SHARE: f64 = 0.5;

/// The rule; place it behind the one that orders joins.
#[derive(Debug)]
pub struct EarlyGroups;

impl OptimizerRule for EarlyGroups {
    fn name(&self) -> &str {
        "flashmesh_early_groups"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Aggregate(aggregate) = &plan else {
            return Ok(Transformed::no(plan));
        };
        let (join, projection) = match aggregate.input.as_ref() {
            LogicalPlan::Join(join) => (join, None),
            LogicalPlan::Projection(projection) => match projection.input.as_ref() {
                LogicalPlan::Join(join) => (join, Some(projection)),
                _ => return Ok(Transformed::no(plan)),
            },
            _ => return Ok(Transformed::no(plan)),
        };
        let sides = match join.join_type {
            JoinType::Inner => vec![Side::Right, Side::Left],
            JoinType::Left => vec![Side::Right],
            JoinType::Right => vec![Side::Left],
            _ => vec![],
        };
        let early = |side| {
            let early = Early {
                aggregate,
                projection,
                join,
                side,
            };
            early.plan()
        };
        for side in sides {
            if let Some(early) = early(side)? {
                return Ok(Transformed::yes(early));
            }
        }
        Ok(Transformed::no(plan))
    }
}

/// The side of a join that is grouped first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// An aggregate over a join, of which one side may be grouped first.
struct Early<'a> {
    aggregate: &'a Aggregate,
    projection: Option<&'a Projection>,
    join: &'a Join,
    side: Side,
}

/// How an aggregate is put together of those of single keys.
struct Parts {
    /// Of a key's rows.
    early: Expr,
    /// Of the values of `early`, which is the column given.
    late: fn(Column, &AggregateFunction) -> Expr,
}

impl Early<'_> {
    fn grouped(&self) -> &LogicalPlan {
        match self.side {
            Side::Left => &self.join.left,
            Side::Right => &self.join.right,
        }
    }

    /// The plan that groups that side first; `None` where that can't be, or is not worth it.
    fn plan(&self) -> Result<Option<LogicalPlan>> {
        let Some(keys) = self.keys() else {
            return Ok(None);
        };
        if !reads_a_table(self.grouped()) || self.join.filter.is_some() {
            return Ok(None);
        }
        let Some(groups) = self.groups(&keys)? else {
            return Ok(None);
        };
        let mut parts = Vec::with_capacity(self.aggregate.aggr_expr.len());
        for expr in &self.aggregate.aggr_expr {
            let Some(part) = self.parts(expr)? else {
                return Ok(None);
            };
            parts.push(part);
        }
        let early = LogicalPlanBuilder::from(self.grouped().clone()).aggregate(
            keys.iter().cloned().map(Expr::Column),
            parts.iter().map(|part| part.early.clone()),
        );
        // Two that are one to the join have one name.
        let Ok(early) = early.and_then(|early| early.build()) else {
            return Ok(None);
        };
        if !self.is_worth_it(&early) {
            return Ok(None);
        }
        let names = early.schema().columns();
        let values = names[keys.len()..].to_vec();
        let mut join = self.join.clone();
        match self.side {
            Side::Left => join.left = Arc::new(early),
            Side::Right => join.right = Arc::new(early),
        }
        let joined = LogicalPlan::Join(join).recompute_schema()?;
        let late = parts.iter().zip(&self.aggregate.aggr_expr).zip(values);
        let late =
            late.filter_map(|((part, expr), value)| Some((part.late)(value, function_of(expr)?)));
        let late = late.collect::<Vec<_>>();
        let Ok(late) = LogicalPlanBuilder::from(joined).aggregate(groups, late) else {
            return Ok(None);
        };
        self.with_names(late.build()?).map(Some)
    }

    /// The columns by which that side is joined.
    fn keys(&self) -> Option<Vec<Column>> {
        let mut keys: Vec<Column> = Vec::new();
        for (left, right) in &self.join.on {
            let key = match self.side {
                Side::Left => left,
                Side::Right => right,
            };
            let Expr::Column(key) = key else {
                return None;
            };
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        (!keys.is_empty()).then_some(keys)
    }

    /// What is grouped by, over the join, if that is of the other side or a key.
    fn groups(&self, keys: &[Column]) -> Result<Option<Vec<Expr>>> {
        let groups = &self.aggregate.group_expr;
        if groups.is_empty() || groups.iter().any(|g| matches!(g, Expr::GroupingSet(_))) {
            return Ok(None);
        }
        let of_side = self.grouped().schema();
        let mut over_join = Vec::with_capacity(groups.len());
        for group in groups {
            let group = self.over_join(group.clone())?;
            let mut columns = group.column_refs().into_iter();
            let is_kept = |column: &Column| keys.contains(column) || !of_side.has_column(column);
            if group.is_volatile() || !columns.all(is_kept) {
                return Ok(None);
            }
            over_join.push(group);
        }
        Ok(Some(over_join))
    }

    /// An expression over the projection as one over the join.
    fn over_join(&self, expr: Expr) -> Result<Expr> {
        let Some(projection) = self.projection else {
            return Ok(expr);
        };
        let expr = expr.transform_up(|expr| {
            if let Expr::Column(column) = &expr
                && let Some(place) = projection.schema.maybe_index_of_column(column)
                && let Some(of) = projection.expr.get(place)
            {
                return Ok(Transformed::yes(of.clone().unalias_nested().data));
            }
            Ok(Transformed::no(expr))
        })?;
        Ok(expr.data)
    }

    /// How an aggregate of that side is computed in two steps; `None` where it is none, or can't be.
    fn parts(&self, expr: &Expr) -> Result<Option<Parts>> {
        let Some(function) = function_of(expr) else {
            return Ok(None);
        };
        let AggregateFunctionParams {
            args,
            distinct: false,
            filter: None,
            order_by,
            null_treatment: None,
        } = &function.params
        else {
            return Ok(None);
        };
        let [arg] = args.as_slice() else {
            return Ok(None);
        };
        let arg = self.over_join(arg.clone())?;
        let of_side = self.grouped().schema();
        let value = widened(&arg, of_side);
        // Of an outer join it is NULL where there is no row of that side.
        let is_of_side = matches!(value, Expr::Column(column) if of_side.has_column(column));
        let is_of_rows = matches!(&arg, Expr::Literal(value, _) if !value.is_null());
        let name = function.func.name();
        let of_sum = || -> Result<bool> {
            let of = value.get_type(of_side)?;
            // Sums of single keys stay within the type where that of all does.
            let is_small = of.is_integer() && !matches!(of, DataType::Int64 | DataType::UInt64);
            Ok(is_small || of.is_floating() || matches!(of, DataType::Decimal128(0..=28, _)))
        };
        let late: fn(Column, &AggregateFunction) -> Expr = match name {
            "count" if is_of_side => {
                |value, _| sum(coalesce(vec![Expr::Column(value), lit(0_i64)]))
            }
            "count" if is_of_rows => {
                |value, _| sum(coalesce(vec![Expr::Column(value), lit(1_i64)]))
            }
            "min" | "max" if is_of_side => again,
            "sum" if is_of_side && of_sum()? => again,
            _ => return Ok(None),
        };
        if !order_by.is_empty() {
            return Ok(None);
        }
        let early = Expr::AggregateFunction(AggregateFunction {
            func: Arc::clone(&function.func),
            params: AggregateFunctionParams {
                args: vec![arg],
                ..function.params.clone()
            },
        });
        Ok(Some(Parts { early, late }))
    }

    fn is_worth_it(&self, early: &LogicalPlan) -> bool {
        let rows = |plan: &LogicalPlan| Estimate::of(plan).map(|of| of.rows);
        let joined = rows(&LogicalPlan::Join(self.join.clone()));
        match (rows(self.grouped()), rows(early), joined) {
            (Some(all), Some(keys), Some(joined)) => {
                all >= FEW_ROWS && keys * WORTH_ROWS <= all && joined >= all * LEAST_SHARE
            }
            _ => false,
        }
    }

    /// The columns of the aggregate, called and typed as they were.
    fn with_names(&self, late: LogicalPlan) -> Result<LogicalPlan> {
        let before = self.aggregate.schema.iter();
        let now = late.schema().columns();
        let mut columns = Vec::with_capacity(now.len());
        for ((qualifier, field), column) in before.zip(now) {
            let value = Expr::Column(column.clone());
            let value = match value.get_type(late.schema())? == *field.data_type() {
                true => value,
                false => cast(value, field.data_type().clone()),
            };
            // Counts are never NULL.
            let value = match field.is_nullable() || !value.nullable(late.schema())? {
                true => value,
                false => coalesce(vec![value, lit(0_i64)]),
            };
            columns.push(match &value {
                Expr::Column(column)
                    if column.relation.as_ref() == qualifier && column.name == *field.name() =>
                {
                    value
                }
                _ => value.alias_qualified(qualifier.cloned(), field.name()),
            });
        }
        LogicalPlanBuilder::from(late).project(columns)?.build()
    }
}

/// The same function of the values of single keys.
fn again(value: Column, function: &AggregateFunction) -> Expr {
    Expr::AggregateFunction(AggregateFunction {
        func: Arc::clone(&function.func),
        params: AggregateFunctionParams {
            args: vec![Expr::Column(value)],
            ..function.params.clone()
        },
    })
}

/// What a cast widens, which it can do to any value: one that may fail would fail for rows that the join leaves out.
fn widened<'a>(expr: &'a Expr, schema: &DFSchema) -> &'a Expr {
    if let Expr::Cast(cast) = expr
        && let Ok(from) = cast.expr.get_type(schema)
    {
        let is_small = from.is_integer() && !matches!(from, DataType::Int64 | DataType::UInt64);
        let is_wider = match cast.field.data_type() {
            DataType::Int64 => is_small,
            DataType::Float64 => is_small || from == DataType::Float32,
            _ => false,
        };
        if is_wider {
            return &cast.expr;
        }
    }
    expr
}

fn function_of(expr: &Expr) -> Option<&AggregateFunction> {
    match expr {
        Expr::AggregateFunction(function) => Some(function),
        _ => None,
    }
}

/// Whether a plan is a table's rows, filtered: those the store groups.
fn reads_a_table(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(scan) => scan.fetch.is_none(),
        LogicalPlan::Filter(filter) => reads_a_table(&filter.input),
        LogicalPlan::SubqueryAlias(alias) => reads_a_table(&alias.input),
        LogicalPlan::Projection(projection) => {
            projection
                .expr
                .iter()
                .all(|expr| matches!(expr, Expr::Column(_)))
                && reads_a_table(&projection.input)
        }
        _ => false,
    }
}

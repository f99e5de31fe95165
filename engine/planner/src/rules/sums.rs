//! Sums of whole numbers that may leave 64 bits.
//!
//! DataFusion's sum of a BIGINT wraps: two times 9223372036854775807 is -2. Where the values and the
//! number of rows do not rule that out, values are summed as decimals of 38 digits, and the sum
//! becomes a BIGINT again, or an error. The store's sums are those of this plan.

use arrow::datatypes::DataType;
use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, ExprSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction, WindowFunctionDefinition};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Case, Cast, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder,
    Operator, Window, cast,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::FlashTable;

/// Rows that a sum is taken to have at most, where nothing says how many: a thousand billions, which take hours.
const ROWS: i128 = 1 << 40;
/// What every whole number fits into.
const WIDE: DataType = DataType::Decimal128(20, 0);

/// The rule.
#[derive(Debug)]
pub struct CheckedSums;

impl OptimizerRule for CheckedSums {
    fn name(&self) -> &str {
        "flashmesh_checked_sums"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        plan.transform_up_with_subqueries(|node| match &node {
            LogicalPlan::Aggregate(aggregate) => {
                let sums = widened(&aggregate.aggr_expr, &aggregate.input)?;
                let Some(sums) = sums else {
                    return Ok(Transformed::no(node));
                };
                let (input, keys) = (aggregate.input.clone(), aggregate.group_expr.clone());
                let wide = Aggregate::try_new(input, keys, sums)?;
                narrowed(LogicalPlan::Aggregate(wide), &node)
            }
            LogicalPlan::Window(window) => {
                let sums = widened(&window.window_expr, &window.input)?;
                let Some(sums) = sums else {
                    return Ok(Transformed::no(node));
                };
                let wide = Window::try_new(sums, window.input.clone())?;
                narrowed(LogicalPlan::Window(wide), &node)
            }
            _ => Ok(Transformed::no(node)),
        })
    }
}

/// The expressions with sums of decimals in the place of those that may leave 64 bits, if there are any.
fn widened(exprs: &[Expr], input: &LogicalPlan) -> Result<Option<Vec<Expr>>> {
    let mut has_widened = false;
    let exprs = exprs.iter().map(|expr| {
        let mut inner = expr.clone();
        while let Expr::Alias(alias) = inner {
            inner = *alias.expr;
        }
        let Some(argument) = summed(&mut inner) else {
            return Ok(expr.clone());
        };
        let of = argument.get_type(input.schema())?;
        if !matches!(of, DataType::Int64 | DataType::UInt64) || stays_small(argument, &of, input) {
            return Ok(expr.clone());
        }
        *argument = cast(argument.clone(), WIDE);
        has_widened = true;
        let name = expr.schema_name().to_string();
        Ok(inner.alias(name))
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    Ok(has_widened.then_some(exprs))
}

/// What is summed, if the expression is a sum.
fn summed(expr: &mut Expr) -> Option<&mut Expr> {
    let (name, args) = match expr {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            (func.name().to_owned(), &mut params.args)
        }
        Expr::WindowFunction(call) => {
            let WindowFunction { fun, params } = call.as_mut();
            let WindowFunctionDefinition::AggregateUDF(func) = fun else {
                return None;
            };
            (func.name().to_owned(), &mut params.args)
        }
        _ => return None,
    };
    match args.as_mut_slice() {
        [argument] if name == "sum" => Some(argument),
        _ => None,
    }
}

/// A plan with the columns of another one, where it has the same but for decimals.
fn narrowed(wide: LogicalPlan, wanted: &LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let pairs = wide.schema().iter().zip(wanted.schema().iter());
    let columns = pairs.map(|(wide, (relation, field))| {
        let column = Expr::Column(Column::from(wide));
        match wide.1.data_type() == field.data_type() {
            true => column,
            false => cast(column, field.data_type().clone())
                .alias_qualified(relation.cloned(), field.name()),
        }
    });
    let columns: Vec<Expr> = columns.collect();
    let plan = LogicalPlanBuilder::from(wide).project(columns)?.build()?;
    Ok(Transformed::yes(plan))
}

/// Least and greatest value.
type Range = (i128, i128);

const BIGINT: Range = (i64::MIN as i128, i64::MAX as i128);

/// Whether no sum of values of an expression over a plan's rows leaves the 64 bits of its type.
fn stays_small(expr: &Expr, of: &DataType, plan: &LogicalPlan) -> bool {
    let rows = rows_at_most(plan).clamp(1, ROWS);
    let limits = match of {
        DataType::UInt64 => (0, u64::MAX.into()),
        _ => BIGINT,
    };
    range(expr, plan).is_some_and(|(least, greatest)| {
        // Of a sum of several rows, or of none.
        let ends = (
            least.min(0).checked_mul(rows),
            greatest.max(0).checked_mul(rows),
        );
        matches!(ends, (Some(least), Some(greatest)) if limits.0 <= least && greatest <= limits.1)
    })
}

/// What values an expression of whole numbers can have; `None` where nothing is known but its 64 bits.
fn range(expr: &Expr, plan: &LogicalPlan) -> Option<Range> {
    match expr {
        Expr::Alias(alias) => range(&alias.expr, plan),
        Expr::Literal(value, _) => match value.cast_to(&DataType::Int64) {
            _ if value.is_null() => Some((0, 0)),
            Ok(ScalarValue::Int64(Some(value))) => Some((value.into(), value.into())),
            _ => None,
        },
        Expr::Column(column) => {
            let of = plan.schema().field_from_column(column).ok()?;
            of_column(column, plan).or_else(|| of_type(of.data_type()))
        }
        Expr::Cast(Cast { expr, .. }) => {
            let of = expr.get_type(plan.schema()).ok()?;
            match of.is_integer() || of == DataType::Boolean {
                true => range(expr, plan).or_else(|| of_type(&of)),
                false => None,
            }
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let of = expr.get_type(plan.schema()).ok()?;
            let known = range(left, plan).zip(range(right, plan));
            let value = known.and_then(|(left, right)| computed(left, *op, right));
            let limits = match of {
                DataType::Int64 => BIGINT,
                _ => of_type(&of)?,
            };
            // What wraps can be anything of the type.
            let fits =
                value.filter(|(least, greatest)| limits.0 <= *least && *greatest <= limits.1);
            fits.or_else(|| of_type(&of))
        }
        Expr::Case(Case {
            when_then_expr,
            else_expr,
            ..
        }) => {
            let values = when_then_expr.iter().map(|(_, then)| then.as_ref());
            let values = values.chain(else_expr.as_deref());
            values.map(|value| range(value, plan)).reduce(either)?
        }
        other => of_type(&other.get_type(plan.schema()).ok()?),
    }
}

fn either(left: Option<Range>, right: Option<Range>) -> Option<Range> {
    let (left, right) = (left?, right?);
    Some((left.0.min(right.0), left.1.max(right.1)))
}

fn computed(left: Range, op: Operator, right: Range) -> Option<Range> {
    match op {
        Operator::Plus => Some((left.0.checked_add(right.0)?, left.1.checked_add(right.1)?)),
        Operator::Minus => Some((left.0.checked_sub(right.1)?, left.1.checked_sub(right.0)?)),
        Operator::Multiply => {
            let corners = [
                (left.0, right.0),
                (left.0, right.1),
                (left.1, right.0),
                (left.1, right.1),
            ];
            let corners = corners.map(|(left, right)| left.checked_mul(right));
            let corners = corners.into_iter().collect::<Option<Vec<_>>>()?;
            Some((*corners.iter().min()?, *corners.iter().max()?))
        }
        // No further from zero than what is divided, on either side of it.
        Operator::Divide | Operator::Modulo => {
            let most = left.0.abs().max(left.1.abs());
            Some((-most, most))
        }
        _ => None,
    }
}

/// What values a type narrower than 64 bits has.
fn of_type(data_type: &DataType) -> Option<Range> {
    let signed = |bits: u32| Some((-(1_i128 << (bits - 1)), (1 << (bits - 1)) - 1));
    let unsigned = |bits: u32| Some((0, (1_i128 << bits) - 1));
    match data_type {
        DataType::Boolean => unsigned(1),
        DataType::Int8 => signed(8),
        DataType::UInt8 => unsigned(8),
        DataType::Int16 => signed(16),
        DataType::UInt16 => unsigned(16),
        DataType::Int32 => signed(32),
        DataType::UInt32 => unsigned(32),
        _ => None,
    }
}

/// What values a column has, as its table's statistics have it: these may be of more rows than there are,
/// and never of fewer.
fn of_column(column: &Column, plan: &LogicalPlan) -> Option<Range> {
    match plan {
        LogicalPlan::TableScan(scan) => {
            let provider = source_as_provider(&scan.source).ok()?;
            FlashTable::of(&scan.source)?;
            let place = scan.source.schema().index_of(&column.name).ok()?;
            let statistics = provider.statistics()?;
            let known = statistics.column_statistics.get(place)?;
            let [least, greatest] = [&known.min_value, &known.max_value].map(|bound| {
                match bound.get_value()?.cast_to(&DataType::Int64).ok()? {
                    ScalarValue::Int64(Some(value)) => Some(i128::from(value)),
                    _ => None,
                }
            });
            Some((least?, greatest?))
        }
        LogicalPlan::Projection(projection) => {
            let place = projection.schema.maybe_index_of_column(column)?;
            range(projection.expr.get(place)?, &projection.input)
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let place = alias.schema.maybe_index_of_column(column)?;
            let inner = Column::from(alias.input.schema().qualified_field(place));
            range(&Expr::Column(inner), &alias.input)
        }
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Join(_) => {
            let mut inputs = plan.inputs().into_iter();
            let input = inputs.find(|input| input.schema().has_column(column))?;
            range(&Expr::Column(column.clone()), input)
        }
        _ => None,
    }
}

/// Rows that a plan has at most, as far as that is below [`ROWS`].
fn rows_at_most(plan: &LogicalPlan) -> i128 {
    match plan {
        LogicalPlan::TableScan(scan) => match FlashTable::of(&scan.source) {
            Some(table) => table.named().snapshot().rows().into(),
            None => ROWS,
        },
        LogicalPlan::Projection(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Window(_) => rows_at_most(plan.inputs()[0]),
        LogicalPlan::EmptyRelation(_) => 1,
        // An outer join gives each row of a side once at least.
        LogicalPlan::Join(join) => {
            let sides = [&join.left, &join.right].map(|side| rows_at_most(side).max(1));
            sides[0]
                .saturating_mul(sides[1])
                .saturating_add(sides[0] + sides[1])
                .min(ROWS)
        }
        _ => ROWS,
    }
}

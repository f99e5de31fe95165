//! `CAST(moment AS TIMESTAMP)` of a timestamp with a time zone: the time that clocks show in its zone, as it is
//! printed and as its hours and days are. Arrow's cast gives that of UTC.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::functions::datetime::to_local_time;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, LogicalPlan, TryCast};
use datafusion::optimizer::AnalyzerRule;

use crate::tree::{cast_of, change_parts};
use crate::walk::Walk as _;

/// The rule; place it before the one that gives types, whose casts are none of these.
#[derive(Debug)]
pub struct LocalTimes;

impl AnalyzerRule for LocalTimes {
    fn name(&self) -> &str {
        "flashmesh_local_times"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| without_zone(expr).is_some();
        change_parts(plan, is_one, |expr, schema| {
            expr.transform_up(|expr| of_its_zone(expr, schema))
        })
    }
}

/// What becomes a timestamp without a zone.
fn without_zone(expr: &Expr) -> Option<&Expr> {
    let (value, to) = cast_of(expr)?;
    matches!(to, DataType::Timestamp(_, None)).then_some(value)
}

fn of_its_zone(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let of_type = without_zone(&expr).map(|value| value.get_type(schema));
    // What has no type yet is none of these.
    let Some(Ok(DataType::Timestamp(_, Some(_)))) = of_type else {
        return Ok(Transformed::no(expr));
    };
    if let Expr::Cast(Cast { expr: value, .. }) | Expr::TryCast(TryCast { expr: value, .. }) =
        &mut expr
    {
        **value = to_local_time().call(vec![std::mem::take(value)]);
    }
    Ok(Transformed::yes(expr))
}

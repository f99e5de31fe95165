//! What of a plan, or of its rows, would be something else on other nodes.
//!
//! Of a function of windows DataFusion sends neither that it passes over NULL nor that its rows come in reverse, and of
//! an aggregate over windows not its FILTER. Rows with large lists go under a schema of lists, by whose shorter
//! offsets they are read.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::physical_expr::window::{
    PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr,
};
use datafusion::physical_plan::windows::{
    BoundedWindowAggExec, WindowAggExec, WindowUDFExpr, create_udwf_window_expr,
};
use datafusion::physical_plan::{ExecutionPlan, WindowExpr};

/// Whether an operator, without its inputs, and its rows are where they are sent as they are here.
pub(super) fn is_kept(operator: &dyn ExecutionPlan) -> bool {
    let schema = operator.schema();
    let mut types = schema.fields().iter().map(|field| field.data_type());
    !types.any(has_large_list) && are_windows_kept(operator)
}

fn has_large_list(of: &DataType) -> bool {
    match of {
        DataType::LargeList(_) | DataType::LargeListView(_) => true,
        DataType::List(item) | DataType::ListView(item) | DataType::FixedSizeList(item, _) => {
            has_large_list(item.data_type())
        }
        DataType::Map(entries, _) => has_large_list(entries.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_large_list(field.data_type())),
        _ => false,
    }
}

fn are_windows_kept(operator: &dyn ExecutionPlan) -> bool {
    let windows = if let Some(windows) = operator.downcast_ref::<WindowAggExec>() {
        windows.window_expr()
    } else if let Some(windows) = operator.downcast_ref::<BoundedWindowAggExec>() {
        windows.window_expr()
    } else {
        return true;
    };
    let input = operator.children()[0].schema();
    let is_kept = |window: &Arc<dyn WindowExpr>| is_sent_whole(window, &input).unwrap_or(false);
    windows.iter().all(is_kept)
}

/// Whether a function of windows is as what a node makes of it. They show more than they can be asked for.
fn is_sent_whole(window: &Arc<dyn WindowExpr>, input: &Schema) -> Result<bool> {
    let (partition_by, order_by) = (window.partition_by(), window.order_by());
    let frame = Arc::clone(window.get_window_frame());
    let of = window.as_any();
    let sent: Arc<dyn WindowExpr> = if let Some(plain) =
        of.downcast_ref::<PlainAggregateWindowExpr>()
    {
        let aggregate = Arc::new(plain.get_aggregate_expr().clone());
        let sent = PlainAggregateWindowExpr::new(aggregate, partition_by, order_by, frame, None);
        Arc::new(sent)
    } else if let Some(sliding) = of.downcast_ref::<SlidingAggregateWindowExpr>() {
        let aggregate = Arc::new(sliding.get_aggregate_expr().clone());
        let sent = SlidingAggregateWindowExpr::new(aggregate, partition_by, order_by, frame, None);
        Arc::new(sent)
    } else if let Some(standard) = of.downcast_ref::<StandardWindowExpr>()
        && let function = standard.get_standard_func_expr()
        && let Some(udf) = function.as_any().downcast_ref::<WindowUDFExpr>()
    {
        let name = function.name().into();
        let sent = create_udwf_window_expr(udf.fun(), udf.args(), input, name, false)?;
        Arc::new(StandardWindowExpr::new(sent, partition_by, order_by, frame))
    } else {
        return Ok(false);
    };
    Ok(format!("{sent:?}") == format!("{window:?}"))
}

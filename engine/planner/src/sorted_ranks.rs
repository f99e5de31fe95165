//! [`SortedRanksExec`]: numbers and ranks of rows that are sorted.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::compute::{cast, concat, partition};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowUDFExpr};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputOrderMode, PlanProperties,
};
use futures::StreamExt;

/// Does the work of the window below it, whose functions are all `row_number`, `rank` and `dense_rank` over its sorted
/// input: batch by batch, where DataFusion keeps a state of each partition. With partitions of a row or two that took
/// ten times as long as the sort.
#[derive(Debug)]
pub struct SortedRanksExec {
    window: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl SortedRanksExec {
    /// In place of `window`, or of what stands in its place; what is none of those windows runs itself.
    pub fn new(window: Arc<dyn ExecutionPlan>) -> Self {
        Self {
            window,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// Whether a plan is such a window.
    pub fn takes(plan: &dyn ExecutionPlan) -> bool {
        plan.downcast_ref::<BoundedWindowAggExec>()
            .is_some_and(|window| Ranks::of(window).is_some())
    }
}

/// What is told of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rank {
    Number,
    /// One more than rows before it that are not its peers.
    Gaps,
    /// One more than different ones of these.
    Dense,
}

/// The function of a window, and what it is called.
pub(crate) fn function_of(expr: &dyn WindowExpr) -> Option<&str> {
    let expr = expr.as_any().downcast_ref::<StandardWindowExpr>()?;
    let function = expr.get_standard_func_expr().as_any();
    Some(function.downcast_ref::<WindowUDFExpr>()?.fun().name())
}

/// Whether two windows are over the same partitions in the same order.
pub(crate) fn are_alike(one: &dyn WindowExpr, other: &dyn WindowExpr) -> bool {
    let (keys, others) = (one.partition_by(), other.partition_by());
    keys.len() == others.len()
        && keys.iter().zip(others).all(|(one, other)| one.eq(other))
        && one.order_by() == other.order_by()
}

/// Tells the ranks of a stream's rows.
struct Ranks {
    ranks: Vec<Rank>,
    partition: Vec<Arc<dyn PhysicalExpr>>,
    order: Vec<Arc<dyn PhysicalExpr>>,
    schema: SchemaRef,
    /// Keys and places of the last row, each an array of one.
    last: Option<(Vec<ArrayRef>, Vec<ArrayRef>)>,
    number: i64,
    rank: i64,
    dense: i64,
}

impl Ranks {
    fn of(window: &BoundedWindowAggExec) -> Option<Self> {
        if !matches!(window.input_order_mode, InputOrderMode::Sorted) {
            return None;
        }
        let first = window.window_expr().first()?;
        let ranks = window.window_expr().iter().map(|expr| {
            let rank = match function_of(expr.as_ref())? {
                "row_number" => Rank::Number,
                "rank" => Rank::Gaps,
                "dense_rank" => Rank::Dense,
                _ => return None,
            };
            are_alike(expr.as_ref(), first.as_ref()).then_some(rank)
        });
        let order = first.order_by().iter().map(|key| Arc::clone(&key.expr));
        Some(Self {
            ranks: ranks.collect::<Option<_>>()?,
            partition: first.partition_by().to_vec(),
            order: order.collect(),
            schema: window.schema(),
            last: None,
            number: 0,
            rank: 0,
            dense: 0,
        })
    }

    /// A batch with its ranks behind its columns.
    fn ranked(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let value = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(batch)?.into_array(rows);
        let keys: Vec<ArrayRef> = self.partition.iter().map(value).collect::<Result<_>>()?;
        let places: Vec<ArrayRef> = self.order.iter().map(value).collect::<Result<_>>()?;
        let (goes_on, is_peer) = match &self.last {
            Some((last_keys, last_places)) if rows > 0 => {
                let goes_on = is_same(last_keys, &keys)?;
                (goes_on, goes_on && is_same(last_places, &places)?)
            }
            _ => (false, false),
        };
        let mut numbers = Vec::with_capacity(rows);
        for (place, range) in ranges(&keys, rows)?.into_iter().enumerate() {
            let before = if place == 0 && goes_on {
                self.number
            } else {
                0
            };
            numbers.extend((1..=range.len() as i64).map(|number| before + number));
        }
        let has_peers = self.ranks.iter().any(|rank| *rank != Rank::Number);
        let (mut ranks, mut dense) = (Vec::new(), Vec::new());
        if has_peers {
            let all: Vec<_> = keys.iter().chain(&places).cloned().collect();
            for (place, range) in ranges(&all, rows)?.into_iter().enumerate() {
                if place > 0 || !is_peer {
                    let number = numbers[range.start];
                    self.dense = if number == 1 { 1 } else { self.dense + 1 };
                    self.rank = number;
                }
                ranks.resize(range.end, self.rank);
                dense.resize(range.end, self.dense);
            }
        }
        if rows > 0 {
            self.number = numbers[rows - 1];
            let last = |of: &[ArrayRef]| of.iter().map(|of| of.slice(rows - 1, 1)).collect();
            self.last = Some((last(&keys), last(&places)));
        }
        let mut columns = batch.columns().to_vec();
        for rank in &self.ranks {
            let values = match rank {
                Rank::Number => numbers.clone(),
                Rank::Gaps => ranks.clone(),
                Rank::Dense => dense.clone(),
            };
            let values: ArrayRef = Arc::new(Int64Array::from(values));
            columns.push(cast(&values, self.schema.field(columns.len()).data_type())?);
        }
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

/// Rows that are equal in all columns, one after another.
fn ranges(columns: &[ArrayRef], rows: usize) -> Result<Vec<Range<usize>>> {
    Ok(match columns {
        _ if rows == 0 => vec![],
        [] => std::iter::once(0..rows).collect(),
        columns => partition(columns)?.ranges(),
    })
}

/// Whether the row that went before is equal to the first of some rows.
fn is_same(before: &[ArrayRef], now: &[ArrayRef]) -> Result<bool> {
    let both = before.iter().zip(now);
    let both = both.map(|(before, now)| concat(&[before.as_ref(), now.slice(0, 1).as_ref()]));
    let both = both.collect::<Result<Vec<_>, _>>()?;
    Ok(ranges(&both, 2)?.len() == 1)
}

impl DisplayAs for SortedRanksExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SortedRanksExec")
    }
}

impl ExecutionPlan for SortedRanksExec {
    fn name(&self) -> &str {
        "SortedRanksExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.window.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.window]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(window), true) => Ok(Arc::new(Self::new(window))),
            _ => internal_err!("SortedRanksExec has one child"),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let window = self.window.downcast_ref::<BoundedWindowAggExec>();
        let Some((window, mut ranks)) = window.and_then(|w| Some((w, Ranks::of(w)?))) else {
            return self.window.execute(partition, context);
        };
        let rows = window.input().execute(partition, context)?;
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let elapsed = metrics.elapsed_compute().clone();
        let rows = rows.map(move |batch| {
            let batch = batch?;
            let _timer = elapsed.timer();
            Ok(ranks.ranked(&batch)?.record_output(&metrics))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

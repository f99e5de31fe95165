//! [`RackExec`]: a plan of which nodes run parts, or this one all where they can't.

use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::error::DataFusionError;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use datafusion_distributed::{
    DistributedExt, DistributedMetricsFormat, rewrite_distributed_plan_with_metrics,
};
use flashmesh_planner::QueryKeys;
use flashmesh_planner::walk::Walk as _;
use flashmesh_storage::store::NodeId;
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::oneshot;

use super::channels::OfQuery;
use super::colocated::Places;
use super::{Workers, join_keys};

/// Whether EXPLAIN ANALYZE shows what was measured of all parts of a stage together, or of each.
pub(super) type Measure = DistributedMetricsFormat;

/// A query in parts, with what makes its session the coordinator of them. Where a node goes away, or
/// can't do its part, before the first row has left, all of it is done on this one.
#[derive(Debug)]
pub(super) struct RackExec {
    /// As the nodes do it.
    distributed: Arc<dyn ExecutionPlan>,
    /// As this node does it, in one stream: planned by itself, as operators share what they have learnt
    /// (filters that have become narrower, the table of a join) with those that they were copied from.
    here: Arc<dyn ExecutionPlan>,
    workers: Arc<Workers>,
    nodes: Vec<NodeId>,
    measure: Option<Measure>,
    /// Nodes read small tables from each other.
    has_whole: bool,
    /// What was done: as nodes measured it, once they have told, or all on this one.
    measured: Measured,
}

/// How long a query that has ended waits for what nodes have measured: one that was never asked for a row,
/// as a limit was met before, may tell nothing.
const MEASURED_WITHIN: Duration = Duration::from_secs(5);

type Measured = Arc<OnceLock<Arc<dyn ExecutionPlan>>>;

impl RackExec {
    pub fn new(
        distributed: Arc<dyn ExecutionPlan>,
        here: Arc<dyn ExecutionPlan>,
        workers: Arc<Workers>,
        nodes: Vec<NodeId>,
        measure: Option<Measure>,
        has_whole: bool,
    ) -> Self {
        let here = match here.output_partitioning().partition_count() {
            1 => here,
            _ => Arc::new(CoalescePartitionsExec::new(here)),
        };
        Self {
            distributed,
            here,
            workers,
            nodes,
            measure,
            has_whole,
            measured: Measured::default(),
        }
    }
}

impl DisplayAs for RackExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RackExec: nodes={}", self.nodes.len())
    }
}

impl ExecutionPlan for RackExec {
    fn name(&self) -> &str {
        "RackExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.distributed.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.measured.get().unwrap_or(&self.distributed)]
    }

    /// Those of what this node may do by itself, which is no input: whoever ends the query finds the
    /// conditions of joins that way.
    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.here.apply(|plan| plan.apply_expressions(visit))
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(distributed), true) = (children.pop(), children.is_empty()) else {
            return internal_err!("RackExec has one child");
        };
        Ok(Arc::new(Self {
            distributed,
            here: Arc::clone(&self.here),
            workers: Arc::clone(&self.workers),
            nodes: self.nodes.clone(),
            measure: self.measure,
            has_whole: self.has_whole,
            measured: Measured::default(),
        }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let config = context.session_config().clone();
        let is_measured = self.measure.is_some();
        let workers = &self.workers;
        let places = Places::default();
        let config = workers.coordinator(config, &self.nodes, &places, is_measured)?;
        let own = (workers.own, workers.worker.clone());
        let (ways, failed) = OfQuery::new(Arc::clone(&workers.session.channels), own);
        let execution = rand::random();
        let keys = QueryKeys::new(Arc::clone(&workers.session.keys), execution, 0, 1);
        let config = config
            .with_distributed_channel_resolver(ways)
            .with_distributed_passthrough_headers(join_keys::mark_of(execution))?
            .with_extension(Arc::new(keys));
        let of_parts = TaskContext::new(
            context.task_id(),
            context.session_id(),
            config,
            context.scalar_functions().clone(),
            context.higher_order_functions().clone(),
            context.aggregate_functions().clone(),
            context.window_functions().clone(),
            context.runtime_env(),
        );
        workers.counts.queries.fetch_add(1, Ordering::Relaxed);
        let mut rows = self.distributed.execute(partition, Arc::new(of_parts))?;
        if let Some(measure) = self.measure {
            rows = measured(rows, &self.distributed, measure, &self.measured);
        }
        Ok(Box::pin(Rows {
            rows,
            failed: Some(failed),
            here: Some((Arc::clone(&self.here), context)),
            workers: Arc::clone(workers),
            has_whole: self.has_whole,
            measured: Arc::clone(&self.measured),
        }))
    }
}

/// The rows, and behind the last one what the nodes measured: if it does not come, the rows are whole
/// nevertheless.
fn measured(
    rows: SendableRecordBatchStream,
    distributed: &Arc<dyn ExecutionPlan>,
    measure: Measure,
    into: &Measured,
) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let (plan, into) = (Arc::clone(distributed), Arc::clone(into));
    let end = async move {
        let measured = rewrite_distributed_plan_with_metrics(plan, measure);
        match tokio::time::timeout(MEASURED_WITHIN, measured).await {
            Ok(Ok(plan)) => drop(into.set(plan)),
            Ok(Err(error)) => log::warn!("what nodes measured is not there: {error}"),
            Err(_) => log::warn!("what nodes measured has not come"),
        }
    };
    let end = futures::stream::once(end).filter_map(|()| ready(None));
    Box::pin(RecordBatchStreamAdapter::new(schema, rows.chain(end)))
}

/// The rows of a [`RackExec`].
struct Rows {
    rows: SendableRecordBatchStream,
    /// Tells when a node did not get its part, until all have.
    failed: Option<oneshot::Receiver<DataFusionError>>,
    /// What is done in place of the parts, while nothing has come of them.
    here: Option<(Arc<dyn ExecutionPlan>, Arc<TaskContext>)>,
    workers: Arc<Workers>,
    has_whole: bool,
    measured: Measured,
}

/// Whether the same query may end in another way where all of it is done on one node.
fn may_be_done_here(error: &DataFusionError) -> bool {
    !matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

impl Rows {
    fn poll_parts(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        if let Some(Poll::Ready(told)) = self
            .failed
            .as_mut()
            .map(|failed| failed.poll_unpin(context))
        {
            self.failed = None;
            if let Ok(error) = told {
                return Poll::Ready(Some(Err(error)));
            }
        }
        self.rows.poll_next_unpin(context)
    }
}

impl Stream for Rows {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let next = std::task::ready!(self.poll_parts(context));
            if self.has_whole && matches!(next, Some(Err(_))) {
                self.workers.whole_scans.have_failed();
            }
            match (next, self.here.take()) {
                (Some(Err(error)), Some((here, task))) if may_be_done_here(&error) => {
                    log::warn!("a query is done on the head alone: {error}");
                    let counts = &self.workers.counts;
                    counts.on_head_alone.fetch_add(1, Ordering::Relaxed);
                    self.failed = None;
                    self.rows = here.execute(0, task)?;
                    let _ = self.measured.set(here);
                }
                (next, _) => return Poll::Ready(next),
            }
        }
    }
}

impl RecordBatchStream for Rows {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }
}

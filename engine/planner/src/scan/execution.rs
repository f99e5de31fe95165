//! Running a scan: one request to the storage node for each partition.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};

use arrow::compute::kernels::cmp::eq;
use arrow::compute::nullif;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::{RecordBatchStream, TaskContext};
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::kernel::{QueryCalls, has_kernels};
use flashmesh_storage::node::{
    Command, ResultStream, RuntimeFilters, SegmentQueue, Step, StorageNode,
};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream};
use parking_lot::Mutex;

use super::runtime::DynamicFilters;
use super::{FlashScanExec, statistics};
use crate::config::Pushdown;
use crate::error::from_storage;
use crate::join_keys::QueryKeys;
use crate::kernels::aside;

/// What a partition may take up beside the query's memory: most never take more.
const UNACCOUNTED_BYTES: usize = 1 << 20;

/// The executions of a plan's scan that are known: usually one.
#[derive(Debug, Default)]
pub(super) struct Executions(Mutex<Vec<Arc<Execution>>>);

/// One execution: what its partitions share.
#[derive(Debug)]
struct Execution {
    context: Weak<TaskContext>,
    started: Mutex<Vec<bool>>,
    work: Arc<SegmentQueue>,
    runtime_filters: Arc<RuntimeFilters>,
    dynamic: DynamicFilters,
    metrics: Arc<ScanMetrics>,
    has_kernels: bool,
}

impl Executions {
    /// The stream of one partition.
    ///
    /// Partitions take their segments from one queue, so each must find the queue of its own
    /// execution: the one that runs in the same task context and has not started this partition
    /// yet. What runs in another context is another's, whose segments are not to be taken.
    pub(super) fn open(
        &self,
        scan: &FlashScanExec,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition >= scan.partitions() {
            return internal_err!("partition {partition} of {}", scan.partitions());
        }
        let mut known = self.0.lock();
        let claim = |execution: &Execution| {
            let mut started = execution.started.lock();
            !std::mem::replace(&mut started[partition], true)
        };
        let mine = known
            .iter()
            .rev()
            .filter(|e| std::ptr::eq(e.context.as_ptr(), Arc::as_ptr(context)))
            .find(|e| claim(e));
        let execution = match mine {
            Some(execution) => Arc::clone(execution),
            None => {
                known.retain(|e| e.context.strong_count() > 0);
                let execution = Arc::new(Execution::new(scan, context));
                claim(&execution);
                known.push(Arc::clone(&execution));
                execution
            }
        };
        let command = Command {
            program: Arc::clone(scan.program()),
            table: Arc::clone(&scan.spec().table),
            work: Arc::clone(&execution.work),
            runtime_filters: Arc::clone(&execution.runtime_filters),
            batch_rows: context.session_config().batch_size(),
            metrics: Arc::clone(&execution.metrics),
            capability: Arc::clone(&scan.spec().capability),
        };
        let stream = FlashStream {
            node: Arc::clone(scan.node()),
            schema: scan.schema(),
            null_for_zero: scan.spec().null_for_zero.clone(),
            keys: execution.dynamic.wait().map(FutureExt::boxed),
            execution,
            state: State::Waiting(Box::new(command)),
            pool: Arc::clone(context.memory_pool()),
            memory: None,
        };
        Ok(Box::pin(cooperative(stream)))
    }

    /// Counters of the execution that was started last.
    pub(super) fn last_metrics(&self) -> Option<Arc<ScanMetrics>> {
        self.0.lock().last().map(|e| Arc::clone(&e.metrics))
    }
}

impl Execution {
    fn new(scan: &FlashScanExec, context: &Arc<TaskContext>) -> Self {
        let runtime_filters = Arc::new(RuntimeFilters::default());
        let keys = context.session_config().get_extension::<QueryKeys>();
        let dynamic = DynamicFilters::new(scan, keys.as_deref(), Arc::clone(&runtime_filters));
        let segments = scan.segments().into_owned();
        let work = scan.spec().work(segments, scan.access().cloned());
        if scan.node().has_peers() && scan.spec().mode == Pushdown::Auto {
            let (schema, partitions) = (scan.schema(), scan.partitions());
            work.expect_bytes(statistics::expected_bytes(scan.spec(), &schema, partitions));
        }
        if let Some(calls) = context.session_config().get_extension::<QueryCalls>() {
            work.run_kernels_of(calls);
        }
        Self {
            context: Arc::downgrade(context),
            started: Mutex::new(vec![false; scan.partitions()]),
            work,
            runtime_filters,
            dynamic,
            metrics: Arc::new(ScanMetrics::default()),
            has_kernels: has_kernels(scan.program()),
        }
    }
}

enum State {
    /// Nothing was asked for yet.
    Waiting(Box<Command>),
    Running(Box<ResultStream>),
    Ended,
}

/// One partition's stream. The store computes on the thread that polls; its page reads run
/// ahead.
struct FlashStream {
    node: Arc<StorageNode>,
    schema: SchemaRef,
    /// [`ScanSpec::null_for_zero`](super::spec::ScanSpec::null_for_zero).
    null_for_zero: Vec<usize>,
    /// Until keys of joins elsewhere are there.
    keys: Option<BoxFuture<'static, ()>>,
    execution: Arc<Execution>,
    state: State,
    pool: Arc<dyn MemoryPool>,
    /// What its groups or first rows take up, once that is much.
    memory: Option<MemoryReservation>,
}

impl FlashStream {
    fn pull(&mut self, waker: &Waker) -> Result<Option<Step>> {
        self.execution.dynamic.refresh()?;
        if let State::Waiting(_) = &self.state {
            let State::Waiting(command) = std::mem::replace(&mut self.state, State::Ended) else {
                return Ok(None);
            };
            let results = self.node.submit(*command).map_err(from_storage)?;
            self.state = State::Running(Box::new(results));
        }
        let State::Running(results) = &mut self.state else {
            return Ok(None);
        };
        let step = match self.execution.has_kernels {
            true => aside(|| results.poll_step(waker)),
            false => results.poll_step(waker),
        };
        let step = step.transpose().map_err(from_storage)?;
        self.account()?;
        Ok(step)
    }

    /// Takes what the results so far take up from the query's memory. Where there is no more,
    /// groups are given out before all of them are known; the operators above merge them, and
    /// spill.
    fn account(&mut self) -> Result<()> {
        let State::Running(results) = &mut self.state else {
            return Ok(());
        };
        let bytes = results.memory_bytes();
        if bytes <= UNACCOUNTED_BYTES && self.memory.is_none() {
            return Ok(());
        }
        let memory = self
            .memory
            .get_or_insert_with(|| MemoryConsumer::new("FlashScanExec").register(&self.pool));
        if memory.try_resize(bytes).is_ok() {
            return Ok(());
        }
        results.shed().map_err(from_storage)?;
        memory.try_resize(results.memory_bytes())
    }

    /// A batch of the Program as the plan knows it.
    fn output(&self, batch: RecordBatch) -> Result<RecordBatch> {
        // The Program's columns have no names of the plan.
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let mut columns = batch.columns().to_vec();
        for index in &self.null_for_zero {
            let counts = &columns[*index];
            let zero = ScalarValue::new_zero(counts.data_type())?.to_scalar()?;
            columns[*index] = nullif(counts, &eq(counts, &zero)?)?;
        }
        let schema = Arc::clone(&self.schema);
        Ok(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?)
    }
}

impl Stream for FlashStream {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(keys) = &mut this.keys {
            ready!(keys.poll_unpin(context));
            this.keys = None;
        }
        let item = match this.pull(context.waker()) {
            Ok(Some(Step::SegmentDone)) => {
                // An aggregate may have a batch only at the table's end. Other queries, and
                // whoever cancels this one, get the thread before that.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Ok(Some(Step::Waiting)) => return Poll::Pending,
            Ok(Some(Step::Batch(batch))) => Some(this.output(batch)),
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        };
        if !matches!(item, Some(Ok(_))) {
            this.state = State::Ended;
            this.memory = None;
        }
        Poll::Ready(item)
    }
}

impl RecordBatchStream for FlashStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

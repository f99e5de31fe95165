//! Ending a query inside of an operator that looks at many rows before it gives its thread up.
//!
//! A task is cancelled where it waits. A join whose condition few pairs of rows meet looks at all
//! pairs of a batch with the whole other side first, which may be billions. What it asks for each
//! few thousand of them is its condition: that fails once nobody wants the rows any more. So do the
//! calls of users' kernels. And it lets other tasks of the runtime have the thread's place, of which there is one a
//! core: two such joins kept everybody else waiting to their end.

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use crate::kernels::KernelQueryExec;
use crate::walk::Walk as _;

/// Ends what runs of a plan when it is dropped. The plan can't run again.
#[derive(Debug)]
pub struct StopOnDrop(Arc<dyn ExecutionPlan>);

impl StopOnDrop {
    /// For whoever waits for the rows of `plan`.
    pub fn new(plan: &Arc<dyn ExecutionPlan>) -> Self {
        Self(Arc::clone(plan))
    }

    /// What runs.
    pub fn plan(&self) -> &dyn ExecutionPlan {
        self.0.as_ref()
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        stop(self.0.as_ref());
    }
}

fn stop(plan: &dyn ExecutionPlan) {
    if let Some(query) = plan.downcast_ref::<KernelQueryExec>() {
        query.cancel();
    }
    // Infallible, as this is.
    let _ = plan.apply_expressions(&mut |expression| {
        if let Some(condition) = expression.downcast_ref::<Interruptible>() {
            condition.stopped.store(true, Ordering::Relaxed);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    for child in plan.children() {
        stop(child.as_ref());
    }
}

/// The condition of a join, which [`StopOnDrop`] makes fail.
pub(crate) fn interruptible(filter: &JoinFilter) -> JoinFilter {
    let condition = Interruptible {
        inner: Arc::clone(filter.expression()),
        stopped: Arc::default(),
    };
    JoinFilter::new(
        Arc::new(condition),
        filter.column_indices().to_vec(),
        Arc::clone(filter.schema()),
    )
}

/// The plan with the conditions of its hash joins as they were planned, for nodes where nobody has it
/// to stop: these joins look at pairs of equal keys alone.
///
/// # Errors
/// What DataFusion says of joins.
pub fn with_plain_conditions(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let plain = plan.transform_up(|node| {
        let join = node.downcast_ref::<HashJoinExec>();
        let Some((join, filter)) = join.and_then(|join| Some((join, join.filter()?))) else {
            return Ok(Transformed::no(node));
        };
        let Some(condition) = filter.expression().downcast_ref::<Interruptible>() else {
            return Ok(Transformed::no(node));
        };
        let filter = JoinFilter::new(
            Arc::clone(&condition.inner),
            filter.column_indices().to_vec(),
            Arc::clone(filter.schema()),
        );
        let join = HashJoinExecBuilder::from(join).with_filter(Some(filter));
        Ok(Transformed::yes(Arc::new(join.build()?) as _))
    })?;
    Ok(plain.data)
}

/// How long a thread computes conditions before it lets others have its place.
const TURN: Duration = Duration::from_millis(10);
/// A thread that computed none for so long has done something else, or waited.
const PAUSE: Duration = Duration::from_millis(1);

/// Does some work, after a while of it so that what waits for this thread goes on on another one.
fn in_turn<T>(work: impl FnOnce() -> T) -> T {
    thread_local! {
        /// When this thread began, and when it last ended such work.
        static TURN_OF: Cell<Option<(Instant, Instant)>> = const { Cell::new(None) };
    }
    let now = Instant::now();
    let begun = match TURN_OF.get() {
        Some((begun, ended)) if now - ended < PAUSE => begun,
        _ => now,
    };
    let is_over = now - begun > TURN;
    // Elsewhere there is nobody who could go on.
    let has_others = |runtime: Handle| runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
    let done = match is_over && Handle::try_current().is_ok_and(has_others) {
        true => block_in_place(work),
        false => work(),
    };
    let ended = Instant::now();
    TURN_OF.set(Some((if is_over { ended } else { begun }, ended)));
    done
}

/// An expression until somebody says stop.
#[derive(Debug, Clone)]
struct Interruptible {
    inner: Arc<dyn PhysicalExpr>,
    stopped: Arc<AtomicBool>,
}

impl PartialEq for Interruptible {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner)
    }
}

impl Eq for Interruptible {}

impl Hash for Interruptible {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl fmt::Display for Interruptible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PhysicalExpr for Interruptible {
    fn return_field(&self, input_schema: &Schema) -> Result<FieldRef> {
        self.inner.return_field(input_schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        if self.stopped.load(Ordering::Relaxed) {
            return exec_err!("the query was cancelled");
        }
        in_turn(|| self.inner.evaluate(batch))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.remove(0);
        let stopped = Arc::clone(&self.stopped);
        Ok(Arc::new(Self { inner, stopped }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}

//! Small tables that each node reads by itself, wherever they lie (BlueDBM section 3: any node reads any
//! page), in place of a stage that gives their rows to all: the nodes keep the pages in their caches, so
//! that the next query takes none of them from elsewhere.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion_distributed::{BroadcastExec, DistributedLeafExec, NetworkBroadcastExec};
use flashmesh_planner::FlashScanExec;
use flashmesh_planner::walk::Walk as _;
use flashmesh_storage::node::{StorageNode, bytes_to_read};
use flashmesh_storage::segment::bytes_in_memory;
use flashmesh_storage::store::NodeId;

/// Bytes of pages that each node reads for one input, at most: what takes no longer than a stage more.
const WHOLE_MAX_BYTES: f64 = (1 << 20) as f64;

/// Segments of them: what is known of each goes to each node with the plan.
const WHOLE_MAX_SEGMENTS: usize = 256;

/// The nodes that run a plan, as the head sees them.
pub(super) struct Readers<'a> {
    pub storage: &'a StorageNode,
    pub own: NodeId,
    /// In the order of their tasks.
    pub nodes: &'a [NodeId],
}

impl Readers<'_> {
    /// A plan that was cut, without the stages that give all nodes rows of small tables; and whether there
    /// was one.
    ///
    /// # Errors
    /// Those of making operators anew.
    pub fn with_whole_scans(
        &self,
        plan: Arc<dyn ExecutionPlan>,
    ) -> Result<(Arc<dyn ExecutionPlan>, bool)> {
        if !self.storage.nodes_read_each_other() {
            return Ok((plan, false));
        }
        let plan = plan.transform_up(|node| {
            let inputs = node.children();
            let given = inputs.first().filter(|_| node.is::<NetworkBroadcastExec>());
            let Some(given) = given.and_then(|input| input.downcast_ref::<BroadcastExec>()) else {
                return Ok(Transformed::no(node));
            };
            let (input, tasks) = (given.input(), given.consumer_task_count());
            match self.may_read(input, tasks) {
                true => self.read_by_each(input, tasks).map(Transformed::yes),
                false => Ok(Transformed::no(node)),
            }
        })?;
        Ok((plan.data, plan.transformed))
    }

    /// Whether an input is of small tables, which each of so many tasks may read.
    fn may_read(&self, input: &Arc<dyn ExecutionPlan>, tasks: usize) -> bool {
        let mut scans = Vec::new();
        let is_known = collect_scans(input, &mut scans) && [1, self.nodes.len()].contains(&tasks);
        let segments: usize = scans.iter().map(|scan| scan.segments().len()).sum();
        let is_small = segments <= WHOLE_MAX_SEGMENTS
            && scans.iter().map(|scan| bytes_of(scan)).sum::<f64>() <= WHOLE_MAX_BYTES;
        is_known && is_small && self.reach(&scans)
    }

    /// Whether all segments are on nodes that work.
    fn reach(&self, scans: &[&FlashScanExec]) -> bool {
        let nodes: HashSet<_> = self.nodes.iter().copied().collect();
        let lies = |scan: &&FlashScanExec| {
            let segments = scan.segments();
            segments.iter().all(|segment| segment.lies_on(&nodes))
        };
        scans.iter().all(lies)
    }

    /// The input, of which each task reads all.
    fn read_by_each(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        tasks: usize,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let whole = Arc::clone(input).transform_up(|node| {
            let Some(scan) = scan_of(&node) else {
                return Ok(Transformed::no(node));
            };
            let here: Arc<dyn ExecutionPlan> = Arc::new(scan.whole(true));
            if tasks == 1 {
                return Ok(Transformed::yes(here));
            }
            let variants = self.nodes.iter().map(|node| {
                let is_here = *node == self.own;
                Arc::new(scan.whole(is_here)) as Arc<dyn ExecutionPlan>
            });
            let of_tasks = DistributedLeafExec::try_new(here, variants)?;
            Ok(Transformed::yes(Arc::new(of_tasks) as _))
        })?;
        Ok(whole.data)
    }
}

/// Bytes of the pages that each node would read, and of those in memory, which go to it with the plan.
fn bytes_of(scan: &FlashScanExec) -> f64 {
    let segments = scan.segments();
    let in_memory = segments.iter().map(|segment| bytes_in_memory(segment));
    in_memory.sum::<u64>() as f64 + bytes_to_read(scan.program(), &segments)
}

/// The scan of a part of a plan, or of each task.
fn scan_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&FlashScanExec> {
    let divided = plan.downcast_ref::<DistributedLeafExec>();
    let plan = divided.map_or(plan, DistributedLeafExec::original);
    plan.downcast_ref::<FlashScanExec>()
}

/// The scans below an input. `false` where it takes rows of other tasks, or would give others where each
/// task has all of it.
fn collect_scans<'a>(plan: &'a Arc<dyn ExecutionPlan>, scans: &mut Vec<&'a FlashScanExec>) -> bool {
    if let Some(scan) = scan_of(plan) {
        scans.push(scan);
        return scan.may_be_whole();
    }
    let is_join = plan
        .downcast_ref::<HashJoinExec>()
        .is_some_and(|join| *join.partition_mode() == PartitionMode::CollectLeft);
    let gives_the_same = is_join
        || plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<CooperativeExec>();
    // A limit takes those rows that come first; `random()` is another number on each node.
    let gives_the_same = gives_the_same && plan.fetch().is_none() && !has_volatile(plan);
    let children = plan.children();
    let mut children = children.into_iter();
    gives_the_same && children.all(|child| collect_scans(child, scans))
}

fn has_volatile(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let mut found = false;
    let looked = plan.apply_expressions(&mut |expr| {
        found |= is_volatile(expr);
        Ok(TreeNodeRecursion::Continue)
    });
    found || looked.is_err()
}

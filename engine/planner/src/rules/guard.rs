//! Physical rules of DataFusion that run with some of what they would do held back.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::walk::Walk as _;

/// What is held back at a node of a plan.
pub(super) trait HeldBack: fmt::Debug + Send + Sync + Sized + 'static {
    /// At this one, if anything is.
    fn at(node: &Arc<dyn ExecutionPlan>) -> Option<Self>;

    /// Changes filters from above before the node is asked for its own and its children's part of them.
    fn hold_filters(&self, _filters: &mut [Arc<dyn PhysicalExpr>]) {}

    /// What becomes of a projection above the node; `None` where it stays.
    fn swap(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        projection: &ProjectionExec,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        node.try_swapping_with_projection(projection)
    }

    /// What is known of the node's rows: nothing.
    fn statistics(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::new(Statistics::new_unknown(&node.schema())))
    }
}

/// A rule that runs with that held back.
#[derive(Debug)]
pub(super) struct Guarded<H> {
    rule: Arc<dyn PhysicalOptimizerRule + Send + Sync>,
    held: PhantomData<fn() -> H>,
}

impl<H: HeldBack> Guarded<H> {
    pub fn new(rule: &Arc<dyn PhysicalOptimizerRule + Send + Sync>) -> Self {
        Self {
            rule: Arc::clone(rule),
            held: PhantomData,
        }
    }
}

impl<H: HeldBack> PhysicalOptimizerRule for Guarded<H> {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let guarded = plan.transform_up(|node| {
            Ok(match H::at(&node) {
                Some(held) => {
                    let held = Arc::new(held);
                    Transformed::yes(Arc::new(Guard { node, held }) as _)
                }
                None => Transformed::no(node),
            })
        })?;
        let optimized = self.rule.optimize(guarded.data, config)?;
        if !guarded.transformed {
            return Ok(optimized);
        }
        let bare = optimized.transform_up(|node| {
            Ok(match node.downcast_ref::<Guard<H>>() {
                Some(guard) => Transformed::yes(Arc::clone(&guard.node)),
                None => Transformed::no(node),
            })
        });
        Ok(bare?.data)
    }

    fn schema_check(&self) -> bool {
        self.rule.schema_check()
    }
}

/// A node at which something is held back; it is there only while the rule runs.
#[derive(Debug)]
struct Guard<H> {
    node: Arc<dyn ExecutionPlan>,
    held: Arc<H>,
}

impl<H: HeldBack> DisplayAs for Guard<H> {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt_as(t, f)
    }
}

impl<H: HeldBack> ExecutionPlan for Guard<H> {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.node.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.node.children()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self {
            node: Arc::clone(&self.node).replace_children(children, options)?,
            held: Arc::clone(&self.held),
        }))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.node.apply_expressions(f)
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExec,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        self.held.swap(&self.node, projection)
    }

    fn statistics_from_inputs(
        &self,
        _inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.held.statistics(&self.node, args)
    }

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        mut parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        self.held.hold_filters(&mut parent_filters);
        self.node
            .gather_filters_for_pushdown(phase, parent_filters, config)
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        results: ChildPushdownResult,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        self.node
            .handle_child_pushdown_result(phase, results, config)
    }

    fn execute(
        &self,
        _partition: usize,
        _context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        internal_err!("a plan runs with a guard of its optimiser")
    }
}

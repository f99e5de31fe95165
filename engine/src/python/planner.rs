//! Plans for the wheel's sessions.
//!
//! The wheel could run no operator of ours, and its own would hide the scans from our rules. So
//! it gets one leaf that runs the whole query here.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session as DataFusionSession;
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning,
    PlanProperties, ReplaceChildrenOptions,
};

use super::link::Link;
use super::table::with_queries_inlined;

/// Plans with our session, whatever session asks.
#[derive(Debug)]
pub(super) struct EmbeddedPlanner {
    pub(super) link: Arc<Link>,
}

#[async_trait]
impl QueryPlanner for EmbeddedPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        _session: &dyn DataFusionSession,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let session = self.link.session()?;
        let plan = self.link.functions()?.in_plan(plan.clone())?;
        let plan = with_queries_inlined(plan)?;
        let context = session.context();
        let plan = context.state().create_physical_plan(&plan).await?;
        Ok(Arc::new(EmbeddedExec::new(plan, context.task_ctx())))
    }
}

/// A whole query of ours as a leaf of somebody else's plan. It runs with the options and the
/// memory limit of our session.
#[derive(Debug)]
pub(super) struct EmbeddedExec {
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    properties: Arc<PlanProperties>,
}

impl EmbeddedExec {
    pub(super) fn new(plan: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>) -> Self {
        let inner = plan.properties();
        let properties = PlanProperties::new(
            EquivalenceProperties::new(plan.schema()),
            Partitioning::UnknownPartitioning(inner.partitioning.partition_count()),
            inner.emission_type,
            inner.boundedness,
        );
        Self {
            plan,
            context,
            properties: Arc::new(properties),
        }
    }
}

impl DisplayAs for EmbeddedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlashmeshExec")
    }
}

impl ExecutionPlan for EmbeddedExec {
    fn name(&self) -> &str {
        "FlashmeshExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn replace_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
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
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.plan.execute(partition, Arc::clone(&self.context))
    }
}

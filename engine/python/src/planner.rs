//! Plans for the wheel's sessions.
//!
//! The wheel could run no operator of ours, and its own would hide the scans from our rules. So
//! it gets one leaf that runs the whole query here.

use std::sync::Arc;

use datafusion::catalog::Session as DataFusionSession;
use datafusion::common::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use flashmesh_macros::async_impl;

use crate::exec::EmbeddedExec;
use crate::link::Link;
use crate::table::with_queries_inlined;

/// Plans with our session, whatever session asks.
#[derive(Debug)]
pub(crate) struct EmbeddedPlanner {
    pub(crate) link: Arc<Link>,
}

#[async_impl]
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

//! DataFusion's planner with what is added to it: functions that the store runs, kernels of users, and
//! joins of the nearest rows.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::{LexOrdering, create_physical_sort_exprs};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};
use flashmesh_macros::async_impl;

use super::exec::{StoreFunctionExec, StoreFunctionNode};
use crate::asof::as_of_join;
use crate::kernels::{KernelQueryExec, plan_for_query};

/// DataFusion's planner with [`StoreFunctionNode`]s.
#[derive(Debug)]
pub(crate) struct StorePlanner;

#[async_impl]
impl QueryPlanner for StorePlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        state: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(Self)]);
        let Some((plan, calls)) = plan_for_query(plan)? else {
            return planner.create_physical_plan(plan, state).await;
        };
        let plan = planner.create_physical_plan(&plan, state).await?;
        Ok(Arc::new(KernelQueryExec::new(plan, calls)))
    }
}

#[async_impl]
impl ExtensionPlanner for StorePlanner {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        logical_inputs: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        state: &dyn Session,
        planning: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if let Some(join) = as_of_join(node, planner, logical_inputs, inputs, state, planning)? {
            return Ok(Some(join));
        }
        let Some(node) = node.as_any().downcast_ref::<StoreFunctionNode>() else {
            return Ok(None);
        };
        let order = match logical_inputs.first() {
            Some(input) => create_physical_sort_exprs(
                &node.order,
                input.schema(),
                state.execution_props(),
                planning,
            )?,
            None => vec![],
        };
        let function = Arc::clone(&node.function);
        let input = inputs.first().cloned();
        let order = LexOrdering::new(order);
        Ok(Some(Arc::new(StoreFunctionExec::new(
            function, input, order,
        ))))
    }
}

//! Substrait plans in place of SQL.

use arrow_flight::sql::SubstraitPlan;
use datafusion::logical_expr::LogicalPlan;
use datafusion_substrait::logical_plan::consumer::from_substrait_plan;
use datafusion_substrait::substrait::proto::Plan;
use prost::Message;

use crate::Session;
use crate::error::{Error, Result};

/// The plan of a client's plan.
pub(super) async fn plan(session: &Session, plan: Option<SubstraitPlan>) -> Result<LogicalPlan> {
    let Some(plan) = plan else {
        return Err(Error::usage("the request has no Substrait plan"));
    };
    let plan = Plan::decode(plan.plan)
        .map_err(|e| Error::usage(format!("the Substrait plan can't be read: {e}")))?;
    let plan = from_substrait_plan(&session.context().state(), &plan).await?;
    session.admit(&plan)?;
    Ok(plan)
}

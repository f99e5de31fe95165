//! The first groups in an order, which DataFusion finds without keeping the others.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

use super::guard::HeldBack;

/// Groups of floats, and those in the order of one: there a NaN is not equal to itself, so that a group of it is
/// there twice, or is looked for and not found.
#[derive(Debug)]
pub(super) struct OfFloats;

impl HeldBack for OfFloats {
    // What is guarded is no aggregate to the rule.
    fn at(node: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let aggregate = node.downcast_ref::<AggregateExec>()?;
        let schema = aggregate.schema();
        let mut fields = schema.fields().iter();
        fields
            .any(|field| field.data_type().is_floating())
            .then_some(Self)
    }
}

//! Rows of VALUES whose whole numbers are of the columns' types: a CASE gets another one after these were chosen.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Values, cast};
use datafusion::optimizer::AnalyzerRule;

use crate::walk::WalkPlan as _;

/// The rule; place it behind the one that gives types.
#[derive(Debug)]
pub struct TypedValues;

impl AnalyzerRule for TypedValues {
    fn name(&self) -> &str {
        "flashmesh_typed_values"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let typed = plan.change_up_with_subqueries(|node| match node {
            LogicalPlan::Values(values) => typed(values),
            other => Ok(Transformed::no(other)),
        });
        Ok(typed?.data)
    }
}

fn typed(mut values: Values) -> Result<Transformed<LogicalPlan>> {
    let nothing = DFSchema::empty();
    let mut has_any = false;
    for row in &mut values.values {
        for (value, field) in row.iter_mut().zip(values.schema.fields()) {
            // Most are constants.
            if matches!(value, Expr::Literal(..)) {
                continue;
            }
            let (of, wanted) = (value.get_type(&nothing)?, field.data_type());
            // One that does not fit is an error; of others digits would be lost.
            if of != *wanted && of.is_integer() && wanted.is_integer() {
                *value = cast(std::mem::take(value), wanted.clone());
                has_any = true;
            }
        }
    }
    let values = LogicalPlan::Values(values);
    Ok(Transformed::new_transformed(values, has_any))
}

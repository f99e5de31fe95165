//! `map[key]` of keys that have another type than a constant has as it is written, with which DataFusion compares them:
//! those of a `MAP(INTEGER, …)`, and texts that are kept as views. Over lists it panics.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result};
use datafusion::functions_nested::extract::array_element_udf;
use datafusion::functions_nested::map_extract::map_extract_udf;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawFieldAccessExpr};
use datafusion::logical_expr::{ExprSchemable, GetFieldAccess, lit};

/// Plans them; place it before the planner of fields.
#[derive(Debug)]
pub struct MapValues;

impl ExprPlanner for MapValues {
    fn plan_field_access(
        &self,
        access: RawFieldAccessExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawFieldAccessExpr>> {
        // What has no type yet is for the planner to say.
        let has_other_keys = match access.expr.get_type(schema) {
            Ok(DataType::Map(entries, _)) => match entries.data_type() {
                DataType::Struct(fields) => *fields[0].data_type() != DataType::Utf8,
                _ => false,
            },
            _ => false,
        };
        let RawFieldAccessExpr { field_access, expr } = access;
        let key = match &field_access {
            GetFieldAccess::ListIndex { key } => Some(key.as_ref().clone()),
            GetFieldAccess::NamedStructField { name } => Some(lit(name.clone())),
            GetFieldAccess::ListRange { .. } => None,
        };
        Ok(match key.filter(|_| has_other_keys) {
            Some(key) => {
                let values = map_extract_udf().call(vec![expr, key]);
                PlannerResult::Planned(array_element_udf().call(vec![values, lit(1_i64)]))
            }
            None => PlannerResult::Original(RawFieldAccessExpr { field_access, expr }),
        })
    }
}

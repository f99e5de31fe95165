//! `FROM t AS u (a, b)` of a table with more columns: those behind keep their names. The planner wants a name for each.

use datafusion::common::Result;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::sql::sqlparser::ast::{Ident, TableAliasColumnDef, TableFactor};

use crate::names::name_of;

/// Plans such tables.
#[derive(Debug)]
pub(crate) struct FewerNames;

impl RelationPlanner for FewerNames {
    fn plan_relation(
        &self,
        mut relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let (TableFactor::Table { alias, .. } | TableFactor::Derived { alias, .. }) = &mut relation
        else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let Some(mut named) = alias.take_if(|alias| !alias.columns.is_empty()) else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let plan = context.plan(relation)?;
        for field in plan.schema().fields().iter().skip(named.columns.len()) {
            let is_taken = |name: &str| named.columns.iter().any(|of| name_of(&of.name) == name);
            let mut name = field.name().clone();
            while is_taken(&name) {
                name.push_str("_1");
            }
            named.columns.push(TableAliasColumnDef {
                name: Ident::with_quote('"', name),
                data_type: None,
            });
        }
        let planned = PlannedRelation::new(plan, Some(named));
        Ok(RelationPlanning::Planned(Box::new(planned)))
    }
}

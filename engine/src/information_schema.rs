//! Types by SQL's names, which tools look for: in `information_schema.columns` and DESCRIBE. DataFusion's are Arrow's.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::catalog::information_schema::INFORMATION_SCHEMA;
use datafusion::common::Result;
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{DescribeTable, LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::{ident, lit};
use datafusion::sql::sqlparser::ast::TableFactor;
use flashmesh_planner::{name_of_arrow_type, type_name};

/// The column that says a type.
const DATA_TYPE: &str = "data_type";
/// The one that says its place in the table.
const POSITION: &str = "ordinal_position";

/// Plans `information_schema.columns`.
#[derive(Debug)]
pub(crate) struct TypesOfColumns;

impl RelationPlanner for TypesOfColumns {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let TableFactor::Table {
            name,
            alias,
            args: None,
            version: None,
            ..
        } = &relation
        else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let table = context.object_name_to_table_reference(name.clone())?;
        if table.schema() != Some(INFORMATION_SCHEMA) || table.table() != "columns" {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        }
        let source = context.context_provider().get_table_source(table.clone())?;
        let schema = source.schema();
        let items = schema.fields().iter().map(|field| {
            let column = ident(field.name());
            match field.name().as_str() {
                DATA_TYPE => name_of_arrow_type().call(vec![column]).alias(DATA_TYPE),
                // DataFusion counts from zero, SQL's standard from one.
                POSITION => (column + lit(1_u64)).alias(POSITION),
                _ => column,
            }
        });
        let all = LogicalPlanBuilder::scan(table.clone(), source, None)?;
        let named = all.project(items.collect::<Vec<_>>())?.alias(table)?;
        let planned = PlannedRelation::new(named.build()?, alias.clone());
        Ok(RelationPlanning::Planned(Box::new(planned)))
    }
}

/// What the rows of an answer to DESCRIBE are called.
const DESCRIBED: &str = "described";

/// Whether a plan is an answer to DESCRIBE.
pub(crate) fn is_description(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::TableScan(scan) if scan.table_name.table() == DESCRIBED)
}

/// A plan with the answer in the place of DESCRIBE: the columns of a table or a query.
///
/// # Errors
/// None that a user can bring about.
pub(crate) fn with_description(plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::DescribeTable(asked) = plan else {
        return Ok(plan);
    };
    let rows = description(&asked)?;
    let table = MemTable::try_new(rows.schema(), vec![vec![rows]])?;
    LogicalPlanBuilder::scan(DESCRIBED, provider_as_source(Arc::new(table)), None)?.build()
}

fn description(described: &DescribeTable) -> Result<RecordBatch> {
    let fields = described.schema.fields();
    let texts = |text: fn(&arrow::datatypes::Field) -> String| {
        let texts = fields.iter().map(|field| Some(text(field)));
        Arc::new(texts.collect::<StringArray>()) as ArrayRef
    };
    let columns = vec![
        texts(|field| field.name().clone()),
        texts(|field| type_name(field.data_type())),
        texts(|field| if field.is_nullable() { "YES" } else { "NO" }.to_owned()),
    ];
    let schema = Arc::clone(described.output_schema.inner());
    Ok(RecordBatch::try_new(schema, columns)?)
}

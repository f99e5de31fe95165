//! Types by SQL's names, which tools look for: in `information_schema.columns` and DESCRIBE. DataFusion's are Arrow's.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::Field;
use datafusion::catalog::information_schema::INFORMATION_SCHEMA;
use datafusion::common::Result;
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{DescribeTable, LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::{ident, lit};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{ObjectName, Statement, TableFactor};
use flashmesh_planner::{name_of_arrow_type, type_name};
use flashmesh_storage::index::Index;
use flashmesh_storage::table::TableSnapshot;

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

/// The table that DESCRIBE names.
pub(crate) fn described_table(statement: &ParsedStatement) -> Option<&ObjectName> {
    match statement {
        ParsedStatement::Statement(statement) => match statement.as_ref() {
            Statement::ExplainTable { table_name, .. } => Some(table_name),
            _ => None,
        },
        _ => None,
    }
}

/// A plan with the answer in the place of DESCRIBE: the columns of a table or a query, as DuckDB tells of them. Of a
/// table on flash its keys and defaults are known.
///
/// # Errors
/// None that a user can bring about.
pub(crate) fn with_description(
    plan: LogicalPlan,
    table: Option<&TableSnapshot>,
) -> Result<LogicalPlan> {
    let LogicalPlan::DescribeTable(asked) = plan else {
        return Ok(plan);
    };
    let rows = description(&asked, table)?;
    let table = MemTable::try_new(rows.schema(), vec![vec![rows]])?;
    LogicalPlanBuilder::scan(DESCRIBED, provider_as_source(Arc::new(table)), None)?.build()
}

fn description(described: &DescribeTable, table: Option<&TableSnapshot>) -> Result<RecordBatch> {
    let fields = described.schema.fields();
    let texts = |text: &dyn Fn(usize, &Field) -> Option<String>| {
        let texts = fields.iter().enumerate();
        let texts = texts.map(|(place, field)| text(place, field));
        Arc::new(texts.collect::<StringArray>()) as ArrayRef
    };
    let key = |place: usize| {
        let table = table?;
        let is_of = |index: &&Arc<Index>| index.definition.columns.contains(&(place as u32));
        if table.primary_key().is_some_and(|key| is_of(&key)) {
            return Some("PRI".to_owned());
        }
        let mut unique = table.indexes.iter().filter(|index| index.definition.unique);
        unique.any(|index| is_of(&index)).then(|| "UNI".to_owned())
    };
    let counted = |place: usize| table?.generated(place);
    let default = |place: usize| match counted(place) {
        Some(_) => None,
        None => table?.defaults.get(place)?.clone(),
    };
    let generated = |place: usize| {
        let of = counted(place)?;
        Some(format!("GENERATED {} AS IDENTITY", of.when()))
    };
    let yes_or_no = |is_so| if is_so { "YES" } else { "NO" }.to_owned();
    let batch = RecordBatch::try_from_iter_with_nullable([
        (
            "column_name",
            texts(&|_, field| Some(field.name().clone())),
            false,
        ),
        (
            "column_type",
            texts(&|_, field| Some(type_name(field.data_type()))),
            false,
        ),
        (
            "null",
            texts(&|_, field| Some(yes_or_no(field.is_nullable()))),
            false,
        ),
        ("key", texts(&|place, _| key(place)), true),
        ("default", texts(&|place, _| default(place)), true),
        ("extra", texts(&|place, _| generated(place)), true),
    ])?;
    Ok(batch)
}

//! A query as a table, on which DataFrames of the wheel grow.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::datasource::{MemTable, TableType, provider_as_source, source_as_provider};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    Expr, LogicalPlan, LogicalPlanBuilder, TableProviderFilterPushDown, TableScan, UNNAMED_TABLE,
};
use datafusion::physical_plan::ExecutionPlan;
use flashmesh::Error;
use flashmesh_macros::async_impl;
use flashmesh_planner::walk::WalkPlan as _;
use parking_lot::Mutex;

use crate::exec::EmbeddedExec;
use crate::link::{Content, Held, Link, closed};

/// A plan of our session, or rows, under the schema of a table. Once the connection is closed it has
/// neither: a DataFrame that somebody keeps must not keep the database open.
pub(crate) struct QueryTable {
    link: Arc<Link>,
    /// Its number in `link`.
    id: u64,
    schema: SchemaRef,
    content: Arc<Held>,
}

impl fmt::Debug for QueryTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryTable")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

impl Drop for QueryTable {
    fn drop(&mut self) {
        self.link.leave(self.id);
    }
}

impl QueryTable {
    pub(crate) fn try_new(link: &Arc<Link>, plan: LogicalPlan) -> Result<Arc<Self>> {
        let plan = with_distinct_names(plan)?;
        let schema = Arc::clone(plan.schema().inner());
        Ok(Self::new(link, schema, Content::Plan(plan)))
    }

    /// A table of rows that are there.
    pub(crate) fn of_rows(
        link: &Arc<Link>,
        schema: SchemaRef,
        rows: Vec<RecordBatch>,
    ) -> Result<Arc<Self>> {
        let names: HashSet<_> = schema.fields().iter().map(|field| field.name()).collect();
        let are_alike = rows.iter().all(|batch| batch.schema() == schema);
        match are_alike && names.len() == schema.fields().len() {
            true => Ok(Self::new(link, schema, Content::Rows(rows))),
            false => Self::try_new(link, plan_of(schema, rows)?),
        }
    }

    fn new(link: &Arc<Link>, schema: SchemaRef, content: Content) -> Arc<Self> {
        let content = Arc::new(Mutex::new(Some(content)));
        Arc::new(Self {
            id: link.enter(&content),
            link: Arc::clone(link),
            schema,
            content,
        })
    }

    /// The plan.
    ///
    /// # Errors
    /// [`Error::Usage`] once the connection is closed.
    pub(crate) fn plan(&self) -> Result<LogicalPlan, Error> {
        match self.content.lock().as_ref().ok_or_else(closed)? {
            Content::Plan(plan) => Ok(plan.clone()),
            Content::Rows(rows) => Ok(plan_of(Arc::clone(&self.schema), rows.clone())?),
        }
    }

    /// The rows, where they are there: nothing is planned for them.
    ///
    /// # Errors
    /// [`Error::Usage`] once the connection is closed.
    pub(crate) fn rows(&self) -> Result<Option<Vec<RecordBatch>>, Error> {
        match self.content.lock().as_ref().ok_or_else(closed)? {
            Content::Plan(_) => Ok(None),
            Content::Rows(rows) => Ok(Some(rows.clone())),
        }
    }
}

fn plan_of(schema: SchemaRef, rows: Vec<RecordBatch>) -> Result<LogicalPlan> {
    let table = provider_as_source(Arc::new(MemTable::try_new(schema, vec![rows])?));
    LogicalPlanBuilder::scan(UNNAMED_TABLE, table, None)?.build()
}

#[async_impl]
impl TableProvider for QueryTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    fn get_logical_plan(&self) -> Option<Cow<'_, LogicalPlan>> {
        self.plan().ok().map(Cow::Owned)
    }

    /// Whatever the filter: it becomes part of the plan.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Exact; filters.len()])
    }

    /// For sessions that are not ours, and have another planner.
    async fn scan(
        &self,
        _session: &dyn DataFusionSession,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let session = self.link.session()?;
        let filters = filters
            .iter()
            .map(|filter| Ok(self.link.functions()?.in_expr(filter.clone())?.data))
            .collect::<Result<Vec<_>>>()?;
        let mut plan = LogicalPlanBuilder::from(self.plan()?);
        if let Some(filter) = conjunction(filters) {
            plan = plan.filter(filter)?;
        }
        if let Some(columns) = projection {
            let schema = Arc::clone(plan.schema());
            let columns = columns
                .iter()
                .map(|column| Expr::from(schema.qualified_field(*column)));
            plan = plan.project(columns)?;
        }
        if limit.is_some() {
            plan = plan.limit(0, limit)?;
        }
        let context = session.context();
        let plan = context.state().create_physical_plan(&plan.build()?).await?;
        Ok(Arc::new(EmbeddedExec::new(plan, context.task_ctx())))
    }
}

/// Puts the plans of queries where `plan` scans their tables with filters: what DataFusion does
/// by itself for scans without.
pub(crate) fn with_queries_inlined(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.change_up_with_subqueries(|node| match query_scanned(&node)? {
        Some((scan, query)) => inlined(scan, query).map(Transformed::yes),
        None => Ok(Transformed::no(node)),
    })
    .map(|plan| plan.data)
}

fn query_scanned(node: &LogicalPlan) -> Result<Option<(&TableScan, LogicalPlan)>> {
    let LogicalPlan::TableScan(scan) = node else {
        return Ok(None);
    };
    let Ok(provider) = source_as_provider(&scan.source) else {
        return Ok(None);
    };
    match provider.downcast_ref::<QueryTable>() {
        Some(table) => Ok(Some((scan, table.plan()?))),
        None => Ok(None),
    }
}

fn inlined(scan: &TableScan, query: LogicalPlan) -> Result<LogicalPlan> {
    let mut plan = LogicalPlanBuilder::from(query).alias(scan.table_name.clone())?;
    if let Some(filter) = conjunction(scan.filters.clone()) {
        plan = plan.filter(filter)?;
    }
    if scan.projection.is_some() {
        plan = plan.project(scan.projected_schema.iter().map(Expr::from))?;
    }
    if scan.fetch.is_some() {
        plan = plan.limit(0, scan.fetch)?;
    }
    plan.build()
}

/// `SELECT a.id, b.id` gives two columns `id`; in a table the second is `id:1`, as in DataFusion's
/// subqueries.
fn with_distinct_names(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut names = std::collections::HashSet::new();
    let distinct: Vec<String> = plan
        .schema()
        .fields()
        .iter()
        .map(|field| {
            let mut name = field.name().clone();
            let mut number = 0;
            while !names.insert(name.clone()) {
                number += 1;
                name = format!("{}:{number}", field.name());
            }
            name
        })
        .collect();
    let schema = Arc::clone(plan.schema());
    if schema
        .fields()
        .iter()
        .zip(&distinct)
        .all(|(field, name)| field.name() == name)
    {
        return Ok(plan);
    }
    let columns = schema.iter().zip(distinct).map(|(field, name)| {
        let renamed = field.1.name() != &name;
        let column = Expr::from(field);
        if renamed { column.alias(name) } else { column }
    });
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}

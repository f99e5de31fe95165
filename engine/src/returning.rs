//! `RETURNING`: a change whose result is of the rows that it adds, or deletes.
//!
//! What is returned is computed by the very plan that computes these rows, once, and is kept until
//! they are committed: what fails in it fails the change, and what another statement was faster with
//! is forgotten with the attempt.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, DFSchemaRef, TableReference};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, SessionState};
use datafusion::logical_expr::{
    Expr, Extension, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore,
};
use datafusion::physical_plan::spill::get_record_batch_memory_size;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use flashmesh_planner::FlashTable;
use flashmesh_planner::walk::WalkPlan as _;
use futures::StreamExt;
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// What the columns are qualified with that go on to the load.
const STORED: &str = "flashmesh:stored";

/// A change with RETURNING.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub(crate) struct Returning {
    /// The change: a DML statement.
    pub change: LogicalPlan,
    /// What is returned, as a query of the table. Whoever may not read that gets nothing back.
    pub rows: LogicalPlan,
}

impl Returning {
    /// The plan of both.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no expression over the columns of a table on flash.
    pub fn plan(change: LogicalPlan, rows: LogicalPlan) -> Result<LogicalPlan> {
        check(&rows)?;
        Ok(LogicalPlan::Extension(Extension {
            node: Arc::new(Self { change, rows }),
        }))
    }

    /// The change with RETURNING that a plan is.
    pub fn of(plan: &LogicalPlan) -> Option<&Self> {
        match plan {
            LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
            _ => None,
        }
    }
}

/// What is returned is a projection of the table's columns.
fn check(rows: &LogicalPlan) -> Result<()> {
    let mut of_table = false;
    let mut allowed = true;
    rows.walk_with_subqueries(|node| {
        match node {
            LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {}
            LogicalPlan::TableScan(scan) => of_table = FlashTable::of(&scan.source).is_some(),
            _ => allowed = false,
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    match (of_table, allowed) {
        (true, true) => Ok(()),
        (_, false) => Err(Error::usage(
            "RETURNING takes expressions over the columns of the changed table, without aggregates, windows and subqueries",
        )),
        (false, _) => Err(Error::usage("RETURNING is for tables on flash")),
    }
}

impl UserDefinedLogicalNodeCore for Returning {
    fn name(&self) -> &str {
        "Returning"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.change, &self.rows]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.rows.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Returning")
    }

    fn with_exprs_and_inputs(
        &self,
        _: Vec<Expr>,
        inputs: Vec<LogicalPlan>,
    ) -> datafusion::error::Result<Self> {
        match <[LogicalPlan; 2]>::try_from(inputs) {
            Ok([change, rows]) => Ok(Self { change, rows }),
            Err(_) => datafusion::common::internal_err!("RETURNING of a change and its rows"),
        }
    }
}

/// Takes the clause out of a change, which DataFusion would not plan with it, as a query of the
/// changed table.
///
/// # Errors
/// [`Error::Usage`] where the change names no table.
pub(crate) fn take_returning(statement: &mut ast::Statement) -> Result<Option<ParsedStatement>> {
    let (items, table) = match statement {
        ast::Statement::Insert(insert) => {
            let table = match &insert.table {
                ast::TableObject::TableName(name) => Some(name.clone()),
                _ => None,
            };
            (insert.returning.take(), table.map(named))
        }
        ast::Statement::Update(update) => {
            let table = update.table.relation.clone();
            (update.returning.take(), Some(table))
        }
        ast::Statement::Delete(delete) => {
            let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) =
                &delete.from;
            let table = from.first().map(|table| table.relation.clone());
            (delete.returning.take(), table)
        }
        ast::Statement::Merge(merge) => match merge.output.take() {
            Some(ast::OutputClause::Returning { select_items, .. }) => {
                (Some(select_items), Some(merge.table.clone()))
            }
            other => {
                merge.output = other;
                return Ok(None);
            }
        },
        _ => return Ok(None),
    };
    let Some(items) = items else {
        return Ok(None);
    };
    let table = table.filter(|table| matches!(table, ast::TableFactor::Table { .. }));
    let table = table.ok_or_else(|| Error::usage("RETURNING is for changes of a table"))?;
    let mut query = Parser::new(&GenericDialect {})
        .try_with_sql("SELECT 1 FROM t")
        .and_then(|mut parser| parser.parse_statement())
        .map_err(DataFusionError::from)?;
    if let ast::Statement::Query(query) = &mut query
        && let ast::SetExpr::Select(select) = query.body.as_mut()
    {
        select.projection = items;
        for from in &mut select.from {
            from.relation = table.clone();
        }
    }
    Ok(Some(ParsedStatement::Statement(Box::new(query))))
}

fn named(name: ast::ObjectName) -> ast::TableFactor {
    ast::TableFactor::Table {
        name,
        alias: None,
        args: None,
        with_hints: vec![],
        version: None,
        with_ordinality: false,
        partitions: vec![],
        json_path: None,
        sample: None,
        index_hints: vec![],
    }
}

/// The plan of what a load takes, with what `rows` returns of it before that. `changed` has the
/// table's columns first; `stored` are those that the load takes.
pub(crate) fn with_returned(
    rows: &LogicalPlan,
    changed: LogicalPlan,
    stored: Range<usize>,
) -> Result<LogicalPlan> {
    let stored_name = |place: usize| Column::new(Some(STORED), place.to_string());
    if let LogicalPlan::Projection(projection) = rows {
        let returned = projection.expr.clone().into_iter();
        let passed = stored.clone().map(|place| Expr::Column(stored_name(place)));
        let columns: Vec<_> = returned.chain(passed).collect();
        let input = with_returned(&projection.input, changed, stored)?;
        return Ok(LogicalPlanBuilder::from(input).project(columns)?.build()?);
    }
    let columns = changed.schema().columns();
    let of_table = rows.schema().iter().zip(&columns);
    let of_table = of_table.map(|((qualifier, field), column)| {
        Expr::Column(column.clone()).alias_qualified(qualifier.cloned(), field.name())
    });
    let passed = stored.map(|place| {
        let name = stored_name(place);
        Expr::Column(columns[place].clone()).alias_qualified(name.relation, name.name)
    });
    let columns: Vec<_> = of_table.chain(passed).collect();
    Ok(LogicalPlanBuilder::from(changed)
        .project(columns)?
        .build()?)
}

/// What one attempt of a change is to return: the first columns of its plan's batches.
pub(crate) struct Returned {
    schema: DFSchemaRef,
    kept: Mutex<Kept>,
}

struct Kept {
    /// With the partitions that they came from.
    batches: Vec<(usize, RecordBatch)>,
    memory: MemoryReservation,
}

impl Returned {
    /// Nothing yet, of a plan of [`with_returned`].
    pub fn new(rows: &LogicalPlan, memory: &Arc<dyn MemoryPool>) -> Arc<Self> {
        Arc::new(Self {
            schema: Arc::clone(rows.schema()),
            kept: Mutex::new(Kept {
                batches: Vec::new(),
                memory: MemoryConsumer::new("RETURNING").register(memory),
            }),
        })
    }

    /// Keeps what is returned of a partition's rows, and gives the rest.
    pub fn take_from(
        self: &Arc<Self>,
        rows: SendableRecordBatchStream,
        partition: usize,
    ) -> SendableRecordBatchStream {
        let columns = self.schema.fields().len();
        let (first, rest): (Vec<_>, Vec<_>) =
            (0..rows.schema().fields().len()).partition(|place| *place < columns);
        let schema = rows.schema().project(&rest);
        let schema: SchemaRef = Arc::new(schema.unwrap_or_else(|_| Schema::empty()));
        let returned = Arc::clone(self);
        let rows = rows.map(move |batch| {
            let batch = batch?;
            returned.keep(partition, batch.project(&first)?)?;
            Ok(batch.project(&rest)?)
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }

    fn keep(&self, partition: usize, batch: RecordBatch) -> datafusion::error::Result<()> {
        let mut kept = self.kept.lock();
        kept.memory.try_grow(get_record_batch_memory_size(&batch))?;
        kept.batches.push((partition, batch));
        Ok(())
    }

    /// The result, once the change is committed.
    pub fn into_frame(self: Arc<Self>, state: SessionState) -> Result<DataFrame> {
        let mut kept = std::mem::take(&mut self.kept.lock().batches);
        kept.sort_by_key(|(partition, _)| *partition);
        let fields = self.schema.fields().iter().enumerate();
        // Names of their own: those of a result may be there twice.
        let fields = fields.map(|(place, field)| {
            let field = Field::clone(field).with_name(place.to_string());
            Arc::new(field)
        });
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let batches = kept.into_iter().map(|(_, batch)| {
            let columns = batch.columns().iter().zip(schema.fields());
            let columns = columns.map(|(column, field)| cast(column, field.data_type()));
            let columns = columns.collect::<std::result::Result<_, _>>()?;
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)
        });
        let batches = batches.collect::<std::result::Result<Vec<_>, _>>()?;
        let table = MemTable::try_new(Arc::clone(&schema), vec![batches])?;
        let scan = LogicalPlanBuilder::scan("returned", provider_as_source(Arc::new(table)), None)?;
        let columns = self.schema.iter().enumerate();
        let columns = columns.map(|(place, (qualifier, field))| {
            let column = Column::new(Some(TableReference::bare("returned")), place.to_string());
            Expr::Column(column).alias_qualified(qualifier.cloned(), field.name())
        });
        let columns: Vec<_> = columns.collect();
        let plan = scan.project(columns)?.build()?;
        Ok(DataFrame::new(state, plan))
    }
}

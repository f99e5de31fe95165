//! Loading tables from files and Arrow data without SQL.

use std::sync::Arc;

use arrow::compute::can_cast_types;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::record_batch::RecordBatchReader;
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::{Column, DFSchema, TableReference, ToDFSchema};
use datafusion::dataframe::DataFrame;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, cast};
use datafusion::physical_plan::stream::{
    RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter,
};
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::scalar::ScalarValue;
use flashmesh_planner::FlashTable;
use flashmesh_storage::table::{LoadTarget, TEMPORARY_SCHEMA, TableSnapshot};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::Session;
use crate::assign::assigned;
use crate::create_table::without_null_type;
use crate::defaults::check_given;
use crate::error::{Error, Result};
use crate::files::{self, FileOptions};
use crate::load::LoadProgress;

/// What a load does with a table of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadMode {
    /// Make the table; it is an error when it exists.
    #[default]
    Create,
    /// Add the rows to the table, columns matched by name; it is an error when it does not exist.
    Append,
    /// Make the table anew, in place of one that exists.
    Replace,
}

impl Session {
    /// Loads files (or folders, globs, URLs) of one format into a table, in parallel and in
    /// bounded memory, and commits. Gives the number of rows.
    ///
    /// # Errors
    /// [`Error::Usage`] for a file that is missing or unreadable, or whose columns don't fit the
    /// table; nothing is loaded then. Else as [`Session::sql`].
    pub fn load_files<'a>(
        &'a self,
        table: &'a str,
        paths: &'a [String],
        options: &'a FileOptions,
        mode: LoadMode,
        progress: Arc<LoadProgress>,
    ) -> BoxFuture<'a, Result<u64>> {
        let load = async move {
            let target = match mode {
                LoadMode::Append => Some(Arc::clone(&self.table_snapshot(table)?.schema)),
                LoadMode::Create | LoadMode::Replace => None,
            };
            let frame = files::read(self.context(), paths, options, target.as_deref()).await?;
            let table = TableReference::parse_str(table);
            self.load_frame(&table, frame, mode, progress).await
        };
        load.boxed()
    }

    /// Files (or folders, globs, URLs) of one format as a query's result.
    ///
    /// # Errors
    /// As [`Session::load_files`].
    pub async fn read_files(&self, paths: &[String], options: &FileOptions) -> Result<DataFrame> {
        files::read(self.context(), paths, options, None).await
    }

    /// Loads Arrow data into a table and commits. The reader is pulled by one thread; encoding is
    /// parallel. Gives the number of rows.
    ///
    /// # Errors
    /// As [`Session::load_files`], and what the reader says.
    pub async fn load_reader(
        &self,
        table: &str,
        reader: Box<dyn RecordBatchReader + Send>,
        mode: LoadMode,
    ) -> Result<u64> {
        let rows = blocking_stream(reader);
        let name = TableReference::parse_str(table);
        self.load_stream(&name, rows, mode).await
    }

    /// Loads a stream of Arrow data into a table and commits. Gives the number of rows. The
    /// stream is pulled as fast as rows are stored.
    ///
    /// # Errors
    /// As [`Session::load_files`], and what the stream says; nothing is loaded then.
    pub async fn load_stream(
        &self,
        table: &TableReference,
        rows: SendableRecordBatchStream,
        mode: LoadMode,
    ) -> Result<u64> {
        let schema = rows.schema();
        let partition = OncePartition {
            schema: Arc::clone(&schema),
            rows: Mutex::new(Some(rows)),
        };
        let source = StreamingTable::try_new(schema, vec![Arc::new(partition)])?;
        let frame = self.context().read_table(Arc::new(source))?;
        self.load_frame(table, frame, mode, Arc::default()).await
    }

    async fn load_frame(
        &self,
        table: &TableReference,
        frame: DataFrame,
        mode: LoadMode,
        progress: Arc<LoadProgress>,
    ) -> Result<u64> {
        let name = self.resolve(table.clone());
        let flash_schema = self.flash_schema(&name)?;
        if flash_schema.session_table(&name.table).is_some() {
            return Err(Error::usage(format!(
                "'{table}' is a view or external table of this session; drop it first or choose another name"
            )));
        }
        if mode != LoadMode::Append && table.schema() != Some(TEMPORARY_SCHEMA) {
            self.check_not_hidden(&self.resolve_written(table.clone()))?;
        }
        let (schema, table) = (name.schema.to_string(), name.table.to_string());
        let (target, frame) = match mode {
            LoadMode::Create | LoadMode::Replace => {
                let (state, plan) = frame.into_parts();
                let frame = DataFrame::new(state, without_null_type(plan)?);
                let arrow_schema = Arc::clone(frame.schema().inner());
                let or_replace = mode == LoadMode::Replace;
                (
                    LoadTarget::Create {
                        layout: Default::default(),
                        distribution: None,
                        retention: std::time::Duration::ZERO,
                        defaults: vec![],
                        checks: vec![],
                        schema,
                        table,
                        arrow_schema,
                        or_replace,
                        indexes: Vec::new(),
                    },
                    frame,
                )
            }
            LoadMode::Append => {
                let stored = flash_schema.flash_table(&table)?;
                let columns = match_columns(&table, &stored, frame.schema())?;
                (LoadTarget::Append { schema, table }, frame.select(columns)?)
            }
        };
        let plan = frame.into_unoptimized_plan();
        self.load_plan(target, plan, progress).await
    }

    /// Refuses columns that rows appended to a table can't have.
    pub(crate) fn check_columns(&self, table: &TableReference, given: &Schema) -> Result<()> {
        let name = self.resolve(table.clone());
        let stored = self.flash_schema(&name)?.flash_table(&name.table)?;
        match_columns(&name.table, &stored, &given.clone().to_dfschema()?)?;
        Ok(())
    }

    /// Whether a table of that name is on flash and the user may know of it.
    pub(crate) fn is_on_flash(&self, table: &TableReference) -> bool {
        let name = self.resolve(table.clone());
        self.flash_schema(&name)
            .is_ok_and(|schema| schema.is_on_flash(&name.table))
    }

    /// The newest committed version of a table on flash: its rows, statistics, size.
    ///
    /// # Errors
    /// [`Error::Storage`] when there is no such table.
    pub fn table_snapshot(&self, table: &str) -> Result<Arc<TableSnapshot>> {
        let name = self.resolve(TableReference::parse_str(table));
        Ok(self.flash_schema(&name)?.snapshot(&name.table)?)
    }
}

/// The input's columns in the table's order and types, matched by name. A column that the input
/// lacks gets its default, or NULL where the table allows it.
fn match_columns(table: &str, target: &FlashTable, input: &DFSchema) -> Result<Vec<Expr>> {
    let snapshot = target.named().snapshot();
    let stored = &snapshot.schema;
    let unknown: Vec<_> = input
        .fields()
        .iter()
        .map(|field| field.name().as_str())
        .filter(|name| stored.field_with_name(name).is_err())
        .collect();
    if !unknown.is_empty() {
        let known: Vec<_> = stored.fields().iter().map(|f| f.name().as_str()).collect();
        return Err(Error::usage(format!(
            "table '{table}' has no column {}; it has {}",
            quoted(&unknown),
            quoted(&known)
        )));
    }
    let mut columns = Vec::with_capacity(stored.fields().len());
    for (place, field) in stored.fields().iter().enumerate() {
        let value = match input.qualified_field_with_unqualified_name(field.name()) {
            Ok((qualifier, given)) => {
                check_given(snapshot, place)?;
                let value = Expr::Column(Column::new(qualifier.cloned(), field.name()));
                let (from, to) = (given.data_type(), field.data_type());
                if !can_cast_types(from, to) {
                    return Err(Error::usage(format!(
                        "column '{}' of table '{table}' has the type {to}, which {from} can't be cast to",
                        field.name()
                    )));
                }
                match from {
                    DataType::Null => cast(value, to.clone()),
                    from if from == to => value,
                    _ => assigned(value, to, field.name()),
                }
            }
            Err(_) if let Some(default) = target.get_column_default(field.name()) => {
                assigned(default.clone(), field.data_type(), field.name())
            }
            Err(_) if field.is_nullable() => {
                Expr::Literal(ScalarValue::try_from(field.data_type())?, None)
            }
            Err(_) => {
                return Err(Error::usage(format!(
                    "the input has no column '{}', which is NOT NULL in table '{table}'",
                    field.name()
                )));
            }
        };
        columns.push(value.alias(field.name()));
    }
    Ok(columns)
}

fn quoted(names: &[&str]) -> String {
    names
        .iter()
        .map(|n| format!("'{n}'"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// A blocking reader as a stream that one thread fills.
fn blocking_stream(reader: Box<dyn RecordBatchReader + Send>) -> SendableRecordBatchStream {
    let mut stream = RecordBatchReceiverStreamBuilder::new(reader.schema(), 2);
    let batches = stream.tx();
    stream.spawn_blocking(move || {
        for batch in reader {
            // Refused when nobody reads any more: the load has ended.
            if batches.blocking_send(batch.map_err(Into::into)).is_err() {
                break;
            }
        }
        Ok(())
    });
    stream.build()
}

/// A stream as the one partition of a table that is read once.
struct OncePartition {
    schema: SchemaRef,
    rows: Mutex<Option<SendableRecordBatchStream>>,
}

impl std::fmt::Debug for OncePartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OncePartition")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

impl PartitionStream for OncePartition {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        self.rows.lock().take().unwrap_or_else(|| {
            let error = Error::usage("Arrow data from a reader can be read only once");
            Box::pin(RecordBatchStreamAdapter::new(
                Arc::clone(&self.schema),
                futures::stream::iter([Err(error.into())]),
            ))
        })
    }
}

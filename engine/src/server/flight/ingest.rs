//! Bulk ingest: Arrow data from a client straight to segments, one commit at its end.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::concat_batches;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::sql::CommandStatementIngest;
use arrow_flight::sql::server::PeekableFlightDataStream;
use datafusion::common::TableReference;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use flashmesh_storage::table::TEMPORARY_SCHEMA;
use futures::{StreamExt, TryStreamExt};
use tonic::Status;

use super::columns::without_description;
use super::incoming;
use super::results::{compute_on, fail, until_ended};
use crate::LoadMode;
use crate::blocking::blocking;
use crate::names::CATALOG;
use crate::queries::{QueryKind, QueryState};
use crate::server::options::Limits;
use crate::server::sessions::ClientSession;
use crate::server::state::State;
use crate::server::status::status;

/// Stores the rows of a stream in a table; gives their number. Nothing is stored when the stream
/// ends early or the client goes away.
pub(super) async fn ingest(
    state: &State,
    session: &ClientSession,
    command: CommandStatementIngest,
    data: PeekableFlightDataStream,
) -> Result<i64, Status> {
    let mut table = table_of(&command)?;
    if command.temporary {
        let name = session.session.temporary_name(table.table()).await;
        let name = name.map_err(status)?;
        table = TableReference::partial(name.schema, name.table);
    }
    let mode = mode(session, &table, command.table_definition_options)?;
    let rows = decode(data, state.limits.message_bytes).await?;
    if mode == LoadMode::Append {
        let fits = session.session.check_columns(&table, &rows.schema());
        fits.map_err(|error| Status::already_exists(error.to_string()))?;
    }

    let sql = format!("/* bulk ingest into {table} */");
    let id = state.queries().next_id();
    let query = session.start_query(id, QueryKind::Work, &sql, None);
    let _place = state.place(session, &query, QueryKind::Work).await?;
    let session = session.session.clone();
    let load = async move {
        let stored = session.load_stream(&table, rows, mode).await;
        stored.map_err(status)
    };
    let load = compute_on(state.compute(), load);
    let stored = until_ended(&query, state.deadline(), load)
        .await
        .inspect_err(|error| fail(&query, error))?;
    query.count_rows(stored as usize);
    query.end(QueryState::Finished);
    Ok(stored as i64)
}

/// What an ingest does by primary key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ByKey {
    /// Rows are put: see [`Session::put`](crate::Session::put).
    Put,
    /// The rows of the keys in the first column are deleted.
    Delete,
}

impl ByKey {
    /// What the value of the header says.
    pub fn parse(value: &str) -> Result<Self, Status> {
        match value {
            "put" => Ok(Self::Put),
            "delete" => Ok(Self::Delete),
            other => Err(Status::invalid_argument(format!(
                "rows are ingested by key to 'put' or to 'delete', not to '{other}'"
            ))),
        }
    }
}

/// Puts or deletes rows by primary key; gives their number.
pub(super) async fn by_key(
    state: &State,
    session: &ClientSession,
    how: ByKey,
    command: CommandStatementIngest,
    data: PeekableFlightDataStream,
) -> Result<i64, Status> {
    let table = table_of(&command)?;
    let (schema, batches) = collect(data, &state.limits).await?;
    let rows = concat_batches(&schema, &batches);
    let rows = rows.map_err(|error| Status::invalid_argument(error.to_string()))?;
    if how == ByKey::Delete && rows.num_columns() != 1 {
        return Err(Status::invalid_argument(
            "rows are deleted by one column of keys",
        ));
    }
    let sql = format!("/* {how:?} rows of {table} by key */");
    let id = state.queries().next_id();
    let query = session.start_query(id, QueryKind::Work, &sql, None);
    let _place = state.place(session, &query, QueryKind::Work).await?;
    let session = session.session.clone();
    let table = table.to_quoted_string();
    let change = blocking(move || match how {
        ByKey::Put => session.put(&table, &rows),
        ByKey::Delete => session.delete(&table, rows.column(0)),
    });
    let change = async move { change.await.map_err(status) };
    let changed = until_ended(&query, state.deadline(), change)
        .await
        .inspect_err(|error| fail(&query, error))?;
    query.count_rows(changed as usize);
    query.end(QueryState::Finished);
    Ok(changed as i64)
}

/// The table that an ingest names.
fn table_of(command: &CommandStatementIngest) -> Result<TableReference, Status> {
    let schema = command.schema.as_deref();
    if command.temporary && schema.is_some_and(|schema| schema != TEMPORARY_SCHEMA) {
        return Err(Status::invalid_argument(format!(
            "temporary tables are in the schema '{TEMPORARY_SCHEMA}': leave the schema out"
        )));
    }
    let catalog = command.catalog.as_deref();
    if let Some(catalog) = catalog.filter(|catalog| *catalog != CATALOG) {
        return Err(Status::invalid_argument(format!(
            "there is no catalog '{catalog}': a server has one, '{CATALOG}'"
        )));
    }
    let table = command.table.clone();
    Ok(match command.schema.clone() {
        Some(schema) => TableReference::partial(schema, table),
        None if command.temporary => TableReference::partial(TEMPORARY_SCHEMA, table),
        None => TableReference::bare(table),
    })
}

/// What to do with a table of that name, there or not.
fn mode(
    session: &ClientSession,
    table: &TableReference,
    options: Option<arrow_flight::sql::TableDefinitionOptions>,
) -> Result<LoadMode, Status> {
    use arrow_flight::sql::{TableExistsOption, TableNotExistOption};
    let options = options.unwrap_or_default();
    if let Some(schema) = table.schema()
        && session.session.catalog().flash_schema(schema).is_none()
    {
        return Err(Status::not_found(format!(
            "schema '{schema}' does not exist; CREATE SCHEMA {schema} makes it"
        )));
    }
    let exists = session.session.is_on_flash(table);
    if !exists {
        return match options.if_not_exist() {
            TableNotExistOption::Fail => Err(Status::not_found(format!(
                "table '{table}' does not exist; ingest with the mode that creates it"
            ))),
            TableNotExistOption::Create | TableNotExistOption::Unspecified => Ok(LoadMode::Create),
        };
    }
    match options.if_exists() {
        TableExistsOption::Append => Ok(LoadMode::Append),
        TableExistsOption::Replace => Ok(LoadMode::Replace),
        TableExistsOption::Fail | TableExistsOption::Unspecified => {
            Err(Status::already_exists(format!(
                "table '{table}' already exists; ingest with the mode that appends or replaces"
            )))
        }
    }
}

/// A client's batches.
async fn decode(
    data: PeekableFlightDataStream,
    message_bytes: usize,
) -> Result<SendableRecordBatchStream, Status> {
    let data = data.map(move |data| {
        let data = data?;
        incoming::check(&data, message_bytes).map_err(FlightError::DecodeError)?;
        Ok(data)
    });
    let batches = FlightRecordBatchStream::new_from_flight_data(data);
    let mut batches = batches.peekable();
    // The schema is known with the first batch, or at the end of a stream that has none.
    let first = std::pin::Pin::new(&mut batches).peek().await;
    if let Some(Err(error)) = first {
        return Err(Status::invalid_argument(format!(
            "the client's data can't be read: {error}"
        )));
    }
    let schema = match first {
        Some(Ok(batch)) => batch.schema(),
        _ => match batches.get_ref().schema() {
            Some(schema) => schema.clone(),
            None => return Err(Status::invalid_argument("the client sent no schema")),
        },
    };
    let schema = without_description(&schema);
    let plain = Arc::clone(&schema);
    let rows = batches.map(move |batch| {
        let batch = batch.map_err(|e| DataFusionError::External(Box::new(e)))?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = batch.columns().to_vec();
        let batch = RecordBatch::try_new_with_options(Arc::clone(&plain), columns, &options);
        Ok(batch?)
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(
        schema,
        rows.boxed(),
    )))
}

/// The rows that a client binds as parameters, or puts by key.
pub(super) async fn collect(
    data: PeekableFlightDataStream,
    limits: &Limits,
) -> Result<(arrow::datatypes::SchemaRef, Vec<RecordBatch>), Status> {
    let mut rows = decode(data, limits.message_bytes).await?;
    let schema = rows.schema();
    let (mut batches, mut bytes) = (Vec::new(), 0);
    while let Some(batch) = rows.try_next().await.map_err(status)? {
        bytes += batch.get_array_memory_size();
        if bytes > limits.user_prepared_bytes {
            return Err(Status::resource_exhausted(format!(
                "the rows have more than {} bytes (--max-user-prepared); send fewer at once, or ingest them into a table",
                limits.user_prepared_bytes
            )));
        }
        batches.push(batch);
    }
    Ok((schema, batches))
}

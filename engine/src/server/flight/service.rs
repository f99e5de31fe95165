//! [`FlightSqlService`]: each request finds its session and is handed on.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionBeginSavepointRequest, ActionBeginSavepointResult, ActionBeginTransactionRequest,
    ActionBeginTransactionResult, ActionCancelQueryRequest, ActionCancelQueryResult,
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest,
    ActionCreatePreparedStatementResult, ActionCreatePreparedSubstraitPlanRequest,
    ActionEndSavepointRequest, ActionEndTransactionRequest, Any, Command, CommandGetCatalogs,
    CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys, CommandGetImportedKeys,
    CommandGetPrimaryKeys, CommandGetSqlInfo, CommandGetTableTypes, CommandGetTables,
    CommandGetXdbcTypeInfo, CommandPreparedStatementQuery, CommandPreparedStatementUpdate,
    CommandStatementIngest, CommandStatementQuery, CommandStatementSubstraitPlan,
    CommandStatementUpdate, DoPutPreparedStatementResult, ProstMessageExt, SqlInfo, SubstraitPlan,
    TicketStatementQuery,
};
use arrow_flight::{
    Action, ActionType, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus,
    FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest, HandshakeResponse, IpcMessage,
    RenewFlightEndpointRequest, SchemaAsIpc, SchemaResult, Ticket,
};
use bytes::Bytes;
use datafusion::logical_expr::LogicalPlan;
use flashmesh_macros::async_impl;
use futures::{Stream, stream};
use prost::Message;
use tonic::{Request, Response, Status, Streaming};

use super::message::MessageStream;
use super::prepared::{Described, Prepared, SUBSTRAIT};
use super::results::{FlightStream, plan_apart, send_batch};
use super::running::update;
use super::statements::{self, Statement, no_such_ticket, parse_handle, plan_one, substrait};
use super::{columns, info, ingest, metadata, options};
use crate::error::{Error, Result};
use crate::server::cookies::{forget_with, lost};
use crate::server::identity::session_key;
use crate::server::leaving::note_change;
use crate::server::listen::Peer;
use crate::server::sessions::ClientSession;
use crate::server::state::State;
use crate::server::status::status;

/// The header of a request for a `FlightInfo` in which a client says what it calls the statement:
/// its `tag` in `system.queries`. Drivers that keep `app_metadata` to themselves need it.
const TAG: &str = "flashmesh-tag";
/// A longer tag is none.
const TAG_BYTES: usize = 128;

/// The header of a statement that belongs to a transaction which its client has begun: where the
/// session has none (the server was started anew, say) it shall not commit by itself.
const TRANSACTION: &str = "flashmesh-transaction";

/// The header of an ingest that puts or deletes rows by primary key.
const BY_KEY: &str = "flashmesh-by-key";

/// The server as Flight SQL sees it.
#[derive(Clone)]
pub(in crate::server) struct FlightSql {
    state: Arc<State>,
}

type Answer<T> = std::result::Result<T, Status>;

/// The plan of the one statement in `sql`.
fn planned_sql(
    session: &ClientSession,
    sql: &str,
) -> impl Future<Output = Result<LogicalPlan>> + Send + 'static {
    let (session, sql) = (session.session.clone(), sql.to_string());
    async move { plan_one(&session, &sql).await }
}

/// The plan of a client's Substrait plan.
fn planned_substrait(
    session: &ClientSession,
    plan: Option<SubstraitPlan>,
) -> impl Future<Output = Result<LogicalPlan>> + Send + 'static {
    let session = session.session.clone();
    async move { substrait(&session, plan).await }
}

/// The plans of a prepared statement's executions.
fn executions(
    session: &ClientSession,
    prepared: &Arc<Prepared>,
) -> impl Future<Output = Result<Vec<LogicalPlan>>> + Send + 'static {
    let (session, prepared) = (session.session.clone(), Arc::clone(prepared));
    async move { prepared.plans(&session).await }
}

/// The one plan of a statement without parameters.
async fn alone(plan: impl Future<Output = Result<LogicalPlan>>) -> Result<Vec<LogicalPlan>> {
    Ok(vec![plan.await?])
}

/// The answers of a login.
type Handshakes = std::pin::Pin<Box<dyn Stream<Item = Answer<HandshakeResponse>> + Send>>;

impl FlightSql {
    /// Over the state that all connections share.
    pub fn new(state: Arc<State>) -> Self {
        Self { state }
    }

    fn session<T>(&self, request: &Request<T>) -> Answer<Arc<ClientSession>> {
        let session = self.state.session_of_statement(request.extensions())?;
        // A driver may send a header that was taken back as an empty one.
        let header = request.metadata().get(TRANSACTION);
        let is_of_transaction = header.is_some_and(|value| !value.is_empty());
        if is_of_transaction && !session.session.is_in_transaction() {
            return Err(lost());
        }
        Ok(session)
    }

    /// The session of a request that only gives something up, if there is one: drivers keep the errors of such
    /// requests to themselves, and what a client is to learn is kept for others.
    fn open_session<T>(&self, request: &Request<T>) -> Option<Arc<ClientSession>> {
        let key = session_key(request.extensions())?;
        self.state.sessions.peek(key)
    }

    /// The state that all connections share.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// The columns of a statement's result, without keeping the statement.
    pub async fn statement_schema<T>(
        &self,
        sql: &str,
        request: &Request<T>,
    ) -> Answer<SchemaResult> {
        let session = self.session(request)?;
        let planned = planned_sql(&session, sql);
        self.schema_of(&session, sql, planned).await
    }

    /// The columns of a prepared statement's result.
    pub async fn prepared_schema<T>(
        &self,
        handle: &Bytes,
        request: &Request<T>,
    ) -> Answer<SchemaResult> {
        let session = self.session(request)?;
        let prepared = session.prepared(handle)?;
        let id = self.state.queries().next_id();
        let (own, statement) = (session.session.clone(), Arc::clone(&prepared));
        let schema = async move { statement.result_schema(&own).await };
        let schema = plan_apart(&self.state, &session, id, prepared.sql(), schema).await?;
        Ok(SchemaResult {
            schema: encode_schema(&schema)?,
        })
    }

    /// The columns of a Substrait plan's result.
    pub async fn substrait_schema<T>(
        &self,
        plan: Option<SubstraitPlan>,
        request: &Request<T>,
    ) -> Answer<SchemaResult> {
        let session = self.session(request)?;
        let planned = planned_substrait(&session, plan);
        self.schema_of(&session, SUBSTRAIT, planned).await
    }

    async fn schema_of(
        &self,
        session: &ClientSession,
        sql: &str,
        plan: impl Future<Output = Result<LogicalPlan>> + Send + 'static,
    ) -> Answer<SchemaResult> {
        let id = self.state.queries().next_id();
        let own = session.session.clone();
        let schema = async move { columns::of_plan(&own, &plan.await?) };
        let schema = plan_apart(&self.state, session, id, sql, schema).await?;
        Ok(SchemaResult {
            schema: encode_schema(&schema)?,
        })
    }

    /// Prepares a Substrait plan.
    pub async fn prepare_substrait<T>(
        &self,
        action: ActionCreatePreparedSubstraitPlanRequest,
        request: &Request<T>,
    ) -> Answer<ActionCreatePreparedStatementResult> {
        let session = self.session(request)?;
        let _held = session
            .hold_transaction(action.transaction_id.as_ref())
            .await?;
        let (own, plan) = (session.session.clone(), action.plan.unwrap_or_default());
        let prepared = async move { Prepared::of_substrait(&own, plan).await };
        let of_transaction = action.transaction_id.is_some();
        self.prepare(&session, SUBSTRAIT, of_transaction, prepared)
            .await
    }

    /// What the ticket of a statement is for.
    pub async fn fetch(
        &self,
        ticket: TicketStatementQuery,
        request: &Request<Ticket>,
    ) -> Answer<Response<MessageStream>> {
        // The statement was run when its ticket was made, and may have ended the transaction.
        let session = self.state.session(request.extensions())?;
        let (id, endpoint) = parse_handle(&ticket.statement_handle)?;
        let (session, statement) = self.find_statement(session, id)?;
        statement.fetch(&self.state, &session, endpoint).await
    }

    /// The result of a prepared statement, all of it.
    pub async fn fetch_prepared(
        &self,
        query: CommandPreparedStatementQuery,
        request: &Request<Ticket>,
    ) -> Answer<Response<MessageStream>> {
        let session = self.session(request)?;
        let (prepared, _held) = session
            .hold_prepared(&query.prepared_statement_handle)
            .await?;
        let plans = executions(&session, &prepared);
        let statement = Statement::in_one_stream(&self.state, &session, prepared.sql(), plans);
        statement.await?.fetch(&self.state, &session, 0).await
    }

    /// Registers a prepared statement.
    async fn prepare(
        &self,
        session: &ClientSession,
        sql: &str,
        of_transaction: bool,
        prepared: impl Future<Output = Result<Described>> + Send + 'static,
    ) -> Answer<ActionCreatePreparedStatementResult> {
        let id = self.state.queries().next_id();
        let prepared = plan_apart(&self.state, session, id, sql, prepared).await?;
        created(session, prepared, of_transaction)
    }

    /// Sets the parameters of a prepared statement.
    async fn bind(
        &self,
        session: &ClientSession,
        prepared: &Prepared,
        data: PeekableFlightDataStream,
    ) -> Answer<()> {
        let (schema, rows) = ingest::collect(data, &self.state.limits).await?;
        let bytes = rows.iter().map(|batch| batch.get_array_memory_size()).sum();
        let kept = session.share.keep(bytes)?;
        prepared.bind(&schema, &rows, kept).map_err(status)
    }

    async fn start(
        &self,
        session: &ClientSession,
        sql: &str,
        plans: impl Future<Output = Result<Vec<LogicalPlan>>> + Send + 'static,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        let tag = request
            .metadata()
            .get(TAG)
            .and_then(|tag| tag.to_str().ok());
        let tag = tag.filter(|tag| tag.len() <= TAG_BYTES);
        let statement = Statement::new(&self.state, session, sql, tag, plans).await?;
        let statement = Arc::new(statement);
        statement.renew(self.state.ticket_lifetime);
        if !statement.is_query() {
            note_change(request.extensions(), statement.id);
        }
        let info = statement.info(request.into_inner())?;
        session.add_statement(statement);
        Ok(Response::new(info))
    }

    /// The statement of that number, of that session or of another one of its user, with its session: parts
    /// of a result may be fetched by other connections of whoever asked for it.
    fn find_statement(
        &self,
        session: Arc<ClientSession>,
        id: u64,
    ) -> Answer<(Arc<ClientSession>, Arc<Statement>)> {
        if let Some(statement) = session.statement(id) {
            return Ok((session, statement));
        }
        let found = self
            .state
            .sessions
            .statement_of(session.session.principal(), id);
        found.ok_or_else(no_such_ticket)
    }

    /// Has the ticket of an endpoint last for longer.
    fn renew(
        &self,
        session: Arc<ClientSession>,
        endpoint: FlightEndpoint,
    ) -> Answer<FlightEndpoint> {
        let ticket = endpoint.ticket.unwrap_or_default();
        let (id, place) = place_of(&ticket).ok_or_else(no_such_ticket)?;
        let (_, statement) = self.find_statement(session, id)?;
        if statement.is_over() || !statement.has_endpoint(place) {
            return Err(no_such_ticket());
        }
        match statement.renew(self.state.ticket_lifetime) {
            true => Ok(statement.endpoint(ticket)),
            false => Err(Status::failed_precondition(
                "the ticket of this statement can be fetched once, whenever that is; there is nothing to renew",
            )),
        }
    }

    /// Cancels the statements whose tickets `info` holds.
    fn cancel(&self, session: &ClientSession, info: &FlightInfo) -> bool {
        let mut found = false;
        for endpoint in &info.endpoint {
            let Some((id, _)) = endpoint.ticket.as_ref().and_then(place_of) else {
                continue;
            };
            let user = &session.session.principal().name;
            let statement = session.remove_statement(id);
            found |= statement
                .as_ref()
                .is_some_and(|statement| !statement.is_fetched());
            let again = statement
                .iter()
                .flat_map(|statement| statement.fetched_again());
            for id in again.chain([id]) {
                found |= self.state.queries().kill(id, Some(user)).is_ok();
            }
        }
        found
    }
}

/// The statement and the endpoint that a ticket is of.
fn place_of(ticket: &Ticket) -> Option<(u64, usize)> {
    let any = Any::decode(ticket.ticket.clone()).ok()?;
    let ticket = any.unpack::<TicketStatementQuery>().ok()??;
    parse_handle(&ticket.statement_handle).ok()
}

fn encode_schema(schema: &Schema) -> Answer<Bytes> {
    let options = arrow::ipc::writer::IpcWriteOptions::default();
    let message: IpcMessage = SchemaAsIpc::new(schema, &options)
        .try_into()
        .map_err(|e: arrow::error::ArrowError| status(Error::from(e)))?;
    Ok(message.0)
}

/// Registers a prepared statement.
fn created(
    session: &ClientSession,
    (prepared, result): Described,
    of_transaction: bool,
) -> Answer<ActionCreatePreparedStatementResult> {
    let parameter_schema = encode_schema(&prepared.parameter_schema())?;
    let dataset_schema = match result.fields().is_empty() {
        true => Bytes::new(),
        false => encode_schema(&result)?,
    };
    Ok(ActionCreatePreparedStatementResult {
        prepared_statement_handle: session.add_prepared(prepared, of_transaction)?,
        dataset_schema,
        parameter_schema,
    })
}

/// An answer that is fetched by sending the command again, as its ticket.
fn info_of(
    command: &impl ProstMessageExt,
    schema: &SchemaRef,
    request: Request<FlightDescriptor>,
) -> Answer<Response<FlightInfo>> {
    let ticket = Ticket::new(command.as_any().encode_to_vec());
    let endpoint = FlightEndpoint::new().with_ticket(ticket);
    let info = statements::info(schema)?
        .with_endpoint(endpoint)
        .with_descriptor(request.into_inner());
    Ok(Response::new(info))
}

/// Actions of Flight that `arrow-flight` leaves to the service.
const CANCEL_FLIGHT_INFO: &str = "CancelFlightInfo";
const RENEW_FLIGHT_ENDPOINT: &str = "RenewFlightEndpoint";
const SET_SESSION_OPTIONS: &str = "SetSessionOptions";
const GET_SESSION_OPTIONS: &str = "GetSessionOptions";
const CLOSE_SESSION: &str = "CloseSession";

#[async_impl]
impl FlightSqlService for FlightSql {
    type FlightService = Self;

    /// Name and password (HTTP's Basic) for a token (Bearer).
    async fn do_handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Answer<Response<Handshakes>> {
        let peer = Peer::of(request.extensions());
        let token = self.state.log_in(request.metadata(), peer).await?;
        let payload = Bytes::from(token.clone());
        let answer = HandshakeResponse {
            protocol_version: 0,
            payload,
        };
        let answer = stream::iter([Ok(answer)]);
        let mut response = Response::new(Box::pin(answer) as _);
        let header = format!("Bearer {token}").parse();
        let header = header.map_err(|_| Status::internal("the token is no header"))?;
        response.metadata_mut().insert("authorization", header);
        Ok(response)
    }

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        let session = self.session(&request)?;
        let _held = session
            .hold_transaction(query.transaction_id.as_ref())
            .await?;
        let plans = alone(planned_sql(&session, &query.query));
        self.start(&session, &query.query, plans, request).await
    }

    async fn get_flight_info_substrait_plan(
        &self,
        query: CommandStatementSubstraitPlan,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        let session = self.session(&request)?;
        let _held = session
            .hold_transaction(query.transaction_id.as_ref())
            .await?;
        let plans = alone(planned_substrait(&session, query.plan));
        self.start(&session, SUBSTRAIT, plans, request).await
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        let session = self.session(&request)?;
        let (prepared, _held) = session
            .hold_prepared(&query.prepared_statement_handle)
            .await?;
        let plans = executions(&session, &prepared);
        self.start(&session, prepared.sql(), plans, request).await
    }

    async fn get_flight_info_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        self.session(&request)?;
        info_of(&query, &query.into_builder().schema(), request)
    }

    async fn get_flight_info_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        self.session(&request)?;
        let schema = query.clone().into_builder().schema();
        info_of(&query, &schema, request)
    }

    async fn get_flight_info_tables(
        &self,
        query: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        self.session(&request)?;
        let schema = query.clone().into_builder().schema();
        info_of(&query, &schema, request)
    }

    async fn get_flight_info_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        self.session(&request)?;
        info_of(&query, &query.into_builder().schema(), request)
    }

    async fn get_flight_info_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        self.session(&request)?;
        let schema = Arc::new(SqlInfoDataBuilder::schema().clone());
        info_of(&query, &schema, request)
    }

    async fn get_flight_info_primary_keys(
        &self,
        query: CommandGetPrimaryKeys,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        self.session(&request)?;
        info_of(&query, &metadata::primary_key_schema(), request)
    }

    async fn get_flight_info_exported_keys(
        &self,
        query: CommandGetExportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        self.session(&request)?;
        info_of(&query, &metadata::no_foreign_keys().schema(), request)
    }

    async fn get_flight_info_imported_keys(
        &self,
        query: CommandGetImportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        self.session(&request)?;
        info_of(&query, &metadata::no_foreign_keys().schema(), request)
    }

    async fn get_flight_info_cross_reference(
        &self,
        query: CommandGetCrossReference,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        self.session(&request)?;
        info_of(&query, &metadata::no_foreign_keys().schema(), request)
    }

    async fn get_flight_info_xdbc_type_info(
        &self,
        query: CommandGetXdbcTypeInfo,
        request: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        self.session(&request)?;
        info_of(&query, &info::type_info().schema(), request)
    }

    async fn get_flight_info_fallback(
        &self,
        command: Command,
        _: Request<FlightDescriptor>,
    ) -> Answer<Response<FlightInfo>> {
        let kind = command.into_any().type_url;
        Err(Status::invalid_argument(format!(
            "{kind} has no result to fetch"
        )))
    }

    async fn do_get_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<Ticket>,
    ) -> Answer<Response<FlightStream>> {
        self.session(&request)?;
        metadata::catalogs(query).map(send_batch)
    }

    async fn do_get_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<Ticket>,
    ) -> Answer<Response<FlightStream>> {
        let session = self.session(&request)?;
        metadata::schemas(&session, query).map(send_batch)
    }

    async fn do_get_tables(
        &self,
        query: CommandGetTables,
        request: Request<Ticket>,
    ) -> Answer<Response<FlightStream>> {
        let session = self.session(&request)?;
        metadata::tables(&session, query).await.map(send_batch)
    }

    async fn do_get_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<Ticket>,
    ) -> Answer<Response<FlightStream>> {
        self.session(&request)?;
        metadata::table_types(query).map(send_batch)
    }

    async fn do_get_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<Ticket>,
    ) -> Answer<Response<FlightStream>> {
        let session = self.session(&request)?;
        let read_only = self.state.is_read_only();
        let all: SqlInfoData = info::sql_info(&session.session, read_only)
            .map_err(|e| Status::internal(e.to_string()))?;
        let batch = query.into_builder(&all).build();
        Ok(send_batch(
            batch.map_err(|e| Status::internal(e.to_string()))?,
        ))
    }

    async fn do_get_primary_keys(
        &self,
        query: CommandGetPrimaryKeys,
        request: Request<Ticket>,
    ) -> Answer<Response<FlightStream>> {
        let session = self.session(&request)?;
        metadata::primary_keys(&session, &query).map(send_batch)
    }

    async fn do_get_exported_keys(
        &self,
        _: CommandGetExportedKeys,
        request: Request<Ticket>,
    ) -> Answer<Response<FlightStream>> {
        self.session(&request)?;
        Ok(send_batch(metadata::no_foreign_keys()))
    }

    async fn do_get_imported_keys(
        &self,
        _: CommandGetImportedKeys,
        request: Request<Ticket>,
    ) -> Answer<Response<FlightStream>> {
        self.session(&request)?;
        Ok(send_batch(metadata::no_foreign_keys()))
    }

    async fn do_get_cross_reference(
        &self,
        _: CommandGetCrossReference,
        request: Request<Ticket>,
    ) -> Answer<Response<FlightStream>> {
        self.session(&request)?;
        Ok(send_batch(metadata::no_foreign_keys()))
    }

    async fn do_get_xdbc_type_info(
        &self,
        query: CommandGetXdbcTypeInfo,
        request: Request<Ticket>,
    ) -> Answer<Response<FlightStream>> {
        self.session(&request)?;
        let batch = query.into_builder(info::type_info()).build();
        Ok(send_batch(
            batch.map_err(|e| Status::internal(e.to_string()))?,
        ))
    }

    async fn do_put_statement_update(
        &self,
        command: CommandStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Answer<i64> {
        let session = self.session(&request)?;
        let _held = session
            .hold_transaction(command.transaction_id.as_ref())
            .await?;
        let plans = alone(planned_sql(&session, &command.query));
        update(&self.state, &session, &command.query, plans).await
    }

    async fn do_put_statement_ingest(
        &self,
        command: CommandStatementIngest,
        request: Request<PeekableFlightDataStream>,
    ) -> Answer<i64> {
        let session = self.session(&request)?;
        let _held = session.hold_ingest(command.transaction_id.as_ref()).await?;
        // A driver may send a header that was taken back as an empty one.
        let header = request.metadata().get(BY_KEY).map(|value| value.to_str());
        let by_key = header.and_then(Result::ok).filter(|how| !how.is_empty());
        let by_key = by_key.map(ingest::ByKey::parse).transpose()?;
        let data = request.into_inner();
        match by_key {
            None => ingest::ingest(&self.state, &session, command, data).await,
            Some(how) => ingest::by_key(&self.state, &session, how, command, data).await,
        }
    }

    async fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Answer<DoPutPreparedStatementResult> {
        let session = self.session(&request)?;
        let prepared = session.prepared(&query.prepared_statement_handle)?;
        self.bind(&session, &prepared, request.into_inner()).await?;
        session.set_preparing(true);
        Ok(DoPutPreparedStatementResult {
            prepared_statement_handle: Some(query.prepared_statement_handle),
        })
    }

    async fn do_put_prepared_statement_update(
        &self,
        command: CommandPreparedStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Answer<i64> {
        let session = self.session(&request)?;
        let (prepared, _held) = session
            .hold_prepared(&command.prepared_statement_handle)
            .await?;
        if prepared.has_parameters() {
            self.bind(&session, &prepared, request.into_inner()).await?;
        }
        let plans = executions(&session, &prepared);
        update(&self.state, &session, prepared.sql(), plans).await
    }

    async fn do_put_substrait_plan(
        &self,
        command: CommandStatementSubstraitPlan,
        request: Request<PeekableFlightDataStream>,
    ) -> Answer<i64> {
        let session = self.session(&request)?;
        let _held = session
            .hold_transaction(command.transaction_id.as_ref())
            .await?;
        let plans = alone(planned_substrait(&session, command.plan));
        update(&self.state, &session, SUBSTRAIT, plans).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        action: ActionCreatePreparedStatementRequest,
        request: Request<Action>,
    ) -> Answer<ActionCreatePreparedStatementResult> {
        let session = self.session(&request)?;
        let _held = session
            .hold_transaction(action.transaction_id.as_ref())
            .await?;
        let (context, sql) = (session.session.clone(), action.query.clone());
        let prepared = async move { Prepared::new(&context, &sql).await };
        let of_transaction = action.transaction_id.is_some();
        self.prepare(&session, &action.query, of_transaction, prepared)
            .await
    }

    async fn do_action_close_prepared_statement(
        &self,
        action: ActionClosePreparedStatementRequest,
        request: Request<Action>,
    ) -> Answer<()> {
        if let Some(session) = self.open_session(&request) {
            session.remove_prepared(&action.prepared_statement_handle);
        }
        Ok(())
    }

    async fn do_action_begin_transaction(
        &self,
        _: ActionBeginTransactionRequest,
        request: Request<Action>,
    ) -> Answer<ActionBeginTransactionResult> {
        let session = self.session(&request)?;
        let transaction_id = session.begin_transaction().await?;
        Ok(ActionBeginTransactionResult { transaction_id })
    }

    async fn do_action_end_transaction(
        &self,
        action: ActionEndTransactionRequest,
        request: Request<Action>,
    ) -> Answer<()> {
        self.session(&request)?.end_transaction(action).await
    }

    async fn do_action_begin_savepoint(
        &self,
        action: ActionBeginSavepointRequest,
        request: Request<Action>,
    ) -> Answer<ActionBeginSavepointResult> {
        let session = self.session(&request)?;
        let savepoint_id = session.begin_savepoint(action).await?;
        Ok(ActionBeginSavepointResult { savepoint_id })
    }

    async fn do_action_end_savepoint(
        &self,
        action: ActionEndSavepointRequest,
        request: Request<Action>,
    ) -> Answer<()> {
        self.session(&request)?.end_savepoint(action).await
    }

    async fn do_action_cancel_query(
        &self,
        action: ActionCancelQueryRequest,
        request: Request<Action>,
    ) -> Answer<ActionCancelQueryResult> {
        let info = options::decode::<FlightInfo>(&action.info)?;
        let session = self.open_session(&request);
        let status = match session.is_some_and(|session| self.cancel(&session, &info)) {
            true => CancelStatus::Cancelled,
            false => CancelStatus::NotCancellable,
        };
        // Both protocols number the outcomes alike.
        Ok(ActionCancelQueryResult {
            result: status as i32,
        })
    }

    async fn list_custom_actions(&self) -> Option<Vec<Answer<ActionType>>> {
        let action = |name: &str, description: &str| {
            Ok(ActionType {
                r#type: name.into(),
                description: description.into(),
            })
        };
        Some(vec![
            action(CANCEL_FLIGHT_INFO, "Ends the statement of a FlightInfo."),
            action(
                RENEW_FLIGHT_ENDPOINT,
                "Has the ticket of an endpoint last for longer.",
            ),
            action(
                SET_SESSION_OPTIONS,
                "Sets options of the session, as SET does.",
            ),
            action(GET_SESSION_OPTIONS, "All options of the session."),
            action(CLOSE_SESSION, "Ends the session."),
        ])
    }

    async fn do_action_fallback(
        &self,
        request: Request<Action>,
    ) -> Answer<Response<<Self as FlightService>::DoActionStream>> {
        let body = &request.get_ref().body;
        let answer = match request.get_ref().r#type.as_str() {
            CANCEL_FLIGHT_INFO => {
                let cancel = options::decode::<CancelFlightInfoRequest>(body)?;
                let info = cancel.info.unwrap_or_default();
                let session = self.open_session(&request);
                let mut result = CancelFlightInfoResult::default();
                result.set_status(
                    match session.is_some_and(|session| self.cancel(&session, &info)) {
                        true => CancelStatus::Cancelled,
                        false => CancelStatus::NotCancellable,
                    },
                );
                result.encode_to_vec()
            }
            RENEW_FLIGHT_ENDPOINT => {
                let session = self.session(&request)?;
                let renew = options::decode::<RenewFlightEndpointRequest>(body)?;
                let endpoint = renew.endpoint.unwrap_or_default();
                self.renew(session, endpoint)?.encode_to_vec()
            }
            SET_SESSION_OPTIONS => {
                let session = self.session(&request)?;
                let wanted = options::decode(body)?;
                options::set(&session.session, wanted).await.encode_to_vec()
            }
            GET_SESSION_OPTIONS => {
                let session = self.session(&request)?;
                options::get(&session.session).encode_to_vec()
            }
            CLOSE_SESSION => {
                self.state.close_session(request.extensions())?;
                options::CloseResult { status: 1 }.encode_to_vec()
            }
            other => {
                return Err(Status::invalid_argument(format!(
                    "there is no action '{other}'"
                )));
            }
        };
        let body = answer.into();
        let answer = stream::iter([Ok(arrow_flight::Result { body })]);
        let mut answer = Response::new(Box::pin(answer) as _);
        if request.get_ref().r#type == CLOSE_SESSION {
            forget_with(&mut answer);
        }
        Ok(answer)
    }

    /// The protocol wants it of services whose `SqlInfo` is made up from outside; ours is fixed.
    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}

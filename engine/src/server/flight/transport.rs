//! The Flight service itself. `arrow-flight` turns Flight into Flight SQL for us; what it answers
//! with "not implemented" although Flight SQL has it is answered here.

use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::{ActionCreatePreparedSubstraitPlanRequest, Any, Command, ProstMessageExt};
use arrow_flight::{
    Action, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, PollInfo,
    SchemaResult, Ticket,
};
use flashmesh_macros::async_impl;
use futures::{TryStreamExt, stream};
use prost::Message as _;
use tonic::{Request, Response, Status, Streaming};

use super::FlightSql;
use super::message::{Message, MessageStream};

/// What gRPC serves.
#[derive(Clone)]
pub(in crate::server) struct Flight(pub FlightSql);

impl Flight {
    /// The result, or the part of one, that a ticket is for.
    pub async fn get(&self, request: Request<Ticket>) -> Result<Response<MessageStream>, Status> {
        let message = Any::decode(&*request.get_ref().ticket);
        let message = message.map_err(|e| Status::invalid_argument(e.to_string()))?;
        match Command::try_from(message) {
            Ok(Command::TicketStatementQuery(ticket)) => self.0.fetch(ticket, &request).await,
            Ok(Command::CommandPreparedStatementQuery(query)) => {
                self.0.fetch_prepared(query, &request).await
            }
            // Answers about metadata are small.
            _ => {
                let response = FlightService::do_get(&self.0, request).await?;
                Ok(response.map(|data| Box::pin(data.map_ok(Message::from)) as _))
            }
        }
    }
}

#[async_impl]
impl FlightService for Flight {
    type HandshakeStream = <FlightSql as FlightService>::HandshakeStream;
    type ListFlightsStream = <FlightSql as FlightService>::ListFlightsStream;
    type DoGetStream = <FlightSql as FlightService>::DoGetStream;
    type DoPutStream = <FlightSql as FlightService>::DoPutStream;
    type DoActionStream = <FlightSql as FlightService>::DoActionStream;
    type ListActionsStream = <FlightSql as FlightService>::ListActionsStream;
    type DoExchangeStream = <FlightSql as FlightService>::DoExchangeStream;

    async fn handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        self.0.handshake(request).await
    }

    /// Flight SQL finds tables by `GetTables`; there are no flights to list.
    async fn list_flights(
        &self,
        _: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        Ok(Response::new(Box::pin(stream::empty())))
    }

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.0.get_flight_info(request).await
    }

    /// A statement is planned when it is asked for and runs as it is fetched, so its info is
    /// whole at once: there is nothing to poll for a second time.
    async fn poll_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        let info = self.0.get_flight_info(request).await?;
        Ok(info.map(|info| PollInfo::new().with_info(info)))
    }

    async fn get_schema(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<SchemaResult>, Status> {
        let message = Any::decode(&*request.get_ref().cmd);
        let message = message.map_err(|e| Status::invalid_argument(e.to_string()))?;
        let command = Command::try_from(message);
        let command = command.map_err(|e| Status::invalid_argument(e.to_string()))?;
        // Asking for the info of what changes something would do it.
        let schema = match command {
            Command::CommandStatementQuery(query) => {
                self.0.statement_schema(&query.query, &request).await?
            }
            Command::CommandPreparedStatementQuery(query) => {
                let handle = &query.prepared_statement_handle;
                self.0.prepared_schema(handle, &request).await?
            }
            Command::CommandStatementSubstraitPlan(query) => {
                self.0.substrait_schema(query.plan, &request).await?
            }
            _ => {
                let info = self.0.get_flight_info(request).await?;
                return Ok(info.map(|info| SchemaResult {
                    schema: info.schema,
                }));
            }
        };
        Ok(Response::new(schema))
    }

    /// [`FlightServer`](super::FlightServer) answers this with [`Flight::get`].
    async fn do_get(
        &self,
        request: Request<Ticket>,
    ) -> Result<Response<Self::DoGetStream>, Status> {
        self.0.do_get(request).await
    }

    async fn do_put(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        self.0.do_put(request).await
    }

    async fn list_actions(
        &self,
        request: Request<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        self.0.list_actions(request).await
    }

    async fn do_action(
        &self,
        request: Request<Action>,
    ) -> Result<Response<Self::DoActionStream>, Status> {
        // `arrow-flight` calls the handler and drops the handle that it gives.
        if request.get_ref().r#type == "CreatePreparedSubstraitPlan" {
            let message = Any::decode(&*request.get_ref().body);
            let message = message.map_err(|e| Status::invalid_argument(e.to_string()))?;
            let plan = message
                .unpack::<ActionCreatePreparedSubstraitPlanRequest>()
                .map_err(|e| Status::invalid_argument(e.to_string()))?
                .ok_or_else(|| Status::invalid_argument("the action has no plan"))?;
            let created = self.0.prepare_substrait(plan, &request).await?;
            let body = created.as_any().encode_to_vec().into();
            let result = stream::iter([Ok(arrow_flight::Result { body })]);
            return Ok(Response::new(Box::pin(result)));
        }
        self.0.do_action(request).await
    }

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        self.0.do_exchange(request).await
    }
}

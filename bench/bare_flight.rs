//! A bare Arrow Flight server, made of the crates `arrow-flight` and `tonic` alone: it holds the
//! batches of Arrow IPC files in memory and answers any statement with them, an endpoint for each
//! file. `bench/server.py` measures flashmesh's server beside it.
//!
//! `bare_flight FILE…`; the address is printed.

use std::fs::File;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::FileReader;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::sql::server::FlightSqlService;
use arrow_flight::sql::{CommandStatementQuery, ProstMessageExt, SqlInfo, TicketStatementQuery};
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

type Failure = Box<dyn std::error::Error>;

#[derive(Clone)]
struct BareServer {
    schema: SchemaRef,
    endpoints: Arc<[Vec<RecordBatch>]>,
}

impl BareServer {
    fn open(files: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut schema = None;
        let mut endpoints = Vec::new();
        for file in files {
            let reader = FileReader::try_new_buffered(File::open(file)?, None)?;
            schema.get_or_insert(reader.schema());
            endpoints.push(reader.collect::<Result<_, _>>()?);
        }
        Ok(Self {
            schema: schema.ok_or("which files?")?,
            endpoints: endpoints.into(),
        })
    }
}

#[tonic::async_trait]
impl FlightSqlService for BareServer {
    type FlightService = Self;

    async fn get_flight_info_statement(
        &self,
        _: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let info = FlightInfo::new().with_descriptor(request.into_inner());
        let mut info = info
            .try_with_schema(&self.schema)
            .map_err(|error| Status::internal(error.to_string()))?;
        for number in 0..self.endpoints.len() {
            let statement_handle = vec![u8::try_from(number).expect("few endpoints")].into();
            let ticket = TicketStatementQuery { statement_handle };
            let ticket = Ticket::new(ticket.as_any().encode_to_vec());
            info = info.with_endpoint(FlightEndpoint::new().with_ticket(ticket));
        }
        Ok(Response::new(info))
    }

    async fn do_get_statement(
        &self,
        ticket: TicketStatementQuery,
        _: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        let number = ticket.statement_handle.first().copied().map(usize::from);
        let batches = number.and_then(|number| self.endpoints.get(number));
        let batches = batches.ok_or_else(|| Status::not_found("no such ticket"))?;
        let messages = FlightDataEncoderBuilder::new()
            .with_schema(Arc::clone(&self.schema))
            .build(stream::iter(batches.clone().into_iter().map(Ok)))
            .map_err(Status::from);
        Ok(Response::new(messages.boxed()))
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = BareServer::open(std::env::args().skip(1))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("grpc://{}", listener.local_addr()?);
    Server::builder()
        .add_service(FlightServiceServer::new(server))
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
        .await?;
    Ok(())
}

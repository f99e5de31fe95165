//! A Flight server with nothing in it: sends the batches of an Arrow file, held in memory, to
//! whoever asks. What `./dev bench server` measures `flashmesh serve` against.
//!
//! `bare_flight FILE.arrow` prints its address; any ticket gives all batches, any descriptor a
//! FlightInfo with one endpoint.

use std::error::Error;
use std::fs::File;
use std::pin::Pin;

use arrow::array::RecordBatch;
use arrow::ipc::reader::FileReader;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use futures::{Stream, TryStreamExt, stream};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

struct Bare {
    batches: Vec<RecordBatch>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn unused<T>() -> Result<T, Status> {
    Err(Status::unimplemented("a bare server"))
}

#[tonic::async_trait]
impl FlightService for Bare {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;
    type DoExchangeStream = Answers<FlightData>;

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let batches = self.batches.clone().into_iter().map(Ok);
        let data = FlightDataEncoderBuilder::new()
            .build(stream::iter(batches))
            .map_err(Status::from);
        Ok(Response::new(Box::pin(data)))
    }

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let schema = self.batches[0].schema();
        let info = FlightInfo::new()
            .try_with_schema(&schema)
            .map_err(|e| Status::internal(e.to_string()))?
            .with_descriptor(request.into_inner())
            .with_endpoint(FlightEndpoint::new().with_ticket(Ticket::new("all")));
        Ok(Response::new(info))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        unused()
    }

    async fn list_flights(
        &self,
        _: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        unused()
    }

    async fn poll_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        unused()
    }

    async fn get_schema(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<SchemaResult>, Status> {
        unused()
    }

    async fn do_put(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        unused()
    }

    async fn do_action(
        &self,
        _: Request<Action>,
    ) -> Result<Response<Self::DoActionStream>, Status> {
        unused()
    }

    async fn list_actions(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        unused()
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        unused()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("name an Arrow file")?;
    let reader = FileReader::try_new(File::open(path)?, None)?;
    let batches = reader.collect::<Result<Vec<_>, _>>()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("Flight: grpc://{}", listener.local_addr()?);
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .add_service(
            FlightServiceServer::new(Bare { batches }).max_encoding_message_size(usize::MAX),
        )
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await?;
    Ok(())
}

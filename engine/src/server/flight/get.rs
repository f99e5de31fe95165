//! Requests before anything of their bodies is read, and DoGet, the request that results are fetched with. gRPC's own way copies each message into a
//! buffer of its own; here a response gives the connection the buffers of the arrays.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use arrow_flight::Ticket;
use arrow_flight::flight_service_server::FlightServiceServer;
use bytes::Bytes;
use http_body::Frame;
use prost::Message as _;
use tonic::body::Body;
use tonic::codec::{DecodeBuf, Decoder};
use tonic::codegen::http::header::CONTENT_TYPE;
use tonic::codegen::http::{self, HeaderMap};
use tonic::codegen::{BoxFuture, Service};
use tonic::metadata::{GRPC_CONTENT_TYPE, MetadataMap};
use tonic::server::NamedService;
use tonic::{Request, Response, Status, Streaming};

use super::message::MessageStream;
use super::metered::Metered;
use super::transport::Flight;
use crate::server::cookies::believed;
use crate::server::leaving::Beginning;
use crate::server::sessions::TransactionMark;

/// The Flight service with its own DoGet.
#[derive(Clone)]
pub(in crate::server) struct FlightServer {
    flight: Flight,
    others: FlightServiceServer<Flight>,
    message_bytes: usize,
}

impl FlightServer {
    /// Serves `flight`; clients' messages have `message_bytes` at most.
    pub fn new(flight: Flight, message_bytes: usize) -> Self {
        let others = FlightServiceServer::new(flight.clone())
            .max_decoding_message_size(message_bytes)
            .max_encoding_message_size(usize::MAX);
        Self {
            flight,
            others,
            message_bytes,
        }
    }

    /// Lets in who is known by the headers; their messages are read as there is room for them.
    fn admit(&self, request: http::Request<Body>) -> Result<http::Request<Body>, Status> {
        let state = self.flight.0.state();
        let (mut head, body) = request.into_parts();
        let headers = MetadataMap::from_headers(head.headers.clone());
        let messages = state.admit(&headers, &mut head.extensions)?;
        if let Some(mark) = TransactionMark::of(&head.headers) {
            head.extensions.insert(mark);
        }
        let body = Body::new(Metered::new(body, messages));
        Ok(http::Request::from_parts(head, body))
    }
}

impl NamedService for FlightServer {
    const NAME: &'static str = FlightServiceServer::<Flight>::NAME;
}

impl Service<http::Request<Body>> for FlightServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.others, context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().strip_prefix('/');
        let method = method.and_then(|path| path.strip_prefix(Self::NAME));
        // Strangers say who they are in the headers; there is nothing else to read of them.
        if method == Some("/Handshake") {
            *request.body_mut() = Body::empty();
            return self.others.call(request);
        }
        let is_get = method == Some("/DoGet");
        let admitted = self.admit(request).and_then(|request| {
            let state = self.flight.0.state();
            let beginning = state.begin(request.extensions(), !is_get)?;
            Ok((request, beginning))
        });
        let (request, beginning) = match admitted {
            Ok(admitted) => admitted,
            Err(status) => return Box::pin(async move { Ok(status.into_http()) }),
        };
        let believed = believed(request.extensions());
        if !is_get {
            let answered = self.others.call(request);
            return Box::pin(async move {
                let mut answer = answered.await?;
                beginning.tell_transaction(believed, answer.headers_mut());
                Ok(answer)
            });
        }
        let (flight, limit) = (self.flight.clone(), self.message_bytes);
        Box::pin(async move {
            let response = match ticket(request, limit).await {
                Ok(request) => flight.get(request).await,
                Err(status) => Err(status),
            };
            Ok(response.map_or_else(Status::into_http, |response| answer(response, beginning)))
        })
    }
}

/// The ticket of a request.
async fn ticket(request: http::Request<Body>, limit: usize) -> Result<Request<Ticket>, Status> {
    let (metadata, extensions, body) = Request::from_http(request).into_parts();
    let mut messages = Streaming::new_request(TicketDecoder, body, None, Some(limit));
    let ticket = messages.message().await?;
    let ticket = ticket.ok_or_else(|| Status::invalid_argument("the request has no ticket"))?;
    Ok(Request::from_parts(metadata, extensions, ticket))
}

struct TicketDecoder;

impl Decoder for TicketDecoder {
    type Item = Ticket;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Ticket>, Status> {
        let ticket = Ticket::decode(source);
        let ticket = ticket.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Some(ticket))
    }
}

fn answer(response: Response<MessageStream>, beginning: Beginning) -> http::Response<Body> {
    let (metadata, messages, extensions) = response.into_parts();
    let body = MessageBody {
        messages,
        pieces: VecDeque::new(),
        ended: false,
        _beginning: beginning,
    };
    let mut answer = http::Response::new(Body::new(body));
    *answer.headers_mut() = metadata.into_headers();
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    *answer.extensions_mut() = extensions;
    answer
}

/// A stream of messages as HTTP's body. The next message is asked for when all of the last one
/// has been taken.
struct MessageBody {
    messages: MessageStream,
    /// What is left of a message.
    pieces: VecDeque<Bytes>,
    ended: bool,
    /// The request lasts as long.
    _beginning: Beginning,
}

impl http_body::Body for MessageBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let pieces = match ready!(self.messages.as_mut().poll_next(context)) {
                Some(Ok(message)) => message.into_grpc().map_err(too_large),
                Some(Err(status)) => Err(status),
                None => Err(Status::ok("")),
            };
            match pieces {
                Ok(pieces) => self.pieces = pieces.into(),
                // The status of a stream is what follows it.
                Err(status) => {
                    self.ended = true;
                    return Poll::Ready(Some(trailers(&status).map(Frame::trailers)));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.pieces.is_empty()
    }
}

fn trailers(status: &Status) -> Result<HeaderMap, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(trailers)
}

fn too_large(bytes: usize) -> Status {
    Status::out_of_range(format!(
        "one row has {bytes} bytes, more than a message of gRPC can have; ask for less of it"
    ))
}

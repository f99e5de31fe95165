//! Requests' bodies, whose large messages are read as there is room for what their user sends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::{AcquireError, OwnedSemaphorePermit};
use tonic::Status;
use tonic::body::Body;

use crate::server::shares::{MESSAGE_UNIT, Share};

/// A smaller message is read without asking: most requests are one.
const SMALL_MESSAGE: usize = 64 << 10;
/// Before each message of gRPC: whether it is compressed, and its length as four bytes.
const PREFIX_BYTES: usize = 5;

type Room = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// A body that takes room for each large message when it begins, and holds it until the next
/// one begins or the request is done: as long as the message may be buffered.
pub(super) struct Metered {
    body: Body,
    share: Arc<Share>,
    /// The start of a message, until all of it is there.
    prefix: Vec<u8>,
    /// What is to come of a message.
    rest: usize,
    /// The frame that waits for room.
    held_back: Option<(Bytes, Room)>,
    room: Option<OwnedSemaphorePermit>,
}

impl Metered {
    /// The body of a request of the user with that share.
    pub fn new(body: Body, share: Arc<Share>) -> Self {
        Self {
            body,
            share,
            prefix: Vec::with_capacity(PREFIX_BYTES),
            rest: 0,
            held_back: None,
            room: None,
        }
    }

    /// Follows the messages in `data`; gives the bytes of the largest that begins there.
    fn follow(&mut self, mut data: &[u8]) -> usize {
        let mut largest = 0;
        while !data.is_empty() {
            if self.rest > 0 {
                let passed = self.rest.min(data.len());
                (self.rest, data) = (self.rest - passed, &data[passed..]);
                continue;
            }
            let missing = (PREFIX_BYTES - self.prefix.len()).min(data.len());
            self.prefix.extend_from_slice(&data[..missing]);
            data = &data[missing..];
            if let [_, length @ ..] = self.prefix.as_slice()
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                self.rest = u32::from_be_bytes(length) as usize;
                largest = largest.max(self.rest);
                self.prefix.clear();
            }
        }
        largest
    }
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some((_, room)) = &mut this.held_back {
            let room = ready!(room.as_mut().poll(context));
            this.room = room.ok();
            let data = this.held_back.take().map(|(data, _)| data);
            return Poll::Ready(data.map(|data| Ok(Frame::data(data))));
        }
        let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other),
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => return Poll::Ready(Some(Ok(frame))),
        };
        let largest = this.follow(&data);
        if largest <= SMALL_MESSAGE {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let units = largest.div_ceil(MESSAGE_UNIT);
        // A message beyond the limit of all is refused by who reads it.
        let units = units.min(this.share.message_units());
        // Room for a message of a long stream is good for the next: who waits for room may not
        // keep those waiting who hold some.
        if this
            .room
            .as_ref()
            .is_some_and(|room| room.num_permits() >= units)
        {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        this.room = None;
        let units = units as u32;
        let room = Arc::clone(&this.share.messages).acquire_many_owned(units);
        this.held_back = Some((data, Box::pin(room)));
        self.poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.held_back.is_none() && self.body.is_end_stream()
    }
}

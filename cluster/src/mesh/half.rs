//! This node's half of a stream: what it keeps, and the frames that it sends and takes.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, Waker};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::ReadBuf;
use tokio::sync::oneshot;

use super::error::MeshError;

/// Bytes of a stream that are under way or not yet read.
pub(crate) const WINDOW: usize = 256 * 1024;
/// Bytes of a stream that were written and not yet sent.
const UNSENT: usize = 128 * 1024;
/// Kind, number of the stream, credit.
pub(crate) const HEADER: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Begins a stream; the name of the service follows.
    Open,
    Accept,
    /// Nobody listens; why follows.
    Refuse,
    Data,
    /// So many bytes were read.
    Credit,
    /// The sender writes no more.
    Finish,
    /// The stream is broken off in both directions.
    Reset,
    /// The sender reads no more.
    Stop,
}

pub(crate) const KINDS: [Kind; 8] = [
    Kind::Open,
    Kind::Accept,
    Kind::Refuse,
    Kind::Data,
    Kind::Credit,
    Kind::Finish,
    Kind::Reset,
    Kind::Stop,
];

/// Set in the kind of what the stream's opener sends.
pub(crate) const BY_OPENER: u8 = 0x80;

/// A stream of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub peer: usize,
    /// Whether this node has opened it.
    pub is_opener: bool,
    pub number: u32,
}

type Accepted = oneshot::Sender<Result<(), MeshError>>;

#[derive(Default)]
pub(crate) struct Stream {
    /// The first frame: its kind and what follows it.
    first: Option<(Kind, Bytes)>,
    /// Who waits for the peer to accept it.
    accepted: Option<Accepted>,

    incoming: VecDeque<Bytes>,
    /// Bytes that the peer may still send.
    granted: usize,
    /// Bytes that were read and not yet granted again.
    owed: usize,
    /// The peer writes no more.
    is_ended: bool,
    reader: Option<Waker>,

    /// Frames of data, each with room for its header in front.
    outgoing: VecDeque<BytesMut>,
    unsent: usize,
    /// Bytes that may be sent.
    window: usize,
    is_finishing: bool,
    is_finished: bool,
    /// The peer reads no more.
    is_stopped: bool,
    is_stop_due: bool,
    writer: Option<Waker>,

    /// The stream was broken off.
    pub reset: Option<MeshError>,
    is_dropped: bool,
    /// Whether it is among those that have something to send.
    pub is_ready: bool,
}

pub(crate) fn frame(kind: Kind, key: Key, value: usize, rest: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER + rest.len());
    bytes.put_bytes(0, HEADER);
    bytes.extend_from_slice(rest);
    put_header(&mut bytes, kind, key, value);
    bytes.freeze()
}

fn put_header(bytes: &mut [u8], kind: Kind, key: Key, value: usize) {
    bytes[0] = kind as u8 | if key.is_opener { BY_OPENER } else { 0 };
    bytes[1..5].copy_from_slice(&key.number.to_le_bytes());
    bytes[5..9].copy_from_slice(&(value as u32).to_le_bytes());
}

/// What is to be done after something happened to a stream.
pub(crate) enum After {
    Nothing,
    /// It may have something to send.
    Ready,
    /// The peer did not accept it.
    Refused(String),
}

/// What becomes of a stream that nobody holds any more.
pub(crate) enum Dropped {
    /// It can be forgotten.
    Goes,
    /// It is kept until all is sent.
    Drains,
    /// It was not finished: it is forgotten, and the peer is told.
    Breaks,
}

impl Stream {
    pub fn new(first: (Kind, Bytes), accepted: Option<Accepted>) -> Self {
        Self {
            first: Some(first),
            accepted,
            granted: WINDOW,
            window: WINDOW,
            ..Self::default()
        }
    }

    /// Whether it can be forgotten.
    pub fn is_over(&self) -> bool {
        self.is_dropped && (self.reset.is_some() || (self.is_finished && self.is_ended))
    }

    /// The next frame to be sent, if there is one.
    pub fn next(&mut self, key: Key) -> Option<Bytes> {
        if self.reset.is_some() {
            return None;
        }
        if let Some((kind, rest)) = self.first.take() {
            return Some(frame(kind, key, 0, &rest));
        }
        if self.owed >= WINDOW / 4 && !self.is_ended && !self.is_dropped {
            self.granted += self.owed;
            return Some(frame(
                Kind::Credit,
                key,
                std::mem::take(&mut self.owed),
                &[],
            ));
        }
        if std::mem::take(&mut self.is_stop_due) {
            return Some(frame(Kind::Stop, key, 0, &[]));
        }
        if let Some(first) = self.outgoing.front() {
            let bytes = first.len() - HEADER;
            if bytes > self.window {
                return None;
            }
            self.window -= bytes;
            self.unsent -= bytes;
            wake(&mut self.writer);
            let mut data = self.outgoing.pop_front()?;
            put_header(&mut data, Kind::Data, key, 0);
            return Some(data.freeze());
        }
        if self.is_finishing && !std::mem::replace(&mut self.is_finished, true) {
            return Some(frame(Kind::Finish, key, 0, &[]));
        }
        None
    }

    /// A frame came in.
    ///
    /// # Errors
    /// What it is, if it can't be: the stream is to be broken off.
    pub fn arrived(
        &mut self,
        kind: Kind,
        value: usize,
        data: Bytes,
    ) -> Result<After, &'static str> {
        match kind {
            Kind::Open => return Err("an opening of a stream that is open"),
            Kind::Accept => {
                if let Some(accepted) = self.accepted.take() {
                    let _ = accepted.send(Ok(()));
                }
            }
            Kind::Refuse => {
                let why = String::from_utf8_lossy(&data).into_owned();
                return Ok(After::Refused(why));
            }
            Kind::Data => {
                if self.is_ended || data.len() > self.granted {
                    return Err("data without credit");
                }
                self.granted -= data.len();
                if !self.is_dropped && !data.is_empty() {
                    self.incoming.push_back(data);
                    wake(&mut self.reader);
                }
            }
            Kind::Credit => {
                if self.window + value > WINDOW {
                    return Err("credit for what was not sent");
                }
                self.window += value;
                return Ok(After::Ready);
            }
            Kind::Finish => {
                self.is_ended = true;
                wake(&mut self.reader);
            }
            Kind::Reset => self.break_off(&MeshError::Broken("the peer broke it off".into())),
            Kind::Stop => {
                self.is_stopped = true;
                self.outgoing.clear();
                self.unsent = 0;
                self.is_finishing = true;
                wake(&mut self.writer);
                return Ok(After::Ready);
            }
        }
        Ok(After::Nothing)
    }

    /// Nothing more comes or goes. What came in can still be read.
    pub fn break_off(&mut self, error: &MeshError) {
        if self.reset.is_none() {
            self.reset = Some(error.clone());
        }
        self.outgoing.clear();
        self.unsent = 0;
        if let Some(accepted) = self.accepted.take() {
            let _ = accepted.send(Err(error.clone()));
        }
        wake(&mut self.reader);
        wake(&mut self.writer);
    }

    fn reset_error(&self) -> Option<io::Error> {
        let error = self.reset.clone()?;
        Some(io::Error::new(io::ErrorKind::ConnectionReset, error))
    }

    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> (Poll<io::Result<()>>, After) {
        let mut read = 0;
        while buffer.remaining() > 0
            && let Some(first) = self.incoming.front_mut()
        {
            let part = first.split_to(first.len().min(buffer.remaining()));
            buffer.put_slice(&part);
            read += part.len();
            if first.is_empty() {
                self.incoming.pop_front();
            }
        }
        if read == 0 && buffer.remaining() > 0 {
            let outcome = match self.reset_error() {
                Some(error) => Poll::Ready(Err(error)),
                None if self.is_ended => Poll::Ready(Ok(())),
                None => {
                    self.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            };
            return (outcome, After::Nothing);
        }
        self.owed += read;
        let after = match self.owed >= WINDOW / 4 {
            true => After::Ready,
            false => After::Nothing,
        };
        (Poll::Ready(Ok(())), after)
    }

    /// Takes as much as there is room for, in frames of up to `most` bytes.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
        most: usize,
    ) -> Poll<io::Result<usize>> {
        if let Some(error) = self.reset_error() {
            return Poll::Ready(Err(error));
        }
        if self.is_stopped || self.is_finishing {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let mut written = 0;
        for mut slice in slices.iter().map(|slice| &slice[..]) {
            while !slice.is_empty() && self.unsent < UNSENT {
                let part = slice.len().min(UNSENT - self.unsent);
                let taken = self.append(&slice[..part], most);
                slice = &slice[taken..];
                written += taken;
            }
        }
        if written == 0 && slices.iter().any(|slice| !slice.is_empty()) {
            self.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(written))
    }

    /// Adds bytes to the last frame, or begins another one; how many it has taken.
    fn append(&mut self, bytes: &[u8], most: usize) -> usize {
        let room = |last: &BytesMut| HEADER + most - last.len();
        if self.outgoing.back().is_none_or(|last| room(last) == 0) {
            let mut data = BytesMut::with_capacity(HEADER + bytes.len().min(most));
            data.put_bytes(0, HEADER);
            self.outgoing.push_back(data);
        }
        let Some(last) = self.outgoing.back_mut() else {
            return 0;
        };
        let taken = bytes.len().min(room(last));
        last.extend_from_slice(&bytes[..taken]);
        self.unsent += taken;
        taken
    }

    /// Nothing more is written.
    pub fn finish(&mut self) -> io::Result<()> {
        if let Some(error) = self.reset_error() {
            return Err(error);
        }
        self.is_finishing = true;
        Ok(())
    }

    /// Nobody holds it any more.
    pub fn dropped(&mut self) -> Dropped {
        self.is_dropped = true;
        self.incoming.clear();
        let is_unheard_of = matches!(self.first, Some((Kind::Open, _)));
        if self.is_over() || (is_unheard_of && !self.is_finishing) {
            return Dropped::Goes;
        }
        match self.is_finishing {
            true => {
                self.is_stop_due = !self.is_ended;
                Dropped::Drains
            }
            false => Dropped::Breaks,
        }
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

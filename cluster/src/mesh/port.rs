//! A port of a node: what it sends with its tokens, and the buffer of what it receives.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use super::clock::Instant;
use super::error::LinkError;
use super::frame::{Frame, HEADER, Packet, Report, encode};

/// What is handed to a connection at once.
const BATCH_PACKETS: usize = 64;
const BATCH_BYTES: usize = 256 * 1024;

/// Whether a link is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Up,
    /// Not connected since; what is under way waits.
    Down(Instant),
    /// Not connected until the deadline: what was under way is lost.
    Gone,
}

/// Totals since the mesh was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub sent: u64,
    pub sent_bytes: u64,
    pub received: u64,
    pub received_bytes: u64,
    pub sent_again: u64,
    pub lost: u64,
    pub connections: u64,
}

/// Both directions of a link, as one of its ends sees them. Packets are numbered from 1, from the
/// first of a session on.
#[derive(Debug)]
pub(crate) struct Port {
    /// The channel that leaves here.
    pub channel: usize,
    pub state: State,
    /// Counts connections; what belongs to an earlier one is not listened to any more.
    pub connection: u64,
    /// Ours, and the neighbour's. When either changes, what was under way is lost.
    pub session: u64,
    pub peer_session: Option<u64>,
    /// Wakes whoever writes to the connection.
    pub wake: Arc<Notify>,
    pub counts: Counts,
    /// Whether anything was heard since this was last set to false.
    pub is_heard: bool,

    /// Packets that the neighbour may not have, in order: it has all up to `acknowledged`.
    queue: VecDeque<Packet>,
    acknowledged: u64,
    /// Up to which they were given to the connection.
    written: u64,
    /// How many have left the neighbour's buffer: their tokens are back.
    freed: u64,
    /// The size of that buffer.
    tokens: u64,

    /// The buffer of what was received and waits to go on.
    pub buffer: VecDeque<Packet>,
    capacity: u64,
    received: u64,
    /// What the neighbour was last told.
    reported: Report,
    is_report_due: bool,
    is_ask_due: bool,
    /// Channels of which the neighbour is to be told what is known.
    pub news: BTreeSet<usize>,
}

/// Frames on their way to a connection.
#[derive(Default)]
pub(crate) struct Batch {
    pub headers: Vec<[u8; HEADER]>,
    pub payloads: Vec<Bytes>,
}

impl Batch {
    fn push(&mut self, frame: &Frame, report: Report) {
        self.headers.push(encode(frame, report));
        self.payloads.push(match frame {
            Frame::Packet { packet, .. } => packet.payload.clone(),
            Frame::Notice(bytes) => bytes.clone(),
            Frame::Report | Frame::Ask => Bytes::new(),
        });
    }

    pub fn clear(&mut self) {
        self.headers.clear();
        self.payloads.clear();
    }
}

/// Where a side of a link is, as it tells the other when they connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub session: u64,
    /// The other's session as this side remembers it; 0 for none.
    pub peer_session: u64,
    pub report: Report,
    pub capacity: u32,
}

impl Port {
    pub fn new(channel: usize, capacity: u32, session: u64) -> Self {
        Self {
            channel,
            state: State::Down(Instant::now()),
            connection: 0,
            session,
            peer_session: None,
            wake: Arc::new(Notify::new()),
            counts: Counts::default(),
            is_heard: false,
            queue: VecDeque::new(),
            acknowledged: 0,
            written: 0,
            freed: 0,
            tokens: capacity.into(),
            buffer: VecDeque::new(),
            capacity: capacity.into(),
            received: 0,
            reported: Report::default(),
            is_report_due: false,
            is_ask_due: false,
            news: BTreeSet::new(),
        }
    }

    /// Whether there is a token for one more packet.
    pub fn has_token(&self) -> bool {
        self.last().saturating_sub(self.freed) < self.tokens
    }

    /// The number of the last packet that was taken in.
    fn last(&self) -> u64 {
        self.acknowledged + self.queue.len() as u64
    }

    /// Takes a packet in; there must be a token.
    pub fn send(&mut self, packet: Packet) {
        self.counts.sent += 1;
        self.counts.sent_bytes += packet.payload.len() as u64;
        self.queue.push_back(packet);
        self.wake.notify_one();
    }

    /// Fills `batch` with what is to be written, the notice first; leaves it empty when there is
    /// nothing.
    pub fn fill(&mut self, batch: &mut Batch, notice: Option<Bytes>) {
        let report = self.report();
        if let Some(notice) = notice {
            batch.push(&Frame::Notice(notice), report);
        }
        let mut bytes = 0;
        let may_write = self.last().min(self.freed + self.tokens);
        while self.written < may_write && batch.headers.len() < BATCH_PACKETS && bytes < BATCH_BYTES
        {
            let packet = &self.queue[(self.written - self.acknowledged) as usize];
            self.written += 1;
            bytes += packet.payload.len();
            let frame = Frame::Packet {
                sequence: self.written as u32,
                packet: packet.clone(),
            };
            batch.push(&frame, report);
        }
        if self.is_ask_due {
            batch.push(&Frame::Ask, report);
        } else if self.is_report_due && batch.headers.is_empty() {
            batch.push(&Frame::Report, report);
        }
        if !batch.headers.is_empty() {
            (self.is_ask_due, self.is_report_due) = (false, false);
            self.reported = report;
        }
    }

    /// How far we are in receiving.
    pub fn report(&self) -> Report {
        Report {
            received: self.received,
            buffered: self.buffer.len() as u32,
        }
    }

    /// The neighbour is so far: tokens come back, and packets need not be kept any more.
    ///
    /// # Errors
    /// A report that can't be.
    pub fn reported(&mut self, report: Report) -> Result<(), LinkError> {
        let freed = report.received.checked_sub(report.buffered.into());
        let freed = freed.filter(|&freed| freed >= self.freed);
        let is_known = (self.acknowledged..=self.written).contains(&report.received);
        let (true, Some(freed)) = (is_known, freed) else {
            return Err(LinkError::Frame(format!(
                "a report of {} packets received, {} of them buffered; {} were sent, {} \
                 acknowledged and {} freed",
                report.received, report.buffered, self.written, self.acknowledged, self.freed
            )));
        };
        self.queue
            .drain(..(report.received - self.acknowledged) as usize);
        self.acknowledged = report.received;
        self.freed = freed;
        Ok(())
    }

    /// A packet came in.
    ///
    /// # Errors
    /// It is not the next one, or there is no place for it.
    pub fn arrive(&mut self, sequence: u32, packet: Packet) -> Result<(), LinkError> {
        if sequence != (self.received as u32).wrapping_add(1) {
            return Err(LinkError::Frame(format!(
                "packet {sequence} after packet {}",
                self.received as u32
            )));
        }
        if self.buffer.len() as u64 >= self.capacity {
            return Err(LinkError::Frame(format!(
                "a packet without a token: there are {} in the buffer",
                self.capacity
            )));
        }
        self.received += 1;
        self.counts.received += 1;
        self.counts.received_bytes += packet.payload.len() as u64;
        self.buffer.push_back(packet);
        self.report_if_due();
        Ok(())
    }

    /// Takes the first packet out of the buffer: its place is free.
    pub fn take(&mut self) -> Option<Packet> {
        let packet = self.buffer.pop_front()?;
        self.report_if_due();
        Some(packet)
    }

    /// Tokens go back with frames that go that way anyway, or when a quarter of them is due.
    fn report_if_due(&mut self) {
        let told = self.reported.received - u64::from(self.reported.buffered);
        let freed = self.received - self.buffer.len() as u64;
        let due = (self.capacity / 4).max(1);
        let unsaid = self.received - self.reported.received;
        if (freed - told).max(unsaid) >= due && !self.is_report_due {
            self.tell();
        }
    }

    /// Has a report sent, which also tells that we are alive.
    pub fn tell(&mut self) {
        self.is_report_due = true;
        self.wake.notify_one();
    }

    /// Asks the neighbour for a report.
    pub fn ask(&mut self) {
        self.is_ask_due = true;
        self.wake.notify_one();
    }

    /// Has the neighbour told what is known of channels.
    pub fn tell_of(&mut self, channels: impl IntoIterator<Item = usize>) {
        self.news.extend(channels);
        self.wake.notify_one();
    }

    /// Whether the neighbour has all that was sent.
    pub fn is_drained(&self) -> bool {
        self.queue.is_empty()
    }

    /// How long the link has not been connected.
    pub fn is_down_for(&self, deadline: Duration) -> bool {
        matches!(self.state, State::Down(since) if since.elapsed() >= deadline)
    }

    /// What we tell the neighbour when we connect.
    pub fn position(&self) -> Position {
        Position {
            session: self.session,
            peer_session: self.peer_session.unwrap_or(0),
            report: self.report(),
            capacity: self.capacity as u32,
        }
    }

    /// Whether a neighbour that tells this goes on where the last connection stopped.
    pub fn goes_on_with(&self, peer: &Position) -> bool {
        self.peer_session == Some(peer.session) && peer.peer_session == self.session
    }

    /// Goes on where the last connection stopped: what the neighbour has not got is sent again.
    ///
    /// # Errors
    /// What the neighbour says can't be.
    pub fn resume(&mut self, peer: &Position) -> Result<(), LinkError> {
        self.reported(peer.report)?;
        self.counts.sent_again += self.written - self.acknowledged;
        self.written = self.acknowledged;
        self.connected(peer);
        Ok(())
    }

    /// Starts a session with a neighbour that knows nothing of an earlier one. What `told` said
    /// was in our buffer, and what `peer` says is in its own, counts as sent in this session and
    /// holds tokens.
    pub fn begin(&mut self, peer: &Position, told: &Position) {
        self.received = told.report.buffered.into();
        self.acknowledged = peer.report.buffered.into();
        self.written = self.acknowledged;
        self.freed = 0;
        self.peer_session = Some(peer.session);
        self.connected(peer);
    }

    fn connected(&mut self, peer: &Position) {
        self.tokens = peer.capacity.into();
        self.reported = self.report();
        self.state = State::Up;
        self.is_heard = true;
        self.counts.connections += 1;
        self.wake.notify_one();
    }

    /// Forgets what is under way; the number of packets that are lost so.
    pub fn forget(&mut self) -> usize {
        self.peer_session = None;
        let lost = self.queue.len();
        self.counts.lost += lost as u64;
        self.queue.clear();
        self.news.clear();
        self.written = self.acknowledged;
        self.freed = self.acknowledged;
        lost
    }
}

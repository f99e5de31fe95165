//! What a node has asked another one for: what waits to be sent, queue by queue in turn, and what is
//! under way.

pub(super) mod far;
pub(super) mod remote;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flashmesh_pages::flash::{FlashHealth, PAGE_SIZE_BYTES, PageBuffer, Tag};
use flashmesh_pages::{Result, StorageError};
use parking_lot::{Condvar, Mutex};

use super::PAGES_OUT_MAX;
use super::wire::{Body, Description, Kind, Reply, Request};

/// Where answers to a queue are put.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    ended: Mutex<Vec<Ended>>,
    has_more: Condvar,
}

/// An operation that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub tag: Tag,
    /// The operation's.
    pub buffers: Vec<PageBuffer>,
    pub outcome: Result<Answer>,
}

#[derive(Debug)]
pub(super) enum Answer {
    /// What is to be copied into the buffers.
    Pages(Vec<Bytes>),
    Done,
    /// With the session of who has it.
    Card(Description, u64),
    UsedBlocks(u64),
    Health(Option<FlashHealth>),
}

impl Inbox {
    fn put(&self, ended: Ended) {
        self.ended.lock().push(ended);
        self.has_more.notify_one();
    }

    /// Takes all there is, when it is `least` or more.
    fn take(&self, least: usize) -> Vec<Ended> {
        let mut ended = self.ended.lock();
        while ended.len() < least {
            self.has_more.wait(&mut ended);
        }
        std::mem::take(&mut *ended)
    }
}

/// What a sync of a card has to know, shared by its queues.
#[derive(Debug, Default)]
pub(super) struct Durability(Mutex<Unsynced>);

#[derive(Debug, Default)]
struct Unsynced {
    /// The session of the server in which changes have ended since the last sync.
    session: Option<u64>,
    /// Why changes may be lost. No later sync can tell.
    lost: Option<String>,
}

impl Durability {
    /// A change has ended well.
    fn changed(&self, session: u64) {
        let mut unsynced = self.0.lock();
        let before = unsynced.session.replace(session);
        if before.is_some_and(|before| before != session) {
            let why = "the node has restarted, and what was written before may be lost";
            unsynced.lost.get_or_insert_with(|| why.into());
        }
    }

    /// Nobody knows what became of a change, or of a sync.
    fn lost(&self, why: &str) {
        let mut unsynced = self.0.lock();
        unsynced.lost.get_or_insert_with(|| why.into());
    }

    /// What a sync is to cover: the session of it, if there is anything.
    fn begin_sync(&self) -> Result<Option<u64>, String> {
        let mut unsynced = self.0.lock();
        match &unsynced.lost {
            Some(why) => Err(why.clone()),
            None => Ok(unsynced.session.take()),
        }
    }
}

/// An operation, as a queue hands it over.
#[derive(Debug)]
pub(super) struct Op {
    /// Its queue.
    pub lane: u64,
    pub tag: Tag,
    /// All but its number, its epoch and what is said of parts.
    pub request: Request,
    /// To be read into, or written.
    pub buffers: Vec<PageBuffer>,
    pub inbox: Arc<Inbox>,
    /// The card's name in messages.
    pub card: Arc<str>,
    pub durability: Arc<Durability>,
}

impl Op {
    fn cost(&self) -> usize {
        self.buffers.len().max(1)
    }

    fn end(self, outcome: Result<Answer>) {
        self.inbox.put(Ended {
            tag: self.tag,
            buffers: self.buffers,
            outcome,
        });
    }

    fn fail(self, kind: io::ErrorKind, why: &str) {
        let source = io::Error::new(kind, why.to_string());
        let error = StorageError::io(&*self.card, source);
        self.end(Err(error));
    }
}

/// An operation that is under way.
#[derive(Debug)]
struct Sent {
    op: Op,
    since: Instant,
    /// What has come of a read.
    parts: Vec<Bytes>,
    received: usize,
}

/// Which operations fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Those of which something was sent.
    Sent,
    All,
}

/// Another node, as one that is asked.
#[derive(Debug)]
pub(super) struct Peer(Mutex<State>);

#[derive(Debug)]
struct State {
    epoch: u64,
    next_id: u64,
    sent: BTreeMap<u64, Sent>,
    /// The cost of what was sent.
    cost: usize,
    /// What waits to be sent, by queue.
    lanes: HashMap<u64, VecDeque<Op>>,
    turns: VecDeque<u64>,
    /// A write of which packets are still to be made, and how many pages of it were sent.
    half_sent: Option<(u64, usize)>,
    /// Why nothing is sent any more.
    closed: Option<&'static str>,
}

impl Peer {
    /// `first` differs from that of earlier lives of this node.
    pub fn new(first: u64) -> Self {
        Self(Mutex::new(State {
            epoch: first,
            next_id: first,
            sent: BTreeMap::new(),
            cost: 0,
            lanes: HashMap::new(),
            turns: VecDeque::new(),
            half_sent: None,
            closed: None,
        }))
    }

    /// Has an operation sent when it is its turn. Whoever sends is to be woken.
    pub fn submit(&self, op: Op) {
        let mut state = self.0.lock();
        if let Some(why) = state.closed {
            drop(state);
            return op.fail(io::ErrorKind::NotConnected, why);
        }
        let lane = op.lane;
        let waiting = state.lanes.entry(lane).or_default();
        waiting.push_back(op);
        if waiting.len() == 1 {
            state.turns.push_back(lane);
        }
    }

    /// The next packet to send, with at most so many pages, and which operation it begins.
    pub fn next_packet(&self, pages: usize) -> Option<(Bytes, Option<u64>)> {
        let state = &mut *self.0.lock();
        if let Some((id, offset)) = state.half_sent.take()
            && let Some(sent) = state.sent.get(&id)
        {
            let (packet, end) = packet(&sent.op, offset, pages);
            state.half_sent = end.map(|end| (id, end));
            return Some((packet, None));
        }
        let lane = *state.turns.front()?;
        let waiting = state.lanes.get_mut(&lane)?;
        let cost = waiting.front()?.cost();
        if state.cost + cost > PAGES_OUT_MAX {
            return None;
        }
        let mut op = waiting.pop_front()?;
        state.turns.pop_front();
        match waiting.is_empty() {
            true => drop(state.lanes.remove(&lane)),
            false => state.turns.push_back(lane),
        }
        let id = state.next_id;
        state.next_id = id.wrapping_add(1);
        (op.request.id, op.request.epoch) = (id, state.epoch);
        state.cost += cost;
        let (packet, end) = packet(&op, 0, pages);
        state.half_sent = end.map(|end| (id, end));
        let sent = Sent {
            op,
            since: Instant::now(),
            parts: Vec::new(),
            received: 0,
        };
        state.sent.insert(id, sent);
        Some((packet, Some(id)))
    }

    /// A reply came in. Whether more can be sent now; or why no other is to be waited for.
    pub fn arrived(&self, reply: Reply) -> Result<bool, String> {
        if let Body::Damaged = reply.body {
            return Err("it got a packet that was damaged on its way".into());
        }
        let mut state = self.0.lock();
        let Some(sent) = state.sent.get_mut(&reply.id) else {
            // It was given up meanwhile.
            return Ok(false);
        };
        let kind = sent.op.request.kind;
        let outcome = match (reply.body, kind) {
            (Body::Failed(failure), _) => Err(failure.of(&sent.op.card)),
            (Body::Pages { offset, data }, Kind::Read) => {
                let pages = data.len() / PAGE_SIZE_BYTES;
                let end = sent.received + pages;
                if usize::from(offset) != sent.received || end > sent.op.buffers.len() {
                    return Err(format!("it sent {pages} pages where others were to come"));
                }
                sent.parts.push(data);
                sent.received = end;
                if end < sent.op.buffers.len() {
                    return Ok(false);
                }
                Ok(Answer::Pages(std::mem::take(&mut sent.parts)))
            }
            (Body::Done, Kind::Write | Kind::Erase | Kind::Sync) => Ok(Answer::Done),
            (Body::Card(description), Kind::Describe) => {
                Ok(Answer::Card(description, reply.session))
            }
            (Body::UsedBlocks(blocks), Kind::UsedBlocks) => Ok(Answer::UsedBlocks(blocks)),
            (Body::Health(health), Kind::Health) => Ok(Answer::Health(health)),
            _ => return Err("it sent an answer to something else".into()),
        };
        let Some(sent) = state.sent.remove(&reply.id) else {
            return Ok(false);
        };
        state.cost -= sent.op.cost();
        let may_send = !state.turns.is_empty();
        if kind.is_change() && outcome.is_ok() {
            sent.op.durability.changed(reply.session);
        }
        drop(state);
        sent.op.end(outcome);
        Ok(may_send)
    }

    /// What was sent gets no answer any more, as packets may be lost: these operations fail, and
    /// later ones wait at the other node until nothing of these is under way. Of `unsent` nothing
    /// has left this node.
    pub fn fail(&self, whose: Whose, unsent: Option<u64>, kind: io::ErrorKind, why: &str) {
        let mut state = self.0.lock();
        let sent = std::mem::take(&mut state.sent);
        if !sent.is_empty() {
            state.epoch = state.epoch.wrapping_add(1);
        }
        state.cost = 0;
        state.half_sent = None;
        let mut waiting = Vec::new();
        if whose == Whose::All {
            state.turns.clear();
            waiting.extend(state.lanes.drain().flat_map(|(_, ops)| ops));
        }
        drop(state);
        for (id, sent) in sent {
            if sent.op.request.kind.is_change() && unsent != Some(id) {
                sent.op.durability.lost(why);
            }
            sent.op.fail(kind, why);
        }
        waiting.into_iter().for_each(|op| op.fail(kind, why));
    }

    /// Fails all operations if one was sent so long ago.
    pub fn check_time(&self, limit: Duration, why: &str) {
        let oldest = {
            let state = self.0.lock();
            state.sent.first_key_value().map(|(_, sent)| sent.since)
        };
        if oldest.is_some_and(|since| since.elapsed() > limit) {
            self.fail(Whose::All, None, io::ErrorKind::TimedOut, why);
        }
    }

    /// Fails all operations, now and from now on.
    pub fn close(&self, why: &'static str) {
        self.0.lock().closed = Some(why);
        self.fail(Whose::All, None, io::ErrorKind::NotConnected, why);
    }

    /// Fails the reads of a queue that were not sent yet.
    pub fn cancel_reads(&self, lane: u64) {
        let mut state = self.0.lock();
        let Some(waiting) = state.lanes.remove(&lane) else {
            return;
        };
        let (reads, others): (VecDeque<_>, VecDeque<_>) = waiting
            .into_iter()
            .partition(|op| op.request.kind == Kind::Read);
        match others.is_empty() {
            true => state.turns.retain(|&one| one != lane),
            false => drop(state.lanes.insert(lane, others)),
        }
        drop(state);
        for read in reads {
            read.fail(io::ErrorKind::Interrupted, "the read was given up");
        }
    }
}

/// The packet of an operation, of a write with the pages from `offset` on, and up to where these
/// are, if that is not all.
fn packet(op: &Op, offset: usize, pages: usize) -> (Bytes, Option<usize>) {
    let written = match op.request.kind {
        Kind::Write => &op.buffers[offset..],
        _ => &[],
    };
    let now = &written[..written.len().min(pages)];
    let mut request = op.request;
    request.offset = offset as u16;
    let end = (now.len() < written.len()).then_some(offset + now.len());
    (request.packet(now), end)
}

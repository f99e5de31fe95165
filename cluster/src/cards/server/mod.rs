//! What a node keeps of those who ask for pages of its cards: what they asked for, whose turn it is,
//! what waits to be sent to them. Nothing here waits but a thread that asks for work
//! ([`turns`]); cards are used by those threads alone ([`worker`]).

pub(super) mod late;
pub(super) mod turns;
pub(super) mod worker;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use flashmesh_pages::flash::{Flash, FlashPage, PAGE_SIZE_BYTES};
use flashmesh_pages::store::CardId;
use flashmesh_pages::{Result, StorageError};
use parking_lot::{Condvar, Mutex};

use super::term::TermStore;
use super::wire::{Body, Description, Failure, Kind, Reply, Request};
use super::{PAGES_OUT_MAX, PAGES_PER_OP_MAX, READING};
use turns::Terms;

/// Replies that may wait for a node. It reaches this only if it asks without listening.
const REPLIES_MAX: usize = 4 * PAGES_OUT_MAX;

/// A card that is served.
#[derive(Debug)]
pub(super) struct ServedCard {
    pub id: CardId,
    pub flash: Arc<dyn Flash>,
    /// From when it was there; with its shape.
    described: OnceLock<(Description, u32)>,
    /// Wakes the threads of each [`Class`].
    work: [Condvar; 2],
}

/// Who does a job: threads with a queue of the card each, or the one that may wait for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Pages,
    Slow,
}

/// Something to do, as a whole.
#[derive(Debug)]
pub(super) struct Job {
    /// Who asked, by its position among the nodes, and in which of its lives.
    pub client: usize,
    life: u64,
    pub id: u64,
    card: usize,
    pub kind: Kind,
    pub first: FlashPage,
    pub pages: u16,
    pub term: u64,
    /// The pages of a write.
    pub parts: Vec<Bytes>,
}

impl Job {
    fn class(&self) -> Class {
        match self.kind {
            Kind::Read | Kind::Write | Kind::Erase => Class::Pages,
            _ => Class::Slow,
        }
    }

    /// What it counts as among the pages that a node may have asked for at once.
    fn cost(&self) -> usize {
        usize::from(self.pages.max(1))
    }

    fn has_term(&self) -> bool {
        self.kind.is_change() || self.kind == Kind::Sync
    }
}

/// A write of which pages are missing.
#[derive(Debug)]
struct Partial {
    job: Job,
    received: u16,
}

/// A packet for a node, and the cost that is paid with it.
#[derive(Debug)]
struct Answer {
    packet: Bytes,
    pays: usize,
}

/// What is kept for a node that asks.
#[derive(Debug, Default)]
struct Client {
    epoch: Option<u64>,
    /// Grows when what was asked before counts no more.
    life: u64,
    /// The cost of what was asked for in this life and not yet answered.
    admitted: usize,
    partial: HashMap<u64, Partial>,
    /// By card and class.
    waiting: Vec<[VecDeque<Job>; 2]>,
    /// Changes that cards are working on: all, and those of earlier lives.
    changes: usize,
    old_changes: usize,
    answers: VecDeque<Answer>,
}

#[derive(Debug, Default)]
struct State {
    clients: Vec<Client>,
    /// By card and class: the nodes that wait, in turn.
    turns: Vec<[VecDeque<usize>; 2]>,
    terms: Terms,
    is_closed: bool,
}

#[derive(Debug)]
pub(super) struct Server {
    /// The node's name.
    pub name: String,
    pub cards: Vec<ServedCard>,
    pub terms: Arc<dyn TermStore>,
    /// Another one after each start.
    pub session: u64,
    /// The node uses its cards itself: they are for reading alone.
    is_reading: bool,
    state: Mutex<State>,
}

impl ServedCard {
    fn described(&self) -> Result<&(Description, u32)> {
        if let Some(described) = self.described.get() {
            return Ok(described);
        }
        let queue = self.flash.open_queue()?;
        let description = Description {
            geometry: self.flash.geometry(),
            continues_blocks: self.flash.continues_blocks(),
            pages_max: queue.max_pages_per_op().min(PAGES_PER_OP_MAX) as u16,
        };
        let described = (description, description.shape());
        Ok(self.described.get_or_init(|| described))
    }
}

fn invalid(why: impl Into<String>) -> StorageError {
    StorageError::Invalid(why.into())
}

impl Server {
    pub fn new(
        name: String,
        nodes: usize,
        cards: Vec<(CardId, Arc<dyn Flash>)>,
        terms: Arc<dyn TermStore>,
        session: u64,
        is_reading: bool,
    ) -> Result<Self> {
        let mut served: Vec<ServedCard> = Vec::new();
        for (id, flash) in cards {
            if served.iter().any(|card| card.id == id) {
                return Err(invalid(format!("two cards of number {} are served", id.0)));
            }
            let card = ServedCard {
                id,
                flash,
                described: OnceLock::new(),
                work: Default::default(),
            };
            // One that comes later is described then.
            if !is_reading {
                card.described()?;
            }
            served.push(card);
        }
        let mut state = State {
            terms: Terms::new(terms.load()?),
            ..State::default()
        };
        state.turns.resize_with(served.len(), Default::default);
        state.clients.resize_with(nodes, Client::default);
        for client in &mut state.clients {
            client.waiting.resize_with(served.len(), Default::default);
        }
        Ok(Self {
            name,
            cards: served,
            terms,
            session,
            is_reading,
            state: Mutex::new(state),
        })
    }

    /// A request came in. What is wrong with it is answered.
    pub fn arrived(&self, client: usize, request: Request, data: Bytes) {
        let mut state = self.state.lock();
        let body = match self.take_up(&mut state, client, request, data) {
            Ok(None) => return,
            Ok(Some(body)) => body,
            Err(error) => Body::Failed(Failure::from(error)),
        };
        let reply = Reply {
            session: self.session,
            id: request.id,
            body,
        };
        state.clients[client].answer(reply.packet(), 0);
    }

    /// Packets of a node may be lost: what it had asked for counts no more.
    pub fn interrupted(&self, client: usize) {
        let mut state = self.state.lock();
        self.forget(&mut state, client);
    }

    /// A node has sent what can't be read: it is told so, and what it had asked for counts no more.
    pub fn damaged(&self, client: usize) {
        let mut state = self.state.lock();
        self.forget(&mut state, client);
        let reply = Reply {
            session: self.session,
            id: 0,
            body: Body::Damaged,
        };
        state.clients[client].answer(reply.packet(), 0);
    }

    /// The next packet for a node.
    pub fn next_answer(&self, client: usize) -> Option<Bytes> {
        let client = &mut self.state.lock().clients[client];
        let answer = client.answers.pop_front()?;
        // Before it is sent, as the node asks for more as soon as it has it.
        client.admitted -= answer.pays;
        Some(answer.packet)
    }

    /// Ends all threads.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.wake_all();
    }

    fn wake_all(&self) {
        let work = self.cards.iter().flat_map(|card| &card.work);
        work.for_each(|work| {
            work.notify_all();
        });
    }

    fn forget(&self, state: &mut State, client: usize) {
        let State { clients, turns, .. } = state;
        let of = &mut clients[client];
        of.life += 1;
        of.admitted = 0;
        of.old_changes = of.changes;
        of.partial.clear();
        of.answers.clear();
        of.waiting.iter_mut().flatten().for_each(VecDeque::clear);
        for turns in turns.iter_mut().flatten() {
            turns.retain(|&one| one != client);
        }
    }

    /// What can be answered at once, or nothing.
    fn take_up(
        &self,
        state: &mut State,
        client: usize,
        request: Request,
        data: Bytes,
    ) -> Result<Option<Body>> {
        let known = state.clients[client].epoch.replace(request.epoch);
        if known != Some(request.epoch) {
            self.forget(state, client);
        }
        let (number, for_reading) = (request.card & !READING, request.card & READING != 0);
        let mut cards = self.cards.iter();
        let index = cards.position(|card| card.id.0 == number);
        let index = index.filter(|_| for_reading || !self.is_reading);
        let index = index.ok_or_else(|| {
            invalid(format!(
                "node '{}' serves no card of number {number}",
                self.name
            ))
        })?;
        if for_reading && (request.kind.is_change() || request.kind == Kind::Sync) {
            return Err(invalid("the card was opened for reading alone"));
        }
        let (description, shape) = self.cards[index].described()?;
        if request.kind == Kind::Describe {
            return Ok(Some(Body::Card(*description)));
        }
        if request.shape != *shape {
            return Err(invalid(
                "it is another card than the one that was opened; open it again",
            ));
        }
        if request.session != 0 && request.session != self.session {
            let why = "it has restarted since, and what was written before may be lost";
            let source = io::Error::new(io::ErrorKind::ConnectionAborted, why);
            return Err(StorageError::io("the node", source));
        }
        check_pages(&request, description)?;
        let job = Job {
            client,
            life: state.clients[client].life,
            id: request.id,
            card: index,
            kind: request.kind,
            first: FlashPage(request.first),
            pages: request.pages,
            term: request.term,
            parts: Vec::new(),
        };
        if request.kind == Kind::Write {
            return self
                .take_part(state, job, request.offset, data)
                .map(|()| None);
        }
        if !data.is_empty() {
            return Err(invalid("a request with pages that is no write"));
        }
        state.clients[client].admit(job.cost())?;
        self.put(state, job);
        Ok(None)
    }

    /// Some pages of a write.
    fn take_part(&self, state: &mut State, job: Job, offset: u16, data: Bytes) -> Result<()> {
        let client = &mut state.clients[job.client];
        let pages = data.len() / PAGE_SIZE_BYTES;
        let before = client.partial.remove(&job.id);
        if let Some(before) = &before {
            client.admitted -= before.job.cost();
        }
        let mut partial = match (before, offset) {
            (None, 0) => Partial { job, received: 0 },
            (Some(before), 1..) if before.is_continued_by(&job, offset) => before,
            _ => return Err(invalid("pages of a write whose first pages are not there")),
        };
        let is_cut = pages == 0 || !data.len().is_multiple_of(PAGE_SIZE_BYTES);
        if is_cut || pages > usize::from(partial.job.pages - partial.received) {
            return Err(invalid(format!(
                "{} bytes for {} pages of a write",
                data.len(),
                partial.job.pages - partial.received
            )));
        }
        client.admit(partial.job.cost())?;
        partial.job.parts.push(data);
        partial.received += pages as u16;
        if partial.received == partial.job.pages {
            self.put(state, partial.job);
        } else {
            client.partial.insert(partial.job.id, partial);
        }
        Ok(())
    }
}

impl Partial {
    fn is_continued_by(&self, job: &Job, offset: u16) -> bool {
        let of = |job: &Job| (job.card, job.first, job.pages, job.term);
        self.received == offset && of(&self.job) == of(job)
    }
}

impl Client {
    fn admit(&mut self, cost: usize) -> Result<()> {
        if self.admitted + cost > PAGES_OUT_MAX {
            return Err(invalid(format!(
                "a node may ask for {PAGES_OUT_MAX} pages at once, and asks for more"
            )));
        }
        self.admitted += cost;
        Ok(())
    }

    fn answer(&mut self, packet: Bytes, pays: usize) {
        if self.answers.len() < REPLIES_MAX {
            self.answers.push_back(Answer { packet, pays });
        } else {
            self.admitted -= pays;
        }
    }
}

/// Addresses and sizes, by the card.
fn check_pages(request: &Request, card: &Description) -> Result<()> {
    let block = u64::from(card.geometry.pages_per_erase_block);
    let pages = match request.kind {
        Kind::Read | Kind::Write => {
            if !(1..=card.pages_max).contains(&request.pages) {
                return Err(invalid(format!(
                    "an operation on {} pages; from 1 to {} are possible",
                    request.pages, card.pages_max
                )));
            }
            u64::from(request.pages)
        }
        Kind::Erase if request.pages != 0 || !request.first.is_multiple_of(block) => {
            return Err(invalid(format!(
                "an erase at page {}, which does not start an erase block of {block} pages",
                request.first
            )));
        }
        Kind::Erase => block,
        _ if request.pages != 0 => return Err(invalid("pages of what has none")),
        _ => return Ok(()),
    };
    match request.first.checked_add(pages) {
        Some(end) if end <= card.geometry.pages() => Ok(()),
        _ => Err(invalid(format!(
            "flash pages from {} on, {pages} of them, lie outside the card of {} pages",
            request.first,
            card.geometry.pages()
        ))),
    }
}

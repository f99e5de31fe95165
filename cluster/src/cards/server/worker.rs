//! The threads that use cards: some for each card that read, write and erase, each with a queue of
//! its own, and one for what may take long.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use flashmesh_pages::StorageError;
use flashmesh_pages::flash::{Completion, FlashOp, FlashQueue, PAGE_SIZE_BYTES, PageBuffer, Tag};

use super::super::Node;
use super::super::wire::{Body, Kind, Reply, pages_packet};
use super::turns::Work;
use super::{Class, Job};

/// Jobs that a thread takes at once, so that others of the card have some, too.
const BATCH: usize = 16;

/// Reads, writes and erases pages of a card until the server is closed.
pub(in crate::cards) fn use_pages(node: &Arc<Node>, card: usize) {
    let mut worker = Worker {
        node,
        card,
        queue: None,
        jobs: HashMap::new(),
        next_tag: 0,
        completions: Vec::new(),
        answered: Vec::new(),
    };
    while worker.turn() {}
}

struct Worker<'a> {
    node: &'a Arc<Node>,
    card: usize,
    /// Opened when it is needed.
    queue: Option<Box<dyn FlashQueue>>,
    jobs: HashMap<Tag, Job>,
    next_tag: u64,
    completions: Vec<Completion>,
    /// Nodes that have answers which were not sent yet.
    answered: Vec<usize>,
}

impl Worker<'_> {
    /// Takes what there is to do, and waits for something that is under way. False at the end.
    fn turn(&mut self) -> bool {
        let room = self.queue.as_ref().map(|queue| {
            let room = queue.depth() - queue.in_flight();
            room.min(BATCH)
        });
        let is_idle = self.jobs.is_empty();
        let server = &self.node.server;
        match server.take(self.card, Class::Pages, room.unwrap_or(1), is_idle) {
            Work::Closed if is_idle => return false,
            Work::Closed => {}
            Work::Store(job) => self.node.store_term(job),
            Work::Jobs(jobs, refused) => {
                self.answered.extend(refused);
                jobs.into_iter().for_each(|job| self.begin(job));
            }
        }
        // Before it may wait for long.
        self.send();
        self.wait();
        self.send();
        true
    }

    fn send(&mut self) {
        self.answered.sort_unstable();
        self.answered.dedup();
        let nodes = self.answered.drain(..);
        nodes.for_each(|node| self.node.send_now(node));
    }

    fn fail(&mut self, job: &Job, error: StorageError) {
        self.node.fail(job, error);
        self.answered.push(job.client);
    }

    fn begin(&mut self, mut job: Job) {
        let tag = Tag(self.next_tag);
        self.next_tag += 1;
        let first = job.first;
        let op = match job.kind {
            Kind::Write => FlashOp::Write {
                tag,
                first,
                buffers: pages_of(std::mem::take(&mut job.parts)),
            },
            Kind::Erase => FlashOp::Erase { tag, first },
            _ => FlashOp::Read {
                tag,
                first,
                buffers: (0..job.pages).map(|_| PageBuffer::recycled()).collect(),
            },
        };
        match self.submit(op) {
            Ok(()) => {
                self.jobs.insert(tag, job);
            }
            Err(error) => self.fail(&job, error),
        }
    }

    fn submit(&mut self, op: FlashOp) -> Result<(), StorageError> {
        if self.queue.is_none() {
            let flash = &self.node.server.cards[self.card].flash;
            self.queue = Some(flash.open_queue()?);
        }
        match &mut self.queue {
            Some(queue) => queue.submit(op),
            None => Ok(()),
        }
    }

    fn wait(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let waited = queue.wait(usize::from(!self.jobs.is_empty()), &mut self.completions);
        for completion in self.completions.drain(..) {
            if let Some(job) = self.jobs.remove(&completion.tag) {
                self.node.end(&job, completion);
                self.answered.push(job.client);
            }
        }
        if let Err(error) = waited {
            // Nobody knows what it still does: dropping it waits for that.
            self.queue = None;
            let why = error.to_string();
            for (_, job) in std::mem::take(&mut self.jobs) {
                let error = StorageError::io("the card", std::io::Error::other(why.clone()));
                self.fail(&job, error);
            }
        }
    }
}

/// Syncs a card and answers what is not about pages, until the server is closed.
pub(in crate::cards) fn be_asked(node: &Arc<Node>, card: usize) {
    loop {
        match node.server.take(card, Class::Slow, 1, true) {
            Work::Closed => return,
            Work::Store(job) => node.store_term(job),
            Work::Jobs(jobs, refused) => {
                refused.into_iter().for_each(|client| node.send_now(client));
                for job in jobs {
                    match node.answer(card, &job) {
                        Ok(body) => node.reply(&job, body),
                        Err(error) => node.fail(&job, error),
                    }
                    node.send_now(job.client);
                }
            }
        }
    }
}

/// The pages of a write, from its packets.
fn pages_of(parts: Vec<Bytes>) -> Vec<PageBuffer> {
    let pages = parts
        .iter()
        .flat_map(|part| part.chunks_exact(PAGE_SIZE_BYTES));
    let copy = |page: &[u8]| {
        let mut buffer = PageBuffer::recycled();
        buffer.copy_from_slice(page);
        buffer
    };
    pages.map(copy).collect()
}

impl Node {
    fn store_term(&self, job: Job) {
        let (client, stored) = (job.client, self.server.terms.store(job.term));
        self.server.stored(job, stored.err());
        self.send_now(client);
    }

    fn answer(&self, card: usize, job: &Job) -> Result<Body, StorageError> {
        let flash = &self.server.cards[card].flash;
        match job.kind {
            Kind::UsedBlocks => Ok(Body::UsedBlocks(flash.used_erase_blocks()?)),
            Kind::Health => Ok(Body::Health(flash.health())),
            _ => flash.sync().map(|()| Body::Done),
        }
    }

    fn end(&self, job: &Job, completion: Completion) {
        match (completion.result, job.kind) {
            (Err(error), _) => self.fail(job, error),
            (Ok(()), Kind::Read) => {
                let chunks = completion.buffers.chunks(self.pages_per_packet);
                let offsets = (0..).step_by(self.pages_per_packet);
                let packet = |(offset, pages)| {
                    let session = self.server.session;
                    pages_packet(session, job.id, offset, pages)
                };
                let packets = offsets.zip(chunks).map(packet).collect();
                self.server.ended(job, packets);
            }
            (Ok(()), _) => self.reply(job, Body::Done),
        }
    }

    fn reply(&self, job: &Job, body: Body) {
        let reply = Reply {
            session: self.server.session,
            id: job.id,
            body,
        };
        self.server.ended(job, vec![reply.packet()]);
    }

    fn fail(&self, job: &Job, error: StorageError) {
        self.server
            .ended(job, vec![self.server.failure(job, error)]);
    }
}

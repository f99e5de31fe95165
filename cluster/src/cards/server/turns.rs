//! Whose turn it is: nodes that wait for a card take turns, an operation each. And terms: a change
//! or a sync of a lower term than the greatest that anyone has shown is refused. The first one of a
//! greater term waits until no change is under way, and until the term is durable.

use flashmesh_pages::StorageError;

use super::super::wire::{Body, Failure, Reply};
use super::{Class, Job, Server, State};
use bytes::Bytes;

#[derive(Debug, Default)]
pub(super) struct Terms {
    /// The greatest that anyone has shown.
    seen: u64,
    /// The greatest that is stored: those of what has begun.
    durable: u64,
    is_being_stored: bool,
    /// Changes that cards are working on.
    changes: usize,
}

impl Terms {
    pub fn new(durable: u64) -> Self {
        Self {
            seen: durable,
            durable,
            ..Self::default()
        }
    }
}

/// What a thread is to do.
#[derive(Debug)]
pub(in crate::cards) enum Work {
    /// Perhaps none, if it did not want to wait. Nodes are to be woken, as there are answers.
    Jobs(Vec<Job>, Vec<usize>),
    /// First store the term of this job.
    Store(Job),
    /// Nothing any more.
    Closed,
}

enum Next {
    Run(Job),
    Refuse(Job),
    Store(Job),
    Later,
}

impl Server {
    pub(super) fn put(&self, state: &mut State, job: Job) {
        let (card, class) = (job.card, job.class());
        if job.has_term() {
            state.terms.seen = state.terms.seen.max(job.term);
        }
        let waiting = &mut state.clients[job.client].waiting[card][class as usize];
        if waiting.is_empty() {
            state.turns[card][class as usize].push_back(job.client);
        }
        waiting.push_back(job);
        self.cards[card].work[class as usize].notify_one();
    }

    /// Up to `most` jobs on a card; waits for one if it may.
    pub fn take(&self, card: usize, class: Class, most: usize, may_wait: bool) -> Work {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return Work::Closed;
            }
            let (mut jobs, mut refused) = (Vec::new(), Vec::new());
            let mut passed = 0;
            while jobs.len() < most && passed < state.turns[card][class as usize].len() {
                let Some(client) = state.turns[card][class as usize].pop_front() else {
                    break;
                };
                let next = state.next(client, card, class);
                if !state.clients[client].waiting[card][class as usize].is_empty() {
                    state.turns[card][class as usize].push_back(client);
                }
                match next {
                    Next::Run(job) => {
                        jobs.push(job);
                        passed = 0;
                    }
                    Next::Refuse(job) => {
                        let packet = self.too_old(&job, state.terms.seen);
                        state.clients[client].answer(packet, job.cost());
                        refused.push(client);
                    }
                    // Taken up again when the term is stored.
                    Next::Store(job) if jobs.is_empty() => return Work::Store(job),
                    Next::Store(job) => {
                        state.terms.is_being_stored = false;
                        state.put_back(job);
                        break;
                    }
                    Next::Later => passed += 1,
                }
            }
            if !may_wait || !jobs.is_empty() || !refused.is_empty() {
                return Work::Jobs(jobs, refused);
            }
            self.cards[card].work[class as usize].wait(&mut state);
        }
    }

    /// A term was stored, or it was not: then the job that brought it has failed.
    pub fn stored(&self, job: Job, error: Option<StorageError>) {
        let mut state = self.state.lock();
        state.terms.is_being_stored = false;
        match error {
            None => {
                state.terms.durable = state.terms.durable.max(job.term);
                state.put_back(job);
            }
            Some(error) => {
                let packet = self.failure(&job, error);
                state.answer(&job, vec![packet]);
            }
        }
        drop(state);
        self.wake_all();
    }

    /// A job has ended, with these packets as its answer.
    pub fn ended(&self, job: &Job, packets: Vec<Bytes>) {
        let mut state = self.state.lock();
        let mut may_wake = false;
        if job.kind.is_change() {
            state.terms.changes -= 1;
            may_wake = state.terms.changes == 0 && state.terms.seen > state.terms.durable;
            let client = &mut state.clients[job.client];
            client.changes -= 1;
            if client.life != job.life {
                client.old_changes -= 1;
                may_wake |= client.old_changes == 0;
            }
        }
        state.answer(job, packets);
        drop(state);
        if may_wake {
            self.wake_all();
        }
    }

    /// The packet that says that a job has failed.
    pub fn failure(&self, job: &Job, error: StorageError) -> Bytes {
        let reply = Reply {
            session: self.session,
            id: job.id,
            body: Body::Failed(Failure::from(error)),
        };
        reply.packet()
    }

    fn too_old(&self, job: &Job, seen: u64) -> Bytes {
        let reason = format!(
            "term {} is over, node '{}' has seen term {seen}: another node holds the catalog now",
            job.term, self.name
        );
        self.failure(
            job,
            StorageError::ReadOnly {
                path: Default::default(),
                reason,
            },
        )
    }
}

impl State {
    /// What becomes of the first job of a node.
    fn next(&mut self, client: usize, card: usize, class: Class) -> Next {
        let Self { clients, terms, .. } = self;
        let client = &mut clients[client];
        let waiting = &mut client.waiting[card][class as usize];
        // What it gave up may still reach the card; nothing may overtake it.
        let Some(job) = waiting.front().filter(|_| client.old_changes == 0) else {
            return Next::Later;
        };
        let is_new = job.has_term() && job.term > terms.durable;
        let is_over = job.has_term() && job.term < terms.seen;
        if !is_over && is_new && (terms.is_being_stored || terms.changes > 0) {
            return Next::Later;
        }
        match waiting.pop_front() {
            None => Next::Later,
            Some(job) if is_over => Next::Refuse(job),
            Some(job) if is_new => {
                terms.is_being_stored = true;
                Next::Store(job)
            }
            Some(job) => {
                if job.kind.is_change() {
                    terms.changes += 1;
                    client.changes += 1;
                }
                Next::Run(job)
            }
        }
    }

    /// A job was taken and is not begun.
    fn put_back(&mut self, job: Job) {
        let (client, card, class) = (job.client, job.card, job.class() as usize);
        if self.clients[client].life != job.life {
            return;
        }
        let waiting = &mut self.clients[client].waiting[card][class];
        let turns = &mut self.turns[card][class];
        waiting.push_front(job);
        turns.retain(|&one| one != client);
        turns.push_front(client);
    }

    fn answer(&mut self, job: &Job, packets: Vec<Bytes>) {
        let client = &mut self.clients[job.client];
        if client.life != job.life {
            return;
        }
        let count = packets.len();
        for (index, packet) in packets.into_iter().enumerate() {
            let is_last = index + 1 == count;
            client.answer(packet, if is_last { job.cost() } else { 0 });
        }
    }
}

//! A card of another node as a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flashmesh_pages::flash::{
    Completion, Flash, FlashHealth, FlashOp, FlashPage, FlashQueue, Geometry, PAGE_SIZE_BYTES,
    PageBuffer, Tag, check_op,
};
use flashmesh_pages::store::CardId;
use flashmesh_pages::{Result, StorageError};
use parking_lot::Mutex;

use super::super::wire::{Description, Kind, Request};
use super::super::{Node, READING};
use super::{Answer, Durability, Ended, Inbox, Op};

/// Operations in flight of a queue.
const QUEUE_DEPTH: usize = 128;

/// Numbers of queues, of all cards and nodes of this process.
static LANES: AtomicU64 = AtomicU64::new(0);

/// A card of another node, or of this one by way of the mesh:
/// [`Cards::open`](crate::cards::Cards::open).
///
/// Its methods and those of its queues block, and need no runtime: they are for threads, not for
/// tasks. What it was asked for while its node is away fails with [`StorageError::Io`], which names
/// the node; when the node is back all goes on.
///
/// A sync fails, and so does each later one of this object, once the node has restarted behind a
/// write or an erase that was not synced, or once it is unknown what became of one: only a new
/// [`RemoteCard`], whose user has looked at what is there, begins anew. One that was
/// [opened once](crate::cards::Cards::open_once) fails all once its node has restarted, with an error
/// of the kind [`ConnectionAborted`](std::io::ErrorKind::ConnectionAborted).
#[derive(Debug)]
pub struct RemoteCard {
    remote: Arc<Remote>,
}

#[derive(Debug)]
struct Remote {
    node: Arc<Node>,
    /// The node that has it, by its position.
    peer: usize,
    card: CardId,
    term: u64,
    /// The one life of the node in which it can be used; 0: any.
    session: u64,
    name: Arc<str>,
    description: Description,
    durability: Arc<Durability>,
    /// Held while syncing, so that no sync ends well beside one that fails.
    syncing: Mutex<()>,
}

impl Remote {
    fn op(&self, kind: Kind, first: u64, pages: usize) -> Op {
        Op {
            lane: 0,
            tag: Tag(0),
            request: Request {
                kind,
                card: self.card.0,
                epoch: 0,
                id: 0,
                first,
                term: self.term,
                session: self.session,
                shape: self.description.shape(),
                pages: pages as u16,
                offset: 0,
            },
            buffers: Vec::new(),
            inbox: Arc::default(),
            card: self.name.clone(),
            durability: self.durability.clone(),
        }
    }

    /// Asks, and waits for the answer; in a session, where that is one.
    fn call(&self, kind: Kind, session: Option<u64>) -> Result<Answer> {
        let mut op = self.op(kind, 0, 0);
        op.lane = LANES.fetch_add(1, Ordering::Relaxed);
        op.request.session = session.unwrap_or(self.session);
        let inbox = op.inbox.clone();
        self.submit(op);
        let ended = inbox.take(1).pop();
        ended.map_or_else(|| Err(self.wrong_answer()), |ended| ended.outcome)
    }

    fn submit(&self, op: Op) {
        self.node.peers[self.peer].submit(op);
        self.node.send_now(self.peer);
    }

    fn wrong_answer(&self) -> StorageError {
        let source = std::io::Error::other("the node answers something else");
        StorageError::io(&*self.name, source)
    }
}

impl RemoteCard {
    /// Asks for the card; for this life of the node alone, if `once`.
    pub(in crate::cards) fn open(
        node: &Arc<Node>,
        peer: usize,
        card: CardId,
        term: u64,
        once: bool,
    ) -> Result<Self> {
        let nothing = Description {
            geometry: Geometry {
                pages_per_erase_block: 0,
                erase_blocks: 0,
            },
            continues_blocks: false,
            pages_max: 0,
        };
        let mut remote = Remote {
            node: node.clone(),
            peer,
            card,
            term,
            session: 0,
            name: Self::name_of(node, peer, card).into(),
            description: nothing,
            durability: Arc::default(),
            syncing: Mutex::default(),
        };
        match remote.call(Kind::Describe, None)? {
            Answer::Card(description, session) => {
                remote.description = description;
                if once {
                    remote.session = session;
                }
            }
            _ => return Err(remote.wrong_answer()),
        }
        Ok(Self {
            remote: Arc::new(remote),
        })
    }

    pub(super) fn name_of(node: &Node, peer: usize, card: CardId) -> String {
        format!("{} card {}", node.name_of(peer), card.0 & !READING)
    }

    /// The term that its writes, erases and syncs carry.
    pub fn term(&self) -> u64 {
        self.remote.term
    }
}

impl Flash for RemoteCard {
    fn name(&self) -> String {
        self.remote.name.to_string()
    }

    fn geometry(&self) -> Geometry {
        self.remote.description.geometry
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        match self.remote.call(Kind::UsedBlocks, None)? {
            Answer::UsedBlocks(blocks) => Ok(blocks),
            _ => Err(self.remote.wrong_answer()),
        }
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        Ok(Box::new(RemoteQueue {
            remote: self.remote.clone(),
            inbox: Arc::default(),
            lane: LANES.fetch_add(1, Ordering::Relaxed),
            in_flight: 0,
        }))
    }

    fn sync(&self) -> Result<()> {
        let durability = &self.remote.durability;
        let failed = |why: String| {
            let source = std::io::Error::other(why);
            StorageError::io(format!("syncing {}", self.remote.name), source)
        };
        let _alone = self.remote.syncing.lock();
        let session = durability.begin_sync().map_err(failed)?;
        let synced = self.remote.call(Kind::Sync, session);
        if let (Some(_), Err(error)) = (session, &synced) {
            durability.lost(&error.to_string());
        }
        synced.map(|_| ())
    }

    fn continues_blocks(&self) -> bool {
        self.remote.description.continues_blocks
    }

    /// `None`, too, where the node is away.
    fn health(&self) -> Option<FlashHealth> {
        match self.remote.call(Kind::Health, None) {
            Ok(Answer::Health(health)) => health,
            _ => None,
        }
    }
}

#[derive(Debug)]
struct RemoteQueue {
    remote: Arc<Remote>,
    inbox: Arc<Inbox>,
    lane: u64,
    in_flight: usize,
}

impl FlashQueue for RemoteQueue {
    fn depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn max_pages_per_op(&self) -> usize {
        self.remote.description.pages_max.into()
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        check_op(self, &op, self.remote.description.geometry)?;
        let (kind, tag, FlashPage(first), buffers) = match op {
            FlashOp::Read {
                tag,
                first,
                buffers,
            } => (Kind::Read, tag, first, buffers),
            FlashOp::Write {
                tag,
                first,
                buffers,
            } => (Kind::Write, tag, first, buffers),
            FlashOp::Erase { tag, first } => (Kind::Erase, tag, first, Vec::new()),
        };
        let op = self.remote.op(kind, first, buffers.len());
        self.in_flight += 1;
        self.remote.submit(Op {
            lane: self.lane,
            tag,
            buffers,
            inbox: self.inbox.clone(),
            ..op
        });
        Ok(())
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let ended = self.inbox.take(min.min(self.in_flight));
        self.in_flight -= ended.len();
        completions.extend(ended.into_iter().map(complete));
        Ok(())
    }

    fn cancel_reads(&mut self) {
        self.remote.node.peers[self.remote.peer].cancel_reads(self.lane);
    }
}

impl Drop for RemoteQueue {
    fn drop(&mut self) {
        self.inbox.take(self.in_flight);
    }
}

/// The end of an operation, with what was read in its buffers.
fn complete(ended: Ended) -> Completion {
    let Ended {
        tag,
        mut buffers,
        outcome,
    } = ended;
    let result = outcome.map(|answer| {
        if let Answer::Pages(parts) = answer {
            let pages = parts
                .iter()
                .flat_map(|part| part.chunks_exact(PAGE_SIZE_BYTES));
            let copy = |(buffer, page): (&mut PageBuffer, &[u8])| buffer.copy_from_slice(page);
            buffers.iter_mut().zip(pages).for_each(copy);
        }
    });
    Completion {
        tag,
        buffers,
        result,
    }
}

//! Copies of cards on several nodes: where they are, and the head's part in keeping them alike.
//!
//! A card of a node has copies on the nodes behind that in the order of their numbers, the last
//! followed by the first (chained declustering; Hsiao and DeWitt, "Chained Declustering", ICDE 1990):
//! when a node is away, the next one does its work. A copy is a card like others at its node, under a
//! [number](copy_number) of its own. What [`MirroredFlash`] makes of them is the card that the store
//! knows.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use flashmesh_pages::flash::{CopyLedger, CopySource, Flash, MirroredFlash};
use flashmesh_pages::store::{CardId, NodeId};
use flashmesh_pages::{Result, StorageError};
use parking_lot::{Condvar, Mutex};

use crate::cards::Cards;
use crate::sealed::{Body, SealedFile};

/// How often copies that are away are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Bits of a card's number within its node, as page addresses have it.
const CARD_BITS: u32 = 4;
const MAGIC: &[u8; 8] = b"FMCOPY\0\x01";

/// The number under which a node serves its copy of another node's card: behind those of its own.
pub fn copy_number(node: NodeId, card: CardId) -> CardId {
    CardId((node.0 + 1) << CARD_BITS | card.0)
}

/// The nodes that have a node's cards, that one first, of all `nodes` of a rack.
pub fn holders(nodes: &[NodeId], node: NodeId, replicas: u16) -> Vec<NodeId> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    let at = nodes.iter().position(|one| *one == node).unwrap_or(0);
    nodes.rotate_left(at);
    nodes.truncate(replicas.max(1).into());
    nodes
}

/// A copy: of which card of which node, and at which node.
type Place = (NodeId, CardId, NodeId);

/// The copies that lack something, in a file of the head or of the catalog's group.
#[derive(Debug)]
pub struct CopyFile {
    file: Box<dyn Body>,
    behind: Mutex<BTreeSet<Place>>,
}

impl CopyFile {
    /// In `path`, beside the catalog. The file is made when it has something to say.
    ///
    /// # Errors
    /// `Io`, and `Corrupt` for a file that is damaged.
    pub fn open(path: impl Into<PathBuf>) -> Result<Arc<Self>> {
        Self::of(Box::new(SealedFile::new(path, MAGIC)))
    }

    /// As `file` has it.
    ///
    /// # Errors
    /// Those of `file`, and `Corrupt` for what is damaged.
    pub(crate) fn of(file: Box<dyn Body>) -> Result<Arc<Self>> {
        let body = file.load()?.unwrap_or_default();
        let (places, rest) = body.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(file.damaged());
        }
        let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
        let place = |bytes: &[u8; 6]| {
            let card = CardId(number(&bytes[2..]));
            (NodeId(number(bytes)), card, NodeId(number(&bytes[4..])))
        };
        let behind = Mutex::new(places.iter().map(place).collect());
        Ok(Arc::new(Self { file, behind }))
    }

    fn set(&self, place: Place, is_behind: bool) -> Result<()> {
        let mut behind = self.behind.lock();
        let mut now = behind.clone();
        let is_news = match is_behind {
            true => now.insert(place),
            false => now.remove(&place),
        };
        if is_news {
            let bytes = |(node, card, at): &Place| [node.0, card.0, at.0].map(u16::to_le_bytes);
            let body: Vec<u8> = now.iter().flat_map(bytes).flatten().collect();
            self.file.store(&body)?;
            *behind = now;
        }
        Ok(())
    }
}

/// What the file of a head says.
///
/// # Errors
/// `Io`, and `Corrupt` for a file that is damaged.
pub(crate) fn behind_in_file(path: &Path) -> Result<Vec<u8>> {
    Ok(SealedFile::new(path, MAGIC).load()?.unwrap_or_default())
}

/// What the file says of one card.
#[derive(Debug)]
struct OfCard {
    file: Arc<CopyFile>,
    node: NodeId,
    card: CardId,
    holders: Vec<NodeId>,
}

impl CopyLedger for OfCard {
    fn is_behind(&self, copy: usize) -> bool {
        let place = (self.node, self.card, self.holders[copy]);
        self.file.behind.lock().contains(&place)
    }

    fn set_behind(&self, copy: usize, is_behind: bool) -> Result<()> {
        let place = (self.node, self.card, self.holders[copy]);
        self.file.set(place, is_behind)
    }
}

/// A copy at this node.
#[derive(Debug)]
struct Here(Arc<dyn Flash>);

impl CopySource for Here {
    fn name(&self) -> String {
        self.0.name()
    }

    fn open(&self) -> Result<Arc<dyn Flash>> {
        Ok(Arc::clone(&self.0))
    }
}

/// A copy at another node.
#[derive(Debug)]
struct Elsewhere {
    cards: Arc<Cards>,
    node: NodeId,
    number: CardId,
    term: u64,
    name: String,
}

impl CopySource for Elsewhere {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self) -> Result<Arc<dyn Flash>> {
        let card = self.cards.open_once(self.node, self.number, self.term);
        Ok(Arc::new(card.map_err(|error| match error {
            // A node that was started with another rack file has none of it: it is as good as away.
            StorageError::Invalid(why) => {
                StorageError::io(&*self.name, io::Error::new(io::ErrorKind::NotFound, why))
            }
            error => error,
        })?))
    }
}

/// A copy of a card, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RackCopy {
    /// The card, by its node and its number there.
    pub card: (NodeId, CardId),
    /// Who has the copy.
    pub holder: NodeId,
    /// Whether that node can be reached.
    pub is_there: bool,
    /// Whether it lacks something.
    pub is_behind: bool,
}

/// What copies are made from.
pub(crate) struct Places<'a> {
    pub nodes: &'a [NodeId],
    pub replicas: u16,
    pub own: NodeId,
    /// Cards and copies at this node.
    pub here: BTreeMap<(NodeId, CardId), Arc<dyn Flash>>,
    pub cards: &'a Arc<Cards>,
    pub term: u64,
    pub file: &'a Arc<CopyFile>,
}

/// A card with its copies.
#[derive(Debug)]
struct Mirror {
    card: (NodeId, CardId),
    holders: Vec<NodeId>,
    flash: Arc<MirroredFlash>,
}

/// The cards of a rack whose pages are on several nodes each, and a thread that looks after the copies.
/// Dropping it ends that.
#[derive(Debug)]
pub struct Copies {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    own: NodeId,
    mirrors: Vec<Mirror>,
    is_closed: Mutex<bool>,
    closed: Condvar,
}

impl Places<'_> {
    fn source(&self, holder: NodeId, node: NodeId, card: CardId) -> Result<Arc<dyn CopySource>> {
        if holder == self.own {
            let here = self.here.get(&(node, card)).ok_or_else(|| {
                StorageError::Invalid(format!(
                    "node {} is to have a copy of card {} of node {}, and was given none",
                    holder.0, card.0, node.0
                ))
            })?;
            return Ok(Arc::new(Here(Arc::clone(here))));
        }
        let is_copy = holder != node;
        Ok(Arc::new(Elsewhere {
            cards: Arc::clone(self.cards),
            node: holder,
            number: if is_copy {
                copy_number(node, card)
            } else {
                card
            },
            term: self.term,
            name: match is_copy {
                true => format!(
                    "the copy on node {} of card {} of node {}",
                    holder.0, card.0, node.0
                ),
                false => format!("card {} of node {}", card.0, node.0),
            },
        }))
    }
}

impl Copies {
    /// Opens these cards, each with its copies.
    ///
    /// # Errors
    /// Those of [`MirroredFlash::open`]; `Invalid` where a copy that should be here is missing.
    pub(crate) fn open(places: &Places<'_>, cards: &[(NodeId, CardId)]) -> Result<Self> {
        let open = |&(node, card): &(NodeId, CardId)| {
            let holders = holders(places.nodes, node, places.replicas);
            let sources = holders
                .iter()
                .map(|holder| places.source(*holder, node, card))
                .collect::<Result<_>>()?;
            let ledger = Arc::new(OfCard {
                file: Arc::clone(places.file),
                node,
                card,
                holders: holders.clone(),
            });
            Ok(Mirror {
                card: (node, card),
                holders,
                flash: Arc::new(MirroredFlash::open(sources, ledger)?),
            })
        };
        let shared = Arc::new(Shared {
            own: places.own,
            mirrors: cards.iter().map(open).collect::<Result<_>>()?,
            is_closed: Mutex::new(false),
            closed: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("copies".into());
        let thread = thread.spawn(move || of_thread.look_after());
        Ok(Self {
            shared,
            thread: Some(thread.map_err(|e| StorageError::io("starting a thread", e))?),
        })
    }

    /// A card by whose it is.
    pub(crate) fn card(&self, node: NodeId, card: CardId) -> Option<Arc<dyn Flash>> {
        let mut mirrors = self.shared.mirrors.iter();
        let found = mirrors.find(|mirror| mirror.card == (node, card))?;
        Some(Arc::clone(&found.flash) as _)
    }

    /// Each copy of each card.
    pub fn statuses(&self) -> Vec<RackCopy> {
        let of_mirror = |mirror: &Mirror| {
            let copies = mirror.flash.copies().into_iter().zip(&mirror.holders);
            let copy = |(status, holder): (flashmesh_pages::flash::CopyStatus, &NodeId)| RackCopy {
                card: mirror.card,
                holder: *holder,
                is_there: status.is_there,
                is_behind: status.is_behind,
            };
            copies.map(copy).collect::<Vec<_>>()
        };
        self.shared.mirrors.iter().flat_map(of_mirror).collect()
    }

    pub(crate) fn view(&self) -> CopyView {
        CopyView(Arc::clone(&self.shared))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        *self.shared.is_closed.lock() = true;
        self.shared.closed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

/// Which copies can be used, for whoever sends commands.
#[derive(Debug, Clone)]
pub(crate) struct CopyView(Arc<Shared>);

impl CopyView {
    /// The first node that has all of a node's cards whole; `None` where that is this one, or there is
    /// none.
    pub fn holder(&self, node: NodeId) -> Option<NodeId> {
        let mut mirrors = self.0.mirrors.iter();
        let of_node = mirrors.by_ref().filter(|mirror| mirror.card.0 == node);
        let mut whole: Option<Vec<NodeId>> = None;
        for mirror in of_node {
            let copies = mirror.flash.copies().into_iter().zip(&mirror.holders);
            let usable = copies.filter(|(copy, _)| copy.is_there && !copy.is_behind);
            let usable: Vec<_> = usable.map(|(_, holder)| *holder).collect();
            match &mut whole {
                Some(whole) => whole.retain(|holder| usable.contains(holder)),
                none => *none = Some(usable),
            }
        }
        let first = whole?.first().copied();
        first.filter(|holder| *holder != self.0.own)
    }

    /// A node does not answer: its copies are not used until it is found again.
    pub fn suspect(&self, node: NodeId) {
        for mirror in &self.0.mirrors {
            for (copy, holder) in mirror.holders.iter().enumerate() {
                if *holder == node {
                    mirror.flash.suspect(copy);
                }
            }
        }
    }
}

impl Shared {
    /// Looks for copies that are away and brings them up to the others, until it is closed.
    fn look_after(&self) {
        loop {
            for mirror in &self.mirrors {
                if *self.is_closed.lock() {
                    return;
                }
                if let Err(error) = mirror.flash.tend() {
                    let (node, card) = mirror.card;
                    log::warn!("copies of card {} of node {}: {error}", card.0, node.0);
                }
            }
            let mut is_closed = self.is_closed.lock();
            if !*is_closed {
                self.closed.wait_for(&mut is_closed, LOOK_EVERY);
            }
            if *is_closed {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_on_the_nodes_behind() {
        let nodes: Vec<_> = [4, 0, 9].map(NodeId).into();
        let of = |node, replicas| {
            let holders = holders(&nodes, NodeId(node), replicas);
            holders.into_iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(of(0, 1), [0]);
        assert_eq!(of(4, 2), [4, 9]);
        assert_eq!(of(9, 3), [9, 0, 4]);
        assert_eq!(of(9, 7), [9, 0, 4]);
        // No copy has the number of a card.
        assert_eq!(copy_number(NodeId(0), CardId(15)).0, 31);
        assert_eq!(copy_number(NodeId(1023), CardId(15)).0, 16_399);
    }

    #[test]
    fn what_is_behind_is_there_after_reopening_and_damage_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copies");
        let place = |n: u16| (NodeId(n), CardId(n % 3), NodeId(n + 1));
        let file = CopyFile::open(&path).unwrap();
        file.set(place(1), false).unwrap();
        assert!(!path.exists());
        for n in [1, 7, 1000] {
            file.set(place(n), true).unwrap();
        }
        file.set(place(7), false).unwrap();
        let found = CopyFile::open(&path).unwrap().behind.lock().clone();
        assert_eq!(found, BTreeSet::from([place(1), place(1000)]));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            let error = CopyFile::open(&path).unwrap_err().to_string();
            assert!(error.contains("copies"), "{error}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(CopyFile::open(&path).is_err());
        }
    }
}

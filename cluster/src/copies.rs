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
use crate::rack::holders;
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

/// A copy: of which card of which node, and at which node.
type Place = (NodeId, CardId, NodeId);

/// Which copies there are, and which of them lack something, in a file of the head or of the catalog's
/// group.
///
/// Its body is places of six bytes: card's node, card, holder's node. A place whose node has the bit
/// [`IS_KNOWN`] is a copy that there is, the others lack something. A file from before there was such a
/// bit names only those that do.
#[derive(Debug)]
pub struct CopyFile {
    file: Box<dyn Body>,
    said: Mutex<Said>,
}

/// No node has so high a number.
const IS_KNOWN: u16 = 1 << 15;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Said {
    known: BTreeSet<Place>,
    behind: BTreeSet<Place>,
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
        let mut said = Said::default();
        for (node, card, at) in places.iter().map(place) {
            match node.0 & IS_KNOWN {
                0 => said.behind.insert((node, card, at)),
                _ => said.known.insert((NodeId(node.0 & !IS_KNOWN), card, at)),
            };
        }
        let said = Mutex::new(said);
        Ok(Arc::new(Self { file, said }))
    }

    /// Says, where `path` is such a file, that of these cards there is no copy beside themselves: those
    /// that there were are old ones when there are copies again.
    ///
    /// # Errors
    /// As [`CopyFile::open`]; `Invalid` where one of the cards lacks pages.
    pub fn without_copies(path: &Path, cards: &[(NodeId, CardId)]) -> Result<()> {
        if !path.exists() {
            return Ok(());
        }
        let places = cards.iter().map(|&(node, card)| (node, card, node));
        Self::open(path)?.expect(&places.collect())
    }

    fn set(&self, place: Place, is_behind: bool) -> Result<()> {
        self.change(|said| {
            match is_behind {
                true => said.behind.insert(place),
                false => said.behind.remove(&place),
            };
            Ok(())
        })
    }

    /// Says which copies there are by the rack file. One that was not among those of its card before is
    /// behind: its node holds nothing, or what it held when it was the last time. Cards that the rack
    /// file has not are remembered as they were.
    ///
    /// # Errors
    /// `Invalid`, and nothing is changed, where no copy of a card would be left that lacks nothing;
    /// `Io`.
    fn expect(&self, places: &BTreeSet<Place>) -> Result<()> {
        self.change(|said| {
            let of_card = |places: &BTreeSet<Place>, &(node, card, _): &Place| {
                let last = NodeId(u16::MAX);
                let first = NodeId(0);
                let places = places.range((node, card, first)..=(node, card, last));
                places.copied().collect::<BTreeSet<_>>()
            };
            for place in places.iter().filter(|(node, _, at)| node == at) {
                let (now, before) = (of_card(places, place), of_card(&said.known, place));
                let left: Vec<_> = before.difference(&now).copied().collect();
                let whole_left = left.iter().find(|place| !said.behind.contains(place)).copied();
                if !before.is_empty() {
                    said.behind.extend(now.difference(&before));
                }
                for place in left {
                    said.known.remove(&place);
                    said.behind.remove(&place);
                }
                if let Some(whole) = whole_left
                    && now.iter().all(|place| said.behind.contains(place))
                {
                    return Err(StorageError::Invalid(format!(
                        "card {} of node {} would be on no node that has all of it: by the rack file node {} \
                         is to have no copy of it any more, and the others lack pages; use the rack file \
                         of before until `flashmesh rack status` shows no replica that is behind",
                        place.1.0, place.0.0, whole.2.0
                    )));
                }
                said.known.extend(now);
            }
            Ok(())
        })
    }

    /// Makes a change durable, then known.
    fn change(&self, change: impl FnOnce(&mut Said) -> Result<()>) -> Result<()> {
        let mut said = self.said.lock();
        let mut now = said.clone();
        change(&mut now)?;
        if now != *said {
            let known = |(node, card, at): &Place| (NodeId(node.0 | IS_KNOWN), *card, *at);
            let places = now
                .behind
                .iter()
                .copied()
                .chain(now.known.iter().map(known));
            let bytes = |(node, card, at): Place| [node.0, card.0, at.0].map(u16::to_le_bytes);
            let body: Vec<u8> = places.flat_map(bytes).flatten().collect();
            self.file.store(&body)?;
            *said = now;
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
        self.file.said.lock().behind.contains(&place)
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

/// The cards of a rack whose pages are on several nodes each, and the threads that look after the copies.
/// Dropping it ends that.
#[derive(Debug)]
pub struct Copies {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
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
    /// Opens these cards, each with its copies. Nobody [looks after](Self::look_after) them yet.
    ///
    /// # Errors
    /// Those of [`MirroredFlash::open`]; `Invalid` where a copy that should be here is missing.
    pub(crate) fn open(places: &Places<'_>, cards: &[(NodeId, CardId)]) -> Result<Self> {
        let holders = |node| holders(places.nodes, node, places.replicas);
        let expected = cards.iter().flat_map(|&(node, card)| {
            let holders = holders(node).into_iter();
            holders.map(move |holder| (node, card, holder))
        });
        places.file.expect(&expected.collect())?;
        let open = |&(node, card): &(NodeId, CardId)| {
            let holders = holders(node);
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
        Ok(Self {
            shared,
            threads: Mutex::default(),
        })
    }

    /// From now on, copies that are away are looked for, and brought up to the others: when the database is
    /// open, which has looked at whether a copy holds what it should. Each on a thread of its own: a card is
    /// copied for hours, and that of a node that was away for seconds is to be used again soon.
    ///
    /// # Errors
    /// `Io` when no thread can be started.
    pub(crate) fn look_after(&self) -> Result<()> {
        let mut threads = self.threads.lock();
        if !threads.is_empty() {
            return Ok(());
        }
        threads.push(self.start("copies", |flash| flash.look())?);
        threads.push(self.start("copying", |flash| flash.catch_up().map(drop))?);
        Ok(())
    }

    fn start(&self, name: &str, task: fn(&MirroredFlash) -> Result<()>) -> Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || shared.tend(task));
        thread.map_err(|e| StorageError::io("starting a thread", e))
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

    /// See [`MirroredFlash::ask`].
    pub(crate) fn ask(&self) {
        let mirrors = self.shared.mirrors.iter();
        mirrors.for_each(|mirror| mirror.flash.ask());
    }

    /// See [`MirroredFlash::close`].
    pub(crate) fn close(&self) {
        let mirrors = self.shared.mirrors.iter();
        mirrors.for_each(|mirror| mirror.flash.close());
    }

    pub(crate) fn view(&self) -> CopyView {
        CopyView(Arc::clone(&self.shared))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        *self.shared.is_closed.lock() = true;
        self.shared.closed.notify_all();
        for thread in self.threads.get_mut().drain(..) {
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

    /// Whether all copies are there, and lack nothing.
    pub fn are_whole(&self) -> bool {
        let copies = self
            .0
            .mirrors
            .iter()
            .flat_map(|mirror| mirror.flash.copies());
        { copies }.all(|copy| copy.is_there && !copy.is_behind)
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
    /// Does this with the copies of each card, again and again, until it is closed.
    fn tend(&self, task: impl Fn(&MirroredFlash) -> Result<()>) {
        loop {
            for mirror in &self.mirrors {
                if *self.is_closed.lock() {
                    return;
                }
                if let Err(error) = task(&mirror.flash) {
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
    use std::sync::mpsc;

    use flashmesh_pages::flash::{FlashOp, FlashPage, Geometry, MemoryFlash, PageBuffer, Tag};
    use flashmesh_storage::peer::Peers;

    use super::*;
    use crate::Rack;
    use crate::commands::MeshPeers;
    use crate::mesh::Mesh;

    /// No copy has the number of a card.
    #[test]
    fn copies_have_numbers_of_their_own() {
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
        let found = |path| CopyFile::open(path).unwrap().said.lock().clone();
        assert_eq!(found(&path).behind, BTreeSet::from([place(1), place(1000)]));
        file.expect(&BTreeSet::from([(NodeId(1023), CardId(15), NodeId(1023))]))
            .unwrap();
        let said = found(&path);
        assert_eq!(said, *file.said.lock());
        assert_eq!((said.behind.len(), said.known.len()), (2, 1));
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

    /// A ledger whose commits end when the test lets them.
    #[derive(Debug)]
    struct Slow {
        begun: mpsc::Sender<()>,
        may_end: Mutex<mpsc::Receiver<()>>,
    }

    impl CopyLedger for Slow {
        fn is_behind(&self, _: usize) -> bool {
            false
        }

        fn set_behind(&self, _: usize, _: bool) -> Result<()> {
            let _ = self.begun.send(());
            let _ = self.may_end.lock().recv();
            Ok(())
        }
    }

    /// The group commits over the threads of the mesh what a node that does not answer means for copies:
    /// whoever asked that node may not hold up one of them.
    #[test]
    fn a_node_that_is_suspected_holds_up_no_thread_of_the_mesh() {
        let folder = tempfile::tempdir().unwrap();
        let at = |node: u16| folder.path().join(format!("{node}.sock"));
        let rack = Rack::parse(&format!(
            "[mesh]\ndeadline_ms = 100\nsilence_ms = 50\n\
             [[endpoint]]\nindex = 3\nname = 'streams'\nflow = 'end-to-end'\n\
             [[node]]\nid = 0\nname = 'n0'\naddress = 'unix://{}'\n\
             [[node.card]]\nid = 0\npath = '0'\n\
             [[node]]\nid = 1\nname = 'n1'\naddress = 'unix://{}'\n\
             [[node.card]]\nid = 0\npath = '1'\n\
             [[cable]]\nfrom = 'n0/0'\nto = 'n1/0'\n",
            at(0).display(),
            at(1).display()
        ));
        let rack = rack.unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mesh = runtime.spawn(async move { Mesh::start(&rack, NodeId(0)).await });
        let mesh = runtime.block_on(mesh).unwrap().unwrap();

        let geometry = Geometry {
            pages_per_erase_block: 8,
            erase_blocks: 4,
        };
        let copy = |seed| {
            let flash = MemoryFlash::new(geometry, seed);
            Arc::new(Here(Arc::new(flash))) as Arc<dyn CopySource>
        };
        let ((begun, has_begun), (let_end, may_end)) = (mpsc::channel(), mpsc::channel());
        let ledger = Slow {
            begun,
            may_end: Mutex::new(may_end),
        };
        let flash = MirroredFlash::open(vec![copy(1), copy(2)], Arc::new(ledger)).unwrap();
        // Not synced: what a node has of it that does not answer, nobody knows.
        let mut queue = flash.open_queue().unwrap();
        let write = FlashOp::Write {
            tag: Tag(0),
            first: FlashPage(0),
            buffers: vec![PageBuffer::recycled()],
        };
        queue.submit(write).unwrap();
        queue.wait(1, &mut Vec::new()).unwrap();
        drop(queue);
        let mirror = Mirror {
            card: (NodeId(1), CardId(0)),
            holders: vec![NodeId(1), NodeId(0)],
            flash: Arc::new(flash),
        };
        let shared = Arc::new(Shared {
            own: NodeId(0),
            mirrors: vec![mirror],
            is_closed: Mutex::new(false),
            closed: Condvar::new(),
        });

        let streams = mesh.streams("streams").unwrap();
        let peers = MeshPeers::new(&mesh, streams, [NodeId(1)], Some(CopyView(shared)));
        let mut answer = peers.send(NodeId(1), vec![1]).unwrap();
        let patience = Duration::from_secs(30);
        has_begun.recv_timeout(patience).unwrap();
        let (moved, has_moved) = mpsc::channel();
        runtime.spawn(async move { moved.send(()) });
        has_moved
            .recv_timeout(patience)
            .expect("the mesh's thread waits for the commit");
        let_end.send(()).unwrap();
        let frame = runtime.block_on(std::future::poll_fn(|cx| answer.poll_frame(cx.waker())));
        assert!(frame.unwrap_err().to_string().contains("asking node 1"));
        assert_eq!(peers.holder(NodeId(1)), None);
        runtime.block_on(mesh.close());
    }

    fn places(nodes: &[u16], replicas: u16) -> BTreeSet<Place> {
        let all: Vec<_> = nodes.iter().copied().map(NodeId).collect();
        let of = |node: NodeId| holders(&all, node, replicas).into_iter();
        let of = |node: &NodeId| {
            of(*node)
                .map(|at| (*node, CardId(0), at))
                .collect::<Vec<_>>()
        };
        all.iter().flat_map(of).collect()
    }

    /// A copy that comes back to a node which once had it is an old one.
    #[test]
    fn copies_that_were_elsewhere_meanwhile_are_behind() {
        let folder = tempfile::tempdir().unwrap();
        let file = CopyFile::open(folder.path().join("copies")).unwrap();
        let behind = || {
            let said = file.said.lock();
            let numbers = said.behind.iter().map(|(of, _, at)| (of.0, at.0));
            numbers.collect::<Vec<_>>()
        };
        file.expect(&places(&[0, 1, 2], 2)).unwrap();
        assert_eq!(behind(), []);
        // 2's copy goes from 0 to the new node, whose own card has nothing to lack.
        file.expect(&places(&[0, 1, 2, 3], 2)).unwrap();
        assert_eq!(behind(), [(2, 3)]);
        let of_third = (NodeId(2), CardId(0), NodeId(3));
        file.set(of_third, false).unwrap();
        file.expect(&places(&[0, 1, 2], 2)).unwrap();
        assert_eq!(behind(), [(2, 0)]);
        // What is remembered of 3's card is as it was: nobody wrote to it meanwhile.
        file.set((NodeId(2), CardId(0), NodeId(0)), false).unwrap();
        file.expect(&places(&[0, 1, 2, 3], 2)).unwrap();
        assert_eq!(behind(), [(2, 3)]);
        // Other numbers of copies.
        file.set(of_third, false).unwrap();
        file.expect(&places(&[0, 1, 2, 3], 3)).unwrap();
        assert_eq!(behind(), [(0, 2), (1, 3), (2, 0), (3, 1)]);
    }

    /// From two copies to one, and back.
    #[test]
    fn copies_of_before_there_were_none_are_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copies");
        let cards = [0, 1].map(|node| (NodeId(node), CardId(0)));
        CopyFile::without_copies(&path, &cards).unwrap();
        assert!(!path.exists());
        let file = CopyFile::open(&path).unwrap();
        file.expect(&places(&[0, 1], 2)).unwrap();
        CopyFile::without_copies(&path, &cards).unwrap();
        let file = CopyFile::open(&path).unwrap();
        file.expect(&places(&[0, 1], 2)).unwrap();
        let behind = file.said.lock().behind.clone();
        let of_others = [
            (NodeId(0), CardId(0), NodeId(1)),
            (NodeId(1), CardId(0), NodeId(0)),
        ];
        assert_eq!(behind, BTreeSet::from(of_others));
        assert!(CopyFile::without_copies(&path, &cards).is_ok());
        file.set((NodeId(1), CardId(0), NodeId(1)), true).unwrap();
        file.set((NodeId(1), CardId(0), NodeId(0)), false).unwrap();
        assert!(CopyFile::without_copies(&path, &cards).is_err());
    }

    #[test]
    fn a_rack_file_that_leaves_out_the_last_whole_copy_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = CopyFile::open(folder.path().join("copies")).unwrap();
        file.expect(&places(&[0, 1, 2], 2)).unwrap();
        file.set((NodeId(2), CardId(0), NodeId(2)), true).unwrap();
        let before = file.said.lock().clone();
        let refused = file
            .expect(&places(&[0, 1, 2, 3], 2))
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("card 0 of node 2") && refused.contains("node 0 is to have no copy")
        );
        assert_eq!(*file.said.lock(), before);
        file.set((NodeId(2), CardId(0), NodeId(2)), false).unwrap();
        file.expect(&places(&[0, 1, 2, 3], 2)).unwrap();
    }
}

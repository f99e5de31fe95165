//! The nodes of a rack that runs: the head has the catalog and answers queries, the others have
//! cards of its flash and run what the head pushes down to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flashmesh_pages::flash::Flash;
use flashmesh_pages::store::{CardId, NodeId, PageStore, StoreCard};
use flashmesh_storage::capability::CapabilityKey;
use flashmesh_storage::node::{RackSide, StorageNode};
use flashmesh_storage::table::CatalogStore;
use flashmesh_storage::{Result, StorageError};

use crate::cards::{CardOptions, Cards, LateCard, TermStore};
use crate::catalog::Office;
use crate::commands::{CommandServer, MeshPeers};
use crate::copies::{Copies, CopyFile, Places, RackCopy, copy_number};
use crate::mesh::{Mesh, Streams};

/// How long a head that starts asks a node which can't be reached, beyond what the mesh waits for a
/// link: neighbours dial again after a second at most. One that was elected was heard before.
const GREETING: Duration = Duration::from_secs(3);
/// How long it rests between.
const GREETING_REST: Duration = Duration::from_millis(50);

/// What a node that is not the head may take up.
#[derive(Debug, Clone, Copy)]
pub struct ServingOptions {
    /// Bound of its page cache.
    pub cache_bytes: u64,
    /// Threads of a command.
    pub threads: usize,
    /// Commands that run at once; those beyond wait.
    pub commands: usize,
}

/// What a node that is not the head has of a rack.
#[derive(Debug)]
pub struct ServingParts<'a> {
    /// Its number.
    pub node: NodeId,
    /// Its cards, and the copies that it has of cards of other nodes.
    pub cards: Vec<StoreCard>,
    /// All cards of the rack: pages of those that are not here are read from their nodes.
    pub all: Vec<(NodeId, CardId)>,
    /// Keeps who may write.
    pub terms: Arc<dyn TermStore>,
    /// The rack's.
    pub key: &'a [u8; 32],
}

/// A node that serves its cards to the others: their pages, and commands over them. Dropping it ends
/// that.
#[derive(Debug)]
pub struct ServingNode {
    storage: Arc<StorageNode>,
    commands: CommandServer,
    _cards: Cards,
}

impl ServingNode {
    /// Serves the cards of a node, and the copies that it has.
    ///
    /// # Errors
    /// `Invalid` where the rack file lacks what cards need; what the cards say.
    pub fn start(
        mesh: &Mesh,
        streams: &Streams,
        parts: ServingParts<'_>,
        options: ServingOptions,
    ) -> Result<Self> {
        let mut cards = parts.cards;
        let served = cards.iter().map(|card| {
            let number = match card.node == parts.node {
                true => card.card,
                false => copy_number(card.node, card.card),
            };
            (number, Arc::clone(&card.flash))
        });
        let served = served.collect();
        let served = Cards::start(mesh, served, parts.terms, &CardOptions::default())?;
        if let Some(first) = cards.first() {
            let block_pages = first.flash.geometry().pages_per_erase_block;
            let here: BTreeSet<_> = cards.iter().map(|card| (card.node, card.card)).collect();
            for (node, card) in parts.all {
                if !here.contains(&(node, card)) {
                    let flash = Arc::new(served.far(node, card, block_pages)?);
                    cards.push(StoreCard { node, card, flash });
                }
            }
        }
        // Which pages are live the head knows, who alone writes.
        let store = PageStore::open_cards(cards, options.cache_bytes, [])?;
        let node = StorageNode::serving(store, CapabilityKey::new(parts.key));
        let storage = Arc::clone(&node);
        let commands = CommandServer::start(mesh, streams, node, options.threads, options.commands);
        Ok(Self {
            storage,
            commands: commands.map_err(|error| StorageError::Invalid(error.to_string()))?,
            _cards: served,
        })
    }

    /// What runs Programs over what lies here.
    pub fn storage(&self) -> &Arc<StorageNode> {
        &self.storage
    }

    /// How many commands of the head run now.
    pub fn commands_running(&self) -> usize {
        self.commands.running()
    }
}

/// What a head is besides its database.
#[derive(Debug)]
pub struct HeadParts {
    /// Its number.
    pub node: NodeId,
    /// Its cards, that of its database first: where the rack has copies, else that one is opened with
    /// the database.
    pub cards: Vec<StoreCard>,
    /// Greater than that of any head before.
    pub term: u64,
    /// Where each card is on several nodes.
    pub copies: Option<CopyParts>,
}

/// What a head has to know of copies.
#[derive(Debug)]
pub struct CopyParts {
    /// On how many nodes each card is.
    pub replicas: u16,
    /// The copies that it has itself, by whose they are.
    pub held: Vec<StoreCard>,
    /// Which copies lack something.
    pub file: Arc<CopyFile>,
    /// The catalog, where a group keeps it.
    pub catalog: Option<Arc<Office>>,
}

/// The head's ways to the other nodes.
#[derive(Debug)]
pub struct Head {
    own: NodeId,
    nodes: Vec<NodeId>,
    streams: Streams,
    key: CapabilityKey,
    peers: Arc<MeshPeers>,
    home: Option<Arc<dyn Flash>>,
    catalog: Option<Arc<Office>>,
    cards: Vec<StoreCard>,
    copies: Option<Copies>,
    replicas: u16,
    reached: Arc<Cards>,
    opened: Arc<LateCard>,
}

impl Head {
    /// Opens the cards of the other nodes, which `others` lists, and has them read its own. Blocks until
    /// all of them have answered, or are found to be away: not for tasks.
    ///
    /// # Errors
    /// `Invalid` where the rack file lacks what cards need, or a node has no such card; `Io` where a
    /// node can't be reached, and no other has copies of its cards.
    pub fn connect(
        mesh: &Mesh,
        streams: &Streams,
        own: HeadParts,
        others: &[(NodeId, Vec<CardId>)],
        terms: Arc<dyn TermStore>,
        key: &[u8; 32],
    ) -> Result<Self> {
        let opened = Arc::new(LateCard::default());
        let mut served: BTreeMap<CardId, Arc<dyn Flash>> = BTreeMap::new();
        served.insert(CardId::default(), Arc::clone(&opened) as _);
        served.extend(
            own.cards
                .iter()
                .map(|card| (card.card, Arc::clone(&card.flash))),
        );
        let options = CardOptions {
            for_reading: true,
            ..CardOptions::default()
        };
        let reached = Cards::start(mesh, served.into_iter().collect(), terms, &options)?;
        let reached = Arc::new(reached);
        let places = others
            .iter()
            .flat_map(|(node, cards)| cards.iter().map(|card| (*node, *card)));
        let nodes = others.iter().map(|(node, _)| *node);
        let catalog = own.copies.as_ref().and_then(|own| own.catalog.clone());
        let patience = match catalog {
            Some(_) => Duration::ZERO,
            None => GREETING,
        };
        for (node, cards) in others {
            let greeted = cards
                .first()
                .map(|card| greet(&reached, *node, *card, own.term, patience));
            if let (Some(Err(error)), None) = (greeted, &own.copies) {
                return Err(error);
            }
        }
        let replicas = own.copies.as_ref().map_or(1, |own| own.replicas);
        let (mut home, mut cards, mut copies) = (None, own.cards, None);
        match own.copies {
            None => {
                for (node, card) in places {
                    let flash = Arc::new(reached.open(node, card, own.term)?);
                    cards.push(StoreCard { node, card, flash });
                }
            }
            Some(parts) => {
                let all: Vec<_> = nodes.clone().chain([own.node]).collect();
                let of_own = cards.iter().map(|card| (card.node, card.card));
                let wanted: Vec<_> = of_own.chain(places).collect();
                let here = cards.iter().chain(&parts.held);
                let here = here.map(|card| ((card.node, card.card), Arc::clone(&card.flash)));
                let places = Places {
                    nodes: &all,
                    replicas: parts.replicas,
                    own: own.node,
                    here: here.collect(),
                    cards: &reached,
                    term: own.term,
                    file: &parts.file,
                };
                let opened = Copies::open(&places, &wanted)?;
                let of_store = |&(node, card): &(NodeId, CardId)| {
                    let flash = opened.card(node, card)?;
                    Some(StoreCard { node, card, flash })
                };
                cards = wanted.iter().filter_map(of_store).collect();
                home = Some(cards.remove(0).flash);
                copies = Some(opened);
            }
        }
        let view = copies.as_ref().map(Copies::view);
        Ok(Self {
            own: own.node,
            nodes: nodes.clone().chain([own.node]).collect(),
            streams: streams.clone(),
            key: CapabilityKey::new(key),
            peers: Arc::new(MeshPeers::new(mesh, streams.clone(), nodes, view)),
            home,
            catalog,
            cards,
            copies,
            replicas,
            reached,
            opened,
        })
    }

    /// The head's own number.
    pub fn node(&self) -> NodeId {
        self.own
    }

    /// The numbers of all nodes, its own among them.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The streams to the others.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// The card of the head's database, where it has copies.
    pub fn home(&self) -> Option<Arc<dyn Flash>> {
        self.home.clone()
    }

    /// The database is open, with this card of its own: other nodes may read it from now on.
    pub fn has_opened(&self, card: Arc<dyn Flash>) {
        self.opened.set(card);
    }

    /// Where the catalog is, if a group keeps it.
    pub fn catalog(&self) -> Option<Arc<dyn CatalogStore>> {
        self.catalog.clone().map(|office| office as _)
    }

    /// All cards of the rack but that of the head's database.
    pub fn cards(&self) -> Vec<StoreCard> {
        self.cards.clone()
    }

    /// On how many nodes each page is.
    pub fn replicas(&self) -> u16 {
        self.replicas
    }

    /// Whether cards are on several nodes each.
    pub fn has_copies(&self) -> bool {
        self.copies.is_some()
    }

    /// Asks the other nodes whether the copies that they have are still there: one that has restarted may
    /// have lost them, and be used again only later. Blocks: not for tasks.
    pub fn ask_after_copies(&self) {
        if let Some(copies) = &self.copies {
            copies.ask();
        }
    }

    /// Each copy of each card; none where each is on one node alone.
    pub fn copies(&self) -> Vec<RackCopy> {
        self.copies.as_ref().map_or_else(Vec::new, Copies::statuses)
    }

    /// To be called when the database is open: from now on copies that are away are looked for, and brought
    /// up to the others.
    ///
    /// # Errors
    /// `Io` when no thread can be started.
    pub fn look_after_copies(&self) -> Result<()> {
        self.copies.as_ref().map_or(Ok(()), Copies::look_after)
    }

    /// Whether each card has a copy here or at a node that answers, and that lacks nothing. Blocks: not for
    /// tasks.
    pub fn reaches_all_cards(&self) -> bool {
        if !self.has_copies() {
            let mut cards = self.cards.iter();
            return cards.all(|card| card.flash.used_erase_blocks().is_ok());
        }
        let copies = self.copies();
        let is_whole = |copy: &&RackCopy| copy.is_there && !copy.is_behind;
        let whole: BTreeSet<_> = copies
            .iter()
            .filter(is_whole)
            .map(|copy| copy.card)
            .collect();
        copies.iter().all(|copy| whole.contains(&copy.card))
    }

    /// What the head's storage node has of the rack.
    pub fn side(&self) -> RackSide {
        RackSide {
            key: self.key.clone(),
            peers: Arc::clone(&self.peers) as _,
        }
    }
}

/// Asks a node for a card until it answers. The first answers of nodes that knew this one before its
/// restart may be lost.
fn greet(cards: &Cards, node: NodeId, card: CardId, term: u64, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    let mut asked = 0;
    loop {
        asked += 1;
        match cards.open(node, card, term) {
            Err(StorageError::Io { .. }) if asked < 2 || begun.elapsed() < patience => {
                thread::sleep(GREETING_REST);
            }
            answered => return answered.map(|_| ()),
        }
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        if let Some(copies) = &self.copies {
            copies.close();
        }
        // Who looks after copies may wait for a node that is away.
        self.reached.close();
    }
}

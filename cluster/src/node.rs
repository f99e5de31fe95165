//! The nodes of a rack that runs: the head has the catalog and answers queries, the others have
//! cards of its flash and run what the head pushes down to them.

use std::sync::Arc;

use flashmesh_pages::flash::Flash;
use flashmesh_pages::store::{CardId, NodeId, PageStore, StoreCard};
use flashmesh_storage::capability::CapabilityKey;
use flashmesh_storage::node::{RackSide, StorageNode};
use flashmesh_storage::{Result, StorageError};

use crate::cards::{CardOptions, Cards, TermStore};
use crate::commands::{CommandServer, MeshPeers};
use crate::mesh::{Mesh, Streams};

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

/// A node that serves its cards to the head: their pages, and commands over them. Dropping it ends
/// that.
#[derive(Debug)]
pub struct ServingNode {
    _commands: CommandServer,
    _cards: Cards,
}

impl ServingNode {
    /// Serves `cards`, those of node `own`. `key` is the rack's, and `terms` keeps who may write.
    ///
    /// # Errors
    /// `Invalid` where the rack file lacks what cards need; what the cards say.
    pub fn start(
        mesh: &Mesh,
        streams: &Streams,
        own: NodeId,
        cards: Vec<(CardId, Arc<dyn Flash>)>,
        terms: Arc<dyn TermStore>,
        key: &[u8; 32],
        options: ServingOptions,
    ) -> Result<Self> {
        let of_store = cards.iter().map(|(card, flash)| StoreCard {
            node: own,
            card: *card,
            flash: Arc::clone(flash),
        });
        // Which pages are live the head knows, who alone writes.
        let store = PageStore::open_cards(of_store.collect(), options.cache_bytes, [])?;
        let node = StorageNode::serving(store, CapabilityKey::new(key));
        let cards = Cards::start(mesh, cards, terms, &CardOptions::default())?;
        let commands = CommandServer::start(mesh, streams, node, options.threads, options.commands);
        Ok(Self {
            _commands: commands.map_err(|error| StorageError::Invalid(error.to_string()))?,
            _cards: cards,
        })
    }
}

/// What a head is besides its database and that one's card.
#[derive(Debug)]
pub struct HeadParts {
    /// Its number.
    pub node: NodeId,
    /// Its other cards.
    pub more_cards: Vec<StoreCard>,
    /// Greater than that of any head before.
    pub term: u64,
}

/// The head's ways to the other nodes.
#[derive(Debug)]
pub struct Head {
    own: NodeId,
    key: CapabilityKey,
    peers: Arc<MeshPeers>,
    cards: Vec<StoreCard>,
    /// Behind the cards that it reaches.
    _cards: Cards,
}

impl Head {
    /// Opens the cards of the other nodes, which `others` lists. Blocks until all of them have
    /// answered: not for tasks.
    ///
    /// # Errors
    /// `Invalid` where the rack file lacks what cards need, or a node has no such card; `Io` where a
    /// node can't be reached.
    pub fn connect(
        mesh: &Mesh,
        streams: &Streams,
        own: HeadParts,
        others: &[(NodeId, Vec<CardId>)],
        terms: Arc<dyn TermStore>,
        key: &[u8; 32],
    ) -> Result<Self> {
        let cards = Cards::start(mesh, Vec::new(), terms, &CardOptions::default())?;
        let places = others
            .iter()
            .flat_map(|(node, cards)| cards.iter().map(|card| (*node, *card)));
        let open = |(node, card)| {
            let flash = cards.open(node, card, own.term)?;
            Ok(StoreCard {
                node,
                card,
                flash: Arc::new(flash),
            })
        };
        let nodes = others.iter().map(|(node, _)| *node);
        let more = own.more_cards.into_iter().map(Ok);
        Ok(Self {
            own: own.node,
            key: CapabilityKey::new(key),
            peers: Arc::new(MeshPeers::new(mesh, streams.clone(), nodes)),
            cards: more.chain(places.map(open)).collect::<Result<_>>()?,
            _cards: cards,
        })
    }

    /// The head's own number.
    pub fn node(&self) -> NodeId {
        self.own
    }

    /// All cards of the rack but that of the head's database.
    pub fn cards(&self) -> Vec<StoreCard> {
        self.cards.clone()
    }

    /// What the head's storage node has of the rack.
    pub fn side(&self) -> RackSide {
        RackSide {
            key: self.key.clone(),
            peers: Arc::clone(&self.peers) as _,
        }
    }
}

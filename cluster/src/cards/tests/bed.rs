//! A rack of which each node can be stopped and started.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flashmesh_pages::Result;
use flashmesh_pages::flash::Flash;
use flashmesh_pages::store::{CardId, NodeId};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::super::{CardOptions, Cards, RemoteCard, TermStore};
use crate::Rack;
use crate::mesh::Mesh;

/// A term in memory, for nodes that are stopped and started.
#[derive(Debug, Default)]
pub(super) struct TermInMemory(pub AtomicU64);

impl TermStore for TermInMemory {
    fn load(&self) -> Result<u64> {
        Ok(self.0.load(Ordering::SeqCst))
    }

    fn store(&self, term: u64) -> Result<()> {
        self.0.store(term, Ordering::SeqCst);
        Ok(())
    }
}

pub(super) struct Bed {
    // In the order in which they are dropped.
    nodes: Vec<Option<(Cards, Mesh)>>,
    cards: Vec<Vec<Arc<dyn Flash>>>,
    pub terms: Vec<Arc<dyn TermStore>>,
    pub rack: Rack,
    pub options: CardOptions,
    runtime: Runtime,
    _folder: TempDir,
}

/// Waits for links no longer than a test likes to.
pub(super) const SHORT: &str = "[mesh]\ndeadline_ms = 150\nsilence_ms = 100\n";

impl Bed {
    /// A line of nodes, each with these cards; `bounds` is put in front of the rack file.
    pub fn line(cards: Vec<Vec<Arc<dyn Flash>>>, bounds: &str) -> Self {
        let mut bed = Self::stopped(cards, bounds);
        (0..bed.nodes.len()).for_each(|at| bed.start(at));
        bed
    }

    pub fn stopped(cards: Vec<Vec<Arc<dyn Flash>>>, bounds: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut text = format!(
            "{bounds}\n[[endpoint]]\nindex = 3\nname = 'pages'\nflow = 'end-to-end'\n\
             [[endpoint]]\nindex = 5\nname = 'other'\n"
        );
        for node in 0..cards.len() {
            let socket = folder.path().join(format!("{node}.sock"));
            let _ = write!(
                text,
                "[[node]]\nid = {node}\nname = 'n{node}'\naddress = 'unix://{}'\n\
                 [[node.card]]\nid = 0\npath = '{node}'\n",
                socket.display()
            );
        }
        for node in 1..cards.len() {
            let _ = write!(
                text,
                "[[cable]]\nfrom = 'n{}/1'\nto = 'n{node}/0'\n",
                node - 1
            );
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        Self {
            nodes: cards.iter().map(|_| None).collect(),
            terms: cards
                .iter()
                .map(|_| Arc::new(TermInMemory::default()) as _)
                .collect(),
            cards,
            rack: Rack::parse(&text).unwrap(),
            options: CardOptions {
                // No test waits for it but the one of it.
                answer_within: Some(Duration::from_secs(120)),
                ..CardOptions::default()
            },
            runtime: runtime.unwrap(),
            _folder: folder,
        }
    }

    /// The mesh of a node alone.
    pub fn mesh(&self, at: usize) -> Mesh {
        let node = NodeId(at as u16);
        let started = self.runtime.block_on(Mesh::start(&self.rack, node));
        started.unwrap()
    }

    pub fn start(&mut self, at: usize) {
        let mesh = self.mesh(at);
        let cards = self.cards[at].iter().cloned();
        let cards = (0..).map(CardId).zip(cards).collect();
        let terms = self.terms[at].clone();
        let cards = Cards::start(&mesh, cards, terms, &self.options).unwrap();
        self.nodes[at] = Some((cards, mesh));
    }

    pub fn stop(&mut self, at: usize) {
        if let Some((cards, mesh)) = self.nodes[at].take() {
            drop(cards);
            self.runtime.block_on(mesh.close());
        }
    }

    /// Puts other cards into a node that is stopped.
    pub fn replace(&mut self, at: usize, cards: Vec<Arc<dyn Flash>>) {
        self.cards[at] = cards;
    }

    pub fn cards(&self, at: usize) -> &Cards {
        &self.nodes[at].as_ref().unwrap().0
    }

    pub fn open(&self, at: usize, node: usize, card: u16, term: u64) -> Result<RemoteCard> {
        let node = NodeId(node as u16);
        self.cards(at).open(node, CardId(card), term)
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

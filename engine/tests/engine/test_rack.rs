//! A rack of several nodes in one process, which share nothing but the mesh. The tests of the whole system
//! have it, too.

use std::fmt::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flashmesh::{Engine, EngineOptions, NodeWorker, Session};
use flashmesh_cluster::Rack;
use flashmesh_cluster::cards::TermStore;
use flashmesh_cluster::copies::CopyFile;
use flashmesh_cluster::holders;
use flashmesh_cluster::mesh::Mesh;
use flashmesh_cluster::node::{
    CopyParts, Head, HeadParts, ServingNode, ServingOptions, ServingParts,
};
use flashmesh_storage::accelerator::sandbox::SandboxOptions;
use flashmesh_storage::flash::{Geometry, MemoryFlash};
use flashmesh_storage::store::{CardId, NodeId, StoreCard};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The key of racks.
pub const KEY: [u8; 32] = [7; 32];

#[derive(Debug, Default)]
struct TermInMemory(AtomicU64);

impl TermStore for TermInMemory {
    fn load(&self) -> flashmesh_storage::Result<u64> {
        Ok(self.0.load(Ordering::SeqCst))
    }

    fn store(&self, term: u64) -> flashmesh_storage::Result<()> {
        self.0.store(term, Ordering::SeqCst);
        Ok(())
    }
}

/// A rack whose first node is the head.
pub struct TestRack {
    // In the order in which they are dropped.
    engine: Option<Arc<Engine>>,
    /// The others; `None`: it has ended.
    pub nodes: Vec<Option<(Option<NodeWorker>, ServingNode, Mesh)>>,
    pub head: Arc<Head>,
    _mesh: Mesh,
    runtime: Option<Runtime>,
    _folder: TempDir,
}

/// A card of memory.
fn card(of: u16, at: u16) -> StoreCard {
    let geometry = Geometry {
        pages_per_erase_block: 256,
        erase_blocks: 4096,
    };
    StoreCard {
        node: NodeId(of),
        card: CardId(0),
        flash: Arc::new(MemoryFlash::new(
            geometry,
            (u64::from(of) << 16) + u64::from(at),
        )),
    }
}

impl TestRack {
    /// A rack of so many nodes in a line, whose cards are memory. May be called from a task.
    pub fn new(nodes: u16, options: EngineOptions) -> Self {
        Self::with_copies(nodes, 1, options)
    }

    /// The same, with each card on so many nodes.
    pub fn with_copies(nodes: u16, replicas: u16, options: EngineOptions) -> Self {
        let made = std::thread::spawn(move || Self::make(nodes, replicas, [KEY; 2], options));
        made.join().unwrap().unwrap()
    }

    /// The same, whose nodes run kernels within other limits than the head.
    pub fn with_kernels_of_nodes(nodes: u16, of_nodes: SandboxOptions) -> Self {
        let of_nodes = EngineOptions {
            kernels: of_nodes,
            ..threads(2)
        };
        let make = move || Self::make_of(nodes, 1, [KEY; 2], threads(2), &of_nodes);
        std::thread::spawn(make).join().unwrap().unwrap()
    }

    /// `keys`: the head's, and that of the others.
    pub fn make(
        nodes: u16,
        replicas: u16,
        keys: [[u8; 32]; 2],
        options: EngineOptions,
    ) -> Result<Self, flashmesh::Error> {
        Self::make_of(nodes, replicas, keys, options, &threads(2))
    }

    fn make_of(
        nodes: u16,
        replicas: u16,
        keys: [[u8; 32]; 2],
        options: EngineOptions,
        of_nodes: &EngineOptions,
    ) -> Result<Self, flashmesh::Error> {
        let mut text = String::from(
            "[mesh]\ndeadline_ms = 1000\n[[endpoint]]\nindex = 0\nname = 'pages'\nflow = 'end-to-end'\n\
             [[endpoint]]\nindex = 1\nname = 'streams'\nflow = 'end-to-end'\n",
        );
        for node in 0..nodes {
            let _ = write!(
                text,
                "[[node]]\nid = {node}\nname = 'n{node}'\naddress = 'unix:///n{node}'\n\
                 [[node.card]]\nid = 0\npath = 'n{node}'\n",
            );
        }
        for to in 1..nodes {
            // Where nodes may end, no way leads through another one.
            let first = if replicas > 1 { 0 } else { to - 1 };
            for from in first..to {
                let (at, into) = if replicas > 1 { (to - 1, from) } else { (1, 0) };
                let _ = write!(
                    text,
                    "[[cable]]\nfrom = 'n{from}/{at}'\nto = 'n{to}/{into}'\n"
                );
            }
        }
        let rack = Rack::parse(&text).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let meshes = runtime.block_on(async { Mesh::in_process(&rack) }).unwrap();
        let mut meshes = meshes.into_iter();
        let head_mesh = meshes.next().unwrap();
        let all: Vec<_> = (0..nodes).map(NodeId).collect();
        let cards_at = |at: u16| {
            let is_held = |of: &u16| {
                let holders = holders(&all, NodeId(*of), replicas);
                *of != at && holders.contains(&NodeId(at))
            };
            let held = (0..nodes).filter(is_held);
            held.map(|of| card(of, at)).collect::<Vec<_>>()
        };
        let serving = (1..nodes).zip(meshes).map(|(node, mesh)| {
            let streams = mesh.streams("streams").unwrap();
            let serving = ServingNode::start(
                &mesh,
                &streams,
                ServingParts {
                    node: NodeId(node),
                    cards: [card(node, node)]
                        .into_iter()
                        .chain(cards_at(node))
                        .collect(),
                    all: all.iter().map(|node| (*node, CardId(0))).collect(),
                    terms: Arc::new(TermInMemory::default()),
                    key: &keys[1],
                },
                ServingOptions {
                    cache_bytes: 8 << 20,
                    threads: 2,
                    commands: 4,
                },
            );
            let serving = serving.unwrap();
            let (storage, all) = (serving.storage(), (0..nodes).map(NodeId).collect());
            let worker = NodeWorker::start(of_nodes, storage, streams, NodeId(node), all);
            Some((Some(worker.unwrap()), serving, mesh))
        });
        let nodes_that_serve = serving.collect();
        let folder = tempfile::tempdir().unwrap();
        let copies = (replicas > 1).then(|| CopyParts {
            replicas,
            held: cards_at(0),
            file: CopyFile::open(folder.path().join("copies")).unwrap(),
            catalog: None,
        });
        let others: Vec<_> = (1..nodes).map(|n| (NodeId(n), vec![CardId(0)])).collect();
        let head = Head::connect(
            &head_mesh,
            &head_mesh.streams("streams").unwrap(),
            HeadParts {
                node: NodeId(0),
                cards: copies.iter().map(|_| card(0, 0)).collect(),
                term: 1,
                copies,
            },
            &others,
            Arc::new(TermInMemory::default()),
            &keys[0],
        )
        .unwrap();
        let head = Arc::new(head);
        let engine = Engine::open(EngineOptions {
            card: head.home(),
            rack: Some(Arc::clone(&head)),
            ..options
        })?;
        Ok(Self {
            engine: Some(engine),
            nodes: nodes_that_serve,
            head,
            _mesh: head_mesh,
            runtime: Some(runtime),
            _folder: folder,
        })
    }

    /// The head's.
    pub fn engine(&self) -> &Arc<Engine> {
        self.engine.as_ref().unwrap()
    }

    pub fn session(&self) -> Session {
        self.engine().session().unwrap()
    }

    /// From now on the last node runs no parts of plans.
    pub fn end_last_worker(&mut self) {
        let last = self.nodes.last_mut().and_then(Option::as_mut);
        drop(last.unwrap().0.take());
    }

    /// Leaves the rack as it is until the process ends.
    pub fn stay(self) -> Arc<Engine> {
        let engine = Arc::clone(self.engine());
        std::mem::forget(self);
        engine
    }
}

impl Drop for TestRack {
    fn drop(&mut self) {
        // The log is written to the cards of all nodes first.
        self.engine = None;
        self.nodes.clear();
        if let Some(runtime) = self.runtime.take() {
            // It may not be waited for on a thread of another one.
            runtime.shutdown_background();
        }
    }
}

/// Of an engine with so many threads.
pub fn threads(count: usize) -> EngineOptions {
    EngineOptions {
        threads: NonZeroUsize::new(count),
        ..EngineOptions::default()
    }
}

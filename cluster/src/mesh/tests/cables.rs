//! Nodes of one process with cables between them that take time and can be cut: what is under way waits
//! then, and no end is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::clock::sleep;
use crate::Rack;
use crate::mesh::node::plugs;
use crate::mesh::transport::{Connection, Plug, Reader, Wire, Writer, memory};
use crate::mesh::{Mesh, Network};

/// Bytes under way in one direction.
const CABLE_BYTES: usize = 64 << 10;

/// A cable between two nodes.
#[derive(Default)]
struct Cable {
    is_cut: AtomicBool,
}

impl Cable {
    /// Carries bytes one way; while the cable is cut they wait in it.
    async fn carry(self: Arc<Self>, mut from: Reader, mut to: Writer, mut random: StdRng) {
        let mut buffer = vec![0; CABLE_BYTES];
        loop {
            let count = from.read(&mut buffer).await.unwrap_or(0);
            let late = match random.random_bool(0.01) {
                true => random.random_range(0..300_000),
                false => random.random_range(0..2_000),
            };
            sleep(Duration::from_micros(late)).await;
            while self.is_cut.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(20)).await;
            }
            if count == 0
                || to.write_all(&buffer[..count]).await.is_err()
                || to.flush().await.is_err()
            {
                return;
            }
        }
    }

    /// Hands on the connections that are dialled to a node, each with this cable in between.
    async fn join(
        self: Arc<Self>,
        mut dialled: mpsc::Receiver<Connection>,
        node: Plug,
        mut random: StdRng,
    ) {
        while let Some(near) = dialled.recv().await {
            let (here, there) = tokio::io::duplex(CABLE_BYTES);
            let far = Connection::split(here);
            let listener = node.lock().clone();
            if listener.send(Connection::split(there)).await.is_ok() {
                let mut draw = || StdRng::seed_from_u64(random.random());
                let (to, from) = (draw(), draw());
                tokio::spawn(Arc::clone(&self).carry(near.reader, far.writer, to));
                tokio::spawn(Arc::clone(&self).carry(far.reader, near.writer, from));
            }
        }
    }
}

/// All cables of a rack whose nodes have one between any two.
pub(crate) struct Cables {
    network: Arc<Network>,
    /// By the node that dials, and the one that is dialled.
    plugs: Vec<Vec<Plug>>,
    cables: BTreeMap<[usize; 2], Arc<Cable>>,
}

impl Cables {
    /// Cables whose delays `random` draws. Needs a runtime.
    pub fn new(rack: &Rack, mut random: StdRng) -> Self {
        let network = Arc::new(Network::new(rack).unwrap());
        let nodes = rack.nodes.len();
        let own = plugs(&network);
        let mut dialling: Vec<_> = (0..nodes).map(|_| own.clone()).collect();
        let mut cables = BTreeMap::<_, Arc<Cable>>::new();
        for (a, b) in (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b))) {
            if a != b {
                let cable = cables.entry([a.min(b), a.max(b)]).or_default();
                let (plug, dialled) = mpsc::channel(16);
                dialling[a][b] = Arc::new(Mutex::new(plug));
                let draws = StdRng::seed_from_u64(random.next_u64());
                tokio::spawn(Arc::clone(cable).join(dialled, own[b].clone(), draws));
            }
        }
        Self {
            network,
            plugs: dialling,
            cables,
        }
    }

    /// Starts a node's part of the mesh.
    pub fn start(&self, node: usize) -> Mesh {
        let wire = Arc::new(memory) as Wire;
        Mesh::plugged(&self.network, node, &wire, &self.plugs[node])
    }

    /// The nodes at the ends of each.
    pub fn ends(&self) -> impl Iterator<Item = [usize; 2]> {
        self.cables.keys().copied()
    }

    /// From now on these are cut, and no others.
    pub fn cut(&self, which: impl Fn([usize; 2]) -> bool) {
        for (ends, cable) in &self.cables {
            cable.is_cut.store(which(*ends), Ordering::Relaxed);
        }
    }
}

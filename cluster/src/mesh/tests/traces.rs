//! The traces that the RTL replays, too: `fpga/network/README.md` has the format.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use flashmesh_pages::store::NodeId;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, yield_now};

use super::clock::timeout;
use super::racks::Shape;
use crate::Rack;
use crate::mesh::{Mesh, Network};

/// (node, endpoint)
type At = (usize, u16);

/// A trace, read from a file.
#[derive(Default)]
pub(super) struct Trace {
    pub nodes: usize,
    pub endpoints: Vec<(u16, bool)>,
    pub cables: Vec<[(usize, u16); 2]>,
    pub routes: Vec<(usize, u16, usize, u16)>,
    pub stalls: Vec<(At, u64, Option<u64>)>,
    /// (clock, destination, payload), in order.
    pub sends: BTreeMap<At, Vec<(u64, usize, u128)>>,
    /// By receiver and source.
    pub deliveries: BTreeMap<(At, usize), Vec<u128>>,
}

impl Trace {
    fn parse(text: &str) -> Self {
        let mut trace = Self::default();
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(lines.next(), Some("mesh-trace 1"));
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            let node = |at: usize| number(at) as usize;
            let small = |at: usize| number(at) as u16;
            let payload = |at: usize| u128::from_str_radix(words[at], 16).unwrap();
            match words[0] {
                "nodes" => trace.nodes = node(1),
                "endpoint" => trace.endpoints.push((small(1), words[2] == "end-to-end")),
                "cable" => trace
                    .cables
                    .push([(node(1), small(2)), (node(3), small(4))]),
                "route" => trace.routes.push((node(1), small(2), node(3), small(4))),
                "stall" => {
                    let last = (words[4] != "ever").then(|| number(4));
                    trace.stalls.push(((node(1), small(2)), number(3), last));
                }
                "send" => {
                    let sends = trace.sends.entry((node(1), small(2))).or_default();
                    sends.push((number(3), node(4), payload(5)));
                }
                "deliver" => {
                    let from = ((node(1), small(2)), node(3));
                    trace.deliveries.entry(from).or_default().push(payload(4));
                }
                other => panic!("a record '{other}'"),
            }
        }
        trace
    }

    /// Its rack file, with the routes of the trace.
    fn rack(&self) -> Rack {
        let mut shape = Shape::new("trace", self.nodes);
        shape.cables = self.cables.clone();
        let mut text = shape.text(&self.endpoints, "");
        for (node, endpoint, destination, port) in &self.routes {
            text += &format!(
                "[[route]]\nnode = 'n{node}'\nendpoint = 'e{endpoint}'\n\
                 destination = 'n{destination}'\nport = {port}\n"
            );
        }
        Rack::parse(&text).unwrap()
    }

    /// The first clock from `clock` on at which a receiver takes packets; none if never.
    fn awake(&self, at: At, mut clock: u64) -> Option<u64> {
        let stalls = || self.stalls.iter().filter(|stall| stall.0 == at);
        while let Some((_, _, last)) = stalls()
            .find(|(_, first, last)| *first <= clock && last.is_none_or(|last| clock < last))
        {
            clock = (*last)?;
        }
        Some(clock)
    }

    fn last_clock(&self) -> u64 {
        let stalls = self.stalls.iter().filter_map(|(_, _, last)| *last);
        let sends = self.sends.values().flatten().map(|send| send.0);
        stalls.chain(sends).max().unwrap_or(0)
    }

    /// Runs it on the mesh; what was delivered until nothing more came.
    pub async fn replay(self: Arc<Self>, meshes: &[Mesh]) -> BTreeMap<(At, usize), Vec<u128>> {
        let (ticks, clock) = watch::channel(0);
        let (delivered, mut deliveries) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for (node, mesh) in meshes.iter().enumerate() {
            for &(index, _) in &self.endpoints {
                let endpoint = mesh.endpoint(&format!("e{index}")).unwrap();
                let at = (node, index);
                let sends = self.sends.get(&at).cloned().unwrap_or_default();
                let sender = endpoint.clone();
                let mut now = clock.clone();
                tasks.spawn(async move {
                    for (clock, destination, payload) in sends {
                        now.wait_for(|now| *now >= clock).await.unwrap();
                        let payload = Bytes::copy_from_slice(&payload.to_le_bytes());
                        let to = NodeId(destination as u16);
                        sender.send(to, payload).await.unwrap();
                    }
                });
                let (trace, delivered) = (self.clone(), delivered.clone());
                let mut now = clock.clone();
                tasks.spawn(async move {
                    loop {
                        let time = *now.borrow();
                        let Some(awake) = trace.awake(at, time) else {
                            return;
                        };
                        if awake > time {
                            now.wait_for(|now| *now >= awake).await.unwrap();
                            continue;
                        }
                        let stalls = now.wait_for(|now| trace.awake(at, *now) != Some(*now));
                        let (source, payload) = tokio::select! {
                            biased;
                            Ok(_) = stalls => continue,
                            received = endpoint.receive() => received.unwrap(),
                        };
                        let payload = u128::from_le_bytes(payload[..].try_into().unwrap());
                        delivered.send((at, source.0, payload)).unwrap();
                    }
                });
            }
        }
        let last = self.last_clock();
        tasks.spawn(async move {
            // Steps: all who can do something do it once before the next.
            for now in 0..=last {
                ticks.send_replace(now);
                yield_now().await;
            }
            // Who stalls for ever looks at the clock, too.
            ticks.closed().await;
        });
        let mut all: BTreeMap<_, Vec<u128>> = BTreeMap::new();
        // The clock moves on when nobody can do anything but wait.
        let patience = std::time::Duration::from_secs(60);
        while let Ok(Some((at, source, payload))) = timeout(patience, deliveries.recv()).await {
            all.entry((at, usize::from(source)))
                .or_default()
                .push(payload);
        }
        all
    }
}

fn files() -> Vec<(String, Arc<Trace>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fpga/network/traces");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "trace")
        {
            let text = fs::read_to_string(&path).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            files.push((name, Arc::new(Trace::parse(&text))));
        }
    }
    assert!(files.len() >= 5, "traces are missing");
    files
}

#[test]
fn the_mesh_delivers_what_the_rtl_delivers() {
    for (name, trace) in files() {
        let rack = trace.rack();
        let delivered = super::run(async {
            let meshes = Mesh::in_process(&rack).unwrap();
            trace.clone().replay(&meshes).await
        });
        assert!(delivered == trace.deliveries, "trace {name}");
    }
}

/// The trace's routes print as the trace has them.
#[test]
fn routes_of_a_rack_file_are_those_of_the_trace() {
    for (name, trace) in files() {
        let network = Network::new(&trace.rack()).unwrap();
        let mut expected: HashMap<_, _> = HashMap::new();
        for &(node, endpoint, destination, port) in &trace.routes {
            expected.insert((node, endpoint, destination), port);
        }
        let lines = network.route_lines();
        assert_eq!(lines.lines().count(), expected.len(), "{name}");
        for line in lines.lines() {
            let mut words = line
                .split(' ')
                .skip(1)
                .map(|word| word.parse::<u16>().unwrap());
            let mut next = || words.next().unwrap();
            let key = (usize::from(next()), next(), usize::from(next()));
            assert_eq!(expected.get(&key), Some(&next()), "{name}: {line}");
        }
    }
}

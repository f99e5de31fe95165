//! Links that are given up and nodes that restart: no gap is silent, and what is not concerned goes
//! on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use super::clock::{sleep, timeout};
use super::racks::{self, Shape};
use super::{PATIENCE, is_stuck, node, run, seed, wires};
use crate::mesh::node::plugs;
use crate::mesh::transport::{Plug, Wire, memory};
use crate::mesh::{Endpoint, Mesh, MeshError, Network};

/// A rack of which each node can be stopped and started.
struct Bed {
    network: Arc<Network>,
    wire: Wire,
    plugs: Vec<Plug>,
    nodes: Vec<Option<Mesh>>,
}

impl Bed {
    fn new(shape: &Shape, bounds: &str) -> Self {
        Self::wired(shape, bounds, Arc::new(memory))
    }

    fn wired(shape: &Shape, bounds: &str, wire: Wire) -> Self {
        let rack = shape.rack(&[(0, false), (1, true)], bounds);
        let network = Arc::new(Network::new(&rack).unwrap());
        let mut bed = Self {
            wire,
            plugs: plugs(&network),
            nodes: Vec::new(),
            network,
        };
        for at in 0..shape.nodes {
            bed.nodes.push(None);
            bed.start(at);
        }
        bed
    }

    fn start(&mut self, at: usize) {
        let mesh = Mesh::plugged(&self.network, at, &self.wire, &self.plugs);
        self.nodes[at] = Some(mesh);
    }

    fn stop(&mut self, at: usize) {
        self.nodes[at] = None;
    }

    /// Stops a node that says so before.
    async fn end(&mut self, at: usize) {
        let mesh = self.nodes[at].take().unwrap();
        mesh.end().await;
        mesh.close().await;
    }

    fn endpoint(&self, at: usize, name: &str) -> Endpoint {
        self.nodes[at].as_ref().unwrap().endpoint(name).unwrap()
    }
}

/// Sends, until an error comes.
async fn first_error(endpoint: &Endpoint, to: usize) -> MeshError {
    loop {
        let sent = timeout(PATIENCE, endpoint.send(node(to), Bytes::new()));
        if let Err(error) = sent.await.expect("a sender waits for ever") {
            return error;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Sends, until it works and arrives.
async fn until_it_arrives(sender: &Endpoint, receiver: &Endpoint, to: usize) {
    loop {
        let sent = timeout(PATIENCE, sender.send(node(to), Bytes::from("again")));
        if sent.await.expect("a sender waits for ever").is_ok()
            && let Ok(Ok((_, payload))) = timeout(Duration::from_secs(1), receiver.receive()).await
            && payload == "again"
        {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn senders_to_a_node_that_is_gone_are_told_which_link_is_down() {
    run(async {
        let mut bed = Bed::new(&racks::line(4, 1), "[mesh]\nlink_packets = 4");
        let (sender, other) = (bed.endpoint(0, "e0"), bed.endpoint(2, "e0"));
        until_it_arrives(&sender, &bed.endpoint(3, "e0"), 3).await;
        bed.stop(3);
        let error = first_error(&sender, 3).await;
        let expected = MeshError::Unreachable {
            node: "n3".into(),
            link: "n2/1 → n3/0".into(),
            why: "is down for longer than mesh.deadline_ms".into(),
        };
        assert_eq!(error, expected);
        // And so is the next one, while it is down.
        assert_eq!(sender.send(node(3), Bytes::new()).await, Err(expected));
        // What the links hold for it blocks nobody.
        until_it_arrives(&sender, &other, 2).await;
        let link = |bed: &Bed| bed.nodes[2].as_ref().unwrap().links()[1].clone();
        assert!(link(&bed).is_given_up && link(&bed).lost_packets > 0);
        // It comes back.
        bed.start(3);
        until_it_arrives(&sender, &bed.endpoint(3, "e0"), 3).await;
        assert!(link(&bed).is_up);
    });
}

#[test]
fn who_ends_as_it_should_is_not_waited_for() {
    run(async {
        let mut bed = Bed::new(&racks::line(4, 1), "[mesh]\nlink_packets = 4");
        let (sender, other) = (bed.endpoint(0, "e0"), bed.endpoint(2, "e0"));
        until_it_arrives(&sender, &bed.endpoint(3, "e0"), 3).await;
        bed.end(3).await;
        // Before the deadline, as after it the link is called otherwise.
        let error = first_error(&sender, 3).await;
        let expected = MeshError::Unreachable {
            node: "n3".into(),
            link: "n3/0 → n2/1".into(),
            why: "is down: 'n3' has ended".into(),
        };
        assert_eq!(error, expected);
        assert_eq!(sender.send(node(3), Bytes::new()).await, Err(expected));
        until_it_arrives(&sender, &other, 2).await;
        bed.start(3);
        until_it_arrives(&sender, &bed.endpoint(3, "e0"), 3).await;
        // Who was between others ends, too.
        bed.end(1).await;
        let error = first_error(&sender, 3).await;
        assert!(error.to_string().contains("'n1' has ended"), "{error}");
        bed.start(1);
        until_it_arrives(&sender, &bed.endpoint(3, "e0"), 3).await;
    });
}

#[test]
fn a_restart_is_told_once() {
    run(async {
        let mut bed = Bed::new(&racks::line(3, 1), "[mesh]\nwindow_packets = 4");
        let sender = bed.endpoint(0, "e1");
        until_it_arrives(&sender, &bed.endpoint(2, "e1"), 2).await;
        until_it_arrives(&bed.endpoint(2, "e1"), &sender, 0).await;
        // More than the window: places that went with the node must come back.
        for _ in 0..4 {
            sender.send(node(2), Bytes::new()).await.unwrap();
        }
        bed.stop(2);
        bed.start(2);
        let error = first_error(&sender, 2).await;
        let expected = MeshError::Unreachable {
            node: "n2".into(),
            link: "n1/1 → n2/0".into(),
            why: "was interrupted: its far end has restarted".into(),
        };
        assert_eq!(error, expected);
        let interrupted = MeshError::Interrupted { node: "n2".into() };
        assert_eq!(sender.receive().await, Err(interrupted.clone()));
        until_it_arrives(&sender, &bed.endpoint(2, "e1"), 2).await;
        // A new generation: packets that come after the gap are told as such.
        let from = bed.endpoint(2, "e1");
        from.send(node(0), Bytes::from("new")).await.unwrap();
        let first = timeout(PATIENCE, sender.receive()).await.unwrap();
        assert_eq!(first, Err(interrupted));
        let second = timeout(PATIENCE, sender.receive()).await.unwrap();
        assert_eq!(second, Ok((node(2), Bytes::from("new"))));
    });
}

#[test]
fn who_waits_to_send_is_told_too() {
    run(async {
        for name in ["e0", "e1"] {
            let bounds = "[mesh]\nlink_packets = 2\nwindow_packets = 2\nendpoint_packets = 2";
            let mut bed = Bed::new(&racks::line(2, 1), bounds);
            let sender = bed.endpoint(0, name);
            until_it_arrives(&sender, &bed.endpoint(1, name), 1).await;
            let waiting = tokio::spawn(async move {
                loop {
                    sender.send(node(1), Bytes::new()).await?;
                }
                #[expect(unreachable_code, reason = "the type of the outcome")]
                Ok(())
            });
            sleep(Duration::from_secs(1)).await;
            assert!(!waiting.is_finished());
            bed.stop(1);
            let outcome = timeout(PATIENCE, waiting).await.unwrap().unwrap();
            assert!(
                matches!(outcome, Err(MeshError::Unreachable { .. })),
                "{outcome:?}"
            );
        }
    });
}

/// What receivers have seen.
#[derive(Default)]
struct Told {
    gaps: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

/// Numbered packets from everywhere to everywhere while nodes stop and start: a receiver gets them
/// in order, none twice, and is told before it gets one after a gap.
async fn restarts(chance: &mut StdRng, is_cut: bool) -> u64 {
    let shape = racks::random(chance, 6);
    let bounds = "[mesh]\nlink_packets = 3\nwindow_packets = 5\nendpoint_packets = 3\n\
                  deadline_ms = 2000\nsilence_ms = 500";
    let wire = match is_cut {
        true => wires::cut_often(chance.random(), 2000, 100_000).0,
        false => Arc::new(memory),
    };
    let mut bed = Bed::wired(&shape, bounds, wire);
    let nodes = shape.nodes;
    let told = Arc::new(Told::default());
    let mut lives = vec![0_u32; nodes];
    let mut tasks: Vec<JoinSet<()>> = Vec::new();
    for at in 0..nodes {
        tasks.push(work(&bed, at, 0, &told));
    }
    for _ in 0..6 {
        sleep(Duration::from_millis(chance.random_range(1..300))).await;
        let at = chance.random_range(0..nodes);
        tasks[at].shutdown().await;
        bed.stop(at);
        // Now and then for longer than the deadline.
        sleep(Duration::from_millis(chance.random_range(0..4000))).await;
        bed.start(at);
        lives[at] += 1;
        tasks[at] = work(&bed, at, lives[at], &told);
    }
    sleep(Duration::from_secs(10)).await;
    // In the end all is well again, whatever happened.
    for one in &mut tasks {
        one.shutdown().await;
    }
    // What is left unread would hold up others.
    let mut drains = JoinSet::new();
    for (at, name) in (0..nodes).flat_map(|at| [(at, "e0"), (at, "e1")]) {
        let left = bed.endpoint(at, name);
        drains.spawn(async move { while !is_stuck(left.receive()).await {} });
    }
    drains.join_all().await;
    for (from, to) in [(0, nodes - 1), (nodes - 1, 0)] {
        for name in ["e0", "e1"] {
            let receiver = bed.endpoint(to, name);
            until_it_arrives(&bed.endpoint(from, name), &receiver, to).await;
        }
    }
    assert_eq!(*told.wrong.lock(), Vec::<String>::new(), "silent gaps");
    told.gaps.load(Ordering::Relaxed)
}

/// What a node sends and receives in one of its lives.
fn work(bed: &Bed, at: usize, life: u32, told: &Arc<Told>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let nodes = bed.nodes.len();
    for name in ["e0", "e1"] {
        for to in 0..nodes {
            let sender = bed.endpoint(at, name);
            tasks.spawn(async move {
                for count in 0_u32.. {
                    let mut payload = [0; 8];
                    payload[..4].copy_from_slice(&life.to_le_bytes());
                    payload[4..].copy_from_slice(&count.to_le_bytes());
                    // An error is told, and the packet is not sent: that is a gap, too.
                    let _ = sender
                        .send(node(to), Bytes::copy_from_slice(&payload))
                        .await;
                    sleep(Duration::from_millis(3)).await;
                }
            });
        }
        let (receiver, told) = (bed.endpoint(at, name), told.clone());
        let names = bed.network.names.clone();
        tasks.spawn(async move {
            // The next number of each sender; none when a gap was told.
            let mut next: HashMap<usize, Option<(u32, u32)>> = HashMap::new();
            loop {
                match receiver.receive().await {
                    Ok((source, payload)) => {
                        let number =
                            |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap());
                        let (life, count) = (number(0), number(4));
                        let source = usize::from(source.0);
                        if let Some(Some(expected)) = next.get(&source)
                            && (life, count) != *expected
                        {
                            told.wrong.lock().push(format!(
                                "{name}, {source} to {at}: {life}/{count} after {expected:?}"
                            ));
                        }
                        next.insert(source, Some((life, count + 1)));
                    }
                    Err(MeshError::Interrupted { node }) => {
                        let source = names.iter().position(|name| *name == node);
                        next.insert(source.unwrap(), None);
                        told.gaps.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(_) => return,
                }
            }
        });
    }
    tasks
}

#[test]
fn no_gap_is_silent_when_nodes_restart() {
    let mut chance = StdRng::seed_from_u64(seed());
    let mut told = 0;
    for is_cut in [false, true, false, true] {
        told += run(restarts(&mut chance, is_cut));
    }
    println!("{told} interruptions were told");
    assert!(told > 0, "nothing was interrupted");
}

//! Tokens and end-to-end flow control: who waits for whom, and how much is under way at most.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::clock::timeout;
use super::racks::{self, Shape};
use super::{PATIENCE, is_stuck, node, run};
use crate::Rack;
use crate::mesh::transport::memory;
use crate::mesh::{Endpoint, Mesh, MeshError, Network};

const BOUNDS: &str =
    "[mesh]\nlink_packets = 3\nendpoint_packets = 5\nwindow_packets = 4\npacket_bytes = 100";

fn start(shape: &Shape) -> Vec<Mesh> {
    Mesh::in_process(&shape.rack(&[(0, false), (1, true), (2, false)], BOUNDS)).unwrap()
}

fn number(payload: &[u8]) -> u32 {
    u32::from_le_bytes(payload.try_into().unwrap())
}

/// Sends until it has to wait; how many were sent.
async fn send_until_stuck(endpoint: &Endpoint, to: usize) -> u32 {
    let mut sent = 0_u32;
    while !is_stuck(endpoint.send(node(to), Bytes::copy_from_slice(&sent.to_le_bytes()))).await {
        sent += 1;
    }
    sent
}

async fn receive_all(endpoint: &Endpoint, count: u32) {
    for expected in 0..count {
        let (_, payload) = timeout(PATIENCE, endpoint.receive())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(number(&payload), expected);
    }
}

#[test]
fn senders_to_a_receiver_that_takes_nothing_wait() {
    run(async {
        let nodes = start(&racks::line(3, 1));
        let (sender, receiver) = (
            nodes[0].endpoint("e0").unwrap(),
            nodes[2].endpoint("e0").unwrap(),
        );
        // As much as the FIFO, and the buffers behind both links.
        assert_eq!(send_until_stuck(&sender, 2).await, 5 + 2 * 3);
        // What waited when it was dropped is not sent; what is sent afterwards is.
        receive_all(&receiver, 11).await;
        assert!(is_stuck(receiver.receive()).await);
        // With end-to-end flow control, as much as the window.
        let (sender, receiver) = (
            nodes[0].endpoint("e1").unwrap(),
            nodes[2].endpoint("e1").unwrap(),
        );
        assert_eq!(send_until_stuck(&sender, 2).await, 4);
        receive_all(&receiver, 4).await;
        assert_eq!(send_until_stuck(&sender, 2).await, 4);
        // To itself, too.
        assert_eq!(send_until_stuck(&sender, 0).await, 4);
        receive_all(&sender, 4).await;
        assert_eq!(send_until_stuck(&sender, 0).await, 4);
    });
}

#[test]
fn a_receiver_that_takes_nothing_stops_those_who_share_its_links() {
    run(async {
        // n0 and n1 send to n3 by way of n2; n1 to n0 does not pass there.
        let mut shape = Shape::new("", 4);
        for (a, b) in [(0, 1), (0, 2), (1, 2), (2, 3)] {
            shape.join(a, b);
        }
        let nodes = start(&shape);
        let endpoint = |at: usize, name: &str| nodes[at].endpoint(name).unwrap();
        send_until_stuck(&endpoint(0, "e0"), 3).await;
        // The buffers on the way are full: other endpoints' packets wait, too.
        assert!(send_until_stuck(&endpoint(0, "e2"), 3).await == 0);
        let others = [(0, 1), (1, 0), (3, 0), (3, 2), (2, 1)];
        for (from, to) in others {
            let sender = endpoint(from, "e2");
            let sent = sender.send(node(to), Bytes::new());
            timeout(PATIENCE, sent).await.unwrap().unwrap();
            let received = endpoint(to, "e2");
            let (source, _) = timeout(PATIENCE, received.receive())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(source, node(from));
        }
    });
}

#[test]
fn with_end_to_end_flow_control_it_stops_nobody_else() {
    run(async {
        let nodes = start(&racks::line(4, 1));
        let endpoint = |at: usize, name: &str| nodes[at].endpoint(name).unwrap();
        for from in 0..3 {
            assert_eq!(send_until_stuck(&endpoint(from, "e1"), 3).await, 4);
        }
        // The same links, by another endpoint; and the same endpoint, to another node.
        for (name, to) in [("e0", 3), ("e1", 2)] {
            let (sender, receiver) = (endpoint(0, name), endpoint(to, name));
            for sent in 0..100_u32 {
                let payload = Bytes::copy_from_slice(&sent.to_le_bytes());
                let sent = sender.send(node(to), payload);
                timeout(PATIENCE, sent).await.unwrap().unwrap();
                let from = timeout(PATIENCE, receiver.receive()).await;
                if name == "e1" && from.unwrap().unwrap().0 != node(0) {
                    panic!("a packet that was for n3");
                }
            }
        }
    });
}

/// All nodes of a ring send to the one on the other side; how many packets arrive.
async fn saturate(network: Network) -> usize {
    let nodes = Mesh::wired(&Arc::new(network), &(Arc::new(memory) as _));
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for (at, mesh) in nodes.iter().enumerate() {
        let (sender, receiver) = (mesh.endpoint("e0").unwrap(), mesh.endpoint("e0").unwrap());
        let to = node((at + nodes.len() / 2) % nodes.len());
        tasks.spawn(async move {
            for _ in 0..100 {
                sender.send(to, Bytes::new()).await.unwrap();
            }
        });
        let arrived = arrived.clone();
        tasks.spawn(async move {
            while receiver.receive().await.is_ok() {
                arrived.send(()).unwrap();
            }
        });
    }
    let mut count = 0;
    while timeout(PATIENCE, arrivals.recv()).await.is_ok() {
        count += 1;
    }
    count
}

#[test]
fn routes_that_can_deadlock_do() {
    let shape = racks::ring(6);
    let text = shape.text(&[(0, false)], "[mesh]\nlink_packets = 2");
    let up_down = Network::new(&Rack::parse(&text).unwrap()).unwrap();
    // Clockwise all the way, which the check of the rack file refuses.
    let mut clockwise = up_down.clone();
    for at in 0..6 {
        let next = (at + 1) % 6;
        let channels = &clockwise.topology.channels;
        let mut channels = channels.iter();
        let channel = channels.position(|one| (one.from.0, one.to.0) == (at, next));
        for destination in (0..6).filter(|&to| to != at) {
            clockwise.routes.set(at, 0, destination, channel.unwrap());
        }
    }
    assert!(
        clockwise
            .routes
            .cycle(&clockwise.topology)
            .unwrap()
            .is_some()
    );
    assert_eq!(run(saturate(up_down)), 600);
    let arrived = run(saturate(clockwise));
    assert!(arrived < 600, "no deadlock came about");
}

#[test]
fn several_tasks_share_an_endpoint() {
    run(async {
        let nodes = start(&racks::line(2, 1));
        let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for task in 0..5_u32 {
            let sender = nodes[0].endpoint("e1").unwrap();
            tasks.spawn(async move {
                for count in 0..40 {
                    let payload = (task * 40 + count).to_le_bytes();
                    let sent = sender.send(node(1), Bytes::copy_from_slice(&payload));
                    sent.await.unwrap();
                }
            });
            let (receiver, arrived) = (nodes[1].endpoint("e1").unwrap(), arrived.clone());
            tasks.spawn(async move {
                while let Ok((_, payload)) = receiver.receive().await {
                    arrived.send(number(&payload)).unwrap();
                }
            });
        }
        let mut all = Vec::new();
        while all.len() < 200 {
            all.push(timeout(PATIENCE, arrivals.recv()).await.unwrap().unwrap());
        }
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<u32>>());
    });
}

#[test]
fn what_can_not_be_sent_is_refused() {
    run(async {
        let mut nodes = start(&racks::line(2, 1));
        let endpoint = nodes[0].endpoint("e0").unwrap();
        let refused = endpoint.send(node(1), vec![0; 101].into()).await;
        let expected = MeshError::TooLarge {
            bytes: 101,
            most: 100,
        };
        assert_eq!(refused, Err(expected));
        let refused = endpoint.send(node(7), Bytes::new()).await;
        assert_eq!(refused, Err(MeshError::Unknown("node of number 7".into())));
        let unknown = MeshError::Unknown("endpoint 'e7'".into());
        assert_eq!(nodes[0].endpoint("e7").err(), Some(unknown));
        assert!(matches!(nodes[0].streams("e0"), Err(MeshError::Taken(_))));
        nodes[0].streams("e1").unwrap();
        assert!(matches!(nodes[0].endpoint("e1"), Err(MeshError::Taken(_))));
        // Dropped, it sends and receives no more.
        let waiting = tokio::spawn({
            let endpoint = endpoint.clone();
            async move { endpoint.receive().await }
        });
        tokio::task::yield_now().await;
        drop(nodes.remove(0));
        assert_eq!(waiting.await.unwrap(), Err(MeshError::Closed));
        assert_eq!(
            endpoint.send(node(1), Bytes::new()).await,
            Err(MeshError::Closed)
        );
    });
}

#[test]
fn what_was_sent_can_be_waited_for() {
    run(async {
        let mut nodes = start(&racks::line(2, 1));
        let (sender, receiver) = (
            nodes[0].endpoint("e0").unwrap(),
            nodes[1].endpoint("e0").unwrap(),
        );
        for count in 0..3_u32 {
            let payload = Bytes::copy_from_slice(&count.to_le_bytes());
            sender.send(node(1), payload).await.unwrap();
        }
        timeout(PATIENCE, nodes[0].drain()).await.unwrap();
        drop(nodes.remove(0));
        receive_all(&receiver, 3).await;
    });
}

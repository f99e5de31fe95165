//! Peers that say what can't be: their connection ends, the node goes on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::clock::timeout;
use super::{PATIENCE, is_stuck, node, racks, run, seed};
use crate::mesh::frame::{Frame, Packet, Report, encode};
use crate::mesh::handshake::{self, Hello};
use crate::mesh::node::plugs;
use crate::mesh::port::Position;
use crate::mesh::transport::{Connection, Plug, Wire, memory};
use crate::mesh::{Mesh, Network};

const TOKENS: u32 = 4;

/// A line of n0, n1 and n2, of which n0 is played by the test.
struct Scene {
    network: Arc<Network>,
    plugs: Vec<Plug>,
    nodes: Vec<Mesh>,
}

fn scene() -> Scene {
    let bounds = format!("[mesh]\nlink_packets = {TOKENS}\nendpoint_packets = 1");
    let rack = racks::line(3, 1).rack(&[(0, false)], &bounds);
    let network = Arc::new(Network::new(&rack).unwrap());
    let plugs = plugs(&network);
    let wire: Wire = Arc::new(memory);
    let start = |at| Mesh::plugged(&network, at, &wire, &plugs);
    let nodes = vec![start(1), start(2)];
    Scene {
        nodes,
        network,
        plugs,
    }
}

fn position(session: u64) -> Position {
    Position {
        session,
        peer_session: 0,
        report: Report::default(),
        capacity: TOKENS,
    }
}

impl Scene {
    async fn connect(&self) -> DuplexStream {
        let (here, there) = tokio::io::duplex(1 << 20);
        let plug = self.plugs[1].lock().clone();
        plug.send(Connection::split(there)).await.ok().unwrap();
        here
    }

    fn hello(&self, session: u64) -> Hello {
        Hello {
            fingerprint: self.network.fingerprint(),
            channel: self.network.topology.leaving(0)[0] as u32,
            position: position(session),
            is_resumed: false,
        }
    }

    /// Connects as n0 should.
    async fn greeted(&self, session: u64) -> DuplexStream {
        self.numbered(session).await.0
    }

    /// The same, with the number that the next packet has.
    async fn numbered(&self, session: u64) -> (DuplexStream, u32) {
        let mut stream = self.connect().await;
        let hello = self.hello(session);
        handshake::send(&mut stream, &hello).await.unwrap();
        let answer = handshake::receive(&mut stream).await.unwrap();
        (stream, answer.position.report.buffered + 1)
    }

    /// Whether n1 and n2 still work, and n1 takes a new connection of n0.
    async fn works(&self, session: u64) {
        let [n1, n2] = [&self.nodes[0], &self.nodes[1]].map(|mesh| mesh.endpoint("e0").unwrap());
        let sent = n1.send(node(2), Bytes::from("works"));
        timeout(PATIENCE, sent).await.unwrap().unwrap();
        while timeout(PATIENCE, n2.receive()).await.unwrap() != Ok((node(1), "works".into())) {}
        // What came in before waits for its receiver, and holds tokens.
        while !is_stuck(n1.receive()).await {}
        let (mut stream, next) = self.numbered(session).await;
        stream.write_all(&frame(next, 0, 2, b"new")).await.unwrap();
        while timeout(PATIENCE, n2.receive()).await.unwrap() != Ok((node(0), "new".into())) {}
    }
}

fn frame(sequence: u32, source: u16, destination: u16, payload: &'static [u8]) -> Vec<u8> {
    let packet = Packet {
        source,
        destination,
        endpoint: 0,
        credit: 0,
        generation: 1,
        payload: payload.into(),
    };
    let frame = Frame::Packet { sequence, packet };
    let mut bytes = encode(&frame, Report::default()).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// Whether the node ends the connection; what it sends before does not matter.
async fn is_ended(mut stream: DuplexStream) {
    let mut rest = Vec::new();
    let ended = timeout(Duration::from_secs(60), stream.read_to_end(&mut rest));
    // The end of a stream whose other end is gone, or an error, is both an end.
    let _ = ended.await.expect("the connection goes on");
}

#[test]
fn frames_that_break_the_rules_end_the_connection() {
    let report =
        |received, buffered| encode(&Frame::Report, Report { received, buffered }).to_vec();
    let notice = |bytes: Vec<u8>| {
        let frame = Frame::Notice(bytes.clone().into());
        [encode(&frame, Report::default()).to_vec(), bytes].concat()
    };
    let cases = [
        frame(2, 0, 1, b"not the first"),
        [frame(1, 0, 2, b"twice"), frame(1, 0, 2, b"twice")].concat(),
        frame(1, 9, 1, b"from nowhere"),
        frame(1, 0, 9, b"to nowhere"),
        frame(1, 1, 2, b"from n1 itself"),
        frame(1, 0, 0, b"that would come back"),
        (1..20)
            .flat_map(|count| frame(count, 0, 1, b"without tokens"))
            .collect(),
        report(1, 0),
        report(0, 1),
        notice(vec![0; 16]),
        notice(vec![0xff; 17]),
        vec![0; 40],
    ];
    for (index, bytes) in cases.into_iter().enumerate() {
        run(async {
            let scene = scene();
            let mut stream = scene.greeted(7).await;
            stream.write_all(&bytes).await.unwrap();
            println!("case {index}");
            is_ended(stream).await;
            scene.works(8).await;
        });
    }
}

#[test]
fn strangers_are_sent_away() {
    run(async {
        let scene = scene();
        let hello = scene.hello(7);
        let other_rack = Hello {
            fingerprint: 1,
            ..hello
        };
        let other_cable = Hello {
            // It leaves n1, so it can't be one of a neighbour.
            channel: 2,
            ..hello
        };
        let no_cable = Hello {
            channel: u32::MAX,
            ..hello
        };
        for (hello, expected) in [
            (other_rack, "the rack files of the two nodes differ"),
            (other_cable, "does not have the other end"),
            (no_cable, "does not have the other end"),
        ] {
            let mut stream = scene.connect().await;
            handshake::send(&mut stream, &hello).await.unwrap();
            let refusal = handshake::receive(&mut stream)
                .await
                .unwrap_err()
                .to_string();
            assert!(refusal.contains(expected), "{refusal}");
            is_ended(stream).await;
        }
        // Many who say nothing: they are sent away after a while.
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(scene.connect().await);
        }
        scene.works(8).await;
        for stream in silent {
            is_ended(stream).await;
        }
    });
}

#[test]
fn noise_is_survived() {
    let mut chance = StdRng::seed_from_u64(seed());
    run(async {
        let scene = scene();
        for round in 0..200 {
            let mut stream = match chance.random_bool(0.5) {
                true => scene.connect().await,
                false => scene.greeted(100 + round).await,
            };
            let mut noise = match chance.random_bool(0.5) {
                true => vec![0; chance.random_range(0..300)],
                false => frame(1, 0, 1, b"a packet"),
            };
            if chance.random_bool(0.5) {
                chance.fill_bytes(&mut noise);
            } else if !noise.is_empty() {
                let at = chance.random_range(0..noise.len());
                noise[at] ^= 1 << chance.random_range(0..8);
            }
            // It may have been closed already.
            let _ = stream.write_all(&noise).await;
            drop(stream);
        }
        scene.works(8).await;
    });
}

/// A connection that takes another one's place: what the old one still brings does not count.
#[test]
fn the_last_connection_counts() {
    run(async {
        let scene = scene();
        let mut old = scene.greeted(7).await;
        let mut new = scene.connect().await;
        let mut hello = scene.hello(7);
        handshake::send(&mut new, &hello).await.unwrap();
        let first = handshake::receive(&mut new).await.unwrap();
        // It remembers n0, but n0 does not say that it remembers n1.
        assert!(!first.is_resumed);
        let _ = old.write_all(&frame(1, 0, 1, b"old")).await;
        is_ended(old).await;
        // The same, with what was said.
        hello.position.peer_session = first.position.session;
        let mut newer = scene.connect().await;
        handshake::send(&mut newer, &hello).await.unwrap();
        assert!(handshake::receive(&mut newer).await.unwrap().is_resumed);
        newer.write_all(&frame(1, 0, 1, b"new")).await.unwrap();
        let endpoint = scene.nodes[0].endpoint("e0").unwrap();
        let received = timeout(PATIENCE, endpoint.receive()).await.unwrap();
        assert_eq!(received, Ok((node(0), "new".into())));
    });
}

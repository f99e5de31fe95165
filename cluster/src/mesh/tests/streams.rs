//! Streams: what is written is read, and what happens to one stream is its own affair.

use std::io;

use bytes::Bytes;
use flashmesh_pages::store::NodeId;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::clock::timeout;
use super::racks;
use super::{PATIENCE, is_stuck, node, run, seed};
use crate::mesh::{Mesh, MeshError, MeshStream, StreamListener, Streams};

const BOUNDS: &str = "[mesh]\nlink_packets = 4\nendpoint_packets = 4\npacket_bytes = 2000";

fn start(nodes: usize, bounds: &str) -> Vec<Mesh> {
    Mesh::in_process(&racks::line(nodes, 1).rack(&[(0, false)], bounds)).unwrap()
}

fn streams(mesh: &Mesh) -> Streams {
    mesh.streams("e0").unwrap()
}

/// A stream between two nodes.
async fn pair(nodes: &[Mesh], from: usize, to: usize) -> (MeshStream, MeshStream) {
    let mut listener = streams(&nodes[to]).listen("pair").unwrap();
    let opened = streams(&nodes[from])
        .connect(node(to), "pair")
        .await
        .unwrap();
    let (peer, accepted) = listener.accept().await.unwrap();
    assert_eq!((peer, opened.peer()), (node(from), node(to)));
    (opened, accepted)
}

fn kind<T>(outcome: io::Result<T>) -> Option<io::ErrorKind> {
    outcome.err().map(|error| error.kind())
}

/// Bytes that a reader can make again.
fn content(seed: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

async fn write_in_pieces(mut writer: impl AsyncWriteExt + Unpin, seed: u64, count: usize) {
    let mut chance = StdRng::seed_from_u64(!seed);
    let bytes = content(seed, count);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(chance.random_range(1..=rest.len().min(100_000)));
        writer.write_all(piece).await.unwrap();
        rest = after;
    }
    writer.shutdown().await.unwrap();
}

async fn read_in_pieces(mut reader: impl AsyncReadExt + Unpin, seed: u64, count: usize) {
    let mut chance = StdRng::seed_from_u64(seed.reverse_bits());
    let expected = content(seed, count);
    let mut at = 0;
    loop {
        let mut piece = vec![0; chance.random_range(1..100_000)];
        let read = reader.read(&mut piece).await.unwrap();
        assert_eq!(piece[..read], expected[at..at + read]);
        at += read;
        if read == 0 {
            break;
        }
    }
    assert_eq!(at, count);
}

#[test]
fn what_is_written_is_read_on_many_streams_at_once() {
    let mut chance = StdRng::seed_from_u64(seed());
    for bounds in [BOUNDS, ""] {
        run(async {
            let nodes = start(3, bounds);
            let mut tasks = JoinSet::new();
            let mut listeners: Vec<StreamListener> = Vec::new();
            for mesh in &nodes {
                listeners.push(streams(mesh).listen("both ways").unwrap());
            }
            for _ in 0..12 {
                let (from, to) = (chance.random_range(0..3), chance.random_range(0..3));
                let opened = streams(&nodes[from])
                    .connect(node(to), "both ways")
                    .await
                    .unwrap();
                let (_, accepted) = listeners[to].accept().await.unwrap();
                for (writer, reader) in [(tokio::io::split(opened), tokio::io::split(accepted))]
                    .map(|((r1, w1), (r2, w2))| ((w1, w2), (r2, r1)))
                {
                    for (writer, reader) in [(writer.0, reader.0), (writer.1, reader.1)] {
                        let (seed, count) = (chance.random(), chance.random_range(0..700_000));
                        tasks.spawn(write_in_pieces(writer, seed, count));
                        tasks.spawn(read_in_pieces(reader, seed, count));
                    }
                }
            }
            let all = timeout(PATIENCE, tasks.join_all()).await;
            all.expect("streams are stuck");
        });
    }
}

#[test]
fn a_stream_that_is_not_read_stops_no_other() {
    run(async {
        let nodes = start(2, BOUNDS);
        let (mut stalled, unread) = pair(&nodes, 0, 1).await;
        let block = vec![1; 10_000];
        let mut written = 0;
        while !is_stuck(stalled.write_all(&block)).await {
            written += block.len();
        }
        // The window, and what is kept to be sent.
        assert!(
            (256 << 10..=(256 + 128) << 10).contains(&written),
            "{written}"
        );
        let (other, reader) = pair(&nodes, 0, 1).await;
        let moved = async {
            tokio::join!(
                write_in_pieces(other, 5, 1_000_000),
                read_in_pieces(reader, 5, 1_000_000)
            )
        };
        timeout(PATIENCE, moved).await.unwrap();
        drop(unread);
    });
}

#[test]
fn directions_end_by_themselves() {
    run(async {
        let nodes = start(2, BOUNDS);
        let (mut ours, mut theirs) = pair(&nodes, 0, 1).await;
        ours.write_all(b"question").await.unwrap();
        ours.shutdown().await.unwrap();
        assert_eq!(
            kind(ours.write(b"more").await),
            Some(io::ErrorKind::BrokenPipe)
        );
        let mut question = String::new();
        theirs.read_to_string(&mut question).await.unwrap();
        theirs.write_all(b"answer").await.unwrap();
        // Shut down, it may be dropped: what was written is still read.
        theirs.shutdown().await.unwrap();
        drop(theirs);
        let mut answer = String::new();
        ours.read_to_string(&mut answer).await.unwrap();
        assert_eq!((&*question, &*answer), ("question", "answer"));
        // Of neither anything is left.
        drop(ours);
        for mesh in &nodes {
            let streams = streams(mesh);
            while streams.open_streams() > 0 {
                tokio::task::yield_now().await;
            }
        }
    });
}

#[test]
fn a_stream_that_is_dropped_is_broken_off() {
    run(async {
        let nodes = start(2, BOUNDS);
        let (mut ours, mut theirs) = pair(&nodes, 0, 1).await;
        ours.write_all(b"half a").await.unwrap();
        drop(ours);
        let mut all = Vec::new();
        let outcome = timeout(PATIENCE, theirs.read_to_end(&mut all))
            .await
            .unwrap();
        assert_eq!(kind(outcome), Some(io::ErrorKind::ConnectionReset));
        assert_eq!(
            kind(theirs.write(b"more").await),
            Some(io::ErrorKind::ConnectionReset)
        );
        // One who has written all and reads no more stops the writer, not the world.
        let (mut ours, mut theirs) = pair(&nodes, 0, 1).await;
        ours.shutdown().await.unwrap();
        drop(ours);
        let block = vec![1; 10_000];
        let stopped = async {
            loop {
                if let Err(error) = theirs.write_all(&block).await {
                    return error.kind();
                }
            }
        };
        let stopped = timeout(PATIENCE, stopped).await.unwrap();
        assert_eq!(stopped, io::ErrorKind::BrokenPipe);
        assert_eq!(theirs.read(&mut [0; 10]).await.unwrap(), 0);
    });
}

#[test]
fn services_that_nobody_offers_are_refused() {
    run(async {
        let nodes = start(2, BOUNDS);
        let (here, there) = (streams(&nodes[0]), streams(&nodes[1]));
        let refused = |outcome: Result<MeshStream, MeshError>| {
            let error = outcome.err().expect("it should be refused");
            assert!(matches!(error, MeshError::Refused { .. }), "{error}");
        };
        refused(here.connect(node(1), "nothing").await);
        let listener = there.listen("something").unwrap();
        assert!(matches!(
            there.listen("something"),
            Err(MeshError::Taken(_))
        ));
        let waiting = here.connect(node(1), "something").await.unwrap();
        drop(listener);
        refused(here.connect(node(1), "something").await);
        // What nobody has accepted is broken off.
        let mut waiting = waiting;
        let read = timeout(PATIENCE, waiting.read(&mut [0; 1])).await.unwrap();
        assert_eq!(kind(read), Some(io::ErrorKind::ConnectionReset));
        let mut again = there.listen("something").unwrap();
        // Who gives up waiting leaves nothing behind.
        let given_up = here.connect(node(1), "something");
        drop(timeout(std::time::Duration::ZERO, given_up).await);
        here.connect(node(1), "something").await.unwrap();
        again.accept().await.unwrap();
        assert!(matches!(
            here.connect(NodeId(9), "x").await,
            Err(MeshError::Unknown(_))
        ));
    });
}

#[test]
fn streams_end_with_the_mesh_and_with_the_peer() {
    run(async {
        let mut nodes = start(3, "[mesh]\ndeadline_ms = 1000");
        let (mut ours, _theirs) = pair(&nodes, 0, 2).await;
        drop(nodes.remove(2));
        let read = timeout(PATIENCE, ours.read(&mut [0; 1])).await.unwrap();
        assert_eq!(kind(read), Some(io::ErrorKind::ConnectionReset));
        let refused = streams(&nodes[0]).connect(node(2), "pair").await;
        assert!(matches!(refused, Err(MeshError::Unreachable { .. })));
        let (mut ours, _theirs) = pair(&nodes, 0, 1).await;
        drop(nodes.remove(0));
        let read = timeout(PATIENCE, ours.read(&mut [0; 1])).await.unwrap();
        assert_eq!(kind(read), Some(io::ErrorKind::ConnectionReset));
    });
}

/// Packets that are no frames of streams, and frames that can't be, hurt their stream at most.
#[test]
fn frames_that_can_not_be_are_survived() {
    let mut chance = StdRng::seed_from_u64(seed());
    run(async {
        let nodes = start(2, "");
        // One end speaks packets, by hand.
        let hostile = nodes[0].endpoint("e0").unwrap();
        let _listener = streams(&nodes[1]).listen("service").unwrap();
        let drained = hostile.clone();
        let drain = tokio::spawn(async move { while drained.receive().await.is_ok() {} });
        for _ in 0..20_000 {
            let mut packet = vec![0; chance.random_range(0..40)];
            chance.fill_bytes(&mut packet);
            if packet.len() >= 9 && chance.random_bool(0.9) {
                packet[0] = chance.random_range(0..9) | 0x80;
                packet[1..5].copy_from_slice(&chance.random_range(0..5_u32).to_le_bytes());
                if chance.random_bool(0.2) {
                    packet.truncate(9);
                    packet[0] = 0x80;
                    packet.extend_from_slice(b"service");
                }
            }
            hostile.send(node(1), Bytes::from(packet)).await.unwrap();
        }
        let here = streams(&nodes[1]);
        let _other = here.listen("other").unwrap();
        timeout(PATIENCE, here.connect(node(1), "other"))
            .await
            .unwrap()
            .unwrap();
        drain.abort();
    });
}

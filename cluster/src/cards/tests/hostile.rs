//! What a node sends that should not: it gets an error or nothing, and nobody else notices.

use std::time::Duration;

use bytes::Bytes;
use flashmesh_pages::flash::PageBuffer;
use flashmesh_pages::store::NodeId;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;

use super::{Bed, GEOMETRY, memory, page, read, seed, write};
use crate::cards::PAGES_OUT_MAX;
use crate::cards::wire::{self, Body, Description, Kind, Packet, Reply, Request};
use crate::mesh::Endpoint;

pub(super) fn request(kind: Kind, first: u64, pages: u16) -> Request {
    let description = Description {
        geometry: GEOMETRY,
        continues_blocks: true,
        pages_max: 32,
    };
    Request {
        kind,
        card: 0,
        epoch: 7,
        id: 1,
        first,
        term: 1,
        session: 0,
        shape: description.shape(),
        pages,
        offset: 0,
    }
}

fn pages(count: u64) -> Vec<PageBuffer> {
    (0..count).map(|number| page(number, 1)).collect()
}

/// Sends a packet and gives the reply, which must come.
async fn ask(endpoint: &Endpoint, packet: Bytes) -> Reply {
    endpoint.send(NodeId(1), packet).await.unwrap();
    answer(endpoint).await
}

async fn answer(endpoint: &Endpoint) -> Reply {
    let received = timeout(Duration::from_secs(60), endpoint.receive());
    let (_, packet) = received.await.expect("an answer").unwrap();
    match wire::decode(packet).unwrap() {
        Packet::Reply(reply) => reply,
        other => panic!("{other:?} is no reply"),
    }
}

async fn refused(endpoint: &Endpoint, packet: Bytes) -> String {
    match ask(endpoint, packet).await.body {
        Body::Failed(failure) => failure.of("it").to_string(),
        other => panic!("{other:?} in place of a refusal"),
    }
}

/// A server at node 1, and node 0 with nothing but its endpoint; node 2 is honest.
fn with_server(test: impl AsyncFnOnce(&Endpoint)) {
    let mut bed = Bed::stopped(vec![vec![], vec![memory()], vec![]], "");
    bed.start(1);
    bed.start(2);
    let mesh = bed.mesh(0);
    let endpoint = mesh.endpoint("pages").unwrap();
    bed.block_on(test(&endpoint));
    let card = bed.open(2, 1, 0, 9).unwrap();
    write(&card, 40, 20, 1).unwrap();
    let back = read(&card, 40, 20).unwrap();
    assert!((40..).zip(&back).all(|(n, one)| **one == *page(n, 1)));
    bed.block_on(mesh.close());
}

#[test]
fn requests_that_can_not_be_are_refused() {
    with_server(async |endpoint| {
        let all = GEOMETRY.pages();
        let short = page(0, 0)[..100].to_vec();
        let with = |request: Request, data: &[u8]| {
            // The data as if it were a page's: the packet is sealed again.
            let mut packet = request.packet(&[]).to_vec();
            packet.extend_from_slice(data);
            let checksum = crc_fast::crc32_iscsi(&packet[4..]);
            packet[..4].copy_from_slice(&checksum.to_le_bytes());
            Bytes::from(packet)
        };
        let of = |kind, first, pages| request(kind, first, pages).packet(&[]);
        let changed = |change: fn(&mut Request)| {
            let mut one = request(Kind::Read, 0, 1);
            change(&mut one);
            one.packet(&[])
        };
        let write = request(Kind::Write, 0, 2);
        let later = Request { offset: 1, ..write };
        for (packet, why) in [
            (of(Kind::Read, 0, 0), "operation on 0 pages"),
            (of(Kind::Read, 0, 33), "operation on 33 pages"),
            (of(Kind::Read, 0, u16::MAX), "operation on 65535 pages"),
            (of(Kind::Read, all, 1), "outside the card"),
            (of(Kind::Read, all - 1, 2), "outside the card"),
            (of(Kind::Read, u64::MAX, 2), "outside the card"),
            (of(Kind::Write, all, 1), "outside the card"),
            (of(Kind::Write, 0, u16::MAX), "operation on 65535 pages"),
            (of(Kind::Write, 0, 1), "0 bytes for 1 pages"),
            (of(Kind::Erase, 1, 0), "does not start an erase block"),
            (of(Kind::Erase, all, 0), "outside the card"),
            (of(Kind::Erase, u64::MAX - 31, 0), "outside the card"),
            (of(Kind::Erase, 0, 1), "does not start an erase block"),
            (of(Kind::Sync, 0, 1), "pages of what has none"),
            (with(request(Kind::Read, 0, 1), &short), "that is no write"),
            (with(write, &short), "100 bytes for 2 pages"),
            (write.packet(&pages(3)), "24576 bytes for 2 pages"),
            (later.packet(&pages(1)), "first pages are not there"),
            (changed(|one| one.card = 5), "no card of number 5"),
            (changed(|one| one.shape ^= 1), "open it again"),
        ] {
            let text = refused(endpoint, packet).await;
            assert!(text.contains(why), "{text}\nnot: {why}");
        }
        // Pages of a write in the wrong order end it.
        endpoint
            .send(NodeId(1), write.packet(&pages(1)))
            .await
            .unwrap();
        let wrong = Request { first: 8, ..later };
        let text = refused(endpoint, wrong.packet(&pages(1))).await;
        assert!(text.contains("first pages are not there"), "{text}");
        let text = refused(endpoint, later.packet(&pages(1))).await;
        assert!(text.contains("first pages are not there"), "{text}");
        let reply = ask(endpoint, of(Kind::Read, 0, 1)).await;
        assert!(matches!(reply.body, Body::Pages { .. }), "{reply:?}");
    });
}

/// More than what a node may ask for at once, of which nothing is ever finished.
#[test]
fn what_is_kept_for_a_node_is_bounded() {
    with_server(async |endpoint| {
        let begin = |id: u64| Request {
            id,
            ..request(Kind::Write, 0, 32)
        };
        let room = (PAGES_OUT_MAX / 32) as u64;
        for id in 0..room {
            let packet = begin(id).packet(&pages(1));
            endpoint.send(NodeId(1), packet).await.unwrap();
        }
        let text = refused(endpoint, begin(room).packet(&pages(1))).await;
        assert!(text.contains("pages at once"), "{text}");
        // With another epoch nothing of it is left.
        let anew = Request {
            epoch: 8,
            ..request(Kind::Read, 0, 32)
        };
        let mut received = 0;
        endpoint.send(NodeId(1), anew.packet(&[])).await.unwrap();
        while received < 32 {
            match answer(endpoint).await.body {
                Body::Pages { data, offset } => {
                    assert_eq!(usize::from(offset), received);
                    received += data.len() / 8192;
                }
                other => panic!("{other:?} in place of pages"),
            }
        }
    });
}

#[test]
fn noise_is_no_request() {
    let seed = seed();
    with_server(async |endpoint| {
        let chance = &mut StdRng::seed_from_u64(seed);
        let whole = request(Kind::Write, 0, 1).packet(&pages(1));
        for _ in 0..300 {
            let mut packet = match chance.random_range(0..3) {
                0 => vec![0; chance.random_range(0..300)],
                1 => whole[..chance.random_range(0..whole.len())].to_vec(),
                _ => whole.to_vec(),
            };
            if packet.len() != whole.len() {
                chance.fill(&mut packet[..]);
            } else {
                let bit = chance.random_range(0..8 * packet.len());
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            endpoint.send(NodeId(1), packet.into()).await.unwrap();
        }
        // It is told so, and none of it was taken for a write.
        let whole = request(Kind::Read, 0, 1).packet(&[]);
        let mut reply = ask(endpoint, whole).await;
        let mut told = 0;
        let data = loop {
            match reply.body {
                Body::Damaged => told += 1,
                Body::Pages { data, .. } => break data,
                other => panic!("{other:?} in place of a page"),
            }
            reply = answer(endpoint).await;
        };
        assert!(told > 0 && super::is_zero(&data));
    });
}

/// An honest node whose packet was damaged on its way does not wait for an answer to it.
#[test]
fn a_node_whose_packet_was_damaged_is_told() {
    let mut bed = Bed::stopped(vec![vec![], vec![]], "");
    bed.start(0);
    let mesh = bed.mesh(1);
    let server = mesh.endpoint("pages").unwrap();
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| bed.open(0, 1, 0, 1));
        bed.block_on(async {
            server.receive().await.unwrap();
            let reply = Reply {
                session: 1,
                id: 0,
                body: Body::Damaged,
            };
            server.send(NodeId(0), reply.packet()).await.unwrap();
        });
        let text = super::io_text(opening.join().unwrap(), "n1 card 0");
        assert!(text.contains("damaged on its way"), "{text}");
    });
    bed.block_on(mesh.close());
}

/// Whatever the bytes, decoding says what is wrong, and every flipped bit is found.
#[test]
fn decoding_takes_any_bytes() {
    let chance = &mut StdRng::seed_from_u64(seed());
    for _ in 0..20_000 {
        let mut bytes = vec![0; chance.random_range(0..100)];
        chance.fill(&mut bytes[..]);
        if bytes.len() > 6 {
            bytes[4] = 1;
            bytes[5] = chance.random_range(0..9) | (0x80 * chance.random_range(0..2));
            let checksum = crc_fast::crc32_iscsi(&bytes[4..]);
            bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        }
        let _ = wire::decode(bytes.into());
    }
    let reply = wire::pages_packet(3, 4, 0, &pages(1));
    for _ in 0..2_000 {
        let mut damaged = reply.to_vec();
        let bit = chance.random_range(0..8 * damaged.len());
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(wire::decode(damaged.into()).is_err(), "bit {bit}");
    }
}

//! Who asks for much keeps nobody from a turn.

use std::sync::Arc;

use bytes::Bytes;
use flashmesh_pages::store::CardId;

use super::bed::TermInMemory;
use super::hostile::request;
use super::memory;
use crate::cards::PAGES_OUT_MAX;
use crate::cards::server::turns::Work;
use crate::cards::server::{Class, Server};
use crate::cards::wire::{Kind, Request};

fn server(nodes: usize) -> Server {
    let cards = vec![(CardId(0), memory())];
    let terms = Arc::new(TermInMemory::default());
    Server::new("n0".into(), nodes, cards, terms, 1, false).unwrap()
}

/// Who asked for the next jobs.
fn next(server: &Server, most: usize) -> Vec<usize> {
    match server.take(0, Class::Pages, most, false) {
        Work::Jobs(jobs, _) => jobs.iter().map(|job| job.client).collect(),
        other => panic!("{other:?} in place of jobs"),
    }
}

#[test]
fn nodes_take_turns_at_a_card() {
    let server = server(3);
    let ask = |client: usize, count: u64| {
        for id in 0..count {
            let one = Request {
                id,
                ..request(Kind::Read, 0, 1)
            };
            server.arrived(client, one, Bytes::new());
        }
    };
    ask(0, PAGES_OUT_MAX as u64);
    assert_eq!(next(&server, 3), [0, 0, 0]);
    ask(1, 2);
    ask(2, 4);
    assert_eq!(next(&server, 9), [0, 1, 2, 0, 1, 2, 0, 2, 0]);
    assert_eq!(next(&server, 3), [2, 0, 0]);
}

/// What one node may not do yet keeps it from its turn, and nobody else.
#[test]
fn a_node_that_has_to_wait_is_passed_by() {
    let server = server(2);
    let ask = |client, epoch, kind, pages| {
        let one = Request {
            epoch,
            ..request(kind, 0, pages)
        };
        server.arrived(client, one, Bytes::new());
    };
    let stored = || match server.take(0, Class::Pages, 1, false) {
        Work::Store(job) => server.stored(job, None),
        other => panic!("{other:?} in place of a term"),
    };
    ask(0, 1, Kind::Erase, 0);
    stored();
    assert_eq!(next(&server, 9), [0]);
    // Given up, while the card works on it.
    ask(0, 2, Kind::Read, 1);
    ask(1, 1, Kind::Read, 1);
    assert_eq!(next(&server, 9), [1]);
}

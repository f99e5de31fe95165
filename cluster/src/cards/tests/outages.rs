//! Nodes that are away, and back.

use std::sync::Arc;
use std::time::Duration;

use flashmesh_pages::flash::{Flash, FlashOp, FlashPage, PageBuffer, Tag};
use flashmesh_pages::store::{CardId, NodeId};

use super::bed::{SHORT, TermInMemory};
use super::gate::GateFlash;
use super::{Bed, io_text, is_zero, memory, page, read, write};
use crate::cards::{CardOptions, Cards, endpoint_names};
use crate::mesh::Mesh;
use crate::{Rack, Shape};

#[test]
fn a_node_that_is_not_there_is_named() {
    let mut bed = Bed::stopped(vec![vec![], vec![memory()]], SHORT);
    bed.start(0);
    // Who waits while the link is given up is told of that; later ones, that it is.
    io_text(bed.open(0, 1, 0, 1), "n1 card 0");
    let text = io_text(bed.open(0, 1, 0, 1), "n1 card 0");
    assert!(text.contains("can't be reached"), "{text}");
    bed.start(1);
    while bed.open(0, 1, 0, 1).is_err() {}
}

/// The same device goes on when its node is back, without being opened again.
#[test]
fn a_node_that_is_cut_off_and_back_goes_on() {
    let mut bed = Bed::line(vec![vec![], vec![], vec![memory()]], SHORT);
    let card = bed.open(0, 2, 0, 1).unwrap();
    write(&card, 0, 20, 1).unwrap();
    for _ in 0..2 {
        bed.stop(1);
        // What is under way, and what comes while it is away.
        let mut queue = card.open_queue().unwrap();
        for tag in 0..100 {
            let op = FlashOp::Read {
                tag: Tag(tag),
                first: FlashPage(0),
                buffers: (0..20).map(|_| PageBuffer::recycled()).collect(),
            };
            queue.submit(op).unwrap();
        }
        let mut completions = Vec::new();
        queue.wait(100, &mut completions).unwrap();
        assert_eq!(completions.len(), 100);
        for completion in completions {
            assert_eq!(completion.buffers.len(), 20, "buffers come back");
            io_text(completion.result, "n2 card 0");
        }
        io_text(card.sync(), "n2 card 0");
        assert_eq!(card.health(), None);
        bed.start(1);
        while card.used_erase_blocks().is_err() {}
        let pages = read(&card, 0, 20).unwrap();
        assert!((0..).zip(&pages).all(|(n, one)| **one == *page(n, 1)));
    }
}

/// A write that was given up may not reach the card behind what came later.
#[test]
fn a_write_that_was_given_up_is_over_before_an_erase_begins() {
    let gate = GateFlash::new(memory());
    let mut bed = Bed::line(vec![vec![], vec![], vec![gate.clone()]], SHORT);
    let card = bed.open(0, 2, 0, 1).unwrap();
    gate.shut();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write(&card, 0, 1, 1));
        gate.until_held(1);
        bed.stop(1);
        io_text(writing.join().unwrap(), "n2 card 0");
        bed.start(1);
        while bed.open(0, 2, 0, 1).is_err() {}
        let mut erasing = card.open_queue().unwrap();
        let (tag, first) = (Tag(0), FlashPage(0));
        erasing.submit(FlashOp::Erase { tag, first }).unwrap();
        // What a node sends arrives in order: behind this answer the erase is there, and a thread
        // that is free has passed it by when it has read a page for another node.
        bed.open(0, 2, 0, 1).unwrap();
        let other = bed.open(1, 2, 0, 1).unwrap();
        assert!(is_zero(&read(&other, 5, 1).unwrap()[0]));
        assert_eq!(gate.held(), 1, "the erase waits");
        gate.open();
        let mut completions = Vec::new();
        erasing.wait(1, &mut completions).unwrap();
        completions.pop().unwrap().result.unwrap();
    });
    assert!(is_zero(&read(&card, 0, 1).unwrap()[0]), "a late write");
    write(&card, 0, 1, 2).unwrap();
}

/// Nobody answers, though the links are up.
#[test]
fn an_answer_that_does_not_come_is_not_waited_for() {
    for bounds in ["", "[mesh]\nwindow_packets = 1"] {
        let mut bed = Bed::stopped(vec![vec![], vec![]], bounds);
        bed.options.answer_within = Some(Duration::from_millis(50));
        bed.start(0);
        let silent = bed.mesh(1);
        for _ in 0..2 {
            let text = io_text(bed.open(0, 1, 0, 1), "n1 card 0");
            assert!(text.contains("no answer within 50ms"), "{text}");
        }
        bed.block_on(silent.close());
    }
}

#[test]
fn closing_ends_what_waits() {
    let gate = GateFlash::new(memory());
    let mut bed = Bed::line(vec![vec![], vec![gate.clone()]], "");
    let card = bed.open(0, 1, 0, 1).unwrap();
    gate.shut();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write(&card, 0, 1, 1));
        gate.until_held(1);
        bed.stop(0);
        let text = io_text(writing.join().unwrap(), "n1 card 0");
        assert!(text.contains("closed"), "{text}");
    });
    gate.open();
    io_text(card.used_erase_blocks(), "n1 card 0");
}

/// Where tasks are no more, nothing that they would do is waited for.
#[test]
fn a_runtime_that_ends_ends_what_waits() {
    let gate = GateFlash::new(memory());
    let mut bed = Bed::stopped(vec![vec![], vec![gate.clone()]], "");
    bed.start(1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mesh = runtime.block_on(Mesh::start(&bed.rack, NodeId(0))).unwrap();
    let terms = Arc::new(TermInMemory::default());
    let cards = Cards::start(&mesh, Vec::new(), terms, &CardOptions::default()).unwrap();
    let card = cards.open(NodeId(1), CardId(0), 1).unwrap();
    gate.shut();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write(&card, 0, 1, 1));
        gate.until_held(1);
        runtime.shutdown_background();
        let text = io_text(writing.join().unwrap(), "n1 card 0");
        assert!(text.contains("closed"), "{text}");
    });
    gate.open();
    io_text(card.used_erase_blocks(), "n1 card 0");
}

#[test]
fn a_rack_without_the_endpoint_or_room_for_pages_is_refused() {
    let bed = Bed::stopped(vec![vec![]], "");
    let refused = |rack: &Rack| {
        bed.block_on(async {
            let mesh = Mesh::start(rack, NodeId(0)).await.unwrap();
            let terms = Arc::new(TermInMemory::default());
            let started = Cards::start(&mesh, Vec::new(), terms, &CardOptions::default());
            started.unwrap_err().to_string()
        })
    };
    let mut rack = bed.rack.clone();
    rack.endpoints.retain(|one| one.name != endpoint_names()[0]);
    let text = refused(&rack);
    assert!(text.contains("no endpoint 'pages'"), "{text}");
    let mut rack = bed.rack.clone();
    rack.mesh.packet_bytes = 8247;
    let text = refused(&rack);
    assert!(text.contains("cards need 8248 or more"), "{text}");
    // A draft has what is needed.
    let text = Rack::draft("/racks".as_ref(), 4, Shape::Ring, 1, 50051).unwrap();
    let rack = Rack::parse(&text).unwrap();
    let has = |name| rack.endpoints.iter().any(|one| one.name == name);
    assert!(endpoint_names().into_iter().all(has));
}

#[test]
fn a_card_that_was_exchanged_is_noticed() {
    let other = super::Geometry {
        pages_per_erase_block: 16,
        erase_blocks: 64,
    };
    let mut bed = Bed::line(vec![vec![], vec![memory()]], "");
    let card = bed.open(0, 1, 0, 1).unwrap();
    bed.stop(1);
    bed.replace(1, vec![Arc::new(super::MemoryFlash::new(other, 1))]);
    bed.start(1);
    let error = loop {
        match read(&card, 0, 1) {
            Err(flashmesh_pages::StorageError::Io { .. }) => {}
            other => break other.unwrap_err().to_string(),
        }
    };
    assert!(error.contains("open it again"), "{error}");
    let card = bed.cards(0).open(NodeId(1), CardId(0), 1).unwrap();
    assert_eq!(card.geometry(), other);
}

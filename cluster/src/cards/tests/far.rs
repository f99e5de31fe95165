//! Cards that are only read, of nodes that come and go.

use std::sync::Arc;

use flashmesh_pages::flash::{Flash, Geometry, MemoryFlash};
use flashmesh_pages::store::{CardId, NodeId};

use super::super::LateCard;
use super::{Bed, GEOMETRY, bed, erase, io_text, memory, page, read, write};

#[test]
fn a_card_is_asked_for_when_a_page_is_wanted() {
    let mut bed = Bed::stopped(vec![vec![], vec![], vec![memory()]], bed::SHORT);
    (0..2).for_each(|at| bed.start(at));
    let block_pages = GEOMETRY.pages_per_erase_block;
    let far = bed.cards(0).far(NodeId(2), CardId(0), block_pages).unwrap();
    assert_eq!(far.name(), "n2 card 0");
    // Nobody has to be there for what a store asks when it is opened.
    assert_eq!(far.geometry().pages_per_erase_block, block_pages);
    assert_eq!(far.used_erase_blocks().unwrap(), 0);
    far.sync().unwrap();
    io_text(read(&far, 3, 1), "n2 card 0");
    bed.start(2);
    let head = loop {
        if let Ok(card) = bed.open(1, 2, 0, 7) {
            break card;
        }
    };
    write(&head, 0, 9, 1).unwrap();
    head.sync().unwrap();
    while read(&far, 3, 1).is_err() {}
    let mut queue = far.open_queue().unwrap();
    for _ in 0..2 {
        for (number, found) in (3..).zip(read(&far, 3, 4).unwrap()) {
            assert!(*found == *page(number, 1));
        }
        // Its node may restart.
        bed.stop(2);
        io_text(super::run(&mut *queue, read_of(3)), "n2 card 0");
        bed.start(2);
        while super::run(&mut *queue, read_of(3)).is_err() {}
    }
}

fn read_of(first: u64) -> super::FlashOp {
    super::FlashOp::Read {
        tag: super::Tag(9),
        first: super::FlashPage(first),
        buffers: vec![super::PageBuffer::recycled()],
    }
}

#[test]
fn it_changes_nothing_there() {
    let bed = Bed::line(vec![vec![], vec![memory()]], "");
    let head = bed.open(0, 1, 0, 1).unwrap();
    write(&head, 0, 1, 1).unwrap();
    let far = bed
        .cards(0)
        .far(NodeId(1), CardId(0), GEOMETRY.pages_per_erase_block);
    let far = far.unwrap();
    for refused in [write(&far, 1, 1, 2), erase(&far, 0)] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("opened for reading alone"), "{error}");
    }
    assert!(*read(&head, 0, 1).unwrap()[0] == *page(0, 1));
    assert!(bed.cards(0).far(NodeId(5), CardId(0), 1).is_err());
}

/// A node that uses its cards itself lets others read them, and nobody write.
#[test]
fn cards_in_use_are_read_by_others() {
    let (card, late) = (memory(), Arc::new(LateCard::default()));
    let mut bed = Bed::stopped(vec![vec![], vec![card.clone(), late.clone()]], "");
    bed.options.for_reading = true;
    (0..2).for_each(|at| bed.start(at));
    write(&*card, 0, 3, 5).unwrap();
    let block_pages = GEOMETRY.pages_per_erase_block;
    let far = |number| {
        bed.cards(0)
            .far(NodeId(1), CardId(number), block_pages)
            .unwrap()
    };
    assert!(*read(&far(0), 2, 1).unwrap()[0] == *page(2, 5));
    let error = bed.open(0, 1, 0, 9).unwrap_err().to_string();
    assert!(
        error.contains("node 'n1' serves no card of number 0"),
        "{error}"
    );
    // One that is opened later.
    let of_late = far(1);
    let error = io_text(read(&of_late, 1, 1), "n1 card 1");
    assert!(error.contains("its database is not open yet"), "{error}");
    late.set(card);
    assert!(*read(&of_late, 1, 1).unwrap()[0] == *page(1, 5));
}

#[test]
fn erase_blocks_are_those_of_its_own_cards() {
    let other = Geometry {
        pages_per_erase_block: 64,
        ..GEOMETRY
    };
    let card: Arc<dyn Flash> = Arc::new(MemoryFlash::new(other, 1));
    let bed = Bed::line(vec![vec![], vec![card]], "");
    let far = bed
        .cards(0)
        .far(NodeId(1), CardId(0), GEOMETRY.pages_per_erase_block);
    let error = read(&far.unwrap(), 0, 1).unwrap_err().to_string();
    assert!(
        error.contains("n1 card 0 has erase blocks of 64 pages"),
        "{error}"
    );
}

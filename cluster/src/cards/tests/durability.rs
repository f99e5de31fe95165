//! A sync never says that what a node has lost is durable.

use std::sync::Arc;

use flashmesh_pages::flash::{FaultFlash, FaultOptions, Flash, When};

use super::bed::SHORT;
use super::gate::GateFlash;
use super::{Bed, io_text, is_zero, memory, page, read, seed, write};

/// Tries until the node is reached.
fn until_it_works(card: &dyn Flash) {
    while card.used_erase_blocks().is_err() {}
}

#[test]
fn a_sync_fails_when_the_node_has_restarted_behind_a_write() {
    let seed = seed();
    let inner = memory();
    let power = || {
        let options = FaultOptions {
            seed,
            ..FaultOptions::default()
        };
        Arc::new(FaultFlash::new(inner.clone(), options))
    };
    let before = power();
    let mut bed = Bed::line(vec![vec![], vec![before.clone()]], "");
    let card = bed.open(0, 1, 0, 1).unwrap();
    write(&card, 0, 8, 1).unwrap();
    card.sync().unwrap();
    write(&card, 8, 24, 2).unwrap();
    bed.stop(1);
    before.cut_power().unwrap();
    bed.replace(1, vec![power()]);
    bed.start(1);
    until_it_works(&card);
    // Of what was not synced some is lost, by this seed or another one.
    let text = io_text(card.sync(), "n1 card 0");
    assert!(text.contains("restarted"), "{text}");
    // No later one tells, whatever is written between.
    write(&card, 40, 1, 3).unwrap();
    let text = io_text(card.sync(), "n1 card 0");
    assert!(text.contains("restarted"), "{text}");
    // What was synced is there, and whoever opens the card now begins with what is there.
    for (number, buffer) in (0..).zip(read(&card, 0, 8).unwrap()) {
        assert!(*buffer == *page(number, 1), "page {number}, seed {seed}");
    }
    let again = bed.open(0, 1, 0, 1).unwrap();
    write(&again, 64, 1, 4).unwrap();
    again.sync().unwrap();
}

#[test]
fn without_unsynced_writes_a_restart_does_not_matter() {
    let mut bed = Bed::line(vec![vec![], vec![memory()]], "");
    let card = bed.open(0, 1, 0, 1).unwrap();
    write(&card, 0, 1, 1).unwrap();
    card.sync().unwrap();
    bed.stop(1);
    bed.start(1);
    until_it_works(&card);
    card.sync().unwrap();
    write(&card, 1, 1, 1).unwrap();
    card.sync().unwrap();
}

/// Changes of two sessions between two syncs: those of the first are lost, though the last session
/// is the one that syncs.
#[test]
fn writes_on_both_sides_of_a_restart_are_noticed() {
    let mut bed = Bed::line(vec![vec![], vec![memory()]], "");
    let card = bed.open(0, 1, 0, 1).unwrap();
    write(&card, 0, 1, 1).unwrap();
    bed.stop(1);
    bed.start(1);
    until_it_works(&card);
    write(&card, 1, 1, 1).unwrap();
    let text = io_text(card.sync(), "n1 card 0");
    assert!(text.contains("restarted"), "{text}");
}

/// The node in the middle is away while a write is under way: the write fails, as nobody knows what
/// becomes of it, and so do syncs from then on.
#[test]
fn a_sync_fails_behind_a_write_of_unknown_outcome() {
    let gate = GateFlash::new(memory());
    let mut bed = Bed::line(vec![vec![], vec![], vec![gate.clone()]], SHORT);
    let card = bed.open(0, 2, 0, 1).unwrap();
    gate.shut();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write(&card, 0, 1, 1));
        gate.until_held(1);
        bed.stop(1);
        io_text(writing.join().unwrap(), "n2 card 0");
    });
    gate.open();
    bed.start(1);
    until_it_works(&card);
    io_text(card.sync(), "n2 card 0");
    io_text(card.sync(), "n2 card 0");
    assert!(is_zero(&read(&card, 1, 1).unwrap()[0]));
    bed.open(0, 2, 0, 1).unwrap().sync().unwrap();
}

/// A write that never left is a write that failed, and no more than that.
#[test]
fn writes_to_a_node_that_is_away_leave_no_doubt() {
    let mut bed = Bed::line(vec![vec![], vec![], vec![memory()]], SHORT);
    let card = bed.open(0, 2, 0, 1).unwrap();
    write(&card, 0, 1, 1).unwrap();
    bed.stop(1);
    while !io_text(read(&card, 0, 1), "n2 card 0").contains("can't be reached") {}
    for version in 0..3 {
        let text = io_text(write(&card, 1, 20, version), "n2 card 0");
        assert!(text.contains("can't be reached"), "{text}");
    }
    bed.start(1);
    until_it_works(&card);
    write(&card, 1, 20, 9).unwrap();
    card.sync().unwrap();
}

#[test]
fn errors_of_the_card_arrive_as_errors() {
    let fault = Arc::new(FaultFlash::new(memory(), FaultOptions::default()));
    let bed = Bed::line(vec![vec![], vec![fault.clone()]], "");
    let card = bed.open(0, 1, 0, 1).unwrap();
    let set = |options| fault.set_options(options);
    let fails = FaultOptions {
        fail: When::OneIn(1),
        ..FaultOptions::default()
    };
    set(fails);
    for outcome in [
        write(&card, 0, 20, 1),
        read(&card, 0, 20).map(drop),
        super::erase(&card, 0),
    ] {
        let text = io_text(outcome, "n1 card 0");
        assert!(text.contains("the operation has failed"), "{text}");
    }
    set(FaultOptions::default());
    write(&card, 32, 1, 1).unwrap();
    let fails = FaultOptions {
        fail_sync: When::Nth(0),
        ..FaultOptions::default()
    };
    set(fails);
    let text = io_text(card.sync(), "n1 card 0");
    assert!(text.contains("the sync has failed"), "{text}");
    // The next one of the device ends well, and lies: it must not count.
    io_text(card.sync(), "n1 card 0");
    // What is wrong with a request is told by the one who knows.
    let again = write(&card, 64, 1, 1).and_then(|()| write(&card, 64, 1, 2));
    assert!(again.is_ok(), "the wrapper lets pages be written twice");
    let bed = Bed::line(vec![vec![], vec![memory()]], "");
    let card = bed.open(0, 1, 0, 1).unwrap();
    let twice = write(&card, 64, 1, 1).and_then(|()| write(&card, 64, 1, 2));
    let error = twice.unwrap_err();
    assert!(
        matches!(&error, flashmesh_pages::StorageError::Invalid(why)
            if why.contains("n1 card 0") && why.contains("second time")),
        "{error}"
    );
}

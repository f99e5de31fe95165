//! One writer: lower terms are refused, also after a restart.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flashmesh_pages::flash::{Flash, FlashOp, FlashPage, Tag};
use flashmesh_pages::{Result, StorageError};

use super::gate::GateFlash;
use super::{Bed, erase, io_text, is_zero, memory, page, read, write};
use crate::cards::{TermFile, TermStore};

#[track_caller]
fn assert_refused(outcome: Result<()>, term: u64, seen: u64) {
    match outcome {
        Err(StorageError::ReadOnly { path, reason }) => {
            assert_eq!(path.to_str(), Some("n1 card 0"));
            let expected = format!("term {term} is over, node 'n1' has seen term {seen}");
            assert!(reason.contains(&expected), "{reason}");
        }
        other => panic!("{other:?} in place of a refusal"),
    }
}

#[test]
fn a_lower_term_is_refused_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut bed = Bed::stopped(vec![vec![], vec![memory(), memory()], vec![]], "");
    bed.terms[1] = Arc::new(TermFile::new(folder.path().join("terms/term")));
    (0..3).for_each(|at| bed.start(at));
    let old = bed.open(0, 1, 0, 4).unwrap();
    write(&old, 0, 1, 1).unwrap();
    old.sync().unwrap();
    // Another node holds the catalog now, and begins with the other card.
    let new = bed.open(2, 1, 1, 5).unwrap();
    new.sync().unwrap();
    for _ in 0..2 {
        assert_refused(write(&old, 1, 1, 1), 4, 5);
        assert_refused(erase(&old, 0), 4, 5);
        assert_refused(old.sync(), 4, 5);
        // Reads are for all.
        assert!(*read(&old, 0, 1).unwrap()[0] == *page(0, 1));
        assert!(is_zero(&read(&old, 1, 1).unwrap()[0]));
        // The term is there when the node is.
        bed.stop(1);
        bed.start(1);
        while old.used_erase_blocks().is_err() {}
    }
    while new.used_erase_blocks().is_err() {}
    write(&new, 0, 1, 1).unwrap();
    new.sync().unwrap();
}

/// What the old writer has under way ends before the new one begins.
#[test]
fn a_new_term_waits_for_changes_of_the_old_one() {
    let gate = GateFlash::new(memory());
    let bed = Bed::line(vec![vec![], vec![gate.clone()], vec![]], "");
    let (old, new) = (bed.open(0, 1, 0, 1).unwrap(), bed.open(2, 1, 0, 2).unwrap());
    write(&old, 32, 1, 1).unwrap();
    gate.shut();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write(&old, 0, 1, 1));
        gate.until_held(1);
        let mut erasing = new.open_queue().unwrap();
        let (tag, first) = (Tag(0), FlashPage(0));
        erasing.submit(FlashOp::Erase { tag, first }).unwrap();
        // What a node sends arrives in order: behind this answer the new term is known.
        new.used_erase_blocks().unwrap();
        assert_refused(erase(&old, 64), 1, 2);
        assert_eq!(gate.held(), 1, "the new one waits");
        gate.open();
        writing.join().unwrap().unwrap();
        let mut completions = Vec::new();
        erasing.wait(1, &mut completions).unwrap();
        completions.pop().unwrap().result.unwrap();
    });
    assert!(is_zero(&read(&new, 0, 1).unwrap()[0]));
    assert_eq!(bed.terms[1].load().unwrap(), 2);
}

/// Stores nothing while it is broken.
#[derive(Debug, Default)]
struct Broken {
    is_broken: AtomicBool,
    inner: super::bed::TermInMemory,
}

impl TermStore for Broken {
    fn load(&self) -> Result<u64> {
        self.inner.load()
    }

    fn store(&self, term: u64) -> Result<()> {
        match self.is_broken.load(Ordering::SeqCst) {
            true => Err(StorageError::io("storing", io::Error::other("no room"))),
            false => self.inner.store(term),
        }
    }
}

#[test]
fn nothing_is_changed_under_a_term_that_is_not_durable() {
    let mut bed = Bed::stopped(vec![vec![], vec![memory()]], "");
    let terms = Arc::new(Broken::default());
    bed.terms[1] = terms.clone();
    (0..2).for_each(|at| bed.start(at));
    let card = bed.open(0, 1, 0, 3).unwrap();
    terms.is_broken.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let text = io_text(write(&card, 0, 1, 1), "n1 card 0");
        assert!(text.contains("no room"), "{text}");
        assert!(is_zero(&read(&card, 0, 1).unwrap()[0]));
    }
    terms.is_broken.store(false, Ordering::SeqCst);
    write(&card, 0, 1, 1).unwrap();
    assert_eq!(terms.load().unwrap(), 3);
    card.sync().unwrap();
}

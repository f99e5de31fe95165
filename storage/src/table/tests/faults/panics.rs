//! A thread that panics at an I/O takes no commit of others with it, and lets none hang.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;

use super::devices::{Fault, Rig};
use super::{new_database, open};
use crate::table::Database;
use crate::table::tests::{append, create, load, read, rows, seed};

const THREADS: i64 = 3;
const COMMITS: i64 = 5;

/// Commits rows, with a checkpoint among them, and tells of each whether it was acknowledged.
fn commit(database: &Arc<Database>, thread: i64, told: &mpsc::Sender<(i64, bool)>) {
    for number in 0..COMMITS {
        let id = 100 * (1 + thread) + number;
        let commit = || load(database, append(), &rows(id, 1)).is_ok();
        let committed = catch_unwind(AssertUnwindSafe(commit)).unwrap_or(false);
        told.send((id, committed)).unwrap();
        if number == COMMITS / 2 {
            let _ = catch_unwind(AssertUnwindSafe(|| database.empty_log()));
        }
    }
}

/// The last reference closes the database.
fn close(database: Arc<Database>) {
    let _ = catch_unwind(AssertUnwindSafe(move || drop(database)));
}

#[test]
fn a_panic_at_any_io_fails_commits_and_hangs_none() {
    let seed = seed();
    let mut refused = 0;
    for nth in 0.. {
        let rig = Rig::new(new_database(seed), seed);
        let database = open(&rig).unwrap();
        load(&database, create(true), &rows(0, 10)).unwrap();
        rig.faults.plan(nth, Fault::Panic);
        let (told, heard) = mpsc::channel();
        for thread in 0..THREADS {
            let (database, told) = (Arc::clone(&database), told.clone());
            thread::spawn(move || {
                commit(&database, thread, &told);
                close(database);
            });
        }
        // This thread waits for nothing without a bound.
        thread::spawn(move || {
            close(database);
            drop(told);
        });
        let (mut known, mut acknowledged) = ((0..10).collect::<BTreeSet<i64>>(), BTreeSet::new());
        loop {
            match heard.recv_timeout(Duration::from_secs(120)) {
                Ok((id, committed)) => {
                    known.insert(id);
                    refused += usize::from(!committed);
                    acknowledged.extend(committed.then_some(id));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("I/O {nth}: a commit hangs"),
            }
        }
        let has_come = rig.faults.end();
        let rig = Rig::new(rig.restart(seed), seed);
        let database = open(&rig).unwrap();
        let table = database.snapshot("public", "t").unwrap();
        let found = read(&database, table).unwrap();
        let found: BTreeSet<i64> = found
            .column(0)
            .as_primitive::<Int64Type>()
            .values()
            .iter()
            .copied()
            .collect();
        assert!(
            found.is_superset(&acknowledged),
            "I/O {nth}: {found:?} of {acknowledged:?}"
        );
        assert!(found.is_subset(&known), "I/O {nth}: {found:?}");
        if !has_come {
            break;
        }
    }
    assert!(refused > 0);
}

//! What the statements of a transaction read, whatever becomes of it.

use std::collections::BTreeMap;

use super::*;
use crate::index::{IndexDefinition, IndexKind};
use crate::lookup::KeyLookup;
use crate::table::{Isolation, Workspace};

/// A statement that still reads what its transaction has written goes on to its end after COMMIT,
/// although that moves the pages at once: its record is too long for the log, so that a checkpoint is
/// made of it, and those that were in memory go to the card. When nobody reads them any more they are
/// gone from memory.
#[test]
fn what_a_transaction_wrote_is_read_after_its_commit_has_moved_it() {
    let mut rng = StdRng::seed_from_u64(seed());
    let dir = TempDir::new().unwrap();
    let options = DatabaseOptions {
        upkeep: UpkeepOptions {
            in_background: false,
            ..UpkeepOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let database = Database::open(dir.path(), options).unwrap();
    let mut table = create(false);
    if let LoadTarget::Create { indexes, .. } = &mut table {
        indexes.push(IndexDefinition {
            name: "t_pkey".into(),
            kind: IndexKind::Hash,
            columns: vec![0],
            unique: true,
            primary: true,
            options: BTreeMap::new(),
        });
    }
    load(&database, table, &rows(0, 10)).unwrap();
    let workspace = Workspace::new(Arc::clone(&database));
    workspace.begin(Isolation::Snapshot, false).unwrap();
    // Each is small enough to stay in memory, and all of them are too much for a record of the log.
    let mut expected: Vec<(i64, Option<String>)> = Vec::new();
    for first in (1..15).map(|load| 1000 * load) {
        // Characters at random, most of four bytes, which nothing compresses.
        let text =
            |rng: &mut StdRng| -> String { (0..400).map(|_| rng.random::<char>()).collect() };
        let texts: Vec<String> = (0..500).map(|_| text(&mut rng)).collect();
        let ids: Vec<i64> = (first..first + 500).collect();
        expected.extend(ids.iter().copied().zip(texts.iter().cloned().map(Some)));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(ids)),
            Arc::new(StringArray::from(texts)),
        ];
        let load = workspace.begin_load(append()).unwrap();
        let mut writer = load.writer().unwrap();
        let batch = RecordBatch::try_new(schema(), columns).unwrap();
        writer.append(&batch).unwrap();
        writer.finish().unwrap();
        load.commit().unwrap();
    }
    let in_memory = database.store().memory_bytes();
    assert!(in_memory > 8 << 20, "{in_memory} bytes in memory");
    let cursor = workspace.snapshot("public", "t").unwrap();
    workspace.commit().unwrap();

    let found = read(&database, Arc::clone(&cursor)).unwrap();
    let mut found: Vec<(i64, Option<String>)> = found
        .column(0)
        .as_primitive::<Int64Type>()
        .values()
        .iter()
        .copied()
        .zip(
            found
                .column(1)
                .as_string_view()
                .iter()
                .map(|text| text.map(String::from)),
        )
        .filter(|(id, _)| *id >= 1000)
        .collect();
    found.sort();
    assert!(found == expected, "other rows are read than were written");
    // So it is with parts of its indexes.
    let node = StorageNode::new(Arc::clone(database.store()));
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1003, 5499]));
    let lookup = KeyLookup {
        table: &cursor,
        index: cursor.primary_key().unwrap(),
        keys: std::slice::from_ref(&keys),
        columns: &[0],
    };
    let capability = node.owner_capability(&cursor);
    let rows: usize = node
        .look_up(&lookup, &capability)
        .unwrap()
        .iter()
        .map(RecordBatch::num_rows)
        .sum();
    assert_eq!(rows, 2);

    drop(cursor);
    assert_eq!(database.store().memory_bytes(), 0);
    assert_eq!(ids(&database).len(), 10 + expected.len());
    let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
}

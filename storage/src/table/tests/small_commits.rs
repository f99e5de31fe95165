//! Small commits that meet: one segment and one edit, and to each client a commit of its own.

use std::collections::BTreeMap;
use std::thread;

use arrow::array::UInt64Array;

use super::*;
use crate::index::{IndexDefinition, IndexKind};
use crate::segment::{Segment, row_id};

/// A table with a key, of rows `0..20`.
fn with_key(database: &Arc<Database>) {
    let key = IndexDefinition {
        name: "t_key".into(),
        kind: IndexKind::Hash,
        columns: vec![0],
        unique: true,
        primary: true,
        options: BTreeMap::new(),
    };
    let mut target = create(false);
    if let LoadTarget::Create { indexes, .. } = &mut target {
        indexes.push(key);
    }
    load(database, target, &rows(0, 20)).unwrap();
}

fn snapshot(database: &Database) -> Arc<TableSnapshot> {
    database.snapshot("public", "t").unwrap()
}

/// Where a row with an id is.
fn place(database: &Database, table: &TableSnapshot, id: i64) -> Option<u64> {
    let mut reader = database.store().reader().unwrap();
    let mut in_segment = |segment: &Arc<Segment>| {
        let ids = crate::segment::read_column(&mut reader, segment, 0, &DataType::Int64).unwrap();
        let ids = ids.as_primitive::<Int64Type>().values().iter();
        let found = (0..)
            .zip(ids)
            .find(|(row, other)| **other == id && segment.has_row(*row));
        found.map(|(row, _)| row_id(segment.id, row))
    };
    table.segments.iter().find_map(&mut in_segment)
}

/// A change that puts a row, in the place of the one that is there.
fn put(database: &Arc<Database>, id: i64, text: &str) -> Load {
    let version = snapshot(database);
    let old = UInt64Array::from(vec![place(database, &version, id)]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![id])),
        Arc::new(StringArray::from(vec![text])),
        Arc::new(old),
    ];
    let batch = RecordBatch::try_from_iter(["id", "text", "row"].into_iter().zip(columns));
    begun(database, change(version), &batch.unwrap())
}

/// A change that deletes rows.
fn delete(database: &Arc<Database>, ids: &[i64]) -> Load {
    let version = snapshot(database);
    let places: UInt64Array = ids
        .iter()
        .map(|id| place(database, &version, *id))
        .collect();
    let places: ArrayRef = Arc::new(places);
    let batch = RecordBatch::try_from_iter([("row", places)]).unwrap();
    begun(database, change(version), &batch)
}

fn change(version: Arc<TableSnapshot>) -> LoadTarget {
    LoadTarget::Change {
        schema: "public".into(),
        table: "t".into(),
        version,
    }
}

/// Commits loads that come, in this order, while the table is held; `meanwhile` is done before they
/// may go on.
fn meet(database: &Arc<Database>, loads: Vec<Load>, meanwhile: impl FnOnce()) -> Vec<Result<u64>> {
    let table = database.table_state("public", "t").unwrap();
    let held = table.editing.lock();
    let commits = (1..).zip(loads).map(|(number, load)| {
        let commit = thread::spawn(|| load.commit());
        while database.small_commits.count() < number {
            thread::yield_now();
        }
        commit
    });
    let commits: Vec<_> = commits.collect();
    meanwhile();
    drop(held);
    let ended = commits.into_iter().map(|commit| commit.join().unwrap());
    let ended = ended.collect();
    assert_eq!(database.small_commits.count(), 0);
    ended
}

/// All rows, by their keys.
fn all(database: &Database) -> BTreeMap<i64, Option<String>> {
    let batch = read(database, snapshot(database)).unwrap();
    let ids = batch.column(0).as_primitive::<Int64Type>().values().iter();
    let texts = batch.column(1).as_string_view().iter();
    let rows: Vec<_> = ids
        .copied()
        .zip(texts.map(|t| t.map(str::to_owned)))
        .collect();
    let count = rows.len();
    let rows: BTreeMap<_, _> = rows.into_iter().collect();
    assert_eq!(rows.len(), count, "a key twice");
    rows
}

fn text(found: &BTreeMap<i64, Option<String>>, id: i64) -> Option<&str> {
    found.get(&id)?.as_deref()
}

fn quiet(dir: &TempDir) -> Arc<Database> {
    let upkeep = UpkeepOptions {
        in_background: false,
        ..UpkeepOptions::default()
    };
    let options = DatabaseOptions {
        upkeep,
        ..DatabaseOptions::default()
    };
    Database::open(dir.path(), options).unwrap()
}

#[test]
fn those_that_meet_are_one_segment_and_one_version() {
    let dir = TempDir::new().unwrap();
    let database = quiet(&dir);
    with_key(&database);
    let before = snapshot(&database);
    let mut loads = vec![
        put(&database, 3, "put"),
        delete(&database, &[4, 5]),
        begun(&database, append(), &rows(100, 3)),
        begun(&database, append(), &rows(200, 1)),
    ];
    loads.push(put(&database, 300, "new"));
    let ended = meet(&database, loads, || ());
    let counts: Vec<u64> = ended.into_iter().map(|ended| ended.unwrap()).collect();
    assert_eq!(counts[2..], [3, 1, 1]);
    let after = snapshot(&database);
    assert_eq!(after.version, before.version + 1);
    assert_eq!(after.segments.len(), before.segments.len() + 1);
    assert_eq!(
        after.indexes[0].parts.len(),
        before.indexes[0].parts.len() + 1
    );
    let found = all(&database);
    assert_eq!(found.len(), 20 - 2 + 3 + 1 + 1);
    assert_eq!(text(&found, 3), Some("put"));
    assert_eq!(text(&found, 300), Some("new"));
    // In the order in which they came.
    assert_eq!(ids(&database)[17..], [3, 100, 101, 102, 200, 300]);
    drop((before, after, database));
    assert_eq!(all(&open(dir.path())), found);
}

#[test]
fn more_than_may_be_together_are_several() {
    let dir = TempDir::new().unwrap();
    let database = quiet(&dir);
    with_key(&database);
    let before = snapshot(&database).version;
    let loads = (0..40).map(|n| begun(&database, append(), &rows(100 + n, 1)));
    let ended = meet(&database, loads.collect(), || ());
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert_eq!(snapshot(&database).version, before + 3);
    assert_eq!(all(&database).len(), 60);
}

#[test]
fn one_that_conflicts_is_refused_alone() {
    let dir = TempDir::new().unwrap();
    let database = quiet(&dir);
    with_key(&database);
    let loads = vec![
        put(&database, 7, "first"),
        put(&database, 8, "kept"),
        put(&database, 7, "second"),
        delete(&database, &[9, 7]),
        put(&database, 9, "kept too"),
    ];
    let ended = meet(&database, loads, || ());
    let is_ok: Vec<bool> = ended.iter().map(Result::is_ok).collect();
    assert_eq!(is_ok, [true, true, false, false, true]);
    for refused in ended.into_iter().filter_map(Result::err) {
        assert!(
            matches!(refused, StorageError::Conflict { .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains("(id) = (7)"), "{refused}");
    }
    let found = all(&database);
    let texts = [7, 8, 9].map(|id| text(&found, id));
    assert_eq!(texts, [Some("first"), Some("kept"), Some("kept too")]);
}

#[test]
fn one_whose_key_is_there_is_refused_alone() {
    let dir = TempDir::new().unwrap();
    let database = quiet(&dir);
    with_key(&database);
    let loads = vec![
        begun(&database, append(), &rows(50, 1)),
        begun(&database, append(), &rows(5, 1)),
        begun(&database, append(), &rows(51, 2)),
        begun(&database, append(), &rows(52, 1)),
        begun(&database, append(), &rows(53, 1)),
    ];
    let ended = meet(&database, loads, || ());
    let refused = ended.iter().map(|ended| match ended {
        Ok(_) => None,
        Err(StorageError::DuplicateKey { values, .. }) => Some(values.as_str()),
        Err(other) => panic!("{other}"),
    });
    assert_eq!(
        refused.collect::<Vec<_>>(),
        [None, Some(" = (5)"), None, Some(" = (52)"), None]
    );
    let added: Vec<i64> = all(&database).into_keys().filter(|id| *id >= 20).collect();
    assert_eq!(added, [50, 51, 52, 53]);
}

/// What becomes of the table while they wait is found when they go on.
#[test]
fn a_table_that_changes_meanwhile_is_noticed() {
    let dir = TempDir::new().unwrap();
    let database = quiet(&dir);
    let two = |database| {
        vec![
            begun(database, append(), &rows(100, 2)),
            put(database, 3, "put"),
        ]
    };
    with_key(&database);
    // `decide` by itself: who holds the table is the test.
    let drop_table = || {
        let present = database.table_state("public", "t").unwrap();
        let mut edit = crate::table::edit::TableEdit::default();
        edit.require(present.version());
        let name = crate::table::edit::ObjectName::new("public", "t");
        edit.push(crate::table::edit::Operation::DropTable(
            crate::table::edit::DropTable {
                name,
                table: present.snapshot.id.0,
            },
        ));
        assert!(database.commit(edit).unwrap());
    };
    for ended in meet(&database, two(&database), drop_table) {
        let error = ended.unwrap_err();
        assert!(matches!(error, StorageError::NotFound { .. }), "{error}");
    }
    // Another table of that name.
    with_key(&database);
    let replace = || {
        drop_table();
        with_key(&database);
    };
    for ended in meet(&database, two(&database), replace) {
        let error = ended.unwrap_err();
        assert!(matches!(error, StorageError::NotFound { .. }), "{error}");
    }
    assert_eq!(all(&database).len(), 20);
}

/// Random changes by several clients, beside a background that compacts, leave what they were told.
#[test]
fn random_changes_by_several_clients_leave_what_they_were_told() {
    const CLIENTS: i64 = 4;
    const ROUNDS: usize = if cfg!(debug_assertions) { 60 } else { 300 };
    let seed = seed();
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    with_key(&database);
    // Each has keys of its own, and all fight for 0..5.
    let clients = (1..=CLIENTS).map(|client| {
        let database = Arc::clone(&database);
        thread::spawn(move || {
            let mut rng = StdRng::seed_from_u64(seed.wrapping_add(client as u64));
            let mut own: BTreeMap<i64, Option<String>> = BTreeMap::new();
            let mut refused = 0;
            for round in 0..ROUNDS {
                let id = 1000 * client + rng.random_range(0..30);
                let text = format!("{client} {round}");
                let (load, become_of) = match rng.random_range(0..4) {
                    0 => (put(&database, rng.random_range(0..5), &text), None),
                    1 if own.contains_key(&id) => (delete(&database, &[id]), Some((id, None))),
                    _ => (put(&database, id, &text), Some((id, Some(text)))),
                };
                match (load.commit(), become_of) {
                    (Ok(_), Some((id, Some(text)))) => drop(own.insert(id, Some(text))),
                    (Ok(_), Some((id, None))) => drop(own.remove(&id)),
                    (Ok(_), None) => {}
                    (Err(StorageError::Conflict { .. }), None) => refused += 1,
                    (Err(error), _) => panic!("{error}"),
                }
            }
            (own, refused)
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut expected: BTreeMap<i64, Option<String>> = BTreeMap::new();
    for client in clients {
        let (own, refused) = client.join().unwrap();
        assert!(refused < ROUNDS, "a client was refused always");
        expected.extend(own);
    }
    let check = |database: &Database| {
        let mut found = all(database);
        let shared = found.split_off(&20);
        assert_eq!(found.len(), 20);
        assert_eq!(shared, expected);
        let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
        assert_eq!(problems, Vec::<String>::new());
    };
    check(&database);
    drop(database);
    check(&open(dir.path()));
}

/// Rows that are many, or large, are written before the commit, with those of other writers.
#[test]
fn loads_of_small_and_large_parts_keep_their_order() {
    let dir = TempDir::new().unwrap();
    let database = quiet(&dir);
    load(&database, create(false), &rows(0, 1)).unwrap();
    for sizes in [[1, 90_000, 2], [3, 2, 1], [700, 300, 400]] {
        let first = ids(&database).len() as i64;
        let load = database.begin_load(append()).unwrap();
        let mut next = first;
        let writers = sizes.map(|count| {
            let mut writer = load.writer().unwrap();
            writer.append(&rows(next, count)).unwrap();
            next += count as i64;
            writer
        });
        // The last one is done first.
        for writer in writers.into_iter().rev() {
            writer.finish().unwrap();
        }
        assert_eq!(load.commit().unwrap(), (next - first) as u64);
        assert_eq!(ids(&database), (0..next).collect::<Vec<_>>());
    }
    let long = "long ".repeat(50_000);
    let texts: ArrayRef = Arc::new(StringArray::from(vec![long.as_str(), "short"]));
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![-1, -2]));
    let batch = RecordBatch::try_from_iter([("id", keys), ("text", texts)]).unwrap();
    load(&database, append(), &batch).unwrap();
    drop(database);
    let database = open(dir.path());
    let found = all(&database);
    assert_eq!(text(&found, -1), Some(long.as_str()));
    assert_eq!(text(&found, -2), Some("short"));
}

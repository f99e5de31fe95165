//! Edits that meet others on their way.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;

use prost::Message;

use super::*;
use crate::index::{IndexDefinition, IndexKind};
use crate::segment::{Segment, TableId};
use crate::table::edit::{Operation, TableEdit};
use crate::table::indexing::{NewParts, PartBuilder};

fn hash_index(name: &str, column: u32) -> IndexDefinition {
    IndexDefinition {
        name: name.into(),
        kind: IndexKind::Hash,
        columns: vec![column],
        unique: false,
        primary: false,
        options: BTreeMap::new(),
    }
}

#[test]
fn rows_of_loads_that_overlap_keep_their_order_when_reopened() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 5)).unwrap();
    let early = begun(&database, append(), &rows(100, 5));
    let late = begun(&database, append(), &rows(200, 5));
    late.commit().unwrap();
    early.commit().unwrap();
    let expected: Vec<i64> = (0..5).chain(200..205).chain(100..105).collect();
    assert_eq!(ids(&database), expected);
    drop(database);
    assert_eq!(ids(&open(dir.path())), expected);
}

#[test]
fn appends_that_meet_at_their_commits_are_all_there() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 1)).unwrap();
    database
        .create_index("public", "t", hash_index("i", 0))
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let database = &database;
            scope.spawn(move || {
                for round in 0..5 {
                    let first = 1000 * (thread + 1) + 10 * round;
                    load(database, append(), &rows(first, 3)).unwrap();
                }
            });
        }
    });
    let check = |database: &Arc<Database>| {
        let all: HashSet<i64> = ids(database).into_iter().collect();
        assert_eq!(all.len(), 61);
        assert_eq!(
            database.fsck(&mut |_| Ok(())).unwrap().problems,
            Vec::<String>::new()
        );
    };
    check(&database);
    drop(database);
    check(&open(dir.path()));
}

#[test]
fn a_name_of_an_index_is_taken_once_by_loads_that_overlap() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    let target = |table: &str| LoadTarget::Create {
        layout: layout(),
        distribution: None,
        retention: std::time::Duration::ZERO,
        defaults: vec![],
        checks: vec![],
        schema: "public".into(),
        table: table.into(),
        arrow_schema: schema(),
        or_replace: false,
        indexes: vec![hash_index("i", 0)],
    };
    let first = begun(&database, target("a"), &rows(0, 5));
    let second = begun(&database, target("b"), &rows(0, 5));
    first.commit().unwrap();
    let error = second.commit().unwrap_err();
    assert!(
        matches!(&error, StorageError::AlreadyExists { kind: "index", .. }),
        "{error}"
    );
    assert_eq!(database.tables("public"), ["a"]);
}

/// The parts that an edit publishes for an index over `new` segments.
fn published(parts: &mut NewParts, definition: &IndexDefinition, new: &[Arc<Segment>]) -> Vec<u32> {
    let mut operations = Vec::new();
    parts.start();
    parts
        .publish(definition, &[], &[], new, &mut operations)
        .unwrap();
    let part = |operation: Operation| match operation {
        Operation::PutPart(put) => put.part,
        other => panic!("{other:?}"),
    };
    operations.into_iter().map(part).collect()
}

#[test]
fn a_part_serves_its_own_definition_and_what_came_meanwhile_gets_a_part_more() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 50)).unwrap();
    load(&database, append(), &rows(50, 50)).unwrap();
    let table = database.table_state("public", "t").unwrap();
    let segments = &table.snapshot.segments;
    let unique = |column| IndexDefinition {
        unique: true,
        ..hash_index("i", column)
    };
    let mut parts = NewParts::new(PartBuilder::of(&database, &table).unwrap());
    let first = published(&mut parts, &unique(0), &segments[..1]);
    assert_eq!(first.len(), 1);
    // The index was dropped and made anew on another column.
    let other = published(&mut parts, &unique(1), &segments[..1]);
    assert_eq!(other.len(), 1);
    assert_ne!(first, other);
    // Nothing of what is built is built again.
    let both = published(&mut parts, &unique(0), segments);
    assert_eq!(both.len(), 2);
    assert_eq!(both[0], first[0]);
    assert_eq!(published(&mut parts, &unique(0), segments), both);
    // What need not be unique is left to the tail.
    let later = hash_index("i", 0);
    parts.build(&later, &segments[..1]).unwrap();
    assert_eq!(published(&mut parts, &later, segments).len(), 1);
    assert!(published(&mut parts, &later, &segments[1..]).is_empty());
}

#[test]
fn numbers_end_and_do_not_begin_again() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 5)).unwrap();
    let state = database.table_state("public", "t").unwrap();
    state.next_segment.store(u32::MAX, Ordering::Relaxed);
    let error = load(&database, append(), &rows(5, 5)).unwrap_err();
    assert!(error.to_string().contains("used up"), "{error}");
    assert_eq!(ids(&database).len(), 5);
}

#[test]
fn the_number_of_a_table_that_was_not_committed_is_not_used_again() {
    let dir = TempDir::new().unwrap();
    let mut seen = HashSet::<TableId>::new();
    for _ in 0..3 {
        let database = open(dir.path());
        assert!(seen.insert(database.next_table_id().unwrap()));
    }
}

#[test]
fn an_edit_is_the_same_behind_its_bytes() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 500)).unwrap();
    database
        .create_index("public", "t", hash_index("i", 0))
        .unwrap();
    // What is closed is in the catalog.
    drop(database);
    let database = open(dir.path());
    let edit = database.catalog.whole().unwrap();
    assert!(edit.operations().count() > 3);
    let decoded = TableEdit::decode(edit.encode_to_vec().as_slice()).unwrap();
    assert_eq!(decoded, edit);
    // Two states to which the same edits were applied are the same.
    let mut state = crate::table::state::State::default();
    let change = state.change(&decoded).unwrap();
    state.install(&decoded, change);
    let mut tables = state.tables.into_values();
    let copy = tables.next().unwrap().snapshot;
    assert_eq!(
        read(&database, copy).unwrap(),
        read(&database, database.snapshot("public", "t").unwrap()).unwrap()
    );
}

#[test]
fn a_database_of_format_3_is_read_and_becomes_one_of_today_when_it_is_written() {
    use redb::ReadableTable;

    const META: redb::TableDefinition<&str, u32> = redb::TableDefinition::new("meta");
    let dir = TempDir::new().unwrap();
    load(&open(dir.path()), create(false), &rows(0, 500)).unwrap();
    let path = dir.path().join("catalog.redb");
    let format = |new: Option<u32>| {
        let catalog = redb::Database::open(&path).unwrap();
        let txn = catalog.begin_write().unwrap();
        let found = {
            let mut meta = txn.open_table(META).unwrap();
            let found = meta.get("format").unwrap().unwrap().value();
            meta.insert("format", new.unwrap_or(found)).unwrap();
            found
        };
        txn.commit().unwrap();
        found
    };
    format(Some(3));
    // It had none.
    std::fs::remove_file(dir.path().join("commits.log")).unwrap();
    let options = DatabaseOptions {
        read_only: true,
        ..DatabaseOptions::default()
    };
    let readers = Database::open(dir.path(), options).unwrap();
    assert_eq!(ids(&readers), (0..500).collect::<Vec<_>>());
    drop(readers);
    assert_eq!(format(None), 3);
    assert_eq!(ids(&open(dir.path())), (0..500).collect::<Vec<_>>());
    assert_eq!(format(None), crate::table::database::FORMAT_WITHOUT_PAST);
}

#[test]
fn a_database_of_format_2_is_read_and_becomes_one_of_today_when_it_is_written() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 500)).unwrap();
    database
        .create_index("public", "t", hash_index("i", 0))
        .unwrap();
    let function = crate::table::NewFunction {
        name: "f",
        owner: "ann",
        package: b"package",
        or_replace: false,
        callees: Vec::new(),
        quota: None,
    };
    database.create_function(function).unwrap();
    let generation = database.next_generation().unwrap();
    database.empty_log().unwrap();
    database.catalog.downgrade().unwrap();
    drop(database);
    let check = |database: &Arc<Database>| {
        assert_eq!(ids(database), (0..500).collect::<Vec<_>>());
        let table = database.snapshot("public", "t").unwrap();
        assert_eq!(table.index("i").unwrap().definition, hash_index("i", 0));
        let function = database.function("f").unwrap();
        assert_eq!(database.function_package(&function).unwrap(), b"package");
        assert_eq!(
            database.fsck(&mut |_| Ok(())).unwrap().problems,
            Vec::<String>::new()
        );
    };
    let options = DatabaseOptions {
        read_only: true,
        ..DatabaseOptions::default()
    };
    check(&Database::open(dir.path(), options).unwrap());
    for _ in 0..2 {
        let database = open(dir.path());
        check(&database);
        assert!(database.next_generation().unwrap() > generation);
    }
    let database = open(dir.path());
    load(&database, append(), &rows(500, 5)).unwrap();
    assert_eq!(ids(&database).len(), 505);
}

//! Commits that meet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::devices::{Fault, Rig};
use super::{new_database, open, open_with};
use crate::Result;
use crate::segment::read_column;
use crate::table::edit::{Operation, TableEdit};
use crate::table::tests::seed;
use crate::table::{Database, Isolation, LoadTarget, UpkeepOptions, Workspace};

fn new_schema(name: &str) -> TableEdit {
    let mut edit = TableEdit::default();
    edit.push(Operation::PutSchema(name.into()));
    edit
}

#[test]
fn commits_that_meet_are_synced_once() {
    let rig = Rig::new(new_database(1), 1);
    let database = open(&rig).unwrap();
    database.create_schema("first").unwrap();
    rig.faults.plan(u64::MAX, Fault::Error);
    let names: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    let mut decided = Vec::new();
    for name in &names {
        decided.extend(database.decide(new_schema(name)).unwrap());
        // Nobody sees what is not durable.
        assert_eq!(database.schemas(), ["first", "public"]);
    }
    database.wait(decided[7]).unwrap();
    // One write and one sync.
    assert_eq!(rig.faults.count(), 2);
    assert_eq!(database.schemas().len(), 22);
    for decided in decided {
        database.wait(decided).unwrap();
    }
    assert_eq!(rig.faults.count(), 2);
}

#[test]
fn none_of_those_that_meet_is_there_when_their_write_fails() {
    let rig = Rig::new(new_database(2), 2);
    let database = open(&rig).unwrap();
    database.create_schema("first").unwrap();
    let decided = ["a", "b"].map(|name| database.decide(new_schema(name)).unwrap().unwrap());
    rig.faults.plan(0, Fault::Error);
    for decided in decided {
        let error = database.wait(decided).unwrap_err();
        assert!(error.to_string().contains("open it again"), "{error}");
        assert_eq!(database.schemas(), ["first", "public"]);
    }
    let refused = database.create_schema("c").unwrap_err();
    assert!(refused.to_string().contains("open it again"), "{refused}");
}

fn ids(database: &Database, table: &str) -> BTreeSet<i64> {
    let snapshot = database.snapshot("public", table).unwrap();
    let mut reader = database.store().reader().unwrap();
    let of_segments = snapshot.segments.iter().flat_map(|segment| {
        let column = read_column(&mut reader, segment, 0, &DataType::Int64).unwrap();
        column.as_primitive::<Int64Type>().values().to_vec()
    });
    of_segments.collect()
}

fn append(workspace: &Workspace, table: &str, ids: &[i64]) -> Result<()> {
    let load = workspace.begin_load(LoadTarget::Append {
        schema: "public".into(),
        table: table.into(),
    })?;
    let ids: ArrayRef = Arc::new(Int64Array::from(ids.to_vec()));
    let mut writer = load.writer()?;
    writer.append(&RecordBatch::try_from_iter([("id", ids)])?)?;
    writer.finish()?;
    load.commit().map(drop)
}

/// Transactions of several clients add the same rows to two tables until the power fails; the
/// background compacts.
#[test]
fn clients_lose_nothing_and_tear_nothing_when_the_power_fails() {
    until_the_power_fails(&["t", "u"], 1200, |workspace, rows| {
        workspace.begin(Isolation::Snapshot, false)?;
        append(workspace, "t", rows)?;
        append(workspace, "u", rows)?;
        workspace.commit()
    });
}

/// The same of small commits, which become one where they meet.
#[test]
fn small_commits_that_meet_lose_nothing_when_the_power_fails() {
    until_the_power_fails(&["t"], 150, |workspace, rows| append(workspace, "t", rows));
}

/// Several clients add rows, until one of the first so many operations of the disk is the last; then
/// the tables have all that they were told of, and of what they were not told of all or none.
fn until_the_power_fails(
    tables: &[&str],
    operations: u64,
    add: impl Fn(&Workspace, &[i64]) -> Result<()> + Copy + Send + 'static,
) {
    const CLIENTS: i64 = 4;
    const TRANSACTIONS: i64 = 40;
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut failed = 0;
    for round in 0..12 {
        let seed = seed.wrapping_add(round);
        let rig = Rig::new(new_database(seed), seed);
        let database = open_with(&rig, UpkeepOptions::default()).unwrap();
        let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
        for table in tables {
            database.create_table("public", table, &schema).unwrap();
        }
        rig.faults
            .plan(rng.random_range(0..operations), Fault::PowerCut);
        let clients = (0..CLIENTS).map(|client| {
            let database = Arc::clone(&database);
            thread::spawn(move || {
                let workspace = Workspace::new(database);
                let mut acknowledged = Vec::new();
                for number in 0..TRANSACTIONS {
                    let first = (client * TRANSACTIONS + number) * 10;
                    let rows = [first, first + 1, first + 2];
                    if add(&workspace, &rows).is_err() {
                        break;
                    }
                    acknowledged.extend(rows);
                }
                acknowledged
            })
        });
        let clients: Vec<_> = clients.collect();
        let acknowledged: BTreeSet<i64> = clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect();
        failed += u64::from(!rig.faults.has_power());
        drop(database);
        rig.faults.end();
        let rig = Rig::new(rig.restart(seed), seed);
        let database = open(&rig).unwrap();
        let found = ids(&database, tables[0]);
        for other in tables {
            assert_eq!(found, ids(&database, other), "round {round}");
        }
        assert!(found.is_superset(&acknowledged), "round {round}");
        let is_whole = |id: &i64| (0..3).all(|row| found.contains(&(id / 10 * 10 + row)));
        assert!(found.iter().all(is_whole), "round {round}");
        let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
        assert!(problems.is_empty(), "round {round}: {problems:?}");
    }
    assert!(failed > 0);
}

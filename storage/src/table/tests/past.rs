//! The past of tables against a map from version to rows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use arrow::array::UInt64Array;
use redb::ReadableTable as _;

use super::*;
use crate::index::{IndexDefinition, IndexKind};
use crate::segment::row_id;
use crate::table::edit::{ObjectName, TableEdit};
use crate::table::history::now_us;
use crate::table::indexing::put_next;
use crate::table::{AsOf, Isolation, Workspace};

/// A table that keeps its past.
fn create_kept(name: &str, retention: Duration) -> LoadTarget {
    LoadTarget::Create {
        layout: layout(),
        distribution: None,
        retention,
        defaults: vec![],
        checks: vec![],
        schema: "public".into(),
        table: name.into(),
        arrow_schema: schema(),
        or_replace: false,
        indexes: vec![],
    }
}

fn options() -> DatabaseOptions {
    DatabaseOptions {
        upkeep: UpkeepOptions {
            in_background: false,
            ..UpkeepOptions::default()
        },
        ..DatabaseOptions::default()
    }
}

fn workspace(database: &Arc<Database>) -> Workspace {
    Workspace::new(Arc::clone(database))
}

fn ids_of(database: &Database, table: Arc<TableSnapshot>) -> Vec<i64> {
    let batch = read(database, table).unwrap();
    batch
        .column(0)
        .as_primitive::<Int64Type>()
        .values()
        .to_vec()
}

/// Rows of a version go, or come anew with other ids.
fn change(workspace: &Workspace, gone: &[u64], new: Option<&RecordBatch>) -> Result<u64> {
    let version = workspace.snapshot("public", "t")?;
    let load = workspace.begin_load(LoadTarget::Change {
        schema: "public".into(),
        table: "t".into(),
        version,
    })?;
    let ids: ArrayRef = Arc::new(UInt64Array::from(gone.to_vec()));
    let batch = match new {
        None => RecordBatch::try_from_iter([("row_id", ids)])?,
        Some(new) => {
            let columns = new.columns().iter().cloned();
            RecordBatch::try_from_iter(
                ["id", "text"]
                    .into_iter()
                    .zip(columns)
                    .chain([("row_id", ids)]),
            )?
        }
    };
    let mut writer = load.writer()?;
    writer.append(&batch)?;
    writer.finish()?;
    load.commit()
}

/// Ids of rows of the present version, not all.
fn some_rows(workspace: &Workspace, rng: &mut StdRng) -> Vec<u64> {
    let table = workspace.snapshot("public", "t").unwrap();
    let live = table.segments.iter().flat_map(|segment| {
        let rows = (0..segment.rows).filter(|row| segment.has_row(*row));
        rows.map(|row| row_id(segment.id, row))
    });
    let part = rng.random_range(0.0..0.5);
    live.filter(|_| rng.random_bool(part)).collect()
}

fn check_all(database: &Arc<Database>, then: &BTreeMap<u64, Vec<i64>>) {
    let workspace = workspace(database);
    for (version, expected) in then {
        let table = workspace.as_of("public", "t", AsOf::Version(*version));
        let table = table.unwrap_or_else(|e| panic!("version {version}: {e}"));
        assert_eq!(table.rows(), expected.len() as u64);
        assert_eq!(ids_of(database, table), *expected, "version {version}");
    }
    let listed = database.versions("public", "t").unwrap();
    assert!(
        listed.is_sorted_by(|a, b| {
            a.version < b.version && a.committed_at_us < b.committed_at_us
        })
    );
    for listed in listed {
        if let Some(expected) = then.get(&listed.version) {
            assert_eq!(listed.rows, expected.len() as u64);
            let time = AsOf::Time(listed.committed_at_us.unwrap() as i64);
            let table = workspace.as_of("public", "t", time).unwrap();
            assert_eq!(table.version, listed.version);
        }
    }
    // All of it is on the card, and nothing else.
    database.empty_log().unwrap();
    let report = database.fsck(&mut |_| Ok(())).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let usage = database.store().usage();
    assert_eq!((report.pages, 0), (usage.live_pages, usage.memory_pages));
}

#[test]
fn a_time_has_one_answer_while_commits_are_on_their_way() {
    let dir = TempDir::new().unwrap();
    let database = Database::open(dir.path(), options()).unwrap();
    let hour = Duration::from_secs(3600);
    load(&database, create_kept("t", hour), &rows(0, 30)).unwrap();
    let present = database.table_state("public", "t").unwrap();
    let mut edit = TableEdit::default();
    let name = ObjectName::new("public", "t");
    put_next(&mut edit, &name, &present, (*present.record).clone());
    let decided = database.decide(edit).unwrap().unwrap();
    let time = AsOf::Time(now_us() as i64);
    let session = workspace(&database);
    let versions = [(); 2].map(|()| {
        let table = session.as_of("public", "t", time).unwrap();
        database.wait(decided).unwrap();
        table.version
    });
    assert_eq!(versions, [present.snapshot.version + 1; 2]);
}

#[test]
fn every_kept_version_is_as_it_was() {
    let mut rng = StdRng::seed_from_u64(seed());
    let dir = TempDir::new().unwrap();
    let mut database = Database::open(dir.path(), options()).unwrap();
    load(
        &database,
        create_kept("t", Duration::from_secs(3600)),
        &rows(0, 30),
    )
    .unwrap();
    let name = ObjectName::new("public", "t");
    let mut next = 30;
    let mut then = BTreeMap::new();
    let mut note = |database: &Arc<Database>| {
        let table = database.snapshot("public", "t").unwrap();
        let version = table.version;
        then.insert(version, ids_of(database, table));
        then.clone()
    };
    note(&database);
    let mut all = BTreeMap::new();
    for _ in 0..60 {
        let session = workspace(&database);
        let mut fresh = |rng: &mut StdRng| {
            let count = rng.random_range(1..60);
            next += count;
            rows(next - count, count as usize)
        };
        match rng.random_range(0..12) {
            0..=2 => drop(load(&database, append(), &fresh(&mut rng)).unwrap()),
            3 | 4 => drop(change(&session, &some_rows(&session, &mut rng), None).unwrap()),
            5 => {
                let gone = some_rows(&session, &mut rng);
                let new = rows(next, gone.len());
                next += gone.len() as i64;
                change(&session, &gone, Some(&new)).unwrap();
            }
            6 => database.compact("public", "t").unwrap(),
            7 => database.empty_log().unwrap(),
            8 => {
                let target = LoadTarget::Overwrite {
                    schema: "public".into(),
                    table: "t".into(),
                };
                load(&database, target, &fresh(&mut rng)).unwrap();
            }
            9 => {
                session.begin(Isolation::Snapshot, false).unwrap();
                for _ in 0..rng.random_range(1..4) {
                    change(&session, &some_rows(&session, &mut rng), None).unwrap();
                    let more = session.begin_load(append()).unwrap();
                    let mut writer = more.writer().unwrap();
                    writer.append(&fresh(&mut rng)).unwrap();
                    writer.finish().unwrap();
                    more.commit().unwrap();
                }
                session.commit().unwrap();
            }
            10 => {
                session.rename_table("public", "t", "u").unwrap();
                session.rename_table("public", "u", "t").unwrap();
            }
            _ => {
                drop(session);
                drop(database);
                database = Database::open(dir.path(), options()).unwrap();
            }
        }
        all = note(&database);
    }
    check_all(&database, &all);
    drop(database);
    let database = Database::open(dir.path(), options()).unwrap();
    check_all(&database, &all);

    // What has expired gives its pages back, as if it had never been kept.
    let times: Vec<_> = database.versions("public", "t").unwrap();
    let cut = rng.random_range(0..times.len());
    let hour = 3600 * 1_000_000;
    let first = times[cut].version;
    // The first kept one is that which was there at that time.
    let now = times[cut].committed_at_us.unwrap() + hour + 1;
    database.expire_versions(now).unwrap();
    let left = database.versions("public", "t").unwrap();
    assert_eq!(left.first().unwrap().version, first);
    let kept: BTreeMap<_, _> = all
        .clone()
        .into_iter()
        .filter(|(v, _)| *v >= first)
        .collect();
    check_all(&database, &kept);
    database.expire_versions(now_us() + 2 * hour).unwrap();
    database.empty_log().unwrap();
    assert_eq!(database.versions("public", "t").unwrap().len(), 1);
    let table = database.find_table(&name).unwrap().unwrap();
    let pages: u64 = table.snapshot.runs().map(|run| u64::from(run.count)).sum();
    drop(table);
    assert_eq!(database.store().usage().live_pages, pages);
    drop(database);
    let database = Database::open(dir.path(), options()).unwrap();
    assert_eq!(database.store().usage().live_pages, pages);
    assert_eq!(database.versions("public", "t").unwrap().len(), 1);
}

#[test]
fn the_past_is_in_the_log_and_in_the_catalog() {
    for empties in [false, true] {
        let dir = TempDir::new().unwrap();
        let database = Database::open(dir.path(), options()).unwrap();
        load(
            &database,
            create_kept("t", Duration::from_secs(3600)),
            &rows(0, 20),
        )
        .unwrap();
        let first = database.snapshot("public", "t").unwrap().version;
        if empties {
            database.empty_log().unwrap();
        }
        let session = workspace(&database);
        change(&session, &[3, 4, 5], None).unwrap();
        load(&database, append(), &rows(20, 5)).unwrap();
        database.compact("public", "t").unwrap();
        let times = database.versions("public", "t").unwrap();
        // As a crash leaves it.
        let copy = TempDir::new().unwrap();
        for file in std::fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        for folder in [copy.path(), dir.path()] {
            if folder == dir.path() {
                database.empty_log().unwrap();
                continue;
            }
            let crashed = Database::open(folder, options()).unwrap();
            assert_eq!(crashed.versions("public", "t").unwrap(), times);
            let old = workspace(&crashed)
                .as_of("public", "t", AsOf::Version(first))
                .unwrap();
            assert_eq!(ids_of(&crashed, old), (0..20).collect::<Vec<_>>());
        }
        drop(session);
        drop(database);
        let database = Database::open(dir.path(), options()).unwrap();
        assert_eq!(database.versions("public", "t").unwrap().len(), times.len());
        let old = workspace(&database)
            .as_of("public", "t", AsOf::Version(first))
            .unwrap();
        assert_eq!(ids_of(&database, old), (0..20).collect::<Vec<_>>());
    }
}

#[test]
fn without_a_retention_the_past_goes_at_once() {
    let dir = TempDir::new().unwrap();
    let database = Database::open(dir.path(), options()).unwrap();
    load(
        &database,
        create_kept("t", Duration::from_secs(60)),
        &rows(0, 50_000),
    )
    .unwrap();
    database.empty_log().unwrap();
    let pages = database.store().usage().live_pages;
    let target = || LoadTarget::Overwrite {
        schema: "public".into(),
        table: "t".into(),
    };
    load(&database, target(), &rows(0, 50_000)).unwrap();
    database.empty_log().unwrap();
    assert_eq!(database.store().usage().live_pages, 2 * pages);
    let session = workspace(&database);
    session
        .set_retention("public", "t", Duration::ZERO)
        .unwrap();
    database.empty_log().unwrap();
    assert_eq!(database.store().usage().live_pages, pages);
    let error = session.as_of("public", "t", AsOf::Version(1)).unwrap_err();
    assert!(
        error.to_string().contains("keeps no past versions"),
        "{error}"
    );

    // Dropped with its past, it leaves nothing.
    session
        .set_retention("public", "t", Duration::from_secs(60))
        .unwrap();
    load(&database, target(), &rows(0, 50_000)).unwrap();
    database.drop_table("public", "t").unwrap();
    database.empty_log().unwrap();
    assert_eq!(database.store().usage().live_pages, 0);
    drop(session);
    drop(database);
    let database = Database::open(dir.path(), options()).unwrap();
    assert_eq!(
        database.fsck(&mut |_| Ok(())).unwrap().problems,
        Vec::<String>::new()
    );
}

#[test]
fn the_background_lets_versions_expire() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(
        &database,
        create_kept("t", Duration::from_millis(1)),
        &rows(0, 10),
    )
    .unwrap();
    for first in 1..4 {
        load(&database, append(), &rows(first * 10, 10)).unwrap();
    }
    let since = Instant::now();
    while database.versions("public", "t").unwrap().len() > 1 {
        assert!(
            since.elapsed() < Duration::from_secs(120),
            "it does not end"
        );
        std::thread::yield_now();
    }
    assert_eq!(ids(&database), (0..40).collect::<Vec<_>>());
}

#[test]
fn a_lost_version_costs_the_past_and_not_the_present() {
    const RECORDS: redb::TableDefinition<&[u8], &[u8]> = redb::TableDefinition::new("records");
    // Past versions, and segments of the past.
    for kind in [10, 11] {
        let dir = TempDir::new().unwrap();
        let database = Database::open(dir.path(), options()).unwrap();
        let retention = Duration::from_secs(3600);
        load(&database, create_kept("t", retention), &rows(0, 10)).unwrap();
        let first = database.snapshot("public", "t").unwrap().version;
        load(&database, append(), &rows(10, 10)).unwrap();
        database.compact("public", "t").unwrap();
        drop(database);
        let catalog = redb::Database::open(dir.path().join("catalog.redb")).unwrap();
        let txn = catalog.begin_write().unwrap();
        {
            let mut records = txn.open_table(RECORDS).unwrap();
            let keys: Vec<Vec<u8>> = records
                .iter()
                .unwrap()
                .map(|row| row.unwrap().0.value().to_vec())
                .filter(|key| key[0] == kind)
                .collect();
            assert!(keys.len() >= 2, "{keys:?}");
            records.remove(keys[keys.len() - 1].as_slice()).unwrap();
        }
        txn.commit().unwrap();
        drop(catalog);
        let database = Database::open(dir.path(), options()).unwrap();
        assert_eq!(ids(&database), (0..20).collect::<Vec<_>>());
        let past = workspace(&database).as_of("public", "t", AsOf::Version(first));
        assert!(matches!(past, Err(StorageError::Invalid(_))));
        let refused = load(&database, append(), &rows(20, 1));
        assert!(matches!(refused, Err(StorageError::Corrupt { .. })));
        let problems = database.fsck(&mut |_| Ok(())).unwrap().problems.join("\n");
        assert!(
            problems.contains("the past of table 'public.t'"),
            "{problems}"
        );
    }
}

/// Else its rows would come to the columns that the table has now, by their places.
#[test]
fn a_change_of_columns_that_are_gone_conflicts() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 10)).unwrap();
    let workspace = Workspace::new(Arc::clone(&database));
    let version = workspace.snapshot("public", "t").unwrap();
    redefine(&workspace).unwrap();
    let begun = workspace.begin_load(LoadTarget::Change {
        schema: "public".into(),
        table: "t".into(),
        version,
    });
    assert!(matches!(begun, Err(StorageError::Conflict { .. })));
}

/// Other columns in place of the table's: the ids alone.
fn redefine(workspace: &Workspace) -> Result<u64> {
    let version = workspace.snapshot("public", "t")?;
    let ids = ids_of(workspace.database(), Arc::clone(&version));
    let ids: ArrayRef = Arc::new(Int64Array::from(ids));
    let batch = RecordBatch::try_from_iter([("id", ids)])?;
    let load = workspace.begin_load(LoadTarget::Redefine {
        distribution: None,
        schema: "public".into(),
        table: "t".into(),
        version,
        arrow_schema: batch.schema(),
        indexes: vec![],
        defaults: vec![],
        checks: vec![],
    })?;
    let mut writer = load.writer()?;
    writer.append(&batch)?;
    writer.finish()?;
    load.commit()
}

#[test]
fn other_columns_are_another_version() {
    let dir = TempDir::new().unwrap();
    let database = Database::open(dir.path(), options()).unwrap();
    let session = workspace(&database);
    // All of it in the transaction that makes the table.
    session.begin(Isolation::Snapshot, false).unwrap();
    let load = session
        .begin_load(create_kept("t", Duration::from_secs(60)))
        .unwrap();
    let mut writer = load.writer().unwrap();
    writer.append(&rows(0, 50)).unwrap();
    writer.finish().unwrap();
    load.commit().unwrap();
    let index = IndexDefinition {
        name: "i".into(),
        kind: IndexKind::Hash,
        columns: vec![0],
        unique: true,
        primary: false,
        options: BTreeMap::new(),
    };
    session.create_index("public", "t", index).unwrap();
    change(&session, &[3, 4, 5], None).unwrap();
    redefine(&session).unwrap();
    session.commit().unwrap();
    let left: Vec<i64> = (0..50).filter(|id| !(3..6).contains(id)).collect();
    assert_eq!(ids(&database), left);

    let first = session.snapshot("public", "t").unwrap().version;
    session.begin(Isolation::Snapshot, false).unwrap();
    let row = |row: u32| {
        let table = database.snapshot("public", "t").unwrap();
        row_id(table.segments[0].id, row)
    };
    change(&session, &[row(0), row(1)], None).unwrap();
    redefine(&session).unwrap();
    change(&session, &[], None).unwrap();
    // Others have changed rows that would go.
    let other = workspace(&database);
    change(&other, &[row(20)], None).unwrap();
    let refused = session.commit();
    assert!(matches!(refused, Err(StorageError::Conflict { .. })));
    redefine(&session).unwrap();
    let old = session.as_of("public", "t", AsOf::Version(first)).unwrap();
    assert_eq!(ids_of(&database, old), left);
    assert_eq!(ids(&database).len(), left.len() - 1);
    assert_eq!(
        database.fsck(&mut |_| Ok(())).unwrap().problems,
        Vec::<String>::new()
    );
}

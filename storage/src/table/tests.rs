//! Tables against a plain model: what was committed is there, what was not is not.

mod accounts;
mod backups;
mod checks;
mod damage;
mod distribution;
mod edits;
mod faults;
mod formats;
mod graphs;
mod lagging;
mod layouts;
mod nand;
mod opening;
mod past;
mod relocation;
mod scrubs;
mod small_commits;
mod transactions;
mod views;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use flashmesh_pushdown::{Expr, InputColumn, Limits, Output, Program, verify};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use super::{
    Database, DatabaseOptions, Load, LoadTarget, TableLayout, TableSnapshot, UpkeepOptions,
};
use crate::accelerator::ScanMetrics;
use crate::node::{Command, RuntimeFilters, SegmentQueue, StorageNode};
use crate::{Result, StorageError};

/// A seed that differs from run to run; `FLASHMESH_TEST_SEED` replays one.
pub(super) fn seed() -> u64 {
    let seed = std::env::var("FLASHMESH_TEST_SEED").ok();
    let seed = seed.map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("FLASHMESH_TEST_SEED={seed}");
    seed
}

/// The layout of the tables of this run of the tests, one of all by chance;
/// `FLASHMESH_TEST_LAYOUT` names one.
pub(super) fn layout() -> TableLayout {
    static LAYOUT: OnceLock<TableLayout> = OnceLock::new();
    let layout = *LAYOUT.get_or_init(|| match std::env::var("FLASHMESH_TEST_LAYOUT") {
        Ok(name) => TableLayout::parse(&name).unwrap(),
        Err(_) if rand::random() => TableLayout::Pax,
        Err(_) => TableLayout::Column,
    });
    println!("FLASHMESH_TEST_LAYOUT={}", layout.name());
    layout
}

fn open(dir: &Path) -> Arc<Database> {
    Database::open(dir, DatabaseOptions::default()).unwrap()
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("text", DataType::Utf8, true),
    ]))
}

/// Rows `first..first + count`; every seventh text is NULL.
fn rows(first: i64, count: usize) -> RecordBatch {
    let ids: Vec<i64> = (first..first + count as i64).collect();
    let texts: StringArray = ids
        .iter()
        .map(|i| (i % 7 != 0).then(|| format!("row {i}")))
        .collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(ids)), Arc::new(texts)];
    RecordBatch::try_new(schema(), columns).unwrap()
}

fn create(or_replace: bool) -> LoadTarget {
    LoadTarget::Create {
        layout: layout(),
        distribution: None,
        retention: std::time::Duration::ZERO,
        defaults: vec![],
        checks: vec![],
        schema: "public".into(),
        table: "t".into(),
        arrow_schema: schema(),
        or_replace,
        indexes: vec![],
    }
}

fn append() -> LoadTarget {
    LoadTarget::Append {
        schema: "public".into(),
        table: "t".into(),
    }
}

/// A load that has rows and waits for its commit.
fn begun(database: &Arc<Database>, target: LoadTarget, batch: &RecordBatch) -> Load {
    let load = database.begin_load(target).unwrap();
    let mut writer = load.writer().unwrap();
    writer.append(batch).unwrap();
    writer.finish().unwrap();
    load
}

fn load(database: &Arc<Database>, target: LoadTarget, batch: &RecordBatch) -> Result<u64> {
    let load = database.begin_load(target)?;
    let mut writer = load.writer()?;
    writer.append(batch)?;
    writer.finish()?;
    load.commit()
}

fn read(database: &Database, table: Arc<TableSnapshot>) -> Result<RecordBatch> {
    let columns: Vec<InputColumn> = table
        .schema
        .fields()
        .iter()
        .enumerate()
        .map(|(i, f)| InputColumn {
            ordinal: i as u32,
            name: f.name().clone(),
            data_type: f.data_type().clone(),
            nullable: f.is_nullable(),
        })
        .collect();
    let exprs = (0..columns.len() as u32).map(Expr::Column).collect();
    let program = Program {
        columns,
        filter: vec![],
        output: Output::Rows {
            exprs,
            order: vec![],
            limit: None,
        },
    };
    let program = Arc::new(verify(program, &table.schema, &Limits::default()).unwrap());
    let schema = program.output_schema().clone();
    let node = StorageNode::new(Arc::clone(database.store()));
    let batches = node
        .submit(Command {
            capability: node.owner_capability(&table),
            program,
            work: SegmentQueue::new(table.segments.clone()),
            table,
            runtime_filters: Arc::new(RuntimeFilters::default()),
            batch_rows: 8192,
            metrics: Arc::new(ScanMetrics::default()),
        })?
        .collect::<Result<Vec<_>>>()?;
    Ok(concat_batches(&schema, &batches)?)
}

fn ids(database: &Database) -> Vec<i64> {
    let batch = read(database, database.snapshot("public", "t").unwrap()).unwrap();
    batch
        .column(0)
        .as_primitive::<Int64Type>()
        .values()
        .to_vec()
}

#[test]
fn what_was_committed_is_there_after_reopening() {
    let dir = TempDir::new().unwrap();
    let mut expected = Vec::new();
    let mut rng = StdRng::seed_from_u64(7);
    for round in 0..5 {
        let database = open(dir.path());
        let (first, count) = (expected.len() as i64, rng.random_range(1..150_000));
        let target = if round == 0 { create(false) } else { append() };
        assert_eq!(
            load(&database, target, &rows(first, count)).unwrap(),
            count as u64
        );
        expected.extend(first..first + count as i64);
        assert_eq!(ids(&database), expected);
        drop(database);

        let database = open(dir.path());
        assert_eq!(ids(&database), expected);
        let table = database.snapshot("public", "t").unwrap();
        assert_eq!(table.rows(), expected.len() as u64);
        assert_eq!(
            table.statistics[0].min,
            Some(flashmesh_pushdown::Scalar::Int(0))
        );
        assert_eq!(
            table.statistics[0].max,
            Some(flashmesh_pushdown::Scalar::Int(expected.len() as i128 - 1))
        );
        assert_eq!(
            table.statistics[1].null_count,
            expected.iter().filter(|i| *i % 7 == 0).count() as u64
        );
        let distinct = table.statistics[0].distinct.unwrap() as f64;
        let exact = expected.len() as f64;
        assert!(
            (distinct - exact).abs() < exact * 0.15,
            "{distinct} distinct values estimated, {exact} there"
        );
        assert_eq!(
            database.fsck(&mut |_| Ok(())).unwrap().problems,
            Vec::<String>::new()
        );
    }
}

#[test]
fn a_load_that_is_dropped_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 10)).unwrap();
    let live = database.store().usage().live_pages;
    {
        let load = database.begin_load(append()).unwrap();
        let mut writer = load.writer().unwrap();
        writer.append(&rows(10, 100_000)).unwrap();
        writer.finish().unwrap();
    }
    assert_eq!(ids(&database), (0..10).collect::<Vec<_>>());
    assert_eq!(database.store().usage().live_pages, live);
}

#[test]
fn long_rows_are_written_before_there_is_a_segment_of_them() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 10)).unwrap();
    let live = database.store().usage().live_pages;
    let load = database.begin_load(append()).unwrap();
    let mut writer = load.writer().unwrap();
    let mut rng = StdRng::seed_from_u64(1);
    for id in 10..160 {
        let text: String = (0..1 << 20).map(|_| rng.random_range('a'..='z')).collect();
        let text: ArrayRef = Arc::new(StringArray::from(vec![text]));
        let id: ArrayRef = Arc::new(Int64Array::from(vec![id]));
        let row = RecordBatch::try_new(schema(), vec![id, text]).unwrap();
        writer.append(&row).unwrap();
    }
    assert!(database.store().usage().live_pages > live + 1000);
    writer.finish().unwrap();
    assert_eq!(load.commit().unwrap(), 150);
    assert_eq!(ids(&database), (0..160).collect::<Vec<_>>());
}

#[test]
fn an_unfinished_writer_stops_the_commit() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    let load = database.begin_load(create(false)).unwrap();
    let writer = load.writer().unwrap();
    let error = load.commit().unwrap_err();
    assert!(matches!(error, StorageError::Invalid(_)), "{error}");
    drop(writer);
    assert!(matches!(
        database.snapshot("public", "t"),
        Err(StorageError::NotFound { .. })
    ));
}

#[test]
fn writers_keep_their_order_and_meet_in_one_commit() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    let load = database.begin_load(create(false)).unwrap();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let mut writer = load.writer().unwrap();
            scope.spawn(move || {
                for batch in 0..20 {
                    writer
                        .append(&rows(part * 100_000 + batch * 5_000, 5_000))
                        .unwrap();
                }
                writer.finish().unwrap();
            });
        }
    });
    assert_eq!(load.commit().unwrap(), 400_000);
    assert_eq!(ids(&database), (0..400_000).collect::<Vec<_>>());
}

#[test]
fn a_reader_keeps_its_version_and_dropped_pages_come_back_after_it() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 100_000)).unwrap();
    let before = database.snapshot("public", "t").unwrap();
    load(&database, append(), &rows(100_000, 5)).unwrap();
    assert_eq!(before.rows(), 100_000);
    load(&database, create(true), &rows(0, 3)).unwrap();
    assert_eq!(ids(&database), vec![0, 1, 2]);
    let old = read(&database, Arc::clone(&before)).unwrap();
    assert_eq!(old.num_rows(), 100_000);
    database.drop_table("public", "t").unwrap();
    assert!(
        database.store().usage().live_pages > 0,
        "the first version is still being read"
    );
    drop(before);
    assert_eq!(database.store().usage().live_pages, 0);
    assert!(matches!(
        database.drop_table("public", "t"),
        Err(StorageError::NotFound { .. })
    ));
}

#[test]
fn names_are_taken_once() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 1)).unwrap();
    assert!(matches!(
        load(&database, create(false), &rows(0, 1)),
        Err(StorageError::AlreadyExists { .. })
    ));
    database.create_schema("s").unwrap();
    assert!(matches!(
        database.create_schema("s"),
        Err(StorageError::AlreadyExists { .. })
    ));
    database.create_table("s", "t", &schema()).unwrap();
    assert!(matches!(
        database.drop_schema("s"),
        Err(StorageError::Invalid(_))
    ));
    database.drop_table("s", "t").unwrap();
    database.drop_schema("s").unwrap();
    assert_eq!(database.schemas(), ["public"]);
}

#[test]
fn two_openings_meet_an_error_that_names_the_database() {
    let dir = TempDir::new().unwrap();
    let first = open(dir.path());
    let error = Database::open(dir.path(), DatabaseOptions::default()).unwrap_err();
    assert!(matches!(error, StorageError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(dir.path().to_str().unwrap()));
    drop(first);
    open(dir.path());
}

#[test]
fn a_read_only_database_refuses_writes() {
    let dir = TempDir::new().unwrap();
    let options = DatabaseOptions {
        read_only: true,
        ..DatabaseOptions::default()
    };
    let error = Database::open(&dir.path().join("missing"), options.clone()).unwrap_err();
    assert!(matches!(error, StorageError::NotFound { .. }), "{error}");
    load(&open(dir.path()), create(false), &rows(0, 9)).unwrap();
    let database = Database::open(dir.path(), options).unwrap();
    assert_eq!(ids(&database).len(), 9);
    let error = load(&database, append(), &rows(0, 9)).unwrap_err();
    assert!(matches!(error, StorageError::ReadOnly { .. }), "{error}");
}

#[test]
fn a_null_in_a_not_null_column_names_the_column() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 1)).unwrap();
    let nullable = Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, true),
        Field::new("text", DataType::Utf8, true),
    ]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![None])),
        Arc::new(StringArray::from(vec!["x"])),
    ];
    let error = load(
        &database,
        append(),
        &RecordBatch::try_new(nullable, columns).unwrap(),
    )
    .unwrap_err();
    assert!(error.to_string().contains("'id'"), "{error}");
}

#[test]
fn a_folder_with_other_files_is_left_alone() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "years of work").unwrap();
    let error = Database::open(dir.path(), DatabaseOptions::default()).unwrap_err();
    assert!(matches!(error, StorageError::Invalid(_)), "{error}");
}

/// Segments and parts of indexes about as large as what a commit may leave in memory.
#[test]
fn what_is_committed_together_is_in_memory_or_on_the_card() {
    let mut rng = StdRng::seed_from_u64(seed());
    let dir = TempDir::new().unwrap();
    let mut database = open(dir.path());
    let fields = ["id", "a", "b"].map(|name| Field::new(name, DataType::Int64, false));
    database
        .create_table("public", "t", &Schema::new(fields.to_vec()))
        .unwrap();
    for kind in [
        crate::index::IndexKind::Hash,
        crate::index::IndexKind::Adjacency,
    ] {
        let definition = crate::index::IndexDefinition {
            name: kind.name().into(),
            kind,
            columns: if kind == crate::index::IndexKind::Hash {
                vec![0]
            } else {
                vec![0, 1]
            },
            unique: kind == crate::index::IndexKind::Hash,
            primary: false,
            options: Default::default(),
        };
        database.create_index("public", "t", definition).unwrap();
    }
    let mut expected: Vec<i64> = Vec::new();
    for count in [1, 65_536, 700, 40_000, 21_000, 43_000, 60_000] {
        let column = |rng: &mut StdRng| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(
                (0..count).map(|_| rng.random()),
            ))
        };
        let columns = ["id", "a", "b"].map(|name| (name, column(&mut rng)));
        expected.extend(columns[0].1.as_primitive::<Int64Type>().values());
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        load(&database, append(), &batch).unwrap();
        database.settle_indexes().unwrap();
        let held = rng
            .random_bool(0.5)
            .then(|| database.snapshot("public", "t").unwrap());
        let check = |database: &Database| {
            assert_eq!(ids(database), expected);
            let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
            assert!(problems.is_empty(), "{problems:?}");
        };
        database.empty_log().unwrap();
        // What is free now is written again.
        let mut other = create(true);
        if let LoadTarget::Create { table, .. } = &mut other {
            *table = "other".into();
        }
        load(&database, other, &self::rows(0, 60_000)).unwrap();
        check(&database);
        if let Some(held) = held {
            assert_eq!(read(&database, held).unwrap().num_rows(), expected.len());
        }
        drop(database);
        database = open(dir.path());
        check(&database);
    }
    database.compact("public", "t").unwrap();
    assert_eq!(ids(&database), expected);
}

/// A card that is full, and a log that is: what gives room back goes on.
#[test]
fn a_full_card_can_be_emptied() {
    let mut rng = StdRng::seed_from_u64(seed());
    let dir = TempDir::new().unwrap();
    let options = || DatabaseOptions {
        capacity_bytes: Some(48 << 20),
        // It would hold versions for a while whose pages are to be free.
        upkeep: UpkeepOptions {
            in_background: false,
            ..UpkeepOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let mut database = Database::open(dir.path(), options()).unwrap();
    for round in 0..3 {
        load(&database, create(false), &rows(0, 10)).unwrap();
        let texts = |rng: &mut StdRng| -> RecordBatch {
            let text = |rng: &mut StdRng| -> String {
                (0..4000).map(|_| rng.random_range('a'..='z')).collect()
            };
            let texts: StringArray = (0..40).map(|_| Some(text(rng))).collect();
            let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..40));
            RecordBatch::try_new(schema(), vec![ids, Arc::new(texts)]).unwrap()
        };
        let mut commits = 0;
        let error = loop {
            match load(&database, append(), &texts(&mut rng)) {
                Ok(_) => commits += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StorageError::Full { .. }), "{error}");
        // How much fits later depends on what is erased by then.
        assert!(
            commits > if round == 0 { 20 } else { 0 },
            "{round}: {commits}"
        );
        if round == 1 {
            drop(database);
            database = Database::open(dir.path(), options()).unwrap();
        }
        assert_eq!(ids(&database).len(), 10 + 40 * commits);
        database.drop_table("public", "t").unwrap();
    }
}

//! Indexes that lag: answers are those of a look at every row, whatever is covered.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{
    ArrayRef, AsArray, FixedSizeBinaryArray, Int64Array, RecordBatch, StringArray, UInt64Array,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt32Type};
use flashmesh_pushdown::{
    CompareOp, Expr, InputColumn, Limits, Literal, Metric, Output, Program, QueryVector, Scalar,
    SortKey, verify,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use super::faults::devices::{Fault, Rig};
use super::{faults, layout, seed};
use crate::accelerator::ScanMetrics;
use crate::access::{AccessPath, NearSearch};
use crate::flash::PAGE_SIZE_BYTES;
use crate::graph::{Direction, Graph, Job};
use crate::index::adjacency::MAX_TAIL_ROWS;
use crate::index::{Index, IndexDefinition, IndexKind};
use crate::node::{Command, RuntimeFilters, SegmentQueue, StorageNode};
use crate::segment::{Segment, SegmentId, row_id};
use crate::table::{
    Database, DatabaseOptions, LoadTarget, TableLayout, TableSnapshot, UpkeepOptions,
};
use crate::{Result, StorageError};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    id: i64,
    key: i64,
    line: Option<String>,
    code: [u8; 4],
    next: i64,
}

const ID: usize = 0;
const KEY: usize = 1;
const LINE: usize = 2;
const CODE: usize = 3;
const NEXT: usize = 4;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("key", DataType::Int64, false),
        Field::new("line", DataType::Utf8, true),
        Field::new("code", DataType::FixedSizeBinary(4), false),
        Field::new("next", DataType::Int64, false),
    ]))
}

fn definition(name: &str) -> IndexDefinition {
    let (kind, columns) = match name {
        "by_id" => (IndexKind::Hash, vec![ID]),
        "by_key" => (IndexKind::Hash, vec![KEY]),
        "by_line" => (IndexKind::Ngram, vec![LINE]),
        "by_code" => (IndexKind::Lsh, vec![CODE]),
        _ => (IndexKind::Adjacency, vec![KEY, NEXT]),
    };
    let mut options = BTreeMap::new();
    if kind == IndexKind::Lsh {
        // One bucket: it misses nothing.
        options.insert("bits".into(), "0".into());
    }
    IndexDefinition {
        name: name.into(),
        kind,
        columns: columns.into_iter().map(|column| column as u32).collect(),
        unique: name == "by_id",
        primary: false,
        options,
    }
}

const INDEXES: [&str; 5] = ["by_id", "by_key", "by_line", "by_code", "by_edge"];

/// Changes of a random history, and commits of one row; fewer without optimisation.
const HISTORY: usize = if cfg!(debug_assertions) { 90 } else { 600 };
const COMMITS: i64 = if cfg!(debug_assertions) { 600 } else { 5000 };

/// Small parts, so that few rows reach their bounds.
fn small() -> UpkeepOptions {
    UpkeepOptions {
        in_background: false,
        max_part_segments: 24,
        max_part_rows: 600,
        ..UpkeepOptions::default()
    }
}

fn random_row(rng: &mut StdRng, id: i64) -> Row {
    let word = |rng: &mut StdRng| ["amber", "basalt", "cedar", "dune"][rng.random_range(0..4)];
    let line = rng.random_bool(0.9);
    Row {
        id,
        key: rng.random_range(0..200),
        line: line.then(|| format!("{} {} {}", word(rng), id % 37, word(rng))),
        code: rng.random(),
        next: rng.random_range(0..200),
    }
}

fn batch(rows: &[Row]) -> RecordBatch {
    let numbers = |of: fn(&Row) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(of)))
    };
    let lines: StringArray = rows.iter().map(|row| row.line.as_deref()).collect();
    let codes = rows.iter().map(|row| Some(row.code));
    let codes = FixedSizeBinaryArray::try_from_sparse_iter_with_size(codes, 4).unwrap();
    let columns: Vec<ArrayRef> = vec![
        numbers(|row| row.id),
        numbers(|row| row.key),
        Arc::new(lines),
        Arc::new(codes),
        numbers(|row| row.next),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

fn load(database: &Arc<Database>, target: LoadTarget, rows: &[Row]) -> Result<u64> {
    super::load(database, target, &batch(rows))
}

fn create(indexes: &[&str]) -> LoadTarget {
    LoadTarget::Create {
        layout: layout(),
        distribution: None,
        retention: Duration::ZERO,
        defaults: vec![],
        checks: vec![],
        schema: "public".into(),
        table: "t".into(),
        arrow_schema: schema(),
        or_replace: true,
        indexes: indexes.iter().map(|name| definition(name)).collect(),
    }
}

fn overwrite() -> LoadTarget {
    LoadTarget::Overwrite {
        schema: "public".into(),
        table: "t".into(),
    }
}

/// Deletes some rows, of all or of few segments.
fn delete(database: &Arc<Database>, rows: &mut Vec<Row>, rng: &mut StdRng) {
    let version = table(database);
    let share = [0.01, 0.3, 0.9][rng.random_range(0..3)];
    let first = rng.random_range(0..rows.len());
    let live = version.segments.iter().flat_map(|segment| {
        let rows = (0..segment.rows).filter(|row| segment.has_row(*row));
        rows.map(|row| row_id(segment.id, row))
    });
    let mut ids = Vec::new();
    let mut kept = Vec::new();
    for (place, (id, row)) in live.zip(rows.drain(..)).enumerate() {
        match place >= first && rng.random_bool(share) {
            true => ids.push(id),
            false => kept.push(row),
        }
    }
    *rows = kept;
    let target = LoadTarget::Change {
        schema: "public".into(),
        table: "t".into(),
        version,
    };
    let ids: ArrayRef = Arc::new(UInt64Array::from(ids));
    let batch = RecordBatch::try_from_iter([("row_id", ids)]).unwrap();
    super::load(database, target, &batch).unwrap();
}

fn table(database: &Database) -> Arc<TableSnapshot> {
    database.snapshot("public", "t").unwrap()
}

/// What a Program over the table's columns gives, by the index that is chosen for it.
fn answer(
    database: &Database,
    filter: Vec<Expr>,
    output: Output,
    search: NearSearch,
) -> (RecordBatch, Option<String>) {
    answer_of(
        database,
        table(database),
        filter,
        output,
        |program, table| AccessPath::choose(program, table, search),
    )
}

/// What a Program over a table's columns gives, by the index that `choose` says, and which it is.
pub(super) fn answer_of(
    database: &Database,
    table: Arc<TableSnapshot>,
    filter: Vec<Expr>,
    output: Output,
    choose: impl FnOnce(&Program, &TableSnapshot) -> Option<AccessPath>,
) -> (RecordBatch, Option<String>) {
    let fields = (0..).zip(table.schema.fields());
    let columns = fields.map(|(ordinal, field)| InputColumn {
        ordinal,
        name: field.name().clone(),
        data_type: field.data_type().clone(),
        nullable: field.is_nullable(),
    });
    let program = Program {
        columns: columns.collect(),
        filter,
        output,
    };
    let program = Arc::new(verify(program, &table.scan_schema, &Limits::default()).unwrap());
    let access = choose(&program, &table).map(Arc::new);
    let path = access.as_ref().map(ToString::to_string);
    let schema = program.output_schema().clone();
    let node = StorageNode::new(Arc::clone(database.store()));
    let command = Command {
        capability: node.owner_capability(&table),
        program,
        work: SegmentQueue::with_access(table.segments.clone(), access),
        table,
        runtime_filters: Arc::new(RuntimeFilters::default()),
        batch_rows: 8192,
        metrics: Arc::new(ScanMetrics::default()),
    };
    let batches = node.submit(command).unwrap().collect::<Result<Vec<_>>>();
    (concat_batches(&schema, &batches.unwrap()).unwrap(), path)
}

fn ids(database: &Database, filter: Expr) -> (Vec<i64>, Option<String>) {
    let output = Output::Rows {
        exprs: vec![Expr::Column(ID as u32)],
        order: vec![],
        limit: None,
    };
    let (batch, path) = answer(database, vec![filter], output, NearSearch::Exact);
    let mut ids = batch
        .column(0)
        .as_primitive::<Int64Type>()
        .values()
        .to_vec();
    ids.sort_unstable();
    (ids, path)
}

pub(super) fn equals(column: usize, value: i64) -> Expr {
    Expr::Compare {
        op: CompareOp::Eq,
        left: Box::new(Expr::Column(column as u32)),
        right: Box::new(Expr::Literal(Literal {
            value: Scalar::Int(value.into()),
            data_type: DataType::Int64,
        })),
    }
}

/// Distances of the nearest codes, and the path.
fn nearest(database: &Database, code: [u8; 4], k: u64) -> (Vec<u32>, Option<String>) {
    let distance = Expr::Distance {
        metric: Metric::Hamming,
        expr: Box::new(Expr::Column(CODE as u32)),
        query: QueryVector::Bits(code.to_vec()),
    };
    let output = Output::Rows {
        exprs: vec![distance],
        order: vec![SortKey {
            output: 0,
            descending: false,
            nulls_first: false,
        }],
        limit: Some(k),
    };
    let (batch, path) = answer(database, vec![], output, NearSearch::Approximate);
    let mut found = batch
        .column(0)
        .as_primitive::<UInt32Type>()
        .values()
        .to_vec();
    found.sort_unstable();
    found.truncate(k as usize);
    (found, path)
}

/// The vertices one hop from another, or `None` where it is none.
fn neighbours(database: &Database, seed: i64) -> Option<BTreeSet<i64>> {
    neighbours_in(database, &table(database), seed)
}

/// Likewise, in a table with an index of that name.
pub(super) fn neighbours_in(
    database: &Database,
    table: &TableSnapshot,
    seed: i64,
) -> Option<BTreeSet<i64>> {
    let index = table.index("by_edge").unwrap();
    let graph = Graph::of(table, index, database.store()).unwrap();
    let mut found = BTreeSet::new();
    let seeds = Int64Array::from(vec![seed]);
    let job = Job::new(2);
    let searched = graph.expand(&job, &seeds, 1, Direction::Out, |hop| {
        found.extend(hop.vertices.as_primitive::<Int64Type>().values());
        Ok(())
    });
    match searched {
        Ok(()) => Some(found),
        Err(StorageError::NotFound { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

pub(super) fn named(path: Option<String>, index: &str) {
    assert!(
        path.as_ref().is_some_and(|path| path.starts_with(index)),
        "{path:?}"
    );
}

/// Compares what the indexes that there are answer with a look at every row.
fn check(database: &Arc<Database>, rows: &[Row], rng: &mut StdRng) {
    let present = table(database);
    assert_eq!(present.rows(), rows.len() as u64);
    let has = |name: &str| present.index(name).is_some();
    let of = |wanted: &dyn Fn(&Row) -> bool| {
        let mut ids: Vec<i64> = rows.iter().filter(|r| wanted(r)).map(|r| r.id).collect();
        ids.sort_unstable();
        ids
    };
    for _ in 0..3 {
        let key = rng.random_range(-5..205);
        let (found, path) = ids(database, equals(KEY, key));
        assert_eq!(found, of(&|row| row.key == key));
        // Of few rows each key is too much of the table.
        if has("by_key") && rows.len() > 10_000 {
            named(path, "by_key");
        }
        let id = rows
            .get(rng.random_range(0..=rows.len()))
            .map_or(-1, |row| row.id);
        let (found, path) = ids(database, equals(ID, id));
        assert_eq!(found, of(&|row| row.id == id));
        if has("by_id") {
            named(path, "by_id");
        }
        let text = format!("{} {}", ["amber", "cedar"][rng.random_range(0..2)], id % 37);
        let like = Expr::Like {
            expr: Box::new(Expr::Column(LINE as u32)),
            pattern: format!("%{text}%"),
            negated: false,
            case_insensitive: false,
        };
        let (found, path) = ids(database, like);
        let matches = |row: &Row| row.line.as_ref().is_some_and(|line| line.contains(&text));
        assert_eq!(found, of(&matches));
        if has("by_line") {
            named(path, "by_line");
        }
        let (code, k) = (rng.random::<[u8; 4]>(), rng.random_range(1..20));
        let (found, path) = nearest(database, code, k);
        let far = |row: &Row| (0..4).map(|i| (row.code[i] ^ code[i]).count_ones()).sum();
        let mut expected: Vec<u32> = rows.iter().map(far).collect();
        expected.sort_unstable();
        expected.truncate(k as usize);
        assert_eq!(found, expected);
        if has("by_code") {
            named(path, "by_code");
        }
        if has("by_edge") {
            let seed = rng.random_range(-2..202);
            let edges = rows
                .iter()
                .filter(|row| row.key == seed && row.next != seed);
            let mut expected = Some(edges.map(|row| row.next).collect());
            if !rows.iter().any(|row| row.key == seed || row.next == seed) {
                expected = None;
            }
            assert_eq!(neighbours(database, seed), expected);
        }
    }
}

/// No part is larger than allowed, and there are few.
fn check_parts(database: &Database, options: &UpkeepOptions) {
    let table = table(database);
    for index in &table.indexes {
        let name = &index.definition.name;
        assert!(
            index.tail.is_empty(),
            "{name}: {} segments",
            index.tail.len()
        );
        for part in &index.parts {
            let is_allowed = part.covers.len() <= options.max_part_segments
                && part.rows() <= options.max_part_rows;
            assert!(
                is_allowed || part.covers.len() == 1,
                "{name}: {:?}",
                part.covers
            );
        }
        // Seven of each tier, and those of which no two fit together.
        let segments = table.segments.len() / (options.max_part_segments / 2);
        let rows = (table.rows() / (options.max_part_rows / 2)) as usize;
        let most = 7 * 5 + 1 + segments + rows;
        assert!(
            index.parts.len() <= most,
            "{name}: {} parts of {most}",
            index.parts.len()
        );
    }
}

#[test]
fn answers_are_those_of_all_rows_whatever_an_index_covers() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rig = Rig::new(faults::new_database(seed), seed);
    let mut database = faults::open_with(&rig, small()).unwrap();
    let mut rows: Vec<Row> = Vec::new();
    let mut next_id = 0;
    let mut random_rows = |rng: &mut StdRng, count: usize| -> Vec<Row> {
        let ids = next_id..next_id + count as i64;
        next_id = ids.end;
        ids.map(|id| random_row(rng, id)).collect()
    };
    load(&database, create(&INDEXES), &[]).unwrap();
    for _ in 0..HISTORY {
        match rng.random_range(0..16) {
            0..6 => {
                let count = rng.random_range(1..40);
                let new = random_rows(&mut rng, count);
                load(&database, super::append(), &new).unwrap();
                rows.extend(new);
            }
            6 => {
                let count = rng.random_range(200..900);
                let new = random_rows(&mut rng, count);
                load(&database, super::append(), &new).unwrap();
                rows.extend(new);
            }
            7 if rng.random_bool(0.3) => {
                let count = rng.random_range(0..300);
                rows = random_rows(&mut rng, count);
                load(&database, overwrite(), &rows).unwrap();
            }
            8 => {
                let name = INDEXES[rng.random_range(0..5)];
                let created = database.create_index("public", "t", definition(name));
                if let Err(error) = created {
                    assert!(
                        matches!(error, StorageError::AlreadyExists { .. }),
                        "{error}"
                    );
                    database.drop_index("public", name).unwrap();
                }
            }
            9 if !rows.is_empty() && table(&database).index("by_id").is_some() => {
                // A key that is there, in a part of its own or in one that was merged.
                let mut new = random_rows(&mut rng, 3);
                new[1].id = rows[rng.random_range(0..rows.len())].id;
                let error = load(&database, super::append(), &new).unwrap_err();
                assert!(
                    matches!(error, StorageError::DuplicateKey { .. }),
                    "{error}"
                );
            }
            10 => {
                drop(database);
                rig = Rig::new(rig.restart(seed), seed);
                database = faults::open_with(&rig, small()).unwrap();
            }
            11 if !rows.is_empty() => delete(&database, &mut rows, &mut rng),
            12 => {
                database.compact("public", "t").unwrap();
                let present = table(&database);
                assert!(!present.has_deleted_rows() && present.segments.len() <= 1);
            }
            13..16 => {
                database.settle_indexes().unwrap();
                check_parts(&database, &small());
            }
            _ => {}
        }
        check(&database, &rows, &mut rng);
    }
    let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn a_hash_index_with_a_tail_is_used_and_what_it_does_not_cover_is_tested() {
    let mut rng = StdRng::seed_from_u64(3);
    let rig = Rig::new(faults::new_database(3), 3);
    let database = faults::open_with(&rig, small()).unwrap();
    let mut rows: Vec<Row> = (0..12_000).map(|id| random_row(&mut rng, id)).collect();
    load(&database, create(&[]), &rows).unwrap();
    database
        .create_index("public", "t", definition("by_key"))
        .unwrap();
    let more: Vec<Row> = (12_000..12_100)
        .map(|id| random_row(&mut rng, id))
        .collect();
    load(&database, super::append(), &more).unwrap();
    rows.extend(more);
    check(&database, &rows, &mut rng);
    let (_, path) = ids(&database, equals(KEY, 5));
    let path = path.unwrap();
    assert_eq!(path, "by_key (hash, 1 key, 100 rows not covered yet)");
}

#[test]
fn an_insert_builds_and_merges_nothing_that_need_not_be_unique() {
    let mut rng = StdRng::seed_from_u64(1);
    let rig = Rig::new(faults::new_database(1), 1);
    let database = faults::open_with(&rig, small()).unwrap();
    load(&database, create(&INDEXES), &[random_row(&mut rng, 0)]).unwrap();
    database.settle_indexes().unwrap();
    let before = table(&database);
    for id in 1..30 {
        load(&database, super::append(), &[random_row(&mut rng, id)]).unwrap();
    }
    let after = table(&database);
    for name in INDEXES {
        let (before, after) = (before.index(name).unwrap(), after.index(name).unwrap());
        let ids = |parts: &[Arc<crate::index::IndexPart>]| -> Vec<_> {
            parts.iter().map(|part| part.id).collect()
        };
        if name == "by_id" {
            assert_eq!((after.parts.len(), after.tail.len()), (30, 0));
            assert!(ids(&after.parts).starts_with(&ids(&before.parts)));
        } else {
            assert_eq!(ids(&before.parts), ids(&after.parts), "{name}");
            assert_eq!(after.tail.len(), 29, "{name}");
        }
    }
    database.settle_indexes().unwrap();
    check_parts(&database, &small());
    assert!(table(&database).index("by_id").unwrap().parts.len() < 10);
}

#[test]
fn a_search_in_a_graph_says_when_its_index_lags_too_far() {
    let mut rng = StdRng::seed_from_u64(2);
    let rig = Rig::new(faults::new_database(2), 2);
    let database = faults::open_with(&rig, small()).unwrap();
    load(&database, create(&["by_edge"]), &[random_row(&mut rng, 0)]).unwrap();
    let segment = Segment::new(SegmentId(7), 1, 1 + MAX_TAIL_ROWS as u32, vec![]);
    let index = Index::new(definition("by_edge"), vec![], vec![Arc::new(segment)]);
    let error = Graph::of(&table(&database), &index, database.store()).unwrap_err();
    assert!(
        error.to_string().contains("does not cover 4194305 rows"),
        "{error}"
    );
    let index = Index::new(definition("by_key"), vec![], vec![]);
    let error = Graph::of(&table(&database), &index, database.store()).unwrap_err();
    assert!(error.to_string().contains("is a hash index"), "{error}");
}

#[test]
fn thousands_of_small_commits_leave_few_parts() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let rig = Rig::new(faults::new_database(seed), seed);
    let database = faults::open_with(&rig, small()).unwrap();
    let mut rows = Vec::new();
    load(&database, create(&INDEXES), &rows).unwrap();
    for id in 0..COMMITS {
        let row = random_row(&mut rng, id);
        load(&database, super::append(), std::slice::from_ref(&row)).unwrap();
        rows.push(row);
        if rng.random_bool(0.01) {
            database.settle_indexes().unwrap();
        }
    }
    database.settle_indexes().unwrap();
    check_parts(&database, &small());
    for index in &table(&database).indexes {
        for part in &index.parts {
            let arrays: usize = part.arrays.iter().map(|array| array.chunks.len()).sum();
            assert!(arrays <= 2 * small().max_part_segments, "{arrays} arrays");
        }
    }
    check(&database, &rows, &mut rng);
}

#[test]
fn a_tail_is_there_after_reopening_and_for_readers_that_may_not_write() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = TempDir::new().unwrap();
    let mut options = DatabaseOptions {
        upkeep: small(),
        ..DatabaseOptions::default()
    };
    let rows: Vec<Row> = (0..900).map(|id| random_row(&mut rng, id)).collect();
    let database = Database::open(dir.path(), options.clone()).unwrap();
    load(&database, create(&INDEXES), &rows[..400]).unwrap();
    database.settle_indexes().unwrap();
    load(&database, super::append(), &rows[400..]).unwrap();
    drop(database);
    options.read_only = true;
    let database = Database::open(dir.path(), options.clone()).unwrap();
    assert_eq!(table(&database).index("by_key").unwrap().tail_rows(), 500);
    check(&database, &rows, &mut rng);
    let error = database.settle_indexes().unwrap_err();
    assert!(matches!(error, StorageError::ReadOnly { .. }), "{error}");
    drop(database);
    // The thread in the background finds it when it starts.
    options.read_only = false;
    options.upkeep.in_background = true;
    let database = Database::open(dir.path(), options).unwrap();
    wait_until(|| {
        let table = table(&database);
        table.indexes.iter().all(|index| index.tail.len() < 16)
    });
    check(&database, &rows, &mut rng);
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(
            since.elapsed() < Duration::from_secs(120),
            "it does not end"
        );
        std::thread::yield_now();
    }
}

#[test]
fn the_background_covers_tails_and_merges_parts() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let rig = Rig::new(faults::new_database(seed), seed);
    let options = UpkeepOptions {
        in_background: true,
        ..small()
    };
    let database = faults::open_with(&rig, options).unwrap();
    let rows: Vec<Row> = (0..200).map(|id| random_row(&mut rng, id)).collect();
    load(&database, create(&INDEXES), &[]).unwrap();
    for row in &rows {
        load(&database, super::append(), std::slice::from_ref(row)).unwrap();
    }
    wait_until(|| {
        let table = table(&database);
        let mut indexes = table.indexes.iter();
        indexes.all(|index| index.tail.len() < 16 && index.parts.len() < 60)
    });
    check(&database, &rows, &mut rng);
    drop(database);
}

#[test]
fn a_database_ends_at_once_whatever_is_built_in_the_background() {
    let mut rng = StdRng::seed_from_u64(5);
    let dir = TempDir::new().unwrap();
    let open = |share: f64| {
        let upkeep = UpkeepOptions {
            in_background: true,
            share,
            ..UpkeepOptions::default()
        };
        let options = DatabaseOptions {
            upkeep,
            ..DatabaseOptions::default()
        };
        Database::open(dir.path(), options).unwrap()
    };
    // A hundredth of a thread would take very long.
    let database = open(0.01);
    load(&database, create(&INDEXES), &[]).unwrap();
    let rows: Vec<Row> = (0..20_000).map(|id| random_row(&mut rng, id)).collect();
    for rows in rows.chunks(200) {
        load(&database, super::append(), rows).unwrap();
    }
    let since = Instant::now();
    drop(database);
    let database = open(0.01);
    assert!(since.elapsed() < Duration::from_secs(30));
    // Who asks for it does not wait for the rests of the background.
    database.settle_indexes().unwrap();
    let indexes = &table(&database).indexes;
    assert!(indexes.iter().all(|index| index.tail.is_empty()));
    check(&database, &rows, &mut rng);
}

#[test]
fn what_fails_is_kept_until_it_succeeds_and_no_statement_fails_of_it() {
    let mut rng = StdRng::seed_from_u64(7);
    let mut rig = Rig::new(faults::new_database(7), 7);
    let mut database = faults::open_with(&rig, small()).unwrap();
    let rows: Vec<Row> = (0..50).map(|id| random_row(&mut rng, id)).collect();
    load(&database, create(&["by_key"]), &rows[..1]).unwrap();
    let id = table(&database).id;
    let mut failed = 0;
    for (nth, end) in (0..).zip(1..40) {
        load(&database, super::append(), &rows[end..=end]).unwrap();
        rig.faults.plan(nth, Fault::Error);
        let settled = database.settle_indexes();
        rig.faults.end();
        if let Err(error) = settled {
            failed += 1;
            let kept = database.index_failure(id, "by_key").unwrap();
            assert_eq!(kept, error.to_string());
            if matches!(error, StorageError::NeedsReopening { .. }) {
                drop(database);
                rig = Rig::new(rig.restart(7), 7);
                database = faults::open_with(&rig, small()).unwrap();
            }
        }
        check(&database, &rows[..=end], &mut rng);
    }
    assert!(failed > 0);
    database.settle_indexes().unwrap();
    assert_eq!(database.index_failure(id, "by_key"), None);
    load(&database, super::append(), &rows[40..]).unwrap();
    check(&database, &rows, &mut rng);
}

#[test]
fn a_segment_that_can_not_be_read_keeps_no_others_from_being_covered() {
    let mut rng = StdRng::seed_from_u64(8);
    let dir = TempDir::new().unwrap();
    let options = DatabaseOptions {
        upkeep: small(),
        ..DatabaseOptions::default()
    };
    let database = Database::open(dir.path(), options).unwrap();
    let mut target = create(&["by_key", "by_edge"]);
    if let LoadTarget::Create { layout, .. } = &mut target {
        *layout = TableLayout::Column;
    }
    load(&database, target, &[]).unwrap();
    let rows: Vec<Row> = (0..60).map(|id| random_row(&mut rng, id)).collect();
    for row in &rows {
        load(&database, super::append(), std::slice::from_ref(row)).unwrap();
    }
    database.empty_log().unwrap();
    // Both read the column.
    let bad = Arc::clone(&table(&database).segments[2]);
    let file = dir.path().join("card0.flash");
    let card = OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let page = bad.chunks[KEY].run.first.page.0;
    let (at, mut byte) = (page * PAGE_SIZE_BYTES as u64 + 77, [0]);
    card.read_exact_at(&mut byte, at).unwrap();
    card.write_all_at(&[byte[0] ^ 4], at).unwrap();
    database.store().cache().clear();
    let error = database.settle_indexes().unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    let present = table(&database);
    for index in &present.indexes {
        let tail: Vec<SegmentId> = index.tail.iter().map(|segment| segment.id).collect();
        assert_eq!(tail, [bad.id]);
        let failure = database.index_failure(present.id, &index.definition.name);
        assert!(failure.is_some_and(|failure| failure.contains("corrupt")));
    }
    // It is tried again by whoever asks for it.
    card.write_all_at(&byte, at).unwrap();
    database.settle_indexes().unwrap();
    assert!(
        table(&database)
            .indexes
            .iter()
            .all(|index| index.tail.is_empty())
    );
    assert_eq!(database.index_failure(present.id, "by_key"), None);
    check(&database, &rows, &mut rng);
}

#[test]
fn steps_that_meet_commits_lose_neither_rows_nor_parts() {
    let dir = TempDir::new().unwrap();
    let options = DatabaseOptions {
        upkeep: UpkeepOptions {
            in_background: true,
            share: 1.0,
            ..small()
        },
        ..DatabaseOptions::default()
    };
    let database = Database::open(dir.path(), options.clone()).unwrap();
    load(&database, create(&INDEXES), &[]).unwrap();
    let rows: Vec<Row> = {
        let mut rng = StdRng::seed_from_u64(9);
        (0..240).map(|id| random_row(&mut rng, id)).collect()
    };
    std::thread::scope(|scope| {
        for rows in rows.chunks(60) {
            let database = &database;
            scope.spawn(move || {
                for rows in rows.chunks(3) {
                    load(database, super::append(), rows).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..10 {
                database.drop_index("public", "by_line").unwrap();
                let definition = definition("by_line");
                database.create_index("public", "t", definition).unwrap();
                database.settle_indexes().unwrap();
            }
        });
    });
    let found: HashSet<i64> = ids(&database, equals(KEY, 5)).0.into_iter().collect();
    let expected = rows.iter().filter(|row| row.key == 5).map(|row| row.id);
    assert_eq!(found, expected.collect::<HashSet<_>>());
    check(&database, &rows, &mut StdRng::seed_from_u64(10));
    let live = database.store().usage().pages();
    let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    // What was built in vain has given its pages back.
    let named: u64 = table(&database)
        .runs()
        .map(|run| u64::from(run.count))
        .sum();
    drop(database);
    let options = DatabaseOptions {
        read_only: true,
        ..options
    };
    let database = Database::open(dir.path(), options).unwrap();
    assert!(live >= named);
    assert_eq!(database.store().usage().live_pages, named);
}

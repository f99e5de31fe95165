//! Tables that lie by a key: each segment has rows of one bucket, and each bucket is on one node, whatever
//! is written, deleted, compacted and moved.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt64Array};
use arrow::datatypes::Int64Type;

use super::relocation::{OTHERS, ROWS, Rack, noise, pages_on};
use super::*;
use crate::index::pace::Pace;
use crate::page::SEGMENT_ROWS;
use crate::segment::{Segment, bytes_in_memory, carried, put_down, read_column, row_id};
use crate::store::NodeId;
use crate::table::distribution::MAX_BUCKETS;
use crate::table::{Distribution, Isolation, Workspace, normalise_schema};

fn by(column: u32, buckets: u16) -> Arc<Distribution> {
    let schema = normalise_schema(&schema()).unwrap();
    Arc::new(Distribution::new(&schema, vec![column], buckets).unwrap())
}

fn target(table: &str, distribution: &Arc<Distribution>) -> LoadTarget {
    let mut target = create(false);
    if let LoadTarget::Create {
        table: name,
        distribution: by,
        ..
    } = &mut target
    {
        *name = table.into();
        *by = Some(Arc::clone(distribution));
    }
    target
}

fn append_to(table: &str) -> LoadTarget {
    LoadTarget::Append {
        schema: "public".into(),
        table: table.into(),
    }
}

/// The table's rows by their ids; that each is in the bucket of its segment.
fn checked(database: &Database, table: &str, distribution: &Distribution) -> Model {
    let table = database.snapshot("public", table).unwrap();
    assert_eq!(table.distribution.as_deref(), Some(distribution));
    let mut reader = database.store().reader().unwrap();
    let mut found = BTreeMap::new();
    for segment in &table.segments {
        let fields = table.schema.fields().iter().enumerate();
        let columns = fields.map(|(ordinal, field)| {
            read_column(&mut reader, segment, ordinal, field.data_type()).unwrap()
        });
        let rows = RecordBatch::try_new(Arc::clone(&table.schema), columns.collect()).unwrap();
        let split = distribution.split(&rows).unwrap();
        let buckets: Vec<_> = split.iter().map(|(bucket, _)| Some(*bucket)).collect();
        assert_eq!(buckets, [segment.bucket]);
        let ids = rows.column(0).as_primitive::<Int64Type>();
        let texts = rows.column(1).as_string_view();
        for row in (0..segment.rows).filter(|row| segment.has_row(*row)) {
            let text = texts
                .is_valid(row as usize)
                .then(|| texts.value(row as usize).into());
            let before = found.insert(ids.value(row as usize), text);
            assert!(before.is_none(), "a row is there twice");
        }
    }
    found
}

type Model = BTreeMap<i64, Option<String>>;

fn model_of(rows: &RecordBatch) -> Model {
    let ids = rows.column(0).as_primitive::<Int64Type>();
    let texts = rows.column(1).as_string::<i32>();
    let texts = texts.iter().map(|text| text.map(Into::into));
    ids.values().iter().copied().zip(texts).collect()
}

/// The node of each bucket that is on a card.
fn nodes_of(database: &Database, tables: &[&str]) -> BTreeMap<u16, NodeId> {
    let mut nodes = BTreeMap::new();
    for table in tables {
        for segment in &database.snapshot("public", table).unwrap().segments {
            if bytes_in_memory(segment) > 0 {
                continue;
            }
            let node = segment.node().expect("a segment is on one node");
            let of_bucket = *nodes.entry(segment.bucket.unwrap()).or_insert(node);
            assert_eq!(of_bucket, node, "a bucket is on two nodes");
        }
    }
    nodes
}

#[test]
fn rows_are_in_the_bucket_of_their_segment() {
    let first_seed = seed();
    for seed in (0..8).map(|n| first_seed.wrapping_add(n)) {
        let mut rng = StdRng::seed_from_u64(seed);
        let distribution = by(rng.random_range(0..2), rng.random_range(1..12));
        println!("seed {seed}, {distribution:?}");
        let rack = Rack::new(400);
        let mut database = rack.open(&rack.cards).unwrap();
        let (mut model, mut next) = (Model::new(), 0);
        load(&database, target("t", &distribution), &rows(0, 0)).unwrap();
        for _ in 0..30 {
            match rng.random_range(0..10) {
                0..5 => {
                    let count = [1, 3, 500, 30_000][rng.random_range(0..4)];
                    let rows = rows(next, count);
                    next += count as i64;
                    let workspace = Workspace::new(Arc::clone(&database));
                    let is_one_of_more = rng.random();
                    if is_one_of_more {
                        workspace.begin(Isolation::Snapshot, false).unwrap();
                    }
                    let load = workspace.begin_load(append()).unwrap();
                    let mut writer = load.writer().unwrap();
                    let half = rng.random_range(0..=count);
                    writer.append(&rows.slice(0, half)).unwrap();
                    writer.append(&rows.slice(half, count - half)).unwrap();
                    writer.finish().unwrap();
                    load.commit().unwrap();
                    if is_one_of_more {
                        workspace.commit().unwrap();
                    }
                    model.extend(model_of(&rows));
                }
                5..7 => delete(&mut rng, &database, &mut model),
                7 => database.compact("public", "t").unwrap(),
                8 => while database.relocate(&Pace::full()).unwrap() {},
                _ => {
                    drop(database);
                    database = rack.open(&rack.cards).unwrap();
                }
            }
            assert!(checked(&database, "t", &distribution) == model);
            nodes_of(&database, &["t"]);
        }
        database.compact("public", "t").unwrap();
        assert!(checked(&database, "t", &distribution) == model);
        let count = database.snapshot("public", "t").unwrap().segments.len();
        let full = model.len() / SEGMENT_ROWS;
        let most = usize::from(distribution.buckets()) + full;
        assert!(count <= most, "{count} segments");
        let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
        assert!(problems.is_empty(), "{problems:?}");
    }
}

/// Some rows go.
fn delete(rng: &mut StdRng, database: &Arc<Database>, model: &mut Model) {
    let version = database.snapshot("public", "t").unwrap();
    let mut reader = database.store().reader().unwrap();
    let part = rng.random_range(0.0..0.4);
    let mut gone = Vec::new();
    for segment in &version.segments {
        let ids = read_column(&mut reader, segment, 0, &DataType::Int64).unwrap();
        let ids = ids.as_primitive::<Int64Type>();
        for row in (0..segment.rows).filter(|row| segment.has_row(*row)) {
            if rng.random_bool(part) {
                gone.push(row_id(segment.id, row));
                assert!(model.remove(&ids.value(row as usize)).is_some());
            }
        }
    }
    let ids: ArrayRef = Arc::new(UInt64Array::from(gone));
    let batch = RecordBatch::try_from_iter([("row_id", ids)]).unwrap();
    let change = LoadTarget::Change {
        schema: "public".into(),
        table: "t".into(),
        version,
    };
    load(database, change, &batch).unwrap();
}

/// All tables with as many buckets have them on the same nodes: where cards are drained, where they come,
/// and where a bucket had no room.
#[test]
fn a_bucket_is_on_one_node_when_cards_come_and_go() {
    let mut rng = StdRng::seed_from_u64(seed());
    let rack = Rack::new(400);
    let buckets = rng.random_range(4..8);
    let distribution = by(0, buckets);
    let database = rack.open(&rack.cards).unwrap();
    let tables = ["t", "u"];
    let mut models = [Model::new(), Model::new()];
    for (table, model) in tables.iter().zip(&mut models) {
        let rows = noise(&mut rng, 0);
        load(&database, target(table, &distribution), &rows).unwrap();
        *model = model_of(&rows);
    }
    let mut next = ROWS as i64;
    let mut grow = |database: &Arc<Database>, models: &mut [Model; 2]| {
        for (table, model) in tables.iter().zip(models) {
            let rows = noise(&mut rng, next);
            next += ROWS as i64;
            load(database, append_to(table), &rows).unwrap();
            model.extend(model_of(&rows));
        }
    };
    let check = |database: &Database, models: &[Model; 2]| {
        for (table, model) in tables.iter().zip(models) {
            assert!(checked(database, table, &distribution) == *model);
        }
        nodes_of(database, &tables)
    };
    grow(&database, &mut models);
    let nodes = check(&database, &models);
    let all = |node: u16| nodes.values().filter(|of| of.0 == node).count();
    let [least, most] = [buckets / 3, buckets.div_ceil(3)].map(usize::from);
    assert!(
        [0, 1, 2]
            .map(all)
            .iter()
            .all(|of| (least..=most).contains(of))
    );

    database.drain(&OTHERS[..1]).unwrap();
    grow(&database, &mut models);
    while database.relocate(&Pace::full()).unwrap() {}
    assert_eq!(pages_on(&database, &OTHERS[..1]), 0);
    let drained = check(&database, &models);
    drop(database);

    // Without the card: one that comes later gets whole buckets.
    let database = rack.open(&rack.cards[1..]).unwrap();
    assert_eq!(check(&database, &models), drained);
    drop(database);
    let database = rack.open(&rack.cards).unwrap();
    for _ in 0..3 {
        grow(&database, &mut models);
    }
    let mut steps = 0;
    while database.relocate(&Pace::full()).unwrap() {
        steps += 1;
        assert!(steps < 200, "it goes round in circles");
    }
    let filled = check(&database, &models);
    assert!(filled.values().any(|node| node.0 == 1), "{filled:?}");
    grow(&database, &mut models);
    assert_eq!(check(&database, &models), filled);
}

/// What small commits left in memory is read on another node with the pages that came with it.
#[test]
fn segments_in_memory_are_carried() {
    let distribution = by(0, 4);
    let rack = Rack::new(40);
    let database = rack.open(&[]).unwrap();
    load(&database, target("t", &distribution), &rows(0, 0)).unwrap();
    for part in 0..5 {
        load(&database, append(), &rows(part * 100, 100)).unwrap();
    }
    let table = database.snapshot("public", "t").unwrap();
    let bytes: u64 = table.segments.iter().map(|s| bytes_in_memory(s)).sum();
    assert!(bytes > 0, "they are in memory");
    let carried = carried(database.store(), &table.segments).unwrap();

    let other = TempDir::new().unwrap();
    let other = open(other.path());
    let before = other.store().memory_bytes();
    let there = put_down(other.store(), &table.segments, carried.clone()).unwrap();
    assert_eq!(other.store().memory_bytes(), before + bytes);
    let values = |database: &Database, segments: &[Arc<Segment>]| -> Vec<ArrayRef> {
        let mut reader = database.store().reader().unwrap();
        let mut column = |ordinal, data_type: &DataType| {
            let read = |s: &Arc<Segment>| read_column(&mut reader, s, ordinal, data_type).unwrap();
            segments.iter().map(read).collect::<Vec<_>>()
        };
        [column(0, &DataType::Int64), column(1, &DataType::Utf8View)].concat()
    };
    assert!(values(&other, &there) == values(&database, &table.segments));
    drop(there);
    assert_eq!(
        other.store().memory_bytes(),
        before,
        "they go with who reads them"
    );

    // Fewer of them, others, and torn ones are no pages of these segments.
    let lacking = put_down(other.store(), &table.segments, carried[1..].to_vec());
    assert!(matches!(lacking, Err(StorageError::Corrupt { .. })));
    let mut torn = carried;
    torn[0].pages[0][40] ^= 1;
    let torn = put_down(other.store(), &table.segments, torn);
    assert!(matches!(torn, Err(StorageError::Corrupt { .. })));
    assert_eq!(
        other.store().memory_bytes(),
        before,
        "nothing stays of them"
    );
}

#[test]
fn a_distribution_is_refused_that_is_none() {
    let fields = [
        Field::new("id", DataType::Int64, false),
        Field::new("x", DataType::Float64, false),
    ];
    let schema = Schema::new(fields.to_vec());
    for (columns, buckets, why) in [
        (vec![], 4, "at least one column"),
        (vec![0, 0], 4, "'id' twice"),
        (vec![2], 4, "column 2"),
        (vec![1], 4, "'x' of type Float64"),
        (vec![0], 0, "not 0"),
        (vec![0], MAX_BUCKETS + 1, "buckets, not"),
    ] {
        let error = Distribution::new(&schema, columns, buckets).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    for (nodes, buckets) in [(0, 8), (1, 8), (3, 9), (4, 8), (20, 20), (999, MAX_BUCKETS)] {
        assert_eq!(Distribution::default_buckets(nodes), buckets);
    }
}

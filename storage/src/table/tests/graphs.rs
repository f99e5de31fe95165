//! Searches of the versions of an edge table: they find what the version has, whatever parts of the
//! index still have.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use super::{layout, load, seed};
use crate::graph::tests::{
    Edge, check_lists, check_neighbourhoods, check_paths, check_search, check_whole,
};
use crate::graph::{Direction, Graph, Job};
use crate::index::adjacency::MAX_TAIL_ROWS;
use crate::index::pace::Pace;
use crate::index::{Index, IndexDefinition, IndexKind};
use crate::segment::row_id;
use crate::table::compaction::Thoroughness;
use crate::table::edit::ObjectName;
use crate::table::{
    Database, DatabaseOptions, Isolation, LoadTarget, TableSnapshot, UpkeepOptions, Workspace,
};
use crate::{Result, StorageError};

/// Changes of a random history; fewer without optimisation.
const CHANGES: usize = if cfg!(debug_assertions) { 60 } else { 300 };

type Row = (Option<i64>, Option<i64>, f64);

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("source", DataType::Int64, true),
        Field::new("target", DataType::Int64, true),
        Field::new("weight", DataType::Float64, true),
    ]))
}

fn definition() -> IndexDefinition {
    IndexDefinition {
        name: "by_edge".into(),
        kind: IndexKind::Adjacency,
        columns: vec![0, 1, 2],
        unique: false,
        primary: false,
        options: Default::default(),
    }
}

/// A database with an empty edge table, whose parts are small enough to be many.
fn edge_table(upkeep: UpkeepOptions) -> (TempDir, Arc<Database>) {
    let dir = TempDir::new().unwrap();
    let options = DatabaseOptions {
        upkeep: UpkeepOptions {
            in_background: false,
            ..upkeep
        },
        ..DatabaseOptions::default()
    };
    let database = Database::open(dir.path(), options).unwrap();
    let target = LoadTarget::Create {
        layout: layout(),
        distribution: None,
        retention: std::time::Duration::ZERO,
        defaults: vec![],
        checks: vec![],
        schema: "public".into(),
        table: "t".into(),
        arrow_schema: schema(),
        or_replace: false,
        indexes: vec![definition()],
    };
    load(&database, target, &RecordBatch::new_empty(schema())).unwrap();
    (dir, database)
}

fn columns(rows: &[Row]) -> Vec<(&'static str, ArrayRef)> {
    let sources: Int64Array = rows.iter().map(|row| row.0).collect();
    let targets: Int64Array = rows.iter().map(|row| row.1).collect();
    // What is no number is NULL.
    let weights: Float64Array = rows
        .iter()
        .map(|r| Some(r.2).filter(|w| !w.is_nan()))
        .collect();
    vec![
        ("source", Arc::new(sources)),
        ("target", Arc::new(targets)),
        ("weight", Arc::new(weights)),
    ]
}

fn append(database: &Arc<Database>, rows: &[Row]) {
    let batch = RecordBatch::try_from_iter(columns(rows)).unwrap();
    load(database, super::append(), &batch).unwrap();
}

fn table(database: &Database) -> Arc<TableSnapshot> {
    database.snapshot("public", "t").unwrap()
}

fn index(database: &Database) -> Arc<Index> {
    Arc::clone(table(database).index("by_edge").unwrap())
}

fn graph(database: &Database, table: &TableSnapshot) -> Result<Arc<Graph>> {
    Graph::of(table, table.index("by_edge").unwrap(), database.store())
}

/// Replaces the rows with these ids by as many of `new` as there are, and deletes the others.
fn change(database: &Arc<Database>, ids: &[u64], new: &[Row]) {
    let target = LoadTarget::Change {
        schema: "public".into(),
        table: "t".into(),
        version: table(database),
    };
    let (replaced, deleted) = ids.split_at(new.len());
    let load = database.begin_load(target).unwrap();
    let mut writer = load.writer().unwrap();
    let mut batch = columns(new);
    batch.push(("row_id", Arc::new(UInt64Array::from(replaced.to_vec()))));
    let deleted: ArrayRef = Arc::new(UInt64Array::from(deleted.to_vec()));
    for columns in [batch, vec![("row_id", deleted)]] {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        writer.append(&batch).unwrap();
    }
    writer.finish().unwrap();
    load.commit().unwrap();
}

/// The ids of the rows of a version, in their order.
fn ids(table: &TableSnapshot) -> Vec<u64> {
    let of_segment = table.segments.iter().map(|segment| {
        let rows = (0..segment.rows).filter(|row| segment.has_row(*row));
        rows.map(|row| row_id(segment.id, row)).collect::<Vec<_>>()
    });
    of_segment.collect::<Vec<_>>().concat()
}

fn compact_due(database: &Database) {
    let name = ObjectName::new("public", "t");
    let step = || database.compact_step(&name, &Pace::full(), Thoroughness::Due);
    while step().unwrap() {}
}

/// Compares searches of a version with naive ones over its rows.
fn check(rng: &mut SmallRng, database: &Database, table: &TableSnapshot, rows: &[Row]) {
    let ids = ids(table);
    assert_eq!(ids.len(), rows.len());
    let edges: Vec<Edge> = ids
        .iter()
        .zip(rows)
        .map(|(row, (source, target, weight))| Edge {
            row: *row,
            source: *source,
            target: *target,
            weight: *weight,
        })
        .collect();
    let graph = graph(database, table).unwrap();
    check_search(rng, &graph, &edges);
    check_neighbourhoods(rng, &graph, &edges);
    check_paths(rng, &graph, &edges);
    check_lists(rng, &graph, &edges);
    check_whole(rng, &graph, &edges);
    let ends = rows.iter().filter_map(|row| Some([row.0?, row.1?]));
    let vertices: BTreeSet<i64> = ends.flatten().collect();
    for vertex in (0..5).map(|_| rng.random_range(-5..100)) {
        let found = graph.numbers_of(&Job::new(1), &Int64Array::from(vec![vertex]));
        match found {
            Ok(_) => assert!(vertices.contains(&vertex), "{vertex}"),
            Err(StorageError::NotFound { .. }) => assert!(!vertices.contains(&vertex), "{vertex}"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn searches_find_the_edges_that_are_there_whatever_parts_have() {
    let mut rng = SmallRng::seed_from_u64(seed());
    let (_dir, database) = edge_table(UpkeepOptions {
        max_part_segments: 24,
        max_part_rows: 4000,
        ..UpkeepOptions::default()
    });
    let mut rows: Vec<Row> = Vec::new();
    let mut earlier = (table(&database), rows.clone());
    let (mut lost_rows, mut lost_segments) = (0, 0);
    for _ in 0..CHANGES {
        let key = |rng: &mut SmallRng| {
            let key: f64 = rng.random::<f64>().powi(2) * 100.0;
            rng.random_bool(0.98).then_some(key as i64)
        };
        let new_rows = |rng: &mut SmallRng, count: usize| -> Vec<Row> {
            let row = |rng: &mut SmallRng| {
                let weight = f64::from(rng.random_range(0..12u32)) / 4.0;
                (key(rng), key(rng), weight)
            };
            (0..count).map(|_| row(rng)).collect()
        };
        match rng.random_range(0..16) {
            0..6 => {
                // Compaction takes the many short segments, and leaves the others.
                let (commits, count) = match rng.random_range(0..3) {
                    0 => (rng.random_range(1..20), 1),
                    1 => (1, 30),
                    _ => (1, 600),
                };
                for _ in 0..commits {
                    let new = new_rows(&mut rng, count);
                    append(&database, &new);
                    rows.extend(new);
                }
            }
            6..9 => {
                // Many rows go, now and then, so that the table stays small.
                let share = match rows.len() > 3000 {
                    true => 0.5,
                    false => [0.005, 0.02, 0.3][rng.random_range(0..3)],
                };
                let ids = ids(&table(&database));
                let (mut gone, mut kept) = (Vec::new(), Vec::new());
                for (id, row) in ids.into_iter().zip(rows.drain(..)) {
                    match rng.random_bool(share) {
                        true => gone.push(id),
                        false => kept.push(row),
                    }
                }
                let count = gone.len() / rng.random_range(1..4);
                let new = new_rows(&mut rng, count);
                change(&database, &gone, &new);
                rows = kept;
                rows.extend(new);
            }
            9 | 10 => compact_due(&database),
            11 if rng.random_bool(0.1) => database.compact("public", "t").unwrap(),
            12 | 13 => database.settle_indexes().unwrap(),
            14 => earlier = (table(&database), rows.clone()),
            _ => {}
        }
        let present = table(&database);
        let covers = present.index("by_edge").unwrap().parts.iter();
        for (id, _) in covers.flat_map(|part| &part.covers) {
            match present.segments.iter().find(|segment| segment.id == *id) {
                Some(segment) => lost_rows += usize::from(segment.deleted().is_some()),
                None => lost_segments += 1,
            }
        }
        if rng.random_bool(0.4) {
            check(&mut rng, &database, &present, &rows);
        }
        if rng.random_bool(0.1) {
            check(&mut rng, &database, &earlier.0, &earlier.1);
        }
    }
    println!("{lost_rows} segments with deleted rows, {lost_segments} that were gone");
    // Parts of which much is gone do not stay.
    database.settle_indexes().unwrap();
    let present = table(&database);
    for part in &index(&database).parts {
        let is_gone = |id| present.segments.iter().all(|segment| segment.id != id);
        let gone = part.covers.iter().filter(|(id, _)| is_gone(*id));
        assert!(gone.map(|(_, rows)| u64::from(*rows)).sum::<u64>() * 4 < part.rows());
    }
    check(&mut rng, &database, &present, &rows);
}

#[test]
fn a_part_serves_until_a_quarter_of_it_is_gone() {
    let mut rng = SmallRng::seed_from_u64(seed());
    for (first, is_kept) in [(100, true), (20, false)] {
        let (_dir, database) = edge_table(UpkeepOptions::default());
        let rows: Vec<Row> = (0..first + 20)
            .map(|n| (Some(n), Some(n + 1), 1.0))
            .collect();
        let (first, others) = rows.split_at(first as usize);
        append(&database, first);
        others[..10]
            .iter()
            .for_each(|row| append(&database, &[*row]));
        database.settle_indexes().unwrap();
        let part = index(&database).parts[0].id;
        others[10..]
            .iter()
            .for_each(|row| append(&database, &[*row]));
        compact_due(&database);
        assert_eq!(table(&database).segments.len(), 2);
        assert_eq!(
            (index(&database).parts[0].id, index(&database).tail.len()),
            (part, 1)
        );
        check(&mut rng, &database, &table(&database), &rows);
        database.settle_indexes().unwrap();
        assert!(index(&database).tail.is_empty());
        assert_eq!(
            index(&database).parts.iter().any(|other| other.id == part),
            is_kept
        );
        check(&mut rng, &database, &table(&database), &rows);
    }
}

#[test]
fn deleted_rows_of_a_large_part_leave_it_searchable() {
    let (_dir, database) = edge_table(UpkeepOptions::default());
    let rows = MAX_TAIL_ROWS as i64 + 100_000;
    let row = |n: i64| (Some(n), Some(n + 1), 1.0);
    append(&database, &(0..rows).map(row).collect::<Vec<_>>());
    database.settle_indexes().unwrap();
    let part = index(&database).parts[0].id;
    let degree = |vertex: i64| {
        let mut found = 0;
        let seeds = Int64Array::from(vec![vertex]);
        let graph = graph(&database, &table(&database)).unwrap();
        let expanded = graph.expand(&Job::new(1), &seeds, 1, Direction::Both, |hop| {
            found += hop.vertices.len();
            Ok(())
        });
        expanded.unwrap();
        found
    };
    assert_eq!(degree(10), 2);
    change(&database, &ids(&table(&database))[10..11], &[]);
    assert_eq!(degree(10), 1);
    // So many rows of one segment that compaction takes it.
    let first = table(&database).segments[0].id;
    let gone: Vec<u64> = (1000..40_000).map(|row| row_id(first, row)).collect();
    change(&database, &gone, &[]);
    compact_due(&database);
    assert!(table(&database).segments.iter().all(|s| s.id != first));
    assert_eq!([999, 1000, 40_000, 40_001].map(degree), [2, 1, 1, 2]);
    let index = index(&database);
    assert_eq!((index.parts.len(), index.parts[0].id), (1, part));
    assert!(index.tail_rows() < 65_536, "{}", index.tail_rows());
    database.settle_indexes().unwrap();
    assert_eq!([10, 999, 1000, 40_000, 40_001].map(degree), [1, 2, 1, 1, 2]);
}

#[test]
fn a_part_that_lost_rows_while_it_was_built_is_published() {
    let (_dir, database) = edge_table(UpkeepOptions::default());
    database.drop_index("public", "by_edge").unwrap();
    let rows: Vec<Row> = (0..100).map(|n| (Some(n), Some(n + 1), 1.0)).collect();
    append(&database, &rows);
    let workspace = Workspace::new(Arc::clone(&database));
    workspace.begin(Isolation::Snapshot, false).unwrap();
    workspace.create_index("public", "t", definition()).unwrap();
    change(&database, &ids(&table(&database))[10..11], &[]);
    workspace.commit().unwrap();
    let index = index(&database);
    assert_eq!((index.parts.len(), index.tail_rows()), (1, 0));
    let mut rng = SmallRng::seed_from_u64(seed());
    let left = [&rows[..10], &rows[11..]].concat();
    check(&mut rng, &database, &table(&database), &left);
}

#[test]
fn weights_that_can_not_be_used_are_no_fault_once_their_edges_are_deleted() {
    let (_dir, database) = edge_table(UpkeepOptions::default());
    let mut rows: Vec<Row> = (0..100).map(|n| (Some(n), Some(n + 1), 1.0)).collect();
    (rows[20].2, rows[60].2) = (f64::NAN, -1.0);
    append(&database, &rows);
    database.settle_indexes().unwrap();
    let path = || {
        let end = |key| Int64Array::from(vec![key]);
        let graph = graph(&database, &table(&database)).unwrap();
        let found = graph.shortest_path(&Job::new(1), &end(30), &end(50), Direction::Out, true);
        found.map(|path| path.map(|(_, steps)| steps.len()))
    };
    let fault = |row: usize| {
        let error = path().unwrap_err().to_string();
        assert!(
            error.contains(&format!("row {row} has a weight")),
            "{error}"
        );
    };
    fault(20);
    change(&database, &ids(&table(&database))[20..21], &[]);
    fault(60);
    // The row before is deleted.
    change(&database, &ids(&table(&database))[59..60], &[]);
    assert_eq!(path().unwrap(), Some(21));
    assert_eq!(index(&database).parts.len(), 1);
}

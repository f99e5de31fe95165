//! Rows by key through `hash` indexes: what an index leads to is what a look at every row finds.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use flashmesh_pushdown::{Expr, InputColumn, Limits, Output, Program, Scalar, verify};
use flashmesh_storage::Result;
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::access::AccessPath;
use flashmesh_storage::index::{IndexDefinition, IndexKind, hash};
use flashmesh_storage::node::{Command, SegmentQueue, StorageNode};
use flashmesh_storage::table::{Database, DatabaseOptions, LoadTarget, TableSnapshot};
use rand::{RngExt, SeedableRng, rngs::StdRng};

type Row = (Option<i64>, Option<String>);

#[test]
fn rows_by_keys_of_an_array() -> Result<()> {
    for seed in 0..6 {
        let mut rng = StdRng::seed_from_u64(seed);
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::open(folder.path(), DatabaseOptions::default())?;
        let schema = Arc::new(Schema::new(vec![
            Field::new("number", DataType::Int64, true),
            Field::new("name", DataType::Utf8View, true),
        ]));
        database.create_schema("s")?;
        let load = database.begin_load(LoadTarget::Create {
            layout: Default::default(),
            retention: std::time::Duration::ZERO,
            defaults: vec![],
            schema: "s".into(),
            table: "t".into(),
            arrow_schema: Arc::clone(&schema),
            or_replace: false,
            indexes: vec![index("by_number", 0), index("by_name", 1)],
        })?;
        load.commit()?;
        let keys = rng.random_range(1..20_000);
        let mut rows: Vec<Row> = Vec::new();
        // Each load adds segments.
        for _ in 0..rng.random_range(1..4) {
            let count = rng.random_range(1..30_000);
            let some: Vec<Row> = (0..count).map(|_| row(&mut rng, keys)).collect();
            let load = database.begin_load(LoadTarget::Append {
                schema: "s".into(),
                table: "t".into(),
            })?;
            let mut writer = load.writer()?;
            writer.append(&batch(&schema, &some)?)?;
            writer.finish()?;
            load.commit()?;
            rows.extend(some);
        }
        // With tails and without.
        if seed % 2 == 0 {
            database.settle_indexes()?;
        }
        let table = database.snapshot("s", "t")?;
        let node = StorageNode::new(Arc::clone(database.store()));
        for round in 0..8 {
            // Some of them twice, some of no row, some NULL.
            let count = rng.random_range(0..3_000);
            let wanted: Vec<Row> = (0..count).map(|_| row(&mut rng, keys + 100)).collect();
            let arrays = batch(&schema, &wanted)?;
            for column in [0, 1] {
                let mut found = get(&node, &table, column, arrays.column(column))?;
                let key = |row: &Row| match column {
                    0 => row.0.map(|number| number.to_string()),
                    _ => row.1.clone(),
                };
                let wanted: HashSet<String> = wanted.iter().filter_map(key).collect();
                let is_wanted = |row: &&Row| key(row).is_some_and(|key| wanted.contains(&key));
                let mut expected: Vec<Row> = rows.iter().filter(is_wanted).cloned().collect();
                found.sort();
                expected.sort();
                assert_eq!(
                    found, expected,
                    "seed {seed}, round {round}, column {column}"
                );
            }
        }
    }
    Ok(())
}

fn index(name: &str, column: u32) -> IndexDefinition {
    IndexDefinition {
        name: name.into(),
        kind: IndexKind::Hash,
        columns: vec![column],
        unique: false,
        primary: false,
        options: BTreeMap::new(),
    }
}

fn row(rng: &mut StdRng, keys: i64) -> Row {
    let mut key = || (!rng.random_bool(0.02)).then(|| rng.random_range(-keys..keys));
    let number = key();
    (number, key().map(|key| format!("the name {key}")))
}

fn batch(schema: &Arc<Schema>, rows: &[Row]) -> Result<RecordBatch> {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0)));
    let names: ArrayRef = Arc::new(StringViewArray::from_iter(
        rows.iter().map(|row| row.1.as_deref()),
    ));
    Ok(RecordBatch::try_new(
        Arc::clone(schema),
        vec![numbers, names],
    )?)
}

/// The rows whose key in `column` is one of `keys`, by two streams.
fn get(
    node: &Arc<StorageNode>,
    table: &Arc<TableSnapshot>,
    column: usize,
    keys: &ArrayRef,
) -> Result<Vec<Row>> {
    let index = &table.indexes[column];
    let mut filter = vec![];
    if !hash::proves(index, &[keys.data_type()]) {
        let rows = (0..keys.len()).filter(|row| keys.is_valid(*row));
        filter.push(Expr::InList {
            expr: Box::new(Expr::Column(column as u32)),
            list: rows
                .filter_map(|row| Scalar::from_array(keys, row))
                .collect(),
            negated: false,
        });
    }
    let columns = (0..).zip(table.schema.fields());
    let columns = columns.map(|(ordinal, field)| InputColumn {
        ordinal,
        name: field.name().clone(),
        data_type: field.data_type().clone(),
        nullable: field.is_nullable(),
    });
    let program = Program {
        columns: columns.collect(),
        filter,
        output: Output::Rows {
            exprs: vec![Expr::Column(0), Expr::Column(1)],
            order: vec![],
            limit: None,
        },
    };
    let program = verify(program, &table.scan_schema, &Limits::default()).expect("valid");
    let access = AccessPath::by_keys(index, std::slice::from_ref(keys))?;
    let command = Command {
        program: Arc::new(program),
        table: Arc::clone(table),
        work: SegmentQueue::with_access(table.segments.clone(), Some(Arc::new(access))),
        runtime_filters: Arc::default(),
        batch_rows: 1000,
        metrics: Arc::new(ScanMetrics::default()),
        capability: node.owner_capability(table),
    };
    let mut streams = [node.submit(command.clone())?, node.submit(command)?];
    let mut rows = Vec::new();
    loop {
        let mut has_ended = true;
        for stream in &mut streams {
            if let Some(batch) = stream.next() {
                let batch = batch?;
                has_ended = false;
                let numbers = batch.column(0).as_primitive::<Int64Type>();
                let names = batch.column(1).as_string_view();
                let names = names.iter().map(|name| name.map(str::to_string));
                rows.extend(numbers.iter().zip(names));
            }
        }
        if has_ended {
            return Ok(rows);
        }
    }
}

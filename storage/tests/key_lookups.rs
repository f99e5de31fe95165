//! Rows by key through `hash` indexes: what an index leads to is what a look at every row finds.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringViewArray, new_null_array,
};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, UInt64Type};
use flashmesh_pushdown::{Expr, InputColumn, Limits, Output, Program, Scalar, verify};
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::access::AccessPath;
use flashmesh_storage::capability::Capability;
use flashmesh_storage::index::{IndexDefinition, IndexKind, hash};
use flashmesh_storage::lookup::KeyLookup;
use flashmesh_storage::node::{Command, SegmentQueue, StorageNode};
use flashmesh_storage::page::Value;
use flashmesh_storage::table::{Database, DatabaseOptions, LoadTarget, TableLayout, TableSnapshot};
use flashmesh_storage::{Result, StorageError};
use rand::{RngExt, SeedableRng, rngs::StdRng};

type Row = (Option<i64>, Option<String>);

#[test]
fn rows_by_keys_of_an_array() -> Result<()> {
    for seed in 0..6 {
        let mut rng = StdRng::seed_from_u64(seed);
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::open(folder.path(), DatabaseOptions::default())?;
        let schema = schema();
        database.create_schema("s")?;
        let indexes = vec![index("by_number", 0), index("by_name", 1)];
        let load = database.begin_load(new_table("t", seed, indexes))?;
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
        // Nothing is cached.
        drop(database);
        let database = Database::open(folder.path(), DatabaseOptions::default())?;
        let table = database.snapshot("s", "t")?;
        let node = StorageNode::new(Arc::clone(database.store()));
        for round in 0..8 {
            // Some of them twice, some of no row, some NULL.
            let count = rng.random_range(0..3_000);
            let wanted: Vec<Row> = (0..count).map(|_| row(&mut rng, keys + 100)).collect();
            let arrays = batch(&schema, &wanted)?;
            for column in [0, 1] {
                let looked_up = look_up(&node, &table, column, arrays.column(column));
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
                let case = format!("seed {seed}, round {round}, column {column}");
                assert_eq!(found, expected, "{case}");
                match table.indexes[column].tail.is_empty() {
                    true => {
                        let mut found = looked_up?;
                        found.sort();
                        assert_eq!(found, expected, "{case}");
                    }
                    // The index does not know all rows.
                    false => {
                        let refused = looked_up.unwrap_err().to_string();
                        assert!(refused.contains("does not cover all rows"), "{refused}");
                    }
                }
            }
        }
    }
    assert!(MISSED.load(Ordering::Relaxed) > 0);
    Ok(())
}

/// What an index leads to is compared: two keys may have one hash. That is rare, so here an index leads
/// to the rows of another table.
#[test]
fn a_lookup_gives_rows_that_have_their_keys() -> Result<()> {
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(seed);
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::open(folder.path(), DatabaseOptions::default())?;
        let schema = schema();
        database.create_schema("s")?;
        let count = rng.random_range(1..300);
        let mut tables = Vec::new();
        for name in ["indexed", "read"] {
            let rows: Vec<Row> = (0..count).map(|_| row(&mut rng, 5)).collect();
            let indexes = vec![index(&format!("{name}_by_name"), 1)];
            let load = database.begin_load(new_table(name, seed, indexes))?;
            let mut writer = load.writer()?;
            writer.append(&batch(&schema, &rows)?)?;
            writer.finish()?;
            load.commit()?;
            database.settle_indexes()?;
            tables.push((rows, database.snapshot("s", name)?));
        }
        let [(names, indexed), (rows, read)] = tables.try_into().expect("two");
        let node = StorageNode::new(Arc::clone(database.store()));
        let wanted: Vec<Row> = (0..3).map(|_| row(&mut rng, 5)).collect();
        let keys = batch(&schema, &wanted)?;
        // The rows of one table by the index of the other.
        let lookup = KeyLookup {
            table: &read,
            index: &indexed.indexes[0],
            keys: &keys.columns()[1..],
            columns: &[0, 1],
        };
        let found = node.look_up(&lookup, &node.owner_capability(&read))?;
        let mut found: Vec<Row> = found.iter().flat_map(rows_of).collect();
        let is_wanted = |(row, (_, name)): &(&Row, &Row)| {
            name.is_some() && row.1 == *name && wanted.iter().any(|(_, wanted)| wanted == name)
        };
        let both = rows.iter().zip(&names);
        let mut expected: Vec<Row> = both.filter(is_wanted).map(|(row, _)| row.clone()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "seed {seed}");
        check_single_keys(&node, &lookup, &node.owner_capability(&read), &found)?;
        let capability = node.owner_capability(&indexed);
        for denied in [
            node.look_up(&lookup, &capability).unwrap_err(),
            node.look_up_one_cached(&lookup, &capability).unwrap_err(),
        ] {
            assert!(matches!(denied, StorageError::Denied(_)), "{denied}");
        }
    }
    Ok(())
}

fn schema() -> Arc<Schema> {
    Arc::new(Schema::new(vec![
        Field::new("number", DataType::Int64, true),
        Field::new("name", DataType::Utf8View, true),
    ]))
}

fn new_table(name: &str, seed: u64, indexes: Vec<IndexDefinition>) -> LoadTarget {
    LoadTarget::Create {
        layout: match seed % 4 {
            0 | 1 => TableLayout::Column,
            _ => TableLayout::Pax,
        },
        distribution: None,
        retention: std::time::Duration::ZERO,
        defaults: vec![],
        checks: vec![],
        schema: "s".into(),
        table: name.into(),
        arrow_schema: schema(),
        or_replace: false,
        indexes,
    }
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

fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let numbers = batch.column(0).as_primitive::<Int64Type>();
    let names = batch.column(1).as_string_view();
    let names = names.iter().map(|name| name.map(str::to_string));
    numbers.iter().zip(names).collect()
}

/// Lookups for which something was not cached.
static MISSED: AtomicUsize = AtomicUsize::new(0);

/// The same rows as those of [`get`], without a Program.
fn look_up(
    node: &StorageNode,
    table: &TableSnapshot,
    column: usize,
    keys: &ArrayRef,
) -> Result<Vec<Row>> {
    let lookup = KeyLookup {
        table,
        index: &table.indexes[column],
        keys: std::slice::from_ref(keys),
        // The rows' ids, and not in order.
        columns: &[2, 1, 0],
    };
    let capability = node.owner_capability(table);
    let cached = node.look_up_cached(&lookup, &capability)?;
    let batches = node.look_up(&lookup, &capability)?;
    match cached {
        Some(cached) => assert_eq!(cached, batches),
        None => drop(MISSED.fetch_add(1, Ordering::Relaxed)),
    }
    assert_eq!(
        node.look_up_cached(&lookup, &capability)?.as_ref(),
        Some(&batches)
    );
    let mut ids = HashSet::new();
    let mut rows = Vec::new();
    for batch in &batches {
        let new = batch.column(0).as_primitive::<UInt64Type>().values().iter();
        assert!(new.copied().all(|id| ids.insert(id)), "a row came twice");
        rows.extend(rows_of(&batch.project(&[2, 1])?));
    }
    check_single_keys(node, &lookup, &capability, &rows)?;
    Ok(rows)
}

/// Asks for keys of a lookup one at a time: `rows` are those of all of them, and their pages are cached.
fn check_single_keys(
    node: &StorageNode,
    lookup: &KeyLookup<'_>,
    capability: &Capability,
    rows: &[Row],
) -> Result<()> {
    let [keys] = lookup.keys else {
        panic!("keys of one column")
    };
    let is_number = *keys.data_type() == DataType::Int64;
    for place in 0..keys.len().min(50) {
        let key = keys.slice(place, 1);
        let wanted = rows_of(&one_key(&key)?).remove(0);
        let has_key = |row: &&Row| match is_number {
            true => wanted.0.is_some() && row.0 == wanted.0,
            false => wanted.1.is_some() && row.1 == wanted.1,
        };
        let single = KeyLookup {
            keys: std::slice::from_ref(&key),
            columns: &[1, 0],
            ..*lookup
        };
        let found = node.look_up_one_cached(&single, capability)?;
        let found = found.expect("all is cached");
        let found = found.map(|values| match (values.get(1), values.get(0)) {
            (Some(number), Some(name)) => (number_of(number), name_of(name)),
            _ => panic!("two values, not {values:?}"),
        });
        let expected: Vec<&Row> = rows.iter().filter(has_key).collect();
        match found {
            Some(row) => assert!(expected.contains(&&row), "{row:?}, not of {expected:?}"),
            None => assert!(expected.is_empty(), "no row, but {expected:?}"),
        }
    }
    let unwanted = KeyLookup {
        columns: &[],
        ..*lookup
    };
    let refused = node.look_up_one_cached(&unwanted, capability);
    assert!(matches!(refused, Err(StorageError::Invalid(_))));
    Ok(())
}

/// A row with a key of either column.
fn one_key(key: &ArrayRef) -> Result<RecordBatch> {
    let columns = schema()
        .fields()
        .iter()
        .map(|field| match field.data_type() {
            of if of == key.data_type() => Arc::clone(key),
            other => new_null_array(other, 1),
        })
        .collect();
    Ok(RecordBatch::try_new(schema(), columns)?)
}

fn number_of(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Null => None,
        Value::Integer(number) => Some(number),
        other => panic!("{other:?} is no integer"),
    }
}

fn name_of(value: Value<'_>) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Text(name) => Some(name.into()),
        other => panic!("{other:?} is no text"),
    }
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
                rows.extend(rows_of(&batch));
            }
        }
        if has_ended {
            return Ok(rows);
        }
    }
}

//! Times look-ups of rows by key: a table of 64-bit keys and values of 1,000 bytes with a `hash`
//! index, many random keys a command (Minerva section IV-C), cached and from flash, with what the
//! device gives in the same rounds.
//!
//! `cargo run --release -p flashmesh-storage --example keys -- FOLDER [ROWS] [KEYS_A_COMMAND] [THREADS] [ROUNDS]`
//!
//! The database stays in FOLDER for the next run. It needs fio.

mod measure;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewBuilder, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use flashmesh_pushdown::{Expr, InputColumn, Limits, Output, Program, verify};
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::access::AccessPath;
use flashmesh_storage::flash::PAGE_SIZE_BYTES;
use flashmesh_storage::index::{IndexDefinition, IndexKind};
use flashmesh_storage::node::{Command, RuntimeFilters, SegmentQueue, StorageNode};
use flashmesh_storage::page::SEGMENT_ROWS;
use flashmesh_storage::table::{Database, DatabaseOptions, LoadTarget, TableSnapshot};
use measure::{fio, median, processor_time};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// What the server and the Python module have: the system's would map and clear each large result.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VALUE_BYTES: usize = 1_000;
/// Keys are the numbers of rows times this, in an order of their own.
const KEY_STEP: i64 = 7919;
/// The cache that measurements from flash have: the index fits, the rows do not.
const SMALL_CACHE_BYTES: u64 = 16 << 20;
const COMMANDS_A_ROUND: usize = 10;
const DEPTH: usize = 128;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("keys FOLDER [ROWS] [KEYS] …")?);
    let mut number = |default| {
        let argument = arguments.next().and_then(|a| a.parse().ok());
        argument.unwrap_or(default)
    };
    let (rows, keys) = (number(1_000_000), number(10_000));
    let (threads, rounds) = (number(2), number(5));
    let folder = folder.join(format!("keys-{rows}"));
    let database = open(&folder, rows)?;
    let table = database.snapshot("public", "kv")?;
    let node = StorageNode::new(Arc::clone(database.store()));
    println!("{rows} rows, {keys} keys a command, {threads} threads");

    let mut rng = SmallRng::seed_from_u64(7);
    let mut run = |count: usize| -> Result<Rate, Box<dyn Error>> {
        let (mut seconds, mut processors) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let wanted: Vec<i64> = rand::seq::index::sample(&mut rng, rows, keys)
                .into_iter()
                .map(|row| row as i64 * KEY_STEP)
                .collect();
            let sum: i64 = wanted.iter().sum();
            let wanted: ArrayRef = Arc::new(Int64Array::from(wanted));
            let (started, processor_started) = (Instant::now(), processor_time());
            let found = get(&node, &table, &wanted, threads)?;
            seconds.push(started.elapsed().as_secs_f64());
            processors.push((processor_time() - processor_started).as_secs_f64());
            check(&found, keys, sum, &mut rng);
        }
        Ok(Rate {
            gets_per_second: keys as f64 / median(seconds),
            processor_us: median(processors) / keys as f64 * 1e6,
        })
    };
    let cache = database.store().cache();
    let bytes = database.store().usage().pages() * PAGE_SIZE_BYTES as u64;
    for _ in 0..rounds {
        cache.set_capacity_bytes(SMALL_CACHE_BYTES);
        run(2)?;
        let device = fio(&folder.join("card0.flash"), bytes, DEPTH, 3)?.reads_per_second;
        let flash = run(COMMANDS_A_ROUND)?;
        cache.set_capacity_bytes(8 << 30);
        read_all(&node, &table)?;
        let cached = run(10 * COMMANDS_A_ROUND)?;
        println!(
            "fio, depth {DEPTH}: {device:.0}/s; from flash: {:.0} gets/s ({:.0} % of fio), {:.2} µs of a processor each; cached: {:.0} gets/s, {:.2} µs",
            flash.gets_per_second,
            100.0 * flash.gets_per_second / device,
            flash.processor_us,
            cached.gets_per_second,
            cached.processor_us,
        );
    }
    Ok(())
}

struct Rate {
    gets_per_second: f64,
    /// All threads' time on a processor for one key.
    processor_us: f64,
}

/// The rows with these keys.
fn get(
    node: &Arc<StorageNode>,
    table: &Arc<TableSnapshot>,
    keys: &ArrayRef,
    threads: usize,
) -> flashmesh_storage::Result<Vec<RecordBatch>> {
    // An index on 64-bit keys proves them: no filter is left.
    let program = program(table);
    let program = verify(program, &table.scan_schema, &Limits::default()).expect("valid");
    let index = table.primary_key().expect("a primary key");
    let access = Some(Arc::new(AccessPath::by_keys(index, &[Arc::clone(keys)])?));
    let command = Command {
        program: Arc::new(program),
        table: Arc::clone(table),
        work: SegmentQueue::with_access(table.segments.clone(), access),
        runtime_filters: Arc::new(RuntimeFilters::default()),
        batch_rows: keys.len(),
        metrics: Arc::new(ScanMetrics::default()),
        capability: node.owner_capability(table),
    };
    run(node, command, threads)
}

fn program(table: &TableSnapshot) -> Program {
    let columns: Vec<InputColumn> = (0..)
        .zip(table.schema.fields())
        .map(|(ordinal, field)| InputColumn {
            ordinal,
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            nullable: field.is_nullable(),
        })
        .collect();
    Program {
        filter: vec![],
        output: Output::Rows {
            exprs: (0..columns.len() as u32).map(Expr::Column).collect(),
            order: vec![],
            limit: None,
        },
        columns,
    }
}

fn run(
    node: &Arc<StorageNode>,
    command: Command,
    threads: usize,
) -> flashmesh_storage::Result<Vec<RecordBatch>> {
    let run = |command: Command| node.submit(command)?.collect::<Result<Vec<_>, _>>();
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let command = command.clone();
                scope.spawn(|| run(command))
            })
            .collect();
        let mut batches = run(command)?;
        for other in others {
            batches.extend(other.join().expect("a thread that runs")?);
        }
        Ok(batches)
    })
}

/// Takes every page into the cache.
fn read_all(node: &Arc<StorageNode>, table: &Arc<TableSnapshot>) -> flashmesh_storage::Result<()> {
    let keys = (0..table.rows() as i64).map(|row| row * KEY_STEP);
    let keys: Vec<i64> = keys.collect();
    for some in keys.chunks(keys.len().div_ceil(40)) {
        let some: ArrayRef = Arc::new(Int64Array::from(some.to_vec()));
        get(node, table, &some, 1)?;
    }
    Ok(())
}

/// Checks that the rows are those asked for, and some of their values.
fn check(found: &[RecordBatch], count: usize, sum: i64, rng: &mut SmallRng) {
    let rows: usize = found.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(rows, count, "rows found");
    let keys = found
        .iter()
        .map(|b| b.column(0).as_primitive::<Int64Type>());
    let found_sum: i64 = keys.map(|keys| keys.values().iter().sum::<i64>()).sum();
    assert_eq!(found_sum, sum, "the sum of the keys found");
    for batch in found.iter().filter(|b| b.num_rows() > 0) {
        let row = rng.random_range(0..batch.num_rows());
        let key = batch.column(0).as_primitive::<Int64Type>().value(row);
        assert_eq!(batch.column(1).as_binary_view().value(row), value_of(key));
    }
}

fn value_of(key: i64) -> Vec<u8> {
    let mut value = vec![0; VALUE_BYTES];
    SmallRng::seed_from_u64(key as u64).fill_bytes(&mut value);
    value
}

/// Opens the database of an earlier run, or makes it.
fn open(folder: &Path, rows: usize) -> Result<Arc<Database>, Box<dyn Error>> {
    let is_new = !folder.join("card0.flash").exists();
    std::fs::create_dir_all(folder)?;
    let database = Database::open(folder, DatabaseOptions::default())?;
    if !is_new {
        return Ok(database);
    }
    let schema = Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, false),
        Field::new("v", DataType::BinaryView, false),
    ]));
    let key = IndexDefinition {
        name: "kv_pkey".into(),
        kind: IndexKind::Hash,
        columns: vec![0],
        unique: true,
        primary: true,
        options: BTreeMap::new(),
    };
    let load = database.begin_load(LoadTarget::Create {
        distribution: None,
        layout: Default::default(),
        retention: std::time::Duration::ZERO,
        defaults: vec![],
        checks: vec![],
        schema: "public".into(),
        table: "kv".into(),
        arrow_schema: Arc::clone(&schema),
        or_replace: false,
        indexes: vec![key],
    })?;
    let mut rng = SmallRng::seed_from_u64(42);
    let order = rand::seq::index::sample(&mut rng, rows, rows).into_vec();
    let mut writer = load.writer()?;
    for rows in order.chunks(SEGMENT_ROWS) {
        let keys: Vec<i64> = rows.iter().map(|row| *row as i64 * KEY_STEP).collect();
        let mut values = BinaryViewBuilder::new().with_fixed_block_size(1 << 20);
        keys.iter()
            .for_each(|key| values.append_value(value_of(*key)));
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(keys)), Arc::new(values.finish())];
        writer.append(&RecordBatch::try_new(Arc::clone(&schema), columns)?)?;
    }
    writer.finish()?;
    load.commit()?;
    Ok(database)
}

//! Times single rows got and put by key, as `bench/ycsb.py` does without Python and SQL: a table of
//! text keys and ten texts of 100 printable bytes in rows (`layout = 'pax'`), asked by several threads
//! for zipfian keys, all of it cached.
//!
//! `cargo run --release -p flashmesh-storage --example key_values -- FOLDER [ROWS] [CLIENTS] [OPERATIONS] [ROUNDS] [WORKLOADS]`
//!
//! WORKLOADS are letters of YCSB's. It makes a database in a new folder within FOLDER, which goes with it.

mod measure;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringViewArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Capability;
use flashmesh_storage::index::{IndexDefinition, IndexKind};
use flashmesh_storage::lookup::KeyLookup;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::page::{RowValues, SEGMENT_ROWS, Value};
use flashmesh_storage::table::{Database, DatabaseOptions, LoadTarget, TableLayout, TableSnapshot};
use measure::{median, processor_time};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// What the server and the Python module have.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FIELDS: usize = 10;
const FIELD_BYTES: usize = 100;
/// The exponent of YCSB's zipfian distribution.
const ZIPFIAN: f64 = 0.99;
/// YCSB's workloads: the share of operations that only read, and whether the others read before.
const WORKLOADS: [(&str, f64, bool); 4] = [
    ("C", 1.0, false),
    ("B", 0.95, false),
    ("A", 0.5, false),
    ("F", 0.5, true),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("key_values FOLDER [ROWS] …")?;
    let mut number = |default| {
        let argument = arguments.next().and_then(|a| a.parse().ok());
        argument.unwrap_or(default)
    };
    let (rows, clients) = (number(200_000), number(8));
    let (operations, rounds) = (number(40_000), number(5));
    let workloads = arguments.next().unwrap_or("CBAF".into());
    let folder = tempfile::tempdir_in(folder)?;
    let database = Database::open(folder.path(), DatabaseOptions::default())?;
    load(&database, rows)?;
    database.compact("public", "kv")?;
    database.settle_indexes()?;
    let table = database.snapshot("public", "kv")?;
    let node = StorageNode::new(Arc::clone(database.store()));
    let store = Store {
        capability: node.owner_capability(&table),
        database,
        node,
    };
    println!(
        "{rows} rows in {} segments, {clients} clients, {operations} operations",
        table.segments.len()
    );
    // Every page comes to be cached.
    for row in 0..rows {
        store.get(&key_of(row))?;
    }
    let zipf = Zipf::new(rows);
    let mut rng = SmallRng::seed_from_u64(7);
    for (name, reads, reads_before) in WORKLOADS.into_iter().filter(|w| workloads.contains(w.0)) {
        let client = |seed: u64| -> flashmesh_storage::Result<()> {
            let mut rng = SmallRng::seed_from_u64(seed);
            for _ in 0..operations / clients {
                let key = key_of(zipf.row(&mut rng));
                let is_read = rng.random_bool(reads);
                if is_read || reads_before {
                    store.get(&key)?;
                }
                if !is_read {
                    store.update(&key, rng.random_range(1..=FIELDS), &text(&mut rng))?;
                }
            }
            Ok(())
        };
        let (mut rates, mut processors) = (Vec::new(), Vec::new());
        let misses = || store.database.store().cache().stats().misses;
        let misses_before = misses();
        for _ in 0..rounds {
            let seeds: Vec<u64> = (0..clients).map(|_| rng.random()).collect();
            let (started, processor_started) = (Instant::now(), processor_time());
            std::thread::scope(|scope| {
                let threads: Vec<_> = seeds
                    .iter()
                    .map(|seed| scope.spawn(|| client(*seed)))
                    .collect();
                let ended = threads.into_iter();
                ended
                    .map(|thread| thread.join().expect("a thread that runs"))
                    .collect::<Result<Vec<_>, _>>()
            })?;
            rates.push(operations as f64 / started.elapsed().as_secs_f64());
            let spent = (processor_time() - processor_started).as_secs_f64();
            processors.push(spent * 1e6 / operations as f64);
        }
        println!(
            "{name}: {:.0} operations/s, {:.2} µs of a processor each; {} pages from flash in all",
            median(rates),
            median(processors),
            misses() - misses_before,
        );
    }
    Ok(())
}

/// What a client has.
struct Store {
    database: Arc<Database>,
    node: Arc<StorageNode>,
    capability: Arc<Capability>,
}

impl Store {
    fn table(&self) -> flashmesh_storage::Result<Arc<TableSnapshot>> {
        let names = [("public".to_string(), "kv".to_string())];
        let found = self.database.snapshots(&names)?.pop().flatten();
        Ok(found.expect("the table"))
    }

    /// The row, as a connection's `get_one` takes it.
    fn get(&self, key: &str) -> flashmesh_storage::Result<RowValues> {
        let table = self.table()?;
        let keys: ArrayRef = Arc::new(StringViewArray::from(vec![key]));
        let columns: Vec<u32> = (0..=FIELDS as u32).collect();
        let lookup = KeyLookup {
            table: &table,
            index: table.primary_key().expect("a primary key"),
            keys: std::slice::from_ref(&keys),
            columns: &columns,
        };
        if let Some(found) = self.node.look_up_one_cached(&lookup, &self.capability)? {
            return Ok(found.expect("a row"));
        }
        // It was rewritten and is on flash alone.
        let mut row = RowValues::with_capacity(columns.len());
        let batch = self.look_up(&table, key, &columns)?;
        let values = batch.columns().iter();
        values.for_each(|value| row.push_array(value.slice(0, 1)));
        Ok(row)
    }

    /// What `columns` are in the row, wherever it is; a column more is its id.
    fn look_up(
        &self,
        table: &TableSnapshot,
        key: &str,
        columns: &[u32],
    ) -> flashmesh_storage::Result<RecordBatch> {
        let keys: ArrayRef = Arc::new(StringViewArray::from(vec![key]));
        let lookup = KeyLookup {
            table,
            index: table.primary_key().expect("a primary key"),
            keys: std::slice::from_ref(&keys),
            columns,
        };
        let found = self.node.look_up(&lookup, &self.capability)?;
        Ok(found.into_iter().next().expect("a row"))
    }

    /// Gets a row and puts it with another value, as a connection's `put` does: it is tried again where
    /// another client was faster.
    fn update(&self, key: &str, field: usize, value: &str) -> flashmesh_storage::Result<()> {
        let row = self.get(key)?;
        let mut columns: Vec<ArrayRef> = (0..=FIELDS)
            .map(|column| {
                let text = match row.get(column) {
                    _ if column == field => value,
                    Some(Value::Text(text)) => text,
                    Some(Value::Array(text)) => text.as_string_view().value(0),
                    other => panic!("{other:?} in a column of text"),
                };
                Arc::new(StringViewArray::from(vec![text])) as ArrayRef
            })
            .collect();
        columns.push(Arc::new(UInt64Array::from(vec![0])));
        loop {
            let table = self.table()?;
            let id = self.look_up(&table, key, &[0, FIELDS as u32 + 1])?;
            columns[FIELDS + 1] = Arc::new(id.column(1).as_primitive::<UInt64Type>().clone());
            let fields = table.scan_schema.fields().iter();
            let fields: Vec<Field> = fields
                .map(|f| Field::new(f.name(), f.data_type().clone(), true))
                .collect();
            let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.clone())?;
            let load = self.database.begin_load(LoadTarget::Change {
                schema: "public".into(),
                table: "kv".into(),
                version: table,
            })?;
            let mut writer = load.writer()?;
            writer.append(&batch)?;
            writer.finish()?;
            match load.commit() {
                Err(StorageError::Conflict { .. }) => {}
                committed => return committed.map(drop),
            }
        }
    }
}

/// Numbers of rows by the scrambled zipfian distribution (Gray and others, SIGMOD 1994).
struct Zipf {
    rows: usize,
    total: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    fn new(rows: usize) -> Self {
        let zeta = |n: usize| {
            (1..=n)
                .map(|rank| (rank as f64).powf(-ZIPFIAN))
                .sum::<f64>()
        };
        let total = zeta(rows);
        Self {
            rows,
            total,
            alpha: 1.0 / (1.0 - ZIPFIAN),
            eta: (1.0 - (2.0 / rows as f64).powf(1.0 - ZIPFIAN)) / (1.0 - zeta(2) / total),
        }
    }

    fn row(&self, rng: &mut SmallRng) -> usize {
        let uniform: f64 = rng.random();
        let rank = match uniform * self.total {
            below if below < 1.0 => 0,
            below if below < 1.0 + 0.5f64.powf(ZIPFIAN) => 1,
            _ => {
                let share = self.eta * uniform - self.eta + 1.0;
                (self.rows as f64 * share.powf(self.alpha)) as u64
            }
        };
        (scrambled(rank) % self.rows as u64) as usize
    }
}

/// FNV-1a of the eight bytes of a number.
fn scrambled(number: u64) -> u64 {
    number
        .to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

fn key_of(row: usize) -> String {
    format!("user{}", scrambled(row as u64))
}

/// A field's value.
fn text(rng: &mut SmallRng) -> String {
    (0..FIELD_BYTES)
        .map(|_| rng.random_range(b' '..=b'~') as char)
        .collect()
}

fn schema() -> SchemaRef {
    let fields =
        (0..FIELDS).map(|field| Field::new(format!("field{field}"), DataType::Utf8View, true));
    let key = Field::new("ycsb_key", DataType::Utf8View, false);
    Arc::new(Schema::new(
        std::iter::once(key).chain(fields).collect::<Vec<_>>(),
    ))
}

fn load(database: &Arc<Database>, rows: usize) -> Result<(), Box<dyn Error>> {
    let schema = schema();
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
        layout: TableLayout::Pax,
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
    let mut writer = load.writer()?;
    for start in (0..rows).step_by(SEGMENT_ROWS) {
        let some = start..rows.min(start + SEGMENT_ROWS);
        let keys = StringViewArray::from_iter_values(some.clone().map(key_of));
        let mut columns: Vec<ArrayRef> = vec![Arc::new(keys)];
        for _ in 0..FIELDS {
            let values = some.clone().map(|_| text(&mut rng));
            columns.push(Arc::new(StringViewArray::from_iter_values(values)));
        }
        writer.append(&RecordBatch::try_new(Arc::clone(&schema), columns)?)?;
    }
    writer.finish()?;
    load.commit()?;
    Ok(())
}

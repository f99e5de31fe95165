//! One data set twice: in a flashmesh database and in memory, with sessions over both.

#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int16Array, Int32Array,
    Int64Array, StringViewArray, TimestampMicrosecondArray,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::MemTable;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use flashmesh_planner::{FlashTable, NamedTable, configure};
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::table::{Database, DatabaseOptions, LoadTarget, Workspace};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The seed of a test: from `FLASHMESH_TEST_SEED`, or fresh; printed either way.
pub fn seed() -> u64 {
    let seed = match std::env::var("FLASHMESH_TEST_SEED") {
        Ok(seed) => seed.parse().expect("FLASHMESH_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("FLASHMESH_TEST_SEED={seed}");
    seed
}

pub fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

pub struct Table {
    pub name: &'static str,
    pub schema: SchemaRef,
    pub batches: Vec<RecordBatch>,
}

const WORDS: [&str; 12] = [
    "special", "requests", "green", "Brass", "tin", "copper", "über", "a_b", "50%", "slyly", "",
    "x",
];

/// A wide table with clustered, shuffled, sparse and NULL-ridden columns.
pub fn facts(rows: usize, rng: &mut StdRng) -> Table {
    let schema = Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("k", DataType::Int32, true),
        Field::new("small", DataType::Int16, false),
        Field::new("g", DataType::Utf8View, true),
        Field::new("s", DataType::Utf8View, false),
        Field::new("d", DataType::Date32, true),
        Field::new("p", DataType::Decimal128(15, 2), false),
        Field::new("q", DataType::Decimal128(15, 2), true),
        Field::new("f", DataType::Float64, true),
        Field::new("b", DataType::Boolean, true),
        Field::new(
            "ts",
            DataType::Timestamp(TimeUnit::Microsecond, None),
            false,
        ),
    ]));
    let mut batches = Vec::new();
    let mut start = 0;
    while start < rows {
        let n = rng.random_range(1..20_000).min(rows - start);
        let null = |rng: &mut StdRng| rng.random_bool(0.1);
        let mut k = Vec::new();
        let mut small = Vec::new();
        let mut g = Vec::new();
        let mut s = Vec::new();
        let mut d = Vec::new();
        let mut p = Vec::new();
        let mut q = Vec::new();
        let mut f = Vec::new();
        let mut b = Vec::new();
        let mut ts = Vec::new();
        for i in start..start + n {
            k.push((!null(rng)).then(|| rng.random_range(0..1000)));
            small.push(rng.random_range(-5i16..5));
            g.push((!null(rng)).then(|| ["A", "N", "R"][rng.random_range(0..3)]));
            let words: Vec<&str> = (0..rng.random_range(0..4))
                .map(|_| WORDS[rng.random_range(0..WORDS.len())])
                .collect();
            s.push(words.join(" "));
            // Clustered: later rows have later dates.
            d.push((!null(rng)).then(|| 8000 + (i / 100) as i32 + rng.random_range(0..30)));
            p.push(rng.random_range(0i128..1_000_000));
            q.push((!null(rng)).then(|| rng.random_range(0i128..11)));
            // Quarters add up exactly in any order.
            f.push((!null(rng)).then(|| f64::from(rng.random_range(-4000..4000)) / 4.0));
            b.push((!null(rng)).then(|| rng.random_bool(0.3)));
            ts.push(1_000_000_000_000_000 + i as i64 * 1_000_003);
        }
        let money = |values: Decimal128Array| -> ArrayRef {
            Arc::new(values.with_precision_and_scale(15, 2).unwrap())
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(
                start as i64..(start + n) as i64,
            )),
            Arc::new(Int32Array::from(k)),
            Arc::new(Int16Array::from(small)),
            Arc::new(StringViewArray::from(g)),
            Arc::new(StringViewArray::from_iter_values(s)),
            Arc::new(Date32Array::from(d)),
            money(Decimal128Array::from(p)),
            money(Decimal128Array::from(q)),
            Arc::new(Float64Array::from(f)),
            Arc::new(BooleanArray::from(b)),
            Arc::new(TimestampMicrosecondArray::from(ts)),
        ];
        batches.push(RecordBatch::try_new(Arc::clone(&schema), columns).unwrap());
        start += n;
    }
    Table {
        name: "t",
        schema,
        batches,
    }
}

/// A small table to join with: `k` unique, a name, a weight.
pub fn dimension(rng: &mut StdRng) -> Table {
    let schema = Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int32, false),
        Field::new("name", DataType::Utf8View, false),
        Field::new("w", DataType::Int64, true),
    ]));
    let keys: Vec<i32> = (0..1200).filter(|_| rng.random_bool(0.7)).collect();
    let names = keys.iter().map(|k| format!("name{}", k % 37));
    let weights = keys
        .iter()
        .map(|k| (k % 11 != 0).then_some(i64::from(*k) * 3));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(keys.clone())),
        Arc::new(StringViewArray::from_iter_values(names)),
        Arc::new(weights.collect::<Int64Array>()),
    ];
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    Table {
        name: "u",
        schema,
        batches: vec![batch],
    }
}

pub fn config(partitions: usize) -> SessionConfig {
    SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(2048)
}

/// DataFusion over the same batches in memory: the oracle.
pub fn memory_session(tables: &[Table], partitions: usize) -> SessionContext {
    let context = SessionContext::new_with_config(config(partitions));
    for table in tables {
        let memory =
            MemTable::try_new(Arc::clone(&table.schema), vec![table.batches.clone()]).unwrap();
        context
            .register_table(table.name, Arc::new(memory))
            .unwrap();
    }
    context
}

pub struct Flash {
    pub database: Arc<Database>,
    pub node: Arc<StorageNode>,
    _folder: tempfile::TempDir,
}

/// The tables in a new database.
pub fn load(tables: &[Table]) -> Flash {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::open(folder.path(), DatabaseOptions::default()).unwrap();
    for table in tables {
        let load = database
            .begin_load(LoadTarget::Create {
                distribution: None,
                layout: Default::default(),
                retention: std::time::Duration::ZERO,
                defaults: vec![],
                checks: vec![],
                schema: "public".into(),
                table: table.name.into(),
                arrow_schema: Arc::clone(&table.schema),
                or_replace: false,
                indexes: vec![],
            })
            .unwrap();
        let mut writer = load.writer().unwrap();
        for batch in &table.batches {
            writer.append(batch).unwrap();
        }
        writer.finish().unwrap();
        load.commit().unwrap();
    }
    let node = StorageNode::new(Arc::clone(database.store()));
    Flash {
        database,
        node,
        _folder: folder,
    }
}

impl Flash {
    /// A session over the database's tables with the given `flashmesh.pushdown`.
    pub fn session(&self, partitions: usize, pushdown: &str) -> SessionContext {
        let builder = SessionStateBuilder::new()
            .with_config(config(partitions))
            .with_default_features();
        let context = SessionContext::new_with_state(configure(builder).build());
        context
            .state_ref()
            .write()
            .config_mut()
            .options_mut()
            .set("flashmesh.pushdown", pushdown)
            .unwrap();
        self.register(&context);
        context
    }

    /// Shows the session the present versions of all tables.
    pub fn register(&self, context: &SessionContext) {
        for table in self.database.tables("public") {
            let snapshot = self.database.snapshot("public", &table).unwrap();
            let provider = FlashTable::new(NamedTable::new(
                Arc::new(Workspace::new(Arc::clone(&self.database))),
                Arc::clone(&self.node),
                Arc::clone(&self.node) as _,
                ("public".into(), table.clone()),
                snapshot,
            ));
            context.deregister_table(&table).unwrap();
            context.register_table(&table, Arc::new(provider)).unwrap();
        }
    }
}

/// The rows of a query as text, sorted.
pub async fn rows(context: &SessionContext, sql: &str) -> Result<Vec<String>, String> {
    let frame = context.sql(sql).await.map_err(|e| e.to_string())?;
    let batches = frame.collect().await.map_err(|e| e.to_string())?;
    let mut rows = Vec::new();
    for batch in &batches {
        let options = FormatOptions::default().with_null("NULL");
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .map(|c| ArrayFormatter::try_new(c, &options).unwrap())
            .collect();
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = columns.iter().map(|c| c.value(row).to_string()).collect();
            rows.push(cells.join("|"));
        }
    }
    rows.sort();
    Ok(rows)
}

/// The physical plan of a query as text.
pub async fn plan(context: &SessionContext, sql: &str) -> String {
    let plan = context
        .sql(sql)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    datafusion::physical_plan::displayable(plan.as_ref())
        .indent(true)
        .to_string()
}

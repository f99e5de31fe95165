//! BlueDBM's nearest-neighbour application in its own shape (section 7.1): items that fill a page
//! each, a list of their addresses in random order in, their distances from a query out; nothing
//! is cached. fio reads pages of the same file at random, with as many in flight, before and after
//! each command.
//!
//! `cargo run --release -p flashmesh-storage --example items -- FOLDER [ITEMS] [DEPTH] [ROUNDS]`
//!
//! One thread works. It needs fio.

mod measure;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/common/mod.rs"]
mod table;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeBinaryArray, RecordBatch};
use arrow::datatypes::{DataType, UInt32Type, UInt64Type};
use flashmesh_pushdown::{
    Expr, InputColumn, Limits, Metric, Output, Program, QueryVector, Scalar, distance, verify,
};
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::access::{AccessPath, NearSearch};
use flashmesh_storage::flash::{FileFlash, FileFlashOptions, IoMode, PAGE_SIZE_BYTES};
use flashmesh_storage::node::{Command, RuntimeFilters, SegmentQueue, StorageNode};
use flashmesh_storage::segment::row_id;
use flashmesh_storage::store::PageStore;
use flashmesh_storage::table::TableSnapshot;
use measure::{fio, median, processor_time};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use table::{snapshot_of, write_segment};

/// Bytes of an item: one fits a page beside the header, two do not.
const ITEM_BYTES: usize = 8_000;
const SEGMENT_ITEMS: usize = 32_768;
/// One item in so many is asked for, so that hardly any two are neighbours on flash.
const SPARSENESS: usize = 8;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("items FOLDER [ITEMS] [DEPTH] …")?);
    let mut number = |default| {
        let argument = arguments.next().and_then(|a| a.parse().ok());
        argument.unwrap_or(default)
    };
    let (items, depth, rounds) = (number(131_072), number(128), number(5));
    let file = folder.join("items.flash");
    let (store, table) = build(&file, items, depth)?;
    let node = StorageNode::new(store);
    let pages: u32 = table.chunks().map(|chunk| chunk.run.count).sum();
    let bytes = u64::from(pages) * PAGE_SIZE_BYTES as u64;
    println!("{items} items in {pages} pages, depth {depth}, one thread");

    let mut rng = SmallRng::seed_from_u64(7);
    let (mut shares, mut processors) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let addresses = rand::seq::index::sample(&mut rng, items, items / SPARSENESS).into_vec();
        let query = item(rng.next_u64());
        let before = fio(&file, bytes, depth, 3)?;
        let metrics = Arc::new(ScanMetrics::default());
        let (started, processor_started) = (Instant::now(), processor_time());
        let found = distances(&node, &table, &addresses, &query, &metrics)?;
        let seconds = started.elapsed().as_secs_f64();
        let processor = (processor_time() - processor_started).as_secs_f64() / seconds;
        let after = fio(&file, bytes, depth, 3)?;
        check(&found, &addresses, &query);
        let rate = metrics.pages_from_flash.load(Ordering::Relaxed) as f64 / seconds;
        let device = (before.reads_per_second + after.reads_per_second) / 2.0;
        shares.push(rate / device);
        processors.push(processor);
        println!(
            "{rate:.0} pages/s, {processor:.2} of a processor; fio {:.0} and {:.0}/s, {:.2} of a processor",
            before.reads_per_second, after.reads_per_second, after.processors
        );
    }
    println!(
        "median: {:.1} % of fio's rate, {:.2} of a processor",
        100.0 * median(shares),
        median(processors)
    );
    std::fs::remove_file(file)?;
    Ok(())
}

/// The item of a number: nothing but noise, which no encoding makes smaller.
fn item(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; ITEM_BYTES];
    SmallRng::seed_from_u64(number).fill_bytes(&mut bytes);
    bytes
}

fn build(
    file: &Path,
    items: usize,
    depth: usize,
) -> Result<(Arc<PageStore>, Arc<TableSnapshot>), Box<dyn Error>> {
    std::fs::remove_file(file).ok();
    let options = FileFlashOptions {
        io: IoMode::Direct,
        queue_depth: depth as u32,
        ..FileFlashOptions::default()
    };
    let store = PageStore::open(Arc::new(FileFlash::open(file, options)?), 0, [])?;
    let mut writer = store.writer()?;
    let (mut segments, mut schema) = (Vec::new(), None);
    for (number, first) in (0..).zip((0..items).step_by(SEGMENT_ITEMS)) {
        let some = (first..items.min(first + SEGMENT_ITEMS)).map(|number| item(number as u64));
        let array: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter(some)?);
        let batch = RecordBatch::try_from_iter([("item", array)])?;
        segments.push(write_segment(&mut writer, number, &batch));
        schema = Some(batch.schema());
    }
    writer.finish()?.keep();
    store.sync()?;
    let schema = schema.ok_or("no items")?;
    Ok((store, snapshot_of(schema, segments)))
}

/// The ids of the items at some addresses, and their distances from the query.
fn distances(
    node: &Arc<StorageNode>,
    table: &Arc<TableSnapshot>,
    addresses: &[usize],
    query: &[u8],
    metrics: &Arc<ScanMetrics>,
) -> flashmesh_storage::Result<Vec<RecordBatch>> {
    let column = |ordinal: u32| InputColumn {
        ordinal,
        name: table.scan_schema.field(ordinal as usize).name().clone(),
        data_type: table
            .scan_schema
            .field(ordinal as usize)
            .data_type()
            .clone(),
        nullable: table.scan_schema.field(ordinal as usize).is_nullable(),
    };
    let ids = addresses.iter().map(|item| {
        let segment = &table.segments[item / SEGMENT_ITEMS];
        let id = row_id(segment.id, (item % SEGMENT_ITEMS) as u32);
        Scalar::Int(i128::from(id))
    });
    let program = Program {
        columns: vec![column(0), column(1)],
        filter: vec![Expr::InList {
            expr: Box::new(Expr::Column(1)),
            list: ids.collect(),
            negated: false,
        }],
        output: Output::Rows {
            exprs: vec![
                Expr::Column(1),
                Expr::Distance {
                    metric: Metric::Hamming,
                    expr: Box::new(Expr::Column(0)),
                    query: QueryVector::Bits(query.to_vec()),
                },
            ],
            order: vec![],
            limit: None,
        },
    };
    let program = verify(program, &table.scan_schema, &Limits::default()).expect("valid");
    let access = AccessPath::choose(&program, table, NearSearch::Exact).map(Arc::new);
    let command = Command {
        program: Arc::new(program),
        table: Arc::clone(table),
        work: SegmentQueue::with_access(table.segments.clone(), access),
        runtime_filters: Arc::new(RuntimeFilters::default()),
        batch_rows: 8192,
        metrics: Arc::clone(metrics),
        capability: node.owner_capability(table),
    };
    node.submit(command)?.collect()
}

/// Compares the rows found with those asked for, and all distances with naive ones.
fn check(found: &[RecordBatch], addresses: &[usize], query: &[u8]) {
    let mut all: Vec<(u64, u32)> = Vec::new();
    for batch in found {
        assert_eq!(batch.column(1).data_type(), &DataType::UInt32);
        let ids = batch.column(0).as_primitive::<UInt64Type>().values();
        let distances = batch.column(1).as_primitive::<UInt32Type>().values();
        all.extend(ids.iter().copied().zip(distances.iter().copied()));
    }
    let mut addresses = addresses.to_vec();
    addresses.sort_unstable();
    all.sort_unstable();
    assert_eq!(all.len(), addresses.len());
    for ((_, found), address) in all.into_iter().zip(addresses) {
        let expected = distance::hamming(&item(address as u64), query);
        assert_eq!(found, expected, "distance of item {address}");
    }
}

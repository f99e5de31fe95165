//! Tables whose columns share pages: what was written is what is read.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use arrow::array::{
    BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float64Array, Int32Array,
    StringViewArray, UInt32Array,
};
use arrow::compute::take;

use super::*;
use crate::flash::PAGE_SIZE_BYTES;
use crate::segment::{read_column, read_rows};
use crate::table::manifest::decode_layout;

fn target(schema: &SchemaRef) -> LoadTarget {
    LoadTarget::Create {
        layout: TableLayout::Pax,
        distribution: None,
        retention: std::time::Duration::ZERO,
        defaults: vec![],
        checks: vec![],
        schema: "public".into(),
        table: "t".into(),
        arrow_schema: Arc::clone(schema),
        or_replace: false,
        indexes: vec![],
    }
}

fn column(rng: &mut StdRng, kind: u32, rows: usize) -> ArrayRef {
    let nulls = [0.0, 0.1, 0.9, 1.0][rng.random_range(0..4)];
    let bits = rng.random_range(1..64);
    let longest = [5, 40, 1000, 9000][kind as usize % 4];
    let some = |rng: &mut StdRng| !rng.random_bool(nulls);
    macro_rules! filled {
        ($array:ty, $value:expr) => {
            Arc::new(<$array>::from_iter((0..rows).map(|_| {
                #[allow(clippy::redundant_closure_call)]
                let value = $value(rng);
                some(rng).then_some(value)
            })))
        };
    }
    match kind / 4 {
        0 => filled!(Int64Array, |rng: &mut StdRng| rng.random::<i64>() >> bits),
        1 => filled!(Int32Array, |rng: &mut StdRng| rng.random_range(0..9) * 100),
        2 => filled!(Float64Array, |rng: &mut StdRng| rng.random::<f64>()),
        3 => filled!(BooleanArray, |rng: &mut StdRng| rng.random::<bool>()),
        4 => filled!(Date32Array, |rng: &mut StdRng| rng.random_range(0..20_000)),
        5 => {
            let numbers = (0..rows).map(|_| i128::from(rng.random::<i64>()) << (bits % 30));
            let array = Decimal128Array::from_iter_values(numbers);
            Arc::new(array.with_precision_and_scale(38, 3).unwrap())
        }
        6 => {
            let values = (0..rows).map(|_| Some(rng.random::<[u8; 16]>()));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, 16).unwrap())
        }
        _ => filled!(StringViewArray, |rng: &mut StdRng| {
            let length = rng.random_range(0..longest);
            let word = ["carefully ", "sly ", "x", "übermäßig "][rng.random_range(0..4)];
            let text = word.repeat(length / word.len());
            text + &rng.random_range(0..1000).to_string()
        }),
    }
}

fn batch(rng: &mut StdRng, kinds: &[u32], rows: usize) -> RecordBatch {
    let columns = kinds.iter().enumerate().map(|(number, kind)| {
        let values = column(rng, *kind, rows);
        (format!("c{number}"), values, true)
    });
    RecordBatch::try_from_iter_with_nullable(columns.collect::<Vec<_>>()).unwrap()
}

/// Reads all rows, and some of each segment column by column.
fn check(rng: &mut StdRng, database: &Database, expected: &RecordBatch, story: &str) {
    let table = database.snapshot("public", "t").unwrap();
    assert_eq!(table.layout, TableLayout::Pax, "{story}");
    let found = read(database, Arc::clone(&table)).unwrap();
    assert!(found.columns() == expected.columns(), "{story}");
    let mut reader = database.store().reader().unwrap();
    let mut first = 0;
    for segment in &table.segments {
        let wanted: Vec<u32> = (0..segment.rows)
            .filter(|_| rng.random_ratio(1, 40))
            .collect();
        let places: UInt32Array = wanted.iter().map(|row| first + row).collect();
        let types = expected.columns().iter().map(|column| column.data_type());
        let chunks: Vec<_> = segment.chunks.iter().zip(types).collect();
        let found = read_rows(&mut reader, &chunks, &wanted).unwrap();
        for (found, column) in found.iter().zip(expected.columns()) {
            assert!(*found == take(column, &places, None).unwrap(), "{story}");
        }
        first += segment.rows;
    }
}

#[test]
fn rows_whose_columns_share_pages_come_back() {
    let first_seed = seed();
    for seed in (0..if cfg!(debug_assertions) { 6 } else { 30 }).map(|n| first_seed.wrapping_add(n))
    {
        let mut rng = StdRng::seed_from_u64(seed);
        let kinds: Vec<u32> = (0..rng.random_range(1..24))
            .map(|_| rng.random_range(0..32))
            .collect();
        let story = format!("seed {seed}, columns {kinds:?}");
        let dir = TempDir::new().unwrap();
        let mut database = open(dir.path());
        let mut expected = batch(&mut rng, &kinds, 0);
        load(&database, target(&expected.schema()), &expected).unwrap();
        check(&mut rng, &database, &expected, &story);
        for _ in 0..4 {
            let rows = [1, 2, 300, 5000][rng.random_range(0..4)];
            let more = batch(&mut rng, &kinds, rows);
            load(&database, append(), &more).unwrap();
            expected = concat_batches(&expected.schema(), [&expected, &more]).unwrap();
            if rng.random() {
                drop(database);
                database = open(dir.path());
            }
            check(&mut rng, &database, &expected, &story);
        }
        database.compact("public", "t").unwrap();
        check(&mut rng, &database, &expected, &story);
        drop(database);
        let database = open(dir.path());
        check(&mut rng, &database, &expected, &story);
        let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
        assert!(problems.is_empty(), "{story}: {problems:?}");
    }
}

/// Without a cache, too.
#[test]
fn a_page_is_read_once_for_all_columns_that_share_it() {
    let mut rng = StdRng::seed_from_u64(seed());
    let columns = (0..6).map(|number| {
        let values = (0..600).map(|_| rng.random::<i64>() >> 20);
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
        (format!("c{number}"), values)
    });
    let rows = RecordBatch::try_from_iter(columns.collect::<Vec<_>>()).unwrap();
    let dir = TempDir::new().unwrap();
    load(&open(dir.path()), target(&rows.schema()), &rows).unwrap();
    let database = open(dir.path());
    let table = database.snapshot("public", "t").unwrap();
    let pages: u32 = table.runs().map(|run| run.count).sum();
    assert!((3..6).contains(&pages), "{pages} pages");
    let segment = &table.segments[0];
    let mut reader = database.store().reader().unwrap();
    reader.bypass_cache();
    let chunks: Vec<_> = segment
        .chunks
        .iter()
        .map(|c| (c, &DataType::Int64))
        .collect();
    assert_eq!(read_rows(&mut reader, &chunks, &[77]).unwrap().len(), 6);
    assert_eq!(reader.take_counters().pages_from_flash, 1);
    for column in 0..6 {
        read_column(&mut reader, segment, column, &DataType::Int64).unwrap();
    }
    let of_scans = reader.take_counters().pages_from_flash;
    assert_eq!(of_scans, u64::from(pages) - 1, "the first is at hand");
}

#[test]
fn a_damaged_page_that_columns_share_is_named_once() {
    let mut rng = StdRng::seed_from_u64(seed());
    let dir = TempDir::new().unwrap();
    // Numbers, codes, floats.
    let rows = batch(&mut rng, &[0, 4, 8], 3000);
    let database = open(dir.path());
    load(&database, target(&rows.schema()), &rows).unwrap();
    drop(database);
    let database = open(dir.path());
    let table = database.snapshot("public", "t").unwrap();
    let runs: Vec<_> = table.runs().cloned().collect();
    assert_eq!(runs.len(), 1, "its columns share one run");
    drop((table, database));
    let page = runs[0].first.page.0 + u64::from(rng.random_range(0..runs[0].count));
    let place = page * PAGE_SIZE_BYTES as u64 + rng.random_range(8..200);
    let card = dir.path().join("card0.flash");
    let card = OpenOptions::new()
        .read(true)
        .write(true)
        .open(card)
        .unwrap();
    let mut byte = [0];
    card.read_exact_at(&mut byte, place).unwrap();
    card.write_all_at(&[byte[0] ^ 4], place).unwrap();
    let database = open(dir.path());
    let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].contains("table 'public.t', rows"),
        "{problems:?}"
    );
    let read = read(&database, database.snapshot("public", "t").unwrap());
    assert!(
        matches!(read, Err(StorageError::Corrupt { .. })),
        "{read:?}"
    );
}

#[test]
fn a_layout_of_a_later_build_is_refused() {
    let error = decode_layout(2, "table 't'").unwrap_err().to_string();
    assert!(
        error.contains("table 't': layout 2") && error.contains("newer"),
        "{error}"
    );
}

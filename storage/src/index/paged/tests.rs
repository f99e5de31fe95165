//! Arrays in pages against the vectors that they were made of.

use arrow::array::{FixedSizeBinaryArray, Int64Array, UInt32Array, UInt64Array};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::flash::{FaultFlash, FaultOptions, Flash, Geometry, MemoryFlash, When};
use crate::index::PartData;
use crate::store::PageStore;

/// Runs a test with seeds that differ from run to run; `FLASHMESH_TEST_SEED` replays one.
fn for_seeds(count: u64, test: impl Fn(&mut SmallRng)) {
    if let Ok(seed) = std::env::var("FLASHMESH_TEST_SEED") {
        let seed = seed.parse().expect("FLASHMESH_TEST_SEED is a number");
        return test(&mut SmallRng::seed_from_u64(seed));
    }
    for _ in 0..count {
        let seed = rand::random();
        println!("FLASHMESH_TEST_SEED={seed}");
        test(&mut SmallRng::seed_from_u64(seed));
    }
}

fn store(cache_bytes: u64) -> (Arc<PageStore>, Arc<FaultFlash>) {
    let geometry = Geometry {
        pages_per_erase_block: 64,
        erase_blocks: 256,
    };
    let memory: Arc<dyn Flash> = Arc::new(MemoryFlash::new(geometry, rand::random()));
    let flash = Arc::new(FaultFlash::new(memory, FaultOptions::default()));
    (
        PageStore::open(flash.clone(), cache_bytes, []).unwrap(),
        flash,
    )
}

fn write(store: &Arc<PageStore>, array: ArrayRef) -> PagedArray {
    let mut writer = store.writer().unwrap();
    let identity = ChunkIdentity {
        table: 1,
        segment: 5,
        column_group: 2,
        generation: 3,
    };
    let slices = PartData::slices(&array);
    let array = PagedArray::write(&mut writer, identity, &Arc::from("a"), &slices, 2).unwrap();
    writer.finish().unwrap().keep();
    array
}

/// Values that take each of the encodings.
fn random_values(rng: &mut SmallRng) -> Vec<i64> {
    let len = [0, 1, 255, 256, 257, 70_000, 65_536, 131_072, 200_001][rng.random_range(0..9)];
    let kind = rng.random_range(0..7);
    let few: Vec<i64> = (0..40).map(|_| rng.random()).collect();
    let mut last = 0;
    (0..len as i64)
        .map(|place| match kind {
            0 => place * 3,
            1 => rng.random(),
            2 => i64::from(rng.random::<u32>()),
            3 => 77,
            4 => few[rng.random_range(0..few.len())],
            5 => rng.random_range(-1000..1000) * 4096,
            _ => {
                if rng.random_bool(0.001) {
                    last = rng.random();
                }
                last
            }
        })
        .collect()
}

#[test]
fn what_was_written_is_read_in_every_way() {
    for_seeds(60, |rng| {
        let mut values = random_values(rng);
        let is_sorted = rng.random();
        if is_sorted {
            values.sort_unstable();
        }
        let (store, _) = store(if rng.random() { 64 << 20 } else { 1 << 20 });
        let array = write(&store, Arc::new(Int64Array::from(values.clone())));
        let len = values.len() as u64;
        assert_eq!((array.len(), array.is_empty()), (len, len == 0));
        let mut reader = store.reader().unwrap();
        let mut all: Vec<i64> = Vec::new();
        array.read(&mut reader, 0..len, &mut all).unwrap();
        assert_eq!(all, values);
        if rng.random() {
            store.cache().clear();
        }

        let mut ends: Vec<u64> = (0..rng.random_range(0..200))
            .map(|_| rng.random_range(0..=len))
            .collect();
        ends.sort_unstable();
        let ranges: Vec<Range<u64>> = ends.chunks_exact(2).map(|ends| ends[0]..ends[1]).collect();
        let expected: Vec<i64> = ranges
            .iter()
            .flat_map(|range| &values[range.start as usize..range.end as usize])
            .copied()
            .collect();
        let mut found: Vec<i64> = Vec::new();
        array.read_ranges(&mut reader, &ranges, &mut found).unwrap();
        assert_eq!(found, expected);
        let mut narrow: Vec<u32> = Vec::new();
        array
            .read_ranges(&mut reader, &ranges, &mut narrow)
            .unwrap();
        assert!(
            narrow
                .iter()
                .copied()
                .eq(expected.iter().map(|v| *v as u32))
        );
        let mut wide: Vec<u64> = Vec::new();
        array.read_ranges(&mut reader, &ranges, &mut wide).unwrap();
        assert!(wide.iter().copied().eq(expected.iter().map(|v| *v as u64)));
        if len == 0 {
            return;
        }

        let step = rng.random_range(1..=len);
        let mut positions: Vec<u64> = (0..300)
            .map(|_| rng.random_range(0..step.min(len)))
            .collect();
        positions.sort_unstable();
        let mut found: Vec<i64> = Vec::new();
        array.gather(&mut reader, &positions, &mut found).unwrap();
        let expected = || positions.iter().map(|position| values[*position as usize]);
        assert!(found.iter().copied().eq(expected()));
        let mut narrow: Vec<u32> = Vec::new();
        array.gather(&mut reader, &positions, &mut narrow).unwrap();
        assert!(narrow.iter().copied().eq(expected().map(|v| v as u32)));
        let pins = PinnedPages::new(&array);
        for (position, value) in positions.iter().zip(expected()) {
            assert_eq!(array.get(&mut reader, *position).unwrap(), value);
            let page = pins.page(&mut reader, *position).unwrap();
            assert_eq!(page.value(*position).unwrap(), value);
        }

        let (start, end) = (rng.random_range(0..len), rng.random_range(1..=len));
        if !is_sorted && start < end {
            // What lies around a sorted range does not matter.
            values[start as usize..end as usize].sort_unstable();
            let array = write(&store, Arc::new(Int64Array::from(values.clone())));
            for _ in 0..20 {
                let value = values[rng.random_range(start..end) as usize];
                let found = array.search(&mut reader, start..end, value).unwrap();
                assert_eq!(values[found.unwrap() as usize], value);
            }
        }
        if is_sorted {
            for place in 0..100 {
                let (start, end) = (rng.random_range(0..=len), rng.random_range(0..=len));
                let within = start.min(end)..start.max(end);
                let value = match place % 3 {
                    0 => rng.random(),
                    1 => values[rng.random_range(0..values.len())],
                    _ => values[rng.random_range(0..values.len())].wrapping_add(1),
                };
                let here = &values[within.start as usize..within.end as usize];
                match array.search(&mut reader, within.clone(), value).unwrap() {
                    Ok(position) => {
                        assert!(within.contains(&position));
                        assert_eq!(values[position as usize], value);
                    }
                    Err(position) => {
                        let before = here.partition_point(|known| *known < value) as u64;
                        assert!(!here.contains(&value));
                        assert_eq!(position, within.start + before);
                    }
                }
            }
        }
    });
}

#[test]
fn pages_in_order_of_address_are_read_together_and_once() {
    let (store, _) = store(1 << 20);
    let values =
        UInt32Array::from_iter_values((0..1 << 20).map(|v: u32| v.wrapping_mul(0x9e37_79b9)));
    let array = write(&store, Arc::new(values));
    store.cache().clear();
    let mut reader = store.reader().unwrap();
    let mut sum = 0u64;
    let halves = [0..array.len() / 2, array.len() / 2..array.len()];
    array
        .visit(
            &mut reader,
            &halves,
            &mut Vec::new(),
            |_, _, values: &[u32]| {
                sum += values.len() as u64;
                Ok(())
            },
        )
        .unwrap();
    assert_eq!(sum, array.len());
    let counters = reader.take_counters();
    assert_eq!(
        counters.pages_from_flash + counters.pages_from_cache,
        array.pages() as u64
    );
    let positions: Vec<u64> = (0..64).map(|place| place * 16_000).collect();
    store.cache().clear();
    array
        .gather(&mut reader, &positions, &mut Vec::<u32>::new())
        .unwrap();
    assert!(reader.take_counters().pages_from_flash <= 64);
}

#[test]
fn what_is_no_such_array_is_refused() {
    let (store, _) = store(1 << 20);
    let mut writer = store.writer().unwrap();
    let identity = ChunkIdentity {
        table: 1,
        segment: 0,
        column_group: 0,
        generation: 0,
    };
    let mut write =
        |slices: &[ArrayRef]| PagedArray::write(&mut writer, identity, &Arc::from("a"), slices, 1);
    let long: ArrayRef = Arc::new(Int64Array::from_iter_values(0..70_000));
    let short = long.slice(0, 10);
    let nulls: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let text: ArrayRef = Arc::new(arrow::array::StringViewArray::from(vec!["a"]));
    for slices in [
        vec![long.clone()],
        vec![short.clone(), short.clone()],
        vec![nulls],
        vec![text],
        vec![long.slice(0, 0)],
    ] {
        let error = write(&slices).unwrap_err();
        assert!(matches!(error, StorageError::Invalid(_)), "{error}");
    }
    // Unsigned numbers that are no i64 are no pages of integers.
    let large: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX, 0]));
    let large = write(&[large]).unwrap();
    let array = write(&[short]).unwrap();
    writer.finish().unwrap().keep();
    let mut reader = store.reader().unwrap();
    let error = large.get(&mut reader, 0).unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    let mut out: Vec<u32> = Vec::new();
    let errors = [
        array.get(&mut reader, 10).map(drop),
        array.read(&mut reader, 5..11, &mut out),
        array.gather(&mut reader, &[3, 2], &mut out),
        array.gather(&mut reader, &[10], &mut out),
        array.read_ranges(&mut reader, &[3..5, 4..6], &mut out),
        array.search(&mut reader, 0..11, 1).map(drop),
    ];
    for error in errors {
        assert!(matches!(error, Err(StorageError::Invalid(_))), "{error:?}");
    }
}

#[test]
fn a_fault_is_an_error() {
    let (store, flash) = store(1 << 20);
    let array = write(&store, Arc::new(Int64Array::from_iter_values(0..200_000)));
    store.cache().clear();
    flash.set_options(FaultOptions {
        bit_flip: When::OneIn(1),
        ..FaultOptions::default()
    });
    let mut reader = store.reader().unwrap();
    let error = array
        .read(&mut reader, 0..array.len(), &mut Vec::<i64>::new())
        .unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
}

#[test]
fn an_array_in_memory_is_what_it_was_made_of() {
    for_seeds(20, |rng| {
        let values = random_values(rng);
        let slices = PartData::slices(&(Arc::new(Int64Array::from(values.clone())) as ArrayRef));
        let array = PagedArray::in_memory(&Arc::from("a"), &slices).unwrap();
        // Nothing of it is on this device.
        let (store, _) = store(0);
        let mut reader = store.reader().unwrap();
        assert_eq!(array.len(), values.len() as u64);
        let mut read = Vec::<i64>::new();
        array.read(&mut reader, 0..array.len(), &mut read).unwrap();
        assert_eq!(read, values);
        let mut positions: Vec<u64> = (0..values.len().min(50))
            .map(|_| rng.random_range(0..array.len()))
            .collect();
        positions.sort_unstable();
        let mut some = Vec::<i64>::new();
        array.gather(&mut reader, &positions, &mut some).unwrap();
        let expected: Vec<i64> = positions.iter().map(|at| values[*at as usize]).collect();
        assert_eq!(some, expected);
        for position in positions {
            let value = array.get(&mut reader, position).unwrap();
            assert_eq!(value, values[position as usize]);
        }
    });
}

#[test]
fn binary_values_come_back_and_pages_of_others_are_refused() {
    for_seeds(10, |rng| {
        let (store, _) = store(1 << 20);
        let mut reader = store.reader().unwrap();
        let size = [1, 4, 12, 100][rng.random_range(0..4)];
        let count = [1, 1000, 70_000][rng.random_range(0..3)];
        let few = rng.random_bool(0.5);
        let byte = |rng: &mut SmallRng| rng.random::<u8>() & if few { 1 } else { 255 };
        let bytes: Vec<u8> = (0..count * size).map(|_| byte(rng)).collect();
        let array = FixedSizeBinaryArray::new(size as i32, bytes.clone().into(), None);
        let slices = PartData::slices(&(Arc::new(array) as ArrayRef));
        let array = PagedArray::in_memory(&Arc::from("a"), &slices).unwrap();
        let mut all = Vec::new();
        for page in 0..array.pages() as u32 {
            let page = array.bytes_page(&mut reader, page, size).unwrap();
            all.extend_from_slice(page.values());
        }
        assert_eq!(all, bytes);
        let (a, b) = (rng.random_range(0..=count), rng.random_range(0..=count));
        let wanted = a.min(b) as u64..a.max(b) as u64;
        let mut some = Vec::new();
        for page in array.pages_with(&wanted).unwrap() {
            let page = array.bytes_page(&mut reader, page, size).unwrap();
            let (first, values) = page.at(&wanted);
            assert_eq!(first, wanted.start + (some.len() / size) as u64);
            some.extend_from_slice(values);
        }
        assert_eq!(some, bytes[a.min(b) * size..a.max(b) * size]);
        assert!(array.pages_with(&(0..count as u64 + 1)).is_err());
        let other = array.bytes_page(&mut reader, 0, size + 1).unwrap_err();
        assert!(matches!(other, StorageError::Corrupt { .. }), "{other}");
    });
}

use std::ops::Range;

use arrow::array::*;
use arrow::buffer::NullBuffer;
use arrow::compute;
use flashmesh_pushdown::Scalar;
use rand::{RngExt, rngs::StdRng};

use super::*;
use crate::page::plain::{plain_type, to_plain};

#[test]
fn every_type_comes_back() {
    let mut rng = seeded();
    for round in 0..12 {
        for data_type in arrays::data_types() {
            let most = if data_type.primitive_width().is_some() {
                65_536
            } else {
                9_000
            };
            let most = match data_type {
                DataType::FixedSizeBinary(20_000) | DataType::FixedSizeList(_, 3000) => 40,
                _ => most,
            };
            let rows = match round {
                0 => most,
                1 => 1,
                _ => rng.random_range(1..most.min(20_000)),
            };
            let array = arrays::array(&mut rng, &data_type, rows);
            check(&mut rng, &array);
            // Arrays with an offset.
            let start = rng.random_range(0..rows);
            let length = rng.random_range(0..=rows - start).min(3000);
            check(&mut rng, &array.slice(start, length));
        }
    }
}

/// Encodes, reads and compares everything.
fn check(rng: &mut StdRng, array: &ArrayRef) {
    check_chunk(rng, array, &encode_and_read(array));
}

/// Compares everything that a chunk says with the array that it was made of.
pub(super) fn check_chunk(rng: &mut StdRng, array: &ArrayRef, chunk: &ReadChunk) {
    let data_type = array.data_type();
    let context = || {
        let encodings: Vec<_> = chunk
            .pages
            .iter()
            .map(|page| page.header().encoding)
            .take(3)
            .collect();
        format!(
            "{data_type}, {} rows, {} NULLs, {encodings:?}",
            array.len(),
            array.null_count()
        )
    };

    let mut whole = ColumnBuilder::new(data_type, array.len()).unwrap();
    for page in &chunk.pages {
        whole
            .append_rows(page, &chunk.aux, 0..page.header().row_count)
            .unwrap();
    }
    let whole = whole.finish().unwrap();
    assert_eq!(whole.data_type(), data_type);
    assert!(
        same(&whole, array),
        "{} {} {}",
        context(),
        whole.len(),
        whole.null_count()
    );
    whole.to_data().validate_full().unwrap();

    // A random part of the rows of each page, in one array; text also as a plain one.
    let mut parts = ColumnBuilder::new(data_type, 0).unwrap();
    let mut plain_parts = ColumnBuilder::plain(data_type, 0).unwrap();
    let mut expected = Vec::new();
    for page in &chunk.pages {
        let first = page.header().first_row as usize;
        let rows = page.header().row_count;
        if rng.random() {
            let range = range(rng, rows);
            for builder in [&mut parts, &mut plain_parts] {
                let appended = builder.append_rows(page, &chunk.aux, range.clone());
                appended.unwrap();
            }
            expected.extend(range.map(|row| (first + row as usize) as u32));
        } else {
            let rate = [1, 10, 200][rng.random_range(0..3)];
            let rows: Vec<u32> = (0..rows)
                .filter(|_| rng.random_range(0..rate) == 0)
                .collect();
            for builder in [&mut parts, &mut plain_parts] {
                builder.append_gather(page, &chunk.aux, &rows).unwrap();
            }
            expected.extend(rows.iter().map(|row| first as u32 + row));
        }
    }
    let parts = parts.finish().unwrap();
    // Arrow's `take` loses the rows of values of no bytes.
    if *data_type != DataType::FixedSizeBinary(0) {
        let expected = compute::take(array, &UInt32Array::from(expected), None).unwrap();
        assert!(same(&parts, &expected), "{}", context());
    }
    let plain_parts = plain_parts.finish().unwrap();
    plain_parts.to_data().validate_full().unwrap();
    let plain = to_plain(&parts, &plain_type(data_type)).unwrap();
    assert!(same(&plain_parts, &plain), "{}", context());

    for page in chunk
        .pages
        .iter()
        .filter(|page| !page.header().has(flags::CONTINUES) && !page.is_continuation())
        .take(3)
    {
        let first = page.header().first_row as usize;
        let range = range(rng, page.header().row_count);
        let decoded = decode(page, &chunk.aux, data_type, range.clone()).unwrap();
        assert!(
            same(
                &decoded,
                &array.slice(first + range.start as usize, range.len())
            ),
            "{}",
            context()
        );
        if ints::is_integer_page(page) {
            check_integers(rng, page, &range);
        } else if matches!(data_type, DataType::Utf8View | DataType::BinaryView) {
            check_text(page, &chunk.aux, &range, array);
        }
    }
    check_single_rows(rng, chunk, array);
    check_zones(chunk, array);
}

/// Some rows of some pages, one at a time.
fn check_single_rows(rng: &mut StdRng, chunk: &ReadChunk, array: &ArrayRef) {
    let data_type = array.data_type();
    for _ in 0..10.min(chunk.pages.len()) {
        let page = &chunk.pages[rng.random_range(0..chunk.pages.len())];
        let header = page.header();
        // Without what the page's encoding does not use.
        let aux = chunk.aux_page.as_deref();
        let aux = aux.filter(|_| header.encoding.uses_aux());
        let mut row = RowValues::default();
        if page.is_continuation() || header.has(flags::CONTINUES) {
            assert!(row.push(data_type, page, aux, 0).is_err());
            continue;
        }
        let rows: Vec<u32> = (0..4)
            .map(|_| rng.random_range(0..header.row_count))
            .collect();
        for row_of_page in &rows {
            row.push(data_type, page, aux, *row_of_page).unwrap();
        }
        for (value, row) in row.iter().zip(rows) {
            let expected = array.slice(usize::from(header.first_row) + row as usize, 1);
            let found = array_of(value, data_type);
            assert!(
                same(&found, &expected),
                "{data_type}: {value:?}, not {expected:?}"
            );
        }
        assert!(row.push(data_type, page, aux, header.row_count).is_err());
    }
}

/// A value of a row as an array.
fn array_of(value: Value<'_>, data_type: &DataType) -> ArrayRef {
    let integers = |number: i128| {
        let numbers = Decimal128Array::from(vec![number]);
        let numbers = numbers.with_precision_and_scale(38, 0).unwrap();
        compute::cast(&numbers, data_type).unwrap()
    };
    match value {
        Value::Null => new_null_array(data_type, 1),
        Value::Boolean(truth) => Arc::new(BooleanArray::from(vec![truth])),
        Value::Integer(number) => integers(number.into()),
        Value::Unsigned(number) => integers(number.into()),
        Value::Float(number) if *data_type == DataType::Float32 => {
            Arc::new(Float32Array::from(vec![number as f32]))
        }
        Value::Float(number) => Arc::new(Float64Array::from(vec![number])),
        Value::Text(text) => Arc::new(StringViewArray::from(vec![text])),
        Value::Binary(bytes) => Arc::new(BinaryViewArray::from(vec![bytes])),
        Value::Array(array) => Arc::clone(array),
    }
}

fn range(rng: &mut StdRng, rows: u32) -> Range<u32> {
    let align = [1, 64, 256][rng.random_range(0..3)];
    let start = rng.random_range(0..=rows) / align * align;
    start..rng.random_range(start..=rows)
}

/// Arrow's equality, but with NaN equal to itself, bit by bit.
fn same(a: &ArrayRef, b: &ArrayRef) -> bool {
    let floats_as_bits = |array: &ArrayRef| match array.data_type() {
        DataType::Float16 => array
            .to_data()
            .into_builder()
            .data_type(DataType::UInt16)
            .build()
            .map(make_array)
            .unwrap(),
        DataType::Float32 => array
            .to_data()
            .into_builder()
            .data_type(DataType::UInt32)
            .build()
            .map(make_array)
            .unwrap(),
        DataType::Float64 => array
            .to_data()
            .into_builder()
            .data_type(DataType::UInt64)
            .build()
            .map(make_array)
            .unwrap(),
        DataType::FixedSizeList(_, size) if has_floats(array) => {
            let list = array.as_fixed_size_list();
            let items = list
                .values()
                .slice(list.value_offset(0) as usize, list.len() * *size as usize);
            let bits = items
                .to_data()
                .into_builder()
                .data_type(DataType::UInt32)
                .build()
                .map(make_array)
                .unwrap();
            let item = Arc::new(arrow::datatypes::Field::new("item", DataType::UInt32, true));
            Arc::new(
                FixedSizeListArray::try_new_with_length(
                    item,
                    *size,
                    bits,
                    list.nulls().cloned(),
                    list.len(),
                )
                .unwrap(),
            )
        }
        _ => array.clone(),
    };
    if let (DataType::Map(..), DataType::Map(..)) = (a.data_type(), b.data_type()) {
        // Floats within: compare what is printed.
        return format!("{a:?}") == format!("{b:?}");
    }
    floats_as_bits(a) == floats_as_bits(b)
}

fn has_floats(array: &ArrayRef) -> bool {
    array.as_fixed_size_list().values().data_type() == &DataType::Float32
}

/// The functions of `ints`, against `ints::value` (which the comparison of arrays vouches for:
/// `append_gather` of single rows uses it).
fn check_integers(rng: &mut StdRng, page: &Page, range: &Range<u32>) {
    let naive: Vec<i64> = range.clone().map(|row| ints::value(page, row)).collect();
    let mut unpacked = vec![0; range.len()];
    ints::unpack_i64(page, range.clone(), &mut unpacked);
    assert_eq!(unpacked, naive);
    if page.header().width <= 32 {
        let mut offsets = vec![0; range.len()];
        ints::unpack_u32(page, range.clone(), &mut offsets);
        let values: Vec<i64> = offsets
            .iter()
            .map(|offset| page.header().reference + i64::from(*offset))
            .collect();
        assert_eq!(values, naive);
    }
    if let Some(runs) = ints::runs(page, range.clone()) {
        let expanded: Vec<i64> = runs
            .flat_map(|(rows, value)| std::iter::repeat_n(value, rows as usize))
            .collect();
        assert_eq!(expanded, naive);
    }

    let mut pick = || match rng.random_range(0..4) {
        0 => rng.random(),
        1 => [i64::MIN, i64::MAX, 0][rng.random_range(0..3)],
        _ if naive.is_empty() => 0,
        _ => naive[rng.random_range(0..naive.len())].saturating_add(rng.random_range(-1..=1)),
    };
    let (min, max) = (pick(), pick());
    let base = pick();
    let mut selection = vec![u64::MAX; range.len().div_ceil(64)];
    ints::select_range(page, range.clone(), min, max, &mut selection);
    assert_eq!(
        selection,
        bitmap(&naive, |value| (min..=max).contains(&value)),
        "{min} to {max}"
    );

    for words in [1, 3, 1024] {
        let bits: Vec<u64> = (0..words).map(|_| rng.random()).collect();
        let contains = |value: i64| {
            let place = i128::from(value) - i128::from(base);
            usize::try_from(place)
                .is_ok_and(|place| place < 64 * words && bits[place / 64] >> (place % 64) & 1 == 1)
        };
        let mut selection = vec![u64::MAX; range.len().div_ceil(64)];
        ints::select_bitmap(page, range.clone(), base, &bits, &mut selection);
        assert_eq!(selection, bitmap(&naive, contains), "from {base}");
    }
}

fn bitmap(values: &[i64], matches: impl Fn(i64) -> bool) -> Vec<u64> {
    let word = |values: &[i64]| {
        values
            .iter()
            .rev()
            .fold(0, |word, value| word << 1 | u64::from(matches(*value)))
    };
    values.chunks(64).map(word).collect()
}

fn check_text(page: &Page, aux: &Aux, range: &Range<u32>, array: &ArrayRef) {
    let (mut bytes, mut offsets) = (b"before".to_vec(), Vec::new());
    strings::decompress(page, aux, range.clone(), &mut bytes, &mut offsets).unwrap();
    assert_eq!(offsets.len(), range.len() + 1);
    assert_eq!(offsets[0], 6);
    for (ends, row) in offsets.windows(2).zip(range.clone()) {
        let row = page.header().first_row as usize + row as usize;
        let expected = match array.data_type() {
            _ if array.is_null(row) => b"",
            DataType::Utf8View => array.as_string_view().value(row).as_bytes(),
            _ => array.as_binary_view().value(row),
        };
        assert_eq!(&bytes[ends[0] as usize..ends[1] as usize], expected);
    }
}

/// A value as the Program sees it; `None` for types without an order.
fn scalar(array: &ArrayRef, row: usize) -> Option<Scalar> {
    use arrow::datatypes::*;
    macro_rules! int {
        ($type:ty) => {
            Scalar::Int(array.to_data().buffer::<$type>(0)[row] as i128)
        };
    }
    Some(match array.data_type() {
        DataType::Boolean => Scalar::Boolean(array.as_boolean().value(row)),
        DataType::Int8 => int!(i8),
        DataType::UInt8 => int!(u8),
        DataType::Int16 => int!(i16),
        DataType::UInt16 => int!(u16),
        DataType::UInt32 => int!(u32),
        DataType::UInt64 => int!(u64),
        DataType::Decimal128(..) => int!(i128),
        DataType::Float16 => Scalar::Float(array.as_primitive::<Float16Type>().value(row).to_f64()),
        DataType::Float32 => {
            Scalar::Float(f64::from(array.as_primitive::<Float32Type>().value(row)))
        }
        DataType::Float64 => Scalar::Float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8View => Scalar::Bytes(array.as_string_view().value(row).into()),
        DataType::BinaryView => Scalar::Bytes(array.as_binary_view().value(row).into()),
        DataType::FixedSizeBinary(_) => {
            Scalar::Bytes(array.as_fixed_size_binary().value(row).to_vec())
        }
        DataType::Interval(IntervalUnit::DayTime | IntervalUnit::MonthDayNano) => return None,
        other => match other.primitive_width() {
            Some(4) => int!(i32),
            Some(8) => int!(i64),
            _ => return None,
        },
    })
}

fn order(a: &Scalar, b: &Scalar) -> std::cmp::Ordering {
    match (a, b) {
        (Scalar::Boolean(a), Scalar::Boolean(b)) => a.cmp(b),
        (Scalar::Int(a), Scalar::Int(b)) => a.cmp(b),
        (Scalar::Float(a), Scalar::Float(b)) => a.total_cmp(b),
        (Scalar::Bytes(a), Scalar::Bytes(b)) => a.cmp(b),
        _ => panic!("{a:?} and {b:?} do not compare"),
    }
}

fn check_zones(chunk: &ReadChunk, array: &ArrayRef) {
    let data_type = array.data_type();
    let mut next = 0;
    for (zone, page) in chunk.zones.iter().zip(&chunk.pages) {
        if page.is_continuation() {
            assert_eq!((zone.row_count, zone.null_count), (0, 0));
            assert!(zone.min > zone.max);
            continue;
        }
        assert_eq!(zone.first_row, next);
        assert_eq!(page.rows(), next..next + zone.row_count);
        next += zone.row_count;
        let rows = array.slice(zone.first_row as usize, zone.row_count as usize);
        assert_eq!(zone.null_count as usize, rows.null_count());
        assert_eq!((zone.min, zone.max), (page.header().min, page.header().max));
        if rows.null_count() == rows.len() {
            assert!(zone.min > zone.max, "all NULL");
            continue;
        }
        assert!(zone.min <= zone.max);
        for row in (0..rows.len()).filter(|row| rows.is_valid(*row)) {
            let Some(value) = scalar(&rows, row) else {
                break;
            };
            match zone_key(&value, data_type) {
                ZoneKey::Exact(key) | ZoneKey::Prefix(key) => {
                    assert!(
                        zone.min <= key && key <= zone.max,
                        "{value:?} outside {zone:?} of {data_type}"
                    )
                }
                ZoneKey::Unknown => panic!("{value:?} has no key"),
            }
        }
    }
    assert_eq!(next as usize, array.len());
    assert_eq!(chunk.zones.len(), chunk.pages.len());

    let stats = &chunk.stats;
    assert_eq!(stats.null_count as usize, array.null_count());
    let values: Vec<Scalar> = (0..array.len())
        .filter(|row| array.is_valid(*row))
        .map_while(|row| scalar(array, row))
        .collect();
    let (min, max) = (
        values.iter().min_by(|a, b| order(a, b)),
        values.iter().max_by(|a, b| order(a, b)),
    );
    for (found, expected) in [(&stats.min_value, min), (&stats.max_value, max)] {
        match (found, expected) {
            (Some(found), Some(expected)) => {
                assert!(order(found, expected).is_eq(), "{found:?} {expected:?}")
            }
            (None, Some(Scalar::Bytes(bytes))) => assert!(bytes.len() > 256),
            (None, None) => {}
            other => panic!("{other:?} of {data_type}"),
        }
    }
    if let (Some(min), Some(max)) = (min, max) {
        let key = |value| match zone_key(value, data_type) {
            ZoneKey::Exact(key) | ZoneKey::Prefix(key) => key,
            ZoneKey::Unknown => panic!("{value:?} has no key"),
        };
        assert_eq!((stats.min, stats.max), (key(min), key(max)));
        let distinct = values
            .iter()
            .map(|value| format!("{value:?}"))
            .collect::<std::collections::HashSet<_>>()
            .len();
        let estimate = estimate_distinct(&stats.distinct_sketch).unwrap();
        // Five standard errors; NaNs print alike.
        let error = estimate.abs_diff(distinct as u64) as f64;
        assert!(
            error <= distinct as f64 * 0.33 + 6.0,
            "{distinct} distinct, estimate {estimate}, {data_type}"
        );
    }
}

#[test]
fn empty_chunks_have_no_pages() {
    for data_type in arrays::data_types() {
        let chunk = encode_and_read(&new_empty_array(&data_type));
        assert!(chunk.pages.is_empty());
        assert_eq!(
            ColumnBuilder::new(&data_type, 0)
                .unwrap()
                .finish()
                .unwrap()
                .data_type(),
            &data_type
        );
    }
}

/// With NULLs, value and bitmap share a page.
#[test]
fn a_long_constant_leaves_room_for_the_bitmap() {
    let rows = 33_000;
    for size in [0, 1, 64, 4032, 4033, 4064] {
        let nulls: NullBuffer = (0..rows).map(|row| row % 3 != 1).collect();
        let bytes = vec![7u8; rows * size];
        let array = FixedSizeBinaryArray::try_new_with_len(
            size as i32,
            bytes.into(),
            Some(nulls.clone()),
            rows,
        )
        .unwrap();
        let chunk = encode_and_read(&array);
        let mut first = 0;
        for page in &chunk.pages {
            assert_eq!(page.header().encoding, Encoding::Const);
            let decoded = decode(
                page,
                &chunk.aux,
                array.data_type(),
                0..page.header().row_count,
            );
            let decoded = decoded.unwrap();
            assert_eq!(
                &decoded,
                &(Arc::new(array.slice(first, decoded.len())) as ArrayRef)
            );
            first += decoded.len();
        }
        assert_eq!(first, rows);
    }
}

#[test]
fn too_many_pages_are_refused_and_the_helper_prevents_it() {
    let mut value = vec![0; 151_000_000];
    seeded().fill(value.as_mut_slice());
    let mut builder = BinaryViewBuilder::new();
    let block = builder.append_block(value.into());
    for offset in 0..10u32 {
        builder.try_append_view(block, offset, 150_000_000).unwrap();
    }
    let array = builder.finish();
    let rows = max_chunk_rows(&array).unwrap();
    assert!((1..10).contains(&rows), "{rows}");
    let error = encode_chunk(&array, IDENTITY).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("fewer rows"), "{error}");
    assert_eq!(
        max_chunk_rows(&Int64Array::from(vec![1; 1000])).unwrap(),
        1000
    );
}

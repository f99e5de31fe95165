//! Random arrays.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::*;
use rand::{RngExt, rngs::StdRng};

/// Every type that columns are stored as.
pub fn data_types() -> Vec<DataType> {
    use DataType::*;
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let fields = Fields::from(vec![
        Field::new("a", Int32, true),
        Field::new("b", Utf8View, true),
        Field::new("c", List(item(Boolean)), true),
    ]);
    let entries = Fields::from(vec![
        Field::new("keys", Utf8, false),
        Field::new("values", Float64, true),
    ]);
    vec![
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float16,
        Float32,
        Float64,
        Decimal128(15, 2),
        Decimal128(38, 10),
        Decimal256(76, 20),
        Date32,
        Date64,
        Time32(TimeUnit::Millisecond),
        Time64(TimeUnit::Nanosecond),
        Timestamp(TimeUnit::Microsecond, None),
        Timestamp(TimeUnit::Nanosecond, Some("Europe/Zurich".into())),
        Duration(TimeUnit::Second),
        Interval(IntervalUnit::YearMonth),
        Interval(IntervalUnit::DayTime),
        Interval(IntervalUnit::MonthDayNano),
        Utf8View,
        BinaryView,
        FixedSizeBinary(0),
        FixedSizeBinary(3),
        FixedSizeBinary(16),
        FixedSizeBinary(20_000),
        FixedSizeList(item(Float32), 4),
        FixedSizeList(item(Float32), 3000),
        FixedSizeList(item(Int16), 3),
        List(item(Int64)),
        LargeList(item(Utf8)),
        List(item(List(item(Decimal128(10, 2))))),
        Struct(fields),
        Struct(Fields::empty()),
        Map(
            Arc::new(Field::new("entries", Struct(entries), false)),
            false,
        ),
    ]
}

/// Random NULLs: none, a few, many, long runs, nearly all, all.
pub fn nulls(rng: &mut StdRng, rows: usize) -> Option<NullBuffer> {
    let valid: Vec<bool> = match rng.random_range(0..7) {
        0 | 1 => return None,
        2 => (0..rows).map(|_| rng.random_range(0..100) > 0).collect(),
        3 => (0..rows).map(|_| rng.random()).collect(),
        4 => {
            let run = rng.random_range(1..2000);
            (0..rows).map(|row| row / run % 2 == 1).collect()
        }
        5 => (0..rows).map(|_| rng.random_range(0..500) == 0).collect(),
        _ => vec![false; rows],
    };
    Some(valid.into())
}

/// Numbers within `bits` signed bits, of many shapes.
pub fn integers(rng: &mut StdRng, rows: usize, bits: u32) -> Vec<i64> {
    let shift = 64 - bits;
    let base = rng.random::<i64>() >> shift;
    let step = 1 << rng.random_range(0..bits.min(40));
    let narrow = rng.random_range(1..bits.max(2));
    let few: Vec<i64> = (0..rng.random_range(1..1500))
        .map(|_| rng.random::<i64>() >> shift)
        .collect();
    let run = rng.random_range(2..5000);
    let mut value = base;
    let shape = rng.random_range(0..10);
    let values = (0..rows).map(|row| match shape {
        0 => base,
        1 => rng.random(),
        2 => base.wrapping_add(rng.random::<i64>() >> (64 - narrow)),
        3 => base.wrapping_add(rng.random_range(0..100) * step),
        4 => few[rng.random_range(0..few.len())],
        5 => base.wrapping_add(row as i64 / 3),
        6 => {
            if rng.random_range(0..run) == 0 {
                value = rng.random();
            }
            value
        }
        7 => {
            if rng.random_range(0..1000) == 0 {
                rng.random()
            } else {
                base
            }
        }
        8 => base.wrapping_add((row as i64 / 3000) * step),
        _ => rng.random::<i64>() >> rng.random_range(0..64),
    });
    // What does not fit the type wraps: the low bits, sign-extended.
    values.map(|value: i64| value << shift >> shift).collect()
}

fn text(rng: &mut StdRng, rows: usize, utf8: bool, long: bool) -> Vec<Vec<u8>> {
    let words = [
        "carefully",
        "final",
        "deposits",
        "sleep",
        "é",
        "日本",
        "\u{10348}",
        " ",
        "",
        "x",
        "ironic packages ",
    ];
    let pool: Vec<Vec<u8>> = (0..rng.random_range(1..4000))
        .map(|_| string(rng, &words, utf8, 3))
        .collect();
    let shape = rng.random_range(0..6);
    let length = rng.random_range(1..60);
    (0..rows)
        .map(|row| match shape {
            0 => pool[0].clone(),
            1 => pool[rng.random_range(0..pool.len())].clone(),
            2 => string(rng, &words, utf8, 6),
            3 => format!("Customer#{row:09}").into_bytes(),
            4 => string(rng, &words, utf8, length),
            _ if long && rng.random_range(0..40) == 0 => string(rng, &words, utf8, 6000),
            _ => string(rng, &words, utf8, 2),
        })
        .collect()
}

fn string(rng: &mut StdRng, words: &[&str], utf8: bool, most: usize) -> Vec<u8> {
    let count = rng.random_range(0..=most);
    match utf8 {
        true => (0..count)
            .flat_map(|_| words[rng.random_range(0..words.len())].bytes())
            .collect(),
        // Full of bytes 255: escapes of escapes.
        false => (0..2 * count)
            .map(|_| if rng.random() { 255 } else { rng.random() })
            .collect(),
    }
}

/// A random array.
pub fn array(rng: &mut StdRng, data_type: &DataType, rows: usize) -> ArrayRef {
    let nulls = nulls(rng, rows);
    array_with(rng, data_type, rows, nulls, true)
}

macro_rules! primitive {
    ($rng:ident, $rows:ident, $nulls:ident, $type:ty, $bits:literal) => {{
        let values = integers($rng, $rows, $bits);
        let values: Vec<<$type as ArrowPrimitiveType>::Native> =
            values.into_iter().map(|value| value as _).collect();
        Arc::new(PrimitiveArray::<$type>::new(values.into(), $nulls))
    }};
}

pub fn array_with(
    rng: &mut StdRng,
    data_type: &DataType,
    rows: usize,
    nulls: Option<NullBuffer>,
    long: bool,
) -> ArrayRef {
    let float = |rng: &mut StdRng| match rng.random_range(0..4) {
        0 => [
            0.0,
            -0.0,
            f64::NAN,
            -f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ][rng.random_range(0..6)],
        1 => f64::from(rng.random::<i8>()) / 4.0,
        _ => rng.random::<f64>() * 1e6,
    };
    let few = rng.random_range(0..3) == 0;
    let mut pool: Vec<f64> = (0..rows.min(if few { 300 } else { rows }))
        .map(|_| float(rng))
        .collect();
    while pool.len() < rows {
        pool.push(pool[rng.random_range(0..300.min(pool.len()))]);
    }
    match data_type {
        DataType::Boolean => {
            let rate = [0, 1, 50, 99, 100][rng.random_range(0..5)];
            let values = (0..rows).map(|_| rng.random_range(0..100) < rate).collect();
            Arc::new(BooleanArray::new(values, nulls))
        }
        DataType::Int8 => primitive!(rng, rows, nulls, Int8Type, 8),
        DataType::Int16 => primitive!(rng, rows, nulls, Int16Type, 16),
        DataType::Int32 => primitive!(rng, rows, nulls, Int32Type, 32),
        DataType::Int64 => primitive!(rng, rows, nulls, Int64Type, 64),
        DataType::UInt8 => primitive!(rng, rows, nulls, UInt8Type, 8),
        DataType::UInt16 => primitive!(rng, rows, nulls, UInt16Type, 16),
        DataType::UInt32 => primitive!(rng, rows, nulls, UInt32Type, 32),
        DataType::UInt64 => primitive!(rng, rows, nulls, UInt64Type, 64),
        DataType::Date32 => primitive!(rng, rows, nulls, Date32Type, 32),
        DataType::Date64 => primitive!(rng, rows, nulls, Date64Type, 64),
        DataType::Time32(_) => primitive!(rng, rows, nulls, Time32MillisecondType, 32),
        DataType::Time64(_) => primitive!(rng, rows, nulls, Time64NanosecondType, 64),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            primitive!(rng, rows, nulls, TimestampMicrosecondType, 64)
        }
        DataType::Timestamp(_, zone) => {
            let values = integers(rng, rows, 64);
            Arc::new(
                TimestampNanosecondArray::new(values.into(), nulls).with_timezone_opt(zone.clone()),
            )
        }
        DataType::Duration(_) => primitive!(rng, rows, nulls, DurationSecondType, 64),
        DataType::Interval(IntervalUnit::YearMonth) => {
            primitive!(rng, rows, nulls, IntervalYearMonthType, 32)
        }
        DataType::Interval(IntervalUnit::DayTime) => {
            let values: Vec<_> = (0..rows)
                .map(|_| IntervalDayTime::new(rng.random(), rng.random()))
                .collect();
            Arc::new(IntervalDayTimeArray::new(values.into(), nulls))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let values: Vec<_> = (0..rows)
                .map(|_| {
                    IntervalMonthDayNano::new(rng.random(), rng.random(), rng.random_range(0..9))
                })
                .collect();
            Arc::new(IntervalMonthDayNanoArray::new(values.into(), nulls))
        }
        DataType::Decimal128(precision, scale) => {
            let wide = *precision > 18 && rng.random();
            let narrow = integers(rng, rows, 48);
            let values: Vec<i128> = narrow
                .into_iter()
                .map(|value| {
                    if wide && rng.random_range(0..10) == 0 {
                        i128::from(value) << 70
                    } else {
                        i128::from(value)
                    }
                })
                .collect();
            Arc::new(
                Decimal128Array::new(values.into(), nulls)
                    .with_precision_and_scale(*precision, *scale)
                    .unwrap(),
            )
        }
        DataType::Decimal256(precision, scale) => {
            let values: Vec<_> = (0..rows)
                .map(|_| i256::from_parts(rng.random(), rng.random::<i128>() >> 10))
                .collect();
            Arc::new(
                Decimal256Array::new(values.into(), nulls)
                    .with_precision_and_scale(*precision, *scale)
                    .unwrap(),
            )
        }
        DataType::Float16 => {
            let values: Vec<_> = pool
                .iter()
                .map(|value| <Float16Type as ArrowPrimitiveType>::Native::from_f64(*value))
                .collect();
            Arc::new(Float16Array::new(values.into(), nulls))
        }
        DataType::Float32 => {
            let values: Vec<f32> = pool.iter().map(|value| *value as f32).collect();
            Arc::new(Float32Array::new(values.into(), nulls))
        }
        DataType::Float64 => Arc::new(Float64Array::new(pool.into(), nulls)),
        DataType::Utf8View => {
            let values = text(rng, rows, true, long);
            let values = values
                .iter()
                .map(|value| std::str::from_utf8(value).unwrap());
            masked(Arc::new(StringViewArray::from_iter_values(values)), nulls)
        }
        DataType::Utf8 => {
            let values = text(rng, rows, true, long);
            let values = values
                .iter()
                .map(|value| std::str::from_utf8(value).unwrap());
            masked(Arc::new(StringArray::from_iter_values(values)), nulls)
        }
        DataType::BinaryView => {
            let values = text(rng, rows, false, long);
            masked(Arc::new(BinaryViewArray::from_iter_values(values)), nulls)
        }
        DataType::FixedSizeBinary(size) => {
            let distinct = rng.random_range(1..1000);
            let bytes: Vec<u8> = (0..rows)
                .flat_map(|_| {
                    let seed = rng.random_range(0..distinct) as u8;
                    (0..*size).map(move |at| seed.wrapping_mul(at as u8 | 1))
                })
                .collect();
            Arc::new(
                FixedSizeBinaryArray::try_new_with_len(*size, bytes.into(), nulls, rows).unwrap(),
            )
        }
        DataType::FixedSizeList(item, length) => {
            let count = rows * *length as usize;
            let inner = if rng.random_range(0..3) == 0 {
                self::nulls(rng, count)
            } else {
                None
            };
            let items = array_with(rng, item.data_type(), count, inner, false);
            Arc::new(
                FixedSizeListArray::try_new_with_length(item.clone(), *length, items, nulls, rows)
                    .unwrap(),
            )
        }
        DataType::List(item) => {
            let (offsets, items) = list(rng, item, rows);
            Arc::new(ListArray::new(item.clone(), offsets, items, nulls))
        }
        DataType::LargeList(item) => {
            let (offsets, items) = list(rng, item, rows);
            let offsets =
                OffsetBuffer::new(offsets.iter().map(|offset| i64::from(*offset)).collect());
            Arc::new(LargeListArray::new(item.clone(), offsets, items, nulls))
        }
        DataType::Struct(fields) => {
            let columns = fields
                .iter()
                .map(|field| {
                    let nulls = if field.is_nullable() {
                        self::nulls(rng, rows)
                    } else {
                        None
                    };
                    array_with(rng, field.data_type(), rows, nulls, false)
                })
                .collect();
            Arc::new(
                StructArray::try_new_with_length(fields.clone(), columns, nulls, rows).unwrap(),
            )
        }
        DataType::Map(entries, _) => {
            let lengths: Vec<usize> = (0..rows).map(|_| rng.random_range(0..4)).collect();
            let items = array_with(rng, entries.data_type(), lengths.iter().sum(), None, false);
            Arc::new(MapArray::new(
                entries.clone(),
                OffsetBuffer::from_lengths(lengths),
                items.as_struct().clone(),
                nulls,
                false,
            ))
        }
        other => panic!("no random {other}"),
    }
}

fn list(rng: &mut StdRng, item: &FieldRef, rows: usize) -> (OffsetBuffer<i32>, ArrayRef) {
    let long = rng.random_range(0..4) == 0;
    let lengths: Vec<usize> = (0..rows)
        .map(|row| {
            if long && row == rows / 2 {
                5000
            } else {
                rng.random_range(0..5)
            }
        })
        .collect();
    let count = lengths.iter().sum();
    let inner = nulls(rng, count);
    let items = array_with(rng, item.data_type(), count, inner, false);
    (OffsetBuffer::from_lengths(lengths), items)
}

fn masked(array: ArrayRef, nulls: Option<NullBuffer>) -> ArrayRef {
    make_array(array.to_data().into_builder().nulls(nulls).build().unwrap())
}

//! Random tables: every type, NULLs from none to all, and the shapes of data that choose
//! encodings (constant, narrow, sorted, runs, outliers, the whole range).

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, DictionaryArray, FixedSizeBinaryBuilder,
    FixedSizeListBuilder, Float32Array, Float32Builder, Float64Array, Int32Array, Int32Builder,
    IntervalDayTimeArray, IntervalMonthDayNanoArray, IntervalYearMonthArray, LargeStringArray,
    ListBuilder, PrimitiveArray, RecordBatch, StringArray, StringViewArray, StructArray,
};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNativeTypeOp, ArrowPrimitiveType, DataType, Date32Type, Date64Type, Decimal128Type,
    DurationMillisecondType, Field, Float32Type, Int8Type, Int16Type, Int32Type, Int64Type,
    IntervalDayTime, IntervalMonthDayNano, Schema, Time32SecondType, Time64MicrosecondType,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

/// What queries may do with a column beside looking at it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Abilities {
    /// Compared and ordered.
    pub ordered: bool,
    /// Holds NaN.
    pub nan: bool,
    /// Grouped by, counted distinct.
    pub grouped: bool,
    /// Summed and averaged, exactly in any order.
    pub summed: bool,
    /// An integer that fits Int32: arithmetic stays in range.
    pub small_integer: bool,
    /// Text.
    pub text: bool,
    /// Boolean.
    pub boolean: bool,
}

/// A column of a random table.
pub struct RandomColumn {
    pub name: String,
    pub data_type: DataType,
    pub abilities: Abilities,
}

/// A random table: `id` (unique, ascending), `key` (to join on), and columns of random types.
pub struct RandomTable {
    pub name: &'static str,
    pub columns: Vec<RandomColumn>,
    pub batches: Vec<RecordBatch>,
    pub batches_per_commit: usize,
}

impl RandomTable {
    /// A table of up to a few segments, or one of a few pages.
    pub fn new(rng: &mut SmallRng, name: &'static str, big: bool) -> RandomTable {
        let sizes: &[usize] = if big {
            &[2_000, 65_536, 65_537, 150_000]
        } else {
            &[1, 9, 300, 5_000]
        };
        let size = *sizes.choose(rng).expect("sizes");
        let row_count = if rng.random_bool(0.05) { 0 } else { size };
        let keys = (size as i64 / 3).max(2);

        let ids: ArrayRef = Arc::new(PrimitiveArray::<Int64Type>::from_iter_values(
            0..row_count as i64,
        ));
        let key: ArrayRef = Arc::new(Int32Array::from_iter((0..row_count).map(|_| {
            rng.random_bool(0.95)
                .then(|| rng.random_range(0..keys) as i32)
        })));
        let integer = Abilities {
            ordered: true,
            grouped: true,
            summed: true,
            ..Abilities::default()
        };
        let mut columns = vec![
            RandomColumn {
                name: "id".into(),
                data_type: DataType::Int64,
                abilities: integer,
            },
            RandomColumn {
                name: "key".into(),
                data_type: DataType::Int32,
                abilities: Abilities {
                    small_integer: true,
                    ..integer
                },
            },
        ];
        let mut arrays = vec![ids, key];
        for number in 0..rng.random_range(4..12) {
            let (array, abilities) = random_column(rng, row_count);
            let name = format!("c{number}");
            columns.push(RandomColumn {
                name,
                data_type: array.data_type().clone(),
                abilities,
            });
            arrays.push(array);
        }

        let fields: Vec<_> = columns
            .iter()
            .map(|c| Field::new(&c.name, c.data_type.clone(), true))
            .collect();
        let whole = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
            .expect("columns of one length");
        let batch_rows = *[97, 8_192, 100_000].choose(rng).expect("sizes");
        let mut batches: Vec<_> = (0..row_count)
            .step_by(batch_rows)
            .map(|first| whole.slice(first, batch_rows.min(row_count - first)))
            .collect();
        if batches.is_empty() {
            batches.push(whole);
        }
        let batches_per_commit = batches.len().div_ceil(rng.random_range(1..=3));
        RandomTable {
            name,
            columns,
            batches,
            batches_per_commit,
        }
    }

    /// A random value of a column as text, if a random row has one.
    pub fn sample(&self, rng: &mut SmallRng, column: usize) -> Option<String> {
        let batch = self.batches.choose(rng)?;
        if batch.num_rows() == 0 {
            return None;
        }
        let row = rng.random_range(0..batch.num_rows());
        crate::support::rows(&[batch.slice(row, 1).project(&[column]).ok()?])
            .pop()?
            .pop()?
    }
}

/// One value a row, or NULL; the integers that the types below are made of.
type Numbers = Vec<Option<i64>>;

/// Random integers of a random shape, between `-limit` and `limit` (0 and `limit` if unsigned).
fn numbers(rng: &mut SmallRng, row_count: usize, limit: i64, signed: bool) -> Numbers {
    let null_density = *[0.0, 0.0, 0.1, 0.9, 1.0].choose(rng).expect("densities");
    let least = if signed { -limit } else { 0 };
    let width = limit.min(*[1, 3, 20, 1_000, 1_000_000].choose(rng).expect("widths"));
    let base = rng.random_range(least..=limit - width);
    let shape = rng.random_range(0..6);
    let mut current = base;
    let step = ((limit - least) / (row_count as i64 + 1)).min(50);
    if shape == 3 {
        current = least;
    }
    (0..row_count)
        .map(|_| {
            let value = match shape {
                0 => base,
                1 => base + rng.random_range(0..=width),
                2 => rng.random_range(least..=limit),
                3 => {
                    current += rng.random_range(0..=step);
                    current
                }
                4 => {
                    if rng.random_bool(0.01) {
                        current = base + rng.random_range(0..=width);
                    }
                    current
                }
                _ if rng.random_bool(0.001) => rng.random_range(least..=limit),
                _ => base + rng.random_range(0..=width),
            };
            (!rng.random_bool(null_density)).then_some(value)
        })
        .collect()
}

/// An array of a primitive type of at most 64 bits.
fn primitive<T: ArrowPrimitiveType>(
    numbers: &Numbers,
    native: impl Fn(i64) -> T::Native,
) -> PrimitiveArray<T>
where
    T::Native: ArrowNativeTypeOp,
{
    numbers.iter().map(|number| number.map(&native)).collect()
}

/// A column of a random type.
fn random_column(rng: &mut SmallRng, n: usize) -> (ArrayRef, Abilities) {
    let plain = Abilities::default();
    let ordered = Abilities {
        ordered: true,
        grouped: true,
        ..plain
    };
    let summed = Abilities {
        summed: true,
        ..ordered
    };
    let small = Abilities {
        small_integer: true,
        ..summed
    };
    let text = Abilities {
        text: true,
        ..ordered
    };
    // Days, and seconds, of some centuries around 1970.
    const DAYS: i64 = 200_000;
    const SECONDS: i64 = DAYS * 86_400;
    type MakeTexts = fn(&[Option<String>]) -> ArrayRef;
    const TEXT_KINDS: [MakeTexts; 4] = [
        |values| Arc::new(StringViewArray::from_iter(values)),
        |values| Arc::new(StringArray::from_iter(values)),
        |values| Arc::new(LargeStringArray::from_iter(values)),
        |values| {
            Arc::new(DictionaryArray::<Int32Type>::from_iter(
                values.iter().map(Option::as_deref),
            ))
        },
    ];
    match rng.random_range(0..34) {
        0 => {
            let values = numbers(rng, n, 1, false);
            let array = BooleanArray::from_iter(values.iter().map(|v| v.map(|v| v == 1)));
            (
                Arc::new(array),
                Abilities {
                    boolean: true,
                    ..ordered
                },
            )
        }
        1 => (
            Arc::new(primitive::<Int8Type>(&numbers(rng, n, 127, true), |v| {
                v as i8
            })),
            small,
        ),
        2 => (
            Arc::new(primitive::<Int16Type>(
                &numbers(rng, n, 32_767, true),
                |v| v as i16,
            )),
            small,
        ),
        3 | 4 => (
            Arc::new(primitive::<Int32Type>(
                &numbers(rng, n, i32::MAX.into(), true),
                |v| v as i32,
            )),
            small,
        ),
        5 | 6 => (
            Arc::new(primitive::<Int64Type>(
                &numbers(rng, n, i64::MAX / 2, true),
                |v| v,
            )),
            ordered,
        ),
        7 => (
            Arc::new(primitive::<UInt8Type>(&numbers(rng, n, 255, false), |v| {
                v as u8
            })),
            small,
        ),
        8 => (
            Arc::new(primitive::<UInt16Type>(
                &numbers(rng, n, 65_535, false),
                |v| v as u16,
            )),
            small,
        ),
        9 => (
            Arc::new(primitive::<UInt32Type>(
                &numbers(rng, n, u32::MAX.into(), false),
                |v| v as u32,
            )),
            summed,
        ),
        // Twice as wide as Int64: the upper half of the type is reached.
        10 => (
            Arc::new(primitive::<UInt64Type>(
                &numbers(rng, n, i64::MAX, false),
                |v| v as u64 * 2 + 1,
            )),
            ordered,
        ),
        // Eighths below 2^20: their sums are exact.
        11 => {
            let values = numbers(rng, n, 1 << 23, true);
            (
                Arc::new(Float64Array::from_iter(
                    values.iter().map(|v| v.map(|v| v as f64 / 8.0)),
                )),
                summed,
            )
        }
        12 => {
            let values = numbers(rng, n, 1 << 23, true);
            (
                Arc::new(Float32Array::from_iter(
                    values.iter().map(|v| v.map(|v| v as f32 / 8.0)),
                )),
                summed,
            )
        }
        13 => {
            const WILD: [f64; 9] = [
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                0.0,
                -0.0,
                f64::MIN_POSITIVE,
                1e300,
                -1e-300,
                0.1,
            ];
            let values = numbers(rng, n, 20, false);
            let value = |v: i64| {
                WILD.get(v as usize)
                    .copied()
                    .unwrap_or(v as f64 * 0.7 - 9.0)
            };
            (
                Arc::new(Float64Array::from_iter(values.iter().map(|v| v.map(value)))),
                Abilities {
                    ordered: true,
                    nan: true,
                    ..plain
                },
            )
        }
        14 => {
            let values = numbers(rng, n, 4_000, true);
            let halves = primitive::<Float32Type>(&values, |v| v as f32 / 8.0);
            (
                cast(&halves, &DataType::Float16).expect("a cast of floats"),
                plain,
            )
        }
        15 | 16 => {
            let array =
                primitive::<Decimal128Type>(&numbers(rng, n, 100_000_000_000, true), i128::from);
            (
                Arc::new(
                    array
                        .with_precision_and_scale(15, 2)
                        .expect("a decimal type"),
                ),
                summed,
            )
        }
        17 => {
            let array = primitive::<Decimal128Type>(&numbers(rng, n, i64::MAX / 2, true), |v| {
                i128::from(v) * 1_000_003
            });
            (
                Arc::new(
                    array
                        .with_precision_and_scale(38, 10)
                        .expect("a decimal type"),
                ),
                ordered,
            )
        }
        18 | 19 => (
            Arc::new(primitive::<Date32Type>(&numbers(rng, n, DAYS, true), |v| {
                v as i32
            })),
            ordered,
        ),
        20 => (
            Arc::new(primitive::<Date64Type>(&numbers(rng, n, DAYS, true), |v| {
                v * 86_400_000
            })),
            plain,
        ),
        21 => (
            Arc::new(primitive::<Time32SecondType>(
                &numbers(rng, n, 86_399, false),
                |v| v as i32,
            )),
            ordered,
        ),
        22 => (
            Arc::new(primitive::<Time64MicrosecondType>(
                &numbers(rng, n, 86_399_999_999, false),
                |v| v,
            )),
            ordered,
        ),
        23 => (
            Arc::new(primitive::<TimestampSecondType>(
                &numbers(rng, n, SECONDS, true),
                |v| v,
            )),
            ordered,
        ),
        24 => {
            let array = primitive::<TimestampMillisecondType>(
                &numbers(rng, n, SECONDS * 1_000, true),
                |v| v,
            );
            (Arc::new(array.with_timezone("+05:30")), ordered)
        }
        25 => (
            Arc::new(primitive::<TimestampMicrosecondType>(
                &numbers(rng, n, SECONDS * 1_000_000, true),
                |v| v,
            )),
            ordered,
        ),
        26 => {
            let array =
                primitive::<TimestampNanosecondType>(&numbers(rng, n, i64::MAX / 2, true), |v| v);
            (Arc::new(array.with_timezone("UTC")), ordered)
        }
        27 => (
            Arc::new(primitive::<DurationMillisecondType>(
                &numbers(rng, n, SECONDS, true),
                |v| v,
            )),
            plain,
        ),
        28 => (intervals(rng, n), plain),
        29 | 30 => {
            let values = strings(rng, n);
            let kind = TEXT_KINDS.choose(rng).expect("kinds of text");
            (kind(&values), text)
        }
        31 => {
            let values = strings(rng, n);
            let array =
                BinaryArray::from_iter(values.iter().map(|v| v.as_ref().map(|v| v.as_bytes())));
            (
                Arc::new(array),
                Abilities {
                    grouped: true,
                    ..plain
                },
            )
        }
        32 => {
            let mut array = FixedSizeBinaryBuilder::new(5);
            for value in numbers(rng, n, 1 << 39, false) {
                match value {
                    Some(value) => array
                        .append_value(&value.to_be_bytes()[3..])
                        .expect("five bytes"),
                    None => array.append_null(),
                }
            }
            (Arc::new(array.finish()), plain)
        }
        _ => (nested(rng, n), plain),
    }
}

fn intervals(rng: &mut SmallRng, n: usize) -> ArrayRef {
    let kind = rng.random_range(0..3);
    let values = numbers(rng, n, 10_000, true);
    match kind {
        0 => Arc::new(IntervalYearMonthArray::from_iter(
            values.iter().map(|v| v.map(|v| v as i32)),
        )),
        1 => {
            Arc::new(IntervalDayTimeArray::from_iter(values.iter().map(|v| {
                v.map(|v| IntervalDayTime::new(v as i32, (v * 7) as i32))
            })))
        }
        _ => Arc::new(IntervalMonthDayNanoArray::from_iter(values.iter().map(
            |v| v.map(|v| IntervalMonthDayNano::new(v as i32, (v / 3) as i32, v * 1_001)),
        ))),
    }
}

/// Words, sentences, numbered names, unique lines; now and then empty, long or not ASCII.
fn strings(rng: &mut SmallRng, n: usize) -> Vec<Option<String>> {
    const WORDS: [&str; 12] = [
        "",
        "a",
        "flash",
        "page",
        "mesh",
        "über",
        "日本",
        "100%",
        "under_score",
        "back\\slash",
        "Flash",
        "flash page",
    ];
    let kind = rng.random_range(0..5);
    let numbers = numbers(rng, n, 5_000, false);
    numbers
        .into_iter()
        .map(|number| {
            let number = number?;
            let word = WORDS[number as usize % WORDS.len()];
            Some(match kind {
                0 => word.to_string(),
                1 => format!("Customer#{number:09}"),
                2 => (0..number % 9)
                    .map(|i| WORDS[(number * 7 + i * 5) as usize % WORDS.len()])
                    .collect::<Vec<_>>()
                    .join(" "),
                3 => format!("{:016x}{:x}", rng.random::<u64>(), number),
                // Longer than a page can be rare, but it must work.
                _ if rng.random_range(0..20_000) == 0 => word.repeat(6_000),
                _ => format!("{word}{}", "x".repeat(number as usize % 40)),
            })
        })
        .collect()
}

/// Lists, structs and vectors.
fn nested(rng: &mut SmallRng, n: usize) -> ArrayRef {
    let kind = rng.random_range(0..3);
    let values = numbers(rng, n, 1_000, true);
    match kind {
        0 => {
            let mut lists = ListBuilder::new(Int32Builder::new());
            for value in values {
                match value {
                    Some(value) => {
                        lists.append_value(
                            (0..value.rem_euclid(4))
                                .map(|i| (i != 2).then_some((value + i) as i32)),
                        );
                    }
                    None => lists.append_null(),
                }
            }
            Arc::new(lists.finish())
        }
        1 => {
            let mut vectors = FixedSizeListBuilder::new(Float32Builder::new(), 4);
            for value in values {
                for i in 0..4 {
                    vectors
                        .values()
                        .append_value(value.unwrap_or(0) as f32 / 8.0 + i as f32);
                }
                vectors.append(value.is_some());
            }
            Arc::new(vectors.finish())
        }
        _ => {
            let numbers: ArrayRef = Arc::new(primitive::<Int32Type>(&values, |v| v as i32));
            let names = values.iter().map(|v| v.map(|v| format!("name {v}")));
            let names: ArrayRef = Arc::new(StringArray::from_iter(names));
            Arc::new(StructArray::from(vec![
                (
                    Arc::new(Field::new("number", DataType::Int32, true)),
                    numbers,
                ),
                (Arc::new(Field::new("name", DataType::Utf8, true)), names),
            ]))
        }
    }
}

//! Random schemas, values and batches.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, FixedSizeListBuilder, Float32Builder, IntervalDayTimeArray,
    IntervalMonthDayNanoArray, IntervalYearMonthArray, ListArray, RecordBatch, RecordBatchOptions,
    StructArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    DataType, Field, Int32Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalUnit,
    Schema, SchemaRef, TimeUnit,
};
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::Generator;
use crate::Scalar;
use crate::scalar::{narrow_f16, narrow_f32};
use crate::types::{integer_range, physical};

/// Characters of random text: cased and caseless, one to four bytes, what SQL and patterns treat
/// specially, and letters whose case mapping is odd.
const ALPHABET: &[char] = &[
    'a', 'b', 'c', 'A', 'B', 'k', 'K', 's', 'S', ' ', '0', '%', '_', '\\', '\'', '.', '*', '\n',
    '\0', 'é', 'É', 'ß', 'ſ', 'σ', 'ς', 'İ', '\u{212a}', '漢', '😀',
];

/// The character as a regular expression that matches it only.
fn escaped(c: char) -> String {
    if c.is_ascii_punctuation() {
        format!("\\{c}")
    } else {
        c.to_string()
    }
}

/// How the values of a column lie, so that each way of encoding them has its turn.
enum Shape {
    /// One value.
    Constant(Scalar),
    /// A few values in random order.
    Few(Vec<Scalar>),
    /// A few values in long runs.
    Runs(Vec<Scalar>),
    /// Ascending.
    Sorted,
    /// Integers in a narrow range.
    Narrow(i128, i128),
    /// Anything.
    Any,
}

impl Generator {
    /// A type that can be computed with.
    pub fn data_type(&mut self) -> DataType {
        use DataType::*;
        let unit = *[
            TimeUnit::Second,
            TimeUnit::Millisecond,
            TimeUnit::Microsecond,
            TimeUnit::Nanosecond,
        ]
        .choose(&mut self.rng)
        .expect("not empty");
        let zone = *[None, Some("UTC"), Some("+02:00")]
            .choose(&mut self.rng)
            .expect("not empty");
        let (precision, scale) = *[(15, 2), (5, 2), (9, 0), (4, 4), (18, 6), (38, 10), (38, 0)]
            .choose(&mut self.rng)
            .expect("not empty");
        let size = *[1, 4, 16].choose(&mut self.rng).expect("not empty");
        // Types that are common in tables come more often.
        match self.rng.random_range(0..32) {
            0 | 1 => Boolean,
            2 => Int8,
            3 => Int16,
            4 | 5 => Int32,
            6 | 7 => Int64,
            8 => UInt8,
            9 => UInt16,
            10 => UInt32,
            11 => UInt64,
            12 => Float16,
            13 => Float32,
            14 | 15 => Float64,
            16..=19 => Decimal128(precision, scale),
            20 | 21 => Date32,
            22 => Date64,
            23 => match unit {
                TimeUnit::Second | TimeUnit::Millisecond => Time32(unit),
                TimeUnit::Microsecond | TimeUnit::Nanosecond => Time64(unit),
            },
            24 | 25 => Timestamp(unit, zone.map(Arc::from)),
            26 => Duration(unit),
            27 => BinaryView,
            28 => FixedSizeBinary(size),
            _ => Utf8View,
        }
    }

    /// A type that can only be carried.
    pub fn carried_type(&mut self) -> DataType {
        match self.rng.random_range(0..6) {
            0 => DataType::Interval(IntervalUnit::YearMonth),
            1 => DataType::Interval(IntervalUnit::DayTime),
            2 => DataType::Interval(IntervalUnit::MonthDayNano),
            3 => DataType::new_fixed_size_list(DataType::Float32, 3, true),
            4 => DataType::new_list(DataType::Int32, true),
            _ => DataType::Struct(
                vec![
                    Field::new("number", DataType::Int32, true),
                    Field::new("text", DataType::Utf8View, true),
                ]
                .into(),
            ),
        }
    }

    /// A schema of so many columns; most types can be computed with.
    pub fn schema(&mut self, columns: usize) -> SchemaRef {
        let fields = (0..columns).map(|i| {
            let carried = self.rng.random_bool(0.1);
            let data_type = if carried {
                self.carried_type()
            } else {
                self.data_type()
            };
            Field::new(format!("col{i}"), data_type, self.rng.random_bool(0.7))
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// A value of a type that can be computed with, never NULL.
    pub fn scalar(&mut self, data_type: &DataType) -> Scalar {
        match data_type {
            DataType::Boolean => Scalar::Boolean(self.rng.random()),
            DataType::Float16 | DataType::Float32 | DataType::Float64 => {
                Scalar::Float(self.float(data_type))
            }
            DataType::Utf8View => Scalar::Bytes(self.text().into_bytes()),
            DataType::BinaryView => {
                let length = self.length();
                Scalar::Bytes(self.bytes(length))
            }
            DataType::FixedSizeBinary(size) => {
                let size = usize::try_from(*size).unwrap_or(0);
                Scalar::Bytes(self.bytes(size))
            }
            other => {
                let (min, max) = integer_range(other)
                    .unwrap_or_else(|| panic!("{other} is no type to compute with"));
                Scalar::Int(match self.rng.random_range(0..8) {
                    0..3 => self.rng.random_range(min.max(-10)..=max.min(10)),
                    3 => *[min, min + 1, max - 1, max]
                        .choose(&mut self.rng)
                        .expect("not empty"),
                    // Days of the 1990s, and what they are in other types.
                    4..6 => self.rng.random_range(7_305..=10_957_i128).clamp(min, max),
                    _ => self.rng.random_range(min..=max),
                })
            }
        }
    }

    fn float(&mut self, data_type: &DataType) -> f64 {
        let value = if self.special_floats && self.rng.random_bool(0.3) {
            let negative_nan = -f64::NAN.abs();
            *[
                0.0,
                -0.0,
                f64::NAN.abs(),
                negative_nan,
                f64::INFINITY,
                f64::NEG_INFINITY,
                1e300,
            ]
            .choose(&mut self.rng)
            .expect("not empty")
        } else if self.rng.random() {
            // Exact in all float types, and often equal.
            f64::from(self.rng.random_range(-16_i8..=16)) / 4.0
        } else {
            self.rng.random_range(-4.0..=4.0)
        };
        match data_type {
            DataType::Float16 => narrow_f16(value).to_f64(),
            DataType::Float32 if value.is_nan() => value,
            DataType::Float32 => narrow_f32(value).into(),
            _ => value,
        }
    }

    /// A length in bytes or characters: often within the 12 bytes that a view holds itself.
    fn length(&mut self) -> usize {
        match self.rng.random_range(0..1000) {
            0..600 => self.rng.random_range(0..=6),
            600..950 => self.rng.random_range(0..=20),
            950..999 => self.rng.random_range(0..=300),
            _ => self.rng.random_range(0..=20_000),
        }
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let few = self.rng.random_bool(0.5);
        let greatest = if few { 2 } else { 255 };
        (0..length)
            .map(|_| self.rng.random_range(0..=greatest))
            .collect()
    }

    /// Random text.
    pub fn text(&mut self) -> String {
        let length = self.length();
        let few = self.rng.random_bool(0.5);
        let alphabet = if few { &ALPHABET[..5] } else { ALPHABET };
        (0..length)
            .map(|_| *alphabet.choose(&mut self.rng).expect("not empty"))
            .collect()
    }

    /// A LIKE pattern, sometimes one made of a text that is to match.
    pub fn pattern(&mut self, like: Option<&str>) -> String {
        let base = match like {
            Some(text) if self.rng.random_bool(0.7) => text.to_owned(),
            _ => self.text(),
        };
        let mut pattern = String::new();
        let wildcards = self.rng.random_bool(0.8);
        if wildcards && self.rng.random() {
            pattern.push('%');
        }
        for c in base.chars().take(self.rng.random_range(0..=12)) {
            match self.rng.random_range(0..12) {
                0 if wildcards => pattern.push('_'),
                1 if wildcards => pattern.push('%'),
                2 => pattern.extend(['\\', c]),
                _ => pattern.push(c),
            }
        }
        if wildcards && self.rng.random() {
            pattern.push('%');
        }
        pattern
    }

    /// A needle, mostly a part of a text that is to hold it.
    pub fn needle(&mut self, of: Option<&str>) -> String {
        let base = match of {
            Some(text) if self.rng.random_bool(0.8) => text.to_owned(),
            _ => self.text(),
        };
        let skipped = self.rng.random_range(0..=base.chars().count());
        let length = self.rng.random_range(0..=8);
        base.chars().skip(skipped).take(length).collect()
    }

    /// A regular expression, mostly one made of a text that is to match.
    pub fn regex(&mut self, of: Option<&str>) -> String {
        let mut pattern = String::new();
        if self.rng.random_bool(0.1) {
            pattern.push('^');
        }
        let needle = self.needle(of);
        for c in needle.chars() {
            match self.rng.random_range(0..16) {
                0 => pattern.push('.'),
                1 => pattern.push_str(".*"),
                2 => pattern.push_str("[^b]"),
                3 => pattern.push_str("(?:a|é|Sk)?"),
                4 => pattern.extend(["(?:", &escaped(c), "|", &escaped(c), "b)"]),
                5 => pattern.extend([&escaped(c), "+"]),
                6 => pattern.extend(["[a-c", &escaped(c), "]"]),
                7 => pattern.push_str(r"\w"),
                _ => pattern.push_str(&escaped(c)),
            }
        }
        if self.rng.random_bool(0.1) {
            pattern.push('$');
        }
        pattern
    }

    fn shape(&mut self, data_type: &DataType) -> Shape {
        let count = self.rng.random_range(1..=12);
        let mut values = || {
            (0..count)
                .map(|_| self.scalar(data_type))
                .collect::<Vec<_>>()
        };
        match (
            values(),
            self.rng.random_range(0..8),
            integer_range(data_type),
        ) {
            (mut values, 0, _) => Shape::Constant(values.swap_remove(0)),
            (values, 1 | 2, _) => Shape::Few(values),
            (values, 3, _) => Shape::Runs(values),
            (_, 4, _) => Shape::Sorted,
            (_, 5 | 6, Some((min, max))) => {
                let start = self.rng.random_range(min..=max);
                let width = 1_i128 << self.rng.random_range(0..20);
                Shape::Narrow(start, start.saturating_add(width).min(max))
            }
            _ => Shape::Any,
        }
    }

    /// A column of a table.
    pub fn array(&mut self, data_type: &DataType, rows: usize, nullable: bool) -> ArrayRef {
        let null_share = match self.rng.random_range(0..6) {
            _ if !nullable => 0.0,
            0 => 0.0,
            1 => 0.001,
            2 => 0.9,
            3 => 1.0,
            _ => 0.2,
        };
        if physical(data_type).is_none() {
            let valid = (0..rows)
                .map(|_| !self.rng.random_bool(null_share))
                .collect();
            return self.carried_array(data_type, rows, valid);
        }
        let shape = self.shape(data_type);
        let mut values: Vec<Scalar> = match &shape {
            Shape::Constant(value) => vec![value.clone(); rows],
            Shape::Few(values) => (0..rows)
                .map(|_| values.choose(&mut self.rng).expect("not empty").clone())
                .collect(),
            Shape::Runs(values) => {
                let mut rows_of_runs = Vec::with_capacity(rows);
                while rows_of_runs.len() < rows {
                    let value = values.choose(&mut self.rng).expect("not empty").clone();
                    let run = self
                        .rng
                        .random_range(1..=200)
                        .min(rows - rows_of_runs.len());
                    rows_of_runs.extend(std::iter::repeat_n(value, run));
                }
                rows_of_runs
            }
            Shape::Narrow(min, max) => (0..rows)
                .map(|_| Scalar::Int(self.rng.random_range(*min..=*max)))
                .collect(),
            Shape::Sorted | Shape::Any => (0..rows).map(|_| self.scalar(data_type)).collect(),
        };
        if matches!(shape, Shape::Sorted) {
            values.sort_by(|left, right| left.total_order(right).expect("one type, no NULL"));
        }
        for value in &mut values {
            if self.rng.random_bool(null_share) {
                *value = Scalar::Null;
            }
        }
        Scalar::to_array(&values, data_type).expect("values were made for the type")
    }

    fn carried_array(&mut self, data_type: &DataType, rows: usize, valid: Vec<bool>) -> ArrayRef {
        if let DataType::FixedSizeList(_, size) = data_type {
            return self.vectors(*size, valid);
        }
        let mut small = || self.rng.random_range(-5..=5_i32);
        match data_type {
            DataType::Interval(IntervalUnit::YearMonth) => {
                let values = valid.iter().map(|valid| valid.then(&mut small));
                Arc::new(IntervalYearMonthArray::from_iter(values))
            }
            DataType::Interval(IntervalUnit::DayTime) => {
                Arc::new(IntervalDayTimeArray::from_iter(valid.iter().map(|valid| {
                    valid.then(|| IntervalDayTimeType::make_value(small(), small()))
                })))
            }
            DataType::Interval(IntervalUnit::MonthDayNano) => Arc::new(
                IntervalMonthDayNanoArray::from_iter(valid.iter().map(|valid| {
                    valid.then(|| {
                        IntervalMonthDayNanoType::make_value(small(), small(), small().into())
                    })
                })),
            ),
            DataType::List(_) => {
                let lists = valid.iter().map(|valid| {
                    valid.then(|| {
                        let length = small().max(0);
                        (0..length)
                            .map(|_| Some(small()).filter(|v| *v != 0))
                            .collect::<Vec<_>>()
                    })
                });
                Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))
            }
            DataType::Struct(fields) => {
                let children = fields
                    .iter()
                    .map(|f| self.array(f.data_type(), rows, f.is_nullable()))
                    .collect();
                Arc::new(StructArray::new(
                    fields.clone(),
                    children,
                    Some(NullBuffer::from(valid)),
                ))
            }
            other => panic!("no values of type {other} are made"),
        }
    }

    /// Vectors of floats, sometimes with elements that are NULL.
    fn vectors(&mut self, size: i32, valid: Vec<bool>) -> ArrayRef {
        let mut builder = FixedSizeListBuilder::new(Float32Builder::new(), size);
        let has_null_elements = self.rng.random_bool(0.2);
        for valid in valid {
            for _ in 0..size {
                let value = self.rng.random_range(-5..=5_i8);
                let is_null = has_null_elements && self.rng.random_bool(0.1);
                let value = (!is_null).then_some(f32::from(value) / 2.0);
                builder.values().append_option(value);
            }
            builder.append(valid);
        }
        Arc::new(builder.finish())
    }

    /// Rows of a table.
    pub fn batch(&mut self, schema: &SchemaRef, rows: usize) -> RecordBatch {
        let columns = schema
            .fields()
            .iter()
            .map(|field| self.array(field.data_type(), rows, field.is_nullable()))
            .collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options)
            .expect("columns were made for the schema")
    }
}

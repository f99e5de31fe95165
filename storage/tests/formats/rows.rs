//! The rows of the databases of earlier formats: all values follow from a row's number, so that the
//! build that wrote them and the test of today agree.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::NullBuffer;
use arrow::datatypes::*;

/// Rows of the first loads of `kinds`, one after the other; each is a segment.
pub const LOADS: [i64; 3] = [400, 1, 150];
/// Rows that `kinds` gets after it was changed, and compacted where that was possible.
pub const LATE: i64 = 100;
/// Rows of `edges`, in two loads.
pub const EDGES: i64 = 400;
/// Vertices of `edges`.
pub const VERTICES: i64 = 60;
/// Rows of `wide`.
pub const WIDE: i64 = 1100;
pub const CODE_BYTES: i32 = 4;
const FILLER_BYTES: i32 = 256;

/// The number of a row of `kinds`, and how often it was updated.
pub type Version = (i64, i32);

/// Rows of `kinds` that its first loads gave it.
pub fn first_rows() -> i64 {
    LOADS.iter().sum()
}

/// Whether the row was deleted, where the format can.
pub fn is_deleted(id: i64) -> bool {
    match id < first_rows() {
        true => id % 7 == 3,
        false => id % 11 == 5,
    }
}

/// Whether the row was updated, where the format can.
pub fn is_updated(id: i64) -> bool {
    id < first_rows() && id % 50 == 0 && !is_deleted(id)
}

/// Whether the edge was deleted, where the format can.
pub fn is_deleted_edge(number: i64) -> bool {
    number % 9 == 4
}

/// The rows that `kinds` has in the end.
pub fn kinds_of(format: u32) -> Vec<Version> {
    match format {
        ..5 => (0..first_rows()).map(|id| (id, 0)).collect(),
        _ => (0..first_rows() + LATE)
            .filter(|id| !is_deleted(*id))
            .map(|id| (id, i32::from(is_updated(id))))
            .collect(),
    }
}

/// The rows that `edges` has in the end.
pub fn edges_of(format: u32) -> Vec<i64> {
    let rows = 0..EDGES;
    rows.filter(|row| format < 5 || !is_deleted_edge(*row))
        .collect()
}

/// Bits that look random (SplitMix64).
fn mix(row: i64, salt: u64) -> u64 {
    let mut bits = (row as u64).wrapping_add((salt + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

fn float(row: i64) -> f64 {
    match row % 11 {
        0 => f64::NAN,
        1 => -f64::NAN,
        2 => -0.0,
        3 => 0.0,
        4 => f64::INFINITY,
        5 => f64::MIN_POSITIVE / 2.0,
        _ => row as f64 / 8.0 - 60.0,
    }
}

pub fn line(row: i64) -> Option<String> {
    let word = |salt| ["amber", "basalt", "cedar", "dune"][(mix(row, salt) % 4) as usize];
    (row % 13 != 6).then(|| format!("{} {} {}", word(1), row % 37, word(2)))
}

/// Of many lengths: several pages, about one, empty.
fn text(row: i64) -> Option<String> {
    match row % 97 {
        5 => Some(format!("chapter {row}, ").repeat(1500)),
        6 => Some("ä".repeat(4050 + row as usize % 30)),
        7 => Some(String::new()),
        _ => None,
    }
}

fn bytes(row: i64) -> Option<Vec<u8>> {
    match row % 101 {
        9 => Some(vec![row as u8; 9000]),
        _ => match row % 3 {
            0 => None,
            1 => Some(Vec::new()),
            _ => Some(mix(row, 3).to_le_bytes()[..row as usize % 8].to_vec()),
        },
    }
}

pub fn code(row: i64) -> [u8; CODE_BYTES as usize] {
    (mix(row, 4) as u32).to_le_bytes()
}

pub fn vector(row: i64) -> [f32; 4] {
    let bits = mix(row, 5);
    [0, 16, 32, 48].map(|shift| ((bits >> shift) as u8) as f32 / 4.0)
}

fn word(row: i64) -> Option<&'static str> {
    ["north", "south", "", "west"]
        .get((mix(row, 6) % 5) as usize)
        .copied()
}

fn list<T>(row: i64, salt: u64, item: impl Fn(u64) -> Option<T>) -> Option<Vec<Option<T>>> {
    let bits = mix(row, salt);
    let items = (0..bits % 5).map(|place| item(bits >> (8 + 8 * place)));
    (row % 6 != 1).then(|| items.collect())
}

/// NULL in another row for each column.
fn some<T>(row: i64, salt: u64, value: T) -> Option<T> {
    (!mix(row, salt + 100).is_multiple_of(6)).then_some(value)
}

/// Some rows of `kinds`, as the tables of a format can have them.
pub fn kinds(format: u32, rows: &[Version]) -> RecordBatch {
    // An updated row has the values of another number.
    let numbers: Vec<i64> = rows
        .iter()
        .map(|(id, r)| id + 10_000 * i64::from(*r))
        .collect();
    let all = || numbers.iter().copied();
    let mut fields = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    let mut column = |name: &str, nullable: bool, array: ArrayRef| {
        fields.push(Field::new(name, array.data_type().clone(), nullable));
        columns.push(array);
    };
    let ids = rows.iter().map(|(id, _)| *id);
    column("id", false, Arc::new(Int64Array::from_iter_values(ids)));
    let lines: StringArray = all().map(line).collect();
    column("line", true, Arc::new(lines));
    let codes = all().map(code);
    let codes = FixedSizeBinaryArray::try_from_iter(codes).unwrap();
    column("code", false, Arc::new(codes));
    let vectors = all().map(|row| Some(vector(row).map(Some)));
    let vectors = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors, 4);
    column("vector", true, Arc::new(vectors));
    let words: StringArray = all().map(word).collect();
    column("word", true, Arc::new(words));
    let prices = all().map(|row| some(row, 7, i128::from(mix(row, 7) % 1_000_000) - 500_000));
    let prices = Decimal128Array::from_iter(prices).with_precision_and_scale(15, 2);
    column("price", true, Arc::new(prices.unwrap()));

    let numbers = all().map(|row| some(row, 8, (row % 300 - 150) as i16));
    column("small", true, Arc::new(Int16Array::from_iter(numbers)));
    let numbers = all().map(|row| some(row, 9, mix(row, 9) as i32 >> 12));
    column("number", true, Arc::new(Int32Array::from_iter(numbers)));
    let numbers = all().map(|row| some(row, 10, mix(row, 10)));
    column("wide", true, Arc::new(UInt64Array::from_iter(numbers)));
    let numbers = all().map(|row| some(row, 11, float(row)));
    column("float", true, Arc::new(Float64Array::from_iter(numbers)));
    let numbers = all().map(|row| some(row, 12, float(row) as f32));
    column("single", true, Arc::new(Float32Array::from_iter(numbers)));
    let numbers = all().map(|row| some(row, 13, i128::from(mix(row, 13)) << (row % 60)));
    let numbers = Decimal128Array::from_iter(numbers).with_precision_and_scale(38, 10);
    column("huge", true, Arc::new(numbers.unwrap()));
    let flags = all().map(|row| some(row, 14, mix(row, 14).is_multiple_of(3)));
    column("flag", true, Arc::new(BooleanArray::from_iter(flags)));
    let days = all().map(|row| some(row, 15, row as i32 * 3 - 900));
    column("day", true, Arc::new(Date32Array::from_iter(days)));
    let moments = all().map(|row| some(row, 16, row * 1_234_567 - 1_000_000_000));
    let moments = TimestampMicrosecondArray::from_iter(moments);
    column("moment", true, Arc::new(moments));
    let moments = all().map(|row| some(row, 17, mix(row, 17) as i64 >> 3));
    let moments = TimestampNanosecondArray::from_iter(moments).with_timezone("+02:00");
    column("moment_in_zone", true, Arc::new(moments));
    let times = all().map(|row| some(row, 18, (mix(row, 18) % 86_400_000_000) as i64));
    let times = Time64MicrosecondArray::from_iter(times);
    column("time", true, Arc::new(times));
    let texts: StringArray = all().map(text).collect();
    column("text", true, Arc::new(texts));
    let binary: BinaryArray = all().map(bytes).collect();
    column("bytes", true, Arc::new(binary));
    let lists = all().map(|row| list(row, 19, |bits| some(row, bits, bits as i32 % 1000)));
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
    column("numbers", true, Arc::new(lists));
    let mut names = ListBuilder::new(StringBuilder::new());
    all().for_each(|row| names.append_option(list(row, 20, |bits| word(bits as i64 & 0xff))));
    column("names", true, Arc::new(names.finish()));
    let members: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter(all().map(|row| some(row, 21, row)))),
        Arc::new(StringArray::from_iter(all().map(line))),
    ];
    let member_fields = Fields::from(vec![
        Field::new("a", DataType::Int64, true),
        Field::new("b", DataType::Utf8, true),
    ]);
    let nulls = all().map(|row| some(row, 22, ()).is_some());
    let pairs = StructArray::new(member_fields, members, Some(NullBuffer::from_iter(nulls)));
    column("pair", true, Arc::new(pairs));
    if format >= 4 {
        let mut tags = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
        for row in all() {
            for place in 0..mix(row, 23) % 3 {
                tags.keys().append_value(format!("tag {place}"));
                tags.values().append_option(some(row, place, row as i32));
            }
            tags.append(row % 8 != 2).unwrap();
        }
        column("tags", true, Arc::new(tags.finish()));
        let numbers = all().map(|row| {
            let number = i256::from_i128(i128::from(mix(row, 24)) << 60);
            some(row, 24, number.wrapping_mul(i256::from_i128(1 << 80)))
        });
        let numbers = Decimal256Array::from_iter(numbers).with_precision_and_scale(70, 5);
        column("decimal256", true, Arc::new(numbers.unwrap()));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// Source, target and weight of an edge.
pub fn edge(number: i64) -> (i64, i64, Option<f64>) {
    let target = (mix(number, 30) % VERTICES as u64) as i64;
    let weight = (number % 5 != 0).then_some((number % 13) as f64);
    (number % VERTICES, target, weight)
}

/// Rows of `edges`.
pub fn edges(numbers: &[i64]) -> RecordBatch {
    let of = |value: fn(i64) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(
            numbers.iter().map(|n| value(*n)),
        ))
    };
    let weights = Float64Array::from_iter(numbers.iter().map(|n| edge(*n).2));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("number", of(|number| number)),
        ("source", of(|number| edge(number).0)),
        ("target", of(|number| edge(number).1)),
        ("weight", Arc::new(weights)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Rows of `wide`: one segment of more data pages than the catalog keeps the page indexes of.
pub fn wide() -> RecordBatch {
    let filler = |row: i64| row.to_le_bytes().repeat(FILLER_BYTES as usize / 8);
    let fillers = FixedSizeBinaryArray::try_from_iter((0..WIDE).map(filler)).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..WIDE))),
        ("filler", Arc::new(fillers)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

//! Places of rows in an order, as numbers where one column of numbers decides it.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::compute::SortOptions;
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

/// The sign bit of 64.
const SIGN: u64 = 1 << 63;
/// Above the bits of a value.
const BESIDE: u128 = 1 << 64;

fn of_signed(value: i64) -> u64 {
    value as u64 ^ SIGN
}

/// In the total order of IEEE 754, which arrow's sorts have, but for the two zeros, which are one value.
fn of_float(value: f64) -> u64 {
    let bits = (value + 0.0).to_bits();
    match bits & SIGN {
        0 => bits | SIGN,
        _ => !bits,
    }
}

fn placed<T: ArrowPrimitiveType>(
    values: &dyn Array,
    options: SortOptions,
    number: impl Fn(T::Native) -> u64,
) -> Vec<u128> {
    let values = values.as_primitive::<T>();
    let of = |value| {
        let number = number(value);
        let number = if options.descending { !number } else { number };
        let above = if options.nulls_first { BESIDE } else { 0 };
        above | u128::from(number)
    };
    let of_null = if options.nulls_first { 0 } else { BESIDE };
    if values.null_count() == 0 {
        return values.values().iter().map(|value| of(*value)).collect();
    }
    let places = values.iter();
    places.map(|value| value.map_or(of_null, of)).collect()
}

/// Whether [`places`] has numbers for values of a type.
pub(super) fn has_places(of: &DataType) -> bool {
    of.is_integer()
        || matches!(
            of,
            DataType::Float32
                | DataType::Float64
                | DataType::Date32
                | DataType::Date64
                | DataType::Timestamp(..)
                | DataType::Time32(_)
                | DataType::Time64(_)
        )
}

/// Numbers in the order of a column; `None` where its type has none.
pub(super) fn places(values: &ArrayRef, options: SortOptions) -> Option<Vec<u128>> {
    macro_rules! of {
        ($type:ty, $number:expr) => {
            placed::<$type>(values, options, $number)
        };
    }
    Some(match values.data_type() {
        DataType::Int8 => of!(Int8Type, |v| of_signed(v.into())),
        DataType::Int16 => of!(Int16Type, |v| of_signed(v.into())),
        DataType::Int32 => of!(Int32Type, |v| of_signed(v.into())),
        DataType::Int64 => of!(Int64Type, of_signed),
        DataType::UInt8 => of!(UInt8Type, u64::from),
        DataType::UInt16 => of!(UInt16Type, u64::from),
        DataType::UInt32 => of!(UInt32Type, u64::from),
        DataType::UInt64 => of!(UInt64Type, |v| v),
        DataType::Float32 => of!(Float32Type, |v| of_float(v.into())),
        DataType::Float64 => of!(Float64Type, of_float),
        DataType::Date32 => of!(Date32Type, |v| of_signed(v.into())),
        DataType::Date64 => of!(Date64Type, of_signed),
        DataType::Time32(TimeUnit::Second) => of!(Time32SecondType, |v| of_signed(v.into())),
        DataType::Time32(_) => of!(Time32MillisecondType, |v| of_signed(v.into())),
        DataType::Time64(TimeUnit::Microsecond) => of!(Time64MicrosecondType, of_signed),
        DataType::Time64(_) => of!(Time64NanosecondType, of_signed),
        DataType::Timestamp(TimeUnit::Second, _) => of!(TimestampSecondType, of_signed),
        DataType::Timestamp(TimeUnit::Millisecond, _) => of!(TimestampMillisecondType, of_signed),
        DataType::Timestamp(TimeUnit::Microsecond, _) => of!(TimestampMicrosecondType, of_signed),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => of!(TimestampNanosecondType, of_signed),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array, UInt64Array};
    use arrow::compute::sort_to_indices;

    use super::*;

    #[test]
    fn places_are_in_the_order_of_a_sort() {
        let floats = [
            Some(f64::NAN),
            Some(-f64::NAN),
            Some(0.0),
            Some(-0.0),
            None,
            Some(f64::INFINITY),
            Some(f64::NEG_INFINITY),
            Some(1.5),
            Some(-1.5),
            Some(f64::MIN_POSITIVE),
        ];
        let numbers = [
            Some(i64::MIN),
            Some(-1),
            None,
            Some(0),
            Some(7),
            Some(i64::MAX),
        ];
        let unsigned = [Some(u64::MAX), None, Some(0), Some(1 << 63)];
        let columns: [ArrayRef; 3] = [
            Arc::new(Float64Array::from(floats.to_vec())),
            Arc::new(Int64Array::from(numbers.to_vec())),
            Arc::new(UInt64Array::from(unsigned.to_vec())),
        ];
        for column in columns {
            assert!(has_places(column.data_type()));
            for (descending, nulls_first) in
                [(false, false), (false, true), (true, false), (true, true)]
            {
                let options = SortOptions {
                    descending,
                    nulls_first,
                };
                let sorted = sort_to_indices(&column, Some(options), None).unwrap();
                let places = places(&column, options).unwrap();
                let places: Vec<_> = sorted
                    .values()
                    .iter()
                    .map(|row| places[*row as usize])
                    .collect();
                assert!(places.is_sorted(), "{column:?} {options:?}");
            }
        }
    }
}

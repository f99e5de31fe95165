//! One NaN of a float's many, so that rows are sorted, grouped and found by it as by another value. NumPy's 0 / 0
//! on x86 has its sign set, which Arrow's order has before all numbers, and not behind them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float16Type, Float32Type, Float64Type};

/// The column with the positive NaN in place of others.
pub(super) fn with_one_nan(column: ArrayRef) -> ArrayRef {
    macro_rules! of_floats {
        ($type:ty) => {{
            type Float = <$type as ArrowPrimitiveType>::Native;
            let floats = column.as_primitive::<$type>();
            let is_other = |value: Float| value.is_nan() && value.to_bits() != Float::NAN.to_bits();
            if !floats.values().iter().any(|value| is_other(*value)) {
                return column;
            }
            let named = |value| match is_other(value) {
                true => Float::NAN,
                false => value,
            };
            Arc::new(floats.unary::<_, $type>(named))
        }};
    }
    match column.data_type() {
        DataType::Float64 => of_floats!(Float64Type),
        DataType::Float32 => of_floats!(Float32Type),
        DataType::Float16 => of_floats!(Float16Type),
        _ => column,
    }
}

//! How the values of each Arrow type travel through the encodings.

use arrow::datatypes::{DataType, IntervalUnit};

use crate::{Result, StorageError};

/// The physical families of column types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// 0 and 1.
    Boolean,
    /// Numbers that fit an i64, or else [`Kind::Fixed`] for a whole chunk (wide decimals, large
    /// unsigned numbers). `size` is Arrow's bytes per value.
    Integer { size: usize },
    /// `size` bytes, little-endian.
    Fixed { size: usize },
    /// Text or binary.
    Bytes,
    /// Lists, structs and maps, as bytes of our own.
    Nested,
}

impl Kind {
    /// The family of a stored column type.
    ///
    /// # Errors
    /// `Invalid` for a type that columns are not stored as.
    pub fn of(data_type: &DataType) -> Result<Self> {
        use DataType::*;
        Ok(match data_type {
            Boolean => Self::Boolean,
            Int8 | UInt8 => Self::Integer { size: 1 },
            Int16 | UInt16 => Self::Integer { size: 2 },
            Int32 | UInt32 | Date32 | Time32(_) | Interval(IntervalUnit::YearMonth) => {
                Self::Integer { size: 4 }
            }
            Int64 | UInt64 | Date64 | Time64(_) | Timestamp(..) | Duration(_) => {
                Self::Integer { size: 8 }
            }
            Decimal128(..) => Self::Integer { size: 16 },
            Float16 => Self::Fixed { size: 2 },
            Float32 => Self::Fixed { size: 4 },
            Float64 | Interval(IntervalUnit::DayTime) => Self::Fixed { size: 8 },
            Interval(IntervalUnit::MonthDayNano) => Self::Fixed { size: 16 },
            Decimal256(..) => Self::Fixed { size: 32 },
            FixedSizeBinary(size) if *size >= 0 => Self::Fixed {
                size: *size as usize,
            },
            FixedSizeList(item, length) if *item.data_type() == Float32 && *length >= 0 => {
                Self::Fixed {
                    size: 4 * *length as usize,
                }
            }
            Utf8View | BinaryView => Self::Bytes,
            List(_) | LargeList(_) | FixedSizeList(..) | Struct(_) | Map(..) => Self::Nested,
            other => {
                return Err(StorageError::Invalid(format!(
                    "a column can't be stored as {other}"
                )));
            }
        })
    }
}

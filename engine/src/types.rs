//! SQL's names of types that DataFusion does not know or takes for less than they say.

use std::sync::{Arc, Weak};

use arrow::datatypes::{DataType, Field, FieldRef, Fields, TimeUnit};
use datafusion::common::datatype::DataTypeExt;
use datafusion::common::{not_impl_err, plan_datafusion_err, plan_err};
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::planner::TypePlanner;
use datafusion::sql::sqlparser::ast::{
    ArrayElemTypeDef, DataType as SqlType, ExactNumberInfo, TimezoneInfo,
};
use parking_lot::{Mutex, RwLock};

/// The zone of TIMESTAMP WITH TIME ZONE where the session has none.
const ZONE: &str = "UTC";

/// The type whose argument is a type as Arrow writes it.
pub(crate) const ARROW: &str = "ARROW";

/// Plans the types of one session.
#[derive(Default)]
pub(crate) struct SqlTypes {
    session: Mutex<Weak<RwLock<SessionState>>>,
}

impl std::fmt::Debug for SqlTypes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlTypes").finish_non_exhaustive()
    }
}

impl SqlTypes {
    /// The session whose time zone counts.
    pub(crate) fn use_session(&self, session: Weak<RwLock<SessionState>>) {
        *self.session.lock() = session;
    }

    fn timestamp(&self, digits: Option<u64>, zoned: bool) -> Result<DataType> {
        let zone = zoned.then(|| {
            let session = self.session.lock().upgrade();
            let zone = session.and_then(|session| {
                let session = session.read();
                session.config_options().execution.time_zone.clone()
            });
            zone.map_or_else(|| ZONE.into(), Into::into)
        });
        Ok(DataType::Timestamp(unit("TIMESTAMP", digits)?, zone))
    }

    /// A type of a map's keys or values; `None` for what only the planner knows, and there is no way to ask it.
    fn within(&self, sql_type: &SqlType) -> Result<Option<DataType>> {
        if let Some(field) = self.plan_type_field(sql_type)? {
            return Ok(Some(field.data_type().clone()));
        }
        Ok(Some(match sql_type {
            SqlType::Boolean | SqlType::Bool => DataType::Boolean,
            SqlType::TinyInt(_) => DataType::Int8,
            SqlType::SmallInt(_) | SqlType::Int2(_) => DataType::Int16,
            SqlType::Int(_) | SqlType::Integer(_) | SqlType::Int4(_) => DataType::Int32,
            SqlType::BigInt(_) | SqlType::Int8(_) => DataType::Int64,
            SqlType::Real | SqlType::Float4 => DataType::Float32,
            SqlType::Float(_) => DataType::Float32,
            SqlType::DoublePrecision | SqlType::Float8 | SqlType::Float64 => DataType::Float64,
            SqlType::Varchar(_) | SqlType::Char(_) | SqlType::Text | SqlType::String(_) => {
                DataType::Utf8View
            }
            SqlType::Bytea => DataType::Binary,
            SqlType::Date => DataType::Date32,
            SqlType::Time(None, _) => DataType::Time64(TimeUnit::Nanosecond),
            SqlType::Decimal(ExactNumberInfo::PrecisionAndScale(digits @ 1..=38, behind))
            | SqlType::Numeric(ExactNumberInfo::PrecisionAndScale(digits @ 1..=38, behind)) => {
                let behind = i8::try_from(*behind)
                    .ok()
                    .filter(|n| (*n).unsigned_abs() as u64 <= *digits);
                match behind {
                    Some(behind) => DataType::Decimal128(*digits as u8, behind),
                    None => return Ok(None),
                }
            }
            SqlType::Array(
                ArrayElemTypeDef::SquareBracket(of, None) | ArrayElemTypeDef::AngleBracket(of),
            ) => match self.within(of)? {
                Some(of) => DataType::new_list(of, true),
                None => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }
}

/// A map with the names that DataFusion gives its parts.
fn map_of(key: DataType, value: DataType) -> DataType {
    let entries = DataType::Struct(Fields::from(vec![
        Field::new("key", key, false),
        Field::new("value", value, true),
    ]));
    DataType::Map(Arc::new(Field::new("entries", entries, false)), false)
}

impl TypePlanner for SqlTypes {
    fn plan_type_field(&self, sql_type: &SqlType) -> Result<Option<FieldRef>> {
        let is_zoned =
            |zone: &TimezoneInfo| matches!(zone, TimezoneInfo::Tz | TimezoneInfo::WithTimeZone);
        let data_type = match sql_type {
            SqlType::Timestamp(digits, zone) => self.timestamp(*digits, is_zoned(zone))?,
            SqlType::Datetime(digits) => self.timestamp(*digits, false)?,
            SqlType::Time(Some(digits), zone) if !is_zoned(zone) => {
                match unit("TIME", Some(*digits))? {
                    unit @ (TimeUnit::Second | TimeUnit::Millisecond) => DataType::Time32(unit),
                    unit => DataType::Time64(unit),
                }
            }
            SqlType::Nvarchar(_)
            | SqlType::Character(_)
            | SqlType::CharacterVarying(_)
            | SqlType::CharVarying(_)
            | SqlType::CharacterLargeObject(_)
            | SqlType::CharLargeObject(_)
            | SqlType::Clob(_)
            | SqlType::TinyText
            | SqlType::MediumText
            | SqlType::LongText
            | SqlType::JSON
            | SqlType::JSONB
            | SqlType::Uuid => DataType::Utf8View,
            SqlType::Binary(_)
            | SqlType::Varbinary(_)
            | SqlType::Blob(_)
            | SqlType::TinyBlob
            | SqlType::MediumBlob
            | SqlType::LongBlob
            | SqlType::Bytes(_) => DataType::Binary,
            SqlType::MediumInt(_) | SqlType::Int32 => DataType::Int32,
            SqlType::Int16 => DataType::Int16,
            SqlType::Int64 => DataType::Int64,
            SqlType::UInt8 => DataType::UInt8,
            SqlType::UInt16 => DataType::UInt16,
            SqlType::UInt32 => DataType::UInt32,
            SqlType::UInt64 => DataType::UInt64,
            SqlType::MediumIntUnsigned(_) => DataType::UInt32,
            SqlType::UTinyInt => DataType::UInt8,
            SqlType::USmallInt => DataType::UInt16,
            SqlType::UBigInt => DataType::UInt64,
            SqlType::HugeInt | SqlType::Int128 => DataType::Decimal128(38, 0),
            // From 25 bits on these are doubles.
            SqlType::Float(ExactNumberInfo::Precision(25..)) => DataType::Float64,
            SqlType::Enum(..) => {
                return plan_err!(
                    "ENUM is no type here; write VARCHAR, in a table with CHECK (x IN ('a', 'b'))"
                );
            }
            SqlType::Double(_) => DataType::Float64,
            SqlType::Map(key, value) => match (self.within(key)?, self.within(value)?) {
                (Some(key), Some(value)) => map_of(key, value),
                _ => return Ok(None),
            },
            // Any type of Arrow, as it writes it: ARROW('Interval(YearMonth)').
            SqlType::Custom(name, modifiers)
                if name.to_string().eq_ignore_ascii_case(ARROW) && modifiers.len() == 1 =>
            {
                let text = &modifiers[0];
                let data_type = text.parse::<DataType>();
                data_type.map_err(|_| plan_datafusion_err!("Arrow has no type '{text}'"))?
            }
            SqlType::Custom(name, modifiers) if modifiers.is_empty() => {
                match name.to_string().to_lowercase().as_str() {
                    "uinteger" => DataType::UInt32,
                    "int1" => DataType::Int8,
                    "timestamp_s" => DataType::Timestamp(TimeUnit::Second, None),
                    "timestamp_ms" => DataType::Timestamp(TimeUnit::Millisecond, None),
                    "timestamp_us" => DataType::Timestamp(TimeUnit::Microsecond, None),
                    "timestamp_ns" => DataType::Timestamp(TimeUnit::Nanosecond, None),
                    _ => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(data_type.into_nullable_field_ref()))
    }
}

/// The unit that has so many digits of a second, nanoseconds where the number is not said.
fn unit(name: &str, digits: Option<u64>) -> Result<TimeUnit> {
    Ok(match digits {
        Some(0) => TimeUnit::Second,
        Some(1..=3) => TimeUnit::Millisecond,
        Some(4..=6) => TimeUnit::Microsecond,
        Some(7..=9) | None => TimeUnit::Nanosecond,
        Some(digits) => {
            return not_impl_err!("{name}({digits}): a second has at most 9 digits here");
        }
    })
}

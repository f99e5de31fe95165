//! Schemas as bytes: Arrow IPC's flatbuffer.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::ipc::convert::{IpcSchemaEncoder, fb_to_schema};
use arrow::ipc::{
    DateUnit, Endianness, Field, IntervalUnit, Precision, Schema, TimeUnit, Type, root_as_schema,
};

use crate::{Result, StorageError};

pub(super) fn encode_schema(schema: &SchemaRef) -> Vec<u8> {
    let mut encoder = IpcSchemaEncoder::new();
    encoder.schema_to_fb(schema).finished_data().to_vec()
}

/// The schema of these bytes; `what` has it.
///
/// # Errors
/// `Corrupt` for what is no schema of a table.
pub(super) fn decode_schema(bytes: &[u8], what: &str) -> Result<SchemaRef> {
    let wrong = |why: &dyn std::fmt::Display| {
        StorageError::corrupt(format!("{what}: the schema does not decode: {why}"))
    };
    let schema = root_as_schema(bytes).map_err(|error| wrong(&error))?;
    match is_convertible(&schema) {
        true => Ok(Arc::new(fb_to_schema(schema))),
        false => Err(wrong(&"a type that no column has")),
    }
}

/// Whether `fb_to_schema` takes it. That a flatbuffer is well-formed leaves fields absent and
/// numbers out of range, at which it panics.
fn is_convertible(schema: &Schema<'_>) -> bool {
    let is_little = schema.endianness() == Endianness::Little;
    let fields = |fields| is_little && all(fields);
    schema.fields().is_some_and(fields)
}

fn all<'a>(fields: impl IntoIterator<Item = Field<'a>>) -> bool {
    fields.into_iter().all(|field| has_stored_type(&field))
}

/// Whether it is of a type that `normalise_schema` gives.
fn has_stored_type(field: &Field<'_>) -> bool {
    let children = |count: usize| {
        let children = field.children();
        children.is_some_and(|children| children.len() == count && all(children))
    };
    let is_unit = |unit: TimeUnit| unit.variant_name().is_some();
    field.dictionary().is_none()
        && match field.type_type() {
            Type::Null
            | Type::Bool
            | Type::Binary
            | Type::BinaryView
            | Type::LargeBinary
            | Type::Utf8
            | Type::Utf8View
            | Type::LargeUtf8 => true,
            Type::Int => field
                .type_as_int()
                .is_some_and(|int| [8, 16, 32, 64].contains(&int.bitWidth())),
            Type::FloatingPoint => field.type_as_floating_point().is_some_and(|float| {
                [Precision::HALF, Precision::SINGLE, Precision::DOUBLE].contains(&float.precision())
            }),
            Type::Decimal => field.type_as_decimal().is_some_and(|decimal| {
                [32, 64, 128, 256].contains(&decimal.bitWidth())
                    && u8::try_from(decimal.precision()).is_ok()
                    && i8::try_from(decimal.scale()).is_ok()
            }),
            Type::Date => field
                .type_as_date()
                .is_some_and(|date| [DateUnit::DAY, DateUnit::MILLISECOND].contains(&date.unit())),
            Type::Time => field.type_as_time().is_some_and(|time| {
                let is_short = [TimeUnit::SECOND, TimeUnit::MILLISECOND].contains(&time.unit());
                is_unit(time.unit()) && time.bitWidth() == if is_short { 32 } else { 64 }
            }),
            Type::Timestamp => field
                .type_as_timestamp()
                .is_some_and(|timestamp| is_unit(timestamp.unit())),
            Type::Duration => field
                .type_as_duration()
                .is_some_and(|duration| is_unit(duration.unit())),
            Type::Interval => field.type_as_interval().is_some_and(|interval| {
                [
                    IntervalUnit::YEAR_MONTH,
                    IntervalUnit::DAY_TIME,
                    IntervalUnit::MONTH_DAY_NANO,
                ]
                .contains(&interval.unit())
            }),
            Type::FixedSizeBinary => field
                .type_as_fixed_size_binary()
                .is_some_and(|binary| binary.byteWidth() >= 0),
            Type::FixedSizeList => {
                let list = field.type_as_fixed_size_list();
                list.is_some_and(|list| list.listSize() >= 0) && children(1)
            }
            Type::List | Type::LargeList => children(1),
            Type::Map => field.type_as_map().is_some() && children(1),
            Type::Struct_ => field.children().is_none_or(all),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Fields, IntervalUnit, Schema, TimeUnit};
    use flashmesh_pushdown::testing::for_each_case;
    use rand::RngExt;

    use super::*;
    use crate::table::schema::normalise_schema;

    /// Of every type that a table has.
    fn schema() -> SchemaRef {
        let item = |data_type| Arc::new(Field::new("item", data_type, true));
        let entries = Fields::from(vec![
            Field::new("keys", DataType::Utf8, false),
            Field::new("values", DataType::Int64, true),
        ]);
        let mut types = vec![
            DataType::Null,
            DataType::Boolean,
            DataType::Int8,
            DataType::UInt16,
            DataType::Int32,
            DataType::UInt64,
            DataType::Float16,
            DataType::Float32,
            DataType::Float64,
            DataType::Decimal128(38, -3),
            DataType::Decimal256(76, 20),
            DataType::Date32,
            DataType::Date64,
            DataType::Time32(TimeUnit::Second),
            DataType::Time32(TimeUnit::Millisecond),
            DataType::Time64(TimeUnit::Microsecond),
            DataType::Time64(TimeUnit::Nanosecond),
            DataType::Timestamp(TimeUnit::Nanosecond, Some("Europe/Berlin".into())),
            DataType::Duration(TimeUnit::Second),
            DataType::Interval(IntervalUnit::MonthDayNano),
            DataType::Utf8View,
            DataType::BinaryView,
            DataType::FixedSizeBinary(16),
            DataType::FixedSizeList(item(DataType::Float32), 3),
            DataType::List(item(DataType::Int8)),
            DataType::LargeList(item(DataType::Utf8View)),
            DataType::Struct(Fields::empty()),
            DataType::Struct(entries.clone()),
        ];
        let entries = Field::new("entries", DataType::Struct(entries), false);
        types.push(DataType::Map(Arc::new(entries), false));
        let named = types.into_iter().enumerate();
        let fields: Vec<Field> = named
            .map(|(number, data_type)| Field::new(format!("c{number}"), data_type, true))
            .collect();
        normalise_schema(&Schema::new(fields)).expect("types that tables have")
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let schema = schema();
        assert_eq!(
            decode_schema(&encode_schema(&schema), "it").unwrap(),
            schema
        );
    }

    #[test]
    fn damaged_schemas_are_errors_or_schemas() {
        let bytes = encode_schema(&schema());
        for_each_case("damaged schemas", 2000, |generator| {
            let (mut bytes, rng) = (bytes.clone(), generator.rng());
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] ^= 1 << rng.random_range(0..8);
            }
            let _ = decode_schema(&bytes, "it");
        });
    }
}

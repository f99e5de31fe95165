//! The types that a table stores.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};

use crate::{Result, StorageError};

/// The schema that a table keeps for `schema`: each type becomes the one stored form of its kind.
///
/// | given | stored |
/// |---|---|
/// | `Utf8`, `LargeUtf8`, `Utf8View` | `Utf8View` |
/// | `Binary`, `LargeBinary`, `BinaryView` | `BinaryView` |
/// | `Dictionary`, `RunEndEncoded` | the stored form of its values |
/// | `Decimal32`, `Decimal64` | `Decimal128` |
/// | `ListView`, `LargeListView` | `List`, `LargeList` |
/// | `Null` | `Boolean` (every value is NULL) |
/// | lists and structs | the same, their children in stored form |
///
/// # Errors
/// `Invalid`, naming column and type, for `Decimal256`, `Map` and `Union`, and for two columns of
/// one name.
pub fn normalise_schema(schema: &Schema) -> Result<SchemaRef> {
    let mut fields: Vec<FieldRef> = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        if fields.iter().any(|f| f.name() == field.name()) {
            return Err(StorageError::Invalid(format!(
                "two columns are named '{}'; give one of them another name (… AS name)",
                field.name()
            )));
        }
        fields.push(normalise_field(field, field.name())?);
    }
    if fields.len() > usize::from(u16::MAX) {
        return Err(StorageError::Invalid(format!(
            "{} columns; a table has at most {}",
            fields.len(),
            u16::MAX
        )));
    }
    Ok(Arc::new(Schema::new(fields)))
}

fn normalise_field(field: &Field, column: &str) -> Result<FieldRef> {
    let data_type = normalise_type(field.data_type(), column)?;
    let nullable = field.is_nullable() || field.data_type() == &DataType::Null;
    Ok(Arc::new(Field::new(field.name(), data_type, nullable)))
}

fn normalise_type(data_type: &DataType, column: &str) -> Result<DataType> {
    use DataType::*;
    Ok(match data_type {
        Utf8 | LargeUtf8 | Utf8View => Utf8View,
        Binary | LargeBinary | BinaryView => BinaryView,
        Dictionary(_, value) => normalise_type(value, column)?,
        RunEndEncoded(_, value) => normalise_type(value.data_type(), column)?,
        Decimal32(p, s) | Decimal64(p, s) => Decimal128(*p, *s),
        Null => Boolean,
        List(child) | ListView(child) => List(normalise_field(child, column)?),
        LargeList(child) | LargeListView(child) => LargeList(normalise_field(child, column)?),
        FixedSizeList(child, n) => FixedSizeList(normalise_field(child, column)?, *n),
        Struct(children) => Struct(
            children
                .iter()
                .map(|c| normalise_field(c, column))
                .collect::<Result<Fields>>()?,
        ),
        Decimal256(..) | Map(..) | Union(..) => {
            return Err(StorageError::Invalid(format!(
                "column '{column}': type {data_type} can't be stored; cast it, e.g. to \
                 DECIMAL(38, s), a list or text"
            )));
        }
        other => other.clone(),
    })
}

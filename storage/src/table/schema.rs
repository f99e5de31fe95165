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
/// | lists, structs and maps | the same, their children in stored form; text keys of maps `Utf8` |
///
/// # Errors
/// `Invalid`, naming column and type, for `Union`, and for two columns of one name.
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
    let mut metadata = field.metadata().clone();
    // Of the file that it came from, not of the column.
    metadata.remove("PARQUET:field_id");
    let stored = Field::new(field.name(), data_type, nullable);
    Ok(Arc::new(stored.with_metadata(metadata)))
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
        Map(entries, sorted) => {
            let entries = normalise_field(entries, column)?;
            let entries = match entries.data_type() {
                Struct(fields) => with_plain_keys(&entries, fields),
                _ => entries,
            };
            Map(entries, *sorted)
        }
        Union(..) => {
            return Err(StorageError::Invalid(format!(
                "column '{column}': type {data_type} can't be stored; make it a struct, or text"
            )));
        }
        other => other.clone(),
    })
}

/// The entries of a map whose keys are Utf8 where they are text: DataFusion looks up `map['key']`
/// by text of that type.
fn with_plain_keys(entries: &Field, fields: &Fields) -> FieldRef {
    let fields = fields
        .iter()
        .enumerate()
        .map(|(place, field)| match (place, field.data_type()) {
            (0, DataType::Utf8View) => {
                let field = field.as_ref().clone();
                Arc::new(field.with_data_type(DataType::Utf8))
            }
            _ => Arc::clone(field),
        });
    let fields = DataType::Struct(fields.collect());
    Arc::new(entries.clone().with_data_type(fields))
}

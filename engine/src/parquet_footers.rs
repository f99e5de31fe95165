//! What Parquet files say of themselves: `parquet_file_metadata('f')`, `parquet_schema('f')`, `parquet_metadata('f')`.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::ScalarValue;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use datafusion::parquet::arrow::parquet_to_arrow_schema;
use datafusion::parquet::basic::{ConvertedType, Type as PhysicalType};
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::parquet::schema::types::Type;
use object_store::{ObjectMeta, ObjectStore};

use crate::error::{Error, Result};

/// What is told of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Footers {
    /// A row for each file.
    Files,
    /// A row for each part of a file's schema, from the root on.
    Schemas,
    /// A row for each column of each row group.
    Chunks,
}

type Columns = &'static [(&'static str, DataType)];

const TEXT: DataType = DataType::Utf8;
const NUMBER: DataType = DataType::Int64;

const OF_FILES: Columns = &[
    ("file_name", TEXT),
    ("created_by", TEXT),
    ("num_rows", NUMBER),
    ("num_row_groups", NUMBER),
    ("format_version", NUMBER),
    ("file_size_bytes", NUMBER),
];

const OF_SCHEMAS: Columns = &[
    ("file_name", TEXT),
    ("name", TEXT),
    ("type", TEXT),
    ("type_length", NUMBER),
    ("repetition_type", TEXT),
    ("num_children", NUMBER),
    ("converted_type", TEXT),
    ("scale", NUMBER),
    ("precision", NUMBER),
    ("field_id", NUMBER),
    ("logical_type", TEXT),
];

const OF_CHUNKS: Columns = &[
    ("file_name", TEXT),
    ("row_group_id", NUMBER),
    ("row_group_num_rows", NUMBER),
    ("row_group_num_columns", NUMBER),
    ("row_group_bytes", NUMBER),
    ("column_id", NUMBER),
    ("num_values", NUMBER),
    ("path_in_schema", TEXT),
    ("type", TEXT),
    ("stats_null_count", NUMBER),
    ("stats_min_value", TEXT),
    ("stats_max_value", TEXT),
    ("compression", TEXT),
    ("encodings", TEXT),
    ("dictionary_page_offset", NUMBER),
    ("data_page_offset", NUMBER),
    ("total_compressed_size", NUMBER),
    ("total_uncompressed_size", NUMBER),
];

impl Footers {
    fn columns(self) -> Columns {
        match self {
            Self::Files => OF_FILES,
            Self::Schemas => OF_SCHEMAS,
            Self::Chunks => OF_CHUNKS,
        }
    }

    /// What files of these names tell.
    ///
    /// # Errors
    /// [`Error::Usage`] for a file that is no Parquet; it names the file.
    pub async fn of(
        self,
        files: &[(String, ObjectMeta, Arc<dyn ObjectStore>)],
    ) -> Result<RecordBatch> {
        let columns = self.columns();
        let mut told: Vec<Vec<ScalarValue>> = vec![vec![]; columns.len()];
        let mut row = |values: Vec<ScalarValue>| {
            for (column, value) in told.iter_mut().zip(values) {
                column.push(value);
            }
        };
        for (name, file, store) in files {
            let footer = DFParquetMetadata::new(store.as_ref(), file);
            let unreadable = |error: &dyn std::fmt::Display| {
                Error::usage(format!("can't read '{name}' as Parquet: {error}"))
            };
            let footer = footer.fetch_metadata().await;
            let footer = footer.map_err(|error| unreadable(&Error::from(error)))?;
            match self {
                Self::Files => row(of_file(name, file, &footer)),
                Self::Schemas => {
                    let schema = footer.file_metadata().schema();
                    of_type(name, schema, true, &mut row);
                }
                Self::Chunks => {
                    of_chunks(name, &footer, &mut row).map_err(|error| unreadable(&error))?;
                }
            }
        }
        let fields = columns.iter();
        let fields = fields.map(|(name, of)| Field::new(*name, of.clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        if told[0].is_empty() {
            return Ok(RecordBatch::new_empty(schema));
        }
        let arrays = told.into_iter().map(ScalarValue::iter_to_array);
        let arrays = arrays.collect::<datafusion::error::Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new(schema, arrays)?)
    }
}

fn text(text: impl Into<String>) -> ScalarValue {
    ScalarValue::Utf8(Some(text.into()))
}

fn number(number: impl TryInto<i64>) -> ScalarValue {
    ScalarValue::Int64(number.try_into().ok())
}

fn no_number() -> ScalarValue {
    ScalarValue::Int64(None)
}

fn of_file(name: &str, file: &ObjectMeta, footer: &ParquetMetaData) -> Vec<ScalarValue> {
    let said = footer.file_metadata();
    vec![
        text(name),
        ScalarValue::Utf8(said.created_by().map(str::to_owned)),
        number(said.num_rows()),
        number(footer.num_row_groups()),
        number(said.version()),
        number(file.size),
    ]
}

/// A part of a schema, and what is within it.
fn of_type(name: &str, of: &Type, is_root: bool, row: &mut impl FnMut(Vec<ScalarValue>)) {
    let info = of.get_basic_info();
    let is_leaf = of.is_primitive();
    let (length, scale, precision) = match of {
        Type::PrimitiveType {
            physical_type,
            type_length,
            scale,
            precision,
            ..
        } => (
            (*physical_type == PhysicalType::FIXED_LEN_BYTE_ARRAY).then_some(*type_length),
            (*precision >= 0)
                .then_some(*scale)
                .filter(|scale| *scale >= 0),
            Some(*precision).filter(|precision| *precision > 0),
        ),
        Type::GroupType { .. } => (None, None, None),
    };
    let optional = |value: Option<i32>| value.map_or_else(no_number, number);
    let converted = Some(info.converted_type()).filter(|of| *of != ConvertedType::NONE);
    row(vec![
        text(name),
        text(info.name()),
        ScalarValue::Utf8(is_leaf.then(|| of.get_physical_type().to_string())),
        optional(length),
        ScalarValue::Utf8(
            (!is_root && info.has_repetition()).then(|| info.repetition().to_string()),
        ),
        match is_leaf {
            true => no_number(),
            false => number(of.get_fields().len()),
        },
        ScalarValue::Utf8(converted.map(|of| of.to_string())),
        optional(scale),
        optional(precision),
        optional(info.has_id().then(|| info.id())),
        ScalarValue::Utf8(info.logical_type_ref().map(|of| format!("{of:?}"))),
    ]);
    if !is_leaf {
        for part in of.get_fields() {
            of_type(name, part, false, row);
        }
    }
}

fn of_chunks(
    name: &str,
    footer: &ParquetMetaData,
    row: &mut impl FnMut(Vec<ScalarValue>),
) -> datafusion::error::Result<()> {
    let said = footer.file_metadata();
    let schema = parquet_to_arrow_schema(said.schema_descr(), said.key_value_metadata())?;
    for (number_of_group, group) in footer.row_groups().iter().enumerate() {
        for (place, chunk) in group.columns().iter().enumerate() {
            let path = chunk.column_path().parts();
            // Columns within others have none.
            let statistics = match path {
                [column] => {
                    let of = StatisticsConverter::try_new(column, &schema, said.schema_descr())?;
                    let (least, most) = (of.row_group_mins([group])?, of.row_group_maxes([group])?);
                    [least, most].map(|bound| cast(&bound, &TEXT).ok())
                }
                _ => [None, None],
            };
            let bounds = statistics.map(|bound| {
                let bound = bound.and_then(|bound| ScalarValue::try_from_array(&bound, 0).ok());
                bound.unwrap_or(ScalarValue::Utf8(None))
            });
            let [least, most] = bounds;
            let nulls = chunk.statistics().and_then(|known| known.null_count_opt());
            let encodings: Vec<_> = chunk.encodings().map(|of| of.to_string()).collect();
            row(vec![
                text(name),
                number(number_of_group),
                number(group.num_rows()),
                number(group.num_columns()),
                number(group.total_byte_size()),
                number(place),
                number(chunk.num_values()),
                text(path.join(", ")),
                text(chunk.column_type().to_string()),
                nulls.map_or_else(no_number, number),
                least,
                most,
                text(chunk.compression().to_string()),
                text(encodings.join(", ")),
                chunk
                    .dictionary_page_offset()
                    .map_or_else(no_number, number),
                number(chunk.data_page_offset()),
                number(chunk.compressed_size()),
                number(chunk.uncompressed_size()),
            ]);
        }
    }
    Ok(())
}

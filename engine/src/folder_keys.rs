//! Types of the columns that folders called `key=value` give: DataFusion has them all as texts, that of no value
//! (`__HIVE_DEFAULT_PARTITION__`) among them.

use arrow::array::types::Date32Type;
use arrow::compute::kernels::cast_utils::Parser;
use arrow::datatypes::DataType;
use arrow::temporal_conversions::date32_to_datetime;
use datafusion::datasource::listing::ListingTableConfig;
use datafusion::datasource::listing::helpers::parse_partitions_for_path;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use futures::TryStreamExt;

/// Gives a column the type that all its values are written as: `BIGINT` and `DATE`, where they are written as these
/// are shown (`02` is a text), as in DuckDB.
///
/// # Errors
/// Those of the store that the files are in.
pub(crate) async fn with_types_of_keys(
    mut config: ListingTableConfig,
    state: &SessionState,
) -> Result<ListingTableConfig> {
    let Some(options) = &mut config.options else {
        return Ok(config);
    };
    if options.table_partition_cols.is_empty() {
        return Ok(config);
    }
    let names = options.table_partition_cols.iter();
    let names: Vec<_> = names.map(|(name, _)| name.clone()).collect();
    let mut types: Vec<Option<DataType>> = vec![None; names.len()];
    for url in &config.table_paths {
        let store = state.runtime_env().object_store(url)?;
        let ending = &options.file_extension;
        let mut files = url.list_all_files(state, store.as_ref(), ending).await?;
        while let Some(file) = files.try_next().await? {
            let names = names.iter().map(String::as_str);
            let Some(values) = parse_partitions_for_path(url, &file.location, names) else {
                continue;
            };
            for (of, value) in types.iter_mut().zip(values) {
                *of = match (type_of(&value), of.take()) {
                    (value, None) => Some(value),
                    (value, Some(of)) if value == of => Some(of),
                    _ => Some(DataType::Utf8),
                };
            }
        }
    }
    let columns = options.table_partition_cols.iter_mut();
    for ((_, data_type), of) in columns.zip(types) {
        *data_type = match of {
            Some(DataType::Utf8) | None => continue,
            Some(of) => of,
        };
    }
    Ok(config)
}

fn type_of(value: &str) -> DataType {
    let is_number = value.parse::<i64>().is_ok_and(|of| of.to_string() == value);
    let day = Date32Type::parse(value).and_then(date32_to_datetime);
    match is_number {
        true => DataType::Int64,
        false if day.is_some_and(|day| day.date().to_string() == value) => DataType::Date32,
        false => DataType::Utf8,
    }
}

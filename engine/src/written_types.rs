//! Columns of types that a kind of file, or the name of a folder, has not, as types that it has.
//!
//! Parquet's moments and times are of milliseconds or finer units. Those of seconds are whole numbers in a file, with a
//! note that only Arrow's own readers heed. CSV has texts alone: lists, structs, maps and intervals become those that a
//! cast makes of them, and bytes PostgreSQL's, `\xdeadbeef`, which a load reads back.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::Column;
use datafusion::error::Result;
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions::encoding::expr_fn::encode;
use datafusion::functions::string::expr_fn::concat;
use datafusion::logical_expr::dml::CopyTo;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, cast, lit, when};

/// Has COPY write such columns as what they are.
///
/// # Errors
/// Those of planning it.
pub(crate) fn with_known_types(copy: CopyTo) -> Result<CopyTo> {
    let written = match copy.file_type.get_ext().as_str() {
        "parquet" => of_parquet,
        "csv" => of_csv,
        _ => |_: &Expr, _: &DataType| Ok(None),
    };
    let mut has_other = false;
    let mut columns = Vec::with_capacity(copy.input.schema().fields().len());
    for (qualifier, field) in copy.input.schema().iter() {
        let column = Expr::Column(Column::from((qualifier, field)));
        let value = match copy.partition_by.contains(field.name()) {
            true => Some(of_folder(&column)),
            false => written(&column, field.data_type())?,
        };
        columns.push(match value {
            Some(value) => {
                has_other = true;
                value.alias_qualified(qualifier.cloned(), field.name())
            }
            None => column,
        });
    }
    if !has_other {
        return Ok(copy);
    }
    let input = LogicalPlanBuilder::from(copy.input)
        .project(columns)?
        .build()?;
    Ok(CopyTo::new(
        Arc::new(input),
        copy.output_url,
        copy.partition_by,
        copy.file_type,
        copy.options,
    ))
}

/// What DataFusion calls the folder of a NULL is a value of its type, 0 for a number.
fn of_folder(column: &Expr) -> Expr {
    let text = cast(column.clone(), DataType::Utf8);
    coalesce(vec![text, lit("__HIVE_DEFAULT_PARTITION__")])
}

fn of_parquet(column: &Expr, of: &DataType) -> Result<Option<Expr>> {
    let to = match of {
        DataType::Timestamp(TimeUnit::Second, zone) => {
            DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
        }
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        _ => return Ok(None),
    };
    Ok(Some(cast(column.clone(), to)))
}

fn of_csv(column: &Expr, of: &DataType) -> Result<Option<Expr>> {
    if of.is_binary() {
        let digits = encode(column.clone(), lit("hex"));
        let text = concat(vec![lit(r"\x"), digits]);
        return when(column.clone().is_not_null(), text).end().map(Some);
    }
    let has_text = of.is_nested() || matches!(of, DataType::Interval(_) | DataType::Duration(_));
    Ok(has_text.then(|| cast(column.clone(), DataType::Utf8)))
}

/// The type as which a column of such files is read that becomes one of another: a text, where they have no such values.
pub(crate) fn type_to_read(of: &DataType, format: &str) -> DataType {
    let is_text = match format {
        "csv" => of.is_binary() || of.is_nested(),
        _ => false,
    };
    match is_text || matches!(of, DataType::Interval(_) | DataType::Duration(_)) {
        true => DataType::Utf8View,
        false => of.clone(),
    }
}

//! Columns of types that Parquet has not, as types that it has.
//!
//! Its moments and times are of milliseconds or finer units. Those of seconds are whole numbers in a file, with a note
//! that only Arrow's own readers heed.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::Column;
use datafusion::error::Result;
use datafusion::logical_expr::dml::CopyTo;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, cast};

/// Has COPY write such columns to Parquet as what they are.
///
/// # Errors
/// Those of planning it.
pub(crate) fn with_known_types(copy: CopyTo) -> Result<CopyTo> {
    let fields = copy.input.schema().fields();
    let has_other = fields
        .iter()
        .any(|field| known(field.data_type()).is_some());
    if copy.file_type.get_ext() != "parquet" || !has_other {
        return Ok(copy);
    }
    let columns = copy.input.schema().iter().map(|(qualifier, field)| {
        let column = Expr::Column(Column::from((qualifier, field)));
        match known(field.data_type()) {
            Some(of) => cast(column, of).alias_qualified(qualifier.cloned(), field.name()),
            None => column,
        }
    });
    let columns: Vec<Expr> = columns.collect();
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

fn known(of: &DataType) -> Option<DataType> {
    match of {
        DataType::Timestamp(TimeUnit::Second, zone) => {
            Some(DataType::Timestamp(TimeUnit::Millisecond, zone.clone()))
        }
        DataType::Time32(TimeUnit::Second) => Some(DataType::Time32(TimeUnit::Millisecond)),
        _ => None,
    }
}

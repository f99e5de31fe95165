//! Rows of constants, as most INSERTs have them. They are worked out here: a plan of operators for
//! them takes longer to make and to start than the rows take to store.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Alias, Cast};
use datafusion::logical_expr::{ColumnarValue, Expr, LogicalPlan, TableScan};
use flashmesh_storage::page::SEGMENT_ROWS;

use crate::assign::Assign;

/// The rows of a query that is VALUES of constants, or a batch in memory, or columns of one, in at most so many rows
/// that they are one segment. `None` for other queries.
///
/// # Errors
/// Those of a cast, as the plan of operators would have them.
pub(crate) fn constant_rows(query: &LogicalPlan) -> Result<Option<RecordBatch>> {
    let Some(rows) = rows_of(query)? else {
        return Ok(None);
    };
    let fields = query.schema().fields().iter().zip(&rows.columns);
    if fields
        .clone()
        .any(|(field, column)| field.data_type() != &column.data_type())
    {
        return Ok(None);
    }
    // What is not NULL is for the load to check, which names the column.
    let fields = fields.map(|(field, _)| Field::new(field.name(), field.data_type().clone(), true));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    let columns = rows.columns.into_iter();
    let columns = columns.map(|column| column.into_array(rows.count));
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(Some(RecordBatch::try_new(Arc::new(schema), columns)?))
}

struct Rows {
    count: usize,
    columns: Vec<ColumnarValue>,
}

fn rows_of(query: &LogicalPlan) -> Result<Option<Rows>> {
    match query {
        LogicalPlan::Values(values) => {
            let count = values.values.len();
            if count > SEGMENT_ROWS {
                return Ok(None);
            }
            let mut columns = Vec::with_capacity(values.schema.fields().len());
            for place in 0..values.schema.fields().len() {
                let of_rows = values.values.iter().map(|row| row.get(place));
                let Some(column) = column_of(of_rows)? else {
                    return Ok(None);
                };
                columns.push(ColumnarValue::Array(column));
            }
            Ok(Some(Rows { count, columns }))
        }
        LogicalPlan::TableScan(scan) => Ok(batch_of(scan).map(|rows| Rows {
            count: rows.num_rows(),
            columns: rows
                .columns()
                .iter()
                .cloned()
                .map(ColumnarValue::Array)
                .collect(),
        })),
        LogicalPlan::Projection(projection) => {
            let Some(input) = rows_of(&projection.input)? else {
                return Ok(None);
            };
            let mut columns = Vec::with_capacity(projection.expr.len());
            for expr in &projection.expr {
                match value_of(expr, projection.input.schema(), &input.columns)? {
                    Some(column) => columns.push(column),
                    None => return Ok(None),
                }
            }
            Ok(Some(Rows {
                count: input.count,
                columns,
            }))
        }
        _ => Ok(None),
    }
}

/// The rows of a table in memory that has one batch of them.
fn batch_of(scan: &TableScan) -> Option<RecordBatch> {
    let table = source_as_provider(&scan.source).ok()?;
    let [rows] = table.downcast_ref::<MemTable>()?.batches.as_slice() else {
        return None;
    };
    let rows = rows.try_read().ok()?;
    match rows.as_slice() {
        [rows] if scan.projection.is_none() && scan.filters.is_empty() && scan.fetch.is_none() => {
            Some(rows.clone()).filter(|rows| rows.num_rows() <= SEGMENT_ROWS)
        }
        _ => None,
    }
}

/// Constants as a column; `None` where one is none, or they are of several types.
fn column_of<'a>(values: impl Iterator<Item = Option<&'a Expr>>) -> Result<Option<ArrayRef>> {
    let nothing = DFSchema::empty();
    let mut scalars: Vec<ScalarValue> = Vec::new();
    for value in values {
        let value = match value {
            Some(value) => value_of(value, &nothing, &[])?,
            None => None,
        };
        let Some(ColumnarValue::Scalar(scalar)) = value else {
            return Ok(None);
        };
        if scalars
            .first()
            .is_some_and(|s| s.data_type() != scalar.data_type())
        {
            return Ok(None);
        }
        scalars.push(scalar);
    }
    match scalars.is_empty() {
        true => Ok(None),
        false => ScalarValue::iter_to_array(scalars).map(Some),
    }
}

/// The value of an expression that does no more than to name constants, and columns of `input`, and
/// to assign them to the table's columns.
pub(crate) fn value_of(
    expr: &Expr,
    schema: &DFSchema,
    input: &[ColumnarValue],
) -> Result<Option<ColumnarValue>> {
    match expr {
        Expr::Literal(value, None) => Ok(Some(ColumnarValue::Scalar(value.clone()))),
        Expr::Column(column) => {
            let place = schema.maybe_index_of_column(column);
            Ok(place.and_then(|place| input.get(place)).cloned())
        }
        Expr::Alias(Alias {
            expr,
            metadata: None,
            ..
        }) => value_of(expr, schema, input),
        // Other casts are what rules rewrite.
        Expr::Cast(Cast { expr, field }) => {
            let (value, to) = (value_of(expr, schema, input)?, field.data_type());
            let value = value.filter(|v| v.data_type().is_null() || v.data_type() == *to);
            value.map(|value| value.cast_to(to, None)).transpose()
        }
        Expr::ScalarFunction(call) => {
            let (Some(assign), [value]) = (Assign::of(&call.func), call.args.as_slice()) else {
                return Ok(None);
            };
            let value = value_of(value, schema, input)?;
            value.map(|value| assign.apply(&value)).transpose()
        }
        _ => Ok(None),
    }
}

//! What the optimizer is told of a table and of a scan.

use arrow::datatypes::Schema;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use flashmesh_pushdown::{Expr, Output};
use flashmesh_storage::table::TableSnapshot;

use super::spec::ScanSpec;
use crate::cost;
use crate::translate::scalar_value_of;

/// Statistics of a table, of which `schema` is shown: exact, as a snapshot never changes, but for
/// deleted rows, of which only the number is known.
pub fn of_table(table: &TableSnapshot, schema: &Schema) -> Statistics {
    let column_statistics: Vec<_> = (0..schema.fields().len())
        .map(|ordinal| of_column(ordinal as u32, table))
        .collect();
    with_total_size(Statistics {
        num_rows: Precision::Exact(table.rows() as usize),
        total_byte_size: Precision::Absent,
        column_statistics,
    })
}

fn of_column(ordinal: u32, table: &TableSnapshot) -> ColumnStatistics {
    let data_type = table.scan_schema.field(ordinal as usize).data_type();
    let bytes =
        cost::width_bytes(data_type, Some(&Expr::Column(ordinal)), table) * table.rows() as f64;
    let Some(known) = table.statistics.get(ordinal as usize) else {
        // The rows' ids.
        return ColumnStatistics {
            null_count: Precision::Exact(0),
            distinct_count: Precision::Exact(table.rows() as usize),
            byte_size: Precision::Inexact(bytes as usize),
            ..ColumnStatistics::new_unknown()
        };
    };
    let value = |scalar: &Option<flashmesh_pushdown::Scalar>| {
        // Arrow's order of floats puts NaN last and -0.0 before 0.0; SQL functions over exact
        // statistics had better read the data.
        let exact = !data_type.is_floating();
        match scalar.as_ref().and_then(|s| scalar_value_of(s, data_type)) {
            Some(value) if exact => Precision::Exact(value),
            Some(value) => Precision::Inexact(value),
            None => Precision::Absent,
        }
    };
    let known = ColumnStatistics {
        null_count: Precision::Exact(known.null_count.min(table.rows()) as usize),
        min_value: value(&known.min),
        max_value: value(&known.max),
        sum_value: Precision::Absent,
        distinct_count: known
            .distinct
            .map_or(Precision::Absent, |d| Precision::Inexact(d as usize)),
        byte_size: Precision::Inexact(bytes as usize),
    };
    match table.has_exact_statistics() {
        true => known,
        false => known.to_inexact(),
    }
}

/// Statistics of what leaves the scan with `schema`.
pub fn of_scan(spec: &ScanSpec, schema: &Schema, partitions: usize) -> Statistics {
    let table = spec.table.as_ref();
    let all_rows = table.rows() as f64;
    let rows_passing = spec.rows_after_filter();
    let (rows, exact) = match &spec.output {
        Output::Rows { limit: None, .. } => {
            let exact = spec.filters.is_empty() && !spec.learns();
            (rows_passing, exact)
        }
        Output::Rows {
            limit: Some(limit), ..
        } => {
            let one_stream = rows_passing / partitions as f64;
            (one_stream.min(*limit as f64) * partitions as f64, false)
        }
        Output::Nearest { queries, k, .. } => {
            let one_stream = queries.len() as f64 * (*k as f64).min(rows_passing);
            (one_stream * partitions as f64, false)
        }
        Output::Aggregate { keys, .. } => {
            let groups = if keys.is_empty() {
                1.0
            } else {
                cost::groups(keys, rows_passing, table)
            };
            (groups * partitions as f64, keys.is_empty())
        }
    };
    let num_rows = if exact {
        Precision::Exact(rows as usize)
    } else {
        Precision::Inexact(rows.ceil() as usize)
    };
    let passing = if all_rows > 0.0 {
        rows_passing / all_rows
    } else {
        1.0
    };
    let columns = spec.output_columns();
    let column_statistics = columns
        .into_iter()
        .zip(schema.fields())
        .map(|(expr, field)| match expr {
            Some(Expr::Column(ordinal)) if exact => of_column(*ordinal, table),
            Some(expr) => {
                let bytes = cost::width_bytes(field.data_type(), Some(expr), table) * rows;
                let known = match expr {
                    Expr::Column(ordinal) => of_column(*ordinal, table).to_inexact(),
                    _ => ColumnStatistics::new_unknown(),
                };
                let distinct = cost::distinct_values(expr, rows_passing, table).min(rows.max(1.0));
                ColumnStatistics {
                    null_count: scale(&known.null_count, passing),
                    distinct_count: Precision::Inexact(distinct as usize),
                    byte_size: Precision::Inexact(bytes as usize),
                    ..known
                }
            }
            None => {
                let bytes = cost::width_bytes(field.data_type(), None, table) * rows;
                ColumnStatistics {
                    byte_size: Precision::Inexact(bytes as usize),
                    ..ColumnStatistics::new_unknown()
                }
            }
        })
        .collect();
    with_total_size(Statistics {
        num_rows,
        total_byte_size: Precision::Absent,
        column_statistics,
    })
}

/// Bytes that are expected to leave a scan, 0 where that is not known: what filters of joins will remove
/// is not known before.
pub fn expected_bytes(spec: &ScanSpec, schema: &Schema, partitions: usize) -> u64 {
    if spec.learns() {
        return 0;
    }
    let bytes = of_scan(spec, schema, partitions).total_byte_size;
    bytes.get_value().map_or(0, |bytes| *bytes as u64)
}

fn scale(count: &Precision<usize>, share: f64) -> Precision<usize> {
    match count.get_value() {
        Some(count) => Precision::Inexact((*count as f64 * share) as usize),
        None => Precision::Absent,
    }
}

fn with_total_size(mut statistics: Statistics) -> Statistics {
    let bytes: usize = statistics
        .column_statistics
        .iter()
        .filter_map(|c| c.byte_size.get_value())
        .sum();
    statistics.total_byte_size = Precision::Inexact(bytes);
    // DataFusion 55 carries the sizes of columns through joins that keep few of their rows, and
    // then builds hash tables on the wrong side. Without them it goes by rows.
    for column in &mut statistics.column_statistics {
        column.byte_size = Precision::Absent;
    }
    statistics
}

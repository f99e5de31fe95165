//! Results as the workload reads them.

use std::collections::BTreeMap;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};

use super::checker::Id;

/// The numbers of a column.
pub fn numbers(batch: &RecordBatch, column: usize) -> Int64Array {
    let column = cast(batch.column(column), &DataType::Int64).unwrap();
    column.as_primitive::<Int64Type>().clone()
}

/// The one number of a result.
pub fn count(result: &[RecordBatch]) -> i64 {
    let values: Vec<_> = result
        .iter()
        .flat_map(|b| numbers(b, 0).values().to_vec())
        .collect();
    assert_eq!(values.len(), 1, "{values:?}");
    values[0]
}

/// Rows of id, version and writer.
pub fn registers(rows: &[RecordBatch]) -> Vec<(i64, (u64, Id))> {
    let of = |batch: &RecordBatch| {
        let [ids, versions, writers] = [0, 1, 2].map(|column| numbers(batch, column));
        let row = |row| {
            (
                ids.value(row),
                (versions.value(row) as u64, writers.value(row) as Id),
            )
        };
        (0..batch.num_rows()).map(row).collect::<Vec<_>>()
    };
    rows.iter().flat_map(of).collect()
}

/// Rows of id and elements with commas between.
pub fn lists(rows: &[RecordBatch]) -> BTreeMap<i64, Vec<u64>> {
    let mut lists = BTreeMap::new();
    for batch in rows {
        let ids = numbers(batch, 0);
        let texts = cast(batch.column(1), &DataType::Utf8).unwrap();
        for (id, text) in ids.values().iter().zip(texts.as_string::<i32>()) {
            let elements = text
                .unwrap_or_default()
                .split(',')
                .filter(|e| !e.is_empty());
            let elements = elements.map(|element| element.parse().unwrap()).collect();
            let before: Option<Vec<u64>> = lists.insert(*id, elements);
            assert!(before.is_none(), "two rows of {id}");
        }
    }
    lists
}

//! partial_aggregate: counts, sums, minima and maxima of groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, Decimal128Type, Int64Type, UInt32Type};
use flashmesh_pushdown::{Aggregate, AggregateFunction, CompareOp, Expr, Output, Program, Scalar};

use super::super::vectors::Call;
use super::{Said, Statement, column, compare, i64s, is_set, literal, same, table, u32s, u64s};

/// Groups of the kernel at most.
const MAX_GROUPS: u32 = 4096;
/// A decimal that has room for the sum of any int64.
const SUM: DataType = DataType::Decimal128(38, 0);

/// What the kernel says of a group.
#[derive(Debug, Clone, PartialEq)]
struct Group {
    count: i64,
    sum: i128,
    /// Least and greatest value, as the kernel has them of no values.
    extremes: (i64, i64),
}

const NO_VALUES: Group = Group {
    count: 0,
    sum: 0,
    extremes: (i64::MAX, i64::MIN),
};

pub fn partial_aggregate(call: &Call) -> Vec<Said> {
    let groups = call.u32("groups");
    if groups > MAX_GROUPS {
        return vec![Err("more groups than the kernel takes: Programs take them")];
    }
    let rows = call.u32("rows");
    let valid = u64s(call.input("valid"));
    let selected = u64s(call.input("selection"));
    let values = i64s(call.input("values"));
    let values = Int64Array::from_iter(
        (0..rows as usize).map(|row| is_set(&valid, row).then(|| values[row])),
    );
    let flags = BooleanArray::from_iter((0..rows as usize).map(|row| Some(is_set(&selected, row))));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(values),
        Arc::new(flags),
        Arc::new(UInt32Array::from(u32s(call.input("group")))),
    ];
    let (batch, columns) = table(columns, rows);
    let program = Program {
        columns,
        filter: vec![
            Expr::Column(1),
            compare(
                CompareOp::Lt,
                column(2),
                literal(Scalar::Int(i128::from(groups)), DataType::UInt32),
            ),
        ],
        output: Output::Aggregate {
            keys: vec![Expr::Column(2)],
            aggregates: aggregates(),
        },
    };

    let (counts, sums) = (i64s(call.expected("counts")), i64s(call.expected("sums")));
    let (minima, maxima) = (i64s(call.expected("minima")), i64s(call.expected("maxima")));
    let expected: Vec<Group> = (0..groups as usize)
        .map(|group| Group {
            count: counts[group],
            sum: i128::from(sums[2 * group] as u64) | i128::from(sums[2 * group + 1]) << 64,
            extremes: (minima[group], maxima[group]),
        })
        .collect();
    vec![Ok(Statement {
        batch,
        program,
        check: Box::new(move |output| {
            let mut found = merged(output)?;
            // Groups without selected rows do not leave the scan.
            let found: Vec<Group> = (0..groups)
                .map(|group| found.remove(&group).unwrap_or(NO_VALUES))
                .collect();
            same(&found, &expected, "groups")
        }),
    })]
}

/// Count, sum as int64 and as decimal, minimum, maximum.
fn aggregates() -> Vec<Aggregate> {
    let of = |function, argument, data_type| Aggregate {
        function,
        argument: Some(argument),
        filter: None,
        data_type,
    };
    let value = || Expr::Column(0);
    let wide = Expr::Cast {
        expr: column(0),
        data_type: SUM,
    };
    vec![
        of(AggregateFunction::Count, value(), DataType::Int64),
        of(AggregateFunction::Sum, value(), DataType::Int64),
        of(AggregateFunction::Sum, wide, SUM),
        of(AggregateFunction::Min, value(), DataType::Int64),
        of(AggregateFunction::Max, value(), DataType::Int64),
    ]
}

/// The groups of partial aggregates, added up.
fn merged(output: &RecordBatch) -> Result<BTreeMap<u32, Group>, String> {
    let numbers = |index| output.column(index).as_primitive::<Int64Type>();
    let (counts, narrow) = (numbers(1), numbers(2));
    let wide = output.column(3).as_primitive::<Decimal128Type>();
    let (minima, maxima) = (numbers(4), numbers(5));
    let mut groups = BTreeMap::new();
    for (row, key) in output
        .column(0)
        .as_primitive::<UInt32Type>()
        .values()
        .iter()
        .enumerate()
    {
        let group = groups.entry(*key).or_insert(NO_VALUES);
        let is_null = counts.value(row) == 0;
        same(&wide.is_null(row), &is_null, "a NULL sum")?;
        same(&minima.is_null(row), &is_null, "a NULL minimum")?;
        same(&maxima.is_null(row), &is_null, "a NULL maximum")?;
        if !is_null {
            // Sums of int64 wrap.
            same(
                &narrow.value(row),
                &(wide.value(row) as i64),
                "a sum of int64",
            )?;
            group.count += counts.value(row);
            group.sum += wide.value(row);
            group.extremes.0 = group.extremes.0.min(minima.value(row));
            group.extremes.1 = group.extremes.1.max(maxima.value(row));
        }
    }
    Ok(groups)
}

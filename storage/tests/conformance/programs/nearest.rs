//! hamming_nearest: the nearest rows of a selection.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray};
use arrow::buffer::Buffer;
use arrow::datatypes::UInt32Type;
use flashmesh_pushdown::{Expr, Metric, Output, Program, QueryVector};

use super::super::vectors::Call;
use super::{Said, Statement, column, is_set, same, table, u32s, u64s};

pub fn hamming_nearest(call: &Call) -> Vec<Said> {
    vec![said(call)]
}

fn said(call: &Call) -> Said {
    let (rows, size) = (call.u32("rows"), call.u32("code_bytes"));
    let k = call.u32("k");
    if k > 1024 || size > 8192 {
        return Err("more neighbours or longer codes than the kernel takes: Programs take them");
    }
    if size == 0 {
        return Err("codes without bytes: an array of them does not know its length");
    }
    let codes = call.input("codes").to_vec();
    let selected = u64s(call.input("selected"));
    let flags = BooleanArray::from_iter((0..rows as usize).map(|row| Some(is_set(&selected, row))));
    let array = FixedSizeBinaryArray::new(size as i32, Buffer::from(codes.clone()), None);
    let columns: Vec<ArrayRef> = vec![Arc::new(array), Arc::new(flags)];
    let (batch, columns) = table(columns, rows);

    let found = u32s(call.expected("found"))[0] as usize;
    let mut nearest = u32s(call.expected("result_distances"));
    nearest.truncate(found);
    let mut expected_rows = u32s(call.expected("result_rows"));
    expected_rows.truncate(found);
    let query = call.input("query").to_vec();
    let program = Program {
        columns,
        filter: vec![Expr::Column(1)],
        output: Output::Nearest {
            queries: vec![QueryVector::Bits(query.clone())],
            metric: Metric::Hamming,
            expr: *column(0),
            k: u64::from(k),
            exprs: vec![Expr::Column(2)],
        },
    };
    let check = move |output: &arrow::array::RecordBatch| {
        let values = |index| output.column(index).as_primitive::<UInt32Type>().values();
        let (distances, rows) = (values(1).to_vec(), values(2).to_vec());
        same(&distances, &nearest, "distances")?;
        // Rows are what their distances say, and of those as far as the last one any will do.
        for (row, distance) in rows.iter().zip(&distances) {
            let code = &codes[*row as usize * size as usize..][..size as usize];
            let bits = code.iter().zip(&query).map(|(a, b)| (a ^ b).count_ones());
            same(&bits.sum(), distance, "the distance of a row")?;
        }
        let surely = |rows: &[u32]| -> BTreeSet<u32> {
            let pairs = rows.iter().zip(&nearest);
            let nearer = pairs.filter(|(_, distance)| Some(*distance) != nearest.last());
            nearer.map(|(row, _)| *row).collect()
        };
        same(&surely(&rows), &surely(&expected_rows), "rows")?;
        let different: BTreeSet<&u32> = rows.iter().collect();
        same(&different.len(), &rows.len(), "different rows")
    };
    Ok(Statement {
        batch,
        program,
        check: Box::new(check),
    })
}

//! morris_pratt and fgrep8: where and whether text has a pattern.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringViewArray};
use arrow::datatypes::{Int32Type, UInt32Type};
use flashmesh_pushdown::{Expr, Program};

use super::super::vectors::Call;
use super::{Said, Statement, all_rows, column, same, selection, table, u32s};

const NOT_FOUND: u32 = u32::MAX;

/// The rows' texts; an error where bytes are no UTF-8, as a table's texts are.
fn texts(call: &Call) -> Result<Vec<&str>, &'static str> {
    let bytes = call.input("text_bytes");
    u32s(call.input("text_offsets"))
        .windows(2)
        .map(|ends| text(&bytes[ends[0] as usize..ends[1] as usize]))
        .collect()
}

fn text(bytes: &[u8]) -> Result<&str, &'static str> {
    std::str::from_utf8(bytes).map_err(|_| "bytes that are no UTF-8: a table's texts are")
}

fn text_column(texts: &[&str]) -> Vec<ArrayRef> {
    vec![Arc::new(StringViewArray::from_iter_values(texts))]
}

/// Two Programs: the pattern's position, in characters, and the rows that contain it.
pub fn morris_pratt(call: &Call) -> Vec<Said> {
    vec![position(call), contains(call)]
}

fn position(call: &Call) -> Said {
    let (texts, needle) = (texts(call)?, text(call.input("pattern"))?.to_owned());
    let rows = call.u32("rows");
    let positions = u32s(call.expected("positions"));
    let in_characters = |(text, byte): (&&str, u32)| match byte {
        NOT_FOUND => 0,
        byte => text[..byte as usize].chars().count() as i32 + 1,
    };
    let expected: Vec<i32> = texts.iter().zip(positions).map(in_characters).collect();
    let (batch, columns) = table(text_column(&texts), rows);
    let position = Expr::Position {
        expr: column(0),
        needle,
    };
    Ok(Statement {
        batch,
        program: Program {
            columns,
            filter: Vec::new(),
            output: all_rows(vec![Expr::Column(1), position]),
        },
        check: Box::new(move |output| {
            let order = order(output);
            let found = output.column(1).as_primitive::<Int32Type>();
            let found: Vec<i32> = order.iter().map(|place| found.value(*place)).collect();
            same(&found, &expected, "positions")
        }),
    })
}

fn contains(call: &Call) -> Said {
    let (texts, needle) = (texts(call)?, text(call.input("pattern"))?.to_owned());
    let rows = call.u32("rows");
    let mut selected = vec![0u8; (rows as usize).div_ceil(64) * 8];
    for (row, position) in u32s(call.expected("positions")).into_iter().enumerate() {
        selected[row / 8] |= u8::from(position != NOT_FOUND) << (row % 8);
    }
    let filter = vec![Expr::ContainsAny {
        expr: column(0),
        needles: vec![needle],
    }];
    Ok(selection(text_column(&texts), rows, filter, &selected))
}

/// One Program with a column for each of the eight slots. A slot that is not used has no needle.
pub fn fgrep8(call: &Call) -> Vec<Said> {
    vec![slots(call)]
}

fn slots(call: &Call) -> Said {
    const SLOT_BYTES: usize = 64;
    let texts = texts(call)?;
    let lengths = u32s(call.input("lengths"));
    let slots = call.input("patterns").chunks_exact(SLOT_BYTES);
    let mut exprs = vec![Expr::Column(1)];
    for (slot, length) in slots.zip(lengths) {
        let is_used = (1..=SLOT_BYTES).contains(&(length as usize));
        let needles = match is_used {
            true => vec![text(&slot[..length as usize])?.to_owned()],
            false => Vec::new(),
        };
        exprs.push(Expr::ContainsAny {
            expr: column(0),
            needles,
        });
    }
    let (batch, columns) = table(text_column(&texts), call.u32("rows"));
    let expected = call.expected("matches").to_vec();
    Ok(Statement {
        batch,
        program: Program {
            columns,
            filter: Vec::new(),
            output: all_rows(exprs),
        },
        check: Box::new(move |output| {
            let slots: Vec<_> = (1..9)
                .map(|slot| output.column(slot).as_boolean())
                .collect();
            let matches = |place: &usize| {
                let slots = slots.iter().enumerate();
                slots.fold(0u8, |bits, (slot, found)| {
                    bits | u8::from(found.value(*place)) << slot
                })
            };
            let found: Vec<u8> = order(output).iter().map(matches).collect();
            same(&found, &expected, "matches")
        }),
    })
}

/// The places of an output's rows, by the rows' numbers in column 0.
fn order(output: &RecordBatch) -> Vec<usize> {
    let rows = output.column(0).as_primitive::<UInt32Type>();
    let mut places: Vec<usize> = (0..rows.len()).collect();
    places.sort_unstable_by_key(|place| rows.value(*place));
    places
}

//! predicate_filter, price_band and fair_price: comparisons, AND, OR, NOT.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, UInt64Array};
use arrow::datatypes::DataType;
use flashmesh_pushdown::{CompareOp, Expr, Scalar};

use super::super::vectors::Call;
use super::{Said, column, compare, f64s, is_set, literal, selection, u64s};

/// In the order of the kernel's opcodes.
const COMPARISONS: [CompareOp; 6] = [
    CompareOp::Eq,
    CompareOp::NotEq,
    CompareOp::Lt,
    CompareOp::LtEq,
    CompareOp::Gt,
    CompareOp::GtEq,
];

/// Whether `price` lies between the bounds. Programs compare NaN as IEEE 754's total order has it,
/// beyond all numbers, and C compares it to FALSE: as a bound they differ.
fn band(low: f64, high: f64) -> Result<[Expr; 2], &'static str> {
    if low.is_nan() || high.is_nan() {
        return Err("a bound that is NaN: C's comparisons are FALSE, a Program's have an order");
    }
    let bound = |value| literal(Scalar::Float(value), DataType::Float64);
    Ok([
        compare(CompareOp::LtEq, bound(low), column(0)),
        compare(CompareOp::LtEq, column(0), bound(high)),
    ])
}

fn floats(bytes: &[u8]) -> ArrayRef {
    Arc::new(Float64Array::from(f64s(bytes)))
}

pub fn price_band(call: &Call) -> Vec<Said> {
    let said = band(call.f64("low"), call.f64("high")).map(|filter| {
        selection(
            vec![floats(call.input("price"))],
            call.u32("rows"),
            filter.into(),
            call.expected("selection"),
        )
    });
    vec![said]
}

pub fn fair_price(call: &Call) -> Vec<Said> {
    let list_price = call.f64("list_price");
    let said = band(0.9 * list_price, 1.1 * list_price).map(|band| {
        let mut filter = band.to_vec();
        filter.push(compare(CompareOp::GtEq, column(0), column(1)));
        selection(
            vec![floats(call.input("price")), floats(call.input("cost"))],
            call.u32("rows"),
            filter,
            call.expected("selection"),
        )
    });
    vec![said]
}

/// The kernel's columns are words that each instruction takes as it likes: the table has every
/// column three times, as int64, as float64 and as uint64.
pub fn predicate_filter(call: &Call) -> Vec<Said> {
    let column_count = call.u32("column_count");
    let Some(condition) = condition(&u64s(call.input("program")), column_count) else {
        return vec![Err("a malformed condition: no Program is malformed")];
    };
    let (rows, stride) = (call.u32("rows") as usize, call.u32("stride") as usize);
    let values = u64s(call.input("columns"));
    if stride < rows || !stride.is_multiple_of(64) || values.len() < column_count as usize * stride
    {
        return vec![Err("columns that are not whole: a table's are")];
    }
    let valid = u64s(call.input("valid"));
    let mut columns: Vec<ArrayRef> = Vec::new();
    for number in 0..column_count as usize {
        let word = |row: usize| {
            let at = number * stride + row;
            is_set(&valid, at).then(|| values[at])
        };
        let word = |row| word(row);
        columns.push(Arc::new(Int64Array::from_iter(
            (0..rows).map(|row| word(row).map(|word| word as i64)),
        )));
        columns.push(Arc::new(Float64Array::from_iter(
            (0..rows).map(|row| word(row).map(f64::from_bits)),
        )));
        columns.push(Arc::new(UInt64Array::from_iter((0..rows).map(word))));
    }
    let expected = call.expected("selection");
    vec![Ok(selection(
        columns,
        rows as u32,
        vec![condition],
        expected,
    ))]
}

/// The condition of a kernel's instructions, or `None` for what is none.
fn condition(program: &[u64], column_count: u32) -> Option<Expr> {
    let mut stack: Vec<Expr> = Vec::new();
    if program.len() > 2 * 256 || column_count > 16 {
        return None;
    }
    for instruction in program.chunks_exact(2) {
        let (word, constant) = (instruction[0], instruction[1]);
        if word >> 24 != 0 || stack.len() > 16 {
            return None;
        }
        let opcode = (word & 0xff) as usize;
        let of = |shift: u32, view: u32| {
            let number = (word >> shift & 0xff) as u32;
            (number < column_count).then(|| column(3 * number + view))
        };
        let (first, second) = (8, 16);
        let next = match opcode {
            1..=6 => compare(
                COMPARISONS[opcode - 1],
                of(first, 0)?,
                literal(Scalar::Int(i128::from(constant as i64)), DataType::Int64),
            ),
            7..=12 => compare(
                COMPARISONS[opcode - 7],
                of(first, 1)?,
                literal(Scalar::Float(f64::from_bits(constant)), DataType::Float64),
            ),
            13..=18 => compare(COMPARISONS[opcode - 13], of(first, 0)?, of(second, 0)?),
            19..=24 => compare(COMPARISONS[opcode - 19], of(first, 1)?, of(second, 1)?),
            25 => Expr::IsNull(of(first, 0)?),
            26 | 27 => {
                let (right, left) = (stack.pop()?, stack.pop()?);
                match opcode {
                    26 => Expr::And(vec![left, right]),
                    _ => Expr::Or(vec![left, right]),
                }
            }
            28 => Expr::Not(Box::new(stack.pop()?)),
            29 => {
                let value = match constant {
                    0 => Scalar::Boolean(false),
                    1 => Scalar::Boolean(true),
                    2 => Scalar::Null,
                    _ => return None,
                };
                *literal(value, DataType::Boolean)
            }
            30..=35 => compare(
                COMPARISONS[opcode - 30],
                of(first, 2)?,
                literal(Scalar::Int(i128::from(constant)), DataType::UInt64),
            ),
            _ => return None,
        };
        stack.push(next);
    }
    let condition = stack.pop()?;
    stack.is_empty().then_some(condition)
}

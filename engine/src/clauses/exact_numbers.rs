//! Whole numbers that 64 bits do not hold: to the planner they are floats, of which the last digits are gone.

use datafusion::sql::sqlparser::ast::{CastKind, DataType, ExactNumberInfo, Expr, Value};

/// Digits of a decimal.
const DIGITS: usize = 76;

/// Such a number as a decimal; `None` for others, and for more digits than decimals have.
pub(super) fn exact_number(digits: &str) -> Option<Expr> {
    let is_long =
        digits.bytes().all(|digit| digit.is_ascii_digit()) && digits.parse::<u64>().is_err();
    let length = digits.trim_start_matches('0').len();
    if !is_long || length > DIGITS {
        return None;
    }
    Some(Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(Expr::value(Value::SingleQuotedString(digits.to_owned()))),
        data_type: DataType::Decimal(ExactNumberInfo::PrecisionAndScale(length as u64, 0)),
        array: false,
        format: None,
    })
}

//! One expression over one row.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type};

use super::{calendar, like};
use crate::distance;
use crate::scalar::{narrow_f16, narrow_f32, widen_f32};
use crate::types::units_per_second;
use crate::verify::compile_regex;
use crate::{
    ArithmeticOp, CompareOp, Expr, InputColumn, Limits, Metric, ProgramError, QueryVector, Scalar,
};

/// One row of the input.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The Program's columns.
    pub columns: &'a [InputColumn],
    /// Their values, one array each.
    pub arrays: &'a [ArrayRef],
    /// Which row of the arrays.
    pub index: usize,
}

impl Row<'_> {
    fn array(&self, column: u32) -> Result<&ArrayRef, ProgramError> {
        self.arrays.get(column as usize).ok_or_else(|| {
            ProgramError::invalid(
                format!("column {column}"),
                "isn't there; verify the program",
            )
        })
    }

    /// Whether the expression is NULL here. Carried columns have no [`Scalar`], but may be asked
    /// this.
    pub(super) fn is_null(self, expr: &Expr) -> Result<bool, ProgramError> {
        match expr {
            Expr::Column(column) => Ok(self.array(*column)?.is_null(self.index)),
            other => Ok(evaluate(other, self)?.is_null()),
        }
    }
}

/// The value of an expression in a row; see the [module](super) for the rules.
pub fn evaluate(expr: &Expr, row: Row<'_>) -> Result<Scalar, ProgramError> {
    match expr {
        Expr::Column(column) => {
            let array = row.array(*column)?;
            Scalar::from_array(array, row.index).ok_or_else(|| {
                let problem = format!("{} can't be computed with", array.data_type());
                ProgramError::invalid(expr.brief(row.columns), problem)
            })
        }
        Expr::Literal(literal) => Ok(literal.value.clone()),
        Expr::Compare { op, left, right } => {
            let (left, right) = (evaluate(left, row)?, evaluate(right, row)?);
            Ok(left.compare(&right).map_or(Scalar::Null, |ordering| {
                Scalar::Boolean(match op {
                    CompareOp::Eq => ordering.is_eq(),
                    CompareOp::NotEq => ordering.is_ne(),
                    CompareOp::Lt => ordering.is_lt(),
                    CompareOp::LtEq => ordering.is_le(),
                    CompareOp::Gt => ordering.is_gt(),
                    CompareOp::GtEq => ordering.is_ge(),
                })
            }))
        }
        // FALSE decides an AND, TRUE an OR; without it one NULL makes it NULL.
        Expr::And(operands) => connect(operands, false, row),
        Expr::Or(operands) => connect(operands, true, row),
        Expr::Not(operand) => Ok(match evaluate(operand, row)? {
            Scalar::Boolean(value) => Scalar::Boolean(!value),
            _ => Scalar::Null,
        }),
        Expr::IsNull(operand) => row.is_null(operand).map(Scalar::Boolean),
        Expr::InList {
            expr,
            list,
            negated,
        } => {
            let value = evaluate(expr, row)?;
            if value.is_null() {
                return Ok(Scalar::Null);
            }
            if list
                .iter()
                .any(|item| value.total_order(item) == Some(Ordering::Equal))
            {
                return Ok(Scalar::Boolean(!negated));
            }
            if list.iter().any(Scalar::is_null) {
                return Ok(Scalar::Null);
            }
            Ok(Scalar::Boolean(*negated))
        }
        Expr::Like {
            expr,
            pattern,
            negated,
            case_insensitive,
        } => Ok(match text(&evaluate(expr, row)?) {
            Some(text) => {
                let matches = like::matches(pattern, &text, *case_insensitive);
                Scalar::Boolean(matches != *negated)
            }
            None => Scalar::Null,
        }),
        Expr::Arithmetic {
            op,
            left,
            right,
            data_type,
        } => {
            let values = (evaluate(left, row)?, evaluate(right, row)?);
            match values {
                (Scalar::Int(l), Scalar::Int(r)) => {
                    let types = (left.data_type(row.columns), right.data_type(row.columns));
                    match (types, data_type) {
                        (
                            (
                                DataType::Decimal128(_, left_scale),
                                DataType::Decimal128(_, right_scale),
                            ),
                            DataType::Decimal128(_, scale),
                        ) => decimal_arithmetic(*op, (l, left_scale), (r, right_scale), *scale)
                            .map(Scalar::Int)
                            .ok_or_else(|| ProgramError::Arithmetic {
                                expression: expr.brief(row.columns),
                                problem: format!(
                                    "decimal overflow: {l} {op} {r} (unscaled) leaves 128 bits"
                                ),
                            }),
                        _ => Ok(Scalar::Int(integer_arithmetic(*op, l, r, data_type))),
                    }
                }
                (Scalar::Float(l), Scalar::Float(r)) => {
                    Ok(Scalar::Float(float_arithmetic(*op, l, r, data_type)))
                }
                _ => Ok(Scalar::Null),
            }
        }
        Expr::Cast {
            expr: operand,
            data_type,
        } => {
            let value = evaluate(operand, row)?;
            let from = operand.data_type(row.columns);
            widen(&value, &from, data_type).ok_or_else(|| ProgramError::Arithmetic {
                expression: expr.brief(row.columns),
                problem: format!("{value:?} of type {from} is beyond {data_type}"),
            })
        }
        Expr::Case {
            branches,
            otherwise,
            ..
        } => {
            for (condition, value) in branches {
                if evaluate(condition, row)? == Scalar::Boolean(true) {
                    return evaluate(value, row);
                }
            }
            otherwise
                .as_ref()
                .map_or(Ok(Scalar::Null), |value| evaluate(value, row))
        }
        Expr::DatePart { part, expr } => Ok(match evaluate(expr, row)? {
            Scalar::Int(days) => calendar::date_part(*part, days)
                .map_or(Scalar::Null, |value| Scalar::Int(value.into())),
            _ => Scalar::Null,
        }),
        Expr::Substring {
            expr,
            start,
            length,
        } => Ok(match text(&evaluate(expr, row)?) {
            Some(text) => {
                let skipped = text.chars().skip((*start as usize).saturating_sub(1));
                let part: String = skipped.take(*length as usize).collect();
                Scalar::Bytes(part.into_bytes())
            }
            None => Scalar::Null,
        }),
        Expr::Position { expr, needle } => Ok(match text(&evaluate(expr, row)?) {
            Some(text) => {
                let starts = text.char_indices().map(|(start, _)| start);
                let mut starts = starts.chain([text.len()]);
                let found = starts.position(|start| text[start..].starts_with(needle.as_str()));
                Scalar::Int(found.map_or(0, |before| before as i128 + 1))
            }
            None => Scalar::Null,
        }),
        Expr::Regex {
            expr: operand,
            pattern,
            negated,
            case_insensitive,
        } => Ok(match text(&evaluate(operand, row)?) {
            Some(text) => {
                let limit = Limits::default().regex_bytes;
                let regex = compile_regex(pattern, *case_insensitive, limit)
                    .map_err(|e| ProgramError::invalid(expr.brief(row.columns), e.to_string()))?;
                Scalar::Boolean(regex.is_match(&text) != *negated)
            }
            None => Scalar::Null,
        }),
        Expr::ContainsAny { expr, needles } => Ok(match text(&evaluate(expr, row)?) {
            Some(text) => {
                Scalar::Boolean(needles.iter().any(|needle| text.contains(needle.as_str())))
            }
            None => Scalar::Null,
        }),
        Expr::Distance {
            metric,
            expr,
            query,
        } => vector_distance(*metric, expr, query, row),
        Expr::Kernel { kernel, .. } => Err(ProgramError::invalid(
            expr.brief(row.columns),
            format!(
                "the interpreter has no kernels; what '{}' means, its own code says",
                kernel.name
            ),
        )),
    }
}

/// The distance of a row's vector from a constant one.
pub(super) fn vector_distance(
    metric: Metric,
    expr: &Expr,
    query: &QueryVector,
    row: Row<'_>,
) -> Result<Scalar, ProgramError> {
    let query = match query {
        QueryVector::Bits(bits) => {
            return Ok(match evaluate(expr, row)? {
                Scalar::Bytes(bytes) => Scalar::Int(distance::hamming(&bytes, bits).into()),
                _ => Scalar::Null,
            });
        }
        QueryVector::Floats(values) => values,
    };
    // Lists are carried, so that only a column can be one.
    let unsuited = || ProgramError::invalid(expr.brief(row.columns), "is no vector of floats");
    let Expr::Column(column) = expr else {
        return Err(unsuited());
    };
    let array = row.array(*column)?;
    let lists = array.as_fixed_size_list_opt().ok_or_else(unsuited)?;
    if lists.is_null(row.index) {
        return Ok(Scalar::Null);
    }
    let values = lists.value(row.index);
    let values = values
        .as_primitive_opt::<Float32Type>()
        .ok_or_else(unsuited)?;
    if values.null_count() > 0 {
        return Ok(Scalar::Null);
    }
    let distance = distance::distance(metric, values.values(), query).ok_or_else(unsuited)?;
    Ok(Scalar::Float(widen_f32(distance)))
}

/// AND and OR: the first operand that is `deciding` decides.
fn connect(operands: &[Expr], deciding: bool, row: Row<'_>) -> Result<Scalar, ProgramError> {
    let mut result = Scalar::Boolean(!deciding);
    for operand in operands {
        match evaluate(operand, row)? {
            Scalar::Boolean(value) if value == deciding => return Ok(Scalar::Boolean(deciding)),
            Scalar::Boolean(_) => {}
            _ => result = Scalar::Null,
        }
    }
    Ok(result)
}

/// The text of a value; `None` for NULL.
fn text(value: &Scalar) -> Option<String> {
    match value {
        Scalar::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

/// Wraps around at the type's width.
fn integer_arithmetic(op: ArithmeticOp, left: i128, right: i128, data_type: &DataType) -> i128 {
    let exact_modulo_2_128 = match op {
        ArithmeticOp::Add => left.wrapping_add(right),
        ArithmeticOp::Subtract => left.wrapping_sub(right),
        ArithmeticOp::Multiply => left.wrapping_mul(right),
    };
    wrap(exact_modulo_2_128, data_type)
}

/// The value modulo the width of the integer type.
pub(super) fn wrap(value: i128, data_type: &DataType) -> i128 {
    match data_type {
        DataType::Int8 => (value as i8).into(),
        DataType::Int16 => (value as i16).into(),
        DataType::Int32 => (value as i32).into(),
        DataType::Int64 => (value as i64).into(),
        DataType::UInt8 => (value as u8).into(),
        DataType::UInt16 => (value as u16).into(),
        DataType::UInt32 => (value as u32).into(),
        DataType::UInt64 => (value as u64).into(),
        _ => value,
    }
}

/// Unscaled values with their scales; the result has `scale`. `None` when it, or an operand
/// brought to `scale`, leaves 128 bits. The precision is not looked at: Arrow doesn't either.
fn decimal_arithmetic(
    op: ArithmeticOp,
    (left, left_scale): (i128, i8),
    (right, right_scale): (i128, i8),
    scale: i8,
) -> Option<i128> {
    let rescaled = |value: i128, from: i8| {
        let digits = u32::try_from(i32::from(scale) - i32::from(from)).ok()?;
        value.checked_mul(10_i128.checked_pow(digits)?)
    };
    match op {
        ArithmeticOp::Add => rescaled(left, left_scale)?.checked_add(rescaled(right, right_scale)?),
        ArithmeticOp::Subtract => {
            rescaled(left, left_scale)?.checked_sub(rescaled(right, right_scale)?)
        }
        ArithmeticOp::Multiply => left.checked_mul(right),
    }
}

/// IEEE 754 in the width of the type.
fn float_arithmetic(op: ArithmeticOp, left: f64, right: f64, data_type: &DataType) -> f64 {
    match data_type {
        DataType::Float64 => match op {
            ArithmeticOp::Add => left + right,
            ArithmeticOp::Subtract => left - right,
            ArithmeticOp::Multiply => left * right,
        },
        narrow => {
            // f32 holds sums and products of two f16 so exactly that rounding twice does no harm.
            let (left, right) = (left as f32, right as f32);
            let result = match op {
                ArithmeticOp::Add => left + right,
                ArithmeticOp::Subtract => left - right,
                ArithmeticOp::Multiply => left * right,
            };
            round(result.into(), narrow)
        }
    }
}

/// The nearest value of a float type.
fn round(value: f64, data_type: &DataType) -> f64 {
    match data_type {
        DataType::Float16 => narrow_f16(value).to_f64(),
        DataType::Float32 => narrow_f32(value).into(),
        _ => value,
    }
}

/// A cast of [`types::is_widening_cast`](crate::types::is_widening_cast); `None` when the value
/// does not fit.
fn widen(value: &Scalar, from: &DataType, to: &DataType) -> Option<Scalar> {
    use DataType::*;
    if from == to {
        return Some(value.clone());
    }
    let scaled = |value: i128, factor: Option<i128>| value.checked_mul(factor?);
    match value {
        Scalar::Null => Some(Scalar::Null),
        Scalar::Boolean(value) => Some(Scalar::Int((*value).into())),
        Scalar::Float(value) => Some(Scalar::Float(*value)),
        Scalar::Bytes(_) => None,
        Scalar::Int(value) => match (from, to) {
            (_, Float32 | Float64) => Some(Scalar::Float(*value as f64)),
            (Date32, Date64) => Some(Scalar::Int(value * 86_400_000)),
            (Date32, Timestamp(unit, _)) => timestamp(scaled(
                *value,
                Some(86_400 * i128::from(units_per_second(unit))),
            )),
            (Timestamp(from, _), Timestamp(to, _)) => {
                let factor = units_per_second(to) / units_per_second(from);
                timestamp(scaled(*value, Some(factor.into())))
            }
            (Decimal128(_, from), Decimal128(_, to)) => {
                let digits = u32::try_from(i32::from(*to) - i32::from(*from)).ok()?;
                scaled(*value, 10_i128.checked_pow(digits)).map(Scalar::Int)
            }
            (_, Decimal128(_, scale)) => {
                let digits = u32::try_from(*scale).ok()?;
                scaled(*value, 10_i128.checked_pow(digits)).map(Scalar::Int)
            }
            _ => Some(Scalar::Int(*value)),
        },
    }
}

/// A timestamp, if 64 bits hold it.
fn timestamp(value: Option<i128>) -> Option<Scalar> {
    value
        .filter(|value| i64::try_from(*value).is_ok())
        .map(Scalar::Int)
}

//! Intervals and times as texts: times of day in intervals, `1 month 03:30:00`, are written out in units, as the planner
//! reads; and timestamps get a unit in which they can be said.

use std::borrow::Cow;
use std::fmt::Display;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, DataType, DateTimeField, Expr, Ident, Interval, Value,
};

use super::{call, refuse};
use crate::error::Result;
use crate::interval_units::{has_unit, spelt};

/// Writes the text of an interval out, and refuses a number without a unit; `written` is how the user wrote it.
///
/// # Errors
/// [`Error::Usage`](crate::error::Error::Usage), which says what a unit looks like.
pub(super) fn correct_interval(value: &mut Expr, written: &str) -> Result<()> {
    match value {
        Expr::Value(value) => match &mut value.value {
            Value::Number(number, _) => check_unit(number, &written),
            Value::SingleQuotedString(text) => {
                check_unit(text, &written)?;
                if let Cow::Owned(spelt) = spelt(text) {
                    *text = spelt;
                }
                Ok(())
            }
            _ => Ok(()),
        },
        Expr::UnaryOp { expr, .. } | Expr::Nested(expr) => correct_interval(expr, written),
        _ => Ok(()),
    }
}

/// `INTERVAL (a + 1) DAY`, of a number that is no constant, as a call; `None` for constants, and where more is said.
pub(super) fn computed(interval: &Interval) -> Option<Expr> {
    let Interval {
        value,
        leading_field: Some(unit),
        leading_precision: None,
        last_field: None,
        fractional_seconds_precision: None,
    } = interval
    else {
        return None;
    };
    if is_constant(value) {
        return None;
    }
    let (function, factor) = match unit {
        DateTimeField::Year | DateTimeField::Years => ("to_years", 1),
        DateTimeField::Quarter => ("to_months", 3),
        DateTimeField::Month | DateTimeField::Months => ("to_months", 1),
        DateTimeField::Week(None) | DateTimeField::Weeks => ("to_weeks", 1),
        DateTimeField::Day | DateTimeField::Days => ("to_days", 1),
        DateTimeField::Hour | DateTimeField::Hours => ("to_hours", 1),
        DateTimeField::Minute | DateTimeField::Minutes => ("to_minutes", 1),
        DateTimeField::Second | DateTimeField::Seconds => ("to_seconds", 1),
        DateTimeField::Millisecond | DateTimeField::Milliseconds => ("to_milliseconds", 1),
        DateTimeField::Microsecond | DateTimeField::Microseconds => ("to_microseconds", 1),
        _ => return None,
    };
    let number = Expr::Nested(value.clone());
    let number = match factor {
        1 => number,
        factor => Expr::BinaryOp {
            left: Box::new(number),
            op: BinaryOperator::Multiply,
            right: Box::new(Expr::value(Value::Number(factor.to_string(), false))),
        },
    };
    Some(call(Ident::new(function), vec![number]))
}

fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Value(_) => true,
        Expr::UnaryOp { expr, .. } | Expr::Nested(expr) => is_constant(expr),
        _ => false,
    }
}

/// The years that timestamps of nanoseconds hold whole.
const YEARS_OF_NANOSECONDS: std::ops::RangeInclusive<i64> = 1678..=2261;

/// Has a text that is a timestamp of no said unit read in microseconds, where it is of a year that nanoseconds,
/// which the type without digits has, do not reach: `TIMESTAMP '9999-12-31'`.
pub(super) fn fit_unit(data_type: &mut DataType, text: &str) {
    let digits = match data_type {
        DataType::Timestamp(digits, _) => digits,
        DataType::Datetime(digits) => digits,
        _ => return,
    };
    let text = text.trim_start();
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let year = rest.split_once('-').map(|(year, _)| year.parse::<i64>());
    if let Some(Ok(year)) = year
        && digits.is_none()
        && !YEARS_OF_NANOSECONDS.contains(&(sign * year))
    {
        *digits = Some(6);
    }
}

fn check_unit(number: &str, written: &impl Display) -> Result<()> {
    match has_unit(number) {
        false => refuse(
            &format!("{written} without a unit"),
            "write one such as in INTERVAL '3 days' or INTERVAL 3 DAY",
        ),
        true => Ok(()),
    }
}

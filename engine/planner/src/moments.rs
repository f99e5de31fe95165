//! Moments as texts: those whose seconds are left out, `2024-01-31 10:00`, which Arrow does not read; and those that
//! it prints with a T between day and time, where PostgreSQL and DuckDB have a space.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::functions::string::replace;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, LogicalPlan, TryCast, lit};
use datafusion::optimizer::AnalyzerRule;

use crate::tree::{cast_of, change_once, change_parts};
use crate::value_texts::{self, has_text};
use crate::walk::Walk as _;

/// Gives constants in the place of moments their seconds; place it behind the rule that gives types.
#[derive(Debug)]
pub(crate) struct WholeMoments;

impl AnalyzerRule for WholeMoments {
    fn name(&self) -> &str {
        "flashmesh_whole_moments"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| seconds_of(expr).is_some();
        change_parts(plan, is_one, |expr, _| expr.transform_up(completed))
    }
}

/// Prints moments, and values with texts of ours, that become texts as other databases do; place it behind the rule
/// that gives types.
#[derive(Debug)]
pub(crate) struct PrintedMoments;

impl AnalyzerRule for PrintedMoments {
    fn name(&self) -> &str {
        "flashmesh_printed_moments"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        change_parts(plan, becomes_text, |expr, schema| {
            change_once(expr, is_printed, |expr| printed(expr, schema))
        })
    }
}

fn becomes_text(expr: &Expr) -> bool {
    cast_of(expr).is_some_and(|(_, to)| to.is_string())
}

/// Whether that is such a text, as other databases print it.
fn is_printed(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call)
        if call.func == replace()
            && call.args.get(1).and_then(Expr::as_literal) == Some(&ScalarValue::from(BETWEEN))
            && call.args.first().is_some_and(becomes_text))
}

fn printed(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (of, text) = match cast_of(&expr) {
        Some((value, to)) if to.is_string() => (value.get_type(schema)?, to.clone()),
        _ => return Ok(Transformed::no(expr)),
    };
    let printed = match of {
        DataType::Timestamp(..) => replace().call(vec![expr, lit(BETWEEN), lit(" ")]),
        of if has_text(&of) => {
            let (Expr::Cast(Cast { expr: value, .. }) | Expr::TryCast(TryCast { expr: value, .. })) =
                expr
            else {
                return Ok(Transformed::no(expr));
            };
            value_texts::function().call(vec![*value])
        }
        _ => return Ok(Transformed::no(expr)),
    };
    Ok(Transformed::yes(match printed.get_type(schema)? == text {
        true => printed,
        false => Expr::Cast(Cast::new(Box::new(printed), text)),
    }))
}

/// What Arrow prints between day and time.
const BETWEEN: &str = "T";

/// The text of a constant that becomes a moment, with the seconds that it lacks.
fn seconds_of(expr: &Expr) -> Option<String> {
    let Expr::Cast(Cast { expr, field }) = expr else {
        return None;
    };
    let text = expr.as_literal()?.try_as_str()??;
    match (field.data_type(), with_seconds(text)) {
        (DataType::Timestamp(..), Cow::Owned(whole)) => Some(whole),
        _ => None,
    }
}

fn completed(mut expr: Expr) -> Result<Transformed<Expr>> {
    let whole = seconds_of(&expr);
    Ok(match (&mut expr, whole) {
        (Expr::Cast(cast), Some(whole)) => {
            *cast.expr = Expr::Literal(ScalarValue::Utf8(Some(whole)), None);
            Transformed::yes(expr)
        }
        _ => Transformed::no(expr),
    })
}

/// Whether values of a type are moments or days, or NULL.
pub(crate) fn may_be_moment(of: &DataType) -> bool {
    let is_day = matches!(of, DataType::Date32 | DataType::Date64);
    is_day || matches!(of, DataType::Timestamp(..) | DataType::Null)
}

/// A text with `:00` behind its hours and minutes, where those are the end of a moment, or before its zone.
pub fn with_seconds(text: &str) -> Cow<'_, str> {
    const SHAPE: &[u8] = b"0000-00-00 00:00";
    let bytes = text.as_bytes();
    let has_shape = bytes.len() >= SHAPE.len()
        && SHAPE.iter().zip(bytes).all(|(shape, byte)| match shape {
            b'0' => byte.is_ascii_digit(),
            b' ' => matches!(byte, b' ' | b'T' | b't'),
            other => other == byte,
        });
    let ends = matches!(
        bytes.get(SHAPE.len()),
        None | Some(b' ' | b'Z' | b'z' | b'+' | b'-')
    );
    match has_shape && ends {
        true => {
            let (moment, rest) = text.split_at(SHAPE.len());
            Cow::Owned(format!("{moment}:00{rest}"))
        }
        false => Cow::Borrowed(text),
    }
}

/// Texts that are about to become values of a type: of moments, those with their seconds.
///
/// # Errors
/// None for arrays of texts.
pub fn whole_moments(texts: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    if !texts.data_type().is_string() || !matches!(to, DataType::Timestamp(..)) {
        return Ok(Arc::clone(texts));
    }
    let texts = cast(texts, &DataType::Utf8View)?;
    let texts = texts.as_any().downcast_ref::<StringViewArray>();
    let whole = texts
        .into_iter()
        .flatten()
        .map(|text| text.map(with_seconds));
    Ok(Arc::new(StringViewArray::from_iter(whole)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_get_their_seconds_and_nothing_else_does() {
        for (text, expected) in [
            ("2024-01-31 10:00", "2024-01-31 10:00:00"),
            ("2024-01-31T10:00Z", "2024-01-31T10:00:00Z"),
            ("2024-01-31 10:00+02:00", "2024-01-31 10:00:00+02:00"),
            ("2024-01-31 10:00:07", "2024-01-31 10:00:07"),
            ("2024-01-31", "2024-01-31"),
            ("2024-01-31 10:0", "2024-01-31 10:0"),
            ("2024-01-31 10:00ä", "2024-01-31 10:00ä"),
            ("ä024-01-31 10:00", "ä024-01-31 10:00"),
            ("", ""),
        ] {
            assert_eq!(with_seconds(text), expected);
        }
    }
}

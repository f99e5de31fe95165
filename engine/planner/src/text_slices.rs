//! `text[2]` and `text[1:3]`: characters of a text by their places, as of a list.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result};
use datafusion::functions::unicode;
use datafusion::functions_nested::extract::array_element_udf;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawFieldAccessExpr};
use datafusion::logical_expr::{Expr, ExprSchemable, GetFieldAccess, cast, lit, when};

/// Plans them; place it before the planner of lists, which takes every value for one.
#[derive(Debug)]
pub struct TextSlices;

impl ExprPlanner for TextSlices {
    fn plan_field_access(
        &self,
        access: RawFieldAccessExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawFieldAccessExpr>> {
        // DataFusion asks `nth_value` for an element of what `array_agg` gathers, which knows no such place.
        if let GetFieldAccess::ListIndex { key } = &access.field_access
            && matches!(&access.expr, Expr::AggregateFunction(call) if call.func.name() == "array_agg")
            && number(key).is_none_or(|place| place == 0)
        {
            let element = array_element_udf().call(vec![access.expr, *key.clone()]);
            return Ok(PlannerResult::Planned(element));
        }
        let data_type = access.expr.get_type(schema);
        if !data_type.is_ok_and(|of| of.is_string()) {
            return Ok(PlannerResult::Original(access));
        }
        let text = access.expr;
        let planned = match access.field_access {
            GetFieldAccess::ListIndex { key } => {
                let at = place(&text, *key);
                slice(text, at.clone(), at)?
            }
            GetFieldAccess::ListRange {
                start,
                stop,
                stride,
            } if *stride == lit(1i64) => {
                let (start, stop) = (place(&text, *start), place(&text, *stop));
                slice(text, start, stop)?
            }
            field_access => {
                return Ok(PlannerResult::Original(RawFieldAccessExpr {
                    expr: text,
                    field_access,
                }));
            }
        };
        Ok(PlannerResult::Planned(planned))
    }
}

/// A place that is a constant.
fn number(value: &Expr) -> Option<i64> {
    match value {
        Expr::Literal(value, _) => i64::try_from(value.clone()).ok(),
        Expr::Negative(value) => match value.as_ref() {
            Expr::Literal(value, _) => i64::try_from(value.clone()).ok().map(|n| -n),
            _ => None,
        },
        _ => None,
    }
}

/// A place from the front: -1 is the last character.
fn place(text: &Expr, place: Expr) -> Expr {
    if let Some(known @ 0..) = number(&place) {
        return lit(known);
    }
    let place = cast(place, DataType::Int64);
    let length = cast(
        unicode::expr_fn::character_length(text.clone()),
        DataType::Int64,
    );
    let from_back = length + place.clone() + lit(1i64);
    let case = when(place.clone().lt(lit(0i64)), from_back).otherwise(place.clone());
    case.unwrap_or(place)
}

/// Characters from a place to another; none where the second is before the first.
fn slice(text: Expr, start: Expr, stop: Expr) -> Result<Expr> {
    // The text once, where it can be: it may be a slice itself.
    if let (Some(from), Some(to)) = (number(&start), number(&stop)) {
        let count = to.saturating_sub(from).saturating_add(1).max(0);
        return Ok(unicode::expr_fn::substring(text, lit(from), lit(count)));
    }
    let count = stop.clone() - start.clone() + lit(1i64);
    let none = unicode::expr_fn::substring(text.clone(), lit(1i64), lit(0i64));
    let some = unicode::expr_fn::substring(text, start.clone(), count);
    when(stop.lt(start), none).otherwise(some)
}

//! `a / b` and `a % b` of a whole number of 64 bits without a sign and one with a sign: whole numbers, as of any two
//! others. DataFusion brings them to decimals, whose quotients have a fraction.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ExprSchemable, cast};
use datafusion::sql::sqlparser::ast::BinaryOperator;

/// What both are whole numbers of: twenty digits hold any of 64 bits.
const WHOLE: DataType = DataType::Decimal128(20, 0);

/// Plans them.
#[derive(Debug)]
pub(crate) struct WholeQuotients;

impl ExprPlanner for WholeQuotients {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        let divides = match expr.op {
            BinaryOperator::Divide => true,
            BinaryOperator::Modulo => false,
            _ => return Ok(PlannerResult::Original(expr)),
        };
        // What has no type yet is for the planner to say.
        let types = [&expr.left, &expr.right].map(|of| of.get_type(schema).ok());
        let has_both = match &types {
            [Some(DataType::UInt64), Some(other)] | [Some(other), Some(DataType::UInt64)] => {
                other.is_signed_integer()
            }
            _ => false,
        };
        if !has_both {
            return Ok(PlannerResult::Original(expr));
        }
        let (left, right) = (expr.left, expr.right);
        if is_not_negative(&left) || is_not_negative(&right) {
            let [left, right] = [left, right].map(|value| cast(value, DataType::UInt64));
            return Ok(PlannerResult::Planned(match divides {
                true => left / right,
                false => left % right,
            }));
        }
        let (left, right) = (cast(left, WHOLE), cast(right, WHOLE));
        let rest = left.clone() % right.clone();
        Ok(PlannerResult::Planned(match divides {
            true => cast((left - rest) / right, WHOLE),
            false => rest,
        }))
    }
}

/// Whether that is a constant with a sign, which could do without.
fn is_not_negative(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(ScalarValue::Int64(Some(0..)), _))
}

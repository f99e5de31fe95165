//! Arithmetic on whole numbers that may leave their type.
//!
//! DataFusion's wraps: 9223372036854775807 + 1 is -9223372036854775808. Where the values of a table do not
//! rule that out, a function that fails stands for the operation. The others stay what rules, filters of
//! scans and the store know.

use std::sync::{Arc, LazyLock};

use arrow::compute::kernels::numeric::{add, mul, sub};
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::error::ArrowError;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRewriter};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_datafusion_err, internal_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr_common::datum::apply;

use super::ranges::{Range, Scope, Values, computed, fits, limits};
use crate::tree::{has_part, map_named_expressions};
use crate::walk::{Walk as _, WalkPlan as _};

const NAME: &str = "flashmesh:arithmetic";

static ARITHMETIC: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    Arc::new(ScalarUDF::from(Arithmetic {
        signature: Signature::variadic_any(Volatility::Immutable),
    }))
});

/// The function that stands for operations: a node that runs a part of such a plan must know it.
pub fn function() -> Arc<ScalarUDF> {
    Arc::clone(&ARITHMETIC)
}

/// The rule; place it behind those that give types.
#[derive(Debug)]
pub struct CheckedArithmetic;

impl AnalyzerRule for CheckedArithmetic {
    fn name(&self) -> &str {
        "flashmesh_checked_arithmetic"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.change_up_with_subqueries(checked)?.data)
    }
}

fn checked(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !has_part(&node, computes)? {
        return Ok(Transformed::no(node));
    }
    let around = node.clone();
    let scope = Scope::of(&around);
    let changed = map_named_expressions(node, |expr| {
        expr.rewrite(&mut Checking {
            scope: &scope,
            values: Values::default(),
        })
    })?;
    match changed.transformed {
        true => changed.map_data(LogicalPlan::recompute_schema),
        false => Ok(changed),
    }
}

/// Whether an expression is an operation that can leave the type of its operands.
fn computes(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => sign(*op).is_some(),
        expr => matches!(expr, Expr::Negative(_)),
    }
}

/// The operation in [`Arithmetic`]'s first argument.
fn sign(op: Operator) -> Option<char> {
    match op {
        Operator::Plus => Some('+'),
        Operator::Minus => Some('-'),
        Operator::Multiply => Some('*'),
        _ => None,
    }
}

/// Has operations fail that may leave the type of their operands.
struct Checking<'a, 'b> {
    scope: &'b Scope<'a>,
    values: Values,
}

impl TreeNodeRewriter for Checking<'_, '_> {
    type Node = Expr;

    fn f_up(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        let operands = self.values.step(&expr, self.scope)?;
        if !computes(&expr) {
            return Ok(Transformed::no(expr));
        }
        let known = |operand: &Expr, at: usize| self.scope.known(operand, operands.get(at)?);
        Ok(match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let known = known(&left, 0).zip(known(&right, 1));
                let may_leave = known.is_some_and(|((of, left), (other, right))| {
                    // Else it is an operation on other types.
                    of == other && leaves(&of, left, op, right)
                });
                match sign(op).filter(|_| may_leave) {
                    Some(sign) => Transformed::yes(appended(*left, sign, *right)),
                    None => {
                        let kept = BinaryExpr { left, op, right };
                        Transformed::no(Expr::BinaryExpr(kept))
                    }
                }
            }
            Expr::Negative(negated) => match known(&negated, 0) {
                Some((of, range))
                    if of.is_signed_integer() && leaves(&of, (0, 0), Operator::Minus, range) =>
                {
                    let zero = lit(ScalarValue::new_zero(&of)?);
                    Transformed::yes(appended(zero, '-', *negated))
                }
                _ => Transformed::no(Expr::Negative(negated)),
            },
            other => Transformed::no(other),
        })
    }
}

/// Whether what an operation on values of a type of whole numbers gives may be no value of it.
fn leaves(of: &DataType, left: Range, op: Operator, right: Range) -> bool {
    let ends = computed(left, op, right).zip(limits(of));
    !ends.is_some_and(|(range, limits)| fits(range, limits))
}

/// An operation that fails. Where its left side is one, too, both are one call: calls within calls take more
/// of the stack than operators do, of which there may be a thousand.
fn appended(left: Expr, sign: char, right: Expr) -> Expr {
    let mut args = match left {
        Expr::ScalarFunction(call) if call.name() == NAME => call.args,
        left => vec![lit(""), left],
    };
    if let Expr::Literal(ScalarValue::Utf8(Some(signs)), _) = &mut args[0] {
        signs.push(sign);
    }
    args.push(right);
    Expr::ScalarFunction(ScalarFunction::new_udf(function(), args))
}

/// Computes from left to right: `flashmesh:arithmetic('+*', a, b, c)` is `(a + b) * c`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Arithmetic {
    signature: Signature,
}

impl ScalarUDFImpl for Arithmetic {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [DataType::Utf8, first, others @ ..] if others.iter().all(|other| other == first) => {
                Ok(first.clone())
            }
            _ => internal_err!("{NAME} takes operations and values of one type"),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let fields = args.arg_fields.iter();
        let types: Vec<_> = fields
            .clone()
            .map(|field| field.data_type().clone())
            .collect();
        let is_nullable = fields.skip(1).any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(
            NAME,
            self.return_type(&types)?,
            is_nullable,
        )))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [
            ColumnarValue::Scalar(ScalarValue::Utf8(Some(signs))),
            first,
            others @ ..,
        ] = args.args.as_slice()
        else {
            return internal_err!("{NAME} takes operations as a constant");
        };
        let mut value = first.clone();
        for (sign, other) in signs.chars().zip(others) {
            let computed = match sign {
                '+' => apply(&value, other, add),
                '-' => apply(&value, other, sub),
                '*' => apply(&value, other, mul),
                _ => return internal_err!("{NAME} knows no operation {sign}"),
            };
            value = computed.map_err(|error| out_of_range(error, args.return_field.data_type()))?;
        }
        Ok(value)
    }
}

fn out_of_range(error: DataFusionError, of: &DataType) -> DataFusionError {
    match error {
        DataFusionError::ArrowError(inner, trace) => match *inner {
            ArrowError::ArithmeticOverflow(what) => {
                let what = what.trim_start_matches("Overflow happened on: ");
                exec_datafusion_err!(
                    "{what} is out of range of {of}; CAST an operand to a wider type, as DECIMAL(38, 0)"
                )
            }
            other => DataFusionError::ArrowError(Box::new(other), trace),
        },
        other => other,
    }
}

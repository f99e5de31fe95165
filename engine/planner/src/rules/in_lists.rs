//! Lists beside other lists of the same column.
//!
//! DataFusion makes one list of two (`x IN (…) AND x NOT IN (…)`: what is in the first and not in the
//! second; a list may be `x = 1 OR x = 2`, too) as if neither elements nor `x` were NULL, and as if two
//! expressions were equal only where they are written alike. So lists are made one here, before: where
//! nothing is left of them the answer is still NULL for a NULL; a NULL among the elements is taken out
//! and stands beside the list; elements that are no constants become comparisons of their own.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::utils::{conjunction, disjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, lit};
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::tree::{change_parts, map_named_expressions};
use crate::walk::Walk as _;

/// The rule; place it before `simplify_expressions`.
#[derive(Debug)]
pub struct Lists;

impl OptimizerRule for Lists {
    fn name(&self) -> &str {
        "flashmesh_lists"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        map_named_expressions(plan, |expr| {
            let compared = compared_twice(&expr)?;
            if compared.is_empty() {
                return Ok(Transformed::no(expr));
            }
            expr.transform_up(|expr| {
                Ok(match expr {
                    // A list by itself stays as it is: an index may answer it.
                    Expr::InList(list) if compared.contains(&list.expr) => by_itself(list),
                    Expr::Not(inner) => match *inner {
                        Expr::InList(mut list) => {
                            list.negated = !list.negated;
                            Transformed::yes(Expr::InList(list))
                        }
                        inner => Transformed::no(Expr::Not(Box::new(inner))),
                    },
                    Expr::BinaryExpr(pair) => match merged(&pair) {
                        Some(one) => Transformed::yes(one),
                        None => Transformed::no(Expr::BinaryExpr(pair)),
                    },
                    other => Transformed::no(other),
                })
            })
        })
    }
}

/// Gives lists of floats with a zero the other one, too: a long list is looked up by the floats' bits. Place it behind
/// the rules that give types.
#[derive(Debug)]
pub struct TwoZeros;

impl AnalyzerRule for TwoZeros {
    fn name(&self) -> &str {
        "flashmesh_two_zeros"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_list = |expr: &Expr| matches!(expr, Expr::InList(_));
        change_parts(plan, is_list, |expr, schema| {
            expr.transform_up(|expr| {
                let Expr::InList(mut list) = expr else {
                    return Ok(Transformed::no(expr));
                };
                let zeros = match list.expr.get_type(schema)? {
                    DataType::Float64 => [0.0, -0.0].map(ScalarValue::from),
                    DataType::Float32 => [0.0_f32, -0.0].map(ScalarValue::from),
                    _ => return Ok(Transformed::no(Expr::InList(list))),
                };
                let elements: Vec<_> = list.list.iter().filter_map(constant).collect();
                let [plus, minus] = zeros.map(lit);
                let missing = match (elements.contains(&plus), elements.contains(&minus)) {
                    (true, false) => minus,
                    (false, true) => plus,
                    _ => return Ok(Transformed::no(Expr::InList(list))),
                };
                list.list.push(missing);
                Ok(Transformed::yes(Expr::InList(list)))
            })
        })
    }
}

/// What is compared more than once with lists and single values.
fn compared_twice(expr: &Expr) -> Result<Vec<Expr>> {
    let (mut once, mut twice) = (Vec::new(), Vec::new());
    expr.apply(|expr| {
        let compared = match expr {
            Expr::InList(list) => list.expr.as_ref(),
            other => match of_one_value(other) {
                Some((column, _)) => column,
                None => return Ok(TreeNodeRecursion::Continue),
            },
        };
        if once.contains(&compared) {
            twice.push(compared.clone());
        }
        once.push(compared);
        Ok(TreeNodeRecursion::Continue)
    })?;
    twice.retain(|expr| !expr.is_volatile());
    Ok(twice)
}

/// `column = constant`
fn of_one_value(expr: &Expr) -> Option<(&Expr, Expr)> {
    let Expr::BinaryExpr(BinaryExpr {
        left,
        op: Operator::Eq,
        right,
    }) = expr
    else {
        return None;
    };
    match (left.as_ref(), right.as_ref()) {
        (column @ Expr::Column(_), value) | (value, column @ Expr::Column(_)) => {
            Some((column, constant(value)?))
        }
        _ => None,
    }
}

/// A constant as a literal: casts are computed only later.
fn constant(expr: &Expr) -> Option<Expr> {
    match expr {
        Expr::Literal(..) => Some(expr.clone()),
        Expr::Cast(cast) => match constant(&cast.expr)? {
            Expr::Literal(value, metadata) => {
                let value = value.cast_to(cast.field.data_type()).ok()?;
                Some(Expr::Literal(value, metadata))
            }
            _ => None,
        },
        _ => None,
    }
}

fn is_null(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(value, _) if value.is_null())
}

fn is_constant(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(value, _) if !value.is_null())
}

/// A list of constants that are not NULL, and the rest beside it: `x IN (rest) OR NULL`,
/// `x NOT IN (rest) AND x <> y`.
fn by_itself(list: InList) -> Transformed<Expr> {
    let InList {
        expr,
        list,
        negated,
    } = list;
    let list = list.into_iter();
    let list = list.map(|element| constant(&element).unwrap_or(element));
    let (constants, others): (Vec<_>, Vec<_>) = list.partition(is_constant);
    let of_constants = (!constants.is_empty()).then(|| InList {
        expr: expr.clone(),
        list: constants,
        negated,
    });
    let single = others
        .into_iter()
        .map(|element| match (is_null(&element), negated) {
            (true, _) => lit(ScalarValue::Boolean(None)),
            (false, true) => expr.as_ref().clone().not_eq(element),
            (false, false) => expr.as_ref().clone().eq(element),
        });
    let parts = of_constants.map(Expr::InList).into_iter().chain(single);
    let whole = match negated {
        true => conjunction(parts),
        false => disjunction(parts),
    };
    // A list has an element.
    Transformed::yes(whole.unwrap_or_else(|| lit(negated)))
}

/// An expression as a list of constants that are not NULL.
fn as_list(expr: &Expr) -> Option<InList> {
    let list = match expr {
        Expr::InList(list) if !list.expr.is_volatile() => list.clone(),
        other => {
            let (column, value) = of_one_value(other)?;
            InList::new(Box::new(column.clone()), vec![value], false)
        }
    };
    list.list.iter().all(is_constant).then_some(list)
}

/// Two lists as one, where DataFusion would do it.
fn merged(pair: &BinaryExpr) -> Option<Expr> {
    if !matches!(pair.op, Operator::And | Operator::Or) {
        return None;
    }
    let (left, right) = (as_list(&pair.left)?, as_list(&pair.right)?);
    // Of single values DataFusion makes a list where they stand beside others, and compares them by
    // themselves where both have to be.
    let is_single = |expr: &Expr| matches!(expr, Expr::BinaryExpr(_));
    let stays = pair.op == Operator::And && (is_single(&pair.left) || is_single(&pair.right));
    if left.expr != right.expr || stays {
        return None;
    }
    let both = |left: &InList, right: &InList, is_kept: fn(bool) -> bool| {
        let kept = left.list.iter();
        let kept = kept.filter(|element| is_kept(right.list.contains(element)));
        kept.cloned().collect::<Vec<_>>()
    };
    let (list, negated) = match (pair.op, left.negated, right.negated) {
        (Operator::Or, false, false) | (Operator::And, true, true) => {
            let mut all = left.list.clone();
            all.extend(both(&right, &left, |is_in_both| !is_in_both));
            (all, left.negated)
        }
        (Operator::And, false, false) | (Operator::Or, true, true) => {
            (both(&left, &right, |is_in_both| is_in_both), left.negated)
        }
        (Operator::And, false, true) => (both(&left, &right, |is_in_both| !is_in_both), false),
        (Operator::And, true, false) => (both(&right, &left, |is_in_both| !is_in_both), false),
        _ => return None,
    };
    let null = lit(ScalarValue::Boolean(None));
    Some(match (list.is_empty(), negated) {
        (false, _) => Expr::InList(InList::new(left.expr, list, negated)),
        (true, true) => left.expr.is_not_null().or(null),
        (true, false) => left.expr.is_null().and(null),
    })
}

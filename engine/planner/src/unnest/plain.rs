//! Subqueries of which DataFusion makes joins that give the same.
//!
//! It takes the conditions that use columns of the query around a subquery out of it, and makes them those of
//! the join. That changes what is counted, cut off, numbered or padded with NULLs between the conditions and
//! the subquery's rows.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, JoinType, Result};
use datafusion::logical_expr::utils::{merge_schema, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, FetchType, LogicalPlan, Operator, SkipType};

use super::outer::{outer_columns, outer_columns_of_node, subquery_of};

/// What of a subquery is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Its one value.
    Value,
    /// Whether there are rows.
    Exists,
    /// Its values.
    OfValues,
}

/// Whether a plan is of one row whatever its tables have: an aggregate without groups.
pub(super) fn gives_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => gives_one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => gives_one_row(&alias.input),
        LogicalPlan::Sort(sort) => sort.fetch.is_none() && gives_one_row(&sort.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        _ => false,
    }
}

/// Whether DataFusion makes a right join of such a subquery; `outer` is the schema of the query around it.
///
/// # Errors
/// Those of walking.
pub(super) fn is_plain(plan: &LogicalPlan, outer: &DFSchema, kind: Kind) -> Result<bool> {
    Plain { outer, kind }.is(plan, true)
}

struct Plain<'a> {
    outer: &'a DFSchema,
    kind: Kind,
}

impl Plain<'_> {
    /// `is_top`: only projections are between the plan and the subquery's rows.
    fn is(&self, plan: &LogicalPlan, is_top: bool) -> Result<bool> {
        if outer_columns(plan, self.outer)?.is_empty() {
            return Ok(self.kind != Kind::Value || !is_top);
        }
        if !self.has_plain_subqueries(plan)? {
            return Ok(false);
        }
        let uses_none =
            || -> Result<bool> { Ok(outer_columns_of_node(plan, self.outer)?.is_empty()) };
        let uses = |side: &LogicalPlan| -> Result<bool> {
            Ok(!outer_columns(side, self.outer)?.is_empty())
        };
        // Not below a name: DataFusion loses columns there.
        Ok(match plan {
            LogicalPlan::Filter(filter) => {
                // A condition on groups can't be taken out.
                let is_of_groups = matches!(*filter.input, LogicalPlan::Aggregate(_));
                (!is_of_groups || uses_none()?) && self.is(&filter.input, is_top && is_of_groups)?
            }
            LogicalPlan::Projection(projection) => {
                uses_none()? && self.is(&projection.input, is_top)?
            }
            // Whether there are rows does not depend on how many of them are looked at.
            LogicalPlan::Limit(limit) => {
                self.kind == Kind::Exists
                    && is_top
                    && matches!(limit.get_skip_type()?, SkipType::Literal(0))
                    && !matches!(limit.get_fetch_type()?, FetchType::Literal(Some(0)))
                    && self.is(&limit.input, false)?
            }
            LogicalPlan::Aggregate(aggregate) => {
                let is_one = aggregate.group_expr.is_empty();
                (self.kind == Kind::Value) == is_one
                    && (is_top || !is_one)
                    && uses_none()?
                    && are_equalities(plan)?
                    && self.is(&aggregate.input, false)?
            }
            LogicalPlan::Join(join) => {
                let (left, right) = (&join.left, &join.right);
                let may_left = matches!(
                    join.join_type,
                    JoinType::Inner
                        | JoinType::Left
                        | JoinType::LeftSemi
                        | JoinType::LeftAnti
                        | JoinType::LeftMark
                );
                let may_right = matches!(
                    join.join_type,
                    JoinType::Inner
                        | JoinType::Right
                        | JoinType::RightSemi
                        | JoinType::RightAnti
                        | JoinType::RightMark
                );
                uses_none()?
                    && (!uses(left)? || (may_left && self.is(left, false)?))
                    && (!uses(right)? || (may_right && self.is(right, false)?))
            }
            _ => false,
        })
    }

    /// Whether the subqueries in a node's expressions use nothing of the query that is asked about, and are
    /// plain ones where what they would be computed from does.
    fn has_plain_subqueries(&self, node: &LogicalPlan) -> Result<bool> {
        let schema = merge_schema(&node.inputs());
        let mut uses_below = false;
        for input in node.inputs() {
            uses_below |= !outer_columns(input, self.outer)?.is_empty();
        }
        let mut is_plain_node = true;
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                let Some(subquery) = subquery_of(expr) else {
                    return Ok(TreeNodeRecursion::Continue);
                };
                let plan = &subquery.subquery;
                let kind = match expr {
                    Expr::ScalarSubquery(_) => Kind::Value,
                    Expr::Exists(_) => Kind::Exists,
                    _ => Kind::OfValues,
                };
                let further = outer_columns(plan, self.outer)?;
                let is_own = further.iter().all(|column| schema.has_column(column));
                let needs_none = !uses_below || outer_columns(plan, &schema)?.is_empty();
                let is_left = kind != Kind::Value
                    || matches!(node, LogicalPlan::Projection(_) | LogicalPlan::Filter(_));
                is_plain_node &=
                    is_own && (needs_none || (is_left && is_plain(plan, &schema, kind)?));
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(is_plain_node)
    }
}

/// Whether what stands below an aggregate is compared with the query around it by equality alone: groups are
/// those of each such value then.
fn are_equalities(plan: &LogicalPlan) -> Result<bool> {
    let has_other = plan.exists(|node| {
        let LogicalPlan::Filter(filter) = node else {
            return Ok(false);
        };
        let mut related = split_conjunction(&filter.predicate)
            .into_iter()
            .filter(|condition| condition.contains_outer());
        Ok(related.any(|condition| !is_equality(condition)))
    })?;
    Ok(!has_other)
}

/// Whether a condition is a column's equality with something of the query around it.
fn is_equality(condition: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr {
        left,
        op: Operator::Eq,
        right,
    }) = condition
    else {
        return false;
    };
    let is_own = |side: &Expr| matches!(side, Expr::Column(_));
    let is_outer = |side: &Expr| !side.any_column_refs();
    (is_own(left) && is_outer(right)) || (is_own(right) && is_outer(left))
}

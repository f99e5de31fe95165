//! Subqueries of which DataFusion makes joins that give the same.
//!
//! It takes the conditions that use columns of the query around a subquery out of it, and makes them those of
//! the join. That changes what is counted, cut off, numbered or padded with NULLs between the conditions and
//! the subquery's rows.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, DFSchema, JoinType, NullEquality, Result};
use datafusion::logical_expr::utils::{merge_schema, split_conjunction};
use datafusion::logical_expr::{
    BinaryExpr, Cast, Expr, ExprSchemable, FetchType, LogicalPlan, Operator, SkipType,
};

use super::outer::{outer_columns, outer_columns_of_node};
use crate::tree::{cast_of, has_subquery, subquery_of};
use crate::walk::{Walk as _, WalkPlan as _};

/// What of a subquery is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Its one value.
    Value,
    /// Whether there are rows.
    Exists,
    /// Its values.
    OfValues,
    /// Its rows, beside those of the query around it.
    Rows,
}

impl Kind {
    /// What an expression asks of the subquery that it is.
    pub fn of(expr: &Expr) -> Self {
        match expr {
            Expr::ScalarSubquery(_) => Self::Value,
            Expr::Exists(_) => Self::Exists,
            _ => Self::OfValues,
        }
    }
}

/// Whether a plan is of one row whatever its tables have: an aggregate without groups.
pub(crate) fn gives_one_row(plan: &LogicalPlan) -> bool {
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
    Ok(keeps_names_apart(plan)? && Plain::new(outer, kind, false).is(plan, true)?)
}

/// Whether DataFusion makes a right join of it, or none: it loses columns below names at times.
///
/// # Errors
/// Those of walking.
pub(super) fn is_right(plan: &LogicalPlan, outer: &DFSchema, kind: Kind) -> Result<bool> {
    Ok(keeps_names_apart(plan)? && Plain::new(outer, kind, true).is(plan, true)?)
}

/// Whether the columns that conditions compare with those of the query around it, and those that the subquery
/// gives, have names of their own: DataFusion gives them all one qualifier, and takes one for the other.
fn keeps_names_apart(plan: &LogicalPlan) -> Result<bool> {
    // Each with whether it is that column, or something that is called like it.
    let mut known: Vec<(Column, bool)> = match plan {
        LogicalPlan::Projection(projection) => {
            let columns = projection.schema.columns().into_iter();
            let columns = columns.zip(&projection.expr);
            let known = columns.map(|(column, expr)| match cast_column(expr) {
                // A cast is called like what it casts.
                Some(cast) => (cast.clone(), false),
                None => (column, matches!(expr, Expr::Column(_))),
            });
            known.collect()
        }
        plan => { plan.schema().columns().into_iter() }
            .map(|column| (column, true))
            .collect(),
    };
    let mut are_apart = true;
    plan.apply(|node| {
        let LogicalPlan::Filter(filter) = node else {
            return Ok(TreeNodeRecursion::Continue);
        };
        let conditions = split_conjunction(&filter.predicate).into_iter();
        for condition in conditions.filter(|condition| condition.contains_outer()) {
            for column in condition.column_refs() {
                let mut twins = known.iter().filter(|(one, _)| one.name == column.name);
                are_apart &= twins.all(|(one, is_it)| *is_it && one.relation == column.relation);
                known.push((column.clone(), true));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(are_apart)
}

/// The column that is cast.
fn cast_column(expr: &Expr) -> Option<&Column> {
    match cast_of(expr)?.0 {
        Expr::Column(column) => Some(column),
        inner => cast_column(inner),
    }
}

struct Plain<'a> {
    outer: &'a DFSchema,
    kind: Kind,
    takes_names: bool,
}

impl<'a> Plain<'a> {
    fn new(outer: &'a DFSchema, kind: Kind, takes_names: bool) -> Self {
        Self {
            outer,
            kind,
            takes_names,
        }
    }

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
        Ok(match plan {
            // A condition on groups can't be taken out, and that of a value is lost.
            LogicalPlan::Filter(filter) if matches!(*filter.input, LogicalPlan::Aggregate(_)) => {
                !matches!(self.kind, Kind::Rows | Kind::Value)
                    && uses_none()?
                    && self.is(&filter.input, is_top)?
            }
            LogicalPlan::Filter(filter) => {
                // What is taken out of it takes its subqueries along, of which no joins are made any more.
                let mut conditions = split_conjunction(&filter.predicate).into_iter();
                let takes_any =
                    conditions.any(|one| one.contains_outer() && has_subquery(one).unwrap_or(true));
                !takes_any
                    && (self.kind != Kind::Value || !is_top)
                    && self.is(&filter.input, false)?
            }
            LogicalPlan::SubqueryAlias(alias) if self.takes_names => {
                self.is(&alias.input, is_top)?
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
                // Of a column that is an aggregate, DataFusion makes two of one name.
                matches!(self.kind, Kind::Value | Kind::Rows) == is_one
                    && (is_one || self.kind == Kind::Exists)
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
                // Sets compare whole rows, and may number them.
                (self.kind != Kind::Value || !is_top)
                    && join.null_equality == NullEquality::NullEqualsNothing
                    && uses_none()?
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
        node.walk_expressions(|expr| {
            expr.apply(|expr| {
                let Some(subquery) = subquery_of(expr) else {
                    return Ok(TreeNodeRecursion::Continue);
                };
                let plan = &subquery.subquery;
                let kind = Kind::of(expr);
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
        Ok(related.any(|condition| !is_equality(condition, filter.input.schema())))
    })?;
    Ok(!has_other)
}

/// Whether a condition is a column's equality with something of the query around it.
fn is_equality(condition: &Expr, schema: &DFSchema) -> bool {
    let Expr::BinaryExpr(BinaryExpr {
        left,
        op: Operator::Eq,
        right,
    }) = condition
    else {
        return false;
    };
    let is_own = |side: &Expr| match side {
        Expr::Column(_) => true,
        Expr::Cast(Cast { expr, field }) => {
            let from = expr.get_type(schema);
            matches!(expr.as_ref(), Expr::Column(_))
                && from.is_ok_and(|from| keeps_apart(&from, field.data_type()))
        }
        _ => false,
    };
    let is_outer = |side: &Expr| !side.any_column_refs();
    (is_own(left) && is_outer(right)) || (is_own(right) && is_outer(left))
}

/// Whether different values of one type stay different as values of another.
fn keeps_apart(from: &DataType, to: &DataType) -> bool {
    let width = |data_type: &DataType| data_type.primitive_width().unwrap_or(0);
    match to {
        DataType::Decimal128(_, 0..) => from.is_integer(),
        DataType::Float64 => (from.is_integer() && width(from) <= 4) || *from == DataType::Float32,
        DataType::Timestamp(..) => matches!(from, DataType::Date32),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => from.is_string(),
        to => to.is_integer() && from.is_integer() && width(from) < width(to),
    }
}

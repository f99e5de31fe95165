//! Set operations with ALL.

use datafusion::sql::sqlparser::ast::{SetExpr, SetOperator, SetQuantifier, TableFactor};
use flashmesh_planner::rules::SIDE_OF_ALL;

use super::parsed;
use crate::error::Result;

/// Gives the right sides of EXCEPT ALL and INTERSECT ALL the name by which the planner's rule
/// knows them ([`flashmesh_planner::rules::Multisets`]).
///
/// # Errors
/// None that a user can bring about.
pub(super) fn name_sides(body: &mut SetExpr) -> Result<()> {
    let SetExpr::SetOperation {
        op,
        set_quantifier,
        left,
        right,
    } = body
    else {
        return Ok(());
    };
    name_sides(left)?;
    name_sides(right)?;
    let counts_rows = matches!(
        op,
        SetOperator::Except | SetOperator::Minus | SetOperator::Intersect
    ) && *set_quantifier == SetQuantifier::All;
    if !counts_rows {
        return Ok(());
    }
    let text = format!("SELECT * FROM (SELECT 1) AS {SIDE_OF_ALL}");
    let mut query = parsed(&text, |parser| parser.parse_query())?;
    if let SetExpr::Select(select) = query.body.as_mut()
        && let [from] = select.from.as_mut_slice()
        && let TableFactor::Derived { subquery, .. } = &mut from.relation
    {
        std::mem::swap(&mut subquery.body, right);
    }
    **right = SetExpr::Query(query);
    Ok(())
}

//! `FROM (VALUES …)`. Within an INSERT or a CREATE TABLE with columns the planner gives all VALUES the types of
//! that table's columns, also those that are read by the query whose rows are inserted.

use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::{Query, SetExpr, TableFactor};

/// Plans a relation that is nothing else, with types of its own.
pub(super) fn plan(
    relation: TableFactor,
    context: &mut dyn RelationPlannerContext,
) -> Result<RelationPlanning> {
    let (query, alias) = match relation {
        TableFactor::Derived {
            lateral: false,
            subquery,
            alias,
            sample: None,
        } if are_all_of(&subquery) => (subquery, alias),
        other => return Ok(RelationPlanning::Original(Box::new(other))),
    };
    let SetExpr::Values(values) = *query.body else {
        return internal_err!("a query of VALUES has none");
    };
    let empty = DFSchema::empty();
    let rows = values.rows.into_iter().map(|row| {
        let fields = row.content.into_iter();
        fields
            .map(|field| context.sql_to_expr(field, &empty))
            .collect::<Result<Vec<Expr>>>()
    });
    let rows = rows.collect::<Result<Vec<_>>>()?;
    let plan = LogicalPlanBuilder::values(rows)?.build()?;
    let planned = PlannedRelation::new(plan, alias);
    Ok(RelationPlanning::Planned(Box::new(planned)))
}

fn are_all_of(query: &Query) -> bool {
    let Query {
        with: None,
        body,
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: _,
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators,
    } = query
    else {
        return false;
    };
    let has_rows = matches!(body.as_ref(), SetExpr::Values(values) if !values.value_keyword);
    has_rows && pipe_operators.is_empty()
}

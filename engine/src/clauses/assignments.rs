//! `SET (a, b) = (1, 2)`, `SET (a, b) = (SELECT x, y FROM …)`: several columns at once, which the planner does not
//! take.

use datafusion::sql::sqlparser::ast::{
    Assignment, AssignmentTarget, Expr, Merge, MergeAction, ObjectName, OnConflict,
    OnConflictAction, OnInsert, Query, SelectItem, SetExpr, Statement, Update,
};

use super::refuse;
use crate::error::{Error, Result};

/// Says each such assignment column by column, wherever a statement has any.
///
/// # Errors
/// [`Error::Usage`] where there are not as many values as columns, or where one can't tell.
pub(super) fn column_by_column(statement: &mut Statement) -> Result<()> {
    match statement {
        Statement::Update(Update { assignments, .. }) => spread(assignments),
        Statement::Insert(insert) => match &mut insert.on {
            Some(OnInsert::OnConflict(OnConflict {
                action: OnConflictAction::DoUpdate(update),
                ..
            })) => spread(&mut update.assignments),
            _ => Ok(()),
        },
        Statement::Merge(Merge { clauses, .. }) => {
            for clause in clauses {
                if let MergeAction::Update(update) = &mut clause.action {
                    spread(&mut update.assignments)?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn spread(assignments: &mut Vec<Assignment>) -> Result<()> {
    let is_row = |one: &Assignment| matches!(one.target, AssignmentTarget::Tuple(_));
    if !assignments.iter().any(is_row) {
        return Ok(());
    }
    for Assignment { target, value } in std::mem::take(assignments) {
        let columns = match target {
            AssignmentTarget::Tuple(columns) => columns,
            target => {
                assignments.push(Assignment { target, value });
                continue;
            }
        };
        let values = values_of(value, &columns)?;
        if values.len() != columns.len() {
            let (values, columns) = (values.len(), columns.len());
            return Err(Error::usage(format!(
                "SET of {columns} columns to {values} values"
            )));
        }
        let each = columns.into_iter().zip(values);
        assignments.extend(each.map(|(column, value)| Assignment {
            target: AssignmentTarget::ColumnName(column),
            value,
        }));
    }
    Ok(())
}

/// The value of each column.
fn values_of(value: Expr, columns: &[ObjectName]) -> Result<Vec<Expr>> {
    match value {
        Expr::Tuple(values) => Ok(values),
        Expr::Subquery(query) => Ok(queries_of(*query)?),
        Expr::Nested(inner) if matches!(*inner, Expr::Tuple(_) | Expr::Subquery(_)) => {
            values_of(*inner, columns)
        }
        // `SET (a) = 1`.
        value if columns.len() == 1 => Ok(vec![value]),
        _ => refuse(
            "SET of several columns to such a value",
            "write (value, …) or (SELECT value, … FROM …)",
        ),
    }
}

/// A query of one row as a query of each of its columns.
fn queries_of(query: Query) -> Result<Vec<Expr>> {
    let instead = "name the columns, or join by UPDATE … FROM";
    let SetExpr::Select(select) = query.body.as_ref() else {
        return refuse("SET of several columns to a set operation", instead);
    };
    let is_plain = |item: &SelectItem| {
        matches!(
            item,
            SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. }
        )
    };
    if select.distinct.is_some() || !select.projection.iter().all(is_plain) {
        return refuse("SET of several columns to DISTINCT or *", instead);
    }
    let places = 0..select.projection.len();
    let queries = places.map(|place| {
        let mut query = query.clone();
        if let SetExpr::Select(select) = query.body.as_mut() {
            select.projection = vec![select.projection.swap_remove(place)];
        }
        Expr::Subquery(Box::new(query))
    });
    Ok(queries.collect())
}

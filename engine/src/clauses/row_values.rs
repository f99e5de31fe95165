//! Comparisons of rows, `(a, b) < (1, 2)`, of which the planner makes comparisons of structs: there NULL is a
//! value like others, and the least one.

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Ident, SetExpr, TableFactor, UnaryOperator, Value,
};

use super::{columns_of, parsed};
use crate::error::{Error, Result};

/// Says such a comparison by its fields: `a < 1 OR a = 1 AND b < 2`, and so each row of a short list.
pub(super) fn by_fields(expr: &mut Expr) {
    let said = match &*expr {
        Expr::BinaryOp { left, op, right } => of_rows(left, op, right),
        Expr::InList {
            expr,
            list,
            negated,
        } if list.len() <= LIST_MAX => {
            let tests = list
                .iter()
                .map(|row| of_rows(expr, &BinaryOperator::Eq, row));
            let tests: Option<Vec<_>> = tests.collect();
            let any = tests.into_iter().flatten();
            let any = any.reduce(|any, one| joined(any, BinaryOperator::Or, one));
            match negated {
                true => any.map(|any| Expr::UnaryOp {
                    op: UnaryOperator::Not,
                    expr: Box::new(Expr::Nested(Box::new(any))),
                }),
                false => any,
            }
        }
        _ => None,
    };
    if let Some(said) = said {
        *expr = Expr::Nested(Box::new(said));
    }
}

/// Rows of a list that are compared each by itself; of longer lists the planner makes a set.
const LIST_MAX: usize = 64;

fn of_rows(left: &Expr, op: &BinaryOperator, right: &Expr) -> Option<Expr> {
    let (Expr::Tuple(left), Expr::Tuple(right)) = (bare(left), bare(right)) else {
        return None;
    };
    if left.is_empty() || left.len() != right.len() {
        return None;
    }
    let fields: Vec<_> = left.iter().zip(right.iter()).collect();
    compared(op, &fields)
}

fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => bare(inner),
        other => other,
    }
}

/// `None` of other operators.
fn compared(op: &BinaryOperator, fields: &[(&Expr, &Expr)]) -> Option<Expr> {
    use BinaryOperator::{And, Eq, Gt, GtEq, Lt, LtEq, NotEq, Or};
    let each = |op: BinaryOperator, by: BinaryOperator| {
        let tests = fields.iter().map(|field| test(field, op.clone()));
        tests.reduce(|all, one| joined(all, by.clone(), one))
    };
    let strict = match op {
        Eq => return each(Eq, And),
        NotEq => return each(NotEq, Or),
        Lt | LtEq => Lt,
        Gt | GtEq => Gt,
        _ => return None,
    };
    let (last, before) = fields.split_last()?;
    let rest = test(last, op.clone());
    Some(before.iter().rev().fold(rest, |rest, field| {
        let tied = joined(test(field, Eq), And, rest);
        joined(test(field, strict.clone()), Or, tied)
    }))
}

fn test((left, right): &(&Expr, &Expr), op: BinaryOperator) -> Expr {
    joined((*left).clone(), op, (*right).clone())
}

fn joined(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    let nested = |expr| match expr {
        plain @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Nested(_)) => plain,
        Expr::Value(value) if !matches!(value.value, Value::Placeholder(_)) => Expr::Value(value),
        other => Expr::Nested(Box::new(other)),
    };
    Expr::BinaryOp {
        left: Box::new(nested(left)),
        op,
        right: Box::new(nested(right)),
    }
}

/// Says `(a, b) IN (SELECT …)` of a condition as EXISTS, as the planner looks for one value alone. Of a condition
/// counts where it is TRUE, so this goes through AND and OR, and no deeper.
///
/// # Errors
/// Where the query has another number of columns than the row.
pub(super) fn by_existence(condition: &mut Expr) -> Result<()> {
    match condition {
        Expr::Nested(inner) => by_existence(inner),
        Expr::BinaryOp {
            left,
            op: BinaryOperator::And | BinaryOperator::Or,
            right,
        } => {
            by_existence(left)?;
            by_existence(right)
        }
        Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr,
        } => {
            let mut inner = expr.as_mut();
            while let Expr::Nested(nested) = inner {
                inner = nested;
            }
            if let Expr::InSubquery { negated, .. } = inner {
                *negated = !*negated;
                *condition = inner.clone();
            }
            existence(condition)
        }
        _ => existence(condition),
    }
}

fn existence(condition: &mut Expr) -> Result<()> {
    let Expr::InSubquery {
        expr,
        subquery,
        negated,
    } = &*condition
    else {
        return Ok(());
    };
    let Expr::Tuple(fields) = bare(expr) else {
        return Ok(());
    };
    if let Some(columns) = columns_of(&subquery.body).filter(|columns| *columns != fields.len()) {
        return Err(Error::usage(format!(
            "a row of {} values IN a query of {columns} columns",
            fields.len()
        )));
    }
    let column = |place| Ident::new(format!("{FIELD}{place}"));
    let columns = (0..fields.len()).map(|place| column(place).value);
    let columns: Vec<_> = columns.collect();
    // What is compared is put in behind: it is of the query around.
    let text = format!(
        "EXISTS (SELECT 1 FROM (SELECT 1) AS {ROW} ({}) WHERE TRUE)",
        columns.join(", ")
    );
    let mut exists = parsed(&text, |parser| parser.parse_expr())?;
    let sides = fields.iter().enumerate().map(|(place, field)| {
        let of_query = Expr::CompoundIdentifier(vec![Ident::new(ROW), column(place)]);
        joined(of_query, BinaryOperator::Eq, field.clone())
    });
    let mut test = sides.reduce(|all, one| joined(all, BinaryOperator::And, one));
    if *negated {
        // Not in a query is what differs from all of its rows, and may differ from none by NULL.
        test = test.map(|test| Expr::IsNotFalse(Box::new(Expr::Nested(Box::new(test)))));
    }
    if let Expr::Exists {
        subquery: looking,
        negated: is_none,
    } = &mut exists
        && let SetExpr::Select(select) = looking.body.as_mut()
    {
        *is_none = *negated;
        select.selection = test;
        if let Some(table) = select.from.first_mut()
            && let TableFactor::Derived { subquery: rows, .. } = &mut table.relation
        {
            rows.clone_from(subquery);
        }
    }
    *condition = exists;
    Ok(())
}

/// Names that no query around is likely to use: what is compared could mean these columns.
const ROW: &str = "__row";
const FIELD: &str = "__field_";

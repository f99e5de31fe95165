//! COLLATE: texts that are alike but for capitals or accents, in comparisons and in ORDER BY.

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArgumentClause, FunctionArguments, Ident, OrderByExpr,
    WindowType,
};

use super::{call, refuse};
use crate::error::Result;

/// Orders by what is compared of a text in its place.
///
/// # Errors
/// For a collation that there is not.
pub(super) fn order_as_collated<'a>(
    keys: impl IntoIterator<Item = &'a mut OrderByExpr>,
) -> Result<()> {
    for key in keys {
        match collated(&key.expr)? {
            // Of a place of the SELECT list it would be a number's.
            Some((Expr::Value(_), functions)) if !functions.is_empty() => {
                return refuse("COLLATE behind the place of a column", "write the column");
            }
            Some((text, functions)) => key.expr = compared(text.clone(), &functions),
            None => {}
        }
    }
    Ok(())
}

/// The same of the ORDER BY of aggregates and windows.
///
/// # Errors
/// For a collation that there is not.
pub(super) fn order_calls_as_collated(function: &mut Function) -> Result<()> {
    if let FunctionArguments::List(list) = &mut function.args {
        for clause in &mut list.clauses {
            if let FunctionArgumentClause::OrderBy(keys) = clause {
                order_as_collated(keys)?;
            }
        }
    }
    if let Some(WindowType::WindowSpec(window)) = &mut function.over {
        order_as_collated(&mut window.order_by)?;
    }
    Ok(())
}

/// Compares what is compared of texts where one of them has a collation, and leaves the one out that texts have.
///
/// # Errors
/// For a collation that there is not, and for one that stands elsewhere.
pub(super) fn compare_as_collated(expr: &mut Expr) -> Result<()> {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    let mut operands: Vec<&mut Expr> = match expr {
        Expr::BinaryOp {
            left,
            op: Eq | NotEq | Lt | LtEq | Gt | GtEq,
            right,
        } => vec![left, right],
        Expr::InList { expr, list, .. } => [expr.as_mut()].into_iter().chain(list).collect(),
        Expr::Between {
            expr, low, high, ..
        } => vec![expr, low, high],
        Expr::Collate { collation, .. } => {
            let collation = collation.to_string();
            return match collated(expr)? {
                Some((text, functions)) if functions.is_empty() => {
                    *expr = text.clone();
                    Ok(())
                }
                _ => refuse(
                    &format!("COLLATE {collation} outside comparisons and ORDER BY"),
                    "write lower(x) for NOCASE, strip_accents(x) for NOACCENT",
                ),
            };
        }
        _ => return Ok(()),
    };
    let mut found = None;
    for operand in &operands {
        found = found.or(collated(operand)?.map(|(_, functions)| functions));
    }
    let Some(functions) = found else {
        return Ok(());
    };
    for operand in &mut operands {
        let text = collated(operand)?.map_or(&**operand, |(text, _)| text);
        **operand = compared(text.clone(), &functions);
    }
    Ok(())
}

/// The text, and the functions that make of it what is compared.
fn collated(expr: &Expr) -> Result<Option<(&Expr, Vec<&'static str>)>> {
    let (text, collation) = match expr {
        Expr::Nested(inner) => return collated(inner),
        Expr::Collate { expr, collation } => (expr.as_ref(), collation),
        _ => return Ok(None),
    };
    let mut functions = Vec::new();
    for part in &collation.0 {
        let name = part.as_ident().map_or("", |name| name.value.as_str());
        match name.to_ascii_lowercase().as_str() {
            "nocase" => functions.push("lower"),
            "noaccent" => functions.push("strip_accents"),
            "binary" | "c" | "default" | "pg_catalog" | "posix" => {}
            _ => {
                return refuse(
                    &format!("COLLATE {collation}"),
                    "there are NOCASE, NOACCENT, NOCASE.NOACCENT and BINARY",
                );
            }
        }
    }
    Ok(Some((text, functions)))
}

fn compared(text: Expr, functions: &[&'static str]) -> Expr {
    let apply = |text, function: &&'static str| call(Ident::new(*function), vec![text]);
    functions.iter().fold(text, apply)
}

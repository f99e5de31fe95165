//! What is said of calls that only aggregates and window functions heed.

use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause,
    FunctionArgumentList, FunctionArguments, Query, TableFactor, VisitorMut,
};

use super::synonyms::correct_call;
use super::{flow, parsed, refuse};
use crate::error::{Error, Result};
use crate::walk::walk_mut;

/// Refuses what the planner passes over: a second list of arguments, and a query for all of them.
pub(super) fn check_function(function: &Function) -> Result<()> {
    let Function {
        name,
        uses_odbc_syntax: _,
        parameters,
        args,
        // These are for `Calls`.
        filter: _,
        null_treatment: _,
        over: _,
        within_group: _,
    } = function;
    if !matches!(parameters, FunctionArguments::None) {
        return refuse(
            &format!("a second list of arguments of {name}"),
            "write all of them in one",
        );
    }
    if matches!(args, FunctionArguments::Subquery(_)) {
        return refuse(
            &format!("{name}(SELECT …)"),
            "write it in parentheses of its own",
        );
    }
    if let FunctionArguments::List(list) = args
        && list.duplicate_treatment == Some(DuplicateTreatment::Distinct)
        && list.args.iter().any(is_wildcard)
    {
        return refuse(
            &format!("{name}(DISTINCT *)"),
            "write SELECT count(*) FROM (SELECT DISTINCT * FROM …)",
        );
    }
    Ok(())
}

fn is_wildcard(arg: &FunctionArg) -> bool {
    matches!(
        arg,
        FunctionArg::Unnamed(FunctionArgExpr::Wildcard | FunctionArgExpr::QualifiedWildcard(_))
    )
}

/// Whether it is `ARRAY(SELECT …)`.
pub(super) fn is_list_of_rows(function: &Function) -> bool {
    matches!(function.args, FunctionArguments::Subquery(_))
        && function.name.to_string().eq_ignore_ascii_case("array")
}

/// Puts an aggregate over the query in the place of `ARRAY(SELECT …)`, which is empty where the query has no rows.
pub(super) fn put_list_of_rows(expr: &mut Expr) -> Result<()> {
    let Expr::Function(Function {
        args: FunctionArguments::Subquery(query),
        ..
    }) = expr
    else {
        return Ok(());
    };
    let text = "coalesce((SELECT array_agg(element) FROM (SELECT 1) AS listed(element)), [])";
    let mut list = parsed(text, |parser| parser.parse_expr())?;
    let mut rows = Rows(Some(query.clone()));
    let _ = walk_mut(&mut list, &mut rows);
    *expr = list;
    Ok(())
}

/// Puts a query in the place of the first one in FROM.
struct Rows(Option<Box<Query>>);

impl VisitorMut for Rows {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Derived { subquery, .. } = factor
            && let Some(query) = self.0.take()
        {
            *subquery = query;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Has calls of functions that the session does not know said by those that it knows, and refuses what is
/// said of scalar functions and means nothing there.
pub(crate) struct Calls<'a>(pub &'a SessionState);

impl VisitorMut for Calls<'_> {
    type Break = Error;

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        flow(correct_call(expr, self.0))?;
        let Expr::Function(function) = expr else {
            return ControlFlow::Continue(());
        };
        let Some(clause) = clause_of(function) else {
            return ControlFlow::Continue(());
        };
        let name = function.name.to_string().to_lowercase();
        // The planner looks for scalar functions first.
        let is_scalar = name == "unnest" || self.0.scalar_functions().contains_key(&name);
        match is_scalar {
            true => flow(refuse(
                &format!("{clause} of {name}"),
                "it is neither an aggregate nor a window function",
            )),
            false => ControlFlow::Continue(()),
        }
    }
}

/// What is said of a call besides its arguments.
fn clause_of(function: &Function) -> Option<&'static str> {
    if function.filter.is_some() {
        return Some("FILTER");
    }
    if function.over.is_some() {
        return Some("OVER");
    }
    if !function.within_group.is_empty() {
        return Some("WITHIN GROUP");
    }
    if function.null_treatment.is_some() {
        return Some("IGNORE or RESPECT NULLS");
    }
    let FunctionArguments::List(FunctionArgumentList {
        duplicate_treatment,
        args: _,
        clauses,
    }) = &function.args
    else {
        return None;
    };
    if matches!(duplicate_treatment, Some(DuplicateTreatment::Distinct)) {
        return Some("DISTINCT");
    }
    clauses.iter().find_map(|clause| match clause {
        FunctionArgumentClause::OrderBy(_) => Some("ORDER BY"),
        FunctionArgumentClause::IgnoreOrRespectNulls(_) => Some("IGNORE or RESPECT NULLS"),
        // Refused by the planner.
        _ => None,
    })
}

//! What columns are called that have no name: as they are written, `SELECT count(*), a + 1`. The planner's
//! names are those of what it makes of them, `Int64(1)` and `make_array(…)`.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::parser::{CopyToSource, Statement as ParsedStatement};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident,
    MacroDefinition, ObjectNamePart, Query, SelectItem, SetExpr, Statement, TableFactor,
    VisitorMut,
};

use super::first_select;
use super::lambdas::{is_lambda, put_lambda};
use super::patterns::glob_of;
use crate::walk::{visit_expressions, walk_mut, walk_statement};

/// Names the columns of results, of tables and views that are made, of subqueries in FROM and of WITH.
///
/// Those that are a column or a cast of one keep the planner's names; those of `unnest` and COLUMNS get theirs where it
/// is known what they stand for.
pub(super) fn name_columns(statement: &mut ParsedStatement) {
    name_result(statement);
    let ControlFlow::Continue(()) = walk_statement(statement, &mut Inner);
}

fn name_result(statement: &mut ParsedStatement) {
    match statement {
        ParsedStatement::Statement(statement) => name_result_of(statement),
        ParsedStatement::Explain(explain) => name_result(&mut explain.statement),
        ParsedStatement::CopyTo(copy) => {
            if let CopyToSource::Query(query) = &mut copy.source {
                name_items_of(&mut query.body);
            }
        }
        ParsedStatement::CreateExternalTable(_) | ParsedStatement::Reset(_) => {}
    }
}

fn name_result_of(statement: &mut Statement) {
    match statement {
        Statement::Query(query) => name_items_of(&mut query.body),
        Statement::CreateView(view) => name_items_of(&mut view.query.body),
        Statement::CreateTable(create) => {
            if let Some(query) = &mut create.query {
                name_items_of(&mut query.body);
            }
        }
        Statement::Explain { statement, .. } | Statement::Prepare { statement, .. } => {
            name_result_of(statement);
        }
        Statement::CreateMacro {
            definition: MacroDefinition::Table(query),
            ..
        } => name_items_of(&mut query.body),
        Statement::Insert(insert) => name_items(insert.returning.iter_mut().flatten()),
        Statement::Update(update) => name_items(update.returning.iter_mut().flatten()),
        Statement::Delete(delete) => name_items(delete.returning.iter_mut().flatten()),
        _ => {}
    }
}

/// Queries whose columns others name.
struct Inner;

impl VisitorMut for Inner {
    type Break = Infallible;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Infallible> {
        if let Some(with) = &mut query.with {
            for table in &mut with.cte_tables {
                name_items_of(&mut table.query.body);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Infallible> {
        if let TableFactor::Derived { subquery, .. } = factor {
            name_items_of(&mut subquery.body);
        }
        ControlFlow::Continue(())
    }
}

fn name_items_of(body: &mut SetExpr) {
    if let Some(select) = first_select(body) {
        name_items(&mut select.projection);
    }
}

fn name_items<'a>(items: impl IntoIterator<Item = &'a mut SelectItem>) {
    for item in items {
        if let SelectItem::UnnamedExpr(expr) = item
            && let Some(name) = name_of_expr(expr)
        {
            *item = SelectItem::ExprWithAlias {
                expr: std::mem::replace(expr, Expr::Identifier(Ident::new(""))),
                alias: Ident::with_quote('"', name),
            };
        }
    }
}

/// What an expression is called; `None` for those that the planner names.
fn name_of_expr(expr: &Expr) -> Option<String> {
    if is_column(expr) || gives_several(expr) {
        return None;
    }
    let mut expr = expr.clone();
    let ControlFlow::Continue(()) = walk_mut(&mut expr, &mut AsWritten);
    Some(expr.to_string())
}

fn is_column(expr: &Expr) -> bool {
    match expr {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => true,
        Expr::Nested(expr) | Expr::Cast { expr, .. } => is_column(expr),
        _ => false,
    }
}

/// Whether it may stand for several columns: `unnest` of a struct, and COLUMNS.
fn gives_several(expr: &Expr) -> bool {
    let asks_columns = visit_expressions(expr, |part| match arguments_of_columns(part) {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    });
    argument_of_unnest(expr).is_some() || asks_columns.is_break()
}

/// Of what `unnest` is called.
pub(crate) fn argument_of_unnest(expr: &Expr) -> Option<&Expr> {
    let Expr::Function(call) = expr else {
        return None;
    };
    match &call.args {
        FunctionArguments::List(list) if is_called(call, "unnest") => match list.args.as_slice() {
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(of))] => Some(of),
            _ => None,
        },
        _ => None,
    }
}

fn is_called(call: &Function, name: &str) -> bool {
    let is_name = |part: &ObjectNamePart| {
        let part = part.as_ident();
        part.is_some_and(|part| part.quote_style.is_none() && part.value.eq_ignore_ascii_case(name))
    };
    matches!(call.name.0.as_slice(), [only] if is_name(only))
}

/// The arguments of a call of COLUMNS.
pub(crate) fn arguments_of_columns(expr: &Expr) -> Option<&[FunctionArg]> {
    match expr {
        Expr::Function(call) if is_called(call, "columns") => match &call.args {
            FunctionArguments::List(list) => Some(&list.args),
            _ => None,
        },
        _ => None,
    }
}

/// Puts names as they are read, and what [`crate::spelling`] has written otherwise as it was.
struct AsWritten;

impl VisitorMut for AsWritten {
    type Break = Infallible;

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Infallible> {
        match expr {
            Expr::Function(call) if is_lambda(call) => {
                // One that is none is refused where it is planned.
                let _ = put_lambda(expr);
            }
            Expr::Function(call) => {
                for part in &mut call.name.0 {
                    if let ObjectNamePart::Identifier(name) = part {
                        to_lower_case(name);
                    }
                }
            }
            Expr::Identifier(name) => to_lower_case(name),
            Expr::CompoundIdentifier(names) => names.iter_mut().for_each(to_lower_case),
            Expr::RLike {
                negated,
                expr: text,
                pattern,
                ..
            } => {
                if let Some(glob) = glob_of(pattern) {
                    let not = if *negated { "NOT " } else { "" };
                    *expr = Expr::BinaryOp {
                        left: text.clone(),
                        op: BinaryOperator::Custom(format!("{not}GLOB")),
                        right: Box::new(glob),
                    };
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn to_lower_case(name: &mut Ident) {
    if name.quote_style.is_none() {
        name.value = name.value.to_lowercase();
    }
}

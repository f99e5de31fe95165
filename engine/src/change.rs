//! UPDATE, DELETE and MERGE.
//!
//! The plan of either gives the rows that are to go by their ids, with what comes in their place;
//! the store marks the old ones as deleted and appends the new ones in one commit.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::display::PlanType;
use datafusion::common::{Column, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::{
    DmlStatement, Expr, LogicalPlan, LogicalPlanBuilder, Projection, ToStringifiedPlan, WriteOp,
};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use flashmesh_planner::FlashTable;

use crate::assign::assign;
use crate::error::Error;
use crate::merge::merged_rows;
use crate::names::name_of;
use crate::returning::Returning;
use crate::row_ids::with_ids;

/// Puts what DataFusion plans in place of what it does not: `UPDATE t … FROM u` joins the tables,
/// `DELETE FROM t USING u WHERE …` asks whether such rows are there; names of assigned columns are
/// taken as those of others are.
pub(crate) fn planned_form(statement: &mut ast::Statement) {
    match statement {
        ast::Statement::Update(update) => {
            for assignment in &mut update.assignments {
                if let ast::AssignmentTarget::ColumnName(name) = &mut assignment.target {
                    name.0.iter_mut().for_each(normalise);
                }
            }
            let from = match update.from.take() {
                Some(
                    ast::UpdateTableFromKind::BeforeSet(from)
                    | ast::UpdateTableFromKind::AfterSet(from),
                ) => from,
                None => return,
            };
            update
                .table
                .joins
                .extend(from.into_iter().map(|table| ast::Join {
                    relation: match table.joins.is_empty() {
                        true => table.relation,
                        false => ast::TableFactor::NestedJoin {
                            table_with_joins: Box::new(table),
                            alias: None,
                        },
                    },
                    global: false,
                    join_operator: ast::JoinOperator::CrossJoin(ast::JoinConstraint::None),
                }));
        }
        ast::Statement::Delete(delete) => {
            // Where it could not be put so, DataFusion refuses it.
            if let Some(using) = &delete.using
                && let Some(exists) = any_row(using, delete.selection.as_ref())
            {
                delete.selection = Some(exists);
                delete.using = None;
            }
        }
        _ => {}
    }
}

/// Of a DELETE with USING a query of all its tables by its condition. It is planned for its errors: in a name
/// without a table that several of them have, or a table that is there twice, [`planned_form`] would see what
/// USING says alone.
pub(crate) fn all_tables(statement: &ast::Statement) -> Option<ParsedStatement> {
    let ast::Statement::Delete(ast::Delete {
        from: ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from),
        using: Some(using),
        selection,
        ..
    }) = statement
    else {
        return None;
    };
    let dialect = GenericDialect {};
    let parser = Parser::new(&dialect).try_with_sql("SELECT 1");
    let mut query = parser.ok()?.parse_query().ok()?;
    if let ast::SetExpr::Select(select) = query.body.as_mut() {
        select.from = from.iter().chain(using).cloned().collect();
        select.selection.clone_from(selection);
    }
    let query = ast::Statement::Query(query);
    Some(ParsedStatement::Statement(Box::new(query)))
}

fn normalise(part: &mut ast::ObjectNamePart) {
    if let ast::ObjectNamePart::Identifier(name) = part {
        *name = ast::Ident::with_quote('"', name_of(name));
    }
}

/// `EXISTS (SELECT 1 FROM tables WHERE condition)`.
fn any_row(tables: &[ast::TableWithJoins], condition: Option<&ast::Expr>) -> Option<ast::Expr> {
    let dialect = GenericDialect {};
    let parser = Parser::new(&dialect).try_with_sql("EXISTS (SELECT 1)");
    let mut exists = parser.ok()?.parse_expr().ok()?;
    let ast::Expr::Exists { subquery, .. } = &mut exists else {
        return None;
    };
    let ast::SetExpr::Select(select) = subquery.body.as_mut() else {
        return None;
    };
    select.from = tables.to_vec();
    select.selection = condition.cloned();
    Some(exists)
}

/// What a change runs, and which of its columns the load takes: for UPDATE the table's columns, then
/// for DELETE too the ids of the rows that go; for MERGE see [`merged_rows`]. `target` is the statement's table. The table's
/// columns are also there where a DELETE `returns` them.
pub(crate) fn changed_rows(
    dml: &DmlStatement,
    target: &FlashTable,
    returns: bool,
) -> Result<(LogicalPlan, Range<usize>)> {
    let input = dml.input.as_ref().clone();
    let fields = target.named().snapshot().schema.fields().clone();
    match (&dml.op, input) {
        (WriteOp::MergeInto(op), _) => Ok(merged_rows(dml, op, target)?),
        (WriteOp::Update, LogicalPlan::Projection(projection)) => {
            let (input, id) = with_ids(projection.input.as_ref().clone(), target)?;
            let mut columns = projection.expr;
            columns.push(Expr::Column(id));
            let stored = 0..columns.len();
            let plan = Projection::try_new(columns, Arc::new(input))?;
            Ok((assign(LogicalPlan::Projection(plan))?, stored))
        }
        (_, input) => {
            let (input, id) = with_ids(input, target)?;
            let old = fields.iter().filter(|_| returns);
            let old = old.map(|field| Column::new(id.relation.clone(), field.name()));
            let mut columns: Vec<_> = old.map(Expr::Column).collect();
            columns.push(Expr::Column(id.clone()));
            let stored = columns.len() - 1..columns.len();
            let plan = LogicalPlanBuilder::from(input).project(columns)?.build()?;
            Ok((plan, stored))
        }
    }
}

/// Whether a statement changes rows.
pub(crate) fn is_change(statement: &ParsedStatement) -> bool {
    let ParsedStatement::Statement(statement) = statement else {
        return false;
    };
    matches!(
        statement.as_ref(),
        ast::Statement::Insert(_)
            | ast::Statement::Update(_)
            | ast::Statement::Delete(_)
            | ast::Statement::Merge(_)
    )
}

/// The plan of EXPLAIN with `change` as what it explains.
pub(crate) fn explaining(plan: LogicalPlan, change: LogicalPlan) -> crate::Result<LogicalPlan> {
    Ok(match plan {
        LogicalPlan::Explain(mut explain) => {
            explain.stringified_plans = vec![change.to_stringified(PlanType::InitialLogicalPlan)];
            explain.plan = Arc::new(change);
            LogicalPlan::Explain(explain)
        }
        LogicalPlan::Analyze(mut analyze) => {
            analyze.input = Arc::new(change);
            LogicalPlan::Analyze(analyze)
        }
        _ => return Err(Error::usage("this is no EXPLAIN")),
    })
}

/// EXPLAIN of a change shows how its rows are found; other plans stay.
pub(crate) fn explained(plan: LogicalPlan) -> Result<LogicalPlan> {
    let of_returning = |plan: &Arc<LogicalPlan>| match Returning::of(plan) {
        Some(returning) => Arc::new(returning.change.clone()),
        None => Arc::clone(plan),
    };
    let change = |plan: &LogicalPlan| match plan {
        LogicalPlan::Dml(dml)
            if matches!(
                dml.op,
                WriteOp::Update | WriteOp::Delete | WriteOp::MergeInto(_)
            ) =>
        {
            Some((dml.clone(), FlashTable::of(&dml.target)?))
        }
        _ => None,
    };
    match plan {
        LogicalPlan::Explain(mut explain) => {
            explain.plan = of_returning(&explain.plan);
            if let Some((dml, target)) = change(&explain.plan) {
                explain.plan = Arc::new(changed_rows(&dml, &target, false)?.0);
            }
            Ok(LogicalPlan::Explain(explain))
        }
        LogicalPlan::Analyze(analyze)
            if change(&analyze.input).is_some() || Returning::of(&analyze.input).is_some() =>
        {
            plan_err!(
                "EXPLAIN ANALYZE does not run changes; EXPLAIN shows how their rows are found"
            )
        }
        other => Ok(other),
    }
}

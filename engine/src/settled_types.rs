//! The types that what a statement stores has in the end.
//!
//! What CASE, `coalesce` and UNION give is known once their branches are brought to one type. A plan is made before, and
//! takes that of the first: `CREATE TABLE t AS SELECT 1 UNION ALL SELECT 2.5` had a column of whole numbers, and an
//! UPDATE of one stored 2 for 2.5 without a word.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, DFSchemaRef};
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{
    CreateMemoryTable, DdlStatement, DmlStatement, Expr, LogicalPlan, LogicalPlanBuilder,
    Projection, WriteOp, cast,
};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast;
use flashmesh_planner::walk::{Walk as _, WalkPlan as _};

/// Whether a statement says which columns a table is to have.
pub(crate) fn declares_columns(statement: &ParsedStatement) -> bool {
    matches!(statement, ParsedStatement::Statement(parsed)
        if matches!(parsed.as_ref(), ast::Statement::CreateTable(create) if !create.columns.is_empty()))
}

/// Has columns that are made be of these types, and values for columns that are there be cast to theirs where someone
/// looks for what they lose.
///
/// # Errors
/// None that a user can bring about.
pub(crate) fn with_settled_types(
    plan: LogicalPlan,
    declares_columns: bool,
    state: &SessionState,
) -> Result<LogicalPlan> {
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => {
            let input = match declares_columns {
                true => stored(create.input, state)?,
                false => made(create.input, state)?,
            };
            let create = CreateMemoryTable { input, ..create };
            Ok(LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)))
        }
        LogicalPlan::Dml(dml) if matches!(dml.op, WriteOp::Insert(_) | WriteOp::Update) => {
            let input = stored(dml.input, state)?;
            Ok(LogicalPlan::Dml(DmlStatement { input, ..dml }))
        }
        plan => Ok(plan),
    }
}

/// A query whose columns are of the types that they have in the end.
fn made(query: Arc<LogicalPlan>, state: &SessionState) -> Result<Arc<LogicalPlan>> {
    let Some(settled) = settled(&query, state)? else {
        return Ok(query);
    };
    let fields = query.schema().iter().zip(settled.fields());
    let columns = fields.map(|((table, field), settled)| {
        let column = Expr::Column(Column::from((table, field)));
        match field.data_type() == settled.data_type() {
            true => column,
            false => cast(column, settled.data_type().clone())
                .alias_qualified(table.cloned(), field.name()),
        }
    });
    let columns: Vec<_> = columns.collect();
    let plan = LogicalPlanBuilder::from(query).project(columns)?.build()?;
    Ok(Arc::new(plan))
}

/// The rows for a table, cast from the types that they have in the end.
fn stored(rows: Arc<LogicalPlan>, state: &SessionState) -> Result<Arc<LogicalPlan>> {
    let LogicalPlan::Projection(projection) = rows.as_ref() else {
        return Ok(rows);
    };
    // Those are looked at as they are read.
    if matches!(projection.input.as_ref(), LogicalPlan::Values(_)) {
        return Ok(rows);
    }
    let Some(settled) = settled(&rows, state)? else {
        return Ok(rows);
    };
    let fields = projection.schema.fields().iter().zip(settled.fields());
    let values = projection.expr.iter().zip(fields);
    let values = values.map(|(value, (field, settled))| {
        if field.data_type() == settled.data_type() {
            return value.clone();
        }
        let value = value.clone().unalias();
        let value = cast(value, settled.data_type().clone());
        cast(value, field.data_type().clone()).alias(field.name())
    });
    let values = values.collect();
    let projection = Projection::try_new(values, Arc::clone(&projection.input))?;
    Ok(Arc::new(LogicalPlan::Projection(projection)))
}

/// The columns of a plan once its types are settled, where they may be others.
fn settled(plan: &LogicalPlan, state: &SessionState) -> Result<Option<DFSchemaRef>> {
    if !may_settle(plan)? {
        return Ok(None);
    }
    // What is wrong with it is said where it is run.
    let analyzed =
        state
            .analyzer()
            .execute_and_check(plan.clone(), state.config_options(), |_, _| {});
    let Ok(analyzed) = analyzed else {
        return Ok(None);
    };
    let schema = analyzed.schema();
    let (before, after) = (plan.schema().fields(), schema.fields());
    let mut types = before.iter().zip(after);
    let has_others = before.len() == after.len()
        && types.any(|(before, after)| before.data_type() != after.data_type());
    Ok(has_others.then(|| Arc::clone(schema)))
}

/// Whether types in a plan depend on branches.
fn may_settle(plan: &LogicalPlan) -> Result<bool> {
    let mut may = false;
    plan.walk_with_subqueries(|node| {
        may |= matches!(
            node,
            LogicalPlan::Union(_) | LogicalPlan::RecursiveQuery(_) | LogicalPlan::Values(_)
        );
        node.walk_expressions(|expr| {
            may = may
                || expr.exists(|part| {
                    Ok(matches!(
                        part,
                        Expr::Case(_)
                            | Expr::ScalarFunction(_)
                            | Expr::HigherOrderFunction(_)
                            | Expr::WindowFunction(_)
                    ))
                })?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(match may {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(may)
}

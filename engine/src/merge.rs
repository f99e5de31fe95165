//! MERGE: the table is joined with its source, each row that comes out takes the first clause that
//! is for it, and what the clauses say is an UPDATE in which rows are also added and deleted.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::{filter_record_batch, not};
use datafusion::catalog::TableProvider;
use datafusion::common::{Column, JoinType, ScalarValue};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::dml::{MergeIntoAction, MergeIntoClauseKind, MergeIntoOp};
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::{
    DmlStatement, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, WriteOp, lit,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::sqlparser::ast;
use flashmesh_planner::FlashTable;
use flashmesh_storage::table::TableSnapshot;
use futures::{StreamExt, TryStreamExt, stream};

use crate::assign::assigned;
use crate::defaults::{leave_defaults, set_defaults};
use crate::error::Result;
use crate::names::name_of;
use crate::row_ids::with_ids;
use crate::spelling::NOTHING;

/// What columns of our own are qualified with.
const OWN: &str = "flashmesh:merge";

/// Makes of the clauses what DataFusion plans, and gives the places of those that do nothing.
/// Refuses what only the table may give.
///
/// # Errors
/// [`Error::Usage`](crate::Error::Usage).
pub(crate) fn planned_form(merge: &mut ast::Merge, table: &TableSnapshot) -> Result<Vec<usize>> {
    let mut nothing = Vec::new();
    let first = table.schema.field(0).name();
    let first = ast::ObjectName::from(vec![ast::Ident::with_quote('"', first)]);
    let is_nothing = |name: &ast::ObjectName| {
        let name = name.0.last().and_then(|part| part.as_ident());
        name.is_some_and(|name| name.value == NOTHING)
    };
    for (place, clause) in merge.clauses.iter_mut().enumerate() {
        match &mut clause.action {
            ast::MergeAction::Update(update) => {
                for assignment in &mut update.assignments {
                    let ast::AssignmentTarget::ColumnName(name) = &mut assignment.target else {
                        continue;
                    };
                    if is_nothing(name) {
                        nothing.push(place);
                        *name = first.clone();
                    } else if let Some(ast::ObjectNamePart::Identifier(part)) = name.0.last_mut() {
                        *part = ast::Ident::with_quote('"', name_of(part));
                    }
                }
                if nothing.last() != Some(&place) {
                    set_defaults(table, &mut update.assignments)?;
                }
            }
            ast::MergeAction::Insert(insert) => {
                if insert.columns.first().is_some_and(is_nothing) {
                    nothing.push(place);
                    insert.columns = vec![first.clone()];
                } else if let ast::MergeInsertKind::Values(values) = &mut insert.kind {
                    leave_defaults(table, &mut insert.columns, &mut values.rows)?;
                }
            }
            ast::MergeAction::Delete { .. } => {}
        }
    }
    Ok(nothing)
}

/// A plan of MERGE in which these clauses say nothing.
pub(crate) fn with_nothing(plan: LogicalPlan, places: &[usize]) -> LogicalPlan {
    let LogicalPlan::Dml(mut dml) = plan else {
        return plan;
    };
    if let WriteOp::MergeInto(op) = &mut dml.op {
        for place in places {
            match op.clauses.get_mut(*place).map(|clause| &mut clause.action) {
                Some(MergeIntoAction::Update(assignments)) => assignments.clear(),
                Some(MergeIntoAction::Insert { columns, values }) => {
                    columns.clear();
                    values.clear();
                }
                _ => {}
            }
        }
    }
    LogicalPlan::Dml(dml)
}

/// Whether a clause does nothing.
fn is_nothing(action: &MergeIntoAction) -> bool {
    match action {
        MergeIntoAction::Update(assignments) => assignments.is_empty(),
        MergeIntoAction::Insert { values, .. } => values.is_empty(),
        MergeIntoAction::Delete => false,
    }
}

/// What a MERGE runs, and which of its columns the load takes: the table's columns, of deleted rows
/// the old ones, the ids of the rows that go, and whether a row goes without one in its place.
pub(crate) fn merged_rows(
    dml: &DmlStatement,
    op: &MergeIntoOp,
    target: &FlashTable,
) -> Result<(LogicalPlan, Range<usize>)> {
    let own = |name: &str| Column::new(Some(OWN), name);
    let source = dml.input.as_ref().clone();
    let mut columns: Vec<_> = source
        .schema()
        .columns()
        .into_iter()
        .map(Expr::Column)
        .collect();
    columns.push(lit(true).alias_qualified(Some(OWN), "source"));
    let source = LogicalPlanBuilder::from(source).project(columns)?.build()?;
    let kinds = |kind| {
        let mut clauses = op.clauses.iter();
        clauses.any(|clause| clause.kind.canonical() == kind)
    };
    let join = match (
        kinds(MergeIntoClauseKind::NotMatchedBySource),
        kinds(MergeIntoClauseKind::NotMatchedByTarget),
    ) {
        (false, false) => JoinType::Inner,
        (false, true) => JoinType::Right,
        (true, false) => JoinType::Left,
        (true, true) => JoinType::Full,
    };
    let table = &dml.table_name;
    let joined = LogicalPlanBuilder::scan(table.clone(), Arc::clone(&dml.target), None)?
        .join_on(source, join, [op.on.clone()])?
        .build()?;
    let (joined, id) = with_ids(joined, target)?;
    let schema = Arc::clone(joined.schema());
    let in_table = || Expr::Column(id.clone()).is_not_null();
    let in_source = || Expr::Column(own("source")).is_not_null();

    // Which clause a row takes: the first that is for it.
    let mut branches = Vec::with_capacity(op.clauses.len());
    for (place, of) in op.clauses.iter().enumerate() {
        let kind = match of.kind.canonical() {
            MergeIntoClauseKind::Matched => in_table().and(in_source()),
            MergeIntoClauseKind::NotMatchedBySource => Expr::Column(own("source")).is_null(),
            _ => Expr::Column(id.clone()).is_null(),
        };
        let condition = match &of.predicate {
            Some(predicate) => kind.and(predicate.clone()),
            None => kind,
        };
        let taken = match is_nothing(&of.action) {
            true => lit(ScalarValue::Int32(None)),
            false => lit(place as i32),
        };
        branches.push((Box::new(condition), Box::new(taken)));
    }
    let clause = Expr::Case(Case::new(None, branches, None));
    let clause = clause.alias_qualified(Some(OWN), "clause");
    let mut columns: Vec<_> = schema.columns().into_iter().map(Expr::Column).collect();
    columns.push(clause);
    let clause = || Expr::Column(own("clause"));

    let fields = target.named().snapshot().schema.fields().clone();
    let mut rows = Vec::with_capacity(fields.len() + 2);
    for field in &fields {
        let (name, data_type) = (field.name(), field.data_type());
        let old = || Expr::Column(Column::new(Some(table.clone()), name));
        let to_column = |value: &Expr| -> Result<Expr> {
            let from = value.get_type(&schema)?;
            Ok(match from == *data_type || from.is_null() {
                true => value.clone().cast_to(data_type, &schema)?,
                false => assigned(value.clone(), data_type, name),
            })
        };
        let default = || match target.get_column_default(name) {
            Some(default) => to_column(default),
            None => Ok(lit(ScalarValue::try_from(data_type)?)),
        };
        let mut branches = Vec::new();
        for (place, of) in op.clauses.iter().enumerate() {
            let value = match &of.action {
                action if is_nothing(action) => continue,
                MergeIntoAction::Delete => None,
                MergeIntoAction::Update(assignments) => {
                    let set = assignments.iter().find(|(column, _)| column == name);
                    set.map(|(_, value)| to_column(value)).transpose()?
                }
                MergeIntoAction::Insert {
                    columns: given,
                    values,
                } => {
                    let place = match given.is_empty() {
                        true => fields.find(name).map(|(place, _)| place),
                        false => given.iter().position(|column| column == name),
                    };
                    let value = place.and_then(|place| values.get(place));
                    Some(value.map_or_else(default, to_column)?)
                }
            };
            // All other rows keep what they have.
            if let Some(value) = value {
                let is_taken = clause().eq(lit(place as i32));
                branches.push((Box::new(is_taken), Box::new(value)));
            }
        }
        let value = match branches.is_empty() {
            true => old(),
            false => Expr::Case(Case::new(None, branches, Some(Box::new(old())))),
        };
        rows.push(value.alias(name));
    }
    rows.push(Expr::Column(id.clone()));
    let deletes = op.clauses.iter().enumerate();
    let deletes = deletes.filter(|(_, of)| of.action == MergeIntoAction::Delete);
    let deletes: Vec<_> = deletes.map(|(place, _)| lit(place as i32)).collect();
    let is_deleted = match deletes.is_empty() {
        true => lit(false),
        false => clause().in_list(deletes, false),
    };
    rows.push(is_deleted.alias_qualified(Some(OWN), "deleted"));
    let stored = 0..rows.len();
    let plan = LogicalPlanBuilder::from(joined)
        .project(columns)?
        .filter(clause().is_not_null())?
        .project(rows)?
        .build()?;
    Ok((plan, stored))
}

/// The rows of a MERGE as a load takes them: those that go without one in their place as ids alone.
pub(crate) fn apart(rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let batches = rows.map_ok(|mut batch| {
        let deleted = batch.remove_column(batch.num_columns() - 1);
        stream::iter(split(&batch, &deleted))
    });
    let batches = batches.try_flatten();
    Box::pin(RecordBatchStreamAdapter::new(schema, batches.boxed()))
}

fn split(
    batch: &RecordBatch,
    deleted: &arrow::array::ArrayRef,
) -> Vec<datafusion::error::Result<RecordBatch>> {
    let deleted = deleted.as_boolean();
    let part = |ids_alone: bool| {
        let rows = match ids_alone {
            true => filter_record_batch(batch, deleted)?.project(&[batch.num_columns() - 1])?,
            false => filter_record_batch(batch, &not(deleted)?)?,
        };
        Ok(rows)
    };
    match deleted.true_count() {
        0 => vec![Ok(batch.clone())],
        all if all == batch.num_rows() => vec![part(true)],
        _ => vec![part(true), part(false)],
    }
}

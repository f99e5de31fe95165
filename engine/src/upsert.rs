//! `INSERT … ON CONFLICT`: the rows are joined with those that have their keys, and what comes out
//! is an UPDATE in which a row without an old one is inserted.

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, JoinType, TableReference};
use datafusion::execution::SessionState;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{
    DmlStatement, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, WriteOp, lit, when,
};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    self, Assignment, AssignmentTarget, ConflictTarget, DoUpdate, OnConflict, OnConflictAction,
    OnInsert, SqliteOnConflict,
};
use flashmesh_planner::FlashTable;
use flashmesh_storage::index::IndexDefinition;
use flashmesh_storage::table::{Generated, TableSnapshot};

use crate::assign::assigned;
use crate::error::{Error, Result};

/// What the rows that were to be inserted are called.
const EXCLUDED: &str = "excluded";

/// Takes the clause out of an INSERT, which DataFusion would not plan with it. `INSERT OR IGNORE` is one that
/// does nothing.
pub(crate) fn take_on_conflict(statement: &mut ast::Statement) -> Option<OnConflict> {
    let ast::Statement::Insert(insert) = statement else {
        return None;
    };
    if insert.or == Some(SqliteOnConflict::Ignore) && insert.on.is_none() {
        insert.or = None;
        return Some(OnConflict {
            conflict_target: None,
            action: OnConflictAction::DoNothing,
        });
    }
    match insert.on.take()? {
        OnInsert::OnConflict(conflict) => Some(conflict),
        other => {
            insert.on = Some(other);
            None
        }
    }
}

/// Says `INSERT OR REPLACE` as a clause: a row that has the key of a new one takes its values, of the columns
/// that the statement names.
pub(crate) fn say_replace(table: &TableSnapshot, insert: &mut ast::Insert) {
    if insert.or != Some(SqliteOnConflict::Replace) || insert.on.is_some() {
        return;
    }
    insert.or = None;
    let all = || {
        let fields = table.schema.fields().iter().enumerate();
        // Those that only the table gives it keeps.
        let fields = fields.filter(|(place, _)| {
            !matches!(
                table.generated(*place),
                Some(Generated { always: true, .. })
            )
        });
        let names = fields.map(|(_, field)| ast::Ident::with_quote('"', field.name()));
        names.collect::<Vec<_>>()
    };
    let given = insert.columns.iter();
    let given = given.filter_map(|name| name.0.last()?.as_ident().cloned());
    let columns = match insert.columns.is_empty() {
        true => all(),
        false => given.collect(),
    };
    let assignments = columns.into_iter().map(|name| {
        let excluded = vec![ast::Ident::new(EXCLUDED), name.clone()];
        Assignment {
            target: AssignmentTarget::ColumnName(ast::ObjectName::from(vec![name])),
            value: ast::Expr::CompoundIdentifier(excluded),
        }
    });
    let update = DoUpdate {
        assignments: assignments.collect(),
        selection: None,
    };
    insert.on = Some(OnInsert::OnConflict(OnConflict {
        conflict_target: None,
        action: OnConflictAction::DoUpdate(update),
    }));
}

/// The plan of an INSERT of `rows` with the clause. `rows` are the columns of the table.
pub(crate) fn on_conflict(
    insert: DmlStatement,
    rows: LogicalPlan,
    conflict: &OnConflict,
    state: &SessionState,
) -> Result<LogicalPlan> {
    let target = FlashTable::of(&insert.target);
    let (Some(target), WriteOp::Insert(InsertOp::Append)) = (target, &insert.op) else {
        return Err(Error::usage(
            "ON CONFLICT is for INSERT INTO tables on flash",
        ));
    };
    let table = insert.table_name.clone();
    let keys = keys(&target, conflict.conflict_target.as_ref())?;
    let excluded = LogicalPlanBuilder::from(rows).alias(EXCLUDED)?.build()?;
    let of = |relation: &TableReference, column: &str| Column::new(Some(relation.clone()), column);
    let new = TableReference::bare(EXCLUDED);
    let on = keys.iter().map(|key| (of(&table, key), of(&new, key)));
    let joined = LogicalPlanBuilder::scan(table.clone(), Arc::clone(&insert.target), None)?
        .join(
            excluded,
            JoinType::Right,
            on.unzip::<_, _, Vec<_>, Vec<_>>(),
            None,
        )?
        .build()?;
    let is_new = Expr::Column(of(&table, &keys[0])).is_null();
    let schema = Arc::clone(joined.schema());
    let (kept, update) = match &conflict.action {
        OnConflictAction::DoNothing => (is_new.clone(), None),
        OnConflictAction::DoUpdate(update) => {
            let kept = match &update.selection {
                Some(condition) => is_new.clone().or(planned(condition, &schema, state)?),
                None => lit(true),
            };
            (kept, Some(update))
        }
    };
    let values = match update {
        Some(update) => Some(updated(update, &target, &schema, state)?),
        None => None,
    };
    let fields = target.named().snapshot().schema.fields().clone();
    let columns = fields.iter().enumerate().map(|(place, field)| {
        let inserted = Expr::Column(of(&new, field.name()));
        let value = match &values {
            None => inserted,
            Some(values) => {
                let old = values[place].clone();
                let old = old.unwrap_or_else(|| Expr::Column(of(&table, field.name())));
                when(is_new.clone(), inserted).otherwise(old)?
            }
        };
        Ok(value.alias(field.name()))
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let input = LogicalPlanBuilder::from(joined)
        .filter(kept)?
        .project(columns)?
        .build()?;
    Ok(LogicalPlan::Dml(DmlStatement::new(
        table,
        insert.target,
        WriteOp::Update,
        Arc::new(input),
    )))
}

/// The columns of the key whose conflicts are meant.
fn keys(target: &FlashTable, wanted: Option<&ConflictTarget>) -> Result<Vec<String>> {
    let table = target.named().snapshot();
    let names = |definition: &IndexDefinition| -> Vec<String> {
        let names = table.index_columns(definition).into_iter();
        names.map(str::to_owned).collect()
    };
    let normalised = |name: &ast::Ident| IdentNormalizer::default().normalize(name.clone());
    let mut unique = table.indexes.iter().map(|index| &index.definition);
    let found = match wanted {
        None => unique.find(|definition| definition.primary),
        Some(ConflictTarget::Columns(columns)) => {
            let mut columns: Vec<_> = columns.iter().map(normalised).collect();
            columns.sort_unstable();
            unique.find(|definition| {
                let mut of_index = names(definition);
                of_index.sort_unstable();
                definition.unique && of_index == columns
            })
        }
        Some(ConflictTarget::OnConstraint(name)) => {
            let name = name
                .0
                .last()
                .and_then(|part| part.as_ident())
                .map(normalised);
            unique.find(|d| d.unique && Some(&d.name) == name.as_ref())
        }
    };
    found.map(names).ok_or_else(|| {
        Error::usage(format!(
            "ON CONFLICT: table '{}' has no such PRIMARY KEY or UNIQUE columns; name those of one: ON CONFLICT (column)",
            table.name
        ))
    })
}

/// The new values of the columns that DO UPDATE sets, by their places.
fn updated(
    update: &DoUpdate,
    target: &FlashTable,
    schema: &DFSchema,
    state: &SessionState,
) -> Result<Vec<Option<Expr>>> {
    let columns = &target.named().snapshot().schema;
    let mut values = vec![None; columns.fields().len()];
    for Assignment { target, value } in &update.assignments {
        let name = match target {
            AssignmentTarget::ColumnName(name) => name.0.last().and_then(|part| part.as_ident()),
            AssignmentTarget::Tuple(_) => None,
        };
        let name = name.ok_or_else(|| Error::usage("DO UPDATE SET sets columns, one by one"))?;
        let name = IdentNormalizer::default().normalize(name.clone());
        let place = columns.index_of(&name).map_err(|_| {
            Error::usage(format!(
                "DO UPDATE SET: there is no column '{name}' to be set"
            ))
        })?;
        let data_type = columns.field(place).data_type();
        let is_cast = matches!(value, ast::Expr::Cast { .. });
        let value = planned(value, schema, state)?;
        let from = value.get_type(schema)?;
        values[place] = Some(match from == *data_type || from.is_null() || is_cast {
            true => value.cast_to(data_type, schema)?,
            false => assigned(value, data_type, &name),
        });
    }
    Ok(values)
}

fn planned(expr: &ast::Expr, schema: &DFSchema, state: &SessionState) -> Result<Expr> {
    let expr = ast::ExprWithAlias {
        expr: expr.clone(),
        alias: None,
    };
    Ok(state.create_logical_expr_from_sql_expr(expr, schema)?)
}

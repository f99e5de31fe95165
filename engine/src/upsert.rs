//! `INSERT … ON CONFLICT`: the rows are joined with those that have their keys, and what comes out
//! is an UPDATE in which a row without an old one is inserted.

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, JoinType, TableReference};
use datafusion::execution::SessionState;
use datafusion::functions::core::expr_fn::named_struct;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{
    DmlStatement, Expr, ExprFunctionExt, ExprSchemable, LogicalPlan, LogicalPlanBuilder,
    WindowFunctionDefinition, WriteOp, lit, when,
};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    self, Assignment, AssignmentTarget, ConflictTarget, DoUpdate, OnConflict, OnConflictAction,
    OnInsert, SqliteOnConflict,
};
use flashmesh_planner::ranks::row_number;
use flashmesh_planner::{FlashTable, first_of_keys};
use flashmesh_storage::index::IndexDefinition;
use flashmesh_storage::table::{Generated, TableSnapshot};

use crate::assign::assigned;
use crate::clauses::check_qualifier;
use crate::error::{Error, Result};

/// What the rows that were to be inserted are called.
const EXCLUDED: &str = "excluded";
/// The column of their numbers.
const NUMBER: &str = "flashmesh:number";

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
    let is_ignore = matches!(conflict.action, OnConflictAction::DoNothing);
    let mut keys = keys(&target, conflict.conflict_target.as_ref(), is_ignore)?;
    // A row that has none of several keys of others is new; so is the first of new ones that share a key.
    let is_of_all = is_ignore && conflict.conflict_target.is_none();
    let rows = match is_of_all {
        true => numbered(rows)?,
        false => rows,
    };
    let mut excluded = LogicalPlanBuilder::from(rows).alias(EXCLUDED)?;
    let of = |relation: &TableReference, column: &str| Column::new(Some(relation.clone()), column);
    let new = TableReference::bare(EXCLUDED);
    let all_keys = keys.clone();
    for (number, key) in keys.drain(1..).enumerate() {
        let other = TableReference::bare(format!("conflict{number}"));
        let scan = LogicalPlanBuilder::scan(table.clone(), Arc::clone(&insert.target), None)?;
        let on = key.iter().map(|key| (of(&new, key), of(&other, key)));
        let on = on.unzip::<_, _, Vec<_>, Vec<_>>();
        let scan = scan.alias(other.clone())?.build()?;
        excluded = excluded.join(scan, JoinType::LeftAnti, on, None)?;
    }
    let excluded = excluded.build()?;
    let keys = keys.pop().unwrap_or_default();
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
    let mut input = LogicalPlanBuilder::from(joined).filter(kept)?;
    if is_of_all {
        let columns = |key: &Vec<String>| {
            let columns = key.iter().enumerate();
            let columns = columns
                .flat_map(|(place, name)| [lit(place.to_string()), Expr::Column(of(&new, name))]);
            named_struct(columns.collect())
        };
        let function = WindowFunctionDefinition::WindowUDF(first_of_keys());
        let first = WindowFunction::new(function, all_keys.iter().map(columns).collect());
        let order = Expr::Column(of(&new, NUMBER)).sort(true, false);
        let first = Expr::from(first).order_by(vec![order]).build()?;
        let name = first.schema_name().to_string();
        input = input.window([first])?;
        input = input.filter(Expr::Column(Column::from_name(name)))?;
    }
    let input = input.project(columns)?.build()?;
    Ok(LogicalPlan::Dml(DmlStatement::new(
        table,
        insert.target,
        WriteOp::Update,
        Arc::new(input),
    )))
}

/// Rows with their numbers, in the order in which they come.
fn numbered(rows: LogicalPlan) -> Result<LogicalPlan> {
    let mut columns: Vec<_> = rows
        .schema()
        .columns()
        .into_iter()
        .map(Expr::Column)
        .collect();
    let number = row_number();
    let name = number.schema_name().to_string();
    columns.push(Expr::Column(Column::from_name(name)).alias(NUMBER));
    let rows = LogicalPlanBuilder::from(rows).window([number])?;
    Ok(rows.project(columns)?.build()?)
}

/// The columns of the keys whose conflicts are meant: of one, or where nothing is done of all if none is
/// named.
fn keys(
    target: &FlashTable,
    wanted: Option<&ConflictTarget>,
    is_ignore: bool,
) -> Result<Vec<Vec<String>>> {
    let table = target.named().snapshot();
    let names = |definition: &IndexDefinition| -> Vec<String> {
        let names = table.index_columns(definition).into_iter();
        names.map(str::to_owned).collect()
    };
    let normalised = |name: &ast::Ident| IdentNormalizer::default().normalize(name.clone());
    let unique = table.indexes.iter().map(|index| &index.definition);
    let mut unique: Vec<_> = unique.filter(|definition| definition.unique).collect();
    unique.sort_by_key(|definition| !definition.primary);
    let found: Vec<_> = match wanted {
        None if unique.len() > 1 && !is_ignore => {
            let keys = unique
                .iter()
                .map(|of| format!("({})", names(of).join(", ")));
            return Err(Error::usage(format!(
                "table '{}' has several PRIMARY KEY and UNIQUE constraints, {}; say which one names the row that changes: \
                 ON CONFLICT (column) DO UPDATE SET …",
                table.name,
                keys.collect::<Vec<_>>().join(", ")
            )));
        }
        None => unique,
        Some(ConflictTarget::Columns(columns)) => {
            let mut columns: Vec<_> = columns.iter().map(normalised).collect();
            columns.sort_unstable();
            let is_meant = |definition: &&IndexDefinition| {
                let mut of_index = names(definition);
                of_index.sort_unstable();
                of_index == columns
            };
            unique.into_iter().find(is_meant).into_iter().collect()
        }
        Some(ConflictTarget::OnConstraint(name)) => {
            let name = name
                .0
                .last()
                .and_then(|part| part.as_ident())
                .map(normalised);
            let is_meant = |definition: &&IndexDefinition| Some(&definition.name) == name.as_ref();
            unique.into_iter().find(is_meant).into_iter().collect()
        }
    };
    match found.is_empty() {
        false => Ok(found.into_iter().map(names).collect()),
        true => Err(Error::usage(format!(
            "ON CONFLICT: table '{}' has no such PRIMARY KEY or UNIQUE columns; name those of one: ON CONFLICT (column)",
            table.name
        ))),
    }
}

/// The new values of the columns that DO UPDATE sets, by their places.
fn updated(
    update: &DoUpdate,
    target: &FlashTable,
    schema: &DFSchema,
    state: &SessionState,
) -> Result<Vec<Option<Expr>>> {
    let columns = &target.named().snapshot().schema;
    let (_, table) = target.named().name();
    let mut values = vec![None; columns.fields().len()];
    for Assignment { target, value } in &update.assignments {
        let name = match target {
            AssignmentTarget::ColumnName(name) => {
                check_qualifier(name, table)?;
                name.0.last().and_then(|part| part.as_ident())
            }
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
        let value = planned(value, schema, state)?;
        let from = value.get_type(schema)?;
        values[place] = Some(match from == *data_type || from.is_null() {
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

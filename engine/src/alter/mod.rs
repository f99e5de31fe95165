//! ALTER TABLE.
//!
//! New names, defaults and DROP NOT NULL change what is kept of the table; other columns or types
//! rewrite its rows, in one commit.

mod constraints;

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{FieldRef, Schema};
use datafusion::common::ResolvedTableReference;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::{
    CreateMemoryTable, DdlStatement, Expr, LogicalPlan, LogicalPlanBuilder, cast, ident, lit,
};
use datafusion::scalar::ScalarValue;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{
    self, AlterColumnOperation, AlterTableOperation, RenameTableNameKind,
};
use flashmesh_planner::Authority;
use flashmesh_planner::version::pin_tables;
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Right;
use flashmesh_storage::index::IndexDefinition;
use flashmesh_storage::table::{
    Check, Distribution, Generated, LoadTarget, TableSnapshot, is_temporary, normalise_schema,
};

use self::constraints::Added;
use crate::Session;
use crate::assign::assign;
use crate::blocking::blocking;
use crate::comments::commented;
use crate::constraints::take_checks_of;
use crate::create_table::check_columns;
use crate::defaults::{parsed_default, text_of_default};
use crate::error::{Error, Result};
use crate::generated::{self, Identity, next_numbers};
use crate::names::{CATALOG, COMMENT, name_of};
use crate::own_statement::AlterStatement;
use crate::row_ids::version_of;
use crate::same_names;
use crate::table_options::{NewOption, TableOptions};

/// How often the rows of a table are rewritten while others change them.
const ATTEMPTS: u32 = 100;

/// A column of the table that is to be.
#[derive(Debug, Clone)]
struct Column {
    field: FieldRef,
    default: Option<String>,
    /// Where its values come from.
    values: Values,
}

#[derive(Debug, Clone)]
enum Values {
    /// The column of that ordinal.
    Old(usize),
    /// The same, cast to the field's type.
    Cast(usize),
    /// A new column.
    New(Expr),
}

impl Session {
    pub(crate) fn parsed_alter(&self, alter: &ast::AlterTable) -> Result<AlterStatement> {
        if alter.only
            || alter.location.is_some()
            || alter.on_cluster.is_some()
            || alter.table_type.is_some()
        {
            return Err(Error::usage(
                "ALTER TABLE takes a table and what becomes of it",
            ));
        }
        let name = object_name_to_table_reference(alter.name.clone(), true)?;
        let name = self.resolve(name);
        Ok(AlterStatement {
            schema: name.schema.to_string(),
            table: name.table.to_string(),
            if_exists: alter.if_exists,
            operations: alter.operations.clone(),
        })
    }

    pub(crate) async fn alter_table(&self, alter: AlterStatement) -> Result<DataFrame> {
        let AlterStatement { schema, table, .. } = &alter;
        self.principal().check(Right::Create, schema, table)?;
        let of_schema = self.catalog().flash_schema(schema);
        let present = of_schema
            .as_ref()
            .map(|of_schema| of_schema.snapshot(table));
        let missing = matches!(&present, None | Some(Err(StorageError::NotFound { .. })));
        if missing && alter.if_exists {
            return self.nothing();
        }
        let Some(present) = present else {
            return Err(Error::Storage(StorageError::NotFound {
                kind: "table",
                name: format!("{schema}.{table}"),
            }));
        };
        let present = present?;
        let mut distributed = None;
        if let [AlterTableOperation::RenameTable { table_name }] = alter.operations.as_slice() {
            return self.rename_table(&present, &alter, table_name).await;
        }
        if let [AlterTableOperation::SetOptionsParens { options }] = alter.operations.as_slice() {
            match TableOptions::to_set(options)? {
                NewOption::Retention(retention) => {
                    let name = (schema.as_str(), table.as_str());
                    return self.set_retention(&present, name, retention).await;
                }
                NewOption::Distribution(options) => distributed = Some(options),
            }
        }
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.alter_columns(&alter, distributed.as_ref()).await {
                Err(error)
                    if attempts < ATTEMPTS
                        && matches!(error.storage(), Some(StorageError::Conflict { .. })) => {}
                altered => return altered,
            }
        }
    }

    async fn rename_table(
        &self,
        present: &TableSnapshot,
        alter: &AlterStatement,
        to: &RenameTableNameKind,
    ) -> Result<DataFrame> {
        let (RenameTableNameKind::As(to) | RenameTableNameKind::To(to)) = to;
        let to = object_name_to_table_reference(to.clone(), true)?;
        let to = match to.schema() {
            Some(_) => self.resolve(to),
            None => to.resolve(CATALOG, &alter.schema),
        };
        if *to.schema != *alter.schema {
            return Err(Error::usage("RENAME TO leaves a table in its schema"));
        }
        self.principal()
            .check(Right::Create, &to.schema, &to.table)?;
        if self.flash_schema(&to)?.session_table(&to.table).is_some() {
            return Err(Error::Storage(StorageError::AlreadyExists {
                kind: "table",
                name: to.table.to_string(),
            }));
        }
        let home = self.workspace().home_of(&alter.table);
        let home = home.filter(|_| is_temporary(&alter.schema));
        if let Some(home) = &home {
            self.check_hides_nothing(&ResolvedTableReference {
                schema: home.as_str().into(),
                ..to.clone()
            })?;
        } else {
            self.check_not_hidden(&to)?;
        }
        // Nobody shall get by a name what they may not do with the table.
        let (old, new) = (
            self.principal().rights(&alter.schema, &alter.table),
            self.principal().rights(&to.schema, &to.table),
        );
        for right in [Right::Read, Right::Write, Right::Kernel] {
            if new.has(right) && !old.has(right) {
                self.principal().check(right, &alter.schema, &alter.table)?;
            }
        }
        let capability = self.catalog().authority().capability(present);
        let changes = self.changes();
        let (schema, table, to) = (
            alter.schema.clone(),
            alter.table.clone(),
            to.table.to_string(),
        );
        let renamed = to.clone();
        blocking(move || changes.rename_table(&capability, &schema, &table, &renamed)).await?;
        if let Some(home) = home {
            self.workspace().move_home(&to, &home);
        }
        self.nothing()
    }

    /// Sets for how long past versions of a table stay readable.
    async fn set_retention(
        &self,
        present: &TableSnapshot,
        (schema, table): (&str, &str),
        retention: Duration,
    ) -> Result<DataFrame> {
        let capability = self.catalog().authority().capability(present);
        let changes = self.changes();
        let (schema, table) = (schema.to_string(), table.to_string());
        blocking(move || changes.set_retention(&capability, &schema, &table, retention)).await?;
        self.nothing()
    }

    /// `distributed`: its columns stay, and its rows lie by others.
    async fn alter_columns(
        &self,
        alter: &AlterStatement,
        distributed: Option<&TableOptions>,
    ) -> Result<DataFrame> {
        let (schema, table) = (&alter.schema, &alter.table);
        let present = self.workspace().snapshot(schema, table)?;
        let mut columns = columns_of(&present);
        let mut added = Added::of(alter, &present);
        if distributed.is_none() {
            for operation in &alter.operations {
                self.apply(&mut columns, &mut added, operation).await?;
            }
        }
        let Added {
            checks,
            keys,
            has_new_checks,
            ..
        } = added;
        let mut indexes = indexes_over(&present, &columns)?;
        for key in keys {
            indexes.push(self.index_of_key(alter, &mut columns, &indexes, key)?);
        }
        let defaults: Vec<_> = columns.iter().map(|c| c.default.clone()).collect();
        let arrow_schema = Arc::new(schema_of(&columns));
        check_columns(table, &arrow_schema)?;
        let distribution = match distributed {
            Some(options) => options.distribution(table, &arrow_schema, self.nodes_with_cards())?,
            None => distribution_over(&present, &columns, &arrow_schema)?,
        };
        let of_key = indexes.iter().filter(|index| index.primary);
        for column in of_key.flat_map(|index| &index.columns) {
            let field = &columns[*column as usize].field;
            if field.is_nullable() {
                return Err(Error::usage(format!(
                    "column '{}' is part of the primary key, which takes no NULL",
                    field.name()
                )));
            }
        }
        let is_old = |(place, column): (usize, &Column)| {
            let was_nullable = |i: usize| present.schema.field(i).is_nullable();
            matches!(column.values, Values::Old(i) if i == place && (column.field.is_nullable() || !was_nullable(i)))
        };
        // Those that an earlier flashmesh wrote are in no bucket.
        let mut segments = present.segments.iter();
        let lies = distribution.is_none() || segments.all(|segment| segment.bucket.is_some());
        // What is new of constraints is tested on the rows that are rewritten.
        let has_new = indexes.len() > present.indexes.len() || has_new_checks;
        let keeps_rows = !has_new
            && (distribution == present.distribution && (lies || distributed.is_none()))
            && columns.len() == present.schema.fields().len()
            && columns.iter().enumerate().all(is_old);
        if keeps_rows {
            let capability = self.catalog().authority().capability(&present);
            let changes = self.changes();
            blocking(move || {
                changes.redefine_columns(&capability, &present, &arrow_schema, &defaults, &checks)
            })
            .await?;
            return self.nothing();
        }
        let Some(of_schema) = self.catalog().flash_schema(schema) else {
            return Err(Error::usage(format!("schema '{schema}' does not exist")));
        };
        let target = of_schema.flash_table(table)?;
        let source = provider_as_source(Arc::new(target.clone()));
        let values = columns.iter().map(|column| {
            let name = column.field.name();
            let old = |i: usize| ident(present.schema.field(i).name());
            match &column.values {
                Values::Old(i) => old(*i).alias(name),
                Values::Cast(i) => cast(old(*i), column.field.data_type().clone()).alias(name),
                Values::New(value) => {
                    cast(value.clone(), column.field.data_type().clone()).alias(name)
                }
            }
        });
        let plan = LogicalPlanBuilder::scan(table.as_str(), source, None)?
            .project(values.collect::<Vec<_>>())?
            .build()?;
        let plan = pin_tables(assign(plan)?)?;
        let version = version_of(&plan, &target)?;
        if version.schema != present.schema || version.distribution != present.distribution {
            return Err(Error::Storage(StorageError::Conflict {
                rows: "rows".into(),
                table: table.clone(),
            }));
        }
        let target = LoadTarget::Redefine {
            version,
            arrow_schema,
            indexes,
            defaults,
            checks,
            distribution,
            schema: schema.clone(),
            table: table.clone(),
        };
        self.load_plan(target, plan, Arc::default()).await?;
        self.nothing()
    }

    async fn apply(
        &self,
        columns: &mut Vec<Column>,
        added: &mut Added,
        operation: &AlterTableOperation,
    ) -> Result<()> {
        let checks = &mut added.checks;
        match operation {
            AlterTableOperation::AddConstraint {
                constraint,
                not_valid: false,
            } => added.take(constraint, columns, self)?,
            AlterTableOperation::DropConstraint {
                if_exists,
                name,
                drop_behavior: None | Some(ast::DropBehavior::Restrict),
            } => {
                let name = name_of(name);
                let before = checks.len();
                checks.retain(|check| check.name != name);
                if checks.len() == before && !if_exists {
                    return Err(Error::usage(format!(
                        "the table has no CHECK constraint '{name}'; DROP INDEX drops one that is UNIQUE"
                    )));
                }
            }
            AlterTableOperation::AddColumn {
                if_not_exists,
                column_def,
                column_position: None,
                ..
            } => {
                let name = name_of(&column_def.name);
                if *if_not_exists && columns.iter().any(|c| *c.field.name() == name) {
                    return Ok(());
                }
                let mut column_def = column_def.clone();
                let written = take_checks_of(&mut column_def)?;
                let (field, mut default, identity) = self.declared(&column_def).await?;
                let mut text = default
                    .as_ref()
                    .map(|default| text_of_default(&name, default))
                    .transpose()?;
                if let Some(identity) = identity {
                    let database = self.engine().database();
                    let generated = identity.with_sequence(database, &name, field.data_type());
                    let generated = generated.await?;
                    text = Some(generated.to_string());
                    default = Some(next_numbers(database, &name, generated));
                }
                columns.push(Column {
                    field,
                    default: text,
                    values: Values::New(default.unwrap_or_else(|| lit(ScalarValue::Null))),
                });
                added.add(columns, written, self)?;
            }
            AlterTableOperation::DropColumn {
                column_names,
                if_exists,
                drop_behavior: None | Some(ast::DropBehavior::Restrict),
                ..
            } => {
                for name in column_names {
                    match place_of(columns, name) {
                        Ok(place) => {
                            self.check_not_constrained(columns, place, checks)?;
                            columns.remove(place);
                        }
                        Err(_) if *if_exists => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            AlterTableOperation::RenameColumn {
                old_column_name,
                new_column_name,
            } => {
                let place = place_of(columns, old_column_name)?;
                let (from, to) = (name_of(old_column_name), name_of(new_column_name));
                let mut others = columns.iter().filter(|c| *c.field.name() != from);
                if !checks.is_empty() && others.any(|c| *c.field.name() == to) {
                    return Err(Error::usage(format!(
                        "the table would have two columns named '{to}'"
                    )));
                }
                let fields = schema_of(columns);
                for check in checks {
                    *check = (self.engine().constraints()).renamed(&fields, check, &from, &to)?;
                }
                let field = columns[place].field.as_ref().clone();
                columns[place].field = Arc::new(field.with_name(name_of(new_column_name)));
            }
            AlterTableOperation::AlterColumn { column_name, op } => {
                let place = place_of(columns, column_name)?;
                let column = &mut columns[place];
                match op {
                    AlterColumnOperation::SetNotNull | AlterColumnOperation::DropNotNull => {
                        let nullable = matches!(op, AlterColumnOperation::DropNotNull);
                        let field = column.field.as_ref().clone();
                        column.field = Arc::new(field.with_nullable(nullable));
                    }
                    AlterColumnOperation::SetDefault { value } => {
                        let default = parsed_default(&self.context().state(), &value.to_string())?;
                        column.default = Some(text_of_default(column.field.name(), &default)?);
                    }
                    AlterColumnOperation::DropDefault => column.default = None,
                    AlterColumnOperation::AddGenerated {
                        generated_as,
                        sequence_options,
                    } => {
                        let name = column.field.name().clone();
                        if column.field.is_nullable() || column.default.is_some() {
                            return Err(Error::usage(format!(
                                "column '{name}' must be NOT NULL and have no DEFAULT before it is generated"
                            )));
                        }
                        let always = *generated_as == Some(ast::GeneratedAs::Always);
                        let identity = generated::counted(always, sequence_options)?;
                        let data_type = column.field.data_type().clone();
                        let database = self.engine().database();
                        let generated = identity.with_sequence(database, &name, &data_type);
                        column.default = Some(generated.await?.to_string());
                    }
                    AlterColumnOperation::SetDataType {
                        data_type,
                        using: None,
                        ..
                    } => {
                        let definition = ast::ColumnDef {
                            name: column_name.clone(),
                            data_type: data_type.clone(),
                            options: Vec::new(),
                        };
                        let (field, _, identity) = self.declared(&definition).await?;
                        let text = column.default.as_deref().and_then(Generated::parse);
                        if identity.is_some() || (text.is_some() && !field.data_type().is_integer())
                        {
                            return Err(Error::usage(format!(
                                "ALTER COLUMN {column_name} TYPE {data_type}: a generated column is an integer, and ADD GENERATED makes one"
                            )));
                        }
                        let field = field.as_ref().clone();
                        let nullable = column.field.is_nullable();
                        let comment = column.field.metadata().get(COMMENT).cloned();
                        let field =
                            commented(&field.with_nullable(nullable), &comment.unwrap_or_default());
                        column.field = Arc::new(field);
                        column.values = match column.values.clone() {
                            Values::Old(i) => Values::Cast(i),
                            other => other,
                        };
                    }
                    other => {
                        return Err(Error::usage(format!(
                            "ALTER COLUMN {other} is not supported"
                        )));
                    }
                }
            }
            other => {
                return Err(Error::usage(format!(
                    "ALTER TABLE … {other} is not supported"
                )));
            }
        }
        Ok(())
    }

    /// Refuses to drop a column that a constraint is about.
    fn check_not_constrained(
        &self,
        columns: &[Column],
        place: usize,
        checks: &[Check],
    ) -> Result<()> {
        let (fields, name) = (schema_of(columns), columns[place].field.name());
        for check in checks {
            if self.engine().constraints().names(&fields, check, name)? {
                return Err(Error::usage(format!(
                    "column '{name}' is part of CHECK constraint '{}' ({}); ALTER TABLE … DROP CONSTRAINT {0} first",
                    check.name, check.text
                )));
            }
        }
        Ok(())
    }

    /// The column that a definition declares, as CREATE TABLE has it, its default, and whether it is
    /// generated.
    async fn declared(
        &self,
        column: &ast::ColumnDef,
    ) -> Result<(FieldRef, Option<Expr>, Option<Identity>)> {
        let parsed = self.parse("CREATE TABLE declared (declared INT)")?;
        let Some(ParsedStatement::Statement(mut statement)) = parsed.into_iter().next() else {
            return Err(Error::usage("a column without a definition"));
        };
        if let ast::Statement::CreateTable(create) = statement.as_mut() {
            create.columns = vec![column.clone()];
        }
        let identity = generated::take_identities(&mut statement)?.pop();
        let state = self.context().state();
        let plan = same_names::plan(&state, ParsedStatement::Statement(statement)).await?;
        let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(CreateMemoryTable {
            input,
            constraints,
            mut column_defaults,
            ..
        })) = plan
        else {
            return Err(Error::usage("a column without a definition"));
        };
        if constraints.iter().next().is_some() {
            return Err(Error::usage(format!(
                "ADD COLUMN {} can't make a key; add the column, then CREATE UNIQUE INDEX",
                column.name
            )));
        }
        let field = input.schema().inner().field(0).clone();
        Ok((
            Arc::new(field),
            column_defaults.pop().map(|(_, default)| default),
            identity.map(|(_, identity)| identity),
        ))
    }
}

fn columns_of(table: &TableSnapshot) -> Vec<Column> {
    let fields = table.schema.fields().iter().zip(&table.defaults);
    let columns = fields.enumerate().map(|(i, (field, default))| Column {
        field: Arc::clone(field),
        default: default.clone(),
        values: Values::Old(i),
    });
    columns.collect()
}

fn schema_of(columns: &[Column]) -> Schema {
    let fields = columns.iter().map(|column| Arc::clone(&column.field));
    Schema::new(fields.collect::<Vec<_>>())
}

fn place_of(columns: &[Column], name: &ast::Ident) -> Result<usize> {
    let name = name_of(name);
    let place = columns.iter().position(|c| *c.field.name() == name);
    place.ok_or_else(|| Error::usage(format!("the table has no column '{name}'")))
}

/// The table's indexes over the columns that are to be.
fn indexes_over(table: &TableSnapshot, columns: &[Column]) -> Result<Vec<IndexDefinition>> {
    let indexes = table.indexes.iter().map(|index| {
        let mut definition = index.definition.clone();
        for column in &mut definition.columns {
            let Some(place) = new_place(columns, *column) else {
                return Err(Error::usage(format!(
                    "column '{}' is part of index '{}'; drop that first",
                    table.schema.field(*column as usize).name(),
                    definition.name
                )));
            };
            *column = place;
        }
        Ok(definition)
    });
    indexes.collect()
}

/// Where a column of the table is among those that are to be.
fn new_place(columns: &[Column], old: u32) -> Option<u32> {
    let is_it = |column: &Column| matches!(column.values, Values::Old(i) | Values::Cast(i) if i == old as usize);
    let place = columns.iter().position(is_it);
    place.map(|place| place as u32)
}

/// By which of the new columns the rows of a table lie.
fn distribution_over(
    table: &TableSnapshot,
    columns: &[Column],
    schema: &Schema,
) -> Result<Option<Arc<Distribution>>> {
    let Some(by) = &table.distribution else {
        return Ok(None);
    };
    let moved = by.moved(|column| new_place(columns, column));
    let moved = moved.map_err(|gone| {
        let fields = table.schema.fields();
        let name = fields.get(gone as usize).map_or("", |field| field.name());
        Error::usage(format!(
            "the table is distributed by column '{name}'; ALTER TABLE … SET (distribute_by = '') first"
        ))
    });
    let moved = moved?;
    // The types may be others.
    let moved = Distribution::new(
        normalise_schema(schema)?.as_ref(),
        moved.columns().to_vec(),
        moved.buckets(),
    );
    Ok(Some(Arc::new(moved?)))
}

//! CREATE TABLE: what DataFusion's plan says, and what it leaves out of the statement.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::metadata::FieldMetadata;
use datafusion::common::{Constraint, Constraints, ResolvedTableReference, TableReference};
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{
    CreateMemoryTable, DdlStatement, EmptyRelation, Expr, LogicalPlan, LogicalPlanBuilder, cast,
};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast;
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Right;
use flashmesh_storage::index::{IndexDefinition, IndexKind};
use flashmesh_storage::table::{LoadTarget, TEMPORARY_PREFIX, TEMPORARY_SCHEMA};

use crate::Session;
use crate::assign::assign;
use crate::blocking::blocking;
use crate::constraints::checks_of;
use crate::defaults::text_of_default;
use crate::error::{Error, Result};
use crate::generated::Identity;
use crate::names::CATALOG;
use crate::table_options::TableOptions;

/// What marks a column of a query's plan that was declared NOT NULL.
const NOT_NULL: &str = "flashmesh.not_null";

/// Which columns of CREATE TABLE … (…) AS … are declared NOT NULL: DataFusion's plan forgets it.
pub(crate) fn declared_not_null(statement: &ParsedStatement) -> Option<Vec<bool>> {
    let ParsedStatement::Statement(statement) = statement else {
        return None;
    };
    let ast::Statement::CreateTable(create) = statement.as_ref() else {
        return None;
    };
    if create.query.is_none() || create.columns.is_empty() {
        return None;
    }
    let not_null = create.columns.iter().map(|column| {
        let mut options = column.options.iter();
        options.any(|option| matches!(option.option, ast::ColumnOption::NotNull))
    });
    Some(not_null.collect())
}

/// The plan of such a statement, with that in it and with casts to the columns' types that refuse
/// to lose digits.
pub(crate) fn with_declared(plan: LogicalPlan, not_null: &[bool]) -> Result<LogicalPlan> {
    let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(mut create)) = plan else {
        return Ok(plan);
    };
    let query = assign(Arc::unwrap_or_clone(create.input))?;
    let columns = query.schema().columns();
    let columns = columns.into_iter().zip(not_null).map(|(column, not_null)| {
        let name = column.name.clone();
        let marks = HashMap::from([(NOT_NULL.to_owned(), String::new())]);
        let marks = not_null.then(|| FieldMetadata::from(marks));
        Expr::Column(column).alias_with_metadata(name, marks)
    });
    let columns: Vec<_> = columns.collect();
    create.input = Arc::new(LogicalPlanBuilder::from(query).project(columns)?.build()?);
    Ok(LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)))
}

impl Session {
    pub(crate) async fn create_table(&self, create: CreateMemoryTable) -> Result<DataFrame> {
        let is_temporary = match create.name.schema() {
            // As the statement was rewritten.
            Some(TEMPORARY_PREFIX) => true,
            Some(TEMPORARY_SCHEMA) => !self.workspace().has_schema(TEMPORARY_SCHEMA),
            _ => false,
        };
        let name = match is_temporary {
            true => self.temporary_name(create.name.table()).await?,
            false => self.lasting_name(create.name)?,
        };
        let schema = self.flash_schema(&name)?;
        if create.or_replace && create.if_not_exists {
            return Err(Error::usage(
                "OR REPLACE and IF NOT EXISTS exclude each other; leave one out",
            ));
        }
        if schema.session_table(&name.table).is_some() {
            return Err(Error::usage(format!(
                "'{}' is a view or external table of this session; drop it first or choose another name",
                name.table
            )));
        }
        if schema.is_on_flash(&name.table) && !create.or_replace {
            if create.if_not_exists {
                return self.nothing();
            }
            return Err(Error::Storage(StorageError::AlreadyExists {
                kind: "table",
                name: name.table.to_string(),
            }));
        }
        let options = TableOptions::of(&create.input);
        let checks = checks_of(&create.input);
        let (columns, query) = match create.input.as_ref() {
            // A list of columns without a query: the only way to an empty relation right here.
            LogicalPlan::EmptyRelation(EmptyRelation {
                produce_one_row: false,
                schema,
            }) => (Arc::clone(schema.inner()), None),
            input => {
                let query = without_null_type(input.clone())?;
                (declared_columns(query.schema().inner()), Some(query))
            }
        };
        check_columns(&name.table, &columns)?;
        let workspace = self.workspace();
        let is_free = |index: &str| match workspace.index(&name.schema, index) {
            Ok((owner, ..)) => *owner == *name.table,
            Err(_) => true,
        };
        let (columns, indexes) = keys(&name.table, &columns, &create.constraints, is_free);
        let mut defaults = vec![None; columns.fields().len()];
        for (column, default) in &create.column_defaults {
            let place = columns.index_of(column)?;
            let text = match Identity::of(default) {
                Some(identity) => {
                    let data_type = columns.field(place).data_type();
                    let database = self.engine().database();
                    let generated = identity.with_sequence(database, column, data_type);
                    generated.await?.to_string()
                }
                None => text_of_default(column, default)?,
            };
            defaults[place] = Some(text);
        }
        let distribution = options.distribution(&name.table, &columns, self.nodes_with_cards())?;
        let target = LoadTarget::Create {
            retention: options.retention.unwrap_or_default(),
            layout: options.layout.unwrap_or_default(),
            distribution,
            defaults,
            checks,
            schema: name.schema.to_string(),
            table: name.table.to_string(),
            arrow_schema: columns,
            or_replace: create.or_replace,
            indexes,
        };
        match query {
            Some(query) => {
                let rows = self.load_plan(target, query, Arc::default()).await?;
                self.count(rows)
            }
            None => {
                let capability = self.check_target(&target)?;
                let changes = self.changes();
                blocking(move || changes.begin_load(&capability, target)?.commit()).await?;
                self.nothing()
            }
        }
    }
}

impl Session {
    /// The name of a table that lasts, and the right to make it.
    fn lasting_name(&self, name: TableReference) -> Result<ResolvedTableReference> {
        let written = self.resolve_written(name);
        // Before anything is looked at: the answer shall not tell what is there.
        self.principal()
            .check(Right::Create, &written.schema, &written.table)?;
        self.check_not_hidden(&written)?;
        Ok(written)
    }

    /// Refuses a name of a table that lasts, where a temporary one would hide it.
    pub(crate) fn check_not_hidden(&self, written: &ResolvedTableReference) -> Result<()> {
        let place = self.workspace().place_of(&written.schema, &written.table);
        match place == written.schema.as_ref() || written.catalog.as_ref() != CATALOG {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "'{}' is a temporary table of this session; drop it first or choose another name",
                written.table
            ))),
        }
    }

    /// The name under which the session's temporary table of that name is kept; from now on it is found
    /// there. Who may make no table of that name in the schema in use may make no temporary one.
    pub(crate) async fn temporary_name(&self, table: &str) -> Result<ResolvedTableReference> {
        let home = self.resolve_written(TableReference::bare(table));
        self.principal()
            .check(Right::Create, &home.schema, &home.table)?;
        self.check_hides_nothing(&home)?;
        let (workspace, of) = (Arc::clone(self.workspace()), home.clone());
        let made = blocking(move || {
            let schema = workspace.make_temporary(&of.schema, &of.table)?;
            Ok::<_, StorageError>(schema.to_owned())
        });
        Ok(ResolvedTableReference {
            schema: made.await?.into(),
            ..home
        })
    }

    /// Refuses a name of a temporary table that its home has already.
    pub(crate) fn check_hides_nothing(&self, home: &ResolvedTableReference) -> Result<()> {
        let known = self.flash_schema(home)?;
        match known.has(&home.table) {
            false => Ok(()),
            true => Err(Error::usage(format!(
                "'{home}' is there, and a temporary table would hide it; choose another name",
            ))),
        }
    }

    /// How many nodes take what is new.
    pub(crate) fn nodes_with_cards(&self) -> usize {
        self.engine().database().store().filled_nodes().len()
    }
}

/// What the index of a key is called, of which none is called so.
pub(crate) fn name_of_key(
    table: &str,
    columns: &[&str],
    primary: bool,
    is_free: impl Fn(&str) -> bool,
) -> String {
    let name = match primary {
        true => format!("{table}_pkey"),
        false => format!("{table}_{}_key", columns.join("_")),
    };
    // A table that was renamed keeps the names of its keys.
    let numbered = (1..).map(|number| format!("{name}{number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered).take(1000);
    names.find(|name| is_free(name)).unwrap_or_default()
}

/// The indexes that keep a table's keys, and its columns, of which those of the primary key take
/// no NULL.
fn keys(
    table: &str,
    columns: &SchemaRef,
    constraints: &Constraints,
    is_free: impl Fn(&str) -> bool,
) -> (SchemaRef, Vec<IndexDefinition>) {
    let mut fields: Vec<_> = columns.fields().iter().cloned().collect();
    let mut indexes = Vec::new();
    for constraint in constraints.iter() {
        let (key, primary) = match constraint {
            Constraint::PrimaryKey(key) => (key, true),
            Constraint::Unique(key) => (key, false),
        };
        let names: Vec<_> = key
            .iter()
            .map(|c| columns.field(*c).name().as_str())
            .collect();
        let name = name_of_key(table, &names, primary, &is_free);
        if primary {
            for column in key {
                let field = fields[*column].as_ref().clone();
                fields[*column] = Arc::new(field.with_nullable(false));
            }
        }
        indexes.push(IndexDefinition {
            name,
            kind: IndexKind::Hash,
            columns: key.iter().map(|c| *c as u32).collect(),
            unique: true,
            primary,
            options: Default::default(),
        });
    }
    (Arc::new(Schema::new(fields)), indexes)
}

pub(crate) fn check_columns(table: &str, columns: &Schema) -> Result<()> {
    if columns.fields().is_empty() {
        return Err(Error::usage(format!(
            "table '{table}' needs at least one column"
        )));
    }
    for (position, field) in columns.fields().iter().enumerate() {
        if columns.fields()[..position]
            .iter()
            .any(|f| f.name() == field.name())
        {
            return Err(Error::usage(format!(
                "table '{table}' would have two columns named '{0}'; rename one with AS",
                field.name()
            )));
        }
    }
    Ok(())
}

/// The columns of a query's result as a table has them: an expression that happens to be never
/// NULL (`count(*)`, a literal) does not forbid NULL in rows inserted later.
fn declared_columns(schema: &SchemaRef) -> SchemaRef {
    let column = |field: &Arc<Field>| {
        let mut field = field.as_ref().clone();
        let not_null = field.metadata_mut().remove(NOT_NULL).is_some();
        field.with_nullable(!not_null)
    };
    Arc::new(Schema::new(
        schema.fields().iter().map(column).collect::<Vec<_>>(),
    ))
}

/// A query whose columns have types that can be stored: one that is nothing but NULL becomes
/// INTEGER.
pub(crate) fn without_null_type(query: LogicalPlan) -> Result<LogicalPlan> {
    let fields = query.schema().fields();
    if fields.iter().all(|field| !field.data_type().is_null()) {
        return Ok(query);
    }
    let columns = fields.iter().zip(query.schema().columns());
    let columns = columns.map(|(field, column)| match field.data_type() {
        DataType::Null => cast(Expr::Column(column.clone()), DataType::Int32).alias(column.name),
        _ => Expr::Column(column),
    });
    let columns: Vec<_> = columns.collect();
    Ok(LogicalPlanBuilder::from(query).project(columns)?.build()?)
}

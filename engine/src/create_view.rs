//! CREATE VIEW and DROP VIEW.

use std::sync::Arc;

use datafusion::catalog::SchemaProvider;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::{TableType, ViewTable};
use datafusion::logical_expr::{CreateView, DropView};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast;
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Right;
use flashmesh_storage::table::{TEMPORARY_SCHEMA, View, is_temporary};

use crate::Session;
use crate::blocking::blocking;
use crate::clauses::write_out_files;
use crate::create_table::check_columns;
use crate::error::{Error, Result};
use crate::names::CATALOG;
use crate::views::parsed;

impl Session {
    /// Makes a view: of the session with TEMPORARY, else of the database.
    pub(crate) async fn create_view(&self, create: CreateView) -> Result<DataFrame> {
        let name = self.resolve(create.name);
        let schema = self.flash_schema(&name)?;
        if !create.temporary {
            self.principal()
                .check(Right::Create, &name.schema, &name.table)?;
        }
        if schema.is_on_flash(&name.table) {
            return Err(Error::usage(format!(
                "'{0}' is a table on flash; choose another name for the view, or DROP TABLE {0} first",
                name.table
            )));
        }
        if is_temporary(&name.schema) && !create.temporary {
            return Err(Error::usage(format!(
                "a view in '{TEMPORARY_SCHEMA}' goes with the session; write CREATE TEMPORARY VIEW {}",
                name.table
            )));
        }
        check_columns(&name.table, create.input.schema().inner())?;
        let of_session = schema.session_table(&name.table);
        if of_session.is_some() && !(create.temporary && create.or_replace) {
            return Err(Error::usage(format!(
                "'{}' already exists in this session; drop it first",
                name.table
            )));
        }
        if create.temporary {
            let plan = Arc::unwrap_or_clone(create.input);
            let view = ViewTable::new(plan, create.definition);
            schema.replace_session_table(name.table.to_string(), Arc::new(view));
            return self.nothing();
        }
        let options = self.options();
        let dialect = options.sql_parser.dialect.to_string();
        let text = create.definition.unwrap_or_default();
        let statement = parsed(&text, &dialect)?;
        self.check_no_temporary(&statement)?;
        let ParsedStatement::Statement(statement) = statement else {
            return Err(Error::usage("a view is made of a query"));
        };
        let ast::Statement::CreateView(mut written) = *statement else {
            return Err(Error::usage("a view is made of a query"));
        };
        write_out_files(&mut written.query);
        let columns = written.columns.iter().map(|c| self.normalise(&c.name));
        let view = View {
            schema: name.schema.to_string(),
            name: name.table.to_string(),
            query: written.query.to_string(),
            columns: columns.collect(),
            owner: self.principal().name.to_string(),
            default_schema: options.catalog.default_schema.clone(),
            dialect,
        };
        if create.or_replace {
            self.check_no_circle(&view)?;
        }
        let capability = self.catalog().authority().of_name(&view.schema, &view.name);
        let changes = self.changes();
        blocking(move || changes.create_view(&capability, view, create.or_replace)).await?;
        self.nothing()
    }

    /// Refuses a view of the database that reads what goes with the session.
    fn check_no_temporary(&self, statement: &ParsedStatement) -> Result<()> {
        let state = self.context().state();
        for reference in state.resolve_table_references(statement)? {
            if is_temporary(&self.resolve(reference.clone()).schema) {
                return Err(Error::usage(format!(
                    "'{reference}' is a temporary table of this session; write CREATE TEMPORARY VIEW"
                )));
            }
        }
        Ok(())
    }

    /// Refuses a view that would be read by way of itself.
    fn check_no_circle(&self, view: &View) -> Result<()> {
        let workspace = self.workspace();
        let state = self.context().state();
        let mut seen: Vec<View> = Vec::new();
        let mut next = vec![view.clone()];
        while let Some(current) = next.pop() {
            let statement = parsed(&current.query, &current.dialect)?;
            for reference in state.resolve_table_references(&statement)? {
                let name = reference.resolve(CATALOG, &current.default_schema);
                if (name.schema.as_ref(), name.table.as_ref()) == (&*view.schema, &*view.name) {
                    return Err(Error::usage(format!(
                        "view '{}.{}' would refer to itself through '{}.{}'",
                        view.schema, view.name, current.schema, current.name
                    )));
                }
                let known = workspace.view(&name.schema, &name.table);
                if let Some(known) = known.filter(|known| !seen.contains(known)) {
                    next.push(known.as_ref().clone());
                }
            }
            seen.push(current);
        }
        Ok(())
    }

    /// Drops a view of the session or of the database.
    pub(crate) async fn drop_view(&self, drop: DropView) -> Result<DataFrame> {
        let name = self.resolve(drop.name);
        let schema = match self.flash_schema(&name) {
            Ok(schema) => schema,
            Err(_) if drop.if_exists => return self.nothing(),
            Err(error) => return Err(error),
        };
        if let Some(table) = schema.session_table(&name.table) {
            if table.table_type() != TableType::View {
                return Err(Error::usage(format!(
                    "'{0}' is not a view; use DROP TABLE {0}",
                    name.table
                )));
            }
            schema.forget_session_table(&name.table);
            return self.nothing();
        }
        // What the user may not know of is not there.
        if drop.if_exists && !schema.table_exist(&name.table) {
            return self.nothing();
        }
        self.principal()
            .check(Right::Create, &name.schema, &name.table)?;
        if schema.is_on_flash(&name.table) {
            return Err(Error::usage(format!(
                "'{0}' is a table; use DROP TABLE {0}",
                name.table
            )));
        }
        let (schema, view) = (name.schema.to_string(), name.table.to_string());
        let capability = self.catalog().authority().of_name(&schema, &view);
        let changes = self.changes();
        match blocking(move || changes.drop_view(&capability, &schema, &view)).await {
            Err(Error::Storage(StorageError::NotFound { .. })) if drop.if_exists => self.nothing(),
            other => other.and_then(|()| self.nothing()),
        }
    }
}

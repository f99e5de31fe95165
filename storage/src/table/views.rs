//! Views: the catalog keeps the text of each, and who reads it makes it a plan.

use std::sync::Arc;

use crate::table::Database;
use crate::table::catalog::Change;
use crate::table::manifest::ViewRecord;
use crate::{Result, StorageError};

/// A view as the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Its schema.
    pub schema: String,
    /// Its name, which no table of the schema has.
    pub name: String,
    /// The SQL of its query.
    pub query: String,
    /// What its columns are called; empty: as the query calls them.
    pub columns: Vec<String>,
    /// Who made it.
    pub owner: String,
    /// The schema of names in the query that have none.
    pub default_schema: String,
    /// The SQL dialect of the query.
    pub dialect: String,
}

impl Database {
    /// Names of the views of a schema, sorted.
    pub fn views(&self, schema: &str) -> Vec<String> {
        let state = self.state.read();
        let names = state.views.keys().filter(|(s, _)| s == schema);
        names.map(|(_, name)| name.clone()).collect()
    }

    /// A view, if there is one of that name.
    pub fn view(&self, schema: &str, name: &str) -> Option<Arc<View>> {
        let key = (schema.to_string(), name.to_string());
        self.state.read().views.get(&key).cloned()
    }

    /// Makes a view; with `or_replace` one of the same name goes.
    ///
    /// # Errors
    /// `AlreadyExists` (also for a table of that name), `NotFound` (the schema), `ReadOnly`,
    /// `Full`.
    pub fn create_view(&self, view: View, or_replace: bool) -> Result<()> {
        self.check_writable()?;
        let _commit = self.commit.lock();
        self.check_schema_exists(&view.schema)?;
        let kind = if self.table_state(&view.schema, &view.name).is_ok() {
            Some("table")
        } else {
            let present = self.view(&view.schema, &view.name);
            present.filter(|_| !or_replace).map(|_| "view")
        };
        if let Some(kind) = kind {
            return Err(StorageError::AlreadyExists {
                kind,
                name: format!("{}.{}", view.schema, view.name),
            });
        }
        let view = Arc::new(view);
        self.catalog.apply(&Change {
            put_view: Some(Arc::clone(&view)),
            ..Change::default()
        })?;
        let key = (view.schema.clone(), view.name.clone());
        self.state.write().views.insert(key, view);
        Ok(())
    }

    /// Drops a view.
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`.
    pub fn drop_view(&self, schema: &str, name: &str) -> Result<()> {
        self.check_writable()?;
        let _commit = self.commit.lock();
        if self.view(schema, name).is_none() {
            return Err(StorageError::NotFound {
                kind: "view",
                name: format!("{schema}.{name}"),
            });
        }
        let key = (schema.to_string(), name.to_string());
        self.catalog.apply(&Change {
            drop_view: Some(key.clone()),
            ..Change::default()
        })?;
        self.state.write().views.remove(&key);
        Ok(())
    }

    /// A table may not have the name of a view.
    pub(super) fn check_no_view(&self, schema: &str, name: &str) -> Result<()> {
        match self.view(schema, name) {
            None => Ok(()),
            Some(_) => Err(StorageError::AlreadyExists {
                kind: "view",
                name: format!("{schema}.{name}"),
            }),
        }
    }
}

impl ViewRecord {
    pub(super) fn of(view: &View) -> Self {
        Self {
            query: view.query.clone(),
            columns: view.columns.clone(),
            owner: view.owner.clone(),
            default_schema: view.default_schema.clone(),
            dialect: view.dialect.clone(),
        }
    }

    pub(super) fn decode_view(self, schema: &str, name: &str) -> View {
        View {
            schema: schema.into(),
            name: name.into(),
            query: self.query,
            columns: self.columns,
            owner: self.owner,
            default_schema: self.default_schema,
            dialect: self.dialect,
        }
    }
}

//! Views: the catalog keeps the text of each, and who reads it makes it a plan.

use std::sync::Arc;

use crate::table::Database;
use crate::table::edit::{ObjectName, Operation, Precondition, PutView, TableEdit};
use crate::table::manifest::ViewRecord;

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
        self.state.read().views_of(schema)
    }

    /// A view, if there is one of that name.
    pub fn view(&self, schema: &str, name: &str) -> Option<Arc<View>> {
        let name = ObjectName::new(schema, name);
        self.state.read().views.get(&name).cloned()
    }
}

/// The edit that makes a view.
pub(super) fn created(view: &View, or_replace: bool) -> TableEdit {
    let name = ObjectName::new(&view.schema, &view.name);
    let mut edit = TableEdit::default();
    edit.require(Precondition::Schema(view.schema.clone()));
    edit.require(Precondition::NoTable(name.clone()));
    if !or_replace {
        edit.require(Precondition::NoView(name.clone()));
    }
    let record = ViewRecord::of(view);
    edit.push(Operation::PutView(PutView { name, record }));
    edit
}

/// The edit that drops a view.
pub(super) fn dropped(schema: &str, name: &str) -> TableEdit {
    let name = ObjectName::new(schema, name);
    let mut edit = TableEdit::default();
    edit.require(Precondition::View(name.clone()));
    edit.push(Operation::DropView(name));
    edit
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

    pub(super) fn decode_view(self, name: &ObjectName) -> View {
        View {
            schema: name.schema.clone(),
            name: name.name.clone(),
            query: self.query,
            columns: self.columns,
            owner: self.owner,
            default_schema: self.default_schema,
            dialect: self.dialect,
        }
    }
}

//! Temporary tables: those of one session, which go with it.
//!
//! They are tables as all others, in a schema that a session has for itself. Nobody else can name it, and
//! lists of schemas leave it out. The session finds them in `temp`, and by the names that they would
//! have were they none: [`Workspace::place_of`]. When a session ends, the thread that keeps indexes up
//! drops what it leaves, and when a database is opened, what sessions of its earlier life have left.

pub(super) mod names;

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

pub use names::{TEMPORARY_PREFIX, TEMPORARY_SCHEMA, is_temporary};

use super::database::{Core, schema_created, schema_dropped};
use super::edit::ObjectName;
use super::steps::{self, Step};
use super::upkeep::RETRY_AFTER;
use super::{Workspace, views};
use crate::{Result, StorageError};

impl Workspace {
    /// The schema of the session's temporary tables, if it has any.
    pub fn temporary_schema(&self) -> Option<&str> {
        let name = self.temporary.schema.get()?;
        self.has_schema(name).then_some(name)
    }

    /// Whether a schema has the temporary tables of another session.
    pub fn is_of_another(&self, schema: &str) -> bool {
        is_temporary(schema) && self.temporary_schema() != Some(schema)
    }

    /// The same; it is made where there is none. From now on `table` is looked for there by whoever
    /// names it in the schema `home`, unless there is one of that name already.
    ///
    /// # Errors
    /// `ReadOnly`, `Full`, `Io`.
    pub fn make_temporary(&self, home: &str, table: &str) -> Result<&str> {
        let name = || {
            format!(
                "{TEMPORARY_PREFIX}{:016x}",
                RandomState::new().build_hasher().finish()
            )
        };
        let schema = self.temporary.schema.get_or_init(name);
        if !self.has_schema(schema) {
            match self.take(Step::Define(schema_created(schema))) {
                // Another statement of the session was quicker.
                Err(StorageError::AlreadyExists { .. }) => {}
                made => made?,
            }
        }
        if !self.has_table(schema, table) {
            self.move_home(table, home);
        }
        Ok(schema)
    }

    /// From now on the temporary `table` is looked for by whoever names it in the schema `home`.
    pub fn move_home(&self, table: &str, home: &str) {
        let mut homes = self.temporary.homes.write();
        homes.insert(table.to_owned(), home.to_owned());
    }

    /// The schema in which a temporary table of that name is looked for.
    pub fn home_of(&self, table: &str) -> Option<String> {
        self.temporary.homes.read().get(table).cloned()
    }

    /// The schema that has what a session calls `schema.table`: its temporary tables come first.
    pub fn place_of<'a>(&'a self, schema: &'a str, table: &str) -> &'a str {
        let Some(own) = self.temporary_schema() else {
            return schema;
        };
        match self.is_temp(schema) || self.is_at_home(schema, table) && self.has_table(own, table) {
            true => own,
            false => schema,
        }
    }

    /// The same of an index: it is where its table is.
    pub fn place_of_index<'a>(&'a self, schema: &'a str, index: &str) -> &'a str {
        let Some(own) = self.temporary_schema() else {
            return schema;
        };
        let is_found = || {
            let found = self.index(own, index);
            found.is_ok_and(|(table, ..)| self.is_at_home(schema, &table))
        };
        match self.is_temp(schema) || is_found() {
            true => own,
            false => schema,
        }
    }

    /// Whether it is the name by which sessions call the schema of their own. A database may have a schema
    /// of that name from before there was this one.
    fn is_temp(&self, schema: &str) -> bool {
        schema == TEMPORARY_SCHEMA && !self.has_schema(schema)
    }

    fn is_at_home(&self, schema: &str, table: &str) -> bool {
        let homes = self.temporary.homes.read();
        homes.get(table).is_some_and(|home| home == schema)
    }

    /// Whether there is one, though it may not be readable.
    fn has_table(&self, schema: &str, table: &str) -> bool {
        !matches!(
            self.table_state(schema, table),
            Err(StorageError::NotFound { .. })
        )
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if let Some(schema) = self.temporary.schema.take() {
            self.database().upkeep.end_session(schema);
        }
    }
}

impl Core {
    /// What sessions of an earlier life of the database have left is to be dropped.
    pub(super) fn end_sessions_of_before(&self) {
        let state = self.state.read();
        let mut schemas: BTreeSet<&str> = state.schemas.iter().map(String::as_str).collect();
        let tables = state.tables.keys().chain(state.damaged.keys());
        schemas.extend(tables.map(|table| table.schema.as_str()));
        for schema in schemas.into_iter().filter(|schema| is_temporary(schema)) {
            self.upkeep.ended.add(schema.to_owned());
        }
    }

    /// Drops the temporary tables of sessions that have ended.
    pub(super) fn drop_temporary(&self) {
        for schema in self.upkeep.ended.take_due() {
            if let Err(error) = self.drop_with_tables(&schema) {
                log::warn!("the temporary tables of a session stay for now: {error}");
                self.upkeep.ended.add_after(RETRY_AFTER, schema);
            }
        }
    }

    /// A table that can't be dropped keeps the schema, and none of the others.
    fn drop_with_tables(&self, schema: &str) -> Result<()> {
        let (tables, views) = {
            let state = self.state.read();
            (state.tables_of(schema), state.views_of(schema))
        };
        let mut result = Ok(());
        let tables = tables.iter().map(|table| {
            let step = Step::DropTable {
                name: ObjectName::new(schema, table),
                table: self.table_state(schema, table)?.snapshot.id,
                only: None,
            };
            steps::commit(self, vec![step])
        });
        let views = views.iter().map(|view| {
            let step = Step::Define(views::dropped(schema, view));
            steps::commit(self, vec![step])
        });
        for dropped in tables.chain(views) {
            result = result.and(dropped);
        }
        result?;
        let step = Step::Define(schema_dropped(schema));
        match steps::commit(self, vec![step]) {
            Err(StorageError::NotFound { .. }) => Ok(()),
            dropped => dropped,
        }
    }
}

//! Constraints that ALTER TABLE adds.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{self, TableConstraint};
use flashmesh_storage::StorageError;
use flashmesh_storage::index::{IndexDefinition, IndexKind};
use flashmesh_storage::table::{Check, TableSnapshot};

use super::{Column, place_of, schema_of};
use crate::Session;
use crate::constraints::{Written, named};
use crate::create_table::name_of_key;
use crate::error::{Error, Result};
use crate::names::name_of;
use crate::own_statement::AlterStatement;

impl Session {
    /// The index that enforces a new key, whose columns take no NULL if it is the primary one.
    pub(super) fn index_of_key(
        &self,
        alter: &AlterStatement,
        columns: &mut [Column],
        indexes: &[IndexDefinition],
        key: NewKey,
    ) -> Result<IndexDefinition> {
        if key.primary && indexes.iter().any(|index| index.primary) {
            return Err(Error::usage(format!(
                "table '{}' has a primary key; CREATE TABLE … AS SELECT makes a table with another",
                alter.table
            )));
        }
        let mut places = Vec::with_capacity(key.columns.len());
        for column in &key.columns {
            let place = place_of(columns, column)?;
            if key.primary {
                let field = columns[place].field.as_ref().clone();
                columns[place].field = Arc::new(field.with_nullable(false));
            }
            places.push(place as u32);
        }
        let is_free = |name: &str| {
            let is_known = indexes.iter().any(|index| index.name == name);
            !is_known && self.workspace().index(&alter.schema, name).is_err()
        };
        let name = match key.name {
            Some(name) if is_free(&name) => name,
            Some(name) => {
                return Err(Error::Storage(StorageError::AlreadyExists {
                    kind: "index",
                    name,
                }));
            }
            None => {
                let names = key.columns.iter().map(name_of);
                let names: Vec<_> = names.collect();
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                name_of_key(&alter.table, &names, key.primary, is_free)
            }
        };
        Ok(IndexDefinition {
            name,
            kind: IndexKind::Hash,
            columns: places,
            unique: true,
            primary: key.primary,
            options: Default::default(),
        })
    }
}

/// What the table's constraints are to be.
pub(super) struct Added {
    table: String,
    pub checks: Vec<Check>,
    /// Whether some of them are new, and to be tested.
    pub has_new_checks: bool,
    /// Those that there are not yet.
    pub keys: Vec<NewKey>,
}

pub(super) struct NewKey {
    name: Option<String>,
    columns: Vec<ast::Ident>,
    primary: bool,
}

impl Added {
    pub fn of(alter: &AlterStatement, present: &TableSnapshot) -> Self {
        Self {
            table: alter.table.clone(),
            checks: present.checks.clone(),
            has_new_checks: false,
            keys: Vec::new(),
        }
    }

    /// Adds what ALTER TABLE … ADD says.
    ///
    /// # Errors
    /// [`Error::Usage`] for constraints that there are not.
    pub fn take(
        &mut self,
        constraint: &TableConstraint,
        columns: &[Column],
        session: &Session,
    ) -> Result<()> {
        match constraint {
            TableConstraint::Check(check) => {
                self.add(columns, vec![Written::added(check)?], session)?;
            }
            TableConstraint::PrimaryKey(key) => self.keys.push(NewKey {
                name: key.name.as_ref().map(name_of),
                columns: names_of_key(&key.columns)?,
                primary: true,
            }),
            TableConstraint::Unique(key) => {
                if key.nulls_distinct == ast::NullsDistinctOption::NotDistinct {
                    return Err(Error::usage(
                        "UNIQUE takes no NULLS NOT DISTINCT; leave it out",
                    ));
                }
                self.keys.push(NewKey {
                    name: key.name.as_ref().map(name_of),
                    columns: names_of_key(&key.columns)?,
                    primary: false,
                });
            }
            other => {
                return Err(Error::usage(format!(
                    "ALTER TABLE … ADD {other} is not supported; it adds CHECK, UNIQUE and PRIMARY KEY"
                )));
            }
        }
        Ok(())
    }

    /// Adds CHECK constraints on columns.
    pub fn add(
        &mut self,
        columns: &[Column],
        written: Vec<Written>,
        session: &Session,
    ) -> Result<()> {
        if written.is_empty() {
            return Ok(());
        }
        let (columns, state) = (schema_of(columns), session.context().state());
        let checks = named(&self.table, &columns, &self.checks, written, &state)?;
        self.checks.extend(checks);
        self.has_new_checks = true;
        Ok(())
    }
}

/// The columns of a key.
fn names_of_key(columns: &[ast::IndexColumn]) -> Result<Vec<ast::Ident>> {
    let names = columns.iter().map(|column| match &column.column.expr {
        ast::Expr::Identifier(name) => Ok(name.clone()),
        other => Err(Error::usage(format!(
            "a key is one of columns, not of expressions such as {other}"
        ))),
    });
    names.collect()
}

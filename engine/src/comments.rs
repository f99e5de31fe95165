//! `COMMENT ON TABLE t IS 'text'` and `COMMENT ON COLUMN t.c IS 'text'`.
//!
//! What is said of a table is in its record, what is said of a column in the metadata of its field, so that
//! it comes to clients with results.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::common::TableReference;
use datafusion::dataframe::DataFrame;
use datafusion::sql::sqlparser::ast::{self, CommentObject};
use flashmesh_planner::Authority;
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Right;

use crate::Session;
use crate::blocking::blocking;
use crate::error::{Error, Result};
use crate::names::COMMENT;
use crate::own_statement::{CommentStatement, OwnStatement};

impl Session {
    /// What a parsed COMMENT says; `None` of other statements.
    ///
    /// # Errors
    /// [`Error::Usage`] for what has no comments, and for names that are none.
    pub(crate) fn parsed_comment(
        &self,
        statement: &ast::Statement,
    ) -> Result<Option<OwnStatement>> {
        let ast::Statement::Comment {
            object_type,
            object_name,
            comment,
            if_exists,
            ..
        } = statement
        else {
            return Ok(None);
        };
        let parts = object_name.0.iter();
        let parts = parts.map(|part| part.as_ident().map(|name| self.normalise(name)));
        let mut parts: Vec<String> = parts.collect::<Option<_>>().unwrap_or_default();
        let column = match object_type {
            CommentObject::Table => None,
            CommentObject::Column => parts.pop(),
            other => {
                return Err(Error::usage(format!(
                    "COMMENT ON {other} is not supported; tables and columns have comments"
                )));
            }
        };
        let name = match parts.as_slice() {
            [table] => TableReference::bare(table.as_str()),
            [schema, table] => TableReference::partial(schema.as_str(), table.as_str()),
            _ => {
                return Err(Error::usage(format!(
                    "'{object_name}' is not a name; write COMMENT ON COLUMN table.column IS 'text'"
                )));
            }
        };
        let name = self.resolve(name);
        Ok(Some(OwnStatement::Comment(CommentStatement {
            schema: name.schema.to_string(),
            table: name.table.to_string(),
            column,
            comment: comment.clone().unwrap_or_default(),
            if_exists: *if_exists,
        })))
    }

    pub(crate) async fn set_comment(&self, statement: CommentStatement) -> Result<DataFrame> {
        let CommentStatement {
            schema,
            table,
            column,
            comment,
            if_exists,
        } = statement;
        self.principal().check(Right::Create, &schema, &table)?;
        let of_schema = self.catalog().flash_schema(&schema);
        let present = of_schema.map(|of_schema| of_schema.snapshot(&table));
        let present = match present {
            Some(Ok(present)) => present,
            None | Some(Err(StorageError::NotFound { .. })) if if_exists => return self.nothing(),
            None | Some(Err(StorageError::NotFound { .. })) => {
                return Err(Error::usage(format!(
                    "there is no table '{schema}.{table}' to comment on; views have no comments"
                )));
            }
            Some(Err(error)) => return Err(error.into()),
        };
        let capability = self.catalog().authority().capability(&present);
        let changes = self.changes();
        let Some(column) = column else {
            blocking(move || changes.set_comment(&capability, &schema, &table, &comment)).await?;
            return self.nothing();
        };
        let place = present.schema.index_of(&column).map_err(|_| {
            Error::usage(format!(
                "table '{table}' has no column '{column}' to comment on"
            ))
        })?;
        let mut fields: Vec<_> = present.schema.fields().iter().cloned().collect();
        fields[place] = Arc::new(commented(&fields[place], &comment));
        let columns = Schema::new(fields);
        blocking(move || {
            let (defaults, checks) = (&present.defaults, &present.checks);
            changes.redefine_columns(&capability, &present, &columns, defaults, checks)
        })
        .await?;
        self.nothing()
    }
}

/// A field with a comment, or without one where that is empty.
pub(crate) fn commented(field: &Field, comment: &str) -> Field {
    let mut field = field.clone();
    match comment {
        "" => field.metadata_mut().remove(COMMENT),
        comment => field
            .metadata_mut()
            .insert(COMMENT.to_owned(), comment.to_owned()),
    };
    field
}

//! CHECK constraints: what the rows of a table must meet.
//!
//! The store keeps their texts and has them tested wherever rows come in, which is in one place, the
//! [load](super::load). It knows no SQL: whoever opens the database brings what does.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::table::manifest::CheckRecord;
use crate::{Result, StorageError};

/// A condition that the rows of a table meet, or of which they leave unknown whether they do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Check {
    /// Its name, of which there is one in a table.
    pub name: String,
    /// The condition, as SQL.
    pub text: String,
}

/// What knows the language of conditions.
pub trait CheckLanguage: fmt::Debug + Send + Sync {
    /// Makes a test of the conditions of a table with these columns.
    ///
    /// # Errors
    /// `Invalid` for what is no condition on them; it names the constraint.
    fn test(&self, table: &str, schema: &SchemaRef, checks: &[Check]) -> Result<Arc<dyn RowTest>>;
}

/// The conditions of a table, ready to be asked for.
pub trait RowTest: fmt::Debug + Send + Sync {
    /// Looks at rows as the table is to store them.
    ///
    /// # Errors
    /// `Invalid` where one does not meet a condition, or where a condition fails on one; it names table,
    /// constraint and condition.
    fn test(&self, rows: &RecordBatch) -> Result<()>;
}

/// The test of a table's conditions; `None` where it has none.
///
/// # Errors
/// As [`CheckLanguage::test`], and `Invalid` where nobody here knows their language.
pub(super) fn test_of(
    language: Option<&Arc<dyn CheckLanguage>>,
    table: &str,
    schema: &SchemaRef,
    checks: &[Check],
) -> Result<Option<Arc<dyn RowTest>>> {
    match (checks, language) {
        ([], _) => Ok(None),
        (_, Some(language)) => language.test(table, schema, checks).map(Some),
        (_, None) => Err(StorageError::Invalid(format!(
            "table '{table}' has CHECK constraints, which this program can't test; change its rows by SQL"
        ))),
    }
}

/// Constraints as a record has them.
pub(super) fn encode_checks(checks: &[Check]) -> Vec<CheckRecord> {
    let records = checks.iter().map(|check| CheckRecord {
        name: check.name.clone(),
        text: check.text.clone(),
    });
    records.collect()
}

/// The constraints that a record has.
pub(super) fn decode_checks(records: &[CheckRecord]) -> Vec<Check> {
    let checks = records.iter().map(|record| Check {
        name: record.name.clone(),
        text: record.text.clone(),
    });
    checks.collect()
}

//! Where the shell's statements run.

use std::sync::Arc;

use crate::Result;
use async_trait::async_trait;
use datafusion::config::FormatOptions;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::sql::parser::Statement as ParsedStatement;
use flashmesh_planner::progress::ScanProgress;

use super::catalog::Catalog;

/// A database that the shell talks to: one in this process, or a server.
///
/// What a call began ends when its future or stream is dropped; a backend whose work goes on
/// elsewhere ends it in [`Backend::cancel`].
#[async_trait]
pub(in crate::cli) trait Backend: Send + Sync {
    /// What the greeting says of it.
    fn description(&self) -> String;

    /// The statements of a text, each with the text that places in its errors are in. A backend that
    /// parses finds here what can't be.
    fn parse<'a>(&self, sql: &'a str) -> Result<Vec<(Statement, &'a str)>>;

    /// Starts one statement. Its effects (INSERT, CREATE, …) have happened when this returns; the
    /// rows of a query come as they are computed.
    async fn run(&self, statement: Statement) -> Result<Answer>;

    /// Stops what [`Backend::run`] began and the user does not want any more; future and stream
    /// have been dropped by then.
    async fn cancel(&self) {}

    /// The names of the database.
    async fn catalog(&self) -> Result<Catalog>;

    /// Adds the rows of a file to a table, which is made if it is missing; gives their number.
    /// Shows how far it is, unless `quiet`.
    async fn import(&self, file: &str, table: &str, quiet: bool) -> Result<u64>;

    /// How values are printed.
    fn format_options(&self) -> FormatOptions;
}

/// A statement, parsed or not yet.
pub(in crate::cli) enum Statement {
    Text(String),
    Parsed(Box<ParsedStatement>),
}

impl From<&str> for Statement {
    fn from(sql: &str) -> Self {
        Self::Text(sql.into())
    }
}

impl From<String> for Statement {
    fn from(sql: String) -> Self {
        Self::Text(sql)
    }
}

/// Asks how far a statement has come; answered at once.
pub(in crate::cli) type Ask = Arc<dyn Fn() -> ScanProgress + Send + Sync>;

/// What a statement gives.
pub(in crate::cli) struct Answer {
    /// Its rows.
    pub rows: SendableRecordBatchStream,
    /// All of them are shown: nobody wants a plan cut short.
    pub all_rows: bool,
    /// How far it has come.
    pub progress: Option<Ask>,
}

//! `CHECK DATABASE`: every page of a database that is open, as `flashmesh fsck` does it to one that is not.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch, StringArray, UInt64Array};
use datafusion::dataframe::DataFrame;
use flashmesh_storage::StorageError;
use tokio_util::sync::CancellationToken;

use crate::Session;
use crate::blocking::blocking;
use crate::error::Result;
use crate::own_statement::OwnStatement;

impl Session {
    /// Runs `CHECK DATABASE`: a row for each thing that is wrong, or one whose `problem` is NULL.
    /// Dropping the future ends it.
    ///
    /// # Errors
    /// [`Error::Denied`](crate::Error::Denied) unless the user is an admin; what stops the check.
    pub(crate) async fn check_database(&self) -> Result<DataFrame> {
        self.principal().check_admin("check the database")?;
        let capability = self.catalog().authority().of_name("*", "*");
        let changes = self.changes();
        let gone = CancellationToken::new();
        let _gone = gone.clone().drop_guard();
        let mut progress = move |_| match gone.is_cancelled() {
            true => Err(StorageError::Cancelled),
            false => Ok(()),
        };
        let report = blocking(move || changes.check(&capability, &mut progress)).await?;
        let unlisted = (report.unlisted > 0).then(|| format!("and {} more", report.unlisted));
        let problems = report.problems.iter().chain(&unlisted).map(Some);
        let problems: StringArray = match report.problems.is_empty() {
            true => [None::<&str>].into_iter().collect(),
            false => problems.collect(),
        };
        let rows = problems.len();
        let count = |count: u64| Arc::new(UInt64Array::from(vec![count; rows])) as _;
        let columns = vec![
            Arc::new(problems) as _,
            count(report.tables),
            count(report.segments),
            count(report.pages),
            count(report.bytes),
        ];
        let plan = OwnStatement::Check.into_plan();
        let schema = Arc::clone(plan.schema().inner());
        let batch = RecordBatch::try_new(schema, columns)?;
        Ok(self.context().read_batch(batch)?)
    }
}

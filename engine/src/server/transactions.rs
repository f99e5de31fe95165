//! Transactions that clients begin and end by Flight SQL's actions.
//!
//! A session has one at a time, as with BEGIN, and its id is told to whoever began it. A statement that
//! names the id belongs to the transaction; one that names none would have to commit by itself, which a
//! session in a transaction does not do, and is refused.

use arrow_flight::sql::{
    ActionBeginSavepointRequest, ActionEndSavepointRequest, ActionEndTransactionRequest,
};
use bytes::Bytes;
use tonic::Status;

use super::sessions::ClientSession;
use super::status::status;
use crate::transactions::TransactionStatement;

const ID_BYTES: usize = 16;

/// The numbers of Flight SQL's `EndTransaction` and `EndSavepoint`, which are alike.
mod ending {
    /// COMMIT, or RELEASE.
    pub const KEEP: i32 = 1;
    /// ROLLBACK.
    pub const UNDO: i32 = 2;
}

impl ClientSession {
    /// Begins a transaction and gives its id.
    pub async fn begin_transaction(&self) -> Result<Bytes, Status> {
        let begin = TransactionStatement::Begin {
            serializable: false,
            read_only: false,
        };
        self.run(begin).await?;
        let id = Bytes::copy_from_slice(&rand::random::<[u8; ID_BYTES]>());
        *self.transaction.lock() = Some(id.clone());
        Ok(id)
    }

    /// Refuses a statement that is not of the session's transaction.
    pub fn check_transaction(&self, id: Option<&Bytes>) -> Result<(), Status> {
        let mut begun = self.transaction.lock();
        if !self.session.is_in_transaction() {
            // It may have been ended by a statement.
            *begun = None;
        }
        match (id, begun.as_ref()) {
            (None, None) => Ok(()),
            (Some(id), Some(begun)) if id == begun => Ok(()),
            (None, Some(_)) => Err(Status::failed_precondition(
                "the session is in a transaction: name its id, end it first, or use another session",
            )),
            (Some(_), _) => Err(Status::not_found(
                "there is no such transaction in this session; it has ended, or the session has: begin it again",
            )),
        }
    }

    /// Commits a transaction or undoes it.
    pub async fn end_transaction(&self, end: ActionEndTransactionRequest) -> Result<(), Status> {
        self.check_transaction(Some(&end.transaction_id))?;
        let statement = match end.action {
            ending::KEEP => TransactionStatement::Commit,
            ending::UNDO => TransactionStatement::Rollback,
            other => return Err(unknown_ending(other)),
        };
        *self.transaction.lock() = None;
        self.run(statement).await
    }

    /// Sets a savepoint and gives its id.
    pub async fn begin_savepoint(
        &self,
        begin: ActionBeginSavepointRequest,
    ) -> Result<Bytes, Status> {
        self.check_transaction(Some(&begin.transaction_id))?;
        let id = [&begin.transaction_id, begin.name.as_bytes()].concat();
        self.run(TransactionStatement::Savepoint(begin.name))
            .await?;
        Ok(id.into())
    }

    /// Forgets a savepoint, or undoes what was done since.
    pub async fn end_savepoint(&self, end: ActionEndSavepointRequest) -> Result<(), Status> {
        let id = &end.savepoint_id;
        let transaction = id.slice(..id.len().min(ID_BYTES));
        self.check_transaction(Some(&transaction))?;
        let name = str::from_utf8(&id[transaction.len()..]);
        let name = name.map_err(|_| Status::not_found("there is no such savepoint"))?;
        let statement = match end.action {
            ending::KEEP => TransactionStatement::Release(name.into()),
            ending::UNDO => TransactionStatement::RollbackTo(name.into()),
            other => return Err(unknown_ending(other)),
        };
        self.run(statement).await
    }

    async fn run(&self, statement: TransactionStatement) -> Result<(), Status> {
        let done = self.session.execute_transaction(statement).await;
        done.map(drop).map_err(status)
    }
}

fn unknown_ending(action: i32) -> Status {
    Status::invalid_argument(format!("{action} is no way to end it"))
}

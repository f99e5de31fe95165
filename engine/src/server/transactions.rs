//! Transactions that clients begin and end by Flight SQL's actions.
//!
//! A session has one at a time, as with BEGIN, and its id is told to whoever began it. A statement that
//! names the id belongs to the transaction; one that names none would have to commit by itself, which a
//! session in a transaction does not do, and is refused. A statement holds the transaction that it
//! belongs to, or that there is none, until it is done: who begins or ends one waits for it.

use std::sync::Arc;

use arrow_flight::sql::{
    ActionBeginSavepointRequest, ActionEndSavepointRequest, ActionEndTransactionRequest,
};
use bytes::Bytes;
use tokio::sync::RwLockReadGuard;
use tonic::Status;

use super::flight::prepared::Prepared;
use super::sessions::{Begun, ClientSession};
use super::status::status;
use crate::own_statement::TransactionStatement;

const ID_BYTES: usize = 16;

/// The numbers of Flight SQL's `EndTransaction` and `EndSavepoint`, which are alike.
mod ending {
    /// COMMIT, or RELEASE.
    pub const KEEP: i32 = 1;
    /// ROLLBACK.
    pub const UNDO: i32 = 2;
}

/// Keeps a session's transaction from being begun or ended by an action.
pub(super) type Held<'a> = RwLockReadGuard<'a, Option<Begun>>;

impl ClientSession {
    /// Begins a transaction and gives its id.
    pub async fn begin_transaction(&self) -> Result<Bytes, Status> {
        let mut begun = self.begun.write().await;
        let begin = TransactionStatement::Begin {
            serializable: false,
            read_only: false,
        };
        self.run(begin).await?;
        let number = self.session.workspace().transaction_number();
        let number = number.ok_or_else(|| Status::aborted("the transaction has ended already"))?;
        let id = Bytes::copy_from_slice(&rand::random::<[u8; ID_BYTES]>());
        *begun = Some(Begun {
            id: id.clone(),
            number,
        });
        Ok(id)
    }

    /// The id of the transaction that was begun by an action, while it lasts.
    fn id<'a>(&self, begun: &'a Option<Begun>) -> Option<&'a Bytes> {
        let begun = begun.as_ref()?;
        let present = self.session.workspace().transaction_number();
        (present == Some(begun.number)).then_some(&begun.id)
    }

    fn check_id(&self, begun: &Option<Begun>, id: &Bytes) -> Result<(), Status> {
        match self.id(begun) {
            Some(begun) if begun == id => Ok(()),
            _ => Err(Status::not_found(
                "there is no such transaction in this session; it has ended, or the session has: begin it again",
            )),
        }
    }

    /// Has a statement belong to the transaction that it names, or to none.
    pub async fn hold_transaction(&self, id: Option<&Bytes>) -> Result<Held<'_>, Status> {
        let begun = self.begun.read().await;
        match id {
            Some(id) => self.check_id(&begun, id)?,
            None if self.id(&begun).is_none() => {}
            None => {
                return Err(Status::failed_precondition(
                    "the session is in a transaction: name its id, end it first, or use another session",
                ));
            }
        }
        Ok(begun)
    }

    /// The same of a bulk ingest. ADBC's drivers name no transaction there (1.13): without an id it
    /// belongs to that of the session, if there is one.
    pub async fn hold_ingest(&self, id: Option<&Bytes>) -> Result<Held<'_>, Status> {
        match id {
            Some(_) => self.hold_transaction(id).await,
            None => Ok(self.begun.read().await),
        }
    }

    /// A prepared statement to be run: in a transaction, where it was prepared for one, which may be a
    /// later one than that; by itself otherwise.
    pub async fn hold_prepared(&self, handle: &Bytes) -> Result<(Arc<Prepared>, Held<'_>), Status> {
        let (prepared, of_transaction) = self.kept_prepared(handle)?;
        self.note_run(handle);
        let begun = self.begun.read().await;
        match (of_transaction, self.id(&begun).is_some()) {
            (true, false) => Err(Status::failed_precondition(
                "the statement was prepared for a transaction, and there is none: begin one, or prepare it again",
            )),
            (false, true) => Err(Status::failed_precondition(
                "the session is in a transaction, and the statement was prepared without one: prepare it again",
            )),
            _ => Ok((prepared, begun)),
        }
    }

    /// Commits a transaction or undoes it.
    pub async fn end_transaction(&self, end: ActionEndTransactionRequest) -> Result<(), Status> {
        let statement = match end.action {
            ending::KEEP => TransactionStatement::Commit,
            ending::UNDO => TransactionStatement::Rollback,
            other => return Err(unknown_ending(other)),
        };
        let mut begun = self.begun.write().await;
        self.check_id(&begun, &end.transaction_id)?;
        let ended = self.run(statement).await;
        *begun = None;
        ended
    }

    /// Sets a savepoint and gives its id.
    pub async fn begin_savepoint(
        &self,
        begin: ActionBeginSavepointRequest,
    ) -> Result<Bytes, Status> {
        let begun = self.begun.write().await;
        self.check_id(&begun, &begin.transaction_id)?;
        // Two of one name are two.
        let name = format!("{} {:x}", begin.name, rand::random::<u64>());
        let id = [&begin.transaction_id, name.as_bytes()].concat();
        self.run(TransactionStatement::Savepoint(name)).await?;
        Ok(id.into())
    }

    /// Forgets a savepoint, or undoes what was done since.
    pub async fn end_savepoint(&self, end: ActionEndSavepointRequest) -> Result<(), Status> {
        let id = &end.savepoint_id;
        let transaction = id.slice(..id.len().min(ID_BYTES));
        let name = str::from_utf8(&id[transaction.len()..]);
        let name = name.map_err(|_| Status::not_found("there is no such savepoint"))?;
        let statement = match end.action {
            ending::KEEP => TransactionStatement::Release(name.into()),
            ending::UNDO => TransactionStatement::RollbackTo(name.into()),
            other => return Err(unknown_ending(other)),
        };
        let begun = self.begun.write().await;
        self.check_id(&begun, &transaction)?;
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

//! BEGIN, COMMIT, ROLLBACK and savepoints.

use datafusion::dataframe::DataFrame;
use datafusion::sql::sqlparser::ast::{
    self, TransactionAccessMode, TransactionIsolationLevel, TransactionMode,
};
use flashmesh_storage::table::Isolation;

use crate::Session;
use crate::blocking::blocking;
use crate::error::{Error, Result};
use crate::names::name_of;
use crate::own_statement::TransactionStatement;

/// The statement, if it is one of these.
///
/// # Errors
/// [`Error::Usage`] for options that are not there.
pub(crate) fn parsed_transaction(
    statement: &ast::Statement,
) -> Result<Option<TransactionStatement>> {
    let chained = |chain: bool| match chain {
        true => Err(Error::usage("AND CHAIN is not supported; write BEGIN")),
        false => Ok(()),
    };
    Ok(Some(match statement {
        ast::Statement::StartTransaction {
            modes,
            modifier: None,
            statements,
            exception: None,
            ..
        } if statements.is_empty() => begin(modes)?,
        ast::Statement::Commit {
            chain,
            modifier: None,
            ..
        } => {
            chained(*chain)?;
            TransactionStatement::Commit
        }
        ast::Statement::Rollback { chain, savepoint } => {
            chained(*chain)?;
            match savepoint {
                Some(savepoint) => TransactionStatement::RollbackTo(name_of(savepoint)),
                None => TransactionStatement::Rollback,
            }
        }
        ast::Statement::Savepoint { name: savepoint } => {
            TransactionStatement::Savepoint(name_of(savepoint))
        }
        ast::Statement::ReleaseSavepoint { name: savepoint } => {
            TransactionStatement::Release(name_of(savepoint))
        }
        ast::Statement::StartTransaction { .. } | ast::Statement::Commit { .. } => {
            return Err(Error::usage(
                "a transaction is BEGIN [ISOLATION LEVEL …] [READ ONLY] … COMMIT",
            ));
        }
        _ => return Ok(None),
    }))
}

fn begin(modes: &[TransactionMode]) -> Result<TransactionStatement> {
    let (mut serializable, mut read_only) = (false, false);
    for mode in modes {
        match mode {
            TransactionMode::AccessMode(access) => {
                read_only = *access == TransactionAccessMode::ReadOnly;
            }
            // What is weaker gets what is stronger.
            TransactionMode::IsolationLevel(level) => {
                serializable = *level == TransactionIsolationLevel::Serializable;
            }
        }
    }
    Ok(TransactionStatement::Begin {
        serializable,
        read_only,
    })
}

impl Session {
    /// Whether the session is in a transaction.
    pub fn is_in_transaction(&self) -> bool {
        self.workspace().is_in_transaction()
    }

    pub(crate) async fn execute_transaction(
        &self,
        statement: TransactionStatement,
    ) -> Result<DataFrame> {
        let workspace = self.workspace();
        match statement {
            TransactionStatement::Begin {
                serializable,
                read_only,
            } => {
                let isolation = match serializable {
                    true => Isolation::Serializable,
                    false => Isolation::Snapshot,
                };
                workspace.begin(isolation, read_only)?;
            }
            TransactionStatement::Commit => {
                let workspace = workspace.clone();
                blocking(move || workspace.commit()).await?;
            }
            TransactionStatement::Rollback => workspace.rollback()?,
            TransactionStatement::Savepoint(name) => workspace.savepoint(&name)?,
            TransactionStatement::RollbackTo(name) => workspace.rollback_to(&name)?,
            TransactionStatement::Release(name) => workspace.release(&name)?,
        }
        self.nothing()
    }
}

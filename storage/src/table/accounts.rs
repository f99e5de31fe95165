//! Accounts: who may connect to a database and what is granted to them. The catalog keeps them as one
//! text, whose form is its readers' (a server's), so that they go with commits, copies and backups.

use std::sync::Arc;

use crate::table::Database;
use crate::table::edit::{Operation, Precondition, TableEdit};
use crate::table::manifest::AccountsRecord;
use crate::{Result, StorageError};

/// The accounts of a database, as the catalog has them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Accounts {
    /// 0 where there never were any, one more with each change.
    pub version: u64,
    /// All of them. It holds hashes of passwords: not for logs.
    pub text: String,
    /// How the catalog's record of them is damaged.
    pub(super) damage: Option<String>,
}

// A log shall not have the hashes of passwords.
impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Accounts {
    pub(super) fn of(record: &AccountsRecord) -> Self {
        Self {
            version: record.version,
            text: record.text.clone(),
            damage: None,
        }
    }

    /// # Errors
    /// `Corrupt` where nobody knows any more what they were.
    fn check(&self) -> Result<()> {
        match &self.damage {
            Some(damage) => Err(StorageError::corrupt(damage.clone())),
            None => Ok(()),
        }
    }

    /// # Errors
    /// As [`Accounts::check`].
    pub(super) fn record(&self) -> Result<AccountsRecord> {
        self.check()?;
        Ok(AccountsRecord {
            version: self.version,
            text: self.text.clone(),
        })
    }
}

impl Database {
    /// What tells the database from all others: 16 bytes, the same on all heads of a rack, drawn when they
    /// are first asked for. Where that can't be, as it is open for reading only, those of its path.
    ///
    /// # Errors
    /// `Full`, `Io`; `NeedsReopening`.
    pub fn id(&self) -> Result<Vec<u8>> {
        match self.is_read_only() {
            true => Ok(self.path().as_os_str().as_encoded_bytes().to_vec()),
            false => self.catalog.id(),
        }
    }

    /// The accounts.
    ///
    /// # Errors
    /// `Corrupt` where nobody knows any more what they were.
    pub fn accounts(&self) -> Result<Arc<Accounts>> {
        let accounts = Arc::clone(&self.state.read().accounts);
        accounts.check()?;
        Ok(accounts)
    }

    /// Puts `text` in the place of all accounts; FALSE where they are no more at the version that this
    /// was made from.
    ///
    /// # Errors
    /// `ReadOnly`, `Full`, `Io`; `Corrupt`; `NeedsReopening`.
    pub(crate) fn put_accounts(&self, from: &Accounts, text: String) -> Result<bool> {
        let mut edit = TableEdit::default();
        edit.require(Precondition::Accounts(from.version));
        edit.push(Operation::PutAccounts(AccountsRecord {
            version: from.version + 1,
            text,
        }));
        self.commit(edit)
    }
}

//! Runs statements about users, roles and grants.

use datafusion::dataframe::DataFrame;

use crate::Session;
use crate::accounts::{AccountList, AccountStatement, apply, hash_password};
use crate::blocking::blocking;
use crate::error::Result;

impl Session {
    /// Changes the accounts of the database as a statement says, in one commit.
    pub(crate) async fn change_accounts(&self, statement: AccountStatement) -> Result<DataFrame> {
        let is_own_password = statement.is_own_password_of(self.principal());
        let capability = self.catalog().authority().of_accounts(is_own_password);
        // Who has opened the database by themselves, or stands in a file, needs no other admin.
        let needs_admin = self.principal().needs_admin_in_database();
        let (database, changes) = (self.engine().database().clone(), self.changes());
        blocking(move || -> Result<()> {
            let hash = statement.password().map(hash_password).transpose()?;
            loop {
                let accounts = database.accounts()?;
                let mut list = AccountList::of(&accounts)?;
                apply(&mut list, &statement, hash.as_deref(), needs_admin)?;
                if changes.put_accounts(&capability, &accounts, list.to_text()?)? {
                    return Ok(());
                }
            }
        })
        .await?;
        self.nothing()
    }
}

//! Users, roles and what is granted to them: in the database, where statements change them, or in a file.

mod change;
mod list;
mod redaction;
mod statement;

pub(crate) use change::{GrantOf, apply, grants_in};
pub(crate) use list::AccountList;
pub use list::hash_password;
pub(crate) use redaction::{Redacted, Secrets, redacted};
pub(crate) use statement::{AccountKind, AccountStatement, comes_next, take_text};

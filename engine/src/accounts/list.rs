//! Accounts as text: the form of the users file, and of what the catalog keeps.
//!
//! ```toml
//! [users.ada]
//! password = "$argon2id$…"
//! admin = true
//!
//! [users.bob]
//! certificate = "bob.example.org"
//! roles = ["analyst"]
//! grants = [{ tables = "public.*", rights = ["write"] }]
//!
//! [roles.analyst]
//! grants = [{ tables = "public.*", rights = ["read"] }]
//! ```

use std::collections::BTreeMap;

use argon2::Argon2;
use argon2::password_hash::PasswordHasher;
use flashmesh_storage::table::Accounts;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::grants::{FunctionGrants, Grant, Principal, Source};

/// Where the text of a database stands, for errors.
const OF_DATABASE: &str = "the accounts of the database";

/// All users and roles of a file or a database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountList {
    /// By their names.
    #[serde(default)]
    pub users: BTreeMap<String, UserEntry>,
    /// By their names, which no user has.
    #[serde(default)]
    pub roles: BTreeMap<String, RoleEntry>,
}

/// A user.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserEntry {
    /// The hash of the password; without one, the user connects by certificate or token only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// The name in certificates that are this user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// May do everything.
    #[serde(default, skip_serializing_if = "is_false")]
    pub admin: bool,
    /// Roles that the user has all of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// What is granted besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    /// The same of functions.
    #[serde(default, skip_serializing_if = "FunctionGrants::is_empty")]
    pub functions: FunctionGrants,
    /// Where the user stands.
    #[serde(skip)]
    pub source: Source,
}

impl UserEntry {
    /// Whether one can log in as this user, other than by a token.
    pub fn can_log_in(&self) -> bool {
        self.password.is_some() || self.certificate.is_some()
    }
}

// A log shall not have the hashes of passwords.
impl std::fmt::Debug for UserEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserEntry")
            .field("has_password", &self.password.is_some())
            .field("certificate", &self.certificate)
            .field("admin", &self.admin)
            .field("roles", &self.roles)
            .field("grants", &self.grants)
            .field("functions", &self.functions)
            .finish()
    }
}

/// What several users may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RoleEntry {
    /// What is granted to who has the role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    /// The same of functions.
    #[serde(default, skip_serializing_if = "FunctionGrants::is_empty")]
    pub functions: FunctionGrants,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl AccountList {
    /// The accounts of a text; `from` says where it stands.
    ///
    /// # Errors
    /// [`Error::Usage`] with the line of what a list should not hold.
    pub fn parse(from: &str, text: &str) -> Result<Self> {
        let list: Self = toml::from_str(text).map_err(|error| {
            // The error itself shows the line, which may have the hash of a password.
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| 1 + before.matches('\n').count());
            Error::usage(format!("{from}: line {line}: {}", error.message()))
        })?;
        for (name, user) in &list.users {
            let certificate = user.certificate.as_deref();
            let owner = certificate.and_then(|certificate| list.of_certificate(certificate));
            if let Some(other) = owner.filter(|other| other != name) {
                return Err(Error::usage(format!(
                    "{from}: users '{other}' and '{name}' have certificates of one name"
                )));
            }
        }
        for (name, user) in &list.users {
            if list.roles.contains_key(name) {
                return Err(Error::usage(format!(
                    "{from}: '{name}' is a user and a role; give one of them another name"
                )));
            }
            if let Some(role) = user
                .roles
                .iter()
                .find(|role| !list.roles.contains_key(*role))
            {
                return Err(Error::usage(format!(
                    "{from}: user '{name}' has the role '{role}', which is not there; write [roles.{role}]"
                )));
            }
        }
        Ok(list)
    }

    /// Those of a database.
    ///
    /// # Errors
    /// [`Error::Usage`] for a text that is none.
    pub fn of(accounts: &Accounts) -> Result<Self> {
        Ok(Self::parse(OF_DATABASE, &accounts.text)?.from(Source::Database))
    }

    /// The same, whose users stand there.
    #[must_use]
    pub fn from(mut self, source: Source) -> Self {
        let users = self.users.values_mut();
        users.for_each(|user| user.source = source);
        self
    }

    /// The text of the list.
    ///
    /// # Errors
    /// [`Error::Usage`] where it can't be written.
    pub fn to_text(&self) -> Result<String> {
        toml::to_string(self).map_err(|e| Error::usage(format!("writing accounts: {e}")))
    }

    /// What the user of that name may do.
    pub fn principal(&self, name: &str) -> Option<Principal> {
        let user = self.users.get(name)?;
        if user.admin {
            return Some(Principal::admin(name).from(user.source));
        }
        let (mut grants, mut functions) = (user.grants.clone(), user.functions.clone());
        for role in user.roles.iter().filter_map(|role| self.roles.get(role)) {
            grants.extend(role.grants.iter().cloned());
            functions.add(&role.functions);
        }
        Some(Principal::user(name, grants, functions).from(user.source))
    }

    /// The user whose certificates have that name.
    pub fn of_certificate(&self, name: &str) -> Option<&str> {
        let is_theirs = |user: &UserEntry| user.certificate.as_deref() == Some(name);
        let mut users = self.users.iter().filter(|(_, user)| is_theirs(user));
        users.next().map(|(name, _)| name.as_str())
    }

    /// These and those of `other` whose names are free, without the certificates that users here have.
    pub fn with(mut self, other: &Self) -> Self {
        for (name, role) in &other.roles {
            if !self.users.contains_key(name) {
                self.roles
                    .entry(name.clone())
                    .or_insert_with(|| role.clone());
            }
        }
        for (name, user) in &other.users {
            if self.roles.contains_key(name) || self.users.contains_key(name) {
                continue;
            }
            let mut user = user.clone();
            let certificate = user.certificate.as_deref();
            if certificate.is_some_and(|name| self.of_certificate(name).is_some()) {
                user.certificate = None;
            }
            self.users.insert(name.clone(), user);
        }
        self
    }
}

/// The hash of a password, as lists hold it.
///
/// # Errors
/// [`Error::Usage`] for an empty one.
pub fn hash_password(password: &str) -> Result<String> {
    if password.is_empty() {
        return Err(Error::usage("a password needs at least one character"));
    }
    Argon2::default()
        .hash_password(password.as_bytes())
        .map(|hash| hash.to_string())
        .map_err(|e| Error::usage(format!("hashing the password: {e}")))
}

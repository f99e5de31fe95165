//! Who may do what with which table.

use std::fmt;
use std::sync::Arc;

use flashmesh_storage::capability::{Right, Rights};
use flashmesh_storage::table::is_temporary;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::names::DEFAULT_SCHEMA;

/// Whom a session acts for. Every session has one; that of an embedded database is the owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The user's name, as logs and `system.queries` show it.
    pub name: Arc<str>,
    /// Everything is allowed: all tables, files of the machine, options that change the process,
    /// queries of others.
    pub admin: bool,
    grants: Vec<Grant>,
    functions: FunctionGrants,
    source: Source,
}

/// Where it is said what a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Source {
    /// Nowhere: who opened the database, and everybody where nobody logs in.
    #[default]
    Nowhere,
    /// In a file beside the database.
    File,
    /// In the database.
    Database,
}

/// Which functions of users a user may use and make.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionGrants {
    /// Names that may be used; `*` may stand at the end of one.
    #[serde(default, rename = "use", skip_serializing_if = "Vec::is_empty")]
    pub usable: Vec<NamePattern>,
    /// Names that may be made, replaced and dropped, and used too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub create: Vec<NamePattern>,
}

impl FunctionGrants {
    /// Whether nothing is granted.
    pub fn is_empty(&self) -> bool {
        self.usable.is_empty() && self.create.is_empty()
    }

    /// Grants what `others` grant, too.
    pub(crate) fn add(&mut self, others: &Self) {
        self.usable.extend(others.usable.iter().cloned());
        self.create.extend(others.create.iter().cloned());
    }
}

/// A name with `*` for any end of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct NamePattern(String);

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for NamePattern {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        match is_pattern(&text) {
            true => Ok(Self(text)),
            false => Err(format!(
                "'{text}' names no functions: write a name, where * may stand at the end, as in price_*"
            )),
        }
    }
}

impl NamePattern {
    fn matches(&self, name: &str) -> bool {
        matches_pattern(&self.0, name)
    }
}

/// Whether `part` is a name, or one that ends with `*`.
fn is_pattern(part: &str) -> bool {
    let before = part.strip_suffix('*').unwrap_or(part);
    !part.is_empty() && !before.contains(['*', '.'])
}

pub(crate) fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// Rights on tables whose names match a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// `schema.table`; either may be `*` or end with it.
    pub tables: TablePattern,
    /// What may be done with them.
    pub rights: Vec<RightName>,
}

/// A right as a users file spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RightName {
    /// Query rows.
    Read,
    /// Add and replace rows.
    Write,
    /// Make and drop tables and indexes.
    Create,
    /// Run one's own kernels over them.
    Kernel,
}

impl RightName {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Create, Self::Kernel];
}

impl fmt::Display for RightName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create",
            Self::Kernel => "kernel",
        })
    }
}

impl From<RightName> for Right {
    fn from(name: RightName) -> Self {
        match name {
            RightName::Read => Self::Read,
            RightName::Write => Self::Write,
            RightName::Create => Self::Create,
            RightName::Kernel => Self::Kernel,
        }
    }
}

/// `schema.table` with `*` for any end of either.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct TablePattern {
    schema: String,
    table: String,
}

impl fmt::Display for TablePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.table)
    }
}

impl From<TablePattern> for String {
    fn from(pattern: TablePattern) -> Self {
        pattern.to_string()
    }
}

impl TryFrom<String> for TablePattern {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let (schema, table) = match text.split_once('.') {
            Some((schema, table)) => (schema, table),
            None => (DEFAULT_SCHEMA, text.as_str()),
        };
        if !is_pattern(schema) || !is_pattern(table) {
            return Err(format!(
                "'{text}' names no tables: write schema.table, where * may stand at the end of either, as in public.* or sales.eu_*"
            ));
        }
        Ok(Self {
            schema: schema.to_string(),
            table: table.to_string(),
        })
    }
}

impl TablePattern {
    fn matches(&self, schema: &str, table: &str) -> bool {
        matches_pattern(&self.schema, schema) && matches_pattern(&self.table, table)
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl Principal {
    /// Who opened the database: may do everything.
    pub fn owner() -> Self {
        Self::admin("owner")
    }

    /// The same, with where that is said.
    #[must_use]
    pub(crate) fn from(self, source: Source) -> Self {
        Self { source, ..self }
    }

    /// Whether this is the user of that name whom the database has.
    pub(crate) fn is_of_database(&self, name: &str) -> bool {
        self.source == Source::Database && *self.name == *name
    }

    /// Whether nobody could change accounts any more if the database had no admin.
    pub(crate) fn needs_admin_in_database(&self) -> bool {
        match self.source {
            Source::Nowhere => *self != Self::owner(),
            Source::File => false,
            Source::Database => true,
        }
    }

    /// A user who may do everything.
    pub fn admin(name: &str) -> Self {
        Self {
            name: name.into(),
            admin: true,
            grants: Vec::new(),
            functions: FunctionGrants::default(),
            source: Source::Nowhere,
        }
    }

    /// A user who may do what is granted.
    pub fn user(name: &str, grants: Vec<Grant>, functions: FunctionGrants) -> Self {
        Self {
            name: name.into(),
            admin: false,
            grants,
            functions,
            source: Source::Nowhere,
        }
    }

    /// Whether nothing of what `other` may is missing here; a grant that is only written
    /// differently counts as missing.
    pub fn may_all_that(&self, other: &Self) -> bool {
        let has = |pattern: &NamePattern, of: &[NamePattern]| of.contains(pattern);
        let has_right = |tables: &TablePattern, right: &RightName| {
            let mut grants = self.grants.iter().filter(|grant| grant.tables == *tables);
            grants.any(|grant| grant.rights.contains(right))
        };
        let has_all = |grant: &Grant| {
            let mut rights = grant.rights.iter();
            rights.all(|right| has_right(&grant.tables, right))
        };
        let (mine, theirs) = (&self.functions, &other.functions);
        self.admin
            || (!other.admin
                && other.grants.iter().all(has_all)
                && theirs.usable.iter().all(|name| has(name, &mine.usable))
                && theirs.create.iter().all(|name| has(name, &mine.create)))
    }

    /// What is granted by name, for who is no admin.
    pub(crate) fn granted(&self) -> (&[Grant], &FunctionGrants) {
        (&self.grants, &self.functions)
    }

    /// The rights on one table.
    pub fn rights(&self, schema: &str, table: &str) -> Rights {
        if self.admin {
            return Rights::all();
        }
        // Whose temporary tables they are, no other session has a name for.
        if is_temporary(schema) {
            let own = [Right::Read, Right::Write, Right::Create];
            let granted = self.grants.iter().flat_map(|grant| &grant.rights);
            let kernels = granted.map(|right| Right::from(*right));
            let kernels = kernels.filter(|right| *right == Right::Kernel);
            return own
                .into_iter()
                .chain(kernels)
                .fold(Rights::default(), Rights::with);
        }
        self.grants
            .iter()
            .filter(|grant| grant.tables.matches(schema, table))
            .flat_map(|grant| &grant.rights)
            .fold(Rights::default(), |rights, right| {
                rights.with((*right).into())
            })
    }

    /// Whether a table of that name may be known to be there: to whom it is not, it looks like
    /// one that is not there.
    pub fn sees(&self, schema: &str, table: &str) -> bool {
        !self.rights(schema, table).is_empty()
    }

    /// Whether a schema of that name may be known to be there.
    pub fn sees_schema(&self, schema: &str) -> bool {
        self.admin
            || is_temporary(schema)
            || schema == DEFAULT_SCHEMA
            || self
                .grants
                .iter()
                .any(|grant| matches_pattern(&grant.tables.schema, schema))
    }

    /// Whether the function of a user may be used.
    pub fn may_use(&self, function: &str) -> bool {
        let granted = self.functions.usable.iter().chain(&self.functions.create);
        self.admin || granted.into_iter().any(|names| names.matches(function))
    }

    /// Refuses to make or drop a function where that is not granted.
    ///
    /// # Errors
    /// [`Error::Denied`].
    pub fn check_create_function(&self, function: &str) -> Result<()> {
        let mut granted = self.functions.create.iter();
        match self.admin || granted.any(|names| names.matches(function)) {
            true => Ok(()),
            false => Err(Error::Denied(format!(
                "user '{}' may not create or drop the function '{function}'; an admin can GRANT it",
                self.name
            ))),
        }
    }

    /// Refuses what is not granted.
    ///
    /// # Errors
    /// [`Error::Denied`] with what is missing.
    pub fn check(&self, right: Right, schema: &str, table: &str) -> Result<()> {
        match self.rights(schema, table).has(right) {
            true => Ok(()),
            false => Err(Error::Denied(format!(
                "user '{}' may not {right} {schema}.{table}; an admin can GRANT it",
                self.name
            ))),
        }
    }

    /// Refuses whom not everything is allowed.
    ///
    /// # Errors
    /// [`Error::Denied`]; `what` says what was tried.
    pub fn check_admin(&self, what: &str) -> Result<()> {
        match self.admin {
            true => Ok(()),
            false => Err(Error::Denied(format!(
                "user '{}' may not {what}: that takes an admin of the server",
                self.name
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(tables: &str, rights: &[RightName]) -> Grant {
        Grant {
            tables: tables.to_string().try_into().unwrap(),
            rights: rights.to_vec(),
        }
    }

    #[test]
    fn rights_add_up_over_patterns() {
        let user = Principal::user(
            "ada",
            vec![
                grant("public.*", &[RightName::Read]),
                grant("orders", &[RightName::Write]),
                grant("sales.eu_*", &[RightName::Read, RightName::Create]),
            ],
            FunctionGrants {
                usable: vec![NamePattern("price_*".into())],
                create: vec![NamePattern("ada_x".into())],
            },
        );
        for (function, usable, own) in [
            ("price_band", true, false),
            ("ada_x", true, true),
            ("other", false, false),
        ] {
            assert_eq!(user.may_use(function), usable, "{function}");
            assert_eq!(
                user.check_create_function(function).is_ok(),
                own,
                "{function}"
            );
        }
        for (schema, table, right, allowed) in [
            ("public", "orders", Right::Read, true),
            ("public", "orders", Right::Write, true),
            ("public", "other", Right::Write, false),
            ("public", "other", Right::Read, true),
            ("sales", "orders", Right::Read, false),
            ("sales", "eu_2024", Right::Create, true),
            ("sales", "eu", Right::Create, false),
            ("sales", "eu_2024", Right::Kernel, false),
        ] {
            let checked = user.check(right, schema, table);
            assert_eq!(checked.is_ok(), allowed, "{right} {schema}.{table}");
        }
        assert!(Principal::owner().check(Right::Kernel, "a", "b").is_ok());
    }

    #[test]
    fn what_was_taken_away_is_noticed() {
        let user =
            |grants: &[Grant]| Principal::user("ada", grants.to_vec(), FunctionGrants::default());
        let (read, write) = (
            grant("a", &[RightName::Read]),
            grant("b", &[RightName::Write]),
        );
        let (one, both) = (
            user(std::slice::from_ref(&read)),
            user(&[write, read.clone()]),
        );
        assert!(both.may_all_that(&one) && both.may_all_that(&both));
        assert!(!one.may_all_that(&both));
        let admin = Principal::admin("ada");
        assert!(admin.may_all_that(&both) && !both.may_all_that(&admin));
    }

    #[test]
    fn patterns_that_name_nothing_are_refused() {
        for text in ["", ".", "a.", ".b", "a*b", "a.b.c", "**", "a.*b"] {
            assert!(TablePattern::try_from(text.to_string()).is_err(), "{text}");
        }
    }
}

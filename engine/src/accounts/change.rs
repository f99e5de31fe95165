//! What statements make of a list of accounts.

use std::collections::BTreeMap;

use super::list::{AccountList, RoleEntry, UserEntry};
use super::statement::{AccountKind, AccountStatement, Granted, UserOptions};
use crate::error::{Error, Result};
use crate::grants::{FunctionGrants, Grant, NamePattern};

/// Changes a list as a statement says. `hash` is that of the statement's password, if it has one;
/// `needs_admin`: an admin must be able to log in at the end who could before, or whoever comes first.
///
/// # Errors
/// [`Error::Usage`] for what is there already or is not, and for a REVOKE of what was not granted: who
/// takes a right away shall know where they still have it. Nothing has changed then that counts.
pub(crate) fn apply(
    list: &mut AccountList,
    statement: &AccountStatement,
    hash: Option<&str>,
    needs_admin: bool,
) -> Result<()> {
    let needs_admin = needs_admin && (list.has_admin() || list.users.is_empty());
    match statement {
        AccountStatement::CreateUser {
            name,
            if_not_exists,
            options,
        } => {
            if *if_not_exists && list.users.contains_key(name) {
                return Ok(());
            }
            list.check_free(name)?;
            if name.contains(':') {
                return Err(Error::usage(format!(
                    "'{name}' can't log in: between a name and a password stands a ':'"
                )));
            }
            let mut user = UserEntry::default();
            set_options(&mut user, options, hash);
            list.check_certificate(name, &user)?;
            list.users.insert(name.clone(), user);
        }
        AccountStatement::AlterUser { name, options } => {
            let mut user = list.user(name)?.clone();
            set_options(&mut user, options, hash);
            list.check_certificate(name, &user)?;
            list.users.insert(name.clone(), user);
        }
        AccountStatement::CreateRole {
            name,
            if_not_exists,
        } => {
            if *if_not_exists && list.roles.contains_key(name) {
                return Ok(());
            }
            list.check_free(name)?;
            list.roles.insert(name.clone(), RoleEntry::default());
        }
        AccountStatement::Drop {
            kind,
            names,
            if_exists,
        } => {
            for name in names {
                let was_there = match kind {
                    AccountKind::User => list.users.remove(name).is_some(),
                    AccountKind::Role => list.roles.remove(name).is_some(),
                };
                if !was_there && !if_exists {
                    return Err(list.unknown(*kind, name));
                }
                if *kind == AccountKind::Role {
                    let users = list.users.values_mut();
                    users.for_each(|user| user.roles.retain(|role| role != name));
                }
            }
        }
        AccountStatement::Grant { granted, to } => {
            for name in to {
                granted.iter().try_for_each(|one| list.grant(one, name))?;
            }
        }
        AccountStatement::Revoke { granted, from } => {
            for name in from {
                granted.iter().try_for_each(|one| list.revoke(one, name))?;
            }
        }
    }
    if needs_admin && !list.has_admin() {
        return Err(Error::usage(
            "no admin could log in any more: make one first (CREATE USER name PASSWORD '…' ADMIN)",
        ));
    }
    Ok(())
}

fn set_options(user: &mut UserEntry, options: &UserOptions, hash: Option<&str>) {
    match &options.password {
        Some(Some(_)) => user.password = hash.map(String::from),
        Some(None) => user.password = None,
        None => {}
    }
    if let Some(certificate) = &options.certificate {
        user.certificate.clone_from(certificate);
    }
    if let Some(admin) = options.admin {
        user.admin = admin;
    }
}

impl AccountList {
    fn has_admin(&self) -> bool {
        let mut users = self.users.values();
        users.any(|user| user.admin && user.can_log_in())
    }

    fn check_free(&self, name: &str) -> Result<()> {
        let kind = match (self.users.contains_key(name), self.roles.contains_key(name)) {
            (true, _) => AccountKind::User,
            (_, true) => AccountKind::Role,
            _ => return Ok(()),
        };
        Err(Error::usage(format!(
            "there is a {kind} '{name}' already; choose another name"
        )))
    }

    fn check_certificate(&self, name: &str, user: &UserEntry) -> Result<()> {
        let certificate = user.certificate.as_deref();
        match certificate.and_then(|certificate| self.of_certificate(certificate)) {
            Some(other) if other != name => Err(Error::usage(format!(
                "user '{other}' has the certificates of that name"
            ))),
            _ => Ok(()),
        }
    }

    fn unknown(&self, kind: AccountKind, name: &str) -> Error {
        Error::usage(format!(
            "the database has no {kind} '{name}'; SELECT name, kind FROM system.users lists those that it has"
        ))
    }

    fn user(&self, name: &str) -> Result<&UserEntry> {
        let user = self.users.get(name);
        user.ok_or_else(|| self.unknown(AccountKind::User, name))
    }

    /// What is granted to a user or a role by itself.
    fn granted_to(&mut self, name: &str) -> Result<(&mut Vec<Grant>, &mut FunctionGrants)> {
        if !self.users.contains_key(name) && !self.roles.contains_key(name) {
            return Err(Error::usage(format!(
                "the database has no user or role '{name}'; CREATE USER {name} or CREATE ROLE {name} makes one"
            )));
        }
        Ok(match self.users.get_mut(name) {
            Some(user) => (&mut user.grants, &mut user.functions),
            None => {
                let role = self.roles.entry(name.into()).or_default();
                (&mut role.grants, &mut role.functions)
            }
        })
    }

    fn grant(&mut self, granted: &Granted, to: &str) -> Result<()> {
        if let Granted::Role(role) = granted {
            if !self.roles.contains_key(role) {
                return Err(self.unknown(AccountKind::Role, role));
            }
            let Some(user) = self.users.get_mut(to) else {
                return Err(match self.roles.contains_key(to) {
                    true => Error::usage(format!(
                        "'{to}' is a role, and roles have no roles: grant '{role}' to users"
                    )),
                    false => self.unknown(AccountKind::User, to),
                });
            };
            if !user.roles.contains(role) {
                user.roles.push(role.clone());
            }
            return Ok(());
        }
        let (grants, functions) = self.granted_to(to)?;
        let add = |names: &mut Vec<NamePattern>, name: &NamePattern| {
            if !names.contains(name) {
                names.push(name.clone());
            }
        };
        match granted {
            Granted::Tables(right, tables) => {
                match grants.iter_mut().find(|grant| grant.tables == *tables) {
                    Some(grant) if grant.rights.contains(right) => {}
                    Some(grant) => grant.rights.push(*right),
                    None => grants.push(Grant {
                        tables: tables.clone(),
                        rights: vec![*right],
                    }),
                }
            }
            Granted::UseFunctions(name) => add(&mut functions.usable, name),
            Granted::CreateFunctions(name) => add(&mut functions.create, name),
            Granted::Role(_) => unreachable!("roles are granted above"),
        }
        Ok(())
    }

    fn revoke(&mut self, granted: &Granted, from: &str) -> Result<()> {
        fn remove<T: PartialEq>(of: &mut Vec<T>, one: &T) -> bool {
            let before = of.len();
            of.retain(|other| other != one);
            of.len() < before
        }
        let was_there = match granted {
            Granted::Role(role) => {
                let user = self.users.get_mut(from);
                user.is_some_and(|user| remove(&mut user.roles, role))
            }
            Granted::Tables(right, tables) => {
                let (grants, _) = self.granted_to(from)?;
                let found = grants.iter_mut().find(|grant| grant.tables == *tables);
                let was_there = found.is_some_and(|grant| remove(&mut grant.rights, right));
                grants.retain(|grant| !grant.rights.is_empty());
                was_there
            }
            Granted::UseFunctions(name) => remove(&mut self.granted_to(from)?.1.usable, name),
            Granted::CreateFunctions(name) => remove(&mut self.granted_to(from)?.1.create, name),
        };
        match was_there {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "'{from}' was not granted {granted}{}",
                self.all_of(from)
            ))),
        }
    }

    /// What a user or a role has, for those who look for it.
    fn all_of(&self, name: &str) -> String {
        let mut has = Vec::new();
        for grant in self.grants_of(name) {
            has.push(match &grant.role {
                Some(role) => format!("{} (role {role})", grant.granted),
                None => grant.granted.to_string(),
            });
        }
        let roles = self
            .users
            .get(name)
            .into_iter()
            .flat_map(|user| &user.roles);
        has.extend(roles.map(|role| format!("role {role}")));
        match has.is_empty() {
            true => ", nor anything else".into(),
            false => format!(", but {}", has.join(", ")),
        }
    }

    /// What is granted to a user or a role, by itself and then through its roles.
    pub fn grants_of(&self, name: &str) -> Vec<GrantOf> {
        if let Some(role) = self.roles.get(name) {
            return grants_in(None, (&role.grants, &role.functions)).collect();
        }
        let Some(user) = self.users.get(name) else {
            return Vec::new();
        };
        let mut all: Vec<_> = grants_in(None, (&user.grants, &user.functions)).collect();
        let roles: BTreeMap<_, _> = user
            .roles
            .iter()
            .filter_map(|name| Some((name, self.roles.get(name)?)))
            .collect();
        for (name, role) in roles {
            all.extend(grants_in(Some(name), (&role.grants, &role.functions)));
        }
        all
    }
}

/// One thing that is granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GrantOf {
    /// What.
    pub granted: Granted,
    /// Through which role, if through one.
    pub role: Option<String>,
}

/// What some grants are, one by one.
pub(crate) fn grants_in<'a>(
    role: Option<&'a str>,
    (grants, functions): (&'a [Grant], &'a FunctionGrants),
) -> impl Iterator<Item = GrantOf> + 'a {
    let tables = grants.iter().flat_map(|grant| {
        let rights = grant.rights.iter();
        rights.map(|right| Granted::Tables(*right, grant.tables.clone()))
    });
    let usable = functions.usable.iter().cloned().map(Granted::UseFunctions);
    let create = functions
        .create
        .iter()
        .cloned()
        .map(Granted::CreateFunctions);
    let all = tables.chain(usable).chain(create);
    all.map(move |granted| GrantOf {
        granted,
        role: role.map(String::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashmesh_storage::capability::Right;

    fn run(list: &mut AccountList, text: &str) -> Result<()> {
        let statement = AccountStatement::parse(text, Some("public"))?;
        apply(list, &statement, Some("hash"), true)
    }

    fn fails(list: &mut AccountList, text: &str, why: &str) {
        let mut changed = list.clone();
        let error = run(&mut changed, text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }

    #[test]
    fn users_get_what_they_and_their_roles_were_granted() {
        let mut list = AccountList::default();
        for text in [
            "CREATE USER ada PASSWORD 'x' ADMIN",
            "CREATE USER bob PASSWORD 'x' CERTIFICATE 'bob.org'",
            "CREATE ROLE analyst",
            "GRANT read ON sales.* TO analyst",
            "GRANT analyst TO bob",
            "GRANT read, write ON orders TO bob",
            "GRANT use ON FUNCTION price_* TO analyst",
        ] {
            run(&mut list, text).unwrap();
        }
        // Its text says the same.
        let text = list.to_text().unwrap();
        assert_eq!(AccountList::parse("here", &text).unwrap(), list);
        let bob = list.principal("bob").unwrap();
        assert!(bob.check(Right::Read, "sales", "eu").is_ok());
        assert!(bob.check(Right::Write, "sales", "eu").is_err());
        assert!(bob.check(Right::Write, "public", "orders").is_ok());
        assert!(bob.may_use("price_band") && !bob.may_use("other"));
        assert!(list.principal("ada").unwrap().admin);
        assert_eq!(list.of_certificate("bob.org"), Some("bob"));
        let before = bob;

        run(&mut list, "GRANT create ON orders TO bob").unwrap();
        // What came along takes nothing away, so that nobody's session ends by it.
        assert!(list.principal("bob").unwrap().may_all_that(&before));
        run(&mut list, "REVOKE read, create ON orders FROM bob").unwrap();
        let bob = list.principal("bob").unwrap();
        assert!(!bob.may_all_that(&before));
        assert!(bob.check(Right::Read, "public", "orders").is_err());
        run(&mut list, "DROP ROLE analyst").unwrap();
        assert!(
            list.principal("bob")
                .unwrap()
                .check(Right::Read, "sales", "eu")
                .is_err()
        );
        run(&mut list, "DROP USER IF EXISTS bob, eve").unwrap();
        assert!(list.principal("bob").is_none());
    }

    #[test]
    fn what_can_not_be_done_is_said() {
        let mut list = AccountList::default();
        for text in [
            "CREATE USER ada PASSWORD 'x' ADMIN",
            "CREATE USER bob CERTIFICATE 'bob.org'",
            "CREATE ROLE analyst",
            "GRANT read ON sales.* TO analyst",
            "GRANT analyst TO bob",
        ] {
            run(&mut list, text).unwrap();
        }
        fails(&mut list, "CREATE USER bob", "a user 'bob' already");
        fails(&mut list, "CREATE USER \"a:b\"", "stands a ':'");
        fails(
            &mut list,
            "ALTER USER ada PASSWORD NULL",
            "no admin could log in",
        );
        fails(&mut list, "CREATE USER analyst", "a role 'analyst' already");
        fails(&mut list, "CREATE ROLE ada", "a user 'ada' already");
        fails(
            &mut list,
            "CREATE USER eve CERTIFICATE 'bob.org'",
            "user 'bob' has the certificates",
        );
        fails(&mut list, "DROP USER ada", "no admin could log in");
        fails(&mut list, "ALTER USER ada NOADMIN", "no admin could log in");
        fails(&mut list, "ALTER USER eve ADMIN", "no user 'eve'");
        fails(&mut list, "GRANT read ON t TO eve", "no user or role 'eve'");
        fails(&mut list, "GRANT eve TO bob", "no role 'eve'");
        fails(&mut list, "GRANT analyst TO analyst", "roles have no roles");
        fails(&mut list, "REVOKE eve FROM bob", "role analyst");
        // Who takes a right away learns that it comes from elsewhere.
        fails(
            &mut list,
            "REVOKE read ON sales.eu FROM bob",
            "read on sales.* (role analyst)",
        );
    }
}

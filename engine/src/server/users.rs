//! The users file: who may connect, and what is granted to them.
//!
//! ```toml
//! [users.ada]
//! password = "$argon2id$…"          # made by `flashmesh user add ada`
//! admin = true
//!
//! [users.bob]
//! password = "$argon2id$…"
//! grants = [{ tables = "public.*", rights = ["read"] }]
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};
use crate::grants::{FunctionGrants, Grant, Principal};

/// Passwords that are verified at once: each takes 19 MiB and tens of milliseconds by design, and
/// whoever guesses passwords shall not take the machine.
const VERIFYING: usize = 2;

/// The users of a server, read anew when the file has changed.
#[derive(Debug)]
pub(super) struct Users {
    path: PathBuf,
    read: Mutex<(Option<SystemTime>, Arc<UsersFile>)>,
    verifying: Semaphore,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct UsersFile {
    #[serde(default)]
    users: BTreeMap<String, User>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct User {
    /// Without one, the user connects by certificate or token only.
    password: Option<String>,
    #[serde(default)]
    admin: bool,
    #[serde(default)]
    grants: Vec<Grant>,
    #[serde(default)]
    functions: FunctionGrants,
}

impl Users {
    /// Reads the file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Usage`] for what it should not hold, with the line.
    pub fn open(path: &Path) -> Result<Self> {
        let users = Self {
            path: path.to_path_buf(),
            read: Mutex::default(),
            verifying: Semaphore::new(VERIFYING),
        };
        let file = users.current()?;
        if file.users.is_empty() {
            return Err(Error::usage(format!(
                "{} has no users; flashmesh user add NAME --users {} makes one",
                path.display(),
                path.display()
            )));
        }
        Ok(users)
    }

    fn current(&self) -> Result<Arc<UsersFile>> {
        let reading = |e| Error::io(format!("reading users from {}", self.path.display()), e);
        let changed = std::fs::metadata(&self.path).and_then(|m| m.modified());
        let changed = changed.map_err(reading)?;
        let mut read = self.read.lock();
        if read.0 != Some(changed) {
            let text = std::fs::read_to_string(&self.path).map_err(reading)?;
            *read = (Some(changed), Arc::new(parse(&self.path, &text)?));
        }
        Ok(Arc::clone(&read.1))
    }

    /// The user of that name, if the file (still) has it.
    ///
    /// # Errors
    /// As [`Users::open`]: a broken file lets nobody in.
    pub fn find(&self, name: &str) -> Result<Option<Principal>> {
        let file = self.current()?;
        Ok(file.users.get(name).map(|user| match user.admin {
            true => Principal::admin(name),
            false => Principal::user(name, user.grants.clone(), user.functions.clone()),
        }))
    }

    /// The user of that name, if that is the password.
    ///
    /// # Errors
    /// As [`Users::open`].
    pub async fn verify(&self, name: &str, password: &str) -> Result<Option<Principal>> {
        let file = self.current()?;
        let hash = file.users.get(name).and_then(|user| user.password.clone());
        let password = password.to_string();
        // It is closed never.
        let _permit = self.verifying.acquire().await;
        let matches = tokio::task::spawn_blocking(move || {
            // A name that is not there takes as long as a wrong password.
            let hash = hash.unwrap_or_else(|| NOBODY.to_string());
            let parsed = PasswordHash::new(&hash).ok();
            parsed.is_some_and(|hash| {
                Argon2::default()
                    .verify_password(password.as_bytes(), &hash)
                    .is_ok()
            })
        });
        match matches.await {
            Ok(true) => self.find(name),
            _ => Ok(None),
        }
    }
}

/// The hash of a password that nobody knows.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHRzb21lc2FsdA$0000000000000000000000000000000000000000000";

fn parse(path: &Path, text: &str) -> Result<UsersFile> {
    toml::from_str(text).map_err(|e| Error::usage(format!("{}: {e}", path.display())))
}

/// The hash of a password, as the users file holds it.
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

/// Adds a user to the text of a users file.
///
/// # Errors
/// [`Error::Usage`] where the file is broken or has that user.
pub fn add_user(path: &Path, name: &str, hash: &str, admin: bool) -> Result<()> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(Error::io(format!("reading {}", path.display()), e)),
    };
    if parse(path, &text)?.users.contains_key(name) {
        return Err(Error::usage(format!(
            "{} has a user '{name}' already; edit the file to change it",
            path.display()
        )));
    }
    // TOML escapes as JSON does.
    let key = serde_json::Value::String(name.to_string());
    let mut entry = format!("[users.{key}]\npassword = \"{hash}\"\n");
    match admin {
        true => entry.push_str("admin = true\n"),
        false => entry.push_str("grants = [{ tables = \"*.*\", rights = [\"read\"] }]\n"),
    }
    let gap = if text.is_empty() { "" } else { "\n" };
    let text = format!("{text}{gap}{entry}");
    parse(path, &text)?;
    write_private(path, &text)
}

/// Replaces a file that only its owner may read, whole or not at all.
fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let write = || {
        // Temporary files are made with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(text.as_bytes())?;
        file.as_file()
            .set_permissions(std::fs::Permissions::from_mode(0o600))?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|e| e.error)?;
        Ok(())
    };
    write().map_err(|e| Error::io(format!("writing {}", path.display()), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn users_are_added_verified_and_reread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        add_user(&path, "ada", &hash_password("secret").unwrap(), true).unwrap();
        let users = Users::open(&path).unwrap();
        assert!(users.verify("ada", "secret").await.unwrap().unwrap().admin);
        assert_eq!(users.verify("ada", "Secret").await.unwrap(), None);
        assert_eq!(users.verify("bob", "secret").await.unwrap(), None);

        add_user(&path, "o'b \"x\"", &hash_password("p").unwrap(), false).unwrap();
        let bob = users.verify("o'b \"x\"", "p").await.unwrap().unwrap();
        assert!(!bob.admin && !bob.rights("public", "t").is_empty());

        let again = add_user(&path, "ada", "x", true).unwrap_err();
        assert!(again.to_string().contains("already"), "{again}");
    }

    #[test]
    fn a_broken_file_is_refused_with_its_line() {
        for text in [
            "[users.ada]\npasword = \"x\"",
            "[users.ada]\ngrants = [{ tables = \"a.b.c\", rights = [\"read\"] }]",
            "[users.ada]\ngrants = [{ tables = \"a.b\", rights = [\"rule\"] }]",
        ] {
            let error = parse(Path::new("users.toml"), text).unwrap_err();
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }
}

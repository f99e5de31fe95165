//! The users of a server: those of its users file and of the database.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use argon2::Argon2;
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;
use flashmesh_storage::table::Database;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tonic::Status;

use super::logins::Logins;
use super::options::ServerOptions;
use crate::accounts::AccountList;
use crate::error::{Error, Result};
use crate::grants::{Principal, Source};

/// The users of a server, read anew when the file or the accounts of the database have changed.
#[derive(Debug)]
pub(super) struct Users {
    file: Option<PathBuf>,
    database: Arc<Database>,
    needed: Needed,
    /// When the database was seen to have users, where that decides.
    found: OnceLock<Instant>,
    read: Mutex<Option<Read>>,
    logins: Logins,
}

/// Whether everybody has to log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needed {
    Always,
    /// As soon as the database has users.
    ByUsers,
    Never,
}

/// Between when the first user was made and when everybody has to log in: who made them gets the answer.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// All accounts, and of when they are.
#[derive(Debug)]
struct Read {
    changed: Option<SystemTime>,
    version: u64,
    list: Arc<AccountList>,
}

/// With what somebody has come in, which they may for as long as that is theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Credential {
    /// A password, by [`User::password`].
    Password(String),
    /// A certificate with that name.
    Certificate(String),
    /// A token that was made without a login, or nothing at all.
    Other,
}

impl Credential {
    /// That of a login or a token: its password, if it was one.
    pub fn of(password: Option<&String>) -> Self {
        password.map_or(Self::Other, |password| Self::Password(password.clone()))
    }
}

/// A user as they are now.
#[derive(Debug)]
pub(super) struct User {
    /// What they may do.
    pub principal: Principal,
    /// Tells whether their password is still the same.
    pub password: Option<String>,
    /// The name in their certificates.
    pub certificate: Option<String>,
}

impl User {
    /// A user of a server without users.
    pub fn admin(name: &str) -> Self {
        Self {
            principal: Principal::admin(name),
            password: None,
            certificate: None,
        }
    }

    /// The user of that name.
    pub fn of(list: &AccountList, name: &str) -> Option<Self> {
        let user = list.users.get(name)?;
        Some(Self {
            principal: list.principal(name)?,
            password: user.password.as_ref().map(|hash| {
                let digest = Sha256::digest(hash);
                digest[..8].iter().map(|b| format!("{b:02x}")).collect()
            }),
            certificate: user.certificate.clone(),
        })
    }

    /// The user of that name, who still has what they came in with.
    ///
    /// # Errors
    /// UNAUTHENTICATED with what is not so any more.
    pub fn with(
        list: &AccountList,
        name: &str,
        credential: &Credential,
    ) -> std::result::Result<Self, Status> {
        let user = Self::of(list, name).ok_or_else(|| {
            Status::unauthenticated(format!("there is no user '{name}' any more"))
        })?;
        match credential {
            Credential::Password(password) if user.password.as_ref() != Some(password) => Err(
                Status::unauthenticated("the password was changed; connect again"),
            ),
            Credential::Certificate(name) if user.certificate.as_ref() != Some(name) => Err(
                Status::unauthenticated(format!("no user has the certificate of {name}")),
            ),
            _ => Ok(user),
        }
    }
}

impl Users {
    /// Reads the file, if there is one, and the accounts of the database.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Usage`] for what the file should not hold, with the line, and where
    /// everybody has to log in and there are no users; [`Error::Storage`] where nobody knows any more
    /// which users the database has.
    pub fn open(options: &ServerOptions, database: &Arc<Database>) -> Result<Self> {
        let is_always = options.users.is_some() || options.require_login;
        let mut users = Self {
            file: options.users.clone(),
            database: Arc::clone(database),
            needed: match (is_always, options.allow_anonymous) {
                (true, _) => Needed::Always,
                (false, true) => Needed::Never,
                (false, false) => Needed::ByUsers,
            },
            found: OnceLock::new(),
            read: Mutex::default(),
            logins: Logins::new(),
        };
        match users.needed {
            Needed::Always => drop(users.current()?),
            Needed::ByUsers if !users.read()?.users.is_empty() => users.needed = Needed::Always,
            Needed::ByUsers | Needed::Never => {}
        }
        Ok(users)
    }

    /// Whether everybody has to log in. Once it is so it stays so, whoever is dropped.
    pub fn are_asked(&self) -> bool {
        match self.needed {
            Needed::Always => return true,
            Needed::Never => return false,
            Needed::ByUsers => {}
        }
        if let Some(found) = self.found.get() {
            return found.elapsed() >= FIRST_ANSWER;
        }
        // Where nobody knows any more who the users are, nobody comes in.
        if !matches!(self.read(), Ok(list) if list.users.is_empty()) {
            let _ = self.found.set(Instant::now());
            tracing::info!("the database has users: everybody has to log in");
        }
        false
    }

    fn current(&self) -> Result<Arc<AccountList>> {
        let list = self.read()?;
        // The file may be about to be written.
        if list.users.is_empty() {
            return Err(Error::usage(match &self.file {
                Some(path) => format!(
                    "{0} has no users; flashmesh user add NAME --users {0} makes one",
                    path.display()
                ),
                None => {
                    "the database has no users, so that nobody could log in; where nobody has to, \
                     CREATE USER name PASSWORD '…' ADMIN makes one"
                        .into()
                }
            }));
        }
        Ok(list)
    }

    fn read(&self) -> Result<Arc<AccountList>> {
        let changed = self.file.as_deref().map(|path| {
            let changed = std::fs::metadata(path).and_then(|m| m.modified());
            changed.map_err(|e| Error::io(format!("reading users from {}", path.display()), e))
        });
        let changed = changed.transpose()?;
        let accounts = self.database.accounts()?;
        let mut read = self.read.lock();
        if let Some(read) = read.as_ref()
            && (read.changed, read.version) == (changed, accounts.version)
        {
            return Ok(Arc::clone(&read.list));
        }
        let of_database = AccountList::of(&accounts)?;
        let list = match self.file.as_deref() {
            Some(path) => parse(path, &text_of(path)?)?
                .from(Source::File)
                .with(&of_database),
            None => of_database,
        };
        let list = Arc::new(list);
        *read = Some(Read {
            changed,
            version: accounts.version,
            list: Arc::clone(&list),
        });
        Ok(list)
    }

    /// The users as they are now, for who is let in by them. What is wrong with the file is for the log
    /// and not for strangers.
    ///
    /// # Errors
    /// A broken file lets nobody in.
    pub fn now(&self) -> std::result::Result<Arc<AccountList>, Status> {
        self.current().map_err(|error| {
            tracing::error!(error = error.to_string(), "nobody can log in");
            Status::unavailable(
                "nobody can log in at the moment; whoever runs the server finds the reason in its log",
            )
        })
    }

    /// Whether nobody has found others yet since that list was read.
    pub fn are_those(&self, list: &Arc<AccountList>) -> bool {
        let read = self.read.lock();
        read.as_ref()
            .is_some_and(|read| Arc::ptr_eq(&read.list, list))
    }

    /// The user who has a certificate with one of these names, and that name.
    ///
    /// # Errors
    /// As [`Users::now`].
    pub fn of_certificate(
        &self,
        names: &[String],
    ) -> std::result::Result<Option<(User, String)>, Status> {
        let list = self.now()?;
        let found = names.iter().find_map(|name| {
            let user = list.of_certificate(name)?;
            Some((User::of(&list, user)?, name.clone()))
        });
        Ok(found)
    }

    /// The user of that name, if that is the password.
    ///
    /// # Errors
    /// As [`Users::now`]; for an address with too many logins at once.
    pub async fn verify(
        &self,
        name: &str,
        password: &str,
        address: IpAddr,
    ) -> std::result::Result<Option<User>, Status> {
        let list = self.now()?;
        let hash = list.users.get(name).and_then(|user| user.password.clone());
        // A name that is not there takes as long as a wrong password.
        let hash = hash.unwrap_or_else(|| NOBODY.to_string());
        let (given, expected) = (password.to_string(), hash.clone());
        let verify = move || {
            PasswordHash::new(&expected).is_ok_and(|expected| {
                let given = given.as_bytes();
                Argon2::default().verify_password(given, &expected).is_ok()
            })
        };
        let right = self.logins.check(address, name, password, &hash, verify);
        Ok(match right.await? {
            true => User::of(&list, name),
            false => None,
        })
    }
}

/// The hash of a password that nobody knows.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHRzb21lc2FsdA$0000000000000000000000000000000000000000000";

fn parse(path: &Path, text: &str) -> Result<AccountList> {
    AccountList::parse(&path.display().to_string(), text)
}

fn text_of(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path);
    text.map_err(|e| Error::io(format!("reading users from {}", path.display()), e))
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

/// Changes the text of a users file, of which all else stays as it is.
fn edit(path: &Path, name: &str, change: impl FnOnce(&mut toml_edit::Table)) -> Result<()> {
    let text = text_of(path)?;
    let users = parse(path, &text)?.users;
    if !users.contains_key(name) {
        let names: Vec<_> = users.keys().map(String::as_str).collect();
        let names = names.join(", ");
        return Err(Error::usage(format!(
            "{} has no user '{name}', but {names}",
            path.display()
        )));
    }
    let wrong = |e: &dyn std::fmt::Display| Error::usage(format!("{}: {e}", path.display()));
    let mut document: toml_edit::DocumentMut = text.parse().map_err(|e| wrong(&e))?;
    let users = document
        .get_mut("users")
        .and_then(toml_edit::Item::as_table_mut);
    change(users.ok_or_else(|| wrong(&"it has no tables [users.NAME]; edit it by hand"))?);
    let text = document.to_string();
    parse(path, &text)?;
    write_private(path, &text)
}

/// Changes the hash of a user's password in a users file.
///
/// # Errors
/// [`Error::Usage`] where the file is broken or has no such user.
pub fn set_password(path: &Path, name: &str, hash: &str) -> Result<()> {
    edit(path, name, |users| {
        users[name]["password"] = toml_edit::value(hash)
    })
}

/// Removes a user from a users file.
///
/// # Errors
/// [`Error::Usage`] where the file is broken, has no such user, or would have no user any more: a
/// server does not start with that.
pub fn remove_user(path: &Path, name: &str) -> Result<()> {
    let users = list_users(path)?;
    if users.len() == 1 && users[0].0 == name {
        return Err(Error::usage(format!(
            "'{name}' is the last user of {0}, and with none the server lets nobody in; add another first",
            path.display()
        )));
    }
    edit(path, name, |users| drop(users.remove(name)))
}

/// The users of a users file: name, and in words what they may do.
///
/// # Errors
/// [`Error::Io`]; [`Error::Usage`] where the file is broken.
pub fn list_users(path: &Path) -> Result<Vec<(String, String)>> {
    let users = parse(path, &text_of(path)?)?.users.into_iter();
    let users = users.map(|(name, entry)| {
        let grants = entry.grants.len() + entry.roles.len();
        let may = match (entry.admin, grants, entry.password.is_some()) {
            (true, _, true) => "admin".to_string(),
            (true, _, false) => "admin, without a password".to_string(),
            (false, grants, has_password) => format!(
                "{grants} grant{}{}",
                if grants == 1 { "" } else { "s" },
                if has_password {
                    ""
                } else {
                    ", without a password"
                }
            ),
        };
        (name, may)
    });
    Ok(users.collect())
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

    use crate::accounts::hash_password;
    use flashmesh_storage::table::DatabaseOptions;

    #[tokio::test]
    async fn users_are_added_verified_and_reread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        add_user(&path, "ada", &hash_password("secret").unwrap(), true).unwrap();
        let options = DatabaseOptions::default();
        let database = Database::open(&folder.path().join("database"), options).unwrap();
        let options = ServerOptions {
            users: Some(path.clone()),
            ..ServerOptions::default()
        };
        let users = Users::open(&options, &database).unwrap();
        let here = IpAddr::from([127, 0, 0, 1]);
        let verify = async |name, password| {
            let user = users.verify(name, password, here).await.unwrap();
            user.map(|user| user.principal)
        };
        assert!(verify("ada", "secret").await.unwrap().admin);
        assert_eq!(verify("ada", "Secret").await, None);
        assert_eq!(verify("bob", "secret").await, None);

        add_user(&path, "o'b \"x\"", &hash_password("p").unwrap(), false).unwrap();
        let bob = verify("o'b \"x\"", "p").await.unwrap();
        assert!(!bob.admin && !bob.rights("public", "t").is_empty());

        // What the owner wrote stays, and a changed password is good at once.
        let noted = format!("# ours\n{}", std::fs::read_to_string(&path).unwrap());
        std::fs::write(&path, noted).unwrap();
        set_password(&path, "o'b \"x\"", &hash_password("q").unwrap()).unwrap();
        assert!(
            std::fs::read_to_string(&path)
                .unwrap()
                .starts_with("# ours\n")
        );
        assert_eq!(verify("o'b \"x\"", "p").await, None);
        assert!(verify("o'b \"x\"", "q").await.is_some());
        let listed = list_users(&path).unwrap();
        let listed: Vec<_> = listed
            .iter()
            .map(|(n, may)| (n.as_str(), may.as_str()))
            .collect();
        assert_eq!(listed, [("ada", "admin"), ("o'b \"x\"", "1 grant")]);
        let nobody = set_password(&path, "eve", "x").unwrap_err().to_string();
        assert!(nobody.contains("no user 'eve'"), "{nobody}");
        remove_user(&path, "o'b \"x\"").unwrap();
        assert_eq!(verify("o'b \"x\"", "q").await, None);
        let last = remove_user(&path, "ada").unwrap_err().to_string();
        assert!(last.contains("last user"), "{last}");

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

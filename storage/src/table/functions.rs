//! Functions that users added: the catalog keeps their packages as they were given.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::table::Database;
use crate::table::edit::{FunctionVersion, Operation, Precondition, PutFunction, TableEdit};
use crate::table::manifest::{CalleeRecord, FunctionRecord};
use crate::{Result, StorageError};

/// A function as the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its SQL name.
    pub name: String,
    /// Who made it.
    pub owner: String,
    /// 1 for the first of its name, one more with each replacement.
    pub version: u32,
    /// Microseconds since 1970.
    pub created_at_us: u64,
    /// SHA-256 of the package.
    pub digest: [u8; 32],
    /// The functions that it calls.
    pub callees: Vec<Callee>,
    /// Bytes of the package.
    pub bytes: u64,
}

impl Function {
    /// The digest of all that runs when it is called: its package, and what it calls.
    pub fn digest_with_callees(&self) -> [u8; 32] {
        digest_with_callees(
            self.digest,
            self.callees.iter().map(|callee| &callee.digest),
        )
    }
}

/// The digest of a package with that of each one that it calls.
pub(crate) fn digest_with_callees<'a>(
    package: [u8; 32],
    callees: impl ExactSizeIterator<Item = &'a [u8; 32]>,
) -> [u8; 32] {
    if callees.len() == 0 {
        return package;
    }
    let mut digest = Sha256::new_with_prefix(package);
    callees.for_each(|callee| digest.update(callee));
    digest.finalize().into()
}

/// A function that another one calls: the very one that was there when the caller was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callee {
    /// Its SQL name.
    pub name: String,
    /// [`Function::digest_with_callees`].
    pub digest: [u8; 32],
}

/// What one user may have.
#[derive(Debug, Clone, Copy)]
pub struct FunctionQuota {
    /// Functions.
    pub functions: usize,
    /// Bytes of their packages.
    pub bytes: u64,
}

/// A function to be made.
#[derive(Debug, Clone)]
pub struct NewFunction<'a> {
    /// Its SQL name.
    pub name: &'a str,
    /// Who makes it.
    pub owner: &'a str,
    /// The package, checked by the caller.
    pub package: &'a [u8],
    /// The functions that it calls.
    pub callees: Vec<Callee>,
    /// One of the same name goes, if it is the owner's.
    pub or_replace: bool,
    /// What its owner may have; `None` for an admin, who may replace functions of others, too.
    pub quota: Option<FunctionQuota>,
}

impl Database {
    /// The functions, in the order of their names.
    pub fn functions(&self) -> Vec<Arc<Function>> {
        self.state.read().functions.values().cloned().collect()
    }

    /// A function.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn function(&self, name: &str) -> Result<Arc<Function>> {
        let function = self.state.read().functions.get(name).cloned();
        match (function, self.damage()) {
            (Some(function), _) => Ok(function),
            (None, None) => Err(not_found(name)),
            (None, Some(damage)) => Err(StorageError::corrupt(format!(
                "there is no function '{name}' in what is left of the catalog: {damage}"
            ))),
        }
    }

    /// Counts changes of the functions: while it stays, so do they.
    pub fn functions_version(&self) -> u64 {
        self.state.read().functions_version
    }

    /// The package of a function.
    ///
    /// # Errors
    /// `NotFound` when it was dropped or replaced meanwhile; `Corrupt` when the catalog has other
    /// bytes than were given to it.
    pub fn function_package(&self, function: &Function) -> Result<Vec<u8>> {
        let package = self.package(function)?;
        let package = package.ok_or_else(|| not_found(&function.name))?;
        if Sha256::digest(&package)[..] == function.digest {
            return Ok(package);
        }
        match self.function(&function.name) {
            Ok(now) if now.digest == function.digest => Err(StorageError::corrupt(format!(
                "function '{}': its package is not what was registered; create it again",
                function.name
            ))),
            _ => Err(not_found(&function.name)),
        }
    }

    /// Makes a function.
    ///
    /// # Errors
    /// `AlreadyExists`, `Denied` where it would take the place of another user's or pass the quota,
    /// `ReadOnly`, `Full`.
    pub fn create_function(&self, new: NewFunction<'_>) -> Result<Arc<Function>> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        loop {
            let before = self.function(new.name).ok();
            if before.is_some() && !new.or_replace {
                return Err(StorageError::AlreadyExists {
                    kind: "function",
                    name: new.name.into(),
                });
            }
            if let Some(quota) = new.quota {
                check_owner(before.as_deref(), new.owner)?;
                self.check_quota(&new, quota)?;
            }
            let before = before.map_or(0, |before| before.version);
            let function = Function {
                name: new.name.into(),
                owner: new.owner.into(),
                version: before.saturating_add(1),
                created_at_us: since.as_ref().map_or(0, |time| time.as_micros() as u64),
                digest: Sha256::digest(new.package).into(),
                callees: new.callees.clone(),
                bytes: new.package.len() as u64,
            };
            let mut edit = TableEdit::default();
            edit.require(function_at(new.name, before));
            edit.push(Operation::PutFunction(PutFunction {
                name: new.name.into(),
                record: FunctionRecord::of(&function),
                package: new.package.to_vec(),
            }));
            if self.commit(edit)? {
                return Ok(Arc::new(function));
            }
        }
    }

    fn check_quota(&self, new: &NewFunction<'_>, quota: FunctionQuota) -> Result<()> {
        let others = self.functions();
        let others = others
            .iter()
            .filter(|other| other.owner == new.owner && other.name != new.name);
        let (count, bytes) = others.fold((1, new.package.len() as u64), |(count, bytes), other| {
            (count + 1, bytes.saturating_add(other.bytes))
        });
        if count > quota.functions || bytes > quota.bytes {
            return Err(StorageError::Denied(format!(
                "'{}' would have {count} functions with {bytes} bytes of packages, and may have {} \
                 with {}; drop some first",
                new.owner, quota.functions, quota.bytes
            )));
        }
        Ok(())
    }

    /// Drops a function; that of `owner`, if one is named. Queries that use it already end
    /// undisturbed.
    ///
    /// # Errors
    /// `NotFound`, `Denied` for another user's, `ReadOnly`.
    pub fn drop_function(&self, name: &str, owner: Option<&str>) -> Result<()> {
        loop {
            let function = self.function(name)?;
            if let Some(owner) = owner {
                check_owner(Some(&function), owner)?;
            }
            let mut edit = TableEdit::default();
            edit.require(function_at(name, function.version));
            edit.push(Operation::DropFunction(name.into()));
            if self.commit(edit)? {
                return Ok(());
            }
        }
    }
}

fn function_at(name: &str, version: u32) -> Precondition {
    Precondition::Function(FunctionVersion {
        name: name.into(),
        version,
    })
}

impl FunctionRecord {
    pub(super) fn of(function: &Function) -> Self {
        Self {
            owner: function.owner.clone(),
            version: function.version,
            created_at_us: function.created_at_us,
            digest: function.digest.to_vec(),
            callees: function.callees.iter().map(CalleeRecord::of).collect(),
            bytes: function.bytes,
        }
    }

    pub(super) fn decode_function(self, name: String) -> Result<Function> {
        let digest_of = |digest: Vec<u8>| {
            digest.try_into().map_err(|_| {
                StorageError::corrupt(format!("function '{name}': a digest isn't 32 bytes"))
            })
        };
        let callees = self.callees.into_iter().map(|callee| {
            Ok(Callee {
                name: callee.name,
                digest: digest_of(callee.digest)?,
            })
        });
        Ok(Function {
            owner: self.owner,
            version: self.version,
            created_at_us: self.created_at_us,
            callees: callees.collect::<Result<_>>()?,
            digest: digest_of(self.digest)?,
            bytes: self.bytes,
            name,
        })
    }
}

impl CalleeRecord {
    fn of(callee: &Callee) -> Self {
        Self {
            name: callee.name.clone(),
            digest: callee.digest.to_vec(),
        }
    }
}

fn check_owner(function: Option<&Function>, owner: &str) -> Result<()> {
    match function {
        Some(function) if function.owner != owner => Err(StorageError::Denied(format!(
            "function '{}' is {}'s; they or an admin may replace and drop it",
            function.name, function.owner
        ))),
        _ => Ok(()),
    }
}

fn not_found(name: &str) -> StorageError {
    StorageError::NotFound {
        kind: "function",
        name: name.into(),
    }
}

//! What a request may do, stated so that only the node's own front end can have stated it.
//!
//! In Willow (section 2.6, "Protection and sharing") every request carries its originating
//! principal, which nobody can forge and which therefore serves as a capability: the store checks
//! it wherever data is moved to or from flash. Here the front end (the engine) decides by its grants what a user
//! may do with a table, and seals that decision with a key that it shares with the node; the node
//! verifies the seal of every command. A command made elsewhere, for another table or after its
//! time is refused, whatever path it came by.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use prost::Message;
use sha2::Sha256;

use crate::segment::TableId;
use crate::{Result, StorageError};

/// One thing that may be done with a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Right {
    /// Query its rows.
    Read = 1,
    /// Add and replace rows.
    Write = 2,
    /// Make and drop it and its indexes.
    Create = 4,
    /// Run kernels of one's own over it.
    Kernel = 8,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create or drop",
            Self::Kernel => "run kernels over",
        })
    }
}

/// A set of [`Right`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Rights(u8);

impl Rights {
    /// All of them.
    pub fn all() -> Self {
        Self(15)
    }

    /// These and one more.
    #[must_use]
    pub fn with(self, right: Right) -> Self {
        Self(self.0 | right as u8)
    }

    /// Whether `right` is among them.
    pub fn has(self, right: Right) -> bool {
        self.0 & right as u8 != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Which kernels a principal may run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KernelRights {
    /// None.
    #[default]
    None,
    /// Those with these packages (SHA-256), in ascending order.
    These(Arc<[[u8; 32]]>),
    /// All.
    All,
}

impl KernelRights {
    /// Whether the kernel with this package is among them.
    pub fn has(&self, digest: &[u8; 32]) -> bool {
        match self {
            Self::None => false,
            Self::These(digests) => digests.binary_search(digest).is_ok(),
            Self::All => true,
        }
    }

    fn seal(&self, mac: &mut Hmac<Sha256>) {
        match self {
            Self::None => mac.update(&[0]),
            Self::All => mac.update(&[1]),
            Self::These(digests) => {
                mac.update(&[2]);
                mac.update(&(digests.len() as u64).to_le_bytes());
                digests.iter().for_each(|digest| mac.update(digest));
            }
        }
    }
}

/// What a capability is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A table that is there.
    Table(TableId),
    /// The name of a table, whether there is one; `*`: any name in the schema.
    Name {
        /// The schema's name.
        schema: Arc<str>,
        /// The table's.
        table: Arc<str>,
    },
    /// The name of a function.
    Function(Arc<str>),
    /// All accounts.
    Accounts,
}

impl From<TableId> for Subject {
    fn from(table: TableId) -> Self {
        Self::Table(table)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(id) => write!(f, "table {}", id.0),
            Self::Name { schema, table } => write!(f, "{schema}.{table}"),
            Self::Function(name) => write!(f, "function '{name}'"),
            Self::Accounts => f.write_str("accounts"),
        }
    }
}

impl Subject {
    /// The name of a table.
    pub fn name(schema: &str, table: &str) -> Self {
        Self::Name {
            schema: schema.into(),
            table: table.into(),
        }
    }

    /// The name of a function.
    pub fn function(name: &str) -> Self {
        Self::Function(name.into())
    }

    fn seal(&self, mac: &mut Hmac<Sha256>) {
        let mut text = |text: &str| {
            mac.update(&(text.len() as u64).to_le_bytes());
            mac.update(text.as_bytes());
        };
        match self {
            Self::Table(id) => {
                text("table");
                mac.update(&id.0.to_le_bytes());
            }
            Self::Name { schema, table } => ["name", schema, table].into_iter().for_each(text),
            Self::Function(name) => ["function", name].into_iter().for_each(text),
            Self::Accounts => text("accounts"),
        }
    }
}

/// What its holder may do with one thing until it expires.
#[derive(Clone, PartialEq, Eq)]
pub struct Capability {
    /// For whom the request is made.
    pub principal: Arc<str>,
    /// What it is of.
    pub of: Subject,
    /// What may be done.
    pub rights: Rights,
    /// The kernels that may run over it, where `rights` has [`Right::Kernel`].
    pub kernels: KernelRights,
    /// Seconds since 1970 after which it is worth nothing.
    pub expires_at_s: u64,
    seal: [u8; 32],
}

/// A capability on its way to another node.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CapabilityRecord {
    #[prost(string, tag = "1")]
    principal: String,
    #[prost(uint32, tag = "2")]
    table: u32,
    #[prost(uint32, tag = "3")]
    rights: u32,
    #[prost(uint64, tag = "4")]
    expires_at_s: u64,
    #[prost(bytes = "vec", tag = "5")]
    seal: Vec<u8>,
    #[prost(bool, tag = "6")]
    all_kernels: bool,
    #[prost(bytes = "vec", repeated, tag = "7")]
    kernels: Vec<Vec<u8>>,
}

impl CapabilityRecord {
    /// `None` for a capability that is not of a table.
    pub fn new(capability: &Capability) -> Option<Self> {
        let Subject::Table(table) = capability.of else {
            return None;
        };
        let (all_kernels, kernels) = match &capability.kernels {
            KernelRights::None => (false, Vec::new()),
            KernelRights::These(digests) => (false, digests.iter().map(|d| d.to_vec()).collect()),
            KernelRights::All => (true, Vec::new()),
        };
        Some(Self {
            principal: capability.principal.as_ref().into(),
            table: table.0,
            rights: capability.rights.0.into(),
            expires_at_s: capability.expires_at_s,
            seal: capability.seal.to_vec(),
            all_kernels,
            kernels,
        })
    }

    /// The capability; its seal is verified by whoever takes it.
    ///
    /// # Errors
    /// `Denied` for what no capability can be.
    pub fn unpack(&self) -> Result<Capability> {
        let digest = |bytes: &Vec<u8>| <[u8; 32]>::try_from(bytes.as_slice()).ok();
        let digests: Option<Vec<_>> = self.kernels.iter().map(digest).collect();
        let parts = digests
            .zip(digest(&self.seal))
            .zip(u8::try_from(self.rights).ok());
        let Some(((digests, seal), rights)) = parts else {
            return Err(StorageError::Denied("what came is no capability".into()));
        };
        Ok(Capability {
            principal: self.principal.as_str().into(),
            of: Subject::Table(TableId(self.table)),
            rights: Rights(rights),
            kernels: match (self.all_kernels, digests.is_empty()) {
                (true, _) => KernelRights::All,
                (false, true) => KernelRights::None,
                (false, false) => KernelRights::These(digests.into()),
            },
            expires_at_s: self.expires_at_s,
            seal,
        })
    }
}

// The seal is a secret: whoever logs a command shall not log a means to make another.
impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capability")
            .field("principal", &self.principal)
            .field("of", &self.of)
            .field("rights", &self.rights)
            .field("kernels", &self.kernels)
            .field("expires_at_s", &self.expires_at_s)
            .finish_non_exhaustive()
    }
}

/// What seals and verifies: shared by a front end and its nodes.
#[derive(Clone)]
pub struct CapabilityKey(Hmac<Sha256>);

impl fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CapabilityKey")
    }
}

/// Bytes that nobody can foresee.
///
/// # Panics
/// When the system has no random numbers, without which nothing can be protected.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: the pointer and the length are those of `bytes`.
    let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    assert_eq!(filled, N as isize, "the system's random numbers");
    bytes
}

impl CapabilityKey {
    /// A key from 32 secret bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self(Hmac::new_from_slice(secret).expect("HMAC takes keys of any length"))
    }

    /// A key that nobody knows.
    pub fn random() -> Self {
        Self::new(&random_bytes())
    }

    /// States what `principal` may do with something, and with which kernels, for as long as
    /// `valid` from now.
    pub fn seal(
        &self,
        principal: Arc<str>,
        of: impl Into<Subject>,
        rights: Rights,
        kernels: KernelRights,
        valid: Duration,
    ) -> Capability {
        let mut capability = Capability {
            principal,
            of: of.into(),
            rights,
            kernels,
            expires_at_s: now_s().saturating_add(valid.as_secs()),
            seal: [0; 32],
        };
        capability.seal = self.mac(&capability).finalize().into_bytes().into();
        capability
    }

    /// Verifies that `capability` was sealed with this key, is `of` this, has `right` and has not
    /// expired.
    ///
    /// # Errors
    /// `Denied` with what does not hold.
    pub fn verify(&self, capability: &Capability, of: &Subject, right: Right) -> Result<()> {
        let denied = |why: String| Err(StorageError::Denied(why));
        let principal = &capability.principal;
        // Nothing that an unsealed statement says is worth a look, so the seal comes first.
        if self
            .mac(capability)
            .verify((&capability.seal).into())
            .is_err()
        {
            return denied(format!(
                "the capability of '{principal}' was not sealed by this node's front end"
            ));
        }
        if capability.of != *of {
            return denied(format!(
                "the capability of '{principal}' is of {}, not of {of}",
                capability.of
            ));
        }
        if !capability.rights.has(right) {
            return denied(format!("'{principal}' may not {right} {of}"));
        }
        if capability.expires_at_s < now_s() {
            return denied(format!(
                "the capability of '{principal}' has expired; run the query again"
            ));
        }
        Ok(())
    }

    fn mac(&self, capability: &Capability) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        // No two statements are the same bytes: what has no length before it goes last.
        capability.of.seal(&mut mac);
        mac.update(&[capability.rights.0]);
        mac.update(&capability.expires_at_s.to_le_bytes());
        capability.kernels.seal(&mut mac);
        mac.update(capability.principal.as_bytes());
        mac
    }
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = TableId(3);
    const OTHER: TableId = TableId(4);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_was_sealed_holds_and_nothing_else() {
        let key = CapabilityKey::new(&[7; 32]);
        let read = Rights::default().with(Right::Read);
        let good = key.seal("ada".into(), TABLE, read, KernelRights::None, HOUR);
        key.verify(&good, &TABLE.into(), Right::Read).unwrap();
        for (why, capability, table, right) in [
            ("another table", good.clone(), OTHER, Right::Read),
            ("another right", good.clone(), TABLE, Right::Write),
            (
                "raised rights",
                Capability {
                    rights: Rights::all(),
                    ..good.clone()
                },
                TABLE,
                Right::Write,
            ),
            (
                "moved to a table",
                Capability {
                    of: OTHER.into(),
                    ..good.clone()
                },
                OTHER,
                Right::Read,
            ),
            (
                "more kernels",
                Capability {
                    kernels: KernelRights::All,
                    ..good.clone()
                },
                TABLE,
                Right::Read,
            ),
            (
                "another principal",
                Capability {
                    principal: "eve".into(),
                    ..good.clone()
                },
                TABLE,
                Right::Read,
            ),
            (
                "a longer life",
                Capability {
                    expires_at_s: good.expires_at_s + 1,
                    ..good.clone()
                },
                TABLE,
                Right::Read,
            ),
            (
                "another key",
                CapabilityKey::new(&[8; 32]).seal(
                    "ada".into(),
                    TABLE,
                    read,
                    KernelRights::None,
                    HOUR,
                ),
                TABLE,
                Right::Read,
            ),
        ] {
            let result = key.verify(&capability, &table.into(), right);
            assert!(matches!(result, Err(StorageError::Denied(_))), "{why}");
        }
    }

    #[test]
    fn it_expires() {
        let key = CapabilityKey::new(&[7; 32]);
        let mut old = key.seal("ada".into(), TABLE, Rights::all(), KernelRights::All, HOUR);
        old.expires_at_s = now_s() - 1;
        old.seal = key.mac(&old).finalize().into_bytes().into();
        let error = key.verify(&old, &TABLE.into(), Right::Read).unwrap_err();
        assert!(error.to_string().contains("expired"), "{error}");
    }
}

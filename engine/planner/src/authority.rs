//! What a session may do, as the store wants it stated.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::common::Result;
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::{Capability, Right};
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::table::TableSnapshot;

use crate::error::from_storage;

/// Decides what a session may do with tables and seals it for the storage node.
pub trait Authority: Debug + Send + Sync {
    /// What may be done with `table`, which may be nothing.
    fn capability(&self, table: &TableSnapshot) -> Arc<Capability>;

    /// Whether the function of this name, a user's kernel, may be used.
    fn may_use(&self, function: &str) -> bool;
}

/// Whoever holds the node may do everything.
impl Authority for StorageNode {
    fn capability(&self, table: &TableSnapshot) -> Arc<Capability> {
        self.owner_capability(table)
    }

    fn may_use(&self, _: &str) -> bool {
        true
    }
}

/// Refuses what `capability` does not allow before anything is planned on it. (The node refuses
/// it too.)
pub(crate) fn check(capability: &Capability, right: Right, table: &TableSnapshot) -> Result<()> {
    match capability.rights.has(right) {
        true => Ok(()),
        false => Err(from_storage(StorageError::Denied(format!(
            "user '{}' may not {right} {}",
            capability.principal, table.name
        )))),
    }
}

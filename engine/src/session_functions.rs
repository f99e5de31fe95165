//! The functions of users that a session knows: those that the database has, as far as its user may
//! use them.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::prelude::SessionContext;
use flashmesh_planner::kernels::{aggregate_function, scalar_function};
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::table::Database;
use parking_lot::Mutex;

use crate::grants::Principal;

/// The users' functions that a session's context knows, as of some version of the catalog.
#[derive(Debug, Default)]
pub(crate) struct SessionFunctions(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    version: Option<u64>,
    /// Digests by name.
    functions: HashMap<String, [u8; 32]>,
}

impl SessionFunctions {
    /// Makes the context know the functions that other sessions have made, and forget those that
    /// they have dropped.
    pub fn update(
        &self,
        context: &SessionContext,
        database: &Database,
        node: &StorageNode,
        principal: &Principal,
    ) {
        let version = database.functions_version();
        let mut known = self.0.lock();
        if known.version == Some(version) {
            return;
        }
        let Some(kernels) = node.kernels() else {
            return;
        };
        let forget = |name: &str| {
            context.deregister_udf(name);
            context.deregister_udaf(name);
        };
        let functions = kernels.functions();
        let usable = functions
            .iter()
            .filter(|function| principal.may_use(&function.entry.name));
        let mut now = HashMap::new();
        for function in usable {
            let entry = &function.entry;
            // The same package may call others than before.
            let digest = entry.digest_with_callees();
            now.insert(entry.name.clone(), digest);
            if known.functions.get(&entry.name) == Some(&digest) {
                continue;
            }
            forget(&entry.name);
            if let Some(scalar) = scalar_function(Arc::clone(function), Arc::clone(kernels)) {
                context.register_udf(scalar);
            }
            if let Some(aggregate) = aggregate_function(Arc::clone(function), Arc::clone(kernels)) {
                context.register_udaf(aggregate);
            }
        }
        for name in known
            .functions
            .keys()
            .filter(|name| !now.contains_key(*name))
        {
            forget(name);
        }
        *known = Known {
            version: Some(version),
            functions: now,
        };
    }
}

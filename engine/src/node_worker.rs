//! What runs parts of plans on the nodes of a rack that are not its head.

use std::sync::Arc;

use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use flashmesh_cluster::mesh::Streams;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::store::NodeId;
use tempfile::TempDir;

use crate::distributed::{WorkerParts, Workers};
use crate::error::Result;
use crate::memory::StorageMemory;
use crate::resources::{
    memory_limit, memory_pool, session_config, spill_files, temporary_folder, temporary_folder_in,
    threads,
};
use crate::session::EngineOptions;
use crate::stores::NoStores;

/// Runs parts of plans on a node of a rack that is not the head, until it is dropped.
#[derive(Debug)]
pub struct NodeWorker {
    _workers: Arc<Workers>,
    // Removed after what spills.
    _spill: TempDir,
}

impl NodeWorker {
    /// Memory, spill files and threads are as `options` have them for an engine.
    ///
    /// # Errors
    /// [`crate::Error::Io`] when no temporary folder can be made; when somebody does it on this mesh.
    pub fn start(
        options: &EngineOptions,
        storage: &Arc<StorageNode>,
        streams: Streams,
        own: NodeId,
        nodes: Vec<NodeId>,
    ) -> Result<Self> {
        let folder = options.spill_folder.clone();
        let spill = temporary_folder_in(&folder.unwrap_or_else(temporary_folder))?;
        let memory_limit = memory_limit(options.memory_limit_bytes);
        let pool = memory_pool(memory_limit);
        let of_kernels = StorageMemory::new(&pool, "kernels");
        storage.run_shipped_kernels(options.kernels.clone(), Arc::new(of_kernels));
        let memory = RuntimeEnvBuilder::new()
            .with_memory_pool(pool)
            .with_disk_manager_builder(spill_files(spill.path(), options.spill_limit_bytes))
            .with_object_store_registry(Arc::new(NoStores))
            .build_arc()?;
        let threads = threads(options.threads);
        let parts = WorkerParts {
            own,
            nodes,
            streams,
            storage: Arc::clone(storage),
            memory,
            memory_limit,
            threads,
        };
        let workers = Workers::start(parts, session_config(threads, memory_limit)?)?;
        Ok(Self {
            _workers: workers,
            _spill: spill,
        })
    }
}

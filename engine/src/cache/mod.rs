//! What external files have in the database's flash: the session's object stores, with blocks of
//! their objects cached.
//!
//! A read is answered from the cache only where the statement itself has learnt which version of the
//! object is present, from a listing or a HEAD request of its own; where it has not, one is made. So
//! whoever reads through the cache has just been admitted by the store, and nothing is stale.
//! Everything else passes through.

mod read;
mod store;

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::error::Result as DataFusionResult;
use datafusion::execution::object_store::ObjectStoreRegistry;
use flashmesh_storage::block_cache::{BlockCache, ObjectVersion};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use url::{Position, Url};

use read::Fetches;
use store::CachedStore;

/// Requests for missing blocks at once, of all sessions.
const MAX_REQUESTS: usize = 64;
/// What a session knows of versions is forgotten when it is so much.
const MAX_SEEN: usize = 1 << 20;

/// The cache that sessions share.
#[derive(Debug)]
pub(crate) struct ExternalCache {
    blocks: Arc<BlockCache>,
    /// Files of this machine are cached too.
    local_files: bool,
    fetches: Fetches,
    requests: Semaphore,
}

impl ExternalCache {
    pub fn new(blocks: &Arc<BlockCache>, local_files: bool) -> Arc<Self> {
        Arc::new(Self {
            blocks: Arc::clone(blocks),
            local_files,
            fetches: Fetches::default(),
            requests: Semaphore::new(MAX_REQUESTS),
        })
    }
}

/// The stores that a session reaches, through the cache.
#[derive(Debug)]
pub(crate) struct CachedStores {
    stores: Arc<dyn ObjectStoreRegistry>,
    cache: Arc<ExternalCache>,
    seen: Arc<Seen>,
}

impl CachedStores {
    pub fn new(stores: &Arc<dyn ObjectStoreRegistry>, cache: &Arc<ExternalCache>) -> Self {
        Self {
            stores: Arc::clone(stores),
            cache: Arc::clone(cache),
            seen: Arc::default(),
        }
    }

    /// Forgets what earlier statements of the session have learnt.
    pub fn start_statement(&self) {
        self.seen.0.lock().clear();
        self.cache.blocks.start_statement();
    }
}

impl ObjectStoreRegistry for CachedStores {
    fn register_store(
        &self,
        url: &Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        self.stores.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> DataFusionResult<Arc<dyn ObjectStore>> {
        self.stores.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> DataFusionResult<Arc<dyn ObjectStore>> {
        let store = self.stores.get_store(url)?;
        if url.scheme() == "file" && !self.cache.local_files {
            return Ok(store);
        }
        Ok(Arc::new(CachedStore {
            inner: store,
            name: name_of(url).into(),
            cache: Arc::clone(&self.cache),
            seen: Arc::clone(&self.seen),
        }))
    }
}

/// What a store is called in the cache: the URL's scheme, host and port, and where S3 is, if it is
/// not at Amazon. No user and no password.
fn name_of(url: &Url) -> String {
    let host = &url[Position::BeforeHost..Position::AfterPort];
    let name = format!("{}://{host}", url.scheme());
    if !matches!(url.scheme(), "s3" | "s3a") {
        return name;
    }
    let variables = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let endpoint = variables.iter().find_map(|name| std::env::var(name).ok());
    let endpoint = endpoint.and_then(|endpoint| Url::parse(&endpoint).ok());
    match endpoint {
        Some(at) => format!(
            "{name} at {}",
            &at[Position::BeforeHost..Position::AfterPort]
        ),
        None => name,
    }
}

/// The versions of objects that a session's present statement has seen, by store and path.
#[derive(Debug, Default)]
struct Seen(Mutex<HashMap<(Arc<str>, Path), ObjectMeta>>);

impl Seen {
    fn get(&self, store: &Arc<str>, path: &Path) -> Option<ObjectMeta> {
        let key = (Arc::clone(store), path.clone());
        self.0.lock().get(&key).cloned()
    }

    fn put(&self, store: &Arc<str>, meta: ObjectMeta) {
        let mut seen = self.0.lock();
        if seen.len() >= MAX_SEEN {
            seen.clear();
        }
        seen.insert((Arc::clone(store), meta.location.clone()), meta);
    }

    fn remove(&self, store: &Arc<str>, path: &Path) {
        self.0.lock().remove(&(Arc::clone(store), path.clone()));
    }
}

/// The ETag, if equal ones mean equal bytes.
fn strong_tag(meta: &ObjectMeta) -> Option<&String> {
    meta.e_tag.as_ref().filter(|tag| !tag.starts_with("W/"))
}

fn version_of(meta: &ObjectMeta) -> ObjectVersion {
    ObjectVersion {
        size: meta.size,
        e_tag: strong_tag(meta).cloned(),
        version: meta.version.clone(),
        modified_ns: meta.last_modified.timestamp_nanos_opt().unwrap_or_default(),
    }
}

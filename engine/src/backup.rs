//! Backups: `BACKUP DATABASE TO`, and the places that they go to.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use datafusion::dataframe::DataFrame;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::object_store::ObjectStoreRegistry;
use flashmesh_storage::StorageError;
use flashmesh_storage::table::{self, Backup, BackupFiles, BackupFolder, BackupProgress};
use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::Session;
use crate::blocking::blocking;
use crate::error::Result;
use crate::own_statement::BackupStatement;
use crate::stores::NamedStores;

impl Session {
    /// Runs `BACKUP DATABASE`.
    pub(crate) async fn execute_backup(&self, statement: BackupStatement) -> Result<DataFrame> {
        self.back_up(statement, |_| ()).await?;
        self.nothing()
    }

    /// Backs the database up; see
    /// [`Database::backup`](flashmesh_storage::table::Database::backup).
    ///
    /// # Errors
    /// [`Error::Denied`](crate::Error::Denied) unless the user is an admin; as [`backups`]. Dropping the future ends it.
    pub(crate) async fn back_up(
        &self,
        statement: BackupStatement,
        mut progress: impl FnMut(BackupProgress) + Send + 'static,
    ) -> Result<Backup> {
        self.principal().check_admin("back the database up")?;
        // Not through the cache: a backup's own files are read to be sure of what is there.
        let stores = Arc::clone(self.engine().object_stores());
        let files = place(&statement.to, stores.as_ref())?;
        let capability = self.catalog().authority().of_name("*", "*");
        let changes = self.changes();
        let gone = CancellationToken::new();
        let _gone = gone.clone().drop_guard();
        let mut progress = move |now| {
            progress(now);
            match gone.is_cancelled() {
                true => Err(StorageError::Cancelled),
                false => Ok(()),
            }
        };
        let keep = statement.keep;
        blocking(move || changes.backup(&capability, files.as_ref(), keep, &mut progress)).await
    }
}

/// The backups of a folder, or of a URL in an object store, oldest first.
///
/// # Errors
/// [`Error::Usage`](crate::Error::Usage) for URLs of other kinds;
/// [`Error::Storage`](crate::Error::Storage), see [`backups`](flashmesh_storage::table::backups).
pub async fn backups(from: &str) -> Result<Vec<Backup>> {
    let files = place(from, &NamedStores::default())?;
    blocking(move || table::backups(files.as_ref())).await
}

/// Makes a database in `folder` from a backup; see [`restore`](flashmesh_storage::table::restore).
///
/// # Errors
/// As [`backups`].
pub async fn restore(
    from: &str,
    number: Option<u32>,
    folder: &Path,
    mut progress: impl FnMut(BackupProgress) + Send + 'static,
) -> Result<Backup> {
    let files = place(from, &NamedStores::default())?;
    let folder = folder.to_path_buf();
    let mut progress = move |now| {
        progress(now);
        Ok(())
    };
    blocking(move || table::restore(files.as_ref(), number, &folder, &mut progress)).await
}

/// Reads and checks all pages of a backup; see
/// [`check_backup`](flashmesh_storage::table::check_backup).
///
/// # Errors
/// As [`backups`].
pub async fn check_backup(
    from: &str,
    number: Option<u32>,
    mut progress: impl FnMut(BackupProgress) + Send + 'static,
) -> Result<Backup> {
    let files = place(from, &NamedStores::default())?;
    let mut progress = move |now| {
        progress(now);
        Ok(())
    };
    blocking(move || table::check_backup(files.as_ref(), number, &mut progress)).await
}

/// The place of a path or a URL.
fn place(text: &str, stores: &dyn ObjectStoreRegistry) -> Result<Arc<dyn BackupFiles>> {
    match text.split_once("://") {
        None => Ok(Arc::new(BackupFolder::new(text))),
        Some(("file", path)) => Ok(Arc::new(BackupFolder::new(path))),
        Some(_) => {
            // With the slash it is a folder.
            let url = ListingTableUrl::parse(format!("{}/", text.trim_end_matches('/')))?;
            Ok(Arc::new(Bucket {
                store: stores.get_store(url.object_store().as_ref())?,
                prefix: url.prefix().clone(),
                name: text.into(),
                runtime: Handle::current(),
            }))
        }
    }
}

/// A part of an object store. Its calls block: they are made on threads that may.
struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    name: String,
    runtime: Handle,
}

impl Bucket {
    fn path(&self, name: &str) -> ObjectPath {
        self.prefix.clone().join(name)
    }

    fn failed(&self, doing: &str, name: &str, error: object_store::Error) -> StorageError {
        let name = match name {
            "" => self.name.clone(),
            name => format!("{}/{name}", self.name.trim_end_matches('/')),
        };
        let kind = "file";
        match error {
            object_store::Error::NotFound { .. } => StorageError::NotFound { kind, name },
            object_store::Error::AlreadyExists { .. } => StorageError::AlreadyExists { kind, name },
            error => StorageError::io(format!("{doing} {name}"), std::io::Error::other(error)),
        }
    }
}

impl BackupFiles for Bucket {
    fn list(&self) -> flashmesh_storage::Result<Vec<(String, u64)>> {
        let listed = self.store.list(Some(&self.prefix)).try_collect::<Vec<_>>();
        let listed = self.runtime.block_on(listed);
        let listed = listed.map_err(|e| self.failed("listing", "", e))?;
        let files = listed.into_iter().filter_map(|object| {
            let mut below = object.location.prefix_match(&self.prefix)?;
            let name = below.next()?.as_ref().to_string();
            below.next().is_none().then_some((name, object.size))
        });
        Ok(files.collect())
    }

    fn read(&self, name: &str, range: Range<u64>) -> flashmesh_storage::Result<Vec<u8>> {
        let path = self.path(name);
        let read = self.runtime.block_on(self.store.get_range(&path, range));
        let bytes = read.map_err(|e| self.failed("reading", name, e))?;
        Ok(bytes.into())
    }

    fn write(&self, name: &str, bytes: Vec<u8>) -> flashmesh_storage::Result<()> {
        let path = self.path(name);
        let payload = PutPayload::from(bytes);
        let new = PutOptions::from(PutMode::Create);
        let put = self.store.put_opts(&path, payload.clone(), new);
        let put = match self.runtime.block_on(put) {
            // Some stores can't tell; there two backups at once are not told from each other.
            Err(
                object_store::Error::NotImplemented { .. }
                | object_store::Error::NotSupported { .. },
            ) => self.runtime.block_on(self.store.put(&path, payload)),
            put => put,
        };
        put.map_err(|e| self.failed("writing", name, e))?;
        Ok(())
    }

    fn remove(&self, name: &str) -> flashmesh_storage::Result<()> {
        let path = self.path(name);
        match self.runtime.block_on(self.store.delete(&path)) {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            removed => removed.map_err(|e| self.failed("removing", name, e)),
        }
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_bucket_keeps_files() {
        let bucket = Bucket {
            store: Arc::new(InMemory::new()),
            prefix: ObjectPath::from("a/b"),
            name: "s3://x/a/b".into(),
            runtime: Handle::current(),
        };
        let inner = bucket.store.clone();
        let other = ObjectPath::from("a/bc/other");
        inner
            .put(&other, PutPayload::from_static(b"x"))
            .await
            .unwrap();
        let deep = ObjectPath::from("a/b/c/deep");
        inner
            .put(&deep, PutPayload::from_static(b"x"))
            .await
            .unwrap();
        blocking::<_, StorageError>(move || {
            assert!(bucket.list()?.is_empty());
            bucket.write("one", b"12345".to_vec())?;
            let again = bucket.write("one", b"6".to_vec()).unwrap_err();
            assert_eq!(again.to_string(), "file 's3://x/a/b/one' already exists");
            assert_eq!(bucket.list()?, [("one".to_string(), 5)]);
            assert_eq!(bucket.read("one", 1..4)?, b"234");
            assert!(matches!(
                bucket.read("two", 0..1),
                Err(StorageError::NotFound { .. })
            ));
            bucket.remove("one")?;
            bucket.remove("one")?;
            assert!(bucket.list()?.is_empty());
            Ok(())
        })
        .await
        .unwrap();
    }
}

//! An object store of which reads go through the cache.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use flashmesh_macros::async_impl;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result, UploadPart,
};

use super::read::{Object, parts_of};
use super::{ExternalCache, Seen, strong_tag, version_of};

/// An object without an ETag is not cached so soon after it was modified: its next version may have
/// the same size and, in whole seconds, the same time.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// A store, as a session has it.
#[derive(Debug, Clone)]
pub(super) struct CachedStore {
    pub inner: Arc<dyn ObjectStore>,
    /// What it is called in the cache.
    pub name: Arc<str>,
    pub cache: Arc<ExternalCache>,
    pub seen: Arc<Seen>,
}

impl fmt::Display for CachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl CachedStore {
    /// Notes which version is present, and gives it as DataFusion shall know it.
    fn note(&self, meta: ObjectMeta) -> ObjectMeta {
        let told = self.told(meta.clone());
        self.seen.put(&self.name, meta);
        told
    }

    /// DataFusion keeps what it has learnt of a file (the metadata of Parquet, statistics) by its path,
    /// for as long as its size and its time stay the same; a store's times are often in whole seconds.
    /// So the part of a second tells what else the version is known by: the ETag and the store.
    fn told(&self, mut meta: ObjectMeta) -> ObjectMeta {
        if let Some(tag) = strong_tag(&meta) {
            let part = meta.last_modified.timestamp_subsec_nanos();
            let mut hasher = DefaultHasher::new();
            (&self.name, tag, part).hash(&mut hasher);
            let told = Duration::from_nanos(hasher.finish() % 1_000_000_000);
            let whole = meta.last_modified - Duration::from_nanos(part.into());
            meta.last_modified = whole + told;
        }
        meta
    }

    /// The object, if it may be cached.
    async fn object(&self, location: &Path) -> Result<Option<Object>> {
        let meta = match self.seen.get(&self.name, location) {
            Some(meta) => meta,
            None => match self.inner.head(location).await {
                Ok(meta) => {
                    self.seen.put(&self.name, meta.clone());
                    meta
                }
                Err(error @ object_store::Error::NotFound { .. }) => return Err(error),
                // The request itself shall say it.
                Err(_) => return Ok(None),
            },
        };
        let is_named = strong_tag(&meta).is_some() || meta.version.is_some();
        let age = SystemTime::now().duration_since(meta.last_modified.into());
        if !is_named && age.is_ok_and(|age| age < SETTLED_AFTER) {
            return Ok(None);
        }
        let version = version_of(&meta);
        let blocks = &self.cache.blocks;
        let number = blocks.object(&self.name, location.as_ref(), &version);
        Ok(Some(Object {
            inner: Arc::clone(&self.inner),
            name: Arc::clone(&self.name),
            cache: Arc::clone(&self.cache),
            seen: Arc::clone(&self.seen),
            meta,
            version,
            number,
        }))
    }

    /// Drops what is cached of an object that is written.
    fn forget(&self, location: &Path) {
        self.seen.remove(&self.name, location);
        self.cache.blocks.forget(&self.name, location.as_ref());
    }
}

fn in_object(range: GetRange, size: u64) -> Result<Range<u64>> {
    let range = range.as_range(size);
    range.map_err(|error| object_store::Error::Generic {
        store: "cache",
        source: error.into(),
    })
}

#[async_impl]
impl ObjectStore for CachedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.forget(location);
        let put = self.inner.put_opts(location, payload, options).await;
        self.forget(location);
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.forget(location);
        let inner = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(Upload {
            inner,
            store: self.clone(),
            location: location.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let is_plain = options.if_match.is_none()
            && options.if_none_match.is_none()
            && options.if_modified_since.is_none()
            && options.if_unmodified_since.is_none()
            && options.version.is_none();
        if options.head || !is_plain {
            let mut result = self.inner.get_opts(location, options).await?;
            if is_plain {
                result.meta = self.note(result.meta);
            }
            return Ok(result);
        }
        let Some(object) = self.object(location).await? else {
            return self.inner.get_opts(location, options).await;
        };
        let size = object.meta.size;
        let range = match options.range {
            Some(range) => in_object(range, size)?,
            None => 0..size,
        };
        Ok(GetResult {
            meta: self.told(object.meta.clone()),
            payload: GetResultPayload::Stream(object.stream(range.clone())),
            range,
            attributes: Default::default(),
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let Some(object) = self.object(location).await? else {
            return self.inner.get_ranges(location, ranges).await;
        };
        let mut parts = Vec::new();
        let mut counts = Vec::with_capacity(ranges.len());
        for range in ranges {
            let range = in_object(GetRange::Bounded(range.clone()), object.meta.size)?;
            let before = parts.len();
            parts.extend(parts_of(range));
            counts.push(parts.len() - before);
        }
        let mut read = object.read(&parts).await?.into_iter();
        let joined = counts.into_iter().map(|count| match count {
            1 => read.next().unwrap_or_default(),
            _ => {
                let mut whole = BytesMut::new();
                read.by_ref()
                    .take(count)
                    .for_each(|part| whole.extend(part));
                whole.freeze()
            }
        });
        Ok(joined.collect())
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let deleted = self.inner.delete_stream(locations);
        let deleted = deleted.inspect_ok(move |location| store.forget(location));
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let listed = self.inner.list(prefix);
        listed.map_ok(move |meta| store.note(meta)).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let listed = self.inner.list_with_offset(prefix, offset);
        listed.map_ok(move |meta| store.note(meta)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        let objects = std::mem::take(&mut listed.objects).into_iter();
        listed.objects = objects.map(|meta| self.note(meta)).collect();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let copied = self.inner.copy_opts(from, to, options).await;
        self.forget(to);
        copied
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let renamed = self.inner.rename_opts(from, to, options).await;
        self.forget(from);
        self.forget(to);
        renamed
    }
}

/// An object that is written in parts.
#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    store: CachedStore,
    location: Path,
}

#[async_impl]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let completed = self.inner.complete().await;
        self.store.forget(&self.location);
        completed
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

//! Reading an object by blocks: from flash, from a request that is on its way already, or by a new
//! one.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use flashmesh_storage::block_cache::{BLOCK_BYTES, ObjectVersion};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, Result};
use parking_lot::Mutex;
use tokio::sync::watch::{self, Receiver, Sender};

use super::{ExternalCache, Seen, version_of};

/// Blocks that one request fetches at most (8 MiB): what a stream holds twice.
const MAX_REQUEST_BLOCKS: usize = 16;
/// A block that could not be had by others' requests is tried again so often.
const MAX_TRIES: usize = 10;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A part of a block.
pub(super) type Part = (u32, Range<usize>);

/// The parts of blocks that make a range.
pub(super) fn parts_of(range: Range<u64>) -> impl Iterator<Item = Part> {
    let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
    blocks.map(move |block| {
        let start = range.start.max(block * BLOCK) - block * BLOCK;
        let end = range.end.min((block + 1) * BLOCK) - block * BLOCK;
        (block as u32, start as usize..end as usize)
    })
}

/// What has become of a request, for one of its blocks.
#[derive(Debug, Clone)]
enum Fetched {
    NotYet,
    Block(Bytes),
    /// The first who asks takes the error; others try themselves.
    Failed(Arc<Mutex<Option<object_store::Error>>>),
}

/// The blocks that are on their way.
#[derive(Debug, Default)]
pub(super) struct Fetches(Mutex<HashMap<(u64, u32), Receiver<Fetched>>>);

/// An object in the version that a statement reads.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub inner: Arc<dyn ObjectStore>,
    pub name: Arc<str>,
    pub cache: Arc<ExternalCache>,
    pub seen: Arc<Seen>,
    pub meta: ObjectMeta,
    pub version: ObjectVersion,
    /// Its number in the cache.
    pub number: u64,
}

impl Object {
    /// The bytes of a range, one after the other. What is read ahead grows, as many readers want the
    /// beginning only.
    pub fn stream(self, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
        let windows = stream::unfold((range, 1), |(left, blocks)| async move {
            let end = (left.start / BLOCK + blocks as u64) * BLOCK;
            let window = left.start..end.min(left.end);
            let next = (window.end..left.end, (blocks * 2).min(MAX_REQUEST_BLOCKS));
            (!window.is_empty()).then_some((window, next))
        });
        let read = windows.map(move |window| {
            let object = self.clone();
            async move {
                let parts: Vec<_> = parts_of(window).collect();
                let read = object.read(&parts).await?;
                Ok::<_, object_store::Error>(stream::iter(read.into_iter().map(Ok)))
            }
        });
        read.buffered(2).try_flatten().boxed()
    }

    /// The bytes of parts of blocks.
    pub async fn read(&self, parts: &[Part]) -> Result<Vec<Bytes>> {
        let mut found: Vec<Option<Bytes>> = vec![None; parts.len()];
        for _ in 0..MAX_TRIES {
            self.take_cached(parts, &mut found).await?;
            let missing = parts.iter().zip(&found);
            let missing = missing.filter(|(_, found)| found.is_none());
            let missing: BTreeSet<u32> = missing.map(|((block, _), _)| *block).collect();
            for (block, mut fetch) in self.fetch(missing) {
                let fetched = match fetch.wait_for(|now| !matches!(now, Fetched::NotYet)).await {
                    Ok(fetched) => fetched.clone(),
                    Err(_) => continue,
                };
                match fetched {
                    Fetched::Block(bytes) => {
                        let wanted = parts.iter().zip(&mut found);
                        for ((_, part), found) in wanted.filter(|((b, _), _)| *b == block) {
                            *found = Some(bytes.slice(part.clone()));
                        }
                    }
                    Fetched::Failed(error) => {
                        if let Some(error) = error.lock().take() {
                            return Err(error);
                        }
                    }
                    Fetched::NotYet => {}
                }
            }
            if found.iter().all(Option::is_some) {
                break;
            }
        }
        let found: Option<Vec<Bytes>> = found.into_iter().collect();
        found.ok_or_else(|| failed("the requests of others for the same bytes have failed"))
    }

    /// Takes what the cache has.
    async fn take_cached(&self, parts: &[Part], found: &mut [Option<Bytes>]) -> Result<()> {
        let blocks = &self.cache.blocks;
        let wanted = (0usize..).zip(parts).filter(|(at, (block, _))| {
            let is_found: bool = found.get(*at).is_some_and(Option::is_some);
            !is_found && blocks.has(self.number, *block)
        });
        let (places, wanted): (Vec<usize>, Vec<Part>) =
            wanted.map(|(at, part)| (at, part.clone())).unzip();
        if wanted.is_empty() {
            return Ok(());
        }
        let (blocks, number) = (Arc::clone(blocks), self.number);
        let read = tokio::task::spawn_blocking(move || blocks.read(number, &wanted)).await;
        let read = read.map_err(|error| failed(error.to_string()))?;
        for (at, bytes) in places.into_iter().zip(read) {
            found[at] = bytes;
        }
        Ok(())
    }

    /// The requests for blocks: those that are on their way, or new ones, in which neighbours come
    /// together. A request runs by itself, whoever waits for it or does not any more.
    fn fetch(&self, missing: BTreeSet<u32>) -> Vec<(u32, Receiver<Fetched>)> {
        let mut fetches = Vec::with_capacity(missing.len());
        let mut runs: Vec<Vec<(u32, Sender<Fetched>)>> = Vec::new();
        let mut on_their_way = self.cache.fetches.0.lock();
        for block in missing {
            if let Some(fetch) = on_their_way.get(&(self.number, block)) {
                fetches.push((block, fetch.clone()));
                continue;
            }
            // It has come meanwhile.
            if self.cache.blocks.has(self.number, block) {
                continue;
            }
            let (sender, fetch) = watch::channel(Fetched::NotYet);
            on_their_way.insert((self.number, block), fetch.clone());
            fetches.push((block, fetch));
            match runs.last_mut() {
                Some(run)
                    if run.len() < MAX_REQUEST_BLOCKS
                        && run.last().is_some_and(|(last, _)| last + 1 == block) =>
                {
                    run.push((block, sender));
                }
                _ => runs.push(vec![(block, sender)]),
            }
        }
        drop(on_their_way);
        for senders in runs {
            let request = Request {
                object: self.clone(),
                senders,
            };
            tokio::spawn(request.run());
        }
        fetches
    }
}

/// A request for neighbouring blocks. What waits for it is told when it is dropped at the latest.
struct Request {
    object: Object,
    senders: Vec<(u32, Sender<Fetched>)>,
}

impl Request {
    async fn run(self) {
        let fetched = self.get().await;
        let object = &self.object;
        match fetched {
            Ok(bytes) => {
                for (number, (block, sender)) in self.senders.iter().enumerate() {
                    let start = number * BLOCK_BYTES;
                    let bytes = bytes.slice(start..bytes.len().min(start + BLOCK_BYTES));
                    object.cache.blocks.insert(object.number, *block, &bytes);
                    let _ = sender.send(Fetched::Block(bytes));
                }
            }
            Err(error) => {
                let error = Arc::new(Mutex::new(Some(error)));
                for (_, sender) in &self.senders {
                    let _ = sender.send(Fetched::Failed(Arc::clone(&error)));
                }
            }
        }
    }

    async fn get(&self) -> Result<Bytes> {
        let Object {
            inner,
            name,
            cache,
            seen,
            meta,
            version,
            ..
        } = &self.object;
        let _permit = cache.requests.acquire().await;
        let first = self.senders.first().map_or(0, |(block, _)| *block);
        let start = u64::from(first) * BLOCK;
        let end = meta.size.min(start + self.senders.len() as u64 * BLOCK);
        let range = GetRange::Bounded(start..end);
        let options = GetOptions::new().with_range(Some(range));
        let result = inner.get_opts(&meta.location, options).await?;
        if !version_of(&result.meta).is(version) {
            seen.remove(name, &meta.location);
            cache.blocks.forget(name, meta.location.as_ref());
            return Err(object_store::Error::Precondition {
                path: meta.location.to_string(),
                source: "it was changed while it was read; run the statement again".into(),
            });
        }
        let bytes = result.bytes().await?;
        match bytes.len() as u64 == end - start {
            true => Ok(bytes),
            false => Err(failed(format!(
                "{}: bytes {start} to {end} were asked for, and {} came",
                meta.location,
                bytes.len()
            ))),
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut on_their_way = self.object.cache.fetches.0.lock();
        for (block, _) in &self.senders {
            on_their_way.remove(&(self.object.number, *block));
        }
    }
}

fn failed(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic {
        store: "cache",
        source: what.into(),
    }
}

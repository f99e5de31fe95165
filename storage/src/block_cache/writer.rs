//! The cache's thread: it makes room, writes regions, and says on disk now and then what there is.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::index::{self, BlockRecord, IndexRecord, ObjectRecord, RegionRecord};
use super::region::{Gathered, Region, encode, new_identity};
use super::state::{BlockKey, Place, Queue, State};
use super::{INDEX_FILE, Shared};
use crate::store::PageRun;
use crate::{Result, StorageError};

/// The index is written so often at most.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// Erase blocks that stay free for tables: one in so many.
const FREE_SHARE: u64 = 16;
/// What stays free of the file system that the card lies on: this, or a twentieth where that is less.
const FREE_DISK_BYTES: u64 = 1 << 30;

impl Shared {
    /// What the thread does.
    pub(super) fn run(&self) {
        let mut saved = Instant::now();
        loop {
            let mut state = self.state.lock();
            let next = loop {
                if let Some(next) = state.full.pop_front() {
                    state.is_busy = true;
                    break Some(next);
                }
                self.idle.notify_all();
                let is_due = state.is_changed && saved.elapsed() >= SAVE_EVERY;
                if state.is_closed || is_due {
                    break None;
                }
                match state.is_changed {
                    true => {
                        self.work.wait_for(&mut state, SAVE_EVERY);
                    }
                    false => self.work.wait(&mut state),
                }
            };
            let is_closed = state.is_closed;
            drop(state);
            if let Some((queue, gathered)) = &next {
                if let Err(error) = self.write(*queue, gathered) {
                    log::warn!("writing to the cache: {error}");
                    self.state.lock().not_written(gathered);
                }
                self.state.lock().is_busy = false;
            }
            if saved.elapsed() >= SAVE_EVERY || (is_closed && next.is_none()) {
                self.save();
                saved = Instant::now();
            }
            if is_closed && next.is_none() {
                self.idle.notify_all();
                return;
            }
        }
    }

    /// Writes a region, in the place of others if there is no more room.
    fn write(&self, queue: Queue, gathered: &Gathered) -> Result<()> {
        loop {
            let is_full = {
                let state = self.state.lock();
                state.regions.len() >= state.capacity_regions
            };
            let is_short = self.is_short();
            if !is_full && !is_short {
                break;
            }
            if !self.evict() {
                let why = "there is no room that tables do not need".to_string();
                return Err(StorageError::Invalid(why));
            }
        }
        let pages = self.state.lock().region_pages;
        let identity = new_identity(self.generation()?);
        let mut writer = self.store.writer()?;
        let first = writer.append(encode(gathered, pages, &identity))?;
        writer.finish()?.keep();
        let run = PageRun {
            first,
            count: pages,
            identity,
            label: "cache of external files".into(),
            part: None,
        };
        let region = Region::new(run, &self.store);
        self.state.lock().written(queue, gathered, region);
        Ok(())
    }

    /// A number that no page of an earlier life carries.
    fn generation(&self) -> Result<u32> {
        if let Some(generation) = self.generation.get() {
            return Ok(*generation);
        }
        let Some(next) = self.generations.get() else {
            return Err(StorageError::Invalid("the cache was not started".into()));
        };
        let generation = next()?;
        Ok(*self.generation.get_or_init(|| generation))
    }

    /// Whether tables may soon need the room.
    fn is_short(&self) -> bool {
        self.store.is_short_of_blocks()
            || self.store.free_blocks() < self.erase_blocks / FREE_SHARE
            || (self.is_file && disk_is_low(&self.folder))
    }

    /// Takes out the region that goes next, but for what of it was used, which is written again with
    /// others: half of it at most, so that room is gained. FALSE when there is none.
    fn evict(&self) -> bool {
        let (region, queue, used) = {
            let state = self.state.lock();
            let Some(next) = state.next_to_go() else {
                return false;
            };
            let kept = &state.regions[&next];
            let used = match state.is_closed {
                true => Vec::new(),
                false => used_blocks(&state, next),
            };
            (Arc::clone(&kept.region), (next, kept.queue), used)
        };
        let mut stay: Vec<(BlockKey, Bytes, u8)> = Vec::new();
        if !used.is_empty()
            && let Ok(mut reader) = self.store.reader()
        {
            for (key, page, length, uses) in used {
                if let Ok(bytes) = region.read(&mut reader, page, length, 0..length) {
                    stay.push((key, bytes, uses));
                }
            }
        }
        drop(region);
        let (number, from) = queue;
        let mut state = self.state.lock();
        for (key, bytes, uses) in stay {
            // It may be gone by now, or elsewhere.
            if !state.is_in(key, number) {
                continue;
            }
            let object = state.objects.get_mut(&key.0);
            if let Some(block) = object.and_then(|object| object.blocks.get_mut(&key.1)) {
                block.place = Place::Memory(bytes.clone());
                block.uses = match from {
                    Queue::Small => 0,
                    Queue::Main => uses - 1,
                };
                state.gather(Queue::Main, key, bytes);
            }
        }
        let gone = state.evict(number);
        drop(state);
        drop(gone);
        true
    }

    /// Says on disk what there is.
    fn save(&self) {
        let record = {
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.is_changed) {
                return;
            }
            record_of(&state)
        };
        if let Err(error) = index::write(&self.folder, &record) {
            log::warn!("{}: {error}", self.folder.join(INDEX_FILE).display());
        }
    }
}

/// Blocks of a region that were used, the most used first, up to half of its pages.
fn used_blocks(state: &State, region: u64) -> Vec<(BlockKey, u32, usize, u8)> {
    let kept = &state.regions[&region];
    let used = kept.blocks.iter().filter_map(|key| {
        let block = state.objects.get(&key.0)?.blocks.get(&key.1)?;
        match block.place {
            Place::Flash(number, page) if number == region && block.uses > 0 => {
                Some((*key, page, block.length as usize, block.uses))
            }
            _ => None,
        }
    });
    let mut used: Vec<_> = used.collect();
    used.sort_by_key(|(.., uses)| std::cmp::Reverse(*uses));
    let mut left = state.region_pages as usize / 2;
    used.retain(|(_, _, length, _)| {
        let pages = super::region::pages_of(*length);
        let fits = pages <= left;
        left -= if fits { pages } else { 0 };
        fits
    });
    used
}

fn record_of(state: &State) -> IndexRecord {
    let mut record = IndexRecord::default();
    let mut places = hashbrown::HashMap::new();
    for number in state.small.iter().chain(&state.main) {
        let kept = &state.regions[number];
        let run = &kept.region.run;
        places.insert(*number, record.regions.len() as u32);
        record.regions.push(RegionRecord {
            first_page: run.first.page.0,
            generation: run.identity.generation,
            segment: run.identity.segment,
            column_group: run.identity.column_group.into(),
            is_main: kept.queue == Queue::Main,
        });
    }
    for object in state.objects.values() {
        let blocks = object.blocks.iter().filter_map(|(number, block)| {
            let Place::Flash(region, page) = block.place else {
                return None;
            };
            Some(BlockRecord {
                block: *number,
                region: *places.get(&region)?,
                page,
                bytes: block.length,
                uses: block.uses.into(),
            })
        });
        let blocks: Vec<_> = blocks.collect();
        if blocks.is_empty() {
            continue;
        }
        let version = &object.version;
        record.objects.push(ObjectRecord {
            store: object.name.0.clone(),
            path: object.name.1.clone(),
            size: version.size,
            e_tag: version.e_tag.clone(),
            version: version.version.clone(),
            modified_ns: version.modified_ns,
            hits: object.hits,
            misses: object.misses,
            used_at_us: object.used_at_us,
            blocks,
        });
    }
    record
}

/// Whether the file system has next to no room left.
fn disk_is_low(folder: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(folder.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: `statvfs` is plain numbers, for which zeros are valid.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and `found` is written within its size.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } != 0 {
        return false;
    }
    #[allow(
        clippy::useless_conversion,
        reason = "they are narrower on other systems"
    )]
    let (free, all, unit) = (
        u64::from(found.f_bavail),
        u64::from(found.f_blocks),
        u64::from(found.f_frsize),
    );
    let kept = (all.saturating_mul(unit) / 20).min(FREE_DISK_BYTES);
    free.saturating_mul(unit) < kept
}

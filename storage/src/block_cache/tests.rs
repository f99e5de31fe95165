//! The cache against what was put into it, with tables beside it, evictions, faults and restarts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use super::*;
use crate::flash::{FaultFlash, FaultOptions, MemoryFlash, PageBuffer, When};
use crate::page::{PageIdentity, bytes_page};
use crate::store::{PageAddress, PageRun};

fn seeds(count: usize) -> Vec<u64> {
    let given = std::env::var("FLASHMESH_TEST_SEED").ok();
    let given = given.map(|seed| seed.parse().expect("a seed is a number"));
    let seeds: Vec<u64> = match given {
        Some(seed) => vec![seed],
        None => (0..count).map(|_| rand::random()).collect(),
    };
    println!("FLASHMESH_TEST_SEED={seeds:?}");
    seeds
}

/// What a block of an object in a version is.
fn content(object: usize, version: u64, block: u32, length: usize) -> Vec<u8> {
    let name = [object as u64, version, u64::from(block)];
    let mut bytes = vec![block as u8; length];
    // In each page, as builds without optimisation take long for more.
    for (number, part) in bytes.chunks_mut(1000).enumerate() {
        for (byte, name) in part.iter_mut().zip(
            name.iter()
                .chain([&(number as u64)])
                .flat_map(|n| n.to_le_bytes()),
        ) {
            *byte = name;
        }
    }
    bytes
}

fn version(number: u64) -> ObjectVersion {
    ObjectVersion {
        size: 1 << 30,
        e_tag: Some(format!("\"{number}\"")),
        version: None,
        modified_ns: 0,
    }
}

/// A database as far as the cache sees it: a card, a folder, runs of pages of tables.
struct Rig {
    folder: TempDir,
    card: Arc<MemoryFlash>,
    faulty: Arc<FaultFlash>,
    store: Arc<PageStore>,
    cache: Option<Arc<BlockCache>>,
    tables: Vec<PageRun>,
    generation: Arc<AtomicU32>,
    geometry: Geometry,
    bytes: u64,
}

impl Rig {
    fn new(pages_per_erase_block: u32, pages: u64, bytes: u64) -> Self {
        let geometry = Geometry {
            pages_per_erase_block,
            erase_blocks: pages / u64::from(pages_per_erase_block),
        };
        let card = Arc::new(MemoryFlash::new(geometry, 1));
        let faulty = Arc::new(FaultFlash::new(card.clone(), FaultOptions::default()));
        let store = PageStore::open(faulty.clone(), 1 << 20, []).unwrap();
        let mut rig = Self {
            folder: TempDir::new().unwrap(),
            card,
            faulty,
            store,
            cache: None,
            tables: Vec::new(),
            generation: Arc::new(AtomicU32::new(1)),
            geometry,
            bytes,
        };
        rig.open();
        rig
    }

    fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens card and cache as a database does.
    fn open(&mut self) {
        self.faulty = Arc::new(FaultFlash::new(self.card.clone(), FaultOptions::default()));
        let live: Vec<_> = self
            .tables
            .iter()
            .map(|run| (run.first, run.count))
            .collect();
        let index = CacheIndex::load(self.folder.path(), &self.geometry, live.iter().copied());
        let all: Vec<_> = live.into_iter().chain(index.runs()).collect();
        self.store = PageStore::open(self.faulty.clone(), 1 << 20, all).unwrap();
        let folder = self.folder.path();
        let cache = BlockCache::open(
            &self.store,
            &self.geometry,
            folder,
            false,
            self.bytes,
            index,
        );
        let cache = cache.unwrap();
        let generation = Arc::clone(&self.generation);
        cache.start(move || Ok(generation.fetch_add(1, Ordering::Relaxed)));
        self.cache = Some(cache);
    }

    fn cache(&self) -> &BlockCache {
        self.cache.as_deref().unwrap()
    }

    fn close(&mut self) {
        self.cache.take().unwrap().close();
        self.store.sync().unwrap();
    }

    /// The power fails: the index is that of the last closing.
    fn crash(&mut self) {
        let index = self.folder.path().join(INDEX_FILE);
        let before = std::fs::read(&index).ok();
        self.store.sync().unwrap();
        self.faulty.cut_power().unwrap();
        self.cache.take().unwrap().close();
        match before {
            Some(bytes) => std::fs::write(&index, bytes).unwrap(),
            None => drop(std::fs::remove_file(&index)),
        }
    }

    /// Writes a run of a table.
    fn write_table(&mut self, pages: u32) {
        let identity = PageIdentity {
            table: 1,
            segment: self.tables.len() as u32,
            column_group: 0,
            page: 0,
            generation: self.next_generation(),
        };
        let buffers = (0..pages as u16).map(|page| table_page(&identity, page));
        let mut writer = self.store.writer().unwrap();
        let Ok(first) = writer.append(buffers.collect()) else {
            return;
        };
        writer.finish().unwrap().keep();
        self.store.sync().unwrap();
        self.tables.push(PageRun {
            first,
            count: pages,
            identity,
            label: "table".into(),
            part: None,
        });
    }

    fn check_tables(&self) {
        let mut reader = self.store.reader().unwrap();
        reader.bypass_cache();
        for run in &self.tables {
            for page in 0..run.count {
                reader.get(run, page).unwrap();
            }
        }
    }
}

fn table_page(identity: &PageIdentity, page: u16) -> PageBuffer {
    bytes_page(&[page as u8; 100], &PageIdentity { page, ..*identity })
}

/// Objects with the numbers of their present versions, and the lengths of their blocks.
struct Model {
    versions: Vec<u64>,
    lengths: Vec<usize>,
}

impl Model {
    fn number(&self, cache: &BlockCache, object: usize) -> u64 {
        let path = format!("data/{object}");
        cache.object("s3://bucket", &path, &version(self.versions[object]))
    }

    /// Reads parts of some blocks, as whoever has a cache does: what is there must be right, what is
    /// not is fetched. Gives how many were there.
    fn read(&self, cache: &BlockCache, random: &mut StdRng) -> usize {
        let object = random.random_range(0..self.versions.len());
        let length = self.lengths[object];
        let number = self.number(cache, object);
        let parts: Vec<_> = (0..random.random_range(1..4))
            .map(|_| {
                let start = random.random_range(0..length);
                let end = random.random_range(start + 1..=length);
                (random.random_range(0..6u32), start..end)
            })
            .collect();
        let found = cache.read(number, &parts);
        let mut hits = 0;
        for ((block, part), found) in parts.into_iter().zip(found) {
            let whole = content(object, self.versions[object], block, length);
            match found {
                Some(bytes) => {
                    assert_eq!(&bytes[..], &whole[part], "object {object}, block {block}");
                    hits += 1;
                }
                None => cache.insert(number, block, &whole),
            }
        }
        hits
    }
}

#[test]
fn what_is_found_is_what_was_put_in() {
    for seed in seeds(4) {
        let mut random = StdRng::seed_from_u64(seed);
        let block_pages = [32, 64, 256, 384][random.random_range(0..4)];
        let mut rig = Rig::new(block_pages, 256 * 6 * 24, 12 << 20);
        let lengths = (0..12).map(|_| match random.random_range(0..3) {
            0 => BLOCK_BYTES,
            1 => random.random_range(1..BLOCK_BYTES),
            _ => random.random_range(1..20_000),
        });
        let mut model = Model {
            lengths: lengths.collect(),
            versions: vec![0; 12],
        };
        let mut hits = 0;
        let mut latest = 0;
        for _ in 0..150 {
            match random.random_range(0..40) {
                0 => {
                    latest += 1;
                    let object = random.random_range(0..model.versions.len());
                    model.versions[object] = latest;
                }
                1 => rig.cache().forget("s3://bucket", "data/3"),
                2 => drop(rig.cache().give_way(1)),
                3 => rig.write_table(random.random_range(1..400)),
                4 => {
                    rig.close();
                    rig.open();
                }
                5 => {
                    rig.crash();
                    rig.open();
                    rig.check_tables();
                }
                6 if !rig.tables.is_empty() => {
                    let run = rig.tables.swap_remove(0);
                    rig.store.free(run.first, run.count).unwrap();
                }
                7 => rig.cache().settle(),
                8 => {
                    let faults = FaultOptions {
                        seed: random.random(),
                        fail: When::OneIn(20),
                        bit_flip: When::OneIn(100),
                        torn_write: When::OneIn(300),
                        lost_write: When::OneIn(300),
                        misdirected_write: When::OneIn(300),
                        ..FaultOptions::default()
                    };
                    rig.faulty.set_options(faults);
                    for _ in 0..20 {
                        model.read(rig.cache(), &mut random);
                    }
                    rig.cache().settle();
                    rig.faulty.set_options(FaultOptions::default());
                }
                _ => {
                    rig.cache().start_statement();
                    hits += model.read(rig.cache(), &mut random);
                }
            }
            let stats = rig.cache().stats();
            assert!(stats.used_bytes <= stats.capacity_bytes, "{stats:?}");
        }
        rig.check_tables();
        assert!(hits > 0, "seed {seed}");
    }
}

#[test]
fn all_is_there_after_a_restart() {
    let mut rig = Rig::new(256, 256 * 64, 30 << 20);
    let model = Model {
        versions: vec![7; 10],
        lengths: vec![100_000; 10],
    };
    for object in 0..10 {
        let number = model.number(rig.cache(), object);
        for block in 0..3 {
            let bytes = content(object, 7, block, 100_000);
            rig.cache().insert(number, block, &bytes);
        }
        rig.cache().settle();
    }
    let before = rig.cache().contents();
    assert_eq!(before.len(), 10);
    for _ in 0..2 {
        rig.close();
        rig.open();
        let after = rig.cache().contents();
        assert_eq!(after.len(), 10);
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before.path, after.path);
            assert_eq!(before.version, after.version);
            assert_eq!(after.cached_bytes, 300_000);
        }
        for object in 0..10 {
            let number = model.number(rig.cache(), object);
            let found = rig
                .cache()
                .read(number, &[(0, 0..100_000), (2, 99_999..100_000)]);
            let whole = content(object, 7, 0, 100_000);
            assert_eq!(found[0].as_deref(), Some(&whole[..]));
            let last = content(object, 7, 2, 100_000)[99_999];
            assert_eq!(found[1].as_deref(), Some(&[last][..]));
        }
    }
    // Another version is another object.
    let number = rig.cache().object("s3://bucket", "data/0", &version(8));
    assert_eq!(rig.cache().read(number, &[(0, 0..5)]), [None]);
    assert_eq!(rig.cache().contents().len(), 9);
}

#[test]
fn a_damaged_index_is_an_empty_cache() {
    let mut rig = Rig::new(256, 256 * 64, 30 << 20);
    let fill = |rig: &Rig| {
        let number = rig.cache().object("s3://bucket", "data/0", &version(1));
        rig.cache().insert(number, 0, &content(0, 1, 0, 50_000));
    };
    fill(&rig);
    rig.close();
    let path = rig.folder.path().join(INDEX_FILE);
    let whole = std::fs::read(&path).unwrap();
    for seed in seeds(20) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut bytes = whole.clone();
        match random.random_range(0..3) {
            0 => bytes.truncate(random.random_range(0..bytes.len())),
            1 => bytes.clear(),
            _ => {
                let at = random.random_range(0..bytes.len());
                bytes[at] ^= 1 << random.random_range(0..8);
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        rig.open();
        assert!(rig.cache().contents().is_empty());
        fill(&rig);
        assert_eq!(rig.cache().contents().len(), 1);
        rig.close();
    }
    rig.open();
    assert_eq!(rig.cache().contents().len(), 1);
    // Without a cache its pages are free.
    rig.close();
    CacheIndex::remove(rig.folder.path());
    rig.open();
    assert!(rig.cache().contents().is_empty());
}

/// What tables have is not claimed, and claims that overlap are both refused.
#[test]
fn an_index_that_is_too_old_claims_nothing_of_a_table() {
    let folder = TempDir::new().unwrap();
    let geometry = Geometry {
        pages_per_erase_block: 256,
        erase_blocks: 100,
    };
    for seed in seeds(30) {
        let mut random = StdRng::seed_from_u64(seed);
        let regions: Vec<_> = (0..random.random_range(1..40))
            .map(|_| index::RegionRecord {
                first_page: random.random_range(0..105) * 256 + u64::from(random.random_bool(0.1)),
                ..Default::default()
            })
            .collect();
        let mut taken = Vec::new();
        let mut next = 0;
        while next < 90 * 256 {
            let (first, count) = (
                next + random.random_range(0..2000),
                random.random_range(1..600),
            );
            let page = crate::flash::FlashPage(first);
            taken.push((PageAddress { page, ..address() }, count));
            next = first + u64::from(count);
        }
        let record = index::IndexRecord {
            regions: regions.clone(),
            ..Default::default()
        };
        index::write(folder.path(), &record).unwrap();
        let found = CacheIndex::load(folder.path(), &geometry, taken.iter().copied());
        let overlaps =
            |first: u64, other: u64, count: u64| first < other + count && other < first + 256;
        for (at, (region, run)) in regions.iter().zip(&found.runs).enumerate() {
            let first = region.first_page;
            let others = regions.iter().enumerate().filter(|(other, _)| *other != at);
            let is_free = taken
                .iter()
                .all(|(a, n)| !overlaps(first, a.page.0, (*n).into()))
                && others
                    .into_iter()
                    .all(|(_, o)| !overlaps(first, o.first_page, 256))
                && first.is_multiple_of(256)
                && first + 256 <= geometry.pages();
            assert_eq!(run.is_some(), is_free, "seed {seed}, region {at}");
        }
        let all: Vec<_> = taken
            .iter()
            .copied()
            .filter(|(a, n)| a.page.0 + u64::from(*n) <= geometry.pages())
            .chain(found.runs())
            .collect();
        let card = Arc::new(MemoryFlash::new(geometry, 1));
        PageStore::open(card, 1 << 20, all).unwrap();
    }
}

fn address() -> PageAddress {
    PageAddress {
        node: crate::store::NodeId::default(),
        card: crate::store::CardId::default(),
        page: crate::flash::FlashPage(0),
    }
}

/// What is used again and again stays while others pass by once.
#[test]
fn a_scan_does_not_throw_out_what_is_used() {
    let rig = Rig::new(256, 256 * 160, 80 << 20);
    let cache = rig.cache();
    let hot = cache.object("s3://bucket", "hot", &version(1));
    let read = |object: u64, block: u32| {
        let found = cache.read(object, &[(block, 0..10)]);
        if found[0].is_none() {
            cache.insert(object, block, &content(0, object, block, BLOCK_BYTES));
            cache.settle();
        }
        found[0].is_some()
    };
    let cold = cache.object("s3://bucket", "cold", &version(1));
    let mut found = 0;
    // 40 blocks of which each is read after every 20 of a scan of 600; the cache holds about 150.
    for round in 0..30 {
        cache.start_statement();
        for block in 0..20 {
            read(cold, round * 20 + block);
        }
        cache.start_statement();
        let hits = (0..40).filter(|block| read(hot, *block)).count();
        // Half of a region that goes is written again; the rest comes back once.
        found += if round >= 10 { hits } else { 0 };
    }
    assert_eq!(found, 20 * 40, "{:?}", cache.stats());
    let stats = cache.stats();
    assert!(
        stats.used_bytes <= stats.capacity_bytes && stats.used_bytes > stats.capacity_bytes / 2
    );
}

/// A card that tables fill: the cache goes, no write of theirs fails for it.
#[test]
fn the_cache_gives_way_to_tables() {
    let mut rig = Rig::new(64, 64 * 400, 24 << 20);
    #[derive(Debug)]
    struct Gives(Arc<BlockCache>);
    impl crate::store::Collector for Gives {
        fn collect(&self) -> Result<bool> {
            Ok(self.0.give_way(2))
        }
    }
    let gives: Arc<dyn crate::store::Collector> = Arc::new(Gives(rig.cache.clone().unwrap()));
    rig.store.set_collector(Arc::downgrade(&gives));
    let object = rig.cache().object("s3://bucket", "x", &version(1));
    let fill = |rig: &Rig, from: u32| {
        for block in from..from + 60 {
            rig.cache()
                .insert(object, block, &content(0, 1, block, BLOCK_BYTES));
            rig.cache().settle();
        }
    };
    fill(&rig, 0);
    let full = rig.cache().stats();
    assert!(
        full.used_bytes >= full.capacity_bytes - (2 << 20),
        "{full:?}"
    );
    let pages = 64 * 400 * 9 / 10;
    for _ in 0..pages / 300 {
        let before = rig.tables.len();
        rig.write_table(300);
        assert_eq!(rig.tables.len(), before + 1, "{:?}", rig.store.usage());
    }
    rig.check_tables();
    // And it does not take what it gave.
    fill(&rig, 100);
    let after = rig.cache().stats();
    assert!(after.used_bytes < full.used_bytes / 2, "{after:?}");
    rig.write_table(64);
    rig.check_tables();
}

#[test]
fn versions_are_told_apart_by_what_both_say() {
    let of = |size, tag: Option<&str>, modified_ns| ObjectVersion {
        size,
        e_tag: tag.map(Into::into),
        version: None,
        modified_ns,
    };
    let second = 1_000_000_000;
    for (a, b, is) in [
        (of(1, Some("a"), 5), of(1, Some("a"), 9), true),
        (of(1, Some("a"), 5), of(1, Some("b"), 5), false),
        (of(1, Some("a"), 5), of(2, Some("a"), 5), false),
        (of(1, None, 5), of(1, Some("b"), 5), true),
        (of(1, None, 5), of(1, None, 6), false),
        (of(1, None, 3 * second + 7), of(1, None, 3 * second), true),
        (
            of(1, None, 3 * second + 7),
            of(1, None, 3 * second + 8),
            false,
        ),
        (of(1, None, 3 * second), of(1, None, 4 * second), false),
    ] {
        assert_eq!(a.is(&b), is, "{a:?}, {b:?}");
        assert_eq!(b.is(&a), is, "{b:?}, {a:?}");
    }
}

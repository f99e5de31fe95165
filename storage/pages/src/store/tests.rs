//! The store against a model, on flash that is strict, in disorder, or broken.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::reader::{WINDOW_EXCESS_PAGES, WINDOW_MAX_PAGES, WINDOW_MIN_PAGES};
use super::*;
use crate::flash::{
    CopyLedger, CopySource, FaultFlash, FaultOptions, FileFlash, FileFlashOptions, Geometry,
    IoMode, LimitFlash, LimitOptions, MemoryFlash, MirroredFlash, NandFlash, NandOptions,
    NandShape, PAGE_SIZE_BYTES, PageBuffer, WearRate, When,
};
use crate::page::Page;

const BLOCK_PAGES: u32 = 32;
const LABEL: &str = "table 't', column 'c'";

/// A page that verifies: one row of a constant.
fn page(identity: PageIdentity) -> PageBuffer {
    let mut bytes = PageBuffer::zeroed();
    // Noise to the end, so that a torn page differs.
    let noise = u64::from(identity.segment) << 32 | u64::from(identity.page);
    SmallRng::seed_from_u64(noise).fill(&mut bytes[64..]);
    bytes[..4].copy_from_slice(b"FMP\x01");
    bytes[8] = 1;
    bytes[12..14].copy_from_slice(&identity.column_group.to_le_bytes());
    bytes[16..20].copy_from_slice(&identity.table.to_le_bytes());
    bytes[20..24].copy_from_slice(&identity.segment.to_le_bytes());
    bytes[24..26].copy_from_slice(&identity.page.to_le_bytes());
    bytes[28..32].copy_from_slice(&identity.generation.to_le_bytes());
    bytes[32..36].copy_from_slice(&1u32.to_le_bytes());
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[8..]) as u32;
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn identity(segment: u32) -> PageIdentity {
    PageIdentity {
        table: 7,
        segment,
        column_group: 2,
        page: 0,
        generation: segment + 1,
    }
}

fn run_pages(segment: u32, count: u32) -> Vec<PageBuffer> {
    (0..count)
        .map(|number| {
            page(PageIdentity {
                page: number as u16,
                ..identity(segment)
            })
        })
        .collect()
}

fn run(segment: u32, first: PageAddress, count: u32) -> PageRun {
    PageRun {
        first,
        count,
        identity: identity(segment),
        label: Arc::from(LABEL),
        part: None,
    }
}

fn check(page: &Page, segment: u32, number: u32) {
    assert_eq!(
        (page.header().segment, u32::from(page.header().page)),
        (segment, number)
    );
}

fn check_run(reader: &mut PageReader, run: &PageRun) {
    let mut pages = Vec::new();
    reader.get_run(run, 0..run.count, &mut pages).unwrap();
    assert_eq!(pages.len() as u32, run.count);
    (0..)
        .zip(&pages)
        .for_each(|(number, page)| check(page, run.identity.segment, number));
}

fn memory(erase_blocks: u64, seed: u64) -> Arc<MemoryFlash> {
    Arc::new(MemoryFlash::new(
        Geometry {
            pages_per_erase_block: BLOCK_PAGES,
            erase_blocks,
        },
        seed,
    ))
}

fn open(flash: &Arc<impl Flash + 'static>, cache_bytes: u64, live: &[PageRun]) -> Arc<PageStore> {
    let live = live.iter().map(|run| (run.first, run.count));
    PageStore::open(flash.clone(), cache_bytes, live).unwrap()
}

/// Appends one run for each `(segment, pages)` with one writer and keeps them.
fn append(store: &Arc<PageStore>, runs: &[(u32, u32)]) -> Vec<PageRun> {
    let mut writer = store.writer().unwrap();
    let mut append = |segment, count| {
        run(
            segment,
            writer.append(run_pages(segment, count)).unwrap(),
            count,
        )
    };
    let runs = runs
        .iter()
        .map(|&(segment, count)| append(segment, count))
        .collect();
    writer.finish().unwrap().keep();
    runs
}

/// Runs a test with seeds that differ from run to run; `FLASHMESH_TEST_SEED` replays one.
fn for_seeds(count: u64, test: impl Fn(u64)) {
    if let Ok(seed) = std::env::var("FLASHMESH_TEST_SEED") {
        return test(seed.parse().expect("FLASHMESH_TEST_SEED is a number"));
    }
    for _ in 0..count {
        let seed = rand::random();
        println!("FLASHMESH_TEST_SEED={seed}");
        test(seed);
    }
}

#[test]
fn what_was_appended_is_read_from_every_kind_of_file() {
    let folder = tempfile::tempdir().unwrap();
    for io in [IoMode::Auto, IoMode::Buffered] {
        let options = FileFlashOptions {
            io,
            ..FileFlashOptions::default()
        };
        let file = FileFlash::open(folder.path().join(format!("{io:?}")), options).unwrap();
        let store = open(&Arc::new(file), 64 << 20, &[]);
        let runs = append(&store, &[(0, 1), (1, 300), (2, 17), (3, 129)]);
        let mut reader = store.reader().unwrap();
        runs.iter()
            .for_each(|run| reader.prefetch(run, 0..run.count).unwrap());
        for run in &runs {
            for number in 0..run.count {
                check(
                    &reader.get(run, number).unwrap(),
                    run.identity.segment,
                    number,
                );
            }
        }
        let counters = reader.take_counters();
        assert_eq!(
            (counters.pages_from_flash, counters.pages_from_cache),
            (447, 0)
        );
        assert_eq!(counters.bytes_from_flash, 447 * 8192);
        runs.iter().for_each(|run| check_run(&mut reader, run));
        let counters = reader.take_counters();
        assert_eq!(
            (counters.pages_from_flash, counters.pages_from_cache),
            (0, 447)
        );
        let stats = store.cache().stats();
        assert_eq!((stats.hits, stats.misses), (447, 447));
        reader.bypass_cache();
        runs.iter().for_each(|run| check_run(&mut reader, run));
        assert_eq!(reader.take_counters().pages_from_flash, 447);
    }
}

#[test]
fn any_history_agrees_with_a_model() {
    for_seeds(30, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        // Strict: it refuses a second write without an erase.
        let flash = memory(48, seed);
        let cache_bytes = [0, 1 << 20, 64 << 20][random.random_range(0..3)];
        let mut store = open(&flash, cache_bytes, &[]);
        let mut live: Vec<PageRun> = Vec::new();
        let mut writers: Vec<(PageWriter, Vec<PageRun>)> = Vec::new();
        let mut segment = 0;
        for _ in 0..400 {
            match random.random_range(0..100) {
                0..10 if writers.len() < 4 => writers.push((store.writer().unwrap(), Vec::new())),
                10..55 if !writers.is_empty() => {
                    let index = random.random_range(0..writers.len());
                    let (writer, runs) = &mut writers[index];
                    let count = match random.random_range(0..10) {
                        0 => random.random_range(1..=3 * BLOCK_PAGES),
                        _ => random.random_range(1..=12),
                    };
                    match writer.append(run_pages(segment, count)) {
                        Ok(first) => runs.push(run(segment, first, count)),
                        Err(StorageError::Full { .. }) => {
                            let usage = store.usage();
                            assert!(usage.free_blocks < u64::from(count.div_ceil(BLOCK_PAGES)) + 2);
                        }
                        Err(error) => panic!("{error}"),
                    }
                    segment += 1;
                }
                55..65 if !writers.is_empty() => {
                    let (writer, runs) = writers.swap_remove(random.random_range(0..writers.len()));
                    match random.random_range(0..4) {
                        0 => drop(writer),
                        1 => drop(writer.finish().unwrap()),
                        _ => {
                            writer.finish().unwrap().keep();
                            live.extend(runs);
                        }
                    }
                }
                65..75 if !live.is_empty() => {
                    let run = live.swap_remove(random.random_range(0..live.len()));
                    let middle = random.random_range(0..=run.count);
                    store.free(run.first, middle).unwrap();
                    let rest = FlashPage(run.first.page.0 + u64::from(middle));
                    store
                        .free(
                            PageAddress {
                                page: rest,
                                ..run.first
                            },
                            run.count - middle,
                        )
                        .unwrap();
                }
                75..97 if !live.is_empty() => {
                    let mut reader = store.reader().unwrap();
                    for _ in 0..random.random_range(1..4) {
                        let run = &live[random.random_range(0..live.len())];
                        reader
                            .prefetch(run, 0..random.random_range(0..=run.count))
                            .unwrap();
                    }
                    check_run(&mut reader, &live[random.random_range(0..live.len())]);
                }
                97..100 => {
                    writers.clear();
                    store = open(&flash, cache_bytes, &live);
                }
                _ => {}
            }
            let reserved = writers.iter().flat_map(|(_, runs)| runs);
            let pages: u64 = live
                .iter()
                .chain(reserved)
                .map(|run| u64::from(run.count))
                .sum();
            let usage = store.usage();
            assert_eq!(usage.live_pages, pages);
            assert_eq!(usage.allocated_blocks + usage.free_blocks, 48);
            assert!(store.cache().stats().used_bytes <= cache_bytes);
        }
        drop(writers);
        let mut reader = store.reader().unwrap();
        live.iter().for_each(|run| check_run(&mut reader, run));
        live.iter()
            .for_each(|run| store.free(run.first, run.count).unwrap());
        let usage = store.usage();
        assert_eq!(
            (usage.live_pages, usage.dead_pages, usage.allocated_blocks),
            (0, 0, 0)
        );
        // Nothing is left but what a crash could have left.
        drop(store.writer().unwrap());
        assert_eq!(flash.used_erase_blocks().unwrap(), 0);
    });
}

#[test]
fn committed_runs_survive_a_power_failure_at_any_write() {
    for_seeds(40, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let inner = memory(64, seed);
        let mut committed: Vec<PageRun> = Vec::new();
        let mut segment = 0;
        // Several lives of the store, each ended by a power failure.
        for _ in 0..4 {
            let power_failure = When::Nth(random.random_range(0..200));
            let options = FaultOptions {
                seed,
                power_failure,
                ..FaultOptions::default()
            };
            let flash = Arc::new(FaultFlash::new(inner.clone(), options));
            let store = open(&flash, 1 << 20, &committed);
            let mut reader = store.reader().unwrap();
            committed.iter().for_each(|run| check_run(&mut reader, run));
            let mut work = || -> Result<()> {
                loop {
                    let mut writer = store.writer()?;
                    let mut runs = Vec::new();
                    for _ in 0..random.random_range(1..6) {
                        let count = random.random_range(1..40);
                        runs.push(run(
                            segment,
                            writer.append(run_pages(segment, count))?,
                            count,
                        ));
                        segment += 1;
                    }
                    let reservation = writer.finish()?;
                    store.sync()?;
                    // Here the manifest commits; then what it replaced is freed.
                    reservation.keep();
                    committed.append(&mut runs);
                    while committed.len() > 8 {
                        let run = committed.remove(random.random_range(0..committed.len()));
                        store.free(run.first, run.count)?;
                    }
                }
            };
            work().unwrap_err();
            assert!(!flash.has_power());
            flash.cut_power().unwrap();
        }
        let store = open(&inner, 1 << 20, &committed);
        let mut reader = store.reader().unwrap();
        committed.iter().for_each(|run| check_run(&mut reader, run));
    });
}

#[test]
fn small_writers_share_blocks() {
    let flash = memory(64, 1);
    let store = open(&flash, 0, &[]);
    let mut runs = Vec::new();
    for segment in 0..8 {
        runs.extend(append(&store, &[(segment, 2)]));
    }
    assert_eq!(store.usage().allocated_blocks, 1);
    // The next life of the store finds out how far the block was written.
    let store = open(&flash, 0, &runs);
    let lost = append(&store, &[(8, 3)]);
    assert_eq!(store.usage().allocated_blocks, 1);
    // Of those the manifest never heard.
    drop(lost);
    let store = open(&flash, 0, &runs);
    runs.extend(append(&store, &[(9, 3)]));
    assert_eq!(store.usage().allocated_blocks, 1);
    assert_eq!(runs[8].first.page.0, 8 * 2 + 3);
    let mut reader = store.reader().unwrap();
    runs.iter().for_each(|run| check_run(&mut reader, run));
}

#[test]
fn one_writer_leaves_no_gaps() {
    let store = open(&memory(64, 1), 0, &[]);
    let runs = append(&store, &[(0, 20), (1, 20), (2, 100), (3, 1), (4, 31)]);
    let mut next = 0;
    for run in runs {
        assert_eq!(run.first.page.0, next);
        next += u64::from(run.count);
    }
    let usage = store.usage();
    assert_eq!(
        (usage.live_pages, usage.dead_pages, usage.allocated_blocks),
        (172, 0, 6)
    );
}

#[test]
fn a_full_device_takes_pages_again_after_a_free() {
    let store = open(&memory(4, 1), 0, &[]);
    let mut writer = store.writer().unwrap();
    let first = writer.append(run_pages(0, 2 * BLOCK_PAGES)).unwrap();
    match writer.append(run_pages(1, 3 * BLOCK_PAGES)) {
        Err(StorageError::Full {
            device,
            needed_bytes,
            free_bytes,
        }) => {
            assert_eq!(device, "memory");
            assert_eq!(needed_bytes, 3 * u64::from(BLOCK_PAGES) * 8192);
            assert_eq!(free_bytes, 2 * u64::from(BLOCK_PAGES) * 8192);
        }
        other => panic!("{other:?} in place of Full"),
    }
    writer.append(run_pages(2, 2 * BLOCK_PAGES)).unwrap();
    assert!(matches!(
        writer.append(run_pages(3, 1)),
        Err(StorageError::Full { .. })
    ));
    writer.finish().unwrap().keep();
    store.free(first, 2 * BLOCK_PAGES).unwrap();
    let run = &append(&store, &[(4, 2 * BLOCK_PAGES)])[0];
    assert_eq!(run.first, first);
    check_run(&mut store.reader().unwrap(), run);
}

#[test]
fn a_write_that_fails_frees_everything() {
    let limit = LimitOptions {
        queue_depth: 4,
        capacity_bytes: 40 * 8192,
    };
    let flash = Arc::new(LimitFlash::new(memory(64, 1), limit).unwrap());
    let store = open(&flash, 0, &[]);
    let mut writer = store.writer().unwrap();
    let written = writer
        .append(run_pages(0, 39))
        .and_then(|_| writer.append(run_pages(1, 90)));
    let error = match written {
        Ok(_) => writer.finish().unwrap_err(),
        Err(error) => {
            // A broken writer stays broken.
            assert!(matches!(
                writer.append(run_pages(2, 1)),
                Err(StorageError::Invalid(_))
            ));
            drop(writer);
            error
        }
    };
    assert!(matches!(error, StorageError::Full { .. }), "{error}");
    let usage = store.usage();
    assert_eq!((usage.live_pages, usage.allocated_blocks), (0, 0));
    append(&store, &[(3, 39)]);
}

#[test]
fn numbers_of_pages_are_those_of_their_addresses() {
    let at = |node, card, page| PageAddress {
        node: NodeId(node),
        card: CardId(card),
        page: FlashPage(page),
    };
    let last = (1 << PAGE_BITS) - 1;
    let mut before = None;
    for address in [
        at(0, 0, 0),
        at(0, 0, last),
        at(0, 15, 7),
        at(1, 0, 3),
        at(1023, 15, last),
    ] {
        let number = address.number();
        assert!(before < Some(number));
        assert_eq!(PageAddress::of_number(number), address);
        before = Some(number);
    }
    for nowhere in [
        at(1024, 0, 0),
        at(0, 16, 0),
        at(0, 0, last + 1),
        at(0, 0, u64::MAX),
    ] {
        assert_eq!(nowhere.number(), u64::MAX);
    }
}

/// Groups of runs on cards of several nodes, against what was written, with collection of what was
/// freed and reopening between.
#[test]
fn groups_take_turns_between_cards_and_stay_together() {
    for_seeds(20, |seed| {
        let mut rng = SmallRng::seed_from_u64(seed);
        let places = [(2, 0), (0, 0), (2, 1), (9, 3)];
        let cards = places.map(|(node, card)| StoreCard {
            node: NodeId(node),
            card: CardId(card),
            flash: memory(64, seed),
        });
        let mut live: Vec<PageRun> = Vec::new();
        let mut segment = 0;
        for _ in 0..6 {
            let runs = live.iter().map(|run| (run.first, run.count));
            let store = PageStore::open_cards(cards.to_vec(), 1 << 20, runs).unwrap();
            for _ in 0..4 {
                let mut writer = store.writer().unwrap();
                let mut written = Vec::new();
                for _ in 0..rng.random_range(1..6) {
                    let counts: Vec<u32> = (0..3).map(|_| rng.random_range(1..9)).collect();
                    writer.start_group(counts.iter().sum::<u32>() as usize, None);
                    let group = counts.into_iter().map(|count| {
                        segment += 1;
                        let first = writer.append(run_pages(segment, count)).unwrap();
                        run(segment, first, count)
                    });
                    let group: Vec<_> = group.collect();
                    let place = |run: &PageRun| (run.first.node, run.first.card);
                    assert!(group.iter().all(|run| place(run) == place(&group[0])));
                    written.extend(group);
                }
                let reservation = writer.finish().unwrap();
                match rng.random_bool(0.8) {
                    true => {
                        reservation.keep();
                        live.extend(written);
                    }
                    false => drop(reservation),
                }
                while live.len() > 60 {
                    let run = live.swap_remove(rng.random_range(0..live.len()));
                    store.free(run.first, run.count).unwrap();
                }
                store.sync().unwrap();
            }
            let pages = |run: &PageRun| u64::from(run.count);
            assert_eq!(
                store.usage().live_pages,
                live.iter().map(pages).sum::<u64>()
            );
            let mut reader = store.reader().unwrap();
            for run in &live {
                reader.prefetch(run, 0..run.count).unwrap();
            }
            for run in &live {
                let mut found = Vec::new();
                reader.get_run(run, 0..run.count, &mut found).unwrap();
                let expected = run_pages(run.identity.segment, run.count);
                for (found, expected) in found.iter().zip(expected) {
                    assert_eq!(*found.bytes(), *expected);
                }
            }
        }
        let place = |run: &PageRun| (run.first.node.0, run.first.card.0);
        let used: std::collections::HashSet<_> = live.iter().map(place).collect();
        assert_eq!(used.len(), places.len(), "each card has something");
        // Without one of its cards a store is not opened.
        let runs = live.iter().map(|run| (run.first, run.count));
        let lacking = PageStore::open_cards(cards[..3].to_vec(), 0, runs);
        let error = lacking.unwrap_err().to_string();
        assert!(error.contains("card 3 of node 9"), "{error}");
    });
}

#[test]
fn runs_that_cannot_be_are_refused() {
    let flash = memory(4, 1);
    let at = |page| PageAddress {
        page: FlashPage(page),
        ..PageAddress::of_number(0)
    };
    for (live, what) in [
        (vec![(at(0), 10), (at(9), 1)], "page 9 of memory twice"),
        (vec![(at(0), 10), (at(0), 10)], "page 0 of memory twice"),
        (vec![(at(4 * 32), 1)], "has 128 pages"),
        (vec![(at(4 * 32 - 1), 2)], "has 128 pages"),
        (vec![(at(u64::MAX), 2)], "has 128 pages"),
    ] {
        match PageStore::open(flash.clone(), 0, live) {
            Err(StorageError::Corrupt { what: found }) => assert!(found.contains(what), "{found}"),
            other => panic!("{other:?} in place of Corrupt"),
        }
    }
    let elsewhere = PageAddress {
        node: NodeId(1),
        ..at(0)
    };
    assert!(PageStore::open(flash.clone(), 0, [(elsewhere, 1)]).is_err());

    let store = open(&flash, 0, &[]);
    let run = append(&store, &[(0, 10)]).remove(0);
    for (first, pages) in [
        (at(0), 11),
        (at(10), 1),
        (at(500), 1),
        (at(u64::MAX), 2),
        (elsewhere, 1),
    ] {
        assert!(matches!(
            store.free(first, pages),
            Err(StorageError::Invalid(_))
        ));
    }
    assert_eq!(store.usage().live_pages, 10);
    store.free(at(3), 1).unwrap();
    assert!(matches!(
        store.free(at(0), 10),
        Err(StorageError::Invalid(_))
    ));
    assert!(matches!(
        store.writer().unwrap().append(Vec::new()),
        Err(StorageError::Invalid(_))
    ));

    let mut reader = store.reader().unwrap();
    assert!(matches!(
        reader.get(&run, 10),
        Err(StorageError::Invalid(_))
    ));
    assert!(matches!(
        reader.prefetch(&run, 5..11),
        Err(StorageError::Invalid(_))
    ));
    let elsewhere = PageRun {
        first: PageAddress {
            node: NodeId(1),
            ..run.first
        },
        ..run.clone()
    };
    assert!(matches!(
        reader.get(&elsewhere, 0),
        Err(StorageError::Invalid(_))
    ));
    let behind = PageRun {
        first: at(u64::MAX - 1),
        count: 10,
        ..run
    };
    assert!(matches!(
        reader.get(&behind, 5),
        Err(StorageError::Invalid(_))
    ));
}

#[test]
fn the_cache_stays_within_its_capacity() {
    let store = open(&memory(1024, 1), 0, &[]);
    let runs = append(&store, &[(0, 5000), (1, 3000)]);
    for capacity_bytes in [0, 8192, 1 << 20, 8 << 20, 3 << 20, 0] {
        store.cache().set_capacity_bytes(capacity_bytes);
        assert!(store.cache().stats().used_bytes <= capacity_bytes);
        let mut reader = store.reader().unwrap();
        for run in &runs {
            reader.prefetch(run, 0..run.count).unwrap();
            for number in 0..run.count {
                check(
                    &reader.get(run, number).unwrap(),
                    run.identity.segment,
                    number,
                );
                assert!(reader.pages.len() <= WINDOW_MAX_PAGES + WINDOW_EXCESS_PAGES);
                if number % 64 == 0 {
                    assert!(store.cache().stats().used_bytes <= capacity_bytes);
                }
            }
        }
        let counters = reader.take_counters();
        assert!(
            counters.pages_from_flash <= 8000,
            "nothing is read twice: {counters:?}"
        );
        assert_eq!(counters.pages_from_flash + counters.pages_from_cache, 8000);
    }
    store.cache().set_capacity_bytes(64 << 20);
    store.cache().clear();
    assert_eq!(store.cache().stats().used_bytes, 0);
}

#[test]
fn a_working_set_survives_a_scan() {
    let store = open(&memory(1024, 1), 4 << 20, &[]);
    let runs = append(&store, &[(0, 100), (1, 8000)]);
    let mut reader = store.reader().unwrap();
    for _ in 0..3 {
        check_run(&mut reader, &runs[0]);
    }
    check_run(&mut reader, &runs[1]);
    reader.take_counters();
    check_run(&mut reader, &runs[0]);
    let counters = reader.take_counters();
    assert!(counters.pages_from_cache >= 50, "{counters:?}");
}

#[test]
fn pages_that_nobody_takes_make_room() {
    let store = open(&memory(1024, 1), 0, &[]);
    let runs = append(&store, &[(0, 4000), (1, 4000)]);
    let mut reader = store.reader().unwrap();
    reader.prefetch(&runs[0], 0..4000).unwrap();
    // Of the first run only a few are taken, in any order; the second run comes all the same.
    for number in [3999, 7, 2000, 3, 3998] {
        check(&reader.get(&runs[0], number).unwrap(), 0, number);
        assert!(reader.pages.len() <= WINDOW_MAX_PAGES + WINDOW_EXCESS_PAGES);
    }
    check_run(&mut reader, &runs[1]);
    // A page that was taken can be asked for again.
    for _ in 0..3 {
        check(&reader.get(&runs[0], 7).unwrap(), 0, 7);
    }
    assert!(reader.brought.len() <= 2 * WINDOW_MAX_PAGES);
}

/// Announces runs of 40 pages while the reader wants more; how many it took.
fn announce_while_wanted(reader: &mut PageReader, runs: &[PageRun]) -> usize {
    let mut ahead = 0;
    for run in runs {
        reader.prefetch(run, 0..run.count).unwrap();
        ahead += 1;
        if !reader.wants_more() {
            break;
        }
    }
    ahead
}

#[test]
fn a_reader_wants_more_while_it_reads_and_has_room() {
    for_seeds(20, |seed| {
        // It may end a read within the call that starts it, or leave all of them in flight.
        let store = open(&memory(1024, seed), 0, &[]);
        let counts: Vec<_> = (0..200).map(|segment| (segment, 40)).collect();
        let runs = append(&store, &counts);
        let mut reader = store.reader().unwrap();
        assert!(!reader.wants_more(), "nothing is being read");
        // Until half a window is in flight, or all of it waits to be taken.
        let whole = WINDOW_MAX_PAGES.div_ceil(40);
        let ahead = announce_while_wanted(&mut reader, &runs);
        assert!((whole / 2..=whole).contains(&ahead), "{ahead} runs ahead");
        for run in &runs {
            for number in 0..run.count {
                check(
                    &reader.get(run, number).unwrap(),
                    run.identity.segment,
                    number,
                );
            }
        }
        assert!(!reader.wants_more(), "all was taken");

        // Many readers have small windows each, but more than one run ahead all the same.
        let _others: Vec<_> = (0..200).map(|_| store.reader().unwrap()).collect();
        let whole = WINDOW_MIN_PAGES.div_ceil(40);
        let ahead = announce_while_wanted(&mut reader, &runs);
        assert!((whole / 2..=whole).contains(&ahead), "{ahead} runs ahead");
        assert!(reader.pages.len() <= WINDOW_MIN_PAGES);
    });
}

#[test]
fn a_reader_wants_no_more_of_what_is_cached() {
    let store = open(&memory(1024, 1), 64 << 20, &[]);
    let counts: Vec<_> = (0..100).map(|segment| (segment, 40)).collect();
    let runs = append(&store, &counts);
    let mut reader = store.reader().unwrap();
    runs.iter().for_each(|run| check_run(&mut reader, run));
    for run in &runs {
        reader.prefetch(run, 0..run.count).unwrap();
        assert!(!reader.wants_more());
        check_run(&mut reader, run);
    }
    assert_eq!(reader.take_counters().pages_from_flash, 4000);
}

#[test]
fn a_reader_reads_ahead_of_reads_that_end_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let options = FileFlashOptions {
        io: IoMode::Buffered,
        ..FileFlashOptions::default()
    };
    // This queue does a read at the latest when somebody looks for it.
    let file = FileFlash::open(folder.path().join("flash"), options).unwrap();
    let store = open(&Arc::new(file), 0, &[]);
    let runs = append(&store, &[(0, 40), (1, 40), (2, 40)]);
    let mut reader = store.reader().unwrap();
    assert_eq!(announce_while_wanted(&mut reader, &runs), 3);
    assert!(reader.wants_more());
    runs.iter().for_each(|run| check_run(&mut reader, run));
    assert!(!reader.wants_more());
}

#[test]
fn a_dropped_reader_leaves_nothing_behind() {
    let store = open(&memory(256, 9), 0, &[]);
    let runs = append(&store, &[(0, 1000), (1, 100)]);
    for _ in 0..50 {
        let mut reader = store.reader().unwrap();
        reader.prefetch(&runs[0], 0..1000).unwrap();
        drop(reader);
        // The same queue, with the reads of the reader before in flight.
        let mut reader = store.reader().unwrap();
        check_run(&mut reader, &runs[1]);
        let mut writer = store.writer().unwrap();
        let first = writer.append(run_pages(2, 40)).unwrap();
        writer.finish().unwrap().keep();
        check_run(&mut reader, &run(2, first, 40));
        store.free(first, 40).unwrap();
    }
}

#[test]
fn a_reused_address_does_not_show_its_old_page() {
    let store = open(&memory(4, 1), 1 << 20, &[]);
    let old = append(&store, &[(0, 3)]).remove(0);
    let mut reader = store.reader().unwrap();
    check_run(&mut reader, &old);
    store.free(old.first, 3).unwrap();
    let new = append(&store, &[(1, 3)]).remove(0);
    assert_eq!(old.first, new.first);
    check_run(&mut reader, &new);
    // Who still has the old run gets an error, cached or not.
    for _ in 0..2 {
        assert!(matches!(
            reader.get(&old, 1),
            Err(StorageError::Corrupt { .. })
        ));
    }
    check_run(&mut reader, &new);
}

/// The pages of a run of 300 that can't be read through faults of the flash, and the error of one.
fn broken_pages(options: FaultOptions) -> (Vec<u32>, String) {
    let inner = memory(64, options.seed);
    let flash = Arc::new(FaultFlash::new(inner, options));
    let store = open(&flash, 1 << 20, &[]);
    let run = append(&store, &[(5, 300)]).remove(0);
    let mut reader = store.reader().unwrap();
    reader.prefetch(&run, 0..300).unwrap();
    let mut broken = Vec::new();
    let mut text = String::new();
    for number in 0..300 {
        match reader.get(&run, number) {
            Ok(page) => check(&page, 5, number),
            Err(error) => {
                broken.push(number);
                text = error.to_string();
                assert!(
                    text.contains(LABEL) && text.contains(&format!("page {number}")),
                    "{text}"
                );
                // It stays broken, and never becomes a wrong answer.
                assert!(reader.get(&run, number).is_err());
            }
        }
    }
    (broken, text)
}

#[test]
fn what_flash_does_to_pages_is_noticed_and_named() {
    let none = FaultOptions {
        seed: 3,
        ..FaultOptions::default()
    };
    let nth = When::Nth(77);
    assert_eq!(broken_pages(none).0, Vec::<u32>::new());
    for options in [
        FaultOptions {
            torn_write: nth,
            ..none
        },
        FaultOptions {
            lost_write: nth,
            ..none
        },
    ] {
        let (broken, error) = broken_pages(options);
        assert_eq!(broken, [77]);
        assert!(error.starts_with("corrupt: "), "{error}");
    }
    assert_eq!(
        broken_pages(FaultOptions {
            misdirected_write: nth,
            ..none
        })
        .0,
        [77, 78]
    );
    // Errors of the transfer heal.
    assert_eq!(
        broken_pages(FaultOptions {
            bit_flip: nth,
            ..none
        })
        .0,
        Vec::<u32>::new()
    );
    assert_eq!(
        broken_pages(FaultOptions {
            bit_flip: When::OneIn(150),
            ..none
        })
        .0,
        Vec::<u32>::new()
    );
}

#[test]
fn operations_that_fail_are_tried_again_alone() {
    let inner = memory(64, 1);
    let run = append(&open(&inner, 0, &[]), &[(5, 300)]).remove(0);
    let flash = Arc::new(FaultFlash::new(inner, FaultOptions::default()));
    let store = open(&flash, 0, std::slice::from_ref(&run));
    let mut reader = store.reader().unwrap();
    for fail in [When::Nth(0), When::Nth(1), When::Nth(2)] {
        flash.set_options(FaultOptions {
            fail,
            ..FaultOptions::default()
        });
        check_run(&mut reader, &run);
    }
    flash.set_options(FaultOptions {
        fail: When::OneIn(1),
        ..FaultOptions::default()
    });
    reader.prefetch(&run, 0..300).unwrap();
    for number in [0, 299, 150] {
        match reader.get(&run, number) {
            Err(error @ StorageError::Io { .. }) => {
                let text = error.to_string();
                assert!(
                    text.contains(LABEL) && text.contains(&format!("page {number}:")),
                    "{text}"
                );
            }
            other => panic!("{other:?} in place of Io"),
        }
    }
    // What has failed may work later.
    flash.set_options(FaultOptions::default());
    let mut reader = store.reader().unwrap();
    check_run(&mut reader, &run);
}

#[test]
fn a_block_that_cannot_be_erased_is_erased_later() {
    let inner = memory(4, 1);
    let flash = Arc::new(FaultFlash::new(inner, FaultOptions::default()));
    let store = open(&flash, 0, &[]);
    let run = append(&store, &[(0, 4 * BLOCK_PAGES)]).remove(0);
    store.sync().unwrap();
    flash.set_options(FaultOptions {
        fail: When::OneIn(1),
        ..FaultOptions::default()
    });
    store.free(run.first, run.count).unwrap();
    assert_eq!(store.usage().free_blocks, 4);
    assert!(store.writer().unwrap().append(run_pages(1, 1)).is_err());
    flash.set_options(FaultOptions::default());
    let run = append(&store, &[(2, 4 * BLOCK_PAGES)]).remove(0);
    store.sync().unwrap();
    check_run(&mut store.reader().unwrap(), &run);
}

#[test]
fn threads_write_read_and_free_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = FileFlash::open(folder.path().join("flash"), FileFlashOptions::default()).unwrap();
    let store = open(&Arc::new(file), 2 << 20, &[]);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let store = &store;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread.into());
                let mut reader = store.reader().unwrap();
                let mut live: Vec<PageRun> = Vec::new();
                for round in 0..30 {
                    let segment = thread << 16 | round << 8;
                    let counts = (0..5).map(|_| random.random_range(1..150));
                    let runs: Vec<_> = (segment..).zip(counts).collect();
                    live.extend(append(store, &runs));
                    live.iter().for_each(|run| check_run(&mut reader, run));
                    while live.len() > 10 {
                        let run = live.swap_remove(random.random_range(0..live.len()));
                        store.free(run.first, run.count).unwrap();
                    }
                }
                live.iter()
                    .for_each(|run| store.free(run.first, run.count).unwrap());
            });
        }
    });
    let usage = store.usage();
    assert_eq!((usage.live_pages, usage.allocated_blocks), (0, 0));
}

#[test]
fn after_a_failed_sync_no_sync_succeeds() {
    let geometry = Geometry {
        pages_per_erase_block: BLOCK_PAGES,
        erase_blocks: 4,
    };
    let flash = Arc::new(FaultFlash::new(
        Arc::new(MemoryFlash::new(geometry, 1)),
        FaultOptions {
            fail_sync: When::Nth(1),
            ..FaultOptions::default()
        },
    ));
    let store = PageStore::open(flash, 1 << 20, []).unwrap();
    store.sync().unwrap();
    // There was nothing to sync since then.
    store.sync().unwrap();
    let mut writer = store.writer().unwrap();
    writer.append(vec![page(identity(1))]).unwrap();
    writer.finish().unwrap().keep();
    for _ in 0..2 {
        let error = store.sync().unwrap_err();
        assert!(
            matches!(error, StorageError::NeedsReopening { .. }),
            "{error}"
        );
    }
}

#[test]
fn small_writers_leave_their_first_pages_in_memory() {
    let geometry = Geometry {
        pages_per_erase_block: BLOCK_PAGES,
        erase_blocks: 64,
    };
    let flash = Arc::new(MemoryFlash::new(geometry, 1));
    let store = PageStore::open(flash, 1 << 20, []).unwrap();
    let page_of =
        |run: &PageRun, number: u32| page(super::reader::identity_of(&run.identity, number));
    let write = |writer: &mut PageWriter, segment: u32, count: u32| {
        let mut run = PageRun {
            first: PageAddress::of_number(0),
            count,
            identity: identity(segment),
            label: LABEL.into(),
            part: None,
        };
        let pages = (0..count).map(|number| page_of(&run, number));
        writer.start_group(count as usize, None);
        run.first = writer.append(pages.collect()).unwrap();
        run
    };
    let mut writer = store.small_writer().unwrap();
    let runs = [1, 3, SMALL_WRITER_PAGES as u32 - 4, 2, 1];
    let runs: Vec<_> = (0..)
        .zip(runs)
        .map(|(id, count)| write(&mut writer, id, count))
        .collect();
    let in_memory = runs.iter().map(|run| run.first.card == MEMORY_CARD);
    // The first that finds no room ends it.
    assert_eq!(
        in_memory.collect::<Vec<_>>(),
        [true, true, true, false, false]
    );
    let reservation = writer.finish().unwrap();
    let bytes = SMALL_WRITER_PAGES as u64 * PAGE_SIZE_BYTES as u64;
    assert_eq!((store.memory_bytes(), store.usage().live_pages), (bytes, 3));
    for bypasses in [false, true] {
        let mut reader = store.reader().unwrap();
        if bypasses {
            reader.bypass_cache();
        }
        for run in &runs {
            reader.prefetch(run, 0..run.count).unwrap();
            for number in (0..run.count).rev() {
                let found = reader.get(run, number).unwrap();
                assert_eq!(*found.bytes(), *page_of(run, number));
            }
        }
        // Another page than the one that is there.
        let other = PageRun {
            identity: identity(99),
            ..runs[0].clone()
        };
        assert!(reader.get(&other, 0).is_err());
    }
    reservation.keep();
    store.free(runs[1].first, runs[1].count).unwrap();
    assert!(store.reader().unwrap().get(&runs[1], 0).is_err());
    // Put back by an earlier life's addresses; new ones lie behind them.
    let pages = (0..runs[1].count).map(|number| page_of(&runs[1], number));
    store.restore(&runs[1], pages.collect()).unwrap();
    assert!(
        store
            .restore(&runs[1], vec![page_of(&runs[0], 0); 3])
            .is_err()
    );
    let mut writer = store.small_writer().unwrap();
    let next = write(&mut writer, 50, 1);
    assert!(next.first.page > runs[2].first.page);
    assert_eq!(store.memory_bytes(), bytes + PAGE_SIZE_BYTES as u64);
    // What nobody keeps goes.
    drop(writer);
    assert_eq!(store.memory_bytes(), bytes);
}

/// A card of which there are copies.
#[derive(Debug)]
struct OneCopy(Arc<dyn Flash>);

impl CopySource for OneCopy {
    fn name(&self) -> String {
        self.0.name()
    }

    fn open(&self) -> Result<Arc<dyn Flash>> {
        Ok(self.0.clone())
    }
}

/// Nothing is reopened.
#[derive(Debug)]
struct Forgetful;

impl CopyLedger for Forgetful {
    fn is_behind(&self, _: usize) -> bool {
        false
    }

    fn set_behind(&self, _: usize, _: bool) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_page_of_which_one_copy_is_damaged_is_read_from_another_and_written_anew() {
    let damaged = |seed| FaultOptions {
        seed,
        bit_flip: When::OneIn(1),
        ..FaultOptions::default()
    };
    let copies = [1, 2].map(|seed| {
        let card = memory(16, seed);
        Arc::new(FaultFlash::new(card, FaultOptions::default()))
    });
    let sources = copies
        .iter()
        .map(|copy| Arc::new(OneCopy(copy.clone())) as _);
    let flash = MirroredFlash::open(sources.collect(), Arc::new(Forgetful)).unwrap();
    let flash = Arc::new(flash);
    let runs = append(&open(&flash, 0, &[]), &[(1, 50)]);
    let is_behind = |copy: usize| flash.copies()[copy].is_behind;
    copies[0].set_options(damaged(3));
    check_run(&mut open(&flash, 0, &runs).reader().unwrap(), &runs[0]);
    assert!(is_behind(0) && !is_behind(1));
    // A damaged page of the last copy is an error, and that copy is read on.
    copies[1].set_options(damaged(4));
    let mut reader = open(&flash, 0, &runs).reader().unwrap();
    let error = reader
        .get_run(&runs[0], 0..50, &mut Vec::new())
        .unwrap_err();
    assert!(
        matches!(error, StorageError::Corrupt { .. }) && !is_behind(1),
        "{error}"
    );
    for copy in &copies {
        copy.set_options(FaultOptions::default());
    }
    while !flash.tend().unwrap() {}
    // What was written anew is what was there.
    flash.renew(FlashPage(0), &[1]);
    assert!(is_behind(1));
    check_run(&mut open(&flash, 0, &runs).reader().unwrap(), &runs[0]);
}

#[test]
fn a_file_that_may_grow_is_not_short_of_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let options = FileFlashOptions {
        create: true,
        ..FileFlashOptions::default()
    };
    let flash = Arc::new(FileFlash::open(folder.path().join("card"), options).unwrap());
    let store = open(&flash, 0, &[]);
    append(&store, &[(1, 50)]);
    assert!(!store.is_short_of_blocks());
    assert!(open(&memory(8, 1), 0, &[]).is_short_of_blocks());
}

/// A writer that finds no room leaves the rest of its block to others, who write behind its pages: on raw
/// NAND these must be there by then.
#[test]
fn pages_on_their_way_come_before_those_of_who_continues_their_block() {
    let flash = NandFlash::new(NandOptions {
        seed: 5,
        shape: NandShape {
            buses: 2,
            chips_per_bus: 2,
            blocks_per_chip: 8,
            pages_per_block: 16,
        },
        lanes: 2,
        bad_at_birth: 0.0,
        bit_errors: WearRate::always(0.0),
        ..NandOptions::default()
    });
    let flash = Arc::new(flash.unwrap());
    let too_many = flash.geometry().pages() as u32;
    let store = PageStore::open(flash, 1 << 20, []).unwrap();
    let mut one = store.writer().unwrap();
    let first = one.append(run_pages(1, 4)).unwrap();
    let full = one.append(run_pages(2, too_many)).unwrap_err();
    assert!(matches!(full, StorageError::Full { .. }), "{full}");
    let mut other = store.writer().unwrap();
    let behind = other.append(run_pages(3, 3)).unwrap();
    assert_eq!(
        behind.page.0,
        first.page.0 + 4,
        "the same block is continued"
    );
    other.finish().unwrap().keep();
    one.finish().unwrap().keep();
    let mut reader = store.reader().unwrap();
    for (segment, first, count) in [(1, first, 4), (3, behind, 3)] {
        let run = run(segment, first, count);
        for number in 0..count {
            reader.get(&run, number).unwrap();
        }
    }
}

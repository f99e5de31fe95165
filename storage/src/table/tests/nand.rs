//! Databases on raw NAND: bad blocks, wrong bits, open blocks, collection, wear.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use arrow::array::{ArrayRef, FixedSizeBinaryArray, Int64Array, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use super::faults::devices::{Fault, Faults, FaultyFile};
use super::faults::workloads::{self, Step};
use super::faults::{LOG_BYTES, state};
use super::{layout, seed};
use crate::flash::{
    Completion, Flash, FlashHealth, FlashOp, FlashQueue, Geometry, NandFlash, NandOptions,
    NandShape, Tag, WearRate,
};
use crate::index::IndexKind;
use crate::index::pace::Pace;
use crate::page::SEGMENT_ROWS;
use crate::segment::row_id;
use crate::store::{CardStatus, MEMORY_CARD};
use crate::table::catalog::{Catalog, CatalogFile, FirstState};
use crate::table::commit_log::Log;
use crate::table::{Database, DatabaseOptions, LoadTarget, TableLayout, UpkeepOptions};
use crate::{Result, StorageError};

/// 256 blocks of 16 pages; erase blocks of 32.
fn options(seed: u64) -> NandOptions {
    NandOptions {
        seed,
        shape: NandShape {
            buses: 2,
            chips_per_bus: 2,
            blocks_per_chip: 64,
            pages_per_block: 16,
        },
        lanes: 2,
        ..NandOptions::default()
    }
}

/// 96 blocks, 5 % of them bad, and many to spare.
fn small(seed: u64) -> NandOptions {
    NandOptions {
        shape: NandShape {
            blocks_per_chip: 24,
            ..options(seed).shape
        },
        reserve: 0.3,
        bad_at_birth: 0.05,
        bit_errors: WearRate::always(0.0),
        ..options(seed)
    }
}

/// 5 % bad blocks, more of them in time, and a raw bit error rate of 1e-5.
fn rough(seed: u64) -> NandOptions {
    NandOptions {
        reserve: 0.2,
        bad_at_birth: 0.05,
        bit_errors: WearRate::always(1e-5),
        program_failures: WearRate::always(2e-4),
        erase_failures: WearRate::always(1e-3),
        ..options(seed)
    }
}

/// A card, a catalog and a log whose power fails together.
struct Rig {
    faults: Arc<Faults>,
    nand: Arc<NandFlash>,
    /// A page that reads as another than was written, whatever the code corrects.
    torn: Arc<AtomicU64>,
    catalog: FaultyFile,
    log: FaultyFile,
}

impl Rig {
    /// Those of a new database.
    fn new(options: NandOptions) -> Self {
        let seed = options.seed;
        let nand = NandFlash::new(options).unwrap();
        let rig = Self::of(nand, Vec::new(), Vec::new(), seed);
        let file = CatalogFile::new(rig.catalog.clone());
        let path = Path::new("nand");
        let empty = FirstState::empty();
        drop(Catalog::make(&path.join("catalog"), path, file, &empty).unwrap());
        rig.restart(seed)
    }

    fn of(nand: NandFlash, catalog: Vec<u8>, log: Vec<u8>, seed: u64) -> Self {
        let faults = Faults::new(seed);
        Self {
            nand: Arc::new(nand),
            torn: Arc::new(AtomicU64::new(u64::MAX)),
            catalog: FaultyFile::new(catalog, &faults),
            log: FaultyFile::new(log, &faults),
            faults,
        }
    }

    /// What a new start of the machine finds.
    fn restart(&self, seed: u64) -> Self {
        let nand = self.nand.restart().unwrap();
        Self::of(nand, self.catalog.restart(), self.log.restart(), seed)
    }

    /// The same again, with a card of its own.
    fn copy(&self, seed: u64) -> Self {
        let nand = self.nand.copy().unwrap();
        Self::of(nand, self.catalog.restart(), self.log.restart(), seed)
    }

    fn open(&self, upkeep: bool, log_bytes: u64) -> Result<Arc<Database>> {
        let path = Path::new("nand");
        let file = CatalogFile::new(self.catalog.clone());
        let catalog = Catalog::existing(&path.join("catalog"), path, file)?;
        let log = Log::new(&path.join("log"), self.log.clone(), log_bytes);
        let options = DatabaseOptions {
            cache_bytes: 1 << 20,
            upkeep: UpkeepOptions {
                in_background: upkeep,
                ..UpkeepOptions::default()
            },
            ..DatabaseOptions::default()
        };
        let card = CutCard {
            nand: Arc::clone(&self.nand),
            faults: Arc::clone(&self.faults),
            torn: Arc::clone(&self.torn),
        };
        Database::with_parts(path.to_path_buf(), catalog, Arc::new(card), log, &options)
    }
}

/// Cuts the card's power where the plan says so: in the middle of an operation. One page of it may
/// be torn.
#[derive(Debug, Clone)]
struct CutCard {
    nand: Arc<NandFlash>,
    faults: Arc<Faults>,
    torn: Arc<AtomicU64>,
}

impl Flash for CutCard {
    fn name(&self) -> String {
        self.nand.name()
    }

    fn geometry(&self) -> Geometry {
        self.nand.geometry()
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        self.nand.used_erase_blocks()
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        Ok(Box::new(CutQueue {
            inner: self.nand.open_queue()?,
            card: self.clone(),
            torn: HashMap::new(),
        }))
    }

    fn sync(&self) -> Result<()> {
        if self.faults.next().is_some() {
            self.nand.cut_power();
        }
        self.nand.sync()
    }

    fn continues_blocks(&self) -> bool {
        self.nand.continues_blocks()
    }

    fn health(&self) -> Option<FlashHealth> {
        self.nand.health()
    }
}

fn status(database: &Database) -> CardStatus {
    database.store().card_statuses().remove(0)
}

fn health(database: &Database) -> FlashHealth {
    status(database).health.unwrap()
}

fn amplification(database: &Database) -> f64 {
    status(database).write_amplification.unwrap()
}

#[derive(Debug)]
struct CutQueue {
    inner: Box<dyn FlashQueue>,
    card: CutCard,
    /// Reads of the torn page, and where in them it is.
    torn: HashMap<Tag, usize>,
}

impl FlashQueue for CutQueue {
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn max_pages_per_op(&self) -> usize {
        self.inner.max_pages_per_op()
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        let nand = &self.card.nand;
        let is_due = self.card.faults.next().is_some();
        if is_due && nand.has_power() {
            let pages = match &op {
                FlashOp::Write { buffers, .. } => buffers.len(),
                _ => 1,
            };
            nand.fail_power_at(self.card.faults.below(pages) as u64);
        }
        if let FlashOp::Read {
            tag,
            first,
            buffers,
        } = &op
            && let Some(at) = (self.card.torn.load(Ordering::Relaxed)).checked_sub(first.0)
            && at < buffers.len() as u64
        {
            self.torn.insert(*tag, at as usize);
        }
        let submitted = self.inner.submit(op);
        if is_due {
            nand.cut_power();
        }
        submitted
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        self.inner.wait(min, completions)?;
        for completion in completions {
            if let Some(at) = self.torn.remove(&completion.tag) {
                completion.buffers[at][100] ^= 1;
            }
        }
        Ok(())
    }

    fn cancel_reads(&mut self) {
        self.inner.cancel_reads();
    }
}

fn random_step(rng: &mut StdRng) -> Step {
    match rng.random_range(0..16) {
        0 => Step::Replace("t", rng.random_range(1..30_000)),
        1 => Step::Overwrite("u", rng.random_range(1..30_000)),
        2..5 => Step::Append("t", rng.random_range(1..9000)),
        5..7 => Step::Append("u", rng.random_range(1..500)),
        7..9 => Step::Change("t", rng.random_range(1..60), true),
        9 => Step::Change("u", rng.random_range(2..9), false),
        10 => Step::Transact("t", rng.random_range(3..90), "u"),
        11 => Step::Compact("t"),
        12 => Step::Compact("u"),
        13 => Step::Settle,
        14 => Step::EmptyLog,
        _ => Step::Append("t", 40_000),
    }
}

/// Tables are loaded, changed, deleted from, compacted, indexed and reopened. The oracle is the same
/// on flash at which nothing fails.
#[test]
fn a_database_on_failing_nand_answers_as_one_on_flash_that_never_fails() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rig = Rig::new(rough(seed));
    let sound = super::faults::devices::Rig::new(super::faults::new_database(seed), seed);
    let oracle = super::faults::open(&sound).unwrap();
    let steps = if cfg!(debug_assertions) { 40 } else { 300 };
    let mut database = rig.open(false, LOG_BYTES).unwrap();
    let before = [
        Step::Create("t", 5000, true),
        Step::Create("u", 100, false),
        Step::CreateIndex("t", IndexKind::Ngram),
    ];
    for number in 0..steps {
        let step = before.get(number).copied();
        let step = step.unwrap_or_else(|| random_step(&mut rng));
        step.run(&oracle).unwrap();
        let done = step.run(&database);
        done.unwrap_or_else(|error| panic!("seed {seed}, step {number}: {step:?}: {error}"));
        if rng.random_range(0..10) == 0 || number + 1 == steps {
            drop(database);
            rig = rig.restart(seed);
            database = rig.open(false, LOG_BYTES).unwrap();
            let story = format!("seed {seed}, after step {number}");
            assert!(
                state(&database).unwrap() == state(&oracle).unwrap(),
                "{story}"
            );
        }
    }
    let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    let health = health(&database);
    println!("{health:?}, {:?}", database.store().usage());
    assert!(
        health.bad_blocks > 0 && health.corrected_bits > 0,
        "{health:?}"
    );
    assert_eq!(health.uncorrectable_pages, 0);
}

/// The power fails at random I/Os, in the middle of programs and erases; what the database then
/// opens has blocks that are half written.
#[test]
fn open_blocks_that_a_power_cut_leaves_harm_nobody() {
    let first = seed();
    let rounds = if cfg!(debug_assertions) { 2 } else { 40 };
    let mut rng = StdRng::seed_from_u64(first);
    let (mut cuts, mut open_blocks) = (0, 0);
    for round in 0..rounds {
        for workload in workloads::all() {
            let seed = first.wrapping_add(round);
            let rig = Rig::new(rough(seed));
            let database = rig.open(false, LOG_BYTES).unwrap();
            workload
                .before
                .iter()
                .for_each(|step| step.run(&database).unwrap());
            drop(database);
            let start = rig.restart(seed);
            let clean = start.copy(seed);
            let database = clean.open(false, LOG_BYTES).unwrap();
            let mut states = vec![state(&database).unwrap()];
            clean.faults.plan(u64::MAX, Fault::PowerCut);
            for step in &workload.steps {
                step.run(&database).unwrap();
                states.push(state(&database).unwrap());
            }
            let nth = rng.random_range(0..clean.faults.count().max(1));
            drop(database);

            let story = format!("{}, seed {seed}, I/O {nth}", workload.name);
            start.faults.plan(nth, Fault::PowerCut);
            let mut done = 0;
            if let Ok(database) = start.open(false, LOG_BYTES) {
                let mut steps = workload.steps.iter();
                done = steps
                    .by_ref()
                    .take_while(|step| step.run(&database).is_ok())
                    .count();
            }
            cuts += u64::from(!start.faults.has_power());
            start.faults.end();
            let again = start.restart(seed);
            let database = again.open(false, LOG_BYTES).unwrap();
            let found = state(&database).unwrap_or_else(|error| panic!("{story}: {error}"));
            let allowed = &states[done..states.len().min(done + 2)];
            assert!(
                allowed.contains(&found),
                "{story}: after {done} steps\n{found}"
            );
            let usage = database.store().usage();
            open_blocks += usage.dead_pages.min(1);
            // It goes on: what is written now goes nowhere near the open blocks.
            for step in [Step::Create("on", 3000, true), Step::Append("on", 40)] {
                step.run(&database)
                    .unwrap_or_else(|error| panic!("{story}: {error}"));
            }
            let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
            assert!(problems.is_empty(), "{story}: {problems:?}");
        }
    }
    println!("{cuts} power cuts, {open_blocks} times blocks were left open");
    assert!(cuts > rounds && open_blocks > 0);
}

fn schema(width: i32) -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("bytes", DataType::FixedSizeBinary(width), false),
    ]))
}

/// Rows that do not compress.
fn rows(rng: &mut StdRng, width: i32, count: usize) -> RecordBatch {
    let mut bytes = vec![0; count * width as usize];
    for row in bytes.chunks_exact_mut(width as usize) {
        row[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        // Up to its end, so that a row has its full length in the log.
        row[width as usize - 1] = 1;
    }
    let bytes = FixedSizeBinaryArray::try_from_iter(bytes.chunks(width as usize)).unwrap();
    let ids = Int64Array::from_iter_values(0..count as i64);
    let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(bytes)];
    RecordBatch::try_new(schema(width), columns).unwrap()
}

/// About `pages` pages of them.
fn wide_rows(rng: &mut StdRng, pages: usize) -> RecordBatch {
    rows(rng, 1000, pages * 8)
}

/// With the column of ids, eight pages.
const TABLE_PAGES: usize = 7;
/// How often each table is overwritten.
const ROUNDS: u64 = if cfg!(debug_assertions) { 2 } else { 10 };

fn put(database: &Arc<Database>, target: LoadTarget, rows: &RecordBatch) -> Result<()> {
    let load = database.begin_load(target)?;
    let mut writer = load.writer()?;
    writer.append(rows)?;
    writer.finish()?;
    load.commit().map(drop)
}

fn create(table: &str, width: i32) -> LoadTarget {
    LoadTarget::Create {
        layout: layout(),
        distribution: None,
        retention: std::time::Duration::ZERO,
        defaults: vec![],
        checks: vec![],
        schema: "public".into(),
        table: table.into(),
        arrow_schema: schema(width),
        or_replace: true,
        indexes: Vec::new(),
    }
}

/// The same where it matters where each column's pages end, whatever the layout of this run.
fn create_columns(table: &str, width: i32) -> LoadTarget {
    let mut target = create(table, width);
    if let LoadTarget::Create { layout, .. } = &mut target {
        *layout = TableLayout::Column;
    }
    target
}

/// Overwrites a table with other rows, or makes it. Its pages are two runs: that of all pages in one
/// crosses more blocks, and costs collection more (2.0 writes for one, where these cost 1.6).
fn put_columns(database: &Arc<Database>, table: u64, rng: &mut StdRng) {
    let target = create_columns(&format!("t{table}"), 1000);
    put(database, target, &wide_rows(rng, TABLE_PAGES)).unwrap();
}

/// Makes tables until the card is 80 % full; their number.
fn fill(database: &Arc<Database>, rng: &mut StdRng) -> u64 {
    let capacity = database.store().usage().capacity_pages;
    let mut tables = 0;
    while database.store().usage().pages() * 10 < capacity * 8 {
        put_columns(database, tables, rng);
        tables += 1;
    }
    tables
}

/// Overwrites one of the tables after the other, at random.
fn overwrite(database: &Arc<Database>, tables: u64, rng: &mut StdRng) {
    for _ in 0..ROUNDS * tables {
        let table = rng.random_range(0..tables);
        put_columns(database, table, rng);
    }
}

/// A card that is 80 % full, of which every part is overwritten as often as any other.
#[test]
fn uniform_overwrites_at_80_percent_cost_less_than_two_writes() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let rig = Rig::new(NandOptions {
        shape: NandShape {
            buses: 4,
            chips_per_bus: 2,
            blocks_per_chip: 300,
            pages_per_block: 8,
        },
        lanes: 4,
        bad_at_birth: 0.05,
        bit_errors: WearRate::always(0.0),
        ..options(seed)
    });
    let database = rig.open(true, 1 << 20).unwrap();
    let tables = fill(&database, &mut rng);
    overwrite(&database, tables, &mut rng);
    let usage = database.store().usage();
    let capacity = usage.capacity_pages;
    let health = health(&database);
    let amplification = amplification(&database);
    let spread = f64::from(health.erase_count_max) / health.erase_count_mean;
    println!("{tables} tables, write amplification {amplification:.2}, wear spread {spread:.2}");
    println!("{usage:?} {health:?}");
    assert!(usage.pages() * 100 >= capacity * 79, "{usage:?}");
    assert!(usage.collected_pages > 0, "{usage:?}");
    assert!(amplification < 2.0, "{amplification}");
    // After fewer rounds one erase more is a large share.
    if ROUNDS >= 10 {
        assert!(spread < 1.6, "{health:?}");
    }
}

/// A check of all pages goes around all the time, and whoever overwrites finds room: it keeps hardly
/// anything of what goes meanwhile.
#[test]
fn a_scrub_leaves_room_to_collect() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let rig = Rig::new(NandOptions {
        bad_at_birth: 0.0,
        bit_errors: WearRate::always(0.0),
        ..options(seed)
    });
    let database = rig.open(true, 1 << 20).unwrap();
    let tables = fill(&database, &mut rng);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let scrub = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                database.scrub_pages(f64::INFINITY, &Pace::full()).unwrap();
            }
        });
        overwrite(&database, tables, &mut rng);
        is_done.store(true, Ordering::Relaxed);
        scrub.join().unwrap();
    });
    database.scrub_pages(f64::INFINITY, &Pace::full()).unwrap();
    assert_eq!(database.scrubbed().problems, Vec::<String>::new());
}

/// A card is filled until it is full, some is dropped, and so on: who finds no room is told so, also
/// where a page that can't be read keeps its block from being collected.
#[test]
fn a_full_card_says_so() {
    let first = seed();
    for seed in (0..if cfg!(debug_assertions) { 2 } else { 20 }).map(|n| first.wrapping_add(n)) {
        let mut rng = StdRng::seed_from_u64(seed);
        let rig = Rig::new(small(seed));
        let database = rig.open(rng.random_range(0..2) == 0, LOG_BYTES).unwrap();
        let mut tables: Vec<u64> = Vec::new();
        let mut next = 0;
        for round in 0..4 {
            let story = format!("seed {seed}, round {round}");
            let before = next;
            loop {
                let pages = [2, 13, 40][rng.random_range(0..3)];
                let rows = wide_rows(&mut rng, pages);
                match put(&database, create(&format!("t{next}"), 1000), &rows) {
                    Ok(()) => tables.push(next),
                    Err(StorageError::Full { .. }) => break,
                    Err(error) => panic!("{story}: {error}"),
                }
                next += 1;
            }
            assert!(next > before, "{story}: nothing fits");
            let chosen = tables[rng.random_range(0..tables.len())];
            let version = database.snapshot("public", &format!("t{chosen}")).unwrap();
            let run = version.segments[0].chunks[0].runs().next().unwrap();
            if run.first.card != MEMORY_CARD {
                rig.torn.store(run.first.page.0, Ordering::Relaxed);
            }
            for table in std::mem::take(&mut tables) {
                match table != chosen && rng.random_range(0..3) > 0 {
                    true => database.drop_table("public", &format!("t{table}")).unwrap(),
                    false => tables.push(table),
                }
            }
        }
    }
}

/// A card at the end of its life, whose chips have no good block left to take the place of bad ones:
/// writers and collection alike are refused, which once made collection start again for ever.
#[test]
fn a_worn_out_card_says_so_and_is_read() {
    let first = seed();
    for seed in (0..if cfg!(debug_assertions) { 1 } else { 10 }).map(|n| first.wrapping_add(n)) {
        let mut rng = StdRng::seed_from_u64(seed);
        let rig = Rig::new(NandOptions {
            program_failures: WearRate::always(0.002),
            erase_failures: WearRate::always(0.01),
            ..small(seed)
        });
        let database = rig.open(rng.random_range(0..2) == 0, LOG_BYTES).unwrap();
        let mut tables: HashMap<u64, RecordBatch> = HashMap::new();
        let error = loop {
            let table = rng.random_range(0..40);
            let rows = wide_rows(&mut rng, 13);
            match put(&database, create(&format!("t{table}"), 1000), &rows) {
                Ok(()) => tables.insert(table, rows),
                Err(error) => break error,
            };
        };
        let is_told = matches!(
            error,
            StorageError::Full { .. } | StorageError::NeedsReopening { .. }
        );
        assert!(is_told, "seed {seed}: {error}");
        assert_eq!(health(&database).spare_blocks, 0, "seed {seed}");
        for (table, rows) in tables {
            let found = database.snapshot("public", &format!("t{table}")).unwrap();
            let found = super::read(&database, found).unwrap();
            assert!(found == rows, "seed {seed}: t{table}");
        }
    }
}

/// Half of the data is never touched; the other half is overwritten all the time.
#[test]
fn cold_tables_do_not_keep_blocks_from_wearing() {
    const TABLES: u64 = 120;
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let rig = Rig::new(NandOptions {
        shape: NandShape {
            pages_per_block: 8,
            ..options(seed).shape
        },
        bad_at_birth: 0.05,
        bit_errors: WearRate::always(0.0),
        ..options(seed)
    });
    let database = rig.open(false, LOG_BYTES).unwrap();
    for table in 0..TABLES {
        let rows = wide_rows(&mut rng, TABLE_PAGES);
        put(&database, create(&format!("t{table}"), 1000), &rows).unwrap();
    }
    let mut overwrites = 0;
    let health = loop {
        let table = rng.random_range(0..TABLES / 2);
        let rows = wide_rows(&mut rng, TABLE_PAGES);
        put(&database, create(&format!("t{table}"), 1000), &rows).unwrap();
        overwrites += 1;
        let health = health(&database);
        if health.erase_count_mean >= 30.0 {
            break health;
        }
    };
    let spread = f64::from(health.erase_count_max) / health.erase_count_mean;
    println!("{overwrites} overwrites, wear spread {spread:.2}, {health:?}");
    println!("{:?}", database.store().usage());
    assert!(spread < 1.2, "{health:?}");
}

/// Rows all over a large table are replaced, so that compaction rewrites its segments.
#[test]
fn rows_are_updated_and_compacted() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let rig = Rig::new(NandOptions {
        bad_at_birth: 0.05,
        bit_errors: WearRate::always(0.0),
        ..options(seed)
    });
    let database = rig.open(false, LOG_BYTES).unwrap();
    let count = 4 * SEGMENT_ROWS;
    put(&database, create("t", 32), &rows(&mut rng, 32, count)).unwrap();
    for round in 0..if cfg!(debug_assertions) { 40 } else { 200 } {
        let version = database.snapshot("public", "t").unwrap();
        let mut live: Vec<u64> = Vec::new();
        for segment in &version.segments {
            let ids = (0..segment.rows).filter(|row| segment.has_row(*row));
            live.extend(ids.map(|row| row_id(segment.id, row)));
        }
        assert_eq!(live.len(), count, "seed {seed}, round {round}");
        let chosen: BTreeSet<u64> = (0..count / 50)
            .map(|_| live[rng.random_range(0..count)])
            .collect();
        let batch = rows(&mut rng, 32, chosen.len());
        let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(chosen));
        let columns = batch.columns().iter().cloned();
        let names = ["id", "bytes"].into_iter().zip(columns);
        let batch = RecordBatch::try_from_iter(names.chain([("row_id", ids)])).unwrap();
        let target = LoadTarget::Change {
            schema: "public".into(),
            table: "t".into(),
            version,
        };
        put(&database, target, &batch).unwrap();
        if round % 10 == 9 {
            database.compact("public", "t").unwrap();
        }
    }
    let amplification = amplification(&database);
    println!(
        "write amplification {amplification:.2}, {:?}",
        database.store().usage()
    );
    let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    assert!(amplification < 2.0, "{amplification}");
}

/// A reader of a version keeps its pages although they are moved meanwhile.
#[test]
fn a_reader_keeps_the_pages_that_collection_moves() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let rig = Rig::new(NandOptions {
        bad_at_birth: 0.0,
        bit_errors: WearRate::always(0.0),
        ..options(seed)
    });
    let database = rig.open(false, LOG_BYTES).unwrap();
    for table in 0..40 {
        // Whose pages leave blocks sparse is a matter of where each column's pages end.
        let target = create_columns(&format!("t{table}"), 1000);
        put(&database, target, &wide_rows(&mut rng, 20)).unwrap();
    }
    database.empty_log().unwrap();
    for table in (0..40).filter(|table| table % 4 != 0) {
        database.drop_table("public", &format!("t{table}")).unwrap();
    }
    let versions = (0..40).step_by(4).map(|table| {
        let version = database.snapshot("public", &format!("t{table}")).unwrap();
        let rows = super::read(&database, Arc::clone(&version)).unwrap();
        (version, rows)
    });
    let versions: Vec<_> = versions.collect();
    let live = database.store().usage().live_pages;
    let _ = crate::store::Collector::collect(&**database).unwrap();
    let moved = database.store().usage().collected_pages;
    assert!(moved > 0);
    assert_eq!(database.store().usage().live_pages, live + moved);
    // Newer versions than those that are read go, with the pages that both share.
    for (version, rows) in &versions {
        let name = version.name.strip_prefix("public.").unwrap();
        assert!(
            super::read(&database, database.snapshot("public", name).unwrap()).unwrap() == *rows
        );
        database.drop_table("public", name).unwrap();
        assert!(super::read(&database, Arc::clone(version)).unwrap() == *rows);
    }
    drop(versions);
    assert_eq!(database.store().usage().live_pages, 0);
    assert!(matches!(
        database.snapshot("public", "t0"),
        Err(StorageError::NotFound { .. })
    ));
}

/// The power fails again and again while a card that is nearly full is overwritten and collected.
#[test]
fn what_was_acknowledged_outlives_power_cuts_during_collection() {
    const TABLES: u64 = 40;
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rig = Rig::new(NandOptions {
        shape: small(seed).shape,
        reserve: small(seed).reserve,
        ..rough(seed)
    });
    let content = |version: u64| wide_rows(&mut StdRng::seed_from_u64(version), 13);
    // The versions that a table may be of: what was acknowledged, and what was not.
    let mut versions: Vec<Vec<u64>> = Vec::new();
    let (mut next, mut collected, mut cuts) = (0, 0, 0);
    for round in 0..if cfg!(debug_assertions) { 12 } else { 60 } {
        let story = format!("seed {seed}, round {round}");
        let database = rig.open(rng.random_range(0..2) == 0, LOG_BYTES).unwrap();
        for (table, versions) in versions.iter_mut().enumerate() {
            let found = database.snapshot("public", &format!("t{table}"));
            let Ok(found) = found else {
                assert!(versions.contains(&u64::MAX), "{story}: t{table} is missing");
                continue;
            };
            let found = super::read(&database, found).unwrap();
            versions.retain(|version| *version != u64::MAX && content(*version) == found);
            assert_eq!(versions.len(), 1, "{story}: t{table}");
        }
        rig.faults.plan(rng.random_range(0..600), Fault::PowerCut);
        for _ in 0..200 {
            let table = match versions.len() as u64 {
                // Each is made once.
                count if count < TABLES => count,
                _ => rng.random_range(0..TABLES),
            };
            if table == versions.len() as u64 {
                versions.push(vec![u64::MAX]);
            }
            next += 1;
            let done = put(
                &database,
                create(&format!("t{table}"), 1000),
                &content(next),
            );
            let versions = &mut versions[table as usize];
            match done {
                Ok(()) => *versions = vec![next],
                Err(error) => {
                    assert!(!rig.faults.has_power(), "{story}: {error}");
                    versions.push(next);
                    break;
                }
            }
        }
        collected += database.store().usage().collected_pages;
        cuts += u64::from(!rig.faults.has_power());
        drop(database);
        rig.faults.end();
        rig = rig.restart(seed);
    }
    println!(
        "{cuts} power cuts, {collected} pages collected, {:?}",
        rig.nand.health()
    );
    assert!(cuts > 2 && collected > 0);
}

//! Copies that go away, come back, are emptied, lose what they had not synced, against a model.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::tests::seeds;
use super::super::{
    Completion, FaultFlash, FaultOptions, FlashPage, MemoryFlash, PAGE_SIZE_BYTES, PageBuffer,
    Random, Tag, When, check_op, conformance,
};
use super::*;

const GEOMETRY: Geometry = Geometry {
    pages_per_erase_block: 8,
    erase_blocks: 24,
};

/// A node with a copy, which can be away. When it restarts, what was opened before is of no use, and
/// what was not synced may be lost.
#[derive(Debug)]
struct Node {
    name: String,
    life: Mutex<Life>,
}

#[derive(Debug)]
struct Life {
    /// What is on the flash, and the cache before it.
    below: Arc<MemoryFlash>,
    device: Arc<FaultFlash>,
    /// Ends what was opened.
    is_over: Arc<AtomicBool>,
    is_away: bool,
    /// It was opened in this life.
    is_open: bool,
    /// Operations fail at times.
    is_failing: bool,
    /// Another device answers where this one was.
    is_foreign: bool,
    seed: u64,
}

impl Node {
    fn new(name: &str, seed: u64) -> Arc<Self> {
        let below = Arc::new(MemoryFlash::new(GEOMETRY, seed));
        Arc::new(Self {
            name: name.into(),
            life: Mutex::new(Life {
                device: Arc::new(FaultFlash::new(below.clone(), FaultOptions::default())),
                below,
                is_over: Arc::default(),
                is_away: false,
                is_open: false,
                is_failing: false,
                is_foreign: false,
                seed,
            }),
        })
    }

    /// Ends it; what was not synced has reached the flash or has not.
    fn kill(&self) {
        let life = &mut *self.life.lock();
        (life.is_away, life.is_open, life.is_failing) = (true, false, false);
        life.is_over.store(true, Ordering::SeqCst);
        life.is_over = Arc::default();
        life.device.cut_power().unwrap();
        life.seed += 1;
        life.below = Arc::new(life.below.copy(life.seed));
        life.device = Arc::new(FaultFlash::new(life.below.clone(), FaultOptions::default()));
    }

    fn start(&self) {
        self.life.lock().is_away = false;
    }

    /// Puts an empty card in.
    fn empty(&self) {
        self.kill();
        let life = &mut *self.life.lock();
        life.below = Arc::new(MemoryFlash::new(GEOMETRY, life.seed));
        life.device = Arc::new(FaultFlash::new(life.below.clone(), FaultOptions::default()));
    }

    /// Has operations and syncs fail at times, from now on or not any more.
    fn fail(&self, when: When, seed: u64) {
        let life = &mut *self.life.lock();
        life.is_failing = when != When::Never;
        life.device.set_options(FaultOptions {
            seed,
            fail: when,
            fail_sync: when,
            ..FaultOptions::default()
        });
    }

    /// Whether it does all that it is asked for by who has opened it.
    fn is_well(&self) -> bool {
        let life = self.life.lock();
        life.is_open && !life.is_failing
    }
}

impl CopySource for Node {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self) -> Result<Arc<dyn Flash>> {
        let life = &mut *self.life.lock();
        life.is_open = !life.is_away;
        if life.is_foreign {
            return Err(StorageError::Invalid(format!(
                "{} is another card",
                self.name
            )));
        }
        match life.is_away {
            true => Err(gone(&self.name)),
            false => Ok(Arc::new(Link {
                device: life.device.clone(),
                is_over: life.is_over.clone(),
                has_failed_sync: AtomicBool::new(false),
            })),
        }
    }
}

fn gone(name: &str) -> StorageError {
    let source = io::Error::new(io::ErrorKind::ConnectionAborted, "it is away");
    StorageError::io(name.to_string(), source)
}

/// A way to a node in one of its lives.
#[derive(Debug)]
struct Link {
    device: Arc<FaultFlash>,
    is_over: Arc<AtomicBool>,
    /// As cards of other nodes, it syncs nothing any more then.
    has_failed_sync: AtomicBool,
}

impl Link {
    fn check(&self) -> Result<()> {
        match self.is_over.load(Ordering::SeqCst) {
            true => Err(gone("link")),
            false => Ok(()),
        }
    }
}

impl Flash for Link {
    fn name(&self) -> String {
        "link".into()
    }

    fn geometry(&self) -> Geometry {
        GEOMETRY
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        self.check()?;
        self.device.used_erase_blocks()
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        self.check()?;
        Ok(Box::new(LinkQueue {
            inner: self.device.open_queue()?,
            is_over: self.is_over.clone(),
        }))
    }

    fn sync(&self) -> Result<()> {
        self.check()?;
        let failed = self.has_failed_sync.load(Ordering::SeqCst);
        let earlier = || StorageError::io("link", io::Error::other("an earlier sync has failed"));
        let synced = match failed {
            true => Err(earlier()),
            false => self.device.sync().and_then(|()| self.check()),
        };
        self.has_failed_sync
            .store(synced.is_err(), Ordering::SeqCst);
        synced
    }

    fn continues_blocks(&self) -> bool {
        true
    }

    fn health(&self) -> Option<FlashHealth> {
        None
    }
}

#[derive(Debug)]
struct LinkQueue {
    inner: Box<dyn FlashQueue>,
    is_over: Arc<AtomicBool>,
}

impl FlashQueue for LinkQueue {
    fn depth(&self) -> usize {
        3
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn max_pages_per_op(&self) -> usize {
        5
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        check_op(self, &op, GEOMETRY)?;
        self.inner.submit(op)
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let before = completions.len();
        self.inner.wait(min, completions)?;
        if self.is_over.load(Ordering::SeqCst) {
            for completion in &mut completions[before..] {
                completion.result = Err(gone("link"));
            }
        }
        Ok(())
    }

    fn cancel_reads(&mut self) {
        self.inner.cancel_reads();
    }
}

/// A ledger in memory.
#[derive(Debug, Default)]
struct Ledger {
    behind: Mutex<BTreeSet<usize>>,
    is_full: AtomicBool,
}

impl CopyLedger for Ledger {
    fn is_behind(&self, copy: usize) -> bool {
        self.behind.lock().contains(&copy)
    }

    fn set_behind(&self, copy: usize, is_behind: bool) -> Result<()> {
        if self.is_full.load(Ordering::SeqCst) {
            let source = io::Error::from(io::ErrorKind::StorageFull);
            return Err(StorageError::io("writing the ledger", source));
        }
        let mut behind = self.behind.lock();
        match is_behind {
            true => behind.insert(copy),
            false => behind.remove(&copy),
        };
        Ok(())
    }
}

struct Bed {
    nodes: Vec<Arc<Node>>,
    ledger: Arc<Ledger>,
}

impl Bed {
    fn new(copies: usize, seed: u64) -> Self {
        let node = |number| Node::new(&format!("n{number}"), seed ^ (number as u64) << 32);
        Self {
            nodes: (0..copies).map(node).collect(),
            ledger: Arc::default(),
        }
    }

    /// Of two copies the second is away, and lacks page 1.
    fn with_one_behind() -> (Self, MirroredFlash) {
        let bed = Self::new(2, 1);
        let flash = bed.open().unwrap();
        write(&flash, 0, vec![page(1)]).unwrap();
        flash.sync().unwrap();
        bed.nodes[1].kill();
        write(&flash, 1, vec![page(2)]).unwrap();
        flash.sync().unwrap();
        (bed, flash)
    }

    fn open(&self) -> Result<MirroredFlash> {
        let sources = self.nodes.iter().map(|node| node.clone() as _).collect();
        MirroredFlash::open(sources, self.ledger.clone())
    }
}

fn page(version: u64) -> PageBuffer {
    let mut buffer = PageBuffer::recycled();
    let mut random = Random::new(version);
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    buffer
}

fn zero() -> Vec<u8> {
    vec![0; PAGE_SIZE_BYTES]
}

fn alone(flash: &dyn Flash, op: FlashOp) -> Result<Vec<PageBuffer>> {
    let mut queue = flash.open_queue()?;
    queue.submit(op)?;
    let mut completions = Vec::new();
    queue.wait(1, &mut completions)?;
    let ended = completions.pop().unwrap();
    ended.result.map(|()| ended.buffers)
}

fn read(flash: &dyn Flash, first: u64, pages: usize) -> Result<Vec<PageBuffer>> {
    let buffers = (0..pages).map(|_| PageBuffer::recycled()).collect();
    let (tag, first) = (Tag(0), FlashPage(first));
    alone(
        flash,
        FlashOp::Read {
            tag,
            first,
            buffers,
        },
    )
}

fn write(flash: &dyn Flash, first: u64, buffers: Vec<PageBuffer>) -> Result<()> {
    let (tag, first) = (Tag(0), FlashPage(first));
    let write = FlashOp::Write {
        tag,
        first,
        buffers,
    };
    alone(flash, write).map(|_| ())
}

fn erase(flash: &dyn Flash, block: u64) -> Result<()> {
    let first = FlashPage(block * u64::from(GEOMETRY.pages_per_erase_block));
    alone(flash, FlashOp::Erase { tag: Tag(0), first }).map(|_| ())
}

/// Tends until all copies are whole, which they are soon when all nodes are there.
fn tend(flash: &MirroredFlash) {
    for _ in 0..10 {
        if flash.tend().unwrap() {
            return;
        }
    }
    panic!("copies do not come back: {:?}", flash.copies());
}

#[test]
fn copies_conform() {
    struct Copies(usize);
    impl conformance::Subject for Copies {
        fn create(&self) -> Arc<dyn Flash> {
            Arc::new(Bed::new(self.0, 1).open().unwrap())
        }
    }
    for seed in seeds(5) {
        for copies in 1..=3 {
            conformance::run_all(&Copies(copies), seed);
        }
    }
}

/// One copy at least is whole at any time, so no read and no change fails, and what was synced is on
/// all copies that are whole, whatever the others go through.
#[test]
fn any_history_agrees_with_a_model_while_copies_come_and_go() {
    let (mut caught_up, mut fell_behind) = (0, 0);
    for seed in seeds(60) {
        let mut random = Random::new(seed);
        let copies = 2 + random.below(2) as usize;
        let bed = Bed::new(copies, seed);
        let mut flash = bed.open().unwrap();
        let block_pages = u64::from(GEOMETRY.pages_per_erase_block);
        // Of each page what it has, where it is not zero; of each block how far it is written.
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let mut ends = vec![0; GEOMETRY.erase_blocks as usize];
        let mut version = 0;
        for _ in 0..250 {
            let block = random.below(GEOMETRY.erase_blocks / 2);
            let end = &mut ends[block as usize];
            match random.below(20) {
                0..8 if *end < block_pages => {
                    let pages = 1 + random.below(block_pages - *end);
                    let first = block * block_pages + *end;
                    let versions = version + 1..=version + pages;
                    let buffers = versions.clone().map(page).collect();
                    version += pages;
                    write(&flash, first, buffers).unwrap();
                    model.extend((first..).zip(versions));
                    *end += pages;
                }
                8 => {
                    erase(&flash, block).unwrap();
                    *end = 0;
                    let pages = block * block_pages..(block + 1) * block_pages;
                    model.retain(|page, _| !pages.contains(page));
                }
                9..12 => flash.sync().unwrap(),
                12..15 => {
                    let first = block * block_pages;
                    let found = read(&flash, first, block_pages as usize).unwrap();
                    for (number, found) in (first..).zip(found) {
                        let expected = model.get(&number).map(|version| page(*version));
                        let expected = expected.map_or_else(zero, |page| page.to_vec());
                        assert!(found.to_vec() == expected, "page {number}");
                    }
                }
                15 => {
                    // Of the copies that would be left one has everything.
                    let number = random.below(copies as u64) as usize;
                    let whole = |(other, copy): (usize, CopyStatus)| {
                        let is_well = bed.nodes[other].is_well();
                        other != number && copy.is_there && !copy.is_behind && is_well
                    };
                    if flash.copies().into_iter().enumerate().any(whole) {
                        match random.below(4) {
                            0 => bed.nodes[number].empty(),
                            1 => bed.nodes[number].fail(When::OneIn(3), random.next()),
                            _ => bed.nodes[number].kill(),
                        }
                    }
                }
                16 | 17 => {
                    let number = random.below(copies as u64) as usize;
                    bed.nodes[number].start();
                }
                18 => {
                    flash.tend().unwrap();
                }
                19 if random.below(4) == 0 => {
                    // The head restarts: what was not synced may be anything, so it is synced.
                    flash.sync().unwrap();
                    let whole = flash.copies().into_iter().zip(&bed.nodes);
                    let mut whole =
                        whole.filter(|(copy, node)| !copy.is_behind && !node.life.lock().is_away);
                    if whole.next().is_some() {
                        drop(flash);
                        flash = bed.open().unwrap();
                    }
                }
                _ => {}
            }
            fell_behind += flash.copies().iter().filter(|copy| copy.is_behind).count();
        }
        flash.sync().unwrap();
        for node in &bed.nodes {
            node.fail(When::Never, 0);
            node.start();
        }
        tend(&flash);
        assert!(bed.ledger.behind.lock().is_empty());
        caught_up += 1;
        // Each copy alone has everything, durably.
        for node in &bed.nodes {
            node.kill();
            let found = read(
                &*node.life.lock().below,
                0,
                (GEOMETRY.erase_blocks / 2 * block_pages) as usize,
            )
            .unwrap();
            for (number, found) in (0..).zip(found) {
                let expected = model.get(&number).map(|version| page(*version));
                let expected = expected.map_or_else(zero, |page| page.to_vec());
                assert!(found.to_vec() == expected, "{}, page {number}", node.name);
            }
        }
    }
    assert!(caught_up == 60 && fell_behind > 500, "{fell_behind}");
}

/// Writers that go on all the time do not keep a copy from coming back, and miss nothing of theirs.
#[test]
fn a_copy_catches_up_while_others_write() {
    for seed in seeds(6) {
        let bed = Bed::new(2, seed);
        let flash = bed.open().unwrap();
        write(&flash, 0, vec![page(1); 8]).unwrap();
        flash.sync().unwrap();
        bed.nodes[1].kill();
        write(&flash, 8, vec![page(2); 8]).unwrap();
        assert!(flash.copies()[1].is_behind);
        bed.nodes[1].start();
        let is_done = AtomicBool::new(false);
        let written: Vec<u64> = thread::scope(|scope| {
            let (flash, is_done) = (&flash, &is_done);
            let write_on = |writer: u64| {
                let mut written = 0;
                // Each has blocks of its own, in which it goes round.
                while !is_done.load(Ordering::SeqCst) || written < 100 {
                    let block = 2 + writer * 4 + written / 8 % 4;
                    if written % 8 == 0 {
                        erase(flash, block).unwrap();
                    }
                    let version = writer << 32 | written;
                    write(flash, block * 8 + written % 8, vec![page(version)]).unwrap();
                    written += 1;
                }
                written
            };
            let writers: Vec<_> = (0..3)
                .map(|writer| scope.spawn(move || write_on(writer)))
                .collect();
            while !flash.tend().unwrap() {}
            is_done.store(true, Ordering::SeqCst);
            writers.into_iter().map(|w| w.join().unwrap()).collect()
        });
        flash.sync().unwrap();
        bed.nodes[0].kill();
        for (writer, written) in (0..).zip(written) {
            let last = written - 1;
            let block = 2 + writer * 4 + last / 8 % 4;
            let found = read(&flash, block * 8 + last % 8, 1).unwrap();
            assert_eq!(found[0].to_vec(), page(writer << 32 | last).to_vec());
        }
        let found = read(&flash, 0, 16).unwrap();
        assert!(found[..8].iter().all(|found| **found == *page(1)));
        assert!(found[8..].iter().all(|found| **found == *page(2)));
    }
}

#[test]
fn the_last_copy_tells_what_it_could_not_do() {
    let bed = Bed::new(2, 1);
    let flash = bed.open().unwrap();
    write(&flash, 0, vec![page(1)]).unwrap();
    flash.sync().unwrap();
    bed.nodes[0].kill();
    write(&flash, 1, vec![page(2)]).unwrap();
    bed.nodes[1].kill();
    // What was written last was not synced: nobody may be told that it is durable.
    assert!(write(&flash, 2, vec![page(3)]).is_err());
    assert!(read(&flash, 0, 1).is_err());
    assert!(flash.sync().is_err());
    // However often and by whom it is found to be away, it stays the one that was there last.
    assert!(write(&flash, 3, vec![page(4)]).is_err());
    flash.suspect(1);
    assert!(flash.sync().is_err());
    assert!(bed.ledger.is_behind(0) && !bed.ledger.is_behind(1));
    bed.nodes.iter().for_each(|node| node.start());
    flash.tend().unwrap();
    let error = flash.sync().unwrap_err().to_string();
    assert!(error.contains("may be lost"), "{error}");
    assert_eq!(read(&flash, 0, 1).unwrap()[0].to_vec(), page(1).to_vec());
    // Opened anew, both are there: the one that was there last has brought the other one up to it.
    drop(flash);
    let flash = bed.open().unwrap();
    tend(&flash);
    flash.sync().unwrap();
}

/// A node that restarts between two uses, with an empty card or without what was not synced.
#[test]
fn copies_that_were_replaced_are_found_out_by_asking() {
    let bed = Bed::new(2, 1);
    let flash = bed.open().unwrap();
    write(&flash, 0, vec![page(1)]).unwrap();
    flash.sync().unwrap();
    let there = || {
        flash
            .copies()
            .iter()
            .map(|copy| copy.is_there)
            .collect::<Vec<_>>()
    };
    flash.ask();
    assert_eq!(there(), [true, true]);
    bed.nodes[1].empty();
    bed.nodes[1].start();
    flash.ask();
    assert_eq!(there(), [true, false]);
    tend(&flash);
    bed.nodes[0].kill();
    assert_eq!(read(&flash, 0, 1).unwrap()[0].to_vec(), page(1).to_vec());
    // The last one that has all: what was not synced is lost, and said to be.
    write(&flash, 1, vec![page(2)]).unwrap();
    bed.nodes[1].kill();
    bed.nodes[1].start();
    flash.ask();
    let error = flash.sync().unwrap_err().to_string();
    assert!(error.contains("may be lost"), "{error}");
}

#[test]
fn what_can_not_be_recorded_is_not_told_as_done() {
    let bed = Bed::new(2, 1);
    let flash = bed.open().unwrap();
    bed.nodes[1].kill();
    bed.ledger.is_full.store(true, Ordering::SeqCst);
    let error = write(&flash, 0, vec![page(1)]).unwrap_err().to_string();
    assert!(error.contains("the ledger"), "{error}");
    assert!(write(&flash, 8, vec![page(1)]).is_err() && flash.sync().is_err());
    bed.ledger.is_full.store(false, Ordering::SeqCst);
    write(&flash, 16, vec![page(1)]).unwrap();
    flash.sync().unwrap();
    assert!(bed.ledger.is_behind(1) && !bed.ledger.is_behind(0));
}

/// Who closes the ways to copies does not say of them that they lack anything.
#[test]
fn a_copy_is_not_behind_for_being_closed_at_this_end() {
    let bed = Bed::new(2, 1);
    let flash = bed.open().unwrap();
    write(&flash, 0, vec![page(1)]).unwrap();
    flash.close();
    write(&flash, 8, vec![page(1)]).unwrap();
    flash.sync().unwrap();
    bed.nodes[1].kill();
    let error = write(&flash, 16, vec![page(1)]).unwrap_err().to_string();
    assert!(error.contains("closed"), "{error}");
    assert!(write(&flash, 24, vec![page(1)]).is_err() && flash.sync().is_err());
    assert!(!bed.ledger.is_behind(1) && !bed.ledger.is_behind(0));
}

#[test]
fn copies_that_are_away_or_lack_pages_are_named() {
    let (bed, flash) = Bed::with_one_behind();
    drop(flash);
    bed.nodes[0].kill();
    bed.nodes[1].start();
    let error = bed.open().unwrap_err().to_string();
    assert!(
        error.contains("n1 lacks pages") && error.contains("n0"),
        "{error}"
    );
    // An empty card is no copy of one that is not.
    bed.nodes[0].start();
    let flash = bed.open().unwrap();
    tend(&flash);
    drop(flash);
    bed.nodes[0].empty();
    bed.nodes[0].start();
    let flash = bed.open().unwrap();
    assert!(flash.copies()[0].is_behind);
    assert_eq!(read(&flash, 1, 1).unwrap()[0].to_vec(), page(2).to_vec());
}

#[test]
fn copies_of_other_shapes_are_refused() {
    #[derive(Debug)]
    struct Other;
    impl CopySource for Other {
        fn name(&self) -> String {
            "other".into()
        }

        fn open(&self) -> Result<Arc<dyn Flash>> {
            let geometry = Geometry {
                pages_per_erase_block: 16,
                ..GEOMETRY
            };
            Ok(Arc::new(MemoryFlash::new(geometry, 1)))
        }
    }
    let sources: Vec<Arc<dyn CopySource>> = vec![Node::new("n0", 1), Arc::new(Other)];
    let error = MirroredFlash::open(sources, Arc::<Ledger>::default()).unwrap_err();
    assert!(
        error.to_string().contains("erase blocks of 16 pages"),
        "{error}"
    );
}

/// What a copy has is not erased before there is something to put in its place.
#[test]
fn what_can_not_be_read_anywhere_is_not_erased() {
    let (bed, flash) = Bed::with_one_behind();
    bed.nodes[1].start();
    bed.nodes[0].fail(When::OneIn(1), 1);
    assert!(flash.tend().is_err());
    let device = bed.nodes[1].life.lock().device.clone();
    assert_eq!(read(&*device, 0, 1).unwrap()[0].to_vec(), page(1).to_vec());
    bed.nodes[0].fail(When::Never, 1);
    tend(&flash);
    assert_eq!(read(&*device, 1, 1).unwrap()[0].to_vec(), page(2).to_vec());
}

/// A block that nobody can read holds up no other.
#[test]
fn what_can_be_read_is_copied() {
    let bed = Bed::new(2, 1);
    let flash = bed.open().unwrap();
    bed.nodes[1].kill();
    for block in 0..3 {
        write(&flash, block * 8, vec![page(block); 8]).unwrap();
    }
    flash.sync().unwrap();
    bed.nodes[1].start();
    bed.nodes[0].fail(When::Nth(1), 1);
    assert!(flash.tend().is_err());
    let device = bed.nodes[1].life.lock().device.clone();
    let found = |block: u64| read(&*device, block * 8, 1).unwrap()[0].to_vec();
    assert_eq!(
        [found(0), found(1), found(2)],
        [zero(), page(1).to_vec(), page(2).to_vec()]
    );
    assert!(flash.copies()[1].is_behind);
    tend(&flash);
    assert_eq!(found(0), page(0).to_vec());
}

/// Nothing of the card was ever durable, so nothing is lost with it.
#[test]
fn copies_that_went_before_anything_was_synced_are_used_again() {
    let bed = Bed::new(2, 1);
    let flash = bed.open().unwrap();
    bed.nodes.iter().for_each(|node| node.kill());
    write(&flash, 0, vec![page(1)]).unwrap_err();
    assert!(flash.sync().is_err());
    bed.nodes.iter().for_each(|node| node.start());
    tend(&flash);
    assert!(
        flash
            .copies()
            .iter()
            .all(|copy| copy.is_there && !copy.is_behind)
    );
}

/// A node that was away for a moment is found again while another's card is copied.
#[test]
fn copies_are_looked_for_while_others_are_copied() {
    let (bed, flash) = Bed::with_one_behind();
    let copying = flash.shared.tending.lock();
    bed.nodes[1].start();
    flash.look().unwrap();
    assert!(flash.copies()[1].is_there);
    drop(copying);
    tend(&flash);
}

#[test]
fn a_copy_that_does_not_fit_holds_up_no_other() {
    let bed = Bed::new(3, 1);
    let flash = bed.open().unwrap();
    bed.nodes[1].kill();
    bed.nodes[2].kill();
    write(&flash, 0, vec![page(1)]).unwrap();
    bed.nodes[1].life.lock().is_foreign = true;
    bed.nodes[2].start();
    let error = flash.tend().unwrap_err().to_string();
    assert!(error.contains("n1 is another card"), "{error}");
    let copies = flash.copies();
    assert!(copies[1].is_behind && copies[2].is_there && !copies[2].is_behind);
}

/// The 24 blocks of the device, of which a node that goes away has taken the most for good.
#[test]
fn a_copy_goes_on_catching_up_where_it_was() {
    let bed = Bed::new(2, 1);
    let flash = bed.open().unwrap();
    bed.nodes[1].kill();
    for block in 0..24 {
        write(&flash, block * 8, vec![page(block); 8]).unwrap();
    }
    flash.sync().unwrap();
    bed.nodes[1].start();
    let device = || bed.nodes[1].life.lock().device.clone();
    let fail_at = |operation| {
        device().set_options(FaultOptions {
            fail: When::Nth(operation),
            ..FaultOptions::default()
        });
    };
    // Of each block one erase and two writes: it fails at the 21st. The first 18 were synced; what was not
    // may be lost, as the node goes.
    fail_at(20 * 3);
    assert!(!flash.tend().unwrap());
    bed.nodes[1].kill();
    bed.nodes[1].start();
    fail_at(6 * 3);
    assert!(flash.tend().unwrap());
    device().set_options(FaultOptions::default());
    bed.nodes[0].kill();
    for block in 0..24 {
        let found = read(&flash, block * 8, 8).unwrap();
        assert!(
            found.iter().all(|found| **found == *page(block)),
            "block {block}"
        );
    }
}

/// A device that has failed a sync may do so until it is opened anew.
#[test]
fn a_copy_that_failed_a_sync_is_opened_anew() {
    for is_catching_up in [false, true] {
        let bed = Bed::new(2, 1);
        let flash = bed.open().unwrap();
        let fail_once = || {
            let device = bed.nodes[1].life.lock().device.clone();
            device.set_options(FaultOptions {
                fail_sync: When::Nth(0),
                ..FaultOptions::default()
            });
        };
        if is_catching_up {
            bed.nodes[1].kill();
            write(&flash, 0, vec![page(1)]).unwrap();
            bed.nodes[1].start();
            fail_once();
            assert!(!flash.tend().unwrap());
        } else {
            write(&flash, 0, vec![page(1)]).unwrap();
            fail_once();
        }
        flash.sync().unwrap();
        assert!(bed.ledger.is_behind(1) && flash.copies()[1].is_behind);
        tend(&flash);
        bed.nodes[0].kill();
        assert_eq!(read(&flash, 0, 1).unwrap()[0].to_vec(), page(1).to_vec());
    }
}

/// The last copy's device, which went away in a sync, is opened anew like others.
#[test]
fn the_last_copy_that_went_away_in_a_sync_comes_back() {
    let bed = Bed::new(2, 1);
    let flash = bed.open().unwrap();
    write(&flash, 0, vec![page(1)]).unwrap();
    flash.sync().unwrap();
    bed.nodes[1].kill();
    write(&flash, 1, vec![page(2)]).unwrap();
    bed.nodes[0].kill();
    assert!(flash.sync().is_err());
    bed.nodes.iter().for_each(|node| node.start());
    tend(&flash);
    let error = flash.sync().unwrap_err().to_string();
    assert!(error.contains("may be lost"), "{error}");
    assert_eq!(read(&flash, 0, 1).unwrap()[0].to_vec(), page(1).to_vec());
}

/// A device in this process.
#[derive(Debug)]
struct Here(Arc<MemoryFlash>);

impl CopySource for Here {
    fn name(&self) -> String {
        "here".into()
    }

    fn open(&self) -> Result<Arc<dyn Flash>> {
        Ok(self.0.clone())
    }
}

/// Of more pages than an operation may have.
#[test]
fn large_blocks_are_copied() {
    let geometry = Geometry {
        pages_per_erase_block: 300,
        erase_blocks: 2,
    };
    let devices = [1, 2].map(|seed| Arc::new(MemoryFlash::new(geometry, seed)));
    let sources = devices
        .iter()
        .map(|device| Arc::new(Here(device.clone())) as _);
    let ledger = Arc::new(Ledger::default());
    ledger.set_behind(1, true).unwrap();
    let flash = MirroredFlash::open(sources.collect(), ledger).unwrap();
    for first in (0..300).step_by(100) {
        let pages = (first..first + 100).map(page).collect();
        write(&flash, first, pages).unwrap();
    }
    assert!(flash.tend().unwrap());
    for number in 0..300 {
        let found = read(&*devices[1], number, 1).unwrap();
        assert!(*found[0] == *page(number), "page {number}");
    }
}

/// The last copy that lacks nothing may be away though its device is there: a disk that is not mounted.
#[test]
fn a_last_copy_that_is_empty_is_away() {
    let (bed, flash) = Bed::with_one_behind();
    bed.nodes[1].start();
    let whole = bed.nodes[0].life.lock().below.clone();
    for is_open in [true, false] {
        bed.nodes[0].empty();
        bed.nodes[0].start();
        match is_open {
            true => drop(flash.tend()),
            false => {
                let error = bed.open().unwrap_err().to_string();
                assert!(error.contains("n0 is empty"), "{error}");
            }
        }
        assert!(!bed.ledger.is_behind(0) && bed.ledger.is_behind(1));
    }
    bed.nodes[0].kill();
    {
        let life = &mut *bed.nodes[0].life.lock();
        life.below = whole;
        life.device = Arc::new(FaultFlash::new(life.below.clone(), FaultOptions::default()));
    }
    bed.nodes[0].start();
    drop(flash);
    let flash = bed.open().unwrap();
    tend(&flash);
    bed.nodes[0].kill();
    assert_eq!(read(&flash, 1, 1).unwrap()[0].to_vec(), page(2).to_vec());
}

//! A card, a catalog's file and a log that fail together: one count of I/O runs over all.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redb::StorageBackend;

use crate::flash::{
    Completion, FaultFlash, FaultOptions, Flash, FlashHealth, FlashOp, FlashQueue, Geometry,
    MemoryFlash, When,
};
use crate::{Result, StorageError};

const SECTOR_BYTES: usize = 512;
const GEOMETRY: Geometry = Geometry {
    pages_per_erase_block: 32,
    erase_blocks: 4096,
};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// One I/O fails; of a write a part may have been done.
    Error,
    /// From that I/O on there is no room for what was not there before.
    Full,
    /// From that I/O on nothing works, and what was not synced is there in part.
    PowerCut,
    /// Whoever makes that I/O panics.
    Panic,
}

impl Fault {
    /// Those that devices have.
    pub const ALL: [Self; 3] = [Self::Error, Self::Full, Self::PowerCut];
}

/// Which I/O goes wrong, and how.
#[derive(Debug)]
pub struct Faults {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    plan: Option<(u64, Fault)>,
    /// I/O since the plan was made.
    count: u64,
    has_power: bool,
    random: StdRng,
}

impl Faults {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                plan: None,
                count: 0,
                has_power: true,
                random: StdRng::seed_from_u64(seed),
            }),
        })
    }

    /// Lets the `nth` I/O from now on, counted from 0, go wrong.
    pub fn plan(&self, nth: u64, fault: Fault) {
        let mut state = self.state.lock();
        (state.plan, state.count) = (Some((nth, fault)), 0);
    }

    /// Ends what can be ended; gives whether the planned I/O has come.
    pub fn end(&self) -> bool {
        let mut state = self.state.lock();
        let planned = state.plan.take();
        planned.is_some_and(|(nth, _)| state.count > nth)
    }

    pub fn has_power(&self) -> bool {
        self.state.lock().has_power
    }

    /// I/O since the plan was made.
    pub fn count(&self) -> u64 {
        self.state.lock().count
    }

    /// What happens to an I/O that is made now.
    pub fn next(&self) -> Option<Fault> {
        let mut state = self.state.lock();
        if !state.has_power {
            return Some(Fault::PowerCut);
        }
        let (nth, fault) = state.plan?;
        let count = state.count;
        state.count += 1;
        let is_due = match fault {
            Fault::Full => count >= nth,
            _ => count == nth,
        };
        if is_due && fault == Fault::PowerCut {
            state.has_power = false;
        }
        assert!(!is_due || fault != Fault::Panic, "it was told to panic");
        is_due.then_some(fault)
    }

    pub fn below(&self, bound: usize) -> usize {
        self.state.lock().random.random_range(0..bound)
    }
}

fn failed() -> io::Error {
    io::Error::other("injected fault")
}

fn full() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSPC)
}

/// What the devices hold when nothing is in flight.
#[derive(Debug)]
pub struct Disks {
    pub card: MemoryFlash,
    pub catalog: Vec<u8>,
    pub log: Vec<u8>,
}

impl Disks {
    pub fn blank(seed: u64) -> Self {
        Self {
            card: MemoryFlash::new(GEOMETRY, seed),
            catalog: Vec::new(),
            log: Vec::new(),
        }
    }

    pub fn copy(&self, seed: u64) -> Self {
        Self {
            card: self.card.copy(seed),
            catalog: self.catalog.clone(),
            log: self.log.clone(),
        }
    }
}

/// The devices of one run.
#[derive(Debug, Clone)]
pub struct Rig {
    pub faults: Arc<Faults>,
    memory: Arc<MemoryFlash>,
    pub card: Arc<FaultyCard>,
    pub catalog: FaultyFile,
    pub log: FaultyFile,
}

impl Rig {
    pub fn new(disks: Disks, seed: u64) -> Self {
        let faults = Faults::new(seed);
        let memory = Arc::new(disks.card);
        let options = FaultOptions {
            seed,
            ..FaultOptions::default()
        };
        let flash = Arc::new(FaultFlash::new(memory.clone(), options));
        Self {
            memory,
            card: Arc::new(FaultyCard {
                flash,
                options,
                faults: Arc::clone(&faults),
            }),
            catalog: FaultyFile::new(disks.catalog, &faults),
            log: FaultyFile::new(disks.log, &faults),
            faults,
        }
    }

    /// What a new process finds. A power cut that was planned has taken its toll; else all that
    /// was written is there, but for what a failed sync has dropped.
    pub fn restart(&self, seed: u64) -> Disks {
        if self.faults.has_power() {
            self.card.flash.sync().unwrap();
        } else if self.card.flash.has_power() {
            self.card.flash.cut_power().unwrap();
        }
        Disks {
            card: self.memory.copy(seed),
            catalog: self.catalog.restart(),
            log: self.log.restart(),
        }
    }
}

/// A card with planned faults.
#[derive(Debug)]
pub struct FaultyCard {
    flash: Arc<FaultFlash>,
    options: FaultOptions,
    faults: Arc<Faults>,
}

impl FaultyCard {
    /// Cuts the card's power if the fault says so.
    fn feel(&self, fault: Option<Fault>) {
        if fault == Some(Fault::PowerCut) && self.flash.has_power() {
            self.flash.cut_power().unwrap();
        }
    }

    /// Runs `work` with the wrapped device failing at once.
    fn failing<R>(&self, options: FaultOptions, work: impl FnOnce() -> R) -> R {
        self.flash.set_options(FaultOptions {
            seed: self.faults.below(usize::MAX) as u64,
            ..options
        });
        let result = work();
        self.flash.set_options(self.options);
        result
    }
}

impl Flash for FaultyCard {
    fn name(&self) -> String {
        "faulty card".into()
    }

    fn geometry(&self) -> Geometry {
        self.flash.geometry()
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        self.flash.used_erase_blocks()
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        Ok(Box::new(FaultyQueue {
            inner: self.flash.open_queue()?,
            card: Self {
                flash: Arc::clone(&self.flash),
                options: self.options,
                faults: Arc::clone(&self.faults),
            },
            refused: Vec::new(),
        }))
    }

    fn sync(&self) -> Result<()> {
        let fault = self.faults.next();
        self.feel(fault);
        match fault {
            Some(Fault::Error) => {
                let options = FaultOptions {
                    fail_sync: When::Nth(0),
                    ..self.options
                };
                self.failing(options, || self.flash.sync())
            }
            _ => self.flash.sync(),
        }
    }

    fn continues_blocks(&self) -> bool {
        self.flash.continues_blocks()
    }

    fn health(&self) -> Option<FlashHealth> {
        self.flash.health()
    }
}

#[derive(Debug)]
struct FaultyQueue {
    inner: Box<dyn FlashQueue>,
    card: FaultyCard,
    /// Writes that found no room.
    refused: Vec<Completion>,
}

impl FlashQueue for FaultyQueue {
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.refused.len()
    }

    fn max_pages_per_op(&self) -> usize {
        self.inner.max_pages_per_op()
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        let fault = self.card.faults.next();
        self.card.feel(fault);
        match (fault, op) {
            (Some(Fault::Error), op) => {
                let options = FaultOptions {
                    fail: When::Nth(0),
                    ..self.card.options
                };
                let inner = &mut self.inner;
                self.card.failing(options, || inner.submit(op))
            }
            (Some(Fault::Full), FlashOp::Write { tag, buffers, .. }) => {
                self.refused.push(Completion {
                    tag,
                    result: Err(StorageError::Full {
                        device: self.card.name(),
                        needed_bytes: buffers.len() as u64,
                        free_bytes: 0,
                    }),
                    buffers,
                });
                Ok(())
            }
            (_, op) => self.inner.submit(op),
        }
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let min = min.saturating_sub(self.refused.len());
        completions.append(&mut self.refused);
        self.inner.wait(min, completions)
    }

    fn cancel_reads(&mut self) {
        self.inner.cancel_reads();
    }
}

/// A file with planned faults, and a system's cache before its disk.
#[derive(Debug, Clone)]
pub struct FaultyFile {
    faults: Arc<Faults>,
    file: Arc<Mutex<File>>,
}

struct File {
    /// What is on the disk.
    durable: Vec<u8>,
    /// What reading shows.
    seen: Vec<u8>,
    /// Sectors that were written and not synced.
    unsynced: BTreeSet<usize>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.seen.len())
    }
}

impl File {
    fn write(&mut self, offset: usize, data: &[u8]) {
        self.seen[offset..offset + data.len()].copy_from_slice(data);
        let sectors = offset / SECTOR_BYTES..(offset + data.len()).div_ceil(SECTOR_BYTES);
        self.unsynced.extend(sectors);
    }

    /// Takes the sectors that `reaches` to the disk and forgets the others.
    fn sync(&mut self, mut reaches: impl FnMut() -> bool) {
        if reaches() {
            self.durable.resize(self.seen.len(), 0);
        }
        for sector in std::mem::take(&mut self.unsynced) {
            let start = sector * SECTOR_BYTES;
            let end = (start + SECTOR_BYTES).min(self.seen.len().min(self.durable.len()));
            if start < end && reaches() {
                self.durable[start..end].copy_from_slice(&self.seen[start..end]);
            }
        }
    }
}

impl FaultyFile {
    pub fn new(bytes: Vec<u8>, faults: &Arc<Faults>) -> Self {
        Self {
            faults: Arc::clone(faults),
            file: Arc::new(Mutex::new(File {
                durable: bytes.clone(),
                seen: bytes,
                unsynced: BTreeSet::new(),
            })),
        }
    }

    pub fn restart(&self) -> Vec<u8> {
        let mut file = self.file.lock();
        if self.faults.has_power() {
            file.sync(|| true);
        } else {
            file.sync(|| self.faults.below(2) == 0);
        }
        file.durable.clone()
    }

    /// What comes of an I/O.
    fn check(&self, takes_room: bool) -> io::Result<()> {
        match self.faults.next() {
            None => Ok(()),
            Some(Fault::Full) if !takes_room => Ok(()),
            Some(Fault::Full) => Err(full()),
            Some(_) => Err(failed()),
        }
    }
}

impl StorageBackend for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.lock().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check(false)?;
        let file = self.file.lock();
        let found = file.seen.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let takes_room = len as usize > self.file.lock().seen.len();
        self.check(takes_room)?;
        self.file.lock().seen.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let result = self.check(false);
        if result.is_ok() {
            self.file.lock().sync(|| true);
        } else if self.faults.has_power() {
            let faults = &self.faults;
            self.file.lock().sync(|| faults.below(2) == 0);
        }
        result
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut file = self.file.lock();
        let place = offset as usize..offset as usize + data.len();
        let is_new = file.seen[place].iter().all(|byte| *byte == 0);
        let had_power = self.faults.has_power();
        let result = self.check(is_new);
        let written = match &result {
            Ok(()) => data.len(),
            Err(_) if !had_power => 0,
            Err(_) => self.faults.below(data.len() / SECTOR_BYTES + 1) * SECTOR_BYTES,
        };
        file.write(offset as usize, &data[..written]);
        result
    }
}

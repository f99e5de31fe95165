//! Copies of a card on several nodes as one device, so that none of its pages goes with a node.

mod queue;
mod tend;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::{
    Flash, FlashHealth, FlashOp, FlashPage, FlashQueue, Geometry, JoinedFlash, PageBuffer, Tag,
};
use crate::{Result, StorageError};
use queue::{Asked, MirroredQueue};
use tend::run;

/// That of [`JoinedFlash`], by which each copy is reached.
const MAX_PAGES_PER_OP: usize = 128;

/// Where a copy of a card is.
pub trait CopySource: Debug + Send + Sync {
    /// A name for messages, that of the device.
    fn name(&self) -> String;
    /// Opens the device anew. When what it holds may be another thing than before, as its node has
    /// restarted, what was opened earlier fails from then on with an error of the system.
    ///
    /// # Errors
    /// `Io` where it can't be reached.
    fn open(&self) -> Result<Arc<dyn Flash>>;
}

/// Remembers which copies of a card lack something, durably.
pub trait CopyLedger: Debug + Send + Sync {
    /// Whether that copy was behind when this was last said of it.
    fn is_behind(&self, copy: usize) -> bool;
    /// Says so of a copy. When it returns, that is durable; when it fails, what was said before is.
    fn set_behind(&self, copy: usize, is_behind: bool) -> Result<()>;
}

/// Copies of a card. Reads go to the first copy that is there and lacks nothing, and to the next where
/// that fails; writes and erases go to all.
///
/// A copy that fails a change, or whose device was opened anew behind a change that was not synced, is
/// *behind* from then on: that is in the ledger before anybody is told that the change has ended well,
/// and nothing is read from it until [`MirroredFlash::catch_up`] has brought it up to the others, erase
/// block by erase block, while they are used. Which blocks it lacks is kept in memory: a copy that was
/// behind at an earlier opening is copied as a whole.
///
/// The last copy is never behind: what it fails, fails. There is one writer (the holder of the
/// catalog), so copies need not agree on anything among themselves.
#[derive(Debug)]
pub struct MirroredFlash {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sources: Vec<Arc<dyn CopySource>>,
    ledger: Arc<dyn CopyLedger>,
    geometry: Geometry,
    state: Mutex<State>,
    /// Held by who syncs, by who looks for copies, and by who brings them up to the others.
    syncing: Mutex<()>,
    looking: Mutex<()>,
    tending: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    copies: Vec<Copy>,
    /// Blocks with changes that are under way, and how many.
    in_flight: HashMap<u64, u32>,
    /// Blocks that were changed since the last sync began.
    unsynced: BTreeSet<u64>,
    /// Those that are being synced.
    syncing: BTreeSet<u64>,
    /// Blocks, counted from the start, that were seen to be used or were changed.
    used: u64,
    /// So many of them when it was opened, or when a sync that went well began.
    synced_used: u64,
    /// Why changes may be lost that no copy is known to have: no later sync can tell.
    lost: Option<String>,
    /// What fails says nothing of copies any more.
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Copy {
    /// Its device; `None` while it can't be reached.
    link: Option<Arc<dyn Flash>>,
    /// How often it was opened.
    generation: u64,
    behind: Option<Behind>,
}

/// What a copy lacks.
#[derive(Debug, Default)]
struct Behind {
    /// Nobody knows: all.
    everything: bool,
    blocks: BTreeSet<u64>,
    /// The block that is being copied.
    copying: Option<u64>,
    /// Blocks that were copied or changed since, and are not synced on this copy.
    given: BTreeSet<u64>,
    /// The ledger has it.
    is_recorded: bool,
}

/// A copy, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyStatus {
    /// The device's name.
    pub name: String,
    /// Whether it can be reached.
    pub is_there: bool,
    /// Whether it lacks something.
    pub is_behind: bool,
}

impl Behind {
    fn has(&self, block: u64) -> bool {
        self.everything || self.copying == Some(block) || self.blocks.contains(&block)
    }

    fn is_done(&self) -> bool {
        !self.everything && self.blocks.is_empty() && self.copying.is_none()
    }

    /// What it was given may not be there any more.
    fn forget_given(&mut self) {
        self.blocks.append(&mut self.given);
    }
}

impl State {
    /// Whether a copy beside that one lacks nothing, be it away or not.
    fn has_another(&self, number: usize) -> bool {
        let mut copies = self.copies.iter().enumerate();
        copies.any(|(other, copy)| other != number && copy.behind.is_none())
    }
}

impl Copy {
    /// Whether everything can be read from it.
    fn is_whole(&self) -> bool {
        self.link.is_some() && self.behind.is_none()
    }
}

/// Whether an error is that of one copy: another may do what it could not.
fn is_of_copy(error: &StorageError) -> bool {
    matches!(
        error,
        StorageError::Io { .. } | StorageError::Full { .. } | StorageError::Corrupt { .. }
    )
}

impl MirroredFlash {
    /// Opens the copies of a card, the one that is to be read first. Some may be away.
    ///
    /// A copy that holds nothing while another does is behind: a node was replaced by an empty one, or
    /// is to hold a copy only now.
    ///
    /// # Errors
    /// `Io` where no copy that lacks nothing can be reached, naming each and why; `Invalid` where
    /// copies have erase blocks of several sizes.
    pub fn open(sources: Vec<Arc<dyn CopySource>>, ledger: Arc<dyn CopyLedger>) -> Result<Self> {
        let mut state = State::default();
        let mut why = Vec::new();
        let mut geometry: Option<Geometry> = None;
        let mut used = Vec::with_capacity(sources.len());
        for (number, source) in sources.iter().enumerate() {
            let mut copy = Copy::default();
            if ledger.is_behind(number) {
                why.push(format!("{} lacks pages", source.name()));
                copy.behind = Some(Behind {
                    everything: true,
                    is_recorded: true,
                    ..Behind::default()
                });
            }
            let opened = source.open().and_then(|flash| {
                let blocks = flash.used_erase_blocks()?;
                Ok((flash, blocks))
            });
            let mut own_used = None;
            match opened {
                Ok((flash, blocks)) => {
                    let own = flash.geometry();
                    let least = geometry.get_or_insert(own);
                    check_blocks(&flash.name(), own, *least)?;
                    least.erase_blocks = least.erase_blocks.min(own.erase_blocks);
                    copy.link = Some(joined(flash)?);
                    own_used = Some(blocks);
                    state.used = state.used.max(blocks);
                }
                Err(error) if is_of_copy(&error) => why.push(error.to_string()),
                Err(error) => return Err(error),
            }
            used.push(own_used);
            state.copies.push(copy);
        }
        let shared = Shared {
            geometry: geometry.ok_or_else(|| no_copy(&why.join("; ")))?,
            sources,
            ledger,
            state: Mutex::default(),
            syncing: Mutex::default(),
            looking: Mutex::default(),
            tending: Mutex::default(),
        };
        for (number, used) in used.into_iter().enumerate() {
            if used == Some(0) && state.used > 0 && state.copies[number].behind.is_none() {
                why.push(format!("{} is empty", shared.sources[number].name()));
                match state.has_another(number) {
                    true => shared.lacks_everything(&mut state, number)?,
                    // What it had may only be away.
                    false => state.copies[number].link = None,
                }
            }
        }
        if !state.copies.iter().any(Copy::is_whole) {
            return Err(no_copy(&why.join("; ")));
        }
        state.synced_used = state.used;
        *shared.state.lock() = state;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Each copy, in the order in which they are read.
    pub fn copies(&self) -> Vec<CopyStatus> {
        let state = self.shared.state.lock();
        let copies = state.copies.iter().zip(&self.shared.sources);
        let status = |(copy, source): (&Copy, &Arc<dyn CopySource>)| CopyStatus {
            name: source.name(),
            is_there: copy.link.is_some(),
            is_behind: copy.behind.is_some(),
        };
        copies.map(status).collect()
    }

    /// Asks the copies that count as there whether they are, and still are what was opened. Where nothing
    /// else was asked of a node that has restarted, perhaps with an empty card, nobody may know of it. Such
    /// a copy is not used until [`MirroredFlash::look`] has found it again. Blocks meanwhile.
    pub fn ask(&self) {
        for (number, source) in self.shared.sources.iter().enumerate() {
            let (link, generation) = {
                let state = self.shared.state.lock();
                let copy = &state.copies[number];
                (copy.link.clone(), copy.generation)
            };
            // Of its node, in the life in which it was opened.
            let asked = link.map_or(Ok(0), |link| link.used_erase_blocks());
            if let Err(error) = asked
                && error.is_gone()
            {
                log::warn!("{}: {error}", source.name());
                // Where the ledger fails, changes are told.
                let _ = self
                    .shared
                    .lost(&mut self.shared.state.lock(), number, generation);
            }
        }
    }

    /// A copy seems to be away: it is not used until [`Self::look`] has found it again.
    pub fn suspect(&self, number: usize) {
        let state = &mut *self.shared.state.lock();
        let generation = state.copies[number].generation;
        // Where the ledger fails, changes are told.
        let _ = self.shared.lost(state, number, generation);
    }

    /// To be called before the ways to the copies are closed at this end. A change that fails on some
    /// copies from now on has failed, as in a crash; those copies are not behind for that.
    pub fn close(&self) {
        self.shared.state.lock().is_closed = true;
    }
}

fn no_copy(why: &str) -> StorageError {
    let source = io::Error::new(io::ErrorKind::NotConnected, why.to_string());
    StorageError::io("no copy of the card can be used", source)
}

fn away_or_behind() -> StorageError {
    no_copy("all are away or lack pages")
}

fn went_away(name: &str) -> String {
    format!("{name} went away, and what was written before may be lost")
}

fn check_blocks(name: &str, own: Geometry, others: Geometry) -> Result<()> {
    match own.pages_per_erase_block == others.pages_per_erase_block {
        true => Ok(()),
        false => Err(StorageError::Invalid(format!(
            "{name} has erase blocks of {} pages, other copies of {}",
            own.pages_per_erase_block, others.pages_per_erase_block
        ))),
    }
}

/// A copy's device behind a queue that takes operations of any size, and more of them than it does.
fn joined(flash: Arc<dyn Flash>) -> Result<Arc<dyn Flash>> {
    Ok(Arc::new(JoinedFlash::new([(0, flash)])?))
}

impl Shared {
    fn blocks_of(&self, op: &FlashOp) -> RangeInclusive<u64> {
        let block_pages = u64::from(self.geometry.pages_per_erase_block.max(1));
        let first = op.first().0;
        let last = first + op.pages().max(1) as u64 - 1;
        first / block_pages..=last / block_pages
    }

    /// Has the ledger say which copies are behind.
    fn record(&self, state: &mut State) -> Result<()> {
        for (number, copy) in state.copies.iter_mut().enumerate() {
            if let Some(behind) = copy.behind.as_mut().filter(|behind| !behind.is_recorded) {
                if state.is_closed {
                    return Err(no_copy("they are closed"));
                }
                self.ledger.set_behind(number, true)?;
                behind.is_recorded = true;
            }
        }
        Ok(())
    }

    /// A copy lacks these blocks, and all that was not synced. It does also when the ledger fails.
    fn set_behind(
        &self,
        state: &mut State,
        number: usize,
        blocks: impl IntoIterator<Item = u64>,
    ) -> Result<()> {
        let copy = &mut state.copies[number];
        if copy.behind.is_none() {
            log::warn!("{} is behind from now on", self.sources[number].name());
        }
        let behind = copy.behind.get_or_insert_default();
        behind.blocks.extend(blocks);
        let unsynced = state.unsynced.iter().chain(&state.syncing);
        behind.blocks.extend(unsynced.chain(state.in_flight.keys()));
        behind.forget_given();
        self.record(state)
    }

    fn lacks_everything(&self, state: &mut State, number: usize) -> Result<()> {
        let behind = state.copies[number].behind.get_or_insert_default();
        behind.everything = true;
        self.record(state)
    }

    /// A copy's device is not there any more, or is another one. With it may be lost what it had not
    /// synced. Whoever says so later, of the same opening, says nothing new: what was changed since, the
    /// copy was not given.
    fn lost(&self, state: &mut State, number: usize, generation: u64) -> Result<()> {
        let copy = &mut state.copies[number];
        if copy.generation != generation || copy.link.is_none() {
            return Ok(());
        }
        let is_synced = state.unsynced.is_empty() && state.syncing.is_empty();
        let was_whole = copy.is_whole();
        copy.link = None;
        if is_synced && state.in_flight.is_empty() && was_whole {
            return Ok(());
        }
        let others = state.copies.iter().enumerate();
        let mut others = others.filter(|(other, _)| *other != number);
        if was_whole && !others.any(|(_, copy)| copy.is_whole()) {
            let name = self.sources[number].name();
            state.lost.get_or_insert_with(|| went_away(&name));
            return Ok(());
        }
        self.set_behind(state, number, [])
    }

    /// A copy has failed a change of these blocks.
    fn failed(
        &self,
        state: &mut State,
        number: usize,
        generation: u64,
        error: &StorageError,
        blocks: impl IntoIterator<Item = u64>,
    ) -> Result<()> {
        log::warn!("{}: {error}", self.sources[number].name());
        self.set_behind(state, number, blocks)?;
        match error.is_gone() {
            true => self.lost(state, number, generation),
            false => Ok(()),
        }
    }

    /// A copy has failed a sync: what it was given before may be lost, and some devices sync nothing
    /// any more until they are opened anew.
    fn failed_sync(
        &self,
        state: &mut State,
        number: usize,
        generation: u64,
        error: &StorageError,
    ) -> Result<()> {
        log::warn!("{}: {error}", self.sources[number].name());
        self.set_behind(state, number, [])?;
        self.lost(state, number, generation)
    }

    /// Which copies a change of these blocks is to be given to.
    fn begin_change(&self, blocks: &RangeInclusive<u64>) -> Vec<usize> {
        let state = &mut *self.state.lock();
        for block in blocks.clone() {
            *state.in_flight.entry(block).or_default() += 1;
            state.unsynced.insert(block);
        }
        state.used = state.used.max(blocks.end() + 1);
        let mut targets = Vec::with_capacity(state.copies.len());
        for (number, copy) in state.copies.iter_mut().enumerate() {
            match &mut copy.behind {
                Some(behind)
                    if copy.link.is_none() || blocks.clone().any(|block| behind.has(block)) =>
                {
                    behind.blocks.extend(blocks.clone());
                }
                Some(behind) => {
                    behind.given.extend(blocks.clone());
                    targets.push(number);
                }
                None => targets.push(number),
            }
        }
        targets
    }

    /// What came of a change: well ended when a whole copy has it, and those that have not are behind.
    fn end_change(
        &self,
        blocks: &RangeInclusive<u64>,
        done: &[usize],
        failed: Vec<(Asked, StorageError)>,
    ) -> Result<()> {
        let state = &mut *self.state.lock();
        for block in blocks.clone() {
            // A sync that began meanwhile need not have seen it.
            state.unsynced.insert(block);
            if let Some(count) = state.in_flight.get_mut(&block) {
                *count -= 1;
                if *count == 0 {
                    state.in_flight.remove(&block);
                }
            }
        }
        let is_whole = |number: &&usize| state.copies[**number].behind.is_none();
        let is_done = done.iter().any(|number| is_whole(&number));
        let fatal = failed.iter().position(|(_, error)| !is_of_copy(error));
        if fatal.is_none() && is_done {
            for ((number, generation), error) in failed {
                self.failed(state, number, generation, &error, blocks.clone())?;
            }
            return self.record(state);
        }
        // Of copies that are behind nobody knows what they have of it.
        for copy in &mut state.copies {
            if let Some(behind) = &mut copy.behind {
                behind.blocks.extend(blocks.clone());
            }
        }
        let mut first = None;
        for (at, ((number, generation), error)) in failed.into_iter().enumerate() {
            if error.is_gone() && number < state.copies.len() {
                self.lost(state, number, generation)?;
            }
            if first.is_none() && fatal.is_none_or(|fatal| fatal == at) {
                first = Some(error);
            }
        }
        Err(first.unwrap_or_else(away_or_behind))
    }
}

impl Flash for MirroredFlash {
    fn name(&self) -> String {
        let first = self.shared.sources.first();
        first.map_or_else(String::new, |source| source.name())
    }

    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    /// The most of any copy: what a crash has left of changes that were not synced may be on one of
    /// them alone.
    fn used_erase_blocks(&self) -> Result<u64> {
        Ok(self.shared.state.lock().used)
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        Ok(Box::new(MirroredQueue::new(Arc::clone(&self.shared))))
    }

    /// Ends well when one whole copy has synced: those that have not are behind then.
    fn sync(&self) -> Result<()> {
        let _alone = self.shared.syncing.lock();
        let used;
        let whole: Vec<_> = {
            let state = &mut *self.shared.state.lock();
            state.syncing = std::mem::take(&mut state.unsynced);
            used = state.used;
            let copies = state.copies.iter().enumerate();
            let whole = copies.filter(|(_, copy)| copy.is_whole());
            let link = |(number, copy): (usize, &Copy)| {
                Some((number, copy.generation, copy.link.clone()?))
            };
            whole.filter_map(link).collect()
        };
        let outcomes: Vec<_> = thread::scope(|scope| {
            let sync = |(_, _, link): &(usize, u64, Arc<dyn Flash>)| {
                let link = Arc::clone(link);
                scope.spawn(move || link.sync())
            };
            let threads: Vec<_> = whole.iter().map(sync).collect();
            let panicked = || Err(StorageError::Invalid("syncing a card has panicked".into()));
            let outcomes = threads.into_iter().map(|thread| thread.join());
            outcomes
                .map(|outcome| outcome.unwrap_or_else(|_| panicked()))
                .collect()
        });
        let state = &mut *self.shared.state.lock();
        let result = self.synced(state, whole, outcomes);
        let synced = std::mem::take(&mut state.syncing);
        match result {
            Ok(()) => state.synced_used = state.synced_used.max(used),
            Err(_) => state.unsynced.extend(synced),
        }
        result
    }

    /// No: a crash may have left pages behind on one copy that another has not.
    fn continues_blocks(&self) -> bool {
        false
    }

    /// That of the first copy that is whole.
    fn health(&self) -> Option<FlashHealth> {
        let link = {
            let state = self.shared.state.lock();
            let whole = state.copies.iter().find(|copy| copy.is_whole());
            whole.and_then(|copy| copy.link.clone())
        };
        link?.health()
    }

    fn copies_of(&self, page: FlashPage) -> Vec<(usize, PageBuffer)> {
        let whole: Vec<_> = {
            let state = self.shared.state.lock();
            let copies = state.copies.iter().enumerate();
            let whole = copies.filter(|(_, copy)| copy.is_whole());
            whole
                .filter_map(|(number, copy)| Some((number, copy.link.clone()?)))
                .collect()
        };
        let read = |(number, link): (usize, Arc<dyn Flash>)| {
            let read = FlashOp::Read {
                tag: Tag(0),
                first: page,
                buffers: vec![PageBuffer::recycled()],
            };
            let read = link
                .open_queue()
                .and_then(|mut queue| run(&mut *queue, read));
            Some((number, read.ok()?.pop()?))
        };
        whole.into_iter().filter_map(read).collect()
    }

    fn renew(&self, page: FlashPage, copies: &[usize]) {
        let block = page.0 / u64::from(self.shared.geometry.pages_per_erase_block.max(1));
        let state = &mut *self.shared.state.lock();
        for &number in copies {
            let mut others = state.copies.iter().enumerate();
            if others.any(|(other, copy)| other != number && copy.is_whole()) {
                // Where the ledger fails, changes are told.
                let _ = self.shared.set_behind(state, number, [block]);
            }
        }
    }
}

impl MirroredFlash {
    /// What came of syncing copies that were whole, with how often they had been opened.
    fn synced(
        &self,
        state: &mut State,
        whole: Vec<(usize, u64, Arc<dyn Flash>)>,
        outcomes: Vec<Result<()>>,
    ) -> Result<()> {
        let mut failed = Vec::new();
        let mut is_synced = false;
        for ((number, generation, _), outcome) in whole.into_iter().zip(outcomes) {
            match outcome {
                // One that fell behind or was opened anew meanwhile does not count.
                Ok(()) => {
                    let copy = &state.copies[number];
                    is_synced |= copy.behind.is_none() && copy.generation == generation;
                }
                Err(error) if is_of_copy(&error) => failed.push((number, generation, error)),
                Err(error) => return Err(error),
            }
        }
        if let Some(why) = &state.lost {
            return Err(no_copy(why));
        }
        if !is_synced {
            // Of none it is known what it lacks. Those go on being read whose device is still there.
            for (number, generation, error) in &failed {
                let copy = &mut state.copies[*number];
                if error.is_gone() && copy.generation == *generation {
                    copy.link = None;
                    let name = self.shared.sources[*number].name();
                    state.lost.get_or_insert_with(|| went_away(&name));
                }
            }
            let first = failed.into_iter().next();
            return Err(first.map_or_else(away_or_behind, |(.., error)| error));
        }
        for (number, generation, error) in failed {
            self.shared.failed_sync(state, number, generation, &error)?;
        }
        self.shared.record(state)
    }
}

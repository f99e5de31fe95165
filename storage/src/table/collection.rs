//! Garbage collection: live pages move out of erase blocks that are mostly dead, so that these can
//! be erased.
//!
//! On a bounded card a writer that finds no room asks for it ([`Collector`]), and the thread that
//! keeps indexes up does so before. A step chooses blocks of which all live pages belong to the
//! present state, not only to versions that readers hold or to what is being written, and whose
//! runs are cheapest to move: a run moves whole, into whichever blocks it reaches. The step is a
//! checkpoint ([`super::commits`]) that also rewrites these runs and says in the same transaction of
//! the catalog where they are. Old and new version of a segment share what was not moved.
//!
//! The cache of external files ([`crate::block_cache`]) gives way first: what it holds is a copy.
//!
//! BlueDBM leaves this to software above raw flash (section 4) after RFS, whose point it is: who
//! knows what is live needs no second map for it. Blocks are chosen greedily by cost, as the uniform
//! case has no better choice; what was moved goes to blocks of its own, so that cold data gathers.

use std::collections::HashMap;

use crate::flash::PAGE_SIZE_BYTES;
use crate::segment::Chunk;
use crate::store::{CardId, ClosedBlock, Collector, MEMORY_CARD, NodeId, PageRun};
use crate::table::database::Core;
use crate::table::state::{State, TableState};
use crate::{Result, StorageError};

/// Pages that a step moves at most (32 MiB): commits wait for it.
pub(super) const STEP_MAX_PAGES: u64 = 4096;
/// What a step must gain, in blocks, besides those that what it moves takes up.
const STEP_GAIN_BLOCKS: u64 = 2;

/// Regions that the cache of external files gives up at once.
const CACHE_REGIONS: usize = 4;

/// Runs on cards that are to be moved, by the numbers of their first pages.
#[derive(Debug, Default)]
pub(super) struct Victims {
    /// With the card that each goes to, if it does not stay on its own.
    firsts: HashMap<u64, Option<(NodeId, CardId)>>,
}

impl Victims {
    /// The card that a run goes to, if it does not stay on its own.
    pub fn destination(&self, run: &PageRun) -> Option<(NodeId, CardId)> {
        *self.firsts.get(&run.first.number())?
    }

    /// One more run that is on a card, and goes to another one.
    pub fn add(&mut self, run: &PageRun, to: (NodeId, CardId)) {
        self.firsts.insert(run.first.number(), Some(to));
    }

    pub fn is_empty(&self) -> bool {
        self.firsts.is_empty()
    }

    pub fn has(&self, run: &PageRun) -> bool {
        run.first.card != MEMORY_CARD && self.firsts.contains_key(&run.first.number())
    }
}

/// The runs of one block.
#[derive(Debug, Default)]
struct Owned {
    live_pages: u64,
    room: u64,
    /// Pages of it that belong to runs of the state.
    owned_pages: u64,
    /// First pages and lengths.
    runs: Vec<(u64, u64)>,
    /// Pages of it whose runs were chosen.
    chosen_pages: u64,
}

/// Chooses what a step moves, and the blocks for whose sake, by the numbers of their first pages:
/// `max_pages` at most. `runs` are those of the state on cards.
fn choose(
    blocks: Vec<ClosedBlock>,
    runs: impl Iterator<Item = (u64, u64)>,
    max_pages: u64,
) -> (Victims, Vec<u64>) {
    let nothing = (Victims::default(), Vec::new());
    let Some(first) = blocks.first() else {
        return nothing;
    };
    let block_pages = first.pages.end - first.pages.start;
    let of_closed = |block: ClosedBlock| {
        let owned = Owned {
            live_pages: block.live_pages.into(),
            room: block.room.into(),
            ..Owned::default()
        };
        (block.pages.start / block_pages, owned)
    };
    let mut owned: HashMap<u64, Owned> = blocks.into_iter().map(of_closed).collect();
    let shares = |(first, count): (u64, u64)| {
        let blocks = first / block_pages..(first + count).div_ceil(block_pages);
        blocks.map(move |block| {
            let start = first.max(block * block_pages);
            let end = (first + count).min((block + 1) * block_pages);
            (block, end - start)
        })
    };
    for run in runs {
        for (block, pages) in shares(run) {
            if let Some(block) = owned.get_mut(&block) {
                block.owned_pages += pages;
                block.runs.push(run);
            }
        }
    }
    let cost = |owned: &Owned| owned.runs.iter().map(|(_, count)| count).sum::<u64>();
    let sparse = owned.iter().filter(|(_, block)| {
        block.live_pages + block.room < block_pages && block.owned_pages == block.live_pages
    });
    let mut sparse: Vec<_> = sparse.map(|(block, owned)| (cost(owned), *block)).collect();
    sparse.sort_unstable();
    let (mut victims, mut chosen) = (Victims::default(), Vec::new());
    let (mut moved, mut emptied) = (0, 0);
    for (_, block) in sparse {
        let mut runs = owned[&block].runs.clone();
        runs.retain(|(first, _)| !victims.firsts.contains_key(first));
        if moved + runs.iter().map(|(_, count)| count).sum::<u64>() > max_pages {
            continue;
        }
        chosen.push(block * block_pages);
        for run in runs {
            victims.firsts.insert(run.0, None);
            moved += run.1;
            for (block, pages) in shares(run) {
                if let Some(block) = owned.get_mut(&block) {
                    block.chosen_pages += pages;
                    emptied += u64::from(block.chosen_pages == block.live_pages);
                }
            }
        }
        if emptied >= moved.div_ceil(block_pages) + STEP_GAIN_BLOCKS {
            break;
        }
    }
    match emptied > moved.div_ceil(block_pages) {
        true => (victims, chosen),
        false => nothing,
    }
}

impl Core {
    /// Moves live pages until erase blocks are not short any more, or nothing is to be gained.
    pub(super) fn collect_due(&self) -> Result<()> {
        while self.store().is_short_of_blocks() {
            let free = self.store().free_blocks();
            match self.collect() {
                // Readers may hold what was moved.
                Ok(moved) if moved && self.store().free_blocks() > free => {}
                Ok(_) => break,
                Err(error) => {
                    log::warn!("collecting dead pages: {error}");
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Collector for Core {
    fn collect(&self) -> Result<bool> {
        self.check_writable()?;
        let before = self.store().free_blocks();
        // What is only a copy goes before anything is moved.
        while let Some(cache) = self.block_cache()
            && cache.give_way(CACHE_REGIONS)
        {
            if self.store().free_blocks() > before {
                return Ok(true);
            }
        }
        let moved = self.move_pages(|state: &State| {
            let chunks = state.tables.values().flat_map(TableState::chunks);
            let runs = chunks.flat_map(Chunk::runs);
            let unreadable = self.unreadable();
            let movable = runs
                .filter(|run| run.first.card != MEMORY_CARD && !unreadable.contains(&run.identity));
            let runs = movable.map(|run| (run.first.number(), run.count.into()));
            let store = self.store();
            let room = store.free_bytes().saturating_sub(store.memory_bytes());
            let max_pages = (room / PAGE_SIZE_BYTES as u64).min(STEP_MAX_PAGES);
            let (victims, blocks) = choose(store.closed_blocks(), runs, max_pages);
            store.withdraw(blocks.into_iter());
            victims
        });
        match moved {
            Err(StorageError::Full { .. }) => Ok(false),
            moved => moved,
        }
    }
}

#[cfg(test)]
mod tests;

//! Emptying cards, so that their nodes can leave the rack: nothing new is written to a card that is
//! drained ([`PageStore::drain`](crate::store::PageStore::drain)), and the thread that keeps indexes up
//! moves what is there to the others.
//!
//! What moves together lay together: all pages of a segment, or of a part of an index, go to one card,
//! so that a node can run a scan over them. A step moves pages as garbage collection does
//! ([`super::collection`]): readers go on with the old places, which are given back with the last of them.

use crate::index::pace::Pace;
use crate::store::{CardId, NodeId, PageRun};
use crate::table::Database;
use crate::table::collection::{STEP_MAX_PAGES, Victims};
use crate::table::database::Core;
use crate::table::state::{State, TableState};
use crate::{Result, StorageError};

impl Database {
    /// Empties these cards, and no others: see [`Database::live_pages`] for what is left on them. The
    /// database does not remember it: it is said again after each opening.
    ///
    /// # Errors
    /// `Invalid`, and nothing is changed, for a card that is none of the database's, and for the one
    /// that its small commits go to.
    pub fn drain(&self, cards: &[(NodeId, CardId)]) -> Result<()> {
        self.store().drain(cards)?;
        self.upkeep.wake();
        Ok(())
    }

    /// How many pages of each card are live, those of readers and of what is being written among them.
    pub fn live_pages(&self) -> Vec<(NodeId, CardId, u64)> {
        self.store().live_pages()
    }
}

impl Core {
    /// Moves what is on drained cards, until nothing is there that can be moved.
    pub(super) fn drain_due(&self, pace: &Pace) -> Result<()> {
        while self.store().has_drained_pages() {
            pace.check()?;
            let mut lacks_room = false;
            let moved = self.move_pages(|state| {
                let victims = self.next_to_drain(state);
                lacks_room = victims.is_none();
                victims.unwrap_or_default()
            });
            let moved = match moved {
                Err(StorageError::Full { .. }) => {
                    lacks_room = true;
                    false
                }
                moved => moved?,
            };
            if lacks_room {
                log::warn!("cards can't be drained further: the others have no room");
            }
            if !moved {
                break;
            }
        }
        Ok(())
    }

    /// What the next step moves: whole segments and parts, if there are any at least one. `None` where
    /// there is no room for that.
    fn next_to_drain(&self, state: &State) -> Option<Victims> {
        let mut victims = Victims::default();
        let mut chosen = 0;
        let unreadable = self.unreadable();
        let owners = state.tables.values().flat_map(TableState::owners);
        for (_, runs) in owners {
            let leaves = |run: &&PageRun| {
                self.store().is_drained(run.first) && !unreadable.contains(&run.identity)
            };
            let runs: Vec<_> = runs.filter(leaves).collect();
            let pages: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
            if pages == 0 {
                continue;
            }
            if chosen > 0 && chosen + pages > STEP_MAX_PAGES {
                break;
            }
            if !self.store().has_room(chosen + pages) {
                return (chosen > 0).then_some(victims);
            }
            chosen += pages;
            runs.into_iter().for_each(|run| victims.add(run));
        }
        Some(victims)
    }
}

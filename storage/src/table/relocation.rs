//! Moving what lies on one card to others: cards are emptied, so that their nodes can leave the rack,
//! and get their part of what is there when they have come.
//!
//! Nothing new is written to a card that is drained
//! ([`PageStore::drain`](crate::store::PageStore::drain)); the thread that keeps indexes up moves what is
//! there. Where all cards have much, and one less than half of what they have on average, what lies on
//! the fullest goes there until it has nearly as much: segments by chance, so that each table is spread.
//!
//! All pages of a segment, or of a part of an index, go to one card, so that a node can run a scan over
//! them, and so do all segments of a [bucket](super::distribution), of all tables with as many: in several
//! steps where they are many. Where a bucket is on several nodes nevertheless, as the one had no room for
//! all of it, it is gathered on that which has most of it. A step moves pages as garbage collection does
//! ([`super::collection`]): readers go on with the old places, which are given back with the last of them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::flash::PAGE_SIZE_BYTES;
use crate::index::pace::Pace;
use crate::page::PageIdentity;
use crate::store::{CardId, MEMORY_CARD, NodeId, PageRun};
use crate::table::Database;
use crate::table::collection::{STEP_MAX_PAGES, Victims};
use crate::table::database::Core;
use crate::table::distribution::Homes;
use crate::table::edit::Owner;
use crate::table::state::{State, TableState};
use crate::table::upkeep::RETRY_AFTER;
use crate::{Result, StorageError};

/// Steps before the thread sees to what else there is.
const STEPS: usize = 8;
/// Parts of the average: below the first a card is filled, until it has the second.
const SCARCE: f64 = 0.5;
const EVEN: f64 = 0.9;
/// Where nothing was to be moved, or nothing could be, it is looked at anew after this.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A card, by its node and its number there.
type Place = (NodeId, CardId);

/// The runs of a segment or a part, with the numbers of its table, its kind and itself.
type OfOwner<'a> = ((u32, u8, u32), Vec<&'a PageRun>);

/// The kind of those of a bucket, behind those of [`Owner`].
const OF_BUCKET: u8 = 3;

/// What is known of moves from one time to the next.
#[derive(Debug)]
pub(super) struct Relocation {
    /// A card is being filled, or was when the database was closed.
    fills: AtomicBool,
    /// Until when nothing is tried: it costs a look at all cards, and where something is due nodes may be
    /// away, cards full, pages held by readers.
    rests_until: Mutex<Option<Instant>>,
    /// The bucket that fills a card, in several steps.
    brings: Mutex<Option<(Bucket, Place)>>,
}

impl Default for Relocation {
    fn default() -> Self {
        Self {
            fills: AtomicBool::new(true),
            rests_until: Mutex::default(),
            brings: Mutex::default(),
        }
    }
}

impl Relocation {
    /// Something is to be looked at before its time.
    pub fn look_again(&self) {
        *self.rests_until.lock() = None;
    }
}

/// What a step is for.
#[derive(Debug, Clone, Copy)]
enum Aim {
    /// What is on drained cards goes anywhere else.
    Drain,
    /// So many pages at most go from one card to another; of a bucket, which goes as a whole, fewer than
    /// the one has more.
    Fill {
        from: Place,
        to: Place,
        pages: u64,
        more: u64,
    },
    /// What is of each bucket goes where most of it is.
    Gather,
    /// All of a bucket goes to the node of a card.
    Bring { bucket: Bucket, to: Place },
}

/// How many buckets there are, and its number.
type Bucket = (u16, u16);

impl Database {
    /// Empties these cards, and no others: see [`Database::live_pages`] for what is left on them. The
    /// database does not remember it: it is said again after each opening.
    ///
    /// # Errors
    /// `Invalid`, and nothing is changed, for a card that is none of the database's, and for the one
    /// that its small commits go to.
    pub fn drain(&self, cards: &[(NodeId, CardId)]) -> Result<()> {
        self.store().drain(cards)?;
        // They may have been mended.
        self.unreadable().clear();
        *self.upkeep.relocation.rests_until.lock() = None;
        self.upkeep.wake();
        Ok(())
    }

    /// How many pages of each card are live, those of readers and of what is being written among them.
    pub fn live_pages(&self) -> Vec<(NodeId, CardId, u64)> {
        self.store().live_pages()
    }
}

impl Core {
    /// Takes some steps to empty and to fill cards, where that is due, and has the thread come back when
    /// more are.
    pub(super) fn relocate_due(&self, pace: &Pace) -> Result<()> {
        let rests_until = &self.upkeep.relocation.rests_until;
        if rests_until
            .lock()
            .is_some_and(|until| Instant::now() < until)
        {
            return Ok(());
        }
        for _ in 0..STEPS {
            match self.relocate(pace) {
                Ok(true) => {}
                Ok(false) => {
                    *rests_until.lock() = Some(Instant::now() + LOOK_EVERY);
                    return Ok(());
                }
                Err(error @ (StorageError::Cancelled | StorageError::NeedsReopening { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    log::warn!("moving what lies on cards: {error}");
                    *rests_until.lock() = Some(Instant::now() + RETRY_AFTER);
                    return Err(error);
                }
            }
        }
        self.upkeep.wake();
        Ok(())
    }

    /// Takes a step; FALSE where none is due, or nothing can be moved.
    pub(super) fn relocate(&self, pace: &Pace) -> Result<bool> {
        let begun = *self.upkeep.relocation.brings.lock();
        if let Some((bucket, to)) = begun.filter(|_| !self.store().has_drained_pages())
            && self.move_for(Aim::Bring { bucket, to }, pace)?
        {
            return Ok(true);
        }
        *self.upkeep.relocation.brings.lock() = None;
        if let Some(aim) = self.aim()
            && self.move_for(aim, pace)?
        {
            return Ok(true);
        }
        // Commits wait for what looks and moves.
        let is_due = self.has_buckets() && {
            let state = self.state.read();
            let victims = self.next_to_move(&state, Aim::Gather);
            victims.is_some_and(|victims| !victims.is_empty())
        };
        match is_due {
            true => self.move_for(Aim::Gather, pace),
            false => Ok(false),
        }
    }

    fn move_for(&self, aim: Aim, pace: &Pace) -> Result<bool> {
        pace.check()?;
        let mut lacks_room = false;
        let moved = self.move_pages(|state| {
            let victims = self.next_to_move(state, aim);
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
        match aim {
            Aim::Drain if lacks_room => {
                log::warn!("cards can't be drained further: the others have no room");
            }
            // Nothing there is small enough: until the card is scarce once more.
            Aim::Fill { .. } if !moved => {
                self.upkeep.relocation.fills.store(false, Ordering::Relaxed);
            }
            _ => {}
        }
        Ok(moved)
    }

    fn aim(&self) -> Option<Aim> {
        let store = self.store();
        if store.has_drained_pages() {
            return Some(Aim::Drain);
        }
        let cards = store.live_pages().into_iter();
        let filled = cards.filter(|(node, card, _)| !store.is_drained_card(*node, *card));
        let mut filled: Vec<_> = filled
            .map(|(node, card, pages)| ((node, card), pages))
            .collect();
        let Relocation { fills, .. } = &self.upkeep.relocation;
        if self.uneven(&filled).is_some() {
            // What only readers hold counts where it was, too, and goes by itself.
            let of_state = self.pages_of_state();
            for (card, pages) in &mut filled {
                *pages = of_state.get(card).copied().unwrap_or_default();
            }
        }
        let aim = self.uneven(&filled);
        fills.store(aim.is_some(), Ordering::Relaxed);
        aim
    }

    /// Whether buckets may be on several nodes, of which one should have all of each.
    fn has_buckets(&self) -> bool {
        let has = |table: &TableState| table.snapshot.distribution.is_some();
        self.store().filled_nodes().len() > 1 && self.state.read().tables.values().any(has)
    }

    /// What there is to do where cards have so many pages.
    fn uneven(&self, cards: &[(Place, u64)]) -> Option<Aim> {
        let average = cards.iter().map(|(_, pages)| pages).sum::<u64>() / cards.len() as u64;
        let (from, had) = *cards.iter().max_by_key(|(_, pages)| *pages)?;
        let with_room = cards.iter();
        let with_room =
            with_room.filter(|(card, _)| self.store().has_room_on(*card, STEP_MAX_PAGES));
        let (to, has) = *with_room.min_by_key(|(_, pages)| *pages)?;
        let share = match self.upkeep.relocation.fills.load(Ordering::Relaxed) {
            true => EVEN,
            false => SCARCE,
        };
        let is_much = average * PAGE_SIZE_BYTES as u64 >= self.upkeep.options.even_from_bytes;
        (is_much && (has as f64) < share * average as f64).then(|| Aim::Fill {
            from,
            to,
            pages: (had - average).min(average - has),
            more: had - has,
        })
    }

    /// How many pages of each card present and past versions have.
    fn pages_of_state(&self) -> HashMap<Place, u64> {
        let mut pages = HashMap::new();
        let state = self.state.read();
        for (_, runs) in state.tables.values().flat_map(TableState::owners) {
            for run in runs {
                *pages.entry((run.first.node, run.first.card)).or_default() += u64::from(run.count);
            }
        }
        pages
    }

    /// What the next step moves, at least a run if there is one that may be moved. `None` where there is
    /// no room for that.
    fn next_to_move(&self, state: &State, aim: Aim) -> Option<Victims> {
        let store = self.store();
        let unreadable = self.unreadable();
        let is_on_card = |run: &&PageRun| run.first.card != MEMORY_CARD;
        let place = |run: &PageRun| (run.first.node, run.first.card);
        let mut owners: Vec<OfOwner<'_>> = Vec::new();
        let mut buckets: BTreeMap<Bucket, Vec<&PageRun>> = BTreeMap::new();
        for table in state.tables.values() {
            if matches!(aim, Aim::Gather | Aim::Bring { .. })
                && table.snapshot.distribution.is_none()
            {
                continue;
            }
            let of_segments = table.buckets();
            let count = table.snapshot.distribution.as_ref().map(|by| by.buckets());
            for (owner, runs) in table.owners() {
                let (kind, id) = match owner {
                    Owner::Segment(id) => (0, id),
                    Owner::Past(id) => (1, id),
                    Owner::Part(id) => (2, id),
                };
                let runs: Vec<_> = runs.filter(is_on_card).collect();
                let bucket = of_segments.get(&id).filter(|_| kind == 0);
                match (bucket, count) {
                    (Some(bucket), Some(count)) => {
                        buckets.entry((count, *bucket)).or_default().extend(runs);
                    }
                    _ => owners.push(((table.snapshot.id.0, kind, id), runs)),
                }
            }
        }
        match aim {
            Aim::Gather => return self.next_to_gather(state, &buckets, &unreadable),
            Aim::Bring { bucket, to } => {
                let runs = buckets.remove(&bucket).unwrap_or_default();
                return self.next_to_bring(runs, to, &unreadable);
            }
            Aim::Drain | Aim::Fill { .. } => {}
        }
        let of_buckets = buckets.into_iter();
        owners.extend(
            of_buckets
                .map(|((count, bucket), runs)| ((count.into(), OF_BUCKET, bucket.into()), runs)),
        );
        if let Aim::Fill { .. } = aim {
            // In no order, but the same one each time: of all tables, and what was begun first.
            let hasher = BuildHasherDefault::<DefaultHasher>::default();
            owners.sort_by_cached_key(|(key, _)| hasher.hash_one(key));
        }
        let mut victims = Victims::default();
        let mut chosen = 0;
        for ((of, kind, id), runs) in owners {
            let leaves = |run: &&&PageRun| {
                !unreadable.contains(&run.identity)
                    && match aim {
                        Aim::Drain => store.is_drained(run.first),
                        Aim::Fill { from, .. } => place(run) == from,
                        Aim::Gather | Aim::Bring { .. } => false,
                    }
            };
            let leaving: Vec<&PageRun> = runs.iter().filter(leaves).copied().collect();
            let all: u64 = leaving.iter().map(|run| u64::from(run.count)).sum();
            let to = match aim {
                _ if all == 0 => continue,
                Aim::Gather | Aim::Bring { .. } => continue,
                // All of it goes to one card: in several steps, where it is large.
                Aim::Drain => {
                    let rest = runs.iter().find(|run| !store.is_drained(run.first));
                    let rest = rest.map(|run| place(run));
                    let rest = rest.filter(|rest| store.has_room_on(*rest, chosen + all));
                    rest.unwrap_or_else(|| store.next_card(all))
                }
                // By itself, and all that is elsewhere: what is left of it comes in the next steps.
                Aim::Fill { from, to, more, .. } if kind == OF_BUCKET && from.0 != to.0 => {
                    let away = runs.iter().filter(|run| run.first.node != to.0);
                    let away: u64 = away.map(|run| u64::from(run.count)).sum();
                    if chosen > 0 || away >= more || !store.has_room_on(to, away) {
                        continue;
                    }
                    let brought = self.next_to_bring(runs, to, &unreadable)?;
                    if brought.is_empty() {
                        continue;
                    }
                    let bucket = (of as u16, id as u16);
                    *self.upkeep.relocation.brings.lock() = Some((bucket, to));
                    return Some(brought);
                }
                Aim::Fill { pages, .. } if chosen + all > pages => continue,
                Aim::Fill { to, .. } => to,
            };
            for run in leaving {
                let pages = u64::from(run.count);
                if chosen > 0 && chosen + pages > STEP_MAX_PAGES {
                    return Some(victims);
                }
                if !store.has_room_on(to, chosen + pages) {
                    return (chosen > 0).then_some(victims);
                }
                chosen += pages;
                victims.add(run, to);
            }
        }
        Some(victims)
    }

    /// What of a bucket is to go to the node of a card next. `None` where there is no room for that.
    fn next_to_bring(
        &self,
        runs: Vec<&PageRun>,
        to: Place,
        unreadable: &HashSet<PageIdentity>,
    ) -> Option<Victims> {
        let mut victims = Victims::default();
        let mut chosen = 0;
        let is_away =
            |run: &&PageRun| run.first.node != to.0 && !unreadable.contains(&run.identity);
        for run in runs.into_iter().filter(is_away) {
            let pages = u64::from(run.count);
            if chosen > 0 && chosen + pages > STEP_MAX_PAGES {
                return Some(victims);
            }
            if !self.store().has_room_on(to, chosen + pages) {
                return (chosen > 0).then_some(victims);
            }
            chosen += pages;
            victims.add(run, to);
        }
        Some(victims)
    }

    /// What of buckets, by how many there are and their numbers, is to go to their homes next. `None` where
    /// there is no room for that.
    fn next_to_gather(
        &self,
        state: &State,
        buckets: &BTreeMap<Bucket, Vec<&PageRun>>,
        unreadable: &HashSet<PageIdentity>,
    ) -> Option<Victims> {
        let store = self.store();
        let mut homes: BTreeMap<u16, Homes> = BTreeMap::new();
        let mut victims = Victims::default();
        let mut chosen = 0;
        for ((count, bucket), runs) in buckets {
            let homes = homes.entry(*count);
            let homes = homes.or_insert_with(|| Homes::new(*count, state, store));
            let home = homes.of(*bucket);
            let (there, away): (Vec<&PageRun>, Vec<&PageRun>) =
                runs.iter().partition(|run| Some(run.first.node) == home);
            let cards: BTreeSet<Place> = there
                .iter()
                .map(|run| (run.first.node, run.first.card))
                .collect();
            for run in away {
                let pages = u64::from(run.count);
                if unreadable.contains(&run.identity) {
                    continue;
                }
                if chosen > 0 && chosen + pages > STEP_MAX_PAGES {
                    return Some(victims);
                }
                // It stays where there is no room for it.
                let mut cards = cards.iter();
                if let Some(to) = cards.find(|to| store.has_room_on(**to, chosen + pages)) {
                    chosen += pages;
                    victims.add(run, *to);
                }
            }
        }
        Some(victims)
    }
}

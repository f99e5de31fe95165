//! [`KeyHub`]: where a node hears of the keys that the tasks of a join have seen.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::memory_pool::MemoryPool;
use flashmesh_pushdown::RuntimeFilter;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::collect::{Collected, JoinKey, union};

/// Messages that came before their query are kept up to so many bytes, and so long; usually there is none,
/// as a join has rows of all nodes before it knows its keys.
const EARLY_MAX_BYTES: usize = 32 << 20;
const EARLY_MAX_AGE: Duration = Duration::from_secs(30);
/// How long scans wait for the keys of a join before they start without them.
const KEYS_WITHIN: Duration = Duration::from_secs(10);
/// Tasks that a join may have.
const PARTS_MAX: u32 = 1 << 12;

/// Gives a message to all other nodes.
pub trait TellNodes: fmt::Debug + Send + Sync {
    /// Sends it some time; a node that does not get it does without, after a while.
    fn tell(&self, message: Vec<u8>);
}

/// What one task of a join has seen.
#[derive(Clone, PartialEq, Message)]
struct KeysRecord {
    #[prost(bytes = "vec", tag = "1")]
    query: Vec<u8>,
    #[prost(uint32, tag = "2")]
    join: u32,
    /// Which of its tasks it is, of how many.
    #[prost(uint32, tag = "3")]
    part: u32,
    #[prost(uint32, tag = "4")]
    parts: u32,
    /// Of the keys of which it can say something: their numbers are those of the columns.
    #[prost(bytes = "vec", repeated, tag = "5")]
    filters: Vec<Vec<u8>>,
}

/// What is known on a node of the keys of joins, for the queries that it runs parts of.
#[derive(Debug)]
pub struct KeyHub {
    state: Mutex<State>,
    others: Box<dyn TellNodes>,
}

#[derive(Debug, Default)]
struct State {
    queries: HashMap<u128, Query>,
    /// Of queries that are not known here yet, or no more.
    early: VecDeque<Early>,
}

#[derive(Debug)]
struct Early {
    query: u128,
    join: u32,
    told: OfTask,
    bytes: usize,
    came: Instant,
}

/// A query some of whose tasks are on this node.
#[derive(Debug, Default)]
struct Query {
    tasks: usize,
    joins: HashMap<u32, Arc<Gathered>>,
}

/// What one task of a join has told.
#[derive(Debug, Clone)]
struct OfTask {
    part: u32,
    parts: u32,
    filters: Vec<RuntimeFilter>,
}

impl KeyHub {
    /// A node's, which tells the `others` what it has seen.
    pub fn new(others: Box<dyn TellNodes>) -> Self {
        Self {
            state: Mutex::default(),
            others,
        }
    }

    /// What another node has told.
    ///
    /// # Errors
    /// For bytes that are none of this.
    pub fn receive(&self, message: &[u8]) -> Result<()> {
        let malformed =
            |error: &dyn fmt::Display| exec_datafusion_err!("what came is no keys: {error}");
        let record = KeysRecord::decode(message).map_err(|error| malformed(&error))?;
        let query = record.query.as_slice().try_into();
        let query = query.map_err(|error| malformed(&error))?;
        let filters = record.filters.iter();
        let filters: std::result::Result<_, _> = filters
            .map(|filter| RuntimeFilter::decode(filter))
            .collect();
        if record.parts > PARTS_MAX || record.part >= record.parts {
            return Err(malformed(&"a part that is none"));
        }
        let told = OfTask {
            part: record.part,
            parts: record.parts,
            filters: filters.map_err(|error| malformed(&error))?,
        };
        self.note(u128::from_le_bytes(query), record.join, told, message.len());
        Ok(())
    }

    fn note(&self, query: u128, join: u32, told: OfTask, bytes: usize) {
        let mut state = self.state.lock();
        match state.queries.get_mut(&query) {
            Some(known) => {
                let gathered = Arc::clone(known.joins.entry(join).or_default());
                drop(state);
                gathered.add(told);
            }
            None => {
                let early = &mut state.early;
                early.push_back(Early {
                    query,
                    join,
                    told,
                    bytes,
                    came: Instant::now(),
                });
                let mut all: usize = early.iter().map(|early| early.bytes).sum();
                while let Some(first) = early.front()
                    && (all > EARLY_MAX_BYTES || first.came.elapsed() > EARLY_MAX_AGE)
                {
                    all -= first.bytes;
                    early.pop_front();
                }
            }
        }
    }

    fn tell(&self, query: u128, join: u32, told: OfTask) {
        self.note(query, join, told.clone(), 0);
        let record = KeysRecord {
            query: query.to_le_bytes().to_vec(),
            join,
            part: told.part,
            parts: told.parts,
            filters: told.filters.iter().map(RuntimeFilter::encode).collect(),
        };
        self.others.tell(record.encode_to_vec());
    }
}

/// The keys of a join's tasks.
#[derive(Debug)]
pub(crate) struct Gathered {
    so_far: Mutex<SoFar>,
    /// Until when it is waited for: from the first time on.
    until: OnceLock<Instant>,
    /// What meets a row of any task, once all have told.
    whole: watch::Sender<Option<Arc<[RuntimeFilter]>>>,
}

#[derive(Debug, Default)]
struct SoFar {
    /// The tasks that have told.
    parts: BTreeSet<u32>,
    /// What meets a row of these, by the numbers of keys.
    filters: BTreeMap<u32, RuntimeFilter>,
}

impl Default for Gathered {
    fn default() -> Self {
        Self {
            so_far: Mutex::default(),
            until: OnceLock::new(),
            whole: watch::Sender::new(None),
        }
    }
}

impl Gathered {
    fn add(&self, told: OfTask) {
        let mut known = self.so_far.lock();
        if !known.parts.insert(told.part) {
            return;
        }
        let filters = told.filters.into_iter();
        let mut filters: BTreeMap<_, _> = filters.map(|f| (f.column, f)).collect();
        if known.parts.len() == 1 {
            known.filters = filters;
        } else {
            let so_far = mem::take(&mut known.filters).into_iter();
            let both = so_far
                .filter_map(|(key, filter)| Some((key, union(filter, filters.remove(&key)?)?)));
            known.filters = both.collect();
        }
        if known.parts.len() == told.parts as usize {
            let whole = mem::take(&mut known.filters).into_values().collect();
            self.whole.send_replace(Some(whole));
        }
    }

    /// What a value of each key has to be to meet a row, once all tasks of the join have told; columns
    /// are the numbers of keys.
    pub fn whole(&self) -> Option<Arc<[RuntimeFilter]>> {
        self.whole.borrow().clone()
    }

    /// Comes back when that is known, or is waited for no longer.
    pub async fn wait(self: Arc<Self>) {
        let until = *self.until.get_or_init(|| Instant::now() + KEYS_WITHIN);
        let mut whole = self.whole.subscribe();
        let known = whole.wait_for(Option::is_some);
        if timeout_at(until, known).await.is_err() {
            log::debug!("a scan starts without the keys of a join");
        }
    }
}

/// What a task of a query has to do with keys, in the configuration of its session.
#[derive(Debug)]
pub struct QueryKeys {
    hub: Arc<KeyHub>,
    query: u128,
    part: u32,
    parts: u32,
    collecting: Mutex<HashMap<u32, Arc<Collecting>>>,
}

impl QueryKeys {
    /// Of the task `part` of `parts`. `query` is another for each execution of a plan, and the same for
    /// all of its tasks.
    pub fn new(hub: Arc<KeyHub>, query: u128, part: usize, parts: usize) -> Self {
        let mut state = hub.state.lock();
        let mut came = VecDeque::new();
        let tasks = &mut match state.queries.entry(query) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Query::default()),
        }
        .tasks;
        *tasks += 1;
        if *tasks == 1 && !state.early.is_empty() {
            let early = mem::take(&mut state.early).into_iter();
            (came, state.early) = early.partition(|early| early.query == query);
        }
        drop(state);
        for early in came {
            hub.note(query, early.join, early.told, early.bytes);
        }
        Self {
            hub,
            query,
            part: u32::try_from(part).unwrap_or(u32::MAX),
            parts: u32::try_from(parts).unwrap_or(u32::MAX),
            collecting: Mutex::default(),
        }
    }

    /// What is known of a join's keys on this node.
    pub(crate) fn of(&self, join: u32) -> Arc<Gathered> {
        let mut state = self.hub.state.lock();
        let query = state.queries.entry(self.query).or_default();
        Arc::clone(query.joins.entry(join).or_default())
    }

    /// Where the streams of a join's build side note their keys.
    pub(super) fn collecting(
        &self,
        join: u32,
        keys: &[JoinKey],
        streams: usize,
        pool: &Arc<dyn MemoryPool>,
    ) -> Arc<Collecting> {
        let mut all = self.collecting.lock();
        let collecting = all.entry(join).or_insert_with(|| {
            let keys = keys.iter();
            Arc::new(Collecting {
                keys: keys
                    .map(|key| Collected::new(&key.data_type, key.span, pool))
                    .collect(),
                left: Mutex::new(streams),
            })
        });
        Arc::clone(collecting)
    }

    /// One of them is at its end, or nobody asks for its rows any more: then none of them is needed.
    pub(super) fn ended(&self, join: u32, collecting: &Collecting) {
        let mut left = collecting.left.lock();
        *left = left.saturating_sub(1);
        if *left > 0 {
            return;
        }
        self.collecting.lock().remove(&join);
        let keys = collecting.keys.iter().zip(0..);
        let told = OfTask {
            part: self.part,
            parts: self.parts,
            filters: keys.filter_map(|(key, n)| key.filter(n)).collect(),
        };
        self.hub.tell(self.query, join, told);
    }
}

impl Drop for QueryKeys {
    fn drop(&mut self) {
        let mut state = self.hub.state.lock();
        if let Entry::Occupied(mut query) = state.queries.entry(self.query) {
            query.get_mut().tasks -= 1;
            if query.get().tasks == 0 {
                query.remove();
            }
        }
    }
}

/// The keys of all streams of one task's build side.
#[derive(Debug)]
pub(super) struct Collecting {
    pub keys: Vec<Collected>,
    /// Streams that go on.
    left: Mutex<usize>,
}

//! What a kind of index is to those that keep it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, SchemaRef};
use parking_lot::{Condvar, Mutex};

use super::{IndexDefinition, IndexKind, IndexPart, PartData};
use crate::store::{PageReader, PageStore};
use crate::table::{Segment, read_column};
use crate::{Result, StorageError};

/// Least time that a build rests for; shorter rests are saved up.
const REST_MIN: Duration = Duration::from_millis(2);

/// A part as its kind reads it.
pub(crate) type Opened = Arc<dyn Any + Send + Sync>;

/// One kind of index. Parts do not merge as they are: what takes the place of several is built
/// again from the columns of the segments that they cover.
pub(crate) trait Kind: Sync {
    /// The names that `WITH (…)` may give.
    fn options(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether it can find two rows of one key.
    fn can_be_unique(&self) -> bool {
        false
    }

    /// Checks the names and types of the columns, and the options; says what is wrong.
    fn check(
        &self,
        definition: &IndexDefinition,
        columns: &[(&str, &DataType)],
    ) -> std::result::Result<(), String>;

    /// Bytes that building a part takes in memory, about, for a segment of so many rows.
    fn build_bytes(&self, columns: &[&DataType], rows: u32) -> u64;

    /// Builds a part.
    ///
    /// # Errors
    /// Those of reading the columns; `Invalid` beyond the limits of the format; `Cancelled`.
    fn build(&self, source: &Source<'_>) -> Result<PartData>;

    /// Opens a part.
    ///
    /// # Errors
    /// `Corrupt` for what no build has made; those of reading pages.
    fn open(&self, part: &IndexPart, reader: &mut PageReader) -> Result<Opened>;
}

impl IndexKind {
    /// What it is to those that keep it.
    pub(crate) fn of(self) -> &'static dyn Kind {
        match self {
            Self::Hash => &super::hash::Hash,
            Self::Ngram => &super::ngram::Ngram,
            Self::Lsh => &super::lsh::Lsh,
            Self::Adjacency => &super::adjacency::Adjacency,
        }
    }
}

/// What a part is built from.
pub(crate) struct Source<'a> {
    pub definition: &'a IndexDefinition,
    /// The table's.
    pub schema: &'a SchemaRef,
    /// Segments, in the order in which the part numbers them.
    pub segments: &'a [Arc<Segment>],
    pub store: &'a Arc<PageStore>,
    pub pace: &'a Pace,
}

impl Source<'_> {
    /// The type of the index's column number `place`.
    pub fn data_type(&self, place: usize) -> &DataType {
        let ordinal = self.definition.columns[place] as usize;
        self.schema.field(ordinal).data_type()
    }

    /// The index's columns of a segment.
    ///
    /// # Errors
    /// Those of reading pages.
    pub fn columns(&self, segment: &Segment, reader: &mut PageReader) -> Result<Vec<ArrayRef>> {
        let columns = self.definition.columns.iter().enumerate();
        let columns = columns.map(|(place, ordinal)| {
            read_column(reader, segment, *ordinal as usize, self.data_type(place))
        });
        columns.collect()
    }

    /// Calls `take` with the columns of each segment, at the build's pace.
    ///
    /// # Errors
    /// Those of reading pages and of `take`; `Cancelled`.
    pub fn for_each(
        &self,
        mut take: impl FnMut(&Arc<Segment>, &[ArrayRef]) -> Result<()>,
    ) -> Result<()> {
        let mut reader = self.store.reader()?;
        for segment in self.segments {
            let columns = self.columns(segment, &mut reader)?;
            take(segment, &columns)?;
            self.pace.check()?;
        }
        Ok(())
    }
}

/// How fast something is built: with all threads that there are, or with one that rests.
#[derive(Debug)]
pub(crate) struct Pace {
    threads: usize,
    /// Part of the time that it works, above 0 and up to 1.
    share: f64,
    control: Arc<Control>,
    /// When it has begun to work, or to go on.
    since: Mutex<Instant>,
}

impl Pace {
    /// As fast as can be.
    pub fn full() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            share: 1.0,
            control: Arc::default(),
            since: Mutex::new(Instant::now()),
        }
    }

    /// One thread that works for a share of the time, until `control` ends it.
    pub fn background(share: f64, control: &Arc<Control>) -> Self {
        Self {
            threads: 1,
            share: share.clamp(0.01, 1.0),
            control: Arc::clone(control),
            since: Mutex::new(Instant::now()),
        }
    }

    /// Threads that may work at once.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Rests if it is time to.
    ///
    /// # Errors
    /// `Cancelled` when it is to end.
    pub fn check(&self) -> Result<()> {
        if self.share < 1.0 {
            let mut since = self.since.lock();
            let rest = since.elapsed().mul_f64(1.0 / self.share - 1.0);
            if rest >= REST_MIN {
                self.control.rest(rest);
                *since = Instant::now();
            }
        }
        match self.control.has_ended() {
            true => Err(StorageError::Cancelled),
            false => Ok(()),
        }
    }
}

/// Wakes what is built in the background, hurries it and ends it.
#[derive(Debug, Default)]
pub(crate) struct Control {
    has_ended: AtomicBool,
    wishes: Mutex<Wishes>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wishes {
    is_awake: bool,
    /// How many wait for it.
    hurried: usize,
}

impl Control {
    /// There may be something to do.
    pub fn wake(&self) {
        self.wishes.lock().is_awake = true;
        self.changed.notify_all();
    }

    /// It ends.
    pub fn end(&self) {
        let _wishes = self.wishes.lock();
        self.has_ended.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Nothing rests until what this gives is dropped.
    pub fn hurry(&self) -> impl Drop + '_ {
        self.wishes.lock().hurried += 1;
        self.changed.notify_all();
        Hurry(self)
    }

    /// Waits until it is woken, or for so long; FALSE when it is to end.
    pub fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut wishes = self.wishes.lock();
        while !self.has_ended() && !wishes.is_awake {
            if self.changed.wait_until(&mut wishes, until).timed_out() {
                break;
            }
        }
        wishes.is_awake = false;
        !self.has_ended()
    }

    /// Waits, unless it is hurried or to end.
    pub fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut wishes = self.wishes.lock();
        while !self.has_ended() && wishes.hurried == 0 {
            if self.changed.wait_until(&mut wishes, until).timed_out() {
                break;
            }
        }
    }
}

struct Hurry<'a>(&'a Control);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.wishes.lock().hurried -= 1;
    }
}

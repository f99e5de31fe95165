//! What a kind of index is to those that keep it.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, BooleanArray};
use arrow::compute::nullif;
use arrow::datatypes::{DataType, SchemaRef};

use super::pace::Pace;
use super::{IndexDefinition, IndexKind, IndexPart, PartData};
use crate::Result;
use crate::segment::{Segment, read_column};
use crate::store::{PageReader, PageStore};

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
    /// Where to say at which segment it failed, if somebody wants to know.
    pub failed_at: Option<&'a OnceLock<Arc<Segment>>>,
}

impl Source<'_> {
    /// The type of the index's column number `place`.
    pub fn data_type(&self, place: usize) -> &DataType {
        let ordinal = self.definition.columns[place] as usize;
        self.schema.field(ordinal).data_type()
    }

    /// The index's columns of a segment, in which deleted rows are NULL: no index has such rows.
    ///
    /// # Errors
    /// Those of reading pages.
    pub fn columns(&self, segment: &Segment, reader: &mut PageReader) -> Result<Vec<ArrayRef>> {
        let columns = self.definition.columns.iter().enumerate();
        let gone = segment
            .deleted()
            .map(|rows| BooleanArray::from_iter((0..segment.rows).map(|r| Some(rows.contains(r)))));
        let columns = columns.map(|(place, ordinal)| {
            let column = read_column(reader, segment, *ordinal as usize, self.data_type(place))?;
            Ok(match &gone {
                Some(gone) => nullif(&column, gone)?,
                None => column,
            })
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
            let columns = self.columns(segment, &mut reader);
            let taken = columns.and_then(|columns| take(segment, &columns));
            if let (Err(_), Some(failed_at)) = (&taken, self.failed_at) {
                failed_at.get_or_init(|| Arc::clone(segment));
            }
            taken?;
            self.pace.check()?;
        }
        Ok(())
    }
}

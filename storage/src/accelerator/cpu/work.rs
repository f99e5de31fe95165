//! What the consumers of surviving rows share: the segment at work, cut into blocks.

use std::ops::Range;

use super::BLOCK_ROWS;
use super::bitmap::Bitmap;
use super::columns::{Columns, Rows};
use super::eval::Evaluator;
use super::eval::graph::NodeId;
use crate::Result;
use crate::accelerator::device::Device;
use crate::store::PageReader;

/// Share of rows of a block (one in so many) from which on all are computed and the others masked.
const DENSE: usize = 4;

/// A segment after its filter.
pub(super) struct Work<'a> {
    /// The task's device.
    pub device: Option<&'a Device>,
    pub columns: &'a mut Columns,
    pub evaluator: &'a mut Evaluator,
    pub reader: &'a mut PageReader,
    /// The surviving rows.
    pub selection: &'a Bitmap,
    /// How many they are.
    pub selected: usize,
    /// Rows of the segment.
    pub rows: u32,
}

/// How blocks are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Blocks may hold rows that did not survive, with a mask over them.
    Masked,
    /// Blocks hold surviving rows only.
    Exact,
}

impl Work<'_> {
    /// Takes up other rows.
    pub fn begin_block(&mut self) {
        self.evaluator.begin_block();
        self.columns.begin_block();
    }

    /// [`Cut::Exact`] if one of the nodes may fail and so must not see other rows.
    pub fn cut_for(&self, nodes: impl IntoIterator<Item = NodeId>) -> Cut {
        let fallible = nodes.into_iter().any(|n| self.evaluator.bound(n).fallible);
        if fallible { Cut::Exact } else { Cut::Masked }
    }

    /// Calls `f` with the rows of each block that has survivors, and the mask over them unless
    /// all survived.
    pub fn for_blocks(
        &mut self,
        cut: Cut,
        mut f: impl FnMut(&mut Self, Rows<'_>, Option<&Bitmap>) -> Result<()>,
    ) -> Result<()> {
        let (selection, rows) = (self.selection, self.rows);
        let mut list = Vec::new();
        // Few survivors: blocks of survivors, however far apart they are.
        if self.selected * DENSE < rows as usize {
            selection.append_rows(0..rows, &mut list);
            for chunk in list.chunks(BLOCK_ROWS as usize) {
                f(self, rows_of(chunk), None)?;
            }
            return Ok(());
        }
        let mut mask = Bitmap::default();
        for start in (0..rows).step_by(BLOCK_ROWS as usize) {
            let range = start..(start + BLOCK_ROWS).min(rows);
            let count = selection.count_in(range.clone());
            if count == range.len() {
                f(self, Rows::Range(range), None)?;
            } else if cut == Cut::Masked && count * DENSE >= range.len() {
                selection.slice_into(range.clone(), &mut mask);
                f(self, Rows::Range(range), Some(&mask))?;
            } else if count > 0 {
                list.clear();
                selection.append_rows(range, &mut list);
                f(self, rows_of(&list), None)?;
            }
        }
        Ok(())
    }
}

/// Ascending rows, as a range if they are one.
pub(super) fn rows_of(list: &[u32]) -> Rows<'_> {
    match (list.first(), list.last()) {
        (Some(first), Some(last)) if (last - first) as usize + 1 == list.len() => {
            Rows::Range(*first..last + 1)
        }
        _ => Rows::List(list),
    }
}

/// The next rows of `selection` from `start` on: at most `most` of them, as (a range that holds
/// them, how many there are).
pub(super) fn next_rows(selection: &Bitmap, start: u32, most: usize) -> (Range<u32>, usize) {
    let len = selection.len() as u32;
    let Some(first) = selection.next_row(start) else {
        return (len..len, 0);
    };
    let mut end = first;
    let mut count = 0;
    while end < len {
        // Whole words as long as they fit, then the last rows one by one.
        let step = (64 - end % 64).min(len - end);
        let here = selection.count_in(end..end + step);
        if count + here <= most {
            count += here;
            end += step;
            if count == most {
                break;
            }
        } else {
            while count < most {
                count += usize::from(selection.get(end as usize));
                end += 1;
            }
            break;
        }
    }
    (first..end, count)
}

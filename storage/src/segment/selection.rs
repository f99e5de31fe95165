//! Rows of a segment.

use std::ops::Range;

use roaring::RoaringBitmap;

/// Rows of a segment, ascending and without gaps between ranges that touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowSelection {
    ranges: Vec<Range<u32>>,
}

impl RowSelection {
    /// All of so many rows.
    pub fn all(rows: u32) -> Self {
        Self::of_ranges(std::iter::once(0..rows).collect())
    }

    /// All of so many rows but `gone`.
    pub fn all_but(rows: u32, gone: &RoaringBitmap) -> Self {
        let mut ranges = Vec::new();
        let mut next = 0;
        for row in gone {
            if next < row {
                ranges.push(next..row);
            }
            next = row + 1;
        }
        ranges.push(next..rows);
        Self::of_ranges(ranges)
    }

    /// The rows of both.
    pub fn and(&self, other: &Self) -> Self {
        let mut both = Vec::new();
        let (mut left, mut right) = (self.ranges.iter(), other.ranges.iter());
        let (mut a, mut b) = (left.next(), right.next());
        while let (Some(x), Some(y)) = (a, b) {
            let (start, end) = (x.start.max(y.start), x.end.min(y.end));
            if start < end {
                both.push(start..end);
            }
            match x.end <= y.end {
                true => a = left.next(),
                false => b = right.next(),
            }
        }
        Self { ranges: both }
    }

    /// A selection of ranges, in any order.
    pub fn of_ranges(mut ranges: Vec<Range<u32>>) -> Self {
        ranges.retain(|range| !range.is_empty());
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, kept| {
            let touches = next.start <= kept.end;
            if touches {
                kept.end = kept.end.max(next.end);
            }
            touches
        });
        Self { ranges }
    }

    /// A selection of single rows, in any order.
    pub fn of_rows(rows: impl IntoIterator<Item = u32>) -> Self {
        Self::of_ranges(rows.into_iter().map(|row| row..row + 1).collect())
    }

    /// Its ranges.
    pub fn ranges(&self) -> &[Range<u32>] {
        &self.ranges
    }

    /// Whether it selects nothing.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

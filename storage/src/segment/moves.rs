//! Where rows go when their segments are rewritten: who has marked rows of an older version finds
//! them again.
//!
//! Each segment knows where its rows went; what it knows lives as long as somebody holds a version
//! of the segment, and keeps no pages of the later ones.

use std::sync::Arc;

use parking_lot::Mutex;
use roaring::RoaringBitmap;

use super::{Segment, SegmentId};

/// Of one segment: nothing until it is rewritten.
pub(super) type Move = Arc<Mutex<Option<Moved>>>;

#[derive(Debug)]
pub(super) struct Moved {
    /// Rows that were deleted by then, and went nowhere.
    deleted: RoaringBitmap,
    /// Rows of the segments before it that went to the same new ones.
    before: u64,
    to: Arc<[Target]>,
}

#[derive(Debug)]
struct Target {
    id: SegmentId,
    rows: u32,
    moved: Move,
}

/// Notes that what `old` has of rows is now, in the same order, those of `new`. It may be noted
/// before it is certain: nobody looks for rows of segments that are there.
pub(crate) fn note_moves(old: &[Arc<Segment>], new: &[Arc<Segment>]) {
    let targets = new.iter().map(|segment| Target {
        id: segment.id,
        rows: segment.rows,
        moved: Arc::clone(&segment.chunks.moved),
    });
    let to: Arc<[Target]> = targets.collect();
    let mut before = 0;
    for segment in old {
        *segment.chunks.moved.lock() = Some(Moved {
            deleted: segment.deleted().cloned().unwrap_or_default(),
            before,
            to: Arc::clone(&to),
        });
        before += u64::from(segment.live_rows());
    }
}

impl Segment {
    /// Lets the segment, which stands in the place of `old` ones, know of itself what they were told
    /// of it: where its rows go next.
    pub(crate) fn succeed(&mut self, old: &[Arc<Segment>]) {
        let told = old.iter().find_map(|old| {
            let moved = old.chunks.moved.lock();
            let mut targets = moved.as_ref()?.to.iter();
            let target = targets.find(|target| target.id == self.id)?;
            Some(Arc::clone(&target.moved))
        });
        if let (Some(moved), Some(chunks)) = (told, Arc::get_mut(&mut self.chunks)) {
            chunks.moved = moved;
        }
    }

    /// Where a row is by now, among segments that `are_there`; `None` where it is deleted, or gone
    /// with its table.
    pub(crate) fn find_row(
        &self,
        row: u32,
        is_there: impl Fn(SegmentId) -> bool,
    ) -> Option<(SegmentId, u32)> {
        let (mut id, mut row) = (self.id, row);
        let mut moved = Arc::clone(&self.chunks.moved);
        while !is_there(id) {
            let next = {
                let moved = moved.lock();
                let (target, place) = moved.as_ref()?.place_of(row)?;
                row = place;
                id = target.id;
                Arc::clone(&target.moved)
            };
            moved = next;
        }
        Some((id, row))
    }
}

impl Moved {
    fn place_of(&self, row: u32) -> Option<(&Target, u32)> {
        if self.deleted.contains(row) {
            return None;
        }
        let mut place = self.before + u64::from(row) - self.deleted.rank(row);
        for target in &*self.to {
            match place.checked_sub(u64::from(target.rows)) {
                None => return Some((target, place as u32)),
                Some(beyond) => place = beyond,
            }
        }
        None
    }
}

//! Group pages: rows of several columns in one page.
//!
//! A directory, an entry for each part, then the parts' payloads, each at a multiple of 8 bytes. A
//! payload is what a page of the column alone would have; zeros at its end are left out. An entry,
//! all little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | encoding |
//! | 1 | width |
//! | 2..4 | flags |
//! | 4..6 | bytes of the payload |
//! | 6..8 | bytes of it that are stored |
//! | 8..10 | NULLs |
//! | 10..18 | reference |
//! | 18..26 | least zone key |
//! | 26..34 | greatest zone key |

use std::ops::Range;

use super::header::{bytes_at, flags};
use super::{Encoding, HEADER_SIZE_BYTES, PAYLOAD_SIZE_BYTES, PageHeader};
use crate::flash::PageBuffer;

/// Bytes of a part's entry.
pub(super) const ENTRY_SIZE_BYTES: usize = 34;
/// Rows of a group page: so many NULLs can be counted.
pub(super) const MAX_ROWS: usize = u16::MAX as usize;
/// Payloads start at multiples of this many bytes.
const ALIGN_BYTES: usize = 8;

/// A part, found.
pub(super) struct Part {
    /// The header that it would have as a page of its own.
    pub header: PageHeader,
    /// Where what is stored of its payload is within the group page's data.
    pub stored: Range<usize>,
}

/// `bytes` rounded up to where the next part may start.
pub(super) const fn align(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN_BYTES)
}

/// Checks that the parts of a group page fill its data; the error says what does not fit.
pub(super) fn check(header: &PageHeader, data: &[u8]) -> Result<(), String> {
    let parts = usize::try_from(header.reference).ok();
    let parts = parts.filter(|parts| (1..=data.len() / ENTRY_SIZE_BYTES).contains(parts));
    let Some(parts) = parts.filter(|parts| *parts <= usize::from(u16::MAX)) else {
        return Err(format!(
            "{} parts in {} bytes",
            header.reference,
            data.len()
        ));
    };
    if header.flags != 0 || header.null_count != 0 {
        return Err("a group page with flags or NULLs".into());
    }
    if !(1..=MAX_ROWS as u32).contains(&header.row_count) {
        return Err(format!("a group page of {} rows", header.row_count));
    }
    let end = (0..parts).fold(parts * ENTRY_SIZE_BYTES, |end, part| {
        align(end) + stored_size_bytes(data, part)
    });
    if end != data.len() {
        return Err(format!(
            "{parts} parts end at {end} of {} bytes",
            data.len()
        ));
    }
    Ok(())
}

/// A part of a page that [`check`] has let through. The header's counts are not checked yet.
pub(super) fn part(header: &PageHeader, data: &[u8], number: u16) -> Result<Part, String> {
    let number = usize::from(number);
    let parts = match header.encoding {
        Encoding::Group => usize::try_from(header.reference).unwrap_or(0),
        other => return Err(format!("a page of {other:?} has no parts")),
    };
    if number >= parts {
        return Err(format!("there are {parts} parts"));
    }
    let end = (0..number).fold(parts * ENTRY_SIZE_BYTES, |end, part| {
        align(end) + stored_size_bytes(data, part)
    });
    let stored = align(end)..align(end) + stored_size_bytes(data, number);
    let entry = &data[number * ENTRY_SIZE_BYTES..][..ENTRY_SIZE_BYTES];
    let u16_at = |at: usize| u16::from_le_bytes(bytes_at(entry, at));
    let i64_at = |at: usize| i64::from_le_bytes(bytes_at(entry, at));
    let encoding = Encoding::from_u8(entry[0]).filter(|encoding| *encoding != Encoding::Group);
    let encoding = encoding.ok_or_else(|| format!("encoding {} is unknown", entry[0]))?;
    let (part_flags, payload_length) = (u16_at(2), u16_at(4));
    if part_flags & !(flags::HAS_VALIDITY | flags::SCALED) != 0 {
        return Err(format!("flags {part_flags:#x} are not those of a part"));
    }
    if usize::from(payload_length) > PAYLOAD_SIZE_BYTES
        || stored.len() > usize::from(payload_length)
    {
        return Err(format!(
            "{} bytes are stored of a payload of {payload_length}",
            stored.len()
        ));
    }
    let header = PageHeader {
        encoding,
        width: entry[1],
        flags: part_flags,
        payload_length,
        null_count: u32::from(u16_at(8)),
        reference: i64_at(10),
        min: i64_at(18),
        max: i64_at(26),
        ..*header
    };
    Ok(Part { header, stored })
}

fn stored_size_bytes(data: &[u8], part: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes_at(
        data,
        part * ENTRY_SIZE_BYTES + 6,
    )))
}

/// Puts a group page together.
pub(super) struct GroupPage {
    buffer: PageBuffer,
    parts: usize,
    written: usize,
    /// Where the last payload ends within the data.
    end: usize,
}

impl GroupPage {
    /// A page for so many parts.
    pub fn new(parts: usize) -> Self {
        Self {
            buffer: PageBuffer::zeroed(),
            parts,
            written: 0,
            end: parts * ENTRY_SIZE_BYTES,
        }
    }

    /// Adds the next part: the header that it would have as a page of its own, and its payload,
    /// of which there is room for what is not zeros at the end.
    pub fn push(&mut self, header: &PageHeader, payload: &[u8]) {
        let stored = payload.iter().rposition(|byte| *byte != 0);
        let stored = &payload[..stored.map_or(0, |last| last + 1)];
        let data = &mut self.buffer[HEADER_SIZE_BYTES..];
        let entry = &mut data[self.written * ENTRY_SIZE_BYTES..][..ENTRY_SIZE_BYTES];
        entry[0] = header.encoding as u8;
        entry[1] = header.width;
        entry[2..4].copy_from_slice(&header.flags.to_le_bytes());
        entry[4..6].copy_from_slice(&(payload.len() as u16).to_le_bytes());
        entry[6..8].copy_from_slice(&(stored.len() as u16).to_le_bytes());
        entry[8..10].copy_from_slice(&(header.null_count as u16).to_le_bytes());
        entry[10..18].copy_from_slice(&header.reference.to_le_bytes());
        entry[18..26].copy_from_slice(&header.min.to_le_bytes());
        entry[26..34].copy_from_slice(&header.max.to_le_bytes());
        let start = align(self.end);
        self.end = start + stored.len();
        data[start..self.end].copy_from_slice(stored);
        self.written += 1;
    }

    /// The page; of `header`, what a group page has of its own is filled in.
    pub fn finish(mut self, header: PageHeader) -> PageBuffer {
        debug_assert_eq!(self.written, self.parts, "every part is there");
        let header = PageHeader {
            encoding: Encoding::Group,
            width: 0,
            flags: 0,
            payload_length: self.end as u16,
            null_count: 0,
            reference: self.parts as i64,
            min: i64::MIN,
            max: i64::MAX,
            ..header
        };
        header.write(&mut self.buffer);
        self.buffer
    }
}

//! A page's header, and the check that every page passes before anything reads it.

use std::borrow::Cow;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::group;
use super::layout::Layout;
use super::{HEADER_SIZE_BYTES, PAYLOAD_SIZE_BYTES, SEGMENT_ROWS};
use crate::flash::{PAGE_SIZE_BYTES, PageBuffer};
use crate::{Result, StorageError};

/// First three bytes of every page.
pub(super) const MAGIC: [u8; 3] = *b"FMP";
/// Version of the page format, the fourth byte.
pub(super) const VERSION: u8 = 1;
/// Every region of the payload starts at a multiple of this many bytes.
pub(super) const REGION_ALIGN_BYTES: usize = 64;

/// The bits of [`PageHeader::flags`].
pub mod flags {
    /// The payload starts with a validity bitmap.
    pub const HAS_VALIDITY: u16 = 1;
    /// The page is its chunk's dictionary or symbol table.
    pub const AUXILIARY: u16 = 1 << 1;
    /// The last value of the page goes on in the next page, which has a `row_count` of 0.
    pub const CONTINUES: u16 = 1 << 2;
    /// FORBP: the packed offsets count in steps; the data starts with a region that holds the
    /// step and the packed width. [`PageHeader::width`](super::PageHeader::width) stays the width
    /// of the offsets themselves.
    pub const SCALED: u16 = 1 << 3;
    /// A symbol table: the chunk's text is compressed greedily, at each place by the longest
    /// symbol that matches what is left of the row.
    pub const CANONICAL: u16 = 1 << 4;
}

/// The validity bitmap of a page whose rows are all NULL, which stores none.
static ALL_NULL: [u8; SEGMENT_ROWS / 8] = [0; SEGMENT_ROWS / 8];

/// Which page a page claims to be; what the reader expects of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageIdentity {
    /// Number of the table.
    pub table: u32,
    /// Number of the segment within the table.
    pub segment: u32,
    /// Number of the column group within the table.
    pub column_group: u16,
    /// Number of the page within its chunk, from 0.
    pub page: u16,
    /// The commit that wrote it.
    pub generation: u32,
}

/// How the values of a page are laid out; `docs/flash-format.md` gives the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Encoding {
    /// One value for all rows: `reference`, or (width 8) the bytes of the data.
    Const = 1,
    /// Values of a fixed size, one after the other; `reference` is the size in bytes.
    Raw = 2,
    /// Frame of reference and bit-packing: `reference` plus an offset of `width` bits.
    Forbp = 3,
    /// Codes of the chunk's sorted dictionary, packed as in [`Encoding::Forbp`].
    Dict = 4,
    /// Text compressed with the chunk's symbol table.
    Fsst = 5,
    /// Text or binary as it is.
    RawStr = 6,
    /// Runs of equal values.
    Rle = 7,
    /// A group page: rows of several columns, a part for each; `reference` is how many.
    Group = 8,
}

impl Encoding {
    /// Whether its values can't be read without the chunk's auxiliary page.
    pub fn uses_aux(self) -> bool {
        matches!(self, Self::Dict | Self::Fsst)
    }

    pub(super) fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Const,
            2 => Self::Raw,
            3 => Self::Forbp,
            4 => Self::Dict,
            5 => Self::Fsst,
            6 => Self::RawStr,
            7 => Self::Rle,
            8 => Self::Group,
            _ => return None,
        })
    }
}

/// The header's fields, in native byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    /// Layout of the data.
    pub encoding: Encoding,
    /// Bits of an offset (FORBP, DICT, RLE) or of a length (FSST, RAWSTR).
    pub width: u8,
    /// See [`flags`].
    pub flags: u16,
    /// Number of the column group.
    pub column_group: u16,
    /// Bytes of the payload that are used, the validity bitmap included.
    pub payload_length: u16,
    /// Number of the table.
    pub table: u32,
    /// Number of the segment.
    pub segment: u32,
    /// Number of the page within its chunk.
    pub page: u16,
    /// First row of the page within its segment.
    pub first_row: u16,
    /// The commit that wrote it.
    pub generation: u32,
    /// Rows of the page; entries of an auxiliary page; 0 in a page that continues a long value.
    pub row_count: u32,
    /// NULLs among the rows. When all are NULL, no bitmap is stored.
    pub null_count: u32,
    /// What offsets count from; the least length (FSST, RAWSTR); a value's bytes (RAW).
    pub reference: i64,
    /// Least zone key of the page; above `max` when all rows are NULL.
    pub min: i64,
    /// Greatest zone key.
    pub max: i64,
}

impl PageHeader {
    /// Whether all bits of `flag` are set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag == flag
    }

    /// Writes the header into the first 64 bytes of `page`, and the checksum over all others.
    pub(super) fn write(&self, page: &mut [u8]) {
        page[0..3].copy_from_slice(&MAGIC);
        page[3] = VERSION;
        page[8] = self.encoding as u8;
        page[9] = self.width;
        page[10..12].copy_from_slice(&self.flags.to_le_bytes());
        page[12..14].copy_from_slice(&self.column_group.to_le_bytes());
        page[14..16].copy_from_slice(&self.payload_length.to_le_bytes());
        page[16..20].copy_from_slice(&self.table.to_le_bytes());
        page[20..24].copy_from_slice(&self.segment.to_le_bytes());
        page[24..26].copy_from_slice(&self.page.to_le_bytes());
        page[26..28].copy_from_slice(&self.first_row.to_le_bytes());
        page[28..32].copy_from_slice(&self.generation.to_le_bytes());
        page[32..36].copy_from_slice(&self.row_count.to_le_bytes());
        page[36..40].copy_from_slice(&self.null_count.to_le_bytes());
        page[40..48].copy_from_slice(&self.reference.to_le_bytes());
        page[48..56].copy_from_slice(&self.min.to_le_bytes());
        page[56..64].copy_from_slice(&self.max.to_le_bytes());
        seal(page);
    }

    /// Reads the fields; the error says which is impossible.
    fn parse(page: &[u8]) -> Result<Self, String> {
        let u16_at = |at: usize| u16::from_le_bytes(bytes_at(page, at));
        let u32_at = |at: usize| u32::from_le_bytes(bytes_at(page, at));
        let i64_at = |at: usize| i64::from_le_bytes(bytes_at(page, at));
        Ok(Self {
            encoding: Encoding::from_u8(page[8])
                .ok_or_else(|| format!("encoding {} is unknown", page[8]))?,
            width: page[9],
            flags: u16_at(10),
            column_group: u16_at(12),
            payload_length: u16_at(14),
            table: u32_at(16),
            segment: u32_at(20),
            page: u16_at(24),
            first_row: u16_at(26),
            generation: u32_at(28),
            row_count: u32_at(32),
            null_count: u32_at(36),
            reference: i64_at(40),
            min: i64_at(48),
            max: i64_at(56),
        })
    }
}

/// `N` bytes of `bytes` from `at`.
pub(super) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N]
        .try_into()
        .expect("a slice of N bytes is an array of N bytes")
}

/// Writes the checksum over bytes 8 to 8192 into bytes 4 to 8.
pub(super) fn seal(page: &mut [u8]) {
    let checksum = crc_fast::crc32_iscsi(&page[8..PAGE_SIZE_BYTES]);
    page[4..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Gives a page that was just made another number within its run.
pub(super) fn renumber(page: &mut [u8], number: u16) {
    page[24..26].copy_from_slice(&number.to_le_bytes());
    seal(page);
}

/// `bytes` rounded up to a whole number of regions' alignment.
pub(super) const fn align_region(bytes: usize) -> usize {
    bytes.next_multiple_of(REGION_ALIGN_BYTES)
}

/// Bytes of the validity bitmap of `rows` rows.
pub(super) const fn validity_size_bytes(rows: usize) -> usize {
    align_region(rows.div_ceil(8))
}

/// A page that has passed every check: its checksum, its identity, and the bounds of all its
/// regions, so that decoding neither panics nor reads outside it.
#[derive(Debug)]
pub struct Page {
    header: PageHeader,
    layout: Layout,
    /// Where the payload starts within the bytes.
    payload_start: usize,
    /// Where the data starts within the bytes, after header and validity.
    data_start: usize,
    bytes: Bytes,
}

/// What a page is read from.
#[derive(Debug)]
enum Bytes {
    Own(PageBuffer),
    /// Those of the group page that it is a part of.
    Group(Arc<Page>),
    /// A payload that is not stored as it is.
    Payload(Box<[u8]>),
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(buffer) => buffer,
            Self::Group(page) => &page.bytes,
            Self::Payload(payload) => payload,
        }
    }
}

/// Checks that bytes are those of a page as it was written.
fn check_sum(bytes: &[u8]) -> Result<(), String> {
    if bytes.len() != PAGE_SIZE_BYTES {
        return Err(format!(
            "{} bytes in place of {PAGE_SIZE_BYTES}",
            bytes.len()
        ));
    }
    if bytes[0..3] != MAGIC {
        return Err(if bytes.iter().all(|&byte| byte == 0) {
            "the flash page is blank (never written, or erased)".into()
        } else {
            format!("no flashmesh page: it starts with {:02x?}", &bytes[0..4])
        });
    }
    if bytes[3] != VERSION {
        return Err(format!(
            "page format {} is not known, only {VERSION}; open it with a newer flashmesh",
            bytes[3]
        ));
    }
    let stored = u32::from_le_bytes(bytes_at(bytes, 4));
    let computed = crc_fast::crc32_iscsi(&bytes[8..]);
    match stored == computed {
        true => Ok(()),
        false => Err(format!(
            "checksum {stored:#010x} does not match the bytes ({computed:#010x})"
        )),
    }
}

impl Page {
    /// Checks a page that was read from flash.
    ///
    /// # Errors
    /// `Corrupt`, naming `label` (e.g. "table 'lineitem', column 'l_tax'"), segment and page, when
    /// the bytes are no page, not the page that is `expected`, or not as they were written.
    pub fn verify(buffer: PageBuffer, expected: &PageIdentity, label: &str) -> Result<Arc<Page>> {
        let sound = check_sum(&buffer).and_then(|()| Self::check(buffer, expected));
        sound.map(Arc::new).map_err(|problem| {
            StorageError::corrupt(format!(
                "{label}, segment {}, page {}: {problem}",
                expected.segment, expected.page
            ))
        })
    }

    /// A page that was just made and is in memory: its checksum, which was just computed, is not computed
    /// again.
    ///
    /// # Errors
    /// As [`Page::verify`] otherwise, for the identity that the page itself says.
    pub(crate) fn of_writer(buffer: PageBuffer) -> Result<Arc<Page>> {
        let said = PageHeader::parse(&buffer).map_err(StorageError::corrupt)?;
        let identity = PageIdentity {
            table: said.table,
            segment: said.segment,
            column_group: said.column_group,
            page: said.page,
            generation: said.generation,
        };
        let page = Self::check(buffer, &identity).map_err(|problem| {
            StorageError::corrupt(format!("a page on its way to the store: {problem}"))
        })?;
        Ok(Arc::new(page))
    }

    /// Checks what is behind a checksum that is right.
    fn check(buffer: PageBuffer, expected: &PageIdentity) -> Result<Page, String> {
        let bytes: &[u8] = &buffer;
        let header = PageHeader::parse(bytes)?;
        let found = PageIdentity {
            table: header.table,
            segment: header.segment,
            column_group: header.column_group,
            page: header.page,
            generation: header.generation,
        };
        if found != *expected {
            return Err(format!(
                "holds another page, {found:?}, where {expected:?} was expected"
            ));
        }
        let data_start = HEADER_SIZE_BYTES + check_rows(&header, &bytes[HEADER_SIZE_BYTES..])?;
        let data = &bytes[data_start..HEADER_SIZE_BYTES + usize::from(header.payload_length)];
        let layout = match header.encoding {
            Encoding::Group => group::check(&header, data).map(|()| Layout::Group)?,
            _ => Layout::parse(&header, data)?,
        };
        Ok(Page {
            header,
            layout,
            payload_start: HEADER_SIZE_BYTES,
            data_start,
            bytes: Bytes::Own(buffer),
        })
    }

    /// A part of a group page, as a page of its column; `label` as for [`Page::verify`].
    ///
    /// # Errors
    /// `Corrupt` when the page is no group page, has no such part, or the part is none.
    pub fn part(self: &Arc<Self>, number: u16, label: &str) -> Result<Page> {
        self.open_part(number).map_err(|problem| {
            let PageHeader { segment, page, .. } = self.header;
            StorageError::corrupt(format!(
                "{label}, segment {segment}, page {page}, part {number}: {problem}"
            ))
        })
    }

    fn open_part(self: &Arc<Self>, number: u16) -> Result<Page, String> {
        let group::Part { header, stored } = group::part(&self.header, self.data(), number)?;
        let length = usize::from(header.payload_length);
        let (bytes, payload_start) = match stored.len() == length {
            true => (
                Bytes::Group(Arc::clone(self)),
                self.data_start + stored.start,
            ),
            false => {
                // Zeros at the end are not stored.
                let mut payload = vec![0; length];
                payload[..stored.len()].copy_from_slice(&self.data()[stored]);
                (Bytes::Payload(payload.into()), 0)
            }
        };
        let payload = &bytes[payload_start..payload_start + length];
        let validity = check_rows(&header, payload)?;
        let layout = Layout::parse(&header, &payload[validity..])?;
        Ok(Page {
            header,
            layout,
            payload_start,
            data_start: payload_start + validity,
            bytes,
        })
    }

    /// Its header.
    pub fn header(&self) -> &PageHeader {
        &self.header
    }

    /// All of it, as on flash; of a part of a group page, the page that it would be by itself.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        if let Bytes::Own(buffer) = &self.bytes {
            return Cow::Borrowed(buffer);
        }
        let mut page = vec![0; PAGE_SIZE_BYTES];
        page[HEADER_SIZE_BYTES..][..self.payload().len()].copy_from_slice(self.payload());
        self.header.write(&mut page);
        Cow::Owned(page)
    }

    /// The used part of the payload.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.payload_start..self.payload_end()]
    }

    /// The payload after the validity bitmap.
    pub fn data(&self) -> &[u8] {
        &self.bytes[self.data_start..self.payload_end()]
    }

    fn payload_end(&self) -> usize {
        self.payload_start + usize::from(self.header.payload_length)
    }

    /// The data of a page in which values of `size` bytes lie one after the other, those of NULLs
    /// among them; `None` for other pages.
    pub fn plain_values(&self, size: usize) -> Option<&[u8]> {
        let header = &self.header;
        let is_plain = header.encoding == Encoding::Raw
            && !header.has(flags::CONTINUES)
            && header.null_count < header.row_count
            && self.data().len() == header.row_count as usize * size;
        is_plain.then(|| self.data())
    }

    /// The validity bitmap, least significant bit first, 1 for a value; `None` without NULLs.
    pub fn validity(&self) -> Option<&[u8]> {
        if self.header.has(flags::HAS_VALIDITY) {
            Some(&self.bytes[self.payload_start..self.data_start])
        } else if self.header.null_count > 0 {
            Some(&ALL_NULL[..validity_size_bytes(self.row_count())])
        } else {
            None
        }
    }

    /// Its rows, numbered within the segment.
    pub fn rows(&self) -> Range<u32> {
        let first = u32::from(self.header.first_row);
        first..first + self.header.row_count
    }

    /// Whether the page only continues the long value of the page before it.
    pub fn is_continuation(&self) -> bool {
        matches!(self.layout, Layout::Continuation)
    }

    pub(super) fn row_count(&self) -> usize {
        self.header.row_count as usize
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// Checks counts and validity bitmap; gives the bytes that the bitmap takes.
fn check_rows(header: &PageHeader, payload: &[u8]) -> Result<usize, String> {
    let PageHeader {
        row_count,
        null_count,
        first_row,
        ..
    } = *header;
    let payload_length = usize::from(header.payload_length);
    if payload_length > PAYLOAD_SIZE_BYTES {
        return Err(format!(
            "payload of {payload_length} bytes is longer than a page"
        ));
    }
    let end = u64::from(first_row) + u64::from(row_count);
    if end > SEGMENT_ROWS as u64 {
        return Err(format!("rows {first_row} to {end} lie outside a segment"));
    }
    if null_count > row_count {
        return Err(format!("{null_count} NULLs among {row_count} rows"));
    }
    if !header.has(flags::HAS_VALIDITY) {
        if null_count != 0 && null_count != row_count {
            return Err(format!(
                "{null_count} NULLs among {row_count} rows, but no validity bitmap"
            ));
        }
        return Ok(0);
    }
    let size = validity_size_bytes(row_count as usize);
    if size > payload_length {
        return Err(format!(
            "validity bitmap of {size} bytes in a payload of {payload_length}"
        ));
    }
    let valid = count_ones(&payload[..size], row_count as usize);
    if valid + null_count as usize != row_count as usize {
        return Err(format!(
            "{null_count} NULLs counted, but {valid} of {row_count} rows are valid"
        ));
    }
    Ok(size)
}

/// Set bits among the first `bits` of `bitmap`.
fn count_ones(bitmap: &[u8], bits: usize) -> usize {
    let (whole, rest) = bitmap.split_at(bits / 8);
    let last = if bits.is_multiple_of(8) {
        0
    } else {
        rest[0] & ((1 << (bits % 8)) - 1)
    };
    whole
        .iter()
        .map(|byte| byte.count_ones() as usize)
        .sum::<usize>()
        + last.count_ones() as usize
}

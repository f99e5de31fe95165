//! Where the regions of a page's data lie, worked out and bounds-checked once per page.
//!
//! What [`Layout::parse`] lets through is safe to decode: the functions that read a page rely on
//! the sizes checked here and on nothing else in its bytes.

use super::header::{align_region, bytes_at, flags};
use super::{BLOCK_VALUES, Encoding, PageHeader};

/// Rows between two stored starts of a text page.
pub(super) const TEXT_BLOCK_ROWS: usize = 32;
/// Spare bytes after packed lengths, so that four bytes can be loaded at any of them.
pub(super) const TEXT_SPARE_BYTES: usize = 3;
/// Symbols that a symbol table may have; code 255 is the escape.
pub(super) const MAX_SYMBOLS: usize = 255;

/// The data of a page.
#[derive(Debug, Clone, Copy)]
pub(super) enum Layout {
    /// No data; every row is `reference`.
    Reference,
    /// The data are the bytes of every row's value.
    Value,
    /// Values of `size` bytes.
    Fixed { size: usize },
    /// Packed offsets.
    Packed(Packed),
    /// `count` runs: `count` × u16 last row of the run (after the u16 count itself), then packed
    /// offsets of the values.
    Runs { count: usize, values: Packed },
    /// Starts, lengths, bytes.
    Text(Text),
    /// Part of a value that began in an earlier page.
    Continuation,
    /// Lengths, then symbols of 8 bytes each.
    Symbols { symbols: usize },
    /// Parts, each with a layout of its own.
    Group,
}

/// Blocks of 256 offsets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packed {
    /// Bits of a packed offset.
    pub width: u8,
    /// What a packed offset counts in; 1 unless the page is SCALED.
    pub step: u64,
    /// Where the first block starts within the data.
    pub start: usize,
}

/// Lengths and bytes of text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text {
    rows: usize,
    /// Bits of a packed length.
    width: usize,
    /// Least length.
    min: u32,
    /// Where the bytes start within the data.
    pub bytes: usize,
}

/// Bytes of `values` packed offsets of `width` bits.
pub(super) const fn packed_size_bytes(values: usize, width: usize) -> usize {
    values.div_ceil(BLOCK_VALUES) * width * (BLOCK_VALUES / 8)
}

/// Bytes of the region with the number and the ends of `runs` runs.
pub(super) const fn run_ends_size_bytes(runs: usize) -> usize {
    align_region(2 + 2 * runs)
}

/// Bytes of the region with starts and lengths of `rows` strings.
pub(super) const fn text_lengths_size_bytes(rows: usize, width: usize) -> usize {
    align_region(2 * rows.div_ceil(TEXT_BLOCK_ROWS) + (rows * width).div_ceil(8) + TEXT_SPARE_BYTES)
}

impl Layout {
    /// Checks `data`, the payload after the validity bitmap, against the header; the error says
    /// what does not fit.
    pub fn parse(header: &PageHeader, data: &[u8]) -> Result<Self, String> {
        let rows = header.row_count as usize;
        if header.has(flags::AUXILIARY) {
            return Self::parse_auxiliary(header, data);
        }
        if rows == 0 {
            return Ok(Self::Continuation);
        }
        if header.has(flags::CONTINUES) {
            let can_continue = matches!(
                header.encoding,
                Encoding::Raw | Encoding::RawStr | Encoding::Fsst
            );
            if rows != 1 || !can_continue {
                return Err(format!(
                    "a page of {rows} rows, {:?}, can't continue in the next",
                    header.encoding
                ));
            }
        }
        match header.encoding {
            Encoding::Const if header.width == 0 => Ok(Self::Reference),
            Encoding::Const => Ok(Self::Value),
            Encoding::Raw => Self::parse_fixed(header, data),
            Encoding::Forbp | Encoding::Dict => Self::parse_packed(header, data),
            Encoding::Rle => Self::parse_runs(header, data),
            Encoding::Fsst | Encoding::RawStr => Text::parse(header, data).map(Self::Text),
            Encoding::Group => Err("a group of parts where values are expected".into()),
        }
    }

    fn parse_auxiliary(header: &PageHeader, data: &[u8]) -> Result<Self, String> {
        let entries = header.row_count as usize;
        match header.encoding {
            Encoding::Raw => Self::parse_fixed(header, data),
            Encoding::RawStr => Text::parse(header, data).map(Self::Text),
            Encoding::Fsst => {
                let symbols = align_region(entries);
                if entries > MAX_SYMBOLS || symbols + 8 * entries != data.len() {
                    return Err(format!("{entries} symbols in {} bytes", data.len()));
                }
                if data[..entries]
                    .iter()
                    .any(|length| !(1..=8).contains(length))
                {
                    return Err("a symbol's length is not 1 to 8".into());
                }
                Ok(Self::Symbols { symbols })
            }
            other => Err(format!("an auxiliary page can't be {other:?}")),
        }
    }

    fn parse_fixed(header: &PageHeader, data: &[u8]) -> Result<Self, String> {
        let rows = header.row_count as usize;
        let size = usize::try_from(header.reference)
            .ok()
            .filter(|&size| size <= i32::MAX as usize)
            .ok_or_else(|| format!("values of {} bytes", header.reference))?;
        let fits = match header.has(flags::CONTINUES) {
            true => data.len() < size,
            false => rows.checked_mul(size) == Some(data.len()),
        };
        if !fits {
            return Err(format!(
                "{rows} values of {size} bytes do not make {} bytes",
                data.len()
            ));
        }
        Ok(Self::Fixed { size })
    }

    fn parse_packed(header: &PageHeader, data: &[u8]) -> Result<Self, String> {
        if header.width > 64 {
            return Err(format!("offsets of {} bits", header.width));
        }
        let mut packed = Packed {
            width: header.width,
            step: 1,
            start: 0,
        };
        if header.has(flags::SCALED) {
            if data.len() < align_region(9) {
                return Err(format!(
                    "{} bytes are too few for scaled offsets",
                    data.len()
                ));
            }
            packed = Packed {
                step: u64::from_le_bytes(bytes_at(data, 0)),
                width: data[8],
                start: align_region(9),
            };
            let largest = if packed.width > 64 {
                None
            } else {
                max_offset(packed.width).checked_mul(packed.step)
            };
            // A whole block of padding may hold any offset, so the product must not overflow.
            if packed.step == 0 || largest.is_none() {
                return Err(format!(
                    "offsets of {} bits in steps of {}",
                    packed.width, packed.step
                ));
            }
        }
        let expected =
            packed.start + packed_size_bytes(header.row_count as usize, usize::from(packed.width));
        if expected != data.len() {
            return Err(format!(
                "packed offsets take {expected} bytes, but there are {}",
                data.len()
            ));
        }
        Ok(Self::Packed(packed))
    }

    fn parse_runs(header: &PageHeader, data: &[u8]) -> Result<Self, String> {
        if data.len() < 2 || header.width > 64 {
            return Err(format!(
                "runs in {} bytes, values of {} bits",
                data.len(),
                header.width
            ));
        }
        let count = usize::from(u16::from_le_bytes(bytes_at(data, 0)));
        let start = run_ends_size_bytes(count);
        let expected = start + packed_size_bytes(count, usize::from(header.width));
        if count == 0 || expected != data.len() {
            return Err(format!(
                "{count} runs take {expected} bytes, but there are {}",
                data.len()
            ));
        }
        let ends = data[2..2 + 2 * count].as_chunks::<2>().0;
        let increasing = ends
            .windows(2)
            .all(|pair| u16::from_le_bytes(pair[0]) < u16::from_le_bytes(pair[1]));
        if !increasing || u32::from(u16::from_le_bytes(ends[count - 1])) + 1 != header.row_count {
            return Err(format!(
                "the ends of {count} runs do not lead to row {}",
                header.row_count
            ));
        }
        Ok(Self::Runs {
            count,
            values: Packed {
                width: header.width,
                step: 1,
                start,
            },
        })
    }
}

/// The greatest number of `width` bits.
pub(super) const fn max_offset(width: u8) -> u64 {
    if width >= 64 {
        u64::MAX
    } else {
        (1 << width) - 1
    }
}

impl Text {
    fn parse(header: &PageHeader, data: &[u8]) -> Result<Self, String> {
        let rows = header.row_count as usize;
        let width = usize::from(header.width);
        let min =
            u32::try_from(header.reference).map_err(|_| format!("length {}", header.reference))?;
        let bytes = text_lengths_size_bytes(rows, width);
        if width > 16 || bytes > data.len() || min as usize > data.len() {
            return Err(format!(
                "{rows} lengths of {width} bits from {min} up in {} bytes",
                data.len()
            ));
        }
        let text = Self {
            rows,
            width,
            min,
            bytes,
        };
        let mut start = 0;
        for row in 0..rows {
            if row % TEXT_BLOCK_ROWS == 0 && text.stored_start(data, row / TEXT_BLOCK_ROWS) != start
            {
                return Err(format!("row {row} does not start where the lengths say"));
            }
            start += text.length(data, row);
        }
        if bytes + start != data.len() {
            return Err(format!(
                "lengths add up to {start} bytes, but there are {}",
                data.len() - bytes
            ));
        }
        Ok(text)
    }

    fn stored_start(&self, data: &[u8], block: usize) -> usize {
        usize::from(u16::from_le_bytes(bytes_at(data, 2 * block)))
    }

    /// Bytes of the string in `row`.
    #[inline]
    pub fn length(&self, data: &[u8], row: usize) -> usize {
        let bit = row * self.width;
        let at = 2 * self.rows.div_ceil(TEXT_BLOCK_ROWS) + bit / 8;
        let word = u32::from_le_bytes(bytes_at(data, at)) >> (bit % 8);
        (self.min + (word & ((1 << self.width) - 1))) as usize
    }

    /// The bytes of `row`, which the page has.
    pub fn value<'a>(&self, data: &'a [u8], row: usize) -> &'a [u8] {
        let start = self.bytes + self.start(data, row);
        &data[start..start + self.length(data, row)]
    }

    /// The row whose bytes hold `place`, which is before their end.
    pub fn row_at(&self, data: &[u8], place: usize) -> usize {
        let (mut low, mut high) = (0, self.rows.div_ceil(TEXT_BLOCK_ROWS));
        while low + 1 < high {
            let middle = low.midpoint(high);
            if self.stored_start(data, middle) <= place {
                low = middle;
            } else {
                high = middle;
            }
        }
        let mut row = low * TEXT_BLOCK_ROWS;
        let mut end = self.stored_start(data, low);
        while row + 1 < self.rows {
            end += self.length(data, row);
            if place < end {
                break;
            }
            row += 1;
        }
        row
    }

    /// Where `row` (at most the number of rows) starts within the bytes.
    #[inline]
    pub fn start(&self, data: &[u8], row: usize) -> usize {
        let block = row / TEXT_BLOCK_ROWS;
        if row == self.rows {
            return data.len() - self.bytes;
        }
        (block * TEXT_BLOCK_ROWS..row).fold(self.stored_start(data, block), |at, row| {
            at + self.length(data, row)
        })
    }
}

/// Finds ascending rows of a text page.
#[derive(Debug)]
pub(super) struct TextCursor<'a> {
    text: &'a Text,
    row: usize,
    start: usize,
}

impl Text {
    pub fn cursor(&self) -> TextCursor<'_> {
        TextCursor {
            text: self,
            row: 0,
            start: 0,
        }
    }
}

impl TextCursor<'_> {
    /// Where `row`, which is not before the last row found, lies within the bytes.
    pub fn locate(&mut self, data: &[u8], row: usize) -> std::ops::Range<usize> {
        if row - self.row > row % TEXT_BLOCK_ROWS {
            (self.row, self.start) = (row, self.text.start(data, row));
        }
        while self.row < row {
            self.start += self.text.length(data, self.row);
            self.row += 1;
        }
        self.start..self.start + self.text.length(data, row)
    }
}

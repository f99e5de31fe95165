//! Auxiliary pages: what a chunk's data pages need besides themselves.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryViewArray, StringViewArray};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::DataType;

use super::builder::{FixedValues, finish_array};
use super::header::{bytes_at, flags};
use super::kind::Kind;
use super::layout::Layout;
use super::text::{check_utf8, view};
use super::{Page, strings};
use crate::{Result, StorageError};

/// The parsed auxiliary page of a chunk, or none.
#[derive(Debug, Clone)]
pub enum Aux {
    /// The chunk has no auxiliary page.
    None,
    /// The sorted distinct values that DICT pages number.
    Dictionary(Arc<Dictionary>),
    /// The symbols of FSST pages.
    Symbols(Arc<SymbolTable>),
}

impl Aux {
    /// Parses the auxiliary page of a column of type `data_type`.
    ///
    /// # Errors
    /// `Corrupt` when the page is not an auxiliary page or does not fit the type.
    pub fn parse(page: &Page, data_type: &DataType) -> Result<Aux> {
        let corrupt = |what: &str| {
            StorageError::corrupt(format!(
                "segment {}, auxiliary page: {what}",
                page.header().segment
            ))
        };
        if !page.header().has(flags::AUXILIARY) {
            return Err(corrupt("it is a page of data"));
        }
        match *page.layout() {
            Layout::Symbols { symbols } => {
                Ok(Aux::Symbols(Arc::new(SymbolTable::parse(page, symbols))))
            }
            Layout::Text(_) => {
                Dictionary::text(page, data_type).map(|d| Aux::Dictionary(Arc::new(d)))
            }
            Layout::Fixed { size } => {
                Dictionary::fixed(page, size, data_type).map(|d| Aux::Dictionary(Arc::new(d)))
            }
            _ => Err(corrupt("it is neither dictionary nor symbol table")),
        }
    }
}

/// The sorted distinct values of a chunk: codes order as their values do.
#[derive(Debug)]
pub struct Dictionary {
    array: ArrayRef,
    bytes: Buffer,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Text {
        offsets: Vec<u32>,
        views: ScalarBuffer<u128>,
    },
    Integers(Vec<i64>),
    Fixed {
        size: usize,
    },
}

impl Dictionary {
    fn text(page: &Page, data_type: &DataType) -> Result<Self> {
        let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
        strings::decompress(
            page,
            &Aux::None,
            0..page.header().row_count,
            &mut bytes,
            &mut offsets,
        )?;
        let is_text = *data_type == DataType::Utf8View;
        if !is_text && *data_type != DataType::BinaryView {
            return Err(strings::no_fit(page, &Aux::None));
        }
        if is_text && !check_utf8(&bytes, &offsets) {
            return Err(StorageError::corrupt(format!(
                "segment {}, dictionary: text that is not UTF-8",
                page.header().segment
            )));
        }
        let views: ScalarBuffer<u128> = offsets
            .windows(2)
            .map(|ends| view(&bytes, ends[0] as usize, ends[1] as usize, 0))
            .collect::<Vec<_>>()
            .into();
        let bytes = Buffer::from(bytes);
        let buffers = vec![bytes.clone()];
        let array: ArrayRef = if is_text {
            // SAFETY: the views were just made to point into `bytes`, which was just found to be
            // UTF-8, cut at characters.
            Arc::new(unsafe { StringViewArray::new_unchecked(views.clone(), buffers, None) })
        } else {
            // SAFETY: the views were just made to point into `bytes`.
            Arc::new(unsafe { BinaryViewArray::new_unchecked(views.clone(), buffers, None) })
        };
        Ok(Self {
            array,
            bytes,
            values: Values::Text { offsets, views },
        })
    }

    fn fixed(page: &Page, size: usize, data_type: &DataType) -> Result<Self> {
        let data = page.data();
        let no_fit = || strings::no_fit(page, &Aux::None);
        let (values, native) = match Kind::of(data_type)? {
            Kind::Integer { size: native } if size == 8 => {
                let integers: Vec<i64> = data
                    .as_chunks()
                    .0
                    .iter()
                    .map(|bytes| i64::from_le_bytes(*bytes))
                    .collect();
                let mut values = FixedValues::new(native, integers.len()).ok_or_else(no_fit)?;
                values.extend_integers(&integers);
                (Values::Integers(integers), values.into_buffer())
            }
            Kind::Fixed { size: native } if size == native => {
                (Values::Fixed { size }, Buffer::from(data))
            }
            _ => return Err(no_fit()),
        };
        let array = finish_array(data_type, page.row_count(), native, None)?;
        Ok(Self {
            array,
            bytes: Buffer::from(data),
            values,
        })
    }

    /// Number of distinct values.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.array.len()
    }

    /// All values in code order, as an array of the column's type: predicates and expressions can
    /// be evaluated on it once for all rows.
    pub fn array(&self) -> &ArrayRef {
        &self.array
    }

    /// The bytes of a value: text itself, an integer as 8 bytes, others as Arrow has them, all
    /// little-endian.
    ///
    /// # Panics
    /// When there is no such code.
    pub fn value(&self, code: usize) -> &[u8] {
        match &self.values {
            Values::Text { offsets, .. } => {
                &self.bytes[offsets[code] as usize..offsets[code + 1] as usize]
            }
            Values::Integers(_) => &self.bytes[8 * code..8 * code + 8],
            Values::Fixed { size } => &self.bytes[size * code..size * code + size],
        }
    }

    /// The values of a dictionary of integers (see [`ints`](super::ints)); empty for others.
    pub fn integers(&self) -> &[i64] {
        match &self.values {
            Values::Integers(values) => values,
            _ => &[],
        }
    }

    /// Arrow views of the values of a dictionary of text, into [`Dictionary::buffer`] as buffer 0;
    /// empty for others.
    pub fn views(&self) -> &[u128] {
        match &self.values {
            Values::Text { views, .. } => views,
            _ => &[],
        }
    }

    /// The bytes that [`Dictionary::views`] point into.
    pub fn buffer(&self) -> &Buffer {
        &self.bytes
    }

    /// The code of the first value that is not below `value` (byte order; only for text).
    pub fn lower_bound(&self, value: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.value(middle) < value {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }
}

/// The symbols of an FSST-compressed chunk.
#[derive(Debug)]
pub struct SymbolTable {
    /// The symbol of each code, first byte lowest.
    pub(super) symbols: [u64; 256],
    /// Its length; 0 for codes without a symbol.
    pub(super) lengths: [u8; 256],
    len: usize,
    is_canonical: bool,
}

impl SymbolTable {
    fn parse(page: &Page, start: usize) -> Self {
        let data = page.data();
        let len = page.row_count();
        let mut table = Self {
            symbols: [0; 256],
            lengths: [0; 256],
            len,
            is_canonical: page.header().has(flags::CANONICAL),
        };
        table.lengths[..len].copy_from_slice(&data[..len]);
        for (code, symbol) in table.symbols[..len].iter_mut().enumerate() {
            *symbol = u64::from_le_bytes(bytes_at(data, start + 8 * code));
        }
        table
    }

    /// Number of symbols; the codes below it stand for them, code 255 is the escape.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the chunk's text is compressed by the longest symbol at each place, so that
    /// [`CodeSearch`](super::CodeSearch) may draw conclusions from what is not there.
    pub fn is_canonical(&self) -> bool {
        self.is_canonical
    }

    /// The bytes of a symbol, in the low bytes of a word, and how many they are.
    pub fn symbol(&self, code: u8) -> (u64, u8) {
        (
            self.symbols[usize::from(code)],
            self.lengths[usize::from(code)],
        )
    }
}

//! Some rows of a page, and what decoders get of them.

use std::ops::Range;

use super::super::auxiliary::{Aux, Dictionary};
use super::super::ints::{self, Integer};
use super::super::layout::Layout;
use super::super::strings;
use super::super::{Encoding, Page};
use crate::Result;

/// Rows of a page, by their numbers within it. They are rows that the page has.
#[derive(Debug, Clone)]
pub(super) enum Rows<'a> {
    /// All from one to another.
    Range(Range<u32>),
    /// These, ascending.
    Some(&'a [u32]),
}

impl Rows<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Self::Range(rows) => rows.len(),
            Self::Some(rows) => rows.len(),
        }
    }

    /// Their numbers.
    pub fn for_each(&self, each: impl FnMut(u32)) {
        match self {
            Self::Range(rows) => rows.clone().for_each(each),
            Self::Some(rows) => rows.iter().copied().for_each(each),
        }
    }

    /// Appends the integers of a page of integers to `out`.
    pub fn append_integers<T: Integer>(&self, page: &Page, out: &mut Vec<T>) {
        match self {
            Self::Range(rows) => ints::append(page, rows.clone(), out),
            Self::Some(rows) => ints::append_gather(page, rows, out),
        }
    }

    /// Appends values of `size` bytes, which stand one behind the other in `data`, by `append`.
    pub fn append_fixed<E>(
        &self,
        data: &[u8],
        size: usize,
        mut append: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Range(rows) => {
                append(&data[rows.start as usize * size..rows.end as usize * size])
            }
            Self::Some(rows) => rows
                .iter()
                .try_for_each(|row| append(&data[*row as usize * size..][..size])),
        }
    }

    /// Appends the bytes of their texts to `bytes` and where each ends to `offsets`.
    ///
    /// # Errors
    /// As [`strings::decompress`].
    pub fn append_texts(
        &self,
        page: &Page,
        aux: &Aux,
        bytes: &mut Vec<u8>,
        offsets: &mut Vec<u32>,
    ) -> Result<()> {
        match self {
            Self::Range(rows) => strings::decompress(page, aux, rows.clone(), bytes, offsets),
            Self::Some(rows) => strings::decompress_gather(page, aux, rows, bytes, offsets),
        }
    }

    /// Where the page has codes of a dictionary: the dictionary and their codes, of which a torn
    /// page may have some that it lacks.
    pub fn codes<'a>(&self, page: &Page, aux: &'a Aux) -> Option<(&'a Dictionary, Vec<i32>)> {
        let (Layout::Packed(_), Encoding::Dict, Aux::Dictionary(dictionary)) =
            (page.layout(), page.header().encoding, aux)
        else {
            return None;
        };
        let mut codes = Vec::with_capacity(self.len());
        self.append_integers(page, &mut codes);
        Some((dictionary, codes))
    }
}

//! One page's bytes.
//!
//! A page decodes alone, given at most one auxiliary page of its chunk (dictionary or symbol
//! table), so that pages may arrive in any order and a decoder needs no memory between them. (The
//! parts of a value longer than a page are the one exception.) `docs/flash-format.md` gives every
//! byte.
//!
//! The rows of one column in one segment are a *chunk*: a contiguous run of pages, the auxiliary
//! page (if any) first.
//!
//! A *group page* holds rows of several columns, each column's as a part that is a page in itself
//! but for its header ([`Page::part`]): who wants whole rows reads one page.
//!
//! The way in is [`encode_chunk`] or [`encode_groups`]; the way out is [`Page::verify`], [`Aux::parse`], and then
//! [`ColumnBuilder`] for Arrow arrays, [`RowValues`] for one row, or [`ints`] and [`strings`] for work on
//! encoded values.

mod auxiliary;
mod builder;
mod bytes;
mod code_search;
mod encode;
mod forbp;
mod group;
mod header;
mod index;
pub mod ints;
mod kind;
mod layout;
mod nested;
pub mod plain;
mod row;
mod sketch;
pub mod strings;
#[cfg(test)]
mod tests;
mod text;
mod zone;

pub use auxiliary::{Aux, Dictionary, SymbolTable};
pub use builder::{ColumnBuilder, decode, gather};
pub use bytes::bytes_page;
pub use code_search::CodeSearch;
pub use encode::{
    ChunkIdentity, ChunkStats, EncodedChunk, EncodedGroups, GroupedColumn, encode_chunk,
    encode_groups, max_chunk_rows,
};
pub use header::{Encoding, Page, PageHeader, PageIdentity, flags};
pub use index::{PageIndex, PageStart};
pub use row::{RowValues, Value};
pub use sketch::{estimate_distinct, merge_sketches};
pub use zone::{PageZone, ZoneKey, bytes_key, float_of_key, zone_key};

use crate::flash::PAGE_SIZE_BYTES;

/// Bytes of a page's header.
pub const HEADER_SIZE_BYTES: usize = 64;
/// Bytes of a page that hold data.
pub const PAYLOAD_SIZE_BYTES: usize = PAGE_SIZE_BYTES - HEADER_SIZE_BYTES;
/// Rows of a full segment: its selection bitmap fills one page.
pub const SEGMENT_ROWS: usize = 65_536;
/// Values of a bit-packed block.
pub const BLOCK_VALUES: usize = 256;

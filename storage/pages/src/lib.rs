//! Flash, the pages on it, and the store that keeps them: the floor that all of storage stands on.
//!
//! | module | what is in it |
//! |---|---|
//! | [`flash`] | raw devices: read, write and erase of 8 KiB pages, many tags in flight |
//! | [`page`] | one page's bytes: header, encodings, checks |
//! | [`store`] | the log-structured page store and the page cache |
//!
//! Each uses only those above it, which `cargo xtask floors` checks; nothing here knows tables. [`StorageError`] is the error of all storage.

mod error;
pub mod flash;
pub mod page;
pub mod store;

pub use error::{Result, StorageError};

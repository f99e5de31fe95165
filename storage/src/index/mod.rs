//! Indexes: what finds rows without looking at all of them. An index is made of *parts*, each of
//! which covers some segments of a table; a part is Arrow arrays, stored as chunks like any
//! column, and a small blob.

pub mod lsh;

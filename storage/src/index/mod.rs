//! Secondary indexes: what is stored beside a column so that a search can leave pages out.

pub mod ngram;

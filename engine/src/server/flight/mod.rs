//! Flight SQL: the protocol's requests as calls of a session.

mod info;
mod ingest;
mod metadata;
mod options;
mod plain;
pub(super) mod prepared;
mod results;
mod service;
pub(super) mod statements;
#[cfg(feature = "substrait")]
mod substrait;
mod transport;

pub(super) use service::FlightSql;
pub(super) use transport::Flight;

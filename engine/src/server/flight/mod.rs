//! Flight SQL: the protocol's requests as calls of a session.

mod columns;
mod get;
mod incoming;
mod info;
mod ingest;
mod message;
mod metadata;
mod metered;
mod options;
pub(super) mod prepared;
mod reflection;
mod results;
mod running;
mod service;
pub(super) mod statements;
#[cfg(feature = "substrait")]
mod substrait;
mod transport;

pub(super) use get::FlightServer;
pub(super) use reflection::with_reflection;
pub(super) use service::FlightSql;
pub(super) use transport::Flight;

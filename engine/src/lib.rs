//! SQL over tables that live on flash: sessions, catalog and statements on top of DataFusion.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> flashmesh::Result<()> {
//! use flashmesh::{Engine, EngineOptions};
//!
//! let engine = Engine::open(EngineOptions::default())?; // a temporary database
//! let session = engine.session()?;
//! session.sql("CREATE TABLE planet (name TEXT, moons INT)").await?;
//! session.sql("INSERT INTO planet VALUES ('Earth', 1), ('Mars', 2), ('Venus', 0)").await?;
//! let moons = session.sql("SELECT sum(moons) FROM planet WHERE name LIKE '%ar%'").await?;
//! assert!(moons.to_string().await?.contains("| 3 "));
//! # Ok(()) }
//! ```
//!
//! An [`Engine`] is an open database; a [`Session`] is one user's view of it. Results are
//! DataFusion's [`DataFrame`](datafusion::dataframe::DataFrame)s.

mod alter;
mod assign;
mod backup;
mod blocking;
mod bounded;
mod cache;
mod catalog;
mod change;
pub mod cli;
mod create_table;
mod create_view;
mod defaults;
mod depth;
mod dml;
mod error;
mod exact;
mod files;
mod functions;
mod gate;
mod generated;
mod get;
mod grants;
mod import;
mod indexes;
mod load;
mod memory;
mod merge;
mod names;
mod own_statement;
mod parameters;
mod parse;
mod past;
mod precedence;
mod prepare;
mod procedures;
mod put;
mod queries;
mod returning;
mod row_ids;
mod same_names;
pub mod server;
mod session;
mod session_functions;
mod settings;
mod show_functions;
mod spelling;
mod spill;
mod statements;
mod stores;
mod system;
mod table_options;
mod transactions;
mod types;
mod upsert;
mod views;

#[cfg(feature = "python")]
mod python;

pub use backup::{backups, check_backup, restore};
pub use error::{Error, Result};
pub use files::FileOptions;
pub use grants::{FunctionGrants, Grant, NamePattern, Principal, RightName, TablePattern};
pub use import::LoadMode;
pub use load::LoadProgress;
pub use queries::{
    PlanReport, Queries, Query, QueryKind, QueryReport, QueryState, RunningQuery, Totals,
};
pub use session::{Engine, EngineOptions, Session, make_temporary_folder, temporary_folder};

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

// The modules stand in groups, from the ground up: each uses only those of groups above its own, which
// `cargo xtask floors` checks.
//
// What stands on nothing: errors, names, memory and stores of files.
mod bounded;
mod cache;
mod error;
mod folder_keys;
mod interval_units;
mod memory;
mod names;
mod precedence;
mod rewritten_files;
mod row_ids;
mod spill;
mod stores;
mod types;
mod walk;
mod written_types;

mod csv_lines;
mod json_files;
mod named_files;
mod parquet_footers;
mod written_values;

mod csv_files;

// Who may do what, files as tables, statements in other words, and statements as plans.
mod depth;
mod files;
mod grants;
mod spelling;
mod threads;
mod whole_files;

mod accounts;
mod file_lists;

mod own_statement;

// Values, and forms of single statements.
mod blocking;
mod clauses;
mod defaults;
mod distributed;
mod exact;
mod fewer_names;
mod from_first;
mod information_schema;
mod past;
mod pragmas;
mod procedures;
mod queries;
mod resources;
mod returning;
mod session_info;
mod settled_types;
mod show_functions;
mod table_options;
mod variables;

mod called_columns;
mod constraints;
mod file_tables;
mod macros;
mod reused_aliases;

mod capitals;

// Text becomes statements; what they may hold and show.
mod assign;
mod gate;
mod generated;
mod parse;
mod same_names;
mod session_functions;
mod settings;
mod system;

// Plans of statements that DataFusion has none for.
mod constants;
mod merge;
mod upsert;
mod views;

// The catalog, and how rows are changed and loaded.
mod catalog;
mod change;
mod load;

mod named_sequences;

// An open database and its sessions, and what a node holds that is not the head.
mod session;

mod node_worker;

// What a session runs: kinds of statements, and below those that stand on them.
mod backup;
mod change_accounts;
mod check;
mod create_table;
mod dml;
mod explain_rack;
mod functions;
mod get;
mod indexes;
mod literal_rows;
mod parameters;
mod transactions;

mod asked_first;

mod by_name;
mod columns;
mod comments;
mod small_statements;
mod summarize;

mod alter;
mod create_view;
mod fields;
mod import;
mod limits;
mod lookup;
mod order_by_all;
mod pivots;
mod prepare;
mod put;
mod shown_tables;
mod statements;
mod whole_rows;

// Ways in.
pub mod server;

pub mod cli;

pub use backup::{backups, check_backup, restore};
pub use error::{Error, Result};
pub use files::FileOptions;
pub use flashmesh_storage::page::Value;
pub use get::{Keyed, Row};
pub use grants::{FunctionGrants, Grant, NamePattern, Principal, RightName, TablePattern};
pub use import::LoadMode;
pub use load::LoadProgress;
pub use lookup::Lookup;
pub use names::CATALOG;
pub use node_worker::NodeWorker;
pub use queries::{
    Asker, Operator, PlanReport, Queries, Query, QueryKind, QueryReport, QueryState, RunningQuery,
    Totals,
};
pub use resources::{make_temporary_folder, temporary_folder};
pub use session::{Engine, EngineOptions, Session};
pub use threads::{cores, runtime};

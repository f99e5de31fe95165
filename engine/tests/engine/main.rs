//! Sessions, statements, loads and the command line. One binary: each one links all of
//! DataFusion.

mod alterations;
mod answers_in_all_modes;
mod changes;
mod cli;
mod corrections;
mod definitions;
mod definitions_in_transactions;
mod grants;
mod indexes;
mod kernel_limits;
mod kernels;
mod loads;
mod plan_cache;
mod prepared;
mod puts;
mod searches;
mod shell;
mod statements;
mod support;
mod transactions;
mod versions;

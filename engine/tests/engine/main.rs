//! Sessions, statements, loads and the command line. One binary: each one links all of
//! DataFusion.

mod cli;
mod loads;
mod statements;
mod support;

//! The Program: what flashmesh runs beside the pages.
//!
//! A [`Program`] is a small typed instruction set, not a kernel per query: read these columns,
//! keep the rows for which a three-valued filter is TRUE, and give back expressions over them,
//! the first *k* in an order, or partial aggregates. It travels as protobuf ([`wire`]), is
//! checked against [`Limits`] by [`verify()`] before anything runs, and the naive
//! [`interpreter`] defines what it means: every accelerator is held against it.
//!
//! This crate knows Arrow and protobuf, nothing of DataFusion and nothing of flash.

mod display;
pub mod distance;
mod error;
mod expr;
pub mod interpreter;
mod program;
mod runtime_filter;
mod scalar;
#[cfg(feature = "testing")]
pub mod testing;
pub mod types;
mod verify;
pub mod wire;

pub use distance::{Metric, QueryVector};
pub use error::ProgramError;
pub use program::{
    Aggregate, AggregateFunction, ArithmeticOp, CompareOp, DatePart, Expr, InputColumn, KernelId,
    Literal, Output, Program, Scalar, SortKey,
};
pub use runtime_filter::{RuntimeFilter, RuntimePredicate};
pub use verify::{Limits, VerifiedProgram, compile_regex, verify, verify_runtime_filter};

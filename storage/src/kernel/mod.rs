//! Kernels that users add: packages, their manifests, and how Arrow arrays become the arguments of
//! a C function. docs/kernels.md is the whole contract.

mod argument;
pub mod interface;

pub use argument::{Argument, CallContext, MemoryBudget, ScalarArgument, Target};

//! Kernels that users add: packages, their manifests, and how Arrow arrays become the arguments of
//! a C function. docs/kernels.md is the whole contract.

mod aggregate;
mod argument;
mod call;
mod columns;
mod functions;
pub mod interface;
mod manifest;
mod package;
mod query;
mod results;
mod set;
mod signature;
mod table;

pub use aggregate::States;
pub use argument::{Argument, CallContext, ScalarArgument, Target};
pub use call::Kernel;
pub use functions::{CArgument, CFunction, Extent};
pub use manifest::{
    Fpga, Intent, Kind, Limits, MAX_MANIFEST_BYTES, Manifest, Nulls, Port, StreamArgument,
    StreamTop, Test,
};
pub(crate) use package::Cursor;
pub use package::{MAX_PACKAGE_BYTES, Package, hexadecimal, source_digest};
pub use query::{CallTime, QueryCalls};
pub use set::{KernelSet, has_kernels};
pub(crate) use set::{check_call, for_each_kernel};
pub use signature::{Parameter, Returns, Signature};

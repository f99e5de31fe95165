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
mod registry;
mod results;
mod signature;
mod table;

pub use aggregate::States;
pub(crate) use argument::Charge;
pub use argument::{Argument, CallContext, MemoryBudget, ScalarArgument, Target};
pub use call::Kernel;
pub use functions::{CArgument, CFunction, Extent};
pub use manifest::{Fpga, Intent, Kind, Limits, MAX_MANIFEST_BYTES, Manifest, Nulls, Test};
pub(crate) use package::Cursor;
pub use package::{MAX_PACKAGE_BYTES, Package, hexadecimal};
pub use query::{CallTime, QueryCalls};
pub use registry::{KernelSet, Kernels, UserFunction, has_kernels, source_digest};
pub use signature::{Parameter, Returns, Signature};

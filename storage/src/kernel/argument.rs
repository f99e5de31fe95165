//! The arguments of one call of a kernel's C function, the same for every target.

use std::fmt::Debug;
use std::sync::Arc;

use super::CallTime;
use crate::Result;
use crate::memory::MemoryBudget;

/// One C argument.
#[derive(Debug)]
pub enum Argument<'a> {
    /// Passed by value.
    Scalar(ScalarArgument),
    /// An array that the kernel reads.
    In(&'a [u8]),
    /// An array that the kernel writes; what it held before is not passed on.
    Out(&'a mut [u8]),
    /// An array that the kernel reads and writes.
    InOut(&'a mut [u8]),
}

/// A value passed by value, as C sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScalarArgument {
    /// `uint8_t`, `int16_t`, `int32_t` or `uint32_t`: sign- or zero-extended to 32 bits.
    I32(i32),
    /// `int64_t` or `uint64_t`.
    I64(i64),
    /// `float`.
    F32(f32),
    /// `double`.
    F64(f64),
}

/// What a call may use and when it has to end.
#[derive(Debug, Clone, Copy)]
pub struct CallContext<'a> {
    /// The query's memory.
    pub memory: &'a dyn MemoryBudget,
    /// The query's time, and whether it was cancelled: the call ends soon after.
    pub time: &'a CallTime,
    /// Which query it is for, among those of the process.
    pub query: u64,
}

/// What runs a kernel's functions: the sandbox, or a device.
pub trait Target: Debug + Send + Sync {
    /// The name that plans and messages show.
    fn name(&self) -> &'static str;

    /// Calls the C function `function` with `arguments`, in C's order.
    ///
    /// # Errors
    /// `Kernel` with the kernel's name when it traps, takes too long, asks for too much or is
    /// cancelled; the arrays that it writes then hold anything.
    fn call(
        &self,
        function: &str,
        arguments: &mut [Argument<'_>],
        context: CallContext<'_>,
    ) -> Result<()>;

    /// What runs the calls of one query: state that it keeps between them is charged to `memory`,
    /// seen by no other query, and given back when the last clone is dropped. `None`: this target
    /// keeps nothing between calls that is not for all.
    fn session(&self, memory: &Arc<dyn MemoryBudget>) -> Option<Arc<dyn Target>> {
        let _ = memory;
        None
    }
}

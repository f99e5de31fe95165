//! Calls that the pipeline gives to a device: which operations there are, and how they are called.
//!
//! The C functions behind the operations, with their arguments, are those of `fpga/hls/`.

use std::fmt::Debug;

use crate::Result;
use crate::kernel::Argument;

/// What a device may compute for the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Which rows pass a condition over columns of numbers, which is a parameter.
    PredicateFilter,
    /// Where a text first occurs in each of many.
    MorrisPratt,
    /// The rows whose codes are nearest to a query, by Hamming distance.
    HammingNearest,
    /// The vertices that the neighbour lists of others reach first.
    GraphStep,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 4] = [
        Self::PredicateFilter,
        Self::MorrisPratt,
        Self::HammingNearest,
        Self::GraphStep,
    ];

    /// Its name in a manifest, as `kernel.operation`.
    pub fn name(self) -> &'static str {
        match self {
            Self::PredicateFilter => "predicate_filter",
            Self::MorrisPratt => "morris_pratt",
            Self::HammingNearest => "hamming_nearest",
            Self::GraphStep => "graph_step",
        }
    }
}

/// A device that computes operations. Many tasks use it at once.
pub trait Offload: Debug + Send + Sync {
    /// Whether it has this operation.
    fn supports(&self, operation: Operation) -> bool;

    /// Starts a call; the inputs are taken before it returns. Several calls may be under way.
    ///
    /// # Errors
    /// `Kernel` if the device can't be used.
    fn start(
        &self,
        operation: Operation,
        arguments: &mut [Argument<'_>],
    ) -> Result<Box<dyn OffloadCall>>;
}

/// A call under way. Dropped, it ends by itself and its results are lost.
pub trait OffloadCall: Debug + Send {
    /// Bytes of arrays that went to the device.
    fn bytes_to_device(&self) -> u64;

    /// Bytes of arrays that come back.
    fn bytes_from_device(&self) -> u64;

    /// Waits for the end; `outputs` are the arrays that the function writes, in C's order and as
    /// long as they were given to [`Offload::start`].
    ///
    /// # Errors
    /// `Kernel` if the device failed.
    fn finish(self: Box<Self>, outputs: &mut [&mut [u8]]) -> Result<()>;
}

/// What happens when a device fails at what was given to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fallback {
    /// The CPU computes it, and the scan counts it.
    #[default]
    Allow,
    /// The query ends with the device's error.
    Error,
}

//! The device of a task: what the pipeline gives to it is counted, and what it fails at comes back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::accelerator::offload::{Fallback, Offload, OffloadCall, Operation};
use crate::accelerator::{ScanMetrics, Task};
use crate::kernel::Argument;
use crate::{Result, StorageError};

/// The device of a task.
#[derive(Debug)]
pub(super) struct Device {
    offload: Arc<dyn Offload>,
    fallback: Fallback,
    metrics: Arc<ScanMetrics>,
}

impl Device {
    pub fn new(offload: &Arc<dyn Offload>, task: &Task) -> Self {
        Self {
            offload: Arc::clone(offload),
            fallback: task.fallback,
            metrics: Arc::clone(&task.metrics),
        }
    }

    /// Whether it has the operation.
    pub fn supports(&self, operation: Operation) -> bool {
        self.offload.supports(operation)
    }

    /// Starts a call and counts it.
    pub fn start(
        &self,
        operation: Operation,
        arguments: &mut [Argument<'_>],
    ) -> Result<Box<dyn OffloadCall>> {
        let call = self.offload.start(operation, arguments)?;
        let add = |counter: &std::sync::atomic::AtomicU64, value| {
            counter.fetch_add(value, Ordering::Relaxed);
        };
        add(&self.metrics.device_calls, 1);
        add(&self.metrics.bytes_to_device, call.bytes_to_device());
        add(&self.metrics.bytes_from_device, call.bytes_from_device());
        Ok(call)
    }

    /// Gives a test that the device has failed at back to the CPU, or fails.
    pub fn fall_back(&self, error: StorageError) -> Result<bool> {
        if self.fallback == Fallback::Error {
            return Err(error);
        }
        log::warn!("{error}; the CPU computes instead");
        self.metrics
            .device_fallbacks
            .fetch_add(1, Ordering::Relaxed);
        Ok(false)
    }
}

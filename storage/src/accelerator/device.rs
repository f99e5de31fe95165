//! The device of a task or a search: what is given to it is counted, and what it fails at comes
//! back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::accelerator::ScanMetrics;
use crate::accelerator::offload::{Fallback, Offload, OffloadCall, Operation};
use crate::kernel::Argument;
use crate::{Result, StorageError};

/// The device of a task or a search.
#[derive(Debug)]
pub(crate) struct Device {
    offload: Arc<dyn Offload>,
    fallback: Fallback,
    metrics: Arc<ScanMetrics>,
    /// It has failed before, and is not asked again.
    has_failed: AtomicBool,
}

impl Device {
    pub fn new(offload: Arc<dyn Offload>, fallback: Fallback, metrics: Arc<ScanMetrics>) -> Self {
        Self {
            offload,
            fallback,
            metrics,
            has_failed: AtomicBool::new(false),
        }
    }

    /// Whether to give it something. If it has failed before, that counts as another fallback.
    pub fn is_usable(&self) -> bool {
        let has_failed = self.has_failed.load(Ordering::Relaxed);
        if has_failed {
            self.count_fallback();
        }
        !has_failed
    }

    fn count_fallback(&self) {
        self.metrics
            .device_fallbacks
            .fetch_add(1, Ordering::Relaxed);
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
        let add = |counter: &AtomicU64, value| {
            counter.fetch_add(value, Ordering::Relaxed);
        };
        add(&self.metrics.device_calls, 1);
        add(&self.metrics.bytes_to_device, call.bytes_to_device());
        add(&self.metrics.bytes_from_device, call.bytes_from_device());
        Ok(call)
    }

    /// Gives something that the device has failed at back to the CPU, or fails.
    pub fn fall_back(&self, error: StorageError) -> Result<bool> {
        if self.fallback == Fallback::Error {
            return Err(error);
        }
        if matches!(error, StorageError::Kernel { .. })
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            log::warn!("{error}; the CPU computes instead");
        }
        self.count_fallback();
        Ok(false)
    }
}

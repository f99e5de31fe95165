//! Kernels on a device, as a target of calls.

use std::sync::Arc;

use super::device::{XrtDevice, call_bytes};
use crate::kernel::{Argument, CallContext, Target};
use crate::{Result, StorageError};

/// One kernel of an opened device.
#[derive(Debug, Clone)]
pub struct XrtKernel {
    device: Arc<XrtDevice>,
    kernel: String,
}

impl XrtKernel {
    /// The kernel of that SQL name.
    ///
    /// # Errors
    /// `NotFound` if the device's container does not hold it.
    pub fn new(device: Arc<XrtDevice>, kernel: &str) -> Result<Self> {
        let mut kernels = device.container().kernels().iter();
        if !kernels.any(|held| held.interface.name == kernel) {
            return Err(StorageError::NotFound {
                kind: "device kernel",
                name: kernel.to_owned(),
            });
        }
        Ok(Self {
            device,
            kernel: kernel.to_owned(),
        })
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Arc<XrtDevice> {
        &self.device
    }

    /// Names this kernel in an error of its function.
    fn named(&self, error: StorageError) -> StorageError {
        match error {
            StorageError::Kernel { kernel, reason } if kernel != self.kernel => {
                StorageError::Kernel {
                    kernel: self.kernel.clone(),
                    reason: format!("{kernel}: {reason}"),
                }
            }
            other => other,
        }
    }
}

impl Target for XrtKernel {
    fn name(&self) -> &'static str {
        "xrt"
    }

    fn call(
        &self,
        function: &str,
        arguments: &mut [Argument<'_>],
        context: CallContext<'_>,
    ) -> Result<()> {
        let mut kernels = self.device.container().kernels().iter();
        let own = kernels.find(|held| held.interface.name == self.kernel);
        if own.is_none_or(|held| held.interface.function(function).is_none()) {
            return Err(StorageError::NotFound {
                kind: "function of the device kernel",
                name: function.to_owned(),
            });
        }
        let bytes = call_bytes(arguments);
        context.memory.grow(bytes)?;
        let outcome = self
            .device
            .submit_for(context.query, function, arguments)
            .and_then(|pending| pending.wait(context.time.cancelled()));
        context.memory.shrink(bytes);
        outcome.map_err(|error| self.named(error))
    }
}

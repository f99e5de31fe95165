//! The `xrt` accelerator: the `cpu` pipeline, which gives the operations that the loaded container
//! declares to the device.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use flashmesh_pushdown::Program;
use serde::Deserialize;

use super::container::{Container, ContainerKernel};
use super::device::{StartedCall, XrtDevice};
use super::options::{XrtMode, XrtOptions};
use super::target::XrtKernel;
use crate::accelerator::cpu::CpuAccelerator;
use crate::accelerator::offload::{Offload, OffloadCall, Operation};
use crate::accelerator::{Accelerator, Task, TaskRun};
use crate::kernel::interface::{ArgumentUse, ElementType, FunctionInterface};
use crate::kernel::{Argument, Package, Target, hexadecimal};
use crate::{Result, StorageError};

/// Runs Programs on the CPU and a device behind XRT.
#[derive(Debug)]
pub struct XrtAccelerator {
    pipeline: CpuAccelerator,
    device: Arc<XrtDevice>,
    operations: Vec<Operation>,
}

impl XrtAccelerator {
    /// Opens the first device that fits a container's file (a card, or the device model), with the
    /// usual time-outs.
    ///
    /// # Errors
    /// Those of [`Container::open`], [`XrtDevice::open`] and [`XrtAccelerator::new`].
    pub fn open(container: &Path) -> Result<Self> {
        let container = Container::open(container)?;
        let options = XrtOptions::new(XrtMode::of(&container)?)?;
        Self::new(XrtDevice::open(container, options)?)
    }

    /// An accelerator with the operations that the device's container declares, by
    /// `kernel.operation` in its kernels' manifests.
    ///
    /// # Errors
    /// `Invalid` if a kernel declares an operation and is not called as it is.
    pub fn new(device: Arc<XrtDevice>) -> Result<Self> {
        let mut functions = Vec::new();
        for kernel in device.container().kernels() {
            let declared = declared_operation(kernel);
            let known = Operation::ALL
                .into_iter()
                .find(|o| Some(o.name()) == declared.as_deref());
            let Some(operation) = known else { continue };
            let function = match kernel.interface.functions.as_slice() {
                [function] if has_arguments_of(function, operation) => function.name.clone(),
                _ => {
                    return Err(StorageError::Invalid(format!(
                        "kernel '{}' declares the operation '{}', but is not called as it is; \
                         build the container again",
                        kernel.interface.name,
                        operation.name()
                    )));
                }
            };
            functions.push((operation, function));
        }
        let operations = functions.iter().map(|(operation, _)| *operation).collect();
        let offload = DeviceOffload {
            device: Arc::clone(&device),
            functions,
        };
        Ok(Self {
            device,
            pipeline: CpuAccelerator::with_offload(Arc::new(offload)),
            operations,
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<XrtDevice> {
        &self.device
    }

    /// The operations that go to the device.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }
}

impl Accelerator for XrtAccelerator {
    fn name(&self) -> &'static str {
        "xrt"
    }

    fn supports(&self, program: &Program) -> std::result::Result<(), String> {
        self.pipeline.supports(program)
    }

    fn describe(&self) -> String {
        let operations: Vec<_> = self.operations.iter().map(|o| o.name()).collect();
        format!("xrt ({})", operations.join(", "))
    }

    /// The container's kernel of the same sources and manifest: all others are other kernels.
    fn kernel(&self, package: &Package) -> Option<Arc<dyn Target>> {
        let source = hexadecimal(&package.source_digest);
        let mut held = self.device.container().kernels().iter();
        held.find(|held| held.source == source && held.manifest == package.manifest_text)?;
        let kernel = XrtKernel::new(Arc::clone(&self.device), &package.manifest.name).ok()?;
        Some(Arc::new(kernel))
    }

    fn offload(&self) -> Option<Arc<dyn Offload>> {
        self.pipeline.offload()
    }

    fn open(&self, task: Task) -> Result<Box<dyn TaskRun>> {
        self.pipeline.open(task)
    }
}

/// A device's functions for operations.
#[derive(Debug)]
struct DeviceOffload {
    device: Arc<XrtDevice>,
    functions: Vec<(Operation, String)>,
}

impl Offload for DeviceOffload {
    fn supports(&self, operation: Operation) -> bool {
        self.functions.iter().any(|(other, _)| *other == operation)
    }

    fn start(
        &self,
        operation: Operation,
        arguments: &mut [Argument<'_>],
    ) -> Result<Box<dyn OffloadCall>> {
        let function = self.functions.iter().find(|(other, _)| *other == operation);
        let (_, function) = function.ok_or_else(|| StorageError::NotFound {
            kind: "operation of the device",
            name: operation.name().into(),
        })?;
        Ok(Box::new(self.device.start(function, arguments)?))
    }
}

impl OffloadCall for StartedCall {
    fn bytes_to_device(&self) -> u64 {
        Self::bytes_to_device(self)
    }

    fn bytes_from_device(&self) -> u64 {
        Self::bytes_from_device(self)
    }

    fn finish(self: Box<Self>, outputs: &mut [&mut [u8]]) -> Result<()> {
        // A scan that is cancelled is dropped between two calls; one call is short.
        self.wait(outputs, &AtomicBool::new(false))
    }
}

/// `kernel.operation` of a kernel's manifest.
fn declared_operation(kernel: &ContainerKernel) -> Option<String> {
    #[derive(Deserialize)]
    struct Manifest {
        kernel: Kernel,
    }
    #[derive(Deserialize)]
    struct Kernel {
        operation: Option<String>,
    }
    let manifest: Manifest = toml::from_str(&kernel.manifest).ok()?;
    manifest.kernel.operation
}

/// Whether a function is called as the operation's, by `fpga/hls/`.
fn has_arguments_of(function: &FunctionInterface, operation: Operation) -> bool {
    use ArgumentUse::{In, InOut, Out, Scalar};
    use ElementType::{I64, U8, U32, U64};
    let wanted: &[(ArgumentUse, ElementType)] = match operation {
        Operation::PredicateFilter => &[
            (In, I64),
            (Scalar, U32),
            (In, U64),
            (Scalar, U32),
            (In, U64),
            (Scalar, U32),
            (Scalar, U32),
            (Out, U64),
        ],
        Operation::MorrisPratt => &[
            (In, U32),
            (In, U8),
            (In, U8),
            (Scalar, U32),
            (Scalar, U32),
            (Out, U32),
        ],
        Operation::HammingNearest => &[
            (In, U8),
            (Scalar, U32),
            (In, U64),
            (In, U8),
            (Scalar, U32),
            (Scalar, U32),
            (Out, U32),
            (Out, U32),
            (Out, U32),
        ],
        Operation::GraphStep => &[
            (In, U64),
            (In, U32),
            (Scalar, U32),
            (InOut, U64),
            (Scalar, U32),
            (Scalar, U32),
            (Out, U32),
            (Out, U32),
            (Out, U32),
        ],
    };
    let given = function.arguments.iter().map(|a| (a.usage, a.element));
    given.eq(wanted.iter().copied())
}

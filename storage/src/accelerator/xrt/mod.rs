//! Devices behind XRT, the runtime of AMD's FPGA cards.
//!
//! ```text
//! XrtDevice ─ submit, wait ─▶ session ═ socket, shared memory ═▶ host process ─▶ XRT ─▶ card or model
//! ```
//!
//! * [`container`]: the file that a device is loaded with, which says itself which kernels it holds.
//! * [`XrtDevice`]: an opened device; calls, several at once.
//! * [`XrtAccelerator`]: the `cpu` pipeline, which gives to the device what its kernels compute.
//! * [`XrtKernel`]: one of its kernels, as a [`Target`](crate::kernel::Target).
//! * [`host_main`]: the process that XRT runs in. A device that dies takes that process with it, and
//!   never the database.
//!
//! XRT is loaded when a device is opened; without it, everything else works. What stands behind XRT
//! is a card, or the device model in `fpga/shell/model`, which runs the kernels' C simulation.

mod accelerator;
mod api;
pub mod container;
mod device;
mod host;
mod options;
mod process;
mod protocol;
mod session;
mod shared;
mod target;

pub use accelerator::XrtAccelerator;
pub use device::{DeviceCounters, DeviceReport, DeviceState, Pending, StartedCall, XrtDevice};
pub use host::host_main;
pub use options::{
    EMULATION_VARIABLE, HOST_ARGUMENT, HOST_VARIABLE, HostCommand, XrtMode, XrtOptions,
    emulation_folder,
};
pub use target::XrtKernel;

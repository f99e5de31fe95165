//! Kernels behind the genuine XRT runtime and the device model of `fpga/shell/model`.
//!
//! Without XRT or a C++ compiler the tests are skipped, with a line that says so;
//! `FLASHMESH_REQUIRE_XRT=1` makes that a failure.

mod accelerator;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod failures;
mod graph;
mod rig;

use flashmesh_storage::accelerator::xrt::host_main;

/// Not a test: the entry of the runtime's process.
#[test]
#[ignore = "the entry of the runtime's process"]
fn xrt_host() {
    if std::env::var_os(rig::HOST_VARIABLE).is_some() {
        host_main();
    }
}

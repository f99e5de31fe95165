//! The `flashmesh` command.

mod cli;

use std::process::ExitCode;

use flashmesh_storage::accelerator::xrt::{HOST_ARGUMENT, host_main};

// With the feature `python` the library sets it.
#[cfg(not(feature = "python"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The process that a device's runtime lives in, started by flashmesh itself: nothing else of
    // the command may be there, not even its threads.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == HOST_ARGUMENT)
    {
        host_main();
    }
    cli::main()
}

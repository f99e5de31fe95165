//! The `flashmesh` command.

use std::process::ExitCode;

// With the feature `python` the library sets it.
#[cfg(not(feature = "python"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    flashmesh::cli::main(std::env::args_os())
}

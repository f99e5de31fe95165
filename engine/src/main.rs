//! The `flashmesh` command.

use std::process::ExitCode;

/// The system's allocator gives large buffers back at once, only to fault them in again for the
/// next batch.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    flashmesh::cli::main(std::env::args_os())
}

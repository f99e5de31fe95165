//! The threads on which statements are planned and run.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, Result};

/// The stack of each of them: see [`crate::depth`].
const STACK_BYTES: usize = 16 << 20;

/// How many threads the machine runs at once, one if it does not say it.
pub fn cores() -> usize {
    available_parallelism().map_or(1, NonZeroUsize::get)
}

/// A runtime with threads for queries of `parallel` parts, called `name`.
///
/// # Errors
/// Where threads can't be started.
pub fn runtime(name: &str, parallel: usize) -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(parallel.max(1))
        .thread_name(name)
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build()
        .map_err(|error| Error::io("starting threads", error))
}

//! What the tasks of a node of the group run on, and what blocks in them.

use flashmesh_pages::{Result, StorageError};
use tokio::runtime::{Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;

#[cfg(test)]
use super::tests::runtime::Life;

/// Threads of the group: votes and heartbeats wait for no query.
const THREADS: usize = 2;

/// What the tasks of a node run on. They end with it.
pub(super) struct Tasks {
    handle: Handle,
    /// Threads of their own.
    own: Option<Runtime>,
    /// Others run there too.
    #[cfg(test)]
    life: Option<Life>,
}

impl Tasks {
    /// # Errors
    /// `Io` where there are no threads to be had.
    pub fn of_their_own() -> Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(THREADS).thread_name("catalog");
        let runtime = runtime.enable_all().build();
        let runtime = runtime.map_err(|error| StorageError::io("starting threads", error))?;
        Ok(Self {
            handle: runtime.handle().clone(),
            own: Some(runtime),
            #[cfg(test)]
            life: None,
        })
    }

    /// Tasks that end with `life`, on the runtime of the caller.
    #[cfg(test)]
    pub fn of(life: Life) -> Self {
        Self {
            handle: Handle::current(),
            own: None,
            life: Some(life),
        }
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        #[cfg(test)]
        if let Some(life) = &self.life {
            return life.spawn(task);
        }
        self.handle.spawn(task)
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        if let Some(runtime) = self.own.take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs what blocks; where there are other threads, other tasks go on.
///
/// The task goes on at its next turn. A runtime waits for the turns of its workers before it ends its
/// clock, but not for a turn that blocked, whose worker it gave to another thread: such a turn that went
/// on to a timer would panic.
pub(super) async fn block_in_place<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::CurrentThread) => work(),
        _ => {
            let done = tokio::task::block_in_place(work);
            tokio::task::yield_now().await;
            done
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;

    /// Waits until the runtime of this thread has ended its clock, which nothing but a panic tells.
    fn the_clock_has_ended() {
        let mut timer = pin!(sleep(Duration::from_secs(3_600)));
        let mut looks = || timer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        while catch_unwind(AssertUnwindSafe(&mut looks)).is_ok() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_task_that_blocks_while_its_runtime_ends_is_cancelled() {
        let tasks = Tasks::of_their_own().unwrap();
        let (blocks, is_blocked) = mpsc::channel();
        let task = tasks.spawn(async move {
            let blocked = block_in_place(|| {
                blocks.send(()).unwrap();
                the_clock_has_ended();
            });
            blocked.await;
            sleep(Duration::from_millis(1)).await;
        });
        is_blocked.recv().unwrap();
        drop(tasks);
        let others = tokio::runtime::Builder::new_current_thread();
        let ended = { others }.build().unwrap().block_on(task);
        assert!(ended.unwrap_err().is_cancelled());
    }
}

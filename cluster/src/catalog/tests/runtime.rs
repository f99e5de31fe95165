//! What the group runs on in tests: tasks that end with their node, and the clock of the mesh's tests.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use openraft::{AsyncRuntime, OptionalSend, TokioRuntime};
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle};

use crate::mesh::tests::clock::{Elapsed, Instant, sleep};

tokio::task_local! {
    static LIFE: Life;
}

/// The tasks of a node from its start to its end, where several nodes share a runtime. What they start
/// is of it, too.
#[derive(Clone, Default)]
pub(in crate::catalog) struct Life(Arc<Shared>);

#[derive(Default)]
struct Shared {
    tasks: Mutex<Vec<AbortHandle>>,
    has_panicked: AtomicBool,
}

/// Notes a task that panics.
struct Watch(Life);

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.0.has_panicked.store(true, Ordering::Relaxed);
        }
    }
}

impl Life {
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let watch = Watch(self.clone());
        let task = tokio::spawn(self.within(async move {
            let _watch = watch;
            task.await
        }));
        let mut tasks = self.0.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task.abort_handle());
        task
    }

    /// The same, of whose tasks all are of this life.
    pub fn within<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        LIFE.scope(self.clone(), task)
    }

    /// Nothing of it goes on.
    pub fn end(&self) {
        self.0.tasks.lock().drain(..).for_each(|task| task.abort());
    }

    pub fn has_panicked(&self) -> bool {
        self.0.has_panicked.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::catalog) struct TestRuntime;

type Sleep = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

pub(in crate::catalog) struct Timeout<T> {
    future: Pin<Box<T>>,
    sleep: Sleep,
}

impl<T: Future> Future for Timeout<T> {
    type Output = Result<T::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(outcome) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(outcome));
        }
        self.sleep.as_mut().poll(context).map(|()| Err(Elapsed))
    }
}

fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

impl AsyncRuntime for TestRuntime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;
    type OneshotSender<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiverError = <TokioRuntime as AsyncRuntime>::OneshotReceiverError;
    type OneshotReceiver<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotReceiver<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match LIFE.try_with(Life::clone) {
            Ok(life) => life.spawn(future),
            Err(_) => tokio::spawn(future),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Box::pin(sleep(duration))
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        Self::sleep(until(deadline))
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        Timeout {
            future: Box::pin(future),
            sleep: Self::sleep(duration),
        }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        Self::timeout(until(deadline), future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        join_error.is_panic()
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        TokioRuntime::thread_rng()
    }

    fn oneshot<T: OptionalSend>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>) {
        TokioRuntime::oneshot()
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tasks", self.0.tasks.lock().len())
    }
}

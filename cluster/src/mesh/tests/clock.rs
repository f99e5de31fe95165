//! A clock that moves on when all tasks of a thread wait, so that no test waits for time. On threads
//! without one, time is tokio's.
//!
//! Tokio has the like behind its feature `test-util`. With that, `cargo test --workspace` would
//! build tokio, and all that stands on it, once more than other commands.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{fmt, io};

#[derive(Default)]
struct Clock {
    now: Duration,
    next: u64,
    timers: BTreeMap<(Duration, u64), Waker>,
}

thread_local! {
    static CLOCK: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

fn with<T>(act: impl FnOnce(&mut Clock) -> T) -> Option<T> {
    CLOCK.with_borrow_mut(|clock| clock.as_mut().map(act))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(with(|clock| clock.now).unwrap_or_else(|| START.elapsed()))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Self::now().0 - self.0
    }

    pub(crate) fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0 - earlier.0
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, time: Duration) {
        *self = *self - time;
    }
}

impl openraft::Instant for Instant {
    fn now() -> Self {
        Self::now()
    }
}

#[derive(Debug)]
pub(crate) struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it took too long")
    }
}

impl From<Elapsed> for io::Error {
    fn from(_: Elapsed) -> Self {
        io::ErrorKind::TimedOut.into()
    }
}

pub(crate) async fn timeout<T>(
    limit: Duration,
    future: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    tokio::select! {
        biased;
        outcome = future => Ok(outcome),
        () = sleep(limit) => Err(Elapsed),
    }
}

pub(crate) async fn sleep(time: Duration) {
    match with(|clock| clock.now + time) {
        Some(until) => Sleep { until, timer: None }.await,
        None => tokio::time::sleep(time).await,
    }
}

struct Sleep {
    until: Duration,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (until, before) = (self.until, self.timer);
        let timer = with(|clock| {
            if clock.now >= until {
                return None;
            }
            clock.next += 1;
            let timer = before.unwrap_or(clock.next);
            clock.timers.insert((until, timer), context.waker().clone());
            Some(timer)
        });
        self.timer = timer.flatten();
        match self.timer {
            Some(_) => Poll::Pending,
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            with(|clock| clock.timers.remove(&(self.until, timer)));
        }
    }
}

/// All tasks of this thread wait: it is the time of the next timer.
fn advance() {
    let due = with(|clock| {
        let (&(time, _), _) = clock.timers.first_key_value()?;
        clock.now = time;
        let later = clock.timers.split_off(&(time, u64::MAX));
        Some(std::mem::replace(&mut clock.timers, later))
    });
    for waker in due.flatten().into_iter().flat_map(BTreeMap::into_values) {
        waker.wake();
    }
}

/// Runs a test on this thread, with a clock of its own.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    CLOCK.set(Some(Clock::default()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(advance)
        .build()
        .unwrap();
    let outcome = runtime.block_on(test);
    drop(runtime);
    CLOCK.set(None);
    outcome
}

#[test]
fn time_passes_when_all_wait() {
    run(async {
        let start = Instant::now();
        let long = tokio::spawn(sleep(Duration::from_secs(3600)));
        assert!(
            timeout(Duration::from_secs(60), std::future::pending::<()>())
                .await
                .is_err()
        );
        assert_eq!(start.elapsed(), Duration::from_secs(60));
        long.await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(3600));
    });
}

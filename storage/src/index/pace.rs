//! How fast indexes are built, and what ends it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::{Result, StorageError};

/// Least time that a build rests for; shorter rests are saved up.
const REST_MIN: Duration = Duration::from_millis(2);

/// How fast something is built: with all threads that there are, or with one that rests.
#[derive(Debug)]
pub(crate) struct Pace {
    threads: usize,
    /// Part of the time that it works, above 0 and up to 1.
    share: f64,
    control: Arc<Control>,
    /// When it has begun to work, or to go on.
    since: Mutex<Instant>,
}

impl Pace {
    /// As fast as can be.
    pub fn full() -> Self {
        // To find it out takes reading files, which a commit of one row would notice.
        static THREADS: LazyLock<usize> =
            LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
        Self {
            threads: *THREADS,
            share: 1.0,
            control: Arc::default(),
            since: Mutex::new(Instant::now()),
        }
    }

    /// One thread that works for a share of the time, until `control` ends it.
    pub fn background(share: f64, control: &Arc<Control>) -> Self {
        Self {
            threads: 1,
            share: share.clamp(0.01, 1.0),
            control: Arc::clone(control),
            since: Mutex::new(Instant::now()),
        }
    }

    /// Threads that may work at once.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Rests if it is time to.
    ///
    /// # Errors
    /// `Cancelled` when it is to end.
    pub fn check(&self) -> Result<()> {
        if self.share < 1.0 {
            let mut since = self.since.lock();
            let rest = since.elapsed().mul_f64(1.0 / self.share - 1.0);
            if rest >= REST_MIN {
                self.control.rest(rest);
                *since = Instant::now();
            }
        }
        match self.control.has_ended() {
            true => Err(StorageError::Cancelled),
            false => Ok(()),
        }
    }
}

/// Wakes what is built in the background, hurries it and ends it.
#[derive(Debug, Default)]
pub(crate) struct Control {
    has_ended: AtomicBool,
    wishes: Mutex<Wishes>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wishes {
    is_awake: bool,
    /// How many wait for it.
    hurried: usize,
}

impl Control {
    /// There may be something to do.
    pub fn wake(&self) {
        self.wishes.lock().is_awake = true;
        self.changed.notify_all();
    }

    /// It ends.
    pub fn end(&self) {
        let _wishes = self.wishes.lock();
        self.has_ended.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Nothing rests until what this gives is dropped.
    pub fn hurry(&self) -> Hurry<'_> {
        self.wishes.lock().hurried += 1;
        self.changed.notify_all();
        Hurry(self)
    }

    /// Waits until it is woken, or for so long; FALSE when it is to end.
    pub fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut wishes = self.wishes.lock();
        while !self.has_ended() && !wishes.is_awake {
            if self.changed.wait_until(&mut wishes, until).timed_out() {
                break;
            }
        }
        wishes.is_awake = false;
        !self.has_ended()
    }

    /// Waits, unless it is hurried or to end.
    pub fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut wishes = self.wishes.lock();
        while !self.has_ended() && wishes.hurried == 0 {
            if self.changed.wait_until(&mut wishes, until).timed_out() {
                break;
            }
        }
    }
}

/// Somebody waits.
pub(crate) struct Hurry<'a>(&'a Control);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.wishes.lock().hurried -= 1;
    }
}

//! The thread that makes running guests look at their deadlines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use wasmtime::Engine;

use crate::{Result, StorageError};

/// Ticks without a call after which the thread sleeps until the next one.
const IDLE_TICKS: u32 = 20;

/// Advances the engines' epochs while calls run.
#[derive(Debug)]
pub(super) struct Ticker {
    state: Arc<State>,
    ticking: Thread,
    handle: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    running: AtomicUsize,
    /// The thread sleeps, or is about to.
    asleep: AtomicBool,
    stop: AtomicBool,
}

impl Ticker {
    /// Starts the thread; it ends when the ticker is dropped.
    pub(super) fn start(engines: [Engine; 2], tick: Duration) -> Result<Self> {
        let tick = tick.clamp(Duration::from_millis(1), Duration::from_secs(1));
        let state = Arc::new(State::default());
        let of_thread = Arc::clone(&state);
        let handle = thread::Builder::new()
            .name("kernel-ticker".to_owned())
            .spawn(move || of_thread.run(&engines, tick))
            .map_err(|error| StorageError::io("start the kernels' ticker", error))?;
        Ok(Self {
            state,
            ticking: handle.thread().clone(),
            handle: Some(handle),
        })
    }

    /// Keeps the epoch going until what is returned is dropped.
    pub(super) fn running(&self) -> Running<'_> {
        self.state.running.fetch_add(1, Ordering::SeqCst);
        // Either this sees that the thread wants to sleep, or the thread, which looks at `running`
        // after it has said so, sees this call: both orders are sequentially consistent.
        if self.state.asleep.load(Ordering::SeqCst) {
            self.ticking.unpark();
        }
        Running(&self.state)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.ticking.unpark();
        if let Some(handle) = self.handle.take() {
            // It does not panic; if it did, there would be nothing left to stop.
            let _ = handle.join();
        }
    }
}

impl State {
    fn run(&self, engines: &[Engine; 2], tick: Duration) {
        let mut idle = 0;
        while !self.stop.load(Ordering::SeqCst) {
            thread::park_timeout(tick);
            for engine in engines {
                engine.increment_epoch();
            }
            if self.running.load(Ordering::SeqCst) > 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < IDLE_TICKS {
                continue;
            }
            self.asleep.store(true, Ordering::SeqCst);
            let quiet = || self.running.load(Ordering::SeqCst) == 0;
            while quiet() && !self.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            self.asleep.store(false, Ordering::SeqCst);
            idle = 0;
        }
    }
}

/// A call that runs.
#[derive(Debug)]
pub(super) struct Running<'a>(&'a State);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

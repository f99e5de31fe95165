//! A device that is slower than the one below it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{
    Completion, Flash, FlashHealth, FlashOp, FlashQueue, Geometry, PAGE_SIZE_BYTES, Tag, check_op,
};
use crate::Result;

/// How slow a [`ThrottleFlash`] is. Every operation ends a latency after its turn at a channel
/// that all queues share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThrottleOptions {
    /// From the end of a read's transfer to its completion.
    pub read_latency: Duration,
    /// The same of a write.
    pub write_latency: Duration,
    /// The same of an erase, which transfers nothing.
    pub erase_latency: Duration,
    /// What reads and writes together transfer in a second; `None`: they take no time.
    pub bytes_per_second: Option<u64>,
}

/// Where a [`ThrottleFlash`] takes its time from.
pub trait Clock: Debug + Send + Sync {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
    /// Returns when `now()` is `moment` or later.
    fn sleep_until(&self, moment: Duration);
}

/// The time of the machine.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep_until(&self, moment: Duration) {
        std::thread::sleep(moment.saturating_sub(self.now()));
    }
}

/// A clock that stands still until someone sleeps, which takes no time.
#[derive(Debug, Default)]
pub struct ManualClock(Mutex<Duration>);

impl ManualClock {
    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        *self.0.lock() += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.0.lock()
    }

    fn sleep_until(&self, moment: Duration) {
        let mut now = self.0.lock();
        *now = moment.max(*now);
    }
}

/// Wraps a device and delays its completions.
#[derive(Debug)]
pub struct ThrottleFlash {
    inner: Arc<dyn Flash>,
    options: ThrottleOptions,
    clock: Arc<dyn Clock>,
    /// When the channel is free again.
    channel_free_at: Arc<Mutex<Duration>>,
}

impl ThrottleFlash {
    /// Slows `inner` down by the time of the machine.
    pub fn new(inner: Arc<dyn Flash>, options: ThrottleOptions) -> Self {
        Self::with_clock(inner, options, Arc::new(SystemClock::default()))
    }

    /// Slows `inner` down by the given clock.
    pub fn with_clock(
        inner: Arc<dyn Flash>,
        options: ThrottleOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            inner,
            options,
            clock,
            channel_free_at: Arc::default(),
        }
    }
}

impl Flash for ThrottleFlash {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        self.inner.used_erase_blocks()
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        Ok(Box::new(ThrottleQueue {
            inner: self.inner.open_queue()?,
            options: self.options,
            clock: self.clock.clone(),
            geometry: self.inner.geometry(),
            channel_free_at: self.channel_free_at.clone(),
            due: HashMap::new(),
            ended: Vec::new(),
        }))
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn continues_blocks(&self) -> bool {
        self.inner.continues_blocks()
    }

    fn health(&self) -> Option<FlashHealth> {
        self.inner.health()
    }
}

#[derive(Debug)]
struct ThrottleQueue {
    inner: Box<dyn FlashQueue>,
    options: ThrottleOptions,
    clock: Arc<dyn Clock>,
    geometry: Geometry,
    channel_free_at: Arc<Mutex<Duration>>,
    /// When the operations in flight may end.
    due: HashMap<Tag, Duration>,
    /// What the device below has finished and the caller has not got yet.
    ended: Vec<Completion>,
}

impl ThrottleQueue {
    /// When an operation that is submitted now is due.
    fn due(&self, op: &FlashOp) -> Duration {
        let (latency, pages) = match op {
            FlashOp::Read { buffers, .. } => (self.options.read_latency, buffers.len()),
            FlashOp::Write { buffers, .. } => (self.options.write_latency, buffers.len()),
            FlashOp::Erase { .. } => (self.options.erase_latency, 0),
        };
        let transfer = match self.options.bytes_per_second {
            Some(rate) if pages > 0 => {
                Duration::from_secs_f64((pages * PAGE_SIZE_BYTES) as f64 / rate.max(1) as f64)
            }
            _ => return self.clock.now() + latency,
        };
        let mut free_at = self.channel_free_at.lock();
        *free_at = self.clock.now().max(*free_at) + transfer;
        *free_at + latency
    }
}

impl FlashQueue for ThrottleQueue {
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        self.due.len()
    }

    fn max_pages_per_op(&self) -> usize {
        self.inner.max_pages_per_op()
    }

    fn cancel_reads(&mut self) {
        self.inner.cancel_reads();
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        check_op(self, &op, self.geometry)?;
        let (tag, due) = (op.tag(), self.due(&op));
        self.inner.submit(op)?;
        self.due.insert(tag, due);
        Ok(())
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let known = completions.len();
        let min = min.min(self.in_flight());
        loop {
            self.inner.wait(0, &mut self.ended)?;
            let now = self.clock.now();
            let due = |completion: &Completion| self.due.get(&completion.tag).copied();
            self.ended
                .sort_by_key(|completion| Reverse(due(completion)));
            while let Some(completion) = self.ended.pop_if(|next| due(next) <= Some(now)) {
                completions.push(completion);
            }
            for completion in &completions[known..] {
                self.due.remove(&completion.tag);
            }
            if completions.len() - known >= min {
                return Ok(());
            }
            match self.due.values().min() {
                Some(&next) if next > now => self.clock.sleep_until(next),
                // Due, but the device below is not ready.
                _ => self.inner.wait(1, &mut self.ended)?,
            }
        }
    }
}

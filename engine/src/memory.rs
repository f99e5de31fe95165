//! The memory that queries share: one user's part of it, and what storage takes from it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::DataFusionError;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use flashmesh_storage::StorageError;
use flashmesh_storage::memory::MemoryBudget;

/// What storage takes from the pool of all queries.
#[derive(Debug)]
pub(crate) struct StorageMemory(MemoryReservation);

impl StorageMemory {
    /// Takes from `pool`; `what` for is said where there is no more.
    pub fn new(pool: &Arc<dyn MemoryPool>, what: &str) -> Self {
        Self(MemoryConsumer::new(what).register(pool))
    }
}

impl MemoryBudget for StorageMemory {
    fn grow(&self, bytes: usize) -> flashmesh_storage::Result<()> {
        self.0
            .try_grow(bytes)
            .map_err(|e| StorageError::Invalid(e.strip_backtrace()))
    }

    fn shrink(&self, bytes: usize) {
        self.0.shrink(bytes);
    }
}

/// A part of a pool: what is taken of it is taken of the pool, and bounded besides.
#[derive(Debug)]
pub struct UserMemory {
    pool: Arc<dyn MemoryPool>,
    limit: usize,
    used: AtomicUsize,
}

impl UserMemory {
    /// At most `limit` bytes of `pool`.
    pub fn new(pool: Arc<dyn MemoryPool>, limit: usize) -> Self {
        Self {
            pool,
            limit,
            used: AtomicUsize::new(0),
        }
    }
}

impl fmt::Display for UserMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.limit, self.pool)
    }
}

impl MemoryPool for UserMemory {
    fn name(&self) -> &str {
        "user"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.used.fetch_add(additional, Ordering::Relaxed);
        self.pool.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.used.fetch_sub(shrink, Ordering::Relaxed);
        self.pool.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let before = self.used.fetch_add(additional, Ordering::Relaxed);
        let taken = match before.saturating_add(additional) <= self.limit {
            true => self.pool.try_grow(reservation, additional),
            false => Err(DataFusionError::ResourcesExhausted(format!(
                "{} wanted {additional} bytes more: the user's queries hold {before} bytes of {} (--max-user-memory)",
                reservation.consumer().name(),
                self.limit
            ))),
        };
        taken.inspect_err(|_| {
            self.used.fetch_sub(additional, Ordering::Relaxed);
        })
    }

    fn reserved(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.limit)
    }
}

/// A pool that does not count what merges of sorted rows hold.
///
/// A merge has a few batches of each of its inputs. Those of a sort in memory are slices of what the sort has counted
/// already, and a batch of texts counts as all that it is a slice of: sorts of half of the memory limit failed for a
/// quarter of it that nobody held. Those of a sort that has spilled, or of a scan, are small.
#[derive(Debug)]
pub(crate) struct MergedMemory<P>(P);

impl<P: MemoryPool> MergedMemory<P> {
    /// `pool`, but for merges.
    pub fn new(pool: P) -> Self {
        Self(pool)
    }
}

fn merges(reservation: &MemoryReservation) -> bool {
    reservation
        .consumer()
        .name()
        .starts_with("SortPreservingMergeExec")
}

impl<P: MemoryPool> fmt::Display for MergedMemory<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl<P: MemoryPool> MemoryPool for MergedMemory<P> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.0.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.0.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        if !merges(reservation) {
            self.0.grow(reservation, additional);
        }
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        if !merges(reservation) {
            self.0.shrink(reservation, shrink);
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        match merges(reservation) {
            true => Ok(()),
            false => self.0.try_grow(reservation, additional),
        }
    }

    fn reserved(&self) -> usize {
        self.0.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.0.memory_limit()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    use super::*;

    #[test]
    fn a_user_takes_their_part_and_no_more() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1000));
        let user: Arc<dyn MemoryPool> = Arc::new(UserMemory::new(Arc::clone(&pool), 100));
        let first = MemoryConsumer::new("first").register(&user);
        first.try_grow(80).unwrap();
        let second = MemoryConsumer::new("second").register(&user);
        let refused = second.try_grow(21).unwrap_err().to_string();
        assert!(refused.contains("--max-user-memory"), "{refused}");
        second.try_grow(20).unwrap();
        assert_eq!((user.reserved(), pool.reserved()), (100, 100));

        drop((first, second));
        assert_eq!((user.reserved(), pool.reserved()), (0, 0));
        // The pool's own limit holds for the part as well.
        let other = MemoryConsumer::new("other").register(&pool);
        other.try_grow(950).unwrap();
        let third = MemoryConsumer::new("third").register(&user);
        assert!(third.try_grow(60).is_err());
        assert_eq!(user.reserved(), 0);
    }
}

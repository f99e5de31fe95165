//! Flash queues kept for the next reader or writer: opening an io_uring costs more than a small
//! query.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::flash::{Completion, Flash, FlashOp, FlashQueue, Tag};
use crate::{Result, StorageError};

/// Queues that are kept.
const IDLE_QUEUES_MAX: usize = 64;

/// The queues of one device that nobody uses at the moment.
#[derive(Debug)]
pub(super) struct QueuePool {
    flash: Arc<dyn Flash>,
    idle: Mutex<Vec<TaggedQueue>>,
}

#[derive(Debug)]
struct TaggedQueue {
    queue: Box<dyn FlashQueue>,
    next_tag: u64,
}

/// A queue on loan. Tags are never used twice on a queue, so reads that an earlier user left
/// behind (a cancelled scan) are told from those of this one, and end unnoticed.
#[derive(Debug)]
pub(super) struct QueueLease {
    pool: Arc<QueuePool>,
    /// `None` only while it is dropped.
    queue: Option<TaggedQueue>,
    /// The first tag of this loan.
    first_tag: u64,
    /// Operations of this loan in flight.
    in_flight: usize,
}

impl QueuePool {
    pub(super) fn new(flash: Arc<dyn Flash>) -> Arc<Self> {
        Arc::new(Self {
            flash,
            idle: Mutex::default(),
        })
    }

    pub(super) fn lease(self: &Arc<Self>) -> Result<QueueLease> {
        let idle = {
            let mut idle = self.idle.lock();
            // Frees the buffers of reads that have ended meanwhile.
            idle.iter_mut().for_each(TaggedQueue::look);
            idle.pop()
        };
        let queue = match idle {
            Some(queue) => queue,
            None => TaggedQueue {
                queue: self.flash.open_queue()?,
                next_tag: 0,
            },
        };
        let first_tag = queue.next_tag;
        Ok(QueueLease {
            pool: self.clone(),
            queue: Some(queue),
            first_tag,
            in_flight: 0,
        })
    }
}

impl TaggedQueue {
    /// Fetches what has ended of operations that nobody waits for. A queue that fails here fails
    /// its next user, who can tell.
    fn look(&mut self) {
        if self.queue.in_flight() > 0 {
            let _ = self.queue.wait(0, &mut Vec::new());
        }
    }
}

impl QueueLease {
    fn get(&self) -> &TaggedQueue {
        self.queue.as_ref().expect("a queue until it is dropped")
    }

    fn get_mut(&mut self) -> &mut TaggedQueue {
        self.queue.as_mut().expect("a queue until it is dropped")
    }

    pub(super) fn max_pages_per_op(&self) -> usize {
        self.get().queue.max_pages_per_op()
    }

    /// Operations that can be submitted now. With a queue full of what an earlier user left
    /// behind it waits for some of it.
    pub(super) fn room(&mut self) -> Result<usize> {
        let own = self.in_flight;
        let queue = &mut self.get_mut().queue;
        if queue.in_flight() == queue.depth() && own == 0 {
            // Nothing of it is ours.
            queue.wait(1, &mut Vec::new())?;
        }
        Ok(queue.depth() - queue.in_flight())
    }

    /// Submits the operation that `op` makes of a new tag.
    pub(super) fn submit(&mut self, op: impl FnOnce(Tag) -> FlashOp) -> Result<Tag> {
        let tagged = self.get_mut();
        let tag = Tag(tagged.next_tag);
        tagged.next_tag += 1;
        tagged.queue.submit(op(tag))?;
        self.in_flight += 1;
        Ok(tag)
    }

    /// [`FlashQueue::wait`] for the operations of this loan. Fails when it would wait for ever.
    pub(super) fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        if min > self.in_flight {
            return Err(StorageError::Invalid(format!(
                "waiting for {min} flash operations while {} are in flight",
                self.in_flight
            )));
        }
        let known = completions.len();
        let first_tag = Tag(self.first_tag);
        loop {
            let from = completions.len();
            let missing = min.saturating_sub(from - known);
            let waited = self.get_mut().queue.wait(missing, completions);
            let mut index = from;
            while let Some(completion) = completions.get(index) {
                if completion.tag < first_tag {
                    completions.remove(index);
                } else {
                    index += 1;
                }
            }
            self.in_flight -= completions.len() - from;
            waited?;
            if completions.len() - known >= min {
                return Ok(());
            }
        }
    }
}

impl Drop for QueueLease {
    fn drop(&mut self) {
        let Some(mut queue) = self.queue.take() else {
            return;
        };
        queue.queue.cancel_reads();
        queue.look();
        let mut idle = self.pool.idle.lock();
        if idle.len() < IDLE_QUEUES_MAX {
            idle.push(queue);
        }
    }
}

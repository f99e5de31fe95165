//! Memory that is asked for before it is taken.

use std::fmt::Debug;

use crate::Result;

/// Memory that queries, or what is kept up for them, may use.
pub trait MemoryBudget: Debug + Send + Sync {
    /// Asks for `bytes` more.
    ///
    /// # Errors
    /// `Invalid` with the limit that would be passed.
    fn grow(&self, bytes: usize) -> Result<()>;

    /// Gives `bytes` back.
    fn shrink(&self, bytes: usize);
}

/// Gives whatever is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unbounded;

impl MemoryBudget for Unbounded {
    fn grow(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn shrink(&self, _: usize) {}
}

/// Bytes taken from a budget, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge<'a> {
    memory: &'a dyn MemoryBudget,
    bytes: usize,
}

impl<'a> Charge<'a> {
    pub(crate) fn new(memory: &'a dyn MemoryBudget, bytes: usize) -> Result<Self> {
        memory.grow(bytes)?;
        Ok(Self { memory, bytes })
    }

    /// Asks for what is missing of `bytes`.
    pub(crate) fn up_to(&mut self, bytes: usize) -> Result<()> {
        let more = bytes.saturating_sub(self.bytes);
        self.memory.grow(more)?;
        self.bytes += more;
        Ok(())
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.memory.shrink(self.bytes);
    }
}

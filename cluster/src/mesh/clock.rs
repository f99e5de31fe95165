//! Time. Tests have one that moves on when all tasks wait.

#[cfg(test)]
pub(crate) use super::tests::clock::{Instant, sleep, timeout};
#[cfg(not(test))]
pub(crate) use tokio::time::{Instant, sleep, timeout};

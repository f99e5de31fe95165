//! Tests of the mesh as a whole. Their clock moves on when nothing else can: nothing here waits for
//! real time but what uses sockets.

pub(crate) mod cables;
pub(crate) mod clock;
mod flow;
mod hostile;
mod outages;
mod racks;
mod random;
mod routes;
mod sockets;
mod streams;
mod switch;
mod traces;
mod wires;

use std::future::Future;
use std::time::Duration;

use clock::{run, timeout};
use flashmesh_pages::store::NodeId;

/// Longer than anything takes that is not stuck; by a clock that moves on when all wait.
const PATIENCE: Duration = Duration::from_secs(600);

/// The seed of a test: from `FLASHMESH_TEST_SEED`, or fresh; printed either way.
pub(super) fn seed() -> u64 {
    let seed = match std::env::var("FLASHMESH_TEST_SEED") {
        Ok(seed) => seed.parse().expect("FLASHMESH_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("FLASHMESH_TEST_SEED={seed}");
    seed
}

/// Whether a future is not ready when nothing moves any more.
async fn is_stuck(future: impl Future) -> bool {
    timeout(Duration::from_secs(20), future).await.is_err()
}

fn node(number: usize) -> NodeId {
    NodeId(number as u16)
}

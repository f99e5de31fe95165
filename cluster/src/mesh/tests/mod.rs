//! Tests of the mesh as a whole. Clocks are tokio's, which move on when nothing else can: nothing
//! here waits for real time but what uses sockets.

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

/// Runs a test on one thread, whose clock moves on when all wait.
fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

/// Whether a future is not ready when nothing moves any more.
async fn is_stuck(future: impl Future) -> bool {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .is_err()
}

fn node(number: usize) -> NodeId {
    NodeId(number as u16)
}

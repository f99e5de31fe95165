//! Tests of the mesh as a whole. Clocks are tokio's, which move on when nothing else can: nothing
//! here waits for real time but what uses sockets.

mod racks;
mod routes;
mod traces;

use std::future::Future;

/// The seed of a test: from `FLASHMESH_TEST_SEED`, or fresh; printed either way.
fn seed() -> u64 {
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

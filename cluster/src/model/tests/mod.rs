mod appliance;
mod figures;
mod flash;
mod network;
mod queues;

use super::{Access, Path, Random, Simulation, Step, Time};

/// The seed of a test: from `FLASHMESH_TEST_SEED`, or fresh; printed either way.
fn seed() -> u64 {
    let seed = match std::env::var("FLASHMESH_TEST_SEED") {
        Ok(seed) => seed.parse().expect("FLASHMESH_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("FLASHMESH_TEST_SEED={seed}");
    seed
}

fn micros(time: f64) -> Time {
    Time::from_seconds(time * 1e-6)
}

/// Within so many percent.
#[track_caller]
fn assert_near(modelled: f64, expected: f64, percent: f64) {
    let off = (modelled / expected - 1.0) * 100.0;
    assert!(
        off.abs() <= percent,
        "{modelled} is {off:.2} % off {expected}"
    );
}

/// Runs these jobs, started together; their tags with the times at which they ended.
fn run_together(simulation: &mut Simulation, jobs: Vec<Vec<Step>>) -> Vec<(u64, Time)> {
    for (tag, job) in jobs.into_iter().enumerate() {
        simulation.start(job, tag as u64);
    }
    let mut ended = Vec::new();
    simulation.run(|simulation, tag| ended.push((tag, simulation.now())));
    ended
}

fn path(steps: &[Step]) -> Path {
    steps.into()
}

fn between(random: &mut Random, least: usize, most: usize) -> usize {
    least + random.below(most - least + 1)
}

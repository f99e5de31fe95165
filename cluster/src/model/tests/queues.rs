//! Queues whose behaviour has a closed form, and what every run keeps.

use std::rc::Rc;

use super::super::{Random, Simulation, Step, Time, closed_loop};
use super::{assert_near, between, micros, path, run_together, seed};

/// M/D/1 (Pollaczek and Khinchine): at load r and service s the mean wait is r s / 2 (1 - r).
#[test]
fn random_arrivals_wait_as_long_as_theory_says() {
    let mut random = Random::new(seed());
    for load in [0.3, 0.6, 0.8] {
        let mut simulation = Simulation::new();
        let server = simulation.station("server", 0, 1);
        let service = 10.0;
        let (mut at, count) = (0.0, 150_000);
        let mut arrived = Vec::new();
        for tag in 0..count {
            at -= (1.0 - random.fraction()).ln() * service / load;
            arrived.push(micros(at));
            let job = path(&[Step::Serve(server, micros(service))]);
            simulation.start_after(micros(at), job, tag);
        }
        let mut waited = 0.0;
        simulation.run(|simulation, tag| {
            let stayed = simulation.now() - arrived[tag as usize];
            waited += (stayed - micros(service)).seconds() * 1e6;
        });
        let expected = load * service / (2.0 * (1.0 - load));
        assert_near(waited / count as f64, expected, 10.0);
        let used = simulation.at(server).used(simulation.now());
        assert_near(used, load, 3.0);
        assert_eq!(simulation.at(server).served(), count);
    }
}

#[test]
fn a_pipeline_is_as_fast_as_its_slowest_stage() {
    let mut random = Random::new(seed());
    for _ in 0..50 {
        let mut simulation = Simulation::new();
        let mut slowest = 0.0f64;
        let mut longest = 0.0;
        let stages: Vec<Step> = (0..between(&mut random, 1, 6))
            .map(|_| {
                let servers = between(&mut random, 1, 4) as u32;
                let time = between(&mut random, 1, 100) as f64;
                slowest = slowest.max(time / f64::from(servers));
                longest += time;
                Step::Serve(simulation.station("stage", 0, servers), micros(time))
            })
            .collect();
        let stages = path(&stages);
        let full = closed_loop(&mut simulation, 200, 2000, |_| stages.clone());
        // Stages with several servers end in clusters, so the edges of the measured part may cut
        // one of them.
        assert_near(full.rate, 1e6 / slowest, 2.0);
        let alone = closed_loop(&mut simulation, 1, 100, |_| stages.clone());
        assert_near(alone.seconds, longest * 1e-6, 0.001);
    }
}

/// Little's law: those in flight are rate times time.
#[test]
fn tokens_bound_what_is_in_flight() {
    let mut random = Random::new(seed());
    for _ in 0..50 {
        let mut simulation = Simulation::new();
        let tokens = between(&mut random, 1, 40) as u64;
        let pool = simulation.pool(tokens);
        let time = between(&mut random, 1, 100) as f64;
        let back = between(&mut random, 0, 100) as f64;
        let job = path(&[
            Step::Take(pool),
            Step::Delay(micros(time)),
            Step::Give(pool, micros(back)),
        ]);
        let measured = closed_loop(&mut simulation, 100, 4000, |_| job.clone());
        assert_near(measured.rate, tokens as f64 * 1e6 / (time + back), 4.0);
        assert_eq!(simulation.free(pool), tokens);
    }
}

#[test]
fn first_come_is_first_served_also_at_the_same_time() {
    let mut simulation = Simulation::new();
    let server = simulation.station("server", 0, 1);
    let jobs = vec![vec![Step::Serve(server, micros(1.0))]; 20];
    let ended = run_together(&mut simulation, jobs);
    let expected = (0..20).map(|tag| (tag, micros(tag as f64 + 1.0)));
    assert!(ended.into_iter().eq(expected));
}

/// A random job over some stations and pools; what it takes, it gives back.
fn random_job(
    random: &mut Random,
    stations: &[super::super::StationId],
    pools: &[super::super::PoolId],
    depth: u32,
) -> Vec<Step> {
    let mut steps = Vec::new();
    // Pools are taken in their order, so that no two jobs wait for each other.
    let mut taken = Vec::new();
    for &pool in pools {
        if random.chance(0.4) {
            steps.push(Step::Take(pool));
            taken.push(pool);
        }
        let time = micros(random.below(50) as f64);
        match random.below(3) {
            0 => steps.push(Step::Serve(stations[random.below(stations.len())], time)),
            1 => steps.push(Step::Delay(time)),
            // Children take no tokens: their parent may hold them.
            _ if depth > 0 => {
                let child = random_job(random, stations, &[], depth - 1);
                let count = random.below(4) as u32;
                steps.push(Step::Fork(Rc::new([(count, child.into())])));
            }
            _ => {}
        }
    }
    if pools.is_empty() {
        let time = micros(random.below(50) as f64);
        steps.push(Step::Serve(stations[random.below(stations.len())], time));
    }
    for pool in taken {
        steps.push(Step::Give(pool, micros(random.below(20) as f64)));
    }
    steps
}

#[test]
fn what_goes_in_comes_out_and_every_run_is_the_same() {
    let seed = seed();
    let run = || {
        let mut random = Random::new(seed);
        let mut simulation = Simulation::new();
        let stations: Vec<_> = (1..5).map(|n| simulation.station("s", 0, n)).collect();
        let tokens: Vec<u64> = (0..4).map(|_| between(&mut random, 1, 5) as u64).collect();
        let pools: Vec<_> = tokens.iter().map(|n| simulation.pool(*n)).collect();
        for tag in 0..2000 {
            let job = random_job(&mut random, &stations, &pools, 2);
            let wait = micros(random.below(10_000) as f64);
            simulation.start_after(wait, job, tag);
        }
        let mut ended = Vec::new();
        simulation.run(|simulation, tag| ended.push((tag, simulation.now())));
        assert_eq!(simulation.running(), 0);
        for (pool, tokens) in pools.iter().zip(tokens) {
            assert_eq!(simulation.free(*pool), tokens);
        }
        let mut tags: Vec<u64> = ended.iter().map(|(tag, _)| *tag).collect();
        tags.sort_unstable();
        assert!(tags.into_iter().eq(0..2000), "each job ends once");
        ended
    };
    assert_eq!(run(), run());
}

#[test]
fn who_waits_for_a_token_that_nobody_gives_is_counted() {
    let mut simulation = Simulation::new();
    let pool = simulation.pool(1);
    let ended = run_together(&mut simulation, vec![vec![Step::Take(pool)]; 3]);
    assert_eq!(ended, [(0, Time::ZERO)]);
    assert_eq!(simulation.running(), 2);
}

//! Closed loops: as many jobs in flight as somebody asks for.

use super::clock::Time;
use super::simulation::{Path, Simulation};

/// How a loop went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Jobs a second, of those after the warm-up and before the last begins to drain.
    pub rate: f64,
    /// Of a job, in seconds: those in flight over the rate.
    pub seconds: f64,
    /// From the beginning to the end of the last.
    pub until: Time,
}

/// Keeps `in_flight` jobs going: each time one ends, `job` makes the next for the same asker, by
/// its number. A fifth of `count` more at the beginning is not measured, nor are those in flight at
/// the end.
pub fn closed_loop(
    simulation: &mut Simulation,
    in_flight: u64,
    count: u64,
    mut job: impl FnMut(u64) -> Path,
) -> Measured {
    let in_flight = in_flight.max(1);
    let warm = count / 5;
    let mut left = warm + count;
    for asker in 0..in_flight {
        simulation.start(job(asker), asker);
    }
    let (mut ended, mut begin, mut end) = (0, simulation.now(), Time::ZERO);
    simulation.run(|simulation, asker| {
        ended += 1;
        if ended == warm {
            begin = simulation.now();
        }
        if ended == warm + count {
            end = simulation.now();
        }
        if left > 0 {
            left -= 1;
            simulation.start(job(asker), asker);
        }
    });
    let rate = count as f64 / (end - begin).seconds();
    Measured {
        rate,
        seconds: in_flight as f64 / rate,
        until: simulation.now(),
    }
}

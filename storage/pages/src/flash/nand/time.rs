//! Modelled time: what operations would take on the card. Nothing sleeps.
//!
//! Chips work in parallel; those of a bus share its wires. A read keeps its chip busy, then its
//! bus; a program its bus, then its chip; an erase its chip. An operation begins at the time of the
//! newest completion that anybody has waited for, or when its chip is free: the host takes no time
//! in this model.

use super::NandProfile;
use crate::flash::PAGE_SIZE_BYTES;

/// Nanoseconds since the card was made.
type Instant = u64;

#[derive(Debug, Clone)]
pub(super) struct ModelledTime {
    profile: NandProfile,
    chips: Vec<Instant>,
    buses: Vec<Instant>,
    /// The newest completion that was waited for.
    now: Instant,
    /// The last completion.
    pub elapsed_ns: u64,
    /// Over all chips.
    pub busy_ns: u64,
}

impl ModelledTime {
    pub fn new(profile: NandProfile, chips: usize, buses: usize) -> Self {
        Self {
            profile,
            chips: vec![0; chips],
            buses: vec![0; buses.max(1)],
            now: 0,
            elapsed_ns: 0,
            busy_ns: 0,
        }
    }

    /// Gives when it ends.
    pub fn read(&mut self, chip: usize) -> Instant {
        let sensed = self.work(chip, self.now, self.profile.read_ns);
        self.transfer(chip, sensed)
    }

    pub fn program(&mut self, chip: usize) -> Instant {
        let sent = self.transfer(chip, self.now);
        self.work(chip, sent, self.profile.program_ns)
    }

    pub fn erase(&mut self, chip: usize) -> Instant {
        self.work(chip, self.now, self.profile.erase_ns)
    }

    /// Somebody knows that what ended then has ended.
    pub fn waited(&mut self, until: Instant) {
        self.now = self.now.max(until);
    }

    fn work(&mut self, chip: usize, from: Instant, duration_ns: u64) -> Instant {
        let end = self.chips[chip].max(from) + duration_ns;
        self.chips[chip] = end;
        self.busy_ns += duration_ns;
        self.elapsed_ns = self.elapsed_ns.max(end);
        end
    }

    fn transfer(&mut self, chip: usize, from: Instant) -> Instant {
        let bus = chip % self.buses.len();
        let bytes_per_second = self.profile.bus_bytes_per_second.max(1);
        let duration_ns = PAGE_SIZE_BYTES as u64 * 1_000_000_000 / bytes_per_second;
        let end = self.buses[bus].max(from) + duration_ns;
        self.buses[bus] = end;
        self.elapsed_ns = self.elapsed_ns.max(end);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: NandProfile = NandProfile {
        read_ns: 50_000,
        program_ns: 600_000,
        erase_ns: 3_000_000,
        bus_bytes_per_second: 8192 * 100_000, // 10 µs a page
    };

    #[test]
    fn chips_work_side_by_side_and_those_of_a_bus_take_turns() {
        let mut time = ModelledTime::new(PROFILE, 4, 2);
        assert_eq!(time.read(0), 60_000);
        assert_eq!(time.read(1), 60_000, "another chip, another bus");
        assert_eq!(time.read(2), 70_000, "another chip, the bus of chip 0");
        assert_eq!(time.read(0), 110_000, "chip 0 again");
        time.waited(110_000);
        assert_eq!(time.program(3), 720_000);
        assert_eq!(time.erase(3), 3_720_000);
        assert_eq!(time.elapsed_ns, 3_720_000);
        assert_eq!(time.busy_ns, 4 * 50_000 + 600_000 + 3_000_000);
    }
}

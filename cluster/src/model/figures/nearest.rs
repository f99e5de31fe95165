//! BlueDBM figures 16 to 19: nearest neighbours, in comparisons of 8 KB a second.

use super::super::clock::Time;
use super::super::drive::Drive;
use super::super::host::Host;
use super::super::load::closed_loop;
use super::super::node::Node;
use super::super::parameters::{GIB, MIB, Parameters, US};
use super::super::random::Random;
use super::super::simulation::{Simulation, Step};
use super::Claim::{About, AtLeast, AtMost};
use super::Proof::{Fitted, Input, Outcome};
use super::access::host_local;
use super::{Figure, Plot, Row, Series};

const COUNT: u64 = 8000;
const SMALL: u64 = 2000;
const THREADS: [u32; 6] = [1, 2, 4, 8, 12, 16];

fn compare(p: &Parameters) -> Time {
    Time::from_seconds(p.compare_page * US)
}

fn thousand(rate: f64) -> f64 {
    rate / 1e3
}

/// In-store processors of one node, thousand a second; throttled or not.
fn isp(p: &Parameters, is_throttled: bool) -> f64 {
    let mut simulation = Simulation::new();
    let mut random = Random::new(16);
    let node = Node::new(&mut simulation, p, 0, 1);
    let throttle = throttle(&mut simulation, p);
    let in_flight = (p.card_tags * p.cards) as u64;
    let measured = closed_loop(&mut simulation, in_flight, COUNT, |_| {
        let mut steps = node.read(&mut random, &[]);
        steps.extend(is_throttled.then(|| throttle.clone()));
        steps.into()
    });
    thousand(measured.rate)
}

/// What slows flash down to an SSD's rate.
fn throttle(simulation: &mut Simulation, p: &Parameters) -> Step {
    let station = simulation.station("throttle", 0, 1);
    Step::Serve(station, Time::of_bytes(p.page as u64, p.throttle * MIB))
}

/// Where a thread's pages are that are not in DRAM.
#[derive(Clone, Copy)]
enum Elsewhere {
    Nowhere,
    Ssd(f64),
    Hdd(f64),
}

/// Threads of a host, each with a page in DRAM, or with a chance elsewhere.
fn threads(p: &Parameters, threads: u32, elsewhere: Elsewhere) -> f64 {
    let mut simulation = Simulation::new();
    let mut random = Random::new(17);
    let host = Host::new(&mut simulation, p, 0, threads);
    let (ssd, hdd) = (
        Drive::ssd(&mut simulation, p),
        Drive::hdd(&mut simulation, p),
    );
    let measured = closed_loop(&mut simulation, u64::from(threads), COUNT, |_| {
        let from = match elsewhere {
            Elsewhere::Ssd(share) if random.chance(share) => vec![ssd.random()],
            Elsewhere::Hdd(share) if random.chance(share) => vec![hdd.random()],
            _ => host.dram().to_vec(),
        };
        let mut steps = from;
        steps.push(host.compute(compare(p)));
        steps.into()
    });
    thousand(measured.rate)
}

/// Threads that read the SSD in order: two windows of read-ahead for each.
fn in_order(p: &Parameters, threads: u32) -> f64 {
    let mut simulation = Simulation::new();
    let ssd = Drive::ssd(&mut simulation, p);
    let own = |_| simulation.station("thread", 0, 1);
    let own: Vec<_> = (0..threads).map(own).collect();
    let window = ssd.next((p.page * p.read_ahead) as u64);
    let work = Time::from_seconds(compare(p).seconds() * p.read_ahead);
    let measured = closed_loop(&mut simulation, 2 * u64::from(threads), SMALL, |asker| {
        let thread = own[asker as usize % own.len()];
        vec![window.clone(), Step::Serve(thread, work)].into()
    });
    thousand(measured.rate * p.read_ahead)
}

/// Threads that read throttled flash, each waiting for its page.
fn software(p: &Parameters, threads: u32) -> f64 {
    let mut simulation = Simulation::new();
    let mut random = Random::new(19);
    let node = Node::new(&mut simulation, p, 0, threads);
    let throttle = throttle(&mut simulation, p);
    let measured = closed_loop(&mut simulation, u64::from(threads), SMALL, |_| {
        let mut page = node.read(&mut random, &[node.host.burst_in()]);
        page.push(throttle.clone());
        let mut steps = node.host.reads(page);
        steps.push(node.host.compute(compare(p)));
        steps.into()
    });
    thousand(measured.rate)
}

fn over_threads(name: &str, value: impl Fn(u32) -> f64) -> Series {
    let points = THREADS.map(|threads| (f64::from(threads), value(threads)));
    Series::new(name, points.to_vec())
}

fn at(series: &Series, threads: u32) -> f64 {
    let found = series.points.iter().find(|(x, _)| *x == f64::from(threads));
    found.map_or(f64::NAN, |(_, y)| *y)
}

const Y: &str = "thousand comparisons/s";

/// Figure 16.
pub(super) fn dram(p: &Parameters) -> Figure {
    let (baseline, throttled) = (isp(p, false), isp(p, true));
    let dram = over_threads("H-DRAM", |n| threads(p, n, Elsewhere::Nowhere));
    let rows = vec![
        Row::new("Baseline", "7.1", About(320.0), baseline, "K/s", Input),
        Row::new(
            "H-DRAM, 8 threads",
            "7.1",
            About(350.0),
            at(&dram, 8),
            "K/s",
            Fitted,
        ),
        Row::new(
            "H-DRAM, 4 threads",
            "7.1: 'keeps up'",
            AtMost(320.0),
            at(&dram, 4),
            "K/s",
            Outcome,
        ),
        Row::new(
            "Baseline-T / Baseline",
            "7.1",
            About(0.25),
            throttled / baseline,
            "",
            Outcome,
        ),
        Row::new(
            "H-DRAM, 16 threads / two nodes",
            "acceleration chapter: 'match'",
            About(1.0),
            at(&dram, 16) / (2.0 * baseline),
            "",
            Outcome,
        ),
    ];
    Figure {
        id: "bluedbm-16",
        of: "BlueDBM figure 16",
        title: "Nearest neighbours: in-store, throttled, and software on DRAM",
        rows,
        plot: Plot::lines(
            "threads",
            Y,
            vec![
                over_threads("Baseline", |_| baseline),
                over_threads("Baseline, two nodes", |_| 2.0 * baseline),
                over_threads("Baseline-T", |_| throttled),
                dram,
            ],
        )
        .with_stated(vec![(1.0, 320.0), (8.0, 350.0)]),
        parameters: &[
            "page",
            "cards",
            "buses",
            "chips",
            "flash_read",
            "card_rate",
            "card_tags",
            "throttle",
            "compare_page",
            "cores",
            "dram_rate",
            "dram_delay",
        ],
        notes: "Nodes share nothing here: two give twice as much. That BlueDBM's GB are of 2^30 bytes was concluded from these 320 K; with 10^9 the model would give 283 K, 11 % less.",
    }
}

/// Figure 17.
pub(super) fn mostly_dram(p: &Parameters) -> Figure {
    let dram = over_threads("H-DRAM", |n| threads(p, n, Elsewhere::Nowhere));
    let flash = over_threads("DRAM + 10% Flash", |n| threads(p, n, Elsewhere::Ssd(0.1)));
    let disk = over_threads("DRAM + 5% Disk", |n| threads(p, n, Elsewhere::Hdd(0.05)));
    let throttled = isp(p, true);
    Figure {
        id: "bluedbm-17",
        of: "BlueDBM figure 17",
        title: "Nearest neighbours with most data in DRAM",
        rows: vec![
            Row::new(
                "DRAM + 10% Flash, 8 threads",
                "7.1",
                AtMost(80.0),
                at(&flash, 8),
                "K/s",
                Fitted,
            ),
            Row::new(
                "DRAM + 5% Disk, 8 threads",
                "7.1",
                AtMost(10.0),
                at(&disk, 8),
                "K/s",
                Outcome,
            ),
        ],
        plot: Plot::lines(
            "threads",
            Y,
            vec![over_threads("Baseline-T", |_| throttled), dram, flash, disk],
        )
        .with_stated(vec![(8.0, 350.0), (8.0, 80.0), (8.0, 10.0)]),
        parameters: &[
            "compare_page",
            "ssd_random",
            "hdd_random",
            "dram_rate",
            "dram_delay",
            "cores",
            "throttle",
        ],
        notes: "The SSD's random reads are one at a time: the text's '< 80 K' with 8 threads leaves no room for more.",
    }
}

/// Figure 18.
pub(super) fn off_the_shelf(p: &Parameters) -> Figure {
    let throttled = isp(p, true);
    let random = over_threads("H-RFlash", |n| threads(p, n, Elsewhere::Ssd(1.0)));
    let in_order = over_threads("H-SFlash", |n| in_order(p, n));
    Figure {
        id: "bluedbm-18",
        of: "BlueDBM figure 18",
        title: "Nearest neighbours with an off-the-shelf SSD",
        rows: vec![
            Row::new(
                "Baseline-T / H-RFlash, 8 threads",
                "7.1: 'an order of magnitude'",
                About(10.0),
                throttled / at(&random, 8),
                "",
                Outcome,
            ),
            Row::new(
                "H-SFlash, 8 threads / Baseline-T",
                "7.1: 'matching'",
                About(1.0),
                at(&in_order, 8) / throttled,
                "",
                Outcome,
            ),
        ],
        plot: Plot::lines(
            "threads",
            Y,
            vec![over_threads("Baseline-T", |_| throttled), in_order, random],
        ),
        parameters: &[
            "throttle",
            "ssd_rate",
            "ssd_random",
            "read_ahead",
            "compare_page",
            "cores",
        ],
        notes: "",
    }
}

/// Figure 19.
pub(super) fn in_store(p: &Parameters) -> Figure {
    let (baseline, throttled) = (isp(p, false), isp(p, true));
    let software = over_threads("H-F Throttled", |n| software(p, n));
    let unthrottled = thousand(host_local(p) * GIB / p.page);
    let less = |of: f64, than: f64| (1.0 - of / than) * 100.0;
    Figure {
        id: "bluedbm-19",
        of: "BlueDBM figure 19",
        title: "Nearest neighbours: in-store processor and software on the same flash",
        rows: vec![
            Row::new(
                "H-F Throttled below Baseline-T, 8 threads",
                "7.1",
                AtLeast(20.0),
                less(at(&software, 8), throttled),
                "%",
                Outcome,
            ),
            Row::new(
                "the same, 16 threads",
                "7.1",
                AtLeast(20.0),
                less(at(&software, 16), throttled),
                "%",
                Outcome,
            ),
            Row::new(
                "software below Baseline, not throttled",
                "7.1",
                AtLeast(30.0),
                less(unthrottled, baseline),
                "%",
                Outcome,
            ),
        ],
        plot: Plot::lines(
            "threads",
            Y,
            vec![over_threads("Baseline-T", |_| throttled), software],
        ),
        parameters: &[
            "page",
            "cards",
            "buses",
            "chips",
            "flash_read",
            "card_rate",
            "throttle",
            "to_host_rate",
            "host_buffers",
            "software",
            "compare_page",
            "cores",
        ],
        notes: "The text does not say of how many threads it speaks. In the model software catches up with throttled flash once enough threads wait at the same time; something else than waiting keeps the paper's 20 % below.",
    }
}

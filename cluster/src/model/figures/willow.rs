//! Willow figures 4 and 8.

use super::super::bee3::Bee3;
use super::super::clock::Time;
use super::super::load::closed_loop;
use super::super::parameters::{GB, Parameters, US};
use super::super::simulation::{Simulation, Step};
use super::Claim::About;
use super::Proof::{Fitted, Input, Outcome};
use super::{Figure, Plot, Row, Series};

const COUNT: u64 = 2000;
const KILOBYTES: [f64; 9] = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
const SMALL: f64 = 512.0;
/// Of a key-value record, as sectors.
const RECORD: f64 = 1024.0;

/// Which SSD App a request goes by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum App {
    BaseIo,
    DirectIo,
}

/// A request of a thread.
fn request(p: &Parameters, ssd: &Bee3, app: App, is_write: bool, bytes: f64) -> [Step; 3] {
    let os = p.willow_read * p.willow_os_share;
    let trips = if is_write { p.willow_write_trips } else { 1.0 };
    let device = (p.willow_read - os) * trips;
    let os = if app == App::BaseIo { os } else { 0.0 };
    let transfer = if is_write {
        ssd.from_host(bytes)
    } else {
        ssd.to_host(bytes)
    };
    let wait = Time::from_seconds((os + device) * US);
    [Step::Delay(wait), ssd.message(bytes), transfer]
}

/// Requests a second.
fn rate(p: &Parameters, app: App, is_write: bool, bytes: f64) -> f64 {
    let mut simulation = Simulation::new();
    let ssd = Bee3::new(&mut simulation, p, p.bee3_controllers as usize);
    let threads = p.willow_threads as u64;
    let job = |_| request(p, &ssd, app, is_write, bytes).into();
    closed_loop(&mut simulation, threads, COUNT, job).rate
}

/// Figure 4.
pub(super) fn bandwidth(p: &Parameters) -> Figure {
    let series = |name, app, is_write| {
        let point = |kb: f64| (kb, rate(p, app, is_write, kb * 1024.0) * kb * 1024.0 / GB);
        Series::new(name, KILOBYTES.map(point).to_vec())
    };
    let all = vec![
        series("Base-IO, read", App::BaseIo, false),
        series("Direct-IO, read", App::DirectIo, false),
        series("Base-IO, write", App::BaseIo, true),
        series("Direct-IO, write", App::DirectIo, true),
    ];
    let of_pcie = |series: &Series| series.points[KILOBYTES.len() - 1].1 / p.bee3_pcie * 100.0;
    let small = |app, is_write| rate(p, app, is_write, SMALL);
    let base = small(App::BaseIo, false);
    let reads = small(App::DirectIo, false) / base;
    let writes = small(App::DirectIo, true) / small(App::BaseIo, true);
    Figure {
        id: "willow-4",
        of: "Willow figure 4",
        title: "Base-IO and Direct-IO by size of request",
        rows: vec![
            Row::new(
                "Base-IO, small reads",
                "4.1",
                About(388.0),
                base / 1e3,
                "K/s",
                Fitted,
            ),
            Row::new(
                "Base-IO, large reads, of PCIe",
                "4.1",
                About(78.0),
                of_pcie(&all[0]),
                "%",
                Input,
            ),
            Row::new(
                "Base-IO, large writes, of PCIe",
                "4.1",
                About(73.0),
                of_pcie(&all[2]),
                "%",
                Input,
            ),
            Row::new(
                "Direct-IO / Base-IO, small reads",
                "4.2: 'up to 66 %'",
                About(1.66),
                reads,
                "",
                Outcome,
            ),
            Row::new(
                "Direct-IO / Base-IO, small writes",
                "4.2: 'up to 8 x'",
                About(8.0),
                writes,
                "",
                Outcome,
            ),
        ],
        plot: Plot::lines("request, KB", "GB/s", all),
        parameters: &[
            "willow_threads",
            "willow_read",
            "willow_os_share",
            "willow_write_trips",
            "bee3_ring_rate",
            "bee3_ring_trip",
            "bee3_pcie",
            "pcie_read_share",
            "pcie_write_share",
        ],
        notes: "The paper has no latency for small writes through the file system. The model gives them what reads pay for the operating system, and so comes nowhere near 8 times: XFS's write path costs far more than its read path there, and no number in the text says how much.",
    }
}

/// What keeps records.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Berkeley(App),
    KeyValue,
}

/// Operations a second of MemcacheDB.
fn store(p: &Parameters, store: Store, is_put: bool) -> f64 {
    let mut simulation = Simulation::new();
    let ssd = Bee3::new(&mut simulation, p, p.bee3_controllers as usize);
    let mut steps = vec![Step::Delay(Time::from_seconds(p.kv_software * US))];
    match store {
        Store::Berkeley(app) => {
            steps.extend(request(p, &ssd, app, false, RECORD));
            if is_put {
                // Its log, and the page.
                steps.extend(request(p, &ssd, app, true, RECORD));
                steps.extend(request(p, &ssd, app, true, RECORD));
            }
        }
        Store::KeyValue => steps.extend(request(p, &ssd, App::DirectIo, is_put, RECORD)),
    }
    let threads = p.kv_threads as u64;
    closed_loop(&mut simulation, threads, COUNT, |_| steps.clone().into()).rate
}

/// Figure 8.
pub(super) fn key_values(p: &Parameters) -> Figure {
    let stores = [
        Store::Berkeley(App::BaseIo),
        Store::Berkeley(App::DirectIo),
        Store::KeyValue,
    ];
    let [base, direct, key_value] = stores.map(|of| [store(p, of, false), store(p, of, true)]);
    let thousands = |rates: [f64; 2]| rates.map(|rate| rate / 1e3).to_vec();
    Figure {
        id: "willow-8",
        of: "Willow figure 8",
        title: "MemcacheDB on Base-IO, Direct-IO and Key-Value",
        rows: vec![
            Row::new(
                "GET, Key-Value / Direct-IO",
                "4.5",
                About(1.082),
                key_value[0] / direct[0],
                "",
                Outcome,
            ),
            Row::new(
                "PUT, Key-Value / Direct-IO",
                "4.5",
                About(2.0),
                key_value[1] / direct[1],
                "",
                Outcome,
            ),
            Row::new(
                "GET, Key-Value / Base-IO",
                "4.5",
                About(2.0),
                key_value[0] / base[0],
                "",
                Outcome,
            ),
            Row::new(
                "PUT, Key-Value / Base-IO",
                "4.5",
                About(4.8),
                key_value[1] / base[1],
                "",
                Outcome,
            ),
        ],
        plot: Plot::groups(
            "thousand operations/s",
            vec!["GET".into(), "PUT".into()],
            vec![
                ("Base-IO", thousands(base)),
                ("Direct-IO", thousands(direct)),
                ("Key-Value", thousands(key_value)),
            ],
            false,
        ),
        parameters: &[
            "willow_read",
            "willow_os_share",
            "willow_write_trips",
            "kv_threads",
            "kv_software",
            "bee3_ring_rate",
            "bee3_ring_trip",
            "bee3_pcie",
            "pcie_read_share",
            "pcie_write_share",
        ],
        notes: "Nothing here is fitted to Willow but the latency of a small read (figure 4); MemcacheDB's software is that of Minerva's host, and Berkeley DB's I/Os are Minerva's: one for Get, three for Put. What the file system costs Base-IO beyond a read's share is missing, as in figure 4.",
    }
}

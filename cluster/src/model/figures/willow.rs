//! Willow figures 4 and 8.

use super::super::bee3::Bee3;
use super::super::clock::Time;
use super::super::load::closed_loop;
use super::super::parameters::{GB, Parameters, US};
use super::super::random::Random;
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

/// Operations a second of MemcacheDB, of which a share are puts.
fn store(p: &Parameters, store: Store, puts: f64) -> f64 {
    let mut simulation = Simulation::new();
    let mut random = Random::new(8);
    let ssd = Bee3::new(&mut simulation, p, p.bee3_controllers as usize);
    let software = Step::Delay(Time::from_seconds(p.kv_software * US));
    let mut operation = |_| {
        let is_put = random.chance(puts);
        let mut steps = vec![software.clone()];
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
        steps.into()
    };
    let threads = p.kv_threads as u64;
    closed_loop(&mut simulation, threads, 2 * COUNT, &mut operation).rate
}

/// Figure 8.
pub(super) fn key_values(p: &Parameters) -> Figure {
    let stores = [
        Store::Berkeley(App::BaseIo),
        Store::Berkeley(App::DirectIo),
        Store::KeyValue,
    ];
    let mixes = [0.0, 1.0, 0.5, 0.05];
    let [base, direct, key_value] = stores.map(|of| mixes.map(|puts| store(p, of, puts)));
    let over = |mix: usize, below: [f64; 4]| key_value[mix] / below[mix];
    let thousands = |rates: [f64; 4]| rates.map(|rate| rate / 1e3).to_vec();
    let row = |what, claim, modelled| Row::new(what, "4.5", claim, modelled, "", Outcome);
    Figure {
        id: "willow-8",
        of: "Willow figure 8",
        title: "MemcacheDB on Base-IO, Direct-IO and Key-Value",
        rows: vec![
            row("GET, Key-Value / Direct-IO", About(1.082), over(0, direct)),
            row("PUT, Key-Value / Direct-IO", About(2.0), over(1, direct)),
            row("GET, Key-Value / Base-IO", About(2.0), over(0, base)),
            row("PUT, Key-Value / Base-IO", About(4.8), over(1, base)),
            row(
                "update-heavy, Key-Value / Direct-IO",
                About(1.7),
                over(2, direct),
            ),
            row(
                "read-heavy, Key-Value / Direct-IO",
                About(1.17),
                over(3, direct),
            ),
            row(
                "update-heavy, Key-Value / Base-IO",
                About(4.0),
                over(2, base),
            ),
            row("read-heavy, Key-Value / Base-IO", About(2.5), over(3, base)),
        ],
        plot: Plot::groups(
            "thousand operations/s",
            ["GET", "PUT", "update-heavy", "read-heavy"]
                .map(Into::into)
                .to_vec(),
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
        notes: "Nothing here is fitted to Willow but the latency of a small read (figure 4); MemcacheDB's software is that of Minerva's host, and Berkeley DB's I/Os are Minerva's: one for Get, three for Put. What the file system costs Base-IO beyond a read's share is missing, as in figure 4. Of the mixes the text says 'between 17 % and 70 %' and 'between 2.5 and 4 x'; we take the greater for more puts.",
    }
}

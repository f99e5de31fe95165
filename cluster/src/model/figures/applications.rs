//! BlueDBM figures 20 and 21, and table 3.

use super::super::clock::Time;
use super::super::drive::Drive;
use super::super::flash::{Card, Place, bursts};
use super::super::load::closed_loop;
use super::super::node::{Access, Node, Way};
use super::super::parameters::{GB, GIB, NS, Parameters};
use super::super::power::Power;
use super::super::random::Random;
use super::super::server::FlashServer;
use super::super::simulation::{Simulation, Step};
use super::Claim::{About, AtLeast, AtMost};
use super::Proof::{Fitted, Input, Outcome};
use super::{Figure, Plot, Row};

const LOOKUPS: u64 = 500;
const PAGES: u64 = 6000;
const WINDOWS: u64 = 200;

/// Lookups a second, each of which depends on the one before: some by one access, the rest by
/// another.
fn traversal(p: &Parameters, one: Access, share: f64, other: Access) -> f64 {
    let mut simulation = Simulation::new();
    let [near, far] = [0, 1].map(|node| Node::new(&mut simulation, p, node, 1));
    let way = Way::new(&mut simulation, p, 1, 1);
    let mut random = Random::new(20);
    let bursts = bursts(p);
    let measured = closed_loop(&mut simulation, 1, LOOKUPS, |_| {
        let access = if random.chance(share) { one } else { other };
        access.read(&near, &far, &way, bursts, &mut random).into()
    });
    measured.rate
}

/// Figure 20.
pub(super) fn graph(p: &Parameters) -> Figure {
    let only = |access| traversal(p, access, 1.0, access);
    let mixed = |share| traversal(p, Access::HRhF, share, Access::HD);
    let (isp, half, most) = (only(Access::IspF), mixed(0.5), mixed(0.3));
    let (hf, hrhf, dram) = (only(Access::HF), only(Access::HRhF), only(Access::HD));
    Figure {
        id: "bluedbm-20",
        of: "BlueDBM figure 20",
        title: "Graph traversal: dependent lookups of remote pages",
        rows: vec![
            Row::new(
                "ISP-F / H-RH-F",
                "7.2: 'almost 3'",
                About(3.0),
                isp / hrhf,
                "",
                Fitted,
            ),
            Row::new(
                "ISP-F / DRAM + 50% F",
                "7.2: 'still much higher'",
                AtLeast(1.0),
                isp / half,
                "",
                Outcome,
            ),
            Row::new(
                "ISP-F / DRAM + 30% F",
                "acceleration chapter: 'on par'",
                About(1.0),
                isp / most,
                "",
                Outcome,
            ),
        ],
        plot: Plot::bars(
            "lookups/s",
            &[
                ("ISP-F", isp),
                ("H-F", hf),
                ("H-RH-F", hrhf),
                ("DRAM+50%F", half),
                ("DRAM+30%F", most),
                ("H-DRAM", dram),
            ],
        ),
        parameters: &[
            "page",
            "flash_read",
            "card_rate",
            "buses",
            "card_link_rate",
            "card_link_delay",
            "lane_rate",
            "hop",
            "to_host_rate",
            "from_host_rate",
            "software",
            "dram_rate",
            "dram_delay",
        ],
        notes: "No absolute numbers in the text. The seeds differ: the draft of the chapter has ISP-F on par with 70 % in DRAM, the paper has it far ahead of 50 %. Both cannot hold with H-RH-F at a third of ISP-F and with software as the only cost that H-F adds to it; the model goes with the paper. One hop.",
    }
}

/// Morris-Pratt engines at one card, GiB/s.
fn engines(p: &Parameters) -> f64 {
    let mut simulation = Simulation::new();
    let card = Card::new(&mut simulation, p, 0);
    let mut random = Random::new(21);
    let buses = p.buses as usize;
    let engines = buses * p.engines_a_bus as usize;
    let servers: Vec<_> = (0..engines)
        .map(|_| FlashServer::new(&mut simulation, 1))
        .collect();
    let measured = closed_loop(&mut simulation, engines as u64, PAGES, |engine| {
        let engine = engine as usize;
        let chip = random.below(p.chips as usize);
        let bus = engine % buses;
        servers[engine]
            .in_order(card.read(Place { bus, chip }, &[]))
            .into()
    });
    measured.rate * p.page / GIB
}

/// `grep`: bytes a second from a drive, and the share of a thread that is busy.
fn grep(p: &Parameters, drive: fn(&mut Simulation, &Parameters) -> Drive) -> (f64, f64) {
    let mut simulation = Simulation::new();
    let drive = drive(&mut simulation, p);
    let thread = simulation.station("thread", 0, 1);
    let window = p.page * p.read_ahead;
    let work = Time::from_seconds(window * p.scan_byte * NS);
    let steps = [drive.next(window as u64), Step::Serve(thread, work)];
    let measured = closed_loop(&mut simulation, 2, WINDOWS, |_| steps.clone().into());
    (
        measured.rate * window,
        simulation.at(thread).used(measured.until) * 100.0,
    )
}

/// Figure 21.
pub(super) fn search(p: &Parameters) -> Figure {
    let in_store = engines(p);
    let (hdd, hdd_cpu) = grep(p, Drive::hdd);
    let (ssd, ssd_cpu) = grep(p, Drive::ssd);
    let in_store_gb = in_store * GIB / GB;
    Figure {
        id: "bluedbm-21",
        of: "BlueDBM figure 21",
        title: "String search: bandwidth, and CPU of the host",
        rows: vec![
            Row::new("in-store", "7.3", About(1.1), in_store, "GB/s", Outcome),
            Row::new(
                "of the card's bandwidth",
                "7.3",
                About(92.0),
                in_store / p.card_rate * 100.0,
                "%",
                Outcome,
            ),
            Row::new(
                "in-store / grep on HDD",
                "7.3",
                About(7.5),
                in_store_gb * GB / hdd,
                "",
                Input,
            ),
            Row::new("CPU, grep on HDD", "7.3", About(13.0), hdd_cpu, "%", Fitted),
            Row::new(
                "CPU, grep on SSD",
                "7.3",
                About(65.0),
                ssd_cpu,
                "%",
                Outcome,
            ),
        ],
        plot: Plot::bars(
            "GB/s (CPU: share of a thread)",
            &[
                ("in-store", in_store_gb),
                ("grep, SSD", ssd / GB),
                ("grep, HDD", hdd / GB),
                ("CPU, SSD", ssd_cpu / 100.0),
                ("CPU, HDD", hdd_cpu / 100.0),
            ],
        ),
        parameters: &[
            "page",
            "buses",
            "chips",
            "flash_read",
            "card_rate",
            "engines_a_bus",
            "hdd_rate",
            "ssd_rate",
            "read_ahead",
            "scan_byte",
        ],
        notes: "One card. Engines' pages lie on chips at random. Four reads in flight keep a bus all but busy in the model; what costs the paper's engines 8 % (set-up, ends of files) is not in it. The SSD's rate is that of 8 KB accesses; grep's longer ones may well be faster, which the paper's 65 % suggests.",
    }
}

/// Table 3.
pub(super) fn power(p: &Parameters) -> Figure {
    let power = Power::of(p);
    let share = power.storage() / power.node() * 100.0;
    Figure {
        id: "bluedbm-table-3",
        of: "BlueDBM table 3",
        title: "Power of a node",
        rows: vec![
            Row::new("node", "table 3", About(240.0), power.node(), "W", Input),
            Row::new(
                "storage device, of the node",
                "6.2",
                AtMost(20.0),
                share,
                "%",
                Outcome,
            ),
        ],
        plot: Plot::bars(
            "W",
            &[
                ("VC707", power.fpga),
                ("flash x2", power.flash),
                ("server", power.server),
                ("node", power.node()),
            ],
        )
        .with_stated(vec![(0.0, 30.0), (1.0, 10.0), (2.0, 200.0), (3.0, 240.0)]),
        parameters: &["power_fpga", "power_flash", "power_server"],
        notes: "From data sheets, in the paper as well: a sum. Idle parts take as much as busy ones.",
    }
}

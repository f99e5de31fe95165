//! The rack under the counts of a query.

use super::super::parameters::{GBIT, GIB};
use super::super::{Appliance, Counts, Parameters, Workload, latency};
use super::{Access, assert_near, seed};

fn workload(nodes: Vec<Counts>) -> Workload {
    Workload {
        nodes,
        comparison_seconds: 22.86e-6,
        threads: 24,
        in_flight: None,
        seed: seed(),
    }
}

/// A scan of so many pages on each node of a ring.
fn scan(nodes: u32, pages: u64, bytes_shipped: u64) -> Workload {
    let of = |node: u32| Counts {
        pages,
        bytes_shipped,
        comparisons: pages,
        hops: node.div_ceil(2),
        requests: 1,
        ..Counts::default()
    };
    workload((0..nodes).map(of).collect())
}

#[test]
fn a_scan_is_bound_by_flash_in_the_store_and_by_pcie_in_the_host() {
    let p = Parameters::default();
    let report = Appliance::default().run(&scan(4, 40_000, 4096));
    let bytes = 40_000.0 * p.page / GIB;
    assert_near(
        report.in_store.seconds,
        bytes / (p.card_rate * p.cards),
        6.0,
    );
    assert_near(report.host.seconds, bytes / p.to_host_rate, 6.0);
    let part = |use_: &Option<super::super::Use>| use_.as_ref().map(|use_| use_.part);
    assert_eq!(part(&report.in_store.bottleneck), Some("flash bus"));
    assert_eq!(part(&report.host.bottleneck), Some("PCIe to host"));
    assert_near(report.speedup(), 1.5, 8.0);
    assert_eq!((report.in_store.stuck, report.host.stuck), (0, 0));
    assert_near(
        report.in_store.joules,
        report.in_store.seconds * 4.0 * 240.0,
        0.001,
    );
    let storage = report.in_store.seconds * 4.0 * 40.0;
    assert_near(report.in_store.storage_joules, storage, 0.001);
}

/// With few threads the host computes longest.
#[test]
fn threads_bound_the_host_and_not_the_store() {
    let mut few = scan(1, 20_000, 64);
    few.threads = 2;
    let report = Appliance::default().run(&few);
    assert_near(report.host.seconds, 20_000.0 * 22.86e-6 / 2.0, 3.0);
    let bottleneck = report.host.bottleneck.expect("a bottleneck");
    assert_eq!(bottleneck.part, "host cores");
    assert!(report.in_store.seconds < report.host.seconds / 3.0);
}

/// Where all is shipped, the network into the node that asks is the bound, in both.
#[test]
fn answers_as_large_as_pages_are_bound_by_the_way_home() {
    let p = Parameters::default();
    let mut all = scan(5, 4000, 4000 * 8192);
    // The node that asks has nothing itself.
    all.nodes[0] = Counts::default();
    let slow = Appliance {
        lanes: 1,
        ..Appliance::default()
    };
    let report = slow.run(&all);
    let bytes = 4.0 * 4000.0 * p.page;
    let wide = bytes / (2.0 * p.lane_rate * GBIT);
    let into_host = bytes / (p.to_host_rate * GIB);
    for seconds in [report.in_store.seconds, report.host.seconds] {
        assert_near(seconds, wide.max(into_host), 5.0);
    }
}

/// A chain of lookups takes as long as one after the other.
#[test]
fn dependent_lookups_take_latency_times_count() {
    let p = Parameters::default();
    let mut chain = scan(1, 1000, 0);
    chain.in_flight = Some(1);
    let report = Appliance::default().run(&chain);
    // A page without the network's part of it.
    let remote = latency(&p, Access::IspF, 1).seconds();
    assert_near(report.in_store.seconds / 1000.0, remote, 5.0);
    assert_eq!(report.in_store.bottleneck, None);
    let software = 1000.0 * p.software * 1e-6;
    assert!(report.host.seconds - report.in_store.seconds > software);
}

/// Beyond what is modelled page by page, time goes on in proportion.
#[test]
fn large_scans_are_extrapolated() {
    let appliance = Appliance::default();
    let small = appliance.run(&scan(3, 2000, 100_000));
    for times in [10, 1000] {
        let large = appliance.run(&scan(3, 2000 * times, 100_000 * times));
        let factor = times as f64;
        assert_near(large.in_store.seconds, small.in_store.seconds * factor, 4.0);
        assert_near(large.host.seconds, small.host.seconds * factor, 4.0);
    }
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let appliance = Appliance::default();
    let query = Workload {
        seed: 7,
        ..scan(6, 2500, 1_000_000)
    };
    let report = appliance.run(&query);
    assert_eq!(report, appliance.run(&query));
    assert_ne!(report, appliance.run(&Workload { seed: 8, ..query }));
}

/// Many requests cost the threads of the node that asks; pages that are written, PCIe and chips.
#[test]
fn requests_and_writes_cost_what_their_parts_cost() {
    let p = Parameters::default();
    let mut lookups = scan(2, 4000, 4000 * 64);
    lookups.threads = 1;
    for node in &mut lookups.nodes {
        node.requests = 4000;
    }
    let report = Appliance::default().run(&lookups);
    // Half of the software's time is that of the call, which a thread makes.
    let call = p.software / 2.0 * 1e-6;
    assert_near(report.in_store.seconds, 8000.0 * call, 3.0);

    let mut writes = workload(vec![Counts::default()]);
    // As many as are modelled page by page: what is extrapolated may be a little less.
    writes.nodes[0].pages_written = 2000;
    let report = Appliance::default().run(&writes);
    let least = 2000.0 * p.page / (p.from_host_rate * GIB);
    assert!(report.in_store.seconds >= least);
    assert_near(report.in_store.seconds, least, 30.0);
    assert_eq!(report.in_store, report.host);
}

#[test]
fn nothing_takes_no_time_and_no_query_is_no_error() {
    let report = Appliance::default().run(&workload(Vec::new()));
    assert_eq!(report.in_store.seconds, 0.0);
    let report = Appliance::default().run(&workload(vec![Counts::default(); 3]));
    assert!(report.in_store.seconds < 1e-3);
}

/// Answers from no page at all are shipped too, and large ones are extrapolated.
#[test]
fn answers_that_no_page_was_read_for_are_shipped() {
    let p = Parameters::default();
    let mut query = workload(vec![Counts::default(); 2]);
    query.nodes[1].hops = 1;
    for bytes in [10_000_000, 1_000_000_000_000] {
        query.nodes[1].bytes_shipped = bytes;
        let report = Appliance::default().run(&query);
        let least = bytes as f64 / (p.to_host_rate * GIB);
        for execution in [&report.in_store, &report.host] {
            assert!(execution.seconds >= least * 0.99, "{execution}");
        }
        assert_near(report.in_store.seconds, least, 5.0);
        assert_eq!(report.in_store.stuck, 0);
    }
    let text = Appliance::default().run(&query).to_string();
    assert!(text.starts_with("modelled in-store: "), "{text}");
    assert!(text.contains("bound by PCIe to host ("), "{text}");
}

/// Counts that can't be are no reason to fall over.
#[test]
fn absurd_counts_give_a_report() {
    let most = Counts {
        pages: u64::MAX,
        pages_written: u64::MAX,
        bytes_shipped: 1,
        comparisons: u64::MAX,
        hops: 1,
        requests: u64::MAX,
    };
    let far = Counts {
        pages: 1,
        hops: u32::MAX,
        bytes_shipped: 1,
        ..Counts::default()
    };
    for (counts, comparison_seconds) in [(most, f64::INFINITY), (most, -1.0), (far, f64::NAN)] {
        let mut query = workload(vec![counts; 2]);
        query.threads = 0;
        query.in_flight = Some(0);
        query.comparison_seconds = comparison_seconds;
        let none = Appliance {
            arms: 0,
            lanes: 0,
            ..Appliance::default()
        };
        let report = none.run(&query);
        assert!(report.in_store.seconds > 0.0);
        assert_eq!((report.in_store.stuck, report.host.stuck), (0, 0));
    }
}

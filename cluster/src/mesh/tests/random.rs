//! Random racks, traffic, buffers, stalls and cuts: everything arrives, once and in order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::traces::Trace;
use super::{racks, run, seed, wires};
use crate::mesh::transport::{Wire, memory};
use crate::mesh::{Mesh, Network};

const ENDPOINTS: [(u16, bool); 4] = [(0, false), (1, false), (5, false), (9, true)];
const CLOCKS: u64 = 200;

fn small_bounds(chance: &mut StdRng) -> String {
    format!(
        "[mesh]\nlink_packets = {}\nendpoint_packets = {}\nwindow_packets = {}\n",
        chance.random_range(1..8),
        chance.random_range(1..8),
        chance.random_range(1..20),
    )
}

/// Packets from anywhere to anywhere, and receivers that stall; perhaps one of end-to-end flow
/// control that never takes anything, and to which its endpoint sends only.
fn traffic(chance: &mut StdRng, nodes: usize, packets: usize) -> Trace {
    let mut trace = Trace {
        nodes,
        endpoints: ENDPOINTS.to_vec(),
        ..Trace::default()
    };
    for _ in 0..chance.random_range(0..5) {
        let (endpoint, _) = *ENDPOINTS.choose(chance).unwrap();
        let first = chance.random_range(0..CLOCKS);
        let last = first + chance.random_range(1..100);
        let at = (chance.random_range(0..nodes), endpoint);
        trace.stalls.push((at, first, Some(last)));
    }
    let stuck = chance
        .random_bool(0.5)
        .then(|| chance.random_range(0..nodes));
    if let Some(stuck) = stuck {
        trace.stalls.push(((stuck, 9), 0, None));
    }
    let mut clocks: Vec<u64> = (0..packets)
        .map(|_| chance.random_range(0..CLOCKS))
        .collect();
    clocks.sort_unstable();
    for clock in clocks {
        let (endpoint, is_end_to_end) = *ENDPOINTS.choose(chance).unwrap();
        let source = chance.random_range(0..nodes);
        let stuck = stuck.filter(|_| is_end_to_end);
        let destination = stuck.unwrap_or_else(|| chance.random_range(0..nodes));
        let payload = chance.random();
        let sends = trace.sends.entry((source, endpoint)).or_default();
        sends.push((clock, destination, payload));
        if stuck.is_none() {
            let from = ((destination, endpoint), source);
            trace.deliveries.entry(from).or_default().push(payload);
        }
    }
    trace
}

/// Gives how many cables the racks had.
fn deliver_all(rounds: usize, wire: impl Fn(u64) -> Wire) -> u64 {
    let mut chance = StdRng::seed_from_u64(seed());
    let mut cables = 0;
    for round in 0..rounds {
        let shape = racks::random(&mut chance, 8);
        cables += shape.cables.len() as u64;
        let rack = shape.rack(&ENDPOINTS, &small_bounds(&mut chance));
        let trace = Arc::new(traffic(&mut chance, shape.nodes, 400));
        let wire = wire(chance.random());
        let delivered = run(async {
            let network = Arc::new(Network::new(&rack).unwrap());
            let meshes = Mesh::wired(&network, &wire);
            trace.clone().replay(&meshes).await
        });
        assert!(
            delivered == trace.deliveries,
            "round {round}: {}",
            shape.name
        );
    }
    cables
}

#[test]
fn everything_is_delivered_in_order() {
    deliver_all(8, |_| Arc::new(memory));
}

#[test]
fn everything_is_delivered_over_links_that_are_cut() {
    let made = std::cell::RefCell::new(Vec::new());
    let cables = deliver_all(8, |seed| {
        let (wire, count) = wires::cut_often(seed, 500, 3000);
        made.borrow_mut().push(count);
        wire
    });
    let made = made.borrow();
    let made: u64 = made.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    println!("{made} connections over {cables} cables");
    assert!(made > cables, "no link was cut");
}

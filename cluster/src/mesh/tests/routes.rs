//! Routes, and what finds deadlocks: the verdicts of `fpga/network/model`, and brute force.

use std::collections::HashSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::racks::{self, Shape};
use super::seed;
use crate::Rack;
use crate::mesh::Network;
use crate::mesh::routes::{Routes, shortest, up_down};
use crate::mesh::topology::Topology;

fn topology(shape: &Shape) -> Topology {
    Topology::new(shape.nodes, shape.cables.iter().copied())
}

/// Whether dependencies have a cycle: what is left when those that nothing follows are taken away
/// again and again.
fn has_cycle(topology: &Topology, routes: &Routes) -> bool {
    let mut pairs = HashSet::new();
    for (source, endpoint, destination) in routes.all() {
        let path = routes
            .path(topology, source, endpoint, destination)
            .unwrap();
        pairs.extend(path.windows(2).map(|pair| (pair[0], pair[1])));
    }
    loop {
        let before = pairs.len();
        let held: HashSet<usize> = pairs.iter().map(|&(held, _)| held).collect();
        pairs.retain(|(_, wanted)| held.contains(wanted));
        if pairs.len() == before {
            return before > 0;
        }
    }
}

/// A cycle that was found is one: each channel's far end is where the next one begins.
fn assert_is_cycle(topology: &Topology, cycle: &[usize]) {
    for (held, wanted) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
        assert_eq!(
            topology.channels[*held].to.0,
            topology.channels[*wanted].from.0
        );
    }
}

#[test]
fn verdicts_on_known_racks() {
    let shapes = [
        racks::line(6, 2),
        racks::ring(6),
        racks::fat_tree(),
        racks::torus(4, 5),
    ];
    for shape in &shapes {
        let topology = topology(shape);
        let routes = up_down(&topology, 4).unwrap();
        assert_eq!(routes.cycle(&topology), Ok(None), "{}", shape.name);
    }
    for shape in [racks::ring(6), racks::torus(4, 5)] {
        let topology = topology(&shape);
        let cycle = shortest(&topology, 4).cycle(&topology).unwrap().unwrap();
        assert_is_cycle(&topology, &cycle);
    }
    // On a line, shortest paths are all there are.
    let topology = topology(&racks::line(5, 1));
    assert_eq!(shortest(&topology, 4).cycle(&topology), Ok(None));
}

#[test]
fn verdicts_on_random_racks_are_those_of_brute_force() {
    let mut chance = StdRng::seed_from_u64(seed());
    let mut cycles = 0;
    for _ in 0..100 {
        let shape = racks::random(&mut chance, 9);
        let topology = topology(&shape);
        let endpoints = chance.random_range(1..4);
        let routes = up_down(&topology, endpoints).unwrap();
        assert!(!has_cycle(&topology, &routes));
        assert_eq!(routes.cycle(&topology), Ok(None));
        let routes = shortest(&topology, endpoints);
        let found = routes.cycle(&topology).unwrap();
        assert_eq!(found.is_some(), has_cycle(&topology, &routes));
        if let Some(cycle) = found {
            assert_is_cycle(&topology, &cycle);
            cycles += 1;
        }
    }
    assert!(cycles > 0, "no rack of these had a cycle");
}

#[test]
fn routes_go_up_and_then_down() {
    let mut chance = StdRng::seed_from_u64(seed());
    for _ in 0..100 {
        let topology = topology(&racks::random(&mut chance, 12));
        let routes = up_down(&topology, 3).unwrap();
        let levels = topology.hops(0, |_| true);
        let rank = |node: usize| (levels[node], node);
        for (source, endpoint, destination) in routes.all() {
            let path = routes
                .path(&topology, source, endpoint, destination)
                .unwrap();
            let ups = path.iter().map(|&channel| {
                let channel = &topology.channels[channel];
                rank(channel.to.0) < rank(channel.from.0)
            });
            let ups: Vec<bool> = ups.collect();
            assert!(ups.is_sorted_by(|a, b| a >= b), "up after down: {ups:?}");
        }
    }
}

#[test]
fn endpoints_are_spread_over_lanes() {
    let topology = topology(&racks::line(2, 4));
    let routes = up_down(&topology, 4).unwrap();
    let used: HashSet<_> = (0..4).map(|endpoint| routes.next(0, endpoint, 1)).collect();
    assert_eq!(used.len(), 4);
}

/// Clockwise around a ring of four.
fn clockwise(shape: &Shape) -> String {
    let mut text = shape.text(&[(0, false)], "");
    for node in 0..4_usize {
        for destination in (0..4).filter(|&to| to != node) {
            let next = (node + 1) % 4;
            let towards = shape.cables.iter().flat_map(|&[a, b]| [(a, b), (b, a)]);
            let mut ports = towards.filter(|&((from, _), (to, _))| (from, to) == (node, next));
            let ((_, port), _) = ports.next().unwrap();
            text += &format!(
                "[[route]]\nnode = 'n{node}'\ndestination = 'n{destination}'\nport = {port}\n"
            );
        }
    }
    text
}

#[test]
fn a_rack_file_whose_routes_can_deadlock_is_refused() {
    let text = clockwise(&racks::ring(4));
    let message = Rack::parse(&text).unwrap_err().to_string();
    let cycle = "n0/0 → n1/0, n1/1 → n2/0, n2/1 → n3/0, n3/1 → n0/1, n0/0 → n1/0";
    assert!(message.contains(cycle), "{message}");
}

#[test]
fn routes_that_lead_nowhere_are_refused() {
    let text = racks::ring(4).text(&[(0, false)], "");
    let route = |node: &str, endpoint: &str, destination: &str, port: u16| {
        let route = format!(
            "{text}[[route]]\nnode = '{node}'\nendpoint = '{endpoint}'\n\
             destination = '{destination}'\nport = {port}\n"
        );
        Rack::parse(&route)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let refused = |outcome: Result<(), String>, expected: &str| {
        let message = outcome.unwrap_err();
        assert!(message.contains(expected), "{message}");
    };
    refused(route("n9", "e0", "n0", 0), "node 'n9'");
    refused(route("n1", "e7", "n0", 0), "endpoint 'e7'");
    refused(route("n1", "e0", "n0", 5), "port 'n1/5'");
    refused(route("n1", "e0", "n1", 0), "from 'n1' to itself");
    // n1 sends to n3 by way of n0; from there it would come back.
    let back = format!(
        "{text}[[route]]\nnode = 'n1'\ndestination = 'n3'\nport = 0\n\
         [[route]]\nnode = 'n0'\ndestination = 'n3'\nport = 0\n"
    );
    let message = Rack::parse(&back).unwrap_err().to_string();
    assert!(message.contains("would go in circles"), "{message}");
    route("n0", "e0", "n2", 1).unwrap();
}

#[test]
fn routes_print_as_lines_of_a_trace() {
    let rack = racks::line(3, 1).rack(&[(4, true)], "");
    let network = Network::new(&rack).unwrap();
    assert_eq!(
        network.trace_header(),
        "mesh-trace 1\nnodes 3\nendpoint 4 end-to-end\ncable 0 0 1 0\ncable 1 1 2 0\n\
         route 0 4 1 0\nroute 0 4 2 0\nroute 1 4 0 0\nroute 1 4 2 1\nroute 2 4 0 0\n\
         route 2 4 1 0\n"
    );
}

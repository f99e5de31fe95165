//! Links and their tokens.

use super::super::parameters::{GBIT, US};
use super::super::{Link, Parameters, Random, Simulation, closed_loop, route};
use super::{assert_near, between, path, seed};

/// A link is full when its tokens last for a round trip, and else gives what they allow.
#[test]
fn bandwidth_is_that_of_lane_or_tokens() {
    for places in [1.0, 4.0, 16.0, 32.0, 60.0, 64.0, 128.0] {
        for hops in [1, 3] {
            let default = Parameters::default();
            let p = Parameters {
                link_buffer: places * default.packet,
                ..default
            };
            let mut simulation = Simulation::new();
            let links: Vec<Link> = (0..hops)
                .map(|node| Link::new(&mut simulation, &p, node, 1, p.packet))
                .collect();
            let way = path(&route(&links));
            let measured = closed_loop(&mut simulation, 600, 5000, |_| way.clone());
            let lane = p.lane_rate * GBIT / p.packet;
            // A token is away for a hop, until the packet is on the next link, and a hop back.
            let own = 1.0 / lane;
            let next = if hops > 1 { own } else { 0.0 };
            let trip = own + (p.hop * US - own) * 2.0 + next;
            let expected = lane.min(places / trip);
            assert_near(measured.rate, expected, 4.0);
        }
    }
}

#[test]
fn lanes_add_up() {
    let p = Parameters::default();
    for lanes in 1..=8 {
        let mut simulation = Simulation::new();
        let link = Link::new(&mut simulation, &p, 0, lanes, p.burst);
        let way = path(&route(&[link]));
        let measured = closed_loop(&mut simulation, 200, 5000, |_| way.clone());
        let expected = f64::from(lanes) * p.lane_rate * GBIT;
        assert_near(measured.rate * p.burst, expected, 1.0);
    }
}

/// A receiver that is slow slows the sender down, and nothing is lost on the way.
#[test]
fn tokens_carry_back_pressure() {
    let mut random = Random::new(seed());
    for _ in 0..20 {
        let p = Parameters::default();
        let mut simulation = Simulation::new();
        let hops = between(&mut random, 1, 6);
        let links: Vec<Link> = (0..hops)
            .map(|node| Link::new(&mut simulation, &p, node, 1, p.burst))
            .collect();
        let slow = simulation.station("receiver", hops, 1);
        let time = super::micros(between(&mut random, 1, 10) as f64);
        let mut steps = route(&links);
        // The receiver keeps the last place until it has taken the packet.
        let last = steps.pop().expect("a token of the last link");
        steps.extend([super::Step::Serve(slow, time), last]);
        let way = path(&steps);
        let measured = closed_loop(&mut simulation, 100, 2000, |_| way.clone());
        let lane = p.lane_rate * GBIT / p.burst;
        let receiver = 1.0 / time.seconds();
        assert!(measured.rate <= lane.min(receiver) * 1.01);
        assert_near(measured.rate, lane.min(receiver), 25.0);
        let sent = simulation.stations()[0].served();
        assert_eq!(sent, simulation.at(slow).served());
        assert_eq!(simulation.running(), 0);
    }
}

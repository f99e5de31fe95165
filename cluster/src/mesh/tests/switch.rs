//! A switch by itself, event by event: what races between tasks seldom show.

use std::sync::Arc;

use bytes::Bytes;

use super::racks;
use crate::mesh::Network;
use crate::mesh::error::LinkError;
use crate::mesh::frame::{Packet, Report};
use crate::mesh::port::{Batch, Position};
use crate::mesh::switch::{Sent, Switch};

const LEFT: usize = 0;
const RIGHT: usize = 1;

/// Node n1 of a line of three, connected on both sides.
fn middle() -> Switch {
    let rack = racks::line(3, 1).rack(&[(0, false)], "[mesh]\nlink_packets = 8");
    let network = Arc::new(Network::new(&rack).unwrap());
    let mut switch = Switch::new(network, 1, 5);
    connect(&mut switch, LEFT, 100);
    connect(&mut switch, RIGHT, 200);
    switch
}

/// A neighbour that knows nothing connects.
fn connect(switch: &mut Switch, port: usize, session: u64) {
    let peer = Position {
        session,
        peer_session: 0,
        report: Report::default(),
        capacity: 8,
    };
    switch.ports[port].disconnect();
    let told = switch.ports[port].position();
    switch.connect(port, &peer, &told, false).unwrap();
}

/// Packet number `sequence` of the link from n0, for n2.
fn arrive(
    switch: &mut Switch,
    connection: u64,
    sequence: u32,
    generation: u32,
) -> Result<(), LinkError> {
    let packet = Packet {
        source: 0,
        destination: 2,
        endpoint: 0,
        credit: 0,
        generation,
        payload: vec![sequence as u8].into(),
    };
    let mut packets = vec![(sequence, packet)];
    switch.arrived(LEFT, connection, &mut packets, Report::default())
}

/// The packets that go out to n2.
fn forwarded(switch: &mut Switch) -> Vec<u8> {
    let mut batch = Batch::default();
    switch.fill(RIGHT, &mut batch);
    let frames = batch.headers.iter().zip(&batch.payloads);
    let packets = frames.filter(|(header, _)| header[0] == 1);
    packets.map(|(_, payload)| payload[0]).collect()
}

#[test]
fn what_an_earlier_connection_brings_does_not_count() {
    let mut switch = middle();
    let old = switch.ports[LEFT].connection;
    arrive(&mut switch, old, 1, 1).unwrap();
    connect(&mut switch, LEFT, 100);
    let outcome = arrive(&mut switch, old, 1, 1);
    assert!(matches!(outcome, Err(LinkError::Replaced)));
    let new = switch.ports[LEFT].connection;
    arrive(&mut switch, new, 1, 1).unwrap();
    assert_eq!(forwarded(&mut switch), [1, 1]);
}

/// Packets of a generation of which some were lost don't pass, even when the link is back; those of
/// the next one do.
#[test]
fn a_generation_with_a_gap_does_not_pass() {
    let mut switch = middle();
    let left = switch.ports[LEFT].connection;
    arrive(&mut switch, left, 1, 1).unwrap();
    assert_eq!(forwarded(&mut switch), [1]);
    connect(&mut switch, RIGHT, 201);
    arrive(&mut switch, left, 2, 1).unwrap();
    arrive(&mut switch, left, 3, 2).unwrap();
    arrive(&mut switch, left, 4, 2).unwrap();
    assert_eq!(forwarded(&mut switch), [3, 4]);
    assert_eq!(switch.ports[LEFT].counts.lost, 1);
    // While it is down for good, the same holds for all that comes.
    switch.ports[RIGHT].disconnect();
    switch.give_up(RIGHT, false);
    arrive(&mut switch, left, 5, 3).unwrap();
    connect(&mut switch, RIGHT, 201);
    arrive(&mut switch, left, 6, 3).unwrap();
    arrive(&mut switch, left, 7, 4).unwrap();
    assert_eq!(forwarded(&mut switch), [7]);
}

/// Packets of an earlier session that still wait here hold tokens of the new one.
#[test]
fn what_waits_holds_its_places_over_a_restart_of_the_neighbour() {
    let mut switch = middle();
    let old = switch.ports[LEFT].connection;
    // All the tokens of the link to n2, then some that wait.
    for sequence in 1..=11 {
        arrive(&mut switch, old, sequence, 1).unwrap();
    }
    connect(&mut switch, LEFT, 101);
    let position = switch.ports[LEFT].position();
    assert_eq!((position.report.received, position.report.buffered), (3, 3));
    let new = switch.ports[LEFT].connection;
    for sequence in 4..=8 {
        arrive(&mut switch, new, sequence, 2).unwrap();
    }
    let outcome = arrive(&mut switch, new, 9, 2);
    assert!(
        matches!(outcome, Err(LinkError::Frame(_))),
        "a ninth packet in a buffer of 8"
    );
}

/// A node that sends to n1 by an endpoint with end-to-end flow control, window 4, over a link with
/// one token that is not connected yet.
fn sender() -> Switch {
    let bounds = "[mesh]\nlink_packets = 1\nwindow_packets = 4";
    let rack = racks::line(2, 1).rack(&[(0, true)], bounds);
    Switch::new(Arc::new(Network::new(&rack).unwrap()), 0, 5)
}

fn send(switch: &mut Switch) -> Sent {
    switch.send(0, 1, Bytes::new()).unwrap()
}

#[test]
fn who_gives_up_waiting_gives_its_place_at_the_destination_back() {
    let mut switch = sender();
    assert!(matches!(send(&mut switch), Sent::Done));
    let mut waiting: Vec<Sent> = (0..4).map(|_| send(&mut switch)).collect();
    let flow = |switch: &Switch| {
        let flow = &switch.endpoints[0].flows[1];
        (flow.outstanding, flow.waiting.len())
    };
    // Four places are taken: one packet has the token, three wait for it; the last for a place.
    assert_eq!(flow(&switch), (4, 1));
    let Sent::Waits(id, _) = waiting.remove(0) else {
        panic!("a packet without a token");
    };
    switch.cancel(0, 1, id);
    assert_eq!(flow(&switch), (4, 0));
}

#[test]
fn credit_of_a_generation_that_is_over_does_not_count() {
    let mut switch = sender();
    connect(&mut switch, LEFT, 100);
    assert!(matches!(send(&mut switch), Sent::Done));
    let old = switch.endpoints[0].flows[1].generation;
    connect(&mut switch, LEFT, 101);
    // Told once that something was lost.
    assert!(switch.send(0, 1, Bytes::new()).is_err());
    assert!(matches!(send(&mut switch), Sent::Done));
    let connection = switch.ports[LEFT].connection;
    let mut credit = |sequence, generation| {
        let packet = Packet {
            source: 1,
            destination: 0,
            endpoint: 0,
            credit: 1,
            generation,
            payload: Bytes::new(),
        };
        let mut packets = vec![(sequence, packet)];
        switch
            .arrived(LEFT, connection, &mut packets, Report::default())
            .unwrap();
        switch.endpoints[0].flows[1].outstanding
    };
    assert_eq!(credit(1, old), 1);
    assert_eq!(credit(2, old.wrapping_add(1)), 0);
}

/// The other side of it: packets of an earlier session that wait at the neighbour count as sent.
#[test]
fn what_waits_at_the_neighbour_holds_tokens() {
    let mut switch = middle();
    switch.ports[RIGHT].disconnect();
    let told = switch.ports[RIGHT].position();
    let waiting = Report {
        received: 3,
        buffered: 3,
    };
    let peer = Position {
        session: 201,
        peer_session: 0,
        report: waiting,
        capacity: 8,
    };
    switch.connect(RIGHT, &peer, &told, false).unwrap();
    let left = switch.ports[LEFT].connection;
    for sequence in 1..=8 {
        arrive(&mut switch, left, sequence, 1).unwrap();
    }
    assert_eq!(forwarded(&mut switch), [1, 2, 3, 4, 5]);
    // All are there, and three have gone on.
    let report = Report {
        received: 8,
        buffered: 5,
    };
    let right = switch.ports[RIGHT].connection;
    switch
        .arrived(RIGHT, right, &mut Vec::new(), report)
        .unwrap();
    assert_eq!(forwarded(&mut switch), [6, 7, 8]);
}

//! A node's switch: moves packets from buffers to ports and endpoints. Nothing here waits or does
//! input and output: every event moves what it can, under one lock.
//!
//! An output is a port, or an endpoint of this node. What wants an output that has no place takes
//! its turn: each port that received, and each endpoint that sends, one packet at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::error::{LinkError, MeshError};
use super::frame::{Packet, Report};
use super::local::{Local, Waiter, Waiting};
use super::network::Network;
use super::outage::Outages;
use super::port::{Port, State};
use super::topology::reverse;

/// Who waits for an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The first packet of a port's buffer.
    Port(usize),
    /// What an endpoint of this node sends.
    Endpoint(usize),
}

pub(crate) struct Switch {
    pub network: Arc<Network>,
    pub node: usize,
    /// In the order of their numbers.
    pub ports: Vec<Port>,
    pub endpoints: Vec<Local>,
    /// By output: the ports, then the endpoints.
    pub turns: Vec<VecDeque<Turn>>,
    /// The output of each (endpoint, destination).
    outputs: Vec<u16>,
    pub outages: Outages,
    pub is_closed: bool,
    next_id: u64,
}

/// How far a packet has come that was to be sent.
pub(crate) enum Sent {
    Done,
    /// It waits, under this number.
    Waits(u64, oneshot::Receiver<Result<(), MeshError>>),
}

impl Switch {
    /// The switch of `node`; `session` is greater than that of any earlier one of this node.
    pub fn new(network: Arc<Network>, node: usize, session: u64) -> Self {
        let settings = &network.settings;
        let leaving = network.topology.leaving(node);
        let nodes = network.topology.nodes;
        let count = leaving.len() + network.endpoints.len();
        let mut outputs = Vec::new();
        for slot in 0..network.endpoints.len() {
            for destination in 0..nodes {
                let channel = network.routes.next(node, slot, destination);
                let port = channel.and_then(|one| leaving.iter().position(|&other| other == one));
                outputs.push(port.unwrap_or(leaving.len() + slot) as u16);
            }
        }
        let endpoints = (0..network.endpoints.len()).map(|slot| {
            let is_end_to_end = network.is_end_to_end(slot);
            let places = match is_end_to_end {
                true => settings.window_packets as usize * nodes,
                false => settings.endpoint_packets as usize,
            };
            let mut endpoint = Local::new(is_end_to_end, places, nodes, count);
            for flow in &mut endpoint.flows {
                flow.generation = mix(session);
            }
            endpoint
        });
        let ports = leaving
            .iter()
            .map(|&channel| Port::new(channel, settings.link_packets, session));
        Self {
            ports: ports.collect(),
            endpoints: endpoints.collect(),
            turns: (0..count).map(|_| VecDeque::new()).collect(),
            outputs,
            outages: Outages::new(session),
            is_closed: false,
            next_id: 0,
            node,
            network,
        }
    }

    /// Nothing is sent any more; whoever waits gets an error.
    pub fn close(&mut self) {
        self.is_closed = true;
        for endpoint in &mut self.endpoints {
            endpoint.waiting.iter_mut().for_each(VecDeque::clear);
            for flow in &mut endpoint.flows {
                flow.waiting.clear();
            }
            endpoint.wake.notify_one();
        }
    }

    pub fn output_of(&self, slot: usize, destination: usize) -> usize {
        usize::from(self.outputs[slot * self.network.topology.nodes + destination])
    }

    /// Sends a packet, or has it wait.
    pub fn send(
        &mut self,
        slot: usize,
        destination: usize,
        payload: Bytes,
    ) -> Result<Sent, MeshError> {
        if self.is_closed {
            return Err(MeshError::Closed);
        }
        let flow = &mut self.endpoints[slot].flows[destination];
        if let Some(failed) = flow.failed.take() {
            return Err(failed);
        }
        if let Some(channel) = flow.broken {
            return Err(self.unreachable(destination, channel));
        }
        flow.is_used = true;
        let packet = Packet {
            source: self.node as u16,
            destination: destination as u16,
            endpoint: slot as u16,
            credit: 0,
            generation: flow.generation,
            payload,
        };
        let window = self.network.settings.window_packets;
        let endpoint = &mut self.endpoints[slot];
        let flow = &mut endpoint.flows[destination];
        if endpoint.is_end_to_end {
            if flow.outstanding >= window || !flow.waiting.is_empty() {
                let (waiter, sent) = wait(&mut self.next_id, packet);
                flow.waiting.push_back(waiter);
                return Ok(sent);
            }
            flow.outstanding += 1;
        }
        let output = self.output_of(slot, destination);
        if self.turns[output].is_empty() && self.has_place(output) {
            self.put(output, packet);
            return Ok(Sent::Done);
        }
        let (waiter, sent) = wait(&mut self.next_id, packet);
        self.take_turn(slot, output, Waiting::Send(waiter));
        Ok(sent)
    }

    /// Whoever waited for packet `id` to be sent does not any more: if it waits, it is not sent.
    pub fn cancel(&mut self, slot: usize, destination: usize, id: u64) {
        let output = self.output_of(slot, destination);
        let endpoint = &mut self.endpoints[slot];
        let flow = &mut endpoint.flows[destination];
        if let Some(at) = flow.waiting.iter().position(|waiter| waiter.id == id) {
            flow.waiting.remove(at);
            return;
        }
        let waiting = &mut endpoint.waiting[output];
        let is_it = |waiting: &Waiting| matches!(waiting, Waiting::Send(one) if one.id == id);
        if let Some(at) = waiting.iter().position(is_it) {
            waiting.remove(at);
            if endpoint.is_end_to_end {
                self.credited(slot, destination, 1);
            }
        }
    }

    /// What comes next for the receiver of an endpoint: who sent it, and what; nothing stands for
    /// packets that may be lost.
    pub fn receive(&mut self, slot: usize) -> Option<(usize, Option<Bytes>)> {
        let endpoint = &mut self.endpoints[slot];
        let (source, payload) = endpoint.take()?;
        let window = self.network.settings.window_packets;
        let inflow = &mut endpoint.inflows[source];
        if u32::from(inflow.owed) >= (window / 4).max(1) {
            if source == self.node {
                let owed = std::mem::take(&mut inflow.owed);
                self.credited(slot, source, owed);
            } else if !std::mem::replace(&mut inflow.is_credit_waiting, true) {
                let output = self.output_of(slot, source);
                self.take_turn(slot, output, Waiting::Credit(source));
                self.grant(output);
            }
        }
        self.grant(self.ports.len() + slot);
        Some((source, payload))
    }

    /// Packets of a connection came in, with how far the neighbour is in receiving.
    ///
    /// # Errors
    /// The connection was replaced, or what came in can't be; nothing after that counts.
    pub fn arrived(
        &mut self,
        port: usize,
        connection: u64,
        packets: &mut Vec<(u32, Packet)>,
        report: Report,
    ) -> Result<(), LinkError> {
        if self.ports[port].connection != connection {
            return Err(LinkError::Replaced);
        }
        self.ports[port].is_heard = true;
        let was_empty = self.ports[port].buffer.is_empty();
        let mut outcome = Ok(());
        for (sequence, packet) in packets.drain(..) {
            outcome = self
                .check(port, &packet)
                .and_then(|()| self.ports[port].arrive(sequence, packet));
            if outcome.is_err() {
                break;
            }
        }
        if was_empty {
            self.advance(port);
        }
        outcome?;
        self.ports[port].reported(report)?;
        self.grant(port);
        Ok(())
    }

    /// Whether a packet may come in at a port: the neighbour's route leads here. So packets take
    /// only routes that were checked for deadlock.
    fn check(&self, port: usize, packet: &Packet) -> Result<(), LinkError> {
        let nodes = self.network.topology.nodes;
        let (slot, destination) = (packet.endpoint.into(), packet.destination.into());
        let source = usize::from(packet.source);
        let is_known = source < nodes && destination < nodes && slot < self.endpoints.len();
        let channel = reverse(self.ports[port].channel);
        let neighbour = self.network.topology.channels[channel].from.0;
        let route = || self.network.routes.next(neighbour, slot, destination);
        match is_known && source != self.node && route() == Some(channel) {
            true => Ok(()),
            false => Err(LinkError::Frame(format!(
                "a packet of endpoint {slot} from node {source} to node {destination}, which has \
                 no way by here"
            ))),
        }
    }

    fn has_place(&self, output: usize) -> bool {
        match output.checked_sub(self.ports.len()) {
            None => self.ports[output].has_token() && self.ports[output].state != State::Gone,
            Some(slot) => self.endpoints[slot].held < self.endpoints[slot].places,
        }
    }

    fn put(&mut self, output: usize, packet: Packet) {
        match output.checked_sub(self.ports.len()) {
            None => {
                self.outages.saw(self.node, output, &packet);
                self.ports[output].send(packet);
            }
            Some(slot) => self.endpoints[slot].put(packet),
        }
    }

    /// Has an endpoint of this node wait for an output.
    fn take_turn(&mut self, slot: usize, output: usize, waiting: Waiting) {
        self.endpoints[slot].waiting[output].push_back(waiting);
        let turn = Turn::Endpoint(slot);
        if !self.turns[output].contains(&turn) {
            self.turns[output].push_back(turn);
        }
    }

    /// Moves what it can from the buffer of a port that has no turn.
    pub fn advance(&mut self, port: usize) {
        while let Some(packet) = self.ports[port].buffer.front() {
            let slot = usize::from(packet.endpoint);
            let destination = usize::from(packet.destination);
            if packet.credit > 0 && destination == self.node {
                let (source, credit) = (usize::from(packet.source), packet.credit);
                let is_current = packet.generation == self.endpoints[slot].flows[source].generation;
                self.ports[port].take();
                if is_current {
                    self.credited(slot, source, credit);
                }
                continue;
            }
            let output = self.output_of(slot, destination);
            let is_gone = output < self.ports.len() && self.ports[output].state == State::Gone;
            if is_gone || self.outages.is_stale(output, packet) {
                self.outages.discard(output, packet);
                self.ports[port].counts.lost += 1;
                self.ports[port].take();
                continue;
            }
            if !self.turns[output].is_empty() || !self.has_place(output) {
                self.turns[output].push_back(Turn::Port(port));
                return;
            }
            if let Some(packet) = self.ports[port].take() {
                self.put(output, packet);
            }
        }
    }

    /// Fills the places of an output in turn.
    pub fn grant(&mut self, output: usize) {
        while self.has_place(output)
            && let Some(turn) = self.turns[output].pop_front()
        {
            match turn {
                Turn::Port(port) => {
                    if let Some(packet) = self.ports[port].take() {
                        self.put(output, packet);
                    }
                    self.advance(port);
                }
                Turn::Endpoint(slot) => self.serve(slot, output),
            }
        }
    }

    /// Sends one packet of an endpoint to an output that has a place.
    fn serve(&mut self, slot: usize, output: usize) {
        let endpoint = &mut self.endpoints[slot];
        let next = endpoint.waiting[output].pop_front();
        if !endpoint.waiting[output].is_empty() {
            self.turns[output].push_back(Turn::Endpoint(slot));
        }
        match next {
            None => {}
            Some(Waiting::Send(waiter)) => {
                self.put(output, waiter.packet);
                // Whoever does not wait any more has it sent nevertheless: it was its turn.
                let _ = waiter.done.send(Ok(()));
            }
            Some(Waiting::Credit(to)) => {
                let inflow = &mut endpoint.inflows[to];
                inflow.is_credit_waiting = false;
                let credit = std::mem::take(&mut inflow.owed);
                let Some(generation) = inflow.generation.filter(|_| credit > 0) else {
                    return;
                };
                let packet = Packet {
                    source: self.node as u16,
                    destination: to as u16,
                    endpoint: slot as u16,
                    credit,
                    generation,
                    payload: Bytes::new(),
                };
                self.put(output, packet);
            }
        }
    }

    /// Places at a destination are free again.
    fn credited(&mut self, slot: usize, destination: usize, credit: u16) {
        let window = self.network.settings.window_packets;
        let output = self.output_of(slot, destination);
        let flow = &mut self.endpoints[slot].flows[destination];
        flow.outstanding = flow.outstanding.saturating_sub(credit.into());
        loop {
            let flow = &mut self.endpoints[slot].flows[destination];
            if flow.outstanding >= window {
                break;
            }
            let Some(waiter) = flow.waiting.pop_front() else {
                break;
            };
            flow.outstanding += 1;
            self.take_turn(slot, output, Waiting::Send(waiter));
        }
        self.grant(output);
    }
}

fn wait(next_id: &mut u64, packet: Packet) -> (Waiter, Sent) {
    *next_id += 1;
    let id = *next_id;
    let (done, waiting) = oneshot::channel();
    (Waiter { id, packet, done }, Sent::Waits(id, waiting))
}

/// A number that differs a lot where sessions differ a little (the finaliser of SplitMix64).
fn mix(session: u64) -> u32 {
    let mixed = (session ^ session >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31) as u32
}

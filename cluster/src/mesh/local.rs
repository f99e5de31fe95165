//! What a node keeps for one of its endpoints: the FIFO of what was received, the places of
//! end-to-end flow control, and who waits to send.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

use super::error::MeshError;
use super::frame::Packet;

/// A packet that waits for a place.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub id: u64,
    pub packet: Packet,
    /// Who waits for it.
    pub done: oneshot::Sender<Result<(), MeshError>>,
}

/// What waits at an output for the turn of an endpoint.
#[derive(Debug)]
pub(crate) enum Waiting {
    Send(Waiter),
    /// Credit for a node. How much is known when it goes.
    Credit(usize),
}

/// What this node sends to another one.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub generation: u32,
    /// Packets that are under way or not yet taken, with end-to-end flow control.
    pub outstanding: u32,
    /// What waits for a place at the destination, in order.
    pub waiting: VecDeque<Waiter>,
    /// A link on the way, there or back, that is given up.
    pub broken: Option<usize>,
    /// Whether anything was sent in this generation.
    pub is_used: bool,
    /// What the next one to send is told: packets of an earlier generation may be lost.
    pub failed: Option<MeshError>,
}

/// What this node receives from another one.
#[derive(Debug, Default)]
pub(crate) struct Inflow {
    /// That of the last packet.
    pub generation: Option<u32>,
    /// Packets that were taken and not yet credited.
    pub owed: u16,
    pub is_credit_waiting: bool,
    /// Whether the last thing in the FIFO of this source is a notice that packets may be lost.
    pub is_interrupted: bool,
}

/// What the receiver takes from the FIFO.
#[derive(Debug)]
pub(crate) enum Item {
    Packet(Packet),
    /// Packets of this node may be lost before the next one.
    Interrupted(usize),
}

/// An endpoint of this node. Nodes and outputs are numbered from 0.
#[derive(Debug)]
pub(crate) struct Local {
    pub is_end_to_end: bool,
    /// Packets for the receiver, and notices about lost ones.
    pub fifo: VecDeque<Item>,
    /// Packets in it.
    pub held: usize,
    /// The places in it.
    pub places: usize,
    /// Wakes a receiver.
    pub wake: Arc<Notify>,
    /// By destination.
    pub flows: Vec<Flow>,
    /// By source.
    pub inflows: Vec<Inflow>,
    /// By output.
    pub waiting: Vec<VecDeque<Waiting>>,
}

impl Local {
    pub fn new(is_end_to_end: bool, places: usize, nodes: usize, outputs: usize) -> Self {
        let mut flows = Vec::new();
        flows.resize_with(nodes, Flow::default);
        let mut inflows = Vec::new();
        inflows.resize_with(nodes, Inflow::default);
        Self {
            is_end_to_end,
            fifo: VecDeque::new(),
            held: 0,
            places,
            wake: Arc::new(Notify::new()),
            flows,
            inflows,
            waiting: (0..outputs).map(|_| VecDeque::new()).collect(),
        }
    }

    /// A packet for the receiver; there must be a place.
    pub fn put(&mut self, packet: Packet) {
        let source = usize::from(packet.source);
        let inflow = &mut self.inflows[source];
        let before = inflow.generation.replace(packet.generation);
        if before.is_some_and(|before| before != packet.generation) {
            // The places that the old ones took are not known to the sender any more.
            inflow.owed = 0;
            self.interrupt(source);
        }
        // A notice in the FIFO stands for what was lost before this packet, not after it.
        self.inflows[source].is_interrupted = false;
        self.fifo.push_back(Item::Packet(packet));
        self.held += 1;
        self.wake.notify_one();
    }

    /// Tells the receiver that packets of `source` may be lost.
    pub fn interrupt(&mut self, source: usize) {
        if !std::mem::replace(&mut self.inflows[source].is_interrupted, true) {
            self.fifo.push_back(Item::Interrupted(source));
            self.wake.notify_one();
        }
    }

    /// What comes next for the receiver; of packets, the source and the payload.
    pub fn take(&mut self) -> Option<(usize, Option<Bytes>)> {
        let item = self.fifo.pop_front()?;
        if !self.fifo.is_empty() {
            // One wake may have stood for both.
            self.wake.notify_one();
        }
        match item {
            Item::Interrupted(source) => {
                self.inflows[source].is_interrupted = false;
                Some((source, None))
            }
            Item::Packet(packet) => {
                self.held -= 1;
                let source = usize::from(packet.source);
                let inflow = &mut self.inflows[source];
                if self.is_end_to_end && inflow.generation == Some(packet.generation) {
                    inflow.owed = inflow.owed.saturating_add(1);
                }
                Some((source, Some(packet.payload)))
            }
        }
    }
}

//! Links that were given up: what is lost with them, and who is told.
//!
//! A link that breaks is connected anew and goes on where it stopped: nothing is lost. It is given
//! up when that fails until the deadline, or when the neighbour has restarted. The node before the
//! link then loses what waits for it, and tells all nodes with a notice that passes from neighbour
//! to neighbour. A sender whose route has that link gets an error and starts a new *generation*:
//! packets of an old one may have a gap before them, so the node before the link lets none of them
//! pass any more, even when the link is back. Where the generation changes, the receiver is told.
//!
//! A node that ends as it should says so of its own links, and nobody waits for it until the deadline.

use std::collections::HashMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::error::MeshError;
use super::frame::Packet;
use super::local::Waiting;
use super::port::{Batch, State};
use super::switch::{Switch, Turn};
use super::topology::reverse;

/// What is known of a channel. The node before it numbers the versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    version: u64,
    /// How often it was given up.
    breaks: u32,
    is_gone: bool,
    /// Whether that was because the neighbour had restarted.
    is_restart: bool,
    /// Whether that was because the node before it has ended.
    is_end: bool,
}

/// Bytes of a mark in a notice.
pub(crate) const MARK: usize = 17;

/// A flow that passes a port: the generation of its last packet, and whether that lost any.
#[derive(Debug, Clone, Copy)]
struct Passing {
    generation: u32,
    is_stale: bool,
}

/// (output, endpoint, source, destination)
type FlowKey = (u16, u16, u16, u16);

pub(crate) struct Outages {
    /// Greater than all versions of earlier sessions of this node.
    version: u64,
    marks: HashMap<usize, Mark>,
    passing: HashMap<FlowKey, Passing>,
}

fn key(output: usize, packet: &Packet) -> FlowKey {
    let Packet {
        endpoint,
        source,
        destination,
        ..
    } = *packet;
    (output as u16, endpoint, source, destination)
}

impl Outages {
    pub fn new(version: u64) -> Self {
        Self {
            version,
            marks: HashMap::new(),
            passing: HashMap::new(),
        }
    }

    /// A packet passes `output`, a port of `node`.
    pub fn saw(&mut self, node: usize, output: usize, packet: &Packet) {
        if usize::from(packet.source) != node && packet.credit == 0 {
            let passing = Passing {
                generation: packet.generation,
                is_stale: false,
            };
            self.passing.insert(key(output, packet), passing);
        }
    }

    /// Whether packets of the same generation were lost at this output.
    pub fn is_stale(&self, output: usize, packet: &Packet) -> bool {
        let passing = self.passing.get(&key(output, packet));
        packet.credit == 0
            && passing.is_some_and(|one| one.is_stale && one.generation == packet.generation)
    }

    /// A packet is lost at this output.
    pub fn discard(&mut self, output: usize, packet: &Packet) {
        if packet.credit == 0 {
            let passing = Passing {
                generation: packet.generation,
                is_stale: true,
            };
            self.passing.insert(key(output, packet), passing);
        }
    }

    fn all_are_stale(&mut self, output: usize) {
        for (key, passing) in &mut self.passing {
            passing.is_stale |= usize::from(key.0) == output;
        }
    }

    fn is_gone(&self, channel: usize) -> bool {
        self.marks.get(&channel).is_some_and(|mark| mark.is_gone)
    }

    /// What is known of channels.
    fn notice(&self, channels: impl Iterator<Item = usize>) -> Bytes {
        let mut bytes = BytesMut::new();
        for channel in channels {
            let mark = self.marks.get(&channel).copied().unwrap_or_default();
            bytes.put_u32_le(channel as u32);
            bytes.put_u64_le(mark.version);
            bytes.put_u32_le(mark.breaks);
            let flags = [mark.is_gone, mark.is_restart, mark.is_end];
            let flags = flags.into_iter().zip(0..);
            bytes.put_u8(flags.map(|(flag, bit)| u8::from(flag) << bit).sum());
        }
        bytes.freeze()
    }
}

impl Switch {
    /// Gives up what is under way on a port's link: the neighbour has restarted, or can't be
    /// connected to.
    pub fn give_up(&mut self, port: usize, is_restart: bool) {
        let channel = self.ports[port].channel;
        let mark = self.outages.marks.get(&channel).copied();
        let mark = mark.unwrap_or_default();
        self.ports[port].state = State::Gone;
        self.ports[port].forget();
        self.outages.all_are_stale(port);
        self.mark(
            channel,
            Mark {
                breaks: mark.breaks + 1,
                is_gone: true,
                is_restart,
                is_end: false,
                ..mark
            },
        );
        // Whoever sends from here has an error now; what remains is from elsewhere, or credit.
        for endpoint in &mut self.endpoints {
            for waiting in endpoint.waiting[port].drain(..) {
                if let Waiting::Credit(to) = waiting {
                    endpoint.inflows[to].is_credit_waiting = false;
                }
            }
        }
        let turns = std::mem::take(&mut self.turns[port]);
        for turn in turns {
            if let Turn::Port(from) = turn {
                self.advance(from);
            }
        }
    }

    /// A port's link is there.
    pub fn is_back(&mut self, port: usize) {
        let channel = self.ports[port].channel;
        // What the neighbour may not have heard while it was away.
        self.ports[port].tell_of(self.outages.marks.keys().copied());
        if let Some(mark) = self.outages.marks.get(&channel)
            && mark.is_gone
        {
            let mark = Mark {
                is_gone: false,
                ..*mark
            };
            self.mark(channel, mark);
        }
        self.grant(port);
    }

    /// This node ends: what comes from it by its links is over, which its neighbours and all behind them
    /// are told.
    pub fn end(&mut self) {
        for port in 0..self.ports.len() {
            let channel = self.ports[port].channel;
            let mark = self.outages.marks.get(&channel).copied();
            let mark = mark.unwrap_or_default();
            self.mark(
                channel,
                Mark {
                    breaks: mark.breaks + 1,
                    is_gone: true,
                    is_end: true,
                    ..mark
                },
            );
        }
    }

    /// Fills `batch` with what is to be written to a port's connection.
    pub fn fill(&mut self, port: usize, batch: &mut Batch) {
        let news = std::mem::take(&mut self.ports[port].news);
        let notice = (!news.is_empty()).then(|| self.outages.notice(news.into_iter()));
        self.ports[port].fill(batch, notice);
    }

    /// Says this of a channel that leaves here, in a version of its own.
    fn mark(&mut self, channel: usize, mark: Mark) {
        self.outages.version += 1;
        let version = self.outages.version;
        self.learn(channel, Mark { version, ..mark });
    }

    /// A notice came in.
    ///
    /// # Errors
    /// What it says is wrong with it.
    pub fn noticed(&mut self, mut notice: Bytes) -> Result<(), String> {
        let channels = self.network.topology.channels.len();
        if !notice.len().is_multiple_of(MARK) || notice.len() / MARK > channels {
            return Err(format!("a notice of {} bytes", notice.len()));
        }
        while notice.has_remaining() {
            let channel = notice.get_u32_le() as usize;
            let (version, breaks) = (notice.get_u64_le(), notice.get_u32_le());
            let flags = notice.get_u8();
            if channel >= channels {
                return Err(format!(
                    "a notice of channel {channel}; there are {channels}"
                ));
            }
            let mark = Mark {
                version,
                breaks,
                is_gone: flags & 1 != 0,
                is_restart: flags & 2 != 0,
                is_end: flags & 4 != 0,
            };
            let known = self.outages.marks.get(&channel).copied();
            let known = known.unwrap_or_default();
            let is_ours = self.network.topology.channels[channel].from.0 == self.node;
            if !is_ours && version > known.version {
                self.learn(channel, mark);
            } else if is_ours && mark != known && version >= known.version {
                // From before this node restarted. What holds now must be newer.
                self.outages.version = self.outages.version.max(version);
                self.mark(channel, known);
            }
        }
        Ok(())
    }

    /// Takes over what is newer than what was known, tells the neighbours and all whose flows it
    /// breaks.
    fn learn(&mut self, channel: usize, mark: Mark) {
        let before = self.outages.marks.insert(channel, mark).unwrap_or_default();
        for port in self.ports.iter_mut().filter(|port| port.state == State::Up) {
            port.tell_of([channel]);
        }
        if before.breaks == mark.breaks && before.is_gone == mark.is_gone {
            return;
        }
        for slot in 0..self.endpoints.len() {
            for peer in 0..self.network.topology.nodes {
                let channels = self.channels_between(slot, peer);
                if channels.contains(&channel) {
                    let broken = channels.into_iter().find(|&one| self.outages.is_gone(one));
                    self.endpoints[slot].flows[peer].broken = broken;
                    if before.breaks != mark.breaks {
                        self.interrupt(slot, peer, channel);
                    }
                }
            }
        }
    }

    /// The links that packets to a node take, and those that come from it.
    fn channels_between(&self, slot: usize, peer: usize) -> Vec<usize> {
        let (topology, routes) = (&self.network.topology, &self.network.routes);
        let there = routes.path(topology, self.node, slot, peer);
        let back = routes.path(topology, peer, slot, self.node);
        // Routes were checked when the rack file was read.
        let mut channels = there.unwrap_or_default();
        channels.extend(back.unwrap_or_default());
        channels
    }

    /// Packets to or from `peer` may be lost: those who wait to send get an error, the receiver is
    /// told, and what is sent from now on is of a new generation.
    fn interrupt(&mut self, slot: usize, peer: usize, channel: usize) {
        let error = self.unreachable(peer, channel);
        let output = self.output_of(slot, peer);
        let endpoint = &mut self.endpoints[slot];
        let flow = &mut endpoint.flows[peer];
        flow.generation = flow.generation.wrapping_add(1);
        flow.outstanding = 0;
        let mut waiters: Vec<_> = flow.waiting.drain(..).collect();
        for waiting in std::mem::take(&mut endpoint.waiting[output]) {
            match waiting {
                Waiting::Send(waiter) if usize::from(waiter.packet.destination) == peer => {
                    waiters.push(waiter);
                }
                other => endpoint.waiting[output].push_back(other),
            }
        }
        for waiter in waiters {
            let _ = waiter.done.send(Err(error.clone()));
        }
        let flow = &mut endpoint.flows[peer];
        let was_used = std::mem::take(&mut flow.is_used);
        if was_used {
            flow.failed = Some(error);
        }
        if was_used || endpoint.inflows[peer].generation.is_some() {
            endpoint.interrupt(peer);
        }
    }

    /// The error of a sender to `destination`, whose route has a channel that was given up, or
    /// back.
    pub fn unreachable(&self, destination: usize, channel: usize) -> MeshError {
        let marks = &self.outages.marks;
        let why = match marks.get(&channel).or(marks.get(&reverse(channel))) {
            Some(mark) if mark.is_end => {
                let (before, _) = self.network.topology.channels[channel].from;
                format!("is down: '{}' has ended", self.network.names[before])
            }
            Some(mark) if mark.is_restart => "was interrupted: its far end has restarted".into(),
            _ => "is down for longer than mesh.deadline_ms".into(),
        };
        MeshError::Unreachable {
            node: self.network.names[destination].clone(),
            link: self.network.channel_name(channel),
            why,
        }
    }
}

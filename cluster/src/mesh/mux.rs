//! Many streams over one endpoint: frames of streams in packets, and what is kept for each stream.
//!
//! One task takes all that comes in and never waits; what goes out to a node is sent by a task of
//! that node. So a node that takes nothing holds up nobody else's streams.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use flashmesh_pages::store::NodeId;
use parking_lot::Mutex;
use tokio::io::ReadBuf;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::endpoint::Endpoint;
use super::error::MeshError;
use super::half::{After, BY_OPENER, Dropped, HEADER, KINDS, Key, Kind, Stream, WINDOW, frame};
use super::stream::MeshStream;

/// Streams that a node may have opened here, and answers that wait to be sent to it.
const MOST_STREAMS: usize = 4096;

#[derive(Default)]
struct Peer {
    /// Streams that have something to send, in turn.
    ready: VecDeque<Key>,
    /// Frames of streams that are not there any more.
    last_words: VecDeque<Bytes>,
    wake: Arc<Notify>,
    /// Streams that the peer has opened.
    opened: usize,
    has_sender: bool,
}

#[derive(Default)]
struct State {
    streams: HashMap<Key, Stream>,
    peers: HashMap<usize, Peer>,
    services: HashMap<String, mpsc::Sender<(NodeId, MeshStream)>>,
    next: u32,
    senders: JoinSet<()>,
    is_closed: bool,
}

pub(crate) struct Mux {
    pub endpoint: Endpoint,
    /// The mesh's, whoever opens streams.
    runtime: Handle,
    state: Mutex<State>,
}

impl Mux {
    pub fn new(endpoint: Endpoint, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            runtime,
            state: Mutex::default(),
        })
    }

    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Bytes of data in a packet.
    fn most_data(&self) -> usize {
        let most = self.endpoint.network().settings.packet_bytes as usize;
        (most - HEADER).min(WINDOW / 4)
    }

    pub fn serve(
        &self,
        service: &str,
        incoming: mpsc::Sender<(NodeId, MeshStream)>,
    ) -> Result<(), MeshError> {
        let mut state = self.state.lock();
        if state
            .services
            .get(service)
            .is_some_and(|one| !one.is_closed())
        {
            return Err(MeshError::Taken(format!("service '{service}'")));
        }
        state.services.insert(service.into(), incoming);
        Ok(())
    }

    /// Nobody serves it from now on.
    pub fn stop(&self, service: &str) {
        self.state.lock().services.remove(service);
    }

    pub fn open(
        self: &Arc<Self>,
        peer: usize,
        service: &str,
    ) -> Result<(Key, oneshot::Receiver<Result<(), MeshError>>), MeshError> {
        let most = self.most_data();
        if service.len() > most {
            let bytes = service.len();
            return Err(MeshError::TooLarge { bytes, most });
        }
        let (accepted, waiting) = oneshot::channel();
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(MeshError::Closed);
        }
        let key = loop {
            state.next = state.next.wrapping_add(1);
            let key = Key {
                peer,
                is_opener: true,
                number: state.next,
            };
            if !state.streams.contains_key(&key) {
                break key;
            }
        };
        let first = (Kind::Open, Bytes::copy_from_slice(service.as_bytes()));
        let stream = Stream::new(first, Some(accepted));
        state.streams.insert(key, stream);
        self.ready(&mut state, key);
        Ok((key, waiting))
    }

    /// A stream has something to send.
    fn ready(self: &Arc<Self>, state: &mut State, key: Key) {
        if let Some(stream) = state.streams.get_mut(&key)
            && !std::mem::replace(&mut stream.is_ready, true)
        {
            self.peer(state, key.peer).ready.push_back(key);
        }
    }

    /// What is kept for a node, whose sender is woken.
    fn peer<'a>(self: &Arc<Self>, state: &'a mut State, peer: usize) -> &'a mut Peer {
        let at = state.peers.entry(peer).or_default();
        if !std::mem::replace(&mut at.has_sender, true) {
            let sender = self.clone().send(peer, at.wake.clone());
            state.senders.spawn_on(sender, &self.runtime);
        }
        at.wake.notify_one();
        at
    }

    /// Sends what streams to `peer` have, one frame of each in turn.
    async fn send(self: Arc<Self>, peer: usize, wake: Arc<Notify>) {
        loop {
            let Some(packet) = self.next(peer) else {
                wake.notified().await;
                continue;
            };
            if let Err(error) = self.endpoint.send_to(peer, packet).await {
                self.interrupt(peer, &error, false);
            }
        }
    }

    fn next(&self, peer: usize) -> Option<Bytes> {
        let mut state = self.state.lock();
        let State { streams, peers, .. } = &mut *state;
        let at = peers.get_mut(&peer)?;
        if let Some(frame) = at.last_words.pop_front() {
            return Some(frame);
        }
        while let Some(key) = at.ready.pop_front() {
            let Some(stream) = streams.get_mut(&key) else {
                continue;
            };
            stream.is_ready = false;
            if let Some(frame) = stream.next(key) {
                // Perhaps it has more.
                stream.is_ready = true;
                at.ready.push_back(key);
                return Some(frame);
            }
            if stream.is_over() {
                streams.remove(&key);
                at.opened -= usize::from(!key.is_opener);
            }
        }
        None
    }

    /// Takes what comes in, until the mesh is closed.
    pub async fn receive(self: Arc<Self>) {
        while let Ok((peer, packet)) = self.endpoint.receive_from().await {
            match packet {
                Some(packet) => {
                    if let Err(what) = self.arrived(peer, packet) {
                        let node = &self.endpoint.network().names[peer];
                        log::warn!("mesh: '{node}' sent {what}, which is no frame of a stream");
                    }
                }
                None => {
                    let node = self.endpoint.network().names[peer].clone();
                    self.interrupt(peer, &MeshError::Interrupted { node }, true);
                }
            }
        }
        self.close();
    }

    /// A frame came in. What is wrong with it, if it can't be.
    fn arrived(self: &Arc<Self>, peer: usize, mut packet: Bytes) -> Result<(), &'static str> {
        let kind = *packet
            .first()
            .filter(|_| packet.len() >= HEADER)
            .ok_or("too little")?;
        let kinds = KINDS.iter().find(|&&one| one as u8 == kind & !BY_OPENER);
        let is_by_opener = kind & BY_OPENER != 0;
        let kind = *kinds.ok_or("an unknown kind")?;
        packet.advance(1);
        let key = Key {
            peer,
            is_opener: !is_by_opener,
            number: packet.get_u32_le(),
        };
        let value = packet.get_u32_le() as usize;
        if kind == Kind::Open {
            return match is_by_opener {
                true => self.opened(key, &packet),
                false => Err("an opening by someone else"),
            };
        }
        let mut state = self.state.lock();
        // Frames of streams that were broken off may still be under way.
        let Some(stream) = state.streams.get_mut(&key) else {
            return Ok(());
        };
        match stream.arrived(kind, value, packet) {
            Ok(After::Nothing) => {}
            Ok(After::Ready) => self.ready(&mut state, key),
            Ok(After::Refused(why)) => stream.break_off(&MeshError::Refused {
                node: self.endpoint.network().names[peer].clone(),
                why,
            }),
            Err(what) => {
                stream.break_off(&MeshError::Broken(format!("the peer sent {what}")));
                self.say(&mut state, peer, frame(Kind::Reset, key, 0, &[]));
                return Err(what);
            }
        }
        if state.streams.get(&key).is_some_and(Stream::is_over) {
            state.remove(key);
        }
        Ok(())
    }

    fn opened(self: &Arc<Self>, key: Key, service: &[u8]) -> Result<(), &'static str> {
        let mut state = self.state.lock();
        if state.streams.contains_key(&key) {
            return Err("an opening of a stream that is open");
        }
        let service = String::from_utf8_lossy(service);
        let incoming = state.services.get(&*service).cloned();
        let is_full = state
            .peers
            .get(&key.peer)
            .is_some_and(|peer| peer.opened >= MOST_STREAMS);
        let place = match &incoming {
            Some(incoming) if !is_full => incoming.try_reserve(),
            _ => Err(TrySendError::Closed(())),
        };
        match place {
            Ok(place) => {
                let first = (Kind::Accept, Bytes::new());
                state.streams.insert(key, Stream::new(first, None));
                self.peer(&mut state, key.peer).opened += 1;
                self.ready(&mut state, key);
                let node = self.endpoint.network().ids[key.peer];
                place.send((node, MeshStream::new(self.clone(), key)));
            }
            Err(error) => {
                let why = match error {
                    _ if is_full => "there are too many streams".to_string(),
                    TrySendError::Full(()) => format!("too many streams wait for '{service}'"),
                    TrySendError::Closed(()) => format!("nobody listens for '{service}'"),
                };
                let refusal = frame(Kind::Refuse, key, 0, why.as_bytes());
                self.say(&mut state, key.peer, refusal);
            }
        }
        Ok(())
    }

    /// Sends a frame of a stream that is not there. One who sends what needs such answers and takes
    /// none gets no more at some point.
    fn say(self: &Arc<Self>, state: &mut State, peer: usize, frame: Bytes) {
        let at = self.peer(state, peer);
        if at.last_words.len() < MOST_STREAMS {
            at.last_words.push_back(frame);
        }
    }

    /// Breaks off all streams to and from a node, and tells it so if it may listen.
    fn interrupt(self: &Arc<Self>, peer: usize, error: &MeshError, tells: bool) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(at) = state.peers.get_mut(&peer) {
            at.last_words.clear();
        }
        // What is sent from now on is of a new generation, and not lost with the old one.
        self.endpoint.forgive(peer);
        let streams = state.streams.iter_mut();
        let broken: Vec<Key> = streams
            .filter(|(key, stream)| key.peer == peer && stream.reset.is_none())
            .map(|(key, stream)| {
                stream.break_off(error);
                *key
            })
            .collect();
        for key in broken {
            if tells {
                self.say(state, peer, frame(Kind::Reset, key, 0, &[]));
            }
            if state.streams.get(&key).is_some_and(Stream::is_over) {
                state.remove(key);
            }
        }
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.senders.abort_all();
        for stream in state.streams.values_mut() {
            stream.break_off(&MeshError::Closed);
        }
        // Streams that nobody has accepted: to drop them takes the lock.
        let services = std::mem::take(&mut state.services);
        drop(state);
        drop(services);
    }

    pub fn poll_read(
        self: &Arc<Self>,
        key: Key,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        let Some(stream) = state.streams.get_mut(&key) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let (outcome, after) = stream.poll_read(context, buffer);
        if let After::Ready = after {
            self.ready(&mut state, key);
        }
        outcome
    }

    pub fn poll_write(
        self: &Arc<Self>,
        key: Key,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock();
        let Some(stream) = state.streams.get_mut(&key) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let outcome = stream.poll_write(context, slices, self.most_data());
        self.ready(&mut state, key);
        outcome
    }

    /// Nothing more is written to a stream.
    pub fn finish(self: &Arc<Self>, key: Key) -> io::Result<()> {
        let mut state = self.state.lock();
        let Some(stream) = state.streams.get_mut(&key) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        stream.finish()?;
        self.ready(&mut state, key);
        Ok(())
    }

    /// Nobody holds a stream any more.
    pub fn drop_stream(self: &Arc<Self>, key: Key) {
        let mut state = self.state.lock();
        let Some(stream) = state.streams.get_mut(&key) else {
            return;
        };
        match stream.dropped() {
            Dropped::Goes => {}
            Dropped::Drains => return self.ready(&mut state, key),
            Dropped::Breaks => self.say(&mut state, key.peer, frame(Kind::Reset, key, 0, &[])),
        }
        state.remove(key);
    }
}

#[cfg(test)]
impl Mux {
    pub fn open_streams(&self) -> usize {
        self.state.lock().streams.len()
    }
}

impl State {
    fn remove(&mut self, key: Key) {
        self.streams.remove(&key);
        if let Some(peer) = self.peers.get_mut(&key.peer) {
            peer.opened -= usize::from(!key.is_opener);
        }
    }
}

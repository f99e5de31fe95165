//! The life of a link: connections come and go, the port stays.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;

use super::clock::{Instant, sleep, timeout};
use super::error::LinkError;
use super::frame::{Frame, FrameReader};
use super::handshake::{self, Hello};
use super::node::Shared;
use super::port::{Batch, Port, Position, State};
use super::switch::Switch;
use super::tls;
use super::topology::reverse;
use super::transport::{Connection, Dialer, Reader, Writer};

/// Waiting times between attempts to connect: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Slices that are written at once.
const SLICES: usize = 64;
/// Packets that are handed to the switch at once.
const PACKETS: usize = 64;
/// Bytes after which a reader lets others go on: who takes these while they are in the processor's
/// cache is faster than who takes more at once.
const TURN: usize = 128 * 1024;

/// Keeps the link of a port connected, from the end that dials.
pub(crate) async fn keep_dialling(shared: Arc<Shared>, port: usize, dialer: Dialer) {
    let mut wait = FIRST_WAIT;
    let mut last = String::new();
    let name = shared.link_name(port);
    loop {
        let began = Instant::now();
        let limit = shared.silence();
        let connected = timeout(limit, dial(&shared, port, &dialer)).await;
        let error = match connected {
            Err(_) => LinkError::Silent(limit.as_millis() as u64),
            Ok(Err(error)) => error,
            Ok(Ok((connection, number))) => {
                log::info!("mesh link {name}: connected");
                last.clear();
                run(&shared, port, number, connection).await
            }
        };
        let error = error.to_string();
        if error != last {
            log::warn!("mesh link {name}: {error}; connecting again");
            last = error;
        }
        if began.elapsed() > LONGEST_WAIT {
            wait = FIRST_WAIT;
        }
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn dial(
    shared: &Shared,
    port: usize,
    dialer: &Dialer,
) -> Result<(Connection, u64), LinkError> {
    let mut connection = dialer.dial().await?;
    let (channel, number, told) = {
        let mut switch = shared.switch.lock();
        let port = &mut switch.ports[port];
        port.disconnect();
        (port.channel, port.connection, port.position())
    };
    let hello = Hello {
        fingerprint: shared.fingerprint,
        channel: channel as u32,
        position: told,
        is_resumed: false,
    };
    handshake::send(&mut connection.writer, &hello).await?;
    let answer = handshake::receive(&mut connection.reader).await?;
    check(shared, &answer, reverse(channel))?;
    let mut switch = shared.switch.lock();
    if switch.ports[port].connection != number {
        return Err(LinkError::Replaced);
    }
    switch.connect(port, &answer.position, &told, answer.is_resumed)?;
    Ok((connection, number))
}

/// Answers a connection that came in, and keeps it while it lasts. `place` is one of those that
/// have not yet said which link they are.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    mut connection: Connection,
    place: OwnedSemaphorePermit,
) {
    let limit = shared.silence();
    let connected = match timeout(limit, greet(&shared, &mut connection)).await {
        Ok(connected) => connected,
        Err(_) => Err(LinkError::Silent(limit.as_millis() as u64)),
    };
    let error = match connected {
        Ok((port, number)) => {
            let name = shared.link_name(port);
            log::info!("mesh link {name}: connected");
            drop(place);
            let error = run(&shared, port, number, connection).await;
            log::warn!("mesh link {name}: {error}; waiting for the neighbour");
            return;
        }
        Err(error) => error,
    };
    log::warn!("mesh: a connection was refused: {error}");
    if let LinkError::Refused(why) = &error {
        let _ = timeout(limit, handshake::refuse(&mut connection.writer, why)).await;
    }
}

async fn greet(shared: &Shared, connection: &mut Connection) -> Result<(usize, u64), LinkError> {
    let hello = handshake::receive(&mut connection.reader).await?;
    let channel = reverse(hello.channel as usize);
    let ports = |switch: &Switch| {
        let mut ports = switch.ports.iter();
        ports.position(|port| port.channel == channel)
    };
    let port = ports(&shared.switch.lock());
    check(shared, &hello, hello.channel as usize)?;
    let Some(port) = port else {
        return Err(LinkError::Refused(format!(
            "this is node '{}', which does not have the other end of that cable",
            shared.name()
        )));
    };
    if let Some(certificate) = &connection.certificate {
        tls::check_name(certificate, shared.neighbour(port)).map_err(LinkError::Refused)?;
    }
    let (reply, number) = {
        let mut switch = shared.switch.lock();
        // Whatever an earlier connection still brings does not count any more.
        switch.ports[port].disconnect();
        let is_resumed = switch.ports[port].goes_on_with(&hello.position);
        let told = switch.ports[port].position();
        switch.connect(port, &hello.position, &told, is_resumed)?;
        let reply = Hello {
            fingerprint: shared.fingerprint,
            channel: channel as u32,
            position: Position {
                report: told.report,
                ..switch.ports[port].position()
            },
            is_resumed,
        };
        (reply, switch.ports[port].connection)
    };
    handshake::send(&mut connection.writer, &reply).await?;
    Ok((port, number))
}

/// Whether the other end has the same rack file and is the end of the channel that it should be.
fn check(shared: &Shared, hello: &Hello, channel: usize) -> Result<(), LinkError> {
    if hello.fingerprint != shared.fingerprint {
        return Err(LinkError::Refused(
            "the rack files of the two nodes differ in nodes, cables, endpoints, routes or bounds"
                .into(),
        ));
    }
    match hello.channel as usize == channel {
        true => Ok(()),
        false => Err(LinkError::Refused("another cable answers".into())),
    }
}

impl Port {
    /// Ends a connection, if there is one.
    pub(crate) fn disconnect(&mut self) {
        self.connection += 1;
        if self.state == State::Up {
            self.state = State::Down(Instant::now());
        }
        // A writer that waits sees that it is not needed any more.
        self.wake.notify_one();
    }
}

impl Switch {
    /// Both ends have said where they are.
    pub(crate) fn connect(
        &mut self,
        port: usize,
        peer: &Position,
        told: &Position,
        is_resumed: bool,
    ) -> Result<(), LinkError> {
        if is_resumed {
            if !self.ports[port].goes_on_with(peer) {
                return Err(LinkError::Frame("an answer that resumes nothing".into()));
            }
            self.ports[port].resume(peer)?;
        } else {
            if let Some(before) = self.ports[port].peer_session {
                self.give_up(port, before != peer.session);
            }
            self.ports[port].begin(peer, told);
        }
        self.is_back(port);
        Ok(())
    }
}

/// Moves frames until the connection ends; says why it did.
async fn run(shared: &Arc<Shared>, port: usize, number: u64, connection: Connection) -> LinkError {
    let Connection { reader, writer, .. } = connection;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(read(shared.clone(), port, number, reader));
    tasks.spawn(write(shared.clone(), port, number, writer));
    tasks.spawn(watch(shared.clone(), port, number));
    let error = match tasks.join_next().await {
        Some(Ok(Err(error))) => error,
        Some(Err(error)) => LinkError::Io(io::Error::other(error)),
        None => LinkError::Ended,
    };
    let mut switch = shared.switch.lock();
    if switch.ports[port].connection == number {
        switch.ports[port].disconnect();
    }
    error
}

async fn read(
    shared: Arc<Shared>,
    port: usize,
    number: u64,
    reader: Reader,
) -> Result<Infallible, LinkError> {
    let most = shared.largest_payload();
    let mut frames = FrameReader::new(reader, most);
    let mut packets = Vec::with_capacity(PACKETS);
    let mut bytes = 0;
    loop {
        if bytes >= TURN {
            bytes = 0;
            tokio::task::yield_now().await;
        }
        let mut next = frames.next().await?;
        loop {
            let (frame, report) = next;
            let more = match frame {
                Frame::Packet { sequence, packet } => {
                    bytes += packet.payload.len();
                    packets.push((sequence, packet));
                    match packets.len() < PACKETS {
                        true => frames.buffered(),
                        false => Ok(None),
                    }
                }
                Frame::Report => Ok(None),
                Frame::Ask => {
                    shared.switch.lock().ports[port].tell();
                    Ok(None)
                }
                Frame::Notice(notice) => {
                    let mut switch = shared.switch.lock();
                    match switch.ports[port].connection == number {
                        true => switch.noticed(notice).map_err(LinkError::Frame)?,
                        false => return Err(LinkError::Replaced),
                    }
                    Ok(None)
                }
            };
            // What came in whole counts, even if what follows is torn.
            let is_last = !matches!(more, Ok(Some(_)));
            if is_last {
                let mut switch = shared.switch.lock();
                switch.arrived(port, number, &mut packets, report)?;
            }
            match more? {
                Some(following) => next = following,
                None => break,
            }
        }
    }
}

async fn write(
    shared: Arc<Shared>,
    port: usize,
    number: u64,
    mut writer: Writer,
) -> Result<Infallible, LinkError> {
    let wake = shared.switch.lock().ports[port].wake.clone();
    let mut batch = Batch::default();
    loop {
        {
            let mut switch = shared.switch.lock();
            if switch.ports[port].connection != number {
                // The wake was for the one that took this one's place.
                wake.notify_one();
                return Err(LinkError::Replaced);
            }
            switch.fill(port, &mut batch);
        }
        if batch.headers.is_empty() {
            wake.notified().await;
            continue;
        }
        write_batch(&mut writer, &batch).await?;
        batch.clear();
    }
}

async fn write_batch(writer: &mut (impl AsyncWrite + Unpin), batch: &Batch) -> io::Result<()> {
    for first in (0..batch.headers.len()).step_by(SLICES / 2) {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        for frame in first..batch.headers.len().min(first + SLICES / 2) {
            for part in [&batch.headers[frame][..], &batch.payloads[frame][..]] {
                if !part.is_empty() {
                    slices[count] = IoSlice::new(part);
                    count += 1;
                }
            }
        }
        let mut rest = &mut slices[..count];
        while !rest.is_empty() {
            let written = writer.write_vectored(rest).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut rest, written);
        }
    }
    writer.flush().await
}

/// Says that we are alive while nothing else is sent, and notices when the neighbour is not.
async fn watch(shared: Arc<Shared>, port: usize, number: u64) -> Result<Infallible, LinkError> {
    let silence = shared.silence();
    let mut silent = 0;
    loop {
        sleep(silence / 4).await;
        let mut switch = shared.switch.lock();
        let port = &mut switch.ports[port];
        if port.connection != number {
            return Err(LinkError::Replaced);
        }
        port.tell();
        silent = match std::mem::take(&mut port.is_heard) {
            true => 0,
            false => silent + 1,
        };
        if silent == 4 {
            return Err(LinkError::Silent(silence.as_millis() as u64));
        }
    }
}

/// Gives up links that were not connected until the deadline.
pub(crate) async fn keep_deadlines(shared: Arc<Shared>) {
    let deadline = shared.deadline();
    loop {
        sleep((deadline / 8).min(Duration::from_secs(1))).await;
        let mut switch = shared.switch.lock();
        for port in 0..switch.ports.len() {
            if switch.ports[port].is_down_for(deadline) {
                log::error!(
                    "mesh link {}: given up after {} ms",
                    shared.link_name(port),
                    deadline.as_millis()
                );
                switch.give_up(port, false);
            }
        }
    }
}

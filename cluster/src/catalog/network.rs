//! The group's messages, as streams of the mesh: a question is a frame, and so is its answer.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flashmesh_pages::store::NodeId;
use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, EmptyNode, Raft, Snapshot, SnapshotMeta, Vote};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::entry::{Image, Types};
use super::files::Files;
use super::handover;
use super::role::{Lease, Role};
use super::state::{COMING, Held};
use super::tasks::block_in_place;
use crate::mesh::clock::{Instant, sleep, timeout};
use crate::mesh::{MeshStream, StreamListener, Streams};

/// The service of a node that is of the group.
const SERVICE: &str = "catalog";

/// Bytes of a frame; entries are less.
const MOST_BYTES: u32 = 80 << 20;
/// Bytes of an image that are moved at once.
const COPY_BYTES: usize = 256 << 10;
/// How long a node may take to say who it is.
const HELLO_TIME: Duration = Duration::from_millis(500);
/// How long a node may take over an image, or move none of it.
const IMAGE_TIME: Duration = Duration::from_secs(60);
/// How often those outside of the group ask who the head is.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// A member of the group: the node of that number, in one life of its disk. A node that lost what it
/// had is another member, as it has forgotten whom it voted for.
pub(super) fn node_of(member: u64) -> NodeId {
    NodeId(member as u16)
}

/// A member's number for a node.
pub(super) fn draw_member(node: NodeId, random: u64) -> u64 {
    random << 16 | u64::from(node.0)
}

/// Who a node is in the group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Introduction {
    pub member: u64,
    /// It has nothing, and knows of no group.
    pub is_blank: bool,
    /// Who leads, as far as it knows, and in which term.
    pub leader: Option<u16>,
    pub term: u64,
    /// It is that one, or has heard of it lately.
    pub hears_leader: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum Question {
    Hello,
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    /// An image follows.
    Image {
        vote: Vote<u64>,
        meta: SnapshotMeta<u64, EmptyNode>,
        term: u64,
        bytes: u64,
    },
    /// Who is asked is to stand for election: the leader has left this vote, by which it led.
    Lead(Vote<u64>),
    /// A vote is asked for after a leader has left the one by which it led.
    VoteAfter {
        request: VoteRequest<u64>,
        given_up: Vote<u64>,
    },
}

/// A question to one member, as another may have come in its place.
#[derive(Serialize, Deserialize)]
struct Frame<T> {
    /// `None`: whoever it is.
    to: Option<u64>,
    what: T,
}

type Answer<T> = Result<T, String>;

async fn write(stream: &mut MeshStream, value: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_allocvec(value).map_err(io::Error::other)?;
    let count = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&count.to_le_bytes()).await?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}

async fn read<T: DeserializeOwned>(stream: &mut MeshStream) -> io::Result<T> {
    let count = stream.read_u32_le().await?;
    if count > MOST_BYTES {
        return Err(io::Error::other(format!("a message of {count} bytes")));
    }
    let mut bytes = Vec::new();
    let read = stream.take(count.into()).read_to_end(&mut bytes).await?;
    if read != count as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Asks a node one thing, which it can answer at once.
async fn ask_once<T: DeserializeOwned>(
    streams: &Streams,
    node: NodeId,
    question: Frame<Question>,
) -> io::Result<T> {
    let asked = async {
        let mut stream = streams
            .connect(node, SERVICE)
            .await
            .map_err(io::Error::other)?;
        write(&mut stream, &question).await?;
        let answer: Answer<T> = read(&mut stream).await?;
        answer.map_err(io::Error::other)
    };
    timeout(HELLO_TIME, asked).await?
}

/// Asks a node who it is.
pub(super) async fn hello(streams: &Streams, node: NodeId) -> io::Result<Introduction> {
    let what = Question::Hello;
    ask_once(streams, node, Frame { to: None, what }).await
}

/// Asks a member to stand for election, as this node has left the vote by which it led.
pub(super) async fn ask_to_lead(
    streams: &Streams,
    member: u64,
    given_up: Vote<u64>,
) -> io::Result<()> {
    let what = Question::Lead(given_up);
    let to = Some(member);
    ask_once(streams, node_of(member), Frame { to, what }).await
}

/// Who the head is, as seen by a node that is not of the group: asks those who are.
pub fn watch_head(streams: Streams, group: Vec<NodeId>) -> watch::Receiver<Option<NodeId>> {
    let (sender, receiver) = watch::channel(None);
    let runtime = streams.runtime().clone();
    runtime.spawn(async move {
        while !sender.is_closed() {
            let mut found: Option<Introduction> = None;
            for node in &group {
                if let Ok(told) = hello(&streams, *node).await
                    && told.leader.is_some()
                    && found.as_ref().is_none_or(|known| known.term < told.term)
                {
                    found = Some(told);
                }
            }
            let head = found.and_then(|told| told.leader).map(NodeId);
            sender.send_if_modified(|known| std::mem::replace(known, head) != head);
            tokio::select! {
                () = sleep(ASK_EVERY) => {}
                () = sender.closed() => {}
            }
        }
    });
    receiver
}

/// The ways to the other members.
#[derive(Clone)]
pub(super) struct Peers {
    pub streams: Streams,
    pub held: Held,
    /// When one that was not reached is tried again: soon, as its vote may be needed.
    pub pause: Duration,
    /// The vote that a leader has left who asked this node to take its place.
    pub given_up: GivenUp,
}

/// A vote that was left for good, if there is one.
pub(super) type GivenUp = Arc<Mutex<Option<Vote<u64>>>>;

/// The way to one.
pub(super) struct Connection {
    streams: Streams,
    held: Held,
    pause: Duration,
    given_up: GivenUp,
    member: u64,
    open: Option<MeshStream>,
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Connection;

    async fn new_client(&mut self, member: u64, _: &EmptyNode) -> Connection {
        Connection {
            streams: self.streams.clone(),
            held: self.held.clone(),
            pause: self.pause,
            given_up: Arc::clone(&self.given_up),
            member,
            open: None,
        }
    }
}

impl Connection {
    /// Asks. A stream of which an answer was not awaited is not used again.
    async fn ask<T: DeserializeOwned>(&mut self, what: Question) -> io::Result<Answer<T>> {
        let mut stream = self.connected().await?;
        let to = Some(self.member);
        write(&mut stream, &Frame { to, what }).await?;
        let answer = read(&mut stream).await?;
        self.open = Some(stream);
        Ok(answer)
    }

    async fn connected(&mut self) -> io::Result<MeshStream> {
        match self.open.take() {
            Some(stream) => Ok(stream),
            None => {
                let stream = self.streams.connect(node_of(self.member), SERVICE).await;
                stream.map_err(io::Error::other)
            }
        }
    }

    async fn ask_raft<T: DeserializeOwned>(
        &mut self,
        what: Question,
    ) -> Result<T, RPCError<u64, EmptyNode, RaftError<u64>>> {
        match self.ask(what).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(NetworkError::new(&AnyError::error(why)).into()),
            Err(error) => Err(Unreachable::new(&error).into()),
        }
    }

    async fn send_image(
        &mut self,
        vote: Vote<u64>,
        meta: SnapshotMeta<u64, EmptyNode>,
    ) -> io::Result<SnapshotResponse<u64>> {
        let (mut file, term, bytes) = block_in_place(|| {
            let mut file = tempfile::tempfile_in(self.held.files().folder())?;
            let term = self.held.dump(io::BufWriter::new(&mut file))?;
            let bytes = file.metadata()?.len();
            io::Seek::rewind(&mut file)?;
            Ok::<_, io::Error>((file, term, bytes))
        })
        .await?;
        log::info!(
            "sends the catalog ({bytes} bytes) to node {}",
            node_of(self.member).0
        );
        let mut stream = timeout(IMAGE_TIME, self.connected()).await??;
        let question = Frame {
            to: Some(self.member),
            what: Question::Image {
                vote,
                meta,
                term,
                bytes,
            },
        };
        timeout(IMAGE_TIME, write(&mut stream, &question)).await??;
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let count = block_in_place(|| io::Read::read(&mut file, &mut buffer)).await?;
            if count == 0 {
                break;
            }
            timeout(IMAGE_TIME, stream.write_all(&buffer[..count])).await??;
        }
        stream.flush().await?;
        let answer: Answer<SnapshotResponse<u64>> =
            timeout(IMAGE_TIME, read(&mut stream)).await??;
        answer.map_err(io::Error::other)
    }
}

impl RaftNetwork<Types> for Connection {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, EmptyNode, RaftError<u64>>> {
        self.ask_raft(Question::Append(request)).await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        _: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, EmptyNode, RaftError<u64>>> {
        let given_up = *self.given_up.lock();
        let is_next = |vote: &Vote<u64>| vote.leader_id.term + 1 == request.vote.leader_id.term;
        let question = match given_up.filter(is_next) {
            Some(given_up) => Question::VoteAfter { request, given_up },
            None => Question::Vote(request),
        };
        self.ask_raft(question).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(self.pause))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = self.send_image(vote, snapshot.meta) => {
                let node = node_of(self.member).0;
                sent.map_err(|error| {
                    log::warn!("the catalog does not reach node {node}: {error}");
                    Unreachable::new(&error).into()
                })
            }
        }
    }
}

/// What a member answers with.
pub(super) struct Member {
    pub number: u64,
    pub raft: Raft<Types>,
    pub held: Held,
    pub role: watch::Receiver<Role>,
    pub lease: Arc<Lease>,
    /// For how long a leader counts that was heard.
    pub deadline: Duration,
    /// When one was heard last.
    pub heard: Mutex<Option<Instant>>,
    /// As its [`Peers`] have it.
    pub given_up: GivenUp,
    /// It is to end, and not to lead.
    pub retired: AtomicBool,
}

/// Takes the streams of other nodes, until it is dropped.
pub(super) fn listen(streams: &Streams) -> Result<StreamListener, crate::mesh::MeshError> {
    streams.listen(SERVICE)
}

/// Answers other nodes until the mesh is closed.
pub(super) async fn answer(mut listener: StreamListener, member: Arc<Member>) {
    let mut streams = JoinSet::new();
    while let Ok((from, stream)) = listener.accept().await {
        while streams.try_join_next().is_some() {}
        let member = Arc::clone(&member);
        streams.spawn(async move {
            // It ends when the other node ends it.
            if let Err(error) = member.serve(stream).await {
                log::debug!("the catalog's stream of node {} ends: {error}", from.0);
            }
        });
    }
}

impl Member {
    async fn serve(&self, mut stream: MeshStream) -> io::Result<()> {
        loop {
            let Frame { to, what } = read::<Frame<Question>>(&mut stream).await?;
            if to.is_some_and(|to| to != self.number) {
                let nobody: Answer<()> = Err("another member is at this node now".into());
                write(&mut stream, &nobody).await?;
                return Ok(());
            }
            match what {
                Question::Hello => {
                    let is_initialized = self.raft.is_initialized().await;
                    let leader = self.role.borrow().head(node_of(self.number));
                    let term = self.raft.metrics().borrow().current_term;
                    let introduction = is_initialized.map(|is| Introduction {
                        member: self.number,
                        is_blank: !is,
                        leader: leader.map(|node| node.0),
                        term,
                        hears_leader: self.hears_leader(),
                    });
                    write(&mut stream, &told(introduction)).await?;
                }
                Question::Append(request) => {
                    let answer = self.raft.append_entries(request).await;
                    if !matches!(&answer, Err(_) | Ok(AppendEntriesResponse::HigherVote(_))) {
                        *self.heard.lock() = Some(Instant::now());
                    }
                    write(&mut stream, &told(answer)).await?;
                }
                // Who was cut off and is back shall not take the place of a leader that the others hear.
                Question::Vote(_) | Question::VoteAfter { .. } if self.lease.holds() => {
                    let refused: Answer<()> = Err("this node leads".into());
                    write(&mut stream, &refused).await?;
                }
                Question::Vote(request) => {
                    let answer = self.raft.vote(request).await;
                    write(&mut stream, &told(answer)).await?;
                }
                Question::Lead(given_up) => {
                    let answer = handover::stand(self, given_up).await;
                    write(&mut stream, &answer).await?;
                }
                Question::VoteAfter { request, given_up } => {
                    let left = handover::leave(&self.raft, &given_up).await;
                    if let Ok(true) = left {
                        self.forget_leader();
                    }
                    let answer = match left {
                        Ok(_) => told(self.raft.vote(request).await),
                        Err(why) => Err(why),
                    };
                    write(&mut stream, &answer).await?;
                }
                Question::Image {
                    vote,
                    meta,
                    term,
                    bytes,
                } => {
                    let path = self.take_image(&mut stream, bytes).await?;
                    let snapshot = Snapshot {
                        meta,
                        snapshot: Box::new(Image::Came {
                            path: path.to_path_buf(),
                            term,
                        }),
                    };
                    let answer = self.raft.install_full_snapshot(vote, snapshot).await;
                    write(&mut stream, &told(answer)).await?;
                }
            }
        }
    }

    /// From now on it is not to lead.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// The leader that was heard is none any more.
    pub fn forget_leader(&self) {
        *self.heard.lock() = None;
    }

    /// Whether this node leads, or has heard who does lately.
    pub fn hears_leader(&self) -> bool {
        let heard = *self.heard.lock();
        self.lease.holds() || heard.is_some_and(|heard| heard.elapsed() < self.deadline)
    }

    /// Writes the image that comes to a file, durably; the file goes with the path unless it is taken
    /// away.
    async fn take_image(
        &self,
        stream: &mut MeshStream,
        bytes: u64,
    ) -> io::Result<tempfile::TempPath> {
        let mut file = tempfile::Builder::new()
            .prefix(COMING)
            .tempfile_in(self.held.files().folder())?;
        let mut buffer = vec![0; COPY_BYTES];
        let mut left = bytes;
        while left > 0 {
            let most = left.min(COPY_BYTES as u64) as usize;
            let count = timeout(IMAGE_TIME, stream.read(&mut buffer[..most])).await??;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            block_in_place(|| io::Write::write_all(&mut file, &buffer[..count])).await?;
            left -= count as u64;
        }
        block_in_place(|| {
            file.as_file().sync_all()?;
            io::Seek::rewind(&mut file)?;
            Files::check(io::BufReader::new(file.as_file()))
        })
        .await?;
        Ok(file.into_temp_path())
    }
}

fn told<T, E: std::fmt::Display>(answer: Result<T, E>) -> Answer<T> {
    answer.map_err(|error| error.to_string())
}

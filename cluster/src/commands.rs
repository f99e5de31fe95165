//! Commands of the storage over the mesh: what a scan leaves to the nodes that have its segments
//! travels as one command to each of them, and their answers come back as frames (BlueDBM section 4).
//!
//! A command is a stream of its own, to the service `commands` of a node: its bytes, then the frames
//! of the answer, each behind its length (32 bits, little endian). Who has no more use for an answer
//! drops the stream, and the node stops working on it.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use flashmesh_pages::store::NodeId;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::peer::{Answer, CommandLife, MESSAGE_MAX_BYTES, Peers};
use flashmesh_storage::{Result, StorageError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::copies::CopyView;
use crate::mesh::{Mesh, MeshError, MeshStream, Streams};

/// The service of commands.
const SERVICE: &str = "commands";
/// Frames of an answer that wait for whoever takes them, besides what the stream's window holds.
const FRAMES_AHEAD: usize = 2;
/// Bytes that are read of a message before its memory is taken: its length is not believed.
const READ_STEP: usize = 1 << 20;

/// The commands of other nodes, run by this one. Dropping it ends them.
#[derive(Debug)]
pub struct CommandServer {
    _accepting: JoinSet<()>,
    at_once: usize,
    /// Each command that runs has one, but for the time in which nobody takes what it has made.
    permits: Arc<Semaphore>,
}

impl CommandServer {
    /// Runs what comes over `streams` on `node`: up to `at_once` commands at a time, those beyond
    /// wait, each on up to `threads` threads.
    ///
    /// # Errors
    /// `Taken` when the mesh has one already.
    pub fn start(
        mesh: &Mesh,
        streams: &Streams,
        node: Arc<StorageNode>,
        threads: usize,
        at_once: usize,
    ) -> std::result::Result<Self, MeshError> {
        let mut listener = streams.listen(SERVICE)?;
        let runtime = mesh.runtime().clone();
        let at_once = at_once.max(1);
        let permits = Arc::new(Semaphore::new(at_once));
        let of_all = Arc::clone(&permits);
        let mut accepting = JoinSet::new();
        let accept = async move {
            // Ends with the mesh; what runs ends with this task.
            let mut running = JoinSet::new();
            while let Ok((from, stream)) = listener.accept().await {
                while running.try_join_next().is_some() {}
                let (node, permits) = (Arc::clone(&node), Arc::clone(&of_all));
                running.spawn(async move {
                    let ended = run(stream, &node, threads, &permits).await;
                    if let Err(error) = ended {
                        log::debug!("a command of node {}: {error}", from.0);
                    }
                });
            }
        };
        accepting.spawn_on(accept, &runtime);
        Ok(Self {
            _accepting: accepting,
            at_once,
            permits,
        })
    }

    /// How many commands run now. What waits, or has not arrived as a whole, is not counted.
    pub fn running(&self) -> usize {
        let free = self.permits.available_permits();
        self.at_once.saturating_sub(free)
    }
}

/// Ends what it holds when it goes: the threads of a command notice that nobody waits for it.
struct Cancel(Arc<CommandLife>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.end();
    }
}

async fn run(
    stream: MeshStream,
    node: &Arc<StorageNode>,
    threads: usize,
    permits: &Arc<Semaphore>,
) -> io::Result<()> {
    let (mut requests, mut answers) = tokio::io::split(stream);
    let Some(command) = read_message(&mut requests).await? else {
        return Ok(());
    };
    let permits = Arc::clone(permits);
    let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
        return Ok(());
    };
    let cancel = Cancel(Arc::default());
    let life = Arc::clone(&cancel.0);
    let (frames, mut to_send) = mpsc::channel::<Vec<u8>>(FRAMES_AHEAD);
    let node = Arc::clone(node);
    let runtime = Handle::current();
    let work = tokio::task::spawn_blocking(move || {
        let mut permit = Some(permit);
        node.serve(&command, threads, &life, &mut |frame| {
            let frame = match frames.try_send(frame) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(frame)) => frame,
                Err(TrySendError::Closed(_)) => return Err(StorageError::Cancelled),
            };
            // Others may work while whoever asked takes nothing, which may be for hours.
            drop(permit.take());
            let sent = frames.blocking_send(frame);
            sent.map_err(|_| StorageError::Cancelled)?;
            let again = runtime.block_on(Arc::clone(&permits).acquire_owned());
            permit = Some(again.map_err(|_| StorageError::Cancelled)?);
            Ok(())
        })
    });
    let send = async {
        while let Some(frame) = to_send.recv().await {
            let length = frame_length(frame.len())?;
            answers.write_all(&length).await?;
            answers.write_all(&frame).await?;
        }
        answers.shutdown().await
    };
    // Nothing more is said by who asks: the stream ends when they have gone.
    let gone = async {
        let mut byte = [0];
        let _ = requests.read(&mut byte).await;
    };
    let sent = tokio::select! {
        sent = send => sent,
        () = gone => Ok(()),
    };
    drop(cancel);
    to_send.close();
    let served = work.await.map_err(io::Error::other)?;
    sent.and(served.map_err(io::Error::other))
}

/// Whether a node that is there and well did not take the question.
fn is_refusal(error: &io::Error) -> bool {
    let of_mesh = error.get_ref().and_then(|error| error.downcast_ref());
    matches!(of_mesh, Some(MeshError::Refused { .. }))
}

fn frame_length(bytes: usize) -> io::Result<[u8; 4]> {
    let length = u32::try_from(bytes).ok();
    let length = length.filter(|_| bytes <= MESSAGE_MAX_BYTES);
    let length = length.ok_or_else(|| io::Error::other(format!("a message of {bytes} bytes")))?;
    Ok(length.to_le_bytes())
}

/// The next message; `None` at the end of the stream.
async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_MAX_BYTES {
        let why = format!("a message of {length} bytes, more than {MESSAGE_MAX_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut message = Vec::new();
    while message.len() < length {
        let from = message.len();
        message.resize(length.min(from + READ_STEP), 0);
        stream.read_exact(&mut message[from..]).await?;
    }
    Ok(Some(message))
}

/// The other nodes of a mesh, for whoever leaves work to them.
pub struct MeshPeers {
    streams: Streams,
    runtime: Handle,
    nodes: HashSet<NodeId>,
    copies: Option<CopyView>,
}

impl fmt::Debug for MeshPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshPeers")
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl MeshPeers {
    /// `nodes` are those that run commands, without this one; `copies` those of their cards.
    pub(crate) fn new(
        mesh: &Mesh,
        streams: Streams,
        nodes: impl IntoIterator<Item = NodeId>,
        copies: Option<CopyView>,
    ) -> Self {
        Self {
            copies,
            runtime: mesh.runtime().clone(),
            nodes: nodes.into_iter().collect(),
            streams,
        }
    }
}

impl Peers for MeshPeers {
    fn holder(&self, node: NodeId) -> Option<NodeId> {
        match &self.copies {
            Some(copies) => copies.holder(node),
            None => self.nodes.contains(&node).then_some(node),
        }
    }

    fn read_each_other(&self) -> bool {
        self.copies.as_ref().is_none_or(CopyView::are_whole)
    }

    fn send(&self, node: NodeId, command: Vec<u8>) -> Result<Box<dyn Answer>> {
        let streams = self.streams.clone();
        let (frames, answer) = mpsc::channel(FRAMES_AHEAD);
        let copies = self.copies.clone();
        // That one is too long says nothing of the node.
        let length = frame_length(command.len());
        let length = length.map_err(|e| StorageError::io("a command for another node", e))?;
        let ask = async move {
            let asked = async {
                let connected = streams.connect(node, SERVICE).await;
                let mut stream = connected.map_err(io::Error::other)?;
                stream.write_all(&length).await?;
                stream.write_all(&command).await?;
                // Not shut down: that would say that nobody waits.
                while let Some(frame) = read_message(&mut stream).await? {
                    if frames.send(Ok(Bytes::from(frame))).await.is_err() {
                        break;
                    }
                }
                Ok(())
            };
            tokio::select! {
                ended = asked => if let Err(error) = ended {
                    if let Some(copies) = copies.filter(|_| !is_refusal(&error)) {
                        // It may wait for a commit of the group, whose messages this thread moves.
                        let suspect = move || copies.suspect(node);
                        let _ = tokio::task::spawn_blocking(suspect).await;
                    }
                    let action = format!("asking node {}", node.0);
                    let error = StorageError::io(action, error);
                    let _ = frames.send(Err(error)).await;
                },
                () = frames.closed() => {}
            }
        };
        self.runtime.spawn(ask);
        Ok(Box::new(Frames(answer)))
    }
}

struct Frames(mpsc::Receiver<Result<Bytes>>);

impl Answer for Frames {
    fn poll_frame(&mut self, waker: &Waker) -> Poll<Result<Option<Bytes>>> {
        self.0
            .poll_recv(&mut Context::from_waker(waker))
            .map(Option::transpose)
    }
}

//! Clients of all nodes are clients of the head: a node accepts their connections and passes them on
//! to it as byte streams of the mesh. What is in them it does not know, TLS goes from end to end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flashmesh_cluster::Rack;
use flashmesh_cluster::mesh::{MeshStream, StreamListener, Streams};
use flashmesh_storage::store::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::status::Reporter;
use crate::server::{Departures, Passed};

/// The service of the head.
pub(super) const SERVICE: &str = "clients";

/// Connections that a node passes on at once; others wait to be accepted. The head has a limit of
/// its own for those of all nodes.
const CONNECTIONS: usize = 1_000;
/// A head takes a connection within this, or the client is sent away: one may have to be elected, and
/// opens the database.
const CONNECT_TIME: Duration = Duration::from_secs(15);
/// The rest between tries.
const RETRY_REST: Duration = Duration::from_millis(50);
/// A stream says whose it is within this, and is answered.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// What the head answers when it has taken a connection.
const TAKEN: u8 = 1;
/// Bytes that are copied at once, of each direction.
const COPY_BYTES: usize = 64 << 10;
/// How long the port rests when it can't accept, for want of file descriptors most likely.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Passes what comes in at `listener` on to the head, until `closing`; gives the clients that are there
/// then. Those among them that no head has taken yet go on waiting for one until `stop`.
pub(super) async fn pass_on(
    listener: TcpListener,
    streams: Streams,
    head: watch::Receiver<Option<NodeId>>,
    reporter: Arc<Reporter>,
    closing: CancellationToken,
    stop: CancellationToken,
) -> JoinSet<()> {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut clients = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = closing.cancelled() => break,
            accepted = async {
                let place = Arc::clone(&places).acquire_owned().await;
                (listener.accept().await, place)
            } => accepted,
        };
        while clients.try_join_next().is_some() {}
        let (stream, address, place) = match accepted {
            (Ok((stream, address)), Ok(place)) => (stream, address, place),
            (Err(error), _) => {
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(ACCEPT_REST).await;
                continue;
            }
            // It is not closed ever.
            (_, Err(_)) => break,
        };
        let (streams, stop, reporter) = (streams.clone(), stop.clone(), Arc::clone(&reporter));
        let head = head.clone();
        clients.spawn(async move {
            reporter.passed_clients.fetch_add(1, Ordering::Relaxed);
            if let Err(why) = pass(stream, address, &streams, head, &stop).await {
                tracing::warn!(client = %address, why, "a client was not passed on");
            }
            reporter.passed_clients.fetch_sub(1, Ordering::Relaxed);
            drop(place);
        });
    }
    clients
}

/// Passes on one connection until it ends.
async fn pass(
    mut client: TcpStream,
    address: SocketAddr,
    streams: &Streams,
    head: watch::Receiver<Option<NodeId>>,
    stop: &CancellationToken,
) -> Result<(), String> {
    // Small answers shall not wait for more to send.
    client
        .set_nodelay(true)
        .map_err(|error| error.to_string())?;
    let mut problem = "no head is known".to_string();
    let mut stream = tokio::select! {
        connected = timeout(CONNECT_TIME, connect(address, streams, head, &mut problem)) => {
            connected.map_err(|_| {
                let seconds = CONNECT_TIME.as_secs();
                format!("the head did not answer within {seconds} s: {problem}")
            })?
        },
        () = stop.cancelled() => return Ok(()),
    };
    let copied =
        tokio::io::copy_bidirectional_with_sizes(&mut client, &mut stream, COPY_BYTES, COPY_BYTES);
    if let Err(error) = copied.await {
        // One of both has gone without a word, and the other is told so.
        tracing::debug!(client = %address, %error, "a client's connection broke");
    }
    Ok(())
}

/// A stream to the head that says whose it is. Of what the client sends nothing has been read, so it
/// is tried again, until whoever waits gives up: the mesh reports a restart of the head once, and only
/// then goes on, and a head that was just elected has a database to open. `problem` is why the last
/// try failed.
async fn connect(
    client: SocketAddr,
    streams: &Streams,
    mut head: watch::Receiver<Option<NodeId>>,
    problem: &mut String,
) -> MeshStream {
    loop {
        let known = match head.wait_for(Option::is_some).await {
            Ok(head) => *head,
            Err(_) => None,
        };
        let connected = async {
            let head = known.ok_or("the node ends")?;
            let stream = streams.connect(head, SERVICE).await;
            let mut stream = stream.map_err(|error| error.to_string())?;
            greet(&mut stream, &greeting(Some(client))).await?;
            Ok(stream)
        };
        match connected.await {
            Ok(stream) => return stream,
            Err::<_, String>(why) => *problem = why,
        }
        tokio::time::sleep(RETRY_REST).await;
    }
}

/// Has the head tell those clients to go on elsewhere that come through this node.
///
/// # Errors
/// A text that says why it can't be.
pub(super) async fn leave(streams: &Streams, head: NodeId) -> Result<(), String> {
    let asked = async {
        let stream = streams.connect(head, SERVICE).await;
        let mut stream = stream.map_err(|error| error.to_string())?;
        greet(&mut stream, &greeting(None)).await
    };
    match timeout(GREETING_TIME, asked).await {
        Ok(asked) => asked,
        Err(_) => Err("it gave no answer".into()),
    }
}

/// Says what a stream is for, and waits until the head has taken it.
async fn greet(stream: &mut MeshStream, greeting: &[u8]) -> Result<(), String> {
    let answered = async {
        stream.write_all(greeting).await?;
        stream.read_u8().await
    };
    match answered.await {
        Ok(TAKEN) => Ok(()),
        Ok(other) => Err(format!("the head answered {other}")),
        Err(error) => Err(error.to_string()),
    }
}

/// What a stream begins with: the client's address, its length before it; nothing where the node ends,
/// and its clients are to go on elsewhere.
fn greeting(client: Option<SocketAddr>) -> Vec<u8> {
    let text = client.map_or_else(String::new, |client| client.to_string());
    let mut greeting = vec![u8::try_from(text.len()).unwrap_or(u8::MAX)];
    greeting.extend_from_slice(text.as_bytes());
    greeting
}

/// The client's address that a stream begins with, if it is a client's.
async fn greeted(stream: &mut MeshStream) -> Result<Option<SocketAddr>, String> {
    let read = async {
        let length = stream.read_u8().await?;
        let mut text = vec![0; usize::from(length)];
        stream.read_exact(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    let text = match timeout(GREETING_TIME, read).await {
        Ok(text) => text.map_err(|error| error.to_string())?,
        Err(_) => return Err("it said nothing".into()),
    };
    if text.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&text);
    let wrong = |_| format!("'{}' is no client's address", text.escape_debug());
    text.parse().map(Some).map_err(wrong)
}

/// Takes a stream of node `via`: hands a client's to the server, or has that node's clients go.
async fn take(
    mut stream: MeshStream,
    via: Arc<str>,
    server: &mpsc::Sender<Passed>,
    departures: &Departures,
) -> Result<(), String> {
    let Some(client) = greeted(&mut stream).await? else {
        departures.leave_via(&via);
        return say_taken(&mut stream).await;
    };
    // A server that ends takes no more, and the node asks the next head.
    let place = server.reserve().await.map_err(|error| error.to_string())?;
    say_taken(&mut stream).await?;
    let stream = Box::new(stream);
    place.send(Passed {
        stream,
        client,
        via,
    });
    Ok(())
}

async fn say_taken(stream: &mut MeshStream) -> Result<(), String> {
    let said = stream.write_u8(TAKEN).await;
    said.map_err(|error| error.to_string())
}

/// Hands the connections that other nodes pass on to the head's server, until that ends.
pub(super) async fn take_passed(
    rack: Arc<Rack>,
    mut incoming: StreamListener,
    server: mpsc::Sender<Passed>,
    departures: Departures,
) {
    let names: Vec<(NodeId, Arc<str>)> = {
        let nodes = rack.nodes.iter();
        nodes
            .map(|node| (node.number(), node.name.as_str().into()))
            .collect()
    };
    let mut greetings = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = incoming.accept() => accepted,
            () = server.closed() => return,
        };
        // The mesh is closed.
        let Ok((from, stream)) = accepted else {
            return;
        };
        while greetings.try_join_next().is_some() {}
        let via = names.iter().find(|(number, _)| *number == from);
        let via = via.map_or_else(|| "?".into(), |(_, name)| Arc::clone(name));
        let (server, departures) = (server.clone(), departures.clone());
        greetings.spawn(async move {
            let taken = take(stream, Arc::clone(&via), &server, &departures).await;
            if let Err(why) = taken {
                tracing::warn!(via = &*via, why, "a connection was not taken");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use flashmesh_cluster::mesh::Mesh;
    use flashmesh_cluster::{STREAMS, Shape};

    use super::*;

    #[tokio::test]
    async fn clients_reach_the_head_with_their_addresses() {
        let rack = Rack::draft(Path::new("/r"), 2, Shape::Line, 1, 50051);
        let rack = Arc::new(Rack::parse(&rack.unwrap()).unwrap());
        let nodes = Mesh::in_process(&rack).unwrap();
        let head = rack.head().number();
        let (sender, mut passed) = mpsc::channel(4);
        let incoming = nodes[0].streams(STREAMS).unwrap();
        let incoming = incoming.listen(SERVICE).unwrap();
        let departures = Departures::default();
        tokio::spawn(take_passed(Arc::clone(&rack), incoming, sender, departures));

        let streams = nodes[1].streams(STREAMS).unwrap();
        let mut stranger = streams.connect(head, SERVICE).await.unwrap();
        stranger.write_all(b"\x05hello").await.unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reporter = Arc::new(Reporter::new(&rack, &rack.nodes[1]));
        let stop = CancellationToken::new();
        let (_known, watched) = watch::channel(Some(head));
        let passing = pass_on(
            listener,
            streams,
            watched,
            Arc::clone(&reporter),
            stop.clone(),
            stop.clone(),
        );
        let passing = tokio::spawn(async { passing.await.join_all().await });
        let mut client = TcpStream::connect(address).await.unwrap();
        let mut at_head = passed.recv().await.unwrap();
        assert_eq!(at_head.client, client.local_addr().unwrap());
        assert_eq!(&*at_head.via, "n01");
        assert_eq!(reporter.passed_clients.load(Ordering::Relaxed), 1);
        // What is no client's address is broken off, and nobody else by it.
        assert!(stranger.read_u8().await.is_err());

        let question: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
        let mut asked = vec![0; question.len()];
        let (written, read) = tokio::join!(
            client.write_all(&question),
            at_head.stream.read_exact(&mut asked)
        );
        assert!(written.is_ok() && read.is_ok() && asked == question);

        // Who is there is waited for; nobody else comes in.
        stop.cancel();
        at_head.stream.write_all(b"answer").await.unwrap();
        at_head.stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");
        assert!(!passing.is_finished());
        drop(client);
        passing.await.unwrap();
        assert_eq!(reporter.passed_clients.load(Ordering::Relaxed), 0);
        assert!(TcpStream::connect(address).await.is_err());
    }
}

//! Measures the mesh beside bare sockets of the same kind, in one process:
//! `cargo run --release -p flashmesh-cluster --example mesh_bench -- [rounds] [part]`,
//! where a part is `latency`, `bandwidth` or `hops`.
//!
//! Latency is half of a round trip of one packet of 64 bytes (or a page of 8 KiB), bandwidth that
//! of packets one after the other, and of a stream of bytes. Both ends are tasks of one runtime, or
//! of one each with a thread of its own, as two processes would be. Rounds of mesh and socket
//! alternate; printed are medians of rounds.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flashmesh_cluster::Rack;
use flashmesh_cluster::mesh::{Endpoint, Mesh};
use flashmesh_pages::store::NodeId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;

// What the flashmesh binary has, too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const PINGS: usize = 2_000;
const STREAM_BYTES: usize = 256 << 20;
const HOPS: usize = 5;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Unix,
    Tcp,
    Memory,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Unix => "Unix socket",
            Self::Tcp => "TCP",
            Self::Memory => "in process",
        }
    }
}

/// Where the two ends run.
struct Places {
    name: &'static str,
    near: Handle,
    far: Handle,
}

fn main() -> Result<()> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(7), |rounds| rounds.parse())?;
    let shared = Builder::new_multi_thread().enable_all().build()?;
    let one = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
    };
    let (near, far) = (one()?, one()?);
    let places = [
        Places {
            name: "one runtime",
            near: shared.handle().clone(),
            far: shared.handle().clone(),
        },
        Places {
            name: "a thread each",
            near: near.handle().clone(),
            far: far.handle().clone(),
        },
    ];
    let folder = std::env::temp_dir().join(format!("mesh-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let outcome = shared.block_on(measure(&folder, &places, rounds));
    std::fs::remove_dir_all(&folder)?;
    outcome
}

async fn measure(folder: &Path, places: &[Places], rounds: usize) -> Result<()> {
    let part = std::env::args().nth(2);
    let wants = |name| part.as_deref().is_none_or(|part| part == name);
    println!("{rounds} rounds, medians; {} processors", processors());
    if wants("latency") {
        measure_latency(folder, places, rounds).await?;
    }
    if wants("bandwidth") {
        measure_bandwidth(folder, places, rounds).await?;
    }
    if wants("hops") {
        println!("\nhops (a line of {} nodes, one runtime):", HOPS + 1);
        for kind in [Kind::Unix, Kind::Memory] {
            measure_hops(folder, kind, &places[0], rounds).await?;
        }
    }
    Ok(())
}

async fn measure_latency(folder: &Path, places: &[Places], rounds: usize) -> Result<()> {
    println!("\none hop, latency (round trip / 2) of {PINGS} pings a round:");
    for (place, kind) in places
        .iter()
        .flat_map(|place| [(place, Kind::Unix), (place, Kind::Tcp)])
    {
        let nodes = line(folder, 2, kind, place).await?;
        for bytes in [64, 8192] {
            let mut echo = echo(&nodes[1], place)?;
            let mut bare = Bare::open(kind, bytes, place).await?;
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                theirs.push(bare.ping(PINGS, place).await?);
                ours.push(ping(&nodes, 1, bytes, PINGS, place).await?);
            }
            echo.abort();
            let _ = (&mut echo).await;
            report_latency(place, kind, bytes, &ours, &theirs);
        }
        close(nodes).await;
    }
    Ok(())
}

async fn measure_bandwidth(folder: &Path, places: &[Places], rounds: usize) -> Result<()> {
    println!("\none hop, bandwidth of {} MiB:", STREAM_BYTES >> 20);
    for (place, kind) in places
        .iter()
        .flat_map(|place| [(place, Kind::Unix), (place, Kind::Tcp)])
    {
        let nodes = line(folder, 2, kind, place).await?;
        for bytes in [8192, 65536] {
            let (mut packets, mut streams, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rounds {
                sockets.push(stream_bare(kind, bytes, place).await?);
                packets.push(send_packets(&nodes, 1, bytes, place).await?);
                streams.push(write_stream(&nodes, bytes, place).await?);
            }
            let [packets, streams, sockets] =
                [&mut packets, &mut streams, &mut sockets].map(|values| median(values));
            println!(
                "  {:13} {:11} {bytes:6} bytes  packets {:5.2} GB/s  stream {:5.2} GB/s  \
                 socket {:5.2} GB/s  {:.0} %, {:.0} %",
                place.name,
                kind.name(),
                packets / 1e9,
                streams / 1e9,
                sockets / 1e9,
                100.0 * packets / sockets,
                100.0 * streams / sockets
            );
        }
        close(nodes).await;
    }
    Ok(())
}

async fn measure_hops(folder: &Path, kind: Kind, place: &Places, rounds: usize) -> Result<()> {
    let nodes = line(folder, HOPS + 1, kind, place).await?;
    let echoes: Vec<_> = nodes[1..]
        .iter()
        .map(|node| echo(node, place))
        .collect::<Result<_>>()?;
    let mut latencies = vec![Vec::new(); HOPS];
    for _ in 0..rounds {
        for (hops, latencies) in latencies.iter_mut().enumerate() {
            latencies.push(ping(&nodes, hops + 1, 64, PINGS, place).await?.0);
        }
    }
    for mut echo in echoes {
        echo.abort();
        let _ = (&mut echo).await;
    }
    let mut bandwidths = vec![Vec::new(); HOPS];
    for _ in 0..rounds {
        for (hops, bandwidths) in bandwidths.iter_mut().enumerate() {
            bandwidths.push(send_packets(&nodes, hops + 1, 65536, place).await?);
        }
    }
    for hops in 0..HOPS {
        println!(
            "  {:11} {} hops  {:6.1} µs  {:5.2} GB/s",
            kind.name(),
            hops + 1,
            median(&mut latencies[hops]),
            median(&mut bandwidths[hops]) / 1e9
        );
    }
    close(nodes).await;
    Ok(())
}

async fn close(nodes: Vec<Mesh>) {
    for node in nodes {
        node.close().await;
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn report_latency(
    place: &Places,
    kind: Kind,
    bytes: usize,
    ours: &[(f64, f64)],
    theirs: &[(f64, f64)],
) {
    let halves = |rounds: &[(f64, f64)]| {
        let mut half: Vec<f64> = rounds.iter().map(|round| round.0).collect();
        let mut late: Vec<f64> = rounds.iter().map(|round| round.1).collect();
        (median(&mut half), median(&mut late))
    };
    let (ours, theirs) = (halves(ours), halves(theirs));
    println!(
        "  {:13} {:11} {bytes:6} bytes  mesh p50 {:5.1} µs, p99 {:5.1} µs  socket p50 {:5.1}, p99 {:5.1}  \
         {:.2} ×",
        place.name,
        kind.name(),
        ours.0,
        ours.1,
        theirs.0,
        theirs.1,
        ours.0 / theirs.0
    );
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// p50 and p99 of half of the times, in µs.
fn percentiles(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort();
    let at = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6 / 2.0;
    (at(50), at(99))
}

/// The nodes of a line, each with its own links.
async fn line(folder: &Path, nodes: usize, kind: Kind, place: &Places) -> Result<Vec<Mesh>> {
    let mut text = "[[endpoint]]\nindex = 0\nname = 'data'\n\
                    [[endpoint]]\nindex = 1\nname = 'streams'\n"
        .to_string();
    for node in 0..nodes {
        let address = match kind {
            Kind::Unix => format!("unix://{}/{node}.sock", folder.display()),
            _ => format!("tcp://127.0.0.1:{}", free_port()?),
        };
        text += &format!(
            "[[node]]\nid = {node}\nname = 'n{node}'\naddress = '{address}'\n\
             [[node.card]]\nid = 0\npath = '{node}'\n"
        );
    }
    for node in 1..nodes {
        text += &format!("[[cable]]\nfrom = 'n{node}/0'\nto = 'n{}/1'\n", node - 1);
    }
    let rack = Rack::parse(&text)?;
    if kind == Kind::Memory {
        return Ok(Mesh::in_process(&rack)?);
    }
    let mut started = Vec::new();
    for node in 0..nodes {
        let rack = rack.clone();
        let start = async move { Mesh::start(&rack, NodeId(node as u16)).await };
        let at = if node == 0 { &place.near } else { &place.far };
        started.push(at.spawn(start).await??);
    }
    Ok(started)
}

fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

/// Sends back what comes to a node.
fn echo(node: &Mesh, place: &Places) -> Result<JoinHandle<()>> {
    let endpoint = node.endpoint("data")?;
    Ok(place.far.spawn(async move {
        while let Ok((from, packet)) = endpoint.receive().await {
            if endpoint.send(from, packet).await.is_err() {
                break;
            }
        }
    }))
}

async fn ping(
    nodes: &[Mesh],
    to: usize,
    bytes: usize,
    count: usize,
    place: &Places,
) -> Result<(f64, f64)> {
    let endpoint = nodes[0].endpoint("data")?;
    let payload = Bytes::from(vec![7; bytes]);
    let pings = async move {
        let mut times = Vec::new();
        for round in 0..count + count / 10 {
            let start = Instant::now();
            endpoint.send(NodeId(to as u16), payload.clone()).await?;
            endpoint.receive().await?;
            if round >= count / 10 {
                times.push(start.elapsed());
            }
        }
        Ok(percentiles(times))
    };
    place.near.spawn(pings).await?
}

/// Bytes a second.
async fn send_packets(nodes: &[Mesh], to: usize, bytes: usize, place: &Places) -> Result<f64> {
    let (sender, receiver) = (nodes[0].endpoint("data")?, nodes[to].endpoint("data")?);
    let payload = Bytes::from(vec![7; bytes]);
    let packets = STREAM_BYTES / bytes;
    let start = Instant::now();
    let sending: JoinHandle<Result<()>> = place.near.spawn(async move {
        for _ in 0..packets {
            sender.send(NodeId(to as u16), payload.clone()).await?;
        }
        Ok(())
    });
    let receiving: JoinHandle<Result<()>> = place
        .far
        .spawn(async move { receive_all(&receiver, packets).await });
    sending.await??;
    receiving.await??;
    Ok(STREAM_BYTES as f64 / start.elapsed().as_secs_f64())
}

/// Bytes a second, of a stream that is read to its end.
async fn write_stream(nodes: &[Mesh], bytes: usize, place: &Places) -> Result<f64> {
    let mut listener = nodes[1].streams("streams")?.listen("bytes")?;
    let connecting = nodes[0].streams("streams")?;
    let mut here = connecting.connect(NodeId(1), "bytes").await?;
    let (_, mut there) = listener.accept().await?;
    let start = Instant::now();
    let sending: JoinHandle<Result<()>> = place.near.spawn(async move {
        let buffer = vec![7; bytes];
        for _ in 0..STREAM_BYTES / bytes {
            here.write_all(&buffer).await?;
        }
        Ok(here.shutdown().await?)
    });
    let receiving: JoinHandle<Result<()>> = place.far.spawn(async move {
        let mut buffer = vec![0; bytes];
        for _ in 0..STREAM_BYTES / bytes {
            there.read_exact(&mut buffer).await?;
        }
        Ok(())
    });
    sending.await??;
    receiving.await??;
    Ok(STREAM_BYTES as f64 / start.elapsed().as_secs_f64())
}

async fn receive_all(receiver: &Endpoint, packets: usize) -> Result<()> {
    for _ in 0..packets {
        receiver.receive().await?;
    }
    Ok(())
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Sockets belong to the runtime in which they are made.
async fn pair(kind: Kind, place: &Places) -> Result<(Box<dyn Stream>, Box<dyn Stream>)> {
    if kind == Kind::Unix {
        let (here, there) = std::os::unix::net::UnixStream::pair()?;
        here.set_nonblocking(true)?;
        there.set_nonblocking(true)?;
        let here = place.near.spawn(async { UnixStream::from_std(here) });
        let there = place.far.spawn(async { UnixStream::from_std(there) });
        return Ok((Box::new(here.await??), Box::new(there.await??)));
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let connected = place.near.spawn(TcpStream::connect(address));
    let (there, _) = listener.accept()?;
    there.set_nonblocking(true)?;
    let here = connected.await??;
    let there = place
        .far
        .spawn(async { TcpStream::from_std(there) })
        .await??;
    here.set_nodelay(true)?;
    there.set_nodelay(true)?;
    Ok((Box::new(here), Box::new(there)))
}

/// A socket whose other end sends back what comes.
struct Bare {
    stream: Option<Box<dyn Stream>>,
    bytes: usize,
}

impl Bare {
    async fn open(kind: Kind, bytes: usize, place: &Places) -> Result<Self> {
        let (here, mut there) = pair(kind, place).await?;
        place.far.spawn(async move {
            let mut buffer = vec![0; bytes];
            while there.read_exact(&mut buffer).await.is_ok() {
                if there.write_all(&buffer).await.is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            stream: Some(here),
            bytes,
        })
    }

    async fn ping(&mut self, count: usize, place: &Places) -> Result<(f64, f64)> {
        let mut stream = self.stream.take().ok_or("in use")?;
        let mut buffer = vec![7; self.bytes];
        let task: JoinHandle<Result<_>> = place.near.spawn(async move {
            let mut times = Vec::new();
            for round in 0..count + count / 10 {
                let start = Instant::now();
                stream.write_all(&buffer).await?;
                stream.read_exact(&mut buffer).await?;
                if round >= count / 10 {
                    times.push(start.elapsed());
                }
            }
            Ok((percentiles(times), stream))
        });
        let (times, stream) = task.await??;
        self.stream = Some(stream);
        Ok(times)
    }
}

/// Bytes a second.
async fn stream_bare(kind: Kind, bytes: usize, place: &Places) -> Result<f64> {
    let (mut here, mut there) = pair(kind, place).await?;
    let start = Instant::now();
    let sending: JoinHandle<Result<()>> = place.near.spawn(async move {
        let buffer = vec![7; bytes];
        for _ in 0..STREAM_BYTES / bytes {
            here.write_all(&buffer).await?;
        }
        Ok(())
    });
    let receiving: JoinHandle<Result<()>> = place.far.spawn(async move {
        let mut buffer = vec![0; bytes];
        for _ in 0..STREAM_BYTES / bytes {
            there.read_exact(&mut buffer).await?;
        }
        Ok(())
    });
    sending.await??;
    receiving.await??;
    Ok(STREAM_BYTES as f64 / start.elapsed().as_secs_f64())
}

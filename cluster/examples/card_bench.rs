//! Measures a card of another node beside the same card used directly:
//! `cargo run --release -p flashmesh-cluster --example card_bench -- [rounds] [file]`.
//!
//! Two nodes of one process, each with a runtime of one thread, linked by a Unix socket; the card is
//! memory and, where a file is named, that file, which is made and removed. Random reads of one page,
//! one and 64 at a time, and reads of 32 pages one after the other, 16 at a time, all from one thread.
//! Rounds of near and far alternate; printed are medians of rounds.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use flashmesh_cluster::Rack;
use flashmesh_cluster::cards::{CardOptions, Cards, TermFile};
use flashmesh_cluster::mesh::Mesh;
use flashmesh_pages::flash::{
    FileFlash, FileFlashOptions, Flash, FlashOp, FlashPage, Geometry, MemoryFlash, PAGE_SIZE_BYTES,
    PageBuffer, Tag,
};
use flashmesh_pages::store::{CardId, NodeId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::{Builder, Runtime};

// What the flashmesh binary has, too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Pages of the card that are written, and read (256 MiB).
const PAGES: u64 = 32_768;
const PAGES_AT_ONCE: u64 = 32;

type Nodes = Vec<(Cards, Mesh)>;

/// Reads of a round: how many, of how many pages, how many at a time, and in which order.
struct Part {
    name: &'static str,
    reads: u64,
    pages: u64,
    depth: usize,
    is_random: bool,
}

const PARTS: [Part; 3] = [
    Part {
        name: "random pages, one at a time",
        reads: 5_000,
        pages: 1,
        depth: 1,
        is_random: true,
    },
    Part {
        name: "random pages, 64 at a time",
        reads: 50_000,
        pages: 1,
        depth: 64,
        is_random: true,
    },
    Part {
        name: "pages in order, 16 x 32 at a time",
        reads: 2 * PAGES / PAGES_AT_ONCE,
        pages: PAGES_AT_ONCE,
        depth: 16,
        is_random: false,
    },
];

fn main() -> Result<()> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(11), |rounds| rounds.parse())?;
    let geometry = Geometry {
        pages_per_erase_block: 256,
        erase_blocks: 1024,
    };
    let folder = std::env::temp_dir().join(format!("card-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    println!("{rounds} rounds, medians");
    measure(
        "memory",
        Arc::new(MemoryFlash::new(geometry, 1)),
        &folder,
        rounds,
    )?;
    if let Some(path) = std::env::args().nth(2).map(PathBuf::from) {
        if path.exists() {
            return Err(format!("{path:?} exists; name a file that may be made").into());
        }
        let flash = FileFlash::open(&path, FileFlashOptions::default())?;
        let name = format!("file, {:?}", flash.io_mode());
        let outcome = measure(&name, Arc::new(flash), &folder, rounds);
        std::fs::remove_file(&path)?;
        outcome?;
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn measure(name: &str, near: Arc<dyn Flash>, folder: &Path, rounds: usize) -> Result<()> {
    println!("\n{name}:");
    fill(&*near)?;
    let (runtimes, nodes) = start(&near, folder)?;
    let far = nodes[0].0.open(NodeId(1), CardId(0), 1)?;
    for part in &PARTS {
        let (mut at_home, mut over_mesh) = (Vec::new(), Vec::new());
        for round in 0..rounds as u64 {
            at_home.push(part.run(&*near, round)?);
            over_mesh.push(part.run(&far, round)?);
        }
        let seconds = [median(&mut at_home), median(&mut over_mesh)];
        let per_read = seconds.map(|all| all / part.reads as f64 * 1e6);
        let rate = seconds.map(|all| part.reads as f64 / all);
        let mib = rate.map(|rate| rate * (part.pages * PAGE_SIZE_BYTES as u64) as f64 / 1048576.0);
        println!(
            "  {:34} near {:8.1} µs a read, {:9.0} reads/s, {:6.0} MiB/s   far {:8.1} µs, {:9.0}, {:6.0}",
            part.name, per_read[0], rate[0], mib[0], per_read[1], rate[1], mib[1]
        );
    }
    drop(far);
    for (cards, mesh) in nodes {
        drop(cards);
        runtimes[0].block_on(mesh.close());
    }
    Ok(())
}

/// Two nodes; the second one serves the card.
fn start(card: &Arc<dyn Flash>, folder: &Path) -> Result<([Runtime; 2], Nodes)> {
    let mut text = "[[endpoint]]\nindex = 0\nname = 'pages'\nflow = 'end-to-end'\n".to_string();
    for node in 0..2 {
        text += &format!(
            "[[node]]\nid = {node}\nname = 'n{node}'\naddress = 'unix://{}/{node}.sock'\n\
             [[node.card]]\nid = 0\npath = '{node}'\n",
            folder.display()
        );
    }
    text += "[[cable]]\nfrom = 'n0/0'\nto = 'n1/0'\n";
    let rack = Rack::parse(&text)?;
    let one = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
    };
    let runtimes = [one()?, one()?];
    let mut nodes = Vec::new();
    for (number, runtime) in (0_u16..).zip(&runtimes) {
        let mesh = runtime.block_on(Mesh::start(&rack, NodeId(number)))?;
        let cards = match number {
            1 => vec![(CardId(0), card.clone())],
            _ => Vec::new(),
        };
        let terms = Arc::new(TermFile::new(folder.join(format!("{number}.term"))));
        let cards = Cards::start(&mesh, cards, terms, &CardOptions::default())?;
        nodes.push((cards, mesh));
    }
    Ok((runtimes, nodes))
}

fn fill(flash: &dyn Flash) -> Result<()> {
    let mut queue = flash.open_queue()?;
    let mut completions = Vec::new();
    for first in (0..PAGES).step_by(PAGES_AT_ONCE as usize) {
        if queue.in_flight() == queue.depth() {
            queue.wait(1, &mut completions)?;
        }
        let page = |number: u64| {
            let mut buffer = PageBuffer::recycled();
            buffer.fill(number as u8 | 1);
            buffer
        };
        queue.submit(FlashOp::Write {
            tag: Tag(first),
            first: FlashPage(first),
            buffers: (first..first + PAGES_AT_ONCE).map(page).collect(),
        })?;
    }
    queue.wait(queue.in_flight(), &mut completions)?;
    completions
        .into_iter()
        .try_for_each(|completion| completion.result)?;
    Ok(flash.sync()?)
}

impl Part {
    /// Seconds that all reads take.
    fn run(&self, flash: &dyn Flash, seed: u64) -> Result<f64> {
        let mut chance = StdRng::seed_from_u64(seed);
        let mut queue = flash.open_queue()?;
        let mut completions = Vec::new();
        let mut begun = 0;
        let start = Instant::now();
        while begun < self.reads || queue.in_flight() > 0 {
            while begun < self.reads && queue.in_flight() < self.depth {
                let first = match self.is_random {
                    true => chance.random_range(0..PAGES),
                    false => begun * self.pages % PAGES,
                };
                queue.submit(FlashOp::Read {
                    tag: Tag(begun),
                    first: FlashPage(first),
                    buffers: (0..self.pages).map(|_| PageBuffer::recycled()).collect(),
                })?;
                begun += 1;
            }
            queue.wait(1, &mut completions)?;
            for completion in completions.drain(..) {
                completion.result?;
                assert!(completion.buffers[0][0] & 1 == 1, "a page that was written");
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

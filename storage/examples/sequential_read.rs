//! How fast a cold table streams through the page store.
//!
//! Writes pages through the store into a file, drops the cache, and reads all of them back through
//! a `PageReader` with read-ahead: what a full scan of a table larger than its cache does, short of
//! decoding. Where `fio` is installed it reads the same file in turn, so that both meet the same
//! moods of the machine.
//!
//! ```text
//! cargo run --release -p flashmesh-storage --example sequential_read -- /data/scan.flash 2
//! ```
//!
//! Arguments: a file (made, and removed afterwards), GiB, reading threads, columns, MiB of cache,
//! passes.

use std::collections::VecDeque;
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::Int64Array;
use flashmesh_storage::Result;
use flashmesh_storage::flash::{FileFlash, FileFlashOptions, PAGE_SIZE_BYTES};
use flashmesh_storage::page::{ChunkIdentity, PageIdentity, SEGMENT_ROWS, encode_chunk};
use flashmesh_storage::store::{PageReader, PageRun, PageStore, ReadCounters};

/// The runs of one segment, a column each.
type Segment = Vec<PageRun>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| {
        arguments
            .get(index)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let path = arguments.first().expect("the file to use");
    let (gib, threads, columns) = (number(1, 1), number(2, 1), number(3, 4));
    let (cache_mib, passes) = (number(4, 64), number(5, 5));

    let flash = FileFlash::open(path, FileFlashOptions::default())?;
    println!(
        "{:?} I/O; {gib} GiB, {columns} columns, {threads} threads, {cache_mib} MiB cache",
        flash.io_mode()
    );
    let store = PageStore::open(Arc::new(flash), (cache_mib as u64) << 20, [])?;
    let start = Usage::now();
    let segments = write(&store, (gib << 30) / PAGE_SIZE_BYTES, columns)?;
    let pages = segments
        .iter()
        .flatten()
        .map(|run| run.count as usize)
        .sum();
    println!("write: {}", start.until_now(pages).1);

    let mut rates = Vec::new();
    let mut fio_rates = Vec::new();
    for _ in 0..passes {
        store.cache().clear();
        let start = Usage::now();
        let counters = read(&store, &segments, threads)?;
        let (rate, text) = start.until_now(pages);
        rates.push(rate);
        println!(
            "read:  {text}; waited {:.2} s",
            counters.wait_ns as f64 / 1e9
        );
        fio_rates.extend(fio(path, gib).inspect(|rate| println!("fio:   {rate:.0} MiB/s")));
    }
    println!("median: {:.0} MiB/s", median(&mut rates));
    if !fio_rates.is_empty() {
        let fio = median(&mut fio_rates);
        println!(
            "median of fio: {fio:.0} MiB/s; ratio {:.2}",
            median(&mut rates) / fio
        );
    }
    warm(
        &store,
        &segments[..segments
            .len()
            .min(32_768 / columns / segments[0][0].count as usize)],
    )?;
    std::fs::remove_file(path).expect("removing the file");
    Ok(())
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// What fio reads in MiB/s, if it is installed.
fn fio(path: &str, gib: usize) -> Option<f64> {
    let output = Command::new("fio")
        .args([
            "--name=read",
            "--rw=read",
            "--bs=1M",
            "--iodepth=16",
            "--direct=1",
        ])
        .args([
            "--ioengine=io_uring",
            "--readonly",
            "--output-format=terse",
            "--minimal",
        ])
        .args([format!("--filename={path}"), format!("--size={gib}G")])
        .output()
        .ok()?;
    // Field 7 of the terse format (version 3) is the bandwidth of reading in KiB/s.
    let text = String::from_utf8_lossy(&output.stdout);
    let field = text
        .lines()
        .find(|line| line.starts_with("3;"))?
        .split(';')
        .nth(6)?;
    Some(field.parse::<f64>().ok()? / 1024.0)
}

/// Writes about so many pages as segments of columns full of noise.
fn write(store: &Arc<PageStore>, pages: usize, columns: usize) -> Result<Vec<Segment>> {
    let mut writer = store.writer()?;
    let mut segments = Vec::new();
    let mut word = 1u64;
    let mut written = 0;
    for segment in 0.. {
        if written >= pages {
            break;
        }
        let mut runs = Vec::new();
        for column_group in 0..columns as u16 {
            let noise = Int64Array::from_iter_values((0..SEGMENT_ROWS).map(|_| {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                word as i64 >> 32
            }));
            let identity = ChunkIdentity {
                table: 1,
                segment,
                column_group,
                generation: 1,
            };
            let pages = encode_chunk(&noise, identity)?.pages;
            let count = pages.len() as u32;
            written += pages.len();
            runs.push(PageRun {
                first: writer.append(pages)?,
                count,
                identity: PageIdentity {
                    table: 1,
                    segment,
                    column_group,
                    page: 0,
                    generation: 1,
                },
                label: Arc::from(format!("table 't', column {column_group}")),
                part: None,
            });
        }
        segments.push(runs);
    }
    writer.finish()?.keep();
    store.sync()?;
    Ok(segments)
}

/// Reads all segments with several threads, as scans do: announced ahead, taken in order.
fn read(store: &Arc<PageStore>, segments: &[Segment], threads: usize) -> Result<ReadCounters> {
    let next = AtomicUsize::new(0);
    let take = || segments.get(next.fetch_add(1, Ordering::Relaxed));
    let scan = || -> Result<ReadCounters> {
        let mut reader = store.reader()?;
        let mut ahead = VecDeque::new();
        loop {
            while ahead.len() < 2 || reader.wants_more() {
                let Some(segment) = take() else { break };
                announce(&mut reader, segment)?;
                ahead.push_back(segment);
            }
            let Some(segment) = ahead.pop_front() else {
                return Ok(reader.take_counters());
            };
            touch(&mut reader, segment)?;
        }
    };
    let mut total = ReadCounters::default();
    std::thread::scope(|scope| {
        let scans: Vec<_> = (0..threads).map(|_| scope.spawn(scan)).collect();
        for counters in scans {
            let counters = counters.join().expect("no panic")?;
            total.pages_from_flash += counters.pages_from_flash;
            total.bytes_from_flash += counters.bytes_from_flash;
            total.pages_from_cache += counters.pages_from_cache;
            total.wait_ns += counters.wait_ns;
        }
        Ok(total)
    })
}

fn announce(reader: &mut PageReader, segment: &Segment) -> Result<()> {
    segment
        .iter()
        .try_for_each(|run| reader.prefetch(run, 0..run.count))
}

fn touch(reader: &mut PageReader, segment: &Segment) -> Result<()> {
    for run in segment {
        for page in 0..run.count {
            black_box(reader.get(run, page)?);
        }
    }
    Ok(())
}

/// What a page costs that is in the cache.
fn warm(store: &Arc<PageStore>, segments: &[Segment]) -> Result<()> {
    store.cache().set_capacity_bytes(1 << 30);
    let mut reader = store.reader()?;
    for _ in 0..2 {
        segments
            .iter()
            .try_for_each(|segment| touch(&mut reader, segment))?;
    }
    reader.take_counters();
    for announced in [false, true] {
        let start = Instant::now();
        for segment in segments {
            if announced {
                announce(&mut reader, segment)?;
            }
            touch(&mut reader, segment)?;
        }
        let wall_ns = start.elapsed().as_nanos() as f64;
        let counters = reader.take_counters();
        let pages = segments
            .iter()
            .flatten()
            .map(|run| f64::from(run.count))
            .sum::<f64>();
        let how = if announced {
            "announced before"
        } else {
            "just taken"
        };
        println!(
            "warm:  {:.0} ns a page, {how}; {counters:?}",
            wall_ns / pages
        );
    }
    Ok(())
}

/// Time and processor time of the process.
struct Usage {
    wall: Instant,
    user: Duration,
    system: Duration,
}

impl Usage {
    fn now() -> Self {
        // SAFETY: `rusage` is plain data for which zeros are valid; the call writes only to it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        };
        Self {
            wall: Instant::now(),
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
        }
    }

    /// MiB/s since, and a text with the processor time.
    fn until_now(&self, pages: usize) -> (f64, String) {
        let now = Self::now();
        let wall = (now.wall - self.wall).as_secs_f64();
        let mib = pages as f64 * PAGE_SIZE_BYTES as f64 / (1 << 20) as f64;
        let text = format!(
            "{:.0} MiB/s in {wall:.2} s; cores: {:.2} user + {:.2} system",
            mib / wall,
            (now.user - self.user).as_secs_f64() / wall,
            (now.system - self.system).as_secs_f64() / wall,
        );
        (mib / wall, text)
    }
}

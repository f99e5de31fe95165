//! The conformance suite on every device, and what each promises beyond it.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::*;

const GEOMETRY: Geometry = Geometry {
    pages_per_erase_block: 32,
    erase_blocks: 64,
};

fn memory(seed: u64) -> Arc<MemoryFlash> {
    Arc::new(MemoryFlash::new(GEOMETRY, seed))
}

/// Seeds of this run: the clock's, so that runs differ; a failing one is printed.
pub(super) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let time = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let first = match std::env::var("FLASHMESH_TEST_SEED") {
        Ok(seed) => seed.parse().expect("FLASHMESH_TEST_SEED is a number"),
        Err(_) => time.as_nanos() as u64 >> 10,
    };
    (first..first + count).inspect(|seed| println!("FLASHMESH_TEST_SEED={seed}"))
}

/// Any kind of device that a closure can make.
struct Made<F>(F);

impl<F: Fn() -> Arc<D>, D: Flash + 'static> conformance::Subject for Made<F> {
    fn create(&self) -> Arc<dyn Flash> {
        (self.0)()
    }
}

/// Files in a folder of their own.
struct Files {
    folder: TempDir,
    count: AtomicU64,
    options: FileFlashOptions,
}

impl Files {
    fn new(io: IoMode) -> Self {
        let options = FileFlashOptions {
            io,
            ..FileFlashOptions::default()
        };
        Self {
            folder: tempfile::tempdir().unwrap(),
            count: AtomicU64::new(0),
            options,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder
            .path()
            .join(self.count.fetch_add(1, Ordering::Relaxed).to_string())
    }
}

impl conformance::Subject for Files {
    fn create(&self) -> Arc<dyn Flash> {
        Arc::new(FileFlash::open(self.path(), self.options.clone()).unwrap())
    }

    fn reopen(&self, flash: Arc<dyn Flash>) -> Arc<dyn Flash> {
        Arc::new(FileFlash::open(flash.name(), self.options.clone()).unwrap())
    }
}

/// Whether files of the temporary folder can be reached by direct I/O; says so if not.
fn has_direct_io() -> bool {
    let files = Files::new(IoMode::Auto);
    let flash = FileFlash::open(files.path(), files.options.clone()).unwrap();
    if let Some(reason) = flash.fallback_reason() {
        println!("not run for direct I/O: {reason}");
    }
    flash.io_mode() == IoMode::Direct
}

#[test]
fn memory_conforms() {
    for seed in seeds(20) {
        conformance::run_all(&Made(|| memory(seed)), seed);
    }
}

#[test]
fn direct_files_conform() {
    if has_direct_io() {
        for seed in seeds(2) {
            conformance::run_all(&Files::new(IoMode::Direct), seed);
        }
    }
}

#[test]
fn buffered_files_conform() {
    for seed in seeds(2) {
        conformance::run_all(&Files::new(IoMode::Buffered), seed);
    }
}

#[test]
fn files_with_a_shallow_queue_conform() {
    let mut files = Files::new(IoMode::Auto);
    files.options.queue_depth = 1;
    files.options.capacity_bytes = Some(9 * (2 << 20) + 12_345);
    conformance::run_all(&files, 1);
}

#[test]
fn throttled_flash_conforms() {
    for seed in seeds(5) {
        conformance::run_all(
            &Made(|| {
                let options = ThrottleOptions {
                    read_latency: Duration::from_micros(50),
                    write_latency: Duration::from_micros(500),
                    erase_latency: Duration::from_millis(3),
                    bytes_per_second: Some(1 << 30),
                };
                let clock = Arc::new(ManualClock::default());
                Arc::new(ThrottleFlash::with_clock(memory(seed), options, clock))
            }),
            seed,
        );
    }
}

#[test]
fn joined_cards_conform() {
    let card = |seed, queue_depth| {
        let options = LimitOptions {
            queue_depth,
            capacity_bytes: u64::MAX,
        };
        Arc::new(LimitFlash::new(memory(seed), options).unwrap()) as Arc<dyn Flash>
    };
    for seed in seeds(10) {
        let joined = || {
            let cards = vec![card(seed, 128), card(seed + 1, 3), card(seed + 2, 1)];
            let firsts = (0..).map(|card| card * GEOMETRY.pages());
            Arc::new(JoinedFlash::new(firsts.zip(cards)).unwrap())
        };
        conformance::run_all(&Made(joined), seed);
    }
}

#[test]
fn a_joined_card_that_is_away_fails_its_own_pages_alone() {
    #[derive(Debug)]
    struct Away(Arc<MemoryFlash>);
    impl Flash for Away {
        fn name(&self) -> String {
            "a card that is away".into()
        }
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }
        fn used_erase_blocks(&self) -> Result<u64> {
            self.0.used_erase_blocks()
        }
        fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
            Err(StorageError::Invalid(self.name()))
        }
        fn sync(&self) -> Result<()> {
            Err(StorageError::Invalid(self.name()))
        }
        fn continues_blocks(&self) -> bool {
            true
        }
        fn health(&self) -> Option<FlashHealth> {
            None
        }
    }
    let cards: Vec<Arc<dyn Flash>> = vec![Arc::new(Away(memory(1))), memory(2)];
    // Ranges longer than the cards: what lies between is refused.
    let stride = 2 * GEOMETRY.pages();
    let joined = JoinedFlash::new([0, stride].into_iter().zip(cards)).unwrap();
    assert!(joined.sync().unwrap_err().to_string().contains("is away"));
    let mut queue = joined.open_queue().unwrap();
    for (tag, first) in [(1, 0), (2, stride), (3, 5)] {
        let buffers = vec![PageBuffer::zeroed(); 2];
        let first = FlashPage(first);
        let tag = Tag(tag);
        queue
            .submit(FlashOp::Write {
                tag,
                first,
                buffers,
            })
            .unwrap();
    }
    let beyond = FlashPage(GEOMETRY.pages() - 1);
    let refused = queue.submit(FlashOp::Read {
        tag: Tag(4),
        first: beyond,
        buffers: vec![PageBuffer::zeroed(); 2],
    });
    assert!(matches!(refused, Err(StorageError::Invalid(_))));
    let mut ended = Vec::new();
    queue.wait(3, &mut ended).unwrap();
    ended.sort_by_key(|completion| completion.tag.0);
    let ended: Vec<_> = ended
        .iter()
        .map(|completion| (completion.result.is_ok(), completion.buffers.len()))
        .collect();
    assert_eq!(ended, [(false, 2), (true, 2), (false, 2)]);
}

#[test]
fn limited_flash_conforms() {
    for seed in seeds(5) {
        conformance::run_all(
            &Made(|| {
                let options = LimitOptions {
                    queue_depth: 5,
                    capacity_bytes: u64::MAX,
                };
                Arc::new(LimitFlash::new(memory(seed), options).unwrap())
            }),
            seed,
        );
    }
}

#[test]
fn flash_with_faults_that_never_happen_conforms() {
    for seed in seeds(5) {
        let options = FaultOptions {
            seed,
            ..FaultOptions::default()
        };
        conformance::run_all(
            &Made(|| Arc::new(FaultFlash::new(memory(seed), options))),
            seed,
        );
    }
}

#[test]
fn wrappers_conform_on_top_of_each_other() {
    let files = Files::new(IoMode::Auto);
    conformance::run_all(
        &Made(|| {
            let file = conformance::Subject::create(&files);
            let options = LimitOptions {
                queue_depth: 17,
                capacity_bytes: u64::MAX,
            };
            let limited = Arc::new(LimitFlash::new(file, options).unwrap());
            let faulty = Arc::new(FaultFlash::new(limited, FaultOptions::default()));
            let options = ThrottleOptions {
                read_latency: Duration::from_millis(1),
                ..ThrottleOptions::default()
            };
            Arc::new(ThrottleFlash::with_clock(
                faulty,
                options,
                Arc::new(ManualClock::default()),
            ))
        }),
        3,
    );
}

fn page(byte: u8) -> PageBuffer {
    let mut buffer = PageBuffer::recycled();
    buffer.fill(byte);
    buffer
}

fn finish(queue: &mut dyn FlashQueue, op: FlashOp) -> Result<Vec<PageBuffer>> {
    queue.submit(op)?;
    let mut completions = Vec::new();
    queue.wait(1, &mut completions)?;
    let completion = completions.pop().unwrap();
    completion.result.map(|()| completion.buffers)
}

fn write(flash: &dyn Flash, first: u64, bytes: &[u8]) -> Result<()> {
    let buffers = bytes.iter().map(|&byte| page(byte)).collect();
    let op = FlashOp::Write {
        tag: Tag(0),
        first: FlashPage(first),
        buffers,
    };
    finish(&mut *flash.open_queue()?, op).map(|_| ())
}

fn read(flash: &dyn Flash, first: u64, pages: usize) -> Result<Vec<PageBuffer>> {
    let buffers = (0..pages).map(|_| page(0xEE)).collect();
    let op = FlashOp::Read {
        tag: Tag(0),
        first: FlashPage(first),
        buffers,
    };
    finish(&mut *flash.open_queue()?, op)
}

fn erase(flash: &dyn Flash, first: u64) -> Result<()> {
    let op = FlashOp::Erase {
        tag: Tag(0),
        first: FlashPage(first),
    };
    finish(&mut *flash.open_queue()?, op).map(|_| ())
}

/// The byte that fills each page, which must be of one byte only.
fn bytes(pages: &[PageBuffer]) -> Vec<u8> {
    let byte = |page: &PageBuffer| {
        assert!(
            page.iter().all(|&byte| byte == page[0]),
            "a page of several bytes"
        );
        page[0]
    };
    pages.iter().map(byte).collect()
}

#[test]
fn memory_refuses_a_second_write() {
    let flash = memory(1);
    write(&*flash, 0, &[1, 2, 3]).unwrap();
    assert!(matches!(
        write(&*flash, 2, &[9, 9]),
        Err(StorageError::Invalid(_))
    ));
    assert_eq!(bytes(&read(&*flash, 0, 4).unwrap()), [1, 2, 3, 0]);
}

#[test]
fn a_file_that_ends_within_a_page_reads_zeros_behind() {
    for io in [IoMode::Auto, IoMode::Buffered] {
        let files = Files::new(io);
        let path = files.path();
        std::fs::write(&path, vec![7; PAGE_SIZE_BYTES + 1234]).unwrap();
        let flash = FileFlash::open(&path, files.options.clone()).unwrap();
        let pages = read(&flash, 0, 4).unwrap();
        assert_eq!(bytes(&pages[..1]), [7]);
        assert!(pages[1][..1234].iter().all(|&byte| byte == 7));
        assert!(pages[1][1234..].iter().all(|&byte| byte == 0));
        assert_eq!(bytes(&pages[2..]), [0, 0]);
    }
}

#[test]
fn a_file_opened_for_reading_is_not_changed() {
    for io in [IoMode::Auto, IoMode::Buffered] {
        let files = Files::new(io);
        let path = files.path();
        let flash = FileFlash::open(&path, files.options.clone()).unwrap();
        write(&flash, 0, &[5]).unwrap();
        let options = FileFlashOptions {
            read_only: true,
            ..files.options.clone()
        };
        let flash = FileFlash::open(&path, options.clone()).unwrap();
        assert_eq!(bytes(&read(&flash, 0, 1).unwrap()), [5]);
        for result in [write(&flash, 1, &[6]), erase(&flash, 0)] {
            match result {
                Err(StorageError::ReadOnly { path: named, .. }) => assert_eq!(named, path),
                other => panic!("{other:?} in place of ReadOnly"),
            }
        }
        flash.sync().unwrap();
        let missing = files.path();
        assert!(matches!(
            FileFlash::open(&missing, options),
            Err(StorageError::NotFound { .. })
        ));
        assert!(!missing.exists());
    }
}

#[test]
fn an_erased_file_gives_its_space_back() {
    use std::os::unix::fs::MetadataExt;
    for io in [IoMode::Auto, IoMode::Buffered] {
        let files = Files::new(io);
        let path = files.path();
        let flash = FileFlash::open(&path, files.options.clone()).unwrap();
        let block = u64::from(flash.geometry().pages_per_erase_block);
        for first in (0..4 * block).step_by(64) {
            write(&flash, first, &[1; 64]).unwrap();
        }
        flash.sync().unwrap();
        let allocated = || path.metadata().unwrap().blocks() * 512;
        let before = allocated();
        if before < 4 * (2 << 20) {
            println!("the file system does not tell what it allocates");
            return;
        }
        for index in 0..4 {
            erase(&flash, index * block).unwrap();
        }
        flash.sync().unwrap();
        assert!(
            allocated() < before / 4,
            "{} bytes of {before} are left",
            allocated()
        );
    }
}

#[test]
fn a_file_ends_at_its_capacity() {
    let files = Files::new(IoMode::Auto);
    let options = FileFlashOptions {
        capacity_bytes: Some(5 << 20),
        ..files.options.clone()
    };
    let flash = FileFlash::open(files.path(), options).unwrap();
    assert_eq!(flash.geometry().erase_blocks, 2);
    write(&flash, 511, &[1]).unwrap();
    assert!(matches!(
        write(&flash, 512, &[1]),
        Err(StorageError::Invalid(_))
    ));
}

#[test]
fn direct_is_refused_with_the_reason_where_it_is_missing() {
    // What procfs lacks for sure.
    let options = FileFlashOptions {
        read_only: true,
        create: false,
        io: IoMode::Direct,
        ..FileFlashOptions::default()
    };
    if cfg!(target_os = "linux") {
        let error = FileFlash::open("/proc/self/maps", options.clone()).unwrap_err();
        assert!(matches!(error, StorageError::Io { .. }), "{error}");
        let options = FileFlashOptions {
            io: IoMode::Auto,
            ..options
        };
        let flash = FileFlash::open("/proc/self/maps", options).unwrap();
        assert_eq!(flash.io_mode(), IoMode::Buffered);
        assert!(flash.fallback_reason().is_some());
    }
}

#[test]
fn a_file_holds_what_another_tool_sees() {
    let files = Files::new(IoMode::Auto);
    let path = files.path();
    let flash = FileFlash::open(&path, files.options.clone()).unwrap();
    write(&flash, 3, &[1, 2]).unwrap();
    flash.sync().unwrap();
    let mut found = [0; 2];
    std::fs::File::open(&path)
        .unwrap()
        .read_exact_at(&mut found, 4 * 8192 - 1)
        .unwrap();
    assert_eq!(found, [1, 2]);
}

#[test]
fn limit_counts_pages_until_they_are_erased() {
    let options = LimitOptions {
        queue_depth: 8,
        capacity_bytes: 40 * PAGE_SIZE_BYTES as u64,
    };
    let inner = memory(1);
    let flash = LimitFlash::new(inner.clone(), options).unwrap();
    write(&flash, 0, &[1; 32]).unwrap();
    match write(&flash, 32, &[2; 9]) {
        Err(StorageError::Full {
            needed_bytes,
            free_bytes,
            ..
        }) => {
            assert_eq!((needed_bytes, free_bytes), (9 * 8192, 8 * 8192));
        }
        other => panic!("{other:?} in place of Full"),
    }
    write(&flash, 32, &[2; 8]).unwrap();
    assert!(matches!(
        write(&flash, 40, &[3]),
        Err(StorageError::Full { .. })
    ));
    erase(&flash, 0).unwrap();
    write(&flash, 64, &[3; 32]).unwrap();
    assert!(matches!(
        write(&flash, 0, &[4]),
        Err(StorageError::Full { .. })
    ));
    // Blocks that were in use before count as full.
    let flash = LimitFlash::new(inner, options).unwrap();
    assert!(matches!(
        write(&flash, 0, &[4]),
        Err(StorageError::Full { .. })
    ));
}

#[test]
fn throttle_shares_the_channel_and_adds_latency() {
    let clock = Arc::new(ManualClock::default());
    let options = ThrottleOptions {
        read_latency: Duration::from_millis(10),
        write_latency: Duration::ZERO,
        erase_latency: Duration::ZERO,
        bytes_per_second: Some(PAGE_SIZE_BYTES as u64 * 1000),
    };
    let flash = ThrottleFlash::with_clock(memory(1), options, clock.clone());
    let mut queues = [flash.open_queue().unwrap(), flash.open_queue().unwrap()];
    let mut completions = Vec::new();
    for tag in 0..4 {
        let op = FlashOp::Read {
            tag: Tag(tag),
            first: FlashPage(0),
            buffers: vec![page(1); 2],
        };
        queues[tag as usize % 2].submit(op).unwrap();
    }
    // The channel needs 2 ms a read: they end at 12, 14, 16 and 18 ms.
    for (now_ms, ended) in [(11, 0), (12, 1), (15, 1), (16, 1), (17, 0), (18, 1)] {
        clock.advance(Duration::from_millis(now_ms).saturating_sub(clock.now()));
        for queue in &mut queues {
            // The device below ends its operations in some calls only.
            for _ in 0..100 {
                queue.wait(0, &mut completions).unwrap();
            }
        }
        assert_eq!(completions.drain(..).count(), ended, "at {now_ms} ms");
    }
    // Waiting sleeps until the time has come.
    let op = FlashOp::Read {
        tag: Tag(9),
        first: FlashPage(0),
        buffers: vec![page(1)],
    };
    finish(&mut *queues[0], op).unwrap();
    assert_eq!(clock.now(), Duration::from_millis(18 + 1 + 10));
}

fn faulty(options: FaultOptions) -> (Arc<MemoryFlash>, FaultFlash) {
    let inner = memory(options.seed);
    (inner.clone(), FaultFlash::new(inner, options))
}

#[test]
fn the_nth_operation_fails_once() {
    let (_, flash) = faulty(FaultOptions {
        fail: When::Nth(1),
        ..FaultOptions::default()
    });
    write(&flash, 0, &[1]).unwrap();
    assert!(matches!(
        write(&flash, 32, &[2, 2]),
        Err(StorageError::Io { .. })
    ));
    assert_eq!(bytes(&read(&flash, 0, 1).unwrap()), [1]);

    let (_, flash) = faulty(FaultOptions {
        fail: When::Nth(1),
        ..FaultOptions::default()
    });
    write(&flash, 0, &[1]).unwrap();
    assert!(matches!(read(&flash, 0, 1), Err(StorageError::Io { .. })));
    assert_eq!(bytes(&read(&flash, 0, 1).unwrap()), [1]);
}

#[test]
fn pages_are_torn_lost_misdirected_and_flipped() {
    let nth = When::Nth(1);
    let (_, flash) = faulty(FaultOptions {
        torn_write: nth,
        ..FaultOptions::default()
    });
    write(&flash, 0, &[1, 2, 3]).unwrap();
    let pages = read(&flash, 0, 3).unwrap();
    let whole = pages[1].iter().take_while(|&&byte| byte == 2).count();
    assert!(whole > 0 && whole < PAGE_SIZE_BYTES && whole % 512 == 0);
    assert!(pages[1][whole..].iter().all(|&byte| byte == 0));
    assert_eq!((bytes(&pages[..1]), bytes(&pages[2..])), (vec![1], vec![3]));

    let (_, flash) = faulty(FaultOptions {
        lost_write: nth,
        ..FaultOptions::default()
    });
    write(&flash, 0, &[1, 2, 3]).unwrap();
    assert_eq!(bytes(&read(&flash, 0, 3).unwrap()), [1, 0, 3]);

    let (_, flash) = faulty(FaultOptions {
        misdirected_write: nth,
        ..FaultOptions::default()
    });
    write(&flash, 0, &[1, 2, 3, 4]).unwrap();
    assert_eq!(bytes(&read(&flash, 0, 4).unwrap()), [1, 3, 2, 4]);

    let (_, flash) = faulty(FaultOptions {
        bit_flip: nth,
        ..FaultOptions::default()
    });
    write(&flash, 0, &[1, 2, 3]).unwrap();
    let pages = read(&flash, 0, 3).unwrap();
    let flipped: u32 = pages[1].iter().map(|byte| (byte ^ 2).count_ones()).sum();
    assert_eq!(flipped, 1);
    assert_eq!(bytes(&read(&flash, 0, 3).unwrap()), [1, 2, 3]);
}

#[test]
fn a_power_failure_keeps_what_was_synced_and_any_part_of_the_rest() {
    let mut survivors = std::collections::BTreeSet::new();
    for seed in seeds(40) {
        let options = FaultOptions {
            seed,
            power_failure: When::Nth(6),
            ..FaultOptions::default()
        };
        let (inner, flash) = faulty(options);
        write(&flash, 0, &[1, 2, 3]).unwrap();
        flash.sync().unwrap();
        write(&flash, 32, &[4, 5, 6]).unwrap();
        assert_eq!(bytes(&read(&flash, 32, 3).unwrap()), [4, 5, 6]);
        assert!(write(&flash, 35, &[7]).is_err());
        assert!(!flash.has_power());
        assert!(read(&flash, 0, 1).is_err() && flash.sync().is_err());
        flash.cut_power().unwrap();
        assert_eq!(bytes(&read(&*inner, 0, 3).unwrap()), [1, 2, 3]);
        let rest = read(&*inner, 32, 4).unwrap();
        for (page, byte) in rest.iter().zip(4..) {
            let whole = page.iter().take_while(|&&found| found == byte).count();
            assert!(whole % 512 == 0 && page[whole..].iter().all(|&found| found == 0));
            survivors.insert((byte, whole == 0));
        }
    }
    assert_eq!(
        survivors.len(),
        8,
        "every page survives at times: {survivors:?}"
    );
}

#[test]
fn an_erase_survives_a_power_failure_or_does_not() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in seeds(40) {
        let (inner, flash) = faulty(FaultOptions {
            seed,
            ..FaultOptions::default()
        });
        write(&flash, 0, &[1]).unwrap();
        flash.sync().unwrap();
        erase(&flash, 0).unwrap();
        assert_eq!(bytes(&read(&flash, 0, 1).unwrap()), [0]);
        flash.cut_power().unwrap();
        outcomes.insert(bytes(&read(&*inner, 0, 1).unwrap()));
    }
    assert_eq!(outcomes.len(), 2);
}

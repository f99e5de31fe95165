//! What every device must do, as checks that any implementation can run in its tests.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use flashmesh_pages::flash::{Flash, Geometry, MemoryFlash, conformance};
//! struct Memory;
//! impl conformance::Subject for Memory {
//!     fn create(&self) -> Arc<dyn Flash> {
//!         let geometry = Geometry { pages_per_erase_block: 32, erase_blocks: 64 };
//!         Arc::new(MemoryFlash::new(geometry, 1))
//!     }
//! }
//! conformance::run_all(&Memory, 42);
//! ```
//!
//! A check panics where the device breaks the contract of [`Flash`] or [`FlashQueue`]; the seed
//! replays it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Completion, Flash, FlashOp, FlashPage, FlashQueue, Geometry, PageBuffer, Random, Tag};
use crate::StorageError;

/// Makes devices of the kind that is to be checked.
pub trait Subject {
    /// A device with nothing on it, of 8 erase blocks or more.
    fn create(&self) -> Arc<dyn Flash>;

    /// Closes a device and opens it again, where the kind outlives its process.
    fn reopen(&self, flash: Arc<dyn Flash>) -> Arc<dyn Flash> {
        flash
    }
}

/// Runs every check on devices of their own.
pub fn run_all(subject: &dyn Subject, seed: u64) {
    unwritten_pages_are_zero(subject, seed);
    pages_come_back(subject, seed);
    every_tag_ends_once(subject, seed);
    an_erased_block_is_zero_and_writable(subject, seed);
    bad_operations_are_refused(subject);
    a_full_queue_refuses(subject);
    cancelled_reads_end_too(subject, seed);
    a_dropped_queue_has_finished(subject, seed);
    queues_of_threads_are_independent(subject, seed);
    synced_data_is_there_after_reopening(subject, seed);
    any_history_agrees_with_a_model(subject, seed);
}

/// A page's contents, which name the page and the time of its writing.
fn contents(page: u64, version: u64) -> PageBuffer {
    let mut random = Random::new(page << 20 ^ version);
    let mut buffer = PageBuffer::recycled();
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    buffer
}

fn all_contents(first: u64, pages: u64, version: u64) -> Vec<PageBuffer> {
    (first..first + pages)
        .map(|page| contents(page, version))
        .collect()
}

/// Buffers full of something else than what will be read.
fn dirty(pages: u64) -> Vec<PageBuffer> {
    (0..pages)
        .map(|_| {
            let mut buffer = PageBuffer::recycled();
            buffer.fill(0xEE);
            buffer
        })
        .collect()
}

fn block_pages(geometry: Geometry) -> u64 {
    u64::from(geometry.pages_per_erase_block)
}

/// Runs one operation and returns its buffers.
fn run(queue: &mut dyn FlashQueue, op: FlashOp) -> Vec<PageBuffer> {
    let tag = op.tag();
    queue.submit(op).expect("the operation is good");
    let mut completions = Vec::new();
    queue.wait(1, &mut completions).expect("waiting works");
    assert_eq!(completions.len(), 1, "one operation was in flight");
    assert_eq!(completions[0].tag, tag, "the tag comes back");
    let completion = completions.remove(0);
    completion.result.expect("the operation succeeds");
    completion.buffers
}

fn read(queue: &mut dyn FlashQueue, first: u64, pages: u64) -> Vec<PageBuffer> {
    let buffers = run(
        queue,
        FlashOp::Read {
            tag: Tag(1),
            first: FlashPage(first),
            buffers: dirty(pages),
        },
    );
    assert_eq!(
        buffers.len() as u64,
        pages,
        "a read brings its buffers back"
    );
    buffers
}

fn write(queue: &mut dyn FlashQueue, first: u64, buffers: Vec<PageBuffer>) {
    let pages = buffers.len();
    let buffers = run(
        queue,
        FlashOp::Write {
            tag: Tag(2),
            first: FlashPage(first),
            buffers,
        },
    );
    assert_eq!(buffers.len(), pages, "a write gives its buffers back");
}

fn erase(queue: &mut dyn FlashQueue, first: u64) {
    let buffers = run(
        queue,
        FlashOp::Erase {
            tag: Tag(3),
            first: FlashPage(first),
        },
    );
    assert!(buffers.is_empty(), "an erase has no buffers");
}

#[track_caller]
fn assert_zero(buffers: &[PageBuffer], what: &str) {
    let is_zero = |buffer: &PageBuffer| buffer.iter().all(|&byte| byte == 0);
    assert!(buffers.iter().all(is_zero), "{what} must read as zeros");
}

#[track_caller]
fn assert_contents(buffers: &[PageBuffer], first: u64, version: u64) {
    for (page, buffer) in (first..).zip(buffers) {
        assert!(
            **buffer == *contents(page, version),
            "page {page} is not what was written"
        );
    }
}

/// Pages that were never written read as zeros, next to written ones and up to the device's end.
pub fn unwritten_pages_are_zero(subject: &dyn Subject, seed: u64) {
    let flash = subject.create();
    let geometry = flash.geometry();
    let mut queue = flash.open_queue().expect("a queue opens");
    let max_pages = queue.max_pages_per_op() as u64;
    assert_zero(&read(&mut *queue, 0, 1), "the first page of a new device");
    assert_zero(
        &read(&mut *queue, 0, max_pages.min(geometry.pages())),
        "a new device",
    );
    assert_zero(
        &read(&mut *queue, geometry.pages() - 1, 1),
        "the last page of a new device",
    );
    write(&mut *queue, 3, all_contents(3, 2, seed));
    let pages = max_pages.min(7);
    let around = read(&mut *queue, 0, pages);
    assert_zero(&around[..3.min(around.len())], "pages before written ones");
    if pages == 7 {
        assert_contents(&around[3..5], 3, seed);
        assert_zero(&around[5..], "pages behind written ones");
    }
}

/// Operations of every length bring back what was written.
pub fn pages_come_back(subject: &dyn Subject, seed: u64) {
    let flash = subject.create();
    let mut queue = flash.open_queue().expect("a queue opens");
    let max_pages = queue.max_pages_per_op() as u64;
    let lengths = [1, 2, 3, max_pages / 2, max_pages - 1, max_pages];
    let mut first = 1;
    let mut written = Vec::new();
    for pages in lengths.into_iter().filter(|&pages| pages > 0) {
        if first + pages > flash.geometry().pages() {
            break;
        }
        write(&mut *queue, first, all_contents(first, pages, seed));
        written.push((first, pages));
        first += pages;
    }
    for &(first, pages) in &written {
        assert_contents(&read(&mut *queue, first, pages), first, seed);
        assert_contents(
            &read(&mut *queue, first + pages - 1, 1),
            first + pages - 1,
            seed,
        );
    }
    let all = (first - 1).min(max_pages);
    assert_contents(&read(&mut *queue, 1, all), 1, seed);
}

/// With the queue full of reads every tag comes back once with its own pages, however the
/// caller waits.
pub fn every_tag_ends_once(subject: &dyn Subject, seed: u64) {
    let flash = subject.create();
    let mut queue = flash.open_queue().expect("a queue opens");
    let pages = (queue.max_pages_per_op() as u64).min(block_pages(flash.geometry()));
    write(&mut *queue, 0, all_contents(0, pages, seed));
    let mut random = Random::new(seed);
    let mut expected = HashMap::new();
    let mut next_tag = 0;
    let mut completions: Vec<Completion> = Vec::new();
    for round in 0..20 {
        while queue.in_flight() < queue.depth() {
            let first = random.below(pages);
            let count = 1 + random.below((pages - first).min(8));
            next_tag += 1 + random.below(1000);
            expected.insert(Tag(next_tag), (first, count));
            let op = FlashOp::Read {
                tag: Tag(next_tag),
                first: FlashPage(first),
                buffers: dirty(count),
            };
            let in_flight = queue.in_flight();
            queue.submit(op).expect("there is room");
            assert_eq!(queue.in_flight(), in_flight + 1);
        }
        let in_flight = queue.in_flight();
        let min = match round % 4 {
            0 => 0,
            1 => 1,
            2 => random.below(in_flight as u64) as usize,
            _ => in_flight + 7,
        };
        queue.wait(min, &mut completions).expect("waiting works");
        assert!(
            completions.len() >= min.min(in_flight),
            "at least {min} completions"
        );
        assert_eq!(queue.in_flight(), in_flight - completions.len());
        for completion in completions.drain(..) {
            let known = expected.remove(&completion.tag);
            let (first, count) = known.expect("a tag that was in flight");
            completion.result.expect("the read succeeds");
            assert_eq!(completion.buffers.len() as u64, count);
            assert_contents(&completion.buffers, first, seed);
        }
    }
    // A caller that only looks gets all in the end.
    while queue.in_flight() > 0 {
        queue.wait(0, &mut completions).expect("waiting works");
    }
    assert_eq!(completions.len(), expected.len());
    let tags: HashSet<_> = completions
        .iter()
        .map(|completion| completion.tag)
        .collect();
    assert!(
        expected.keys().all(|tag| tags.contains(tag)),
        "every tag ends"
    );
    queue
        .wait(1, &mut completions)
        .expect("waiting for nothing returns");
}

/// An erase clears its block and no other, and makes it writable again.
pub fn an_erased_block_is_zero_and_writable(subject: &dyn Subject, seed: u64) {
    let flash = subject.create();
    let mut queue = flash.open_queue().expect("a queue opens");
    let block = block_pages(flash.geometry());
    let chunk = (queue.max_pages_per_op() as u64).min(block);
    for first in (0..3 * block).step_by(chunk as usize) {
        let pages = chunk.min(3 * block - first);
        write(&mut *queue, first, all_contents(first, pages, seed));
    }
    for version in 1..4 {
        erase(&mut *queue, block);
        for page in [block, block + 1, 2 * block - 1] {
            assert_zero(&read(&mut *queue, page, 1), "an erased page");
        }
        assert_contents(&read(&mut *queue, block - 1, 1), block - 1, seed);
        assert_contents(&read(&mut *queue, 2 * block, 1), 2 * block, seed);
        write(
            &mut *queue,
            block,
            all_contents(block, chunk, seed + version),
        );
        assert_contents(&read(&mut *queue, block, chunk), block, seed + version);
    }
    let last = flash.geometry().pages() - block;
    erase(&mut *queue, last);
    assert_zero(&read(&mut *queue, last, 1), "an erased block at the end");
}

/// Addresses outside the device and impossible lengths are `Invalid` and start nothing.
pub fn bad_operations_are_refused(subject: &dyn Subject) {
    let flash = subject.create();
    let geometry = flash.geometry();
    let mut queue = flash.open_queue().expect("a queue opens");
    let too_many = queue.max_pages_per_op() as u64 + 1;
    let (tag, pages) = (Tag(9), geometry.pages());
    let read = |first, count| FlashOp::Read {
        tag,
        first: FlashPage(first),
        buffers: dirty(count),
    };
    let write = |first, count| FlashOp::Write {
        tag,
        first: FlashPage(first),
        buffers: dirty(count),
    };
    let erase = |first| FlashOp::Erase {
        tag,
        first: FlashPage(first),
    };
    let mut bad = vec![
        read(0, 0),
        read(0, too_many),
        read(pages, 1),
        read(pages - 1, 2),
        read(u64::MAX, 1),
        write(0, 0),
        write(0, too_many),
        write(pages, 1),
        write(pages - 1, 2),
        write(u64::MAX, 2),
        erase(pages),
    ];
    if geometry.pages_per_erase_block > 1 {
        bad.push(erase(1));
        bad.push(erase(u64::MAX));
    }
    for op in bad {
        let text = format!("{op:?}");
        match queue.submit(op) {
            Err(StorageError::Invalid(_)) => {}
            other => panic!("{text} gave {other:?} in place of Invalid"),
        }
        assert_eq!(queue.in_flight(), 0, "{text} must start nothing");
    }
    let mut completions = Vec::new();
    queue
        .wait(1, &mut completions)
        .expect("waiting for nothing returns");
    assert!(completions.is_empty());
}

/// A queue takes `depth()` operations, refuses one more and goes on.
pub fn a_full_queue_refuses(subject: &dyn Subject) {
    let flash = subject.create();
    let mut queue = flash.open_queue().expect("a queue opens");
    let op = |tag| FlashOp::Read {
        tag: Tag(tag),
        first: FlashPage(0),
        buffers: dirty(1),
    };
    let depth = queue.depth();
    assert!(depth > 0);
    for tag in 0..depth as u64 {
        queue.submit(op(tag)).expect("there is room");
    }
    assert!(matches!(
        queue.submit(op(u64::MAX)),
        Err(StorageError::Invalid(_))
    ));
    assert_eq!(queue.in_flight(), depth);
    let mut completions = Vec::new();
    queue.wait(1, &mut completions).expect("waiting works");
    assert!(!completions.is_empty());
    queue.submit(op(u64::MAX)).expect("there is room again");
    queue.wait(depth, &mut completions).expect("waiting works");
    assert_eq!(completions.len(), depth + 1);
    assert!(
        completions
            .iter()
            .all(|completion| completion.result.is_ok())
    );
}

/// Reads that are given up end like others, done or failed; writes are not touched.
pub fn cancelled_reads_end_too(subject: &dyn Subject, seed: u64) {
    let flash = subject.create();
    let mut queue = flash.open_queue().expect("a queue opens");
    write(&mut *queue, 0, vec![contents(0, seed)]);
    let reads = queue.depth() as u64 - 1;
    for tag in 0..reads {
        let op = FlashOp::Read {
            tag: Tag(tag),
            first: FlashPage(0),
            buffers: dirty(1),
        };
        queue.submit(op).expect("there is room");
    }
    let buffers = vec![contents(1, seed)];
    queue
        .submit(FlashOp::Write {
            tag: Tag(reads),
            first: FlashPage(1),
            buffers,
        })
        .unwrap();
    queue.cancel_reads();
    let mut completions = Vec::new();
    queue
        .wait(queue.in_flight(), &mut completions)
        .expect("waiting works");
    let tags: HashSet<_> = completions
        .iter()
        .map(|completion| completion.tag)
        .collect();
    assert_eq!(tags, (0..=reads).map(Tag).collect());
    for completion in completions {
        match completion.tag {
            Tag(tag) if tag == reads => completion.result.expect("the write succeeds"),
            _ if completion.result.is_ok() => assert_contents(&completion.buffers, 0, seed),
            _ => {}
        }
    }
    assert_contents(&read(&mut *queue, 0, 2), 0, seed);
}

/// Operations in flight when their queue is dropped have ended afterwards.
pub fn a_dropped_queue_has_finished(subject: &dyn Subject, seed: u64) {
    let flash = subject.create();
    let block = block_pages(flash.geometry());
    let mut queue = flash.open_queue().expect("a queue opens");
    let writes = (queue.depth() as u64).min(block);
    for page in 0..writes {
        let buffers = vec![contents(page, seed)];
        queue
            .submit(FlashOp::Write {
                tag: Tag(page),
                first: FlashPage(page),
                buffers,
            })
            .unwrap();
    }
    drop(queue);
    let mut queue = flash.open_queue().expect("a queue opens");
    for page in 0..writes {
        assert_contents(&read(&mut *queue, page, 1), page, seed);
        queue
            .submit(FlashOp::Read {
                tag: Tag(0),
                first: FlashPage(page),
                buffers: dirty(1),
            })
            .and_then(|()| queue.wait(1, &mut Vec::new()))
            .unwrap();
    }
}

/// Queues of several threads neither wait for nor disturb each other, and see each other's pages.
pub fn queues_of_threads_are_independent(subject: &dyn Subject, seed: u64) {
    let flash = subject.create();
    let block = block_pages(flash.geometry());
    let barrier = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (flash, barrier) = (&flash, &barrier);
            scope.spawn(move || {
                let mut queue = flash.open_queue().expect("a queue opens");
                let mut completions = Vec::new();
                let chunk = block.min(8);
                for version in 0..3 {
                    let first = thread * block;
                    // The same tags in every thread.
                    for tag in 0..block / chunk {
                        let first = first + tag * chunk;
                        let buffers = all_contents(first, chunk, seed + version);
                        if queue.in_flight() == queue.depth() {
                            queue.wait(1, &mut completions).unwrap();
                        }
                        let op = FlashOp::Write {
                            tag: Tag(tag),
                            first: FlashPage(first),
                            buffers,
                        };
                        queue.submit(op).unwrap();
                    }
                    queue.wait(queue.in_flight(), &mut completions).unwrap();
                    completions
                        .drain(..)
                        .for_each(|completion| completion.result.unwrap());
                    barrier.wait();
                    for other in 0..4 {
                        let first = other * block;
                        assert_contents(&read(&mut *queue, first, chunk), first, seed + version);
                    }
                    barrier.wait();
                    erase(&mut *queue, first);
                }
            });
        }
    });
}

/// What was synced is there when the device is opened again, and blocks behind the used ones are
/// zero.
pub fn synced_data_is_there_after_reopening(subject: &dyn Subject, seed: u64) {
    let flash = subject.create();
    let block = block_pages(flash.geometry());
    let mut queue = flash.open_queue().expect("a queue opens");
    let pages = block.min(queue.max_pages_per_op() as u64);
    for index in [0, 1, 4] {
        write(
            &mut *queue,
            index * block,
            all_contents(index * block, pages, seed),
        );
    }
    erase(&mut *queue, block);
    drop(queue);
    flash.sync().expect("syncing works");
    assert!(flash.used_erase_blocks().unwrap() >= 5);

    let flash = subject.reopen(flash);
    let used = flash.used_erase_blocks().unwrap();
    assert!((5..=flash.geometry().erase_blocks).contains(&used));
    let mut queue = flash.open_queue().expect("a queue opens");
    for first in [0, 4 * block] {
        assert_contents(&read(&mut *queue, first, pages), first, seed);
    }
    assert_zero(&read(&mut *queue, block, pages), "an erased block");
    if used < flash.geometry().erase_blocks {
        assert_zero(
            &read(&mut *queue, used * block, 1),
            "the first unused block",
        );
    }
}

/// A random history of many operations in flight reads what a plain map says.
pub fn any_history_agrees_with_a_model(subject: &dyn Subject, seed: u64) {
    let flash = subject.create();
    let geometry = flash.geometry();
    let block = block_pages(geometry);
    let blocks = geometry.erase_blocks.min(8);
    let mut queue = flash.open_queue().expect("a queue opens");
    let max_pages = queue.max_pages_per_op() as u64;
    let mut random = Random::new(seed);
    // What has been written or is being written, by page; reads and erases of a block wait for
    // its writes and the other way round, as the contract demands.
    let mut model: HashMap<u64, u64> = HashMap::new();
    let mut frontier = vec![0u64; blocks as usize];
    let mut in_flight: HashMap<Tag, (u64, Option<u64>)> = HashMap::new();
    let mut writing = vec![0usize; blocks as usize];
    let mut reading = vec![0usize; blocks as usize];
    let mut completions = Vec::new();
    for step in 0..600u64 {
        let index = random.below(blocks);
        let (slot, first_of_block) = (index as usize, index * block);
        let tag = Tag(step);
        if in_flight.len() < queue.depth() {
            let choice = random.below(10);
            if choice < 5 && writing[slot] == 0 {
                let first = first_of_block + random.below(block);
                let pages = 1 + random.below(max_pages.min(first_of_block + block - first));
                let op = FlashOp::Read {
                    tag,
                    first: FlashPage(first),
                    buffers: dirty(pages),
                };
                queue.submit(op).unwrap();
                in_flight.insert(tag, (index, Some(first)));
                reading[slot] += 1;
            } else if choice < 9 && reading[slot] == 0 && frontier[slot] < block {
                let first = first_of_block + frontier[slot];
                let pages = 1 + random.below(max_pages.min(block - frontier[slot]));
                let buffers = all_contents(first, pages, step);
                queue
                    .submit(FlashOp::Write {
                        tag,
                        first: FlashPage(first),
                        buffers,
                    })
                    .unwrap();
                model.extend((first..first + pages).map(|page| (page, step)));
                frontier[slot] += pages;
                in_flight.insert(tag, (index, None));
                writing[slot] += 1;
            } else if choice == 9 && reading[slot] == 0 && writing[slot] == 0 {
                queue
                    .submit(FlashOp::Erase {
                        tag,
                        first: FlashPage(first_of_block),
                    })
                    .unwrap();
                model.retain(|page, _| page / block != index);
                frontier[slot] = 0;
                in_flight.insert(tag, (index, None));
                writing[slot] += 1;
                // Nothing may touch the block before the erase has ended.
                queue.wait(in_flight.len(), &mut completions).unwrap();
            }
        }
        let min = match random.below(4) {
            0 => 1,
            1 if in_flight.len() >= queue.depth() => 1,
            _ => 0,
        };
        queue.wait(min, &mut completions).unwrap();
        for completion in completions.drain(..) {
            let (index, read_from) = in_flight.remove(&completion.tag).expect("a known tag");
            completion.result.expect("the operation succeeds");
            let Some(first) = read_from else {
                writing[index as usize] -= 1;
                continue;
            };
            reading[index as usize] -= 1;
            for (page, buffer) in (first..).zip(&completion.buffers) {
                match model.get(&page) {
                    Some(&version) => assert!(
                        **buffer == *contents(page, version),
                        "seed {seed}: page {page} is not what was written"
                    ),
                    None => assert_zero(std::slice::from_ref(buffer), "an unwritten page"),
                }
            }
        }
    }
}

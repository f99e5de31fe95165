//! Operations over copies: reads at one of them, and at the next where that fails; changes at all.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::super::{Completion, FlashOp, FlashPage, FlashQueue, PageBuffer, Tag, check_op};
use super::{MAX_PAGES_PER_OP, Shared, away_or_behind, is_of_copy, no_copy};
use crate::{Result, StorageError};

/// That of [`JoinedFlash`](super::super::JoinedFlash), by which each copy is reached.
const QUEUE_DEPTH: usize = 256;

/// A queue of each copy, opened when it is needed.
#[derive(Debug)]
pub(super) struct MirroredQueue {
    shared: Arc<Shared>,
    /// With how often the copy had been opened.
    queues: Vec<Option<(u64, Box<dyn FlashQueue>)>>,
    /// What is in flight, by the callers' tags, by which copies know it, too.
    ops: HashMap<Tag, Op>,
    /// What copies have ended and nobody has looked at; `None`: no copy was asked.
    ended: Vec<(Option<Asked>, Completion)>,
}

/// A copy that was asked, and how often it had been opened.
pub(super) type Asked = (usize, u64);

/// An operation in flight.
#[derive(Debug)]
enum Op {
    Read {
        first: FlashPage,
        /// The copies that were asked so far.
        tried: Vec<usize>,
    },
    Change {
        blocks: RangeInclusive<u64>,
        buffers: Vec<PageBuffer>,
        parts_left: usize,
        done: Vec<usize>,
        failed: Vec<(Asked, StorageError)>,
    },
}

impl MirroredQueue {
    pub fn new(shared: Arc<Shared>) -> Self {
        let copies = shared.sources.len();
        Self {
            shared,
            queues: (0..copies).map(|_| None).collect(),
            ops: HashMap::new(),
            ended: Vec::new(),
        }
    }

    /// The queue of a copy as it was opened last.
    fn queue(&mut self, number: usize) -> Result<(u64, &mut Box<dyn FlashQueue>)> {
        let (link, generation) = {
            let state = self.shared.state.lock();
            let copy = &state.copies[number];
            (copy.link.clone(), copy.generation)
        };
        let away = || no_copy(&format!("{} is away", self.shared.sources[number].name()));
        let link = link.ok_or_else(away)?;
        if let Some((of, queue)) = &mut self.queues[number]
            && *of != generation
        {
            // Of a device that is gone: what is in flight fails.
            let (asked, mut completions) = (Some((number, *of)), Vec::new());
            queue.wait(queue.in_flight(), &mut completions)?;
            self.ended
                .extend(completions.into_iter().map(|ended| (asked, ended)));
            self.queues[number] = None;
        }
        let (_, queue) = match &mut self.queues[number] {
            Some(queue) => queue,
            none => none.insert((generation, link.open_queue()?)),
        };
        Ok((generation, queue))
    }

    /// Reads from the first whole copy that was not asked yet; `error` is what the last one said.
    fn read(
        &mut self,
        tag: Tag,
        first: FlashPage,
        mut buffers: Vec<PageBuffer>,
        mut tried: Vec<usize>,
        mut error: Option<StorageError>,
    ) {
        loop {
            let next = {
                let state = self.shared.state.lock();
                let mut copies = state.copies.iter().enumerate();
                let next = copies.find(|(number, copy)| copy.is_whole() && !tried.contains(number));
                next.map(|(number, _)| number)
            };
            let Some(number) = next else {
                let result = Err(error.unwrap_or_else(away_or_behind));
                self.ops.insert(tag, Op::Read { first, tried });
                let ended = Completion {
                    tag,
                    buffers,
                    result,
                };
                return self.ended.push((None, ended));
            };
            tried.push(number);
            let pages = buffers.len();
            let asked = self.queue(number).and_then(|(_, queue)| {
                queue.submit(FlashOp::Read {
                    tag,
                    first,
                    buffers: std::mem::take(&mut buffers),
                })
            });
            match asked {
                Ok(()) => {
                    self.ops.insert(tag, Op::Read { first, tried });
                    return;
                }
                Err(why) => error = Some(why),
            }
            buffers.resize_with(pages, PageBuffer::recycled);
        }
    }

    /// Gives a change to all copies that lack nothing of its blocks.
    fn change(&mut self, op: FlashOp) {
        let (tag, first, blocks) = (op.tag(), op.first(), self.shared.blocks_of(&op));
        let targets = self.shared.begin_change(&blocks);
        let is_erase = matches!(op, FlashOp::Erase { .. });
        let buffers = op.into_buffers();
        for &number in &targets {
            let part = match is_erase {
                true => FlashOp::Erase { tag, first },
                false => FlashOp::Write {
                    tag,
                    first,
                    buffers: buffers.clone(),
                },
            };
            let mut asked = (number, 0);
            let submitted = self.queue(number).and_then(|(generation, queue)| {
                asked.1 = generation;
                queue.submit(part)
            });
            if let Err(error) = submitted {
                let failed = Completion {
                    tag,
                    buffers: Vec::new(),
                    result: Err(error),
                };
                self.ended.push((Some(asked), failed));
            }
        }
        if targets.is_empty() {
            let failed = Completion {
                tag,
                buffers: Vec::new(),
                result: Err(away_or_behind()),
            };
            self.ended.push((None, failed));
        }
        let change = Op::Change {
            blocks,
            buffers,
            parts_left: targets.len().max(1),
            done: Vec::new(),
            failed: Vec::new(),
        };
        self.ops.insert(tag, change);
    }

    /// A copy has ended its part of an operation, which may be its end.
    fn settle(
        &mut self,
        asked: Option<Asked>,
        completion: Completion,
        completions: &mut Vec<Completion>,
    ) {
        let tag = completion.tag;
        match self.ops.remove(&tag) {
            None => {}
            Some(Op::Read { first, tried }) => {
                let (Some((number, generation)), Err(error)) = (asked, &completion.result) else {
                    return completions.push(completion);
                };
                if !is_of_copy(error) {
                    return completions.push(completion);
                }
                if error.is_gone() {
                    let state = &mut *self.shared.state.lock();
                    // Where the ledger fails, changes are told.
                    let _ = self.shared.lost(state, number, generation);
                }
                let error = completion.result.err();
                self.read(tag, first, completion.buffers, tried, error);
            }
            Some(Op::Change {
                blocks,
                buffers,
                parts_left,
                mut done,
                mut failed,
            }) => {
                let asked = asked.unwrap_or((usize::MAX, 0));
                match completion.result {
                    Ok(()) => done.push(asked.0),
                    Err(error) => failed.push((asked, error)),
                }
                if parts_left > 1 {
                    let change = Op::Change {
                        blocks,
                        buffers,
                        parts_left: parts_left - 1,
                        done,
                        failed,
                    };
                    self.ops.insert(tag, change);
                    return;
                }
                let result = self.shared.end_change(&blocks, &done, failed);
                completions.push(Completion {
                    tag,
                    buffers,
                    result,
                });
            }
        }
    }

    /// Looks at each copy, and appends what has ended.
    fn look(&mut self, completions: &mut Vec<Completion>) -> Result<()> {
        let mut result = Ok(());
        let mut ended = Vec::new();
        for (number, queue) in self.queues.iter_mut().enumerate() {
            if let Some((generation, queue)) = queue
                && queue.in_flight() > 0
            {
                result = result.and(queue.wait(0, &mut ended));
                let asked = Some((number, *generation));
                self.ended
                    .extend(ended.drain(..).map(|ended| (asked, ended)));
            }
        }
        // A read that one copy has failed may end at once at the next.
        while !self.ended.is_empty() {
            for (asked, ended) in std::mem::take(&mut self.ended) {
                self.settle(asked, ended, completions);
            }
        }
        result
    }
}

impl FlashQueue for MirroredQueue {
    fn depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn in_flight(&self) -> usize {
        self.ops.len()
    }

    fn max_pages_per_op(&self) -> usize {
        MAX_PAGES_PER_OP
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        check_op(self, &op, self.shared.geometry)?;
        match op {
            FlashOp::Read {
                tag,
                first,
                buffers,
            } => self.read(tag, first, buffers, Vec::new(), None),
            change => self.change(change),
        }
        Ok(())
    }

    /// Sleeps for the copy that has most to do.
    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let wanted = completions.len() + min.min(self.ops.len());
        loop {
            self.look(completions)?;
            if completions.len() >= wanted {
                return Ok(());
            }
            let queues = self.queues.iter_mut().enumerate();
            let busiest = queues
                .filter_map(|(number, queue)| Some((number, queue.as_mut()?)))
                .max_by_key(|(_, (_, queue))| queue.in_flight());
            match busiest {
                Some((number, (generation, queue))) if queue.in_flight() > 0 => {
                    let mut ended = Vec::new();
                    queue.wait(1, &mut ended)?;
                    let asked = Some((number, *generation));
                    self.ended
                        .extend(ended.into_iter().map(|ended| (asked, ended)));
                }
                _ => {
                    return Err(StorageError::Invalid(format!(
                        "{} operations are in flight, and on no copy",
                        self.ops.len()
                    )));
                }
            }
        }
    }

    fn cancel_reads(&mut self) {
        for (_, queue) in self.queues.iter_mut().flatten() {
            queue.cancel_reads();
        }
    }
}

impl Drop for MirroredQueue {
    fn drop(&mut self) {
        // As on a card, what was submitted takes place.
        let in_flight = self.ops.len();
        let _ = self.wait(in_flight, &mut Vec::new());
    }
}

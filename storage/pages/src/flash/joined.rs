//! Several cards as one device (BlueDBM section 3: the flash of all nodes is one address space).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::{
    Completion, Flash, FlashHealth, FlashOp, FlashPage, FlashQueue, Geometry, PageBuffer, Tag,
    check_op,
};
use crate::{Result, StorageError};

/// Operations of a queue that may be in flight. What one card's queue has no room for waits here.
const QUEUE_DEPTH: usize = 256;
/// What a card takes fewer of at once is given to it in parts.
const MAX_PAGES_PER_OP: usize = 128;

/// Cards behind each other: each has a range of page numbers of its own. What lies between two
/// cards is outside of the device.
///
/// A card that fails, or is not there, fails the operations on its own pages alone.
#[derive(Debug)]
pub struct JoinedFlash {
    cards: Vec<JoinedCard>,
    geometry: Geometry,
}

#[derive(Debug, Clone)]
struct JoinedCard {
    flash: Arc<dyn Flash>,
    /// The number of its first page.
    first: u64,
    pages: u64,
}

impl JoinedFlash {
    /// Joins cards, each with the number of its first page, in the order of these. What a card has
    /// beyond the beginning of the next one is not used.
    ///
    /// # Errors
    /// `Invalid` without cards, with erase blocks of several sizes, with cards in another order, or
    /// one that begins within an erase block.
    pub fn new(cards: impl IntoIterator<Item = (u64, Arc<dyn Flash>)>) -> Result<Self> {
        let cards = cards.into_iter().map(|(first, flash)| JoinedCard {
            pages: flash.geometry().pages(),
            flash,
            first,
        });
        let mut cards: Vec<_> = cards.collect();
        let Some(last) = cards.last() else {
            return Err(StorageError::Invalid("no card was given".into()));
        };
        let (pages_per_erase_block, like) = (
            last.flash.geometry().pages_per_erase_block,
            last.flash.name(),
        );
        let block_pages = u64::from(pages_per_erase_block.max(1));
        let mut next = u64::MAX;
        for card in cards.iter_mut().rev() {
            let (name, own) = (card.flash.name(), card.flash.geometry());
            if own.pages_per_erase_block != pages_per_erase_block {
                return Err(StorageError::Invalid(format!(
                    "{name} has erase blocks of {} pages, {like} of {block_pages}: cards of a store \
                     must have blocks of one size",
                    own.pages_per_erase_block,
                )));
            }
            if card.first >= next || card.first % block_pages != 0 {
                return Err(StorageError::Invalid(format!(
                    "{name} begins at page {}, behind another card or within an erase block",
                    card.first,
                )));
            }
            card.pages = card.pages.min(next - card.first);
            next = card.first;
        }
        let end = cards.last().map_or(0, |card| card.first + card.pages);
        Ok(Self {
            geometry: Geometry {
                pages_per_erase_block,
                erase_blocks: end / block_pages,
            },
            cards,
        })
    }
}

impl JoinedFlash {
    /// The card that has a page, and the page's number there.
    fn card_of(&self, page: FlashPage) -> Option<(&JoinedCard, FlashPage)> {
        let behind = self.cards.partition_point(|card| card.first <= page.0);
        let card = &self.cards[behind.checked_sub(1)?];
        let page = page.0 - card.first;
        (page < card.pages).then_some((card, FlashPage(page)))
    }
}

impl Flash for JoinedFlash {
    fn name(&self) -> String {
        let names: Vec<_> = self.cards.iter().map(|card| card.flash.name()).collect();
        names.join(", ")
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        for card in self.cards.iter().rev() {
            let used = card.flash.used_erase_blocks()?;
            if used > 0 {
                let first = card.first / u64::from(self.geometry.pages_per_erase_block.max(1));
                return Ok(first + used);
            }
        }
        Ok(0)
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        let unopened = |card: &JoinedCard| CardQueue {
            card: card.clone(),
            queue: None,
            waiting: VecDeque::new(),
        };
        Ok(Box::new(JoinedQueue {
            queues: self.cards.iter().map(unopened).collect(),
            geometry: self.geometry,
            ops: HashMap::new(),
            parts: HashMap::new(),
            next_part: 0,
            ended: Vec::new(),
        }))
    }

    fn sync(&self) -> Result<()> {
        sync_all(self.cards.iter().map(|card| &card.flash))
    }

    fn continues_blocks(&self) -> bool {
        self.cards.iter().all(|card| card.flash.continues_blocks())
    }

    /// Of one card alone: wear does not add up.
    fn health(&self) -> Option<FlashHealth> {
        None
    }

    fn copies_of(&self, page: FlashPage) -> Vec<(usize, PageBuffer)> {
        let of_card = self.card_of(page);
        of_card.map_or_else(Vec::new, |(card, page)| card.flash.copies_of(page))
    }

    fn renew(&self, page: FlashPage, copies: &[usize]) {
        if let Some((card, page)) = self.card_of(page) {
            card.flash.renew(page, copies);
        }
    }
}

/// Makes durable what was written to cards, all of them at once: those of other nodes are far away.
///
/// # Errors
/// That of the first which fails; each is waited for, whatever the others say.
pub(crate) fn sync_all<'a>(cards: impl Iterator<Item = &'a Arc<dyn Flash>>) -> Result<()> {
    let mut cards = cards.peekable();
    let Some(first) = cards.next() else {
        return Ok(());
    };
    if cards.peek().is_none() {
        return first.sync();
    }
    std::thread::scope(|scope| {
        let others: Vec<_> = cards.map(|card| scope.spawn(|| card.sync())).collect();
        let ended = others.into_iter().map(|thread| {
            let panicked = || Err(StorageError::Invalid("syncing a card has panicked".into()));
            thread.join().unwrap_or_else(|_| panicked())
        });
        [first.sync()]
            .into_iter()
            .chain(ended)
            .fold(Ok(()), Result::and)
    })
}

/// A queue of each card, opened when it is needed.
#[derive(Debug)]
struct JoinedQueue {
    queues: Vec<CardQueue>,
    geometry: Geometry,
    /// Operations in flight, by the callers' tags.
    ops: HashMap<Tag, Op>,
    /// What cards were given: the operation that each is a part of, and which part.
    parts: HashMap<Tag, (Tag, usize)>,
    next_part: u64,
    /// Parts that cards have ended and nobody has looked at.
    ended: Vec<Completion>,
}

#[derive(Debug)]
struct CardQueue {
    card: JoinedCard,
    queue: Option<Box<dyn FlashQueue>>,
    /// Parts for which it had no room, in the order of their submission.
    waiting: VecDeque<FlashOp>,
}

/// An operation in flight.
#[derive(Debug)]
struct Op {
    /// The buffers of each part that has ended.
    buffers: Vec<Vec<PageBuffer>>,
    parts_left: usize,
    result: Result<()>,
}

fn refused(tag: Tag, buffers: Vec<PageBuffer>, error: StorageError) -> Completion {
    Completion {
        tag,
        buffers,
        result: Err(error),
    }
}

impl CardQueue {
    /// Gives it what waits, as far as it has room. What it refuses ends as failed: so does all of a
    /// card that is not there.
    fn start(&mut self, ended: &mut Vec<Completion>) {
        while let Some(op) = self.waiting.pop_front() {
            let queue = match &mut self.queue {
                Some(queue) => queue,
                None => match self.card.flash.open_queue() {
                    Ok(queue) => self.queue.insert(queue),
                    Err(error) => {
                        ended.push(refused(op.tag(), op.into_buffers(), error));
                        continue;
                    }
                },
            };
            if queue.in_flight() >= queue.depth() {
                self.waiting.push_front(op);
                return;
            }
            let (tag, pages) = (op.tag(), op.pages());
            if let Err(error) = queue.submit(op) {
                let buffers = (0..pages).map(|_| PageBuffer::recycled()).collect();
                ended.push(refused(tag, buffers, error));
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.in_flight())
    }

    /// Pages that the card takes at once; of one that can't be opened any number, as it takes none.
    fn max_pages_per_op(&mut self) -> usize {
        if self.queue.is_none() {
            self.queue = self.card.flash.open_queue().ok();
        }
        let queue = self.queue.as_ref();
        queue.map_or(MAX_PAGES_PER_OP, |queue| queue.max_pages_per_op().max(1))
    }
}

impl JoinedQueue {
    /// The parts that a card is given of an operation, with its own page numbers.
    fn divide(&mut self, card: usize, op: FlashOp) -> Vec<FlashOp> {
        let tag = op.tag();
        let mut first = op.first().0 - self.queues[card].card.first;
        let most = self.queues[card].max_pages_per_op();
        let mut parts = 0;
        let mut next_tag = || {
            let part = Tag(self.next_part);
            self.next_part += 1;
            self.parts.insert(part, (tag, parts));
            parts += 1;
            part
        };
        let mut divided = Vec::with_capacity(1);
        match op {
            FlashOp::Erase { .. } => divided.push(FlashOp::Erase {
                tag: next_tag(),
                first: FlashPage(first),
            }),
            FlashOp::Read { mut buffers, .. } => {
                while !buffers.is_empty() {
                    let rest = buffers.split_off(most.min(buffers.len()));
                    let buffers = std::mem::replace(&mut buffers, rest);
                    let pages = buffers.len() as u64;
                    divided.push(FlashOp::Read {
                        tag: next_tag(),
                        first: FlashPage(first),
                        buffers,
                    });
                    first += pages;
                }
            }
            FlashOp::Write { mut buffers, .. } => {
                while !buffers.is_empty() {
                    let rest = buffers.split_off(most.min(buffers.len()));
                    let buffers = std::mem::replace(&mut buffers, rest);
                    let pages = buffers.len() as u64;
                    divided.push(FlashOp::Write {
                        tag: next_tag(),
                        first: FlashPage(first),
                        buffers,
                    });
                    first += pages;
                }
            }
        }
        divided
    }

    /// Starts what waits, looks at each card, and appends the operations of which all parts have
    /// ended.
    fn look(&mut self, completions: &mut Vec<Completion>) -> Result<()> {
        let mut result = Ok(());
        for card in &mut self.queues {
            card.start(&mut self.ended);
            if let Some(queue) = &mut card.queue
                && queue.in_flight() > 0
            {
                result = result.and(queue.wait(0, &mut self.ended));
                card.start(&mut self.ended);
            }
        }
        for part in self.ended.drain(..) {
            let Some((tag, number)) = self.parts.remove(&part.tag) else {
                continue;
            };
            let Some(op) = self.ops.get_mut(&tag) else {
                continue;
            };
            op.buffers[number] = part.buffers;
            op.parts_left -= 1;
            if op.result.is_ok() {
                op.result = part.result;
            }
            if op.parts_left == 0
                && let Some(op) = self.ops.remove(&tag)
            {
                completions.push(Completion {
                    tag,
                    buffers: op.buffers.into_iter().flatten().collect(),
                    result: op.result,
                });
            }
        }
        result
    }
}

impl FlashQueue for JoinedQueue {
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
        check_op(self, &op, self.geometry)?;
        let tag = op.tag();
        let first = op.first().0;
        let behind = self
            .queues
            .partition_point(|queue| queue.card.first <= first);
        let last = first + (op.pages().max(1) - 1) as u64;
        let within = |queue: &CardQueue| last - queue.card.first < queue.card.pages;
        let Some(card) = behind
            .checked_sub(1)
            .filter(|&card| within(&self.queues[card]))
        else {
            return Err(StorageError::Invalid(format!("no card has page {last}")));
        };
        let parts = self.divide(card, op);
        let op = Op {
            buffers: parts.iter().map(|_| Vec::new()).collect(),
            parts_left: parts.len(),
            result: Ok(()),
        };
        self.ops.insert(tag, op);
        self.queues[card].waiting.extend(parts);
        self.queues[card].start(&mut self.ended);
        Ok(())
    }

    /// Sleeps for the card that has most to do: others may have ended an operation meanwhile, which
    /// is then seen as soon as that one ends one.
    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let wanted = completions.len() + min.min(self.ops.len());
        loop {
            self.look(completions)?;
            if completions.len() >= wanted {
                return Ok(());
            }
            let busiest = self.queues.iter_mut().max_by_key(|card| card.in_flight());
            match busiest.and_then(|card| card.queue.as_mut()) {
                Some(queue) if queue.in_flight() > 0 => queue.wait(1, &mut self.ended)?,
                _ => {
                    return Err(StorageError::Invalid(format!(
                        "{} operations are in flight, and on no card",
                        self.ops.len()
                    )));
                }
            }
        }
    }

    fn cancel_reads(&mut self) {
        for card in &mut self.queues {
            let (reads, others): (VecDeque<_>, VecDeque<_>) = card
                .waiting
                .drain(..)
                .partition(|op| matches!(op, FlashOp::Read { .. }));
            card.waiting = others;
            let cancelled =
                |read: FlashOp| refused(read.tag(), read.into_buffers(), StorageError::Cancelled);
            self.ended.extend(reads.into_iter().map(cancelled));
            if let Some(queue) = &mut card.queue {
                queue.cancel_reads();
            }
        }
    }
}

impl Drop for JoinedQueue {
    fn drop(&mut self) {
        // As on a card, what was submitted takes place.
        let in_flight = self.ops.len();
        let _ = self.wait(in_flight, &mut Vec::new());
    }
}

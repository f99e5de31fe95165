//! The best places of each partition.

use std::cmp::Ordering;

/// A place in an order that is kept, of a row that is looked at.
pub(super) trait Place: Default + Clone {
    type Of<'a>: Copy;

    fn of(seen: Self::Of<'_>) -> Self;

    /// How the place of a row compares with a kept one: less is better.
    fn compare(seen: Self::Of<'_>, kept: &Self) -> Ordering;

    fn is_better(&self, other: &Self) -> bool;

    /// Bytes that it has elsewhere.
    fn bytes(&self) -> usize;
}

/// In the order of a number.
impl Place for u128 {
    type Of<'a> = u128;

    fn of(seen: u128) -> Self {
        seen
    }

    fn compare(seen: u128, kept: &Self) -> Ordering {
        seen.cmp(kept)
    }

    fn is_better(&self, other: &Self) -> bool {
        self < other
    }

    fn bytes(&self) -> usize {
        0
    }
}

/// In the order of arrow's rows.
impl Place for Box<[u8]> {
    type Of<'a> = &'a [u8];

    fn of(seen: &[u8]) -> Self {
        seen.into()
    }

    fn compare(seen: &[u8], kept: &Self) -> Ordering {
        seen.cmp(kept)
    }

    fn is_better(&self, other: &Self) -> bool {
        self < other
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

/// The best places of each partition, up to a number, as heaps with the worst of them on top.
#[derive(Debug)]
pub(super) struct Heaps<P> {
    most: usize,
    /// Whether a row passes that is as good as the last of the best.
    ties: bool,
    /// `most` for each partition.
    places: Vec<P>,
    /// How many of them each partition has.
    filled: Vec<u32>,
    /// Bytes that the places have elsewhere.
    bytes: usize,
}

impl<P: Place> Heaps<P> {
    pub fn new(most: usize, ties: bool) -> Self {
        Self {
            most,
            ties,
            places: Vec::new(),
            filled: Vec::new(),
            bytes: 0,
        }
    }

    /// Makes room for so many partitions.
    pub fn grow(&mut self, partitions: usize) {
        if partitions > self.filled.len() {
            self.filled.resize(partitions, 0);
            self.places.resize(partitions * self.most, P::default());
        }
    }

    /// Bytes in memory, with room for so many partitions.
    pub fn bytes(&self, partitions: usize) -> usize {
        let partitions = partitions.max(self.filled.capacity());
        partitions * (self.most * size_of::<P>() + 4) + self.bytes
    }

    /// Whether a row may be among the best of its partition; then its place is kept.
    pub fn keeps(&mut self, partition: usize, seen: P::Of<'_>) -> bool {
        let filled = self.filled[partition] as usize;
        let heap = &mut self.places[partition * self.most..][..self.most];
        if filled < self.most {
            heap[filled] = P::of(seen);
            self.bytes += heap[filled].bytes();
            self.filled[partition] += 1;
            rise(heap, filled);
            return true;
        }
        match P::compare(seen, &heap[0]) {
            Ordering::Less => {
                self.bytes -= heap[0].bytes();
                heap[0] = P::of(seen);
                self.bytes += heap[0].bytes();
                sink(heap);
                true
            }
            Ordering::Equal => self.ties,
            Ordering::Greater => false,
        }
    }
}

/// Lets the place at the end of a heap rise to where it belongs.
fn rise<P: Place>(heap: &mut [P], mut at: usize) {
    while at > 0 {
        let above = (at - 1) / 2;
        if !heap[above].is_better(&heap[at]) {
            return;
        }
        heap.swap(above, at);
        at = above;
    }
}

/// Lets the place on top of a full heap sink to where it belongs.
fn sink<P: Place>(heap: &mut [P]) {
    let mut at = 0;
    loop {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        let mut worst = at;
        for below in [left, right] {
            if below < heap.len() && heap[worst].is_better(&heap[below]) {
                worst = below;
            }
        }
        if worst == at {
            return;
        }
        heap.swap(worst, at);
        at = worst;
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// What passes has the best of each partition, and no row that so many before it were better than.
    #[test]
    fn the_best_of_each_partition_pass() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..300 {
            let most = random.random_range(1..8);
            let ties = random.random();
            let rows: Vec<(usize, u128)> = (0..random.random_range(0..300))
                .map(|_| (random.random_range(0..5), random.random_range(0..40)))
                .collect();
            let mut numbers = Heaps::<u128>::new(most, ties);
            let mut bytes = Heaps::<Box<[u8]>>::new(most, ties);
            numbers.grow(5);
            bytes.grow(5);
            for (row, (partition, place)) in rows.iter().enumerate() {
                let before = rows[..row].iter().filter(|(of, _)| of == partition);
                let better = before.clone().filter(|(_, other)| other < place).count();
                let as_good = before.filter(|(_, other)| other <= place).count();
                let expected = if ties { better < most } else { as_good < most };
                assert_eq!(numbers.keeps(*partition, *place), expected);
                assert_eq!(bytes.keeps(*partition, &place.to_be_bytes()), expected);
            }
            let kept: u32 = bytes.filled.iter().sum();
            assert_eq!(bytes.bytes, kept as usize * 16);
            assert!(bytes.bytes(5) >= kept as usize * 16);
        }
    }
}

//! Time, and the queue of what is to happen.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Add, AddAssign, Sub};

/// A time, or how long something takes: whole picoseconds, so that sums do not depend on their
/// order. What is longer than 213 days is 213 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(u64);

impl Time {
    /// The beginning, or no time at all.
    pub const ZERO: Self = Self(0);

    /// Rounded to the nearest picosecond; what is negative or no number is zero.
    pub fn from_seconds(seconds: f64) -> Self {
        Self((seconds * 1e12).round() as u64)
    }

    /// How long so many bytes take at a rate in bytes a second.
    pub fn of_bytes(bytes: u64, rate: f64) -> Self {
        Self::from_seconds(bytes as f64 / rate)
    }

    /// In seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 * 1e-12
    }
}

impl Add for Time {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// What would be less than nothing is nothing.
impl Sub for Time {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// What is to happen, by time; what happens at the same time, in the order in which it was put in.
#[derive(Debug)]
pub(super) struct EventQueue<T> {
    heap: BinaryHeap<Reverse<(Time, u64, T)>>,
    put_in: u64,
}

impl<T: Ord> EventQueue<T> {
    pub fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            put_in: 0,
        }
    }

    pub fn push(&mut self, at: Time, event: T) {
        self.heap.push(Reverse((at, self.put_in, event)));
        self.put_in += 1;
    }

    pub fn pop(&mut self) -> Option<(Time, T)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

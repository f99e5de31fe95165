//! Aggregates: states of groups, and the four functions over them.

use arrow::array::{Array, ArrayRef, BooleanBufferBuilder, FixedSizeBinaryArray, new_empty_array};
use arrow::buffer::{Buffer, MutableBuffer, NullBuffer};

use super::columns::{bitmap_bytes, count};
use super::functions::element_type;
use super::{Argument, CallContext, Kernel, Kind, Nulls, Returns, Signature, columns, results};
use crate::Result;

/// States that are copied to the kernel whole with each call, rather than those of the call's
/// groups: as many as fit a core's cache beside the columns.
const WHOLE_BYTES: usize = 64 << 10;

/// The states of an aggregate's groups: `state_words` 64-bit words a group, of which only the
/// kernel knows the meaning.
#[derive(Debug)]
pub struct States {
    kernel: Kernel,
    bytes: MutableBuffer,
    state_bytes: usize,
    groups: usize,
}

impl Kernel {
    /// States of no groups yet.
    ///
    /// # Errors
    /// `Invalid` when the kernel is no aggregate.
    pub fn states(&self) -> Result<States> {
        self.signature(&[Kind::Aggregate], "aggregate")?;
        Ok(States {
            kernel: self.clone(),
            bytes: MutableBuffer::default(),
            state_bytes: self.manifest().state_words as usize * 8,
            groups: 0,
        })
    }

    fn aggregate_signature(&self) -> Result<&Signature> {
        self.signature(&[Kind::Aggregate], "aggregate")
    }

    fn call_part(
        &self,
        part: &str,
        arguments: &mut [Argument<'_>],
        context: CallContext<'_>,
    ) -> Result<()> {
        let function = format!("{}_{part}", self.manifest().top);
        self.target().call(&function, arguments, context)
    }
}

impl States {
    /// The number of groups.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Bytes that the states take. They are their owner's: no call charges them.
    pub fn size_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Adds groups until there are `groups` of them; the new ones begin as the kernel's `init`
    /// says.
    ///
    /// # Errors
    /// What the kernel fails with.
    pub fn init(&mut self, groups: usize, context: CallContext<'_>) -> Result<()> {
        let chunk = self.groups_per_call();
        while self.groups < groups {
            let length = chunk.min(groups - self.groups);
            let start = self.groups * self.state_bytes;
            self.bytes.resize(start + length * self.state_bytes, 0);
            let mut arguments = [Argument::Out(&mut self.bytes[start..]), count(length)];
            let outcome = self.kernel.call_part("init", &mut arguments, context);
            if outcome.is_err() {
                self.bytes.truncate(start);
            }
            outcome?;
            self.groups += length;
        }
        Ok(())
    }

    /// Takes up `rows` rows: `group` says which group each belongs to. Rows with a NULL argument
    /// are left out with `nulls = "strict"`; a NULL constant leaves out all.
    ///
    /// # Errors
    /// `Invalid` when the arguments are not the signature's or a group does not exist; what the
    /// kernel fails with.
    pub fn update(
        &mut self,
        arguments: &[ArrayRef],
        rows: usize,
        group: &[u32],
        context: CallContext<'_>,
    ) -> Result<()> {
        let kernel = self.kernel.clone();
        let signature = kernel.aggregate_signature()?;
        kernel.check(signature, arguments, rows)?;
        self.check_groups(group, rows)?;
        if super::call::has_null_constant(signature, arguments) {
            return Ok(());
        }
        let strict = kernel.manifest().nulls == Nulls::Strict;
        let left = match strict {
            true => columns::without_nulls(&signature.parameters, arguments)?,
            false => None,
        };
        match left {
            None => self.dense(signature, arguments, group, context),
            Some((arguments, valid)) => {
                let pairs = group.iter().zip(&valid);
                let group: Vec<u32> = pairs.filter(|(_, v)| *v).map(|(&g, _)| g).collect();
                self.dense(signature, &arguments, &group, context)
            }
        }
    }

    fn dense(
        &mut self,
        signature: &Signature,
        arguments: &[ArrayRef],
        group: &[u32],
        context: CallContext<'_>,
    ) -> Result<()> {
        let kernel = self.kernel.clone();
        let inputs = kernel.inputs(signature, arguments)?;
        let whole = self.bytes.len() <= WHOLE_BYTES;
        let mut selection = Selection::new(self.groups);
        kernel.chunks(&inputs, group.len(), |start, length, scratch| {
            let rows = &group[start..start + length];
            if whole {
                let group = MutableBuffer::from(rows.to_vec());
                let mut arguments = inputs.arguments(start, length, scratch);
                arguments.push(Argument::In(&group));
                arguments.push(count(length));
                arguments.push(Argument::InOut(self.bytes.as_slice_mut()));
                arguments.push(count(self.groups));
                return kernel.call_part("update", &mut arguments, context);
            }
            let local = selection.choose(rows);
            let needed = selection.groups.len() * self.state_bytes;
            if needed > kernel.limits().memory_bytes {
                return Err(kernel.failed(format!(
                    "the states of the {} groups in one call need {needed} bytes, more than \
                     limits.memory_bytes; lower limits.rows_per_call",
                    selection.groups.len()
                )));
            }
            let mut states = self.gather(&selection.groups);
            let mut arguments = inputs.arguments(start, length, scratch);
            arguments.push(Argument::In(&local));
            arguments.push(count(length));
            arguments.push(Argument::InOut(states.as_slice_mut()));
            arguments.push(count(selection.groups.len()));
            kernel.call_part("update", &mut arguments, context)?;
            drop(arguments);
            self.scatter(&selection.groups, &states);
            Ok(())
        })
    }

    /// Adds states that came from elsewhere: `others`' state `i` to the group `group[i]`.
    ///
    /// # Errors
    /// `Invalid` when `others` are not this kernel's states or a group does not exist; what the
    /// kernel fails with.
    pub fn merge(
        &mut self,
        others: &FixedSizeBinaryArray,
        group: &[u32],
        context: CallContext<'_>,
    ) -> Result<()> {
        if others.value_length().unsigned_abs() as usize != self.state_bytes
            || others.null_count() > 0
        {
            return Err(self.kernel.invalid(&format!(
                "has states of {} bytes; {} of {} bytes were given to merge",
                self.state_bytes,
                others.len(),
                others.value_length()
            )));
        }
        self.check_groups(group, others.len())?;
        let chunk = self.groups_per_call();
        let mut selection = Selection::new(self.groups);
        let mut start = 0;
        while start < others.len() {
            // The function takes each group once: a round ends before a group's second state.
            let length = selection.distinct(&group[start..], chunk);
            let groups = &group[start..start + length];
            let mut states = self.gather(groups);
            let mut added = MutableBuffer::with_capacity(length * self.state_bytes);
            for row in start..start + length {
                added.extend_from_slice(others.value(row));
            }
            let mut arguments = [
                Argument::InOut(states.as_slice_mut()),
                Argument::In(&added),
                count(length),
            ];
            self.kernel.call_part("merge", &mut arguments, context)?;
            self.scatter(groups, &states);
            start += length;
        }
        Ok(())
    }

    /// The aggregates of all groups.
    ///
    /// # Errors
    /// What the kernel fails with, or gives that can't be.
    pub fn finish(&self, context: CallContext<'_>) -> Result<ArrayRef> {
        let kernel = &self.kernel;
        let Returns::Scalar(returns) = &kernel.aggregate_signature()?.returns else {
            return Err(kernel.invalid("returns a table"));
        };
        if self.groups == 0 {
            return Ok(new_empty_array(returns));
        }
        let width = element_type(returns).map_or(8, |element| element.size_bytes());
        let mut result = MutableBuffer::from_len_zeroed(self.groups * width);
        let mut valid = BooleanBufferBuilder::new(self.groups);
        let mut words = MutableBuffer::default();
        let chunk = self.groups_per_call();
        for start in (0..self.groups).step_by(chunk) {
            let length = chunk.min(self.groups - start);
            let end = start + length;
            words.resize(bitmap_bytes(length), 0);
            let mut arguments = [
                Argument::In(&self.bytes[start * self.state_bytes..end * self.state_bytes]),
                count(length),
                Argument::Out(&mut result[start * width..end * width]),
                Argument::Out(words.as_slice_mut()),
            ];
            kernel.call_part("finish", &mut arguments, context)?;
            valid.append_packed_range(0..length, &words);
        }
        let valid = Some(NullBuffer::new(valid.finish()));
        let result = results::fixed(returns, result, self.groups, valid);
        result.map_err(|reason| kernel.failed(reason))
    }

    /// The states as they travel: one value of `8 * state_words` bytes a group.
    ///
    /// # Errors
    /// `Arrow`, which does not happen with states of a manifest's sizes.
    pub fn to_array(&self) -> Result<FixedSizeBinaryArray> {
        let values = Buffer::from(self.bytes.as_slice());
        let size = self.state_bytes as i32;
        Ok(FixedSizeBinaryArray::try_new(size, values, None)?)
    }

    /// Takes the first `groups` groups out; the others move to the front.
    pub fn take_first(&mut self, groups: usize) -> Self {
        let groups = groups.min(self.groups);
        let (first, rest) = self.bytes.split_at(groups * self.state_bytes);
        let copy = |bytes: &[u8]| {
            let mut copy = MutableBuffer::with_capacity(bytes.len());
            copy.extend_from_slice(bytes);
            copy
        };
        let (first, rest) = (copy(first), copy(rest));
        self.bytes = rest;
        self.groups -= groups;
        Self {
            kernel: self.kernel.clone(),
            bytes: first,
            state_bytes: self.state_bytes,
            groups,
        }
    }

    fn check_groups(&self, group: &[u32], rows: usize) -> Result<()> {
        let exists = |&group: &u32| (group as usize) < self.groups;
        if group.len() == rows && group.iter().all(exists) {
            return Ok(());
        }
        Err(self.kernel.invalid(&format!(
            "has {} groups; {} group numbers for {rows} rows do not fit them",
            self.groups,
            group.len()
        )))
    }

    /// Groups whose states one call takes, two arrays of them.
    fn groups_per_call(&self) -> usize {
        let limits = self.kernel.limits();
        let room = limits.bytes_per_call.min(limits.memory_bytes / 4);
        (room / self.state_bytes).clamp(1, limits.rows_per_call)
    }

    fn gather(&self, groups: &[u32]) -> MutableBuffer {
        let mut states = MutableBuffer::with_capacity(groups.len() * self.state_bytes);
        for &group in groups {
            let start = group as usize * self.state_bytes;
            states.extend_from_slice(&self.bytes[start..start + self.state_bytes]);
        }
        states
    }

    fn scatter(&mut self, groups: &[u32], states: &[u8]) {
        for (&group, state) in groups.iter().zip(states.chunks_exact(self.state_bytes)) {
            let start = group as usize * self.state_bytes;
            self.bytes[start..start + self.state_bytes].copy_from_slice(state);
        }
    }
}

/// The groups of one call, numbered from 0 as they come.
struct Selection {
    /// Of each group the number it has in the present call, where `round` says so.
    places: Vec<(u32, u32)>,
    round: u32,
    groups: Vec<u32>,
}

impl Selection {
    fn new(groups: usize) -> Self {
        Self {
            places: vec![(0, 0); groups],
            round: 0,
            groups: Vec::new(),
        }
    }

    /// Numbers the groups of `rows`; gives each row's number.
    fn choose(&mut self, rows: &[u32]) -> MutableBuffer {
        self.round += 1;
        self.groups.clear();
        let mut local = MutableBuffer::with_capacity(rows.len() * 4);
        for &group in rows {
            let place = &mut self.places[group as usize];
            if place.0 != self.round {
                *place = (self.round, self.groups.len() as u32);
                self.groups.push(group);
            }
            local.push(place.1);
        }
        local
    }

    /// How many of `rows`, `limit` at most, come before a group that was there already.
    fn distinct(&mut self, rows: &[u32], limit: usize) -> usize {
        self.round += 1;
        let rows = &rows[..limit.min(rows.len())];
        let again = rows.iter().position(|&group| {
            let place = &mut self.places[group as usize];
            std::mem::replace(&mut place.0, self.round) == self.round
        });
        again.unwrap_or(rows.len())
    }
}

//! Partial aggregates of the surviving rows.
//!
//! Without keys every aggregate is one state; counts and, where whole chunks survive, least and
//! greatest numbers come from selection and zone maps alone. With keys there are two ways, chosen
//! for each segment:
//!
//! * *dense*: every key is a dictionary code or a number of a small range, so that all keys
//!   together are one small number, the index into arrays of states. These are merged into the
//!   table of groups when the segment ends, group by group instead of row by row;
//! * *hash*: the rows' groups are looked up in the table.
//!
//! A table that has grown large is given out and begun anew, and so is one whose groups cannot
//! come again because no other segment has their keys: the receiver merges partial results.

mod dense;
mod packed;
mod state;
mod table;

use std::collections::VecDeque;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use flashmesh_pushdown::{AggregateFunction, Output, Program};

use super::bitmap::Bitmap;
use super::columns::Rows;
use super::eval::graph::{Graph, NodeId};
use super::eval::vector::Kind;
use super::work::{Cut, Work, rows_of};
use crate::Result;
use crate::table::TableSnapshot;
use dense::DenseKeys;
use packed::PackedSums;
use state::{Addition, Ids, State};
use table::{GroupTable, KeyWords};

/// Groups at which the table is given out.
const MAX_GROUPS: usize = 256 * 1024;
/// Bytes of keys at which it is.
const MAX_TABLE_BYTES: usize = 64 << 20;
/// Groups of a segment from which on they are worth giving out at once if they can't come again.
const MIN_CLUSTERED_GROUPS: usize = 1024;

/// The aggregates of a task.
#[derive(Debug)]
pub(super) struct Aggregation {
    schema: SchemaRef,
    batch_rows: usize,
    keys: Vec<NodeId>,
    /// The different aggregates.
    specs: Vec<Spec>,
    /// For each aggregate of the Program which of `specs` it is.
    outputs: Vec<usize>,
    states: Vec<State>,
    table: GroupTable,
    /// No group occurs in two segments, but for a few at their boundaries.
    is_clustered: bool,
    ready: VecDeque<RecordBatch>,
    is_finished: bool,
}

/// One aggregate.
#[derive(Debug, Clone, PartialEq)]
struct Spec {
    function: AggregateFunction,
    argument: Option<NodeId>,
    filter: Option<NodeId>,
    data_type: arrow::datatypes::DataType,
}

impl Aggregation {
    pub fn new(
        program: &Program,
        graph: &Graph,
        table: &TableSnapshot,
        schema: SchemaRef,
        batch_rows: usize,
    ) -> Self {
        let mut specs: Vec<Spec> = Vec::new();
        let mut outputs = Vec::new();
        if let Output::Aggregate { aggregates, .. } = &program.output {
            for (aggregate, (argument, filter)) in aggregates.iter().zip(&graph.aggregates) {
                let spec = Spec {
                    function: aggregate.function,
                    argument: *argument,
                    filter: *filter,
                    data_type: aggregate.data_type.clone(),
                };
                outputs.push(specs.iter().position(|s| *s == spec).unwrap_or_else(|| {
                    specs.push(spec);
                    specs.len() - 1
                }));
            }
        }
        let keys = graph.outputs.clone();
        let mut states: Vec<State> = specs
            .iter()
            .map(|s| State::new(s.function, &s.data_type))
            .collect();
        if keys.is_empty() {
            states.iter_mut().for_each(|s| s.resize(1));
        }
        Self {
            is_clustered: keys.iter().any(|k| is_clustered(*k, program, graph, table)),
            table: GroupTable::new(keys.iter().map(|k| graph.node(*k).data_type.clone())),
            schema,
            batch_rows,
            keys,
            specs,
            outputs,
            states,
            ready: VecDeque::new(),
            is_finished: false,
        }
    }

    /// Takes in the rows of a segment.
    pub fn consume(&mut self, work: &mut Work<'_>) -> Result<()> {
        if self.keys.is_empty() {
            self.consume_ungrouped(work)
        } else {
            self.consume_grouped(work)
        }
    }

    /// A batch that is ready before the end.
    pub fn next(&mut self) -> Option<RecordBatch> {
        self.ready.pop_front()
    }

    /// What is left at the end, batch by batch.
    pub fn finish(&mut self) -> Result<Option<RecordBatch>> {
        if !self.is_finished {
            self.is_finished = true;
            if self.keys.is_empty() {
                let batch = self.batch(Vec::new(), &self.states, &[0], None)?;
                self.ready.push_back(batch);
            } else {
                self.give_out()?;
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Bytes of memory of the groups.
    pub fn memory_bytes(&self) -> usize {
        let states = self.states.iter().map(State::memory_bytes);
        self.table.size_bytes() + states.sum::<usize>()
    }

    /// Gives out the groups: whoever receives them merges them with those to come.
    pub fn shed(&mut self) -> Result<()> {
        match self.keys.is_empty() {
            true => Ok(()),
            false => self.give_out(),
        }
    }

    fn consume_ungrouped(&mut self, work: &mut Work<'_>) -> Result<()> {
        let mut left = Vec::new();
        for (index, spec) in self.specs.iter().enumerate() {
            if !settle(spec, &mut self.states[index], work) {
                left.push(index);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let (specs, states) = (&self.specs, &mut self.states);
        let nodes = left
            .iter()
            .flat_map(|i| specs[*i].argument.into_iter().chain(specs[*i].filter));
        let cut = work.cut_for(nodes);
        work.for_blocks(cut, |work, rows, mask| {
            work.begin_block();
            for &index in &left {
                let addition = Addition {
                    ids: Ids::One,
                    mask,
                    len: rows.len(),
                    rows_before: None,
                };
                add(&specs[index], &mut states[index], work, &rows, addition)?;
            }
            Ok(())
        })
    }

    fn consume_grouped(&mut self, work: &mut Work<'_>) -> Result<()> {
        let may_be_null = self
            .keys
            .iter()
            .any(|k| work.evaluator.bound(*k).may_be_null);
        if may_be_null && !self.table.allows_nulls() {
            self.give_out()?;
            self.table.allow_nulls();
        }
        match DenseKeys::plan(&self.keys, &mut self.table, work)? {
            Some(keys) => self.consume_dense(keys, work)?,
            None => self.consume_hashed(work)?,
        }
        let large = self.table.len() > MAX_GROUPS || self.table.size_bytes() > MAX_TABLE_BYTES;
        if large || (self.is_clustered && self.table.len() >= MIN_CLUSTERED_GROUPS) {
            self.give_out()?;
        }
        Ok(())
    }

    fn consume_dense(&mut self, mut keys: DenseKeys, work: &mut Work<'_>) -> Result<()> {
        // Behind the groups comes one for the rows that did not survive.
        let groups = keys.groups();
        let specs = &self.specs;
        let mut states: Vec<State> = specs
            .iter()
            .zip(&self.states)
            .map(|(spec, state)| {
                let bound = spec.argument.map(|a| *work.evaluator.bound(a));
                state.for_segment(bound.as_ref(), work.rows, groups + 1)
            })
            .collect();
        let mut counts = vec![0i64; groups + 1];
        let (row_counts, mut single): (Vec<usize>, Vec<usize>) =
            (0..specs.len()).partition(|i| counts_rows(&specs[*i], work));
        let mut packed = PackedSums::plan(&mut single, specs, &mut states, groups, work);
        let nodes = specs
            .iter()
            .flat_map(|s| s.argument.into_iter().chain(s.filter));
        let cut = work.cut_for(nodes);
        let mut ids = Vec::new();
        work.for_blocks(cut, |work, rows, mask| {
            work.begin_block();
            let len = rows.len();
            keys.ids(work, &rows, &mut ids)?;
            if let Some(mask) = mask {
                mask.for_zeros(|row| ids[row] = groups as u32);
            }
            for &index in &single {
                let spec = &specs[index];
                let addition = Addition {
                    ids: Ids::Each(&ids),
                    // Copying bytes for rows that do not count would cost more than skipping them.
                    mask: if Kind::of(&spec.data_type) == Kind::Bytes {
                        mask
                    } else {
                        None
                    },
                    len,
                    rows_before: Some(&counts),
                };
                add(spec, &mut states[index], work, &rows, addition)?;
            }
            match &mut packed {
                Some(packed) => packed.add(work, &rows, &ids, &mut states, &mut counts)?,
                None => ids.iter().for_each(|id| counts[*id as usize] += 1),
            }
            Ok(())
        })?;
        for index in row_counts {
            states[index].count_rows(&counts);
        }
        let found: Vec<u32> = (0..groups as u32)
            .filter(|g| counts[*g as usize] > 0)
            .collect();
        let words = keys.words_of(&found);
        if self.is_clustered && found.len() >= MIN_CLUSTERED_GROUPS {
            for (chunk, words) in
                found
                    .chunks(self.batch_rows)
                    .zip(chunked(&words, found.len(), self.batch_rows))
            {
                let keys = self.table.key_arrays_of(&words, chunk.len())?;
                let batch = self.batch(keys, &states, chunk, Some(&counts))?;
                self.ready.push_back(batch);
            }
            return Ok(());
        }
        self.table.find(&words, found.len(), &mut ids);
        let pairs: Vec<(u32, u32)> = found.into_iter().zip(ids.iter().copied()).collect();
        for (state, segment) in self.states.iter_mut().zip(&states) {
            state.resize(self.table.len());
            state.merge(segment, &pairs, &counts);
        }
        Ok(())
    }

    fn consume_hashed(&mut self, work: &mut Work<'_>) -> Result<()> {
        let (specs, states, table, keys) =
            (&self.specs, &mut self.states, &mut self.table, &self.keys);
        let mut ids = Vec::new();
        // Rows that did not survive must not make groups.
        work.for_blocks(Cut::Exact, |work, rows, _| {
            work.begin_block();
            let len = rows.len();
            let mut words = Vec::with_capacity(keys.len());
            for (number, key) in keys.iter().enumerate() {
                work.evaluator
                    .eval(*key, &mut work.columns.block(rows.clone(), work.reader))?;
                words.push(table.key_words(number, work.evaluator.vector(*key), len));
            }
            table.find(&words, len, &mut ids);
            for (spec, state) in specs.iter().zip(states.iter_mut()) {
                state.resize(table.len());
                let addition = Addition {
                    ids: Ids::Each(&ids),
                    mask: None,
                    len,
                    rows_before: None,
                };
                add(spec, state, work, &rows, addition)?;
            }
            Ok(())
        })
    }

    /// Gives out all groups of the table and forgets them.
    fn give_out(&mut self) -> Result<()> {
        let all: Vec<u32> = (0..self.table.len() as u32).collect();
        for chunk in all.chunks(self.batch_rows) {
            let keys = self
                .table
                .key_arrays(chunk[0] as usize..chunk[0] as usize + chunk.len())?;
            let batch = self.batch(keys, &self.states, chunk, None)?;
            self.ready.push_back(batch);
        }
        self.table.clear();
        self.states.iter_mut().for_each(|s| s.resize(0));
        Ok(())
    }

    fn batch(
        &self,
        mut arrays: Vec<ArrayRef>,
        states: &[State],
        groups: &[u32],
        rows: Option<&[i64]>,
    ) -> Result<RecordBatch> {
        for &output in &self.outputs {
            arrays.push(states[output].finish(groups, rows, &self.specs[output].data_type)?);
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(groups.len()));
        Ok(RecordBatch::try_new_with_options(
            self.schema.clone(),
            arrays,
            &options,
        )?)
    }
}

/// Cuts the words of `len` groups into chunks.
fn chunked(words: &[KeyWords], len: usize, chunk: usize) -> impl Iterator<Item = Vec<KeyWords>> {
    (0..len).step_by(chunk).map(move |start| {
        let rows: Vec<u32> = (start as u32..len.min(start + chunk) as u32).collect();
        words.iter().map(|w| w.gather(&rows)).collect()
    })
}

/// Whether the aggregate is the number of rows.
fn counts_rows(spec: &Spec, work: &Work<'_>) -> bool {
    spec.function == AggregateFunction::Count
        && spec.filter.is_none()
        && spec
            .argument
            .is_none_or(|argument| !work.evaluator.bound(argument).may_be_null)
}

/// An aggregate without keys that selection or zone maps settle.
fn settle(spec: &Spec, state: &mut State, work: &Work<'_>) -> bool {
    if spec.filter.is_some() {
        return false;
    }
    match (spec.function, spec.argument) {
        (AggregateFunction::Count, _) => {
            let counts_rows = counts_rows(spec, work);
            if counts_rows {
                state.count_rows(&[work.selected as i64]);
            }
            counts_rows
        }
        (AggregateFunction::Min | AggregateFunction::Max, Some(argument)) => {
            let Some(column) = work.evaluator.graph().column(argument) else {
                return false;
            };
            let facts = work.columns.facts(column);
            // With NULLs a zone map is a bound only.
            if work.selected < work.rows as usize || facts.may_be_null {
                return false;
            }
            let Some((min, max)) = facts.numbers(work.columns.kind(column)) else {
                return false;
            };
            let number = if spec.function == AggregateFunction::Min {
                min
            } else {
                max
            };
            state.update_known(number as i64);
            true
        }
        _ => false,
    }
}

/// Adds a block's rows to an aggregate.
fn add(
    spec: &Spec,
    state: &mut State,
    work: &mut Work<'_>,
    rows: &Rows<'_>,
    addition: Addition<'_>,
) -> Result<()> {
    let len = rows.len();
    let mut mask = addition.mask.cloned();
    if let Some(filter) = spec.filter {
        work.evaluator
            .eval(filter, &mut work.columns.block(rows.clone(), work.reader))?;
        narrow(&mut mask, work.evaluator.vector(filter).is_true(len));
    }
    let Some(argument) = spec.argument else {
        state.count(Addition {
            mask: mask.as_ref(),
            ..addition
        });
        return Ok(());
    };
    let bound = *work.evaluator.bound(argument);
    if let (Some(mask), true) = (&mask, bound.fallible && spec.filter.is_some()) {
        return add_filtered(spec, argument, state, work, rows, mask, addition);
    }
    if spec.function == AggregateFunction::Count
        && let Some(validity) = work
            .evaluator
            .validity(argument, &mut work.columns.block(rows.clone(), work.reader))?
    {
        validity
            .into_iter()
            .for_each(|validity| narrow(&mut mask, validity));
        state.count(Addition {
            mask: mask.as_ref(),
            ..addition
        });
        return Ok(());
    }
    work.evaluator
        .eval(argument, &mut work.columns.block(rows.clone(), work.reader))?;
    let values = work.evaluator.vector(argument);
    if let Some(validity) = values.validity_of(len) {
        narrow(&mut mask, validity);
    }
    let addition = Addition {
        mask: mask.as_ref(),
        ..addition
    };
    if spec.function == AggregateFunction::Count {
        state.count(addition);
    } else {
        state.update(addition, values, &bound);
    }
    Ok(())
}

/// ANDs another bitmap into a mask.
fn narrow(mask: &mut Option<Bitmap>, other: Bitmap) {
    match mask {
        Some(mask) => mask.and(&other),
        None => *mask = Some(other),
    }
}

/// [`add`] for an argument that may fail and so must only be computed where its filter is TRUE.
fn add_filtered(
    spec: &Spec,
    argument: NodeId,
    state: &mut State,
    work: &mut Work<'_>,
    rows: &Rows<'_>,
    mask: &Bitmap,
    addition: Addition<'_>,
) -> Result<()> {
    let mut places = Vec::new();
    mask.append_rows(0..rows.len() as u32, &mut places);
    if places.is_empty() {
        // No row has had a value.
        state.mark_seen(&Addition {
            mask: Some(mask),
            ..addition
        });
        return Ok(());
    }
    let list: Vec<u32> = match rows {
        Rows::Range(range) => places.iter().map(|p| range.start + p).collect(),
        Rows::List(list) => places.iter().map(|p| list[*p as usize]).collect(),
    };
    let ids: Vec<u32> = match addition.ids {
        Ids::One => Vec::new(),
        Ids::Each(ids) => places.iter().map(|p| ids[*p as usize]).collect(),
    };
    // Other rows: what was computed for the block is of no use here, nor is this for the block.
    work.begin_block();
    work.evaluator.eval(
        argument,
        &mut work.columns.block(rows_of(&list), work.reader),
    )?;
    let values = work.evaluator.vector(argument);
    let validity = values.validity_of(list.len());
    let everywhere = Bitmap::filled(list.len(), true);
    let addition = Addition {
        ids: if let Ids::One = addition.ids {
            Ids::One
        } else {
            Ids::Each(&ids)
        },
        // A mask says that not every row of the block has had a value.
        mask: Some(validity.as_ref().unwrap_or(&everywhere)),
        len: list.len(),
        ..addition
    };
    if spec.function == AggregateFunction::Count {
        state.count(addition);
    } else {
        let bound = *work.evaluator.bound(argument);
        state.update(addition, values, &bound);
    }
    work.begin_block();
    Ok(())
}

/// Whether the key is a column of numbers whose ranges in the table's segments do not overlap but
/// at their ends, with few exceptions.
fn is_clustered(key: NodeId, program: &Program, graph: &Graph, table: &TableSnapshot) -> bool {
    let Some(column) = graph.column(key) else {
        return false;
    };
    if !matches!(
        Kind::of(&graph.node(key).data_type),
        Kind::Integer { .. } | Kind::Decimal
    ) {
        return false;
    }
    let ordinal = program.columns[column].ordinal as usize;
    let chunks = table.segments.iter().filter_map(|s| s.chunks.get(ordinal));
    let mut ranges: Vec<(i64, i64)> = chunks
        .map(|chunk| (chunk.totals.min, chunk.totals.max))
        .filter(|(min, max)| min <= max)
        .collect();
    ranges.sort_unstable();
    let mut end = i64::MIN;
    let mut overlaps = 0;
    for (min, max) in &ranges {
        overlaps += usize::from(*min < end);
        end = end.max(*max);
    }
    ranges.len() > 1 && overlaps * 20 <= ranges.len()
}

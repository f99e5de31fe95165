//! Access paths: which rows a scan looks at. All of them, or those that an index leaves possible.
//!
//! An index never changes what a Program means. A filter such as `key IN (…)` *is* the lookup; the
//! store finds that an index answers it, asks the index once for the whole scan, and looks only
//! at the rows that it names (BlueDBM's stream of addresses, section 7.1). Where the index proves
//! the conjunct, the rows are not even tested for it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, UInt64Type};

use flashmesh_pushdown::{
    CompareOp, Expr, InputColumn, Limits, Output, Program, QueryVector, RuntimeFilter,
    RuntimePredicate, Scalar, SortKey, VerifiedProgram, verify,
};
use parking_lot::Mutex;

use crate::accelerator::cpu::CpuAccelerator;
use crate::accelerator::offload::Fallback;
use crate::accelerator::{Accelerator, ScanMetrics, Task, Work};
use crate::index::ngram::NgramQuery;
use crate::index::{Index, IndexKind, hash, lsh, ngram};
use crate::kernel::KernelSet;
use crate::page::SEGMENT_ROWS;
use crate::segment::{RowSelection, Segment, SegmentId, read_rows, row_of_id};
use crate::store::PageReader;
use crate::table::TableSnapshot;
use crate::{Result, StorageError};

/// An index is asked when it is expected to name at most one row in so many.
const MIN_ROWS_PER_HIT: u64 = 32;

/// Of so many of the nearest rows of a part a filter is tested; where it leaves too few of them,
/// the index doesn't help.
const MAX_FILTERED: usize = 1 << 18;
/// Keys by which segments are looked for, at most.
const NAMED_KEYS_MAX: usize = 1 << 10;

/// Rows of segments, those without any left out.
pub type RowsBySegment = hashbrown::HashMap<SegmentId, Arc<RowSelection>>;

/// How an index, or the ids of rows, answer a part of a Program's filter.
#[derive(Debug)]
pub struct AccessPath {
    probe: Probe,
    /// The conjunct that needs no test any more.
    proves: Option<usize>,
}

#[derive(Debug)]
enum Probe {
    /// Hashes of keys, ascending, to ask an index for.
    Keys(Arc<Index>, Vec<u64>),
    /// Ids of rows.
    RowIds(Vec<u64>),
    /// Parts of a text, to ask an index for.
    Grams(Arc<Index>, NgramQuery),
    /// What a top-k by distance looks for, to ask an index for.
    Near(Arc<Index>, Arc<Near>),
}

/// How a scan looks for the nearest rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NearSearch {
    /// It misses none.
    #[default]
    Exact,
    /// An index may be used and miss some.
    Approximate,
    /// The same, and the exact answer is computed too, for the recall among the scan's counters.
    Measured,
}

/// A search for the nearest rows that pass a filter.
#[derive(Debug)]
struct Near {
    query: QueryVector,
    k: usize,
    /// Gives the ids of the rows that pass the filter; `None`: all pass.
    passing: Option<Arc<VerifiedProgram>>,
    /// Gives the distances of the nearest rows, where the recall is to be measured.
    distances: Option<Arc<VerifiedProgram>>,
}

impl AccessPath {
    /// The best index for a Program's filter, if one helps. Decided by cached metadata only.
    pub fn choose(program: &Program, table: &TableSnapshot, near: NearSearch) -> Option<Self> {
        if near != NearSearch::Exact
            && let Some(path) = by_distance(program, table, near == NearSearch::Measured)
        {
            return Some(path);
        }
        let by_id = equal_to(program, row_id_ordinal(table))
            .min_by_key(|(_, values)| values.len())
            .map(|(conjunct, values)| Self {
                probe: Probe::RowIds(ids(values.iter().copied())),
                proves: Some(conjunct),
            });
        let by_index = table
            .indexes
            .iter()
            .filter_map(|index| match index.definition.kind {
                IndexKind::Hash => by_constants(index, program, table),
                IndexKind::Ngram => by_text(index, program),
                IndexKind::Lsh | IndexKind::Adjacency => None,
            });
        // The fewest keys leave the fewest rows, and any key fewer than a text.
        by_id.into_iter().chain(by_index).min_by_key(Self::keys)
    }

    /// The index for a filter that arrived at run time: a join's keys, if they are few.
    pub(crate) fn choose_runtime(
        filters: &[RuntimeFilter],
        program: &Program,
        table: &TableSnapshot,
    ) -> Option<Self> {
        filters.iter().find_map(|filter| {
            let column = program.columns.get(filter.column as usize)?;
            let is_id = column.ordinal == row_id_ordinal(table);
            let index = table.indexes.iter().find(|index| {
                let definition = &index.definition;
                definition.kind == IndexKind::Hash && definition.columns == [column.ordinal]
            });
            if index.is_none() && !is_id {
                return None;
            }
            let worth_it = |keys| is_worth_it(keys, column.ordinal, index, table);
            let listed;
            let values = match &filter.predicate {
                _ if filter.keep_nulls => return None,
                RuntimePredicate::Set(values) if worth_it(values.len()) => values,
                RuntimePredicate::Bitmap { base, bits } => {
                    // Counted first: a bitmap may have many more values than are worth listing.
                    if !worth_it(bits.iter().map(|word| word.count_ones() as usize).sum()) {
                        return None;
                    }
                    let ones = (0..bits.len() * 64).filter(|i| bits[i / 64] >> (i % 64) & 1 == 1);
                    listed = ones
                        .map(|i| Scalar::Int(i128::from(*base) + i as i128))
                        .collect();
                    &listed
                }
                _ => return None,
            };
            let Some(index) = index else {
                return Some(Self {
                    probe: Probe::RowIds(ids(values)),
                    proves: None,
                });
            };
            let hashes = values
                .iter()
                .filter_map(|value| hash::hash_scalars(&[(value, &column.data_type)]));
            Some(Self::of_keys(index, hashes.collect(), None))
        })
    }

    /// The rows with one of `keys`, which has an array for each column of a `hash` index. Unless
    /// the index proves its keys ([`hash::proves`]) the rows are candidates, which the Program's
    /// filter has to test.
    ///
    /// # Errors
    /// `Invalid` for arrays that are not of the types of keys.
    pub fn by_keys(index: &Arc<Index>, keys: &[ArrayRef]) -> Result<Self> {
        let hashes = hash::hash_keys(keys)?.into_iter().flatten().collect();
        Ok(Self::of_keys(index, hashes, None))
    }

    fn of_keys(index: &Arc<Index>, mut hashes: Vec<u64>, proves: Option<usize>) -> Self {
        hashes.sort_unstable();
        hashes.dedup();
        Self {
            probe: Probe::Keys(Arc::clone(index), hashes),
            proves,
        }
    }

    fn keys(&self) -> usize {
        match &self.probe {
            Probe::Keys(_, keys) | Probe::RowIds(keys) => keys.len(),
            Probe::Grams(..) | Probe::Near(..) => usize::MAX,
        }
    }

    /// What is left of a Program when only the rows that the index names are looked at.
    ///
    /// # Errors
    /// None that a verified Program has.
    pub(crate) fn residual(
        &self,
        program: &Arc<VerifiedProgram>,
        table: &TableSnapshot,
    ) -> Result<Arc<VerifiedProgram>> {
        let Some(proven) = self.proves else {
            return Ok(Arc::clone(program));
        };
        let filter = program.filter.iter().enumerate();
        let residual = Program {
            columns: program.columns.clone(),
            filter: filter
                .filter(|(i, _)| *i != proven)
                .map(|(_, expr)| expr.clone())
                .collect(),
            output: program.output.clone(),
        };
        Ok(Arc::new(verify(
            residual,
            &table.scan_schema,
            &Limits::default(),
        )?))
    }

    /// Asks the index.
    fn rows(
        &self,
        table: &Arc<TableSnapshot>,
        reader: &mut PageReader,
        metrics: &ScanMetrics,
    ) -> Result<RowsBySegment> {
        let mut rows = SingleRows::default();
        let mut found = |segment, row| rows.entry(segment).or_default().push(row);
        match &self.probe {
            Probe::Keys(index, hashes) => {
                for part in &index.parts {
                    hash::probe(part, hashes, reader, |_, segment, row| found(segment, row))?;
                }
                let mut rows = selections(rows);
                rows.extend(tail(index));
                return Ok(rows);
            }
            Probe::RowIds(ids) => {
                for (segment, row) in ids.iter().filter_map(|id| row_of_id(*id)) {
                    found(segment, row);
                }
            }
            Probe::Near(index, near) => {
                let rows = rows_near(index, near, table, reader)?;
                if let Some(distances) = &near.distances {
                    measure_recall(distances, &rows, table, reader, metrics)?;
                }
                return Ok(rows);
            }
            Probe::Grams(index, query) => return rows_with_grams(index, query, table, reader),
        }
        Ok(selections(rows))
    }
}

/// Single rows of segments, in any order.
type SingleRows = hashbrown::HashMap<SegmentId, Vec<u32>>;

/// The rows of an index's tail: all of them are candidates.
fn tail(index: &Index) -> impl Iterator<Item = (SegmentId, Arc<RowSelection>)> {
    let all = |segment: &Arc<Segment>| (segment.id, Arc::new(RowSelection::all(segment.rows)));
    index.tail.iter().map(all)
}

/// Single rows as selections.
fn selections(rows: SingleRows) -> RowsBySegment {
    rows.into_iter()
        .map(|(segment, rows)| (segment, Arc::new(RowSelection::of_rows(rows))))
        .collect()
}

/// As `EXPLAIN` shows it: the index, its kind and what it is asked for.
impl std::fmt::Display for AccessPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys = self.keys();
        let s = if keys == 1 { "" } else { "s" };
        match &self.probe {
            Probe::Keys(index, _) => {
                let definition = &index.definition;
                let (name, kind) = (&definition.name, definition.kind);
                write!(f, "{name} ({kind}, {keys} key{s}")?;
                write_tail(f, index)
            }
            Probe::RowIds(_) => write!(f, "row ids ({keys} row{s})"),
            Probe::Grams(index, _) | Probe::Near(index, _) => {
                let definition = &index.definition;
                write!(f, "{} ({}", definition.name, definition.kind)?;
                write_tail(f, index)
            }
        }
    }
}

fn write_tail(f: &mut std::fmt::Formatter<'_>, index: &Index) -> std::fmt::Result {
    match index.tail_rows() {
        0 => f.write_str(")"),
        rows => write!(f, ", {rows} rows not covered yet)"),
    }
}

/// A hash index for constants that its columns must equal.
fn by_constants(
    index: &Arc<Index>,
    program: &Program,
    table: &TableSnapshot,
) -> Option<AccessPath> {
    let columns = &index.definition.columns;
    if let [ordinal] = columns.as_slice() {
        let (conjunct, values) =
            equal_to(program, *ordinal).min_by_key(|(_, values)| values.len())?;
        if !is_worth_it(values.len(), *ordinal, Some(index), table) {
            return None;
        }
        let data_type = table.schema.field(*ordinal as usize).data_type();
        let hashes = values
            .iter()
            .filter_map(|value| hash::hash_scalars(&[(*value, data_type)]));
        let proves = hash::proves(index, &[data_type]).then_some(conjunct);
        return Some(AccessPath::of_keys(index, hashes.collect(), proves));
    }
    // Of several columns: one constant each.
    let mut key = Vec::with_capacity(columns.len());
    for ordinal in columns {
        let (_, values) = equal_to(program, *ordinal).find(|(_, values)| values.len() == 1)?;
        key.push((values[0], table.schema.field(*ordinal as usize).data_type()));
    }
    let hash = hash::hash_scalars(&key);
    Some(AccessPath::of_keys(index, hash.into_iter().collect(), None))
}

/// An n-gram index for what the conjuncts say of its column.
fn by_text(index: &Arc<Index>, program: &Program) -> Option<AccessPath> {
    let ordinal = index.definition.columns.first()?;
    let column = program.columns.iter().position(|c| c.ordinal == *ordinal)?;
    let query = NgramQuery::for_all(&program.filter, column as u32)?;
    Some(AccessPath {
        probe: Probe::Grams(Arc::clone(index), query),
        proves: None,
    })
}

/// The rows on pages that may hold what is looked for; of segments that the index does not cover
/// all. The index's pages of all segments are announced before the first is waited for.
fn rows_with_grams(
    index: &Index,
    query: &NgramQuery,
    table: &TableSnapshot,
    reader: &mut PageReader,
) -> Result<RowsBySegment> {
    let ordinal = index.definition.columns[0] as usize;
    let segments: HashMap<_, _> = table.segments.iter().map(|s| (s.id, s)).collect();
    let corrupt = || {
        StorageError::corrupt(format!(
            "index '{}' does not fit its table; drop it and create it again",
            index.definition.name
        ))
    };
    let mut slices = Vec::new();
    for part in &index.parts {
        part.opened::<()>(IndexKind::Ngram, reader)?;
        let array = part.arrays.first().ok_or_else(corrupt)?;
        for ((id, _), chunk) in part.covers.iter().zip(&array.chunks) {
            // Others may have taken a segment's place.
            if let Some(segment) = segments.get(id) {
                slices.push((*segment, chunk, &array.data_type));
            }
        }
    }
    for (_, chunk, _) in &slices {
        let index = chunk.page_index(reader)?;
        let mut last = None;
        for row in query.rows() {
            let page = chunk.aux_pages + index.page_of_row(*row).ok_or_else(corrupt)? as u32;
            if last.replace(page) != Some(page) {
                reader.prefetch(&chunk.run, page..page + 1)?;
            }
        }
    }
    let mut rows: RowsBySegment = tail(index).collect();
    for (segment, chunk, data_type) in slices {
        let slots = read_rows(reader, &[(chunk, data_type)], query.rows())?.remove(0);
        let blocks = ngram::blocks(segment, ordinal, reader)?;
        let found = RowSelection::of_ranges(query.candidates(&slots, &blocks)?);
        if !found.is_empty() {
            rows.insert(segment.id, Arc::new(found));
        }
    }
    Ok(rows)
}

/// An lsh index for a top-k by distance.
fn by_distance(program: &Program, table: &TableSnapshot, measured: bool) -> Option<AccessPath> {
    let Output::Rows {
        exprs,
        order,
        limit: Some(limit),
    } = &program.output
    else {
        return None;
    };
    let [key] = order.as_slice() else { return None };
    let Expr::Distance {
        metric,
        expr,
        query,
    } = exprs.get(key.output as usize)?
    else {
        return None;
    };
    let Expr::Column(column) = &**expr else {
        return None;
    };
    // An index has no rows without a distance: they must come last.
    if key.descending || key.nulls_first {
        return None;
    }
    let column = program.columns.get(*column as usize)?;
    let index = table.indexes.iter().find(|index| {
        let definition = &index.definition;
        definition.columns == [column.ordinal]
            && definition.metric(&column.data_type) == Some(*metric)
    })?;
    let passing = if program.filter.is_empty() {
        None
    } else {
        let mut columns = program.columns.clone();
        let id = columns
            .iter()
            .position(|c| c.ordinal == row_id_ordinal(table));
        let id = id.unwrap_or_else(|| {
            columns.push(InputColumn {
                ordinal: row_id_ordinal(table),
                name: "row_id".into(),
                data_type: DataType::UInt64,
                nullable: false,
            });
            columns.len() - 1
        });
        let passing = Program {
            columns,
            filter: program.filter.clone(),
            output: Output::Rows {
                exprs: vec![Expr::Column(id as u32)],
                order: vec![],
                limit: None,
            },
        };
        let passing = verify(passing, &table.scan_schema, &Limits::default()).ok()?;
        Some(Arc::new(passing))
    };
    let distances = if measured {
        let distances = Program {
            columns: program.columns.clone(),
            filter: program.filter.clone(),
            output: Output::Rows {
                exprs: vec![exprs[key.output as usize].clone()],
                order: vec![SortKey { output: 0, ..*key }],
                limit: Some(*limit),
            },
        };
        let distances = verify(distances, &table.scan_schema, &Limits::default()).ok()?;
        Some(Arc::new(distances))
    } else {
        None
    };
    Some(AccessPath {
        probe: Probe::Near(
            Arc::clone(index),
            Arc::new(Near {
                query: query.clone(),
                k: usize::try_from(*limit).ok()?,
                passing,
                distances,
            }),
        ),
        proves: None,
    })
}

/// The rows that may be the nearest. The scan then measures the distance of each, and of each row
/// that the index does not cover. Where too few rows have a vector, those without one fill up;
/// where the filter leaves too few of those that are near, the scan looks at all rows.
fn rows_near(
    index: &Index,
    near: &Near,
    table: &Arc<TableSnapshot>,
    reader: &mut PageReader,
) -> Result<RowsBySegment> {
    let segments: HashMap<_, _> = table.segments.iter().map(|s| (s.id, s)).collect();
    let is_there = |row: &lsh::Candidate| {
        let segment = segments.get(&row.segment);
        segment.is_some_and(|segment| segment.has_row(row.row))
    };
    let mut rows = SingleRows::default();
    let mut found = 0;
    for part in lsh::parts(index, reader)? {
        match rows_near_in(&part, near, is_there, table, reader)? {
            Some(of_part) => {
                found += of_part.len();
                for (segment, row) in of_part {
                    rows.entry(segment).or_default().push(row);
                }
            }
            None => return Ok(all_rows(table)),
        }
    }
    if found < near.k && has_nulls(index, table) {
        return Ok(all_rows(table));
    }
    let mut rows = selections(rows);
    rows.extend(tail(index));
    Ok(rows)
}

fn all_rows(table: &TableSnapshot) -> RowsBySegment {
    let all = |segment: &Arc<Segment>| Arc::new(RowSelection::all(segment.rows));
    table.segments.iter().map(|s| (s.id, all(s))).collect()
}

/// The rows of a part that pass the filter and may be the nearest: more rows, then more buckets are
/// looked at until there are enough or no more. `None` where the filter leaves so few that the
/// whole table is better looked at, by all streams.
fn rows_near_in(
    part: &lsh::LshPart,
    near: &Near,
    is_there: impl Fn(&lsh::Candidate) -> bool,
    table: &Arc<TableSnapshot>,
    reader: &mut PageReader,
) -> Result<Option<Vec<(SegmentId, u32)>>> {
    let enough = part.wanted(near.k);
    let (mut wanted, mut round) = (enough, 0);
    loop {
        let queries = std::slice::from_ref(&near.query);
        let buckets = part.candidates(queries, wanted, round, reader)?;
        let candidates = buckets.of_queries.first().map_or(&[][..], Vec::as_slice);
        let rows = candidates.iter().filter(|row| is_there(row));
        let rows = rows.map(|c| (c.segment, c.row));
        let passing: Vec<_> = match &near.passing {
            Some(filter) => rows_passing(filter, rows, table, reader)?,
            None => rows.collect(),
        };
        // There are more in these buckets.
        let is_cut = candidates.len() >= wanted;
        let is_enough = match near.passing {
            Some(_) => passing.len() >= enough,
            None => passing.len() >= near.k,
        };
        if is_enough || !is_cut && buckets.complete {
            return Ok(Some(passing));
        }
        if candidates.len() >= MAX_FILTERED {
            return Ok(None);
        }
        if is_cut {
            wanted = wanted.saturating_mul(4);
        } else {
            round += 1;
        }
    }
}

/// Whether the column of an index of one column has NULLs.
fn has_nulls(index: &Index, table: &TableSnapshot) -> bool {
    let statistics = index.definition.columns.first();
    let statistics = statistics.and_then(|c| table.statistics.get(*c as usize));
    statistics.is_none_or(|s| s.null_count > 0)
}

/// Those of `rows` that pass a filter.
fn rows_passing(
    filter: &Arc<VerifiedProgram>,
    rows: impl Iterator<Item = (SegmentId, u32)>,
    table: &Arc<TableSnapshot>,
    reader: &mut PageReader,
) -> Result<Vec<(SegmentId, u32)>> {
    let mut tested = SingleRows::default();
    for (segment, row) in rows {
        tested.entry(segment).or_default().push(row);
    }
    let mut passing = Vec::new();
    run(filter, table, Some(&selections(tested)), reader, |batch| {
        let ids = batch.column(0).as_primitive::<UInt64Type>().values();
        passing.extend(ids.iter().filter_map(|id| row_of_id(*id)));
        Ok(())
    })?;
    Ok(passing)
}

/// Counts how many of the nearest rows are among `found`. `program` gives the distances of the
/// nearest of the rows it runs over.
fn measure_recall(
    program: &Arc<VerifiedProgram>,
    found: &RowsBySegment,
    table: &Arc<TableSnapshot>,
    reader: &mut PageReader,
    metrics: &ScanMetrics,
) -> Result<()> {
    // What the measuring reads is no cost of the search.
    metrics.add_reads(reader.take_counters());
    let [exact, found] = [None, Some(found)].map(|rows| {
        let mut distances: Vec<f64> = Vec::new();
        run(program, table, rows, reader, |batch| {
            let values = cast(batch.column(0), &DataType::Float64)?;
            distances.extend(values.as_primitive::<Float64Type>().iter().flatten());
            Ok(())
        })?;
        distances.sort_unstable_by(f64::total_cmp);
        Ok::<_, StorageError>(distances)
    });
    metrics.add_recall(&exact?, &found?);
    reader.take_counters();
    Ok(())
}

/// Runs a Program over all rows of a table or over those of `rows`, on this thread.
fn run(
    program: &Arc<VerifiedProgram>,
    table: &Arc<TableSnapshot>,
    rows: Option<&RowsBySegment>,
    reader: &mut PageReader,
    mut take: impl FnMut(RecordBatch) -> Result<()>,
) -> Result<()> {
    let mut run = CpuAccelerator::new().open(Task {
        kernels: KernelSet::default(),
        program: Arc::clone(program),
        table: Arc::clone(table),
        batch_rows: SEGMENT_ROWS,
        plain_text: false,
        metrics: Arc::default(),
        fallback: Fallback::default(),
    })?;
    for segment in &table.segments {
        let rows = match rows.map(|rows| rows.get(&segment.id)) {
            None => None,
            Some(None) => continue,
            Some(Some(rows)) => Some(Arc::clone(rows)),
        };
        let work = Work {
            segment: Arc::clone(segment),
            rows,
        };
        run.start_segment(work, &[], reader)?;
        while let Some(batch) = run.next(reader)? {
            take(batch)?;
        }
    }
    while let Some(batch) = run.finish()? {
        take(batch)?;
    }
    Ok(())
}

/// The position of the rows' ids among the columns of a scan.
fn row_id_ordinal(table: &TableSnapshot) -> u32 {
    table.schema.fields().len() as u32
}

fn ids<'a>(values: impl IntoIterator<Item = &'a Scalar>) -> Vec<u64> {
    let ids = values.into_iter().filter_map(|value| match value {
        Scalar::Int(id) => u64::try_from(*id).ok(),
        _ => None,
    });
    ids.collect()
}

/// The conjuncts that say what a column equals, with their constants.
fn equal_to(program: &Program, ordinal: u32) -> impl Iterator<Item = (usize, Vec<&Scalar>)> {
    let is_column = move |expr: &Expr| match expr {
        Expr::Column(i) => program
            .columns
            .get(*i as usize)
            .is_some_and(|c| c.ordinal == ordinal),
        _ => false,
    };
    let conjuncts = program.filter.iter().enumerate();
    conjuncts.filter_map(move |(i, conjunct)| match conjunct {
        Expr::InList {
            expr,
            list,
            negated: false,
        } if is_column(expr) => Some((i, list.iter().collect())),
        Expr::Compare {
            op: CompareOp::Eq,
            left,
            right,
        } => match (&**left, &**right) {
            (column, Expr::Literal(literal)) | (Expr::Literal(literal), column)
                if is_column(column) =>
            {
                Some((i, vec![&literal.value]))
            }
            _ => None,
        },
        _ => None,
    })
}

/// The segments of a table that [lies by a key](crate::table::Distribution) in which rows may pass the
/// filter of a Program: those of the buckets of the keys that it names. `None` where it may be all.
pub fn segments_with_keys(program: &Program, table: &TableSnapshot) -> Option<Vec<Arc<Segment>>> {
    let distribution = table.distribution.as_ref()?;
    let mut keys = vec![Vec::new()];
    for ordinal in distribution.columns() {
        let named = equal_to(program, *ordinal).map(|(_, values)| values);
        let values = named.min_by_key(Vec::len)?;
        let data_type = table.schema.field(*ordinal as usize).data_type();
        if keys.len().saturating_mul(values.len()) > NAMED_KEYS_MAX {
            return None;
        }
        let longer = keys.iter().flat_map(|key| {
            let with = |value| [key.as_slice(), &[(value, data_type)]].concat();
            values.iter().copied().map(with)
        });
        keys = longer.collect();
    }
    // A key with NULL equals nothing.
    let hashes = keys.iter().filter_map(|key| hash::hash_scalars(key));
    let buckets: HashSet<u16> = hashes.map(|hash| distribution.bucket_of(hash)).collect();
    let may_have = |segment: &&Arc<Segment>| segment.bucket.is_none_or(|of| buckets.contains(&of));
    Some(table.segments.iter().filter(may_have).cloned().collect())
}

/// Whether so many keys, of an index or ids of rows, name few enough rows.
fn is_worth_it(
    keys: usize,
    ordinal: u32,
    index: Option<&Arc<Index>>,
    table: &TableSnapshot,
) -> bool {
    let rows = table.rows();
    let rows_per_key = match index {
        Some(index) if !index.definition.unique => {
            let statistics = table.statistics.get(ordinal as usize);
            let distinct = statistics.and_then(|s| s.distinct).unwrap_or(rows);
            rows.div_ceil(distinct.max(1))
        }
        _ => 1,
    };
    (keys as u64)
        .saturating_mul(rows_per_key)
        .saturating_mul(MIN_ROWS_PER_HIT)
        <= rows.max(MIN_ROWS_PER_HIT)
}

/// An access that the streams of a scan share: an index is asked once.
#[derive(Debug)]
pub(crate) struct SharedAccess {
    planned: Option<Arc<AccessPath>>,
    settled: OnceLock<Option<Arc<AccessPath>>>,
    found: Mutex<Option<Arc<RowsBySegment>>>,
}

impl SharedAccess {
    pub fn new(planned: Option<Arc<AccessPath>>) -> Self {
        Self {
            planned,
            settled: OnceLock::new(),
            found: Mutex::new(None),
        }
    }

    /// The access that was planned, or, where all rows would be looked at, what `choose` finds;
    /// the first stream settles it for all.
    pub fn settle(&self, choose: impl FnOnce() -> Option<AccessPath>) -> Option<&AccessPath> {
        let settled = self
            .settled
            .get_or_init(|| self.planned.clone().or_else(|| choose().map(Arc::new)));
        settled.as_deref()
    }

    /// The rows to look at; `None` for all. Whoever comes first asks the index, the others wait
    /// for the answer.
    pub fn rows(
        &self,
        table: &Arc<TableSnapshot>,
        reader: &mut PageReader,
        metrics: &ScanMetrics,
    ) -> Result<Option<Arc<RowsBySegment>>> {
        let Some(path) = self.settle(|| None) else {
            return Ok(None);
        };
        let mut found = self.found.lock();
        let rows = match &*found {
            Some(rows) => Arc::clone(rows),
            None => Arc::clone(found.insert(Arc::new(path.rows(table, reader, metrics)?))),
        };
        Ok(Some(rows))
    }
}

//! Runtime filters: tests that arrive while the scan runs.

use std::collections::HashSet;
use std::ops::Range;

use flashmesh_pushdown::{RuntimeFilter, RuntimePredicate, Scalar};

use super::tests_on_pages::{CodeSet, TextBuffers, on_pages, settle_nulls};
use super::{chunk_verdict, prune};
use crate::Result;
use crate::accelerator::cpu::bitmap::Bitmap;
use crate::accelerator::cpu::columns::{Columns, Rows};
use crate::accelerator::cpu::eval::Leaves;
use crate::accelerator::cpu::eval::kernels::total_key;
use crate::accelerator::cpu::eval::vector::{Kind, Values, Vector};
use crate::accelerator::cpu::prune::{Facts, Verdict};
use crate::accelerator::cpu::values::ValueSet;
use crate::page::{Aux, Encoding, Page, ZoneKey, ints, zone_key};
use crate::store::PageReader;

/// Rows after which a filter that removes next to nothing is no longer tried.
const TRIAL_ROWS: f64 = 4.0 * 65_536.0;
/// What it has to remove to be worth its while.
const MIN_REMOVED: f64 = 0.02;

/// The runtime filters of a task.
#[derive(Debug, Default)]
pub(in crate::accelerator::cpu) struct RuntimeTests {
    tests: Vec<RuntimeTest>,
    /// Those that the present segment's zone maps leave undecided.
    pending: Vec<usize>,
}

#[derive(Debug)]
struct RuntimeTest {
    filter: RuntimeFilter,
    /// Where the values come from, to know the filter again without comparing them.
    origin: (usize, usize),
    probe: Probe,
    /// Zone keys of the members of a set, ascending, both zeros as one, if each has one.
    keys: Option<Vec<i128>>,
    seen: f64,
    kept: f64,
}

/// How a value is looked up.
#[derive(Debug)]
enum Probe {
    /// Numbers of 64 bits.
    Values(ValueSet),
    /// Bits from `base` on.
    Bitmap,
    /// Text and binary.
    Bytes(HashSet<Vec<u8>>),
    /// All else: nothing but the zone maps is asked.
    ZoneOnly,
    /// Text and binary between bounds.
    ByteRange(ByteRange),
}

/// Text and binary from a least to a greatest value, as far as there are such.
#[derive(Debug)]
struct ByteRange {
    min: Option<Vec<u8>>,
    max: Option<Vec<u8>>,
}

impl ByteRange {
    #[inline]
    fn contains(&self, value: &[u8]) -> bool {
        self.min.as_deref().is_none_or(|min| is_ordered(min, value))
            && self.max.as_deref().is_none_or(|max| is_ordered(value, max))
    }
}

/// Whether `low <= high`: mostly their first bytes tell, and are compared without a call.
#[inline]
fn is_ordered(low: &[u8], high: &[u8]) -> bool {
    let head = |bytes: &[u8]| bytes.first_chunk().map(|head| u64::from_be_bytes(*head));
    match (head(low), head(high)) {
        (Some(a), Some(b)) if a != b => a < b,
        _ => low <= high,
    }
}

impl RuntimeTests {
    /// Takes over the filters known by now. A filter seen before keeps what was learned of it.
    pub fn update(&mut self, filters: &[RuntimeFilter], columns: &Columns) {
        let known = self.tests.len() == filters.len()
            && self
                .tests
                .iter()
                .zip(filters)
                .all(|(t, f)| t.origin == origin(f) && t.filter.column == f.column);
        if !known {
            self.tests = filters
                .iter()
                .map(|f| RuntimeTest::new(f, columns))
                .collect();
        }
        self.pending.clear();
    }

    /// Removes from `rows` what zone maps rule out; FALSE if that is the whole segment.
    pub fn plan(&mut self, columns: &Columns, rows: &mut Bitmap) -> bool {
        self.pending.clear();
        for (index, test) in self.tests.iter().enumerate() {
            match test.chunk_verdict(columns) {
                Verdict::Drop => return false,
                Verdict::Keep => continue,
                Verdict::Look => {}
            }
            let column = test.filter.column as usize;
            let mut undecided = false;
            for zone in columns.zones(column) {
                let facts = Facts::of_zone(zone, columns.kind(column));
                match test.verdict(facts, columns) {
                    Verdict::Drop => {
                        rows.clear_range(zone.first_row..zone.first_row + zone.row_count)
                    }
                    Verdict::Look => undecided = true,
                    Verdict::Keep => {}
                }
            }
            if undecided && test.is_worth_it() {
                self.pending.push(index);
            }
        }
        rows.any()
    }

    /// The columns that the pending tests read.
    pub fn columns(&self) -> impl Iterator<Item = usize> {
        self.pending
            .iter()
            .map(|i| self.tests[*i].filter.column as usize)
    }

    /// Rank and number of the tests that have to be run.
    pub fn pending(&self) -> impl Iterator<Item = (f64, usize)> {
        self.pending.iter().map(|index| {
            let test = &self.tests[*index];
            let cost = match test.probe {
                Probe::Bytes(_) | Probe::ByteRange(_) => 10.0,
                _ => 0.2,
            };
            (cost / (1.0 - test.kept / test.seen).max(1e-3), *index)
        })
    }

    /// Runs a test over the selected rows.
    pub fn run(
        &mut self,
        index: usize,
        columns: &mut Columns,
        selection: &mut Bitmap,
        reader: &mut PageReader,
    ) -> Result<()> {
        let test = &mut self.tests[index];
        let before = selection.count();
        test.run(columns, selection, reader)?;
        test.seen += before as f64;
        test.kept += selection.count() as f64;
        Ok(())
    }
}

impl RuntimeTest {
    fn new(filter: &RuntimeFilter, columns: &Columns) -> Self {
        let column = filter.column as usize;
        let data_type = columns.data_type(column);
        let kind = columns.kind(column);
        let is_number = matches!(kind, Kind::Integer { .. } | Kind::Decimal | Kind::Boolean);
        let number = |s: &Scalar| match s {
            Scalar::Int(v) => Some(*v),
            Scalar::Boolean(v) => Some(i128::from(*v)),
            _ => None,
        };
        let bytes = |s: &Scalar| match s {
            Scalar::Bytes(v) => Some(v.clone()),
            _ => None,
        };
        let probe = match &filter.predicate {
            RuntimePredicate::Range { min, max } if is_number => {
                let clamp = |v: i128| v.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
                let low = min.as_ref().and_then(number).map_or(i64::MIN, clamp);
                let high = max.as_ref().and_then(number).map_or(i64::MAX, clamp);
                Probe::Values(ValueSet::range(low, high, filter.keep_nulls))
            }
            RuntimePredicate::Range { min, max } if kind == Kind::Bytes => {
                Probe::ByteRange(ByteRange {
                    min: min.as_ref().and_then(bytes),
                    max: max.as_ref().and_then(bytes),
                })
            }
            RuntimePredicate::Set(values) if is_number => {
                let values = values
                    .iter()
                    .filter_map(number)
                    .filter_map(|v| i64::try_from(v).ok())
                    .collect();
                Probe::Values(ValueSet::of_values(values, filter.keep_nulls))
            }
            RuntimePredicate::Set(values) if kind == Kind::Bytes => {
                Probe::Bytes(values.iter().filter_map(bytes).collect())
            }
            RuntimePredicate::Bitmap { .. } if is_number => Probe::Bitmap,
            _ => Probe::ZoneOnly,
        };
        let keys = match &filter.predicate {
            RuntimePredicate::Set(values) => {
                let key = |v: &Scalar| match zone_key(v, data_type) {
                    ZoneKey::Exact(key) | ZoneKey::Prefix(key) => {
                        Some(prune::fold_zero(key.into(), kind))
                    }
                    ZoneKey::Unknown => None,
                };
                let keys = values
                    .iter()
                    .filter(|v| **v != Scalar::Null)
                    .map(key)
                    .collect::<Option<Vec<_>>>();
                keys.map(|mut keys| {
                    keys.sort_unstable();
                    keys
                })
            }
            _ => None,
        };
        Self {
            filter: filter.clone(),
            origin: origin(filter),
            probe,
            keys,
            seen: 65_536.0,
            kept: 16_384.0,
        }
    }

    fn is_worth_it(&self) -> bool {
        !matches!(self.probe, Probe::ZoneOnly)
            && (self.seen < TRIAL_ROWS || self.kept < self.seen * (1.0 - MIN_REMOVED))
    }

    fn chunk_verdict(&self, columns: &Columns) -> Verdict {
        match &self.filter.predicate {
            RuntimePredicate::Set(_) => {
                self.verdict(columns.facts(self.filter.column as usize), columns)
            }
            _ => chunk_verdict(&self.filter, columns),
        }
    }

    fn verdict(&self, facts: Facts, columns: &Columns) -> Verdict {
        if let (Some(keys), prune::Span::Keys { min, max, .. }) = (&self.keys, facts.values) {
            let kind = columns.kind(self.filter.column as usize);
            let [min, max] = [min, max].map(|key| prune::fold_zero(key, kind));
            let next = keys.partition_point(|k| *k < min);
            let any = keys.get(next).is_some_and(|k| *k <= max);
            let keeps_nulls = facts.may_be_null && self.filter.keep_nulls;
            return if any || keeps_nulls {
                Verdict::Look
            } else {
                Verdict::Drop
            };
        }
        prune::runtime_verdict(
            &self.filter,
            facts,
            columns.data_type(self.filter.column as usize),
        )
    }

    fn run(
        &self,
        columns: &mut Columns,
        selection: &mut Bitmap,
        reader: &mut PageReader,
    ) -> Result<()> {
        let column = self.filter.column as usize;
        let keep_nulls = self.filter.keep_nulls;
        let codes = self.code_set(columns, reader)?;
        let mut text = TextBuffers::default();
        let select =
            |page: &Page, aux: &Aux, rows: Range<u32>, selection: &Bitmap, bits: &mut [u64]| {
                if page.header().null_count == page.header().row_count {
                    bits.fill(if keep_nulls { u64::MAX } else { 0 });
                    return Ok(true);
                }
                if page.header().encoding == Encoding::Dict {
                    let Some(codes) = &codes else {
                        return Ok(false);
                    };
                    codes.select(page, rows, selection, bits);
                    return Ok(true);
                }
                match (&self.probe, &self.filter.predicate) {
                    (Probe::Bytes(set), _) if TextBuffers::pays(page, &rows, selection) => {
                        text.select(page, aux, rows.clone(), bits, |value| set.contains(value))?;
                    }
                    (Probe::ByteRange(range), _) if TextBuffers::pays(page, &rows, selection) => {
                        text.select(page, aux, rows.clone(), bits, |value| range.contains(value))?;
                    }
                    _ if !ints::is_integer_page(page) => return Ok(false),
                    (Probe::Values(set), _) => set.select(page, rows.clone(), bits),
                    (Probe::Bitmap, RuntimePredicate::Bitmap { base, bits: set }) => {
                        ints::select_bitmap(page, rows.clone(), *base, set, bits);
                    }
                    _ => return Ok(false),
                }
                settle_nulls(page, rows, keep_nulls, bits);
                Ok(true)
            };
        let other = |columns: &mut Columns,
                     rows: Range<u32>,
                     selection: &mut Bitmap,
                     reader: &mut PageReader| {
            let mut list = Vec::new();
            selection.append_rows(rows, &mut list);
            let array = columns.array(column, &Rows::List(&list), reader)?;
            let vector = Vector::from_arrow(&array, true)?;
            for (index, row) in list.iter().enumerate() {
                if !self.keeps(&vector, index) {
                    selection.set(*row as usize, false);
                }
            }
            Ok(())
        };
        on_pages(column, None, columns, selection, reader, select, other)
    }

    /// The codes that pass, if the chunk has a dictionary.
    fn code_set(&self, columns: &mut Columns, reader: &mut PageReader) -> Result<Option<CodeSet>> {
        let column = self.filter.column as usize;
        let mut block = columns.block(Rows::Range(0..0), reader);
        let Some(entries) = block.dictionary(column, true)? else {
            return Ok(None);
        };
        let keep = Bitmap::from_fn(entries.len(), |i| self.keeps(&entries, i));
        Ok(Some(CodeSet::new(&keep)))
    }

    /// Whether a value passes; whatever can't be told does.
    fn keeps(&self, vector: &Vector, row: usize) -> bool {
        if !vector.is_valid(row) {
            return self.filter.keep_nulls;
        }
        let number = |row: usize| match &vector.values {
            Values::Bool(bits) => i128::from(bits.get(row)),
            _ => vector.int(row),
        };
        match (&self.probe, &self.filter.predicate) {
            (Probe::Values(set), _) => match i64::try_from(number(row)) {
                Ok(value) => set.contains(value),
                // Beyond 64 bits the set knows nothing.
                Err(_) => true,
            },
            (Probe::Bitmap, RuntimePredicate::Bitmap { base, bits }) => {
                let place = number(row) - i128::from(*base);
                usize::try_from(place)
                    .ok()
                    .and_then(|place| {
                        bits.get(place / 64)
                            .map(|word| word >> (place % 64) & 1 == 1)
                    })
                    .unwrap_or(false)
            }
            (Probe::Bytes(set), _) => set.contains(vector.bytes(row)),
            (Probe::ByteRange(range), _) => range.contains(vector.bytes(row)),
            _ => true,
        }
    }
}

/// Where the filter's values lie: the same place means the same filter, or one that held before
/// and therefore still may be applied.
fn origin(filter: &RuntimeFilter) -> (usize, usize) {
    match &filter.predicate {
        RuntimePredicate::Range { min, max } => {
            let key = |bound: &Option<Scalar>| match bound {
                Some(Scalar::Float(v)) => total_key(*v) as usize,
                Some(Scalar::Int(v)) => *v as usize ^ (*v >> 64) as usize,
                Some(Scalar::Bytes(v)) => v
                    .iter()
                    .fold(v.len(), |h, b| h.wrapping_mul(31) ^ usize::from(*b)),
                Some(Scalar::Boolean(v)) => usize::from(*v),
                _ => usize::MAX,
            };
            (key(min), key(max))
        }
        RuntimePredicate::Set(values) => (values.as_ptr() as usize, values.len()),
        RuntimePredicate::Bitmap { bits, .. } => (bits.as_ptr() as usize, bits.len()),
    }
}

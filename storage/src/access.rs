//! Access paths: which rows a scan looks at. All of them, or those that an index leaves possible.
//!
//! An index never changes what a Program means. A filter such as `key IN (…)` *is* the lookup; the
//! store finds that an index answers it, asks the index once for the whole scan, and looks only
//! at the rows that it names (BlueDBM's stream of addresses, section 7.1). Where the index proves
//! the conjunct, the rows are not even tested for it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use flashmesh_pushdown::{
    CompareOp, Expr, Limits, Program, RuntimeFilter, RuntimePredicate, Scalar, VerifiedProgram,
    verify,
};
use parking_lot::Mutex;

use crate::Result;
use crate::index::{Index, IndexKind, RowSelection, hash};
use crate::store::PageReader;
use crate::table::{SegmentId, TableSnapshot};

/// An index is asked when it is expected to name at most one row in so many.
const MIN_ROWS_PER_HIT: u64 = 32;

/// Rows of segments, those without any left out.
pub type RowsBySegment = HashMap<SegmentId, Arc<RowSelection>>;

/// Which rows a scan looks at.
#[derive(Debug, Clone)]
pub enum Access {
    /// All that zone maps leave.
    All,
    /// These.
    Rows(Arc<RowsBySegment>),
    /// Those that an index names.
    Index(Arc<AccessPath>),
}

/// How an index answers a part of a Program's filter.
#[derive(Debug)]
pub struct AccessPath {
    index: Arc<Index>,
    probe: Probe,
    /// The conjunct that needs no test any more.
    proves: Option<usize>,
}

#[derive(Debug)]
enum Probe {
    /// Hashes of keys, ascending.
    Keys(Vec<u64>),
}

impl AccessPath {
    /// The best index for a Program's filter, if one helps. Decided by cached metadata only.
    pub fn choose(program: &Program, table: &TableSnapshot) -> Option<Self> {
        let mut best: Option<Self> = None;
        for index in &table.indexes {
            let path = match index.definition.kind {
                IndexKind::Hash => by_constants(index, program, table),
            };
            // The fewest keys leave the fewest rows.
            if let Some(path) = path
                && best.as_ref().is_none_or(|b| path.keys() < b.keys())
            {
                best = Some(path);
            }
        }
        best
    }

    /// The index for a filter that arrived at run time: a join's keys, if they are few.
    pub(crate) fn choose_runtime(
        filters: &[RuntimeFilter],
        program: &Program,
        table: &TableSnapshot,
    ) -> Option<Self> {
        filters.iter().find_map(|filter| {
            let RuntimePredicate::Set(values) = &filter.predicate else {
                return None;
            };
            let column = program.columns.get(filter.column as usize)?;
            let index = table.indexes.iter().find(|index| {
                let definition = &index.definition;
                definition.kind == IndexKind::Hash && definition.columns == [column.ordinal]
            })?;
            if filter.keep_nulls || !is_worth_it(values.len(), column.ordinal, index, table) {
                return None;
            }
            let hashes = values
                .iter()
                .filter_map(|value| hash::hash_scalars(&[(value, &column.data_type)]));
            Some(Self::of_keys(index, hashes.collect(), None))
        })
    }

    fn of_keys(index: &Arc<Index>, mut hashes: Vec<u64>, proves: Option<usize>) -> Self {
        hashes.sort_unstable();
        hashes.dedup();
        Self {
            index: Arc::clone(index),
            probe: Probe::Keys(hashes),
            proves,
        }
    }

    fn keys(&self) -> usize {
        match &self.probe {
            Probe::Keys(hashes) => hashes.len(),
        }
    }

    /// The index.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
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
            &table.schema,
            &Limits::default(),
        )?))
    }

    /// Asks the index.
    fn rows(&self, reader: &mut PageReader) -> Result<RowsBySegment> {
        let Probe::Keys(hashes) = &self.probe;
        let mut rows: HashMap<SegmentId, Vec<u32>> = HashMap::new();
        for part in &self.index.parts {
            hash::probe(part, hashes, reader, |_, segment, row| {
                rows.entry(segment).or_default().push(row);
            })?;
        }
        Ok(rows
            .into_iter()
            .map(|(segment, rows)| (segment, Arc::new(RowSelection::of_rows(rows))))
            .collect())
    }
}

/// As `EXPLAIN` shows it: the index, its kind and what it is asked for.
impl std::fmt::Display for AccessPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let definition = &self.index.definition;
        let keys = self.keys();
        let s = if keys == 1 { "" } else { "s" };
        write!(
            f,
            "{} ({}, {keys} key{s})",
            definition.name, definition.kind
        )
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
        if !is_worth_it(values.len(), *ordinal, index, table) {
            return None;
        }
        let data_type = table.schema.field(*ordinal as usize).data_type();
        let hashes = values
            .iter()
            .filter_map(|value| hash::hash_scalars(&[(value, data_type)]));
        let proves = hash::is_exact(&[data_type]).then_some(conjunct);
        return Some(AccessPath::of_keys(index, hashes.collect(), proves));
    }
    // Of several columns: one constant each.
    let mut key = Vec::with_capacity(columns.len());
    for ordinal in columns {
        let (_, values) = equal_to(program, *ordinal).find(|(_, values)| values.len() == 1)?;
        key.push((
            &values[0],
            table.schema.field(*ordinal as usize).data_type(),
        ));
    }
    let hash = hash::hash_scalars(&key);
    Some(AccessPath::of_keys(index, hash.into_iter().collect(), None))
}

/// The conjuncts that say what a column equals, with their constants.
fn equal_to(program: &Program, ordinal: u32) -> impl Iterator<Item = (usize, &[Scalar])> {
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
        } if is_column(expr) => Some((i, list.as_slice())),
        Expr::Compare {
            op: CompareOp::Eq,
            left,
            right,
        } => match (&**left, &**right) {
            (column, Expr::Literal(literal)) | (Expr::Literal(literal), column)
                if is_column(column) =>
            {
                Some((i, std::slice::from_ref(&literal.value)))
            }
            _ => None,
        },
        _ => None,
    })
}

/// Whether so many keys name few enough rows.
fn is_worth_it(keys: usize, ordinal: u32, index: &Index, table: &TableSnapshot) -> bool {
    let rows = table.rows();
    let rows_per_key = if index.definition.unique {
        1
    } else {
        let distinct = table
            .statistics
            .get(ordinal as usize)
            .and_then(|s| s.distinct);
        rows.div_ceil(distinct.unwrap_or(rows).max(1))
    };
    (keys as u64)
        .saturating_mul(rows_per_key)
        .saturating_mul(MIN_ROWS_PER_HIT)
        <= rows.max(MIN_ROWS_PER_HIT)
}

/// An access that the streams of a scan share: an index is asked once.
#[derive(Debug)]
pub(crate) struct SharedAccess {
    planned: Access,
    settled: OnceLock<Access>,
    found: Mutex<Option<Arc<RowsBySegment>>>,
}

impl SharedAccess {
    pub fn new(planned: Access) -> Self {
        Self {
            planned,
            settled: OnceLock::new(),
            found: Mutex::new(None),
        }
    }

    /// The access that was planned, or, where all rows would be looked at, what `choose` finds;
    /// the first stream settles it for all.
    pub fn settle(&self, choose: impl FnOnce() -> Option<AccessPath>) -> &Access {
        self.settled.get_or_init(|| match &self.planned {
            Access::All => choose().map_or(Access::All, |path| Access::Index(Arc::new(path))),
            planned => planned.clone(),
        })
    }

    /// The rows to look at; `None` for all. Whoever comes first asks the index, the others wait
    /// for the answer.
    pub fn rows(&self, reader: &mut PageReader) -> Result<Option<Arc<RowsBySegment>>> {
        match self.settle(|| None) {
            Access::All => Ok(None),
            Access::Rows(rows) => Ok(Some(Arc::clone(rows))),
            Access::Index(path) => {
                let mut found = self.found.lock();
                let rows = match &*found {
                    Some(rows) => Arc::clone(rows),
                    None => Arc::clone(found.insert(Arc::new(path.rows(reader)?))),
                };
                Ok(Some(rows))
            }
        }
    }
}

//! Rows by primary key, without SQL: many keys are one command to the store (Minerva section IV-C).

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt64Array};
use arrow::compute::{partition, sort, take};
use arrow::datatypes::SchemaRef;
use datafusion::common::{ResolvedTableReference, ScalarValue, TableReference};
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{ident, lit};
use flashmesh_planner::Authority;
use flashmesh_planner::translate::scalar_of;
use flashmesh_pushdown::{Expr, InputColumn, Limits, Output, Program, Scalar, verify};
use flashmesh_storage::StorageError;
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::access::AccessPath;
use flashmesh_storage::capability::Right;
use flashmesh_storage::index::Index;
use flashmesh_storage::index::hash::proves;
use flashmesh_storage::lookup::KeyLookup;
use flashmesh_storage::node::{Command, RuntimeFilters, SegmentQueue};
use flashmesh_storage::page::{RowValues, Value};
use flashmesh_storage::table::TableSnapshot;

use crate::Session;
use crate::error::{Error, Result};
use crate::exact::cast_exactly;
use crate::names::table_reference;

/// Keys of one command.
const COMMAND_KEYS: usize = 32_768;
/// Up to so many keys are looked up without a command to an accelerator.
const FEW_KEYS: usize = 32;
/// Keys from which on more than one thread fetches the rows.
const KEYS_PER_THREAD: usize = 512;

/// Each key once: what falls into two commands would give its row twice.
fn distinct(keys: &ArrayRef) -> Result<ArrayRef> {
    let sorted = sort(keys, None)?;
    let firsts = partition(std::slice::from_ref(&sorted))?.ranges();
    let firsts = UInt64Array::from_iter_values(firsts.into_iter().map(|range| range.start as u64));
    Ok(take(&sorted, &firsts, None)?)
}

/// A table as the session sees it, and its primary key of one column.
pub struct Keyed {
    pub(crate) name: ResolvedTableReference,
    pub(crate) table: Arc<TableSnapshot>,
    index: Arc<Index>,
    /// The key's column.
    pub(crate) ordinal: u32,
}

impl Keyed {
    /// The name of the key's column.
    pub fn key(&self) -> &str {
        self.table.schema.field(self.ordinal as usize).name()
    }

    /// The table's columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.table.schema
    }

    /// Keys as the table's type of them.
    pub(crate) fn keys(&self, keys: &ArrayRef) -> Result<ArrayRef> {
        let field = self.table.schema.field(self.ordinal as usize);
        cast_exactly(keys, field.data_type(), field.name())
    }

    /// All columns of the table.
    pub(crate) fn columns(&self) -> Vec<u32> {
        (0..self.table.schema.fields().len() as u32).collect()
    }

    fn lookup<'a>(&'a self, keys: &'a ArrayRef, columns: &'a [u32]) -> KeyLookup<'a> {
        KeyLookup {
            table: &self.table,
            index: &self.index,
            keys: std::slice::from_ref(keys),
            columns,
        }
    }
}

/// A row of a table.
#[derive(Debug)]
pub struct Row {
    schema: SchemaRef,
    values: RowValues,
}

impl Row {
    fn new(keyed: &Keyed, values: RowValues) -> Self {
        let schema = Arc::clone(keyed.schema());
        Self { schema, values }
    }

    /// The first of some rows with all columns.
    fn first_of(keyed: &Keyed, rows: &RecordBatch) -> Self {
        let mut values = RowValues::with_capacity(rows.num_columns());
        for column in rows.columns() {
            values.push_array(column.slice(0, 1));
        }
        Self::new(keyed, values)
    }

    /// The table's columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The values, one for each column.
    pub fn values(&self) -> impl Iterator<Item = Value<'_>> {
        self.values.iter()
    }
}

impl Session {
    /// The rows of a table whose primary key is one of `keys`, in any order; keys that no row has
    /// give none. It blocks: an async caller runs it on a thread for that.
    ///
    /// # Errors
    /// [`Error::Usage`] for a table without a primary key of one column and for keys that are not
    /// of its type, [`Error::Storage`].
    pub fn get(&self, table: &str, keys: &ArrayRef) -> Result<Vec<RecordBatch>> {
        let keyed = self.keyed(table)?;
        self.rows_of(&keyed, &keyed.keys(keys)?, &keyed.columns())
    }

    /// The row of a table whose primary key is `key`, an array of one value, if there is one. It blocks as
    /// [`Session::get`] does.
    ///
    /// # Errors
    /// Those of [`Session::get`].
    pub fn get_one(&self, table: &str, key: &ArrayRef) -> Result<Option<Row>> {
        let keyed = self.keyed(table_reference(table))?;
        let rows = self.rows_of(&keyed, &keyed.keys(key)?, &keyed.columns())?;
        Ok(rows.first().map(|rows| Row::first_of(&keyed, rows)))
    }

    /// [`Session::get_one`] where all that it takes is cached, so that it waits for nothing; else `None`.
    ///
    /// # Errors
    /// Those of [`Session::get`].
    pub fn get_one_cached(&self, table: &str, key: &ArrayRef) -> Result<Option<Option<Row>>> {
        let keyed = self.keyed(table_reference(table))?;
        let (keys, columns) = (keyed.keys(key)?, keyed.columns());
        let capability = self.catalog().authority().capability(&keyed.table);
        let node = self.engine().node();
        let found = node.look_up_one_cached(&keyed.lookup(&keys, &columns), &capability)?;
        Ok(found.map(|found| found.map(|values| Row::new(&keyed, values))))
    }

    /// [`Session::rows_of`] of few keys where all that it takes is cached; else `None`.
    pub(crate) fn cached_rows_of(
        &self,
        keyed: &Keyed,
        keys: &ArrayRef,
        columns: &[u32],
    ) -> Result<Option<Vec<RecordBatch>>> {
        let capability = self.catalog().authority().capability(&keyed.table);
        let lookup = keyed.lookup(keys, columns);
        Ok(self.engine().node().look_up_cached(&lookup, &capability)?)
    }

    /// The rows of a table whose primary key is in a range, in the order of the keys: those of one
    /// version, the one at which the result is fetched. Pages without a key of the range are not
    /// read.
    ///
    /// # Errors
    /// [`Error::Usage`] for a table without a primary key of one column, [`Error::Query`] for bounds
    /// that are not of its type.
    pub async fn scan(
        &self,
        table: &str,
        keys: impl RangeBounds<ScalarValue>,
    ) -> Result<DataFrame> {
        let keyed = self.keyed(table)?;
        let key = || ident(keyed.key());
        let lower = match keys.start_bound() {
            Bound::Included(least) => Some(key().gt_eq(lit(least.clone()))),
            Bound::Excluded(least) => Some(key().gt(lit(least.clone()))),
            Bound::Unbounded => None,
        };
        let upper = match keys.end_bound() {
            Bound::Included(most) => Some(key().lt_eq(lit(most.clone()))),
            Bound::Excluded(most) => Some(key().lt(lit(most.clone()))),
            Bound::Unbounded => None,
        };
        let mut rows = self.context().table(keyed.name.clone()).await?;
        for bound in lower.into_iter().chain(upper) {
            rows = rows.filter(bound)?;
        }
        Ok(rows.sort(vec![key().sort(true, false)])?)
    }

    /// A table that the user may read, with its primary key.
    ///
    /// # Errors
    /// As [`Session::get`].
    pub fn keyed(&self, table: impl Into<TableReference>) -> Result<Keyed> {
        let name = self.resolve(table.into());
        self.flash_schema(&name)?;
        self.principal()
            .check(Right::Read, &name.schema, &name.table)?;
        let named = (String::from(&*name.schema), String::from(&*name.table));
        let seen = self.workspace().snapshots([&named])?.pop().flatten();
        let snapshot = seen.ok_or_else(|| StorageError::NotFound {
            kind: "table",
            name: format!("{}.{}", name.schema, name.table),
        })?;
        let key = snapshot.primary_key();
        let columns = key.map(|key| key.definition.columns.as_slice());
        let (Some(index), Some(&[ordinal])) = (key, columns) else {
            return Err(Error::usage(format!(
                "table '{}' has no primary key of one column to get rows by",
                name.table
            )));
        };
        Ok(Keyed {
            index: Arc::clone(index),
            table: Arc::clone(&snapshot),
            ordinal,
            name,
        })
    }

    /// Columns of the rows with these keys, which are of the key's type; the column behind the
    /// table's own is the rows' ids.
    pub(crate) fn rows_of(
        &self,
        keyed: &Keyed,
        keys: &ArrayRef,
        columns: &[u32],
    ) -> Result<Vec<RecordBatch>> {
        if keys.len() <= FEW_KEYS {
            let capability = self.catalog().authority().capability(&keyed.table);
            let lookup = keyed.lookup(keys, columns);
            return Ok(self.engine().node().look_up(&lookup, &capability)?);
        }
        let distinct_keys;
        let keys = match keys.len() > COMMAND_KEYS {
            true => {
                distinct_keys = distinct(keys)?;
                &distinct_keys
            }
            false => keys,
        };
        let mut rows = Vec::new();
        for start in (0..keys.len()).step_by(COMMAND_KEYS) {
            let keys = keys.slice(start, COMMAND_KEYS.min(keys.len() - start));
            rows.extend(self.some_rows_of(keyed, &keys, columns)?);
        }
        Ok(rows)
    }

    fn some_rows_of(
        &self,
        keyed: &Keyed,
        keys: &ArrayRef,
        columns: &[u32],
    ) -> Result<Vec<RecordBatch>> {
        let Keyed { table, index, .. } = keyed;
        let place = columns.iter().position(|column| *column == keyed.ordinal);
        let place = place.ok_or_else(|| Error::usage("the key is among the columns"))? as u32;
        let access = AccessPath::by_keys(index, std::slice::from_ref(keys))?;
        // What the index does not prove is tested.
        let filter = match proves(index, &[keys.data_type()]) {
            true => vec![],
            false => vec![Expr::InList {
                expr: Box::new(Expr::Column(place)),
                list: constants(keys)?,
                negated: false,
            }],
        };
        let ordinals: Vec<usize> = columns.iter().map(|c| *c as usize).collect();
        let columns: Vec<InputColumn> = columns
            .iter()
            .map(|ordinal| {
                let field = table.scan_schema.field(*ordinal as usize);
                InputColumn {
                    ordinal: *ordinal,
                    name: field.name().clone(),
                    data_type: field.data_type().clone(),
                    nullable: field.is_nullable(),
                }
            })
            .collect();
        let program = Program {
            filter,
            output: Output::Rows {
                exprs: (0..columns.len() as u32).map(Expr::Column).collect(),
                order: vec![],
                limit: None,
            },
            columns,
        };
        let program = verify(program, &table.scan_schema, &Limits::default())
            .map_err(|e| Error::usage(e.to_string()))?;
        let command = Command {
            program: Arc::new(program),
            table: Arc::clone(table),
            work: SegmentQueue::with_access(table.segments.clone(), Some(Arc::new(access))),
            runtime_filters: Arc::new(RuntimeFilters::default()),
            batch_rows: COMMAND_KEYS,
            metrics: Arc::new(ScanMetrics::default()),
            capability: self.catalog().authority().capability(table),
        };
        let node = self.engine().node();
        let run = |command: Command| node.submit(command)?.collect::<Result<Vec<_>, _>>();
        let threads = (keys.len() / KEYS_PER_THREAD).clamp(1, self.engine().threads());
        let streams = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads)
                .map(|_| {
                    let command = command.clone();
                    scope.spawn(|| run(command))
                })
                .collect();
            let mut streams = vec![run(command)];
            streams.extend(others.into_iter().map(|thread| {
                let failed = || StorageError::Invalid("fetching rows failed".into());
                thread.join().unwrap_or_else(|_| Err(failed()))
            }));
            streams.into_iter().collect::<Result<Vec<_>, _>>()
        })?;
        // A Program does not carry the metadata of columns.
        let schema = Arc::new(table.scan_schema.project(&ordinals)?);
        let batches = streams.into_iter().flatten();
        let batches = batches
            .map(|batch| RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec()));
        Ok(batches.collect::<Result<Vec<_>, _>>()?)
    }
}

/// Keys as constants, without NULL.
fn constants(keys: &ArrayRef) -> Result<Vec<Scalar>> {
    let mut list = Vec::with_capacity(keys.len());
    for row in (0..keys.len()).filter(|row| keys.is_valid(*row)) {
        let value = ScalarValue::try_from_array(keys, row)?;
        match scalar_of(&value) {
            Ok(Scalar::Null) | Err(_) => {}
            Ok(key) => list.push(key),
        }
    }
    Ok(list)
}

//! Rows by primary key, without SQL: many keys are one command to the store (Minerva section IV-C).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt64Array};
use arrow::compute::{CastOptions, cast_with_options, partition, sort, take};
use datafusion::common::{ScalarValue, TableReference};
use flashmesh_planner::Authority;
use flashmesh_planner::translate::scalar_of;
use flashmesh_pushdown::{Expr, InputColumn, Limits, Output, Program, Scalar, verify};
use flashmesh_storage::StorageError;
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::access::AccessPath;
use flashmesh_storage::capability::Right;
use flashmesh_storage::index::Index;
use flashmesh_storage::index::hash::proves;
use flashmesh_storage::node::{Command, RuntimeFilters, SegmentQueue};
use flashmesh_storage::table::TableSnapshot;

use crate::Session;
use crate::error::{Error, Result};

/// Keys of one command.
const COMMAND_KEYS: usize = 32_768;
/// Keys from which on more than one thread fetches the rows.
const KEYS_PER_THREAD: usize = 512;

/// Each key once: what falls into two commands would give its row twice.
fn distinct(keys: &ArrayRef) -> Result<ArrayRef> {
    let sorted = sort(keys, None)?;
    let firsts = partition(std::slice::from_ref(&sorted))?.ranges();
    let firsts = UInt64Array::from_iter_values(firsts.into_iter().map(|range| range.start as u64));
    Ok(take(&sorted, &firsts, None)?)
}

impl Session {
    /// The rows of a table whose primary key is one of `keys`, in any order; keys that no row has
    /// give none. It blocks: an async caller runs it on a thread for that.
    ///
    /// # Errors
    /// [`Error::Usage`] for a table without a primary key of one column and for keys that are not
    /// of its type, [`Error::Storage`].
    pub fn get(&self, table: &str, keys: &ArrayRef) -> Result<Vec<RecordBatch>> {
        let name = self.resolve(TableReference::parse_str(table));
        self.flash_schema(&name)?;
        self.principal()
            .check(Right::Read, &name.schema, &name.table)?;
        let named = (name.schema.to_string(), name.table.to_string());
        let seen = self.workspace().snapshots([&named]).pop().flatten();
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
        let field = snapshot.schema.field(ordinal as usize);
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        let keys = cast_with_options(keys, field.data_type(), &options).map_err(|e| {
            Error::usage(format!(
                "the keys are not of type {} as column '{}' is: {e}",
                field.data_type(),
                field.name()
            ))
        })?;
        let keys = if keys.len() > COMMAND_KEYS {
            distinct(&keys)?
        } else {
            keys
        };
        let mut rows = Vec::new();
        for start in (0..keys.len()).step_by(COMMAND_KEYS) {
            let keys = keys.slice(start, COMMAND_KEYS.min(keys.len() - start));
            rows.extend(self.get_some(&snapshot, index, ordinal, &keys)?);
        }
        Ok(rows)
    }

    fn get_some(
        &self,
        table: &Arc<TableSnapshot>,
        index: &Arc<Index>,
        ordinal: u32,
        keys: &ArrayRef,
    ) -> Result<Vec<RecordBatch>> {
        let access = AccessPath::by_keys(index, std::slice::from_ref(keys))?;
        // What the index does not prove is tested.
        let filter = match proves(index, &[keys.data_type()]) {
            true => vec![],
            false => vec![Expr::InList {
                expr: Box::new(Expr::Column(ordinal)),
                list: constants(keys)?,
                negated: false,
            }],
        };
        let columns: Vec<InputColumn> = (0..)
            .zip(table.schema.fields())
            .map(|(ordinal, field)| InputColumn {
                ordinal,
                name: field.name().clone(),
                data_type: field.data_type().clone(),
                nullable: field.is_nullable(),
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
        Ok(streams.into_iter().flatten().collect())
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

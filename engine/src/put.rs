//! Rows put and deleted by primary key, without SQL: one command to the store finds those that are
//! there, one commit changes them (Willow section 4.5, Minerva section IV).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt64Array};
use arrow::datatypes::{Field, Schema, UInt64Type};
use arrow::row::{OwnedRow, RowConverter, SortField};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use flashmesh_storage::StorageError;
use flashmesh_storage::table::{LoadTarget, TableSnapshot};

use crate::Session;
use crate::defaults::check_given;
use crate::dml::CHANGE_ATTEMPTS;
use crate::error::{Error, Result};
use crate::exact::cast_exactly;
use crate::get::Keyed;

impl Session {
    /// Puts rows into a table: one whose primary key is there takes the place of that row, others
    /// are added; all in one commit, or as part of the session's transaction. Columns go by their
    /// names, and every column of the table must be there. Gives the number of rows. It blocks: an
    /// async caller runs it on a thread for that.
    ///
    /// # Errors
    /// [`Error::Usage`] for a table without a primary key of one column or with one that is
    /// GENERATED ALWAYS, for columns that are not the table's, and for values that would lose digits;
    /// [`Error::Storage`], where two rows have one key, too.
    pub fn put(&self, table: &str, rows: &RecordBatch) -> Result<u64> {
        self.change_by_key(table, |keyed| {
            for place in 0..keyed.table.schema.fields().len() {
                check_given(&keyed.table, place)?;
            }
            let columns = columns_of(rows, &keyed.table)?;
            let keys = &columns[keyed.ordinal as usize];
            check_twins(keys)?;
            let ids = self.ids_of(keyed, keys)?;
            Ok((columns, ids))
        })
    }

    /// Deletes the rows of a table whose primary key is one of `keys`, in one commit, or as part of
    /// the session's transaction; gives their number. It blocks as [`Session::put`] does.
    ///
    /// # Errors
    /// As [`Session::put`].
    pub fn delete(&self, table: &str, keys: &ArrayRef) -> Result<u64> {
        self.change_by_key(table, |keyed| {
            let field = keyed.table.schema.field(keyed.ordinal as usize);
            let keys = cast_exactly(keys, field.data_type(), field.name())?;
            let ids = self.ids_of(keyed, &keys)?;
            // A key that comes twice deletes its row once.
            let mut ids: Vec<u64> = ids.iter().flatten().collect();
            ids.sort_unstable();
            ids.dedup();
            Ok((vec![], ids.into()))
        })
    }

    /// Commits new rows, if there are any, in place of those with the ids: `change` makes them for
    /// a version of the table, and is asked again where another one was faster.
    fn change_by_key(
        &self,
        table: &str,
        change: impl Fn(&Keyed) -> Result<(Vec<ArrayRef>, UInt64Array)>,
    ) -> Result<u64> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let keyed = self.keyed(table)?;
            let target = LoadTarget::Change {
                schema: keyed.name.schema.to_string(),
                table: keyed.name.table.to_string(),
                version: Arc::clone(&keyed.table),
            };
            let capability = self.check_target(&target)?;
            let (mut columns, ids) = change(&keyed)?;
            let count = ids.len() as u64;
            if count == 0 {
                return Ok(0);
            }
            let fields = keyed.table.scan_schema.fields();
            let fields = fields[fields.len() - 1 - columns.len()..].iter();
            // What is not NULL is for the load to check, which names the column.
            let fields = fields.map(|f| Field::new(f.name(), f.data_type().clone(), true));
            columns.push(Arc::new(ids));
            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            let batch = RecordBatch::try_new(schema, columns)?;
            let commit = || -> std::result::Result<u64, StorageError> {
                let load = self.changes().begin_load(&capability, target)?;
                let mut writer = load.writer()?;
                writer.append(&batch)?;
                writer.finish()?;
                load.commit()
            };
            let error = match commit() {
                Ok(_) => return Ok(count),
                Err(error) => error,
            };
            let name = (&*keyed.name.schema, &*keyed.name.table);
            if attempts == CHANGE_ATTEMPTS || !self.was_overtaken(&error, name, &keyed.table) {
                return Err(error.into());
            }
        }
    }

    /// For each key the id of its row, NULL where there is none.
    fn ids_of(&self, keyed: &Keyed, keys: &ArrayRef) -> Result<UInt64Array> {
        let id = keyed.table.schema.fields().len() as u32;
        let found = self.rows_of(keyed, keys, &[keyed.ordinal, id])?;
        let numbers_of = |batch: &RecordBatch| batch.column(1).as_primitive::<UInt64Type>().clone();
        if keys.len() == 1 {
            return Ok(found
                .first()
                .map_or_else(|| UInt64Array::new_null(1), numbers_of));
        }
        let converter = RowConverter::new(vec![SortField::new(keys.data_type().clone())])?;
        let mut ids: HashMap<OwnedRow, u64> = HashMap::new();
        for batch in &found {
            let rows = converter.convert_columns(&batch.columns()[..1])?;
            let numbers = numbers_of(batch);
            ids.extend(
                rows.iter()
                    .map(|row| row.owned())
                    .zip(numbers.values().iter().copied()),
            );
        }
        let rows = converter.convert_columns(std::slice::from_ref(keys))?;
        Ok(rows
            .iter()
            .map(|row| ids.get(&row.owned()).copied())
            .collect())
    }
}

/// No key may come twice: which of the rows is to stay?
fn check_twins(keys: &ArrayRef) -> Result<()> {
    if keys.len() < 2 {
        return Ok(());
    }
    let converter = RowConverter::new(vec![SortField::new(keys.data_type().clone())])?;
    let rows = converter.convert_columns(std::slice::from_ref(keys))?;
    let mut seen = HashSet::with_capacity(rows.num_rows());
    match (0..rows.num_rows()).find(|row| !seen.insert(rows.row(*row))) {
        None => Ok(()),
        Some(row) => {
            let key = ArrayFormatter::try_new(keys, &FormatOptions::default())?;
            Err(Error::usage(format!(
                "two of the rows have the key {}",
                key.value(row)
            )))
        }
    }
}

/// The columns of a table, by their names, as its types.
fn columns_of(rows: &RecordBatch, table: &TableSnapshot) -> Result<Vec<ArrayRef>> {
    let schema = rows.schema();
    let is_known = |field: &&Arc<Field>| table.schema.index_of(field.name()).is_ok();
    if let Some(stranger) = schema.fields().iter().find(|field| !is_known(field)) {
        return Err(Error::usage(format!(
            "table '{}' has no column '{}'",
            table.name,
            stranger.name()
        )));
    }
    let columns = table.schema.fields().iter().map(|field| {
        let column = rows.column_by_name(field.name()).ok_or_else(|| {
            Error::usage(format!(
                "the rows lack column '{}' of table '{}'",
                field.name(),
                table.name
            ))
        })?;
        cast_exactly(column, field.data_type(), field.name())
    });
    columns.collect()
}

//! The catalogs of formats 1 and 2: a `redb` table for each kind of record.

use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use super::{CatalogTable, Contents, META, other};
use crate::segment::{SegmentId, TableId};
use crate::table::edit::ObjectName;
use crate::table::history::CatalogHistory;
use crate::table::manifest::{FunctionRecord, SegmentRecord, TableRecord, unseal};
use crate::{Result, StorageError};

const SCHEMAS: TableDefinition<&str, ()> = TableDefinition::new("schemas");
/// (schema, table) ▸ table number.
const NAMES: TableDefinition<(&str, &str), u32> = TableDefinition::new("names");
const TABLES: TableDefinition<u32, &[u8]> = TableDefinition::new("tables");
/// (table, segment) ▸ sealed segment record.
const SEGMENTS: TableDefinition<(u32, u32), &[u8]> = TableDefinition::new("segments");
/// (table, index part) ▸ sealed part record; since format 2.
const INDEX_PARTS: TableDefinition<(u32, u32), &[u8]> = TableDefinition::new("index_parts");
/// Function ▸ sealed record.
const FUNCTIONS: TableDefinition<&str, &[u8]> = TableDefinition::new("functions");
/// Function ▸ package.
const PACKAGES: TableDefinition<&str, &[u8]> = TableDefinition::new("packages");

/// Reads everything.
pub(super) fn contents(txn: &ReadTransaction) -> Result<Contents> {
    let mut schemas = Vec::new();
    for row in txn
        .open_table(SCHEMAS)
        .map_err(other)?
        .iter()
        .map_err(other)?
    {
        schemas.push(row.map_err(other)?.0.value().to_string());
    }
    let (records, segments) = (
        txn.open_table(TABLES).map_err(other)?,
        txn.open_table(SEGMENTS).map_err(other)?,
    );
    let parts = match txn.open_table(INDEX_PARTS) {
        Ok(parts) => Some(parts),
        // A database of format 1 that is opened for reading only.
        Err(redb::TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(other(error)),
    };
    let mut tables = Vec::new();
    for row in txn
        .open_table(NAMES)
        .map_err(other)?
        .iter()
        .map_err(other)?
    {
        let (name, id) = row.map_err(other)?;
        let ((schema, name), id) = (name.value(), id.value());
        let what = format!("table '{schema}.{name}'");
        let sealed = records.get(id).map_err(other)?.ok_or_else(|| {
            StorageError::corrupt(format!("{what}: its manifest record is missing"))
        })?;
        let mut record: TableRecord = unseal(&[], sealed.value(), &what)?;
        let mut live = Vec::new();
        for row in segments.range((id, 0)..=(id, u32::MAX)).map_err(other)? {
            let (key, sealed) = row.map_err(other)?;
            let segment = key.value().1;
            let record: SegmentRecord =
                unseal(&[], sealed.value(), &format!("{what}, segment {segment}"))?;
            live.push((SegmentId(segment), record));
        }
        live.sort_by_key(|(id, record)| (record.order, id.0));
        let mut index_parts = Vec::new();
        if let Some(parts) = &parts {
            for row in parts.range((id, 0)..=(id, u32::MAX)).map_err(other)? {
                let (key, sealed) = row.map_err(other)?;
                let part = key.value().1;
                let record = unseal(&[], sealed.value(), &format!("{what}, index part {part}"))?;
                index_parts.push((SegmentId(part), record));
            }
        }
        record.segments = live.len() as u64;
        record.rows = live.iter().map(|(_, s)| u64::from(s.rows)).sum();
        record.parts = index_parts.len() as u64;
        tables.push(CatalogTable {
            history: Ok(CatalogHistory::default()),
            name: ObjectName::new(schema, name),
            id: TableId(id),
            record,
            segments: live,
            index_parts,
        });
    }
    let mut functions = Vec::new();
    match txn.open_table(FUNCTIONS) {
        Ok(records) => {
            for row in records.iter().map_err(other)? {
                let (name, sealed) = row.map_err(other)?;
                let name = name.value().to_string();
                let record: FunctionRecord =
                    unseal(&[], sealed.value(), &format!("function '{name}'"))?;
                functions.push(record.decode_function(name)?);
            }
        }
        Err(redb::TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(other(error)),
    }
    let meta = txn.open_table(META).map_err(other)?;
    let number = |name: &str| -> Result<u32> {
        let found = meta.get(name).map_err(other)?;
        Ok(found.map_or(1, |value| value.value()))
    };
    Ok(Contents {
        functions,
        schemas,
        tables,
        next_table: number("next_table")?,
        next_generation: number("next_generation")?,
        ..Contents::default()
    })
}

/// The packages of functions.
pub(super) fn packages(txn: &ReadTransaction) -> Result<Vec<(String, Vec<u8>)>> {
    let table = match txn.open_table(PACKAGES) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(other(error)),
    };
    let mut packages = Vec::new();
    for row in table.iter().map_err(other)? {
        let (name, package) = row.map_err(other)?;
        packages.push((name.value().to_string(), package.value().to_vec()));
    }
    Ok(packages)
}

/// Removes the tables of formats 1 and 2.
pub(super) fn remove(txn: &WriteTransaction) -> Result<()> {
    txn.delete_table(SCHEMAS).map_err(other)?;
    txn.delete_table(NAMES).map_err(other)?;
    txn.delete_table(TABLES).map_err(other)?;
    txn.delete_table(SEGMENTS).map_err(other)?;
    txn.delete_table(INDEX_PARTS).map_err(other)?;
    txn.delete_table(FUNCTIONS).map_err(other)?;
    txn.delete_table(PACKAGES).map_err(other)?;
    Ok(())
}

/// Writes what an edit puts, for tests of reading it.
#[cfg(test)]
pub(super) fn write(
    txn: &WriteTransaction,
    edit: &crate::table::edit::TableEdit,
    numbers: &super::Numbers,
) -> Result<()> {
    use crate::table::edit::Operation;
    use crate::table::manifest::seal;
    let mut meta = txn.open_table(META).map_err(other)?;
    meta.insert("format", 2).map_err(other)?;
    meta.insert("next_table", numbers.tables.start)
        .map_err(other)?;
    meta.insert("next_generation", numbers.generations.start)
        .map_err(other)?;
    let mut schemas = txn.open_table(SCHEMAS).map_err(other)?;
    let mut names = txn.open_table(NAMES).map_err(other)?;
    let mut tables = txn.open_table(TABLES).map_err(other)?;
    let mut segments = txn.open_table(SEGMENTS).map_err(other)?;
    let mut parts = txn.open_table(INDEX_PARTS).map_err(other)?;
    let mut functions = txn.open_table(FUNCTIONS).map_err(other)?;
    let mut packages = txn.open_table(PACKAGES).map_err(other)?;
    for operation in edit.operations() {
        match operation {
            Operation::PutSchema(name) => drop(schemas.insert(name.as_str(), ()).map_err(other)?),
            Operation::PutTable(put) => {
                let mut record = put.record.clone();
                (record.segments, record.rows, record.parts) = (0, 0, 0);
                let name = (put.name.schema.as_str(), put.name.name.as_str());
                names.insert(name, put.table).map_err(other)?;
                let sealed = seal(&[], &record);
                tables.insert(put.table, sealed.as_slice()).map_err(other)?;
            }
            Operation::PutSegment(put) => {
                let sealed = seal(&[], &put.record);
                segments
                    .insert((put.table, put.segment), sealed.as_slice())
                    .map_err(other)?;
            }
            Operation::PutPart(put) => {
                let sealed = seal(&[], &put.record);
                parts
                    .insert((put.table, put.part), sealed.as_slice())
                    .map_err(other)?;
            }
            Operation::PutFunction(put) => {
                let sealed = seal(&[], &put.record);
                functions
                    .insert(put.name.as_str(), sealed.as_slice())
                    .map_err(other)?;
                packages
                    .insert(put.name.as_str(), put.package.as_slice())
                    .map_err(other)?;
            }
            other => panic!("{other:?} in format 2"),
        }
    }
    Ok(())
}

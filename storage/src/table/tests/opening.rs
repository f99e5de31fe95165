//! What a folder must hold, and what is made of one that lacks something.

use std::fs;

use redb::ReadableTable;

use super::*;

fn refused(dir: &Path, named: &str) {
    let before = contents(dir);
    for read_only in [false, true] {
        let options = DatabaseOptions {
            read_only,
            ..DatabaseOptions::default()
        };
        let error = Database::open(dir, options).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(named) && text.contains("back"), "{text}");
    }
    assert_eq!(contents(dir), before, "opening changed the folder");
}

fn contents(dir: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let mut files: Vec<_> = entries
        .map(|e| (e.file_name(), fs::read(e.path()).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn a_lost_catalog_is_an_error_and_leaves_the_card_alone() {
    let dir = TempDir::new().unwrap();
    load(&open(dir.path()), create(false), &rows(0, 1000)).unwrap();
    let catalog = dir.path().join("catalog.redb");
    let kept = fs::read(&catalog).unwrap();
    fs::remove_file(&catalog).unwrap();
    refused(dir.path(), "catalog.redb");
    fs::write(&catalog, "").unwrap();
    refused(dir.path(), "catalog.redb");
    fs::write(&catalog, vec![0; kept.len()]).unwrap();
    refused(dir.path(), "catalog");
    fs::write(&catalog, kept).unwrap();
    assert_eq!(ids(&open(dir.path())).len(), 1000);
}

#[test]
fn a_lost_card_is_an_error_that_names_it() {
    let dir = TempDir::new().unwrap();
    load(&open(dir.path()), create(false), &rows(0, 1000)).unwrap();
    fs::remove_file(dir.path().join("card0.flash")).unwrap();
    refused(dir.path(), "card0.flash");
}

#[test]
fn a_database_whose_making_was_cut_short_is_made_again() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("card0.flash"), vec![0; 1 << 21]).unwrap();
    fs::write(dir.path().join("catalog.new"), "half").unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 10)).unwrap();
    drop(database);
    assert_eq!(ids(&open(dir.path())).len(), 10);
    assert!(!dir.path().join("catalog.new").exists());
}

#[test]
fn what_a_crash_left_can_be_read_by_several_and_stays_as_it_is() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 1000)).unwrap();
    let crashed = TempDir::new().unwrap();
    for (name, bytes) in contents(dir.path()) {
        fs::write(crashed.path().join(name), bytes).unwrap();
    }
    let before = contents(crashed.path());
    let options = DatabaseOptions {
        read_only: true,
        ..DatabaseOptions::default()
    };
    let readers = [(); 2].map(|()| Database::open(crashed.path(), options.clone()).unwrap());
    for reader in &readers {
        assert_eq!(ids(reader).len(), 1000);
    }
    let writer = Database::open(crashed.path(), DatabaseOptions::default());
    assert!(matches!(writer, Err(StorageError::InUse { .. })));
    drop(readers);
    assert_eq!(contents(crashed.path()), before);
    assert_eq!(ids(&open(crashed.path())).len(), 1000);
}

#[test]
fn one_bad_record_costs_its_table_and_every_write() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 1000)).unwrap();
    database.create_table("public", "other", &schema()).unwrap();
    let table = database.snapshot("public", "t").unwrap().id.0;
    drop(database);
    {
        let catalog = redb::Database::open(dir.path().join("catalog.redb")).unwrap();
        let txn = catalog.begin_write().unwrap();
        let records: redb::TableDefinition<&[u8], &[u8]> = redb::TableDefinition::new("records");
        let mut records = txn.open_table(records).unwrap();
        let key = [&[4][..], &table.to_be_bytes(), &[0; 4]].concat();
        let mut segment = records.get(&key[..]).unwrap().unwrap().value().to_vec();
        *segment.last_mut().unwrap() ^= 1;
        records.insert(&key[..], &segment[..]).unwrap();
        drop(records);
        txn.commit().unwrap();
    }
    let database = open(dir.path());
    assert_eq!(database.tables("public"), ["other", "t"]);
    assert_eq!(database.snapshot("public", "other").unwrap().rows(), 0);
    let error = database.snapshot("public", "t").unwrap_err().to_string();
    assert!(error.contains("'public.t'"), "{error}");
    let error = database.create_schema("s").unwrap_err().to_string();
    assert!(error.contains("can only be read"), "{error}");
    let problems = database.fsck(&mut |_| ()).unwrap().problems;
    assert!(problems[0].contains("'public.t'"), "{problems:?}");
}

//! What a folder must hold, and what is made of one that lacks something.

use std::fs;

use redb::ReadableTable;

use super::*;
use crate::flash::PAGE_SIZE_BYTES;
use crate::page::SEGMENT_ROWS;
use crate::table::edit::{ObjectName, Operation, PutSegment, PutTable, TableEdit};
use crate::table::manifest::encode_segment;

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
fn a_temporary_database_has_no_file_but_its_card() {
    let dir = TempDir::new().unwrap();
    let options = DatabaseOptions {
        temporary: true,
        ..DatabaseOptions::default()
    };
    let database = Database::open(dir.path(), options).unwrap();
    load(&database, create(false), &rows(0, 1000)).unwrap();
    load(&database, append(), &rows(1000, 1)).unwrap();
    assert_eq!(ids(&database).len(), 1001);
    let files: Vec<_> = contents(dir.path())
        .into_iter()
        .map(|file| file.0)
        .collect();
    assert_eq!(files, ["card0.flash"]);
}

#[test]
fn a_lost_card_is_an_error_that_names_it() {
    let dir = TempDir::new().unwrap();
    load(&open(dir.path()), create(false), &rows(0, 1000)).unwrap();
    fs::remove_file(dir.path().join("card0.flash")).unwrap();
    refused(dir.path(), "card0.flash");
}

#[test]
fn a_lost_log_is_an_error_that_names_it() {
    let dir = TempDir::new().unwrap();
    load(&open(dir.path()), create(false), &rows(0, 1000)).unwrap();
    fs::remove_file(dir.path().join("commits.log")).unwrap();
    refused(dir.path(), "commits.log");
}

/// All that was committed is in the log, and the card is blank.
#[test]
fn a_lost_catalog_is_noticed_by_the_log_too() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 0)).unwrap();
    let crashed = TempDir::new().unwrap();
    for (name, bytes) in contents(dir.path()) {
        if name != "catalog.redb" {
            fs::write(crashed.path().join(name), bytes).unwrap();
        }
    }
    refused(crashed.path(), "catalog.redb");
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
    let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
    assert!(problems[0].contains("'public.t'"), "{problems:?}");
}

/// Where the test below finds the database in the process that only opens it.
const LARGE: &str = "FLASHMESH_TEST_LARGE_DATABASE";

/// Of 10 million pages (80 GB), as the card's length and the catalog have them: opening reads no
/// page and keeps no page's zone map in memory.
#[test]
fn opening_takes_memory_for_segments_and_not_for_pages() {
    if let Ok(dir) = std::env::var(LARGE) {
        let (before, started) = (resident_bytes(), std::time::Instant::now());
        let database = open(Path::new(&dir));
        let elapsed = started.elapsed();
        let pages = database.store().usage().live_pages;
        let bytes = resident_bytes().saturating_sub(before);
        println!("\nopened {pages} pages in {elapsed:?} with {bytes} bytes of memory");
        return;
    }
    let dir = TempDir::new().unwrap();
    let segments = large(dir.path());
    let me = "table::tests::opening::opening_takes_memory_for_segments_and_not_for_pages";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", me, "--nocapture"])
        .env(LARGE, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("opened "));
    let line = line.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&child.stderr)));
    println!("{segments} segments; {line}");
    let numbers: Vec<u64> = line
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(numbers[0] >= 10_000_000, "{line}");
    assert!(numbers[1] < 100_000_000, "{line}");
}

/// Makes a database whose one table has so many copies of a segment that they take up 10 million
/// pages, of which only the first copy's were written; gives the number of segments.
fn large(dir: &Path) -> u64 {
    let database = open(dir);
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]));
    let target = LoadTarget::Create {
        layout: layout(),
        distribution: None,
        retention: std::time::Duration::ZERO,
        defaults: vec![],
        checks: vec![],
        schema: "public".into(),
        table: "t".into(),
        arrow_schema: Arc::clone(&schema),
        or_replace: false,
        indexes: Vec::new(),
    };
    let values = (0..SEGMENT_ROWS as i64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64));
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
    load(
        &database,
        target,
        &RecordBatch::try_new(schema, vec![values]).unwrap(),
    )
    .unwrap();
    let name = ObjectName::new("public", "t");
    let table = database.find_table(&name).unwrap().unwrap();
    let segment = &table.snapshot.segments[0];
    let pages: u32 = table.snapshot.runs().map(|run| run.count).sum();
    let segments = 10_000_000_u64.div_ceil(pages.into());
    let first = encode_segment(segment, 0);
    let mut edit = TableEdit::default();
    let mut record = (*table.record).clone();
    record.version += 1;
    record.segments = segments;
    record.rows = segments * SEGMENT_ROWS as u64;
    record.next_segment = segment.id.0 + segments as u32;
    for number in 1..segments {
        let mut copy = first.clone();
        copy.order = number;
        copy.chunks[0].first_page += number * u64::from(pages);
        copy.page_indexes.as_mut().unwrap().first_page += number * u64::from(pages);
        edit.push(Operation::PutSegment(PutSegment {
            table: table.snapshot.id.0,
            segment: segment.id.0 + number as u32,
            record: copy,
        }));
    }
    edit.push(Operation::PutTable(PutTable {
        name,
        table: table.snapshot.id.0,
        record,
    }));
    assert!(database.commit(edit).unwrap());
    drop((table, database));
    let card = fs::OpenOptions::new()
        .write(true)
        .open(dir.join("card0.flash"));
    let bytes = (segments + 1) * u64::from(pages) * PAGE_SIZE_BYTES as u64;
    card.unwrap()
        .set_len(bytes.next_multiple_of(1 << 30))
        .unwrap();
    segments
}

/// Memory that the process has.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    1024 * kilobytes.parse::<u64>().unwrap()
}

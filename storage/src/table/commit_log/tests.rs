use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redb::backends::InMemoryBackend;

use super::*;
use crate::table::tests::seed;

/// A log of these bytes.
fn log(bytes: &[u8]) -> Log {
    let file = InMemoryBackend::new();
    file.set_len(bytes.len() as u64).unwrap();
    file.write(0, bytes).unwrap();
    Log::new(Path::new("commits.log"), file, 1 << 20)
}

fn bytes_of(log: &Log) -> Vec<u8> {
    let mut bytes = vec![0; log.file.len().unwrap() as usize];
    log.file.read(0, &mut bytes).unwrap();
    bytes
}

fn record(name: &str, page: usize) -> LogRecord {
    let mut edit = TableEdit::default();
    edit.push(Operation::PutSchema(name.into()));
    let pages = vec![LoggedPage {
        page: page as u64,
        bytes: vec![7; page % 50],
    }];
    LogRecord { edit, pages }
}

/// Appends records in groups of random sizes from number `first` on; gives where each begins, and
/// where the next one goes.
fn append(log: &Log, rng: &mut StdRng, first: u64, count: u64, place: u64) -> Vec<u64> {
    append_in(1, log, rng, first, count, place)
}

/// The same in an opening of that number.
fn append_in(
    opening: u64,
    log: &Log,
    rng: &mut StdRng,
    first: u64,
    count: u64,
    mut place: u64,
) -> Vec<u64> {
    let mut places = Vec::new();
    let (mut group, mut durable) = (Vec::new(), first - 1);
    for number in first..first + count {
        let message = record(&format!("s{number}"), number as usize).encode_to_vec();
        places.push(place + group.len() as u64);
        let numbers = Numbers {
            record: number,
            durable,
            opening,
        };
        frame(&message, numbers, &mut group);
        if number + 1 == first + count || rng.random_bool(0.4) {
            let end = place + group.len() as u64;
            log.make_room(end).unwrap();
            log.write(place, &group).unwrap();
            (durable, place) = (number, end);
            group.clear();
        }
    }
    places.push(place);
    places
}

fn names(found: &Found) -> Vec<String> {
    let operations = found.records.iter().flat_map(|r| r.edit.operations());
    let names = operations.map(|operation| match operation {
        Operation::PutSchema(name) => name.clone(),
        other => panic!("{other:?}"),
    });
    names.collect()
}

fn expected(numbers: std::ops::RangeInclusive<u64>) -> Vec<String> {
    numbers.map(|number| format!("s{number}")).collect()
}

#[test]
fn a_log_gives_back_what_the_catalog_lacks_and_begins_anew() {
    let mut rng = StdRng::seed_from_u64(seed());
    let log = log(&[]);
    assert!(names(&log.read(0).unwrap()).is_empty());
    let places = append(&log, &mut rng, 1, 30, 0);
    let found = log.read(0).unwrap();
    assert_eq!(names(&found), expected(1..=30));
    assert_eq!((found.last, found.end), (30, places[30]));
    let found = log.read(12).unwrap();
    assert_eq!(names(&found), expected(13..=30));
    assert_eq!((found.last, found.end), (30, places[30]));
    // The catalog has all: the next ones go to the beginning, whatever is behind them.
    let found = log.read(30).unwrap();
    assert_eq!((names(&found), found.last, found.end), (vec![], 30, 0));
    let places = append(&log, &mut rng, 31, 4, 0);
    let found = log.read(30).unwrap();
    assert_eq!(names(&found), expected(31..=34));
    assert_eq!(found.end, places[4]);
    // A catalog that is older than the log's beginning lacks what nobody has.
    assert!(matches!(log.read(29), Err(StorageError::Corrupt { .. })));
}

#[test]
fn what_a_crash_tears_ends_the_log() {
    let mut rng = StdRng::seed_from_u64(seed());
    let whole = log(&[]);
    append(&whole, &mut rng, 1, 20, 0);
    let places = append(&whole, &mut rng, 21, 1, whole.read(0).unwrap().end);
    let bytes = bytes_of(&whole);
    for _ in 0..200 {
        // Of the last record some sectors reached the disk.
        let mut torn = bytes.clone();
        // The last bytes may be no part of it.
        let end = places[1] - ALIGN_BYTES as u64 + 1;
        let cut = rng.random_range(places[0]..end) as usize;
        torn[cut..places[1] as usize].fill(FILLER);
        let found = log(&torn).read(0).unwrap();
        assert_eq!(names(&found), expected(1..=20));
        assert_eq!(found.end, places[0]);
    }
    for size in [0, 1, 7, 8, 31, places[0] as usize] {
        let found = log(&bytes[..size]).read(0).unwrap();
        assert!(expected(1..=20).starts_with(&names(&found)));
    }
}

/// Of a write of several records the first did not reach the disk; the next opening writes one of
/// just its length there.
#[test]
fn what_lies_behind_a_torn_record_never_comes_back() {
    let mut rng = StdRng::seed_from_u64(seed());
    let torn = log(&[]);
    let places = append(&torn, &mut rng, 1, 20, 0);
    let cut = rng.random_range(0..20);
    let mut bytes = bytes_of(&torn);
    // As one write would have left it: what lies behind knows of nothing that was durable later.
    for place in &places[cut..20] {
        let place = *place as usize;
        bytes[place + 16..place + 24].fill(0);
        let end = place + HEADER_BYTES + u32_of(&bytes, place) as usize;
        let sum = checksum(&bytes[place..end]).to_le_bytes();
        bytes[place + 4..place + 8].copy_from_slice(&sum);
    }
    bytes[places[cut] as usize + HEADER_BYTES] ^= 1;
    let torn = log(&bytes);
    let known = cut as u64;
    let found = torn.read(0).unwrap();
    assert_eq!(
        (names(&found), found.end),
        (expected(1..=known), places[cut])
    );
    append_in(2, &torn, &mut rng, known + 1, 1, found.end);
    let found = torn.read(0).unwrap();
    assert_eq!(names(&found), expected(1..=known + 1));
    assert_eq!(found.end, places[cut + 1]);
}

fn u32_of(bytes: &[u8], place: usize) -> u32 {
    u32::from_le_bytes(bytes[place..place + 4].try_into().unwrap())
}

#[test]
fn damage_to_what_was_acknowledged_is_an_error() {
    let mut rng = StdRng::seed_from_u64(seed());
    let whole = log(&[]);
    // Records of an earlier round lie behind.
    append(&whole, &mut rng, 1, 300, 0);
    let places = append(&whole, &mut rng, 301, 40, 0);
    let bytes = bytes_of(&whole);
    let (mut noticed, mut last_group) = (0, 0);
    for _ in 0..10_000 {
        let mut damaged = bytes.clone();
        let byte = rng.random_range(0..places[40] as usize);
        damaged[byte] ^= 1 << rng.random_range(0..8);
        match log(&damaged).read(300) {
            Err(StorageError::Corrupt { .. }) => noticed += 1,
            Err(error) => panic!("{error}"),
            // What fills a record up is no part of it; and what no later record was written
            // behind may be what a crash has torn.
            Ok(found) => {
                let found = names(&found);
                assert!(expected(301..=340).starts_with(&found));
                last_group += u64::from(found.len() < 40);
            }
        }
    }
    println!("{noticed} noticed, {last_group} in the last group");
    assert!(noticed > 5_000, "{noticed}");
}

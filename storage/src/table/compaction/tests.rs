use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use arrow::array::{ArrayRef, AsArray, BinaryArray, Int64Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use roaring::RoaringBitmap;

use super::*;
use crate::flash::PAGE_SIZE_BYTES;
use crate::memory::MemoryBudget;
use crate::segment::row_id;
use crate::table::tests::seed;
use crate::table::{
    Database, DatabaseOptions, Isolation, Load, LoadTarget, UpkeepOptions, Workspace,
};

fn segment(id: u32, rows: u32, deleted: u32) -> Arc<Segment> {
    let segment = Segment::new(SegmentId(id), 1, rows, Vec::new());
    let deleted: RoaringBitmap = (0..deleted).collect();
    Arc::new(segment.with_deleted(deleted).unwrap())
}

fn segments(of: &[(u32, u32)]) -> Vec<Arc<Segment>> {
    let numbered = (0..).zip(of);
    numbered
        .map(|(id, (rows, deleted))| segment(id, *rows, *deleted))
        .collect()
}

/// What compaction makes of segments: the rows that it wrote, and how many segments are left.
fn compact(segments: &mut Vec<Arc<Segment>>, next: &mut u32, how: Thoroughness) -> u64 {
    let mut written = 0;
    while let Some(run) = next_run_of(segments, how, &HashSet::new()) {
        let mut rows: u64 = segments[run.clone()]
            .iter()
            .map(|s| u64::from(s.live_rows()))
            .sum();
        written += rows;
        let before = run.len();
        let had_deleted = segments[run.clone()].iter().any(|s| s.deleted().is_some());
        let mut new = Vec::new();
        while rows > 0 {
            let taken = rows.min(SEGMENT_ROWS as u64);
            new.push(segment(*next, taken as u32, 0));
            *next += 1;
            rows -= taken;
        }
        assert!(new.len() < before || had_deleted, "it would never end");
        segments.splice(run, new);
    }
    written
}

#[test]
fn what_is_due_is_small_or_has_lost_rows() {
    const FULL: u32 = SEGMENT_ROWS as u32;
    let due = |of: &[(u32, u32)]| next_run_of(&segments(of), Thoroughness::Due, &HashSet::new());
    let all = |of: &[(u32, u32)]| next_run_of(&segments(of), Thoroughness::All, &HashSet::new());
    assert_eq!(due(&[(FULL, 0); 40]), None);
    assert_eq!(all(&[(FULL, 0); 40]), None);
    assert_eq!(due(&[(1, 0); 15]), None);
    assert_eq!(due(&[(1, 0); 20]), Some(0..20));
    // What was merged waits until there are as many of its size.
    assert_eq!(due(&[&[(16, 0)][..], &[(1, 0); 15]].concat()), None);
    assert_eq!(all(&[(FULL, 0), (1, 0), (FULL, 0), (2, 0)]), None);
    assert_eq!(all(&[(FULL, 0), (1, 0), (2, 0), (FULL, 0)]), Some(1..3));
    // Larger ones between them are passed by until there are as many of their size.
    let mixed = [&[(3000, 0)][..], &[(1, 0); 16], &[(3000, 0)]].concat();
    assert_eq!(due(&mixed), Some(1..17));
    assert_eq!(due(&[(40_000, 0); 99]), None);
    assert_eq!(due(&[(FULL, 0), (FULL, 20_000), (FULL, 100)]), Some(1..2));
    assert_eq!(due(&[(FULL, 9000)]), None);
    assert_eq!(due(&[(100, 100)]), None);
    assert_eq!(all(&[(FULL, 0), (FULL, 1)]), Some(1..2));
}

/// Rows are deleted while they are rewritten, and by a transaction that began before.
#[test]
fn deleted_rows_are_deleted_wherever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let options = DatabaseOptions {
        upkeep: UpkeepOptions {
            in_background: false,
            ..UpkeepOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let database = Database::open(folder.path(), options).unwrap();
    let schema = Schema::new(vec![Field::new("n", DataType::Int64, false)]);
    database.create_table("public", "t", &schema).unwrap();
    let name = ObjectName::new("public", "t");
    let (mut left, mut next) = (Vec::new(), 0);
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..30 {
        let target = || LoadTarget::Append {
            schema: "public".into(),
            table: "t".into(),
        };
        for _ in 0..rng.random_range(2..8) {
            let load = database.begin_load(target()).unwrap();
            let rows: Vec<i64> = (next..next + rng.random_range(1..40)).collect();
            next += rows.len() as i64;
            append(&load, vec![Arc::new(Int64Array::from(rows.clone()))]);
            load.commit().unwrap();
            left.extend(rows);
        }
        // Both have seen the rows where they were before.
        let workspace = Workspace::new(Arc::clone(&database));
        workspace.begin(Isolation::Snapshot, false).unwrap();
        let version = database.snapshot("public", "t").unwrap();
        assert_eq!(values(&database, &version), left);
        let late = delete(&workspace, &version, &mut left, &mut rng);
        late.commit().unwrap();
        let other = Workspace::new(Arc::clone(&database));
        let early = delete(&other, &version, &mut left, &mut rng);
        let before = database.find_table(&name).unwrap().unwrap();
        let old = &before.snapshot.segments;
        let generation = database.next_generation().unwrap();
        let (new, reservation) = database
            .rewrite(&before, old, generation, &Pace::full())
            .unwrap();
        let rewritten = Rewritten {
            name: &name,
            before: &before,
            old,
            new,
        };
        let moves_first = rng.random_bool(0.5);
        if !moves_first {
            workspace.commit().unwrap();
        }
        early.commit().unwrap();
        let parts = PartBuilder::of(&database, &before).unwrap();
        let mut parts = NewParts::new(parts);
        assert!(database.replace(&rewritten, &mut parts).unwrap());
        reservation.keep();
        if moves_first {
            // They move on, and their pages to the card.
            for _ in 0..rng.random_range(0..3) {
                if rng.random_bool(0.5) {
                    database.empty_log().unwrap();
                }
                let other = Workspace::new(Arc::clone(&database));
                let present = database.snapshot("public", "t").unwrap();
                let more = delete(&other, &present, &mut left, &mut rng);
                more.commit().unwrap();
                database.compact("public", "t").unwrap();
            }
            workspace.commit().unwrap();
        }
        drop(version);
        let present = database.snapshot("public", "t").unwrap();
        assert_eq!(values(&database, &present), left);
        assert_eq!(present.rows(), left.len() as u64);
    }
    let workspace = Workspace::new(Arc::clone(&database));
    // What only moves is as it was read.
    workspace.begin(Isolation::Serializable, false).unwrap();
    let names = [("public".to_string(), "t".to_string())];
    let seen = workspace.snapshots(&names).unwrap().remove(0).unwrap();
    database.compact("public", "t").unwrap();
    let mut gone = left.clone();
    delete(&workspace, &seen, &mut gone, &mut rng)
        .commit()
        .unwrap();
    workspace.commit().unwrap();
    left = gone;
    let present = database.snapshot("public", "t").unwrap();
    assert_eq!(values(&database, &present), left);
    // Two that delete one row meet although it has moved.
    let version = database.snapshot("public", "t").unwrap();
    let row = version.segments.last().unwrap();
    let last = (0..row.rows).rfind(|last| row.has_row(*last)).unwrap();
    let last = row_id(row.id, last);
    let load = |workspace: &Workspace| {
        let load = workspace.begin_load(change_of(&version)).unwrap();
        append(&load, vec![Arc::new(UInt64Array::from(vec![last]))]);
        load
    };
    let (first, second) = (load(&workspace), load(&workspace));
    first.commit().unwrap();
    database.compact("public", "t").unwrap();
    let refused = second.commit().unwrap_err();
    assert!(
        matches!(refused, StorageError::Conflict { .. }),
        "{refused}"
    );
}

fn change_of(version: &Arc<TableSnapshot>) -> LoadTarget {
    LoadTarget::Change {
        schema: "public".into(),
        table: "t".into(),
        version: Arc::clone(version),
    }
}

fn append(load: &Load, columns: Vec<ArrayRef>) {
    let columns = columns.into_iter().map(|column| ("", column));
    let mut writer = load.writer().unwrap();
    writer
        .append(&RecordBatch::try_from_iter(columns).unwrap())
        .unwrap();
    writer.finish().unwrap();
}

/// A load that deletes some of the rows that are `left`.
fn delete(
    workspace: &Workspace,
    version: &Arc<TableSnapshot>,
    left: &mut Vec<i64>,
    rng: &mut StdRng,
) -> Load {
    let load = workspace.begin_load(change_of(version)).unwrap();
    let mut reader = workspace.database().store().reader().unwrap();
    let mut ids = Vec::new();
    for segment in &version.segments {
        let values = read_column(&mut reader, segment, 0, &DataType::Int64).unwrap();
        let values = values.as_primitive::<Int64Type>();
        for (row, value) in (0..).zip(values.values()) {
            if left.contains(value) && rng.random_bool(0.1) {
                ids.push(row_id(segment.id, row));
                left.retain(|other| other != value);
            }
        }
    }
    append(&load, vec![Arc::new(UInt64Array::from(ids))]);
    load
}

fn values(database: &Database, version: &TableSnapshot) -> Vec<i64> {
    let mut reader = database.store().reader().unwrap();
    let of_segment = version.segments.iter().map(|segment| {
        let rows = live_rows(&mut reader, segment, version).unwrap();
        rows.column(0).as_primitive::<Int64Type>().values().to_vec()
    });
    of_segment.collect::<Vec<_>>().concat()
}

/// A table of one-row segments, whose pages are on the card, with texts of so many bytes.
fn one_row_segments(
    options: DatabaseOptions,
    rows: i64,
    bytes: usize,
) -> (tempfile::TempDir, Arc<Database>) {
    let folder = tempfile::tempdir().unwrap();
    let upkeep = UpkeepOptions {
        in_background: false,
        ..UpkeepOptions::default()
    };
    let database = Database::open(folder.path(), DatabaseOptions { upkeep, ..options }).unwrap();
    let schema = Schema::new(vec![
        Field::new("n", DataType::Int64, false),
        Field::new("text", DataType::Binary, false),
    ]);
    database.create_table("public", "t", &schema).unwrap();
    append_rows(&database, 0..rows, bytes);
    database.empty_log().unwrap();
    (folder, database)
}

/// Commits of one row each.
fn append_rows(database: &Arc<Database>, rows: Range<i64>, bytes: usize) {
    for row in rows {
        let target = LoadTarget::Append {
            schema: "public".into(),
            table: "t".into(),
        };
        let load = database.begin_load(target).unwrap();
        let mut text = vec![0; bytes];
        // Nothing makes it shorter.
        StdRng::seed_from_u64(row as u64).fill(&mut text[..]);
        let texts: ArrayRef = Arc::new(BinaryArray::from(vec![&text[..]]));
        append(&load, vec![Arc::new(Int64Array::from(vec![row])), texts]);
        load.commit().unwrap();
    }
}

fn segments_of(database: &Database) -> Vec<Arc<Segment>> {
    database.snapshot("public", "t").unwrap().segments.clone()
}

/// Takes the steps that are due; the errors among them.
fn compact_due(database: &Database) -> Vec<StorageError> {
    let name = ObjectName::new("public", "t");
    let mut errors = Vec::new();
    loop {
        match database.compact_step(&name, &Pace::full(), Thoroughness::Due) {
            Ok(true) => {}
            Ok(false) => return errors,
            Err(error) => errors.push(error),
        }
        assert!(errors.len() < 100, "the same step again and again");
    }
}

/// Turns a bit of a page of the column on the card.
fn damage(folder: &tempfile::TempDir, database: &Database, segment: &Segment, column: usize) {
    let page = segment.chunks[column].run.first.page.0;
    let card = OpenOptions::new()
        .read(true)
        .write(true)
        .open(folder.path().join("card0.flash"))
        .unwrap();
    let (at, mut byte) = (page * PAGE_SIZE_BYTES as u64 + 77, [0]);
    card.read_exact_at(&mut byte, at).unwrap();
    card.write_all_at(&[byte[0] ^ 4], at).unwrap();
    database.store().cache().clear();
}

#[test]
fn a_segment_that_can_not_be_read_keeps_no_others_from_being_merged() {
    let (folder, database) = one_row_segments(DatabaseOptions::default(), 56, 10);
    let bad = Arc::clone(&segments_of(&database)[2]);
    damage(&folder, &database, &bad, 0);
    let errors = compact_due(&database);
    assert!(
        matches!(errors[..], [StorageError::Corrupt { .. }]),
        "{errors:?}"
    );
    let left = segments_of(&database);
    assert_eq!(left.len(), 4, "two before it, it, and one after it");
    assert_eq!((left[2].id, left[3].rows), (bad.id, 53));
    // It is left alone, and what comes later is merged.
    append_rows(&database, 56..96, 10);
    database.empty_log().unwrap();
    assert!(compact_due(&database).is_empty());
    assert!(segments_of(&database).len() < 16);
    // Whoever asks for it hears of it, when all else is done.
    let error = database.compact("public", "t").unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    let rows: Vec<u32> = segments_of(&database).iter().map(|s| s.rows).collect();
    assert_eq!(rows, [2, 1, 93]);
}

/// A budget of so many bytes.
#[derive(Debug)]
struct Limited(usize);

impl MemoryBudget for Limited {
    fn grow(&self, bytes: usize) -> Result<()> {
        match bytes <= self.0 {
            true => Ok(()),
            false => Err(StorageError::Invalid(format!("{bytes} bytes"))),
        }
    }

    fn shrink(&self, _: usize) {}
}

#[test]
fn rows_that_memory_does_not_suffice_for_keep_no_others_from_being_merged() {
    let options = DatabaseOptions {
        memory: Arc::new(Limited(16 << 20)),
        ..DatabaseOptions::default()
    };
    let (_folder, database) = one_row_segments(options, 20, 1 << 20);
    let errors = compact_due(&database);
    assert!(
        matches!(errors[..], [StorageError::Invalid(_)]),
        "{errors:?}"
    );
    assert_eq!(segments_of(&database).len(), 20);
    append_rows(&database, 20..60, 10);
    assert!(compact_due(&database).is_empty());
    assert!(segments_of(&database).len() < 20 + 16);
}

#[test]
fn a_run_ends_where_its_bytes_are_enough() {
    // Of no segment more than a part of what may wait.
    let (_folder, database) = one_row_segments(DatabaseOptions::default(), 1, 1 << 20);
    let bytes = bytes_of(&segments_of(&database)[0]);
    assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
    let many = vec![Arc::clone(&segments_of(&database)[0]); 3 * STEP_BYTES / bytes];
    let run = next_run_of(&many, Thoroughness::Due, &HashSet::new()).unwrap();
    assert_eq!(run, 0..STEP_BYTES / bytes);
}

#[test]
fn small_commits_leave_few_segments_and_rows_are_seldom_rewritten() {
    const COMMITS: u32 = 30_000;
    let (mut present, mut next, mut written) = (Vec::new(), 0, 0);
    for _ in 0..COMMITS {
        present.push(segment(next, 1, 0));
        next += 1;
        written += compact(&mut present, &mut next, Thoroughness::Due);
    }
    assert!(
        present.len() < MERGED_SEGMENTS * TIERS as usize,
        "{}",
        present.len()
    );
    assert!(
        written <= u64::from(COMMITS) * u64::from(TIERS),
        "{written}"
    );
    compact(&mut present, &mut next, Thoroughness::All);
    assert_eq!(present.len(), 1);
}

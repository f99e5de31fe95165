//! Backups: what is restored is what was there, whatever went on meanwhile and whatever failed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rand::seq::IndexedRandom;

use super::faults::devices::Rig;
use super::faults::workloads::{self, Step};
use super::faults::{new_database, open as open_rig, present_state as state};
use super::*;
use crate::index::IndexKind;
use crate::table::{Backup, BackupFiles, BackupFolder, backups, check_backup, restore};

/// A place in memory, whose operations fail from one on.
#[derive(Default)]
struct Files {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    operations: AtomicU64,
    /// 0: never.
    fails_from: AtomicU64,
}

impl Files {
    fn count(&self) -> Result<()> {
        let number = self.operations.fetch_add(1, Ordering::Relaxed) + 1;
        let from = self.fails_from.load(Ordering::Relaxed);
        match from > 0 && number >= from {
            true => Err(StorageError::io("a test", std::io::Error::other("planted"))),
            false => Ok(()),
        }
    }

    fn fail_from(&self, operation: u64) {
        self.operations.store(0, Ordering::Relaxed);
        self.fails_from.store(operation, Ordering::Relaxed);
    }

    fn names(&self) -> Vec<String> {
        self.files.lock().keys().cloned().collect()
    }
}

impl BackupFiles for Files {
    fn list(&self) -> Result<Vec<(String, u64)>> {
        self.count()?;
        let files = self.files.lock();
        let listed = files.iter().map(|(n, b)| (n.clone(), b.len() as u64));
        Ok(listed.collect())
    }

    fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>> {
        self.count()?;
        let files = self.files.lock();
        let bytes = files
            .get(name)
            .and_then(|bytes| bytes.get(range.start as usize..range.end as usize));
        bytes
            .map(<[u8]>::to_vec)
            .ok_or_else(|| StorageError::NotFound {
                kind: "file",
                name: name.into(),
            })
    }

    fn write(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        self.count()?;
        let before = self.files.lock().insert(name.into(), bytes);
        assert!(before.is_none(), "{name} was written twice");
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.count()?;
        self.files.lock().remove(name);
        Ok(())
    }

    fn name(&self) -> String {
        "memory".into()
    }
}

fn back_up(database: &Database, files: &dyn BackupFiles) -> Result<Backup> {
    database.backup(files, None, &mut |_| Ok(()))
}

/// What a backup holds, as a database of its own shows it, which is sound and can be written to.
fn restored(files: &dyn BackupFiles, number: u32) -> String {
    let folder = TempDir::new().unwrap();
    let folder = folder.path().join("new");
    restore(files, Some(number), &folder, &mut |_| Ok(())).unwrap();
    let database = open(&folder);
    assert_eq!(database.fsck(&mut |_| Ok(())).unwrap().problems, [""; 0]);
    let seen = state(&database).unwrap();
    load(
        &database,
        LoadTarget::Create {
            layout: layout(),
            distribution: None,
            retention: std::time::Duration::ZERO,
            defaults: vec![],
            checks: vec![],
            schema: "public".into(),
            table: "new one".into(),
            arrow_schema: schema(),
            or_replace: false,
            indexes: vec![],
        },
        &rows(0, 9),
    )
    .unwrap();
    database.drop_table("public", "new one").unwrap();
    drop(database);
    assert_eq!(state(&open(&folder)).unwrap(), seen);
    seen
}

#[test]
fn each_backup_of_a_place_has_its_own_version() {
    let seed = seed();
    for workload in workloads::all() {
        let rig = Rig::new(new_database(seed), seed);
        let database = open_rig(&rig).unwrap();
        let files = Files::default();
        let mut states = Vec::new();
        for step in workload.before.iter().chain(&workload.steps) {
            step.run(&database).unwrap();
            let made = back_up(&database, &files).unwrap();
            states.push(state(&database).unwrap());
            assert_eq!(made.number as usize, states.len());
        }
        assert_eq!(backups(&files).unwrap().len(), states.len());
        for (number, expected) in (1..).zip(&states) {
            let story = format!("{}, backup {number}", workload.name);
            check_backup(&files, Some(number), &mut |_| Ok(())).unwrap();
            assert_eq!(restored(&files, number), *expected, "{story}");
        }
    }
}

#[test]
fn only_new_pages_are_copied() {
    let folder = TempDir::new().unwrap();
    let database = open(&folder.path().join("database"));
    load(&database, create(false), &rows(0, 100_000)).unwrap();
    let files = BackupFolder::new(folder.path().join("a/b"));
    let first = back_up(&database, &files).unwrap();
    assert_eq!((first.new_bytes, first.rows), (first.bytes, 100_000));
    let second = back_up(&database, &files).unwrap();
    assert_eq!((second.new_bytes, second.bytes), (0, first.bytes));
    load(&database, append(), &rows(100_000, 10)).unwrap();
    let third = back_up(&database, &files).unwrap();
    assert!(0 < third.new_bytes && third.new_bytes < first.bytes / 10);
    assert_eq!(third.bytes, first.bytes + third.new_bytes);
    // Moved to the card, the pages are what they were.
    database.empty_log().unwrap();
    assert_eq!(back_up(&database, &files).unwrap().new_bytes, 0);
    assert_eq!(backups(&files).unwrap().len(), 4);

    // A file that has gone is made up for.
    let gone = std::fs::read_dir(folder.path().join("a/b")).unwrap();
    let mut gone = gone.map(|entry| entry.unwrap().path());
    let is_pack = |path: &std::path::PathBuf| path.to_string_lossy().contains("pages-000001");
    std::fs::remove_file(gone.find(is_pack).unwrap()).unwrap();
    assert!(check_backup(&files, None, &mut |_| Ok(())).is_err());
    assert_eq!(back_up(&database, &files).unwrap().new_bytes, first.bytes);
    check_backup(&files, None, &mut |_| Ok(())).unwrap();
}

#[test]
fn old_backups_go_with_the_pages_that_no_other_names() {
    let rig = Rig::new(new_database(1), 1);
    let database = open_rig(&rig).unwrap();
    let files = Files::default();
    let mut states = Vec::new();
    for step in [
        Step::Create("t", 40, true),
        Step::Append("t", 7),
        Step::Create("u", 9, false),
        Step::Compact("t"),
        Step::DropTable("u"),
        Step::Append("t", 3),
    ] {
        step.run(&database).unwrap();
        states.push(state(&database).unwrap());
        database.backup(&files, Some(2), &mut |_| Ok(())).unwrap();
        let kept: Vec<_> = backups(&files).unwrap().iter().map(|b| b.number).collect();
        let last = states.len() as u32;
        assert_eq!(kept, ((last - 1).max(1)..=last).collect::<Vec<_>>());
        for number in kept {
            assert_eq!(restored(&files, number), states[number as usize - 1]);
        }
    }
    // Of the first ones nothing is left: what they had was rewritten.
    let is_old = |name: &String| name.starts_with("pages-000001");
    assert!(!files.names().iter().any(is_old), "{:?}", files.names());
    let error = database.backup(&files, Some(0), &mut |_| Ok(()));
    assert!(error.unwrap_err().to_string().contains("keep 1 or more"));
}

#[test]
fn what_goes_on_meanwhile_is_not_in_it() {
    let rig = Rig::new(new_database(2), 2);
    let database = open_rig(&rig).unwrap();
    for step in [
        Step::Create("t", 3000, true),
        Step::CreateIndex("t", IndexKind::Ngram),
        Step::Append("t", 5),
        Step::Create("u", 300, false),
    ] {
        step.run(&database).unwrap();
    }
    let before = state(&database).unwrap();
    let files = Files::default();
    let mut steps = vec![
        Step::Create("u", 900, false),
        Step::EmptyLog,
        Step::DropTable("u"),
        Step::Compact("t"),
        Step::Change("t", 2, true),
    ];
    let mut go_on = |_| steps.pop().map_or(Ok(()), |step| step.run(&database));
    database.backup(&files, None, &mut go_on).unwrap();
    assert!(steps.is_empty(), "{steps:?}");
    assert_ne!(state(&database).unwrap(), before);
    assert_eq!(restored(&files, 1), before);
}

#[test]
fn a_backup_that_fails_is_none() {
    let rig = Rig::new(new_database(3), 3);
    let database = open_rig(&rig).unwrap();
    Step::Create("t", 400, true).run(&database).unwrap();
    let files = Files::default();
    back_up(&database, &files).unwrap();
    let mut expected = state(&database).unwrap();
    let mut number = 1;
    for _ in 0..3 {
        Step::Append("t", 30).run(&database).unwrap();
        let new = state(&database).unwrap();
        // Until there are as few operations as it needs.
        for operation in 1.. {
            files.fail_from(operation);
            let made = database.backup(&files, Some(2), &mut |_| Ok(()));
            files.fail_from(0);
            let numbers = backups(&files).unwrap();
            let last = numbers.last().unwrap().number;
            if last > number {
                // The new one is there, whether or not the old ones could be removed.
                (expected, number) = (new.clone(), last);
            }
            assert_eq!(restored(&files, number), expected, "operation {operation}");
            if made.is_ok() {
                break;
            }
        }
    }
    // So is one that its maker has ended.
    Step::Append("t", 1).run(&database).unwrap();
    let ended = database.backup(&files, None, &mut |_| Err(StorageError::Cancelled));
    assert!(matches!(ended, Err(StorageError::Cancelled)));
    assert_eq!(backups(&files).unwrap().last().unwrap().number, number);
}

#[test]
fn damage_of_a_backup_is_found() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let rig = Rig::new(new_database(seed), seed);
    let database = open_rig(&rig).unwrap();
    for step in [
        Step::Create("t", 60, true),
        Step::Function("f", 1),
        Step::View("v", "t"),
    ] {
        step.run(&database).unwrap();
    }
    let files = Files::default();
    back_up(&database, &files).unwrap();
    let sound = files.files.lock().clone();
    for round in 0..400 {
        let mut damaged = sound.clone();
        let names: Vec<_> = damaged.keys().cloned().collect();
        let name = names.choose(&mut rng).unwrap();
        let bytes = damaged.get_mut(name).unwrap();
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..3) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes.truncate(at),
            _ => drop(damaged.remove(name)),
        }
        *files.files.lock() = damaged;
        let found = check_backup(&files, None, &mut |_| Ok(()));
        assert!(found.is_err(), "round {round}: {name} at {at}");
        let folder = TempDir::new().unwrap();
        assert!(restore(&files, None, folder.path(), &mut |_| Ok(())).is_err());
    }
}

#[test]
fn places_and_folders_of_others_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let database = open(&path("database"));
    load(&database, create(false), &rows(0, 900)).unwrap();
    let files = BackupFolder::new(path("backups"));
    let says = |result: Result<Backup>, what: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    says(check_backup(&files, None, &mut |_| Ok(())), "it has none");
    back_up(&database, &files).unwrap();
    says(
        check_backup(&files, Some(2), &mut |_| Ok(())),
        "backup '2 in ",
    );

    let other = open(&path("other"));
    says(back_up(&other, &files), "backups of another database");
    std::fs::create_dir(path("full")).unwrap();
    std::fs::write(path("full/x"), "").unwrap();
    says(
        back_up(&database, &BackupFolder::new(path("full"))),
        "other files ('x')",
    );
    let into = |name: &str| restore(&files, None, &path(name), &mut |_| Ok(()));
    says(into("full"), "holds files");
    says(into("other"), "already exists");

    // What is restored is a database of its own.
    into("restored").unwrap();
    let restored = open(&path("restored"));
    assert_eq!(ids(&restored), (0..900).collect::<Vec<_>>());
    says(back_up(&restored, &files), "backups of another database");

    // A restore that ends early leaves nothing.
    let ended = restore(
        &files,
        None,
        &path("half"),
        &mut |progress| match progress.pages_done {
            0 => Ok(()),
            _ => Err(StorageError::Cancelled),
        },
    );
    assert!(matches!(ended, Err(StorageError::Cancelled)));
    let left = std::fs::read_dir(path("half")).unwrap();
    assert_eq!(left.count(), 0);
    into("half").unwrap();
    assert_eq!(ids(&open(&path("half"))).len(), 900);
}

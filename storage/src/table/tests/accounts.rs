//! Accounts in the catalog.

use super::*;
use crate::table::catalog::Catalog;
use crate::table::{BackupFolder, FORMAT_VERSION, restore};

fn format_of(dir: &Path) -> u32 {
    Catalog::format_of(&dir.join("catalog.redb"), dir).unwrap()
}

fn put(database: &Database, text: &str) {
    let present = database.accounts().unwrap();
    assert!(database.put_accounts(&present, text.into()).unwrap());
}

#[test]
fn accounts_outlive_the_process_and_keep_earlier_builds_out() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 10)).unwrap();
    let none = database.accounts().unwrap();
    assert_eq!((none.version, none.text.as_str()), (0, ""));
    let copy = TempDir::new().unwrap();
    put(&database, "ann");
    // At once: an earlier build would not find them in the log, and let everybody in.
    let before_closing = ["catalog.redb", "commits.log", "card0.flash"];
    for name in before_closing {
        std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
    }
    assert_eq!(format_of(copy.path()), FORMAT_VERSION);
    put(&database, "ann, bob");
    drop(database);
    assert_eq!(open(copy.path()).accounts().unwrap().text, "ann");
    let database = open(dir.path());
    let accounts = database.accounts().unwrap();
    assert_eq!((accounts.version, accounts.text.as_str()), (2, "ann, bob"));
    // A catalog that has them stays one that has.
    load(&database, append(), &rows(10, 20)).unwrap();
    drop(database);
    assert_eq!(format_of(dir.path()), FORMAT_VERSION);
}

#[test]
fn who_changes_what_has_changed_meanwhile_starts_again() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    let seen = database.accounts().unwrap();
    put(&database, "ann");
    assert!(!database.put_accounts(&seen, "bob".into()).unwrap());
    assert_eq!(database.accounts().unwrap().text, "ann");
    assert!(!format!("{:?}", database.accounts().unwrap()).contains("ann"));
}

#[test]
fn backups_have_them() {
    let (dir, place) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let database = open(dir.path());
    load(&database, create(false), &rows(0, 10)).unwrap();
    let files = BackupFolder::new(place.path());
    database.backup(&files, None, &mut |_| Ok(())).unwrap();
    put(&database, "ann");
    database.backup(&files, None, &mut |_| Ok(())).unwrap();
    for (number, text) in [(1, ""), (2, "ann")] {
        let restored = TempDir::new().unwrap();
        let path = restored.path().join("database");
        restore(&files, Some(number), &path, &mut |_| Ok(())).unwrap();
        assert_eq!(open(&path).accounts().unwrap().text, text);
        assert_eq!(format_of(&path) == FORMAT_VERSION, !text.is_empty());
    }
}

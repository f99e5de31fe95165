//! What can't be done is refused with a message that names the thing and the way out.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use flashmesh_storage::table::FORMAT_VERSION;

use crate::support::{flashmesh_binary, open, query};

/// Statements that fail, and what their messages must say.
const WRONG: [(&str, &[&str]); 14] = [
    ("SELEC 1", &["SELEC"]),
    ("SELECT * FROM nowhere", &["nowhere"]),
    ("SELECT nothing FROM planet", &["nothing"]),
    ("SELECT * FROM 'missing.parquet'", &["missing.parquet"]),
    ("CREATE TABLE planet (a INT)", &["planet", "already exists"]),
    (
        "CREATE TABLE copy AS SELECT * FROM 'missing.parquet'",
        &["missing.parquet"],
    ),
    ("DROP TABLE nowhere", &["nowhere"]),
    ("INSERT INTO nowhere VALUES (1)", &["nowhere"]),
    (
        "INSERT INTO planet (name, rings) VALUES ('Saturn', true)",
        &["rings"],
    ),
    (
        "INSERT INTO planet VALUES ('Saturn')",
        &["got 1 values", "expected 2"],
    ),
    ("INSERT INTO planet VALUES ('Saturn', 'many')", &["many"]),
    (
        "SET flashmesh.pushdown = 'sometimes'",
        &["sometimes", "auto"],
    ),
    ("SET flashmesh.cache_size = 'much'", &["much"]),
    ("SELECT 1 / 0 FROM planet", &["ivide by zero"]),
];

#[tokio::test]
async fn wrong_sql_is_refused_with_the_reason_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder.path().join("db")).unwrap();
    let session = engine.session().unwrap();
    query(&session, "CREATE TABLE planet (name TEXT, moons INT)")
        .await
        .unwrap();
    query(
        &session,
        "INSERT INTO planet VALUES ('Earth', 1), ('Mars', 2)",
    )
    .await
    .unwrap();
    for (sql, parts) in WRONG {
        let error = match query(&session, sql).await {
            Ok(rows) => panic!("{sql}: gave {rows:?}"),
            Err(error) => error.to_string(),
        };
        for part in parts {
            assert!(
                error.contains(part),
                "{sql}: {part:?} is not in the message: {error}"
            );
        }
        assert!(!error.contains("panicked"), "{sql}: {error}");
    }
    let rows = query(&session, "SELECT count(*), sum(moons) FROM planet")
        .await
        .unwrap();
    assert_eq!(rows, [[Some("2".into()), Some("3".into())]]);
}

#[tokio::test]
async fn a_file_that_does_not_fit_the_table_is_refused_whole() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder.path().join("db")).unwrap();
    let session = engine.session().unwrap();
    let file = folder.path().join("rows.csv");
    fs::write(&file, "name,moons\nSaturn,146\nUranus,twenty-eight\n").unwrap();
    query(&session, "CREATE TABLE planet (name TEXT, moons INT)")
        .await
        .unwrap();
    let sql = format!("INSERT INTO planet SELECT * FROM '{}'", file.display());
    let error = query(&session, &sql)
        .await
        .expect_err("a word is no number")
        .to_string();
    assert!(error.contains("twenty-eight"), "{error}");
    let rows = query(&session, "SELECT count(*) FROM planet")
        .await
        .unwrap();
    assert_eq!(rows, [[Some("0".into())]]);
}

#[tokio::test]
async fn a_database_in_use_by_another_process_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db");
    let engine = open(&database).unwrap();
    let output = flashmesh(&database, "SELECT 1").output().unwrap();
    assert_refused(&output, &["in use", database.to_str().unwrap()]);
    // It is free again once it is closed here.
    drop(engine);
    let output = flashmesh(&database, "SELECT 1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn a_database_of_a_newer_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db");
    drop(open(&database).unwrap());
    {
        let catalog = redb::Database::open(database.join("catalog.redb")).unwrap();
        let transaction = catalog.begin_write().unwrap();
        let meta: redb::TableDefinition<&str, u32> = redb::TableDefinition::new("meta");
        transaction
            .open_table(meta)
            .unwrap()
            .insert("format", FORMAT_VERSION + 1)
            .unwrap();
        transaction.commit().unwrap();
    }
    let newer = (FORMAT_VERSION + 1).to_string();
    let error = open(&database).expect_err("a newer format").to_string();
    assert!(error.contains(&newer) && error.contains("newer"), "{error}");
    let output = flashmesh(&database, "SELECT 1").output().unwrap();
    assert_refused(&output, &[&newer, "newer flashmesh"]);
}

#[tokio::test]
async fn a_folder_of_something_else_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("letter.txt"), "dear reader").unwrap();
    let error = open(folder.path()).expect_err("not a database").to_string();
    assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "something was put into the folder"
    );
}

/// A folder that its user may not write, a database in it, and a copy of the binary that another
/// user may run: the superuser may write everywhere.
#[tokio::test]
async fn a_read_only_folder_is_refused_for_writing_and_serves_reading() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let database = folder.path().join("db");
    {
        let engine = open(&database).unwrap();
        let session = engine.session().unwrap();
        query(&session, "CREATE TABLE planet AS SELECT 'Mars' AS name")
            .await
            .unwrap();
    }
    let binary = folder.path().join("flashmesh");
    fs::copy(flashmesh_binary(), &binary).unwrap();
    for entry in fs::read_dir(&database).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o444)).unwrap();
    }
    fs::set_permissions(&database, fs::Permissions::from_mode(0o555)).unwrap();
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command
            .args(arguments)
            .arg("--db")
            .arg(&database)
            .env("TMPDIR", "/tmp")
            .env("HOME", "/");
        // SAFETY: geteuid only reads the process's credentials.
        if unsafe { libc::geteuid() } == 0 {
            const NOBODY: u32 = 65_534;
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output().unwrap()
    };
    let write = as_user(&["-c", "INSERT INTO planet VALUES ('Venus')"]);
    assert_refused(&write, &[database.to_str().unwrap()]);
    let read = as_user(&[
        "--read-only",
        "--format",
        "csv",
        "-c",
        "SELECT name FROM planet",
    ]);
    assert!(read.status.success(), "{read:?}");
    assert!(
        String::from_utf8_lossy(&read.stdout).contains("Mars"),
        "{read:?}"
    );
    // A new database in a folder that can't be written.
    let output = as_user(&["--read-only", "-c", "CREATE TABLE moon (name TEXT)"]);
    assert_refused(&output, &["read-only"]);
    fs::set_permissions(&database, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn a_full_disk_fails_the_load_and_keeps_what_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db");
    {
        let engine = open(&database).unwrap();
        let session = engine.session().unwrap();
        query(&session, "CREATE TABLE planet AS SELECT 'Mars' AS name")
            .await
            .unwrap();
    }
    // Files of the child can't grow past this: the stand-in for a full disk that needs no rights.
    let limit_bytes = 24 << 20;
    let sql = "CREATE TABLE big AS SELECT value, value * 7919 % 1000003 AS v, 'row ' || (value * 31) AS s \
               FROM generate_series(1, 20000000) AS series(value)";
    let mut command = flashmesh(&database, sql);
    // SAFETY: both calls are async-signal-safe and touch only the child.
    unsafe {
        command.pre_exec(move || limit_file_size(limit_bytes));
    }
    let output = command.output().unwrap();
    assert_refused(&output, &["card0.flash"]);

    let engine = open(&database).unwrap();
    let session = engine.session().unwrap();
    let rows = query(&session, "SELECT name FROM planet").await.unwrap();
    assert_eq!(rows, [[Some("Mars".into())]]);
    query(&session, "SELECT * FROM big")
        .await
        .expect_err("the table was not committed");
    let report = engine.database().fsck(&mut |_| Ok(())).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

fn limit_file_size(bytes: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: `limit` is valid for the call. Ignoring the signal makes the write fail with an
    // error, as on a full disk, in place of ending the process.
    let done = unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit)
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn flashmesh(database: &Path, sql: &str) -> Command {
    let mut command = Command::new(flashmesh_binary());
    command.args(["-c", sql]).arg("--db").arg(database);
    command
}

/// Exit code 1, and one message on standard error that has these parts.
fn assert_refused(output: &Output, parts: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for part in parts {
        assert!(
            message.contains(part),
            "{part:?} is not in the message: {message}"
        );
    }
    assert!(!message.contains("panicked"), "{message}");
}

//! BACKUP DATABASE, and what is restored from it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use flashmesh::{Engine, EngineOptions, FunctionGrants, Grant, Principal, RightName, Session};
use flashmesh::{backups, restore};
use tempfile::TempDir;

use crate::support::{error, rows, run, session};

fn open(path: &Path) -> Session {
    let options = EngineOptions {
        path: Some(path.to_path_buf()),
        ..EngineOptions::default()
    };
    Engine::open(options).unwrap().session().unwrap()
}

const STATEMENTS: &str = "
    CREATE SCHEMA shop;
    CREATE TABLE shop.item (id BIGINT PRIMARY KEY, name TEXT NOT NULL DEFAULT 'none', cents INT);
    INSERT INTO shop.item SELECT value, 'item ' || value, value * 7 FROM generate_series(1, 20000) AS s(value);
    CREATE INDEX words ON shop.item USING ngram (name);
    DELETE FROM shop.item WHERE id % 10 = 0;
    UPDATE shop.item SET cents = NULL WHERE id < 5;
    CREATE TABLE shop.sale (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what TEXT);
    INSERT INTO shop.sale (what) VALUES ('cup'), ('pot');
    CREATE VIEW dear AS SELECT * FROM shop.item WHERE cents > 100000";

const QUERIES: [&str; 4] = [
    "SELECT count(*), sum(id), sum(cents), min(name), max(name) FROM shop.item",
    "SELECT * FROM shop.item WHERE id IN (1, 10, 11, 19999) ORDER BY id",
    "SELECT count(*) FROM shop.item WHERE name LIKE '%1234%'",
    "SELECT count(*), sum(id) FROM dear",
];

async fn answers(session: &Session) -> Vec<Vec<String>> {
    let mut answers = Vec::new();
    for query in QUERIES {
        answers.push(rows(session, query).await);
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_restored_answers_as_the_database_did() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let place = path("backups").display().to_string();
    let session = open(&path("shop"));
    for statement in STATEMENTS.split(';') {
        run(&session, statement).await;
    }
    let first = answers(&session).await;
    // Between others, and with what follows it.
    let script = format!("SELECT 1; BACKUP DATABASE TO '{place}'; SELECT 2");
    assert_eq!(rows(&session, &script).await, ["2"]);
    run(
        &session,
        "UPDATE shop.item SET cents = cents + 1 WHERE id = 19999",
    )
    .await;
    run(
        &session,
        &format!("backup database to 'file://{place}' keep 5"),
    )
    .await;
    let second = answers(&session).await;
    assert_ne!(first, second);
    run(&session, &format!("CALL backup_database('{place}', 2)")).await;
    run(&session, "DROP TABLE shop.item CASCADE").await;

    let found = backups(&place).await.unwrap();
    let numbers: Vec<_> = found.iter().map(|backup| backup.number).collect();
    assert_eq!(numbers, [2, 3]);
    assert_eq!(found[1].new_bytes, 0);
    assert_eq!((found[1].tables, found[1].rows), (2, 18_002));
    let restored = path("restored");
    restore(&place, Some(2), &restored, |_| ()).await.unwrap();
    let restored = open(&restored);
    assert_eq!(answers(&restored).await, second);
    // Keys are enforced, defaults are there.
    let twice = error(&restored, "INSERT INTO shop.item VALUES (11, 'x', 1)").await;
    assert!(twice.contains("two rows have the key"), "{twice}");
    run(&restored, "INSERT INTO shop.item (id) VALUES (20)").await;
    let name = rows(&restored, "SELECT name FROM shop.item WHERE id = 20").await;
    assert_eq!(name, ["none"]);
    // Numbers are not given twice.
    run(&restored, "INSERT INTO shop.sale (what) VALUES ('pan')").await;
    let sales = rows(&restored, "SELECT count(DISTINCT id) FROM shop.sale").await;
    assert_eq!(sales, ["3"]);
    let refused = error(&restored, &format!("BACKUP DATABASE TO '{place}'")).await;
    assert!(refused.contains("backups of another database"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_backup_can_not_be_is_said() {
    let session = session();
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("backups").display().to_string();
    for (sql, what) in [
        ("BACKUP".to_string(), "Expected: DATABASE"),
        ("BACKUP DATABASE 'x'".into(), "Expected: TO"),
        ("BACKUP DATABASE TO".into(), "Expected: a value"),
        ("BACKUP DATABASE TO 5".into(), "a backup takes the folder"),
        ("BACKUP DATABASE TO ''".into(), "a backup takes the folder"),
        (
            format!("BACKUP DATABASE TO '{place}' KEEP 0"),
            "keep 1 or more",
        ),
        (
            format!("BACKUP DATABASE TO '{place}' KEEP 'x'"),
            "a backup takes the folder",
        ),
        (
            format!("BACKUP DATABASE TO '{place}' WITH"),
            "end of statement",
        ),
        ("CALL other('x')".into(), "no procedure 'other'"),
        (
            "BACKUP DATABASE TO 'gopher://x/y'".into(),
            "can't be reached",
        ),
    ] {
        let message = error(&session, &sql).await;
        assert!(message.contains(what), "{sql}: {message}");
    }
    run(&session, "BEGIN").await;
    let message = error(&session, &format!("BACKUP DATABASE TO '{place}'")).await;
    assert!(message.contains("transaction"), "{message}");
    assert!(!Path::new(&place).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_admins_back_up() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("backups");
    let all = Grant {
        tables: "*".to_string().try_into().unwrap(),
        rights: vec![RightName::Read, RightName::Write, RightName::Create],
    };
    let user = Principal::user("ada", vec![all], FunctionGrants::default());
    let ada = engine.session_for(Arc::new(user)).unwrap();
    let sql = format!("BACKUP DATABASE TO '{}'", place.display());
    for sql in [sql.clone(), format!("PREPARE b AS {sql}")] {
        let refused = error(&ada, &sql).await;
        assert!(
            refused.contains("may not") || refused.contains("Expected"),
            "{refused}"
        );
    }
    assert!(!place.exists());
    run(&engine.session().unwrap(), &sql).await;
    assert!(place.exists());
}

#[test]
fn the_command_backs_up_and_restores() {
    let folder = TempDir::new().unwrap();
    let flashmesh = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashmesh"));
        let output = command
            .current_dir(&folder)
            .args(arguments)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let sql = "CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 1000) AS s(value)";
    assert_eq!(flashmesh(&["--db", "shop", "-c", sql]).0, Some(0));
    let says = |arguments: &[&str], code: i32, what: &str| {
        let (found, text) = flashmesh(arguments);
        assert_eq!(found, Some(code), "{text}");
        assert!(text.contains(what), "{text}");
    };
    says(&["backups", "kept"], 0, "kept has no backup");
    says(&["restore", "kept", "--db", "new"], 1, "it has none");
    says(&["backup", "kept"], 1, "name its folder with --db");
    says(
        &["backup", "--db", "shop", "kept"],
        0,
        "backup 1: 1 tables, 1,000 rows",
    );
    says(
        &["backup", "--db", "shop", "kept", "--keep", "1"],
        0,
        "0 B of them new",
    );
    says(&["backups", "kept"], 0, "backup 2, ");
    says(&["backups", "kept", "--check"], 0, "all sound");
    says(
        &["restore", "kept", "--number", "1", "--db", "new"],
        1,
        "does not exist",
    );
    says(&["restore", "kept", "--db", "shop"], 1, "already exists");
    says(&["restore", "kept", "--db", "new"], 0, "backup 2 is in new");
    says(&["--db", "new", "-c", "SELECT sum(a) FROM t"], 0, "500500");
    says(&["fsck", "--db", "new"], 0, "all sound");
}

//! ALTER TABLE and DEFAULT.

use flashmesh::{Engine, EngineOptions, Session};
use flashmesh_storage::StorageError;
use tempfile::TempDir;

use crate::support::{error, rows, run, session};

const MODES: [&str; 3] = ["never", "auto", "always"];

fn open(folder: &TempDir) -> Session {
    let engine = Engine::open(EngineOptions {
        path: Some(folder.path().join("db")),
        ..EngineOptions::default()
    });
    engine.unwrap().session().unwrap()
}

#[tokio::test]
async fn columns_that_insert_leaves_out_have_their_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(&folder);
    run(
        &first,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, n INT DEFAULT 40 + 2, name TEXT DEFAULT 'it''s' || '!', \
         at TIMESTAMP DEFAULT now(), tag TEXT DEFAULT uuid(), plain DOUBLE); \
         INSERT INTO t (id) VALUES (1), (2); INSERT INTO t (id, n, name) VALUES (3, NULL, 'x'); \
         INSERT INTO t (plain, id) SELECT 1.5, 4",
    )
    .await;
    let shown = "SELECT id, n, name, at IS NULL, plain FROM t ORDER BY id";
    let expected = [
        "1 42 it's! false ",
        "2 42 it's! false ",
        "3  x false ",
        "4 42 it's! false 1.5",
    ];
    assert_eq!(rows(&first, shown).await, expected);
    // Each row has its own.
    assert_eq!(
        rows(&first, "SELECT count(DISTINCT tag) FROM t").await,
        ["4"]
    );
    drop(first);
    let session = open(&folder);
    run(
        &session,
        "INSERT INTO t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET n = excluded.n + 1; \
         ALTER TABLE t ALTER COLUMN n SET DEFAULT 7, ALTER COLUMN name DROP DEFAULT; \
         INSERT OVERWRITE t SELECT * FROM t; INSERT INTO t (id) VALUES (5)",
    )
    .await;
    assert_eq!(
        rows(
            &session,
            "SELECT id, n, name FROM t WHERE id IN (1, 5) ORDER BY id"
        )
        .await,
        ["1 43 it's!", "5 7 "]
    );
    // A table made of a query has no defaults of its own.
    run(
        &session,
        "CREATE TABLE u AS SELECT id, n FROM t; INSERT INTO u (id) VALUES (9)",
    )
    .await;
    assert_eq!(rows(&session, "SELECT n FROM u WHERE id = 9").await, [""]);
    for (sql, part) in [
        ("CREATE TABLE k (a INT DEFAULT b)", "b"),
        ("CREATE TABLE k (a INT DEFAULT (SELECT 1))", "subquery"),
    ] {
        let message = error(&session, sql).await;
        assert!(message.contains(part), "{sql}: {message}");
    }
}

#[tokio::test]
async fn tables_and_columns_change_their_names() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, line TEXT); CREATE TABLE other (a INT); \
         CREATE INDEX t_line ON t USING ngram (line); \
         INSERT INTO t SELECT value, 'line ' || value FROM generate_series(1, 2000); \
         DELETE FROM t WHERE id > 1000; \
         ALTER TABLE t RENAME COLUMN line TO \"Text\"; ALTER TABLE t RENAME TO renamed",
    )
    .await;
    for mode in MODES {
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        assert_eq!(
            rows(&session, "SELECT count(*), max(id) FROM renamed").await,
            ["1000 1000"]
        );
        assert_eq!(
            rows(
                &session,
                "SELECT id FROM renamed WHERE \"Text\" LIKE '%e 77%' ORDER BY id LIMIT 2"
            )
            .await,
            ["77", "770"]
        );
        assert_eq!(
            rows(&session, "SELECT \"Text\" FROM lookup('renamed', [7])").await,
            ["line 7"]
        );
    }
    run(&session, "INSERT INTO renamed VALUES (2000, 'new')").await;
    for (sql, part) in [
        ("SELECT * FROM t", "public.t"),
        ("SELECT line FROM renamed", "line"),
        ("INSERT INTO renamed VALUES (5, '')", "primary key"),
        ("ALTER TABLE renamed RENAME TO other", "already exists"),
        (
            "ALTER TABLE renamed RENAME COLUMN id TO \"Text\"",
            "two columns",
        ),
        ("ALTER TABLE renamed RENAME COLUMN nothing TO x", "nothing"),
        ("ALTER TABLE nothing RENAME TO x", "nothing"),
        ("ALTER TABLE renamed RENAME TO system.x", "schema"),
    ] {
        let message = error(&session, sql).await;
        assert!(message.contains(part), "{sql}: {message}");
    }
    run(
        &session,
        "ALTER TABLE IF EXISTS nothing RENAME TO x; CREATE TABLE t (id BIGINT PRIMARY KEY); \
         INSERT INTO t VALUES (1); DROP TABLE t",
    )
    .await;
}

#[tokio::test]
async fn columns_come_go_and_change_their_types() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT NOT NULL, b TEXT, c DOUBLE); \
         CREATE INDEX t_b ON t USING hash (b); \
         INSERT INTO t SELECT value, value * 2, 'b' || value, value / 2.0 FROM generate_series(1, 3000); \
         DELETE FROM t WHERE id % 2 = 0; \
         ALTER TABLE t DROP COLUMN c, ADD COLUMN d INT NOT NULL DEFAULT 5, ADD COLUMN e TEXT, \
         ALTER COLUMN a TYPE BIGINT, ALTER COLUMN a DROP NOT NULL, ALTER COLUMN b SET NOT NULL",
    )
    .await;
    run(
        &session,
        "INSERT INTO t (id, b) VALUES (9000, 'x'); ALTER TABLE t ADD COLUMN IF NOT EXISTS e INT",
    )
    .await;
    for mode in MODES {
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        assert_eq!(
            rows(
                &session,
                "SELECT * FROM t WHERE id IN (1, 7, 9000) ORDER BY id"
            )
            .await,
            ["1 2 b1 5 ", "7 14 b7 5 ", "9000  x 5 "]
        );
        assert_eq!(
            rows(&session, "SELECT id FROM t WHERE b = 'b2999'").await,
            ["2999"]
        );
        assert_eq!(
            rows(&session, "SELECT count(*), sum(a), min(d) FROM t").await,
            ["1501 4500000 5"]
        );
        assert_eq!(
            rows(&session, "SELECT a FROM lookup('t', [11])").await,
            ["22"]
        );
    }
    assert_eq!(
        rows(
            &session,
            "SELECT column_name, data_type, is_nullable FROM information_schema.columns \
             WHERE table_name = 't' ORDER BY ordinal_position"
        )
        .await,
        [
            "id BIGINT NO",
            "a BIGINT YES",
            "b VARCHAR NO",
            "d INTEGER NO",
            "e VARCHAR YES"
        ]
    );
    for (sql, part) in [
        ("ALTER TABLE t DROP COLUMN b", "t_b"),
        ("ALTER TABLE t DROP COLUMN id", "t_pkey"),
        ("ALTER TABLE t ADD COLUMN f INT NOT NULL", "'f'"),
        ("ALTER TABLE t ALTER COLUMN e SET NOT NULL", "'e'"),
        ("ALTER TABLE t ALTER COLUMN b TYPE INT", "b1"),
        ("ALTER TABLE t ADD COLUMN a INT", "two columns"),
        ("ALTER TABLE t ADD COLUMN f INT UNIQUE", "key"),
        ("ALTER TABLE t ALTER COLUMN a TYPE INT USING a + 1", "USING"),
        ("ALTER TABLE t ALTER COLUMN id DROP NOT NULL", "primary key"),
    ] {
        let message = error(&session, sql).await;
        assert!(message.contains(part), "{sql}: {message}");
    }
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["1501"]);
}

/// Rows that others add while a table is rewritten are not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_come_meanwhile_are_kept() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let (session, other) = (engine.session().unwrap(), engine.session().unwrap());
    run(
        &session,
        "CREATE TABLE t (id BIGINT, n BIGINT); INSERT INTO t SELECT value, 0 FROM generate_series(1, 20000)",
    )
    .await;
    let adding = tokio::spawn(async move {
        for id in 0..12 {
            let insert = format!("INSERT INTO t (id) VALUES ({id})");
            // One that meets another table than it was planned for says so, and changes nothing.
            while let Err(error) = other.sql(&insert).await {
                let is_gone = matches!(error.storage(), Some(StorageError::NotFound { .. }));
                let message = error.to_string();
                assert!(is_gone || message.contains("again"), "{message}");
            }
        }
    });
    for number in 0..6 {
        run(
            &session,
            &format!("ALTER TABLE t ADD COLUMN c{number} INT DEFAULT {number}"),
        )
        .await;
    }
    adding.await.unwrap();
    assert_eq!(
        rows(&session, "SELECT count(*), sum(c0) FROM t")
            .await
            .len(),
        1
    );
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["20012"]);
}

/// A default that means nothing any more keeps nobody from the table.
#[tokio::test]
async fn a_default_that_is_gone_fails_the_insert_that_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(&folder);
    first
        .context()
        .register_udf(datafusion::logical_expr::create_udf(
            "seven",
            vec![],
            arrow::datatypes::DataType::Int64,
            datafusion::logical_expr::Volatility::Immutable,
            std::sync::Arc::new(|_| Ok(datafusion::scalar::ScalarValue::Int64(Some(7)).into())),
        ));
    run(
        &first,
        "CREATE TABLE t (a BIGINT, b BIGINT DEFAULT seven()); INSERT INTO t (a) VALUES (1)",
    )
    .await;
    drop(first);
    let session = open(&folder);
    assert_eq!(rows(&session, "SELECT * FROM t").await, ["1 7"]);
    run(
        &session,
        "INSERT INTO t VALUES (2, 3); UPDATE t SET a = a + 1",
    )
    .await;
    let message = error(&session, "INSERT INTO t (a) VALUES (5)").await;
    assert!(
        message.contains("DEFAULT of column 'b'") && message.contains("seven"),
        "{message}"
    );
    run(
        &session,
        "ALTER TABLE t ALTER COLUMN b SET DEFAULT 0; INSERT INTO t (a) VALUES (5)",
    )
    .await;
    assert_eq!(
        rows(&session, "SELECT * FROM t ORDER BY a").await,
        ["2 7", "3 3", "5 0"]
    );
}

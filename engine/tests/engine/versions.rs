//! Which version of the tables a statement sees: the one at which it starts to run, whatever was
//! planned before.

use flashmesh::{Engine, EngineOptions};

use crate::support::{error, rows, run, session};

#[tokio::test]
async fn a_view_shows_what_was_committed_since() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (a BIGINT); INSERT INTO t VALUES (1)",
    )
    .await;
    run(&session, "CREATE VIEW v AS SELECT count(*) AS n FROM t").await;
    let other = session.engine().session().unwrap();
    run(&other, "INSERT INTO t VALUES (2), (3)").await;
    assert_eq!(rows(&session, "SELECT n FROM v").await, ["3"]);
    // A table made anew is read with its new columns, as far as the view names them.
    run(
        &session,
        "CREATE OR REPLACE TABLE t AS SELECT 'x' AS b, 1 AS a",
    )
    .await;
    assert_eq!(rows(&session, "SELECT n FROM v").await, ["1"]);
    run(&session, "DROP TABLE t").await;
    let message = error(&session, "SELECT n FROM v").await;
    assert!(message.contains("t' not found"), "{message}");
}

#[tokio::test]
async fn a_prepared_statement_is_planned_again() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (a BIGINT); INSERT INTO t VALUES (1)",
    )
    .await;
    run(
        &session,
        "PREPARE p AS SELECT count(*), max(a) FROM t WHERE a > $1",
    )
    .await;
    run(&session, "INSERT INTO t VALUES (2), (3)").await;
    assert_eq!(rows(&session, "EXECUTE p(0)").await, ["3 3"]);
    run(&session, "INSERT OVERWRITE t SELECT 9").await;
    assert_eq!(rows(&session, "EXECUTE p(0)").await, ["1 9"]);
    run(
        &session,
        "CREATE OR REPLACE TABLE t AS SELECT 'k' AS k, 2.5 AS a",
    )
    .await;
    assert_eq!(rows(&session, "EXECUTE p(2)").await, ["1 2.5"]);
    run(&session, "DROP TABLE t").await;
    let message = error(&session, "EXECUTE p(0)").await;
    assert!(message.contains("t' not found"), "{message}");
}

#[tokio::test]
async fn a_parameter_means_what_its_literal_means() {
    let session = session();
    run(&session, "CREATE TABLE t (a INT); INSERT INTO t VALUES (3)").await;
    run(&session, "PREPARE p AS SELECT a * $1 FROM t WHERE a >= $2").await;
    assert_eq!(rows(&session, "EXECUTE p(0.5, 3)").await, ["1.5"]);
    assert!(rows(&session, "EXECUTE p(2, 3.5)").await.is_empty());
    // Types that were named are meant.
    run(&session, "PREPARE q(INT) AS SELECT $1").await;
    assert_eq!(rows(&session, "EXECUTE q('7')").await, ["7"]);
    let message = error(&session, "EXECUTE q(1, 2)").await;
    assert!(message.contains("has 1 parameters"), "{message}");
    run(&session, "DEALLOCATE q").await;
    let message = error(&session, "EXECUTE q(1)").await;
    assert!(message.contains("no prepared statement 'q'"), "{message}");
    let message = error(&session, "DEALLOCATE q").await;
    assert!(message.contains("no prepared statement 'q'"), "{message}");
    let message = error(&session, "PREPARE p AS SELECT 1").await;
    assert!(message.contains("already; DEALLOCATE it"), "{message}");
}

#[tokio::test]
async fn a_data_frame_sees_the_tables_as_they_are_when_it_runs() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (a BIGINT); INSERT INTO t VALUES (1)",
    )
    .await;
    let frame = session.sql("SELECT * FROM t").await.unwrap();
    let table = session.context().table("t").await.unwrap();
    run(&session, "INSERT INTO t VALUES (2)").await;
    assert_eq!(frame.clone().count().await.unwrap(), 2);
    run(&session, "INSERT INTO t VALUES (3)").await;
    assert_eq!(frame.clone().count().await.unwrap(), 3);
    assert_eq!(table.clone().count().await.unwrap(), 3);
    run(&session, "CREATE OR REPLACE TABLE t AS SELECT 'x' AS a").await;
    let message = frame.count().await.unwrap_err().to_string();
    assert!(message.contains("plan it again"), "{message}");
    run(&session, "DROP TABLE t").await;
    let message = table.count().await.unwrap_err().to_string();
    assert!(message.contains("does not exist"), "{message}");
}

#[tokio::test]
async fn table_functions_see_the_same_version_as_the_tables_beside_them() {
    let session = session();
    run(
        &session,
        "CREATE TABLE k (id BIGINT PRIMARY KEY, v BIGINT);
         INSERT INTO k VALUES (1, 2);
         CREATE TABLE e (a BIGINT, b BIGINT);
         INSERT INTO e VALUES (1, 2);
         CREATE INDEX g ON e USING adjacency (a, b)",
    )
    .await;
    let frames = [
        "SELECT v FROM lookup('k', [1, 7])",
        "SELECT vertex FROM expand('g', 1, 1)",
        "SELECT vertex FROM bfs('g', (SELECT 1))",
        "SELECT (SELECT count(*) FROM lookup('k', [7])) AS a, count(*) AS b FROM k",
    ];
    let mut planned = Vec::new();
    for sql in frames {
        planned.push(session.sql(sql).await.unwrap());
    }
    run(
        &session,
        "INSERT INTO k VALUES (7, 3); INSERT INTO e VALUES (1, 3)",
    )
    .await;
    let mut counts = Vec::new();
    for frame in &planned[..3] {
        counts.push(frame.clone().count().await.unwrap());
    }
    assert_eq!(counts, [2, 2, 3]);
    let both = planned.pop().unwrap().collect().await.unwrap();
    let both = arrow::util::pretty::pretty_format_batches(&both).unwrap();
    assert!(both.to_string().contains("| 1 | 2 |"), "{both}");
    run(&session, "DROP INDEX g").await;
    let message = planned[1].clone().count().await.unwrap_err().to_string();
    assert!(message.contains("index 'g' was dropped"), "{message}");
}

/// Several tables of one statement come from one moment: a writer that keeps two tables equal,
/// one commit after the other, is never seen further ahead in the one that it writes second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_tables_of_a_statement_are_of_one_moment() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let session = engine.session().unwrap();
    run(
        &session,
        "CREATE TABLE first (a BIGINT); CREATE TABLE second (a BIGINT)",
    )
    .await;
    let writer = engine.session().unwrap();
    let writing = tokio::spawn(async move {
        for i in 0..20 {
            run(&writer, &format!("INSERT INTO first VALUES ({i})")).await;
            run(&writer, &format!("INSERT INTO second VALUES ({i})")).await;
        }
    });
    // The table that is written second is named first: read by itself it would be the older.
    let query = "SELECT (SELECT count(*) FROM second) AS s, (SELECT count(*) FROM first) AS f";
    let mut is_done = false;
    while !is_done {
        is_done = writing.is_finished();
        let row = rows(&session, query).await.remove(0);
        let (second, first) = row.split_once(' ').unwrap();
        let (second, first): (u64, u64) = (second.parse().unwrap(), first.parse().unwrap());
        assert!(first == second || first == second + 1, "{row}");
    }
    writing.await.unwrap();
}

#[tokio::test]
async fn views_are_kept_and_may_not_go_in_circles() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let path = Some(folder.path().join("db"));
        let options = EngineOptions {
            path,
            ..EngineOptions::default()
        };
        Engine::open(options).unwrap().session().unwrap()
    };
    let session = open();
    run(
        &session,
        "CREATE TABLE t AS SELECT 1 AS a, 'x' AS b;
         CREATE VIEW v (\"Key\", text) AS SELECT a, b FROM t;
         CREATE VIEW w AS SELECT \"Key\" + 1 AS k FROM v",
    )
    .await;
    drop(session);
    let session = open();
    assert_eq!(rows(&session, "SELECT text, \"Key\" FROM v").await, ["x 1"]);
    assert_eq!(rows(&session, "SELECT k FROM w").await, ["2"]);
    let listed = "SELECT table_name, table_type FROM information_schema.tables
                  WHERE table_schema = 'public' ORDER BY table_name";
    assert_eq!(
        rows(&session, listed).await,
        ["t BASE TABLE", "v VIEW", "w VIEW"]
    );
    // One name is one thing.
    for (sql, expected) in [
        ("CREATE VIEW v AS SELECT 1 AS a", "exists"),
        ("CREATE TABLE v (a INT)", "exists"),
        ("CREATE VIEW t AS SELECT 1 AS a", "is a table"),
        ("DROP TABLE v", "DROP VIEW"),
        ("DROP VIEW t", "DROP TABLE"),
        ("DROP VIEW nothing", "nothing"),
        ("INSERT INTO v VALUES (1, 'y')", "is a view"),
        (
            "CREATE OR REPLACE VIEW v AS SELECT k FROM w",
            "refer to itself",
        ),
    ] {
        let message = error(&session, sql).await;
        assert!(message.contains(expected), "{sql}: {message}");
    }
    // A view whose table is gone is listed, and says what it lacks.
    run(&session, "DROP TABLE t").await;
    assert_eq!(rows(&session, listed).await, ["v VIEW", "w VIEW"]);
    rows(&session, "SELECT * FROM information_schema.columns").await;
    let message = error(&session, "SELECT k FROM w").await;
    assert!(message.contains("view 'public.v'"), "{message}");
    run(
        &session,
        "DROP VIEW IF EXISTS nothing; DROP VIEW w; DROP VIEW v",
    )
    .await;
    assert!(rows(&session, listed).await.is_empty());
}

#[tokio::test]
async fn a_temporary_view_is_of_its_session_alone() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t AS SELECT 1 AS a; CREATE VIEW v AS SELECT a FROM t",
    )
    .await;
    run(
        &session,
        "CREATE TEMPORARY VIEW mine AS SELECT a + 1 AS b FROM t",
    )
    .await;
    run(&session, "INSERT INTO t VALUES (5)").await;
    assert_eq!(rows(&session, "SELECT sum(b) FROM mine").await, ["8"]);
    let other = session.engine().session().unwrap();
    assert!(
        error(&other, "SELECT * FROM mine")
            .await
            .contains("not found")
    );
    assert_eq!(rows(&other, "SELECT count(*) FROM v").await, ["2"]);
    run(&session, "DROP VIEW mine").await;
    assert!(
        error(&session, "SELECT * FROM mine")
            .await
            .contains("not found")
    );
}

//! What statements do, and what they refuse.

use std::path::Path;
use std::sync::Arc;

use arrow::util::display::array_value_to_string;
use arrow::util::pretty::pretty_format_batches;
use flashmesh::{Engine, EngineOptions, Error, Principal};
use flashmesh_storage::StorageError;
use futures::TryStreamExt;

use crate::support::{error, rows, run, session};

#[tokio::test]
async fn a_created_table_is_empty_and_keeps_its_columns() {
    let session = session();
    session
        .sql("CREATE TABLE t (a INT NOT NULL, b TEXT, c DECIMAL(10, 2))")
        .await
        .unwrap();
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["0"]);
    assert_eq!(
        rows(
            &session,
            "SELECT column_name, column_type, \"null\" FROM (DESCRIBE t)"
        )
        .await,
        ["a INTEGER NO", "b VARCHAR YES", "c DECIMAL(10,2) YES"]
    );
}

#[tokio::test]
async fn inserted_rows_are_counted_and_stay() {
    let session = session();
    session.sql("CREATE TABLE t (a INT, b TEXT)").await.unwrap();
    assert_eq!(
        rows(&session, "INSERT INTO t VALUES (1, 'x'), (2, NULL)").await,
        ["2"]
    );
    // Columns that are not named become NULL.
    assert_eq!(
        rows(&session, "INSERT INTO t (b) VALUES ('y')").await,
        ["1"]
    );
    assert_eq!(
        rows(&session, "SELECT a, b FROM t ORDER BY b NULLS LAST").await,
        ["1 x", " y", "2 "]
    );
    // The statement has happened even where nobody looks at its result.
    session.sql("INSERT INTO t VALUES (4, 'z')").await.unwrap();
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["4"]);
    assert_eq!(
        rows(&session, "INSERT OVERWRITE t VALUES (9, 'only')").await,
        ["1"]
    );
    assert_eq!(rows(&session, "SELECT * FROM t").await, ["9 only"]);
}

#[tokio::test]
async fn a_table_can_be_inserted_into_itself() {
    let session = session();
    session
        .sql("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 70000) AS s(value)")
        .await
        .unwrap();
    assert_eq!(
        rows(&session, "INSERT INTO t SELECT a FROM t").await,
        ["70000"]
    );
    assert_eq!(
        rows(&session, "SELECT count(*), count(DISTINCT a) FROM t").await,
        ["140000 70000"]
    );
    session
        .sql("CREATE OR REPLACE TABLE t AS SELECT a FROM t WHERE a <= 10")
        .await
        .unwrap();
    assert_eq!(
        rows(&session, "SELECT count(*), max(a) FROM t").await,
        ["20 10"]
    );
}

#[tokio::test]
async fn create_table_as_counts_names_and_replaces() {
    let session = session();
    assert_eq!(
        rows(&session, "CREATE TABLE t AS SELECT 1 AS a, 'x' AS b").await,
        ["1"]
    );
    let message = error(&session, "CREATE TABLE t AS SELECT 2 AS a").await;
    assert!(message.contains("'t' already exists"), "{message}");
    session
        .sql("CREATE TABLE IF NOT EXISTS t AS SELECT 2 AS a")
        .await
        .unwrap();
    assert_eq!(rows(&session, "SELECT * FROM t").await, ["1 x"]);
    session
        .sql("CREATE OR REPLACE TABLE t (z BIGINT) AS SELECT 3")
        .await
        .unwrap();
    assert_eq!(rows(&session, "SELECT z FROM t").await, ["3"]);
    // A query's column that happens to be never NULL does not forbid NULL later.
    session.sql("INSERT INTO t VALUES (NULL)").await.unwrap();
    let message = error(&session, "CREATE TABLE u AS SELECT 1 AS a, 2 AS a").await;
    assert!(message.contains('a'), "{message}");
    let message = error(
        &session,
        "CREATE TABLE u AS SELECT t.z, s.z FROM t JOIN t AS s ON t.z = s.z",
    )
    .await;
    assert!(
        message.contains("two columns named 'z'") && message.contains("AS"),
        "{message}"
    );
}

#[tokio::test]
async fn a_failed_load_leaves_nothing_behind() {
    let session = session();
    let message = error(
        &session,
        "CREATE TABLE t AS SELECT 100 / (value - 150000) AS a FROM generate_series(1, 200000) AS s(value)",
    )
    .await;
    assert!(message.contains("ivide by zero"), "{message}");
    assert_eq!(
        rows(
            &session,
            "SELECT count(*) FROM information_schema.tables WHERE table_name = 't'"
        )
        .await,
        ["0"]
    );
    session
        .sql("CREATE TABLE t (a INT NOT NULL)")
        .await
        .unwrap();
    session.sql("INSERT INTO t VALUES (1)").await.unwrap();
    let message = error(
        &session,
        "INSERT INTO t SELECT nullif(value, 3) FROM generate_series(1, 5) AS s(value)",
    )
    .await;
    assert!(
        message.contains("'a'") && message.contains("NULL"),
        "{message}"
    );
    assert_eq!(rows(&session, "SELECT a FROM t").await, ["1"]);
    let live = session.engine().database().store().usage().pages();
    session.sql("DROP TABLE t").await.unwrap();
    assert!(
        session.engine().database().store().usage().pages() < live,
        "failed loads or drops leave pages"
    );
    assert_eq!(session.engine().database().store().usage().pages(), 0);
}

#[tokio::test]
async fn null_in_a_not_null_column_names_the_column() {
    let session = session();
    session
        .sql("CREATE TABLE t (a INT NOT NULL, b INT)")
        .await
        .unwrap();
    for sql in [
        "INSERT INTO t VALUES (NULL, 1)",
        "INSERT INTO t (b) VALUES (1)",
        "INSERT INTO t VALUES (1, 1), (NULL, 2)",
    ] {
        let message = error(&session, sql).await;
        assert!(
            message.contains("'a'") && message.contains("NOT NULL"),
            "{sql}: {message}"
        );
    }
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["0"]);
}

#[tokio::test]
async fn dropped_tables_are_gone() {
    let session = session();
    session
        .sql("CREATE TABLE t (a INT); DROP TABLE t")
        .await
        .unwrap();
    assert!(
        error(&session, "SELECT * FROM t")
            .await
            .contains("'flashmesh.public.t' not found")
    );
    assert_eq!(
        error(&session, "DROP TABLE t").await,
        "table 't' does not exist"
    );
    session.sql("DROP TABLE IF EXISTS t").await.unwrap();
    session.sql("DROP TABLE IF EXISTS nowhere.t").await.unwrap();
}

#[tokio::test]
async fn a_query_keeps_the_version_that_it_began_with() {
    let session = session();
    session
        .sql("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 100000) AS s(value)")
        .await
        .unwrap();
    let before = session
        .sql("SELECT count(*) AS n, sum(a) AS s FROM t WHERE a % 2 = 0")
        .await
        .unwrap();
    let before = before.execute_stream().await.unwrap();
    session.sql("DROP TABLE t").await.unwrap();
    session
        .sql("CREATE TABLE t AS SELECT 0 AS a")
        .await
        .unwrap();
    let before: Vec<_> = before.try_collect().await.unwrap();
    let text = pretty_format_batches(&before).unwrap().to_string();
    assert!(text.contains("| 50000 | 2500050000 |"), "{text}");
    assert_eq!(rows(&session, "SELECT * FROM t").await, ["0"]);
}

#[tokio::test]
async fn schemas_hold_tables_of_the_same_name_apart() {
    let session = session();
    session
        .sql("CREATE SCHEMA s; CREATE TABLE t AS SELECT 1 AS a; CREATE TABLE s.t AS SELECT 2 AS a")
        .await
        .unwrap();
    assert_eq!(
        rows(&session, "SELECT t.a, u.a FROM t, flashmesh.s.t AS u").await,
        ["1 2"]
    );
    assert!(
        error(&session, "CREATE SCHEMA s")
            .await
            .contains("'s' already exists")
    );
    session.sql("CREATE SCHEMA IF NOT EXISTS s").await.unwrap();
    let message = error(&session, "DROP SCHEMA s").await;
    assert!(
        message.contains("not empty (t)") && message.contains("CASCADE"),
        "{message}"
    );
    session.sql("DROP SCHEMA s CASCADE").await.unwrap();
    assert!(error(&session, "SELECT * FROM s.t").await.contains("s.t"));
    assert!(
        error(&session, "DROP SCHEMA s")
            .await
            .contains("does not exist")
    );
    session.sql("DROP SCHEMA IF EXISTS s").await.unwrap();
    assert!(
        error(&session, "DROP SCHEMA public CASCADE")
            .await
            .contains("can't be dropped")
    );
    assert!(
        error(&session, "CREATE TABLE s.t (a INT)")
            .await
            .contains("CREATE SCHEMA s")
    );
    assert!(
        error(&session, "CREATE TABLE other.public.t (a INT)")
            .await
            .contains("not in this database")
    );
}

#[tokio::test]
async fn temporary_views_and_external_tables_belong_to_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.csv");
    std::fs::write(&file, "a,b\n1,x\n2,y\n").unwrap();
    let session = session();
    session
        .sql("CREATE TABLE t AS SELECT 1 AS a; CREATE TEMPORARY VIEW v AS SELECT a + 1 AS b FROM t")
        .await
        .unwrap();
    session
        .sql(&format!(
            "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '{}'",
            file.display()
        ))
        .await
        .unwrap();
    assert_eq!(
        rows(&session, "SELECT v.b, x.b FROM v JOIN x ON v.b = x.a").await,
        ["2 y"]
    );
    let other = session.engine().session().unwrap();
    assert!(error(&other, "SELECT * FROM v").await.contains("not found"));
    assert_eq!(rows(&other, "SELECT a FROM t").await, ["1"]);
    // They can't take, hide or destroy a table.
    for sql in [
        "CREATE VIEW t AS SELECT 2 AS a",
        "CREATE OR REPLACE VIEW t AS SELECT 2 AS a",
        "CREATE OR REPLACE EXTERNAL TABLE t STORED AS CSV LOCATION 'x.csv'",
    ] {
        let message = error(&session, sql).await;
        assert!(
            message.contains("'t' is a table on flash"),
            "{sql}: {message}"
        );
    }
    for sql in [
        "CREATE TABLE v (a INT)",
        "CREATE OR REPLACE TABLE x AS SELECT 1 AS a",
        "CREATE TABLE IF NOT EXISTS v (a INT)",
    ] {
        let message = error(&session, sql).await;
        assert!(message.contains("of this session"), "{sql}: {message}");
    }
    assert!(error(&session, "DROP TABLE v").await.contains("DROP VIEW"));
    assert!(error(&session, "DROP VIEW t").await.contains("'t'"));
    session.sql("DROP VIEW v; DROP TABLE x").await.unwrap();
    assert!(
        error(&session, "SELECT * FROM x")
            .await
            .contains("not found")
    );
    assert_eq!(rows(&session, "SELECT a FROM t").await, ["1"]);
}

#[tokio::test]
async fn what_would_not_be_kept_is_refused() {
    let session = session();
    session
        .sql("CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")
        .await
        .unwrap();
    for (sql, parts) in [
        (
            "CREATE TABLE k (a INT DEFAULT nothing)",
            ["nothing", "field"],
        ),
        (
            "CREATE TEMPORARY TABLE public.k (a INT)",
            ["'temp'", "write just k"],
        ),
        ("CREATE DATABASE d", ["--db", "d"]),
        (
            "CREATE INDEX i ON t USING btree (a)",
            ["btree", "hash, ngram, lsh, adjacency"],
        ),
        ("COMMIT AND CHAIN", ["CHAIN", "BEGIN"]),
        (
            "PREPARE p AS CREATE TABLE k (a INT)",
            ["prepared", "INSERT"],
        ),
        (
            "CREATE OR REPLACE TABLE IF NOT EXISTS t (a INT)",
            ["OR REPLACE", "IF NOT EXISTS"],
        ),
    ] {
        let message = error(&session, sql).await;
        assert!(
            parts.iter().all(|part| message.contains(part)),
            "{sql}: {message}"
        );
    }
    assert_eq!(rows(&session, "SELECT a FROM t").await, ["1"]);
    assert_eq!(
        rows(
            &session,
            "SELECT count(*) FROM information_schema.tables WHERE table_name = 'k'"
        )
        .await,
        ["0"]
    );
}

#[tokio::test]
async fn a_prepared_insert_inserts_once() {
    let session = session();
    session
        .sql("CREATE TABLE t (a INT); PREPARE p(INT) AS INSERT INTO t VALUES ($1)")
        .await
        .unwrap();
    session.sql("EXECUTE p(7)").await.unwrap();
    assert_eq!(rows(&session, "EXECUTE p(8)").await, ["1"]);
    assert_eq!(
        rows(&session, "SELECT a FROM t ORDER BY a").await,
        ["7", "8"]
    );
}

#[tokio::test]
async fn options_take_effect() {
    let session = session();
    session
        .sql("SET flashmesh.cache_size = '3MiB'")
        .await
        .unwrap();
    assert_eq!(
        session
            .engine()
            .database()
            .store()
            .cache()
            .stats()
            .capacity_bytes,
        3 << 20
    );
    assert_eq!(
        rows(&session, "SHOW flashmesh.cache_size").await,
        ["flashmesh.cache_size 3MiB"]
    );
    let message = error(&session, "SET flashmesh.cachesize = '3MiB'").await;
    assert!(message.contains("flashmesh.cache_size"), "{message}");
}

#[tokio::test]
async fn copy_writes_files_that_are_tables() {
    let folder = tempfile::tempdir().unwrap();
    let session = session();
    session.sql("CREATE TABLE t AS SELECT value AS a, 'r' || value AS b FROM generate_series(1, 1000) AS s(value)").await.unwrap();
    for ending in ["parquet", "csv", "json"] {
        let file = folder.path().join(format!("t.{ending}"));
        let file = file.display();
        assert_eq!(
            rows(&session, &format!("COPY t TO '{file}'")).await,
            ["1000"]
        );
        assert_eq!(
            rows(&session, &format!("SELECT sum(a), max(b) FROM '{file}'")).await,
            ["500500 r999"]
        );
    }
    // A folder and a glob; what comes into the folder later is seen.
    let many = folder.path().join("many");
    for part in 1..3 {
        session
            .sql(&format!("COPY t TO '{}/{part}.parquet'", many.display()))
            .await
            .unwrap();
        let n = (part * 1000).to_string();
        assert_eq!(
            rows(
                &session,
                &format!("SELECT count(*) FROM '{}'", many.display())
            )
            .await,
            std::slice::from_ref(&n)
        );
        assert_eq!(
            rows(
                &session,
                &format!("SELECT count(*) FROM '{}/*.parquet'", many.display())
            )
            .await,
            [n]
        );
    }
}

#[tokio::test]
async fn only_names_that_look_like_files_are_files() {
    let session = session();
    // The tests run in the crate's folder: `src` is a folder, `Cargo.toml` a file.
    assert!(
        error(&session, "SELECT * FROM src")
            .await
            .contains("'flashmesh.public.src' not found")
    );
    let message = error(&session, "SELECT * FROM './Cargo.toml'").await;
    assert!(message.contains(".parquet"), "{message}");
    let message = error(&session, "SELECT * FROM 'no/such.parquet'").await;
    assert!(
        message.contains("'no/such.parquet' does not exist in /"),
        "{message}"
    );
    session.sql("CREATE TABLE src (a INT)").await.unwrap();
}

#[tokio::test]
async fn several_statements_run_up_to_the_first_that_fails() {
    let session = session();
    assert_eq!(
        rows(
            &session,
            "CREATE TABLE t (a INT); INSERT INTO t VALUES (1); SELECT a FROM t;"
        )
        .await,
        ["1"]
    );
    error(
        &session,
        "INSERT INTO t VALUES (2); SELECT a / 0 FROM t; INSERT INTO t VALUES (3)",
    )
    .await;
    assert_eq!(
        rows(&session, "SELECT a FROM t ORDER BY a").await,
        ["1", "2"]
    );
    // A syntax error anywhere: nothing runs.
    let message = error(&session, "INSERT INTO t VALUES (4); SELEC 1").await;
    assert!(
        message.starts_with("syntax error") && message.contains("SELEC"),
        "{message}"
    );
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["2"]);
    assert!(
        error(&session, " -- nothing\n")
            .await
            .contains("no statement")
    );
}

#[tokio::test]
async fn a_dropped_statement_is_undone() {
    let session = session();
    // It never ends, so that it can't have committed when it is dropped, wherever that finds it.
    let endless = "CREATE TABLE t AS \
                   SELECT value AS a FROM generate_series(1, 9000000000000000000)";
    tokio::time::timeout(std::time::Duration::from_millis(100), session.sql(endless))
        .await
        .unwrap_err();
    assert!(
        error(&session, "SELECT * FROM t")
            .await
            .contains("not found")
    );
    session
        .sql("CREATE TABLE t AS SELECT 1 AS a")
        .await
        .unwrap();
    assert_eq!(rows(&session, "SELECT a FROM t").await, ["1"]);
}

#[tokio::test]
async fn a_database_outlives_its_engine() {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        path: Some(folder.path().join("db")),
        ..EngineOptions::default()
    };
    {
        let session = Engine::open(options.clone()).unwrap().session().unwrap();
        session
            .sql("CREATE SCHEMA s; CREATE TABLE s.t AS SELECT 42 AS a")
            .await
            .unwrap();
        let in_use = Engine::open(options.clone()).unwrap_err();
        assert!(
            matches!(in_use.storage(), Some(StorageError::InUse { .. })),
            "{in_use}"
        );
    }
    let engine = Engine::open(EngineOptions {
        read_only: true,
        ..options.clone()
    })
    .unwrap();
    let session = engine.session().unwrap();
    assert_eq!(rows(&session, "SELECT a FROM s.t").await, ["42"]);
    for sql in [
        "CREATE TABLE u (a INT)",
        "INSERT INTO s.t VALUES (1)",
        "DROP TABLE s.t",
        "CREATE SCHEMA r",
    ] {
        let refused = session.sql(sql).await.unwrap_err();
        assert!(
            matches!(refused.storage(), Some(StorageError::ReadOnly { .. })),
            "{sql}: {refused}"
        );
    }
    // Temporary views change nothing on flash.
    session
        .sql("CREATE TEMPORARY VIEW v AS SELECT a FROM s.t")
        .await
        .unwrap();
    let missing = EngineOptions {
        path: Some(folder.path().join("none")),
        read_only: true,
        ..options
    };
    let error = Engine::open(missing).unwrap_err();
    assert!(
        matches!(error, Error::Storage(StorageError::NotFound { .. })),
        "{error}"
    );
}

#[tokio::test]
async fn a_temporary_database_is_removed() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let folders: Vec<_> = engine.temporary_folders().map(Path::to_path_buf).collect();
    let session = engine.session().unwrap();
    session
        .sql("CREATE TABLE t AS SELECT 1 AS a")
        .await
        .unwrap();
    assert!(folders.len() == 2 && folders.iter().all(|folder| folder.exists()));
    drop((session, engine));
    assert!(!folders.iter().any(|folder| folder.exists()));
}

#[tokio::test]
async fn a_query_over_its_memory_limit_spills_or_says_so() {
    let sorted =
        "SELECT count(*), min(r) FROM (SELECT row_number() OVER (ORDER BY b DESC) AS r, a FROM t)";
    for threads in [1, 2] {
        let options = EngineOptions {
            memory_limit_bytes: Some(64 << 20),
            threads: std::num::NonZeroUsize::new(threads),
            ..EngineOptions::default()
        };
        let session = Engine::open(options).unwrap().session().unwrap();
        session
            .sql("CREATE TABLE t AS SELECT value AS a, 'some text that takes room ' || value AS b FROM generate_series(1, 3000000) AS s(value)")
            .await
            .unwrap();
        // The whole of it is over 120 MB. One thread has the pool for itself; of two, the merges of
        // their runs may take so much of it that what joins them finds none left.
        let result = match session.sql(sorted).await {
            Ok(frame) => frame.collect().await.map_err(Error::from),
            Err(error) => Err(error),
        };
        match result {
            Ok(batches) => {
                let column = |c: usize| array_value_to_string(batches[0].column(c), 0).unwrap();
                assert_eq!((column(0), column(1)), ("3000000".into(), "1".into()));
            }
            Err(error) => {
                let error = error.to_string();
                assert!(threads > 1 && error.contains("memory pool"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn scans_take_their_groups_and_first_rows_from_the_memory_limit() {
    let options = EngineOptions {
        memory_limit_bytes: Some(32 << 20),
        threads: std::num::NonZeroUsize::new(1),
        ..EngineOptions::default()
    };
    let session = Engine::open(options).unwrap().session().unwrap();
    run(
        &session,
        "CREATE TABLE t AS SELECT value AS a, 'some text that takes room, more than one would think ' || value AS b
           FROM generate_series(1, 400000) AS s(value);
         CREATE TABLE u AS SELECT a, repeat('x', 200) || a AS b FROM t;
         SET flashmesh.pushdown = 'always'",
    )
    .await;
    // 400,000 groups of 64 bytes and more: given out early, and merged above, which spills.
    let grouped = "SELECT count(*), sum(n), min(m) FROM (SELECT b, count(*) AS n, max(a) AS m FROM t GROUP BY b)";
    assert_eq!(rows(&session, grouped).await, ["400000 400000 1"]);
    // The first rows of all can't be given out before the last is known.
    let first = "SELECT b FROM u ORDER BY a DESC LIMIT 390000";
    let message = error(&session, &format!("SELECT max(b) FROM ({first})")).await;
    assert!(
        message.contains("FlashScanExec") && message.contains("memory"),
        "{message}"
    );
    let few = "SELECT count(*), min(b) FROM (SELECT b FROM t ORDER BY a DESC LIMIT 1000)";
    let least = "some text that takes room, more than one would think 399001";
    assert_eq!(rows(&session, few).await, [format!("1000 {least}")]);
}

#[tokio::test]
async fn builds_of_indexes_take_their_memory_from_the_memory_limit() {
    let table = "CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 300000) AS s(value)";
    let index = "CREATE INDEX i ON t USING hash (a)";
    let with_limit = |memory: u64| {
        let options = EngineOptions {
            memory_limit_bytes: Some(memory),
            ..EngineOptions::default()
        };
        Engine::open(options).unwrap().session().unwrap()
    };
    // 48 bytes a row while it is built: in parts, so that 32 MB suffice.
    let session = with_limit(32 << 20);
    run(&session, table).await;
    run(&session, index).await;
    let found = "SELECT a FROM t WHERE a IN (77, 299999, -1) ORDER BY a";
    assert_eq!(rows(&session, found).await, ["77", "299999"]);

    let session = with_limit(2 << 20);
    run(&session, table).await;
    let message = error(&session, index).await;
    assert!(
        message.contains("index 'i'") && message.contains("builds of indexes"),
        "{message}"
    );
    assert_eq!(
        rows(&session, "SELECT count(*) FROM t WHERE a = 77").await,
        ["1"]
    );
}

#[tokio::test]
async fn an_aggregate_whose_filter_no_row_passes_is_null() {
    let session = session();
    session
        .sql("CREATE TABLE t AS SELECT value % 3 AS g, CAST(value AS DECIMAL(30, 2)) AS d FROM generate_series(1, 5000) AS s(value)")
        .await
        .unwrap();
    // The product may overflow, and so is computed only for rows that pass: here for none.
    let sql = "SELECT g, max(d * d) FILTER (WHERE d > 10000), avg(d) FILTER (WHERE d > 10000), count(*) FROM t GROUP BY g ORDER BY g";
    for mode in ["always", "never"] {
        session
            .sql(&format!("SET flashmesh.pushdown = '{mode}'"))
            .await
            .unwrap();
        assert_eq!(
            rows(&session, sql).await,
            ["0   1666", "1   1667", "2   1667"],
            "{mode}"
        );
    }
}

#[tokio::test]
async fn options_go_back_to_their_defaults() {
    let session = session();
    for (name, value, default) in [
        ("flashmesh.pushdown", "never", "auto"),
        ("Flashmesh.Accelerator", "cpu", "auto"),
        ("flashmesh.measure_recall", "7", "off"),
        ("datafusion.execution.batch_size", "77", "8192"),
    ] {
        for (statement, expected) in [
            (format!("SET {name} = '{value}'"), value),
            (format!("RESET {name}"), default),
        ] {
            session.sql(&statement).await.unwrap();
            let shown = rows(&session, &format!("SHOW {}", name.to_lowercase())).await;
            assert!(shown[0].ends_with(expected), "{statement}: {shown:?}");
        }
    }
    for (name, says) in [
        ("flashmesh.cache_size", "SET it"),
        ("flashmesh.nothing", "no option 'flashmesh.nothing'"),
    ] {
        let error = error(&session, &format!("RESET {name}")).await;
        assert!(error.contains(says), "{error}");
    }
}

/// Of a stack that overflows nothing is left to tell.
#[tokio::test]
async fn chains_that_no_stack_holds_are_refused() {
    let session = session();
    let chain = |link: &str, count: usize| link.repeat(count);
    // Frames are larger without optimisation.
    let (operators, queries) = match cfg!(debug_assertions) {
        true => (100, 50),
        false => (990, 490),
    };
    for (sql, expected) in [
        (
            format!("SELECT {}1", chain("1 + ", operators)),
            operators + 1,
        ),
        (
            format!(
                "SELECT sum({}v) FROM generate_series(1, 1) AS t(v)",
                chain("v + ", operators)
            ),
            operators + 1,
        ),
        (
            format!(
                "SELECT count(*) FROM ({}SELECT 1)",
                chain("SELECT 1 UNION ALL ", queries)
            ),
            queries + 1,
        ),
    ] {
        assert_eq!(rows(&session, &sql).await, [expected.to_string()]);
    }
    for sql in [
        format!("SELECT {}1", chain("1 + ", 200_000)),
        format!(
            "SELECT {}1 FROM generate_series(1, 1) AS t(v)",
            chain("v + ", 20_000)
        ),
        format!("{}SELECT 1", chain("SELECT 1 UNION ALL ", 20_000)),
        format!("SELECT {}TRUE", chain("1 % 2 = 3 OR ", 100_000)),
        format!("CREATE VIEW v AS SELECT {}1", chain("1 + ", 200_000)),
        format!("PREPARE p AS SELECT {}1", chain("1 + ", 200_000)),
    ] {
        let message = error(&session, &sql).await;
        assert!(message.contains("one after the other"), "{message}");
    }
}

#[tokio::test]
async fn a_session_tells_who_and_where_it_is() {
    let session = session();
    run(
        &session,
        "CREATE SCHEMA shop; CREATE TABLE shop.t (a INT, by TEXT DEFAULT current_user)",
    )
    .await;
    let ada = Principal::admin("ada");
    let ada = session.engine().session_for(Arc::new(ada)).unwrap();
    let asked = "SELECT current_user, session_user = current_user, current_schema(), current_database(), current_catalog";
    assert_eq!(
        rows(&ada, asked).await,
        ["ada true public flashmesh flashmesh"]
    );
    run(&ada, "SET datafusion.catalog.default_schema = 'shop'").await;
    assert_eq!(
        rows(&ada, asked).await,
        ["ada true shop flashmesh flashmesh"]
    );
    run(&ada, "INSERT INTO t (a) VALUES (1)").await;
    assert_eq!(rows(&session, "SELECT * FROM shop.t").await, ["1 ada"]);
    let version = &rows(&ada, "SELECT version()").await[0];
    let expected = format!("flashmesh {} (DataFusion ", env!("CARGO_PKG_VERSION"));
    assert!(version.starts_with(&expected), "{version}");
}

//! CHECK constraints, on every way that rows come into a table.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use flashmesh::{Engine, EngineOptions, FileOptions, LoadMode, Session, restore};

use crate::support::{error, rows, run, session};

fn open(path: &Path) -> Session {
    let options = EngineOptions {
        path: Some(path.to_path_buf()),
        ..EngineOptions::default()
    };
    Engine::open(options).unwrap().session().unwrap()
}

async fn violates(session: &Session, sql: &str, name: &str) {
    let message = error(session, sql).await;
    assert!(
        message.contains("table 't'") && message.contains(&format!("CHECK constraint '{name}'")),
        "{sql}: {message}"
    );
}

const CREATE: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT DEFAULT -1 CHECK (a > 0), b INT, \
    CHECK (a < b), CONSTRAINT \"small Sum\" CHECK (a + b < 100))";

#[tokio::test]
async fn false_is_refused_and_null_passes() {
    let session = session();
    run(&session, CREATE).await;
    run(
        &session,
        "INSERT INTO t VALUES (1, 1, 2), (2, NULL, 5), (3, 5, NULL), (4, NULL, NULL)",
    )
    .await;
    violates(&session, "INSERT INTO t VALUES (5, 0, 2)", "t_a_check").await;
    violates(
        &session,
        "INSERT INTO t VALUES (5, 7, 8), (6, 3, 2)",
        "t_check",
    )
    .await;
    violates(&session, "INSERT INTO t VALUES (5, 50, 60)", "small Sum").await;
    // By a query, by the default, and of all columns.
    violates(
        &session,
        "INSERT INTO t SELECT id + 10, a - 1, b FROM t",
        "t_a_check",
    )
    .await;
    violates(&session, "INSERT INTO t (id) VALUES (5)", "t_a_check").await;
    violates(
        &session,
        "INSERT INTO t VALUES (5, DEFAULT, 8)",
        "t_a_check",
    )
    .await;
    let message = error(&session, "INSERT INTO t VALUES (5, 0, 2)").await;
    assert!(message.contains("a > 0"), "{message}");
    let message = error(&session, "INSERT INTO t VALUES (5, 2147483647, 2147483647)").await;
    assert!(message.contains("t_check"), "{message}");
    assert_eq!(
        rows(&session, "SELECT * FROM t ORDER BY id").await,
        ["1 1 2", "2  5", "3 5 ", "4  "]
    );
    assert_eq!(
        rows(
            &session,
            "SELECT name, condition FROM system.checks ORDER BY name"
        )
        .await,
        ["small Sum a + b < 100", "t_a_check a > 0", "t_check a < b"]
    );
}

#[tokio::test]
async fn changes_of_rows_are_checked() {
    let session = session();
    run(&session, CREATE).await;
    run(
        &session,
        "INSERT INTO t VALUES (1, 1, 2), (2, 3, 4); CREATE TABLE s AS SELECT * FROM t",
    )
    .await;
    for sql in [
        "UPDATE t SET a = 0 WHERE id = 1",
        "UPDATE t SET a = a - 1",
        "INSERT INTO t VALUES (1, 5, 6) ON CONFLICT (id) DO UPDATE SET a = -1",
        "INSERT OR REPLACE INTO t VALUES (1, -5, 6)",
        "MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = 0",
        "MERGE INTO t USING s ON t.id = s.id + 1 WHEN NOT MATCHED THEN INSERT VALUES (7, 0, 8)",
        "UPDATE t SET a = 0 WHERE id = 1 RETURNING a",
        "BEGIN; UPDATE t SET a = 0 WHERE id = 1",
    ] {
        violates(&session, sql, "t_a_check").await;
    }
    run(&session, "INSERT INTO t VALUES (3, 1, 2); COMMIT").await;
    // What goes is not looked at, and DELETE brings no rows.
    run(
        &session,
        "DELETE FROM t WHERE id = 3; UPDATE t SET a = 2, b = 9 WHERE id = 1",
    )
    .await;
    assert_eq!(
        rows(&session, "SELECT * FROM t ORDER BY id").await,
        ["1 2 9", "2 3 4"]
    );
    // The table is of the transaction itself.
    run(
        &session,
        "BEGIN; CREATE TABLE u (x INT CHECK (x <> 3)); INSERT INTO u VALUES (1)",
    )
    .await;
    assert!(
        error(&session, "INSERT INTO u VALUES (3)")
            .await
            .contains("u_x_check")
    );
    run(
        &session,
        "ALTER TABLE u RENAME COLUMN x TO y; TRUNCATE TABLE u; COMMIT",
    )
    .await;
    assert!(
        error(&session, "INSERT INTO u VALUES (3)")
            .await
            .contains("y <> 3")
    );
    run(&session, "CREATE TEMP TABLE w (x INT CHECK (x < 3))").await;
    assert!(
        error(&session, "INSERT INTO w VALUES (3)")
            .await
            .contains("w_x_check")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn loads_and_puts_are_checked() {
    let session = session();
    run(&session, CREATE).await;
    let ids = |ids: &[i64]| Arc::new(Int64Array::from(ids.to_vec())) as _;
    let batch = |a: i64| {
        RecordBatch::try_from_iter([
            ("id", ids(&[8, 9])),
            ("a", ids(&[1, a])),
            ("b", ids(&[20, 20])),
        ])
        .unwrap()
    };
    let puts = session.clone();
    let put = move |rows: RecordBatch| {
        let puts = puts.clone();
        tokio::task::spawn_blocking(move || puts.put("t", &rows))
    };
    let message = put(batch(0)).await.unwrap().unwrap_err().to_string();
    assert!(message.contains("t_a_check"), "{message}");
    put(batch(1)).await.unwrap().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.csv");
    let name = file.display().to_string();
    std::fs::write(&file, "id,a,b\n1,1,2\n2,0,7\n").unwrap();
    let load = |mode| {
        let options = FileOptions::default();
        let (session, name) = (session.clone(), name.clone());
        async move {
            session
                .load_files("t", &[name], &options, mode, Arc::default())
                .await
        }
    };
    let message = load(LoadMode::Append).await.unwrap_err().to_string();
    assert!(message.contains("t_a_check"), "{message}");
    let copy = format!(
        "COPY t FROM '{}'",
        folder.path().join("rows.parquet").display()
    );
    let write = copy.replace("COPY t FROM", "COPY (SELECT 1::BIGINT id, -2 a, 3 b) TO");
    run(&session, &write).await;
    violates(&session, &copy, "t_a_check").await;
    // Many rows, on several threads.
    violates(
        &session,
        "INSERT INTO t SELECT value + 100, if(value = 299999, 0, 1), 2 FROM range(1, 300000)",
        "t_a_check",
    )
    .await;
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["2"]);
    // A table that takes the place of another one has its own constraints: none.
    load(LoadMode::Replace).await.unwrap();
    run(&session, "INSERT INTO t VALUES (1, -1, -2)").await;
}

#[tokio::test]
async fn they_last() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("backups").display().to_string();
    {
        let session = open(&folder.path().join("one"));
        run(&session, CREATE).await;
        run(&session, "INSERT INTO t VALUES (1, 1, 2)").await;
        run(&session, &format!("BACKUP DATABASE TO '{place}'")).await;
    }
    let restored = folder.path().join("two");
    restore(&place, None, &restored, |_| ()).await.unwrap();
    for path in ["one", "two"] {
        let session = open(&folder.path().join(path));
        violates(&session, "INSERT INTO t VALUES (5, 0, 2)", "t_a_check").await;
        run(&session, "INSERT INTO t VALUES (5, 1, 2); VACUUM t").await;
        violates(&session, "UPDATE t SET a = 3", "t_check").await;
        run(&session, "ALTER TABLE t RENAME TO v").await;
        assert!(
            error(&session, "INSERT INTO v VALUES (6, 0, 2)")
                .await
                .contains("'v'")
        );
        // A copy has none, as in DuckDB.
        run(
            &session,
            "CREATE TABLE c AS SELECT * FROM v; INSERT INTO c VALUES (9, -1, -1)",
        )
        .await;
    }
}

#[tokio::test]
async fn alterations_keep_them_true() {
    let session = session();
    run(&session, CREATE).await;
    run(&session, "INSERT INTO t VALUES (1, 1, 2)").await;
    run(&session, "ALTER TABLE t RENAME COLUMN a TO \"select\"").await;
    violates(&session, "INSERT INTO t VALUES (2, 0, 2)", "t_a_check").await;
    let message = error(&session, "ALTER TABLE t DROP COLUMN \"select\"").await;
    assert!(message.contains("t_a_check"), "{message}");
    // The names change places.
    run(
        &session,
        "ALTER TABLE t RENAME COLUMN b TO x, RENAME COLUMN \"select\" TO b, RENAME COLUMN x TO a",
    )
    .await;
    assert_eq!(
        rows(
            &session,
            "SELECT condition FROM system.checks ORDER BY name"
        )
        .await,
        ["b + a < 100", "b > 0", "b < a"]
    );
    // Rows are written anew, and other columns come and go.
    run(
        &session,
        "ALTER TABLE t ADD COLUMN more INT DEFAULT 3, ALTER COLUMN b TYPE BIGINT; \
         ALTER TABLE t DROP COLUMN more",
    )
    .await;
    violates(&session, "INSERT INTO t VALUES (2, 0, 2)", "t_a_check").await;
    run(&session, "INSERT INTO t VALUES (2, 3, 4)").await;
    let message = error(&session, "ALTER TABLE t ALTER COLUMN b TYPE TEXT").await;
    assert!(message.contains("CHECK constraint"), "{message}");
}

#[tokio::test]
async fn constraints_are_added_to_tables_with_rows() {
    let session = session();
    run(
        &session,
        "CREATE TABLE u (id INT, a INT, b TEXT); \
         INSERT INTO u VALUES (1, 10, 'x'), (2, 20, 'y'), (3, NULL, NULL); \
         ALTER TABLE u ADD CONSTRAINT positive CHECK (a > 0); \
         ALTER TABLE u ADD CHECK (a < 100), ADD COLUMN c INT DEFAULT 5 CHECK (c > 0 AND c <> a); \
         ALTER TABLE u ADD PRIMARY KEY (id); \
         ALTER TABLE u ADD CONSTRAINT of_a UNIQUE (a), ADD UNIQUE (b, a)",
    )
    .await;
    assert_eq!(
        rows(
            &session,
            "SELECT name, condition FROM system.checks ORDER BY name"
        )
        .await,
        [
            "positive a > 0",
            "u_c_check c > 0 AND c <> a",
            "u_check a < 100"
        ]
    );
    assert_eq!(
        rows(
            &session,
            "SELECT name, \"constraint\" FROM system.indexes ORDER BY name"
        )
        .await,
        ["of_a unique", "u_b_a_key unique", "u_pkey primary key"]
    );
    let all = "SELECT * FROM u ORDER BY id";
    let before = ["1 10 x 5", "2 20 y 5", "3   5"];
    assert_eq!(rows(&session, all).await, before);
    for (statement, says) in [
        ("INSERT INTO u VALUES (4, 0, 'x', 1)", "'positive'"),
        ("INSERT INTO u VALUES (4, 100, 'x', 1)", "'u_check'"),
        ("INSERT INTO u VALUES (4, 7, 'x', 7)", "'u_c_check'"),
        ("INSERT INTO u VALUES (1, 7, 'x', 1)", "primary key"),
        ("INSERT INTO u VALUES (4, 20, 'x', 1)", "of_a"),
        ("INSERT INTO u (a) VALUES (7)", "NOT NULL"),
        ("ALTER TABLE u ADD CHECK (id > 1)", "'u_check1'"),
        (
            "ALTER TABLE u ADD CONSTRAINT u_check CHECK (id > 0)",
            "two constraints",
        ),
        ("ALTER TABLE u ADD CHECK (nothing > 0)", "nothing"),
        ("ALTER TABLE u ADD CHECK (a > random())", "random"),
        ("ALTER TABLE u ADD CHECK (a > 0) NOT VALID", "NOT VALID"),
        ("ALTER TABLE u ADD UNIQUE (c)", "(c) = (5)"),
        (
            "ALTER TABLE u ADD CONSTRAINT of_a UNIQUE (id)",
            "already exists",
        ),
        ("ALTER TABLE u ADD PRIMARY KEY (b)", "has a primary key"),
        ("ALTER TABLE u ADD UNIQUE (nothing)", "nothing"),
        (
            "ALTER TABLE u ADD FOREIGN KEY (a) REFERENCES t (a)",
            "not supported",
        ),
        (
            "ALTER TABLE u ADD COLUMN d INT DEFAULT 0 CHECK (d > 0)",
            "'u_d_check'",
        ),
        ("ALTER TABLE u DROP CONSTRAINT nothing", "'nothing'"),
        ("ALTER TABLE u DROP COLUMN a", "DROP CONSTRAINT positive"),
    ] {
        let message = error(&session, statement).await;
        assert!(message.contains(says), "{statement}: {message}");
    }
    assert_eq!(rows(&session, all).await, before);
    run(
        &session,
        "ALTER TABLE u DROP CONSTRAINT positive; ALTER TABLE u DROP CONSTRAINT IF EXISTS positive; \
         INSERT INTO u VALUES (4, 0, 'x', 1); \
         CREATE TABLE v (a INT); INSERT INTO v VALUES (NULL)",
    )
    .await;
    let message = error(&session, "ALTER TABLE v ADD PRIMARY KEY (a)").await;
    assert!(message.contains("NOT NULL"), "{message}");
    // In a transaction, and undone with it.
    run(
        &session,
        "BEGIN; ALTER TABLE u ADD CHECK (id < 50); ALTER TABLE u ADD UNIQUE (id, c); ROLLBACK; \
         INSERT INTO u VALUES (60, 6, 'z', 1); \
         BEGIN; ALTER TABLE u ADD CHECK (id < 100); INSERT INTO u VALUES (70, 7, 'z', 1); COMMIT",
    )
    .await;
    let message = error(&session, "INSERT INTO u VALUES (100, 8, 'z', 1)").await;
    assert!(message.contains("'u_check1'"), "{message}");
    assert_eq!(rows(&session, "SELECT count(*) FROM u").await, ["6"]);
}

#[tokio::test]
async fn conditions_are_of_one_row_and_always_the_same() {
    let session = session();
    run(&session, "CREATE TABLE other (x INT)").await;
    for (check, says) in [
        ("a IN (SELECT x FROM other)", "subquery"),
        ("EXISTS (SELECT 1)", "subquery"),
        ("a > (SELECT 1)", "subquery"),
        ("sum(a) > 1", "aggregate"),
        ("row_number() OVER () > 1", "window"),
        ("random() < 2", "random"),
        ("a < epoch(now())", "now"),
        ("list_filter([a], x -> x > 1) IS NULL", "lambda"),
        ("a + 1", "no condition"),
        ("nothing > 1", "nothing"),
        ("unknown_function(a)", "unknown_function"),
        ("other.x > 1", "other"),
    ] {
        let message = error(
            &session,
            &format!("CREATE TABLE t (a INT, CHECK ({check}))"),
        )
        .await;
        assert!(message.contains(says), "{check}: {message}");
    }
    let message = error(
        &session,
        "CREATE TABLE t (a INT CHECK (a > 1) NOT ENFORCED)",
    )
    .await;
    assert!(message.contains("enforced"), "{message}");
    let twice = "CREATE TABLE t (a INT, CONSTRAINT c CHECK (a > 0), CONSTRAINT c CHECK (a > 1))";
    assert!(error(&session, twice).await.contains("'c'"));
    assert!(
        rows(&session, "SELECT * FROM system.checks")
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn all_kinds_of_conditions_are_kept() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (
            id INT CHECK (id BETWEEN 1 AND 100 OR id IS NULL),
            s TEXT CHECK (s LIKE 'a%' AND length(s) < 5 AND s <> 'ab''c'),
            kind VARCHAR CHECK (kind IN ('x', 'y')),
            d DATE CHECK (d >= DATE '2020-01-01' AND year(d) < 2030),
            ts TIMESTAMP CHECK (ts < TIMESTAMP '2030-01-01 00:00:00'),
            n DECIMAL(10, 2) CHECK (t.n > 0.5 AND -n < 0),
            f DOUBLE CHECK (f / 2 > 1.5 AND NOT isnan(f)),
            b BOOLEAN CHECK (b),
            l INT[] CHECK (len(l) = 2 AND l[1] > 0),
            doc TEXT CHECK (doc ->> 'k' = 'v' AND 'n' || id % 10 <> 'n7'),
            r STRUCT<a INT> CHECK (r.a > 0),
            \"Odd\" INT CHECK (CASE WHEN \"Odd\" > 5 THEN \"Odd\" % 2 = 1 ELSE TRUE END),
            CHECK (regexp_matches(s, '^a') AND s ~ 'a' AND s SIMILAR TO 'a%'),
            CHECK (coalesce(id, 0) + 1 > 0))",
    )
    .await;
    let good = [
        "1",
        "'abc'",
        "'x'",
        "DATE '2024-01-01'",
        "TIMESTAMP '2024-01-01 00:00:00'",
        "1",
        "4",
        "true",
        "[1, 2]",
        "'{\"k\": \"v\"}'",
        "{'a': 1}",
        "7",
    ];
    let insert = |values: &[&str]| format!("INSERT INTO t VALUES ({})", values.join(", "));
    run(&session, &insert(&good)).await;
    for (place, bad) in [
        (0, "0"),
        (0, "7"),
        (1, "'b'"),
        (1, "'abcdef'"),
        (1, "'ab''c'"),
        (2, "'z'"),
        (3, "DATE '2019-01-01'"),
        (3, "DATE '2031-01-01'"),
        (4, "TIMESTAMP '2031-01-01 00:00:00'"),
        (5, "0.5"),
        (6, "3"),
        (6, "'nan'::DOUBLE"),
        (7, "false"),
        (8, "[1]"),
        (8, "[0, 1]"),
        (9, "'{\"k\": \"w\"}'"),
        (10, "{'a': 0}"),
        (11, "8"),
    ] {
        let mut values = good;
        values[place] = bad;
        let message = error(&session, &insert(&values)).await;
        assert!(message.contains("CHECK constraint"), "{bad}: {message}");
    }
    let nulls = ["NULL"; 12];
    run(&session, &insert(&nulls)).await;
    // The conditions as text make the same table again.
    let made = rows(
        &session,
        "SELECT 'CHECK (' || replace(condition, '||', '§') || ')' FROM system.checks",
    )
    .await;
    assert_eq!(made.len(), 14);
    let made: Vec<_> = made.iter().map(|check| check.replace('§', "||")).collect();
    let again = format!(
        "CREATE TABLE again (id INT, s TEXT, kind TEXT, d DATE, ts TIMESTAMP, n DECIMAL(10, 2), f DOUBLE, \
         b BOOLEAN, l INT[], doc TEXT, r STRUCT<a INT>, \"Odd\" INT, {})",
        made.join(", ")
    );
    run(&session, &again).await;
    let of = |table: &str| {
        format!(
            "SELECT condition FROM system.checks WHERE \"table\" = '{table}' ORDER BY condition"
        )
    };
    assert_eq!(
        rows(&session, &of("again")).await,
        rows(&session, &of("t")).await
    );
}

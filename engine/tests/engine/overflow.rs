//! Arithmetic on whole numbers that leaves their type.

use flashmesh::Session;

use crate::support::{answer, error, fails_in_all_modes, in_all_modes, rows, run, session};

const TABLES: &str = "
    CREATE TABLE t (id INT, v BIGINT, w BIGINT UNSIGNED, s INT, n TINYINT);
    INSERT INTO t VALUES
      (1, 9223372036854775807, 18446744073709551615, 2147483647, 127),
      (2, -9223372036854775808, 0, -2147483648, -128),
      (3, 5, 7, 3, 1), (4, NULL, NULL, NULL, NULL);
    CREATE TABLE few (id BIGINT, v BIGINT PRIMARY KEY);
    INSERT INTO few VALUES (1, 1), (2, 1000)";

async fn fails(session: &Session, sql: &str) {
    fails_in_all_modes(session, sql, "out of range of ").await;
}

#[tokio::test]
async fn what_leaves_its_type_is_an_error_and_no_other_number() {
    let session = session();
    run(&session, TABLES).await;
    run(
        &session,
        "CREATE VIEW more AS SELECT id, v + 1 AS v FROM t; PREPARE p AS SELECT v + $1 FROM t WHERE id = $2",
    )
    .await;
    for query in [
        "SELECT 9223372036854775807 + 1",
        "SELECT -9223372036854775808 - 1",
        "SELECT 4611686018427387904 * 2",
        "SELECT -v FROM t",
        "SELECT v + 1 FROM t",
        "SELECT v - 1 FROM t",
        "SELECT id, 2 * v AS v FROM t WHERE id <> 3 ORDER BY 1",
        "SELECT w - w - 1::BIGINT UNSIGNED FROM t WHERE id = 2",
        "SELECT w * 2::BIGINT UNSIGNED FROM t",
        "SELECT s + s FROM t",
        "SELECT n * n FROM t",
        "SELECT -n FROM t",
        "SELECT id FROM t WHERE v + 1 > 0",
        "SELECT id FROM t ORDER BY v - 1 LIMIT 1",
        "SELECT v + id, count(*) FROM t GROUP BY v + id",
        "SELECT count(*) FROM t GROUP BY id % 2 HAVING sum(id) * 9223372036854775807 > 0",
        "SELECT max(v + 1), sum(s) FROM t",
        "SELECT count(*) FILTER (WHERE v * 2 > 1) FROM t",
        "SELECT sum(id) OVER (ORDER BY v - 1) FROM t",
        "SELECT count(*) OVER () + 9223372036854775807 FROM t",
        "SELECT id + v, count(*) FROM t GROUP BY ROLLUP (id + v)",
        "SELECT t.id FROM t JOIN few ON t.v + 1 = few.v",
        "SELECT few.id FROM few LEFT JOIN t ON few.id = t.id AND t.v + few.v > 1",
        "SELECT CASE WHEN id = 1 THEN v + 1 ELSE 0 END FROM t",
        "SELECT id FROM few WHERE id IN (SELECT v + 1 FROM t)",
        "SELECT (SELECT max(t.v + few.v) FROM t WHERE t.id = few.id) FROM few",
        "SELECT v FROM more",
        "SELECT (v | 0) + 1 FROM t",
        "SELECT CASE WHEN id = 1 THEN v | 0 ELSE 0 END + 1 FROM t",
        "SELECT (DATE '2024-01-03' - DATE '2024-01-01') * 9223372036854775807",
        "SELECT coalesce(v, 0) * 2 FROM t",
        "EXECUTE p(9223372036854775807 + 1, 3)",
        "SELECT a + b FROM (SELECT v AS a, id AS b FROM t) AS x",
        "SELECT a + 1 FROM (SELECT v AS a FROM few UNION ALL SELECT v FROM t) AS x",
        "SELECT a + 1 FROM (VALUES (9223372036854775807)) AS x(a)",
        "SELECT * FROM (VALUES (9223372036854775807 + 1)) AS x(a)",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n * 1000 FROM r WHERE n > 0) SELECT count(*) FROM r",
        "EXECUTE p(1, 1)",
    ] {
        fails(&session, query).await;
    }
}

#[tokio::test]
async fn what_stays_in_its_type_is_what_it_was() {
    let session = session();
    run(&session, TABLES).await;
    run(&session, "PREPARE p AS SELECT v + $1 FROM t WHERE id = $2").await;
    for (query, expected) in [
        ("SELECT v - 1 FROM t WHERE id = 1", "9223372036854775806"),
        ("SELECT v + 1 FROM t WHERE id = 2", "-9223372036854775807"),
        ("SELECT v + 1 FROM t WHERE id = 4", ""),
        (
            "SELECT s * 2, s + 1, n * 2 FROM t WHERE id = 1",
            "4294967294 2147483648 254",
        ),
        ("SELECT -v FROM t WHERE id = 1", "-9223372036854775807"),
        ("SELECT -9223372036854775808", "-9223372036854775808"),
        (
            "SELECT v::DECIMAL(38, 0) + 1 FROM t WHERE id = 1",
            "9223372036854775808",
        ),
        ("SELECT v + 0.5::DOUBLE FROM t WHERE id = 3", "5.5"),
        (
            "SELECT v + 1, count(*) FROM t WHERE id > 2 AND v IS NOT NULL GROUP BY v + 1",
            "6 1",
        ),
        (
            "SELECT CASE WHEN v < 9 AND v > 0 THEN v * 2000000 END FROM t ORDER BY id",
            ",,10000000,",
        ),
        (
            "SELECT v - 1, grouping(v - 1) FROM t WHERE id IN (1, 3) GROUP BY ROLLUP (v - 1) ORDER BY 1, 2",
            "4 0,9223372036854775806 0,1",
        ),
        ("EXECUTE p(1, 3)", "6"),
        ("EXECUTE p(-1, 1)", "9223372036854775806"),
    ] {
        assert_eq!(answer(&session, query).await, expected, "{query}");
    }
    // Names and types are those of the operations.
    let frame = session
        .sql("SELECT v + 1, -v, s + s, w FROM t WHERE id = 3")
        .await
        .unwrap();
    let batches = frame.collect().await.unwrap();
    let fields = batches[0].schema();
    let fields = fields.fields().iter();
    let fields: Vec<_> = fields
        .map(|field| format!("{} {}", field.name(), field.data_type()))
        .collect();
    assert_eq!(fields[0], "v + 1 Int64");
    assert_eq!(fields[1..], ["-v Int64", "s + s Int32", "w UInt64"]);
}

/// Of what a filter leaves out nothing is computed.
#[tokio::test]
async fn rows_that_are_not_there_cause_no_error() {
    let session = session();
    run(&session, TABLES).await;
    for (query, expected) in [
        ("SELECT id, v + s FROM t WHERE id = 3", "3 8"),
        ("SELECT id, v + s FROM t WHERE upper(id::TEXT) = '3'", "3 8"),
        (
            "SELECT id, 10 / (id - 1) FROM t WHERE id > 1 AND upper(s::TEXT) = '3'",
            "3 5",
        ),
        (
            "SELECT id, n::TEXT || 'x', v + s FROM t WHERE reverse(id::TEXT) = '3' ORDER BY n",
            "3 1x 8",
        ),
    ] {
        assert_eq!(answer(&session, query).await, expected, "{query}");
    }
}

/// Each projection uses columns of the one below several times.
#[tokio::test]
async fn projections_above_projections_are_looked_at_once() {
    let session = session();
    run(&session, TABLES).await;
    let mut query = "WITH l0 AS (SELECT id % 2 AS x, id % 2 AS y FROM few)".to_owned();
    for level in 1..=30 {
        let below = level - 1;
        query += &format!(", l{level} AS (SELECT x + y - x AS x, x - y + y AS y FROM l{below})");
    }
    query += " SELECT sum(x + y) FROM l30";
    assert_eq!(in_all_modes(&session, &query).await, ["2"]);
}

/// Values of a table whose statistics rule it out are computed as before, beside the pages where they can.
#[tokio::test]
async fn what_cant_leave_its_type_is_plain() {
    let session = session();
    run(&session, TABLES).await;
    for (expr, is_plain) in [
        ("few.v + 1", true),
        ("few.v * few.id - 7", true),
        ("few.v * 9000000000000000000", false),
        ("t.v + 1", false),
        ("t.s::BIGINT * t.s", true),
        ("t.s + 1", true),
        ("t.n::INT * t.n", true),
        ("t.n * t.n", false),
        ("-few.v", true),
        ("max(few.v + few.id)", true),
        ("max(CASE WHEN t.id > 1 THEN 5 ELSE few.v END + 9)", true),
        ("t.v % 10 * 10", true),
        ("t.w::DECIMAL(20, 0) + 1", true),
        ("max(coalesce(few.v, 0) * 2)", true),
        ("max(CASE WHEN t.id > 1 THEN few.v ELSE NULL END + 9)", true),
        (
            "(SELECT max(k * 2) FROM (SELECT v AS k, count(*) FROM few GROUP BY v) AS g)",
            true,
        ),
    ] {
        let query = format!("EXPLAIN SELECT {expr} FROM few, t");
        let plan = rows(&session, &query).await.join("\n");
        assert_eq!(!plan.contains("flashmesh:"), is_plain, "{expr}: {plan}");
    }
    // With other rows it is another plan.
    let query = "SELECT max(v * 2) FROM few";
    assert_eq!(in_all_modes(&session, query).await, ["2000"]);
    run(&session, "INSERT INTO few VALUES (3, 9223372036854775807)").await;
    fails(&session, query).await;
}

/// As long as an expression may be.
#[tokio::test]
async fn a_chain_of_operations_takes_no_more_of_the_stack() {
    let session = session();
    run(&session, TABLES).await;
    // Frames are larger without optimisation.
    let links = if cfg!(debug_assertions) { 25 } else { 240 };
    let chain = " + s - id * s * 0".repeat(links);
    let expected = [(5 + 3 * links).to_string()];
    let query = format!("SELECT v{chain} FROM t WHERE id = 3");
    assert_eq!(in_all_modes(&session, &query).await, expected);
    let query = format!("SELECT sum(CASE WHEN id = 3 THEN v{chain} END) FROM t");
    assert_eq!(in_all_modes(&session, &query).await, expected);
    fails(&session, &format!("SELECT v{chain} FROM t WHERE id <> 2")).await;
}

#[tokio::test]
async fn changes_store_no_other_number() {
    let session = session();
    run(&session, TABLES).await;
    run(
        &session,
        "CREATE TABLE d (id BIGINT PRIMARY KEY, v BIGINT DEFAULT 4611686018427387904 + 1)",
    )
    .await;
    run(
        &session,
        "INSERT INTO d VALUES (1, 9223372036854775807), (2, 4)",
    )
    .await;
    for change in [
        "UPDATE d SET v = v + 1",
        "UPDATE d SET v = v + 1 WHERE id = 1",
        "UPDATE d SET v = -v - 2 WHERE id = 1",
        "UPDATE d SET id = id + v WHERE id = 1",
        "DELETE FROM d WHERE v + 1 > 0",
        "INSERT INTO d SELECT id + 10, v * 2 FROM d",
        "INSERT INTO d VALUES (3, 9223372036854775807 + 1)",
        "INSERT INTO d VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET v = d.v + excluded.v",
        "MERGE INTO d USING few ON d.id = few.id WHEN MATCHED THEN UPDATE SET v = d.v + few.v",
        "CREATE TABLE e AS SELECT v + 1 AS v FROM d",
    ] {
        let error = error(&session, change).await;
        assert!(error.contains("out of range of "), "{change}: {error}");
    }
    let all = in_all_modes(&session, "SELECT * FROM d ORDER BY id").await;
    assert_eq!(all, ["1 9223372036854775807", "2 4"]);
    run(
        &session,
        "UPDATE d SET v = v + 1 WHERE id = 2; INSERT INTO d (id) VALUES (3)",
    )
    .await;
    let all = in_all_modes(&session, "SELECT * FROM d WHERE id > 1 ORDER BY id").await;
    assert_eq!(all, ["2 5", "3 4611686018427387905"]);
}

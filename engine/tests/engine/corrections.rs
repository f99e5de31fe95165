//! Answers that plain DataFusion gets wrong, or questions that it refuses, in every pushdown mode.

use std::fmt::Write;

use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};

use crate::support::{batch, error, in_all_modes, random, rows, session};

#[tokio::test]
async fn min_and_max_by_group_know_nan_and_infinities() {
    let session = session();
    for kind in ["DOUBLE", "REAL"] {
        session
            .sql(&format!(
                "CREATE OR REPLACE TABLE t (g BIGINT, x {kind});
                 INSERT INTO t VALUES
                 (1, CAST('NaN' AS {kind})), (1, 1.0), (2, 1.0), (2, CAST('NaN' AS {kind})),
                 (3, CAST('Infinity' AS {kind})), (4, CAST('-Infinity' AS {kind})),
                 (5, NULL), (6, CAST('NaN' AS {kind})), (7, -2.5), (7, 0.5), (7, NULL)"
            ))
            .await
            .unwrap();
        let by_group = [
            "1 1.0 NaN",
            "2 1.0 NaN",
            "3 inf inf",
            "4 -inf -inf",
            "5  ",
            "6 NaN NaN",
            "7 -2.5 0.5",
        ];
        for sql in [
            "SELECT g, min(x), max(x) FROM t GROUP BY g ORDER BY g",
            // What the store does not compute itself.
            "SELECT g, min(x), max(x) FROM (SELECT DISTINCT g, x FROM t) GROUP BY g ORDER BY g",
            "SELECT DISTINCT g, min(x) OVER (PARTITION BY g), max(x) OVER (PARTITION BY g) FROM t ORDER BY g",
        ] {
            assert_eq!(in_all_modes(&session, sql).await, by_group, "{kind}: {sql}");
        }
        assert_eq!(
            in_all_modes(&session, "SELECT min(x), max(x) FROM t WHERE g < 4").await,
            ["1.0 NaN"]
        );
        // With a batch a row, states of groups are merged.
        session
            .sql("SET datafusion.execution.batch_size = 1")
            .await
            .unwrap();
        let sql =
            "SELECT g, min(x), max(x) FROM (SELECT * FROM t ORDER BY x) GROUP BY g ORDER BY g";
        assert_eq!(in_all_modes(&session, sql).await, by_group, "{kind}");
        session
            .sql("RESET datafusion.execution.batch_size")
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn not_in_beside_another_condition_knows_null() {
    let session = session();
    session
        .sql(
            "CREATE TABLE t (x BIGINT, y BIGINT);
             INSERT INTO t VALUES (1, 0), (2, 0), (NULL, 0), (NULL, 1), (3, 1);
             CREATE TABLE some (v BIGINT, y BIGINT); INSERT INTO some VALUES (1, 0), (2, 1);
             CREATE TABLE nulls (v BIGINT, y BIGINT); INSERT INTO nulls VALUES (1, 0), (NULL, 1);
             CREATE TABLE none (v BIGINT, y BIGINT)",
        )
        .await
        .unwrap();
    for (condition, expected) in [
        ("x NOT IN (SELECT v FROM some) OR y = 1", vec![" 1", "3 1"]),
        ("x NOT IN (SELECT v FROM nulls) OR y = 1", vec![" 1", "3 1"]),
        (
            "x NOT IN (SELECT v FROM none) OR y = 7",
            vec![" 0", " 1", "1 0", "2 0", "3 1"],
        ),
        (
            "NOT (x IN (SELECT v FROM some) AND y = 0)",
            vec![" 1", "3 1"],
        ),
        (
            "(x IN (SELECT v FROM nulls)) IS NULL",
            vec![" 0", " 1", "2 0", "3 1"],
        ),
        ("(x NOT IN (SELECT v FROM some)) IS NULL", vec![" 0", " 1"]),
        (
            "(x IN (SELECT v FROM none)) = false",
            vec![" 0", " 1", "1 0", "2 0", "3 1"],
        ),
        (
            "x IN (SELECT v FROM some) OR y = 1",
            vec![" 1", "1 0", "2 0", "3 1"],
        ),
        // Of each row's own set: {1} of y = 0, {NULL} or {2} of y = 1.
        (
            "x NOT IN (SELECT v FROM nulls WHERE nulls.y = t.y) OR y = 7",
            vec!["2 0"],
        ),
        (
            "x NOT IN (SELECT v FROM some WHERE some.y = t.y) OR y = 7",
            vec!["2 0", "3 1"],
        ),
        ("x NOT IN (SELECT v FROM nulls)", vec![]),
        ("x NOT IN (SELECT v FROM some)", vec!["3 1"]),
        (
            "x NOT IN (SELECT v FROM some WHERE some.y = t.y)",
            vec!["2 0", "3 1"],
        ),
        (
            "x NOT IN (SELECT v FROM nulls WHERE nulls.y = t.y)",
            vec!["2 0"],
        ),
    ] {
        assert_eq!(
            in_all_modes(
                &session,
                &format!("SELECT x, y FROM t WHERE {condition} ORDER BY x NULLS FIRST, y")
            )
            .await,
            expected,
            "{condition}"
        );
    }
}

#[tokio::test]
async fn is_distinct_from_binds_stronger_than_not_and_and_or() {
    let session = session();
    for (sql, same) in [
        (
            "a IS NOT DISTINCT FROM b OR c",
            "(a IS NOT DISTINCT FROM b) OR c",
        ),
        ("a IS DISTINCT FROM b AND c", "(a IS DISTINCT FROM b) AND c"),
        (
            "c AND a IS DISTINCT FROM b OR b IS DISTINCT FROM a AND NOT c",
            "(c AND (a IS DISTINCT FROM b)) OR ((b IS DISTINCT FROM a) AND (NOT c))",
        ),
        (
            "NOT a IS DISTINCT FROM b OR c",
            "(NOT (a IS DISTINCT FROM b)) OR c",
        ),
        (
            "a IS DISTINCT FROM b IS NOT TRUE AND c",
            "((a IS DISTINCT FROM b) IS NOT TRUE) AND c",
        ),
        ("a IS DISTINCT FROM (b OR c)", "a IS DISTINCT FROM (b OR c)"),
        (
            "CASE WHEN a IS DISTINCT FROM b OR c THEN a ELSE b IS DISTINCT FROM c AND a END",
            "CASE WHEN (a IS DISTINCT FROM b) OR c THEN a ELSE (b IS DISTINCT FROM c) AND a END",
        ),
    ] {
        let values = "(VALUES (true), (false), (NULL))";
        let from = format!("{values} AS a(a), {values} AS b(b), {values} AS c(c)");
        let differ = format!("SELECT count(*) FROM {from} WHERE ({sql}) IS DISTINCT FROM ({same})");
        assert_eq!(rows(&session, &differ).await, ["0"], "{sql}");
    }
    // Where the right side is no condition at all, and where the statement is not a query itself.
    session
        .sql("CREATE TABLE t AS SELECT 1 AS x, 'a' AS s UNION ALL SELECT NULL, 'b'")
        .await
        .unwrap();
    let sql = "SELECT s FROM t WHERE x IS NOT DISTINCT FROM 1 OR s = 'b' ORDER BY s";
    assert_eq!(in_all_modes(&session, sql).await, ["a", "b"]);
    session
        .sql("CREATE TABLE u AS SELECT s FROM t WHERE x IS DISTINCT FROM NULL AND s <> 'b'")
        .await
        .unwrap();
    assert_eq!(rows(&session, "SELECT s FROM u").await, ["a"]);
    let plan = rows(&session, &format!("EXPLAIN {sql}")).await.join("\n");
    assert!(plan.contains("IS NOT DISTINCT FROM"), "{plan}");
}

#[tokio::test]
async fn columns_of_a_result_may_have_the_same_name() {
    let session = session();
    session
        .sql("CREATE TABLE t (c TEXT, n BIGINT); INSERT INTO t VALUES ('x', 1), ('y', 2)")
        .await
        .unwrap();
    for (sql, names, expected) in [
        (
            "SELECT upper(c), upper(c) FROM t ORDER BY n",
            vec!["upper(c)", "upper(c)"],
            vec!["X X", "Y Y"],
        ),
        (
            "SELECT c, c, t.c FROM t ORDER BY c",
            vec!["c", "c", "c"],
            vec!["x x x", "y y y"],
        ),
        (
            "SELECT *, n FROM t ORDER BY n DESC",
            vec!["c", "n", "n"],
            vec!["y 2 2", "x 1 1"],
        ),
        (
            "SELECT n AS a, c AS a FROM t ORDER BY n LIMIT 1",
            vec!["a", "a"],
            vec!["1 x"],
        ),
        (
            "SELECT count(*), count(*), sum(n) FROM t",
            vec!["count(*)", "count(*)", "sum(n)"],
            vec!["2 2 3"],
        ),
        (
            "SELECT n, n FROM t UNION ALL SELECT 7, 7 ORDER BY 1",
            vec!["n", "n"],
            vec!["1 1", "2 2", "7 7"],
        ),
        (
            "SELECT (SELECT sum(n) FROM t), (SELECT sum(n) FROM t WHERE n > 1), (SELECT max(n) FROM t)",
            vec![
                "(SELECT sum(n) FROM t)",
                "(SELECT sum(n) FROM t WHERE n > 1)",
                "(SELECT max(n) FROM t)",
            ],
            vec!["3 2 2"],
        ),
        (
            "SELECT upper(c), (SELECT max(n) FROM t), (SELECT max(n) FROM t AS u), upper(c) FROM t ORDER BY n LIMIT 1",
            vec![
                "upper(c)",
                "(SELECT max(n) FROM t)",
                "(SELECT max(n) FROM t AS u)",
                "upper(c)",
            ],
            vec!["X 2 2 X"],
        ),
        (
            "SELECT count(*), (SELECT count(*) FROM t AS u), (SELECT count(*) FROM t WHERE n > 1), sum(n) FROM t",
            vec![
                "count(*)",
                "(SELECT count(*) FROM t AS u)",
                "(SELECT count(*) FROM t WHERE n > 1)",
                "sum(n)",
            ],
            vec!["2 2 1 3"],
        ),
        (
            "SELECT max(n) AS a, (SELECT max(n) AS a FROM t), (SELECT min(n) AS a FROM t AS u) FROM t",
            vec![
                "a",
                "(SELECT max(n) AS a FROM t)",
                "(SELECT min(n) AS a FROM t AS u)",
            ],
            vec!["2 2 1"],
        ),
        (
            "SELECT count(*) FROM (SELECT upper(c), upper(c) FROM t)",
            vec!["count(*)"],
            vec!["2"],
        ),
    ] {
        assert_eq!(in_all_modes(&session, sql).await, expected, "{sql}");
        let schema = batch(&session, sql).await.schema();
        let found: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(found, names, "{sql}");
    }
    session.sql("EXPLAIN SELECT c, c FROM t").await.unwrap();
    session
        .sql("INSERT INTO t SELECT upper(c), 5 FROM (SELECT c, c FROM t LIMIT 1)")
        .await
        .unwrap();
    // A table's columns have to differ.
    let message = error(&session, "CREATE TABLE u AS SELECT c, c FROM t").await;
    assert!(message.contains("name"), "{message}");
}

#[tokio::test]
async fn sorts_keep_what_is_renamed_or_constant() {
    let session = session();
    session
        .sql(
            "CREATE TABLE t (time TIMESTAMP, s TEXT, b BIGINT);
             INSERT INTO t SELECT to_timestamp(value % 3), 's' || (value % 5), value % 7
             FROM generate_series(1, 1000) AS v(value);
             INSERT INTO t SELECT to_timestamp(value % 3), 's' || (value % 5), value % 7
             FROM generate_series(1, 1000) AS v(value);
             CREATE TABLE one AS SELECT value AS x, value * 2 AS y FROM generate_series(1, 3) AS v(value);
             CREATE TABLE two AS SELECT value AS y, value * 3 AS z FROM generate_series(1, 3) AS v(value)",
        )
        .await
        .unwrap();
    let sql = "SELECT DISTINCT time AS first_seen FROM t ORDER BY time";
    assert_eq!(in_all_modes(&session, sql).await.len(), 3);
    let sql = "SELECT DISTINCT b AS x FROM t ORDER BY b";
    assert_eq!(
        in_all_modes(&session, sql).await,
        ["0", "1", "2", "3", "4", "5", "6"]
    );
    let sql = "SELECT DISTINCT s AS s2, b AS bb FROM t ORDER BY b DESC, s LIMIT 3";
    assert_eq!(in_all_modes(&session, sql).await, ["s0 6", "s1 6", "s2 6"]);
    let sql = "SELECT 2 AS a, x FROM one UNION ALL SELECT 1 AS a, x FROM one ORDER BY a, x";
    assert_eq!(
        in_all_modes(&session, sql).await,
        ["1 1", "1 2", "1 3", "2 1", "2 2", "2 3"]
    );
    let sql = "SELECT x, y FROM one UNION ALL BY NAME SELECT y, z FROM two ORDER BY 3, 1, 2";
    assert_eq!(
        in_all_modes(&session, sql).await,
        [" 1 3", " 2 6", " 3 9", "1 2 ", "2 4 ", "3 6 "]
    );
}

/// Joins of tables whose columns have the same names, with filters and runtime filters on one of
/// them, against plans in which no filter goes down.
#[tokio::test]
async fn filters_find_their_column_among_those_of_one_name() {
    let mut rng = random();
    let session = session();
    for (table, rows) in [("a", 40), ("b", 400), ("c", 8), ("d", 90)] {
        session
            .sql(&format!(
                "CREATE TABLE {table} AS SELECT nullif(value, 3) AS id, value % {} AS k FROM generate_series(1, {rows})",
                rng.random_range(2..9)
            ))
            .await
            .unwrap();
    }
    // As it was found.
    let found = "SELECT count(*), sum(b.id), sum(c.id) FROM b RIGHT JOIN c ON b.k = c.k WHERE b.id IS DISTINCT FROM 8";
    let mut queries = vec![found.to_owned()];
    for _ in 0..60 {
        let mut tables = ["a", "b", "c", "d"];
        tables.shuffle(&mut rng);
        let tables = &tables[..rng.random_range(2..=4)];
        let mut sql = format!(
            "SELECT count(*), {} FROM {}",
            tables
                .iter()
                .map(|t| format!("sum({t}.id)"))
                .collect::<Vec<_>>()
                .join(", "),
            tables[0]
        );
        for place in 1..tables.len() {
            let join = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]
                .choose(&mut rng)
                .unwrap();
            let (left, right) = (tables[..place].choose(&mut rng).unwrap(), tables[place]);
            let column = ["k", "id"].choose(&mut rng).unwrap();
            write!(sql, " {join} {right} ON {left}.{column} = {right}.{column}").unwrap();
        }
        let filters: Vec<_> = (0..rng.random_range(0..3))
            .map(|_| {
                let table = tables.choose(&mut rng).unwrap();
                match rng.random_range(0..4) {
                    0 => format!("{table}.id IS DISTINCT FROM {}", rng.random_range(1..10)),
                    1 => format!("coalesce({table}.id, 5) < {}", rng.random_range(1..30)),
                    2 => format!("{table}.k IS NOT DISTINCT FROM {}", rng.random_range(0..3)),
                    _ => format!(
                        "({table}.id IS NULL OR {table}.k < {})",
                        rng.random_range(1..6)
                    ),
                }
            })
            .collect();
        if !filters.is_empty() {
            write!(sql, " WHERE {}", filters.join(" AND ")).unwrap();
        }
        queries.push(sql);
    }
    let set = async |name: &str, value: &str| {
        let sql = format!("SET {name} = '{value}'");
        session.sql(&sql).await.unwrap();
    };
    for sql in queries {
        set("flashmesh.pushdown", "never").await;
        set(
            "datafusion.optimizer.enable_dynamic_filter_pushdown",
            "false",
        )
        .await;
        let expected = rows(&session, &sql).await;
        set(
            "datafusion.optimizer.enable_dynamic_filter_pushdown",
            "true",
        )
        .await;
        assert_eq!(in_all_modes(&session, &sql).await, expected, "{sql}");
    }
}

#[tokio::test]
async fn from_without_select_gives_all_columns() {
    let session = session();
    session
        .sql("CREATE TABLE t AS SELECT value AS a, -value AS b FROM range(1, 4)")
        .await
        .unwrap();
    for (sql, expected) in [
        ("FROM t ORDER BY a", &["1 -1", "2 -2", "3 -3"][..]),
        ("FROM t ORDER BY a LIMIT 1", &["1 -1"]),
        ("FROM t SELECT b WHERE a = 1", &["-1"]),
        ("FROM t WHERE a > 1 ORDER BY b", &["3 -3", "2 -2"]),
        ("SELECT count(*) FROM (FROM t WHERE b > -3)", &["2"]),
        (
            "WITH u AS (FROM t WHERE a < 3) FROM u JOIN t ON u.a = t.a WHERE u.b = -2",
            &["2 -2 2 -2"],
        ),
        (
            "FROM t WHERE a = 1 UNION ALL FROM t WHERE a = 3 ORDER BY a",
            &["1 -1", "3 -3"],
        ),
        ("SELECT count(*) FROM (FROM t)", &["3"]),
        ("SELECT a FROM t WHERE a IN (FROM (SELECT 2))", &["2"]),
        ("WITH u AS (FROM t) FROM u ORDER BY b LIMIT 1", &["3 -3"]),
        (
            "(FROM t LIMIT 0) UNION ALL (FROM t) ORDER BY a LIMIT 2",
            &["1 -1", "2 -2"],
        ),
    ] {
        assert_eq!(in_all_modes(&session, sql).await, expected, "{sql}");
    }
    session
        .sql("CREATE VIEW v AS FROM t; CREATE TABLE u AS FROM v; PREPARE p AS FROM u ORDER BY a LIMIT $1")
        .await
        .unwrap();
    assert_eq!(rows(&session, "EXECUTE p(1)").await, ["1 -1"]);
    session
        .sql("CREATE VIEW w AS FROM t WHERE a = 2; PREPARE q AS FROM w, u WHERE u.a = $1")
        .await
        .unwrap();
    assert_eq!(rows(&session, "EXECUTE q(3)").await, ["2 -2 3 -3"]);
    assert!(!rows(&session, "EXPLAIN FROM t").await.is_empty());
}

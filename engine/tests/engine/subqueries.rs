//! Tests by subqueries wherever an expression can stand, and set operations with ALL. Random ones are
//! compared with DuckDB's in `tests/python/server/random_duckdb.py`.

use crate::support::{error, in_all_modes, run, session};

const TABLES: &str = "
    CREATE TABLE t (i INT, j INT);
    INSERT INTO t VALUES (1, 10), (2, 20), (3, 30), (NULL, 40);
    CREATE TABLE u (i INT, k INT NOT NULL);
    INSERT INTO u VALUES (1, 1), (1, 2), (3, 3)";

/// A row without the places of its NULLs.
fn words(row: &str) -> String {
    row.split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn asked(queries: &[(&str, &str)]) {
    let session = session();
    run(&session, TABLES).await;
    for (query, expected) in queries {
        let found = in_all_modes(&session, query).await;
        assert_eq!(
            found
                .iter()
                .map(|row| words(row))
                .collect::<Vec<_>>()
                .join(","),
            *expected,
            "{query}"
        );
        // One whose columns have no names is no view.
        if session
            .sql(&format!("CREATE OR REPLACE VIEW v AS {query}"))
            .await
            .is_ok()
        {
            let rows = in_all_modes(&session, "SELECT count(*) FROM v").await;
            assert_eq!(rows, [found.len().to_string()], "{query} as a view");
        }
    }
}

#[tokio::test]
async fn any_and_all_are_of_the_subquery_whatever_its_columns_are_called() {
    asked(&[
        ("SELECT i FROM t WHERE i > ANY (SELECT i FROM t) ORDER BY 1", "2,3"),
        ("SELECT i FROM t WHERE i <= ANY (SELECT i FROM t) ORDER BY 1", "1,2,3"),
        ("SELECT i FROM t WHERE i = ANY (SELECT i FROM t) ORDER BY 1", "1,2,3"),
        ("SELECT i FROM t WHERE i = SOME (SELECT u.i FROM u) ORDER BY 1", "1,3"),
        ("SELECT i FROM t WHERE i >= ALL (SELECT i FROM t WHERE i IS NOT NULL) ORDER BY 1", "3"),
        ("SELECT i FROM t WHERE i <> ALL (SELECT i FROM t WHERE i = 1) ORDER BY 1", "2,3"),
        ("SELECT i FROM t WHERE i = ALL (SELECT i FROM t WHERE i = 1)", "1"),
        ("SELECT count(*) FROM t WHERE i > ALL (SELECT i FROM t)", "0"),
        ("SELECT count(*) FROM t WHERE i > ALL (SELECT i FROM t WHERE false)", "4"),
        ("SELECT count(*) FROM t WHERE i > ANY (SELECT i FROM t WHERE false)", "0"),
        ("SELECT j FROM t WHERE NOT (i > ANY (SELECT i FROM u)) ORDER BY j", "10"),
        ("SELECT j FROM t WHERE 2 < ANY (SELECT x.i FROM t AS x WHERE x.j = t.j)", "30"),
        (
            "SELECT j FROM t WHERE j / 10 >= ALL (SELECT k FROM u WHERE u.i = t.i) ORDER BY j",
            "20,30,40",
        ),
        (
            "SELECT i, sum(j) AS s FROM t GROUP BY i HAVING sum(j) > ALL (SELECT 10 * k FROM u) ORDER BY i",
            "40",
        ),
    ])
    .await;
}

#[tokio::test]
async fn tests_are_values_too() {
    asked(&[
        (
            "SELECT j, i > ANY (SELECT i FROM u) AS x, i > ALL (SELECT i FROM t) AS y FROM t ORDER BY j",
            "10 false false,20 true false,30 true false,40",
        ),
        (
            "SELECT j, EXISTS (SELECT 1 FROM u WHERE u.i = t.i) AS x FROM t ORDER BY j",
            "10 true,20 false,30 true,40 false",
        ),
        (
            "SELECT j, i IN (SELECT i FROM u) AS x, i NOT IN (SELECT i FROM t WHERE j > 20) AS y FROM t ORDER BY j",
            "10 true,20 false,30 true false,40",
        ),
        (
            "SELECT j, i IN (SELECT i FROM u WHERE false) AS x FROM t ORDER BY j",
            "10 false,20 false,30 false,40 false",
        ),
        (
            "SELECT CASE WHEN EXISTS (SELECT 1 FROM u WHERE u.i = t.i) THEN 'u' WHEN i IS NULL THEN 'n' ELSE '-' END AS x
             FROM t ORDER BY j",
            "u,-,u,n",
        ),
        (
            "SELECT count(*) FILTER (WHERE EXISTS (SELECT 1 FROM u WHERE u.i = t.i)) AS n,
                    sum(CASE WHEN i IN (SELECT k FROM u) THEN j ELSE 0 END) AS s FROM t",
            "2 60",
        ),
        (
            "SELECT i IN (SELECT i FROM u) AS x, count(*) AS n FROM t GROUP BY i IN (SELECT i FROM u) ORDER BY x",
            "false 1,true 2,1",
        ),
        (
            "SELECT j, rank() OVER (PARTITION BY i IN (SELECT i FROM u) ORDER BY j) AS r FROM t ORDER BY j",
            "10 1,20 1,30 2,40 1",
        ),
        (
            "SELECT t.i, u.k FROM t JOIN u ON t.i = u.i AND u.k > ANY (SELECT k FROM u) ORDER BY 2",
            "1 2,3 3",
        ),
        (
            "SELECT (SELECT count(*) FROM t AS x WHERE x.i IN (SELECT i FROM u)) AS n, EXISTS (SELECT 1 FROM u) AS e",
            "2 true",
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_change_may_have_tests_for_values() {
    let session = session();
    run(&session, TABLES).await;
    run(
        &session,
        "UPDATE t SET j = CASE WHEN EXISTS (SELECT 1 FROM u WHERE u.i = t.i) THEN 0 ELSE j END",
    )
    .await;
    let rows = in_all_modes(&session, "SELECT j FROM t ORDER BY j").await;
    assert_eq!(rows, ["0", "0", "20", "40"]);
    run(&session, "DELETE FROM t WHERE j >= ALL (SELECT j FROM t)").await;
    let rows = in_all_modes(&session, "SELECT j FROM t ORDER BY j").await;
    assert_eq!(rows, ["0", "0", "20"]);
}

/// DataFusion takes the conditions on the query around it out of a subquery and makes them those of a join.
#[tokio::test]
async fn correlated_subqueries_give_what_they_say() {
    asked(&[
        // An aggregate without groups has a row where there is nothing to aggregate, too.
        (
            "SELECT j, EXISTS (SELECT count(*) FROM u WHERE u.i = t.i) AS e, 0 IN (SELECT count(*) FROM u WHERE u.i = t.i) AS n
             FROM t ORDER BY j",
            "10 true false,20 true true,30 true false,40 true true",
        ),
        ("SELECT j FROM t WHERE NOT EXISTS (SELECT max(k) FROM u WHERE u.i = t.i)", ""),
        (
            "SELECT j FROM t WHERE j > ALL (SELECT count(*) FROM u WHERE u.i = t.i) ORDER BY j",
            "10,20,30,40",
        ),
        ("SELECT j FROM t WHERE 10 > ALL (SELECT max(k) FROM u WHERE u.i = t.i) ORDER BY j", "10,30"),
        ("SELECT j FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.i = t.i LIMIT 1) ORDER BY j", "10,30"),
        // Two columns of one name.
        (
            "SELECT j, EXISTS (SELECT 1 FROM u AS a JOIN u AS b ON a.k < b.k WHERE a.i = t.i AND b.i = t.i) AS e
             FROM t ORDER BY j",
            "10 true,20 false,30 false,40 false",
        ),
        (
            "SELECT j FROM t WHERE EXISTS (SELECT 1 FROM u AS a, u AS b WHERE a.i = t.i AND b.i = t.i + 2)",
            "10",
        ),
        (
            "SELECT j, (SELECT count(*) FROM u AS a, u AS b WHERE a.i = t.i AND b.i = t.i + 2) AS n FROM t ORDER BY j",
            "10 2,20 0,30 0,40 0",
        ),
        // Conditions of joins.
        (
            "SELECT t.j, u.k FROM t JOIN u ON t.i = u.i AND (t.j NOT IN (SELECT x.i FROM t AS x WHERE x.j > 20) OR t.j = 10) ORDER BY 1, 2",
            "10 1,10 2",
        ),
        (
            "SELECT t.j, u.k FROM t LEFT JOIN u ON t.i = u.i AND u.k IN (SELECT k FROM u WHERE k > 1) ORDER BY 1, 2",
            "10 2,20,30 3,40",
        ),
    ])
    .await;
}

/// Subqueries of which DataFusion makes no joins, or wrong ones.
#[tokio::test]
async fn subqueries_of_any_shape_may_use_columns_of_the_query_around_them() {
    asked(&[
        // What is cut off, numbered or padded with NULLs is so for each row of the query around it.
        ("SELECT j FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.i = t.i OFFSET 1)", "10"),
        ("SELECT j FROM t WHERE 1 < ALL (SELECT k FROM u WHERE u.i = t.i LIMIT 1 OFFSET 1) ORDER BY j", "10,20,30,40"),
        (
            "SELECT j, 2 IN (SELECT row_number() OVER () FROM u WHERE u.i = t.i) AS x FROM t ORDER BY j",
            "10 true,20 false,30 false,40 false",
        ),
        (
            "SELECT j, (SELECT k FROM u WHERE u.i = t.i ORDER BY k DESC LIMIT 1) AS x FROM t ORDER BY j",
            "10 2,20,30 3,40",
        ),
        (
            "SELECT j, (SELECT max(r) FROM (SELECT row_number() OVER () AS r FROM u WHERE u.i = t.i) AS n) AS x
             FROM t ORDER BY j",
            "10 2,20,30 1,40",
        ),
        (
            "SELECT j, (SELECT count(*) FROM u LEFT JOIN (SELECT * FROM u AS w WHERE w.i = t.i) AS v ON u.k = v.k) AS x
             FROM t ORDER BY j",
            "10 3,20 3,30 3,40 3",
        ),
        (
            "SELECT j, 5 IN (SELECT v.k FROM u LEFT JOIN (SELECT * FROM u AS w WHERE w.i = t.i) AS v ON u.k = v.k) AS x
             FROM t ORDER BY j",
            "10,20,30,40",
        ),
        // Comparisons that are no equality, conditions on the query around it alone, and its NULLs.
        (
            "SELECT j, (SELECT count(*) FROM u WHERE u.i < t.i) AS x FROM t ORDER BY j",
            "10 0,20 2,30 2,40 0",
        ),
        (
            "SELECT j, (SELECT count(*) FROM u WHERE u.i = t.i OR t.i IS NULL) AS x FROM t ORDER BY j",
            "10 2,20 0,30 1,40 3",
        ),
        (
            "SELECT j, (SELECT sum(k) FROM u WHERE u.i IS NOT DISTINCT FROM t.i HAVING count(*) < 2) AS x
             FROM t ORDER BY j",
            "10,20,30 3,40",
        ),
        // What is around it may be an aggregate of nothing, have windows and LIMIT, or be a subquery's column.
        ("SELECT x, (SELECT count(*) FROM u WHERE u.k < x) AS c FROM (SELECT 5 AS x, max(i) AS m FROM t WHERE j > 99) AS s", "5 3"),
        (
            "SELECT s.n, (SELECT max(k) FROM u WHERE u.i = s.n) AS v FROM (SELECT row_number() OVER (ORDER BY j) AS n FROM t) AS s
             ORDER BY n",
            "1 2,2,3 3,4",
        ),
        (
            "SELECT s.j, (SELECT DISTINCT k FROM u WHERE u.i = s.i) AS v FROM (SELECT * FROM t ORDER BY j DESC LIMIT 2) AS s ORDER BY j",
            "30 3,40",
        ),
        (
            "SELECT (SELECT count(*) FROM u WHERE u.i < s.n) AS c FROM (SELECT (SELECT max(k) FROM u WHERE u.i = t.i) AS n FROM t) AS s
             ORDER BY c",
            "0,0,2,2",
        ),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT r.n + 1 FROM r WHERE (SELECT count(*) FROM u WHERE u.k = r.n) > 0)
             SELECT n FROM r ORDER BY n",
            "1,2,3,4",
        ),
        // In the condition of a join.
        (
            "SELECT t.j, b.j AS k FROM t JOIN t AS b ON t.j = b.j AND EXISTS (SELECT 1 FROM u WHERE u.i = t.i OFFSET 1)",
            "10 10",
        ),
        (
            "SELECT t.j, b.j AS k FROM t JOIN t AS b ON t.j = b.j AND 0 IN (SELECT count(*) FROM u WHERE u.i = t.i) ORDER BY 1",
            "20 20,40 40",
        ),
        (
            "SELECT t.j, b.j AS k FROM t JOIN t AS b ON t.j = b.j AND (SELECT max(k) FROM u WHERE u.i = t.i) = 2",
            "10 10",
        ),
        // Unions, sets, values.
        (
            "SELECT j, (SELECT count(*) FROM (SELECT i FROM u WHERE u.i <= t.i EXCEPT ALL SELECT 1) AS q) AS c FROM t ORDER BY j",
            "10 1,20 1,30 2,40 0",
        ),
        ("SELECT j FROM t WHERE EXISTS (SELECT i FROM u WHERE u.k = t.i EXCEPT ALL SELECT 1)", "30"),
        (
            "SELECT j, (SELECT count(*) FROM (SELECT k FROM u WHERE u.i = t.i UNION SELECT t.j)) AS x FROM t ORDER BY j",
            "10 3,20 1,30 2,40 1",
        ),
        (
            "SELECT j, (SELECT max(x) FROM (VALUES (t.i), (t.j - 1)) AS v(x)) AS x, (SELECT t.i + 1) AS y FROM t ORDER BY j",
            "10 9 2,20 19 3,30 29 4,40 39",
        ),
        // In ORDER BY, in aggregates, in GROUP BY.
        ("SELECT j FROM t ORDER BY EXISTS (SELECT 1 FROM u WHERE u.i = t.i) DESC, j DESC", "30,10,40,20"),
        (
            "SELECT t.i, (SELECT t.j FROM t WHERE t.j > 10 ORDER BY (SELECT count(*) FROM u WHERE u.i = t.i), t.j LIMIT 1) AS s
             FROM t WHERE i = 1",
            "1 20",
        ),
        (
            "SELECT j, (SELECT u.k FROM u WHERE u.i = t.i ORDER BY EXISTS (SELECT 1 FROM t AS w WHERE w.i = u.k), u.k LIMIT 1) AS s
             FROM t ORDER BY j",
            "10 1,20,30 3,40",
        ),
        (
            "SELECT j, t.i IN (SELECT max(k) FROM u WHERE u.i = t.i GROUP BY u.i) AS x FROM t ORDER BY j",
            "10 false,20 false,30 true,40 false",
        ),
        ("SELECT j FROM t ORDER BY i IN (SELECT i FROM u) NULLS LAST, j DESC", "20,30,10,40"),
        ("SELECT j FROM t ORDER BY (SELECT sum(k) FROM u WHERE u.i = t.i) DESC NULLS LAST, j DESC", "30,10,40,20"),
        (
            "SELECT sum((SELECT count(*) FROM u WHERE u.i = t.i)) AS s, (SELECT count(*) FROM u WHERE u.i <= t.i) AS g
             FROM t GROUP BY 2 ORDER BY 1, 2",
            "0 0,1 3,2 2",
        ),
        // Several levels, and one that uses the table's own name again.
        (
            "SELECT j FROM t WHERE EXISTS (SELECT 1 FROM u WHERE EXISTS (SELECT 1 FROM u AS w WHERE w.i = t.i AND w.k = u.k + 1))
             ORDER BY j",
            "10,30",
        ),
        (
            "SELECT j FROM t WHERE EXISTS (SELECT 1 FROM t WHERE t.j = 20 AND EXISTS (SELECT 1 FROM u WHERE u.k = t.i)) ORDER BY j",
            "10,20,30,40",
        ),
        (
            "SELECT j, (SELECT sum(c) FROM (SELECT (SELECT count(*) FROM u AS w WHERE w.k <= u.k AND w.i = t.i) AS c
             FROM u WHERE u.i = t.i) AS s) AS x FROM t ORDER BY j",
            "10 3,20,30 1,40",
        ),
        // Beside other tables.
        (
            "SELECT j, k FROM t, LATERAL (SELECT k FROM u WHERE u.i = t.i ORDER BY k DESC LIMIT 1) AS l ORDER BY j",
            "10 2,30 3",
        ),
        (
            "SELECT j, k FROM t LEFT JOIN LATERAL (SELECT k FROM u WHERE u.i = t.i ORDER BY k LIMIT 1) AS l ON k > 1 ORDER BY j",
            "10,20,30 3,40",
        ),
        (
            "SELECT j, n, m FROM t, LATERAL (SELECT count(*) AS n FROM u WHERE u.i >= t.i) AS a,
             LATERAL (SELECT max(u.k) + n AS m FROM u WHERE u.k <= a.n) AS b ORDER BY j",
            "10 3 6,20 1 2,30 1 2,40 0",
        ),
    ])
    .await;
    let session = session();
    run(&session, TABLES).await;
    for (query, expected) in [
        (
            "SELECT j, (SELECT k FROM u WHERE u.i = t.i) AS x FROM t",
            "a subquery that stands for a value gives more than one row",
        ),
        (
            "SELECT r, (SELECT count(*) FROM u WHERE u.k > s.r) AS x FROM (SELECT random() * 3 AS r FROM t) AS s",
            "a function that gives another value each time",
        ),
        (
            "SELECT (SELECT k + random() + t.j FROM u WHERE u.k <= t.i LIMIT 1) AS x FROM t",
            "a function that gives another value each time in a subquery",
        ),
        // Of the query around it, by the standard.
        (
            "SELECT (SELECT max(t.j)) AS x FROM t",
            "an aggregate of nothing but columns of the query around it",
        ),
        (
            "SELECT (SELECT max(k) FROM u) > ANY (SELECT k FROM u) AS x FROM t",
            "a subquery that is compared with ANY of another one",
        ),
    ] {
        let error = error(&session, query).await;
        assert!(error.contains(expected), "{query}: {error}");
    }
}

/// In UPDATE, DELETE and MERGE.
#[tokio::test]
async fn changes_may_have_subqueries_of_any_shape() {
    let session = session();
    run(&session, TABLES).await;
    run(
        &session,
        "UPDATE t SET j = (SELECT count(*) FROM u WHERE u.i < t.i);
         DELETE FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.i = t.i ORDER BY k OFFSET 1);
         MERGE INTO u USING (SELECT i, (SELECT k FROM u AS w WHERE w.k >= t.i ORDER BY k DESC LIMIT 1) AS n FROM t) AS s
           ON u.k = s.i WHEN MATCHED THEN UPDATE SET i = s.n + 10",
    )
    .await;
    let rows = in_all_modes(&session, "SELECT i, j FROM t ORDER BY j, i").await;
    let rows: Vec<_> = rows.iter().map(|row| words(row)).collect();
    assert_eq!(rows, ["0", "2 2", "3 2"]);
    let rows = in_all_modes(&session, "SELECT i, k FROM u ORDER BY k").await;
    let rows: Vec<_> = rows.iter().map(|row| words(row)).collect();
    assert_eq!(rows, ["1 1", "13 2", "13 3"]);
}

#[tokio::test]
async fn set_operations_with_all_count_rows() {
    asked(&[
        ("SELECT i FROM u EXCEPT ALL SELECT i FROM t ORDER BY i", "1"),
        ("SELECT i FROM u INTERSECT ALL SELECT i FROM t ORDER BY i", "1,3"),
        (
            "SELECT * FROM (VALUES (1), (2), (2), (3), (3), (3), (NULL), (NULL)) AS a (x)
             EXCEPT ALL SELECT * FROM (VALUES (1), (3), (NULL)) AS b (x) ORDER BY x",
            "2,2,3,3,",
        ),
        (
            "SELECT x, count(*) AS c FROM (
               (SELECT * FROM (VALUES (1), (2), (2), (3), (3), (3), (4), (4), (4), (4)) AS s (x)
                EXCEPT ALL SELECT * FROM (VALUES (1), (3), (3)) AS t (x))
               INTERSECT ALL SELECT * FROM (VALUES (2), (2), (2), (4), (3), (3)) AS u (x)) AS s
             GROUP BY x ORDER BY x",
            "2 2,3 1,4 1",
        ),
        (
            "SELECT i, k FROM u EXCEPT ALL SELECT CAST(i AS BIGINT), i FROM t ORDER BY k",
            "1 2",
        ),
        (
            "WITH a AS (SELECT i FROM u EXCEPT ALL SELECT 1) SELECT count(*) AS n FROM a WHERE i IN (SELECT i FROM u INTERSECT ALL SELECT 3)",
            "1",
        ),
        // The two zeros are one value, and NaN is one.
        (
            "SELECT count(*) AS n FROM (SELECT * FROM (VALUES (0.0::DOUBLE), (-0.0::DOUBLE), ('NaN'::DOUBLE)) AS a (x)
             EXCEPT ALL SELECT * FROM (VALUES (0.0::DOUBLE), ('NaN'::DOUBLE)) AS b (x)) AS s",
            "1",
        ),
        // Without ALL each row comes once.
        ("SELECT i FROM u INTERSECT SELECT i FROM t ORDER BY i", "1,3"),
        ("SELECT i FROM u EXCEPT SELECT i FROM t", ""),
    ])
    .await;
}

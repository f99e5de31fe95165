//! Joins whose inputs are too large for the memory sort them; the rows are those of hash joins.

use std::num::NonZeroUsize;

use flashmesh::{Engine, EngineOptions};
use rand::RngExt;

use crate::support::{random, rows, run, session};

/// Both inputs have keys that repeat, NULL, NaN and both zeros.
const JOINS: &[&str] = &[
    "SELECT l.a, l.k, r.b FROM l JOIN r ON l.k = r.k",
    "SELECT l.a, r.k, r.b FROM l JOIN r ON l.k = r.k AND l.x = r.x",
    "SELECT l.a, r.b FROM l JOIN r ON l.f = r.f",
    "SELECT l.a, r.b FROM l LEFT JOIN r ON l.k = r.k AND l.a % 7 < r.b % 5",
    "SELECT l.a, r.b FROM l RIGHT JOIN r ON l.k = r.k",
    "SELECT l.a, r.b FROM l FULL JOIN r ON l.x = r.x AND l.a < r.b",
    "SELECT l.a FROM l WHERE l.k IN (SELECT k FROM r WHERE b % 3 = 0)",
    "SELECT l.a FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND r.b > l.a)",
    "SELECT l.a FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.k = l.k)",
    "SELECT l.a FROM l WHERE l.k NOT IN (SELECT k FROM r WHERE k IS NOT NULL)",
    "SELECT l.a FROM l WHERE l.k NOT IN (SELECT k FROM r)",
    "SELECT l.a, r.b FROM l JOIN r ON l.k IS NOT DISTINCT FROM r.k",
    "SELECT l.k, count(*), sum(s.b) FROM l JOIN r ON l.k = r.k JOIN r AS s ON s.x = l.x GROUP BY l.k",
    "SELECT l.a, r.b FROM l JOIN r USING (k) ORDER BY l.a DESC, r.b LIMIT 20",
    "SELECT k, x, a, b FROM l NATURAL JOIN (SELECT k, x, b FROM r)",
];

#[tokio::test]
async fn sorted_joins_give_the_rows_of_hash_joins() {
    let mut rng = random();
    let session = session();
    for (table, column) in [("l", "a"), ("r", "b")] {
        let mut values = Vec::new();
        for row in 0..400 {
            let k = match rng.random_range(0..10) {
                0 => "NULL".into(),
                _ => rng.random_range(0..60).to_string(),
            };
            let x = ["'p'", "'q'", "''", "NULL"][rng.random_range(0..4)];
            let f = ["0.0", "-0.0", "'NaN'", "1.5", "NULL"][rng.random_range(0..5)];
            values.push(format!("({row}, {k}, {x}, CAST({f} AS DOUBLE))"));
        }
        run(
            &session,
            &format!(
                "CREATE TABLE {table} ({column} INT, k BIGINT, x VARCHAR, f DOUBLE); \
                 INSERT INTO {table} VALUES {}",
                values.join(", ")
            ),
        )
        .await;
    }
    for mode in ["auto", "always", "never"] {
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        for sql in JOINS {
            run(&session, "SET flashmesh.hash_join_size = '1TB'").await;
            let mut hashed = rows(&session, sql).await;
            assert!(
                !plan(&session, sql).await.contains("SortMergeJoin"),
                "{sql}"
            );
            run(&session, "SET flashmesh.hash_join_size = '0'").await;
            let mut sorted = rows(&session, sql).await;
            let is_null_aware = sql.contains("NOT IN");
            let plan = plan(&session, sql).await;
            assert_eq!(
                plan.contains("SortMergeJoin"),
                !is_null_aware,
                "{sql}\n{plan}"
            );
            if !sql.contains("ORDER BY") {
                hashed.sort();
                sorted.sort();
            }
            assert_eq!(sorted, hashed, "pushdown {mode}: {sql}");
        }
    }
}

async fn plan(session: &flashmesh::Session, sql: &str) -> String {
    rows(session, &format!("EXPLAIN {sql}")).await.join("\n")
}

#[tokio::test]
async fn a_join_larger_than_the_memory_limit_spills() {
    let options = EngineOptions {
        memory_limit_bytes: Some(64 << 20),
        // One has the pool for itself.
        threads: NonZeroUsize::new(1),
        ..EngineOptions::default()
    };
    let session = Engine::open(options).unwrap().session().unwrap();
    run(
        &session,
        "CREATE TABLE t AS SELECT value AS a, 'some text that takes room ' || value AS b \
         FROM generate_series(1, 1500000) AS s(value)",
    )
    .await;
    let join = "SELECT count(*), sum(t.a), max(u.b) FROM t JOIN t AS u ON t.a = 1500001 - u.a \
                WHERE t.b <> u.b";
    let found = rows(&session, join).await;
    assert_eq!(
        found,
        ["1500000 1125000750000 some text that takes room 999999"]
    );
    run(&session, "SET flashmesh.hash_join_size = '1TB'").await;
    let refused = crate::support::error(&session, join).await;
    assert!(refused.contains("flashmesh.hash_join_size"), "{refused}");
}

//! Queries that take the plan of an earlier one answer as if there were none.

use arrow::compute::concat_batches;
use flashmesh::Session;
use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::support::{batch, error, random, rows, run, session};

fn reused(session: &Session) -> u64 {
    flashmesh_planner::plans_reused(&session.context().state())
}

/// Whether the second run of a query takes the plan of the first.
async fn is_reused(session: &Session, sql: &str) -> bool {
    rows(session, sql).await;
    let before = reused(session);
    rows(session, sql).await;
    reused(session) > before
}

async fn with_table() -> Session {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, g BIGINT, v DOUBLE, s TEXT);
         INSERT INTO t SELECT value, value % 7, value / 3.0, 's' || (value % 11)
           FROM generate_series(1, 500);
         CREATE TABLE u (g BIGINT, w BIGINT);
         INSERT INTO u SELECT value % 7, value FROM generate_series(1, 20)",
    )
    .await;
    session
}

#[tokio::test]
async fn queries_that_mean_the_same_again_are_planned_once() {
    let session = with_table().await;
    for sql in [
        "SELECT v FROM t WHERE id = 77",
        "SELECT g, sum(v) FROM t WHERE s LIKE 's1%' GROUP BY g ORDER BY g LIMIT 3",
        "SELECT count(*) FROM t JOIN u ON t.g = u.g WHERE t.id < 50",
        "SELECT id FROM t WHERE g = (SELECT min(g) FROM u) ORDER BY id",
        "SELECT id, row_number() OVER (ORDER BY v) FROM t WHERE id IN (3, 5)",
        "SELECT s FROM lookup('t', [3, 5, 900])",
    ] {
        assert!(is_reused(&session, sql).await, "{sql}");
    }
    run(&session, "PREPARE p AS SELECT v FROM t WHERE id = $1").await;
    assert!(is_reused(&session, "EXECUTE p(7)").await);
    for sql in [
        "SELECT now() > TIMESTAMP '2020-01-01' FROM t LIMIT 1",
        "SELECT random() < 2 FROM t LIMIT 1",
        "SELECT count(*) FROM information_schema.tables",
        "SELECT 1",
        "EXPLAIN SELECT v FROM t WHERE id = 77",
    ] {
        // `SELECT 1` reads nothing, and means the same.
        assert_eq!(is_reused(&session, sql).await, sql == "SELECT 1", "{sql}");
    }
}

#[tokio::test]
async fn what_changes_a_query_changes_its_plan() {
    let session = with_table().await;
    let count = "SELECT count(*), sum(v) FROM t WHERE id > 490";
    assert_eq!(rows(&session, count).await.len(), 1);
    let other = session.engine().session().unwrap();
    run(&other, "INSERT INTO t VALUES (1000, 1, 1.0, NULL)").await;
    assert!(rows(&session, count).await[0].starts_with("11 "));
    // Literals that are equal, and are not the same.
    for (sql, expected) in [
        (
            "SELECT 1 / CAST(g * 0 + 0.0 AS DOUBLE) FROM t WHERE id = 1",
            "inf",
        ),
        (
            "SELECT 1 / CAST(g * 0 - 0.0 AS DOUBLE) FROM t WHERE id = 1",
            "inf",
        ),
        ("SELECT 1 / (v * 0.0) FROM t WHERE id = 1", "inf"),
        ("SELECT 1 / (v * -0.0) FROM t WHERE id = 1", "-inf"),
        ("SELECT id / 2 FROM t WHERE id = 7", "3"),
        ("SELECT id / 2.0 FROM t WHERE id = 7", "3.5"),
    ] {
        for _ in 0..2 {
            assert_eq!(rows(&session, sql).await, [expected], "{sql}");
        }
    }
    // A view of the same name and columns.
    for (definition, expected) in [("id < 3", "2"), ("id < 4", "3")] {
        let view = format!("CREATE OR REPLACE VIEW few AS SELECT id FROM t WHERE {definition}");
        run(&other, &view).await;
        for _ in 0..2 {
            assert_eq!(rows(&session, "SELECT count(*) FROM few").await, [expected]);
        }
    }
    // Options.
    let grouped = "SELECT g, count(*) FROM t GROUP BY g ORDER BY g";
    let before = rows(&session, grouped).await;
    assert!(is_reused(&session, grouped).await);
    let known = reused(&session);
    run(&session, "SET flashmesh.pushdown = 'never'").await;
    assert_eq!(rows(&session, grouped).await, before);
    assert_eq!(reused(&session), known, "planned under other options");
    // A table made anew of the same name and columns, and none.
    run(
        &other,
        "CREATE OR REPLACE TABLE t AS SELECT 491 AS id, 0 AS g, 2.5 AS v, 'x' AS s",
    )
    .await;
    assert_eq!(rows(&session, count).await, ["1 2.5"]);
    run(&other, "DROP TABLE t").await;
    assert!(error(&session, count).await.contains("not found"));
}

#[tokio::test]
async fn what_was_dropped_is_freed() {
    let session = with_table().await;
    let live = || session.engine().database().store().usage().pages();
    let sql = "SELECT count(*) FROM t WHERE id > 3";
    let before = live();
    assert!(is_reused(&session, sql).await);
    run(&session, "DROP TABLE t").await;
    let used_by_u = {
        run(&session, "DROP TABLE u").await;
        live()
    };
    assert!(used_by_u < before);
    assert_eq!(used_by_u, 0, "nothing keeps the pages of a dropped table");
}

#[tokio::test]
async fn random_statements_between_queries_change_nothing_but_the_answers() {
    let (session, mut random) = (with_table().await, random());
    let other = session.engine().session().unwrap();
    let queries = [
        "SELECT count(*), sum(id), max(s) FROM t WHERE g < 4",
        "SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY n DESC, g LIMIT 4",
        "SELECT t.id, u.w FROM t JOIN u USING (g) WHERE t.id % 50 = 1 ORDER BY 1, 2",
        "SELECT id FROM t WHERE g IN (SELECT g FROM u WHERE w > 15) ORDER BY id LIMIT 9",
        "SELECT s, v FROM t WHERE id = 42",
        "SELECT count(*) FROM t AS a JOIN t AS b ON a.id = b.g",
        "SELECT * FROM w ORDER BY 1, 2",
    ];
    run(
        &other,
        "CREATE VIEW w AS SELECT g, count(*) AS n FROM u GROUP BY g",
    )
    .await;
    let mut next_id = 10_000;
    for _ in 0..150 {
        match random.random_range(0..12) {
            0 => {
                next_id += 1;
                let row = format!("({next_id}, {}, 1.5, 'new')", next_id % 9);
                run(&other, &format!("INSERT INTO t VALUES {row}")).await;
            }
            1 => {
                let w = random.random_range(0..30);
                run(&session, &format!("INSERT INTO u VALUES (3, {w})")).await;
            }
            2 => {
                run(
                    &other,
                    "INSERT OVERWRITE u SELECT id % 5, id FROM t WHERE id < 30",
                )
                .await
            }
            3 => {
                let view = "CREATE OR REPLACE VIEW w AS SELECT g, ";
                let column = ["max(w)", "count(*)"].choose(&mut random).unwrap();
                run(&other, &format!("{view}{column} AS n FROM u GROUP BY g")).await;
            }
            4 => {
                let mode = ["never", "auto", "always"].choose(&mut random).unwrap();
                run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
            }
            _ => {
                let sql = queries.choose(&mut random).unwrap();
                let planned = session.sql(sql).await.unwrap().collect().await.unwrap();
                let answer = batch(&session, sql).await;
                let planned = concat_batches(&answer.schema(), &planned).unwrap();
                assert_eq!(answer, planned, "{sql}");
            }
        }
    }
    assert!(reused(&session) > 0);
}

//! MERGE.

use std::collections::BTreeMap;

use flashmesh::{Engine, EngineOptions, Session};
use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::support::{error, random, rows, run, session};

const MODES: [&str; 3] = ["never", "auto", "always"];

async fn sorted(session: &Session, sql: &str) -> Vec<String> {
    let mut rows = rows(session, sql).await;
    rows.sort();
    rows
}

#[tokio::test]
async fn rows_are_updated_deleted_and_added_at_once() {
    for mode in MODES {
        let session = session();
        run(
            &session,
            &format!(
                "SET flashmesh.pushdown = '{mode}'; \
                 CREATE TABLE stock (id BIGINT PRIMARY KEY, name TEXT DEFAULT 'new', n INT); \
                 INSERT INTO stock VALUES (1, 'cup', 10), (2, 'plate', 4), (3, 'pot', NULL), (4, 'pan', 1); \
                 CREATE TABLE delta (id BIGINT, by INT); \
                 INSERT INTO delta VALUES (1, 5), (2, -4), (3, 1), (7, 7), (8, 0), (NULL, 1)"
            ),
        )
        .await;
        let merge = "MERGE INTO stock AS s USING delta AS d ON s.id = d.id \
             WHEN MATCHED AND s.n + d.by = 0 THEN DELETE \
             WHEN MATCHED AND s.n IS NULL THEN DO NOTHING \
             WHEN MATCHED THEN UPDATE SET n = s.n + d.by, name = upper(s.name) \
             WHEN NOT MATCHED AND d.by = 0 THEN DO NOTHING \
             WHEN NOT MATCHED AND d.id IS NOT NULL THEN INSERT (n, id) VALUES (d.by, d.id)";
        let plan = rows(&session, &format!("EXPLAIN {merge}")).await.join("\n");
        assert!(plan.contains("FlashScanExec"), "{plan}");
        assert_eq!(
            sorted(&session, &format!("{merge} RETURNING s.id, name, n")).await,
            ["1 CUP 15", "2 plate 4", "7 new 7"],
            "{mode}"
        );
        let all = "SELECT * FROM stock ORDER BY id";
        assert_eq!(
            rows(&session, all).await,
            ["1 CUP 15", "3 pot ", "4 pan 1", "7 new 7"]
        );
        let counted = "MERGE INTO stock USING (SELECT id, by FROM delta WHERE id < 8) AS d ON stock.id = d.id \
             WHEN MATCHED THEN UPDATE SET n = d.by \
             WHEN NOT MATCHED BY SOURCE THEN DELETE \
             WHEN NOT MATCHED THEN INSERT VALUES (d.id, DEFAULT, d.by)";
        assert_eq!(rows(&session, counted).await, ["5"]);
        assert_eq!(
            rows(&session, all).await,
            ["1 CUP 5", "2 new -4", "3 pot 1", "7 new 7"]
        );
        assert_eq!(
            rows(
                &session,
                "MERGE INTO stock USING stock AS s ON stock.id = s.id AND s.n > 0 \
                 WHEN MATCHED THEN DELETE"
            )
            .await,
            ["3"]
        );
        assert_eq!(rows(&session, all).await, ["2 new -4"]);
        assert_eq!(
            rows(
                &session,
                "MERGE INTO stock USING delta ON stock.id = delta.id WHEN MATCHED AND by > 9 THEN DELETE"
            )
            .await,
            ["0"]
        );
    }
}

#[tokio::test]
async fn what_is_refused_changes_nothing() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT NOT NULL); INSERT INTO t VALUES (1, 1), (2, 2); \
         CREATE TABLE u AS VALUES (1, 10), (1, 20), (3, 30); \
         CREATE TABLE k (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n BIGINT)",
    )
    .await;
    let merge = "MERGE INTO t USING u ON id = column1";
    for (sql, part) in [
        (
            format!("{merge} WHEN MATCHED THEN UPDATE SET n = column2"),
            "changed twice",
        ),
        (
            format!(
                "{merge} WHEN MATCHED AND column2 = 10 THEN DELETE WHEN MATCHED THEN UPDATE SET n = 0"
            ),
            "changed twice",
        ),
        (
            format!("{merge} WHEN NOT MATCHED THEN INSERT (id) VALUES (column1)"),
            "'n' is NOT NULL",
        ),
        (
            format!("{merge} WHEN NOT MATCHED THEN INSERT VALUES (1, 1)"),
            "primary key",
        ),
        (
            format!("{merge} AND column2 = 10 WHEN MATCHED THEN UPDATE SET n = 1.5"),
            "1.5",
        ),
        (
            format!("{merge} WHEN MATCHED THEN UPDATE SET nothing = 1"),
            "nothing",
        ),
        (
            "MERGE INTO k USING u ON id = column1 WHEN NOT MATCHED THEN INSERT (id) VALUES (1)"
                .into(),
            "GENERATED ALWAYS",
        ),
        (
            "MERGE INTO k USING u ON id = column1 WHEN MATCHED THEN UPDATE SET id = 1".into(),
            "GENERATED ALWAYS",
        ),
        (
            format!("EXPLAIN ANALYZE {merge} WHEN MATCHED THEN DELETE"),
            "EXPLAIN ANALYZE",
        ),
    ] {
        let message = error(&session, &sql).await;
        assert!(message.contains(part), "{sql}: {message}");
    }
    assert_eq!(sorted(&session, "SELECT * FROM t").await, ["1 1", "2 2"]);
    // Twice is fine where only one of the two changes the row.
    run(
        &session,
        &format!("{merge} WHEN MATCHED AND column2 > 10 THEN UPDATE SET n = column2"),
    )
    .await;
    assert_eq!(sorted(&session, "SELECT * FROM t").await, ["1 20", "2 2"]);
    run(
        &session,
        "MERGE INTO k USING u ON id = column1 AND n = column2 \
         WHEN NOT MATCHED THEN INSERT (n) VALUES (column2)",
    )
    .await;
    assert_eq!(
        rows(
            &session,
            "SELECT count(*), count(DISTINCT id), max(id) FROM k"
        )
        .await,
        ["3 3 3"]
    );
}

/// Sessions merge into the same counters at once, in statements and in transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn merges_at_the_same_time_are_not_lost() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let session = engine.session().unwrap();
    run(&session, "CREATE TABLE c (id BIGINT PRIMARY KEY, n BIGINT)").await;
    let mut adding = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let session = engine.session().unwrap();
        adding.spawn(async move {
            let mut added = 0;
            for round in 0..8 {
                let id = (worker + round) % 3;
                let merge = format!(
                    "MERGE INTO c USING (SELECT {id} AS key) AS s ON c.id = s.key \
                     WHEN MATCHED THEN UPDATE SET n = n + 1 WHEN NOT MATCHED THEN INSERT VALUES (key, 1)"
                );
                let sql = match round % 2 {
                    0 => merge,
                    _ => format!("BEGIN; {merge}; COMMIT"),
                };
                match session.sql(&sql).await {
                    Ok(_) => added += 1,
                    Err(error) => {
                        let error = error.to_string();
                        let is_conflict = error.contains("run this one again")
                            || error.contains("primary key");
                        assert!(is_conflict, "{error}");
                        // Where the statement itself failed.
                        let _ = session.sql("ROLLBACK").await;
                    }
                }
            }
            added
        });
    }
    let added: i64 = adding.join_all().await.into_iter().sum();
    assert!(added > 0);
    assert_eq!(
        rows(&session, "SELECT sum(n) FROM c").await,
        [added.to_string()]
    );
}

/// Random merges against a map, in all modes.
#[tokio::test]
async fn random_merges_leave_what_a_map_has() {
    let mut rng = random();
    let session = session();
    run(&session, "CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT)").await;
    let mut model: BTreeMap<i64, Option<i64>> = BTreeMap::new();
    for _ in 0..20 {
        let mode = MODES.choose(&mut rng).unwrap();
        let low = rng.random_range(0..12_000_i64);
        let most = *[4, 300, 11_000].choose(&mut rng).unwrap();
        let high = low + rng.random_range(0..most);
        let bound = rng.random_range(0..9_i64);
        let with_rest = rng.random_bool(0.3);
        let rest = match with_rest {
            true => "WHEN NOT MATCHED BY SOURCE AND v IS NULL THEN UPDATE SET v = 0",
            false => "",
        };
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        let sql = format!(
            "MERGE INTO t USING (SELECT value AS id, nullif(value % 9, 4) AS w FROM generate_series({low}, {high})) AS s \
             ON t.id = s.id \
             WHEN MATCHED AND w = {bound} THEN DELETE \
             WHEN MATCHED AND v > w THEN DO NOTHING \
             WHEN MATCHED THEN UPDATE SET v = t.v + w \
             WHEN NOT MATCHED AND w > {bound} THEN INSERT (v, id) VALUES (w, s.id) \
             WHEN NOT MATCHED AND w IS NULL THEN INSERT (id) VALUES (s.id) {rest} \
             RETURNING id, v"
        );
        let mut expected = Vec::new();
        let text = |id: i64, v: Option<i64>| {
            format!("{id} {}", v.map_or(String::new(), |v| v.to_string()))
        };
        if with_rest {
            let outside = model
                .iter_mut()
                .filter(|(id, _)| !(low..=high).contains(*id));
            for (id, v) in outside.filter(|(_, v)| v.is_none()) {
                *v = Some(0);
                expected.push(text(*id, *v));
            }
        }
        for id in low..=high {
            let w = Some(id % 9).filter(|w| *w != 4);
            match model.get(&id).copied() {
                Some(v) if w == Some(bound) => {
                    model.remove(&id);
                    expected.push(text(id, v));
                }
                Some(v) if v.zip(w).is_some_and(|(v, w)| v > w) => {}
                Some(v) => {
                    let v = v.zip(w).map(|(v, w)| v + w);
                    model.insert(id, v);
                    expected.push(text(id, v));
                }
                None if w.is_none_or(|w| w > bound) => {
                    model.insert(id, w);
                    expected.push(text(id, w));
                }
                None => {}
            }
        }
        expected.sort();
        assert_eq!(sorted(&session, &sql).await, expected, "{sql}");
        let mut all: Vec<_> = model.iter().map(|(id, v)| text(*id, *v)).collect();
        all.sort();
        assert_eq!(sorted(&session, "SELECT * FROM t").await, all, "{sql}");
    }
}

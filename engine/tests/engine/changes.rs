//! UPDATE, DELETE and TRUNCATE.

use std::collections::BTreeMap;

use flashmesh::{Engine, EngineOptions, Session};
use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::support::{error, random, rows, run, session};

const MODES: [&str; 3] = ["never", "auto", "always"];

/// What a statement says it changed.
async fn changed(session: &Session, sql: &str) -> u64 {
    let count = rows(session, sql).await;
    count[0].parse().unwrap()
}

#[tokio::test]
async fn rows_are_updated_and_deleted() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, x DOUBLE); \
         INSERT INTO t VALUES (1, 'a', 1.5), (2, 'b', NULL), (3, NULL, 2.5), (4, 'd', 3.5)",
    )
    .await;
    assert_eq!(
        changed(
            &session,
            "UPDATE t SET x = x * 2, name = upper(name) WHERE id <> 3"
        )
        .await,
        3
    );
    assert_eq!(
        rows(&session, "SELECT * FROM t ORDER BY id").await,
        ["1 A 3.0", "2 B ", "3  2.5", "4 D 7.0"]
    );
    assert_eq!(changed(&session, "DELETE FROM t WHERE x > 2.9").await, 2);
    assert_eq!(
        rows(&session, "SELECT id FROM t ORDER BY id").await,
        ["2", "3"]
    );
    assert_eq!(
        rows(
            &session,
            "SELECT count(*), count(x), min(id), max(x) FROM t"
        )
        .await,
        ["2 1 2 2.5"]
    );
    // A key that is gone is free again; one that is there is not.
    run(&session, "INSERT INTO t VALUES (1, 'new', 0)").await;
    let message = error(&session, "UPDATE t SET id = 2 WHERE id = 3").await;
    assert!(
        message.contains("primary key") && message.contains("(2)"),
        "{message}"
    );
    // Keys may change places.
    assert_eq!(changed(&session, "UPDATE t SET id = 4 - id").await, 3);
    assert_eq!(
        rows(&session, "SELECT id, name FROM t ORDER BY id").await,
        ["1 ", "2 B", "3 new"]
    );
    assert_eq!(
        rows(&session, "SELECT name FROM lookup('t', [3, 4])").await,
        ["new"]
    );
    assert_eq!(changed(&session, "DELETE FROM t WHERE id = 77").await, 0);
    assert_eq!(changed(&session, "DELETE FROM t").await, 3);
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["0"]);
    run(
        &session,
        "INSERT INTO t SELECT value, 'x', 0 FROM generate_series(1, 9); TRUNCATE TABLE t",
    )
    .await;
    assert_eq!(
        rows(&session, "SELECT count(*), max(id) FROM t").await,
        ["0 "]
    );
}

#[tokio::test]
async fn rows_with_known_keys_are_updated_instead() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT UNIQUE, n BIGINT); \
         INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20)",
    )
    .await;
    let add = "INSERT INTO t VALUES (2, 'x', 1), (3, 'c', 2) \
               ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n";
    assert_eq!(changed(&session, add).await, 2);
    assert_eq!(changed(&session, add).await, 2);
    let all = "SELECT * FROM t ORDER BY id";
    assert_eq!(rows(&session, all).await, ["1 a 10", "2 b 22", "3 c 4"]);
    let new = "INSERT INTO t (id, n) VALUES (3, 7), (4, 8) ON CONFLICT DO NOTHING";
    assert_eq!(changed(&session, new).await, 1);
    assert_eq!(
        rows(&session, all).await,
        ["1 a 10", "2 b 22", "3 c 4", "4  8"]
    );
    let by_name = "INSERT INTO t SELECT id + 100, name, n FROM t WHERE name IN ('a', 'b') \
                   ON CONFLICT (name) DO UPDATE SET n = 0, id = excluded.id WHERE t.n > 20";
    assert_eq!(changed(&session, by_name).await, 1);
    assert_eq!(
        rows(&session, all).await,
        ["1 a 10", "3 c 4", "4  8", "102 b 0"]
    );
    for (sql, part) in [
        (
            "INSERT INTO t VALUES (9, 'y', 1), (9, 'z', 2) ON CONFLICT (id) DO UPDATE SET n = 1",
            "primary key",
        ),
        (
            "INSERT INTO t VALUES (1, 'y', 1), (1, 'z', 2) ON CONFLICT (id) DO UPDATE SET n = 1",
            "changed twice",
        ),
        (
            "INSERT INTO t VALUES (1, 'c', 1) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
            "unique index",
        ),
        (
            "INSERT INTO t VALUES (1, 'c', 1) ON CONFLICT (n) DO NOTHING",
            "UNIQUE",
        ),
        (
            "INSERT INTO t VALUES (1, 'c', 1) ON CONFLICT (id) DO UPDATE SET n = 1.5",
            "1.5",
        ),
        (
            "INSERT INTO t VALUES (1, 'c', 1) ON CONFLICT (id) DO UPDATE SET m = 1",
            "'m'",
        ),
    ] {
        let message = error(&session, sql).await;
        assert!(message.contains(part), "{sql}: {message}");
    }
    assert_eq!(
        rows(&session, all).await,
        ["1 a 10", "3 c 4", "4  8", "102 b 0"]
    );
    let plan = rows(&session, "EXPLAIN UPDATE t SET n = 1 WHERE id = 3")
        .await
        .join("\n");
    assert!(
        plan.contains("FlashScanExec") && plan.contains("t_pkey"),
        "{plan}"
    );
    let message = error(&session, "EXPLAIN ANALYZE DELETE FROM t").await;
    assert!(message.contains("EXPLAIN ANALYZE"), "{message}");
}

#[tokio::test]
async fn changes_take_other_tables_subqueries_and_aliases() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t AS SELECT value AS id, value * 10 AS v FROM generate_series(1, 5); \
         CREATE TABLE u AS SELECT value AS id, value * 100 AS w FROM generate_series(2, 3)",
    )
    .await;
    assert_eq!(
        changed(&session, "UPDATE t SET v = u.w FROM u WHERE t.id = u.id").await,
        2
    );
    assert_eq!(
        changed(
            &session,
            "UPDATE t AS x SET v = x.v + 1 WHERE x.id IN (SELECT id FROM t WHERE id < 3)"
        )
        .await,
        2
    );
    assert_eq!(
        changed(
            &session,
            "DELETE FROM t WHERE id > (SELECT max(id) FROM u) + 1"
        )
        .await,
        1
    );
    assert_eq!(
        rows(&session, "SELECT * FROM t ORDER BY id").await,
        ["1 11", "2 201", "3 300", "4 40"]
    );
    run(
        &session,
        "CREATE TABLE gone AS VALUES (3, 'x'), (9, 'y'); \
         DELETE FROM t USING gone, u WHERE t.id = gone.column1 AND u.id = t.id AND gone.column2 = 'x'",
    )
    .await;
    assert_eq!(
        rows(&session, "SELECT id FROM t ORDER BY id").await,
        ["1", "2", "4"]
    );
    run(
        &session,
        "INSERT INTO u VALUES (2, 7); INSERT INTO t VALUES (3, 300)",
    )
    .await;
    let message = error(&session, "UPDATE t SET v = u.w FROM u WHERE t.id = u.id").await;
    assert!(message.contains("changed twice"), "{message}");
    // Nothing of it was stored.
    assert_eq!(rows(&session, "SELECT sum(v) FROM t").await, ["552"]);
    for (sql, part) in [
        ("UPDATE t SET v = 1.5", "1.5"),
        ("UPDATE t SET nothing = 1", "nothing"),
        ("DELETE FROM nothing", "nothing"),
    ] {
        let message = error(&session, sql).await;
        assert!(message.contains(part), "{sql}: {message}");
    }
    assert_eq!(
        changed(
            &session,
            "UPDATE t SET V = CAST(1.5 AS BIGINT) WHERE id = 1"
        )
        .await,
        1
    );
    run(&session, "PREPARE up AS UPDATE t SET v = $1 WHERE id = $2").await;
    run(&session, "EXECUTE up(77, 4)").await;
    assert_eq!(
        rows(&session, "SELECT v FROM t WHERE id IN (1, 4) ORDER BY id").await,
        ["2", "77"]
    );
}

/// Random changes against a map, in all modes, with indexes of all kinds, after reopening too.
#[tokio::test]
async fn random_changes_leave_what_a_map_has() {
    let mut rng = random();
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        path: Some(folder.path().join("db")),
        ..EngineOptions::default()
    };
    let mut model: BTreeMap<i64, (i64, Option<i64>)> = BTreeMap::new();
    // Above every g: no vertex is both.
    let mut next = 100;
    for opening in 0..3 {
        let session = Engine::open(options.clone()).unwrap().session().unwrap();
        if opening == 0 {
            run(
                &session,
                "CREATE TABLE t (id BIGINT PRIMARY KEY, g BIGINT, v BIGINT, s TEXT); \
                 CREATE INDEX by_g ON t USING hash (g); \
                 CREATE INDEX by_s ON t USING ngram (s); \
                 CREATE INDEX edges ON t USING adjacency (id, g)",
            )
            .await;
        }
        for _ in 0..25 {
            let (low, high) = {
                let a = rng.random_range(100..=next);
                (a, a + rng.random_range(0..60))
            };
            let g = rng.random_range(0..5);
            match rng.random_range(0..6) {
                0 | 1 => {
                    let count = rng.random_range(1..80);
                    run(&session, &format!(
                        "INSERT INTO t SELECT value, value % 5, nullif(value % 7, 3), 'text ' || (value % 5) FROM generate_series({next}, {})",
                        next + count - 1
                    )).await;
                    for id in next..next + count {
                        model.insert(id, (id % 5, Some(id % 7).filter(|v| *v != 3)));
                    }
                    next += count;
                }
                2 => {
                    let sql = format!("DELETE FROM t WHERE id BETWEEN {low} AND {high}");
                    let before = model.len();
                    model.retain(|id, _| !(low..=high).contains(id));
                    assert_eq!(
                        changed(&session, &sql).await,
                        (before - model.len()) as u64,
                        "{sql}"
                    );
                }
                3 => {
                    let sql = format!("UPDATE t SET v = v + id, s = s || '!' WHERE g = {g}");
                    let hit = model.iter_mut().filter(|(_, (of, _))| *of == g);
                    let hit = hit.map(|(id, (_, v))| *v = v.map(|v| v + id)).count();
                    assert_eq!(changed(&session, &sql).await, hit as u64, "{sql}");
                }
                4 => {
                    let sql = format!(
                        "UPDATE t SET g = {g} WHERE id BETWEEN {low} AND {high} AND v IS NOT NULL"
                    );
                    let hit = model
                        .range_mut(low..=high)
                        .filter(|(_, (_, v))| v.is_some());
                    let hit = hit.map(|(_, (of, _))| *of = g).count();
                    assert_eq!(changed(&session, &sql).await, hit as u64, "{sql}");
                }
                _ => {
                    let sql = format!("DELETE FROM t WHERE v IS NULL AND g = {g}");
                    let before = model.len();
                    model.retain(|_, (of, v)| v.is_some() || *of != g);
                    assert_eq!(
                        changed(&session, &sql).await,
                        (before - model.len()) as u64,
                        "{sql}"
                    );
                }
            }
            let mode = MODES.choose(&mut rng).unwrap();
            run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
            check(&session, &model, g).await;
        }
    }
}

async fn check(session: &Session, model: &BTreeMap<i64, (i64, Option<i64>)>, g: i64) {
    let text = |v: Option<i64>| v.map_or(String::new(), |v| v.to_string());
    let all: Vec<_> = model
        .iter()
        .map(|(id, (g, v))| format!("{id} {g} {}", text(*v)))
        .collect();
    let all: Vec<_> = all.iter().map(|row| row.trim_end().to_owned()).collect();
    let found: Vec<_> = rows(session, "SELECT id, g, v FROM t ORDER BY id").await;
    let found: Vec<_> = found.iter().map(|row| row.trim_end().to_owned()).collect();
    assert_eq!(found, all);
    let of_g: Vec<_> = model.iter().filter(|(_, (of, _))| *of == g).collect();
    let sum: Option<i64> = of_g
        .iter()
        .filter_map(|(_, (_, v))| *v)
        .reduce(|a, b| a + b);
    assert_eq!(
        rows(
            session,
            &format!("SELECT count(*), count(v), sum(v) FROM t WHERE g = {g}")
        )
        .await[0]
            .trim_end(),
        format!(
            "{} {} {}",
            of_g.len(),
            of_g.iter().filter(|(_, (_, v))| v.is_some()).count(),
            text(sum)
        )
        .trim_end()
    );
    let least = model.first_key_value().map(|(id, _)| *id);
    let greatest = model.last_key_value().map(|(id, _)| *id);
    assert_eq!(
        rows(session, "SELECT count(*), min(id), max(id) FROM t").await[0].trim_end(),
        format!("{} {} {}", model.len(), text(least), text(greatest)).trim_end()
    );
    // Edges go from a row's id to its g.
    let mut sources: Vec<_> = of_g.iter().map(|(id, _)| **id).collect();
    sources.sort_unstable();
    let sql = format!("SELECT vertex FROM expand('edges', {g}, 1, direction => 'in')");
    if sources.is_empty() {
        // What has no edge is no vertex.
        let found = match session.sql(&sql).await {
            Ok(frame) => frame.collect().await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match found {
            Ok(batches) => assert!(batches.iter().all(|batch| batch.num_rows() == 0)),
            Err(error) => assert!(error.contains("does not exist"), "{error}"),
        }
        return;
    }
    let found = rows(session, &sql).await;
    let mut found: Vec<i64> = found.iter().map(|id| id.parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, sources);
}

#[tokio::test]
async fn near_rows_are_not_deleted_ones() {
    let session = session();
    run(
        &session,
        "CREATE TABLE v AS SELECT value AS id, arrow_cast([value * 1.0, 0.0], 'FixedSizeList(2, Float32)') AS x FROM generate_series(1, 4000); \
         CREATE INDEX near ON v USING lsh (x); \
         DELETE FROM v WHERE id BETWEEN 990 AND 1200; \
         SET flashmesh.approximate = 'on'",
    )
    .await;
    for sql in [
        "SELECT id FROM nearest('v', 'x', [1000.0, 0.0], 3) ORDER BY id",
        "SELECT id FROM (SELECT id FROM v ORDER BY l2_distance(x, [1000.0, 0.0]) LIMIT 3) ORDER BY id",
    ] {
        assert_eq!(rows(&session, sql).await, ["987", "988", "989"], "{sql}");
    }
}

/// Many sessions add to counters at once: no addition is lost, whichever comes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_at_the_same_time_are_not_lost() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let session = engine.session().unwrap();
    run(
        &session,
        "CREATE TABLE c AS SELECT value AS id, 0 AS n FROM generate_series(1, 4)",
    )
    .await;
    let mut adding = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let session = engine.session().unwrap();
        adding.spawn(async move {
            let mut added = 0;
            for round in 0..10 {
                let sql = format!(
                    "UPDATE c SET n = n + 1 WHERE id = {}",
                    (worker + round) % 4 + 1
                );
                match session.sql(&sql).await {
                    Ok(_) => added += 1,
                    Err(error) => {
                        assert!(error.to_string().contains("run this one again"), "{error}")
                    }
                }
            }
            added
        });
    }
    let added: i64 = adding.join_all().await.into_iter().sum();
    assert!(added > 0);
    assert_eq!(
        rows(&session, "SELECT sum(n), count(*) FROM c").await,
        [format!("{added} 4")]
    );
}

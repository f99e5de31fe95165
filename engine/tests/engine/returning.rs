//! `RETURNING`.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashmesh::{
    Engine, EngineOptions, Error, FunctionGrants, Grant, Principal, RightName, Session,
};
use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::support::{batch, error, random, rows, run, session};

const MODES: [&str; 3] = ["never", "auto", "always"];

/// Rows of a result without an order.
async fn sorted(session: &Session, sql: &str) -> Vec<String> {
    let mut rows = rows(session, sql).await;
    rows.sort();
    rows
}

#[tokio::test]
async fn changes_give_the_rows_that_they_add_or_delete() {
    for mode in MODES {
        let session = session();
        run(
            &session,
            &format!(
                "SET flashmesh.pushdown = '{mode}'; \
                 CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT DEFAULT 'none', cents DECIMAL(8, 2), \
                 at TIMESTAMP(0) DEFAULT TIMESTAMP '2020-01-01 00:00:00')"
            ),
        )
        .await;
        assert_eq!(
            rows(
                &session,
                "INSERT INTO t (id, cents) VALUES (1, 2.5), (2, NULL) RETURNING *"
            )
            .await,
            [
                "1 none 2.50 2020-01-01T00:00:00",
                "2 none  2020-01-01T00:00:00"
            ],
            "{mode}"
        );
        assert_eq!(
            rows(
                &session,
                "INSERT INTO t SELECT id + 10, upper(name), cents, at FROM t WHERE id = 1 \
                 RETURNING id AS key, t.cents * 2 AS twice, name || '!'"
            )
            .await,
            ["11 5.00 NONE!"]
        );
        // The values are those that are stored.
        assert_eq!(
            rows(
                &session,
                "UPDATE t SET cents = id, name = NULL WHERE id < 3 RETURNING id, name, cents"
            )
            .await,
            ["1  1.00", "2  2.00"]
        );
        assert_eq!(
            sorted(
                &session,
                "INSERT INTO t (id, name) VALUES (2, 'x'), (3, 'y') \
                 ON CONFLICT (id) DO UPDATE SET name = excluded.name RETURNING id, name, cents"
            )
            .await,
            ["2 x 2.00", "3 y "]
        );
        assert_eq!(
            rows(
                &session,
                "INSERT INTO t (id) VALUES (3), (4) ON CONFLICT DO NOTHING RETURNING id"
            )
            .await,
            ["4"]
        );
        run(
            &session,
            "CREATE TABLE u AS VALUES (1, 'one'), (4, 'four'), (9, 'nine')",
        )
        .await;
        assert_eq!(
            sorted(
                &session,
                "UPDATE t AS x SET name = u.column2 FROM u WHERE x.id = u.column1 RETURNING x.id, name"
            )
            .await,
            ["1 one", "4 four"]
        );
        assert_eq!(
            sorted(
                &session,
                "DELETE FROM t USING u WHERE t.id = u.column1 RETURNING id, name, cents IS NULL"
            )
            .await,
            ["1 one false", "4 four true"]
        );
        assert_eq!(
            rows(&session, "DELETE FROM t WHERE id > 10 RETURNING *").await,
            ["11 NONE 2.50 2020-01-01T00:00:00"]
        );
        let none = batch(
            &session,
            "DELETE FROM t WHERE id > 10 RETURNING id, id AS again",
        )
        .await;
        assert_eq!((none.num_rows(), none.num_columns()), (0, 2));
        assert_eq!(
            rows(&session, "SELECT id FROM t ORDER BY id").await,
            ["2", "3"]
        );
        // A column may be there twice, and what is no column of the table may be the only one.
        assert_eq!(
            rows(
                &session,
                "DELETE FROM t WHERE id = 2 RETURNING id, id, 7, 7"
            )
            .await,
            ["2 2 7 7"]
        );
        assert_eq!(
            rows(&session, "DELETE FROM t RETURNING 'gone'").await,
            ["gone"]
        );
        assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["0"]);
    }
}

#[tokio::test]
async fn what_can_not_be_returned_changes_nothing() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT NOT NULL); INSERT INTO t VALUES (1, 0); \
         CREATE VIEW v AS SELECT * FROM t",
    )
    .await;
    for (sql, part) in [
        (
            "INSERT INTO t VALUES (2, 2) RETURNING count(*)",
            "aggregates",
        ),
        (
            "INSERT INTO t VALUES (2, 2) RETURNING row_number() OVER ()",
            "windows",
        ),
        (
            "INSERT INTO t VALUES (2, 2) RETURNING (SELECT max(id) FROM t)",
            "subqueries",
        ),
        ("INSERT INTO t VALUES (2, 2) RETURNING nothing", "nothing"),
        ("UPDATE t SET n = 1 RETURNING 1 / (n - 1)", "zero"),
        ("DELETE FROM t RETURNING 1 / n", "zero"),
        ("INSERT INTO t VALUES (1, 1) RETURNING id", "primary key"),
        ("INSERT INTO t VALUES (2, NULL) RETURNING id, n", "NOT NULL"),
        ("DELETE FROM v RETURNING id", "is a view"),
        (
            "EXPLAIN ANALYZE DELETE FROM t RETURNING id",
            "EXPLAIN ANALYZE",
        ),
    ] {
        let message = error(&session, sql).await;
        assert!(message.contains(part), "{sql}: {message}");
    }
    assert_eq!(rows(&session, "SELECT * FROM t").await, ["1 0"]);
    for sql in [
        "EXPLAIN UPDATE t SET n = 2 WHERE id = 1 RETURNING n",
        "EXPLAIN DELETE FROM t USING v WHERE t.id = v.id RETURNING t.id",
        "EXPLAIN INSERT INTO t VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET n = 3 RETURNING id",
    ] {
        let plan = rows(&session, sql).await.join("\n");
        assert!(plan.contains("FlashScanExec"), "{sql}: {plan}");
    }
    assert_eq!(rows(&session, "SELECT * FROM t").await, ["1 0"]);
}

#[tokio::test]
async fn transactions_and_prepared_statements_return_rows() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let (session, other) = (engine.session().unwrap(), engine.session().unwrap());
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT); \
         PREPARE add AS INSERT INTO t VALUES ($1, $2) RETURNING id, n + $2 AS twice; \
         BEGIN",
    )
    .await;
    assert_eq!(rows(&session, "EXECUTE add(1, 10)").await, ["1 20"]);
    assert_eq!(
        rows(&session, "UPDATE t SET n = n + 1 RETURNING n").await,
        ["11"]
    );
    assert!(rows(&other, "SELECT * FROM t").await.is_empty());
    run(&session, "ROLLBACK").await;
    assert!(rows(&session, "SELECT * FROM t").await.is_empty());
    assert_eq!(rows(&session, "EXECUTE add(2, 5)").await, ["2 10"]);
    // The result is there for good, and running it again changes nothing.
    let deleted = session.sql("DELETE FROM t RETURNING *").await.unwrap();
    for _ in 0..2 {
        assert_eq!(deleted.clone().count().await.unwrap(), 1);
    }
    assert!(rows(&other, "SELECT * FROM t").await.is_empty());
}

#[tokio::test]
async fn who_may_not_read_gets_nothing_back() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let owner = engine.session().unwrap();
    run(
        &owner,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT); INSERT INTO t VALUES (1, 1)",
    )
    .await;
    let user = |rights: &[RightName]| {
        let grant = Grant {
            tables: "t".to_owned().try_into().unwrap(),
            rights: rights.to_vec(),
        };
        let user = Principal::user("ada", vec![grant], FunctionGrants::default());
        engine.session_for(Arc::new(user)).unwrap()
    };
    let writer = user(&[RightName::Write]);
    run(&writer, "INSERT INTO t VALUES (2, 2)").await;
    for sql in [
        "INSERT INTO t VALUES (3, 3) RETURNING id",
        "INSERT INTO t VALUES (3, 3) RETURNING 1",
        "DELETE FROM t RETURNING n",
        "EXPLAIN INSERT INTO t VALUES (3, 3) RETURNING id",
    ] {
        let refused = writer.sql(sql).await.err();
        assert!(
            matches!(refused, Some(Error::Denied(_))),
            "{sql}: {refused:?}"
        );
    }
    let reader = user(&[RightName::Read]);
    let refused = reader.sql("DELETE FROM t RETURNING n").await.err();
    assert!(matches!(refused, Some(Error::Denied(_))), "{refused:?}");
    assert_eq!(rows(&owner, "SELECT count(*) FROM t").await, ["2"]);
    let both = user(&[RightName::Read, RightName::Write]);
    assert_eq!(sorted(&both, "DELETE FROM t RETURNING n").await, ["1", "2"]);
}

/// Sessions draw numbers from one counter: whichever has to try again, each number is given once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_tried_again_returns_its_rows_once() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let session = engine.session().unwrap();
    run(&session, "CREATE TABLE c AS SELECT 0 AS n").await;
    let mut drawing = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let session = engine.session().unwrap();
        drawing.spawn(async move {
            let mut drawn = Vec::new();
            for _ in 0..10 {
                match session.sql("UPDATE c SET n = n + 1 RETURNING n").await {
                    Ok(frame) => {
                        let batches = frame.collect().await.unwrap();
                        let text = arrow::util::pretty::pretty_format_batches(&batches).unwrap();
                        let text = text.to_string();
                        let numbers = text
                            .lines()
                            .filter_map(|line| line.trim_matches(['|', ' ']).parse::<u64>().ok());
                        let numbers: Vec<_> = numbers.collect();
                        assert_eq!(numbers.len(), 1, "{text}");
                        drawn.extend(numbers);
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("run this one again"), "{error}");
                    }
                }
            }
            drawn
        });
    }
    let mut drawn = drawing.join_all().await.concat();
    drawn.sort_unstable();
    assert!(!drawn.is_empty());
    assert_eq!(drawn, (1..=drawn.len() as u64).collect::<Vec<_>>());
    assert_eq!(
        rows(&session, "SELECT n FROM c").await,
        [drawn.len().to_string()]
    );
}

/// Random changes return what a map says, in all modes, of some rows and of several segments.
#[tokio::test]
async fn random_changes_return_what_a_map_has() {
    let mut rng = random();
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT, s TEXT)",
    )
    .await;
    let mut model: BTreeMap<i64, Option<i64>> = BTreeMap::new();
    let text = |(id, v): (&i64, &Option<i64>)| {
        let v = v.map_or(String::new(), |v| v.to_string());
        format!("{id} {v} text {}", id % 3)
    };
    for _ in 0..25 {
        let mode = MODES.choose(&mut rng).unwrap();
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        let low = rng.random_range(0..20_000);
        let most = *[3, 500, 12_000].choose(&mut rng).unwrap();
        let high = low + rng.random_range(0..most);
        let range = low..=high;
        let (sql, mut expected): (String, Vec<String>) = match rng.random_range(0..4) {
            0 | 1 => {
                let v = |id: i64| Some(id % 11).filter(|v| *v != 4);
                let new: Vec<i64> = range.filter(|id| !model.contains_key(id)).collect();
                model.extend(new.iter().map(|id| (*id, v(*id))));
                let rows = new.iter().map(|id| text((id, &v(*id))));
                let sql = format!(
                    "INSERT INTO t SELECT value, nullif(value % 11, 4), 'text ' || (value % 3) \
                     FROM generate_series({low}, {high}) ON CONFLICT (id) DO NOTHING"
                );
                (sql, rows.collect())
            }
            2 => {
                let hit = model.range_mut(range).filter(|(id, _)| *id % 2 == 0);
                let rows = hit.map(|(id, v)| {
                    *v = v.map(|v| v + 1);
                    text((id, v))
                });
                let rows = rows.collect();
                let sql = format!(
                    "UPDATE t SET v = v + 1 WHERE id BETWEEN {low} AND {high} AND id % 2 = 0"
                );
                (sql, rows)
            }
            _ => {
                let gone = model.range(range).filter(|(_, v)| v.is_none_or(|v| v > 5));
                let gone: Vec<_> = gone.map(|(id, v)| (*id, *v)).collect();
                for (id, _) in &gone {
                    model.remove(id);
                }
                let sql = format!(
                    "DELETE FROM t WHERE id BETWEEN {low} AND {high} AND (v > 5 OR v IS NULL)"
                );
                (sql, gone.iter().map(|(id, v)| text((id, v))).collect())
            }
        };
        expected.sort();
        let found = sorted(&session, &format!("{sql} RETURNING *")).await;
        assert_eq!(found, expected, "{sql}");
        let all = sorted(&session, "SELECT * FROM t").await;
        let mut expected: Vec<_> = model.iter().map(text).collect();
        expected.sort();
        assert_eq!(all, expected, "{sql}");
    }
}

//! Transactions and VACUUM.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use flashmesh::{Engine, EngineOptions, Session};
use flashmesh_storage::StorageError;
use futures::StreamExt;
use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::support::{error, random, rows, run, session};

const MODES: [&str; 3] = ["never", "auto", "always"];

fn sessions<const N: usize>() -> (Arc<Engine>, [Session; N]) {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let sessions = std::array::from_fn(|_| engine.session().unwrap());
    (engine, sessions)
}

#[tokio::test]
async fn a_transaction_is_seen_whole_or_not_at_all() {
    let (_engine, [one, other]) = sessions();
    run(
        &one,
        "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT); \
         CREATE TABLE log (id BIGINT, note TEXT); \
         CREATE INDEX log_id ON log USING hash (id); \
         INSERT INTO account VALUES (1, 100), (2, 50)",
    )
    .await;
    run(
        &one,
        "BEGIN; UPDATE account SET balance = balance - 30 WHERE id = 1; \
         UPDATE account SET balance = balance + 30 WHERE id = 2; \
         INSERT INTO log VALUES (1, 'paid'); INSERT INTO account VALUES (3, 7); \
         DELETE FROM account WHERE id = 3; INSERT INTO account VALUES (3, 8)",
    )
    .await;
    let balances = "SELECT * FROM account ORDER BY id";
    for mode in MODES {
        run(&one, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        assert_eq!(rows(&one, balances).await, ["1 70", "2 80", "3 8"]);
        assert_eq!(
            rows(&one, "SELECT balance FROM lookup('account', [3])").await,
            ["8"]
        );
        assert_eq!(
            rows(&one, "SELECT note FROM log WHERE id = 1").await,
            ["paid"]
        );
    }
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1, 3, 9]));
    let got = |session: &Session| -> usize {
        let batches = session.get("account", &keys).unwrap();
        batches.iter().map(RecordBatch::num_rows).sum()
    };
    assert_eq!((got(&one), got(&other)), (2, 1));
    assert_eq!(rows(&other, balances).await, ["1 100", "2 50"]);
    assert_eq!(rows(&other, "SELECT count(*) FROM log").await, ["0"]);
    run(&one, "COMMIT").await;
    assert_eq!(rows(&other, balances).await, ["1 70", "2 80", "3 8"]);
    assert_eq!(rows(&other, "SELECT note FROM log").await, ["paid"]);

    run(&one, "BEGIN; DELETE FROM account; TRUNCATE TABLE log").await;
    assert_eq!(rows(&one, "SELECT count(*) FROM account").await, ["0"]);
    run(&one, "ROLLBACK").await;
    assert_eq!(rows(&one, "SELECT count(*) FROM account").await, ["3"]);
    assert_eq!(rows(&one, "SELECT count(*) FROM log").await, ["1"]);
}

#[tokio::test]
async fn a_transaction_sees_the_version_at_which_it_began() {
    let (_engine, [one, other]) = sessions();
    run(
        &one,
        "CREATE TABLE t (id BIGINT PRIMARY KEY); CREATE TABLE u (id BIGINT); INSERT INTO t VALUES (1)",
    )
    .await;
    run(&one, "BEGIN").await;
    run(
        &other,
        "INSERT INTO t VALUES (2); INSERT INTO u VALUES (1); DROP TABLE u; DELETE FROM t WHERE id = 1",
    )
    .await;
    assert_eq!(rows(&one, "SELECT id FROM t").await, ["1"]);
    assert_eq!(rows(&one, "SELECT count(*) FROM u").await, ["0"]);
    // What others have added since is not seen, and stays.
    run(&one, "INSERT INTO t VALUES (3); COMMIT").await;
    assert_eq!(rows(&one, "SELECT id FROM t ORDER BY id").await, ["2", "3"]);
}

#[tokio::test]
async fn of_two_that_change_a_row_the_second_is_refused() {
    let (_engine, [one, other]) = sessions();
    run(
        &one,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT); INSERT INTO t VALUES (1, 0), (2, 0)",
    )
    .await;
    for (mine, theirs, part) in [
        (
            "UPDATE t SET n = 1 WHERE id = 1",
            "UPDATE t SET n = 2 WHERE id = 1",
            "changed row (id) = (1)",
        ),
        (
            "DELETE FROM t WHERE id = 1",
            "UPDATE t SET n = 3 WHERE id = 1",
            "changed row (id) = (1)",
        ),
        (
            "UPDATE t SET n = 1 WHERE id = 1",
            "UPDATE t SET n = 5 WHERE id = 1; VACUUM t",
            "changed row (id) = (1)",
        ),
        (
            "INSERT INTO t VALUES (9, 1)",
            "INSERT INTO t VALUES (9, 2)",
            "primary key",
        ),
        (
            "TRUNCATE TABLE t",
            "INSERT INTO t VALUES (10, 2)",
            "changed",
        ),
        (
            "UPDATE t SET n = 1 WHERE id = 2",
            "INSERT OVERWRITE t SELECT * FROM t",
            "changed",
        ),
    ] {
        run(&one, &format!("BEGIN; {mine}")).await;
        run(&other, theirs).await;
        let message = error(&one, "COMMIT").await;
        assert!(message.contains(part), "{mine}: {message}");
        // It has ended, and nothing of it is there.
        assert!(error(&one, "COMMIT").await.contains("no transaction"));
        assert_eq!(
            rows(&one, "SELECT * FROM t ORDER BY id").await,
            rows(&other, "SELECT * FROM t ORDER BY id").await
        );
    }
    // Other rows of the same table are no conflict.
    run(&one, "BEGIN; UPDATE t SET n = 100 WHERE id = 1").await;
    run(&other, "UPDATE t SET n = 200 WHERE id = 2").await;
    run(&one, "COMMIT").await;
    assert_eq!(
        rows(&one, "SELECT n FROM t WHERE id < 3 ORDER BY id").await,
        ["100", "200"]
    );
}

/// Write skew: each of two transactions reads what the other one writes.
#[tokio::test]
async fn serialisable_transactions_read_what_nobody_changes() {
    for (level, refused) in [("REPEATABLE READ", false), ("SERIALIZABLE", true)] {
        let (_engine, [one, other]) = sessions();
        run(
            &one,
            "CREATE TABLE duty (doctor TEXT, here BOOLEAN); CREATE TABLE note (n BIGINT); \
             INSERT INTO duty VALUES ('a', true), ('b', true)",
        )
        .await;
        for (session, doctor) in [(&one, "a"), (&other, "b")] {
            run(session, &format!("BEGIN ISOLATION LEVEL {level}")).await;
            let here = rows(session, "SELECT count(*) FROM duty WHERE here").await;
            assert_eq!(here, ["2"]);
            run(
                session,
                &format!("UPDATE duty SET here = false WHERE doctor = '{doctor}'"),
            )
            .await;
        }
        run(&one, "COMMIT").await;
        match refused {
            true => {
                let message = error(&other, "COMMIT").await;
                assert!(message.contains("changed"), "{message}");
            }
            false => run(&other, "COMMIT").await,
        }
        let here = rows(&one, "SELECT count(*) FROM duty WHERE here").await;
        assert_eq!(here, [if refused { "1" } else { "0" }]);
        // What it has not read may change.
        run(
            &one,
            &format!("BEGIN ISOLATION LEVEL {level}; INSERT INTO note SELECT count(*) FROM duty"),
        )
        .await;
        run(
            &other,
            "CREATE TABLE unread (n BIGINT); INSERT INTO unread VALUES (1)",
        )
        .await;
        run(&one, "COMMIT").await;
    }
}

#[tokio::test]
async fn savepoints_undo_a_part() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY); BEGIN; INSERT INTO t VALUES (1); SAVEPOINT a; \
         INSERT INTO t VALUES (2); SAVEPOINT b; DELETE FROM t; INSERT INTO t VALUES (3)",
    )
    .await;
    let ids = "SELECT id FROM t ORDER BY id";
    assert_eq!(rows(&session, ids).await, ["3"]);
    run(&session, "ROLLBACK TO SAVEPOINT b").await;
    assert_eq!(rows(&session, ids).await, ["1", "2"]);
    // A savepoint stays until what was before it is undone.
    run(
        &session,
        "INSERT INTO t VALUES (4); ROLLBACK TO b; RELEASE SAVEPOINT b",
    )
    .await;
    assert!(error(&session, "ROLLBACK TO b").await.contains("savepoint"));
    run(&session, "ROLLBACK TO a; INSERT INTO t VALUES (2); COMMIT").await;
    assert_eq!(rows(&session, ids).await, ["1", "2"]);
}

/// What reads a transaction's rows goes on to its end, whatever becomes of the transaction.
#[tokio::test]
async fn streams_outlive_their_transaction() {
    let (engine, [one, other]) = sessions();
    run(
        &one,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); INSERT INTO t VALUES (-1, 'x')",
    )
    .await;
    let pages = || engine.database().store().usage().pages();
    let before = pages();
    let insert = "INSERT INTO t SELECT value, 'name ' || value FROM generate_series(1, 200000)";
    for end in ["ROLLBACK", "ROLLBACK TO s", "TRUNCATE TABLE t", "COMMIT"] {
        run(
            &one,
            "BEGIN; UPDATE t SET name = 'y' WHERE id = -1; SAVEPOINT s",
        )
        .await;
        run(&one, insert).await;
        let frame = one.sql("SELECT id, name FROM t").await.unwrap();
        let mut stream = frame.execute_stream().await.unwrap();
        let mut count = stream.next().await.unwrap().unwrap().num_rows();
        if end == "COMMIT" {
            run(&other, "UPDATE t SET name = 'z' WHERE id = -1").await;
            assert!(error(&one, end).await.contains("changed"));
        } else {
            run(&one, end).await;
        }
        // What is free is written by others.
        run(
            &other,
            "CREATE TABLE junk AS SELECT value AS a, 'junk ' || value AS b FROM generate_series(1, 200000); DROP TABLE junk",
        )
        .await;
        while let Some(batch) = stream.next().await {
            count += batch.unwrap().num_rows();
        }
        assert_eq!(count, 200_001, "{end}");
        drop(stream);
        if one.is_in_transaction() {
            run(&one, "ROLLBACK").await;
        }
    }
    // And nothing of it takes space.
    run(&one, "VACUUM t").await;
    assert!(pages() <= before + 64, "{before} pages, now {}", pages());
}

#[tokio::test]
async fn what_is_no_part_of_a_transaction_says_so() {
    let session = session();
    run(&session, "CREATE TABLE t (id BIGINT PRIMARY KEY); BEGIN").await;
    let message = error(&session, "VACUUM t").await;
    assert!(message.contains("part of a transaction"), "{message}");
    assert!(error(&session, "BEGIN").await.contains("has begun already"));
    // A statement that fails leaves the others of its transaction.
    run(&session, "INSERT INTO t VALUES (1)").await;
    assert!(
        error(&session, "INSERT INTO t VALUES (2), (1)")
            .await
            .contains("primary key")
    );
    assert_eq!(rows(&session, "SELECT id FROM t").await, ["1"]);
    run(&session, "COMMIT").await;
    for sql in ["COMMIT", "ROLLBACK", "SAVEPOINT s"] {
        assert!(error(&session, sql).await.contains("no transaction"));
    }
    run(&session, "BEGIN READ ONLY").await;
    assert!(error(&session, "DELETE FROM t").await.contains("READ ONLY"));
    run(&session, "ROLLBACK").await;
    assert_eq!(rows(&session, "SELECT id FROM t").await, ["1"]);
}

/// Many transfers at once: money is neither made nor lost, and no reader sees any underway.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_transfers_keep_the_sum() {
    const ACCOUNTS: i64 = 40;
    const TRANSFERS: usize = 25;
    let (engine, [first]) = sessions();
    run(
        &first,
        &format!(
            "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT); \
             INSERT INTO account SELECT value, 100 FROM generate_series(1, {ACCOUNTS})"
        ),
    )
    .await;
    let sum = "SELECT sum(balance), count(*) FROM account";
    let expected = format!("{} {ACCOUNTS}", ACCOUNTS * 100);
    let clients = (0..4).map(|client| {
        let session = engine.session().unwrap();
        let expected = expected.clone();
        tokio::spawn(async move {
            let mut rng = random();
            let mut refused = 0;
            for _ in 0..TRANSFERS {
                let (from, to) = (
                    rng.random_range(1..=ACCOUNTS),
                    rng.random_range(1..=ACCOUNTS),
                );
                let amount = rng.random_range(1..30);
                run(&session, "BEGIN").await;
                run(
                    &session,
                    &format!("UPDATE account SET balance = balance - {amount} WHERE id = {from}"),
                )
                .await;
                run(
                    &session,
                    &format!("UPDATE account SET balance = balance + {amount} WHERE id = {to}"),
                )
                .await;
                assert_eq!(rows(&session, sum).await[0], expected);
                match session.sql("COMMIT").await {
                    Ok(_) => {}
                    Err(error) => {
                        let conflict =
                            matches!(error.storage(), Some(StorageError::Conflict { .. }));
                        assert!(conflict, "client {client}: {error}");
                        refused += 1;
                    }
                }
                assert_eq!(rows(&session, sum).await[0], expected);
            }
            refused
        })
    });
    let mut refused = 0;
    for client in clients.collect::<Vec<_>>() {
        refused += client.await.unwrap();
    }
    assert!(refused < 4 * TRANSFERS, "none was committed");
    run(&first, "VACUUM account").await;
    assert_eq!(rows(&first, sum).await, [expected]);
}

/// Random transactions of one session against a map.
#[tokio::test]
async fn random_transactions_do_what_a_map_does() {
    let mut rng = random();
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT, name TEXT); \
         CREATE INDEX t_n ON t USING hash (n); CREATE INDEX t_name ON t USING ngram (name)",
    )
    .await;
    let mut committed: BTreeMap<i64, i64> = BTreeMap::new();
    for _ in 0..40 {
        run(&session, "BEGIN").await;
        let mut map = committed.clone();
        let mut saved: Option<BTreeMap<i64, i64>> = None;
        for _ in 0..rng.random_range(1..7) {
            let (id, n) = (rng.random_range(0..60), rng.random_range(0..9));
            match rng.random_range(0..7) {
                0 | 1 => {
                    run(
                        &session,
                        &format!(
                            "INSERT INTO t VALUES ({id}, {n}, 'name {n}') \
                             ON CONFLICT (id) DO UPDATE SET n = {n}, name = 'name {n}'"
                        ),
                    )
                    .await;
                    map.insert(id, n);
                }
                2 => {
                    run(&session, &format!("DELETE FROM t WHERE n = {n}")).await;
                    map.retain(|_, other| *other != n);
                }
                3 => {
                    run(
                        &session,
                        &format!(
                            "UPDATE t SET n = n + 1, name = 'name ' || (n + 1) WHERE id < {id}"
                        ),
                    )
                    .await;
                    map.iter_mut()
                        .filter(|(k, _)| **k < id)
                        .for_each(|(_, n)| *n += 1);
                }
                4 => {
                    run(&session, "SAVEPOINT s").await;
                    saved = Some(map.clone());
                }
                5 if saved.is_some() => {
                    run(&session, "ROLLBACK TO s").await;
                    map = saved.clone().unwrap();
                }
                _ if rng.random_bool(0.1) => {
                    run(&session, "TRUNCATE TABLE t").await;
                    map.clear();
                }
                _ => {}
            }
            check(&session, &map, &mut rng).await;
        }
        if rng.random_bool(0.7) {
            run(&session, "COMMIT").await;
            committed = map;
        } else {
            run(&session, "ROLLBACK").await;
        }
        if rng.random_bool(0.2) {
            run(&session, "VACUUM").await;
        }
        check(&session, &committed, &mut rng).await;
    }
}

async fn check(session: &Session, map: &BTreeMap<i64, i64>, rng: &mut impl rand::Rng) {
    let mode = MODES.choose(rng).unwrap();
    run(session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
    let all: Vec<_> = map
        .iter()
        .map(|(id, n)| format!("{id} {n} name {n}"))
        .collect();
    assert_eq!(rows(session, "SELECT * FROM t ORDER BY id").await, all);
    let n = rng.random_range(0..9);
    let of_n = map.values().filter(|other| **other == n).count();
    for filter in [format!("n = {n}"), format!("name LIKE '%me {n}'")] {
        assert_eq!(
            rows(session, &format!("SELECT count(*) FROM t WHERE {filter}")).await,
            [of_n.to_string()]
        );
    }
    let id = rng.random_range(0..60);
    let found: Vec<_> = map.get(&id).map(i64::to_string).into_iter().collect();
    assert_eq!(
        rows(session, &format!("SELECT n FROM lookup('t', [{id}])")).await,
        found
    );
}

/// A script brings one row a statement. They do not stay as many segments, in the transaction and after it;
/// what reads them meanwhile goes on.
#[tokio::test]
async fn rows_that_come_one_by_one_become_few_segments() {
    let mut random = random();
    let (_engine, [one, other]) = sessions();
    run(
        &one,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); CREATE TABLE u (t BIGINT, n BIGINT); \
         CREATE INDEX u_t ON u USING hash (t); INSERT INTO t VALUES (-1, 'before'); BEGIN",
    )
    .await;
    let segments = |session: &Session, table: &str| {
        let snapshot = session.table_snapshot(table).unwrap();
        snapshot.segments.len()
    };
    let mut model = BTreeMap::from([(-1, "before".to_string())]);
    let mut children = 0;
    let mut streams = Vec::new();
    let mut saved = None;
    for id in 0..600 {
        run(&one, &format!("INSERT INTO t VALUES ({id}, 'n{id}')")).await;
        model.insert(id, format!("n{id}"));
        for _ in 0..random.random_range(0..3) {
            run(&one, &format!("INSERT INTO u VALUES ({id}, {children})")).await;
            children += 1;
        }
        match random.random_range(0..120) {
            0 => {
                run(&one, "SAVEPOINT s").await;
                saved = Some((model.clone(), children));
            }
            1 => {
                if let Some((rows, count)) = saved.clone() {
                    run(&one, "ROLLBACK TO s").await;
                    (model, children) = (rows, count);
                }
            }
            2 => {
                run(&one, &format!("DELETE FROM t WHERE id = {}", id / 2)).await;
                model.remove(&(id / 2));
            }
            3 => {
                run(
                    &one,
                    &format!("UPDATE t SET name = 'new' WHERE id >= {}", id - 3),
                )
                .await;
                let changed = model.range_mut(id - 3..);
                changed.for_each(|(_, name)| *name = "new".into());
            }
            4 => {
                let frame = one.sql("SELECT id FROM t").await.unwrap();
                let stream = frame.execute_stream().await.unwrap();
                streams.push((stream, model.len()));
            }
            _ => {}
        }
        if random.random_range(0..20) == 0 {
            let known = model.keys().next_back().copied().unwrap();
            let insert = format!("INSERT INTO t VALUES ({known}, 'twice')");
            let refused = error(&one, &insert).await;
            assert!(refused.contains("two rows have the key"), "{refused}");
        }
    }
    let expected: Vec<_> = model
        .iter()
        .map(|(id, name)| format!("{id} {name}"))
        .collect();
    for mode in MODES {
        run(&one, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        assert_eq!(
            rows(&one, "SELECT * FROM t ORDER BY id").await,
            expected,
            "{mode}"
        );
        let joined = "SELECT count(*), count(t.id) FROM u LEFT JOIN t ON t.id = u.t";
        let counts = rows(&one, joined).await;
        assert!(
            counts[0].starts_with(&format!("{children} ")),
            "{mode}: {counts:?}"
        );
    }
    // As many as there are powers of two, for each part between what is no INSERT.
    let (of_t, of_u) = (segments(&one, "t"), segments(&one, "u"));
    assert!(of_t < 150 && of_u < 150, "{of_t} {of_u}");
    assert_eq!(rows(&other, "SELECT count(*) FROM t").await, ["1"]);
    run(&one, "COMMIT").await;
    for (mut stream, count) in streams {
        let mut read = 0;
        while let Some(batch) = stream.next().await {
            read += batch.unwrap().num_rows();
        }
        assert_eq!(read, count);
    }
    assert_eq!(rows(&other, "SELECT * FROM t ORDER BY id").await, expected);
    assert!(segments(&other, "t") <= of_t + 1);
    let key = model.keys().next_back().copied().unwrap();
    let found = rows(&other, &format!("SELECT id FROM lookup('t', [{key}])")).await;
    assert_eq!(found, [key.to_string()]);
    let refused = error(&other, &format!("INSERT INTO t VALUES ({key}, 'twice')")).await;
    assert!(refused.contains("two rows have the key"), "{refused}");

    // With nothing between them there are as many as a number has digits.
    run(&one, "BEGIN").await;
    for id in 1_000..1_500 {
        run(&one, &format!("INSERT INTO t VALUES ({id}, '')")).await;
        run(&one, &format!("INSERT INTO u VALUES ({id}, 0)")).await;
    }
    assert!(segments(&one, "t") - segments(&other, "t") <= 9);
    run(&one, "ROLLBACK").await;
    assert_eq!(rows(&one, "SELECT * FROM t ORDER BY id").await, expected);
}

//! What a user may do: by SQL, by table functions, by keys.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use flashmesh::{
    Asker, Engine, EngineOptions, Error, FunctionGrants, Grant, Principal, QueryKind, RightName,
    Session,
};
use flashmesh_storage::StorageError;
use tokio_util::sync::CancellationToken;

fn engine() -> Arc<Engine> {
    Engine::open(EngineOptions::default()).unwrap()
}

async fn owner(engine: &Arc<Engine>) -> Session {
    let owner = engine.session().unwrap();
    owner
        .sql(
            "CREATE TABLE open (k BIGINT PRIMARY KEY, v TEXT);
             INSERT INTO open VALUES (1, 'a'), (2, 'b');
             CREATE TABLE secret (k BIGINT PRIMARY KEY, to_k BIGINT);
             INSERT INTO secret VALUES (1, 2), (2, 3);
             CREATE INDEX secret_graph ON secret USING adjacency (k, to_k)",
        )
        .await
        .unwrap();
    owner
}

fn user(engine: &Arc<Engine>, grants: &[(&str, &[RightName])]) -> Session {
    let grants = grants.iter().map(|(tables, rights)| Grant {
        tables: tables.to_string().try_into().unwrap(),
        rights: rights.to_vec(),
    });
    let principal = Principal::user("ada", grants.collect(), FunctionGrants::default());
    engine.session_for(Arc::new(principal)).unwrap()
}

async fn run(session: &Session, sql: &str) -> Result<usize, Error> {
    Ok(session.sql(sql).await?.count().await?)
}

fn is_denial(error: &Error) -> bool {
    let denied = matches!(error, Error::Denied(_))
        || matches!(error.storage(), Some(StorageError::Denied(_)));
    denied || error.to_string().contains("may not")
}

/// A denial, or what is said of names that are not there.
fn is_refusal(error: &Error) -> bool {
    let message = error.to_string();
    is_denial(error) || message.contains("not found") || message.contains("does not exist")
}

#[tokio::test]
async fn a_reader_reads_what_is_granted_and_nothing_else() {
    let engine = engine();
    let _owner = owner(&engine).await;
    let ada = user(&engine, &[("open", &[RightName::Read])]);
    for (sql, rows) in [
        ("SELECT * FROM open", 2),
        ("SELECT * FROM open WHERE k = 2", 1),
        ("SELECT * FROM lookup('open', 1)", 1),
        (
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
            1,
        ),
    ] {
        assert_eq!(run(&ada, sql).await.unwrap(), rows, "{sql}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("f.csv");
    std::fs::write(&file, "a\n1\n").unwrap();
    let file = file.display();
    for sql in [
        "SELECT * FROM secret",
        "SELECT count(*) FROM secret",
        "SELECT * FROM open JOIN secret USING (k)",
        "SELECT * FROM open WHERE k IN (SELECT k FROM secret)",
        "SELECT * FROM lookup('secret', 1)",
        "SELECT * FROM bfs('secret_graph', 1)",
        "SELECT * FROM expand('secret_graph', (SELECT k FROM open), 1)",
        "EXPLAIN ANALYZE SELECT * FROM secret",
        "INSERT INTO open VALUES (3, 'c')",
        "INSERT OVERWRITE open VALUES (3, 'c')",
        "CREATE TABLE mine (a INT)",
        "CREATE TABLE mine AS SELECT 1 AS a",
        "CREATE OR REPLACE TABLE open AS SELECT 1 AS a",
        "DROP TABLE open",
        "CREATE INDEX i ON open USING hash (v)",
        "DROP INDEX secret_graph",
        "CREATE SCHEMA s",
        "DROP SCHEMA public CASCADE",
        &format!("COPY open TO '{file}'"),
        &format!("EXPLAIN ANALYZE COPY open TO '{file}'"),
        "CREATE VIEW mine AS SELECT 1 AS a",
        &format!("CREATE EXTERNAL TABLE e STORED AS CSV LOCATION '{file}'"),
        "SET flashmesh.cache_size = '1MB'",
        "RESET datafusion.runtime.memory_limit",
        "SET datafusion.runtime.memory_limit = '100G'",
    ] {
        match run(&ada, sql).await {
            Err(error) => assert!(is_refusal(&error), "{sql}: {error}"),
            Ok(rows) => panic!("{sql} gave {rows} rows"),
        }
    }
    // Nobody can prepare these.
    for sql in [
        format!("COPY open TO '{file}'"),
        "SET flashmesh.cache_size = '1MB'".into(),
    ] {
        assert!(run(&ada, &format!("PREPARE p AS {sql}")).await.is_err());
    }
    // There is no such table for somebody who may not read files.
    let error = run(&ada, &format!("SELECT * FROM '{file}'"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("not found"), "{error}");

    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    assert_eq!(ada.get("open", &keys).unwrap()[0].num_rows(), 1);
    let error = ada.get("secret", &keys).unwrap_err();
    assert!(is_denial(&error), "{error}");
}

#[tokio::test]
async fn a_writer_writes_without_reading() {
    let engine = engine();
    let owner = owner(&engine).await;
    let ada = user(&engine, &[("open", &[RightName::Write])]);
    run(&ada, "INSERT INTO open VALUES (3, 'c')").await.unwrap();
    assert_eq!(run(&owner, "SELECT * FROM open").await.unwrap(), 3);
    for sql in [
        "SELECT * FROM open",
        "INSERT INTO open SELECT k + 10, v FROM open",
        "INSERT INTO secret VALUES (7, 8)",
        "CREATE OR REPLACE TABLE open AS SELECT 1 AS a",
    ] {
        let error = run(&ada, sql).await.unwrap_err();
        assert!(is_refusal(&error), "{sql}: {error}");
    }
}

fn asker(user: &str) -> Asker<'_> {
    let address = "127.0.0.1:1";
    Asker { user, address }
}

#[tokio::test]
async fn queries_of_others_can_be_neither_seen_nor_killed() {
    let engine = engine();
    let ada = user(&engine, &[("*.*", &[RightName::Read])]);
    let queries = engine.queries();
    let theirs = queries.start(
        queries.next_id(),
        QueryKind::Work,
        asker("bob"),
        "SELECT 'bob'",
        None,
        &CancellationToken::new(),
    );
    let own = queries.start(
        queries.next_id(),
        QueryKind::Work,
        asker("ada"),
        "SELECT 'ada'",
        None,
        &CancellationToken::new(),
    );
    assert_eq!(run(&ada, "SELECT * FROM system.queries").await.unwrap(), 1);
    assert!(
        run(&ada, &format!("KILL QUERY {}", theirs.id))
            .await
            .is_err()
    );
    assert!(!theirs.is_cancelled());
    run(&ada, &format!("KILL QUERY {}", own.id)).await.unwrap();
    assert!(own.is_cancelled());
    let owner = engine.session().unwrap();
    run(&owner, &format!("KILL {}", theirs.id)).await.unwrap();
    assert!(theirs.is_cancelled());
    assert_eq!(
        run(&owner, "SELECT * FROM system.queries").await.unwrap(),
        2
    );
}

#[tokio::test]
async fn a_new_name_gives_nobody_what_they_may_not_do() {
    let engine = engine();
    let owner = owner(&engine).await;
    let ada = user(
        &engine,
        &[
            ("public.*", &[RightName::Create]),
            ("mine*", &[RightName::Create, RightName::Read]),
        ],
    );
    let error = run(&ada, "ALTER TABLE secret RENAME TO mine_now")
        .await
        .unwrap_err();
    assert!(is_denial(&error), "{error}");
    // Without more rights under the new name it may have that.
    run(&ada, "ALTER TABLE secret RENAME TO other")
        .await
        .unwrap();
    assert_eq!(run(&owner, "SELECT * FROM other").await.unwrap(), 2);
    let bob = user(&engine, &[("open", &[RightName::Read, RightName::Write])]);
    for sql in [
        "ALTER TABLE open ADD COLUMN c INT",
        "ALTER TABLE open RENAME TO opened",
        "ALTER TABLE open RENAME COLUMN v TO w",
        "ALTER TABLE other RENAME TO opened",
        "VACUUM other",
    ] {
        let error = run(&bob, sql).await.unwrap_err();
        assert!(is_refusal(&error), "{sql}: {error}");
    }
    run(&bob, "VACUUM open; VACUUM").await.unwrap();
    run(&bob, "BEGIN; DELETE FROM open WHERE k = 1")
        .await
        .unwrap();
    for sql in ["DELETE FROM other", "SELECT * FROM other"] {
        let error = run(&bob, sql).await.unwrap_err();
        assert!(is_refusal(&error), "{sql}: {error}");
    }
    run(&bob, "COMMIT").await.unwrap();
    assert_eq!(run(&owner, "SELECT * FROM open").await.unwrap(), 1);
}

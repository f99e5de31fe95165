//! Past versions of tables: `t AT (VERSION => …)`, `t AT (TIMESTAMP => …)`.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashmesh::{Engine, EngineOptions, FunctionGrants, Grant, Principal, RightName, Session};
use rand::RngExt;

use crate::support::{error, random, rows, run, session};

const MODES: [&str; 3] = ["never", "auto", "always"];

async fn sorted(session: &Session, sql: &str) -> Vec<String> {
    let mut rows = rows(session, sql).await;
    rows.sort();
    rows
}

/// The number of a table's present version.
async fn version(session: &Session, table: &str) -> u64 {
    let sql = format!("SELECT max(version) FROM system.versions WHERE \"table\" = '{table}'");
    rows(session, &sql).await[0].parse().unwrap()
}

/// When a version was committed, as a literal.
async fn time(session: &Session, table: &str, version: u64) -> String {
    let sql = format!(
        "SELECT arrow_cast(committed_at, 'Int64') FROM system.versions \
         WHERE \"table\" = '{table}' AND version = {version}"
    );
    let time = rows(session, &sql).await.pop().unwrap();
    format!("to_timestamp_micros({time})")
}

#[tokio::test]
async fn every_version_shows_what_it_had() {
    let mut random = random();
    for mode in MODES {
        let session = session();
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        run(
            &session,
            "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT, s TEXT) WITH (retention = '7 days')",
        )
        .await;
        let mut now: BTreeMap<i64, i64> = BTreeMap::new();
        let mut then = vec![(version(&session, "t").await, now.clone())];
        for step in 0..20_i64 {
            let key = random.random_range(0..40);
            match random.random_range(0..6) {
                0 | 1 => {
                    let new = (0..5).map(|i| 1000 + step * 10 + i);
                    let values = new.clone().map(|id| format!("({id}, {step}, 'row {id}')"));
                    let values = values.collect::<Vec<_>>().join(", ");
                    run(&session, &format!("INSERT INTO t VALUES {values}")).await;
                    now.extend(new.map(|id| (id, step)));
                }
                2 => {
                    run(&session, &format!("DELETE FROM t WHERE id % 40 = {key}")).await;
                    now.retain(|id, _| id % 40 != key);
                }
                3 => {
                    run(
                        &session,
                        &format!("UPDATE t SET n = n + 1 WHERE id % 3 = {}", key % 3),
                    )
                    .await;
                    let changed = now.iter_mut().filter(|(id, _)| *id % 3 == key % 3);
                    changed.for_each(|(_, n)| *n += 1);
                }
                4 => run(&session, "VACUUM t").await,
                _ => {
                    run(
                        &session,
                        &format!(
                            "INSERT INTO t VALUES ({key}, {step}, 'row {key}') \
                             ON CONFLICT (id) DO UPDATE SET n = excluded.n"
                        ),
                    )
                    .await;
                    now.insert(key, step);
                }
            }
            then.push((version(&session, "t").await, now.clone()));
        }
        for (number, expected) in &then {
            let table = format!("t AT (VERSION => {number})");
            let all = sorted(&session, &format!("SELECT id, n FROM {table}")).await;
            let mut wanted: Vec<_> = expected.iter().map(|(id, n)| format!("{id} {n}")).collect();
            wanted.sort();
            assert_eq!(all, wanted, "{mode}, version {number}");
            let sums = format!(
                "SELECT count(*), coalesce(sum(n), 0), count(s), coalesce(min(id), -1) FROM {table} WHERE n >= 3"
            );
            let chosen: Vec<_> = expected.iter().filter(|(_, n)| **n >= 3).collect();
            let wanted = format!(
                "{0} {1} {0} {2}",
                chosen.len(),
                chosen.iter().map(|(_, n)| **n).sum::<i64>(),
                chosen.first().map_or(-1, |(id, _)| **id)
            );
            assert_eq!(
                rows(&session, &sums).await,
                [wanted],
                "{mode}, version {number}"
            );
            let at = time(&session, "t", *number).await;
            let by_time = format!("SELECT count(*) FROM t AT (TIMESTAMP => {at}) old");
            assert_eq!(rows(&session, &by_time).await, [expected.len().to_string()]);
        }
        let listed = "SELECT version, rows FROM system.versions WHERE \"table\" = 't' ORDER BY 1";
        let listed = rows(&session, listed).await;
        for (number, expected) in &then {
            assert!(
                listed.contains(&format!("{number} {}", expected.len())),
                "{listed:?}"
            );
        }
    }
}

#[tokio::test]
async fn the_past_stands_wherever_a_table_stands() {
    for mode in MODES {
        let session = session();
        run(
            &session,
            &format!(
                "SET flashmesh.pushdown = '{mode}'; \
                 CREATE TABLE t (id BIGINT, n INT) WITH (retention = '1 hour'); \
                 INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)"
            ),
        )
        .await;
        let first = version(&session, "t").await;
        run(
            &session,
            "DELETE FROM t WHERE id = 1; UPDATE t SET n = 21 WHERE id = 2; INSERT INTO t VALUES (4, 40)",
        )
        .await;
        let joined = format!(
            "SELECT coalesce(a.id, b.id), a.n, b.n FROM t AT (VERSION => {first}) a \
             FULL JOIN t b ON a.id = b.id WHERE a.n IS DISTINCT FROM b.n ORDER BY 1"
        );
        assert_eq!(rows(&session, &joined).await, ["1 10 ", "2 20 21", "4  40"]);
        let cte = format!(
            "WITH old AS (SELECT * FROM public.t AT (VERSION => {first})) \
             SELECT count(*) FROM old WHERE id IN (SELECT id FROM t AT (VERSION => {first} + 0))"
        );
        assert_eq!(rows(&session, &cte).await, ["3"]);
        let lost = format!(
            "SELECT * FROM t AT (VERSION => {first}) \
             EXCEPT SELECT * FROM t ORDER BY 1"
        );
        assert_eq!(rows(&session, &lost).await, ["1 10", "2 20"]);
        // Subqueries that differ in nothing but the version.
        let sums = format!(
            "SELECT (SELECT sum(n) FROM t) AS a, (SELECT sum(n) FROM t AT (VERSION => {first})) AS b, \
             (SELECT sum(n) FROM t AT (VERSION => {first} + 1)) AS c"
        );
        assert_eq!(rows(&session, &sums).await, ["91 60 50"]);
        let explained = format!("EXPLAIN SELECT * FROM t AT (VERSION => {first}) WHERE n > 1");
        let plan = rows(&session, &explained).await.join("\n");
        assert!(plan.contains("FlashScanExec"), "{plan}");

        run(
            &session,
            &format!(
                "CREATE VIEW before AS SELECT id, n FROM t AT (VERSION => {first}); \
                 CREATE VIEW lately AS SELECT id FROM t AT (TIMESTAMP => now()); \
                 CREATE TEMPORARY VIEW planned AS SELECT id FROM t AT (TIMESTAMP => now())"
            ),
        )
        .await;
        assert_eq!(
            sorted(&session, "SELECT * FROM before").await,
            ["1 10", "2 20", "3 30"]
        );
        assert_eq!(rows(&session, "SELECT count(*) FROM lately").await, ["3"]);
        run(&session, "INSERT INTO t VALUES (5, 50)").await;
        assert_eq!(rows(&session, "SELECT count(*) FROM lately").await, ["4"]);
        assert_eq!(rows(&session, "SELECT count(*) FROM planned").await, ["4"]);

        run(
            &session,
            &format!("PREPARE p AS SELECT count(*) FROM t AT (VERSION => {first}) WHERE n > $1"),
        )
        .await;
        assert_eq!(rows(&session, "EXECUTE p(10)").await, ["2"]);
        run(
            &session,
            "PREPARE q AS SELECT count(*) FROM t AT (TIMESTAMP => now())",
        )
        .await;
        run(&session, "INSERT INTO t VALUES (6, 60)").await;
        assert_eq!(rows(&session, "EXECUTE q").await, ["5"]);

        // Changes that read the past, of the same table.
        run(
            &session,
            &format!(
                "UPDATE t SET n = o.n FROM t AT (VERSION => {first}) o WHERE o.id = t.id; \
                 INSERT INTO t SELECT * FROM t AT (VERSION => {first}) o WHERE o.id = 1; \
                 DELETE FROM t WHERE id NOT IN (SELECT id FROM t AT (VERSION => {first}))"
            ),
        )
        .await;
        let back = ["1 10", "2 20", "3 30"];
        assert_eq!(rows(&session, "SELECT * FROM t ORDER BY id").await, back);
        run(
            &session,
            &format!(
                "UPDATE t SET n = 0; \
                 MERGE INTO t USING t AT (VERSION => {first}) o ON t.id = o.id \
                 WHEN MATCHED THEN UPDATE SET n = o.n"
            ),
        )
        .await;
        assert_eq!(rows(&session, "SELECT * FROM t ORDER BY id").await, back);
        run(
            &session,
            &format!("CREATE TABLE copy AS SELECT * FROM t AT (VERSION => {first})"),
        )
        .await;
        assert_eq!(rows(&session, "SELECT * FROM copy ORDER BY id").await, back);
    }
}

#[tokio::test]
async fn the_past_has_the_columns_of_its_time() {
    for mode in MODES {
        let session = session();
        run(
            &session,
            &format!(
                "SET flashmesh.pushdown = '{mode}'; \
                 CREATE TABLE t (id BIGINT, n INT) WITH (retention = '1 hour'); \
                 INSERT INTO t VALUES (1, 10), (2, 20)"
            ),
        )
        .await;
        let mut then = Vec::new();
        for (change, all) in [
            (
                "ALTER TABLE t RENAME COLUMN n TO m",
                vec!["id m", "1 10", "2 20"],
            ),
            (
                "ALTER TABLE t ADD COLUMN s TEXT DEFAULT 'new'",
                vec!["id m s", "1 10 new", "2 20 new"],
            ),
            (
                "INSERT INTO t VALUES (3, 30, 'x')",
                vec!["id m s", "1 10 new", "2 20 new", "3 30 x"],
            ),
            (
                "ALTER TABLE t DROP COLUMN m",
                vec!["id s", "1 new", "2 new", "3 x"],
            ),
            (
                "ALTER TABLE t ALTER COLUMN id TYPE DOUBLE",
                vec!["id s", "1.0 new", "2.0 new", "3.0 x"],
            ),
            ("TRUNCATE TABLE t", vec!["id s"]),
            ("ALTER TABLE t RENAME TO u", vec!["id s"]),
            ("INSERT INTO u VALUES (7.5, 'y')", vec!["id s", "7.5 y"]),
            ("ALTER TABLE u RENAME TO t", vec!["id s", "7.5 y"]),
        ] {
            run(&session, change).await;
            let table = if change.contains("TO u") || change.contains("INTO u") {
                "u"
            } else {
                "t"
            };
            then.push((version(&session, table).await, all));
        }
        for (number, all) in then {
            let sql = format!("SELECT * FROM t AT (VERSION => {number}) ORDER BY id");
            let batch = crate::support::batch(&session, &sql).await;
            let schema = batch.schema();
            let names: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            let mut found = vec![names.join(" ")];
            found.extend(rows(&session, &sql).await);
            assert_eq!(found, all, "{mode}, version {number}");
        }
        // Another table of the name begins anew.
        run(
            &session,
            "CREATE OR REPLACE TABLE t (id BIGINT) WITH (retention = '1 day')",
        )
        .await;
        let count = "SELECT count(*) FROM system.versions WHERE \"table\" = 't'";
        assert_eq!(rows(&session, count).await, ["1"]);
    }
}

#[tokio::test]
async fn what_is_not_there_is_said() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT); INSERT INTO t VALUES (1)",
    )
    .await;
    let now = version(&session, "t").await;
    let present = format!("SELECT count(*) FROM t AT (VERSION => {now})");
    assert_eq!(rows(&session, &present).await, ["1"]);
    for (sql, says) in [
        (
            "SELECT * FROM t AT (VERSION => 1)",
            "keeps no past versions",
        ),
        (
            "SELECT * FROM t AT (TIMESTAMP => now())",
            "keeps no past versions",
        ),
    ] {
        assert!(error(&session, sql).await.contains(says), "{sql}");
    }
    run(&session, "ALTER TABLE t SET (retention = '1 hour'); INSERT INTO t VALUES (2); INSERT INTO t VALUES (3)").await;
    let last = version(&session, "t").await;
    let kept = format!("versions {} (", last - 2);
    run(&session, "CREATE VIEW v AS SELECT * FROM t").await;
    let next = last + 1;
    for (sql, says) in [
        ("SELECT * FROM t AT (VERSION => 1)", kept.as_str()),
        (&format!("SELECT * FROM t AT (VERSION => {next})"), &kept),
        (
            "SELECT * FROM t AT (TIMESTAMP => now() - INTERVAL '2 hours')",
            &kept,
        ),
        (
            "SELECT * FROM t AT (TIMESTAMP => now() + INTERVAL '2 hours')",
            &kept,
        ),
        (
            "SELECT * FROM t AT (TIMESTAMP => TIMESTAMP '1999-12-31 10:00:00')",
            &kept,
        ),
        (
            "SELECT * FROM t AT (VERSION => 'x')",
            "the number of a version",
        ),
        (
            "SELECT * FROM t AT (VERSION => -1)",
            "the number of a version",
        ),
        (
            "SELECT * FROM t AT (VERSION => NULL)",
            "the number of a version",
        ),
        ("SELECT * FROM t AT (TIMESTAMP => 5)", "a time"),
        ("SELECT * FROM t AT (TIMESTAMP => 'soon')", "time"),
        (
            "SELECT * FROM t AT (VERSION => (SELECT 1))",
            "not a subquery",
        ),
        ("SELECT * FROM t AT (VERSION => random())", "constant"),
        ("SELECT * FROM v AT (VERSION => 1)", "no table 'v'"),
        (
            "SELECT * FROM nowhere AT (VERSION => 1)",
            "no table 'nowhere'",
        ),
        (
            "SELECT * FROM system.versions AT (VERSION => 1)",
            "no table",
        ),
        (
            "WITH t AS (SELECT 1) SELECT * FROM t AT (VERSION => 1)",
            "a name of WITH",
        ),
        ("UPDATE t AT (VERSION => 1) SET id = 1", "can't be changed"),
        ("DELETE FROM t AT (VERSION => 1)", "can't be changed"),
        (
            "MERGE INTO t AT (VERSION => 1) USING v ON false WHEN MATCHED THEN DELETE",
            "can't be changed",
        ),
        ("INSERT INTO t AT (VERSION => 1) VALUES (1)", "AT"),
        (
            "CREATE TABLE u (a INT) WITH (retention = 'long')",
            "retention takes",
        ),
        (
            "CREATE TABLE u (a INT) WITH (colour = 'red')",
            "no option 'colour'",
        ),
        (
            "ALTER TABLE t SET (retention = '1 month')",
            "retention takes",
        ),
    ] {
        let error = error(&session, sql).await;
        assert!(error.contains(says), "{sql}: {error}");
    }
    // The present is what it was.
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["3"]);
    // Without a retention the past goes at once.
    run(&session, "ALTER TABLE t SET (retention = '0')").await;
    let old = format!("SELECT * FROM t AT (VERSION => {last})");
    assert!(
        error(&session, &old)
            .await
            .contains("keeps no past versions")
    );
    run(&session, "DROP TABLE t").await;
    assert!(error(&session, &old).await.contains("no table 't'"));
}

#[tokio::test]
async fn other_dialects_say_it_in_their_words() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT) WITH (retention = '1 hour'); INSERT INTO t VALUES (1)",
    )
    .await;
    let first = version(&session, "t").await;
    run(&session, "INSERT INTO t VALUES (2)").await;
    for (dialect, says) in [
        ("snowflake", format!("AT (VERSION => {first})")),
        ("databricks", format!("VERSION AS OF {first}")),
        ("postgresql", format!("AT (VERSION => {first})")),
        ("duckdb", format!("AT (VERSION => {first})")),
        ("mysql", format!("AT (VERSION => {first})")),
    ] {
        run(
            &session,
            &format!("SET datafusion.sql_parser.dialect = '{dialect}'"),
        )
        .await;
        let sql = format!("SELECT count(*) FROM t {says}");
        assert_eq!(rows(&session, &sql).await, ["1"], "{dialect}");
    }
    run(&session, "SET datafusion.sql_parser.dialect = 'bigquery'").await;
    let now = "SELECT count(*) FROM t FOR SYSTEM_TIME AS OF now()";
    assert_eq!(rows(&session, now).await, ["2"]);
    let before = "SELECT count(*) FROM t FOR SYSTEM_TIME AS OF now() - INTERVAL '1' DAY";
    assert!(error(&session, before).await.contains("versions"));
}

fn user(engine: &Arc<Engine>, grants: &[(&str, &[RightName])]) -> Session {
    let grants = grants.iter().map(|(tables, rights)| Grant {
        tables: tables.to_string().try_into().unwrap(),
        rights: rights.to_vec(),
    });
    let principal = Principal::user("ada", grants.collect(), FunctionGrants::default());
    engine.session_for(Arc::new(principal)).unwrap()
}

#[tokio::test]
async fn the_past_takes_the_rights_that_the_present_takes() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let owner = engine.session().unwrap();
    for table in ["open", "secret", "written"] {
        run(
            &owner,
            &format!(
                "CREATE TABLE {table} (id BIGINT) WITH (retention = '1 hour'); \
                 INSERT INTO {table} VALUES (1); INSERT INTO {table} VALUES (2)"
            ),
        )
        .await;
    }
    let ada = user(
        &engine,
        &[
            ("open", &[RightName::Read]),
            ("written", &[RightName::Write]),
        ],
    );
    let first = version(&owner, "open").await - 1;
    let count = |table: &str| format!("SELECT count(*) FROM {table} AT (VERSION => {first})");
    assert_eq!(rows(&ada, &count("open")).await, ["1"]);
    assert!(error(&ada, &count("written")).await.contains("may not"));
    // Nothing is said of what she may not know, or of its versions.
    let hidden = error(&ada, &count("secret")).await;
    let missing = error(&ada, &count("nowhere")).await;
    assert_eq!(hidden.replace("secret", "nowhere"), missing);
    let none = "SELECT * FROM written AT (VERSION => 99)";
    assert!(error(&ada, none).await.contains("may not"));
    let tables = "SELECT DISTINCT \"table\" FROM system.versions ORDER BY 1";
    assert_eq!(rows(&ada, tables).await, ["open", "written"]);
    let set = "ALTER TABLE open SET (retention = '0')";
    assert!(error(&ada, set).await.contains("may not"));
}

#[tokio::test]
async fn a_transaction_reads_committed_versions() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id BIGINT) WITH (retention = '1 hour'); \
         INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)",
    )
    .await;
    let last = version(&session, "t").await;
    let count = |version: u64| format!("SELECT count(*) FROM t AT (VERSION => {version})");
    run(
        &session,
        "BEGIN; INSERT INTO t VALUES (3); DELETE FROM t WHERE id = 1",
    )
    .await;
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["2"]);
    assert_eq!(rows(&session, &count(last)).await, ["2"]);
    assert_eq!(rows(&session, &count(last - 1)).await, ["1"]);
    let own = error(&session, &count(last + 1)).await;
    assert!(own.contains("versions"), "{own}");
    run(
        &session,
        &format!("INSERT INTO t SELECT id + 10 FROM t AT (VERSION => {last})"),
    )
    .await;
    run(
        &session,
        "ALTER TABLE t ADD COLUMN a INT; ALTER TABLE t SET (retention = '2 hours')",
    )
    .await;
    run(
        &session,
        "CREATE TABLE new (a INT) WITH (retention = '1 day')",
    )
    .await;
    let new = error(&session, "SELECT * FROM new AT (VERSION => 1)").await;
    assert!(new.contains("no committed version"), "{new}");
    run(&session, "COMMIT").await;
    assert_eq!(
        rows(&session, "SELECT id FROM t ORDER BY id").await,
        ["2", "3", "11", "12"]
    );
    assert_eq!(rows(&session, &count(last)).await, ["2"]);
    let now = version(&session, "t").await;
    assert_eq!(rows(&session, &count(now)).await, ["4"]);
}

#[tokio::test]
async fn the_past_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let options = EngineOptions {
            path: Some(folder.path().join("db")),
            ..EngineOptions::default()
        };
        Engine::open(options).unwrap().session().unwrap()
    };
    let mut then = Vec::new();
    {
        let session = open();
        run(
            &session,
            "CREATE TABLE t (id BIGINT, n INT) WITH (retention = '1 hour')",
        )
        .await;
    }
    for round in 0..4 {
        let session = open();
        for sql in [
            format!("INSERT INTO t SELECT value, {round} FROM generate_series(1, 1000)"),
            format!("DELETE FROM t WHERE id % 7 = {round}"),
            "VACUUM t".to_string(),
        ] {
            run(&session, &sql).await;
            let present = rows(&session, "SELECT count(*), sum(id), sum(n) FROM t").await;
            then.push((version(&session, "t").await, present));
        }
    }
    let session = open();
    for (number, expected) in then {
        let sql = format!("SELECT count(*), sum(id), sum(n) FROM t AT (VERSION => {number})");
        assert_eq!(rows(&session, &sql).await, expected, "version {number}");
    }
}

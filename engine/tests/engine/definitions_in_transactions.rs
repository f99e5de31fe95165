//! Tables, indexes, views and schemas that come, change and go within transactions.

use std::collections::{BTreeMap, BTreeSet};

use flashmesh::{Engine, EngineOptions, Session};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::support::{error, random, rows, run};

const MODES: [&str; 3] = ["never", "auto", "always"];

const MADE: &str = "CREATE SCHEMA s; \
    CREATE TABLE s.t (id BIGINT PRIMARY KEY, x BIGINT, note TEXT DEFAULT 'none'); \
    INSERT INTO s.t (id, x) SELECT value, value % 7 FROM generate_series(1, 5000); \
    CREATE INDEX by_x ON s.t USING hash (x); CREATE UNIQUE INDEX once ON s.t USING hash (id, x); \
    CREATE VIEW s.v AS SELECT x, count(*) AS n FROM s.t GROUP BY x; \
    CREATE TABLE copy AS SELECT * FROM s.t WHERE x = 3; \
    DELETE FROM s.t WHERE id > 4000; ALTER TABLE s.t RENAME COLUMN note TO remark; \
    ALTER TABLE s.t ADD COLUMN y BIGINT DEFAULT 5; INSERT INTO s.t VALUES (9000, 100, 'late', 1); \
    ALTER TABLE old RENAME TO older; INSERT INTO older VALUES (3)";

async fn check_made(session: &Session) {
    for mode in MODES {
        run(session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        for (sql, expected) in [
            (
                "SELECT count(*), sum(x), sum(y) FROM s.t",
                "4001 12097 20001",
            ),
            ("SELECT remark FROM lookup('s.t', [9000])", "late"),
            ("SELECT min(remark) FROM s.t WHERE id < 9", "none"),
            ("SELECT count(*) FROM s.t WHERE x = 100", "1"),
            ("SELECT n FROM s.v WHERE x = 3", "572"),
            ("SELECT count(*), min(x) FROM copy", "714 3"),
            ("SELECT sum(a) FROM older", "6"),
        ] {
            assert_eq!(rows(session, sql).await, [expected], "{mode}: {sql}");
        }
        assert!(error(session, "SELECT * FROM old").await.contains("old"));
    }
    let listed = "SELECT table_schema || '.' || table_name FROM information_schema.tables \
        WHERE table_schema IN ('s', 'public') ORDER BY 1";
    let expected = ["public.copy", "public.older", "s.t", "s.v"];
    assert_eq!(rows(session, listed).await, expected);
    let twice = error(session, "INSERT INTO s.t VALUES (1, 1, '', 1)").await;
    assert!(twice.contains("primary key"), "{twice}");
}

#[tokio::test]
async fn definitions_are_seen_by_their_transaction_until_it_commits() {
    let folder = tempfile::tempdir().unwrap();
    let options = || EngineOptions {
        path: Some(folder.path().join("db")),
        ..EngineOptions::default()
    };
    let engine = Engine::open(options()).unwrap();
    let (one, other) = (engine.session().unwrap(), engine.session().unwrap());
    run(
        &one,
        "CREATE TABLE old (a BIGINT); INSERT INTO old VALUES (1), (2)",
    )
    .await;
    let pages = || engine.database().store().usage().pages();
    let before = pages();
    for end in ["ROLLBACK", "COMMIT"] {
        run(&one, "BEGIN").await;
        run(&one, MADE).await;
        check_made(&one).await;
        assert_eq!(rows(&other, "SELECT sum(a) FROM old").await, ["3"]);
        for sql in [
            "SELECT * FROM s.t",
            "SELECT * FROM copy",
            "SELECT * FROM older",
        ] {
            error(&other, sql).await;
        }
        run(&one, end).await;
        if end == "ROLLBACK" {
            assert_eq!(rows(&one, "SELECT sum(a) FROM old").await, ["3"]);
            error(&one, "SELECT * FROM s.t").await;
            error(&one, "SELECT * FROM copy").await;
            assert_eq!(pages(), before, "nothing takes room");
        }
    }
    check_made(&other).await;
    drop((one, other, engine));
    let engine = Engine::open(options()).unwrap();
    check_made(&engine.session().unwrap()).await;
    let problems = engine.database().fsck(&mut |_| Ok(())).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new());
}

/// What is done in a transaction, what another session does meanwhile, what the commit says, and a
/// query of what is there then.
const MEETINGS: [(&str, &str, &str, &str, &str); 16] = [
    (
        "ALTER TABLE t ADD COLUMN z BIGINT",
        "CREATE UNIQUE INDEX i ON t USING hash (n)",
        "changed",
        "SELECT count(*) FROM t WHERE n = 1",
        "1",
    ),
    (
        "INSERT INTO t VALUES (7, 7); CREATE INDEX i ON t USING hash (n)",
        "CREATE INDEX i ON t USING hash (n)",
        "already exists",
        "SELECT count(*) FROM t",
        "2",
    ),
    (
        "TRUNCATE TABLE t",
        "ALTER TABLE t RENAME COLUMN n TO m",
        "",
        "SELECT count(m) FROM t",
        "0",
    ),
    (
        "INSERT INTO t VALUES (7, 7); CREATE INDEX i ON t USING hash (n); TRUNCATE TABLE t",
        "INSERT INTO t VALUES (5, 5)",
        "changed",
        "SELECT count(*) FROM t",
        "3",
    ),
    (
        "CREATE TABLE x (a BIGINT)",
        "CREATE TABLE x AS SELECT 7 AS a",
        "already exists",
        "SELECT a FROM x",
        "7",
    ),
    (
        "CREATE OR REPLACE TABLE t AS SELECT 9 AS id",
        "INSERT INTO t VALUES (5, 5)",
        "",
        "SELECT id FROM t",
        "9",
    ),
    (
        "ALTER TABLE t ADD COLUMN z BIGINT",
        "INSERT INTO t VALUES (5, 5)",
        "changed",
        "SELECT count(*) FROM t",
        "3",
    ),
    (
        "ALTER TABLE t RENAME TO u",
        "INSERT INTO t VALUES (5, 5)",
        "",
        "SELECT count(*) FROM u",
        "3",
    ),
    (
        "ALTER TABLE t RENAME TO u",
        "DROP TABLE t",
        "changed",
        "SELECT count(*) FROM b.t",
        "0",
    ),
    (
        "ALTER TABLE t RENAME COLUMN n TO m",
        "INSERT INTO t VALUES (5, 5)",
        "",
        "SELECT sum(m) FROM t",
        "8",
    ),
    (
        "CREATE INDEX i ON t USING hash (n)",
        "INSERT INTO t VALUES (5, 5)",
        "",
        "SELECT id FROM t WHERE n = 5",
        "5",
    ),
    (
        "CREATE UNIQUE INDEX i ON t USING hash (n)",
        "INSERT INTO t VALUES (5, 1)",
        "'i'",
        "SELECT count(*) FROM t",
        "3",
    ),
    (
        "DROP TABLE t",
        "INSERT INTO t VALUES (5, 5)",
        "",
        "SELECT count(*) FROM b.t",
        "0",
    ),
    (
        "DROP TABLE b.t; DROP SCHEMA b",
        "CREATE TABLE b.new (a BIGINT)",
        "not empty|has tables",
        "SELECT count(*) FROM b.t",
        "0",
    ),
    (
        "DROP SCHEMA b CASCADE; CREATE SCHEMA b; CREATE TABLE b.t AS SELECT 4 AS a",
        "INSERT INTO b.t VALUES (1)",
        "",
        "SELECT a FROM b.t",
        "4",
    ),
    (
        "INSERT INTO t VALUES (5, 5); DROP TABLE t; CREATE TABLE t AS SELECT 8 AS id; UPDATE t SET id = 6",
        "DELETE FROM t WHERE id = 1",
        "",
        "SELECT id FROM t",
        "6",
    ),
];

#[tokio::test]
async fn definitions_that_meet_others_are_refused_or_hold_both() {
    for (mine, theirs, refusal, query, expected) in MEETINGS {
        let engine = Engine::open(EngineOptions::default()).unwrap();
        let (one, other) = (engine.session().unwrap(), engine.session().unwrap());
        run(
            &one,
            "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT); INSERT INTO t VALUES (1, 1), (2, 2); \
             CREATE SCHEMA b; CREATE TABLE b.t (a BIGINT)",
        )
        .await;
        run(&one, "BEGIN").await;
        run(&one, mine).await;
        run(&other, theirs).await;
        if refusal.is_empty() {
            run(&one, "COMMIT").await;
        } else {
            let message = error(&one, "COMMIT").await;
            let is_it = refusal.split('|').any(|part| message.contains(part));
            assert!(is_it, "{mine} beside {theirs}: {message}");
        }
        for session in [&one, &other] {
            assert_eq!(
                rows(session, query).await,
                [expected],
                "{mine} beside {theirs}"
            );
        }
    }
}

/// Statements of one transaction whose steps could be taken for others, and what is there then.
const ALONE: [(&str, &str, &str); 9] = [
    (
        "CREATE TABLE a (x BIGINT); ALTER TABLE a RENAME TO b; INSERT INTO b VALUES (1); TRUNCATE TABLE b",
        "SELECT count(*) FROM b",
        "0",
    ),
    (
        "ALTER TABLE t ADD COLUMN z BIGINT; ALTER TABLE t RENAME TO u; TRUNCATE TABLE u",
        "SELECT count(z) FROM u",
        "0",
    ),
    (
        "CREATE TABLE c (x BIGINT UNIQUE); DROP INDEX c_x_key; INSERT OVERWRITE c VALUES (1), (1)",
        "SELECT count(*) FROM c",
        "2",
    ),
    (
        "TRUNCATE TABLE t; CREATE UNIQUE INDEX u ON t USING hash (n); TRUNCATE TABLE t; INSERT INTO t VALUES (4, 4)",
        "SELECT n FROM t",
        "4",
    ),
    (
        "DELETE FROM t; CREATE UNIQUE INDEX u ON t USING hash (n); INSERT INTO t VALUES (4, 4); TRUNCATE TABLE t",
        "SELECT count(*) FROM t",
        "0",
    ),
    (
        "CREATE UNIQUE INDEX u ON t USING hash (id); DROP INDEX u; INSERT INTO t VALUES (9, 9); CREATE INDEX u ON t USING hash (n)",
        "SELECT id FROM t WHERE n = 9",
        "9",
    ),
    (
        "ALTER TABLE t RENAME TO u; CREATE TABLE t AS SELECT 5 AS id; DROP TABLE u",
        "SELECT id FROM t",
        "5",
    ),
    (
        "ALTER TABLE t RENAME TO u; ALTER TABLE b.t ADD COLUMN c BIGINT DEFAULT 3; ALTER TABLE u RENAME COLUMN n TO m; UPDATE u SET m = 8; ALTER TABLE u RENAME TO t",
        "SELECT max(m) FROM t",
        "8",
    ),
    (
        "DROP VIEW v; CREATE TABLE v AS SELECT 1 AS id; ALTER TABLE v RENAME TO w; CREATE VIEW v AS SELECT id FROM w",
        "SELECT id FROM v",
        "1",
    ),
];

#[tokio::test]
async fn steps_are_taken_for_what_they_are() {
    for (sql, query, expected) in ALONE {
        let session = crate::support::session();
        run(
            &session,
            "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT); INSERT INTO t VALUES (1, 2), (2, 2); \
             CREATE SCHEMA b; CREATE TABLE b.t (a BIGINT); CREATE VIEW v AS SELECT 0 AS id",
        )
        .await;
        run(&session, "BEGIN").await;
        run(&session, sql).await;
        assert_eq!(rows(&session, query).await, [expected], "{sql}");
        run(&session, "COMMIT").await;
        assert_eq!(rows(&session, query).await, [expected], "{sql}");
    }
}

/// What there should be.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    schemas: BTreeSet<String>,
    tables: BTreeMap<String, Table>,
    /// Views with the tables that they read.
    views: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Table {
    /// Columns beside `id`, which all rows have the same value in: that of their number.
    columns: usize,
    rows: BTreeSet<i64>,
    indexes: BTreeSet<String>,
}

impl Model {
    fn new() -> Self {
        Self {
            schemas: ["public".to_string()].into(),
            ..Self::default()
        }
    }

    fn has(&self, name: &str) -> bool {
        self.tables.contains_key(name) || self.views.contains_key(name)
    }

    fn has_schema_of(&self, name: &str) -> bool {
        name.split_once('.')
            .is_some_and(|(schema, _)| self.schemas.contains(schema))
    }

    /// Makes a statement up, and does it here; `None` where it should fail.
    fn step(&mut self, rng: &mut StdRng) -> (String, Option<()>) {
        let schema = *["public", "s", "r"].choose(rng).unwrap();
        let name = format!("{schema}.{}", ["a", "b", "c"].choose(rng).unwrap());
        let id = rng.random_range(0..40);
        let table = self.tables.get(&name).cloned();
        let free = self.has_schema_of(&name) && !self.has(&name);
        let mut with = |change: &dyn Fn(&mut Table)| {
            let table = self.tables.get_mut(&name)?;
            change(table);
            Some(())
        };
        match rng.random_range(0..15) {
            0 => {
                let done = free.then(|| self.tables.insert(name.clone(), Table::default()));
                (
                    format!("CREATE TABLE {name} (id BIGINT PRIMARY KEY)"),
                    done.map(drop),
                )
            }
            1 => {
                let rows: BTreeSet<i64> = (id..id + 5).collect();
                let may = self.has_schema_of(&name) && !self.views.contains_key(&name);
                let sql = format!(
                    "CREATE OR REPLACE TABLE {name} AS SELECT value AS id FROM generate_series({id}, {})",
                    id + 4
                );
                let made = Table {
                    rows,
                    ..Table::default()
                };
                (sql, may.then(|| drop(self.tables.insert(name, made))))
            }
            2 => (
                format!("DROP TABLE {name}"),
                self.tables.remove(&name).map(drop),
            ),
            3 => {
                let to = ["a", "b", "c"].choose(rng).unwrap();
                let new = format!("{schema}.{to}");
                let done = (table.is_some() && !self.has(&new)).then(|| {
                    let table = self.tables.remove(&name).unwrap();
                    self.tables.insert(new, table);
                });
                (format!("ALTER TABLE {name} RENAME TO {to}"), done)
            }
            4 => {
                let number = table.map_or(0, |table| table.columns);
                let sql =
                    format!("ALTER TABLE {name} ADD COLUMN c{number} BIGINT DEFAULT {number}");
                (sql, with(&|table| table.columns += 1))
            }
            5 => {
                let index = format!("i{}", rng.random_range(0..3));
                let is_free = |table: (&String, &Table)| {
                    !(table.0.starts_with(schema) && table.1.indexes.contains(&index))
                };
                let done = (table.is_some() && self.tables.iter().all(is_free)).then(|| {
                    self.tables
                        .get_mut(&name)
                        .unwrap()
                        .indexes
                        .insert(index.clone());
                });
                (
                    format!("CREATE INDEX {index} ON {name} USING hash (id)"),
                    done,
                )
            }
            6 => {
                let index = format!("i{}", rng.random_range(0..3));
                let mut tables = self.tables.iter_mut();
                let owner = tables
                    .find(|(t, table)| t.starts_with(schema) && table.indexes.contains(&index));
                let done = owner.and_then(|(_, table)| table.indexes.remove(&index).then_some(()));
                (format!("DROP INDEX {schema}.{index}"), done)
            }
            7 => {
                let mut of = format!("public.{}", ["a", "b", "c"].choose(rng).unwrap());
                if self.views.contains_key(&of) {
                    of = "public.none".into();
                }
                let may = free && self.tables.contains_key(&of);
                let sql = format!("CREATE VIEW {name} AS SELECT id FROM {of}");
                (sql, may.then(|| drop(self.views.insert(name, of))))
            }
            8 => (
                format!("DROP VIEW {name}"),
                self.views.remove(&name).map(drop),
            ),
            9 => {
                let done = self.schemas.insert(schema.into()).then_some(());
                (format!("CREATE SCHEMA {schema}"), done)
            }
            10 => {
                let done = (schema != "public" && self.schemas.remove(schema)).then(|| {
                    self.tables.retain(|name, _| !name.starts_with(schema));
                    self.views.retain(|name, _| !name.starts_with(schema));
                });
                (format!("DROP SCHEMA {schema} CASCADE"), done)
            }
            11 => {
                let done = with(&|table| table.rows.retain(|row| *row < id));
                (format!("DELETE FROM {name} WHERE id >= {id}"), done)
            }
            12 => (
                format!("TRUNCATE TABLE {name}"),
                with(&|table| table.rows.clear()),
            ),
            _ => {
                let sql = format!(
                    "INSERT INTO {name} (id) SELECT value FROM generate_series({}, {}) AS g(value) \
                     WHERE value NOT IN (SELECT id FROM {name})",
                    id,
                    id + 9
                );
                (sql, with(&|table| table.rows.extend(id..id + 10)))
            }
        }
    }
}

/// What a session sees.
async fn seen(session: &Session) -> Model {
    let mut seen = Model::default();
    let schemas = rows(
        session,
        "SELECT schema_name FROM information_schema.schemata",
    )
    .await;
    let ours = |name: &String| ["public", "s", "r"].contains(&name.as_str());
    seen.schemas.extend(schemas.into_iter().filter(ours));
    let listed = "SELECT table_schema || '.' || table_name || ' ' || table_type \
        FROM information_schema.tables WHERE table_schema IN ('public', 's', 'r')";
    for entry in rows(session, listed).await {
        let (name, kind) = entry.split_once(' ').unwrap();
        if kind == "VIEW" {
            seen.views.insert(name.into(), String::new());
            continue;
        }
        let columns = rows(session, &format!("DESCRIBE {name}")).await.len() - 1;
        let ids = rows(session, &format!("SELECT id FROM {name}")).await;
        let all: BTreeSet<i64> = ids.iter().map(|id| id.parse().unwrap()).collect();
        assert_eq!(all.len(), ids.len(), "{name} has rows twice");
        for column in 0..columns {
            let sql = format!("SELECT count(*) FROM {name} WHERE c{column} = {column}");
            assert_eq!(rows(session, &sql).await, [all.len().to_string()], "{sql}");
        }
        for id in [3, 20] {
            let found = rows(session, &format!("SELECT id FROM {name} WHERE id = {id}")).await;
            assert_eq!(found.len() == 1, all.contains(&id), "{name}, row {id}");
        }
        let table = Table {
            columns,
            rows: all,
            indexes: BTreeSet::new(),
        };
        seen.tables.insert(name.into(), table);
    }
    seen
}

/// What can be compared with what a session sees.
fn visible(model: &Model) -> Model {
    let mut model = model.clone();
    model
        .tables
        .values_mut()
        .for_each(|table| table.indexes.clear());
    model.views.values_mut().for_each(String::clear);
    model
}

#[tokio::test]
async fn random_definitions_do_what_a_map_does() {
    let mut rng = random();
    let folder = tempfile::tempdir().unwrap();
    let options = || EngineOptions {
        path: Some(folder.path().join("db")),
        ..EngineOptions::default()
    };
    let mut engine = Engine::open(options()).unwrap();
    let mut committed = Model::new();
    for round in 0..25 {
        let (one, other) = (engine.session().unwrap(), engine.session().unwrap());
        run(&one, "BEGIN").await;
        let mut model = committed.clone();
        let mut story = Vec::new();
        for _ in 0..rng.random_range(1..25) {
            let savepoint = rng.random_bool(0.2).then(|| model.clone());
            if savepoint.is_some() {
                run(&one, "SAVEPOINT p").await;
            }
            let (sql, done) = model.step(&mut rng);
            story.push(sql.clone());
            match done {
                Some(()) => run(&one, &sql).await,
                None => drop(error(&one, &sql).await),
            }
            if let Some(savepoint) = savepoint
                && rng.random_bool(0.5)
            {
                story.push("ROLLBACK TO p".into());
                run(&one, "ROLLBACK TO SAVEPOINT p").await;
                model = savepoint;
            }
            if rng.random_bool(0.3) {
                assert_eq!(
                    seen(&one).await,
                    visible(&model),
                    "round {round}: {story:#?}"
                );
            }
        }
        assert_eq!(
            seen(&other).await,
            visible(&committed),
            "round {round}: {story:#?}"
        );
        if rng.random_bool(0.7) {
            story.push("COMMIT".into());
            run(&one, "COMMIT").await;
            committed = model;
        } else {
            run(&one, "ROLLBACK").await;
        }
        for session in [&one, &other] {
            assert_eq!(
                seen(session).await,
                visible(&committed),
                "round {round}: {story:#?}"
            );
        }
        if rng.random_bool(0.2) {
            drop((one, other, engine));
            engine = Engine::open(options()).unwrap();
            let seen = seen(&engine.session().unwrap()).await;
            assert_eq!(
                seen,
                visible(&committed),
                "round {round}, opened anew: {story:#?}"
            );
        }
    }
    let problems = engine.database().fsck(&mut |_| Ok(())).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new());
}

/// Columns that are others by now may have the same types: rows would go where they were not meant to.
#[tokio::test]
async fn rows_of_a_transaction_are_refused_where_others_have_redefined_their_table() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let (one, other) = (engine.session().unwrap(), engine.session().unwrap());
    run(&one, "CREATE TABLE t (a BIGINT, b BIGINT)").await;
    let many = "INSERT INTO t SELECT value, 7 FROM generate_series(1, 100000) AS s(value)";
    for (before, after) in [
        ("INSERT INTO t VALUES (1, 2)", ""),
        ("", "INSERT INTO t VALUES (1, 2)"),
        ("", many),
        ("INSERT INTO t VALUES (1, 2)", "INSERT INTO t VALUES (3, 4)"),
        ("INSERT INTO t VALUES (1, 2)", "UPDATE t SET a = 5"),
    ] {
        run(&one, &format!("BEGIN; SELECT * FROM t; {before}")).await;
        let moved = "ALTER TABLE t DROP COLUMN a; ALTER TABLE t ADD COLUMN a BIGINT";
        run(&other, moved).await;
        if !after.is_empty() {
            run(&one, after).await;
        }
        let refused = error(&one, "COMMIT").await;
        assert!(
            refused.contains("has changed rows of table"),
            "{before}; {after}: {refused}"
        );
        assert_eq!(rows(&one, "SELECT count(*) FROM t").await, ["0"]);
        run(&other, "DROP TABLE t; CREATE TABLE t (a BIGINT, b BIGINT)").await;
    }
    // What the transaction itself has redefined takes its rows.
    run(
        &one,
        "BEGIN; INSERT INTO t (a, b) VALUES (1, 2); ALTER TABLE t RENAME COLUMN a TO c; \
         INSERT INTO t (c, b) VALUES (3, 4); COMMIT",
    )
    .await;
    let all = "SELECT c, b FROM t ORDER BY 1";
    assert_eq!(rows(&one, all).await, ["1 2", "3 4"]);
}

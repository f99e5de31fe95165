//! Tables whose columns share pages: whatever is done to one, it answers as a table of columns does.

use std::path::Path;

use flashmesh::{Engine, EngineOptions, Session};
use flashmesh_storage::table::{Database, DatabaseOptions};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::support::{error, random, rows, run, session};

const MODES: [&str; 3] = ["never", "auto", "always"];
/// The same rows, in the one layout and in the other.
const TABLES: [&str; 2] = ["plain", "pax"];

fn open(folder: &Path) -> Session {
    let options = EngineOptions {
        path: Some(folder.to_path_buf()),
        ..EngineOptions::default()
    };
    Engine::open(options).unwrap().session().unwrap()
}

/// Runs a statement on both tables.
async fn on_both(session: &Session, statement: &str) {
    for table in TABLES {
        run(session, &statement.replace("$t", table)).await;
    }
}

/// Asks both tables the same, in every mode.
async fn compare(session: &Session, queries: &[String]) {
    for mode in MODES {
        run(session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        for query in queries {
            let [plain, pax] = TABLES.map(|table| query.replace("$t", table));
            let mut answers = [rows(session, &plain).await, rows(session, &pax).await];
            answers.iter_mut().for_each(|rows| rows.sort());
            let [plain, pax] = answers;
            assert!(
                plain == pax,
                "{mode}: {query}: {plain:?} in place of {pax:?}"
            );
        }
    }
}

fn queries(rng: &mut StdRng) -> Vec<String> {
    let id = rng.random_range(0..500);
    let keys: Vec<String> = (0..40)
        .map(|_| rng.random_range(0..600).to_string())
        .collect();
    vec![
        "SELECT * FROM $t".into(),
        format!("SELECT * FROM $t WHERE id = {id}"),
        format!("SELECT * FROM $t WHERE id IN ({})", keys.join(", ")),
        format!(
            "SELECT id, word FROM $t WHERE n > {} AND word LIKE '%row%7%'",
            id % 97
        ),
        format!("SELECT count(*), count(n), sum(n), min(d), max(word) FROM $t WHERE id < {id}"),
        "SELECT code, count(*), sum(d), max(n) FROM $t GROUP BY code".into(),
        "SELECT id, d FROM $t ORDER BY d DESC, id LIMIT 7".into(),
        "SELECT length(long), count(*) FROM $t WHERE flag GROUP BY 1".into(),
        "SELECT a.id, b.word FROM $t a JOIN $t b ON a.id = b.id + 1 WHERE b.n = 5".into(),
    ]
}

fn values(rng: &mut StdRng, ids: std::ops::Range<i64>) -> String {
    let rows = ids.map(|id| {
        let n = match rng.random_range(0..9) {
            0 => "NULL".to_string(),
            _ => rng.random_range(-100..100).to_string(),
        };
        let long = match rng.random_range(0..30) {
            0 => "NULL".to_string(),
            1 => format!("repeat('{id} long ', {})", rng.random_range(0..2000)),
            _ => format!("'short {id}'"),
        };
        let code = ["'A'", "'B'", "'R'", "NULL"][rng.random_range(0..4)];
        // Quarters add up to the same sum in any order.
        let (flag, quarters) = (rng.random::<bool>(), rng.random_range(0..1_000_000));
        format!(
            "({id}, {n}, 'row {} of {id}', {code}, {flag}, {quarters} / 4.0, {long})",
            id % 50
        )
    });
    rows.collect::<Vec<_>>().join(", ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_answers_alike_in_both_layouts() {
    let mut rng = random();
    let folder = tempfile::tempdir().unwrap();
    let mut session = open(folder.path());
    let columns =
        "(id BIGINT PRIMARY KEY, n INT, word TEXT, code TEXT, flag BOOLEAN, d DOUBLE, long TEXT)";
    run(&session, &format!("CREATE TABLE plain {columns}")).await;
    run(
        &session,
        &format!("CREATE TABLE pax {columns} WITH (layout = 'pax', retention = '1 day')"),
    )
    .await;
    compare(&session, &queries(&mut rng)).await;
    let first = format!("INSERT INTO plain VALUES {}", values(&mut rng, 0..400));
    run(&session, &first).await;
    run(&session, "INSERT INTO pax SELECT * FROM plain").await;
    compare(&session, &queries(&mut rng)).await;
    let mut next = 400;
    for round in 0..6 {
        let (from, key) = (rng.random_range(0..next), rng.random_range(2..60));
        match rng.random_range(0..7) {
            0 | 1 => {
                let count = [1, 1, 9, 60][rng.random_range(0..4)];
                let values = values(&mut rng, next..next + count);
                on_both(&session, &format!("INSERT INTO $t VALUES {values}")).await;
                next += count;
            }
            2 => on_both(&session, &format!("DELETE FROM $t WHERE id % {key} = 1")).await,
            3 => {
                let set = "n = coalesce(n, 0) + 1, word = word || '!'";
                on_both(
                    &session,
                    &format!("UPDATE $t SET {set} WHERE id > {from} AND id % 7 = 3"),
                )
                .await;
            }
            4 => on_both(&session, "VACUUM $t").await,
            5 => {
                run(&session, "BEGIN").await;
                on_both(&session, &format!("DELETE FROM $t WHERE id = {from}")).await;
                let values = values(&mut rng, next..next + 2);
                on_both(&session, &format!("INSERT INTO $t VALUES {values}")).await;
                compare(&session, &queries(&mut rng)[..3]).await;
                let is_kept = rng.random();
                run(&session, if is_kept { "COMMIT" } else { "ROLLBACK" }).await;
                next += 2;
            }
            _ => {
                drop(session);
                session = open(folder.path());
            }
        }
        if round % 3 == 0 {
            compare(&session, &queries(&mut rng)).await;
        }
    }
    run(&session, "CREATE INDEX pax_words ON pax USING ngram (word)").await;
    compare(&session, &queries(&mut rng)).await;

    // Other columns, and rows beside them.
    on_both(&session, "ALTER TABLE $t ADD COLUMN extra INT DEFAULT 7").await;
    on_both(&session, "ALTER TABLE $t RENAME COLUMN flag TO flagged").await;
    on_both(&session, "ALTER TABLE $t ALTER COLUMN n TYPE BIGINT").await;
    on_both(&session, "ALTER TABLE $t DROP COLUMN d").await;
    on_both(&session, "INSERT INTO $t (id, word) VALUES (90000, 'last')").await;
    let altered = [
        "SELECT * FROM $t",
        "SELECT id, extra, n FROM $t WHERE n > 10 AND extra = 7",
    ];
    compare(&session, &altered.map(String::from)).await;
    run(
        &session,
        "CREATE TABLE copy WITH (layout = 'PAX') AS SELECT * FROM pax",
    )
    .await;
    let copied = "SELECT * FROM pax EXCEPT SELECT * FROM copy";
    assert!(rows(&session, copied).await.is_empty());
    let layouts = "SELECT \"table\", layout FROM system.tables ORDER BY 1";
    let layouts_now = rows(&session, layouts).await;
    assert_eq!(layouts_now, ["copy pax", "pax pax", "plain column"]);
    drop(session);

    let session = open(folder.path());
    compare(&session, &altered.map(String::from)).await;
    assert_eq!(rows(&session, layouts).await, layouts_now);
    drop(session);
    let database = Database::open(folder.path(), DatabaseOptions::default()).unwrap();
    let table = database.snapshot("public", "pax").unwrap();
    let shared = |number: usize| {
        table
            .segments
            .iter()
            .any(|s| s.chunks[number].run.part.is_some())
    };
    assert!(shared(0) && shared(2), "its columns share pages");
    let report = database.fsck(&mut |_| Ok(())).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[tokio::test]
async fn what_is_no_layout_is_refused() {
    let session = session();
    let said = error(&session, "CREATE TABLE t (a INT) WITH (layout = 'row')").await;
    assert!(
        said.contains("'column' or 'pax'") && said.contains("'row'"),
        "{said}"
    );
    let said = error(&session, "CREATE TABLE t (a INT) WITH (paper = 'A4')").await;
    assert!(said.contains("paper") && said.contains("layout"), "{said}");
    let twice = "CREATE TABLE t (a INT) WITH (layout = 'pax', layout = 'column')";
    assert!(error(&session, twice).await.contains("twice"));
    run(&session, "CREATE TABLE t (a INT) WITH (layout = 'column')").await;
    let said = error(&session, "ALTER TABLE t SET (layout = 'pax')").await;
    assert!(
        said.contains("CREATE TABLE") && said.contains("layout"),
        "{said}"
    );
}

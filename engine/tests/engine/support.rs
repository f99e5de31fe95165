//! What the tests share.

use std::num::NonZeroUsize;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::util::pretty::pretty_format_batches;
use datafusion::dataframe::DataFrame;
use datafusion::physical_plan::collect;
use flashmesh::{Engine, EngineOptions, Session};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::test_rack::TestRack;

/// A seed, which is printed; `FLASHMESH_TEST_SEED` replays one.
pub fn seed() -> u64 {
    let seed = std::env::var("FLASHMESH_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    println!("FLASHMESH_TEST_SEED={seed}");
    seed
}

/// A generator of such a seed.
pub fn random() -> StdRng {
    StdRng::seed_from_u64(seed())
}

/// A session on a temporary database: of a rack, where `FLASHMESH_TEST_RACK` says of how many nodes.
pub fn session() -> Session {
    let options = EngineOptions::default();
    let nodes = std::env::var("FLASHMESH_TEST_RACK");
    let engine = match nodes.ok().and_then(|nodes| nodes.parse().ok()) {
        Some(nodes) => TestRack::new(nodes, options).stay(),
        None => Engine::open(options).unwrap(),
    };
    engine.session().unwrap()
}

/// A session of so many threads on a temporary database.
pub fn session_of_threads(threads: usize) -> Session {
    let options = EngineOptions {
        threads: NonZeroUsize::new(threads),
        ..EngineOptions::default()
    };
    Engine::open(options).unwrap().session().unwrap()
}

/// The rows of a query by the plan that servers and shells make of it: that of an earlier one, if
/// it was run before.
pub async fn collect_as_servers_do(
    frame: DataFrame,
) -> datafusion::error::Result<Vec<RecordBatch>> {
    let context = Arc::new(frame.task_ctx());
    let (state, plan) = frame.into_parts();
    let plan = flashmesh_planner::physical_plan(&state, &plan).await?;
    collect(plan, context).await
}

/// Runs a statement to its end.
pub async fn run(session: &Session, sql: &str) {
    batch(session, sql).await;
}

/// The whole result of a statement as one batch.
pub async fn batch(session: &Session, sql: &str) -> RecordBatch {
    let frame = session
        .sql(sql)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e}"));
    let schema = Arc::clone(frame.schema().inner());
    let batches = collect_as_servers_do(frame)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e}"));
    let schema = batches.first().map_or(schema, RecordBatch::schema);
    concat_batches(&schema, &batches).unwrap()
}

/// The result's rows as text, one string a row, fields separated by spaces.
pub async fn rows(session: &Session, sql: &str) -> Vec<String> {
    let text = pretty_format_batches(&[batch(session, sql).await])
        .unwrap()
        .to_string();
    let cells = |line: &str| {
        line.trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect::<Vec<_>>()
            .join(" ")
    };
    text.lines()
        .skip(3)
        .filter(|line| line.starts_with('|'))
        .map(cells)
        .collect()
}

/// The rows of a query in every mode, which must agree.
pub async fn in_all_modes(session: &Session, sql: &str) -> Vec<String> {
    let mut answers = Vec::new();
    for mode in ["never", "auto", "always"] {
        session
            .sql(&format!("SET flashmesh.pushdown = '{mode}'"))
            .await
            .unwrap();
        answers.push((mode, rows(session, sql).await));
    }
    for (mode, answer) in &answers[1..] {
        assert_eq!(*answer, answers[0].1, "{sql}: {mode} against never");
    }
    answers.remove(0).1
}

/// The rows of [`in_all_modes`] as one text, between commas; NULLs at their ends are left out.
pub async fn answer(session: &Session, sql: &str) -> String {
    let rows = in_all_modes(session, sql).await;
    let rows: Vec<_> = rows.iter().map(|row| row.trim()).collect();
    rows.join(",")
}

/// Holds a query to fail in every mode, with a message that says so.
pub async fn fails_in_all_modes(session: &Session, sql: &str, says: &str) {
    for mode in ["never", "auto", "always"] {
        run(session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        let error = error(session, sql).await;
        assert!(error.contains(says), "{mode}: {sql}: {error}");
    }
}

/// The message of a statement that fails, be it at once or while its result is read.
pub async fn error(session: &Session, sql: &str) -> String {
    let failed = match session.sql(sql).await {
        Err(error) => error,
        Ok(frame) => match frame.collect().await {
            Err(error) => error.into(),
            Ok(rows) => panic!("{sql} did not fail, it gave {rows:?}"),
        },
    };
    failed.to_string()
}

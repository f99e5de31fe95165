//! What the tests share: opening databases, running SQL, comparing rows.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Field;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatchIterator;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use flashmesh::{Engine, EngineOptions, LoadMode, Result, Session};

/// The values of `flashmesh.pushdown`.
pub const PUSHDOWN_MODES: [&str; 3] = ["auto", "always", "never"];

/// A row as text; `None` is NULL.
pub type Row = Vec<Option<String>>;

/// Opens the database in `folder`.
pub fn open(folder: &Path) -> Result<Arc<Engine>> {
    Engine::open(EngineOptions {
        path: Some(folder.to_path_buf()),
        ..EngineOptions::default()
    })
}

/// Runs a query to its end.
pub async fn collect(session: &Session, sql: &str) -> Result<Vec<RecordBatch>> {
    Ok(session.sql(sql).await?.collect().await?)
}

/// Runs a query and gives its rows as text.
pub async fn query(session: &Session, sql: &str) -> Result<Vec<Row>> {
    Ok(rows(&collect(session, sql).await?))
}

/// Chooses what the planner pushes down.
pub async fn set_pushdown(session: &Session, mode: &str) {
    collect(session, &format!("SET flashmesh.pushdown = '{mode}'"))
        .await
        .expect("SET flashmesh.pushdown");
}

/// Loads batches into a table.
pub async fn load(
    session: &Session,
    table: &str,
    batches: &[RecordBatch],
    mode: LoadMode,
) -> Result<u64> {
    let schema = batches[0].schema();
    let batches: Vec<Result<RecordBatch, ArrowError>> = batches.iter().cloned().map(Ok).collect();
    session
        .load_reader(
            table,
            Box::new(RecordBatchIterator::new(batches, schema)),
            mode,
        )
        .await
}

/// All rows as text, in order.
pub fn rows(batches: &[RecordBatch]) -> Vec<Row> {
    let options = FormatOptions::default().with_display_error(false);
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options).expect("a printable column"))
            .collect();
        for row in 0..batch.num_rows() {
            let cell = |(column, formatter): (&_, &ArrayFormatter)| {
                let column: &arrow::array::ArrayRef = column;
                column
                    .is_valid(row)
                    .then(|| formatter.value(row).to_string())
            };
            rows.push(batch.columns().iter().zip(&columns).map(cell).collect());
        }
    }
    rows
}

/// A column of a schema in a message.
pub fn describe(field: &Field) -> String {
    format!("{} {}", field.name(), field.data_type())
}

/// The seed of a random test: a new one each time, or what `FLASHMESH_TEST_SEED` says. Printed,
/// so that a failure can be replayed.
pub fn seed(test: &str) -> u64 {
    let seed = match env::var("FLASHMESH_TEST_SEED") {
        Ok(text) => text.parse().expect("FLASHMESH_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("{test}: FLASHMESH_TEST_SEED={seed}");
    seed
}

/// The folder of the sources.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The `flashmesh` binary of this build. It belongs to another package, so that `cargo test -p`
/// does not build it; `cargo xtask test` does.
pub fn flashmesh_binary() -> PathBuf {
    let test = env::current_exe().expect("the test's own path");
    let binary = test
        .parent()
        .and_then(Path::parent)
        .expect("target/<profile>/deps")
        .join("flashmesh");
    assert!(
        binary.exists(),
        "{} is missing: cargo build --release --package flashmesh",
        binary.display()
    );
    binary
}

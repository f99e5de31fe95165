//! flashmesh inside a Rust program: open a database, load Arrow data, stream an answer.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow::record_batch::RecordBatchIterator;
use flashmesh::{Engine, EngineOptions, LoadMode};

#[tokio::main]
async fn main() -> flashmesh::Result<()> {
    // No path: a temporary database. A second process can't open the same one.
    let engine = Engine::open(EngineOptions::default())?;
    let session = engine.session()?;

    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
    let heights: ArrayRef = Arc::new(Float64Array::from_iter_values(
        (0..100_000).map(|i| f64::from(i % 8_848)),
    ));
    let batch = RecordBatch::try_from_iter([("id", ids), ("height", heights)])?;
    let schema = batch.schema();
    let reader = RecordBatchIterator::new([Ok(batch)], schema);
    let rows = session
        .load_reader("peak", Box::new(reader), LoadMode::Create)
        .await?;
    println!("{rows} rows loaded");

    let answer = session
        .sql("SELECT id, height FROM peak WHERE height > 8840 ORDER BY height DESC, id LIMIT 5")
        .await?;
    println!("{}", answer.to_string().await?);
    Ok(())
}

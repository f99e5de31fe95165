//! INSERT: batches into a load, in parallel, committed as one.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::sink::DataSink;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use flashmesh_macros::async_impl;
use flashmesh_storage::capability::Capability;
use flashmesh_storage::changes::Changes;
use flashmesh_storage::page::SEGMENT_ROWS;
use flashmesh_storage::table::{LoadTarget, LoadWriter};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::error::from_storage;

/// Writes a stream of batches into a table.
///
/// Rows go to the writers a segment at a time, so that each segment holds neighbouring rows
/// however many writers there are, and encoding runs on blocking threads beside the query.
#[derive(Debug)]
pub struct FlashSink {
    changes: Changes,
    capability: Arc<Capability>,
    name: (String, String),
    schema: SchemaRef,
    overwrite: bool,
}

impl FlashSink {
    /// A sink for the table `name` (schema, table), which `capability` is of; `overwrite` replaces
    /// its rows.
    pub fn new(
        changes: Changes,
        capability: Arc<Capability>,
        name: (String, String),
        schema: SchemaRef,
        overwrite: bool,
    ) -> Self {
        Self {
            changes,
            capability,
            name,
            schema,
            overwrite,
        }
    }
}

impl DisplayAs for FlashSink {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (schema, table) = &self.name;
        let op = if self.overwrite {
            "overwrite"
        } else {
            "append"
        };
        write!(f, "FlashSink(table={schema}.{table}, {op})")
    }
}

/// About one segment's rows.
type Chunk = Vec<RecordBatch>;

#[async_impl]
impl DataSink for FlashSink {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    async fn write_all(
        &self,
        mut data: SendableRecordBatchStream,
        context: &Arc<TaskContext>,
    ) -> Result<u64> {
        let (schema, table) = self.name.clone();
        let target = if self.overwrite {
            LoadTarget::Overwrite { schema, table }
        } else {
            LoadTarget::Append { schema, table }
        };
        let load = self
            .changes
            .begin_load(&self.capability, target)
            .map_err(from_storage)?;
        let (sender, receiver) = mpsc::channel::<Chunk>(1);
        let receiver = Arc::new(Mutex::new(receiver));
        let workers = (0..context.session_config().target_partitions().max(1))
            .map(|_| {
                let writer = load.writer().map_err(from_storage)?;
                let receiver = Arc::clone(&receiver);
                Ok(SpawnedTask::spawn_blocking(move || {
                    write_chunks(writer, &receiver)
                }))
            })
            .collect::<Result<Vec<_>>>()?;
        // The workers alone keep the channel open, so that sending fails once all have failed.
        drop(receiver);

        let mut chunk = Chunk::new();
        let mut rows = 0;
        let mut open = true;
        while open && let Some(batch) = data.next().await {
            let batch = batch?;
            rows += batch.num_rows();
            chunk.push(batch);
            if rows >= SEGMENT_ROWS {
                open = sender.send(std::mem::take(&mut chunk)).await.is_ok();
                rows = 0;
            }
        }
        if open && !chunk.is_empty() {
            // When every worker has failed, joining them tells why.
            let _ = sender.send(chunk).await;
        }
        drop(sender);
        for worker in workers {
            worker
                .join()
                .await
                .map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?
                .map_err(from_storage)?;
        }
        // A worker that failed ended this function above; the load is then dropped and undone.
        SpawnedTask::spawn_blocking(move || load.commit())
            .join()
            .await
            .map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?
            .map_err(from_storage)
    }
}

fn write_chunks(
    mut writer: LoadWriter,
    receiver: &Mutex<mpsc::Receiver<Chunk>>,
) -> flashmesh_storage::Result<()> {
    loop {
        let chunk = receiver.lock().blocking_recv();
        let Some(chunk) = chunk else {
            return writer.finish();
        };
        for batch in &chunk {
            writer.append(batch)?;
        }
    }
}

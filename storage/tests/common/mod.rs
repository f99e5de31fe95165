//! Tables for tests: batches encoded into segments on flash in memory, without a database.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use flashmesh_pushdown::{RuntimeFilter, VerifiedProgram};
use flashmesh_storage::Result;
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::flash::{Geometry, MemoryFlash};
use flashmesh_storage::node::{Command, RuntimeFilters, SegmentQueue, StorageNode};
use flashmesh_storage::page::{ChunkIdentity, encode_chunk};
use flashmesh_storage::store::{PageRun, PageStore, PageWriter};
use flashmesh_storage::table::{
    Chunk, ColumnStatistics, Segment, SegmentId, TableId, TableSnapshot, scan_schema,
};

/// Writes a batch as a segment.
pub fn write_segment(writer: &mut PageWriter, number: u32, batch: &RecordBatch) -> Arc<Segment> {
    let mut chunks = Vec::new();
    for (column, array) in (0..).zip(batch.columns()) {
        let identity = ChunkIdentity {
            table: 1,
            segment: number,
            column_group: column,
            generation: 1,
        };
        let encoded = encode_chunk(array.as_ref(), identity).expect("encodes");
        let run = PageRun {
            count: encoded.pages.len() as u32,
            first: writer.append(encoded.pages).expect("appends"),
            identity: identity.first_page(),
            label: format!("column {column}").into(),
        };
        chunks.push(Chunk::new(run, encoded.aux_pages.into(), encoded.zones));
    }
    let rows = batch.num_rows() as u32;
    Arc::new(Segment::new(SegmentId(number), 1, rows, chunks))
}

/// A table of segments.
pub fn snapshot_of(schema: SchemaRef, segments: Vec<Arc<Segment>>) -> Arc<TableSnapshot> {
    Arc::new(TableSnapshot {
        scan_schema: scan_schema(&schema),
        indexes: vec![],
        id: TableId(1),
        name: "public.test".into(),
        statistics: vec![ColumnStatistics::default(); schema.fields().len()],
        schema,
        version: 1,
        segments,
    })
}

/// A table whose segments are the given batches.
pub struct TestTable {
    pub batches: Vec<RecordBatch>,
    pub snapshot: Arc<TableSnapshot>,
    pub node: Arc<StorageNode>,
    pub metrics: Arc<ScanMetrics>,
}

impl TestTable {
    pub fn new(batches: Vec<RecordBatch>) -> Self {
        Self::with_cache(batches, 256 << 20)
    }

    /// A table with so large a page cache.
    pub fn with_cache(batches: Vec<RecordBatch>, cache_bytes: u64) -> Self {
        let geometry = Geometry {
            pages_per_erase_block: 256,
            erase_blocks: 4096,
        };
        let store = PageStore::open(Arc::new(MemoryFlash::new(geometry, 1)), cache_bytes, [])
            .expect("an empty store");
        let mut writer = store.writer().expect("a writer");
        let schema = batches[0].schema();
        let mut segments = Vec::new();
        for (number, batch) in (0..).zip(&batches) {
            if batch.num_rows() > 0 {
                segments.push(write_segment(&mut writer, number, batch));
            }
        }
        writer.finish().expect("writes").keep();
        let snapshot = snapshot_of(schema, segments);
        Self {
            batches,
            snapshot,
            node: StorageNode::new(store),
            metrics: Arc::default(),
        }
    }

    /// Runs a Program; the streams take turns.
    pub fn run(
        &self,
        program: Arc<VerifiedProgram>,
        filters: &[RuntimeFilter],
        streams: usize,
        batch_rows: usize,
    ) -> Result<Vec<RecordBatch>> {
        let runtime_filters = Arc::new(RuntimeFilters::default());
        runtime_filters.publish(filters.to_vec());
        let work = SegmentQueue::new(self.snapshot.segments.clone());
        let command = || Command {
            program: Arc::clone(&program),
            table: Arc::clone(&self.snapshot),
            work: Arc::clone(&work),
            runtime_filters: Arc::clone(&runtime_filters),
            batch_rows,
            metrics: Arc::clone(&self.metrics),
            capability: self.node.owner_capability(&self.snapshot),
        };
        let mut open = (0..streams)
            .map(|_| self.node.submit(command()))
            .collect::<Result<Vec<_>>>()?;
        let mut output = Vec::new();
        while !open.is_empty() {
            let mut left = Vec::new();
            for mut stream in open {
                if let Some(batch) = stream.next() {
                    output.push(batch?);
                    left.push(stream);
                }
            }
            open = left;
        }
        Ok(output)
    }
}

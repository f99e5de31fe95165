//! The pump between a plan's partitions and a load: batches are cut into segments and encoded by
//! several threads, with a bounded number of segments in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, AsArray, MAX_INLINE_VIEW_LEN};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use datafusion::common::stats::Precision;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, StatisticsArgs, StatisticsContext,
};
use flashmesh_storage::page::SEGMENT_ROWS;
use flashmesh_storage::table::{Load, LoadWriter};
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::blocking::{blocking, join_error};
use crate::error::Result;
use crate::merge::apart;
use crate::returning::Returned;

/// What a load has done so far; read it from another thread to show progress.
#[derive(Debug, Default)]
pub struct LoadProgress {
    rows: AtomicU64,
    bytes: AtomicU64,
    /// 0: not known.
    total_rows: AtomicU64,
}

impl LoadProgress {
    /// Rows encoded.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Rows that there will be, once that is known; Parquet and Arrow files tell it.
    pub fn total_rows(&self) -> Option<u64> {
        Some(self.total_rows.load(Ordering::Relaxed)).filter(|rows| *rows > 0)
    }

    /// Size of the encoded rows as Arrow data.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts rows, of so many bytes.
    pub(crate) fn count(&self, rows: usize, bytes: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The rows of one segment on their way to an encoder.
struct Group {
    /// Its place among all groups: those of an earlier partition come first.
    position: u64,
    batches: Vec<RecordBatch>,
    bytes: usize,
    /// Held until the rows are encoded, so that operators upstream see the memory as taken.
    memory: MemoryReservation,
}

/// Runs `plan`, stores its rows in the order of its partitions and commits. Returns the number of
/// rows; `returned` takes its columns out of them, and those of a MERGE are taken apart.
///
/// Each partition of the plan is read by its own task. Whole segments are encoded by up to
/// `encoders` threads, whichever partition they come from, so that a plan with one partition
/// loads as fast as one with many. One segment a partition and one an encoder are in memory.
/// Dropping the future, or an error, undoes the load.
pub(crate) async fn run(
    load: Load,
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    encoders: usize,
    progress: Arc<LoadProgress>,
    returned: Option<Arc<Returned>>,
    is_merge: bool,
) -> Result<u64> {
    progress
        .total_rows
        .store(exact_rows(plan.as_ref()).unwrap_or(0), Ordering::Relaxed);
    let (sender, mut groups) = mpsc::channel(1);
    let mut reading = JoinSet::new();
    for partition in 0..plan.output_partitioning().partition_count() {
        let mut stream = plan.execute(partition, context.clone())?;
        if let Some(returned) = &returned {
            stream = returned.take_from(stream, partition);
        }
        if is_merge {
            stream = apart(stream);
        }
        let memory =
            MemoryConsumer::new(format!("load[{partition}]")).register(context.memory_pool());
        reading.spawn(cut(stream, partition, sender.clone(), memory));
    }
    drop(sender);

    let first = groups.recv().await.transpose()?;
    let second = groups.recv().await.transpose()?;
    if second.is_none() {
        // A small statement is the work of one thread: none waits for another.
        while let Some(ended) = reading.join_next().await {
            ended.map_err(join_error)?;
        }
        return blocking(move || {
            if let Some(group) = first {
                encode(load.writer()?, group, &progress)?.finish()?;
            }
            load.commit()
        })
        .await;
    }

    // Writers are made as they are needed.
    let mut writers = 0;
    let mut idle = Vec::new();
    let mut encoding = JoinSet::new();
    let mut early = [first, second].into_iter().flatten();
    loop {
        let group = match early.next() {
            Some(group) => group,
            None => match groups.recv().await.transpose()? {
                Some(group) => group,
                None => break,
            },
        };
        while let Some(ended) = encoding.try_join_next() {
            idle.push(ended.map_err(join_error)??);
        }
        let writer = match idle.pop() {
            Some(writer) => writer,
            None if writers < encoders => {
                writers += 1;
                load.writer()?
            }
            None => match encoding.join_next().await {
                Some(ended) => ended.map_err(join_error)??,
                None => load.writer()?,
            },
        };
        let progress = Arc::clone(&progress);
        encoding.spawn_blocking(move || encode(writer, group, &progress));
    }
    while let Some(ended) = reading.join_next().await {
        ended.map_err(join_error)?;
    }
    while let Some(ended) = encoding.join_next().await {
        idle.push(ended.map_err(join_error)??);
    }
    let mut finishing = JoinSet::new();
    for writer in idle {
        finishing.spawn_blocking(move || writer.finish());
    }
    while let Some(ended) = finishing.join_next().await {
        ended.map_err(join_error)??;
    }
    blocking(move || load.commit()).await
}

/// The number of rows that a plan will give, where its sources know.
fn exact_rows(plan: &dyn ExecutionPlan) -> Option<u64> {
    match StatisticsContext::new()
        .compute(plan, &StatisticsArgs::new())
        .ok()?
        .num_rows
    {
        Precision::Exact(rows) => Some(rows as u64),
        Precision::Inexact(_) | Precision::Absent => None,
    }
}

/// Bytes from which on a group is written before it has the rows of a segment.
const GROUP_MAX_BYTES: usize = 128 << 20;

/// Cuts a stream into groups of exactly one segment (the last may be shorter, and those of wide rows) and sends
/// them, or the error that ends the stream. Stops where nobody receives any more: the load has ended.
async fn cut(
    mut stream: SendableRecordBatchStream,
    partition: usize,
    sender: mpsc::Sender<Result<Group>>,
    memory: MemoryReservation,
) {
    let mut position = (partition as u64) << 32;
    let mut next_group = || {
        let group = Group {
            position,
            batches: Vec::new(),
            bytes: 0,
            memory: memory.new_empty(),
        };
        position += 1;
        group
    };
    let mut group = next_group();
    let mut rows = 0;
    while let Some(batch) = stream.next().await {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                let _ = sender.send(Err(error.into())).await;
                return;
            }
        };
        let batch_bytes = bytes_of(&batch);
        let mut offset = 0;
        while offset < batch.num_rows() {
            let taken = (batch.num_rows() - offset).min(SEGMENT_ROWS - rows);
            let bytes = batch_bytes * taken / batch.num_rows();
            // `grow` rather than `try_grow`: a load needs these few segments to go on at all;
            // what can spill is the plan above, and it sees the pool filled.
            group.memory.grow(bytes);
            group.bytes += bytes;
            group.batches.push(batch.slice(offset, taken));
            offset += taken;
            rows += taken;
            if rows == SEGMENT_ROWS || group.bytes >= GROUP_MAX_BYTES {
                let full = std::mem::replace(&mut group, next_group());
                if sender.send(Ok(full)).await.is_err() {
                    return;
                }
                rows = 0;
            }
        }
    }
    if rows > 0 {
        let _ = sender.send(Ok(group)).await;
    }
}

/// What the rows of a batch take. Views of texts count as those: many batches of a sort are slices of the same texts,
/// and whose size counted as that of all of them had segments of few rows.
fn bytes_of(batch: &RecordBatch) -> usize {
    let columns = batch.columns().iter();
    let bytes = columns.map(|column| match column.data_type() {
        DataType::Utf8View => bytes_of_views(column.as_string_view().views()),
        DataType::BinaryView => bytes_of_views(column.as_binary_view().views()),
        _ => {
            let sliced = column.to_data().get_slice_memory_size();
            sliced.unwrap_or_else(|_| column.get_array_memory_size())
        }
    });
    bytes.sum()
}

fn bytes_of_views(views: &[u128]) -> usize {
    let elsewhere = views.iter().map(|view| *view as u32);
    let elsewhere = elsewhere.filter(|length| *length > MAX_INLINE_VIEW_LEN);
    std::mem::size_of_val(views) + elsewhere.map(|length| length as usize).sum::<usize>()
}

/// Encodes a group and starts its writes; gives the writer back.
fn encode(
    mut writer: LoadWriter,
    group: Group,
    progress: &LoadProgress,
) -> flashmesh_storage::Result<LoadWriter> {
    writer.seek(group.position)?;
    for batch in &group.batches {
        writer.append(batch)?;
        progress.count(batch.num_rows(), 0);
    }
    progress.count(0, group.bytes);
    Ok(writer)
}

//! Tables for tests: batches encoded into segments on flash in memory, without a database.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use flashmesh_pushdown::testing;
use flashmesh_pushdown::{
    Limits, Program, ProgramError, RuntimeFilter, VerifiedProgram, interpreter, verify,
};
use flashmesh_storage::accelerator::cpu::CpuAccelerator;
use flashmesh_storage::accelerator::{Accelerator, ScanMetrics};
use flashmesh_storage::capability::CapabilityKey;
use flashmesh_storage::flash::{Geometry, MemoryFlash};
use flashmesh_storage::node::{Command, RackSide, RuntimeFilters, SegmentQueue, StorageNode};
use flashmesh_storage::page::{ChunkIdentity, GroupedColumn, encode_chunk, encode_groups};
use flashmesh_storage::peer::{Answer, CommandLife, Peers};
use flashmesh_storage::segment::{Chunk, Segment, SegmentId, TableId};
use flashmesh_storage::store::{
    CardId, NodeId, PageRun, PageStore, PageWriter, RunPart, StoreCard,
};
use flashmesh_storage::table::{ColumnStatistics, TableLayout, TableSnapshot, scan_schema};
use flashmesh_storage::{Result, StorageError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Writes a batch as a segment. In segments of odd numbers columns share pages.
pub fn write_segment(writer: &mut PageWriter, number: u32, batch: &RecordBatch) -> Arc<Segment> {
    let identity = |column_group| ChunkIdentity {
        table: 1,
        segment: number,
        column_group,
        generation: 1,
    };
    let mut shared = match number % 2 {
        0 => Vec::new(),
        _ => write_shared(writer, identity(u16::MAX - 1), batch),
    };
    shared.resize_with(batch.num_columns(), || None);
    let mut chunks = Vec::new();
    for ((column, array), shared) in (0..).zip(batch.columns()).zip(shared) {
        let label = format!("column {column}").into();
        let identity = identity(column);
        if let Some((part, of_column)) = shared {
            let run = PageRun {
                count: u32::from(of_column.aux_pages) + of_column.zones.len() as u32,
                first: part.run.first,
                identity: identity.first_page(),
                label,
                part: Some(Arc::new(part)),
            };
            let aux_pages = of_column.aux_pages.into();
            chunks.push(Chunk::new(run, aux_pages, of_column.zones));
            continue;
        }
        let encoded = encode_chunk(array.as_ref(), identity).expect("encodes");
        let run = PageRun {
            count: encoded.pages.len() as u32,
            first: writer.append(encoded.pages).expect("appends"),
            identity: identity.first_page(),
            label,
            part: None,
        };
        chunks.push(Chunk::new(run, encoded.aux_pages.into(), encoded.zones));
    }
    let rows = batch.num_rows() as u32;
    Arc::new(Segment::new(SegmentId(number), 1, rows, chunks))
}

/// Writes the columns of a batch that share pages; those that do not are `None`.
fn write_shared(
    writer: &mut PageWriter,
    identity: ChunkIdentity,
    batch: &RecordBatch,
) -> Vec<Option<(RunPart, GroupedColumn)>> {
    let Some(encoded) = encode_groups(batch.columns(), identity).expect("encodes") else {
        return Vec::new();
    };
    let run = Arc::new(PageRun {
        count: encoded.pages.len() as u32,
        first: writer.append(encoded.pages).expect("appends"),
        identity: identity.first_page(),
        label: "columns".into(),
        part: None,
    });
    let shared = || encoded.columns.iter().flatten();
    let parts = shared().count() as u16;
    let first_group = shared().map(|column| u32::from(column.aux_pages)).sum();
    let (mut number, mut next_aux) = (0, 0);
    let columns = encoded.columns.into_iter().map(|column| {
        let column = column?;
        let part = RunPart {
            run: Arc::clone(&run),
            number,
            parts,
            aux: (column.aux_pages > 0).then_some(next_aux),
            first_group,
        };
        number += 1;
        next_aux += u32::from(column.aux_pages);
        Some((part, column))
    });
    columns.collect()
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
        rows_version: 0,
        version: 1,
        segments,
        lost_rows: false,
        defaults: vec![],
        checks: vec![],
        layout: TableLayout::Column,
        distribution: None,
    })
}

/// The node that has the segments.
const NODE: NodeId = NodeId(5);

/// What happens to a command for another node and its answer.
#[allow(dead_code, reason = "few tests have several nodes")]
#[derive(Debug, Clone, Copy)]
pub enum Damage {
    /// The command is changed, and its checksum is that of what it became.
    Forged,
    /// Command and answer are changed.
    OnTheWay,
}

type NextDamage = Arc<Mutex<Option<(Damage, StdRng)>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test goes on after a panic")
}

/// Another node that answers at once.
#[derive(Debug)]
struct OtherNode {
    node: Arc<StorageNode>,
    damage: NextDamage,
}

impl Peers for OtherNode {
    fn holder(&self, node: NodeId) -> Option<NodeId> {
        (node == NODE).then_some(node)
    }

    fn read_each_other(&self) -> bool {
        false
    }

    fn send(&self, _: NodeId, mut command: Vec<u8>) -> Result<Box<dyn Answer>> {
        let mut damage = lock(&self.damage).take();
        match &mut damage {
            Some((Damage::Forged, rng)) => {
                flip(&mut command, rng);
                let check = crc_fast::crc32_iscsi(command.get(4..).unwrap_or_default());
                let place = command.first_chunk_mut::<4>();
                place
                    .into_iter()
                    .for_each(|place| *place = check.to_le_bytes());
            }
            Some((Damage::OnTheWay, rng)) => flip_half(&mut command, rng),
            None => {}
        }
        let mut frames = VecDeque::new();
        self.node.serve(
            &command,
            THREADS_THERE,
            &CommandLife::default(),
            &mut |mut frame| {
                if let Some((Damage::OnTheWay, rng)) = &mut damage {
                    flip_half(&mut frame, rng);
                }
                frames.push_back(frame);
                Ok(())
            },
        )?;
        Ok(Box::new(Frames(frames)))
    }
}

/// Damages every second frame.
fn flip_half(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    if rng.random() {
        flip(bytes, rng);
    }
}

fn flip(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..5) {
        let at = rng.random_range(0..bytes.len());
        match rng.random_bool(0.8) {
            true => bytes[at] ^= 1 << rng.random_range(0..8),
            false => bytes.truncate(at.max(1)),
        }
    }
}

struct Frames(VecDeque<Vec<u8>>);

impl Answer for Frames {
    fn poll_frame(&mut self, _: &Waker) -> Poll<Result<Option<Bytes>>> {
        Poll::Ready(Ok(self.0.pop_front().map(Bytes::from)))
    }
}

/// A table whose segments are the given batches.
pub struct TestTable {
    pub batches: Vec<RecordBatch>,
    pub snapshot: Arc<TableSnapshot>,
    #[allow(dead_code, reason = "few tests read pages themselves")]
    pub store: Arc<PageStore>,
    pub node: Arc<StorageNode>,
    pub metrics: Arc<ScanMetrics>,
    damage: NextDamage,
}

/// Threads of the other node.
const THREADS_THERE: usize = 2;

impl TestTable {
    #[allow(dead_code, reason = "not every test has the usual accelerator")]
    pub fn new(batches: Vec<RecordBatch>) -> Self {
        Self::with_cache(batches, 256 << 20)
    }

    /// A table with so large a page cache.
    #[allow(dead_code, reason = "not every test has the usual accelerator")]
    pub fn with_cache(batches: Vec<RecordBatch>, cache_bytes: u64) -> Self {
        Self::with_node(batches, cache_bytes, StorageNode::new)
    }

    /// A table on a node of these accelerators.
    #[allow(dead_code, reason = "not every test has another accelerator")]
    pub fn with_accelerator(batches: Vec<RecordBatch>, accelerator: Arc<dyn Accelerator>) -> Self {
        Self::with_node(batches, 256 << 20, |store| {
            StorageNode::with_accelerators(store, vec![accelerator])
        })
    }

    /// A table whose segments are all on the card of another node, to which every command over them
    /// is left.
    #[allow(dead_code, reason = "few tests have several nodes")]
    pub fn of_another_node(batches: Vec<RecordBatch>) -> Self {
        let key = CapabilityKey::new(&[3; 32]);
        let damage = NextDamage::default();
        let of_node = Arc::clone(&damage);
        let mut table = Self::with_node(batches, 1 << 20, |store| {
            let there = StorageNode::serving(Arc::clone(&store), key.clone());
            let peers = OtherNode {
                node: there,
                damage: Arc::clone(&damage),
            };
            let rack = RackSide {
                key,
                peers: Arc::new(peers),
            };
            let accelerators: Vec<Arc<dyn Accelerator>> = vec![Arc::new(CpuAccelerator::new())];
            StorageNode::with_parts(store, accelerators, None, Some(rack))
        });
        table.damage = of_node;
        table
    }

    /// How many streams of the other node were asked for since this was asked before: their rows come
    /// beside those of here.
    #[allow(dead_code, reason = "few tests have several nodes")]
    pub fn streams_there(&self) -> usize {
        let segments = self.metrics.segments_of_nodes.swap(0, Ordering::Relaxed);
        (segments as usize).min(THREADS_THERE)
    }

    /// The next command for the other node is damaged.
    #[allow(dead_code, reason = "few tests have several nodes")]
    pub fn damage(&self, damage: Damage, seed: u64) {
        *lock(&self.damage) = Some((damage, StdRng::seed_from_u64(seed)));
    }

    fn with_node(
        batches: Vec<RecordBatch>,
        cache_bytes: u64,
        node: impl FnOnce(Arc<PageStore>) -> Arc<StorageNode>,
    ) -> Self {
        let geometry = Geometry {
            pages_per_erase_block: 256,
            erase_blocks: 4096,
        };
        let card = StoreCard {
            node: NODE,
            card: CardId(2),
            flash: Arc::new(MemoryFlash::new(geometry, 1)),
        };
        let store = PageStore::open_cards(vec![card], cache_bytes, []).expect("an empty store");
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
            node: node(Arc::clone(&store)),
            store,
            metrics: Arc::default(),
            damage: Arc::default(),
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
        let work = SegmentQueue::new(self.snapshot.segments.clone());
        self.run_work(work, program, filters, streams, batch_rows)
    }

    /// The same with a queue that was told how to.
    pub fn run_work(
        &self,
        work: Arc<SegmentQueue>,
        program: Arc<VerifiedProgram>,
        filters: &[RuntimeFilter],
        streams: usize,
        batch_rows: usize,
    ) -> Result<Vec<RecordBatch>> {
        let runtime_filters = Arc::new(RuntimeFilters::default());
        runtime_filters.publish(filters.to_vec());
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

/// Runs a Program in `streams` streams and holds what leaves against the interpreter.
#[allow(dead_code, reason = "not every test runs Programs")]
pub fn check(
    table: &TestTable,
    program: &Program,
    filters: &[RuntimeFilter],
    streams: usize,
    batch_rows: usize,
) {
    let verified = verify(program.clone(), &table.snapshot.schema, &Limits::default())
        .expect("a valid program");
    table.streams_there();
    let result = table.run(Arc::new(verified), filters, streams, batch_rows);
    let streams = streams + table.streams_there();
    check_result(table, program, result, filters, streams);
}

/// Holds what a Program gave in `streams` streams of all nodes against the interpreter.
pub fn check_result(
    table: &TestTable,
    program: &Program,
    result: Result<Vec<RecordBatch>>,
    filters: &[RuntimeFilter],
    streams: usize,
) {
    let input: Vec<RecordBatch> = table
        .batches
        .iter()
        .map(|b| b.project(&testing::ordinals(program)).expect("its columns"))
        .collect();
    let expected = interpreter::run(program, &input);
    match (result, expected) {
        (Ok(output), Ok(_)) => {
            if let Err(difference) = testing::check_output(program, &input, &output, streams) {
                if std::env::var(testing::SEED_VARIABLE).is_ok() {
                    println!("input {input:?}\noutput {output:?}");
                }
                panic!("{difference}\n{program}\nruntime filters: {filters:?}");
            }
        }
        // Which of several rows fails first, and whether one that another conjunct removes is
        // looked at, is left open.
        (_, Err(ProgramError::Arithmetic { .. })) => {}
        (Err(StorageError::Program(ProgramError::Arithmetic { .. })), Ok(_))
            if !program.filter.is_empty() => {}
        (result, expected) => {
            let (ours, theirs) = (result.map(|_| "a result"), expected.map(|_| "a result"));
            panic!("accelerator: {ours:?}, interpreter: {theirs:?}\n{program}");
        }
    }
}

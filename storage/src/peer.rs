//! Commands for the nodes of a rack that have the segments, and their answers (BlueDBM section 4:
//! the host sends requests to in-store processors; only results travel).
//!
//! A command is sent with all that its node has to know: the Program, the version of the table as
//! far as it lies there, the runtime filters of the moment and the capability, which that node
//! verifies. The answer is a stream of frames: batches as an Arrow IPC stream, then what was counted,
//! or an error. How bytes get there is not known here: see [`Peers`].

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::ipc::reader::read_record_batch;
use arrow::ipc::root_as_message;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use flashmesh_pushdown::{Limits, Program, RuntimeFilter, VerifiedProgram, verify};
use prost::Message;

use crate::accelerator::ScanMetrics;
use crate::capability::{Capability, CapabilityRecord};
pub use crate::life::CommandLife;
use crate::page::plain::plain_schema;
use crate::segment::Segment;
pub use crate::shipped::CommandKernels;
use crate::shipped::{KernelRecord, Sent};
use crate::store::NodeId;
use crate::table::{ShippedTable, TableSnapshot};
use crate::{Result, StorageError};

/// Bytes that a command may have, and a frame of its answer.
pub const MESSAGE_MAX_BYTES: usize = 256 << 20;
/// Bytes of a command from which on it is compressed.
const COMPRESSED_FROM: usize = 16 << 10;
/// Rows of a batch that may be asked for.
const BATCH_ROWS_MAX: u32 = 1 << 20;

/// The other nodes of a rack, as those that run commands.
pub trait Peers: Debug + Send + Sync {
    /// The node to which commands over what lies on `node` are to be sent: that one, or one that has
    /// a copy of its cards. `None` where there is none, or the copy is here.
    fn holder(&self, node: NodeId) -> Option<NodeId>;
    /// Whether each node can read what any other one has: no copy lacks anything, of those from which
    /// they would read.
    fn read_each_other(&self) -> bool;
    /// Sends a command. Dropping the answer cancels it.
    ///
    /// # Errors
    /// `Io`, naming the node, when it is away.
    fn send(&self, node: NodeId, command: Vec<u8>) -> Result<Box<dyn Answer>>;
}

/// The frames of an answer.
pub trait Answer: Send {
    /// The next frame, `None` behind the last. While there is none yet, `waker` is woken when there
    /// is.
    ///
    /// # Errors
    /// `Io`, naming the node, when it went away.
    fn poll_frame(&mut self, waker: &Waker) -> Poll<Result<Option<Bytes>>>;
}

/// A command, in terms of one node: what to run there, over which version of which segments, for
/// whom.
#[derive(Debug)]
pub struct PeerCommand {
    /// What to run.
    pub program: Arc<VerifiedProgram>,
    /// The table; as a node decodes it, with its own segments alone.
    pub table: Arc<TableSnapshot>,
    /// What is known of rows that nobody wants.
    pub runtime_filters: Vec<RuntimeFilter>,
    /// Rows that a batch should have at most.
    pub batch_rows: usize,
    /// Whether text leaves as [plain](crate::page::plain) arrays.
    pub plain_text: bool,
    /// Whether it is an error when a device fails at it.
    pub forbids_fallback: bool,
    /// The accelerator that is asked for.
    pub accelerator: Option<Arc<str>>,
    /// That they may read the table; the node verifies it when the command runs.
    pub capability: Arc<Capability>,
    /// The kernels that the Program calls.
    pub kernels: CommandKernels,
}

#[derive(Clone, PartialEq, Message)]
struct CommandRecord {
    #[prost(bytes = "vec", tag = "1")]
    program: Vec<u8>,
    #[prost(message, required, tag = "2")]
    table: ShippedTable,
    #[prost(bytes = "vec", repeated, tag = "3")]
    runtime_filters: Vec<Vec<u8>>,
    #[prost(uint32, tag = "4")]
    batch_rows: u32,
    #[prost(bool, tag = "5")]
    plain_text: bool,
    #[prost(bool, tag = "6")]
    forbids_fallback: bool,
    #[prost(string, optional, tag = "7")]
    accelerator: Option<String>,
    #[prost(message, required, tag = "8")]
    capability: CapabilityRecord,
    #[prost(message, repeated, tag = "9")]
    kernels: Vec<KernelRecord>,
}

impl PeerCommand {
    /// The command as bytes, over `segments` of the table; `None` where the capability is of no
    /// table, or it is longer than a message may be.
    pub fn encode(&self, segments: &[Arc<Segment>]) -> Option<Vec<u8>> {
        let record = CommandRecord {
            program: self.program.encode(),
            table: ShippedTable::new(&self.table, segments),
            runtime_filters: self
                .runtime_filters
                .iter()
                .map(RuntimeFilter::encode)
                .collect(),
            batch_rows: u32::try_from(self.batch_rows).unwrap_or(BATCH_ROWS_MAX),
            plain_text: self.plain_text,
            forbids_fallback: self.forbids_fallback,
            accelerator: self.accelerator.as_deref().map(Into::into),
            capability: CapabilityRecord::new(&self.capability)?,
            kernels: self.kernels.0.clone(),
        };
        let content = record.encode_to_vec();
        if content.len() >= MESSAGE_MAX_BYTES - START_BYTES {
            return None;
        }
        if content.len() >= COMPRESSED_FROM
            && let Ok(length) = u32::try_from(content.len())
            && let Ok(compressed) = zstd::bulk::compress(&content, 1)
        {
            let start = start_of(COMPRESSED_COMMAND);
            return Some(sealed(
                [&start[..], &length.to_le_bytes(), &compressed].concat(),
            ));
        }
        Some(sealed([&start_of(COMMAND)[..], &content].concat()))
    }

    /// The command of these bytes; its capability is verified by whoever runs it.
    ///
    /// # Errors
    /// `Invalid`, `Corrupt`, `Denied` for what is no command.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let malformed = |error: &dyn std::fmt::Display| {
            StorageError::Invalid(format!(
                "what came from another node is no command: {error}"
            ))
        };
        let wrong = || malformed(&"its checksum or kind is wrong");
        let (start, content) = bytes.split_at_checked(START_BYTES).ok_or_else(wrong)?;
        let decoded = match start[4] {
            _ if !is_sound(bytes) => return Err(wrong()),
            COMMAND => CommandRecord::decode(content),
            COMPRESSED_COMMAND => {
                let (length, content) = content.split_first_chunk().ok_or_else(wrong)?;
                let length = u32::from_le_bytes(*length) as usize;
                let length = length.min(MESSAGE_MAX_BYTES);
                let content = zstd::bulk::decompress(content, length).map_err(|e| malformed(&e))?;
                CommandRecord::decode(&*content)
            }
            _ => return Err(wrong()),
        };
        let record = decoded.map_err(|e| malformed(&e))?;
        let table = record.table.unpack()?;
        let program = Program::decode(&record.program).map_err(|e| malformed(&e))?;
        let limits = Limits::default();
        let program = verify(program, &table.scan_schema, &limits).map_err(|e| malformed(&e))?;
        let filters = record.runtime_filters.iter();
        let filters = filters.map(|filter| {
            let filter = RuntimeFilter::decode(filter)?;
            flashmesh_pushdown::verify_runtime_filter(&filter, &program.columns, &limits)?;
            Ok(filter)
        });
        let filters: std::result::Result<_, flashmesh_pushdown::ProgramError> = filters.collect();
        Ok(Self {
            runtime_filters: filters.map_err(|e| malformed(&e))?,
            program: Arc::new(program),
            table: Arc::new(table),
            batch_rows: record.batch_rows.clamp(1, BATCH_ROWS_MAX) as usize,
            plain_text: record.plain_text,
            forbids_fallback: record.forbids_fallback,
            accelerator: record.accelerator.map(Into::into),
            capability: Arc::new(record.capability.unpack()?),
            kernels: CommandKernels(record.kernels),
        })
    }
}

const COMMAND: u8 = 0;
/// A batch, as a message of Arrow IPC.
const BATCH: u8 = 1;
const END: u8 = 2;
const ERROR: u8 = 3;
/// A command, compressed: its length (u32), and what zstd makes of it. Long ones hold the keys that a join
/// looks for, or zeros in their place.
const COMPRESSED_COMMAND: u8 = 5;
/// Rows without columns, of which an Arrow IPC stream has nothing to read.
const ROWS: u8 = 4;

#[derive(Clone, PartialEq, Message)]
struct EndRecord {
    /// See [`ScanMetrics::work_done`].
    #[prost(uint64, repeated, tag = "1")]
    work: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct ErrorRecord {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(string, tag = "2")]
    text: String,
    /// Of which kernel it is.
    #[prost(string, optional, tag = "3")]
    kernel: Option<String>,
}

/// Makes the frames of an answer.
#[derive(Default)]
pub(crate) struct Frames {
    writer: Option<StreamWriter<Vec<u8>>>,
}

impl Frames {
    /// A batch, in as many frames as it takes: none without rows, which says nothing.
    ///
    /// # Errors
    /// `Invalid` for what Arrow can't write, and for a row that is longer than a message may be.
    pub fn of(&mut self, batch: &RecordBatch) -> Result<Vec<Vec<u8>>> {
        self.of_at_most(batch, MESSAGE_MAX_BYTES)
    }

    fn of_at_most(&mut self, batch: &RecordBatch, bytes: usize) -> Result<Vec<Vec<u8>>> {
        let Some(frame) = self.batch(batch)? else {
            return Ok(Vec::new());
        };
        if frame.len() <= bytes {
            return Ok(vec![frame]);
        }
        let rows = batch.num_rows();
        if rows == 1 {
            return Err(StorageError::Invalid(format!(
                "a row of {} bytes, more than the {bytes} that a node sends another; ask for fewer of its columns",
                frame.len()
            )));
        }
        let half = rows / 2;
        let mut frames = self.of_at_most(&batch.slice(0, half), bytes)?;
        frames.extend(self.of_at_most(&batch.slice(half, rows - half), bytes)?);
        Ok(frames)
    }

    fn batch(&mut self, batch: &RecordBatch) -> Result<Option<Vec<u8>>> {
        let failed = |error: arrow::error::ArrowError| StorageError::Invalid(error.to_string());
        if batch.num_rows() == 0 {
            return Ok(None);
        }
        if batch.num_columns() == 0 {
            let rows = batch.num_rows() as u64;
            let mut frame = start_of(ROWS).to_vec();
            frame.extend(rows.to_le_bytes());
            return Ok(Some(sealed(frame)));
        }
        let columns: Vec<_> = batch.columns().iter().map(compact).collect();
        let batch = RecordBatch::try_new(batch.schema(), columns).map_err(failed)?;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let writer = StreamWriter::try_new(Vec::new(), &batch.schema());
                self.writer.insert(writer.map_err(failed)?)
            }
        };
        // Who asked knows the schema, which is all that was written so far.
        writer.get_mut().clear();
        writer.get_mut().extend(start_of(BATCH));
        writer.write(&batch).map_err(failed)?;
        Ok(Some(sealed(std::mem::take(writer.get_mut()))))
    }

    /// What was counted; nothing follows.
    pub fn end(metrics: &ScanMetrics) -> Vec<u8> {
        let work = metrics.work_done();
        message(END, &EndRecord { work })
    }

    /// An error; nothing follows.
    pub fn error(error: &StorageError) -> Vec<u8> {
        let mut of_kernel = None;
        let (kind, text) = match error {
            StorageError::Corrupt { what } => (1, what.clone()),
            StorageError::Denied(why) => (2, why.clone()),
            StorageError::Invalid(why) => (3, why.clone()),
            StorageError::Cancelled => (4, String::new()),
            StorageError::Kernel { kernel, reason } => {
                of_kernel = Some(kernel.clone());
                (5, reason.clone())
            }
            other => (0, other.to_string()),
        };
        let kernel = of_kernel;
        message(ERROR, &ErrorRecord { kind, text, kernel })
    }
}

fn without_columns(rows: usize) -> RecordBatch {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options)
        .expect("no column has another number of rows")
}

fn message(kind: u8, message: &impl Message) -> Vec<u8> {
    let mut frame = start_of(kind).to_vec();
    message.encode(&mut frame).expect("a Vec grows");
    sealed(frame)
}

/// Bytes in front of what a frame carries: CRC-32C of all that follows it, kind, zeros, so that the
/// buffers of a batch lie as aligned as the frame does.
const START_BYTES: usize = 16;

fn start_of(kind: u8) -> [u8; START_BYTES] {
    let mut start = [0; START_BYTES];
    start[4] = kind;
    start
}

/// A frame with its checksum. Arrow's reader panics at places outside of a message, and a number that
/// was damaged on its way is another number: neither is for whoever reads frames.
fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    let check = crc_fast::crc32_iscsi(&frame[4..]);
    frame[..4].copy_from_slice(&check.to_le_bytes());
    frame
}

/// Whether it is a frame as [`sealed`] gives.
fn is_sound(frame: &[u8]) -> bool {
    frame.len() >= START_BYTES && crc_fast::crc32_iscsi(&frame[4..]).to_le_bytes() == frame[..4]
}

/// The same values without what their buffers hold beside them: all of these would travel.
fn compact(array: &ArrayRef) -> ArrayRef {
    let held = |buffers: &[Buffer]| buffers.iter().map(Buffer::len).sum::<usize>();
    match array.data_type() {
        DataType::Utf8View => {
            let views = array.as_string_view();
            match held(views.data_buffers()) > 2 * views.total_buffer_bytes_used() {
                true => Arc::new(views.gc()),
                false => Arc::clone(array),
            }
        }
        DataType::BinaryView => {
            let views = array.as_binary_view();
            match held(views.data_buffers()) > 2 * views.total_buffer_bytes_used() {
                true => Arc::new(views.gc()),
                false => Arc::clone(array),
            }
        }
        _ => Arc::clone(array),
    }
}

/// An answer on its way.
pub(crate) struct PeerStream {
    node: NodeId,
    answer: Box<dyn Answer>,
    /// That of its batches. One that a node names would be another thing to trust.
    schema: SchemaRef,
    metrics: Arc<ScanMetrics>,
    /// What it was asked to do; empty once something has come of it.
    segments: Vec<Arc<Segment>>,
    kernels: Option<KernelsOfCommand>,
}

/// The kernels of a command, and who remembers which nodes have them.
pub(crate) struct KernelsOfCommand {
    pub digests: Vec<[u8; 32]>,
    pub sent: Arc<Sent>,
}

impl Debug for PeerStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerStream")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl PeerStream {
    /// Sends `command` over `segments` to `node`.
    ///
    /// # Errors
    /// Those of [`Peers::send`].
    pub fn start(
        peers: &dyn Peers,
        node: NodeId,
        command: &PeerCommand,
        segments: &[Arc<Segment>],
        metrics: &Arc<ScanMetrics>,
        kernels: Option<KernelsOfCommand>,
    ) -> Result<Self> {
        let bytes = command.encode(segments).ok_or_else(|| {
            let why = "a command for another node needs a table's capability, and to fit a message";
            StorageError::Invalid(why.into())
        })?;
        let schema = match command.plain_text {
            true => plain_schema(command.program.output_schema()),
            false => Arc::clone(command.program.output_schema()),
        };
        let count = |counter: &std::sync::atomic::AtomicU64, value: usize| {
            counter.fetch_add(value as u64, Ordering::Relaxed);
        };
        count(&metrics.segments_of_nodes, segments.len());
        count(&metrics.bytes_to_nodes, bytes.len());
        Ok(Self {
            node,
            answer: peers.send(node, bytes)?,
            schema,
            metrics: Arc::clone(metrics),
            segments: segments.to_vec(),
            kernels,
        })
    }

    /// The segments that can be done elsewhere after `error`, as nothing has come of them: the node
    /// went away, or can't read them, or knows nothing of kernels (one of an earlier build).
    pub fn left_undone(&mut self, error: &StorageError) -> Vec<Arc<Segment>> {
        let is_of_node = match error {
            StorageError::Io { .. } | StorageError::Corrupt { .. } => true,
            StorageError::Invalid(_) => self.kernels.is_some(),
            _ => false,
        };
        match is_of_node {
            true => std::mem::take(&mut self.segments),
            false => Vec::new(),
        }
    }

    /// The node that was asked.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The next batch; `None` at the end.
    ///
    /// # Errors
    /// What the node met, naming it; `Io` when it went away.
    pub fn poll(&mut self, waker: &Waker) -> Poll<Result<Option<RecordBatch>>> {
        let Poll::Ready(frame) = self.answer.poll_frame(waker) else {
            return Poll::Pending;
        };
        let read = match frame {
            Ok(Some(frame)) => self.take(&frame),
            Ok(None) => Err(self.unreadable(&"it ends in the middle")),
            Err(error) => Err(error),
        };
        if let Some(kernels) = &mut self.kernels {
            match &read {
                Ok(_) => kernels
                    .sent
                    .add(self.node, std::mem::take(&mut kernels.digests)),
                Err(StorageError::Io { .. }) => kernels.sent.forget(self.node),
                Err(_) => {}
            }
        }
        Poll::Ready(read)
    }

    fn take(&mut self, frame: &Bytes) -> Result<Option<RecordBatch>> {
        let bytes = &self.metrics.bytes_from_nodes;
        bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
        let read = self.read(frame);
        if let Ok(Some(_)) = read {
            self.segments.clear();
        }
        read
    }

    fn read(&self, frame: &Bytes) -> Result<Option<RecordBatch>> {
        if !is_sound(frame) {
            return Err(self.unreadable(&"a frame with a wrong checksum"));
        }
        let content = frame.slice(START_BYTES..);
        match frame[4] {
            BATCH => {
                let batch = self.batch(&content);
                batch.map(Some).map_err(|why| self.unreadable(&why))
            }
            ROWS => {
                let rows = <[u8; 8]>::try_from(&*content).map(u64::from_le_bytes);
                let rows = rows.ok().and_then(|rows| usize::try_from(rows).ok());
                match rows.filter(|_| self.schema.fields().is_empty()) {
                    Some(rows) => Ok(Some(without_columns(rows))),
                    None => Err(self.unreadable(&"a number of rows in place of rows")),
                }
            }
            END => {
                let end = EndRecord::decode(content);
                let end = end.map_err(|error| self.unreadable(&error))?;
                self.metrics.add_work(&end.work);
                Ok(None)
            }
            ERROR => {
                let error = ErrorRecord::decode(content);
                let error = error.map_err(|error| self.unreadable(&error))?;
                Err(self.of_node(error))
            }
            _ => Err(self.unreadable(&"a frame of no kind")),
        }
    }

    /// The batch of a message, whose schema is the one that was asked for.
    fn batch(&self, message: &Bytes) -> std::result::Result<RecordBatch, String> {
        // A marker and the header's length are in front of the header.
        let length = message.get(4..8).and_then(|bytes| bytes.try_into().ok());
        let length = length.map_or(0, |bytes| u32::from_le_bytes(bytes) as usize);
        let header = message.get(8..).and_then(|bytes| bytes.get(..length));
        let header = header.ok_or("a header that is cut off")?;
        let header = root_as_message(header).map_err(|error| error.to_string())?;
        let batch = header.header_as_record_batch().ok_or("no batch")?;
        let body = Buffer::from(message.slice(8 + length..));
        let (schema, none) = (Arc::clone(&self.schema), HashMap::new());
        read_record_batch(&body, batch, schema, &none, None, &header.version())
            .map_err(|error| error.to_string())
    }

    fn unreadable(&self, why: &dyn std::fmt::Display) -> StorageError {
        let action = format!("reading the answer of node {}", self.node.0);
        StorageError::io(
            action,
            std::io::Error::new(std::io::ErrorKind::InvalidData, why.to_string()),
        )
    }

    fn of_node(&self, error: ErrorRecord) -> StorageError {
        let text = format!("node {}: {}", self.node.0, error.text);
        match error.kind {
            1 => StorageError::corrupt(text),
            2 => StorageError::Denied(text),
            3 => StorageError::Invalid(text),
            4 => StorageError::Cancelled,
            // Its own error, as it is on one machine.
            5 => StorageError::Kernel {
                kernel: error.kernel.unwrap_or_default(),
                reason: error.text,
            },
            _ => StorageError::io(
                format!("asking node {}", self.node.0),
                std::io::Error::other(error.text),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::StringViewArray;

    use super::*;

    #[test]
    fn what_is_too_long_for_a_message_goes_in_several() {
        let texts = (0..100).map(|row| Some(format!("{row} ").repeat(100)));
        let texts = Arc::new(StringViewArray::from_iter(texts)) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("text", texts)]).unwrap();
        let mut frames = Frames::default();
        assert_eq!(frames.of(&batch).unwrap().len(), 1);
        let parts = frames.of_at_most(&batch, 8 << 10).unwrap();
        assert!(parts.iter().all(|frame| frame.len() <= 8 << 10));
        // No less is sent than was.
        assert!(parts.iter().map(Vec::len).sum::<usize>() > 100 * 200);
        let error = frames.of_at_most(&batch, 100).unwrap_err().to_string();
        assert!(error.contains("a row of"), "{error}");
        assert!(frames.of(&batch.slice(0, 0)).unwrap().is_empty());
    }
}

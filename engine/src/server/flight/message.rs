//! Flight's messages whose bodies are the buffers of arrays themselves: nothing is copied between
//! the arrays and the connection.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::root_as_message;
use arrow::ipc::writer::StreamEncoder;
use arrow_flight::FlightData;
use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;

/// A part of a result as a client gets it: Arrow's IPC message.
#[derive(Debug)]
pub(in crate::server) struct Message {
    /// The message's metadata, a flatbuffer.
    header: Bytes,
    /// What follows it, in its order.
    body: Vec<Bytes>,
}

impl From<FlightData> for Message {
    fn from(data: FlightData) -> Self {
        Self {
            header: data.data_header,
            body: vec![data.data_body],
        }
    }
}

/// The messages of a result.
pub(in crate::server) type MessageStream =
    Pin<Box<dyn Stream<Item = Result<Message, Status>> + Send>>;

/// Fields of Flight's `FlightData` (Flight.proto).
const DATA_HEADER: u32 = 2;
const DATA_BODY: u32 = 1000;
/// Before each message of gRPC: whether it is compressed, and its length as four bytes.
const GRPC_PREFIX_BYTES: usize = 5;
/// Pieces below this are joined by copying, since each takes a frame of HTTP/2 of its own.
const SMALL_PIECE_BYTES: usize = 4096;

impl Message {
    /// The message as gRPC sends it, in pieces.
    ///
    /// # Errors
    /// Its bytes if they are more than a message of gRPC can have.
    pub fn into_grpc(self) -> Result<Vec<Bytes>, usize> {
        let body_bytes: usize = self.body.iter().map(Bytes::len).sum();
        let header_bytes = field_bytes(DATA_HEADER, self.header.len());
        let bytes = header_bytes + field_bytes(DATA_BODY, body_bytes);
        let mut small = BytesMut::with_capacity(GRPC_PREFIX_BYTES + bytes - body_bytes);
        small.put_u8(0);
        small.put_u32(u32::try_from(bytes).map_err(|_| bytes)?);
        put_field(DATA_HEADER, self.header.len(), &mut small);
        small.extend_from_slice(&self.header);
        put_field(DATA_BODY, body_bytes, &mut small);
        let mut pieces = Vec::with_capacity(self.body.len() + 1);
        for piece in self.body {
            if piece.len() < SMALL_PIECE_BYTES {
                small.extend_from_slice(&piece);
                continue;
            }
            if !small.is_empty() {
                pieces.push(small.split().freeze());
            }
            pieces.push(piece);
        }
        if !small.is_empty() {
            pieces.push(small.freeze());
        }
        Ok(pieces)
    }
}

/// Bytes of a length-delimited field with so many.
fn field_bytes(field: u32, bytes: usize) -> usize {
    key_len(field) + encoded_len_varint(bytes as u64) + bytes
}

fn put_field(field: u32, bytes: usize, to: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, to);
    encode_varint(bytes as u64, to);
}

/// Batches of one schema as messages.
pub(super) struct Encoder(StreamEncoder);

impl Encoder {
    /// With the message that comes first, which gives the schema: clients wait for it before
    /// there are rows.
    ///
    /// # Errors
    /// If IPC has no such type.
    pub fn new(schema: &SchemaRef) -> Result<(Self, Message), ArrowError> {
        let mut encoder = StreamEncoder::try_new(schema)?;
        let mut messages = Vec::new();
        // The schema leaves it together with a first batch.
        let nothing = RecordBatch::new_empty(Arc::clone(schema));
        messages_of(encoder.encode(&nothing)?, &mut messages)?;
        let first = messages.into_iter().next();
        let first = first.ok_or_else(|| ArrowError::IpcError("no schema was encoded".into()))?;
        Ok((Self(encoder), first))
    }

    /// A batch in messages that clients take.
    ///
    /// # Errors
    /// If the batch has other columns than the schema.
    pub fn encode(&mut self, batch: &RecordBatch) -> Result<Vec<Message>, ArrowError> {
        let mut messages = Vec::new();
        for part in parts(batch) {
            messages_of(self.0.encode(&part)?, &mut messages)?;
        }
        Ok(messages)
    }
}

/// Many clients take messages of gRPC up to 4 MiB, unless told otherwise.
const MESSAGE_BYTES: usize = 2 << 20;

/// The rows of `batch` in parts of about [`MESSAGE_BYTES`]; none if it has none.
fn parts(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> {
    let columns = batch.columns().iter();
    let bytes: usize = columns.map(|c| c.get_buffer_memory_size()).sum();
    let rows = batch.num_rows();
    let step = (rows / bytes.div_ceil(MESSAGE_BYTES).max(1)).max(1);
    (0..rows)
        .step_by(step)
        .map(move |first| batch.slice(first, step.min(rows - first)))
}

/// Takes a stream of IPC apart.
fn messages_of(stream: Vec<Buffer>, messages: &mut Vec<Message>) -> Result<(), ArrowError> {
    let mut rest: VecDeque<Bytes> = stream.into_iter().map(shared).collect();
    // Before each message a marker, and the length of its metadata.
    while let Some(start) = joined(8, &mut rest) {
        let length = start.last_chunk().copied().map_or(0, u32::from_le_bytes);
        if length == 0 {
            break;
        }
        let header = joined(length as usize, &mut rest)
            .ok_or_else(|| ArrowError::IpcError("a message without its metadata".into()))?;
        let message =
            root_as_message(&header).map_err(|error| ArrowError::IpcError(error.to_string()))?;
        let body = take(message.bodyLength() as usize, &mut rest)
            .ok_or_else(|| ArrowError::IpcError("a message without its body".into()))?;
        messages.push(Message { header, body });
    }
    Ok(())
}

/// The bytes of a buffer, which they keep alive.
fn shared(buffer: Buffer) -> Bytes {
    struct Owner(Buffer);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(Owner(buffer))
}

/// The next `count` bytes; `None` if there are not so many.
fn take(mut count: usize, from: &mut VecDeque<Bytes>) -> Option<Vec<Bytes>> {
    let mut taken = Vec::new();
    while count > 0 {
        let mut piece = from.pop_front()?;
        if piece.len() > count {
            from.push_front(piece.split_off(count));
        }
        count -= piece.len();
        taken.push(piece);
    }
    Some(taken)
}

/// The same as one piece.
fn joined(count: usize, from: &mut VecDeque<Bytes>) -> Option<Bytes> {
    let mut pieces = take(count, from)?;
    match pieces.len() {
        1 => pieces.pop(),
        _ => Some(pieces.concat().into()),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Decimal128Array, Int64Array, ListArray, StringArray};
    use arrow::datatypes::{Int32Type, Schema};
    use arrow_flight::decode::FlightRecordBatchStream;
    use futures::{StreamExt, TryStreamExt, stream};
    use prost::Message as _;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn batch(rows: usize, random: &mut StdRng) -> RecordBatch {
        let text = |random: &mut StdRng| {
            let length = random.random_range(0..40);
            random.random_bool(0.8).then(|| "x".repeat(length as usize))
        };
        let texts: StringArray = (0..rows).map(|_| text(random)).collect();
        let numbers: Int64Array = (0..rows)
            .map(|_| random.random_bool(0.9).then(|| random.random()))
            .collect();
        let decimals: Decimal128Array = (0..rows).map(|row| Some(row as i128)).collect();
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(
            (0..rows).map(|row| Some((0..row % 5).map(|item| Some(item as i32)))),
        );
        RecordBatch::try_from_iter_with_nullable([
            ("text", Arc::new(texts) as _, true),
            ("number", Arc::new(numbers) as _, true),
            ("decimal", Arc::new(decimals) as _, true),
            ("list", Arc::new(lists) as _, true),
        ])
        .unwrap()
    }

    /// What a client reads.
    fn received(messages: Vec<Message>) -> Vec<RecordBatch> {
        let data = messages.into_iter().map(|message| {
            let bytes = message.into_grpc().unwrap().concat();
            let (prefix, data) = bytes.split_at(GRPC_PREFIX_BYTES);
            assert_eq!(prefix[0], 0);
            assert_eq!(prefix[1..], (data.len() as u32).to_be_bytes());
            assert!(data.len() < 4 << 20, "{} bytes", data.len());
            Ok(FlightData::decode(data).unwrap())
        });
        let batches = FlightRecordBatchStream::new_from_flight_data(stream::iter(data).boxed());
        futures::executor::block_on(batches.try_collect()).unwrap()
    }

    #[test]
    fn clients_read_what_was_sent() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for rows in [1, 7, 1000, 200_000] {
            let batch = batch(rows, &mut random);
            let first = random.random_range(0..rows);
            let slice = batch.slice(first, rows - first);
            let (mut encoder, schema) = Encoder::new(&batch.schema()).unwrap();
            let mut messages = vec![schema];
            messages.extend(encoder.encode(&batch).unwrap());
            messages.extend(encoder.encode(&batch.slice(0, 0)).unwrap());
            messages.extend(encoder.encode(&slice).unwrap());
            let received = received(messages);
            let received = arrow::compute::concat_batches(&batch.schema(), &received).unwrap();
            let sent = arrow::compute::concat_batches(&batch.schema(), [&batch, &slice]).unwrap();
            assert_eq!(received, sent);
        }
    }

    #[test]
    fn the_schema_comes_first() {
        let batch = batch(1, &mut StdRng::seed_from_u64(1));
        let (_, first) = Encoder::new(&batch.schema()).unwrap();
        let bytes = first.into_grpc().unwrap().concat();
        let data = FlightData::decode(&bytes[GRPC_PREFIX_BYTES..]).unwrap();
        assert_eq!(&Schema::try_from(&data).unwrap(), batch.schema().as_ref());
    }

    #[test]
    fn large_buffers_are_not_copied() {
        let numbers = Int64Array::from_iter_values(0..100_000);
        let place = numbers.values().inner().as_ptr_range();
        let batch = RecordBatch::try_from_iter([("n", Arc::new(numbers) as _)]).unwrap();
        let (mut encoder, _) = Encoder::new(&batch.schema()).unwrap();
        let pieces = encoder.encode(&batch).unwrap().into_iter();
        let pieces = pieces.flat_map(|message| message.into_grpc().unwrap());
        let shared = pieces.filter(|piece| place.contains(&piece.as_ptr()));
        assert!(shared.map(|piece| piece.len()).sum::<usize>() > 700_000);
    }
}

//! Arrow data from clients, looked at before it is decoded: what a message says of its sizes is
//! believed by the decoder, which takes that much memory.

use arrow::ipc::{CompressionType, MessageHeader, RecordBatch, root_as_message};
use arrow_flight::FlightData;

/// What a message may take when it is decompressed, times the greatest message.
const EXPANSION: usize = 4;
/// Rows of a batch for each byte of it, as bits; a batch without bytes has so many.
const ROWS_WITHOUT_BYTES: usize = 1 << 20;

type Checked<T> = Result<T, String>;

/// Refuses what would take far more memory than its bytes, of messages of at most `limit` bytes.
///
/// # Errors
/// What is wrong with the message.
pub(super) fn check(data: &FlightData, limit: usize) -> Checked<()> {
    if data.data_header.is_empty() {
        return Ok(());
    }
    let message = root_as_message(&data.data_header).map_err(|e| e.to_string())?;
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => {
            message.header_as_dictionary_batch().and_then(|d| d.data())
        }
        _ => None,
    };
    match batch {
        Some(batch) => check_batch(batch, &data.data_body, limit.saturating_mul(EXPANSION)),
        None => Ok(()),
    }
}

fn check_batch(batch: RecordBatch<'_>, body: &[u8], limit: usize) -> Checked<()> {
    let rows = usize::try_from(batch.length()).map_err(|_| "a batch of less than no rows")?;
    let possible = body.len().saturating_mul(8).saturating_mul(EXPANSION * 256);
    if rows > possible.max(ROWS_WITHOUT_BYTES) {
        return Err(format!("{rows} rows in {} bytes", body.len()));
    }
    let Some(compression) = batch.compression() else {
        return Ok(());
    };
    let mut bytes = 0_usize;
    for buffer in batch.buffers().into_iter().flatten() {
        let (start, length) = (buffer.offset(), buffer.length());
        let part = usize::try_from(start)
            .ok()
            .zip(usize::try_from(length).ok());
        let part = part.and_then(|(start, length)| body.get(start..start.checked_add(length)?));
        let part = part.ok_or("a buffer outside of its message")?;
        bytes = bytes.saturating_add(decompressed(part, compression.codec())?);
        if bytes > limit {
            return Err(format!(
                "a message of {} bytes that would be {bytes} or more when it is decompressed, and may be {limit}; send smaller batches",
                body.len()
            ));
        }
    }
    Ok(())
}

/// What a compressed buffer may take: what it says, and what its frames can hold.
fn decompressed(buffer: &[u8], codec: CompressionType) -> Checked<usize> {
    let Some((said, frames)) = buffer.split_first_chunk::<8>() else {
        return Ok(0);
    };
    match i64::from_le_bytes(*said) {
        // It is not compressed.
        -1 => Ok(frames.len()),
        said => {
            let said = usize::try_from(said).map_err(|_| "a buffer of less than no bytes")?;
            match codec {
                // Its decoder writes whatever there is.
                CompressionType::LZ4_FRAME => Ok(said.max(lz4_bytes(frames)?)),
                // Its decoder stops at what was said.
                _ => Ok(said),
            }
        }
    }
}

const LZ4_MAGIC: u32 = 0x184D_2204;
/// A byte of LZ4 stands for so many at most.
const LZ4_EXPANSION: usize = 255;

/// The most that LZ4's frames can hold, by the sizes of their blocks (lz4_Frame_format.md).
fn lz4_bytes(mut frames: &[u8]) -> Checked<usize> {
    let broken = || "a frame of LZ4 that is broken".to_string();
    let mut bytes = 0_usize;
    while !frames.is_empty() {
        if read_u32(&mut frames) != Some(LZ4_MAGIC) {
            return Err(broken());
        }
        let [flags, sizes] = take(&mut frames).ok_or_else(broken)?;
        let optional = [(0x08, 8), (0x01, 4)];
        let optional = optional.iter().filter(|(flag, _)| flags & flag != 0);
        // What the flags announce, and the header's checksum.
        let skipped = optional.map(|(_, bytes)| bytes).sum::<usize>() + 1;
        frames = frames.get(skipped..).ok_or_else(broken)?;
        let largest = match sizes >> 4 & 7 {
            size @ 4..=7 => 1_usize << (8 + 2 * size),
            _ => return Err(broken()),
        };
        let checksum = if flags & 0x10 != 0 { 4 } else { 0 };
        loop {
            let size = read_u32(&mut frames).ok_or_else(broken)?;
            if size == 0 {
                break;
            }
            let stored = (size & 0x7FFF_FFFF) as usize;
            bytes += match size >> 31 {
                0 => largest.min(stored.saturating_mul(LZ4_EXPANSION)),
                _ => stored,
            };
            frames = frames.get(stored + checksum..).ok_or_else(broken)?;
        }
        let checksum = if flags & 0x04 != 0 { 4 } else { 0 };
        frames = frames.get(checksum..).ok_or_else(broken)?;
    }
    Ok(bytes)
}

fn read_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(u32::from_le_bytes)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, NullArray, RecordBatch};
    use arrow::ipc::CompressionType;
    use arrow::ipc::writer::IpcWriteOptions;
    use arrow_flight::FlightData;
    use arrow_flight::utils::batches_to_flight_data;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const LIMIT: usize = 64 << 20;

    fn sent(batch: &RecordBatch, codec: Option<CompressionType>) -> FlightData {
        let options = IpcWriteOptions::default()
            .try_with_compression(codec)
            .unwrap();
        let generator = arrow::ipc::writer::IpcDataGenerator::default();
        let mut dictionaries = arrow::ipc::writer::DictionaryTracker::new(false);
        let (_, data) = generator
            .encode(batch, &mut dictionaries, &options, &mut Default::default())
            .unwrap();
        FlightData {
            data_header: data.ipc_message.into(),
            data_body: data.arrow_data.into(),
            ..FlightData::default()
        }
    }

    fn zeros(rows: usize) -> RecordBatch {
        let column = Int64Array::from(vec![0; rows]);
        RecordBatch::try_from_iter([("a", Arc::new(column) as _)]).unwrap()
    }

    #[test]
    fn honest_messages_pass() {
        let mut random = StdRng::seed_from_u64(7);
        let noise: Int64Array = (0..100_000).map(|_| Some(random.random())).collect();
        let noise = RecordBatch::try_from_iter([("a", Arc::new(noise) as _)]).unwrap();
        for batch in [zeros(0), zeros(1), zeros(1_000_000), noise] {
            for codec in [
                None,
                Some(CompressionType::LZ4_FRAME),
                Some(CompressionType::ZSTD),
            ] {
                check(&sent(&batch, codec), LIMIT).unwrap();
            }
        }
        assert!(
            batches_to_flight_data(zeros(1).schema_ref(), vec![zeros(1)])
                .unwrap()
                .iter()
                .all(|data| check(data, LIMIT).is_ok())
        );
    }

    #[test]
    fn a_buffer_that_says_it_is_huge_is_refused() {
        for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            for said in [1_i64 << 50, i64::MAX, -2, (4 * LIMIT as i64) + 1] {
                let mut data = sent(&zeros(100_000), Some(codec));
                let mut body = data.data_body.to_vec();
                body[..8].copy_from_slice(&said.to_le_bytes());
                data.data_body = body.into();
                assert!(check(&data, LIMIT).is_err(), "{said}");
            }
        }
    }

    #[test]
    fn frames_that_hold_more_than_is_said_are_refused() {
        // 40 MB of zeros.
        let mut data = sent(&zeros(5_000_000), Some(CompressionType::LZ4_FRAME));
        let mut body = data.data_body.to_vec();
        body[..8].copy_from_slice(&8_i64.to_le_bytes());
        data.data_body = body.into();
        check(&data, LIMIT).unwrap();
        let refused = check(&data, 1 << 20).unwrap_err();
        assert!(refused.contains("decompressed"), "{refused}");
    }

    #[test]
    fn rows_that_have_no_bytes_are_few() {
        let column = NullArray::new(100_000_000);
        let batch = RecordBatch::try_from_iter([("a", Arc::new(column) as _)]).unwrap();
        assert!(check(&sent(&batch, None), LIMIT).is_err());
        check(&sent(&batch.slice(0, 1000), None), LIMIT).unwrap();
    }

    #[test]
    fn garbage_is_refused_without_a_panic() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let whole = sent(&zeros(10_000), Some(CompressionType::LZ4_FRAME));
        for _ in 0..2_000 {
            let (mut header, mut body) = (whole.data_header.to_vec(), whole.data_body.to_vec());
            for _ in 0..random.random_range(1..5) {
                let bytes = match random.random_bool(0.5) {
                    true => &mut header,
                    false => &mut body,
                };
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            body.truncate(random.random_range(0..=body.len()));
            let data = FlightData {
                data_header: header.into(),
                data_body: body.into(),
                ..FlightData::default()
            };
            let _ = check(&data, LIMIT);
        }
    }
}

//! Frames read back however they come in pieces; what is no frame is an error.

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tokio::io::AsyncWriteExt;

use super::*;

const MOST: usize = 100_000;

fn random_frame(chance: &mut StdRng) -> (Frame, Report) {
    let size = [0, 50, SMALL - 1, SMALL, SMALL + 1, 40_000, MOST];
    let bytes = |chance: &mut StdRng| {
        let mut bytes = vec![0; size[chance.random_range(0..size.len())]];
        chance.fill_bytes(&mut bytes);
        Bytes::from(bytes)
    };
    let frame = match chance.random_range(0..6) {
        0 => Frame::Report,
        1 => Frame::Ask,
        2 => Frame::Notice(bytes(chance)),
        _ => {
            let credit = chance.random_bool(0.3);
            let packet = Packet {
                source: chance.random(),
                destination: chance.random(),
                endpoint: chance.random(),
                credit: if credit {
                    chance.random_range(1..=u16::MAX)
                } else {
                    0
                },
                generation: chance.random(),
                payload: if credit { Bytes::new() } else { bytes(chance) },
            };
            let sequence = chance.random();
            Frame::Packet { sequence, packet }
        }
    };
    let report = Report {
        received: chance.random(),
        buffered: chance.random(),
    };
    (frame, report)
}

fn bytes_of(frame: &Frame, report: Report) -> Vec<u8> {
    let mut bytes = encode(frame, report).to_vec();
    match frame {
        Frame::Packet { packet, .. } => bytes.extend_from_slice(&packet.payload),
        Frame::Notice(notice) => bytes.extend_from_slice(notice),
        Frame::Report | Frame::Ask => {}
    }
    bytes
}

fn chance() -> StdRng {
    StdRng::seed_from_u64(crate::mesh::tests::seed())
}

#[tokio::test]
async fn frames_read_back_in_whatever_pieces_they_come() {
    let mut chance = chance();
    let frames: Vec<_> = (0..200).map(|_| random_frame(&mut chance)).collect();
    let bytes: Vec<u8> = frames
        .iter()
        .flat_map(|(frame, report)| bytes_of(frame, *report))
        .collect();
    let (mut writer, reader) = tokio::io::duplex(chance.random_range(1..200_000));
    let mut pieces = StdRng::seed_from_u64(chance.random());
    let writing = tokio::spawn(async move {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(pieces.random_range(1..=rest.len().min(90_000)));
            writer.write_all(piece).await.unwrap();
            rest = after;
        }
    });
    let mut reader = FrameReader::new(reader, MOST);
    let mut read = Vec::new();
    while read.len() < frames.len() {
        read.push(reader.next().await.unwrap());
        while let Some(frame) = reader.buffered().unwrap() {
            read.push(frame);
        }
    }
    assert!(read == frames);
    writing.await.unwrap();
    assert!(matches!(reader.next().await, Err(LinkError::Ended)));
}

#[test]
fn a_header_with_a_wrong_bit_is_refused() {
    let mut chance = chance();
    for _ in 0..20 {
        let (frame, report) = random_frame(&mut chance);
        let header = encode(&frame, report);
        assert!(decode(&header, MOST).is_ok());
        for bit in 0..HEADER * 8 {
            let mut damaged = header;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged, MOST).is_err());
        }
    }
}

/// With a checksum that is right.
#[test]
fn headers_that_can_not_be_are_refused() {
    let header = |kind: u8, credit: u16, length: u32| {
        let mut header = [0; HEADER];
        header[0] = kind;
        header[8..10].copy_from_slice(&credit.to_le_bytes());
        header[12..16].copy_from_slice(&length.to_le_bytes());
        let check = crc_fast::crc32_iscsi(&header[..36]);
        header[36..].copy_from_slice(&check.to_le_bytes());
        let outcome = decode(&header, MOST).map(|_| ());
        outcome.map_err(|error| error.to_string())
    };
    let refused = |outcome: Result<(), String>, expected: &str| {
        let message = outcome.unwrap_err();
        assert!(message.contains(expected), "{message}");
    };
    header(Kind::Data as u8, 0, MOST as u32).unwrap();
    refused(
        header(Kind::Data as u8, 0, MOST as u32 + 1),
        "at most 100000",
    );
    refused(header(Kind::Data as u8, 1, 0), "with credit 1");
    refused(header(Kind::Credit as u8, 0, 0), "with credit 0");
    refused(header(Kind::Report as u8, 0, 1), "at most 0");
    refused(header(9, 0, 0), "unknown kind 9");
}

#[tokio::test]
async fn a_frame_that_ends_too_soon_is_an_end() {
    let mut chance = chance();
    for _ in 0..50 {
        let (frame, report) = random_frame(&mut chance);
        let bytes = bytes_of(&frame, report);
        let cut = chance.random_range(0..bytes.len());
        let mut reader = FrameReader::new(&bytes[..cut], MOST);
        assert!(matches!(reader.next().await, Err(LinkError::Ended)));
    }
}

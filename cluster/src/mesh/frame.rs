//! The bytes on a link: frames of a fixed header and, with some, a payload. docs/mesh.md has the
//! table.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::error::LinkError;

/// The bytes of a header.
pub(crate) const HEADER: usize = 40;
/// Payloads up to so many bytes are copied out of the buffer that they were read into, so that a
/// small packet which waits does not keep a large buffer; greater ones are read into memory of
/// their own.
const SMALL: usize = 12 * 1024;
/// What is read at once while frames are small.
const BUFFER: usize = 64 * 1024;

/// A packet between endpoints. Nodes and endpoints are numbered as in `Network`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub source: u16,
    pub destination: u16,
    pub endpoint: u16,
    /// Of end-to-end flow control: so many packets from `destination` to `source` were taken. Such
    /// a packet is for nobody but the flow control; 0 in all others.
    pub credit: u16,
    /// Changes when packets of this source, endpoint and destination were lost. With credit, that
    /// of the packets that were taken.
    pub generation: u32,
    pub payload: Bytes,
}

/// How far the receiver of a link is, which every frame of the other direction says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Report {
    /// Packets received.
    pub received: u64,
    /// Those of them that wait in the buffer: they hold tokens.
    pub buffered: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing but a report.
    Report,
    /// A packet with a payload.
    Data,
    /// A packet that only brings credit.
    Credit,
    /// A report that asks for one.
    Ask,
    /// A notice about links.
    Notice,
}

/// What a frame brings beside its report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Report,
    /// The sender wants to know how far we are.
    Ask,
    /// Packet number `sequence` of this link, its low bits.
    Packet {
        sequence: u32,
        packet: Packet,
    },
    Notice(Bytes),
}

/// The header of a frame; payloads follow it as they are.
pub(crate) fn encode(frame: &Frame, report: Report) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let (kind, length) = match frame {
        Frame::Report => (Kind::Report, 0),
        Frame::Ask => (Kind::Ask, 0),
        Frame::Notice(bytes) => (Kind::Notice, bytes.len()),
        Frame::Packet { sequence, packet } => {
            header[2..4].copy_from_slice(&packet.endpoint.to_le_bytes());
            header[4..6].copy_from_slice(&packet.source.to_le_bytes());
            header[6..8].copy_from_slice(&packet.destination.to_le_bytes());
            header[8..10].copy_from_slice(&packet.credit.to_le_bytes());
            header[16..20].copy_from_slice(&packet.generation.to_le_bytes());
            header[20..24].copy_from_slice(&sequence.to_le_bytes());
            match packet.credit {
                0 => (Kind::Data, packet.payload.len()),
                _ => (Kind::Credit, 0),
            }
        }
    };
    header[0] = kind as u8;
    header[12..16].copy_from_slice(&(length as u32).to_le_bytes());
    header[24..32].copy_from_slice(&report.received.to_le_bytes());
    header[32..36].copy_from_slice(&report.buffered.to_le_bytes());
    let check = crc_fast::crc32_iscsi(&header[..36]);
    header[36..].copy_from_slice(&check.to_le_bytes());
    header
}

/// What a header says.
struct Header {
    kind: Kind,
    report: Report,
    length: usize,
    sequence: u32,
    packet: Packet,
}

fn decode(header: &[u8; HEADER], most: usize) -> Result<Header, LinkError> {
    let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    let wrong = |what: String| Err(LinkError::Frame(what));
    if crc_fast::crc32_iscsi(&header[..36]) != u32_at(36) {
        return wrong("a frame whose header has a wrong checksum".into());
    }
    let kinds = [
        Kind::Report,
        Kind::Data,
        Kind::Credit,
        Kind::Ask,
        Kind::Notice,
    ];
    let Some(&kind) = kinds.iter().find(|&&kind| kind as u8 == header[0]) else {
        return wrong(format!("a frame of the unknown kind {}", header[0]));
    };
    let length = u32_at(12) as usize;
    let has_payload = matches!(kind, Kind::Data | Kind::Notice);
    if length > most || (length > 0 && !has_payload) {
        return wrong(format!(
            "a frame ({kind:?}) of {length} bytes, where at most {} are allowed",
            if has_payload { most } else { 0 }
        ));
    }
    if (kind == Kind::Credit) != (u16_at(8) != 0) {
        return wrong(format!("a frame ({kind:?}) with credit {}", u16_at(8)));
    }
    Ok(Header {
        kind,
        report: Report {
            received: u64::from(u32_at(24)) | u64::from(u32_at(28)) << 32,
            buffered: u32_at(32),
        },
        length,
        sequence: u32_at(20),
        packet: Packet {
            endpoint: u16_at(2),
            source: u16_at(4),
            destination: u16_at(6),
            credit: u16_at(8),
            generation: u32_at(16),
            payload: Bytes::new(),
        },
    })
}

impl Header {
    fn with(mut self, payload: Bytes) -> (Frame, Report) {
        let frame = match self.kind {
            Kind::Report => Frame::Report,
            Kind::Ask => Frame::Ask,
            Kind::Notice => Frame::Notice(payload),
            Kind::Data | Kind::Credit => {
                self.packet.payload = payload;
                Frame::Packet {
                    sequence: self.sequence,
                    packet: self.packet,
                }
            }
        };
        (frame, self.report)
    }
}

/// Cuts what comes in on a link into frames.
pub(crate) struct FrameReader<R> {
    reader: R,
    buffer: BytesMut,
    /// The most bytes of a payload.
    most: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(reader: R, most: usize) -> Self {
        Self {
            reader,
            buffer: BytesMut::new(),
            most,
        }
    }

    /// The next frame if it is all in the buffer. Nothing is consumed otherwise.
    pub fn buffered(&mut self) -> Result<Option<(Frame, Report)>, LinkError> {
        let Some(header) = self.header()? else {
            return Ok(None);
        };
        if self.buffer.len() < HEADER + header.length {
            return Ok(None);
        }
        let payload = Bytes::copy_from_slice(&self.buffer[HEADER..][..header.length]);
        bytes::Buf::advance(&mut self.buffer, HEADER + header.length);
        Ok(Some(header.with(payload)))
    }

    fn header(&self) -> Result<Option<Header>, LinkError> {
        match self.buffer.first_chunk() {
            Some(header) => decode(header, self.most).map(Some),
            None => Ok(None),
        }
    }

    /// The next frame. Not to be dropped half way: what was read may be lost.
    pub async fn next(&mut self) -> Result<(Frame, Report), LinkError> {
        loop {
            if let Some(header) = self.header()?
                && header.length > SMALL
            {
                return self.large(header).await;
            }
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.buffer.reserve(BUFFER);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return Err(LinkError::Ended);
            }
        }
    }

    /// A frame whose payload is read into memory of its own, without a copy but of what is in the
    /// buffer already.
    async fn large(&mut self, header: Header) -> Result<(Frame, Report), LinkError> {
        bytes::Buf::advance(&mut self.buffer, HEADER);
        let buffered = self.buffer.len().min(header.length);
        // The header of the next frame comes with the payload, so that large packets in a row take
        // one read each and no copy.
        let mut payload = BytesMut::with_capacity(header.length + HEADER);
        payload.extend_from_slice(&self.buffer[..buffered]);
        bytes::Buf::advance(&mut self.buffer, buffered);
        while payload.len() < header.length {
            let rest = header.length + HEADER - payload.len();
            let mut limited = bytes::BufMut::limit(&mut payload, rest);
            if self.reader.read_buf(&mut limited).await? == 0 {
                return Err(LinkError::Ended);
            }
        }
        self.buffer.extend_from_slice(&payload[header.length..]);
        payload.truncate(header.length);
        Ok(header.with(payload.freeze()))
    }
}

#[cfg(test)]
#[path = "tests/frame.rs"]
mod tests;

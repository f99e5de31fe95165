//! What the two ends of a link tell each other when they connect.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::error::LinkError;
use super::frame::Report;
use super::port::Position;

/// The first bytes of each direction, with the version of the protocol.
const MAGIC: [u8; 8] = *b"FMMESH\0\x01";
const HELLO: usize = 64;
/// The longest refusal.
const REFUSAL: usize = 512;

/// Which end of which link this is, and how far it is. The end that was dialled answers with the
/// same, or a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Of the rack file.
    pub fingerprint: u64,
    /// The channel that leaves the end which speaks.
    pub channel: u32,
    pub position: Position,
    /// Of an answer: whether both go on where the last connection stopped.
    pub is_resumed: bool,
}

impl Hello {
    fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        let position = &self.position;
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.fingerprint.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.channel.to_le_bytes());
        bytes[20..24].copy_from_slice(&position.capacity.to_le_bytes());
        bytes[24..32].copy_from_slice(&position.session.to_le_bytes());
        bytes[32..40].copy_from_slice(&position.peer_session.to_le_bytes());
        bytes[40..48].copy_from_slice(&position.report.received.to_le_bytes());
        bytes[48..52].copy_from_slice(&position.report.buffered.to_le_bytes());
        bytes[52] = self.is_resumed.into();
        let check = crc_fast::crc32_iscsi(&bytes[..60]);
        bytes[60..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HELLO]) -> Result<Self, LinkError> {
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let wrong = |what: &str| Err(LinkError::Frame(what.into()));
        if bytes[..8] != MAGIC {
            return wrong("no greeting of this version of the mesh");
        }
        if crc_fast::crc32_iscsi(&bytes[..60]) != u32_at(60) {
            return wrong("a greeting with a wrong checksum");
        }
        let report = Report {
            received: u64_at(40),
            buffered: u32_at(48),
        };
        let capacity = u32_at(20);
        if u64::from(report.buffered) > report.received || report.buffered > capacity {
            return wrong("a greeting with more packets in a buffer than it can hold");
        }
        Ok(Self {
            fingerprint: u64_at(8),
            channel: u32_at(16),
            position: Position {
                session: u64_at(24),
                peer_session: u64_at(32),
                report,
                capacity,
            },
            is_resumed: bytes[52] != 0,
        })
    }
}

pub(crate) async fn send(
    writer: &mut (impl AsyncWrite + Unpin),
    hello: &Hello,
) -> Result<(), LinkError> {
    writer.write_all(&hello.encode()).await?;
    Ok(writer.flush().await?)
}

/// Tells why there will be no link: zeros in place of the magic bytes, and a text.
pub(crate) async fn refuse(
    writer: &mut (impl AsyncWrite + Unpin),
    why: &str,
) -> Result<(), LinkError> {
    let mut bytes = [0; HELLO + REFUSAL];
    let text = &why.as_bytes()[..why.len().min(REFUSAL)];
    bytes[8..10].copy_from_slice(&(text.len() as u16).to_le_bytes());
    bytes[HELLO..][..text.len()].copy_from_slice(text);
    writer.write_all(&bytes).await?;
    writer.flush().await?;
    Ok(writer.shutdown().await?)
}

/// The other end's greeting.
///
/// # Errors
/// `Refused` with its reason; what was sent is none.
pub(crate) async fn receive(reader: &mut (impl AsyncRead + Unpin)) -> Result<Hello, LinkError> {
    let mut bytes = [0; HELLO];
    reader.read_exact(&mut bytes).await?;
    if bytes[..8] == [0; 8] {
        let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        let mut text = vec![0; length.min(REFUSAL)];
        reader.read_exact(&mut text).await?;
        let text = String::from_utf8_lossy(&text);
        return Err(LinkError::Refused(format!("the peer refuses: {text}")));
    }
    Hello::decode(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            fingerprint: 1 << 40 | 7,
            channel: 3,
            position: Position {
                session: 1 << 50 | 1,
                peer_session: 9,
                report: Report {
                    received: 1 << 33,
                    buffered: 5,
                },
                capacity: 64,
            },
            is_resumed: true,
        }
    }

    #[test]
    fn greetings_read_back_and_damaged_ones_do_not() {
        let bytes = hello().encode();
        assert_eq!(Hello::decode(&bytes).unwrap(), hello());
        for bit in 0..HELLO * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Hello::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[tokio::test]
    async fn a_refusal_brings_its_reason() {
        let (mut a, mut b) = tokio::io::duplex(4096);
        refuse(&mut a, "another rack file").await.unwrap();
        let error = receive(&mut b).await.unwrap_err().to_string();
        assert_eq!(error, "the peer refuses: another rack file");
    }
}

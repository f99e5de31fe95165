//! The packets between nodes: a header each, then pages or what else there is to say. Little endian;
//! the first four bytes are a CRC32C of all that follows, as payloads of the mesh have none.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flashmesh_pages::StorageError;
use flashmesh_pages::flash::{FlashHealth, Geometry, PAGE_SIZE_BYTES, PageBuffer};

/// Bytes in front of the pages of a request, and of a reply.
pub(super) const REQUEST: usize = 56;
pub(super) const REPLY: usize = 32;
const VERSION: u8 = 1;
/// The bit of a kind that makes it one of a reply.
const IS_REPLY: u8 = 0x80;
/// Of an error's text; more is cut off.
const TEXT_MAX: usize = 1024;
/// Words of a [`FlashHealth`].
const HEALTH: usize = 11;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Describe = 1,
    Read = 2,
    Write = 3,
    Erase = 4,
    Sync = 5,
    UsedBlocks = 6,
    Health = 7,
}

const KINDS: [Kind; 7] = [
    Kind::Describe,
    Kind::Read,
    Kind::Write,
    Kind::Erase,
    Kind::Sync,
    Kind::UsedBlocks,
    Kind::Health,
];

impl Kind {
    /// Whether it changes pages.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Write | Self::Erase)
    }
}

/// A packet of a request: all of it, or some pages of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub kind: Kind,
    pub card: u16,
    /// Changes when the asking node has given up what it had asked for.
    pub epoch: u64,
    /// Of the operation, by the node that asks.
    pub id: u64,
    pub first: u64,
    pub term: u64,
    /// The session in which it is to be done; 0 for any. Of a sync: that in which ended what it is to
    /// make durable.
    pub session: u64,
    /// That of the card when it was opened.
    pub shape: u32,
    /// Of the whole operation.
    pub pages: u16,
    /// Pages of a write in the packets before this one.
    pub offset: u16,
}

/// A packet of a reply.
#[derive(Debug)]
pub(super) struct Reply {
    /// The life of the server that answers.
    pub session: u64,
    /// The request's.
    pub id: u64,
    pub body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    /// Some pages of a read, behind `offset` others.
    Pages {
        offset: u16,
        data: Bytes,
    },
    /// A write, an erase or a sync has ended well.
    Done,
    Card(Description),
    UsedBlocks(u64),
    Health(Option<FlashHealth>),
    Failed(Failure),
    /// Of no request: a packet came that can't be read, and what was asked for before is dropped.
    Damaged,
}

/// What a card is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Description {
    pub geometry: Geometry,
    pub continues_blocks: bool,
    /// The most of an operation.
    pub pages_max: u16,
}

impl Description {
    /// Differs between cards that are not alike.
    pub fn shape(&self) -> u32 {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        crc_fast::crc32_iscsi(&bytes)
    }

    fn put(&self, to: &mut impl BufMut) {
        to.put_u32_le(self.geometry.pages_per_erase_block);
        to.put_u64_le(self.geometry.erase_blocks);
        to.put_u8(self.continues_blocks.into());
        to.put_u16_le(self.pages_max);
    }

    fn get(from: &mut Bytes) -> Result<Self, String> {
        let described = Self {
            geometry: Geometry {
                pages_per_erase_block: number(from)?,
                erase_blocks: number(from)?,
            },
            continues_blocks: number::<u8>(from)? != 0,
            pages_max: number(from)?,
        };
        match described.geometry.pages_per_erase_block == 0 || described.pages_max == 0 {
            true => Err("a card without pages".into()),
            false => Ok(described),
        }
    }
}

/// An error on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    kind: u8,
    needed_bytes: u64,
    free_bytes: u64,
    text: String,
}

const FAILED_IO: u8 = 0;
const FAILED_INVALID: u8 = 1;
const FAILED_FULL: u8 = 2;
const FAILED_READ_ONLY: u8 = 3;
const FAILED_CORRUPT: u8 = 4;
/// The session is over in which it was to be done.
const FAILED_RESTARTED: u8 = 5;

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        let (kind, mut text, needed_bytes, free_bytes) = match error {
            StorageError::Invalid(text) => (FAILED_INVALID, text, 0, 0),
            StorageError::ReadOnly { reason, .. } => (FAILED_READ_ONLY, reason, 0, 0),
            StorageError::Corrupt { what } => (FAILED_CORRUPT, what, 0, 0),
            StorageError::Full {
                needed_bytes,
                free_bytes,
                ..
            } => (FAILED_FULL, String::new(), needed_bytes, free_bytes),
            StorageError::Io { source, .. }
                if source.kind() == io::ErrorKind::ConnectionAborted =>
            {
                (FAILED_RESTARTED, source.to_string(), 0, 0)
            }
            other => (FAILED_IO, other.to_string(), 0, 0),
        };
        text.truncate(text.floor_char_boundary(TEXT_MAX));
        Self {
            kind,
            needed_bytes,
            free_bytes,
            text,
        }
    }
}

impl Failure {
    /// The error of a card of that name.
    pub fn of(self, card: &str) -> StorageError {
        let text = self.text;
        match self.kind {
            FAILED_INVALID => StorageError::Invalid(format!("{card}: {text}")),
            FAILED_FULL => StorageError::Full {
                device: card.to_string(),
                needed_bytes: self.needed_bytes,
                free_bytes: self.free_bytes,
            },
            FAILED_READ_ONLY => StorageError::ReadOnly {
                path: card.into(),
                reason: text,
            },
            FAILED_CORRUPT => StorageError::corrupt(format!("{card}: {text}")),
            FAILED_RESTARTED => {
                let source = io::Error::new(io::ErrorKind::ConnectionAborted, text);
                StorageError::io(card, source)
            }
            _ => StorageError::io(card, io::Error::other(text)),
        }
    }
}

/// A packet that came in.
#[derive(Debug)]
pub(super) enum Packet {
    /// With the pages that it brings.
    Request(Request, Bytes),
    Reply(Reply),
}

/// Pages that a packet carries.
pub(super) fn pages_per_packet(packet_bytes: usize) -> usize {
    packet_bytes.saturating_sub(REQUEST.max(REPLY)) / PAGE_SIZE_BYTES
}

fn seal(mut packet: BytesMut) -> Bytes {
    let checksum = crc_fast::crc32_iscsi(&packet[4..]);
    packet[..4].copy_from_slice(&checksum.to_le_bytes());
    packet.freeze()
}

impl Request {
    /// The packet, with pages of a write.
    pub fn packet(&self, pages: &[PageBuffer]) -> Bytes {
        let mut packet = BytesMut::with_capacity(REQUEST + pages.len() * PAGE_SIZE_BYTES);
        packet.put_u32_le(0);
        packet.put_u8(VERSION);
        packet.put_u8(self.kind as u8);
        packet.put_u16_le(self.card);
        packet.put_u64_le(self.epoch);
        packet.put_u64_le(self.id);
        packet.put_u64_le(self.first);
        packet.put_u64_le(self.term);
        packet.put_u64_le(self.session);
        packet.put_u32_le(self.shape);
        packet.put_u16_le(self.pages);
        packet.put_u16_le(self.offset);
        for page in pages {
            packet.put_slice(page);
        }
        seal(packet)
    }
}

fn reply_header(session: u64, id: u64, kind: u8, offset: u16, room: usize) -> BytesMut {
    let mut packet = BytesMut::with_capacity(REPLY + room);
    packet.put_u32_le(0);
    packet.put_u8(VERSION);
    packet.put_u8(kind | IS_REPLY);
    packet.put_u16_le(offset);
    packet.put_u64_le(session);
    packet.put_u64_le(id);
    packet.put_u64_le(0);
    packet
}

/// The packet of some pages of a read.
pub(super) fn pages_packet(session: u64, id: u64, offset: u16, pages: &[PageBuffer]) -> Bytes {
    let mut packet = reply_header(session, id, 0, offset, pages.len() * PAGE_SIZE_BYTES);
    for page in pages {
        packet.put_slice(page);
    }
    seal(packet)
}

impl Reply {
    pub fn packet(&self) -> Bytes {
        let kind = match &self.body {
            Body::Pages { .. } => 0,
            Body::Done => 1,
            Body::Card(_) => 2,
            Body::UsedBlocks(_) => 3,
            Body::Health(_) => 4,
            Body::Failed(_) => 5,
            Body::Damaged => 6,
        };
        let mut packet = reply_header(self.session, self.id, kind, 0, 128);
        match &self.body {
            Body::Done | Body::Damaged => {}
            Body::Pages { data, offset } => {
                packet[6..8].copy_from_slice(&offset.to_le_bytes());
                packet.put_slice(data);
            }
            Body::Card(description) => description.put(&mut packet),
            Body::UsedBlocks(blocks) => packet.put_u64_le(*blocks),
            Body::Health(None) => {}
            Body::Health(Some(health)) => put_health(&mut packet, health),
            Body::Failed(failure) => {
                packet.put_u8(failure.kind);
                packet.put_u64_le(failure.needed_bytes);
                packet.put_u64_le(failure.free_bytes);
                packet.put_slice(failure.text.as_bytes());
            }
        }
        seal(packet)
    }
}

/// A packet that came in, or what is wrong with it.
pub(super) fn decode(mut packet: Bytes) -> Result<Packet, String> {
    let checksum: u32 = number(&mut packet)?;
    if crc_fast::crc32_iscsi(&packet) != checksum {
        return Err("a packet that was damaged on its way".into());
    }
    let version: u8 = number(&mut packet)?;
    if version != VERSION {
        return Err(format!(
            "a packet of version {version}; this flashmesh has version {VERSION}"
        ));
    }
    let kind: u8 = number(&mut packet)?;
    if kind & IS_REPLY != 0 {
        return Ok(Packet::Reply(reply(kind & !IS_REPLY, packet)?));
    }
    let known = KINDS.into_iter().find(|&one| one as u8 == kind);
    let request = Request {
        kind: known.ok_or_else(|| format!("a request of kind {kind}"))?,
        card: number(&mut packet)?,
        epoch: number(&mut packet)?,
        id: number(&mut packet)?,
        first: number(&mut packet)?,
        term: number(&mut packet)?,
        session: number(&mut packet)?,
        shape: number(&mut packet)?,
        pages: number(&mut packet)?,
        offset: number(&mut packet)?,
    };
    Ok(Packet::Request(request, packet))
}

fn reply(kind: u8, mut packet: Bytes) -> Result<Reply, String> {
    let offset = number(&mut packet)?;
    let (session, id) = (number(&mut packet)?, number(&mut packet)?);
    let _: u64 = number(&mut packet)?;
    let body = match kind {
        0 if packet.is_empty() || !packet.len().is_multiple_of(PAGE_SIZE_BYTES) => {
            return Err(format!("{} bytes of pages", packet.len()));
        }
        0 => Body::Pages {
            offset,
            data: packet,
        },
        1 => Body::Done,
        2 => Body::Card(Description::get(&mut packet)?),
        3 => Body::UsedBlocks(number(&mut packet)?),
        4 if packet.is_empty() => Body::Health(None),
        4 => Body::Health(Some(health(&mut packet)?)),
        5 => Body::Failed(Failure {
            kind: number(&mut packet)?,
            needed_bytes: number(&mut packet)?,
            free_bytes: number(&mut packet)?,
            text: String::from_utf8_lossy(&packet[..packet.len().min(TEXT_MAX)]).into_owned(),
        }),
        6 => Body::Damaged,
        other => return Err(format!("a reply of kind {other}")),
    };
    Ok(Reply { session, id, body })
}

fn put_health(to: &mut impl BufMut, health: &FlashHealth) {
    let words: [u64; HEALTH] = [
        health.pages_programmed,
        health.pages_moved,
        health.blocks_erased,
        health.erase_count_max.into(),
        health.erase_count_mean.to_bits(),
        health.bad_blocks,
        health.spare_blocks,
        health.corrected_bits,
        health.uncorrectable_pages,
        health.modelled_busy_ns,
        health.modelled_elapsed_ns,
    ];
    words.into_iter().for_each(|word| to.put_u64_le(word));
}

fn health(from: &mut Bytes) -> Result<FlashHealth, String> {
    let mut word = || number::<u64>(from);
    Ok(FlashHealth {
        pages_programmed: word()?,
        pages_moved: word()?,
        blocks_erased: word()?,
        erase_count_max: word()?.try_into().unwrap_or(u32::MAX),
        erase_count_mean: f64::from_bits(word()?),
        bad_blocks: word()?,
        spare_blocks: word()?,
        corrected_bits: word()?,
        uncorrectable_pages: word()?,
        modelled_busy_ns: word()?,
        modelled_elapsed_ns: word()?,
    })
}

/// Numbers as they stand in packets.
trait Number: Sized {
    fn get(from: &mut Bytes) -> Result<Self, bytes::TryGetError>;
}

impl Number for u8 {
    fn get(from: &mut Bytes) -> Result<Self, bytes::TryGetError> {
        from.try_get_u8()
    }
}

impl Number for u16 {
    fn get(from: &mut Bytes) -> Result<Self, bytes::TryGetError> {
        from.try_get_u16_le()
    }
}

impl Number for u32 {
    fn get(from: &mut Bytes) -> Result<Self, bytes::TryGetError> {
        from.try_get_u32_le()
    }
}

impl Number for u64 {
    fn get(from: &mut Bytes) -> Result<Self, bytes::TryGetError> {
        from.try_get_u64_le()
    }
}

fn number<N: Number>(from: &mut Bytes) -> Result<N, String> {
    N::get(from).map_err(|_| "a packet that ends too early".into())
}

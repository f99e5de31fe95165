//! The file format of xclbin containers (AXLF, magic `xclbin2`): a header, a table of sections, the
//! sections. The layout is that of `xclbin.h` of XRT 2.13; everything is little-endian.

use sha2::{Digest, Sha256};

use crate::{Result, StorageError};

/// What a section holds: the numbers of `enum axlf_section_kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SectionKind {
    Bitstream = 0,
    EmbeddedMetadata = 2,
    MemTopology = 6,
    Connectivity = 7,
    IpLayout = 8,
    UserMetadata = 16,
    AskGroupTopology = 26,
    AskGroupConnectivity = 27,
}

/// Largest container that is read: a full device image is below 200 MB.
pub const MAX_CONTAINER_BYTES: usize = 1 << 30;

const MAGIC: &[u8; 8] = b"xclbin2\0";
const HEADER_AT: usize = 304;
const SECTIONS_AT: usize = 456;
const SECTION_BYTES: usize = 40;
const MAX_SECTIONS: usize = 256;
const MAX_KIND: u32 = 255;

/// Offsets inside the header of 152 bytes at 304.
mod header {
    pub const LENGTH: usize = 0;
    pub const VERSION_MAJOR: usize = 26;
    pub const VERSION_MINOR: usize = 27;
    pub const PLATFORM: usize = 48;
    pub const PLATFORM_BYTES: usize = 64;
    pub const UUID: usize = 112;
    pub const SECTION_COUNT: usize = 144;
}

/// Builds a container of `sections` for the platform of that name. The same sections give the same
/// bytes: its UUID is drawn from them, and the time stamp is 0.
pub(super) fn write(platform: &str, sections: &[(SectionKind, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; SECTIONS_AT + SECTION_BYTES * sections.len()];
    let mut content = Sha256::new();
    for (index, (kind, bytes)) in sections.iter().enumerate() {
        file.resize(file.len().next_multiple_of(8), 0);
        let (offset, size) = (file.len() as u64, bytes.len() as u64);
        let entry = SECTIONS_AT + SECTION_BYTES * index;
        file[entry..entry + 4].copy_from_slice(&(*kind as u32).to_le_bytes());
        file[entry + 24..entry + 32].copy_from_slice(&offset.to_le_bytes());
        file[entry + 32..entry + 40].copy_from_slice(&size.to_le_bytes());
        file.extend_from_slice(bytes);
        content.update((*kind as u32).to_le_bytes());
        content.update(size.to_le_bytes());
        content.update(bytes);
    }
    let digest = content.finalize();
    file[..8].copy_from_slice(MAGIC);
    // No signature; the reserved bytes are ones.
    file[8..40].fill(0xff);
    // XRT skips the download of a container whose number is the loaded one's.
    file[296..304].copy_from_slice(&digest[16..24]);

    let length = file.len() as u64;
    let head = &mut file[HEADER_AT..SECTIONS_AT];
    head[header::LENGTH..][..8].copy_from_slice(&length.to_le_bytes());
    head[header::VERSION_MAJOR] = 2;
    head[header::VERSION_MINOR] = 13;
    let platform = &platform.as_bytes()[..platform.len().min(header::PLATFORM_BYTES - 1)];
    head[header::PLATFORM..][..platform.len()].copy_from_slice(platform);
    head[header::UUID..][..16].copy_from_slice(&digest[..16]);
    head[header::SECTION_COUNT..][..4].copy_from_slice(&(sections.len() as u32).to_le_bytes());
    file
}

/// The sections of a container whose every offset was checked.
#[derive(Debug, Clone)]
pub(super) struct Axlf {
    /// For which platform it was built.
    pub platform: String,
    sections: Vec<(u32, std::ops::Range<usize>)>,
}

impl Axlf {
    /// Reads the header and the table of sections.
    pub(super) fn read(file: &[u8]) -> Result<Self> {
        if file.len() > MAX_CONTAINER_BYTES {
            return Err(broken(format!("{} bytes are too many", file.len())));
        }
        if file.len() < SECTIONS_AT {
            return Err(broken(format!("{} bytes hold no header", file.len())));
        }
        if &file[..8] != MAGIC {
            return Err(broken("it does not begin with 'xclbin2'"));
        }
        let head = &file[HEADER_AT..SECTIONS_AT];
        let signature = i64::from(u32_at(file, 8) as i32).max(0) as u64;
        let length = u64_at(head, header::LENGTH);
        if length.checked_add(signature) != Some(file.len() as u64) {
            return Err(broken(format!(
                "its header says {length} bytes, the file has {}",
                file.len()
            )));
        }
        // What follows looks at the signed part only.
        let file = &file[..length as usize];
        let count = u32_at(head, header::SECTION_COUNT) as usize;
        let table_end = SECTIONS_AT + SECTION_BYTES * count.min(MAX_SECTIONS);
        if count > MAX_SECTIONS || table_end > file.len() {
            return Err(broken(format!("{count} sections do not fit into it")));
        }

        let mut sections: Vec<(u32, std::ops::Range<usize>)> = Vec::with_capacity(count);
        for index in 0..count {
            let entry = &file[SECTIONS_AT + SECTION_BYTES * index..][..SECTION_BYTES];
            let kind = u32_at(entry, 0);
            let (offset, size) = (u64_at(entry, 24), u64_at(entry, 32));
            let end = offset.checked_add(size);
            let inside = end.is_some_and(|end| end <= length) && offset >= table_end as u64;
            if kind > MAX_KIND || !inside {
                return Err(broken(format!(
                    "section {index} (kind {kind}, {size} bytes at {offset}) lies outside of it"
                )));
            }
            let range = offset as usize..(offset + size) as usize;
            for (other, taken) in &sections {
                if range.start < taken.end && taken.start < range.end {
                    return Err(broken(format!(
                        "sections of kinds {other} and {kind} overlap"
                    )));
                }
            }
            sections.push((kind, range));
        }
        let name = &head[header::PLATFORM..][..header::PLATFORM_BYTES];
        Ok(Self {
            platform: text_until_zero(name),
            sections,
        })
    }

    /// The section of that kind, which must be there exactly once. `file` is what was read.
    pub(super) fn section<'f>(&self, file: &'f [u8], kind: SectionKind) -> Result<&'f [u8]> {
        let mut found = self.sections.iter().filter(|(k, _)| *k == kind as u32);
        match (found.next(), found.next()) {
            (Some((_, range)), None) => file
                .get(range.clone())
                .ok_or_else(|| broken("it is not the file that was read")),
            (None, _) if kind == SectionKind::UserMetadata => Err(broken(
                "it has no USER_METADATA section, so that nothing says which kernels it holds; \
                 add the one that flashmesh generates with xclbinutil --add-section",
            )),
            (None, _) => Err(broken(format!("it has no {kind:?} section"))),
            (Some(_), Some(_)) => Err(broken(format!("it has several {kind:?} sections"))),
        }
    }
}

/// The error of a container that is not what it should be.
pub(super) fn broken(what: impl std::fmt::Display) -> StorageError {
    StorageError::Invalid(format!("xclbin container: {what}"))
}

/// The four bytes at `at`, which the caller has checked to be there.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

/// The eight bytes at `at`, which the caller has checked to be there.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

/// A name in a field of fixed length.
pub(super) fn text_until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

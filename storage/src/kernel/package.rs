//! The package of a kernel, `.fmk`: a WebAssembly module with custom sections behind it.

use std::fmt::Write;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::manifest::{MAX_MANIFEST_BYTES, Manifest};
use crate::{Result, StorageError};

/// Bytes of a package at most.
pub const MAX_PACKAGE_BYTES: usize = 64 << 20;

const WASM_HEADER: &[u8] = b"\0asm\x01\0\0\0";
const MANIFEST: &str = "flashmesh.manifest";
const SOURCE: &str = "flashmesh.source";
const XCLBIN: &str = "flashmesh.xclbin";

/// A kernel as it is installed. It holds what the file says; whether the module keeps to the
/// contract is found out when it is compiled.
#[derive(Debug, Clone)]
pub struct Package {
    /// What it is.
    pub manifest: Manifest,
    /// The text of `kernel.toml`.
    pub manifest_text: String,
    /// The WebAssembly module, without flashmesh's sections.
    pub wasm: Bytes,
    /// The device's container.
    pub xclbin: Option<Bytes>,
    /// SHA-256 over names and bytes of the sources.
    pub source_digest: [u8; 32],
    file: Bytes,
}

impl Package {
    /// Puts a package together.
    ///
    /// # Errors
    /// `Invalid` when the manifest is not in order, `wasm` is no module or has sections of
    /// flashmesh already, or the whole is too large.
    pub fn new(
        manifest_text: &str,
        wasm: &[u8],
        xclbin: Option<&[u8]>,
        source_digest: [u8; 32],
    ) -> Result<Self> {
        let mut file = wasm.to_vec();
        let sections = sections(&Bytes::copy_from_slice(wasm)).map_err(invalid)?;
        if sections.flashmesh_at.is_some() {
            return Err(invalid(
                "the module has sections of flashmesh already".to_owned(),
            ));
        }
        push_section(&mut file, MANIFEST, manifest_text.as_bytes());
        push_section(&mut file, SOURCE, hexadecimal(&source_digest).as_bytes());
        if let Some(xclbin) = xclbin {
            push_section(&mut file, XCLBIN, xclbin);
        }
        Self::parse(file.into())
    }

    /// Reads a package.
    ///
    /// # Errors
    /// `Invalid` with what is wrong in it.
    pub fn parse(file: Bytes) -> Result<Self> {
        let sections = sections(&file).map_err(invalid)?;
        let missing = |name: &str| {
            invalid(format!(
                "the section {name} is missing; make the package with `flashmesh kernel build`"
            ))
        };
        let manifest = sections.manifest.ok_or_else(|| missing(MANIFEST))?;
        let manifest_text = std::str::from_utf8(&manifest)
            .map_err(|_| invalid(format!("the section {MANIFEST} is not UTF-8")))?
            .to_owned();
        let source = sections.source.ok_or_else(|| missing(SOURCE))?;
        let source_digest = from_hexadecimal(&source).ok_or_else(|| {
            invalid(format!(
                "the section {SOURCE} is no SHA-256 in 64 lower-case hexadecimal digits"
            ))
        })?;
        let end = sections.flashmesh_at.unwrap_or(file.len());
        Ok(Self {
            manifest: Manifest::parse(&manifest_text)?,
            manifest_text,
            wasm: file.slice(..end),
            xclbin: sections.xclbin,
            source_digest,
            file,
        })
    }

    /// What it is, without module and container: packages may be large, and what runs is made of
    /// them once.
    pub(crate) fn without_code(self) -> Self {
        Self {
            wasm: Bytes::new(),
            xclbin: None,
            file: Bytes::new(),
            ..self
        }
    }

    /// The file's bytes, as they were read.
    pub fn to_bytes(&self) -> Bytes {
        self.file.clone()
    }

    /// SHA-256 of the whole file.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.file).into()
    }
}

fn invalid(reason: String) -> StorageError {
    StorageError::Invalid(format!("kernel package: {reason}"))
}

#[derive(Debug, Default)]
struct Sections {
    /// Where flashmesh's sections begin.
    flashmesh_at: Option<usize>,
    manifest: Option<Bytes>,
    source: Option<Bytes>,
    xclbin: Option<Bytes>,
}

/// Walks over the sections of a module: only their frames are looked at, and names of custom ones.
fn sections(file: &Bytes) -> Result<Sections, String> {
    if file.len() > MAX_PACKAGE_BYTES {
        return Err(format!(
            "{} bytes; a package has {MAX_PACKAGE_BYTES} at most",
            file.len()
        ));
    }
    if !file.starts_with(WASM_HEADER) {
        return Err("is no WebAssembly module of version 1".to_owned());
    }
    let mut found = Sections::default();
    let mut cursor = Cursor {
        bytes: file,
        at: WASM_HEADER.len(),
    };
    while cursor.at < file.len() {
        let start = cursor.at;
        let section = cursor.section();
        let section = section.ok_or_else(|| {
            format!("the section at byte {start} is longer than the file, or its length is not one")
        })?;
        let name = section.custom_name.unwrap_or_default();
        if !name.starts_with(b"flashmesh.") {
            if found.flashmesh_at.is_some() {
                return Err(format!(
                    "the section at byte {start} is behind flashmesh's, which have to be the last"
                ));
            }
            continue;
        }
        found.flashmesh_at.get_or_insert(start);
        let content = file.slice(section.content);
        let (place, max) = if name == MANIFEST.as_bytes() {
            (&mut found.manifest, MAX_MANIFEST_BYTES)
        } else if name == SOURCE.as_bytes() {
            (&mut found.source, 64)
        } else if name == XCLBIN.as_bytes() {
            (&mut found.xclbin, MAX_PACKAGE_BYTES)
        } else {
            let name = String::from_utf8_lossy(&name[..name.len().min(80)]);
            return Err(format!(
                "has the section \"{}\", which this flashmesh does not know",
                name.escape_debug()
            ));
        };
        let name = String::from_utf8_lossy(name);
        if content.len() > max {
            return Err(format!(
                "the section {name} has {} bytes; {max} is the limit",
                content.len()
            ));
        }
        if place.replace(content).is_some() {
            return Err(format!("has the section {name} twice"));
        }
    }
    Ok(found)
}

/// One section's frame.
pub(crate) struct Section<'a> {
    /// Its number in the WebAssembly standard.
    pub id: u8,
    /// The name of a custom section (id 0).
    pub custom_name: Option<&'a [u8]>,
    /// Where its content is in the file, behind the name of a custom section.
    pub content: std::ops::Range<usize>,
}

/// Reads WebAssembly's numbers and frames from bytes that nobody has checked.
pub(crate) struct Cursor<'a> {
    /// What is read.
    pub bytes: &'a [u8],
    /// The next byte.
    pub at: usize,
}

impl<'a> Cursor<'a> {
    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// An unsigned LEB128 number of 32 bits.
    pub fn number(&mut self) -> Option<u32> {
        let mut number = 0u64;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return u32::try_from(number).ok();
            }
        }
        None
    }

    /// The next `length` bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let bytes = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    /// The next section.
    pub fn section(&mut self) -> Option<Section<'a>> {
        let id = self.byte()?;
        let length = self.number()? as usize;
        let start = self.at;
        let bytes = self.take(length)?;
        let (mut content, mut custom_name) = (start..self.at, None);
        if id == 0 {
            let mut inner = Cursor { bytes, at: 0 };
            let length = inner.number()? as usize;
            custom_name = Some(inner.take(length)?);
            content.start += inner.at;
        }
        Some(Section {
            id,
            custom_name,
            content,
        })
    }
}

fn push_section(file: &mut Vec<u8>, name: &str, content: &[u8]) {
    let mut body = Vec::new();
    push_number(&mut body, name.len());
    body.extend_from_slice(name.as_bytes());
    file.push(0);
    push_number(file, body.len() + content.len());
    file.extend_from_slice(&body);
    file.extend_from_slice(content);
}

fn push_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Bytes as digests are written.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hexadecimal(text: &[u8]) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut digest = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(digest)
}

/// SHA-256 over the sources of a kernel: what [`Package::source_digest`] holds.
pub fn source_digest<'a>(sources: impl Iterator<Item = (&'a str, &'a [u8])>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for (name, bytes) in sources {
        // Lengths keep one file's end from being another's beginning.
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name);
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    const TEXT: &str = "[kernel]\nname = 'f'\nkind = 'scalar'\nversion = '0.1.0'\n\
                        signature = '(x DOUBLE) RETURNS DOUBLE'\n";

    #[test]
    fn packages_come_back_as_they_were_made() {
        for xclbin in [None, Some([7u8; 300].as_slice())] {
            let package = Package::new(TEXT, WASM_HEADER, xclbin, [5; 32]).unwrap();
            let again = Package::parse(package.to_bytes()).unwrap();
            assert_eq!(again.manifest, package.manifest);
            assert_eq!(again.manifest_text, TEXT);
            assert_eq!(again.wasm, WASM_HEADER);
            assert_eq!(again.xclbin.as_deref(), xclbin);
            assert_eq!(again.source_digest, [5; 32]);
            assert_eq!(again.digest(), package.digest());
        }
    }

    #[test]
    fn any_change_of_a_byte_is_refused_or_harmless() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let file = Package::new(TEXT, WASM_HEADER, Some(&[1; 40]), [9; 32]).unwrap();
        let file = file.to_bytes();
        for _ in 0..2000 {
            let mut bytes = file.to_vec();
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
            bytes.truncate(random.random_range(at..=bytes.len()));
            // No panic is all that is asked for.
            let _ = Package::parse(bytes.into());
        }
    }
}

//! The files of the catalog as a node has them: what the group agreed on, and nothing else.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flashmesh_pages::flash::{make_folder, sync_folder};
use redb::StorageBackend;

use super::entry::{FileWrite, Part};

const MAGIC: &[u8; 8] = b"FMIMAGE\x01";
/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// The files.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    parts: Vec<Arc<File>>,
}

/// What ends an image: a CRC32C of all before.
struct Summed<T> {
    inner: T,
    digest: crc_fast::Digest,
}

impl<T> Summed<T> {
    fn new(inner: T) -> Self {
        let digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        Self { inner, digest }
    }

    fn checksum(&self) -> [u8; 4] {
        (self.digest.finalize() as u32).to_le_bytes()
    }
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Summed<T> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
        self.digest.update(&out[..read]);
        Ok(read)
    }
}

fn is_none() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "it is no image of a catalog, or is damaged",
    )
}

impl Files {
    /// In `folder`. Where `is_new`, it is made when missing, as the files are; else all must be there, as
    /// what is missing would pass for empty.
    ///
    /// # Errors
    /// Those of a file, which they name.
    pub fn open(folder: &Path, is_new: bool) -> io::Result<Self> {
        make_folder(folder)?;
        let open = |part: Part| {
            let mut options = OpenOptions::new();
            let options = options
                .read(true)
                .write(true)
                .create(is_new)
                .truncate(false);
            let path = folder.join(part.file_name());
            let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
            options.open(&path).map(Arc::new).map_err(named)
        };
        let parts = Part::ALL.into_iter().map(open).collect::<Result<_, _>>()?;
        sync_folder(folder)?;
        Ok(Self {
            folder: folder.to_path_buf(),
            parts,
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// One of them, for reading.
    pub fn part(&self, part: Part) -> PartFile {
        PartFile(Arc::clone(&self.parts[part as usize]))
    }

    /// # Errors
    /// Those of the file, which they name.
    pub fn apply(&self, write: &FileWrite) -> io::Result<()> {
        let file = &self.parts[write.part as usize];
        let applied = match &write.bytes {
            Some(bytes) => file.write_all_at(bytes, write.at),
            None => file.set_len(write.at),
        };
        applied.map_err(|error| self.named(write.part, error))
    }

    /// Makes all durable that was applied.
    ///
    /// # Errors
    /// Those of a file, which they name.
    pub fn sync(&self) -> io::Result<()> {
        let mut parts = Part::ALL.into_iter().zip(&self.parts);
        parts.try_for_each(|(part, file)| file.sync_data().map_err(|e| self.named(part, e)))
    }

    fn named(&self, part: Part, error: io::Error) -> io::Error {
        let path = self.folder.join(part.file_name());
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    }

    /// Writes all of them to `out`. What is applied meanwhile may be in it, or not, or with some of its bytes; where a
    /// file becomes shorter it ends in zeros.
    pub fn dump(&self, out: impl Write) -> io::Result<()> {
        let mut out = Summed::new(out);
        out.write_all(MAGIC)?;
        let mut buffer = vec![0; COPY_BYTES];
        for file in &self.parts {
            let bytes = file.metadata()?.len();
            out.write_all(&bytes.to_le_bytes())?;
            let mut at = 0;
            while at < bytes {
                let count = (bytes - at).min(COPY_BYTES as u64) as usize;
                read_or_zero(file, &mut buffer[..count], at)?;
                out.write_all(&buffer[..count])?;
                at += count as u64;
            }
        }
        let checksum = out.checksum();
        out.inner.write_all(&checksum)?;
        out.inner.flush()
    }

    /// Whether that is what [`Files::dump`] has written.
    pub fn check(image: impl Read) -> io::Result<()> {
        Self::read_image(image, |_, _, _| Ok(()))
    }

    fn read_image(
        image: impl Read,
        mut take: impl FnMut(usize, u64, Option<&[u8]>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut image = Summed::new(image);
        let mut magic = [0; 8];
        image.read_exact(&mut magic)?;
        if magic != *MAGIC {
            return Err(is_none());
        }
        let mut buffer = vec![0; COPY_BYTES];
        for part in 0..Part::ALL.len() {
            let mut bytes = [0; 8];
            image.read_exact(&mut bytes)?;
            let bytes = u64::from_le_bytes(bytes);
            take(part, 0, None)?;
            let mut at = 0;
            while at < bytes {
                let count = (bytes - at).min(COPY_BYTES as u64) as usize;
                image.read_exact(&mut buffer[..count])?;
                take(part, at, Some(&buffer[..count]))?;
                at += count as u64;
            }
        }
        let expected = image.checksum();
        let mut checksum = [0; 4];
        image.inner.read_exact(&mut checksum)?;
        match checksum == expected {
            true => Ok(()),
            false => Err(is_none()),
        }
    }

    /// Becomes what an image has, which was checked.
    pub fn load(&self, image: impl Read) -> io::Result<()> {
        Self::read_image(image, |part, at, bytes| match bytes {
            None => self.parts[part].set_len(0),
            Some(bytes) => self.parts[part].write_all_at(bytes, at),
        })
    }
}

/// The bytes of a file, and zeros behind its end.
fn read_or_zero(file: &File, mut out: &mut [u8], mut at: u64) -> io::Result<()> {
    while !out.is_empty() {
        match file.read_at(out, at) {
            Ok(0) => break,
            Ok(count) => {
                out = &mut out[count..];
                at += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    out.fill(0);
    Ok(())
}

/// A file of the catalog, which is written by the group alone.
#[derive(Debug)]
pub(super) struct PartFile(Arc<File>);

impl StorageBackend for PartFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_the_files_and_no_bit_of_it_may_differ() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::open(&folder.path().join("a"), true).unwrap();
        for (part, bytes) in [(Part::Catalog, 300), (Part::Log, 0), (Part::Behind, 17)] {
            let write = FileWrite {
                part,
                at: 3,
                bytes: Some(vec![7; bytes]),
            };
            files.apply(&write).unwrap();
        }
        let mut image = Vec::new();
        files.dump(&mut image).unwrap();
        Files::check(image.as_slice()).unwrap();
        let other = Files::open(&folder.path().join("b"), true).unwrap();
        let more = FileWrite {
            part: Part::Log,
            at: 0,
            bytes: Some(vec![1; 99]),
        };
        other.apply(&more).unwrap();
        other.load(image.as_slice()).unwrap();
        let mut again = Vec::new();
        other.dump(&mut again).unwrap();
        assert!(again == image);
        for at in 0..image.len() {
            image[at] ^= 4;
            // A length that is far too great finds the end.
            assert!(Files::check(image.as_slice()).is_err(), "byte {at}");
            assert!(Files::check(&image[..at]).is_err());
            image[at] ^= 4;
        }
    }
}

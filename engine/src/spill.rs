//! One user's part of what queries may spill.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use datafusion::error::Result;
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::spill_file::{SpillFile, SpillWriter, TempFileFactory};
use futures::Stream;

/// Spill files of one user: they lie among those of all, and are bounded besides.
#[derive(Debug)]
pub(crate) struct UserSpill {
    all: Arc<DiskManager>,
    room: Arc<Room>,
}

#[derive(Debug)]
struct Room {
    limit: u64,
    used: AtomicU64,
}

impl UserSpill {
    /// At most `limit` bytes of what `all` may hold.
    pub fn new(all: Arc<DiskManager>, limit: u64) -> Self {
        Self {
            all,
            room: Arc::new(Room {
                limit,
                used: AtomicU64::new(0),
            }),
        }
    }
}

impl TempFileFactory for UserSpill {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        Ok(Arc::new(UserFile {
            file: self.all.create_tmp_file(description)?,
            taken: Arc::new(Taken {
                room: Arc::clone(&self.room),
                bytes: AtomicU64::new(0),
            }),
        }))
    }
}

/// What one file takes, given back when nobody reads or writes it any more.
struct Taken {
    room: Arc<Room>,
    bytes: AtomicU64,
}

impl Taken {
    fn take(&self, bytes: u64) -> io::Result<()> {
        let before = self.room.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.room.limit {
            self.room.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(io::Error::other(format!(
                "the user's queries spill {before} bytes of {} (--max-user-spill)",
                self.room.limit
            )));
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.room.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

struct UserFile {
    file: Arc<dyn SpillFile>,
    taken: Arc<Taken>,
}

impl SpillFile for UserFile {
    fn path(&self) -> Option<&Path> {
        self.file.path()
    }

    fn size(&self) -> Option<u64> {
        self.file.size()
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        self.file.read_stream()
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(UserWriter {
            writer: self.file.open_writer()?,
            taken: Arc::clone(&self.taken),
        }))
    }
}

struct UserWriter {
    writer: Box<dyn SpillWriter>,
    taken: Arc<Taken>,
}

impl io::Write for UserWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The writer below writes all or fails.
        self.taken.take(bytes.len() as u64)?;
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl SpillWriter for UserWriter {
    fn finish(&mut self) -> Result<()> {
        self.writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use datafusion::execution::disk_manager::DiskManagerBuilder;

    use super::*;

    #[test]
    fn a_user_spills_their_part_and_no_more() {
        let all = Arc::new(DiskManagerBuilder::default().build().unwrap());
        let user = UserSpill::new(Arc::clone(&all), 100);
        let write = |file: &Arc<dyn SpillFile>, bytes: usize| {
            let mut writer = file.open_writer().unwrap();
            writer.write_all(&vec![7; bytes])
        };
        let first = user.create_temp_file("a sort").unwrap();
        let second = user.create_temp_file("a sort").unwrap();
        write(&first, 80).unwrap();
        let refused = write(&second, 21).unwrap_err().to_string();
        assert!(refused.contains("--max-user-spill"), "{refused}");
        write(&second, 20).unwrap();
        assert_eq!(all.used_disk_space(), 100);
        drop(first);
        write(&second, 80).unwrap();
        drop(second);
        let used = user.room.used.load(Ordering::Relaxed);
        assert_eq!((used, all.used_disk_space()), (0, 0));
    }
}

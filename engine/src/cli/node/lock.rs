//! Which process is a node: the one that holds the lock on its file. A file that a process has left
//! behind is not locked, so it does no harm; the system names the holder, so no other process is
//! ever taken for it.

use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::{Error, Result};

/// The file, in the node's folder. It also has the process's number, for people.
const FILE: &str = "node.pid";

/// Held as long as the process is there. The file stays: were it removed, two processes could hold
/// locks on files of the same name.
pub(super) struct NodeLock {
    _file: File,
}

impl NodeLock {
    /// Takes the lock of the node with that folder, which is made when missing.
    ///
    /// # Errors
    /// [`Error::Usage`] where another process is that node; [`Error::Io`].
    pub fn take(name: &str, folder: &Path) -> Result<Self> {
        let failed = |what: &str, source| Error::io(format!("{what} {}", folder.display()), source);
        std::fs::create_dir_all(folder).map_err(|e| failed("making the folder", e))?;
        let path = folder.join(FILE);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(&path);
        let mut file = file.map_err(|e| failed("making node.pid in", e))?;
        if control(&file, libc::F_SETLK, libc::F_WRLCK).is_err() {
            let process = holder_of(&file).ok().flatten();
            let process = process.map_or(String::new(), |id| format!(" (process {id})"));
            return Err(Error::usage(format!(
                "node '{name}' runs already{process}: it holds the lock on {}",
                path.display()
            )));
        }
        let mut write = || {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write().map_err(|e| failed("writing node.pid in", e))?;
        Ok(Self { _file: file })
    }
}

/// The process that is the node with that folder, if there is one. Not to be asked by that process
/// itself, which would lose the lock by it.
///
/// # Errors
/// [`Error::Io`].
pub(in crate::cli) fn holder(folder: &Path) -> Result<Option<u32>> {
    let path = folder.join(FILE);
    let failed = |source| Error::io(format!("asking who holds {}", path.display()), source);
    match File::open(&path) {
        Ok(file) => holder_of(&file).map_err(failed),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

fn holder_of(file: &File) -> std::io::Result<Option<u32>> {
    let found = control(file, libc::F_GETLK, libc::F_WRLCK)?;
    match i32::from(found.l_type) == libc::F_UNLCK {
        true => Ok(None),
        false => Ok(u32::try_from(found.l_pid).ok()),
    }
}

/// A record lock of POSIX on the whole file: unlike `flock`'s, the system tells who holds it.
fn control(file: &File, command: i32, kind: i32) -> std::io::Result<libc::flock> {
    // SAFETY: flock is plain data, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    // SAFETY: the pointer is to a flock of ours, which the call reads and writes.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(lock),
    }
}

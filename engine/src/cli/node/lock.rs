//! Which process is a node: the one that holds the lock on its file. A file that a process has left
//! behind is not locked, so it does no harm; the system names the holder, so no other process is
//! ever taken for it.

use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::{Error, Result};

/// The file, in the node's folder. It also has the process's number, for people.
const FILE: &str = "node.pid";
/// The descriptor of that file, where the program that this process ran before held the lock.
const HANDED: &str = "FLASHMESH_NODE_LOCK";

/// Held as long as the process is there. The file stays: were it removed, two processes could hold
/// locks on files of the same name.
pub(super) struct NodeLock(File);

impl NodeLock {
    /// Takes the lock of the node with that folder, which is made when missing.
    ///
    /// # Errors
    /// [`Error::Usage`] where another process is that node; [`Error::Io`].
    pub fn take(name: &str, folder: &Path) -> Result<Self> {
        let failed = |what: &str, source| Error::io(format!("{what} {}", folder.display()), source);
        std::fs::create_dir_all(folder).map_err(|e| failed("making the folder", e))?;
        let path = folder.join(FILE);
        let open = || {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false);
            file.open(&path)
        };
        let file = handed(&path).map_or_else(open, Ok);
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
        Ok(Self(file))
    }

    /// Has the program by which this process is replaced take the lock over: it is held all along, and
    /// nobody sees the node down. (Linux before 5.11 lets it go, where the process has threads.) Gives the
    /// variable by which that program knows.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn hand_over(&self) -> Result<(&'static str, String)> {
        let file = self.0.as_raw_fd();
        close_on_exec(file, false).map_err(|e| Error::io("keeping the lock of the node", e))?;
        Ok((HANDED, file.to_string()))
    }
}

/// The file at `path`, as the program that this process ran before left it open: were it opened anew and
/// one of the two closed, the lock would be gone.
fn handed(path: &Path) -> Option<File> {
    let number: RawFd = std::env::var(HANDED).ok()?.parse().ok()?;
    // Another process's variable may name a descriptor that is something else here.
    let link = std::fs::metadata(format!("/proc/self/fd/{number}")).ok()?;
    let own = std::fs::metadata(path).ok()?;
    if (link.dev(), link.ino()) != (own.dev(), own.ino()) {
        return None;
    }
    close_on_exec(number, true).ok()?;
    // SAFETY: it is open on the node's file, which nothing else in this process has opened.
    Some(unsafe { File::from_raw_fd(number) })
}

fn close_on_exec(file: RawFd, close: bool) -> std::io::Result<()> {
    let flags = if close { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: the call takes numbers, and changes what happens at the next exec alone.
    match unsafe { libc::fcntl(file, libc::F_SETFD, flags) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, IoSlice};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};
    use std::thread;

    use super::super::anew::replace_program;
    use super::*;

    const FOLDER: &str = "FLASHMESH_TEST_LOCK";

    /// Not a test but the process of one: takes the lock twice, in two programs, as a node that begins
    /// anew.
    #[test]
    fn process_that_begins_anew() {
        let Some(folder) = std::env::var_os(FOLDER) else {
            return;
        };
        let folder = Path::new(&folder);
        let lock = NodeLock::take("n00", folder).unwrap();
        // Clients that have gone are written to meanwhile, as tonic does it.
        for _ in 0..4 {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            drop(theirs);
            thread::spawn(move || {
                loop {
                    let wrote = ours.write_vectored(&[IoSlice::new(b"an"), IoSlice::new(b"swer")]);
                    assert!(wrote.is_err());
                }
            });
        }
        let handed = lock.hand_over().unwrap();
        let Err(failed) = match std::env::var(HANDED) {
            Err(_) => {
                let arguments = std::env::args_os().skip(1);
                replace_program(&std::env::current_exe().unwrap(), arguments, &[handed])
            }
            Ok(before) => {
                assert_eq!(lock.0.as_raw_fd().to_string(), before);
                // The third program takes nothing: the lock is the second's.
                let arguments = ["-c", "echo handed over; read line"].map(Into::into);
                replace_program(Path::new("/bin/sh"), arguments, &[handed])
            }
        };
        panic!("{failed}");
    }

    #[test]
    fn a_process_that_begins_anew_holds_the_lock_all_along() {
        let folder = tempfile::tempdir().unwrap();
        let name = "cli::node::lock::tests::process_that_begins_anew";
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(FOLDER, folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let said = lines.find(|line| line.as_ref().is_ok_and(|line| line == "handed over"));
        assert!(said.is_some(), "it ended before");
        assert_eq!(holder(folder.path()).unwrap(), Some(process.id()));
        let refused = NodeLock::take("n00", folder.path());
        let refused = refused.map(drop).unwrap_err().to_string();
        assert!(refused.contains(&process.id().to_string()), "{refused}");
        drop(process.stdin.take());
        process.wait().unwrap();
        assert_eq!(holder(folder.path()).unwrap(), None);
    }
}

//! A loss of power, as near as a process comes to one: the database lies on an ext4 of its own, on
//! a loop device, which is shut down without writing its journal (FS_IOC_SHUTDOWN). What was synced
//! stays, all else of the page cache is gone, and from then on every write fails.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run_quietly;
use crate::run::{Error, Result};

/// Room for the database.
const IMAGE_BYTES: u64 = 1 << 30;
const FS_IOC_SHUTDOWN: libc::Ioctl = 0x8004_587d;
/// EXT4_GOING_FLAGS_NOLOGFLUSH.
const NO_LOG_FLUSH: u32 = 2;

/// A file system that can lose its power.
pub struct PowerRig {
    /// The device, as a file: it outlives the rig.
    pub image: PathBuf,
    mount: PathBuf,
}

impl PowerRig {
    /// Makes one in a folder.
    ///
    /// # Errors
    /// Where the process is not root, or the machine has no loop devices or no ext4.
    pub fn new(folder: &Path) -> Result<Self> {
        let (image, mount) = (folder.join("power.ext4"), folder.join("power"));
        File::create(&image)?.set_len(IMAGE_BYTES)?;
        fs::create_dir(&mount)?;
        run("mkfs.ext4", ["-q".as_ref(), image.as_os_str()])?;
        attach(&image, &mount)?;
        Ok(Self { image, mount })
    }

    /// Where files may be made.
    pub fn folder(&self) -> &Path {
        &self.mount
    }

    /// The power fails.
    pub fn fail(&self) -> Result<()> {
        let folder = File::open(&self.mount)?;
        let flags = NO_LOG_FLUSH;
        // SAFETY: the descriptor is open, and the ioctl reads one u32 at the pointer.
        let result = unsafe { libc::ioctl(folder.as_raw_fd(), FS_IOC_SHUTDOWN, &flags) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().into()),
        }
    }

    /// It comes again; nobody has a file open.
    pub fn restore(&self) -> Result<()> {
        self.unmount()?;
        attach(&self.image, &self.mount)
    }

    fn unmount(&self) -> Result<()> {
        run("umount", [self.mount.as_os_str()])
    }
}

impl Drop for PowerRig {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("crash: {error}");
        }
    }
}

fn attach(image: &Path, mount: &Path) -> Result<()> {
    let options = ["-o".as_ref(), "loop".as_ref()];
    run(
        "mount",
        options
            .into_iter()
            .chain([image.as_os_str(), mount.as_os_str()]),
    )
}

fn run<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<()> {
    let mut command = Command::new(program);
    let done = run_quietly(command.args(arguments));
    done.map(drop).map_err(|error| {
        Error::new(format!(
            "power losses need root, loop devices and ext4: {error}"
        ))
    })
}

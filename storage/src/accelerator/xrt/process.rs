//! Starting the process that XRT runs in: its folder, its environment, its socket.

use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::options::{XrtMode, XrtOptions, preloaded};
use super::shared::Connection;
use crate::{Result, StorageError};

/// A folder of this session's own, which goes with it.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn create() -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let name = format!(
            "flashmesh-xrt-{}-{}-{:x}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed),
            time.unwrap_or_default().as_nanos()
        );
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| StorageError::io(format!("create the folder {path:?}"), error))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A started process.
pub(super) struct Started {
    pub child: Child,
    pub connection: Connection,
    pub scratch: Scratch,
    /// What it writes.
    pub log: PathBuf,
}

/// Starts the process; it waits for commands.
pub(super) fn start(options: &XrtOptions) -> Result<Started> {
    options.check()?;
    let scratch = Scratch::create()?;
    let log = scratch.0.join("log");
    let failed = |error| StorageError::io("start the process of the XRT runtime", error);
    let output = std::fs::File::create(&log).map_err(failed)?;
    let (connection, theirs) = Connection::pair().map_err(failed)?;
    let mut command = std::process::Command::new(&options.host.program);
    command
        .args(&options.host.arguments)
        .current_dir(&scratch.0)
        .stdin(Stdio::from(theirs))
        .stdout(output.try_clone().map_err(failed)?)
        .stderr(output)
        // XRT's emulation ends its whole process group when its device dies.
        .process_group(0);
    set_environment(&mut command, options, &scratch.0);
    let child = command.spawn().map_err(|error| {
        StorageError::io(
            format!(
                "start {:?}, the process of the XRT runtime",
                options.host.program
            ),
            error,
        )
    })?;
    Ok(Started {
        child,
        connection,
        scratch,
        log,
    })
}

/// A path as XRT takes it.
pub(super) fn utf8(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        StorageError::Invalid(format!("the path {path:?} is not UTF-8, which XRT needs"))
    })
}

/// XRT is steered by its environment.
fn set_environment(command: &mut std::process::Command, options: &XrtOptions, scratch: &Path) {
    for name in [
        "XCL_EMULATION_MODE",
        "SW_EMU_PACKET_SIZE",
        "XRT_INI_PATH",
        "LD_PRELOAD",
    ] {
        command.env_remove(name);
    }
    command.env("SDACCEL_EM_RUN_DIR", scratch);
    if let XrtMode::Emulation { folder } = &options.mode {
        // Paths must hold where the process works.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
        command
            .env("XCL_EMULATION_MODE", "sw_emu")
            .env("XILINX_XRT", folder.join("xrt"))
            .env("XILINX_VITIS", folder.join("vitis"))
            .env("LD_PRELOAD", preloaded(&folder));
        // Without it all emulations of a machine share one socket.
        let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
        // SAFETY: it only asks.
        let user = user.unwrap_or_else(|| format!("uid-{}", unsafe { libc::getuid() }));
        command.env("USER", user);
    }
    command.envs(
        options
            .environment
            .iter()
            .map(|(name, value)| (name, value)),
    );
}

//! How a device is opened.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Result, StorageError};

/// The variable that names the folder of the device model.
pub const EMULATION_VARIABLE: &str = "FLASHMESH_XRT_EMULATION";

/// The variable that names flashmesh's binary.
pub const HOST_VARIABLE: &str = "FLASHMESH_XRT_HOST";
/// The argument with which flashmesh's own binary becomes the runtime's process.
pub const HOST_ARGUMENT: &str = "xrt-host";

/// Which device, and in which process its runtime runs.
#[derive(Debug, Clone)]
pub struct XrtOptions {
    /// A card, or the device model.
    pub mode: XrtMode,
    /// The device's number, from 0.
    pub device: u32,
    /// XRT's library; `None`: where the mode expects it.
    pub library: Option<PathBuf>,
    /// What is started as the runtime's process.
    pub host: HostCommand,
    /// Longest time of one run of a kernel. What takes longer is an error of the device.
    pub run_timeout: Duration,
    /// Longest time of opening the device and loading the container.
    pub open_timeout: Duration,
    /// The first pause before a device that was set aside is opened again.
    pub reopen_after: Duration,
    /// Further variables of the process's environment.
    pub environment: Vec<(OsString, OsString)>,
}

/// What kind of device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XrtMode {
    /// A card in this machine, by XRT's driver.
    Hardware,
    /// The device model behind XRT's software emulation.
    Emulation {
        /// The folder that `fpga/shell/model/build` has made.
        folder: PathBuf,
    },
}

/// A command whose process calls [`host_main`](super::host_main).
#[derive(Debug, Clone)]
pub struct HostCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl HostCommand {
    /// flashmesh's own binary with [`HOST_ARGUMENT`]: `$FLASHMESH_XRT_HOST` where that is set (in
    /// Python the running program is another), or the running program.
    ///
    /// # Errors
    /// `Io` if the system does not name the running program.
    pub fn flashmesh() -> Result<Self> {
        let program = match variable(HOST_VARIABLE) {
            Some(program) => program.into(),
            None => std::env::current_exe()
                .map_err(|error| StorageError::io("find the running program", error))?,
        };
        Ok(Self {
            program,
            arguments: vec![HOST_ARGUMENT.into()],
        })
    }
}

impl XrtOptions {
    /// Device 0 of that mode, runs of at most 10 seconds, opened within a minute.
    ///
    /// # Errors
    /// As [`HostCommand::flashmesh`].
    pub fn new(mode: XrtMode) -> Result<Self> {
        Ok(Self {
            mode,
            device: 0,
            library: None,
            host: HostCommand::flashmesh()?,
            run_timeout: Duration::from_secs(10),
            open_timeout: Duration::from_secs(60),
            reopen_after: Duration::from_secs(1),
            environment: Vec::new(),
        })
    }

    /// The library to load.
    pub(super) fn library(&self) -> PathBuf {
        match (&self.library, &self.mode) {
            (Some(library), _) => library.clone(),
            (None, XrtMode::Emulation { folder }) => {
                folder.join("xrt/lib").join(super::api::LIBRARY)
            }
            (None, XrtMode::Hardware) => {
                let installed = Path::new("/opt/xilinx/xrt/lib").join(super::api::LIBRARY);
                match installed.exists() {
                    true => installed,
                    false => super::api::LIBRARY.into(),
                }
            }
        }
    }

    /// Checks that the device model is where it should be.
    pub(super) fn check(&self) -> Result<()> {
        let XrtMode::Emulation { folder } = &self.mode else {
            return Ok(());
        };
        let model = model_program(folder);
        if model.exists() && preloaded(folder).exists() {
            return Ok(());
        }
        Err(StorageError::Invalid(format!(
            "the device model is not in {folder:?}; build it with 'fpga/shell/model/build {}'",
            folder.display()
        )))
    }
}

impl XrtMode {
    /// The mode that fits a container: the device model, in its usual folder, for one that was built
    /// for it, else a card.
    ///
    /// # Errors
    /// `Invalid` if there is no folder to look in.
    pub fn of(container: &super::container::Container) -> Result<Self> {
        match container.is_emulation() {
            true => Ok(Self::Emulation {
                folder: emulation_folder()?,
            }),
            false => Ok(Self::Hardware),
        }
    }
}

/// Where the device model is: `$FLASHMESH_XRT_EMULATION`, or `flashmesh/xrt-emulation` in the user's
/// cache folder, as `fpga/shell/model/build` has it.
///
/// # Errors
/// `Invalid` if neither the variable nor a home is set.
pub fn emulation_folder() -> Result<PathBuf> {
    if let Some(folder) = variable(EMULATION_VARIABLE) {
        return Ok(folder.into());
    }
    let cache = match (variable("XDG_CACHE_HOME"), variable("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => Path::new(&home).join(".cache"),
        (None, None) => {
            return Err(StorageError::Invalid(format!(
                "no folder of the device model: set {EMULATION_VARIABLE}"
            )));
        }
    };
    Ok(cache.join("flashmesh/xrt-emulation"))
}

/// A variable of the environment, if it is set to something.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The model's program, where XRT looks for it below XILINX_VITIS.
fn model_program(folder: &Path) -> PathBuf {
    folder.join("vitis/data/emulation/unified/cpu_em/generic_pcie/model/genericpciemodel")
}

/// The library that works around the defect of Debian's runtime.
pub(super) fn preloaded(folder: &Path) -> PathBuf {
    folder.join("librealloc_shim.so")
}

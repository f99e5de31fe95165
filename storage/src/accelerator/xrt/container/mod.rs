//! Device containers (`.xclbin`): which kernels a device holds, how they are called, and the device's
//! image, or for emulation the compiled C simulation in its place.
//!
//! A container says itself what it holds: its USER_METADATA section carries the kernels' interfaces
//! and manifests. That is where the planner learns which operations it may push to the device.

mod axlf;
mod build;
mod generate;
mod layout;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use axlf::MAX_CONTAINER_BYTES;
use axlf::{Axlf, SectionKind, broken};
pub use build::EmulationBuild;
pub use layout::{ComputeUnit, MemoryBank};

use crate::kernel::interface::{FunctionInterface, KernelInterface};
use crate::{Result, StorageError};

/// Platform name of containers for the device model.
pub const EMULATION_PLATFORM: &str = "flashmesh_emulation_1";

/// Version of the metadata in USER_METADATA.
const METADATA_FORMAT: u32 = 1;

/// A kernel in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerKernel {
    /// The text of its `kernel.toml`; empty if it has none.
    #[serde(default)]
    pub manifest: String,
    /// SHA-256 over its sources, in hexadecimal: [`source_digest`](crate::kernel::source_digest);
    /// empty for kernels that no function of a user is run as.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// How it is called.
    pub interface: KernelInterface,
}

/// The USER_METADATA section, as TOML.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    format: u32,
    #[serde(rename = "kernel")]
    kernels: Vec<ContainerKernel>,
}

/// A container whose structure and metadata were checked.
#[derive(Debug, Clone)]
pub struct Container {
    bytes: Vec<u8>,
    platform: String,
    kernels: Vec<ContainerKernel>,
    units: Vec<ComputeUnit>,
    banks: Vec<MemoryBank>,
}

impl Container {
    /// Puts a kernel library (a shared object with the generated entry points) into a container for
    /// the device model.
    ///
    /// # Errors
    /// `Invalid` with what is wrong with the interfaces.
    pub fn for_emulation(kernels: Vec<ContainerKernel>, library: &[u8]) -> Result<Self> {
        let interfaces: Vec<_> = kernels.iter().map(|k| k.interface.clone()).collect();
        let units = layout::compute_units(&interfaces)?;
        let banks = layout::memory_banks(&interfaces)?;
        let xml = generate::metadata_xml(EMULATION_PLATFORM, &interfaces, &units);
        let memory = layout::write_memory(&banks);
        let connections = layout::write_connections(&interfaces, &units, &banks);
        let metadata = metadata(&kernels)?;
        let bytes = axlf::write(
            EMULATION_PLATFORM,
            &[
                (SectionKind::Bitstream, library),
                (SectionKind::EmbeddedMetadata, xml.as_bytes()),
                (SectionKind::MemTopology, &memory),
                (SectionKind::Connectivity, &connections),
                (SectionKind::IpLayout, &layout::write_units(&units)),
                (SectionKind::AskGroupTopology, &memory),
                (SectionKind::AskGroupConnectivity, &connections),
                (SectionKind::UserMetadata, metadata.as_bytes()),
            ],
        );
        Self::from_bytes(bytes)
    }

    /// Reads a container of any origin.
    ///
    /// # Errors
    /// `Invalid` with what about it is not as it should be.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        let file = Axlf::read(&bytes)?;
        let units = layout::read_units(file.section(&bytes, SectionKind::IpLayout)?)?;
        let banks = layout::read_memory(file.section(&bytes, SectionKind::MemTopology)?)?;
        let text = std::str::from_utf8(file.section(&bytes, SectionKind::UserMetadata)?)
            .map_err(|_| broken("its USER_METADATA section is not text"))?;
        let metadata: Metadata = toml::from_str(text)
            .map_err(|error| broken(format!("its USER_METADATA section: {error}")))?;
        if metadata.format != METADATA_FORMAT {
            return Err(broken(format!(
                "its metadata has format {}, this flashmesh reads {METADATA_FORMAT}; build the \
                 container again, or use a newer flashmesh",
                metadata.format
            )));
        }
        let interfaces: Vec<_> = metadata
            .kernels
            .iter()
            .map(|k| k.interface.clone())
            .collect();
        // Checks the interfaces; what the device really has is `units`.
        layout::compute_units(&interfaces)?;
        for function in interfaces.iter().flat_map(|kernel| &kernel.functions) {
            if !units.iter().any(|unit| unit.function == function.name) {
                return Err(broken(format!(
                    "its metadata names the function '{}', but no compute unit runs it",
                    function.name
                )));
            }
        }
        Ok(Self {
            platform: file.platform,
            bytes,
            kernels: metadata.kernels,
            units,
            banks,
        })
    }

    /// Reads a container's file.
    ///
    /// # Errors
    /// As [`Container::from_bytes`]; `Io` if it can't be read.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error| StorageError::io(format!("read the container {path:?}"), error);
        let length = std::fs::metadata(path).map_err(failed)?.len();
        if length > MAX_CONTAINER_BYTES as u64 {
            return Err(broken(format!("{path:?} has {length} bytes, too many")));
        }
        Self::from_bytes(std::fs::read(path).map_err(failed)?).map_err(|error| match error {
            StorageError::Invalid(what) => StorageError::Invalid(format!("{what}, in {path:?}")),
            other => other,
        })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The platform that it was built for.
    pub fn platform(&self) -> &str {
        &self.platform
    }

    /// Whether it was built for the device model.
    pub fn is_emulation(&self) -> bool {
        self.platform == EMULATION_PLATFORM
    }

    /// The kernels that it holds.
    pub fn kernels(&self) -> &[ContainerKernel] {
        &self.kernels
    }

    /// The C function of that name, of whichever kernel.
    pub fn function(&self, name: &str) -> Option<&FunctionInterface> {
        let mut kernels = self.kernels.iter();
        kernels.find_map(|kernel| kernel.interface.function(name))
    }

    /// The compute units of all functions.
    pub fn compute_units(&self) -> &[ComputeUnit] {
        &self.units
    }

    /// The device's memory banks.
    pub fn memory_banks(&self) -> &[MemoryBank] {
        &self.banks
    }
}

fn metadata(kernels: &[ContainerKernel]) -> Result<String> {
    toml::to_string(&Metadata {
        format: METADATA_FORMAT,
        kernels: kernels.to_vec(),
    })
    .map_err(|error| broken(format!("its metadata can't be written: {error}")))
}

/// The files with which Vitis builds the same kernels for a card. They are generated, and nobody has
/// run them without Vitis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VitisFiles {
    /// `vitis.cfg`, the linker's configuration.
    pub config: String,
    /// `Makefile`.
    pub makefile: String,
    /// `metadata.toml`, which the Makefile puts into the container.
    pub metadata: String,
}

/// Writes the files for Vitis. `clock_mhz` is what is asked of it; `sources` are the kernels' files,
/// relative to the Makefile.
///
/// # Errors
/// `Invalid` with what is wrong with the interfaces or with a file's name.
pub fn vitis_files(
    kernels: &[ContainerKernel],
    sources: &[&str],
    clock_mhz: u32,
) -> Result<VitisFiles> {
    let interfaces: Vec<_> = kernels.iter().map(|k| k.interface.clone()).collect();
    let units = layout::compute_units(&interfaces)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    if let Some(wrong) = sources.iter().find(|name| !name.bytes().all(plain)) {
        return Err(broken(format!(
            "a source can't be named '{wrong}' in a Makefile"
        )));
    }
    Ok(VitisFiles {
        config: generate::vitis_config(&interfaces, &units, clock_mhz),
        makefile: generate::vitis_makefile(&interfaces, &sources.join(" ")),
        metadata: metadata(kernels)?,
    })
}

#[cfg(test)]
mod tests;

//! Compiles kernels' sources into an emulation container.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Container, ContainerKernel, layout};
use crate::{Result, StorageError};

/// What an emulation container is built from.
#[derive(Debug, Clone, Default)]
pub struct EmulationBuild {
    /// The kernels and their manifests.
    pub kernels: Vec<ContainerKernel>,
    /// C++ files, all compiled together.
    pub sources: Vec<PathBuf>,
    /// Folders of headers: flashmesh's own, and those of HLS types.
    pub include: Vec<PathBuf>,
    /// The compiler; `None`: `$CXX`, or `g++`.
    pub compiler: Option<PathBuf>,
}

impl EmulationBuild {
    /// Compiles the sources as a C simulation and puts them into a container. `scratch` is an empty
    /// folder for the files in between.
    ///
    /// # Errors
    /// `Invalid` with the compiler's words, or what is wrong with the interfaces; `Io`.
    pub fn build(&self, scratch: &Path) -> Result<Container> {
        let interfaces: Vec<_> = self.kernels.iter().map(|k| k.interface.clone()).collect();
        let units = layout::compute_units(&interfaces)?;
        let entry = scratch.join("entry.cpp");
        let library = scratch.join("kernels.so");
        std::fs::write(&entry, super::generate::model_entry(&interfaces, &units))
            .map_err(|error| StorageError::io(format!("write {entry:?}"), error))?;

        let compiler = self
            .compiler
            .clone()
            .or_else(|| std::env::var_os("CXX").map(PathBuf::from))
            .unwrap_or_else(|| "g++".into());
        let mut command = Command::new(&compiler);
        command
            .args(["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread"])
            // The pragmas are for the synthesis.
            .arg("-Wno-unknown-pragmas");
        for folder in &self.include {
            command.arg("-isystem").arg(folder);
        }
        command
            .arg(&entry)
            .args(&self.sources)
            .arg("-o")
            .arg(&library);
        let output = command.output().map_err(|error| {
            StorageError::Invalid(format!(
                "the C++ compiler {compiler:?} can't be started ({error}); install g++, or name \
                 another one in CXX"
            ))
        })?;
        if !output.status.success() {
            return Err(StorageError::Invalid(format!(
                "the kernels' sources do not compile:\n{}",
                String::from_utf8_lossy(&output.stderr)
            )));
        }
        let library = std::fs::read(&library)
            .map_err(|error| StorageError::io(format!("read {library:?}"), error))?;
        Container::for_emulation(self.kernels.clone(), &library)
    }
}

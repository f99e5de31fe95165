//! Containers for devices: for the device model, compiled here; for a card, the files that Vitis
//! takes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::{Error, Result};
use flashmesh_storage::accelerator::xrt::container::{
    ContainerKernel, EmulationBuild, vitis_files,
};
use flashmesh_storage::kernel::hexadecimal;

use super::super::arguments::{KernelContainerArguments, KernelVitisArguments};
use super::compiler;
use super::files::{digest_of, read, read_manifest, read_sources, write_whole};

/// Compiles kernels as a C simulation into one container for the device model.
pub(super) fn container(arguments: &KernelContainerArguments) -> Result<()> {
    let work = tempfile::tempdir().map_err(|e| Error::io("making a temporary folder", e))?;
    let (kernels, sources) = kernels(&arguments.folders)?;
    let mut include = vec![compiler::write_headers(work.path())?];
    include.extend(arguments.include.iter().cloned());
    include.extend(compiler::published_headers());
    let build = EmulationBuild {
        kernels,
        sources,
        include,
        compiler: None,
    };
    let container = build.build(work.path())?;
    write_whole(&arguments.output, container.bytes())
}

/// Writes a Makefile, the linker's configuration and the metadata for Vitis.
pub(super) fn vitis(arguments: &KernelVitisArguments) -> Result<ExitCode> {
    let folder = &arguments.output;
    let (mut names, mut clock_mhz) = (Vec::new(), u32::MAX);
    for kernel in &arguments.folders {
        let (manifest, _) = read_manifest(kernel)?;
        clock_mhz = clock_mhz.min(manifest.fpga.clock_mhz);
        for source in &manifest.sources {
            // Beside the Makefile, so that the folder can go to where Vitis is.
            let name = format!("src/{}/{source}", manifest.name);
            write_below(folder, &name, &read(&kernel.join(source))?)?;
            names.push(name);
        }
    }
    let (kernels, _) = kernels(&arguments.folders)?;
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let files = vitis_files(&kernels, &names, clock_mhz)?;
    compiler::write_headers(folder)?;
    write_below(folder, "Makefile", files.makefile.as_bytes())?;
    write_below(folder, "vitis.cfg", files.config.as_bytes())?;
    write_below(folder, "metadata.toml", files.metadata.as_bytes())?;
    println!(
        "generated; not run without Vitis: make -C {}",
        folder.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Writes a file below a folder, with the folders between.
fn write_below(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = folder.join(name);
    let parent = path.parent().unwrap_or(folder);
    std::fs::create_dir_all(parent)
        .map_err(|e| Error::io(format!("making {}", parent.display()), e))?;
    write_whole(&path, bytes)
}

/// The kernels of these folders, and their sources.
fn kernels(folders: &[PathBuf]) -> Result<(Vec<ContainerKernel>, Vec<PathBuf>)> {
    let (mut kernels, mut sources) = (Vec::new(), Vec::new());
    for folder in folders {
        let (manifest, text) = read_manifest(folder)?;
        let read = read_sources(folder, &manifest)?;
        kernels.push(ContainerKernel {
            interface: manifest.interface(),
            manifest: text,
            source: hexadecimal(&digest_of(&read)),
        });
        let folder: &Path = folder;
        sources.extend(manifest.sources.iter().map(|source| folder.join(source)));
    }
    Ok((kernels, sources))
}

//! `flashmesh kernel`: makes, compiles, tests and shows kernels.

mod compiler;
mod device;
mod inspect;
mod template;
mod test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::{Error, Result};
use bytes::Bytes;
use flashmesh_storage::kernel::{Manifest, Package, source_digest};

use super::arguments::{KernelBuildArguments, KernelCommand};

/// The manifest's file name.
const MANIFEST: &str = "kernel.toml";
/// What package files end with.
const PACKAGE: &str = "fmk";

pub(super) async fn run(command: KernelCommand) -> Result<ExitCode> {
    match command {
        KernelCommand::New(new) => template::write(&new),
        KernelCommand::Build(build) => {
            for folder in &build.folders {
                let package = self::build(folder, &build)?;
                println!("{}", package.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        KernelCommand::Test(test) => test::run(&test).await,
        KernelCommand::Container(arguments) => {
            device::container(&arguments)?;
            println!("{}", arguments.output.display());
            Ok(ExitCode::SUCCESS)
        }
        KernelCommand::Vitis(arguments) => device::vitis(&arguments),
        KernelCommand::Inspect(inspect) => inspect::run(&inspect),
    }
}

/// Compiles the kernel in `folder` and writes its package.
fn build(folder: &Path, options: &KernelBuildArguments) -> Result<PathBuf> {
    let (manifest, text) = read_manifest(folder)?;
    let package = compile(folder, &manifest, text, options)?;
    let path = match &options.output {
        Some(path) => path.clone(),
        None => folder.join(&manifest.name).with_extension(PACKAGE),
    };
    write_whole(&path, &package.to_bytes())?;
    Ok(path)
}

/// The package of a kernel's sources.
fn compile(
    folder: &Path,
    manifest: &Manifest,
    manifest_text: String,
    options: &KernelBuildArguments,
) -> Result<Package> {
    let sources = read_sources(folder, manifest)?;
    let wasm = compiler::to_wasm(folder, manifest, &options.include)?;
    let xclbin = options.container.as_deref().map(read).transpose()?;
    Ok(Package::new(
        &manifest_text,
        &wasm,
        xclbin.as_deref(),
        digest_of(&sources),
    )?)
}

/// Names and bytes of a kernel's sources.
fn read_sources(folder: &Path, manifest: &Manifest) -> Result<Vec<(String, Bytes)>> {
    let names = manifest.sources.iter();
    names
        .map(|name| Ok((name.clone(), read(&folder.join(name))?)))
        .collect()
}

fn digest_of(sources: &[(String, Bytes)]) -> [u8; 32] {
    let sources = sources.iter();
    source_digest(sources.map(|(name, bytes)| (name.as_str(), &bytes[..])))
}

fn read(path: &Path) -> Result<Bytes> {
    std::fs::read(path)
        .map(Bytes::from)
        .map_err(|e| Error::io(format!("reading {}", path.display()), e))
}

/// The manifest of a kernel's folder.
fn read_manifest(folder: &Path) -> Result<(Manifest, String)> {
    let path = folder.join(MANIFEST);
    let text = std::fs::read_to_string(&path).map_err(|e| {
        Error::io(
            format!(
                "reading {} (flashmesh kernel new NAME makes a kernel)",
                path.display()
            ),
            e,
        )
    })?;
    let manifest =
        Manifest::parse(&text).map_err(|e| Error::usage(format!("{}: {e}", path.display())))?;
    Ok((manifest, text))
}

/// Writes a file whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(bytes)?;
        // Temporary files are their owner's alone; a package is for everybody who may look.
        file.as_file()
            .set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.persist(path).map_err(|e| e.error)?;
        Ok(())
    };
    write().map_err(|e| Error::io(format!("writing {}", path.display()), e))
}

//! `flashmesh kernel build`: a package of a kernel's sources.

use std::path::{Path, PathBuf};

use flashmesh_storage::kernel::{Manifest, Package};

use super::super::arguments::KernelBuildArguments;
use super::compiler;
use super::files::{digest_of, read, read_manifest, read_sources, write_whole};
use crate::Result;

/// What package files end with.
const PACKAGE: &str = "fmk";

/// Compiles the kernel in `folder` and writes its package.
pub(super) fn build(folder: &Path, options: &KernelBuildArguments) -> Result<PathBuf> {
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
pub(super) fn compile(
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

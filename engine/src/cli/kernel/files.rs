//! The files of a kernel's folder.

use std::path::Path;

use bytes::Bytes;
use flashmesh_storage::kernel::{Manifest, source_digest};

use crate::{Error, Result};

/// The manifest's file name.
pub(super) const MANIFEST: &str = "kernel.toml";

/// Names and bytes of a kernel's sources.
pub(super) fn read_sources(folder: &Path, manifest: &Manifest) -> Result<Vec<(String, Bytes)>> {
    let names = manifest.sources.iter();
    names
        .map(|name| Ok((name.clone(), read(&folder.join(name))?)))
        .collect()
}

/// What tells sources from others.
pub(super) fn digest_of(sources: &[(String, Bytes)]) -> [u8; 32] {
    let sources = sources.iter();
    source_digest(sources.map(|(name, bytes)| (name.as_str(), &bytes[..])))
}

pub(super) fn read(path: &Path) -> Result<Bytes> {
    std::fs::read(path)
        .map(Bytes::from)
        .map_err(|e| Error::io(format!("reading {}", path.display()), e))
}

/// The manifest of a kernel's folder.
pub(super) fn read_manifest(folder: &Path) -> Result<(Manifest, String)> {
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
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
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

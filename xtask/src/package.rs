//! What is given out: wheel, `.deb`, container image, with licences and a list of what is in them;
//! and the pages that are written or built, the reference and the site.

use std::fs;
use std::path::{Path, PathBuf};

use crate::checks::build_programs;
use crate::python::{self, Venv};
use crate::run::{
    Error, Result, cargo, command, flashmesh_binary, output, run, target_dir, workspace_root,
};

/// What a wheel may be, compressed.
const WHEEL_BYTES: u64 = 100_000_000;
/// Licences of what is compiled in, in a package's folder for such things.
const LICENCES: &str = "THIRD-PARTY.txt";
/// What is compiled in, as CycloneDX.
const SBOM: &str = "flashmesh.cyclonedx.json";
/// Programs of cargo's that make packages, and the features that they are installed with.
const CARGO_TOOLS: [(&str, &[&str]); 2] =
    [("cargo-about", &["--features", "cli"]), ("cargo-deb", &[])];

/// Writes `docs/reference`, or says what differs.
pub fn reference(check: bool) -> Result<()> {
    build_programs()?;
    let mut script = command("python3");
    script.arg("tools/reference.py").arg(flashmesh_binary());
    run(script.args(check.then_some("--check")))
}

/// The site out of `docs`, in the target directory.
pub fn docs() -> Result<()> {
    let venv = python::named_venv("docs-venv")?;
    venv.install_requirements("tools/docs-requirements.txt")?;
    let site = target_dir().join("site");
    run(venv
        .python()
        // Of what comes after mkdocs, which is not what a reader of this output wants to know.
        .env("NO_MKDOCS_2_WARNING", "1")
        .args(["-m", "mkdocs", "build", "--strict", "--site-dir"])
        .arg(&site))?;
    eprintln!("The site: {}", site.join("index.html").display());
    Ok(())
}

/// The pictures of `docs/tour.md`.
pub fn pictures() -> Result<()> {
    build_programs()?;
    let venv = python::named_venv("pictures-venv")?;
    venv.install_requirements("tools/pictures-requirements.txt")?;
    run(venv
        .python()
        .arg("tools/pictures.py")
        .arg(flashmesh_binary()))
}

/// All packages, and a try of them.
pub fn package(no_chroot: bool) -> Result<()> {
    // Before the build, which is long.
    let venv = python::named_venv("package-venv")?;
    venv.install_requirements("tools/package-requirements.txt")?;
    for (tool, options) in CARGO_TOOLS {
        install(tool, options)?;
    }
    let out = target_dir().join("packages");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out)?;

    let licences = out.join(LICENCES);
    write_licences(&licences)?;
    build_programs()?;
    write_wheel(&venv, &out, &licences)?;
    write_deb(&out)?;
    if no_chroot {
        eprintln!("Not made: the container image. Not tried: wheel and .deb in an empty Debian");
    } else {
        run(command(workspace_root().join("tests/packages")).arg(&out))?;
    }
    write_sums(&out)
}

fn tools() -> PathBuf {
    target_dir().join("tools")
}

/// Installs one of cargo's programs beside the build output, unless it is there.
fn install(tool: &str, options: &[&str]) -> Result<()> {
    if tools().join("bin").join(tool).exists() {
        return Ok(());
    }
    // In a folder of its own: it has nothing in common with what we build.
    let build = tempfile::tempdir()?;
    run(cargo(&["install", "--locked", tool])
        .args(options)
        .arg("--root")
        .arg(tools())
        .env("CARGO_TARGET_DIR", build.path()))
}

/// The texts of the licences of all crates that are compiled in; fails on one that is not in
/// `tools/licences/about.toml`.
fn write_licences(to: &Path) -> Result<()> {
    run(command(tools().join("bin/cargo-about"))
        .args(["about", "generate", "--locked", "--fail"])
        // The module stands on all that is installed.
        .args(["--manifest-path", "engine/python/Cargo.toml"])
        .args(["--config", "tools/licences/about.toml", "--output-file"])
        .arg(to)
        .arg("tools/licences/third-party.hbs"))
}

/// The wheel: built by maturin, for the oldest manylinux that fits what it was linked with, which
/// auditwheel confirms; with the licences; and the list of its parts beside it.
fn write_wheel(venv: &Venv, out: &Path, licences: &Path) -> Result<()> {
    let built = tempfile::tempdir()?;
    run(command(venv.root().join("bin/maturin"))
        .args([
            "build",
            "--release",
            "--locked",
            "--auditwheel",
            "check",
            "--out",
        ])
        .arg(built.path()))?;
    let mut repack = venv.python();
    repack.arg("tools/complete_wheel.py");
    run(repack
        .arg(only_file(built.path(), "whl")?)
        .args([licences, &out.join(SBOM), out]))?;

    let wheel = only_file(out, "whl")?;
    let bytes = wheel.metadata()?.len();
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    if bytes > WHEEL_BYTES {
        return Err(Error::new(format!(
            "{name} has {bytes} bytes, at most {WHEEL_BYTES} are allowed"
        )));
    }
    let shown = output(venv.python().args(["-m", "auditwheel", "show"]).arg(&wheel))?;
    let platform = name
        .trim_end_matches(".whl")
        .rsplit('-')
        .next()
        .unwrap_or_default();
    if !platform.starts_with("manylinux") || !shown.contains(&format!("\"{platform}\"")) {
        return Err(Error::new(format!(
            "auditwheel does not find {name} to be what its name says:\n{shown}"
        )));
    }
    eprintln!("{name}: {bytes} bytes; auditwheel agrees with {platform}");
    Ok(())
}

/// The `.deb`, of what `engine/Cargo.toml` says.
fn write_deb(out: &Path) -> Result<()> {
    // Where cargo-deb looks for files that are built.
    let beside = target_dir().join("release/package");
    fs::create_dir_all(&beside)?;
    for file in [LICENCES, SBOM] {
        fs::copy(out.join(file), beside.join(file))?;
    }
    run(command(tools().join("bin/cargo-deb"))
        .args(["--package", "flashmesh", "--no-build", "--output"])
        .arg(out))
}

/// SHA-256 of each file, in the form of `sha256sum`, which checks them with `--check`.
fn write_sums(out: &Path) -> Result<()> {
    let mut names: Vec<_> = fs::read_dir(out)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    let sums = output(command("sha256sum").current_dir(out).args(&names))?;
    fs::write(out.join("SHA256SUMS"), sums)?;
    eprintln!("\n{}", out.display());
    for name in names {
        let bytes = out.join(&name).metadata()?.len();
        eprintln!("  {name}: {:.1} MB", bytes as f64 / 1e6);
    }
    Ok(())
}

/// The one file of a folder with this ending.
fn only_file(folder: &Path, ending: &str) -> Result<PathBuf> {
    let mut found = fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == ending)
        });
    match (found.next(), found.next()) {
        (Some(path), None) => Ok(path),
        _ => Err(Error::new(format!(
            "{} has not one .{ending}",
            folder.display()
        ))),
    }
}

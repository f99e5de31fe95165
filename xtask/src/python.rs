//! The Python environment of tests, examples and benchmarks: a venv beside the
//! build output, so that nothing is installed into the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::run::{Error, Result, command, run, target_dir, workspace_root};

/// A venv that exists.
pub struct Venv {
    root: PathBuf,
}

/// The venv of this target directory, made when missing.
pub fn venv() -> Result<Venv> {
    named_venv("venv")
}

/// A venv of its own, for packages that clash with those of [`venv`].
pub fn named_venv(name: &str) -> Result<Venv> {
    let venv = Venv {
        root: target_dir().join(name),
    };
    if !venv.root.join("bin/pip").exists() {
        run(command("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&venv.root))?;
    }
    Ok(venv)
}

impl Venv {
    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The venv's interpreter.
    pub fn python(&self) -> Command {
        let mut python = command(self.root.join("bin/python"));
        python.env("PYTHONDONTWRITEBYTECODE", "1");
        python
    }

    /// Installs a requirements file of the workspace, unless this very text
    /// was the last one installed under its name.
    pub fn install_requirements(&self, path: &str) -> Result<()> {
        let wanted = fs::read_to_string(workspace_root().join(path))
            .map_err(|error| Error::new(format!("{path}: {error}")))?;
        let stamp = self.root.join(path.replace('/', "-"));
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(());
        }
        run(self.pip_install().args(["-r", path]))?;
        fs::write(stamp, wanted)?;
        Ok(())
    }

    /// Builds the `flashmesh` wheel from this tree and installs it, once in a run of this program.
    pub fn install_flashmesh(&self) -> Result<()> {
        static DONE: AtomicBool = AtomicBool::new(false);
        if DONE.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let wheels = target_dir().join("wheels");
        let _ = fs::remove_dir_all(&wheels);
        run(command(self.root.join("bin/maturin"))
            .args([
                "build",
                "--release",
                "--locked",
                // On the crates that the tests are built on.
                "--features",
                "testing",
                "--compatibility",
                "linux",
                "--out",
            ])
            .arg(&wheels))?;
        let wheel = fs::read_dir(&wheels)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
            .ok_or_else(|| Error::new(format!("maturin left no wheel in {}", wheels.display())))?;
        run(self
            .pip_install()
            .args(["--force-reinstall", "--no-deps"])
            .arg(wheel))
    }

    fn pip_install(&self) -> Command {
        let mut pip = self.python();
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]);
        pip
    }
}

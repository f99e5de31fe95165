//! Running other programs: in the workspace root, with the shared target
//! directory, echoed, and with an error that names the command that failed.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What went wrong, as the one line that the user reads.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> Error {
        Error(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error(error.to_string())
    }
}

/// The result of a task.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The root of the workspace, found from where cargo runs this package: clones that share a
/// target directory share this program, so that where it was compiled says nothing.
pub fn workspace_root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package
        .parent()
        .map_or_else(|| package.clone(), Path::to_path_buf)
}

/// The folder for everything that is not in the clone.
fn cache_dir() -> PathBuf {
    env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("flashmesh")
}

/// Where every cargo command of a task builds.
///
/// One folder for all of them, so that tests, clippy and the Python module
/// share the dependency tree.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(
        || cache_dir().join("target"),
        |path| workspace_root().join(path),
    )
}

/// Where benchmark data and databases live between runs.
pub fn bench_dir() -> PathBuf {
    env::var_os("FLASHMESH_BENCH_DIR").map_or_else(|| cache_dir().join("bench"), PathBuf::from)
}

/// The `flashmesh` binary that `build_programs` builds.
pub fn flashmesh_binary() -> PathBuf {
    target_dir().join("release/flashmesh")
}

/// A command that runs in the workspace root and builds into [`target_dir`].
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // `cargo xtask` describes this package to us in variables that build scripts of dependencies
    // watch too: left in place, a build from another clone, or by plain cargo, would begin anew.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_PKG_") {
            command.env_remove(&name);
        }
    }
    command
        .current_dir(workspace_root())
        .env("CARGO_TARGET_DIR", target_dir());
    command
}

/// `cargo` with these arguments.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments);
    cargo
}

/// The command as a user would type it.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut line = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// Prints the command, runs it, and fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", shown(command));
    let status = command
        .status()
        .map_err(|error| Error::new(format!("cannot start `{}`: {error}", shown(command))))?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::new(format!("`{}` failed: {status}", shown(command))))
    }
}

/// [`run`], but no longer than this: what stands still is stopped, with all that it has started, so
/// that whoever waits for it reads what it said.
pub fn run_within(command: &mut Command, limit: Duration) -> Result<()> {
    let shown = shown(command);
    eprintln!("+ {shown}");
    let mut child = command
        .spawn()
        .map_err(|error| Error::new(format!("cannot start `{shown}`: {error}")))?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return match status.success() {
                true => Ok(()),
                false => Err(Error::new(format!("`{shown}` failed: {status}"))),
            };
        }
        if started.elapsed() > limit {
            stop(&mut child)?;
            return Err(Error::new(format!(
                "`{shown}` was stopped: it ran for more than {} minutes, and what it did last stands \
                 above",
                limit.as_secs() / 60
            )));
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Ends a process and those that it has started. They are in the group of the terminal, like us, so
/// that Ctrl-C reaches them: they are found one by one.
fn stop(child: &mut Child) -> Result<()> {
    let mut all = vec![child.id()];
    let mut at = 0;
    while let Some(process) = all.get(at) {
        let threads = std::fs::read_dir(format!("/proc/{process}/task"));
        let threads = threads.into_iter().flatten().flatten();
        let children =
            threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
        let children: String = children.map(Result::unwrap_or_default).collect();
        all.extend(
            children
                .split_whitespace()
                .filter_map(|id| id.parse::<u32>().ok()),
        );
        at += 1;
    }
    let all: Vec<_> = all.iter().map(u32::to_string).collect();
    // The shell's own: a minimal Debian has no other.
    let kill = format!("kill -9 {}", all.join(" "));
    let _ = Command::new("sh")
        .args(["-c", &kill])
        .stderr(Stdio::null())
        .status();
    child.wait()?;
    Ok(())
}

/// Prints the command, runs it, gives what it prints, and fails unless it succeeds.
pub fn output(command: &mut Command) -> Result<String> {
    eprintln!("+ {}", shown(command));
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::new(format!("cannot start `{}`: {error}", shown(command))))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Error::new(format!(
            "`{}` failed: {}",
            shown(command),
            output.status
        ))),
    }
}

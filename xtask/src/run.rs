//! Running other programs: in the workspace root, with the shared target
//! directory, echoed, and with an error that names the command that failed.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

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
    let status = start(command)?.wait()?;
    check(command, status)
}

/// Prints the command and starts it.
fn start(command: &mut Command) -> Result<Child> {
    eprintln!("+ {}", shown(command));
    let started = command.spawn();
    started.map_err(|error| Error::new(format!("cannot start `{}`: {error}", shown(command))))
}

/// Fails unless the command succeeded.
fn check(command: &Command, status: ExitStatus) -> Result<()> {
    match status.success() {
        true => Ok(()),
        false => Err(Error::new(format!("`{}` failed: {status}", shown(command)))),
    }
}

/// [`run`], but no longer than this: what stands still is stopped, with all that it has started, so
/// that whoever waits for it reads what it said.
pub fn run_within(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = start(command)?;
    wait_within(command, &mut child, limit)
}

fn wait_within(command: &Command, child: &mut Child, limit: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return check(command, status);
        }
        if started.elapsed() > limit {
            stop(child)?;
            return Err(Error::new(format!(
                "`{}` was stopped: it ran for more than {} minutes, and what it did last stands above",
                shown(command),
                limit.as_secs() / 60
            )));
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// A command that runs beside whatever else is done, where that leaves processors idle. Dropped before its
/// end, it is stopped with all that it has started.
pub struct Beside {
    command: Command,
    child: Child,
    /// What it prints.
    log: NamedTempFile,
}

impl Beside {
    /// Starts a line of the shell's in the workspace's root.
    pub fn start(line: &str) -> Result<Self> {
        let log = NamedTempFile::new()?;
        let printed = log.reopen()?;
        let mut command = command("nice");
        command
            .args(["-n", "10", "sh", "-c", line])
            .stdin(Stdio::null())
            .stdout(printed.try_clone()?)
            .stderr(printed);
        let child = start(&mut command)?;
        Ok(Self {
            command,
            child,
            log,
        })
    }

    /// Waits for its end, though not for longer than this; prints what it has printed, and fails unless
    /// it succeeded.
    pub fn finish(mut self, limit: Duration) -> Result<()> {
        let ended = wait_within(&self.command, &mut self.child, limit);
        let printed = std::fs::read(self.log.path())?;
        eprint!("{}", String::from_utf8_lossy(&printed));
        ended
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = stop(&mut self.child);
        }
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
    let output = start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?.wait_with_output()?;
    check(command, output.status)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_still_is_stopped_with_what_it_has_started() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = "sleep 1000 & echo $! >\"$0\"; wait";
        let mut stands = Command::new("sh");
        stands.args(["-c", script]).arg(file.path());
        let limit = Duration::from_secs(2);
        let error = run_within(&mut stands, limit).unwrap_err().to_string();
        assert!(error.contains("was stopped"), "{error}");
        let started = std::fs::read_to_string(file.path()).unwrap();
        let process = format!("/proc/{}/stat", started.trim());
        let runs = || {
            let state = std::fs::read_to_string(&process).unwrap_or_default();
            // One that has ended may wait for whoever takes that down.
            !state.is_empty() && !state.contains(") Z ")
        };
        let since = Instant::now();
        while runs() {
            assert!(since.elapsed() < Duration::from_secs(60), "it still runs");
            thread::yield_now();
        }
        assert!(run_within(&mut Command::new("true"), limit).is_ok());
        assert!(run_within(&mut Command::new("false"), limit).is_err());
    }
}

//! A node that begins anew: what it has in memory may not be so any more, and is nobody's to use.

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::iter;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

use flashmesh_storage::accelerator::xrt::HostCommand;

use super::Running;
use super::status::Reporter;
use crate::{Engine, Error, Result};

/// Between two looks at whether the database goes on.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a database is open at least before it is opened anew; twice as long each time that this did not
/// help, as far as [`REST_MAX`]: its readers are cut off by it.
const REST: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(600);
/// The rest of a process that has begun anew for this, in seconds.
const NEXT_REST: &str = "FLASHMESH_NODE_REST";

/// The command `flashmesh` itself: in Python, the running program is another.
pub(in crate::cli) fn own_program() -> Result<PathBuf> {
    Ok(HostCommand::flashmesh()?.program)
}

/// Ends when the database can commit nothing until it is opened anew, and can be, and says why; never where
/// it is closed. As long as other nodes are missing for that, and where it was opened a moment ago, it goes
/// on being read.
pub(super) async fn until_it_needs_reopening(engine: Weak<Engine>, reporter: &Reporter) -> String {
    tokio::time::sleep(rest()).await;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(engine) = engine.upgrade() else {
            std::future::pending().await
        };
        let why = engine.database().needs_reopening();
        drop(engine);
        if let Some(why) = why
            && reporter.reaches_all_cards().await
        {
            return why;
        }
    }
}

fn rest() -> Duration {
    let given = std::env::var(NEXT_REST).ok();
    let seconds = given.and_then(|seconds| seconds.parse().ok());
    seconds
        .map_or(REST, Duration::from_secs)
        .clamp(REST, REST_MAX)
}

impl Running {
    /// Replaces the process by itself, as it was started: with it go threads and memory. That it is the
    /// node stays true meanwhile. Returns only if that fails.
    pub(super) fn begin_anew(&self, why: &str) -> Error {
        self.begin_with(why, rest())
    }

    /// [`Running::begin_anew`] to open the database anew.
    pub(super) fn reopen(&self, why: &str) -> Error {
        let next = match self.started.elapsed() > 2 * REST_MAX {
            true => REST,
            false => 2 * rest(),
        };
        self.begin_with(why, next)
    }

    fn begin_with(&self, why: &str, rest: Duration) -> Error {
        tracing::warn!("{why}: the node starts anew");
        let program = match own_program() {
            Ok(program) => program,
            Err(error) => return error,
        };
        let handed = match self.lock.hand_over() {
            Ok(handed) => handed,
            Err(error) => return error,
        };
        let added = [handed, (NEXT_REST, rest.as_secs().to_string())];
        let arguments = std::env::args_os().skip(1);
        let Err(error) = replace_program(&program, arguments, &added);
        Error::io("starting anew", error)
    }
}

/// Replaces this process's program, with these variables beside those that it has; returns only if that
/// fails.
///
/// Not by the standard library's `exec`, which first has SIGPIPE end the process: other threads run on until
/// the program is replaced, and one of them that wrote to a client who had gone ended the node without a
/// word.
///
/// # Errors
/// Those of execve(2).
pub(super) fn replace_program(
    program: &Path,
    arguments: impl IntoIterator<Item = OsString>,
    added: &[(&str, String)],
) -> std::io::Result<Infallible> {
    let text = |text: OsString| CString::new(text.into_vec());
    let program = text(program.into())?;
    let arguments = arguments.into_iter().map(text);
    let words: Vec<_> = iter::once(Ok(program.clone()))
        .chain(arguments)
        .collect::<Result<_, _>>()?;
    let kept = std::env::vars_os().filter(|(name, _)| added.iter().all(|(other, _)| name != other));
    let added = added
        .iter()
        .map(|(name, value)| (name.into(), value.into()));
    let variables = kept
        .chain(added)
        .map(|(mut variable, value): (OsString, OsString)| {
            variable.push("=");
            variable.push(value);
            text(variable)
        });
    let variables: Vec<_> = variables.collect::<Result<_, _>>()?;
    // While it does that, the kernel starts no threads for others, who would say that they panic.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let Err(error) = nix::unistd::execve(&program, &words, &variables);
    std::panic::set_hook(hook);
    Err(error.into())
}

//! Ends the process cleanly on a signal.

use std::path::{Path, PathBuf};

use crate::{Error, Result};
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};

/// Folders that go with the process.
static TEMPORARY: Mutex<Vec<PathBuf>> = parking_lot::const_mutex(Vec::new());

/// From now on these folders go, too, when [`end_on_signal`] ends the process.
pub(super) fn remove_at_end<'a>(temporary: impl IntoIterator<Item = &'a Path>) {
    TEMPORARY
        .lock()
        .extend(temporary.into_iter().map(Path::to_path_buf));
}

/// Ends the process on SIGTERM and SIGHUP, and on SIGINT where `on_interrupt` (the shell uses
/// that one to stop a statement); removes `temporary` folders first. A database that stays
/// needs nothing: what is not committed was never there.
///
/// The waiting is a task of its own because the shell blocks its thread at the prompt.
pub(super) fn end_on_signal<'a>(
    temporary: impl IntoIterator<Item = &'a Path>,
    on_interrupt: bool,
) -> Result<()> {
    remove_at_end(temporary);
    let listen = |kind| signal(kind).map_err(|e| Error::io("listening for signals", e));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    let mut interrupt = if on_interrupt {
        Some(listen(SignalKind::interrupt())?)
    } else {
        None
    };
    tokio::spawn(async move {
        let interrupted = async {
            match &mut interrupt {
                Some(interrupt) => interrupt.recv().await,
                None => std::future::pending().await,
            }
        };
        let number = tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            _ = hang_up.recv() => SignalKind::hangup(),
            _ = interrupted => SignalKind::interrupt(),
        }
        .as_raw_value();
        for folder in &*TEMPORARY.lock() {
            // Nothing is left to tell the user if this fails: the process ends either way.
            let _ = std::fs::remove_dir_all(folder);
        }
        std::process::exit(128 + number);
    });
    Ok(())
}

/// Resolves at the first SIGTERM or SIGINT, with which it was, when what serves is to finish what runs; a
/// second one ends the process at once.
pub(super) fn until_signal() -> Result<impl Future<Output = SignalKind> + Send + 'static> {
    let listen = |kind| signal(kind).map_err(|e| Error::io("listening for signals", e));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            _ = interrupt.recv() => SignalKind::interrupt(),
        }
    };
    Ok(async move {
        let first = next().await;
        tracing::info!(
            "stopping when the requests that run are finished; another signal stops at once"
        );
        tokio::spawn(async move {
            std::process::exit(128 + next().await.as_raw_value());
        });
        first
    })
}

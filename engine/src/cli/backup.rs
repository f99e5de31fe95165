//! `flashmesh backup`, `flashmesh backups` and `flashmesh restore`.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flashmesh_storage::table::{Backup, BackupProgress};
use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget};

use super::arguments::{BackupArguments, BackupsArguments, EngineArguments, RestoreArguments};
use super::load::style;
use crate::own_statement::BackupStatement;
use crate::{Engine, Error, Result};

pub(super) async fn back_up(engine: &EngineArguments, backup: BackupArguments) -> Result<ExitCode> {
    named(engine, "backup")?;
    let session = Engine::open(engine.options()?)?.session()?;
    let statement = BackupStatement {
        to: backup.to,
        keep: backup.keep,
    };
    let made = session.back_up(statement, shown("backing up")).await?;
    println!(
        "backup {}: {}, {} of them new",
        made.number,
        size(&made),
        HumanBytes(made.new_bytes)
    );
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn list(backups: BackupsArguments) -> Result<ExitCode> {
    if backups.check {
        let checked = crate::check_backup(&backups.from, backups.number, shown("checking")).await?;
        println!("backup {}: {}: all sound", checked.number, size(&checked));
        return Ok(ExitCode::SUCCESS);
    }
    let mut found = crate::backups(&backups.from).await?;
    found.retain(|backup| backups.number.is_none_or(|number| number == backup.number));
    for backup in &found {
        println!(
            "backup {}, {} ago: {}, {} of them new",
            backup.number,
            HumanDuration(age(backup)),
            size(backup),
            HumanBytes(backup.new_bytes)
        );
    }
    if found.is_empty() {
        println!("{} has no backup", backups.from);
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn restore(
    engine: &EngineArguments,
    restore: RestoreArguments,
) -> Result<ExitCode> {
    let folder = named(engine, "restore")?;
    let number = restore.number;
    let done = crate::restore(&restore.from, number, folder, shown("restoring")).await?;
    println!(
        "backup {} is in {}: {}",
        done.number,
        folder.display(),
        size(&done)
    );
    Ok(ExitCode::SUCCESS)
}

fn named<'a>(engine: &'a EngineArguments, command: &str) -> Result<&'a Path> {
    let named = engine.db.as_deref();
    named.ok_or_else(|| {
        Error::usage(format!(
            "{command} needs a database: name its folder with --db"
        ))
    })
}

fn size(backup: &Backup) -> String {
    format!(
        "{} tables, {} rows, {}",
        HumanCount(backup.tables),
        HumanCount(backup.rows),
        HumanBytes(backup.bytes)
    )
}

fn age(backup: &Backup) -> Duration {
    let taken = UNIX_EPOCH + Duration::from_micros(backup.taken_at_us);
    SystemTime::now().duration_since(taken).unwrap_or_default()
}

/// A bar of pages.
fn shown(doing: &str) -> impl FnMut(BackupProgress) + Send + 'static {
    // indicatif draws nothing where stderr is no terminal.
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    bar.set_style(style(&format!(
        "{doing}: {{wide_bar}} {{human_pos}}/{{human_len}} pages, {{eta}} left"
    )));
    move |progress| {
        bar.set_length(progress.pages_total);
        bar.set_position(progress.pages_done);
        if progress.pages_done == progress.pages_total {
            bar.finish_and_clear();
        }
    }
}

//! `flashmesh backup`, `flashmesh backups` and `flashmesh restore`.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flashmesh_storage::table::{Backup, BackupProgress};
use futures::TryStreamExt;
use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget};

use super::arguments::{BackupArguments, BackupsArguments, EngineArguments, RestoreArguments};
use super::load::style;
use super::shell::Backend as _;
use crate::own_statement::BackupStatement;
use crate::{Engine, Error, Result};

pub(super) async fn back_up(engine: &EngineArguments, backup: BackupArguments) -> Result<ExitCode> {
    if let Some(address) = &backup.server.connect {
        let remote = super::connect(address, &backup.server).await?;
        let keep = backup.keep.map(|keep| format!(" KEEP {keep}"));
        let to = backup.to.replace('\'', "''");
        let statement = format!("BACKUP DATABASE TO '{to}'{}", keep.unwrap_or_default());
        let _: Vec<_> = remote
            .run(statement.into())
            .await?
            .rows
            .try_collect()
            .await?;
        println!("the server has made a backup in {}", backup.to);
        return Ok(ExitCode::SUCCESS);
    }
    if engine.db.is_none() {
        return Err(Error::usage(
            "backup needs a database: name its folder with --db, or a server with --connect",
        ));
    }
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
    let folder = engine.db.as_deref().ok_or_else(|| {
        Error::usage("restore needs a folder for the database: name it with --db")
    })?;
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

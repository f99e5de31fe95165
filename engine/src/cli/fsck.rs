//! `flashmesh fsck`.

use std::process::ExitCode;

use crate::{Error, Result};
use flashmesh_storage::table::{Database, DatabaseOptions};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget};

use super::arguments::EngineArguments;
use super::load::style;

/// Pages between two updates of the bar.
const PAGES_PER_TICK: u64 = 256;

pub(super) async fn run(engine: &EngineArguments) -> Result<ExitCode> {
    let path = engine
        .db
        .as_deref()
        .ok_or_else(|| Error::usage("fsck needs a database to check: name its folder with --db"))?;
    let database = Database::open(
        path,
        DatabaseOptions {
            read_only: true,
            ..DatabaseOptions::default()
        },
    )?;
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    bar.set_style(style(
        "checking: {wide_bar} {human_pos}/{human_len} pages, {eta} left",
    ));
    let mut shown = 0;
    let report = tokio::task::block_in_place(|| {
        database.fsck(&mut |progress| {
            if progress.pages_done >= shown + PAGES_PER_TICK {
                shown = progress.pages_done;
                bar.set_length(progress.pages_total);
                bar.set_position(shown);
            }
        })
    })?;
    bar.finish_and_clear();
    for problem in &report.problems {
        println!("{problem}");
    }
    println!(
        "{} tables, {} segments, {} pages ({}) checked: {}",
        report.tables,
        HumanCount(report.segments),
        HumanCount(report.pages),
        HumanBytes(report.bytes),
        match report.problems.len() {
            0 => "all sound".to_string(),
            1 => "1 problem".to_string(),
            count => format!("{count} problems"),
        }
    );
    if report.problems.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

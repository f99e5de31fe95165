//! `flashmesh fsck`.

use std::process::ExitCode;

use crate::{Error, Result};
use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::UInt64Type;
use flashmesh_storage::table::{Database, DatabaseOptions, FsckReport};
use futures::TryStreamExt;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget};

use super::arguments::{EngineArguments, FsckArguments};
use super::load::style;
use super::shell::{Backend, Remote};

/// Pages between two updates of the bar.
const PAGES_PER_TICK: u64 = 256;

pub(super) async fn run(engine: &EngineArguments, fsck: FsckArguments) -> Result<ExitCode> {
    if let Some(address) = &fsck.server.connect {
        let report = ask(&super::connect(address, &fsck.server).await?).await?;
        return Ok(tell(&report));
    }
    let path = engine.db.as_deref().ok_or_else(|| {
        Error::usage(
            "fsck needs a database to check: name its folder with --db, or a server with --connect",
        )
    })?;
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
            Ok(())
        })
    })?;
    bar.finish_and_clear();
    Ok(tell(&report))
}

/// Has a server check its database.
async fn ask(remote: &Remote) -> Result<FsckReport> {
    let answer = remote.run("CALL check_database()".into()).await?;
    let batches: Vec<RecordBatch> = answer.rows.try_collect().await?;
    let mut report = FsckReport::default();
    for batch in batches.iter().filter(|batch| batch.num_rows() > 0) {
        let count = |name| {
            let column = batch
                .column_by_name(name)?
                .as_primitive_opt::<UInt64Type>()?;
            Some(column.value(0))
        };
        let problems = batch
            .column_by_name("problem")
            .and_then(|column| column.as_string_opt::<i32>());
        let (Some(tables), Some(segments), Some(pages), Some(bytes), Some(problems)) = (
            count("tables"),
            count("segments"),
            count("pages"),
            count("bytes"),
            problems,
        ) else {
            return Err(Error::usage(
                "the server's answer is none to CHECK DATABASE",
            ));
        };
        (report.tables, report.segments) = (tables, segments);
        (report.pages, report.bytes) = (pages, bytes);
        let problems = problems.iter().flatten();
        report.problems.extend(problems.map(str::to_string));
    }
    Ok(report)
}

/// Prints what was found.
fn tell(report: &FsckReport) -> ExitCode {
    for problem in &report.problems {
        println!("{problem}");
    }
    println!(
        "{} tables, {} segments, {} pages ({}) checked: {}",
        report.tables,
        HumanCount(report.segments),
        HumanCount(report.pages),
        HumanBytes(report.bytes),
        match report.problems.len() as u64 + report.unlisted {
            0 => "all sound".to_string(),
            1 => "1 problem".to_string(),
            count => format!("{count} problems"),
        }
    );
    match report.problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

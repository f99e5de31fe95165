//! `flashmesh load`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Engine, Error, FileOptions, LoadMode, LoadProgress, Result, Session};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::arguments::{EngineArguments, LoadArguments};
use super::signals;

pub(super) async fn run(engine: &EngineArguments, load: LoadArguments) -> Result<ExitCode> {
    if engine.db.is_none() {
        return Err(Error::usage(
            "load needs a database to load into: name its folder with --db",
        ));
    }
    let mode = match (load.append, load.replace) {
        (true, _) => LoadMode::Append,
        (_, true) => LoadMode::Replace,
        _ => LoadMode::Create,
    };
    let options = FileOptions {
        format: load.format.clone(),
        header: load.no_header.then_some(false),
        delimiter: load.delimiter,
        null: load.null.clone(),
        // A loaded table is to be right even where a quoted field goes over several lines.
        newlines_in_values: true,
    };
    let engine = Engine::open(engine.options()?)?;
    signals::end_on_signal(engine.temporary_folders(), true)?;
    let session = engine.session()?;
    let start = Instant::now();
    let rows = load_with_bar(
        &session,
        &load.table,
        &load.files,
        &options,
        mode,
        load.quiet,
    )
    .await?;
    if !load.quiet {
        eprintln!(
            "{} rows in table '{}', {} on flash, {:.1} s",
            HumanCount(rows),
            load.table,
            HumanBytes(bytes_on_flash(&session, &load.table)?),
            start.elapsed().as_secs_f64()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads files under a progress bar (on a terminal) and gives the number of rows.
pub(super) async fn load_with_bar(
    session: &Session,
    table: &str,
    files: &[String],
    options: &FileOptions,
    mode: LoadMode,
    quiet: bool,
) -> Result<u64> {
    let progress = Arc::new(LoadProgress::default());
    let bar = Bar::start(table, Arc::clone(&progress), quiet);
    let rows = session
        .load_files(table, files, options, mode, progress)
        .await;
    drop(bar);
    rows
}

/// Bytes of a table's newest version on flash.
pub(super) fn bytes_on_flash(session: &Session, table: &str) -> Result<u64> {
    let snapshot = session.table_snapshot(table)?;
    Ok(snapshot
        .statistics
        .iter()
        .map(|column| column.bytes_on_flash)
        .sum())
}

/// A progress bar that a task of its own keeps up to date; it goes when this is dropped.
struct Bar {
    bar: ProgressBar,
    ticker: tokio::task::JoinHandle<()>,
}

impl Bar {
    fn start(table: &str, progress: Arc<LoadProgress>, quiet: bool) -> Self {
        // indicatif draws nothing where stderr is no terminal.
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(style(
            "{spinner} {prefix}: {human_pos} rows, {msg}, {elapsed}",
        ));
        bar.set_prefix(table.to_string());
        let ticking = bar.clone();
        let ticker = tokio::spawn(async move {
            loop {
                if let (Some(total), None) = (progress.total_rows(), ticking.length()) {
                    ticking.set_length(total);
                    ticking.set_style(style(
                        "{prefix}: {wide_bar} {human_pos}/{human_len} rows, {msg}, {elapsed}, {eta} left",
                    ));
                }
                ticking.set_message(HumanBytes(progress.bytes()).to_string());
                ticking.set_position(progress.rows());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self { bar, ticker }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.ticker.abort();
        self.bar.finish_and_clear();
    }
}

pub(super) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant")
}

//! `flashmesh load`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Engine, EngineOptions, Error, FileOptions, LoadMode, LoadProgress, Result, Session};
use arrow_flight::sql::{TableDefinitionOptions, TableExistsOption, TableNotExistOption};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::TryStreamExt;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::arguments::{EngineArguments, LoadArguments};
use super::signals;

pub(super) async fn run(engine: &EngineArguments, load: LoadArguments) -> Result<ExitCode> {
    if engine.db.is_none() && load.server.connect.is_none() {
        return Err(Error::usage(
            "load needs a database to load into: name its folder with --db, or a server with --connect",
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
        ..FileOptions::default()
    };
    let start = Instant::now();
    if let Some(address) = &load.server.connect {
        let rows = send(address, &load, &options, mode).await?;
        if !load.quiet {
            let seconds = start.elapsed().as_secs_f64();
            let rows = HumanCount(rows);
            eprintln!("{rows} rows sent to table '{}', {seconds:.1} s", load.table);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let engine = Engine::open(engine.options()?)?;
    signals::end_on_signal(engine.temporary_folders(), true)?;
    let session = engine.session()?;
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

/// Reads files here and sends their rows to a server, as one change; gives their number.
async fn send(
    address: &str,
    load: &LoadArguments,
    options: &FileOptions,
    mode: LoadMode,
) -> Result<u64> {
    let remote = super::connect(address, &load.server).await?;
    let reader = Engine::open(EngineOptions::default())?;
    signals::end_on_signal(reader.temporary_folders(), true)?;
    let frame = reader.session()?.read_files(&load.files, options).await?;
    let (if_not_exist, if_exists) = match mode {
        LoadMode::Create => (TableNotExistOption::Create, TableExistsOption::Fail),
        LoadMode::Append => (TableNotExistOption::Fail, TableExistsOption::Append),
        LoadMode::Replace => (TableNotExistOption::Create, TableExistsOption::Replace),
    };
    let definition = TableDefinitionOptions {
        if_not_exist: if_not_exist as i32,
        if_exists: if_exists as i32,
    };
    let progress = Arc::new(LoadProgress::default());
    let bar = Bar::start(&load.table, Arc::clone(&progress), load.quiet);
    let rows = frame.execute_stream().await?;
    let schema = rows.schema();
    let counted = rows.inspect_ok(move |batch| {
        progress.count(batch.num_rows(), batch.get_array_memory_size());
    });
    let rows = Box::pin(RecordBatchStreamAdapter::new(schema, counted));
    let sent = remote.ingest(&load.table, rows, definition).await;
    drop(bar);
    sent
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

//! The interactive shell, and scripts.
//!
//! It reads a line ([`editor`]), cuts it into statements and commands of its own ([`lex`],
//! [`commands`]), has the former run by a [`Backend`], and prints what comes back. Scripts take the same
//! way ([`script`]).

mod backend;
mod catalog;
mod commands;
mod complete;
mod completion;
mod dump;
mod editor;
mod keywords;
mod lex;
mod local;
pub(super) mod pager;
mod progress;
mod remote;
mod report;
mod script;
pub(super) mod suggest;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::accounts::redacted;
use crate::{Error, Result};
use datafusion::common::runtime::SpawnedTask;
use parking_lot::RwLock;
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) use backend::{Backend, Statement};
use catalog::Catalog;
use commands::Command;
use editor::LineHelper;
use lex::Item;
pub(super) use local::Local;
use progress::watched;
pub(super) use remote::{Login, Remote, Tls};
use report::report;
pub(super) use script::run_scripts;

use super::arguments::{OutputArguments, ShellArguments};
use super::escape::{complain, shown};
use super::output::{Chart, Output, has_colours};

/// Statements that the history keeps.
const HISTORY_ENTRIES: usize = 10_000;
/// `.read` files that `.read` others, at most.
const MAX_READ_DEPTH: usize = 16;
/// Where a statement is typed.
const PROMPT: &str = "flashmesh> ";
/// What a shell runs first, in the user's home.
const RC_FILE: &str = ".flashmeshrc";

/// What came of a line.
enum Outcome {
    /// The shell goes on.
    Done,
    /// It has failed, or the user has stopped it: nothing after it is run.
    Stopped,
    /// The user leaves.
    Quit,
}

/// Opens a database in place of the shell's: in a folder, or a temporary one.
pub(super) type Open = Box<dyn Fn(Option<&Path>) -> Result<Arc<dyn Backend>> + Send + Sync>;

/// Reads and runs statements until the user leaves. `open` opens other databases, where they are in
/// this process.
pub(super) async fn run(
    backend: Arc<dyn Backend>,
    open: Option<Open>,
    arguments: &ShellArguments,
    output: &OutputArguments,
) -> Result<()> {
    let mut shell = Shell::new(backend, open, Output::new(output).with_pager());
    shell.has_prompt = true;
    // From here on an interrupt is for the statement that runs, and at the prompt for the line.
    let _interrupts = shell.interrupts()?;
    shell.refresh_catalog();
    if !output.quiet {
        println!(
            "flashmesh {}, {}; .help for help, .quit to leave",
            env!("CARGO_PKG_VERSION"),
            shell.backend.description()
        );
    }
    if let Some((path, text)) = first_lines(arguments)?
        && let Outcome::Quit = shell.run_text(&text, 0).await
    {
        log::debug!("{} leaves the shell", path.display());
        return Ok(());
    }
    let mut editor = shell.editor()?;
    let history = history_file();
    if let Some(history) = &history {
        // There is none at first.
        let _ = editor.load_history(history);
    }
    loop {
        match editor.readline(PROMPT) {
            Ok(line) => {
                if line.trim().is_empty() {
                    continue;
                }
                // A history that can't be kept is no reason to stop; one with passwords is none to keep.
                if matches!(redacted(&line).text, Cow::Borrowed(_)) {
                    let _ = editor.add_history_entry(line.trim_end());
                    if let Some(history) = &history {
                        let _ = editor.append_history(history);
                    }
                }
                if let Outcome::Quit = shell.run_text(&line, 0).await {
                    return Ok(());
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(Error::usage(format!("the terminal failed: {error}"))),
        }
    }
}

/// The user's file that a shell begins with, and what is in it: the one that is named, else
/// `~/.flashmeshrc` if that is there.
///
/// # Errors
/// [`Error::Io`] where a file that is named can't be read, or the other is there and can't.
fn first_lines(arguments: &ShellArguments) -> Result<Option<(PathBuf, String)>> {
    let path = match (&arguments.init, arguments.no_init) {
        (_, true) => return Ok(None),
        (Some(path), _) => path.clone(),
        (None, _) => match std::env::var_os("HOME") {
            Some(home) => PathBuf::from(home).join(RC_FILE),
            None => return Ok(None),
        },
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && arguments.init.is_none() => {
            Ok(None)
        }
        Err(error) => Err(Error::io(format!("reading {}", path.display()), error)),
    }
}

/// The file of the history in the user's folder for state: `$XDG_STATE_HOME`, else
/// `~/.local/state`; `None` without a home, or where the folder can't be made.
fn history_file() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME");
    let state = state.or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    let folder = state.join("flashmesh");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history"))
}

/// Ctrl-C, where it ends what runs and not the process.
struct Interrupts(Option<Signal>);

impl Interrupts {
    async fn next(&mut self) {
        match &mut self.0 {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}

struct Shell {
    backend: Arc<dyn Backend>,
    output: Output,
    /// For completion: as of the last statement.
    catalog: Arc<RwLock<Catalog>>,
    refresh: Option<SpawnedTask<()>>,
    open: Option<Open>,
    /// Somebody types: names are completed, and an interrupt stops a statement.
    has_prompt: bool,
}

impl Shell {
    fn new(backend: Arc<dyn Backend>, open: Option<Open>, output: Output) -> Self {
        Self {
            backend,
            output,
            catalog: Arc::default(),
            refresh: None,
            open,
            has_prompt: false,
        }
    }

    fn interrupts(&self) -> Result<Interrupts> {
        let listen = || signal(SignalKind::interrupt());
        let listening = self.has_prompt.then(listen).transpose();
        let listening = listening.map_err(|e| Error::io("listening for signals", e))?;
        Ok(Interrupts(listening))
    }

    fn editor(&self) -> Result<Editor<LineHelper, FileHistory>> {
        let failed = |e| Error::usage(format!("the terminal failed: {e}"));
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .history_ignore_space(true)
            .build();
        let mut editor = Editor::with_config(config).map_err(failed)?;
        editor
            .set_max_history_size(HISTORY_ENTRIES)
            .map_err(failed)?;
        editor.set_helper(Some(LineHelper::new(
            Arc::clone(&self.catalog),
            has_colours(),
        )));
        Ok(editor)
    }

    /// Asks for the names anew, while the user types.
    fn refresh_catalog(&mut self) {
        if !self.has_prompt {
            return;
        }
        let (backend, catalog) = (Arc::clone(&self.backend), Arc::clone(&self.catalog));
        self.refresh = Some(SpawnedTask::spawn(async move {
            // Completion does with the names that it has.
            if let Ok(names) = backend.catalog().await {
                *catalog.write() = names;
            }
        }));
    }

    /// Runs statements and commands one after the other, up to the first that fails.
    async fn run_text(&mut self, text: &str, depth: usize) -> Outcome {
        let (items, unfinished) = lex::items(text);
        // The end of a file ends a statement, too.
        let last = Some(unfinished).filter(|sql| !sql.is_empty());
        for item in items.into_iter().chain(last.map(Item::Statement)) {
            let done = match item {
                Item::Statement(sql) => {
                    let done = self.run_statement(sql.into(), None).await;
                    self.refresh_catalog();
                    match done {
                        Ok(outcome) => outcome,
                        Err(error) => self.failed(&error, sql, 0).await,
                    }
                }
                Item::Command(line) => match commands::parse(line) {
                    Ok(command) => self.obey(command, depth).await,
                    Err(message) => self.refused(&message),
                },
            };
            match done {
                Outcome::Done => {}
                ended => return ended,
            }
        }
        Outcome::Done
    }

    /// Does what a command says, or tells what is wrong with it.
    async fn obey(&mut self, command: Command, depth: usize) -> Outcome {
        match self.run_command(command, depth).await {
            Ok(outcome) => outcome,
            Err(message) => self.refused(&message),
        }
    }

    /// Tells what is wrong with a command.
    fn refused(&self, message: &str) -> Outcome {
        if self.output.is_closed() {
            return Outcome::Quit;
        }
        self.complain(&format!("error: {message}"));
        Outcome::Stopped
    }

    /// Whether somebody wants to know more than results: at a prompt somebody waits.
    fn is_watched(&self) -> bool {
        self.has_prompt || !self.output.is_quiet()
    }

    /// Tells what a command has done, where that is no result.
    fn tell(&self, text: &str) {
        if self.is_watched() {
            complain(text);
        }
    }

    /// Prints what a command gives; at a prompt through the pager, if it is long.
    fn show(&mut self, text: &str) -> Result<(), String> {
        if self.has_prompt && pager::show(&shown(text)).unwrap_or(false) {
            return Ok(());
        }
        let printed = self.output.print_text(&format!("{text}\n"));
        printed.map_err(|error| error.to_string())
    }

    fn complain(&self, text: &str) {
        complain(text);
        if self.has_prompt {
            eprintln!();
        }
    }

    /// Tells what is wrong with a statement.
    async fn failed(&self, error: &Error, sql: &str, lines: usize) -> Outcome {
        if self.output.is_closed() {
            return Outcome::Quit;
        }
        let catalog = match report::is_of_name(error) {
            true => self.backend.catalog().await.unwrap_or_default(),
            false => Catalog::default(),
        };
        self.complain(&report(error, sql, lines, &catalog));
        Outcome::Stopped
    }

    /// Runs a statement and prints its result, or draws it.
    async fn run_statement(
        &mut self,
        statement: Statement,
        chart: Option<Chart>,
    ) -> Result<Outcome> {
        let done = self.start_statement(statement, chart).await;
        self.output.end_of_statement()?;
        done
    }

    async fn start_statement(
        &mut self,
        statement: Statement,
        chart: Option<Chart>,
    ) -> Result<Outcome> {
        let start = Instant::now();
        let mut interrupts = self.interrupts()?;
        let backend = Arc::clone(&self.backend);
        let work = SpawnedTask::spawn(async move { backend.run(statement).await });
        let starting = async {
            let answer = work.join().await;
            answer.map_err(|e| Error::usage(format!("the statement failed: {e}")))?
        };
        let is_streaming = chart.is_none() && self.output.is_streaming();
        let starting = async {
            match self.is_watched() && std::io::stderr().is_terminal() {
                true => watched(start, starting, is_streaming).await,
                false => starting.await,
            }
        };
        let answer = tokio::select! {
            answer = starting => answer?,
            () = interrupts.next() => return Ok(self.interrupted().await),
        };
        let options = self.backend.format_options();
        let (rows, all_rows) = (answer.rows, answer.all_rows);
        let printing = async {
            match chart {
                Some(chart) => self.output.print_chart(chart, rows).await,
                None => self.output.print(rows, all_rows, &options).await,
            }
        };
        let printed = tokio::select! {
            printed = printing => Some(printed?),
            () = interrupts.next() => None,
        };
        match printed {
            Some(rows) => {
                let all_rows = all_rows || chart.is_some();
                self.output.summary(rows, all_rows, start.elapsed());
                Ok(Outcome::Done)
            }
            None => Ok(self.interrupted().await),
        }
    }

    /// The user has stopped what ran.
    async fn interrupted(&self) -> Outcome {
        self.backend.cancel().await;
        eprintln!("\ninterrupted\n");
        Outcome::Stopped
    }

    async fn run_command(&mut self, command: Command, depth: usize) -> Result<Outcome, String> {
        let text = |error: Error| error.to_string();
        match command {
            Command::Help => self.show(&format!("{}\n", commands::help()))?,
            Command::Quit => return Ok(Outcome::Quit),
            Command::Timer(on) => self.output.set_times(on),
            Command::Types(on) => self.output.set_types(on),
            Command::Mode(format, table) => self.output.set_format(format, table),
            Command::Output(file) => {
                let file = file.as_deref().map(Path::new);
                self.output.set_file(file, false).map_err(text)?;
            }
            Command::Once(file) => {
                let file = Some(Path::new(&file));
                self.output.set_file(file, true).map_err(text)?;
            }
            Command::Chart(chart, query) => {
                return match self.run_statement(query.as_str().into(), Some(chart)).await {
                    Ok(outcome) => Ok(outcome),
                    Err(error) => Ok(self.failed(&error, &query, 0).await),
                };
            }
            Command::Open(folder) => {
                let open = self.open.as_ref().ok_or(
                    "this shell talks to a server; leave it, and start one with the database's folder",
                )?;
                let opened = open(folder.as_deref().map(Path::new)).map_err(text)?;
                // Completion asked the one before.
                self.refresh = None;
                self.backend = opened;
                self.refresh_catalog();
                self.tell(&format!("{}\n", self.backend.description()));
            }
            Command::Dump(table) => {
                let catalog = self.backend.catalog().await.map_err(text)?;
                let mut interrupts = self.interrupts().map_err(text)?;
                let dumped = tokio::select! {
                    dumped = dump::dump(
                        self.backend.as_ref(),
                        &mut self.output,
                        &catalog,
                        table.as_deref(),
                    ) => dumped,
                    () = interrupts.next() => return Ok(self.interrupted().await),
                };
                dumped.map_err(text)?;
                self.output.end_of_statement().map_err(text)?;
            }
            Command::MaxRows(rows) => self.output.set_max_rows(rows),
            Command::Tables => {
                let catalog = self.backend.catalog().await.map_err(text)?;
                self.show(&tables(&catalog))?;
            }
            Command::Indexes => {
                let catalog = self.backend.catalog().await.map_err(text)?;
                self.show(&indexes(&catalog))?;
            }
            Command::Schema(table) => {
                let catalog = self.backend.catalog().await.map_err(text)?;
                self.show(&schema(&catalog, table.as_deref())?)?;
            }
            Command::Read(file) => {
                if depth == MAX_READ_DEPTH {
                    return Err(format!(
                        "{file} is read by {MAX_READ_DEPTH} files that read one another"
                    ));
                }
                let sql = std::fs::read_to_string(Path::new(&file))
                    .map_err(|e| format!("reading {file}: {e}"))?;
                return Ok(Box::pin(self.run_text(&sql, depth + 1)).await);
            }
            Command::Import { file, table } => {
                let start = Instant::now();
                let mut interrupts = self.interrupts().map_err(text)?;
                let work = {
                    let (backend, table) = (Arc::clone(&self.backend), table.clone());
                    let quiet = !self.is_watched();
                    SpawnedTask::spawn(async move { backend.import(&file, &table, quiet).await })
                };
                let rows = tokio::select! {
                    rows = work.join() => rows,
                    () = interrupts.next() => return Ok(self.interrupted().await),
                };
                let rows = rows.map_err(|e| e.to_string())?.map_err(text)?;
                self.refresh_catalog();
                self.tell(&format!("added to {table}:"));
                self.output.summary(rows as usize, true, start.elapsed());
            }
        }
        Ok(Outcome::Done)
    }
}

/// Rows of words in columns as wide as they need.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| console::measure_text_width(cell))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let padding = width - console::measure_text_width(cell);
            let _ = write!(line, "{cell}{}  ", " ".repeat(padding));
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn tables(catalog: &Catalog) -> String {
    let rows = |table: &catalog::Table| match table.rows {
        Some(1) => "1 row".into(),
        Some(rows) => format!("{rows} rows"),
        None => String::new(),
    };
    let tables = catalog.tables.iter().map(|table| {
        let name = catalog.shown(&table.schema, &table.name);
        vec![name, table.kind.to_string(), rows(table)]
    });
    match tables.len() {
        0 => "no tables\n".into(),
        _ => aligned(&tables.collect::<Vec<_>>()),
    }
}

fn index(catalog: &Catalog, index: &catalog::Index) -> Vec<String> {
    vec![
        catalog.shown(&index.schema, &index.name),
        format!(
            "ON {} USING {} ({})",
            catalog.shown(&index.schema, &index.table),
            index.kind,
            index.columns.join(", ")
        ),
        index.constraint.to_string(),
    ]
}

fn indexes(catalog: &Catalog) -> String {
    let indexes = catalog.indexes.iter().map(|one| index(catalog, one));
    match indexes.len() {
        0 => "no indexes\n".into(),
        _ => aligned(&indexes.collect::<Vec<_>>()),
    }
}

/// Columns, constraints and indexes of all tables, or of one.
fn schema(catalog: &Catalog, name: Option<&str>) -> Result<String, String> {
    let is_wanted = |table: &&catalog::Table| {
        let full = format!("{}.{}", table.schema, table.name);
        name.is_none_or(|name| {
            name.eq_ignore_ascii_case(&catalog.shown(&table.schema, &table.name))
                || name.eq_ignore_ascii_case(&full)
                || name == table.name && table.schema == catalog.default_schema
        })
    };
    let mut text = String::new();
    for table in catalog.tables.iter().filter(is_wanted) {
        let _ = writeln!(
            text,
            "{} {}",
            table.kind,
            catalog.shown(&table.schema, &table.name)
        );
        let columns = table.columns.iter().map(|column| {
            let constraint = if column.nullable { "" } else { "not null" };
            vec![
                format!("  {}", catalog::quoted(&column.name)),
                column.data_type.clone(),
                constraint.to_string(),
            ]
        });
        text += &aligned(&columns.collect::<Vec<_>>());
        for (name, condition) in &table.checks {
            let _ = writeln!(text, "  check {} {condition}", catalog::quoted(name));
        }
        let of_table =
            |index: &&catalog::Index| index.schema == table.schema && index.table == table.name;
        for one in catalog.indexes.iter().filter(of_table) {
            let _ = writeln!(text, "  index {}", index(catalog, one).join(" ").trim_end());
        }
    }
    match (name, text.is_empty()) {
        (Some(name), true) => {
            let tables = catalog.tables.iter().map(|table| table.name.as_str());
            let meant = suggest::nearest(name, tables);
            let meant = meant.map(|meant| format!("; did you mean {meant}?"));
            Err(format!(
                "there is no table {name}{}",
                meant.unwrap_or_default()
            ))
        }
        (None, true) => Ok("no tables\n".into()),
        _ => Ok(text),
    }
}

//! Printing results.

mod chart;
mod layout;
mod literal;
mod plan;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use crate::{Error, Result};
use arrow::csv::WriterBuilder;
use arrow::datatypes::SchemaRef;
use arrow::json::writer::{JsonArray, LineDelimited, Writer as JsonWriter};
use arrow::record_batch::RecordBatch;
use arrow::util::pretty::pretty_format_batches_with_options;
use datafusion::config::FormatOptions;
use datafusion::execution::SendableRecordBatchStream;
use flashmesh_planner::IntervalTexts;
use futures::StreamExt;

use super::arguments::{Format, OutputArguments};
use super::escape::{self, Shown};
use super::shell::pager;
pub(super) use chart::Chart;
use layout::{Frame, Layout};
pub(super) use literal::sql_type;

/// Rows of a table that a terminal shows.
const TERMINAL_ROWS: usize = 40;
/// Columns of a chart or a plan where no terminal says how many.
const WIDTH: usize = 100;
/// Rows of a chart, at most.
const CHART_ROWS_MAX: usize = 100_000;
/// Rows of a statement of a dump.
const DUMPED_ROWS: usize = 1000;
/// The table that statements of `--format insert` are for, unless `.mode insert` names it.
const INSERT_TABLE: &str = "result";

/// The formats by name.
pub(super) const FORMATS: &[(&str, Format)] = &[
    ("automatic", Format::Automatic),
    ("table", Format::Table),
    ("box", Format::Box),
    ("line", Format::Line),
    ("markdown", Format::Markdown),
    ("html", Format::Html),
    ("insert", Format::Insert),
    ("csv", Format::Csv),
    ("tsv", Format::Tsv),
    ("json", Format::Json),
    ("ndjson", Format::NdJson),
];

/// Where results go, and how.
pub(super) struct Output {
    format: Format,
    insert_table: String,
    /// Rows of a statement that inserts.
    insert_rows: usize,
    max_rows: usize,
    /// Whether tables tell the types of their columns.
    types: bool,
    times: bool,
    counts: bool,
    /// Whether nothing but results is wanted.
    is_quiet: bool,
    /// Whether a table that the terminal can't hold goes through a pager.
    pages: bool,
    stdout: Target,
    file: Option<OutputFile>,
}

/// A file that results go to.
struct OutputFile {
    target: Target,
    /// Of its ending, where that names one.
    format: Option<Format>,
    /// For the next statement alone.
    is_once: bool,
}

/// A file, or standard output, which remembers that its reader has gone (`flashmesh … | head`), and
/// gives a terminal no commands that are in the data.
struct Target {
    inner: io::BufWriter<Box<dyn Write + Send>>,
    closed: bool,
    /// On a terminal.
    shown: Option<Shown>,
}

impl Target {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.closed |= matches!(&result, Err(e) if e.kind() == io::ErrorKind::BrokenPipe);
        result
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = match &mut self.shown {
            Some(shown) => {
                let text = shown.next(bytes);
                self.inner.write_all(text.as_bytes()).map(|()| bytes.len())
            }
            None => self.inner.write(bytes),
        };
        self.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.inner.flush();
        self.note(result)
    }
}

impl Output {
    pub fn new(arguments: &OutputArguments) -> Self {
        let terminal = io::stdout().is_terminal();
        Self {
            format: arguments.format,
            insert_table: INSERT_TABLE.into(),
            insert_rows: 1,
            types: false,
            file: None,
            max_rows: arguments.maxrows.unwrap_or(if terminal {
                TERMINAL_ROWS
            } else {
                usize::MAX
            }),
            times: terminal && !arguments.quiet,
            counts: terminal && !arguments.quiet,
            is_quiet: arguments.quiet,
            pages: false,
            stdout: Target {
                inner: io::BufWriter::new(Box::new(io::stdout())),
                closed: false,
                shown: terminal.then(Shown::default),
            },
        }
    }

    /// The same with a pager for large tables.
    pub fn with_pager(self) -> Self {
        Self {
            pages: true,
            ..self
        }
    }

    /// From now on results are printed so; statements that insert are for `table`, where one is named.
    pub fn set_format(&mut self, format: Format, table: Option<String>) {
        self.format = format;
        if let Some(table) = table {
            self.insert_table = table;
        }
    }

    /// From now on tables tell the types of their columns, or not.
    pub fn set_types(&mut self, types: bool) {
        self.types = types;
    }

    /// From now on results, or those of the next statement, go to a file that is made anew; `None`: to
    /// standard output. An ending such as `.csv` says how, unless `--format` or `.mode` does.
    ///
    /// # Errors
    /// [`Error::Io`] where the file can't be made, or the one before not be written to its end.
    pub fn set_file(&mut self, path: Option<&Path>, is_once: bool) -> Result<()> {
        if let Some(mut before) = self.file.take() {
            let flushed = before.target.flush();
            flushed.map_err(|e| Error::io("writing the results before", e))?;
        }
        let Some(path) = path else { return Ok(()) };
        let file = File::create(path);
        let file = file.map_err(|e| Error::io(format!("making {}", path.display()), e))?;
        self.file = Some(OutputFile {
            target: Target {
                inner: io::BufWriter::new(Box::new(file)),
                closed: false,
                shown: None,
            },
            format: of_ending(path),
            is_once,
        });
        Ok(())
    }

    /// A statement has ended, and with it what was meant for it alone.
    ///
    /// # Errors
    /// As [`Output::set_file`].
    pub fn end_of_statement(&mut self) -> Result<()> {
        match self.file.as_ref().is_some_and(|file| file.is_once) {
            true => self.set_file(None, false),
            false => Ok(()),
        }
    }

    /// Writes lines to standard output, wherever results go.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn print_text(&mut self, text: &str) -> Result<()> {
        let written = self.stdout.write_all(text.as_bytes());
        let flushed = written.and_then(|()| self.stdout.flush());
        flushed.map_err(|e| Error::io("printing", e))
    }

    /// Writes lines to where results go.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write_text(&mut self, text: &str) -> Result<()> {
        let (target, _) = self.target();
        let written = target.write_all(text.as_bytes());
        let flushed = written.and_then(|()| target.flush());
        flushed.map_err(|e| Error::io("printing the result", e))
    }

    fn target(&mut self) -> (&mut Target, Format) {
        match (&mut self.file, self.format) {
            (Some(file), Format::Automatic) => {
                (&mut file.target, file.format.unwrap_or(Format::Automatic))
            }
            (Some(file), format) => (&mut file.target, format),
            (None, format) => (&mut self.stdout, format),
        }
    }

    /// From now on so many rows of a table are shown.
    pub fn set_max_rows(&mut self, rows: usize) {
        self.max_rows = rows;
    }

    /// From now on the time of a statement is told, or not.
    pub fn set_times(&mut self, times: bool) {
        self.times = times;
    }

    /// Whether nothing but results is wanted.
    pub fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Whether rows are printed as they come, rather than all at the end.
    pub fn is_streaming(&self) -> bool {
        !self.format.needs_all_rows()
    }

    /// Whether the reader of the output has gone.
    pub fn is_closed(&self) -> bool {
        self.stdout.closed
    }

    /// Prints a result as it arrives; a table is printed at its end. All rows are read even where
    /// few are shown, because the count is part of the answer. Gives the number of rows.
    pub async fn print(
        &mut self,
        mut stream: SendableRecordBatchStream,
        all_rows: bool,
        options: &FormatOptions,
    ) -> Result<usize> {
        let schema = stream.schema();
        if schema.fields().is_empty() {
            // A statement without a result: CREATE, SET, …
            while let Some(batch) = stream.next().await {
                batch?;
            }
            return Ok(0);
        }
        let (max_rows, types, has_file) = (self.max_rows, self.types, self.file.is_some());
        let max_rows = match all_rows || has_file {
            true => usize::MAX,
            false => max_rows,
        };
        let (pages, width) = (self.pages && !has_file, self.width());
        let insert = Layout::Insert(self.insert_table.clone(), self.insert_rows);
        let (out, format) = self.target();
        let colours = out.shown.is_some() && has_colours();
        // A NULL that is left out looks like a column that is missing.
        let json = arrow::json::WriterBuilder::new().with_explicit_nulls(true);
        let table = |drawn: Drawn, out| Sink::Table {
            rows: Vec::new(),
            max_rows,
            types,
            pages,
            drawn,
            out,
        };
        let mut sink = match format {
            Format::Automatic if width.is_some() && is_plan(&schema) => {
                let width = width.unwrap_or(WIDTH);
                table(Drawn::Plan { width, colours }, out)
            }
            Format::Automatic | Format::Table => table(Drawn::Table, out),
            Format::Box => table(Drawn::Framed(Frame::Box), out),
            Format::Markdown => table(Drawn::Framed(Frame::Markdown), out),
            Format::Line => Sink::layout(Layout::Line, &schema, out)?,
            Format::Html => Sink::layout(Layout::Html, &schema, out)?,
            Format::Insert => Sink::layout(insert, &schema, out)?,
            Format::Csv => Sink::Delimited(Box::new(
                WriterBuilder::new().with_delimiter(b',').build(out),
            )),
            Format::Tsv => Sink::Delimited(Box::new(
                WriterBuilder::new().with_delimiter(b'\t').build(out),
            )),
            Format::Json => Sink::Json(json.build(out)),
            Format::NdJson => Sink::JsonLines(json.build(out)),
        };
        sink.write(&RecordBatch::new_empty(schema.clone()), 0, options)?;
        let mut rows = 0;
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            sink.write(&batch, rows, options)?;
            rows += batch.num_rows();
        }
        sink.finish(schema, options)?;
        let (out, _) = self.target();
        out.flush()
            .map_err(|e| Error::io("printing the result", e))?;
        Ok(rows)
    }

    /// Prints a result as statements that insert it into `table`, many rows each: a statement costs more
    /// than its rows.
    ///
    /// # Errors
    /// As [`Output::print`].
    pub async fn print_inserts(
        &mut self,
        table: &str,
        stream: SendableRecordBatchStream,
    ) -> Result<usize> {
        let format = std::mem::replace(&mut self.format, Format::Insert);
        let before = std::mem::replace(&mut self.insert_table, table.into());
        self.insert_rows = DUMPED_ROWS;
        let printed = self.print(stream, true, &FormatOptions::default()).await;
        (self.format, self.insert_table, self.insert_rows) = (format, before, 1);
        printed
    }

    /// Draws a result as a chart.
    ///
    /// # Errors
    /// Those of the result, and [`Error::Usage`] for one that has no numbers, or too many rows.
    pub async fn print_chart(
        &mut self,
        chart: Chart,
        mut stream: SendableRecordBatchStream,
    ) -> Result<usize> {
        let schema = stream.schema();
        let (mut batches, mut rows) = (Vec::new(), 0);
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            rows += batch.num_rows();
            if rows > CHART_ROWS_MAX {
                return Err(Error::usage(format!(
                    "a chart takes {CHART_ROWS_MAX} rows at most; group them, or add LIMIT"
                )));
            }
            batches.push(batch);
        }
        let width = self.width().unwrap_or(WIDTH);
        self.write_text(&chart::draw(chart, &schema, &batches, width)?)?;
        Ok(rows)
    }

    /// Columns of the terminal that results go to, if they go to one.
    fn width(&self) -> Option<usize> {
        let is_terminal = self.file.is_none() && self.stdout.shown.is_some();
        is_terminal.then(|| console::Term::stdout().size().1.into())
    }

    /// Tells how many rows a statement gave, and its time, on a terminal. `all_rows`: none of them was
    /// left out.
    pub fn summary(&self, rows: usize, all_rows: bool, time: Duration) {
        let mut parts = Vec::new();
        if self.counts {
            parts.push(format!("{rows} row{}", if rows == 1 { "" } else { "s" }));
            let all_rows = all_rows || self.is_streaming() || self.file.is_some();
            if rows > self.max_rows && !all_rows {
                let option = if self.pages { ".maxrows" } else { "--maxrows" };
                parts.push(format!("{} shown ({option})", self.max_rows));
            }
        }
        if self.times {
            parts.push(format!("{:.3} s", time.as_secs_f64()));
        }
        if !parts.is_empty() {
            eprintln!("{}\n", parts.join(", "));
        }
    }
}

/// Whether a result is what EXPLAIN says.
fn is_plan(schema: &SchemaRef) -> bool {
    let names: Vec<_> = schema.fields().iter().map(|field| field.name()).collect();
    names == ["plan_type", "plan"]
}

/// Whether the user wants colours (<https://no-color.org>).
pub(super) fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The format that a file's ending names.
fn of_ending(path: &Path) -> Option<Format> {
    let ending = path.extension()?.to_str()?.to_lowercase();
    Some(match ending.as_str() {
        "csv" => Format::Csv,
        "tsv" => Format::Tsv,
        "json" => Format::Json,
        "ndjson" | "jsonl" => Format::NdJson,
        "md" => Format::Markdown,
        "html" | "htm" => Format::Html,
        "sql" => Format::Insert,
        _ => return None,
    })
}

/// How a table is drawn.
enum Drawn {
    Table,
    Framed(Frame),
    Plan { width: usize, colours: bool },
}

/// One result on its way out.
enum Sink<'a> {
    Table {
        rows: Vec<RecordBatch>,
        max_rows: usize,
        types: bool,
        pages: bool,
        drawn: Drawn,
        out: &'a mut Target,
    },
    Rows {
        layout: Layout,
        out: &'a mut Target,
    },
    Delimited(Box<arrow::csv::Writer<&'a mut Target>>),
    Json(JsonWriter<&'a mut Target, JsonArray>),
    JsonLines(JsonWriter<&'a mut Target, LineDelimited>),
}

impl<'a> Sink<'a> {
    fn layout(layout: Layout, schema: &SchemaRef, out: &'a mut Target) -> Result<Self> {
        layout.begin(schema, out)?;
        Ok(Self::Rows { layout, out })
    }

    /// Takes a batch that has `before` rows before it.
    fn write(&mut self, batch: &RecordBatch, before: usize, options: &FormatOptions) -> Result<()> {
        match self {
            // One row more than is shown tells the printer that there are more.
            Self::Table { rows, max_rows, .. } if batch.num_rows() > 0 && before <= *max_rows => {
                rows.push(batch.clone());
            }
            Self::Table { .. } => {}
            Self::Rows { layout, out } => layout.rows(batch, before, &options.try_into()?, out)?,
            // An empty batch still makes the header.
            Self::Delimited(writer) => writer.write(batch)?,
            Self::Json(writer) => writer.write(batch)?,
            Self::JsonLines(writer) => writer.write(batch)?,
        }
        Ok(())
    }

    fn finish(self, schema: SchemaRef, options: &FormatOptions) -> Result<()> {
        let printing = |e| Error::io("printing the result", e);
        match self {
            Self::Table {
                rows,
                max_rows,
                types,
                pages,
                drawn,
                out,
            } => {
                let text = match drawn {
                    Drawn::Table => {
                        let mut options = options.clone();
                        options.types_info |= types;
                        table(schema, &rows, max_rows, &options)?
                    }
                    Drawn::Framed(frame) => {
                        let types = types || options.types_info;
                        layout::framed(
                            frame,
                            &schema,
                            &rows,
                            max_rows,
                            types,
                            &options.try_into()?,
                        )?
                    }
                    Drawn::Plan { width, colours } => plan::plans(&rows, width, colours)?,
                };
                let is_coloured = matches!(drawn, Drawn::Plan { .. });
                // Colours are ours, and what is in the plan was shown before they came.
                let paged = match is_coloured {
                    true => pages && pager::show(&text).map_err(printing)?,
                    false => pages && pager::show(&escape::shown(&text)).map_err(printing)?,
                };
                match (paged, is_coloured) {
                    (true, _) => {}
                    (false, true) => out.inner.write_all(text.as_bytes()).map_err(printing)?,
                    (false, false) => out.write_all(text.as_bytes()).map_err(printing)?,
                }
            }
            Self::Rows { layout, out } => layout.end(out)?,
            Self::Delimited(_) => {}
            Self::Json(mut writer) => {
                writer.finish()?;
                writeln!(writer.into_inner()).map_err(printing)?;
            }
            Self::JsonLines(mut writer) => writer.finish()?,
        }
        Ok(())
    }
}

/// The first `max_rows` of `batches` as a table; where there are more, three lines of dots say so.
fn table(
    schema: SchemaRef,
    batches: &[RecordBatch],
    max_rows: usize,
    options: &FormatOptions,
) -> Result<String> {
    let mut left = max_rows;
    let mut shown = vec![RecordBatch::new_empty(schema)];
    for batch in batches {
        let rows = batch.num_rows().min(left);
        shown.push(batch.slice(0, rows));
        left -= rows;
    }
    let options = arrow::util::display::FormatOptions::try_from(options)?;
    let options = options.with_formatter_factory(Some(&IntervalTexts));
    let mut text = pretty_format_batches_with_options(&shown, &options)?.to_string();
    if batches.iter().map(RecordBatch::num_rows).sum::<usize>() > max_rows
        && let Some(border) = text.rfind('\n')
    {
        let width = text.len() - border - 1;
        let dots = format!("\n| .{:width$}|", "", width = width.saturating_sub(4));
        text.insert_str(border, &dots.repeat(3));
    }
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    #[test]
    fn a_table_shows_so_many_rows_and_that_there_are_more() {
        let batch = |values: Vec<i64>| {
            let column: ArrayRef = Arc::new(Int64Array::from(values));
            RecordBatch::try_from_iter([("n", column)]).unwrap()
        };
        let batches = [batch(vec![1, 2]), batch(vec![3])];
        let schema = batches[0].schema();
        let print = |batches: &[RecordBatch], rows| {
            table(schema.clone(), batches, rows, &FormatOptions::default()).unwrap()
        };
        let head = "+---+\n| n |\n+---+\n";
        let all = format!("{head}| 1 |\n| 2 |\n| 3 |\n+---+\n");
        assert_eq!(print(&batches, 3), all);
        assert_eq!(print(&batches, usize::MAX), all);
        let two = format!("{head}| 1 |\n| 2 |\n| . |\n| . |\n| . |\n+---+\n");
        assert_eq!(print(&batches, 2), two);
        assert_eq!(print(&[], 2), format!("{head}+---+\n"));
    }
}

//! Printing results.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::Result;
use arrow::csv::WriterBuilder;
use arrow::datatypes::SchemaRef;
use arrow::json::writer::{JsonArray, LineDelimited, Writer as JsonWriter};
use arrow::record_batch::RecordBatch;
use arrow::util::pretty::pretty_format_batches_with_options;
use datafusion::config::FormatOptions;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;

use super::arguments::{Format, OutputArguments};
use super::escape::{self, Shown};
use super::shell::pager;

/// Rows of a table that a terminal shows.
const TERMINAL_ROWS: usize = 40;

/// The formats by name.
pub(super) const FORMATS: &[(&str, Format)] = &[
    ("table", Format::Table),
    ("csv", Format::Csv),
    ("tsv", Format::Tsv),
    ("json", Format::Json),
    ("ndjson", Format::NdJson),
];

/// Where results go, and how.
pub(super) struct Output {
    format: Format,
    max_rows: usize,
    times: bool,
    counts: bool,
    /// Whether a table that the terminal can't hold goes through a pager.
    pages: bool,
    stdout: Stdout,
}

/// Standard output that remembers that its reader has gone (`flashmesh … | head`), and gives a
/// terminal no commands that are in the data.
struct Stdout {
    inner: io::BufWriter<io::Stdout>,
    closed: bool,
    /// On a terminal.
    shown: Option<Shown>,
}

impl Stdout {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.closed |= matches!(&result, Err(e) if e.kind() == io::ErrorKind::BrokenPipe);
        result
    }
}

impl Write for Stdout {
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
            max_rows: arguments.maxrows.unwrap_or(if terminal {
                TERMINAL_ROWS
            } else {
                usize::MAX
            }),
            times: terminal && !arguments.quiet,
            counts: terminal && !arguments.quiet,
            pages: false,
            stdout: Stdout {
                inner: io::BufWriter::new(io::stdout()),
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

    /// From now on results are printed so.
    pub fn set_format(&mut self, format: Format) {
        self.format = format;
    }

    /// From now on so many rows of a table are shown.
    pub fn set_max_rows(&mut self, rows: usize) {
        self.max_rows = rows;
    }

    /// From now on the time of a statement is told, or not.
    pub fn set_times(&mut self, times: bool) {
        self.times = times;
    }

    /// Whether rows are printed as they come, rather than all at the end.
    pub fn is_streaming(&self) -> bool {
        !matches!(self.format, Format::Automatic | Format::Table)
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
        let max_rows = if all_rows { usize::MAX } else { self.max_rows };
        let out = &mut self.stdout;
        // A NULL that is left out looks like a column that is missing.
        let json = arrow::json::WriterBuilder::new().with_explicit_nulls(true);
        let mut sink = match self.format {
            Format::Automatic | Format::Table => Sink::Table {
                rows: Vec::new(),
                max_rows,
                pages: self.pages,
                out,
            },
            Format::Csv => Sink::Delimited(Box::new(
                WriterBuilder::new().with_delimiter(b',').build(out),
            )),
            Format::Tsv => Sink::Delimited(Box::new(
                WriterBuilder::new().with_delimiter(b'\t').build(out),
            )),
            Format::Json => Sink::Json(json.build(out)),
            Format::NdJson => Sink::JsonLines(json.build(out)),
        };
        sink.write(&RecordBatch::new_empty(schema.clone()), 0)?;
        let mut rows = 0;
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            sink.write(&batch, rows)?;
            rows += batch.num_rows();
        }
        sink.finish(schema, options)?;
        self.stdout
            .flush()
            .map_err(|e| crate::Error::io("printing the result", e))?;
        Ok(rows)
    }

    /// Tells how many rows a statement gave, and its time, on a terminal.
    pub fn summary(&self, rows: usize, time: Duration) {
        let mut parts = Vec::new();
        if self.counts {
            parts.push(format!("{rows} row{}", if rows == 1 { "" } else { "s" }));
            if rows > self.max_rows && !self.is_streaming() {
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

/// One result on its way out.
enum Sink<'a> {
    Table {
        rows: Vec<RecordBatch>,
        max_rows: usize,
        pages: bool,
        out: &'a mut Stdout,
    },
    Delimited(Box<arrow::csv::Writer<&'a mut Stdout>>),
    Json(JsonWriter<&'a mut Stdout, JsonArray>),
    JsonLines(JsonWriter<&'a mut Stdout, LineDelimited>),
}

impl Sink<'_> {
    /// Takes a batch that has `before` rows before it.
    fn write(&mut self, batch: &RecordBatch, before: usize) -> Result<()> {
        match self {
            // One row more than is shown tells the printer that there are more.
            Self::Table { rows, max_rows, .. } if batch.num_rows() > 0 && before <= *max_rows => {
                rows.push(batch.clone());
            }
            Self::Table { .. } => {}
            // An empty batch still makes the header.
            Self::Delimited(writer) => writer.write(batch)?,
            Self::Json(writer) => writer.write(batch)?,
            Self::JsonLines(writer) => writer.write(batch)?,
        }
        Ok(())
    }

    fn finish(self, schema: SchemaRef, options: &FormatOptions) -> Result<()> {
        match self {
            Self::Table {
                rows,
                max_rows,
                pages,
                out,
            } => {
                let text = table(schema, &rows, max_rows, options)?;
                let printing = |e| crate::Error::io("printing the result", e);
                if !pages || !pager::show(&escape::shown(&text)).map_err(printing)? {
                    out.write_all(text.as_bytes()).map_err(printing)?;
                }
            }
            Self::Delimited(_) => {}
            Self::Json(mut writer) => {
                writer.finish()?;
                writeln!(writer.into_inner())
                    .map_err(|e| crate::Error::io("printing the result", e))?;
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
    let mut text = pretty_format_batches_with_options(&shown, &options.try_into()?)?.to_string();
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

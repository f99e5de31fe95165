//! Layouts that arrow has no writer for.

use std::io::{self, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, ArrayFormatterFactory, FormatOptions};
use comfy_table::{CellAlignment, Table, presets};
use flashmesh_planner::IntervalTexts;

use super::literal::literal;
use crate::{Error, Result};

/// What stands in each cell of a row that says that there are more.
const MORE: &str = "…";

/// A layout of which a row is written as it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Layout {
    /// A line for each value.
    Line,
    /// A table of HTML.
    Html,
    /// INSERT statements into the table of that name, each of so many rows at most.
    Insert(String, usize),
}

/// A statement that is longer takes no more rows.
const STATEMENT_BYTES: usize = 1 << 20;

/// How lines are drawn around a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    Box,
    Markdown,
}

fn formatters<'a>(
    batch: &'a RecordBatch,
    options: &FormatOptions<'a>,
) -> Result<Vec<ArrayFormatter<'a>>> {
    let options = &options.clone().with_formatter_factory(Some(&IntervalTexts));
    let formatters = batch.columns().iter().map(|column| {
        let own = IntervalTexts.create_array_formatter(column.as_ref(), options, None)?;
        own.map_or_else(|| ArrayFormatter::try_new(column.as_ref(), options), Ok)
    });
    Ok(formatters.collect::<std::result::Result<_, ArrowError>>()?)
}

fn printing(error: io::Error) -> Error {
    Error::io("printing the result", error)
}

impl Layout {
    /// Writes what stands before the rows.
    pub fn begin(&self, schema: &Schema, out: &mut impl Write) -> Result<()> {
        let Self::Html = self else { return Ok(()) };
        let names = schema.fields().iter();
        let names = names.map(|field| format!("<th>{}</th>", html(field.name())));
        let names: String = names.collect();
        writeln!(out, "<table>\n<tr>{names}</tr>").map_err(printing)
    }

    /// Writes rows, before which `before` others were written.
    ///
    /// # Errors
    /// [`Error::Usage`] for a value that has no literal, where statements are written.
    pub fn rows(
        &self,
        batch: &RecordBatch,
        before: usize,
        options: &FormatOptions<'_>,
        out: &mut impl Write,
    ) -> Result<()> {
        let schema = batch.schema();
        let formatters = formatters(batch, options)?;
        let widths = schema.fields().iter().map(|field| width(field.name()));
        let width_of_names = widths.max().unwrap_or(0);
        let mut statement = Rows::default();
        for row in 0..batch.num_rows() {
            match self {
                Self::Line => {
                    if before + row > 0 {
                        writeln!(out).map_err(printing)?;
                    }
                    for (field, value) in schema.fields().iter().zip(&formatters) {
                        let name = field.name();
                        let indent = " ".repeat(width_of_names - width(name));
                        writeln!(out, "{indent}{name} = {}", value.value(row)).map_err(printing)?;
                    }
                }
                Self::Html => {
                    let cells = formatters.iter();
                    let cells = cells
                        .map(|value| format!("<td>{}</td>", html(&value.value(row).to_string())));
                    let cells: String = cells.collect();
                    writeln!(out, "<tr>{cells}</tr>").map_err(printing)?;
                }
                Self::Insert(table, most) => {
                    let columns = batch.columns().iter().zip(schema.fields());
                    let values = columns.map(|(array, field)| {
                        literal(array.as_ref(), row)?.ok_or_else(|| {
                            Error::usage(format!(
                                "column '{}' is {}, of which there is no literal; leave it out, or \
                                 write it with COPY … TO 'file.parquet'",
                                field.name(),
                                field.data_type()
                            ))
                        })
                    });
                    let values = values.collect::<Result<Vec<_>>>()?.join(", ");
                    statement.add(&values);
                    let is_full =
                        statement.count >= *most || statement.text.len() > STATEMENT_BYTES;
                    if is_full || row + 1 == batch.num_rows() {
                        let text = std::mem::take(&mut statement).text;
                        writeln!(out, "INSERT INTO {table} VALUES {text};").map_err(printing)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes what stands behind the rows.
    pub fn end(&self, out: &mut impl Write) -> Result<()> {
        match self {
            Self::Html => writeln!(out, "</table>").map_err(printing),
            _ => Ok(()),
        }
    }
}

/// The rows of an INSERT.
#[derive(Default)]
struct Rows {
    text: String,
    count: usize,
}

impl Rows {
    fn add(&mut self, values: &str) {
        if self.count > 0 {
            self.text.push_str(",\n");
        }
        self.text.push('(');
        self.text.push_str(values);
        self.text.push(')');
        self.count += 1;
    }
}

fn width(text: &str) -> usize {
    console::measure_text_width(text)
}

/// The first `max_rows` of `batches` in a frame; where there are more, a row of dots says so.
pub(super) fn framed(
    frame: Frame,
    schema: &Schema,
    batches: &[RecordBatch],
    max_rows: usize,
    types: bool,
    options: &FormatOptions<'_>,
) -> Result<String> {
    let mut table = Table::new();
    table.load_preset(match frame {
        Frame::Box => presets::UTF8_FULL_CONDENSED,
        Frame::Markdown => presets::ASCII_MARKDOWN,
    });
    let cell = |text: String| match frame {
        Frame::Box => text,
        // A cell is one line, and ends with a bar.
        Frame::Markdown => text.replace('|', "\\|").replace('\n', "<br>"),
    };
    let names = schema.fields().iter().map(|field| match (types, frame) {
        (false, _) => cell(field.name().clone()),
        (true, Frame::Box) => format!("{}\n{}", field.name(), field.data_type()),
        (true, Frame::Markdown) => cell(format!("{} ({})", field.name(), field.data_type())),
    });
    table.set_header(names);
    let mut left = max_rows;
    for batch in batches {
        let formatters = formatters(batch, options)?;
        for row in 0..batch.num_rows().min(left) {
            table.add_row(formatters.iter().map(|f| cell(f.value(row).to_string())));
        }
        left -= batch.num_rows().min(left);
    }
    if batches.iter().map(RecordBatch::num_rows).sum::<usize>() > max_rows {
        table.add_row(schema.fields().iter().map(|_| MORE));
    }
    for (column, field) in table.column_iter_mut().zip(schema.fields()) {
        if field.data_type().is_numeric() {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Ok(format!("{table}\n"))
}

/// A text in HTML, in which it stands for itself.
fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            char => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int32Array, StringArray};

    use super::*;

    fn batch() -> RecordBatch {
        let columns: [(&str, ArrayRef); 3] = [
            ("n", Arc::new(Int32Array::from(vec![Some(1), None]))),
            ("a|b", Arc::new(StringArray::from(vec!["it's", "<x>\n|"]))),
            ("f", Arc::new(Float64Array::from(vec![1.5, f64::NAN]))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap()
    }

    fn written(layout: &Layout, batch: &RecordBatch) -> String {
        let mut out = Vec::new();
        let options = FormatOptions::default().with_null("NULL");
        layout.begin(&batch.schema(), &mut out).unwrap();
        layout.rows(batch, 0, &options, &mut out).unwrap();
        layout.end(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn layouts_are_written() {
        let batch = batch();
        assert_eq!(
            written(&Layout::Line, &batch),
            "  n = 1\na|b = it's\n  f = 1.5\n\n  n = NULL\na|b = <x>\n|\n  f = NaN\n"
        );
        assert_eq!(
            written(&Layout::Html, &batch),
            "<table>\n<tr><th>n</th><th>a|b</th><th>f</th></tr>\n\
             <tr><td>1</td><td>it&#39;s</td><td>1.5</td></tr>\n\
             <tr><td>NULL</td><td>&lt;x&gt;\n|</td><td>NaN</td></tr>\n</table>\n"
        );
        assert_eq!(
            written(&Layout::Insert("t".into(), 1000), &batch),
            "INSERT INTO t VALUES (1, 'it''s', 1.5),\n(NULL, '<x>\n|', CAST('NaN' AS DOUBLE));\n"
        );
        assert_eq!(
            written(&Layout::Insert("t".into(), 1), &batch),
            "INSERT INTO t VALUES (1, 'it''s', 1.5);\n\
             INSERT INTO t VALUES (NULL, '<x>\n|', CAST('NaN' AS DOUBLE));\n"
        );
    }

    #[test]
    fn frames_have_names_types_and_dots() {
        let batch = batch();
        let (schema, options) = (batch.schema(), FormatOptions::default().with_null("NULL"));
        let draw = |frame, rows, types| {
            framed(
                frame,
                &schema,
                std::slice::from_ref(&batch),
                rows,
                types,
                &options,
            )
            .unwrap()
        };
        let markdown = draw(Frame::Markdown, 9, false);
        let lines: Vec<_> = markdown.lines().collect();
        assert_eq!(lines.len(), 4, "{markdown}");
        assert!(
            lines[0].contains("a\\|b") && lines[3].contains("<x><br>\\|"),
            "{markdown}"
        );
        let boxed = draw(Frame::Box, 1, true);
        assert!(boxed.contains("Int32") && boxed.contains("┌"), "{boxed}");
        assert!(boxed.contains("it's") && !boxed.contains("<x>") && boxed.contains(MORE));
    }
}

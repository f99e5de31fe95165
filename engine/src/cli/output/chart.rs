//! Results as charts of characters.

use std::fmt::Write as _;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Float64Type, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use console::{measure_text_width, truncate_str};

use crate::{Error, Result};

/// Bars that a chart has at most: what is longer is better drawn as a line, or grouped.
const BARS_MAX: usize = 100;
/// Columns that labels may take.
const LABEL_WIDTH: usize = 30;
/// Lines of a line chart, of four dots each.
const LINES: usize = 16;
/// Eighths of a block, from one to seven.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
/// The dots of a braille character, by column and then by row (Unicode 15, chapter 21.1).
const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// The kinds of charts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Chart {
    /// A bar for each row: the first column says what it is of, the last how long it is.
    Bar,
    /// A point for each row, joined to the next: the first column is x, the last y.
    Line,
}

/// Draws a result `width` columns wide.
///
/// # Errors
/// [`Error::Usage`] where it has no numbers, or too many rows.
pub(super) fn draw(
    chart: Chart,
    schema: &Schema,
    batches: &[RecordBatch],
    width: usize,
) -> Result<String> {
    let rows = concat_batches(&schema.clone().into(), batches)?;
    let last = schema.fields().len().saturating_sub(1);
    let values = numbers(&rows, last)?;
    match chart {
        Chart::Bar if values.len() > BARS_MAX => Err(Error::usage(format!(
            "a chart has {BARS_MAX} bars at most, and these are {}; add LIMIT {BARS_MAX}, group them, or \
             draw .chart line",
            values.len()
        ))),
        Chart::Bar => Ok(bars(&labels(&rows, last)?, &values, width)),
        Chart::Line => {
            let xs = match last {
                0 => (0..values.len()).map(|row| Some(row as f64)).collect(),
                _ => numbers(&rows, 0)?,
            };
            let points = xs.into_iter().zip(values);
            let points: Vec<_> = points.filter_map(|(x, y)| Some((x?, y?))).collect();
            Ok(line(&points, width))
        }
    }
}

/// The values of a column that are finite numbers, or times.
fn numbers(rows: &RecordBatch, column: usize) -> Result<Vec<Option<f64>>> {
    let field = rows.schema();
    let wrong = || {
        let name = field.fields().get(column).map_or("", |field| field.name());
        Error::usage(format!(
            "a chart needs numbers, and column '{name}' has none; write e.g. .chart SELECT month, \
             sum(amount) FROM sales GROUP BY month ORDER BY month"
        ))
    };
    let array = rows.columns().get(column).ok_or_else(wrong)?;
    let number = match array.data_type() {
        DataType::Date32 => cast(array, &DataType::Int32)?,
        time if time.is_temporal() => cast(array, &DataType::Int64).map_err(|_| wrong())?,
        number if number.is_numeric() => array.clone(),
        _ => return Err(wrong()),
    };
    let number = cast(&number, &DataType::Float64)?;
    let number = number.as_primitive::<Float64Type>();
    let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
    Ok(number.iter().map(finite).collect())
}

/// What the bars are of: all columns before the last.
fn labels(rows: &RecordBatch, last: usize) -> Result<Vec<String>> {
    let options = FormatOptions::default().with_null("NULL");
    let columns = rows.columns()[..last].iter();
    let columns = columns.map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
    let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
    let label = |row| {
        let words = columns.iter().map(|column| column.value(row).to_string());
        words
            .collect::<Vec<_>>()
            .join(" ")
            .replace(['\n', '\t'], " ")
    };
    Ok((0..rows.num_rows()).map(label).collect())
}

fn bars(labels: &[String], values: &[Option<f64>], width: usize) -> String {
    let label_width = labels.iter().map(|label| measure_text_width(label));
    let label_width = label_width.max().unwrap_or(0).min(LABEL_WIDTH);
    let texts: Vec<_> = values
        .iter()
        .map(|value| value.map_or("NULL".into(), number))
        .collect();
    let number_width = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    let room = width.saturating_sub(label_width + number_width + 4).max(8);
    let known = values.iter().flatten();
    let low = known.clone().fold(0.0_f64, |low, value| low.min(*value));
    let high = known.fold(0.0_f64, |high, value| high.max(*value));
    let scale = room as f64 / (high - low).max(f64::MIN_POSITIVE);
    let mut chart = String::new();
    for ((label, value), text) in labels.iter().zip(values).zip(&texts) {
        let label = truncate_str(label, LABEL_WIDTH, "…");
        let indent = " ".repeat(label_width - measure_text_width(&label));
        // A negative bar ends where the others begin.
        let value = value.unwrap_or(0.0);
        let before = ((value.min(0.0) - low) * scale).round();
        let bar = bar(value.abs() * scale);
        let line = format!(
            "{label}{indent}  {text:>number_width$}  {}{bar}",
            " ".repeat(before as usize)
        );
        let _ = writeln!(chart, "{}", line.trim_end());
    }
    chart
}

/// A bar of that many columns.
fn bar(columns: f64) -> String {
    let eighths = (columns * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    bar.extend((eighths % 8).checked_sub(1).map(|part| EIGHTHS[part]));
    bar
}

fn number(value: f64) -> String {
    match value.fract() == 0.0 && value.abs() < 1e15 {
        true => format!("{value:.0}"),
        false if value.abs() >= 1e15 || value.abs() < 1e-3 => format!("{value:.3e}"),
        false => format!("{value:.3}"),
    }
}

fn line(points: &[(f64, f64)], width: usize) -> String {
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        })
    };
    if points.is_empty() {
        return "no points\n".into();
    }
    let (left, right) = range(&mut points.iter().map(|(x, _)| *x));
    let (low, high) = range(&mut points.iter().map(|(_, y)| *y));
    let (top, bottom) = (number(high), number(low));
    let margin = top.len().max(bottom.len());
    let columns = width.saturating_sub(margin + 3).max(8);
    let (dots_wide, dots_high) = (columns * 2, LINES * 4);
    let place = |value: f64, low: f64, high: f64, dots: usize| {
        let part = if high > low {
            (value - low) / (high - low)
        } else {
            0.5
        };
        (part * (dots - 1) as f64).round() as usize
    };
    let mut grid = vec![vec![0_u32; columns]; LINES];
    let mut set = |x: usize, y: usize| {
        let row = dots_high - 1 - y;
        grid[row / 4][x / 2] |= DOTS[x % 2][row % 4];
    };
    let dots = points.iter();
    let dots = dots.map(|(x, y)| {
        (
            place(*x, left, right, dots_wide),
            place(*y, low, high, dots_high),
        )
    });
    let mut before: Option<(usize, usize)> = None;
    for (x, y) in dots {
        let (from_x, from_y) = before.unwrap_or((x, y));
        let steps = x.abs_diff(from_x).max(y.abs_diff(from_y)).max(1);
        for step in 0..=steps {
            let between = |from: usize, to: usize| {
                let part = step as f64 / steps as f64;
                (from as f64 + (to as f64 - from as f64) * part).round() as usize
            };
            set(between(from_x, x), between(from_y, y));
        }
        before = Some((x, y));
    }
    let mut chart = String::new();
    for (number, row) in grid.iter().enumerate() {
        let label = match number {
            0 => top.as_str(),
            _ if number == LINES - 1 => bottom.as_str(),
            _ => "",
        };
        let dots = row.iter().filter_map(|dots| char::from_u32(0x2800 + dots));
        let dots: String = dots
            .map(|dots| if dots == '\u{2800}' { ' ' } else { dots })
            .collect();
        let line = format!("{label:>margin$} │{dots}");
        let _ = writeln!(chart, "{}", line.trim_end());
    }
    chart
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};

    use super::*;

    fn rows(labels: Vec<&str>, values: Vec<Option<i64>>) -> RecordBatch {
        let columns: [(&str, ArrayRef); 2] = [
            ("label", Arc::new(StringArray::from(labels))),
            ("value", Arc::new(Int64Array::from(values))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap()
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let batch = rows(
            vec!["a", "bb", "c", "d"],
            vec![Some(16), Some(5), None, Some(0)],
        );
        let chart = draw(Chart::Bar, &batch.schema(), &[batch], 26).unwrap();
        assert_eq!(
            chart,
            "a     16  ████████████████\nbb     5  █████\nc   NULL\nd      0\n"
        );
        let batch = rows(vec!["a", "b"], vec![Some(8), Some(-8)]);
        let chart = draw(Chart::Bar, &batch.schema(), &[batch], 23).unwrap();
        assert_eq!(chart, "a   8          ████████\nb  -8  ████████\n");
        assert_eq!(
            (bar(0.0), bar(0.5), bar(1.125)),
            ("".into(), "▌".into(), "█▏".into())
        );
    }

    #[test]
    fn a_line_goes_from_corner_to_corner() {
        let columns: [(&str, ArrayRef); 1] = [(
            "y",
            Arc::new(Float64Array::from_iter_values([0.0, f64::NAN, 1.5])),
        )];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let chart = draw(Chart::Line, &batch.schema(), &[batch], 30).unwrap();
        let lines: Vec<_> = chart.lines().collect();
        assert_eq!(lines.len(), LINES);
        let columns = lines.iter().map(|line| measure_text_width(line));
        let (top, bottom) = (lines[0], lines[LINES - 1]);
        assert!(columns.max() <= Some(30), "{chart}");
        // From the lower left to the upper right, which is the last column.
        assert!(top.starts_with("1.500 │ "), "{chart}");
        assert!(measure_text_width(top) >= 29, "{chart}");
        assert!(bottom.starts_with("    0 │"), "{chart}");
        let first = bottom.chars().nth(7);
        assert!(first.is_some_and(|dots| dots > '\u{2800}'), "{chart}");
        assert_eq!(line(&[], 30), "no points\n");
        assert_eq!(line(&[(1.0, 1.0)], 30).lines().count(), LINES);
    }

    #[test]
    fn what_can_not_be_drawn_says_why() {
        let batch = rows(vec!["a"; 101], vec![Some(1); 101]);
        let error = draw(
            Chart::Bar,
            &batch.schema(),
            std::slice::from_ref(&batch),
            80,
        )
        .unwrap_err();
        assert!(error.to_string().contains("LIMIT 100"), "{error}");
        let labels = batch.project(&[0]).unwrap();
        let error = draw(Chart::Bar, &labels.schema(), &[labels], 80).unwrap_err();
        assert!(error.to_string().contains("column 'label'"), "{error}");
    }
}

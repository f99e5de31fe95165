//! The tables of docs/figures and docs/model.md.

use std::fmt::Write;

use super::{Claim, Figure, Plot, Row};
use crate::model::parameters::Parameters;

/// A number with three or four digits that count.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 || v == 0.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

fn claim(row: &Row) -> String {
    match row.claim {
        Claim::About(value) => number(value),
        Claim::AtMost(value) => format!("≤ {}", number(value)),
        Claim::AtLeast(value) => format!("≥ {}", number(value)),
    }
}

fn difference(row: &Row) -> String {
    // Adding zero takes the sign from what is rounded to it.
    let rounded = |off: f64| (off * 10.0).round() / 10.0 + 0.0;
    let off = row
        .difference()
        .map_or("holds".into(), |off| format!("{:+.1} %", rounded(off)));
    if row.fits() {
        off
    } else {
        format!("**{off}**")
    }
}

fn line(row: &Row) -> String {
    let unit = if row.unit.is_empty() {
        String::new()
    } else {
        format!(" {}", row.unit)
    };
    format!(
        "{} | {}{unit} | {}{unit} | {} | {} |",
        row.what,
        claim(row),
        number(row.modelled),
        difference(row),
        row.proof.name(),
    )
}

/// All comparisons in one table.
fn summary(figures: &[Figure]) -> String {
    let mut text =
        String::from("| | | paper | modelled | difference | proof |\n|---|---|---|---|---|---|\n");
    for figure in figures {
        for row in &figure.rows {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "| [{}](figures/{}.svg) | {}",
                figure.of,
                figure.id,
                line(row)
            );
        }
        if figure.rows.is_empty() {
            let _ = writeln!(
                text,
                "| [{}](figures/{}.svg) | nothing to compare with but the shape as described | | | | |",
                figure.of, figure.id
            );
        }
    }
    let rows: Vec<&Row> = figures.iter().flat_map(|figure| &figure.rows).collect();
    let outcomes: Vec<_> = rows
        .iter()
        .filter(|row| row.proof == super::Proof::Outcome)
        .collect();
    let fitting = outcomes.iter().filter(|row| row.fits()).count();
    let all = rows.iter().filter(|row| row.fits()).count();
    let _ = writeln!(
        text,
        "\n{all} of {} rows fit within 10 % (bounds: hold); of the {} marked *outcome*, {fitting}.",
        rows.len(),
        outcomes.len(),
    );
    text
}

/// Figure after figure: its plot, its table, what went in, and what to know of it.
fn results_page(p: &Parameters, figures: &[Figure]) -> String {
    let table = p.table();
    let mut text = String::from(
        "# Figures, modelled\n\n\
         Made by `cargo xtask figures`; a test fails where this page or a plot differs from what the model gives. \
         Everything here is modelled, nothing measured: [docs/model.md](../model.md) says how. \
         Rings in the plots are values that the paper's text states. *Input*: the number, or its parts, went in; \
         *fitted*: a parameter was chosen to give it; *outcome*: the model predicts it. In bold what is more than 10 % off.\n",
    );
    for figure in figures {
        let _ = writeln!(
            text,
            "\n## {}\n\n{} (modelled)\n\n![{}, modelled]({}.svg)\n",
            figure.of, figure.title, figure.title, figure.id,
        );
        if figure.rows.is_empty() {
            text.push_str("The text states no numbers: there is nothing to compare with but the shape as described.\n");
        } else {
            text.push_str("| | section | paper | modelled | difference | proof |\n|---|---|---|---|---|---|\n");
        }
        for row in &figure.rows {
            let shown = line(row);
            let (what, rest) = shown.split_once(" | ").unwrap_or_default();
            let _ = writeln!(text, "| {what} | {} | {rest}", row.section);
        }
        let from: Vec<_> = figure
            .parameters
            .iter()
            .filter_map(|name| table.iter().find(|parameter| parameter.name == *name))
            .map(|of| format!("`{}` ({})", of.name, of.origin.name()))
            .collect();
        let _ = writeln!(
            text,
            "\nFrom these [parameters](parameters.md): {}.",
            from.join(", ")
        );
        if !figure.notes.is_empty() {
            let _ = writeln!(text, "\n{}", figure.notes);
        }
        values(&figure.plot, &mut text);
    }
    text
}

/// What is drawn, as a table.
fn values(plot: &Plot, text: &mut String) {
    let _ = write!(text, "\nModelled, in {}:\n\n| {} |", plot.y, plot.x);
    for series in &plot.series {
        let _ = write!(text, " {} |", series.name);
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(plot.series.len()));
    let points = plot.series.iter().flat_map(|series| &series.points);
    let mut xs: Vec<f64> = points.map(|(x, _)| *x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    for x in xs {
        let _ = match plot.labels.get(x as usize) {
            Some(label) => write!(text, "| {label} |"),
            None => write!(text, "| {} |", number(x)),
        };
        for series in &plot.series {
            let found = series.points.iter().find(|point| point.0 == x);
            let _ = write!(text, " {} |", found.map_or(String::new(), |p| number(p.1)));
        }
        text.push('\n');
    }
}

/// Every parameter with its source.
fn parameters_page(p: &Parameters) -> String {
    let mut text = String::from(
        "# Parameters of the model\n\n\
         Made by `cargo xtask figures` from `cluster/src/model/parameters.rs`. *Stated*: a paper has it; *derived*: it \
         follows from what papers state; *calibrated*: chosen for one figure, then used for all; *assumed*: no paper has it.\n\n\
         | | value | | source |\n|---|---|---|---|\n",
    );
    for parameter in p.table() {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            parameter.name,
            format!("{} {}", number(parameter.value), parameter.unit).trim_end(),
            parameter.origin.name(),
            parameter.source,
        );
    }
    text
}

/// The lines around the table in docs/model.md.
const MARKS: [&str; 2] = [
    "<!-- made by cargo xtask figures -->\n",
    "<!-- up to here -->\n",
];

/// The files below docs that are made, with what is to be in them: plots, pages, and docs/model.md
/// with its table in place of the one in `model`.
///
/// # Errors
/// Where `model` does not have the lines between which the table stands.
pub fn committed(
    p: &Parameters,
    figures: &[Figure],
    model: &str,
) -> Result<Vec<(String, String)>, String> {
    let [begin, end] = MARKS;
    let missing = || format!("model.md lacks the lines {begin:?} and {end:?} around its table");
    let (before, rest) = model.split_once(begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(end).ok_or_else(missing)?;
    let table = summary(figures);
    let mut files = vec![
        (
            "model.md".into(),
            format!("{before}{begin}\n{table}\n{end}{after}"),
        ),
        ("figures/README.md".into(), results_page(p, figures)),
        ("figures/parameters.md".into(), parameters_page(p)),
    ];
    files.extend(
        figures
            .iter()
            .map(|figure| (format!("figures/{}.svg", figure.id), super::svg(figure))),
    );
    Ok(files)
}

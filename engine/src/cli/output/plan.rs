//! A plan as a tree that fits the terminal.

use std::fmt::Write as _;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use console::{Style, measure_text_width};

use crate::Result;
use crate::cli::escape::shown;

/// What the text of a plan indents an operator by, below the one that it is read by.
const INDENT: usize = 2;
/// Columns that details of an operator have at least, however deep it is.
const MIN_WIDTH: usize = 30;
/// The operator that runs in the store, and which of its details say what it does there.
const SCAN: &str = "FlashScanExec";
const PUSHED: &[&str] = &[
    "pushed",
    "group_by",
    "aggregate",
    "top_k",
    "nearest",
    "limit",
    "index",
    "runtime",
    "kernel",
];
const NOT_PUSHED: &str = "not_pushed";

/// What EXPLAIN gave, as trees: of a plain one the physical plan alone, of others all plans below
/// their names. What data could have brought into it commands no terminal.
pub(super) fn plans(rows: &[RecordBatch], width: usize, colours: bool) -> Result<String> {
    let mut plans = Vec::new();
    for batch in rows {
        let columns = batch.columns().iter();
        let texts = columns.map(|column| cast(column, &DataType::Utf8));
        let texts = texts.collect::<std::result::Result<Vec<_>, _>>()?;
        let [names, texts] = texts.as_slice() else {
            continue;
        };
        let pairs = names
            .as_string::<i32>()
            .iter()
            .zip(texts.as_string::<i32>());
        let text = |text: Option<&str>| text.unwrap_or_default().to_string();
        plans.extend(pairs.map(|(name, plan)| (text(name), text(plan))));
    }
    if let [(first, _), (second, _)] = plans.as_slice()
        && first == "logical_plan"
        && second == "physical_plan"
    {
        plans.remove(0);
    }
    let has_names = plans.len() > 1;
    let mut drawn = String::new();
    for (name, text) in plans {
        if has_names {
            let _ = writeln!(drawn, "── {} ──", shown(&name));
        }
        drawn += &tree(&shown(&text), width, colours);
        if !drawn.ends_with('\n') {
            drawn.push('\n');
        }
    }
    Ok(drawn)
}

/// An operator, with those that it reads.
#[derive(Debug)]
struct Operator<'a> {
    name: &'a str,
    details: Vec<&'a str>,
    inputs: Vec<Operator<'a>>,
}

/// The plan that `text` is, an operator a line as DataFusion writes it, as a tree of lines of `width`
/// columns. What runs in the store is green, what was kept from it yellow.
fn tree(text: &str, width: usize, colours: bool) -> String {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let drawn_already = |line: &str| line.trim_start().starts_with(['┌', '│']);
    if lines.clone().next().is_none_or(drawn_already) {
        return text.to_string();
    }
    let mut lines: Vec<_> = lines.by_ref().map(depth).collect();
    lines.reverse();
    let mut tree = String::new();
    while let Some(root) = operator(&mut lines) {
        let mut drawing = Drawing {
            width,
            colours,
            tree: &mut tree,
        };
        drawing.operator(&root, "", "");
    }
    tree
}

/// How deep the operator of a line is, and its line without the indent.
fn depth(line: &str) -> (usize, &str) {
    let operator = line.trim_start();
    ((line.len() - operator.len()) / INDENT, operator.trim_end())
}

/// Takes the next operator off the end, with all that are deeper.
fn operator<'a>(lines: &mut Vec<(usize, &'a str)>) -> Option<Operator<'a>> {
    let (depth, line) = lines.pop()?;
    let end = line.find([':', ',']).unwrap_or(line.len());
    let details = line[end..].trim_start_matches([':', ',']).trim_start();
    let mut inputs = Vec::new();
    while lines.last().is_some_and(|(deeper, _)| *deeper > depth) {
        inputs.extend(operator(lines));
    }
    Some(Operator {
        name: &line[..end],
        details: split(details),
        inputs,
    })
}

/// The details of an operator: pieces between commas that are in no brackets and quotes.
fn split(details: &str) -> Vec<&str> {
    let (mut pieces, mut start, mut open, mut is_quoted) = (Vec::new(), 0, 0_usize, false);
    for (at, char) in details.char_indices() {
        match char {
            '\'' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            ',' if open == 0 => {
                pieces.push(details[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(details[start..].trim());
    pieces.retain(|piece| !piece.is_empty() && *piece != "metrics=[]");
    pieces
}

struct Drawing<'a> {
    width: usize,
    colours: bool,
    tree: &'a mut String,
}

impl Drawing<'_> {
    fn styled(&self, text: &str, style: Style) -> String {
        style.force_styling(self.colours).apply_to(text).to_string()
    }

    /// Draws an operator: `first` stands before its name, `rest` before all below it.
    fn operator(&mut self, operator: &Operator<'_>, first: &str, rest: &str) {
        let name = self.styled(operator.name, Style::new().bold());
        let _ = writeln!(self.tree, "{first}{name}");
        let margin = match operator.inputs.is_empty() {
            true => format!("{rest}    "),
            false => format!("{rest}│   "),
        };
        let width = self
            .width
            .saturating_sub(measure_text_width(&margin))
            .max(MIN_WIDTH);
        let mut line = String::new();
        for detail in &operator.details {
            let style = style(operator.name, detail);
            let is_plain = style.is_none();
            let fits = measure_text_width(&line) + 2 + measure_text_width(detail) <= width;
            if is_plain && !line.is_empty() && fits {
                let _ = write!(line, ", {detail}");
                continue;
            }
            self.details(&margin, &std::mem::take(&mut line), width, None);
            match is_plain {
                true => line = (*detail).to_string(),
                false => self.details(&margin, detail, width, style),
            }
        }
        self.details(&margin, &line, width, None);
        let last = operator.inputs.len().saturating_sub(1);
        for (number, input) in operator.inputs.iter().enumerate() {
            let (corner, below) = match number == last {
                true => ("└─ ", "   "),
                false => ("├─ ", "│  "),
            };
            self.operator(input, &format!("{rest}{corner}"), &format!("{rest}{below}"));
        }
    }

    /// Writes details on as many lines as they need.
    fn details(&mut self, margin: &str, text: &str, width: usize, style: Option<Style>) {
        for line in wrapped(text, width) {
            let line = match &style {
                Some(style) => self.styled(line, style.clone()),
                None => line.to_string(),
            };
            let _ = writeln!(self.tree, "{margin}{line}");
        }
    }
}

fn style(operator: &str, detail: &str) -> Option<Style> {
    let name = detail.split('=').next().unwrap_or_default();
    match name {
        "metrics" => Some(Style::new().dim()),
        _ if operator != SCAN => None,
        NOT_PUSHED => Some(Style::new().yellow()),
        _ if PUSHED.contains(&name) => Some(Style::new().green()),
        _ => None,
    }
}

/// The pieces of a text that are `width` columns wide at most, cut behind a space where one is.
fn wrapped(text: &str, width: usize) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while measure_text_width(rest) > width {
        let (mut end, mut columns) = (0, 0);
        for (at, char) in rest.char_indices() {
            columns += measure_text_width(char.encode_utf8(&mut [0; 4]));
            if columns > width && at > 0 {
                break;
            }
            end = at + char.len_utf8();
        }
        let end = rest[..end].rfind(' ').map_or(end, |space| space + 1);
        lines.push(rest[..end].trim_end());
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "\
HashJoinExec: mode=CollectLeft, on=[(a@0, b@0)]
  ProjectionExec: expr=[a@0 as a]
    FlashScanExec: table=public.t, output=[a], pushed=[a > 3 AND note = 'x, [y'], not_pushed=[f(a) (volatile)]
  CoalescePartitionsExec, metrics=[]
    FlashScanExec: table=public.u, aggregate=[count(1)], metrics=[output_rows=1, pages=2]

";

    #[test]
    fn operators_stand_below_those_that_read_them() {
        assert_eq!(
            tree(PLAN, 60, false),
            "\
HashJoinExec
│   mode=CollectLeft, on=[(a@0, b@0)]
├─ ProjectionExec
│  │   expr=[a@0 as a]
│  └─ FlashScanExec
│         table=public.t, output=[a]
│         pushed=[a > 3 AND note = 'x, [y']
│         not_pushed=[f(a) (volatile)]
└─ CoalescePartitionsExec
   └─ FlashScanExec
          table=public.u
          aggregate=[count(1)]
          metrics=[output_rows=1, pages=2]
"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_nothing_is_lost() {
        let long = format!("FilterExec: predicate={}\n", "abc AND ".repeat(40));
        let plan = format!(
            "{long}  FlashScanExec: pushed=[{}]",
            "日本 = 1, ".repeat(30)
        );
        for width in [40, 60, 120] {
            let drawn = tree(&plan, width, false);
            for line in drawn.lines() {
                assert!(measure_text_width(line) <= width, "{width}: {line}");
            }
            let letters = |text: &str| {
                let letters = text.chars().filter(|c| !c.is_whitespace());
                letters
                    .filter(|c| !"│└─├:".contains(*c))
                    .collect::<String>()
            };
            assert_eq!(letters(&drawn), letters(&plan));
        }
    }

    #[test]
    fn what_runs_in_the_store_is_green_and_the_rest_of_it_yellow() {
        let drawn = tree(PLAN, 80, true);
        assert!(drawn.contains("\x1b[32mpushed=[a > 3"), "{drawn:?}");
        assert!(drawn.contains("\x1b[33mnot_pushed="), "{drawn:?}");
        assert!(!tree(PLAN, 80, false).contains('\x1b'));
        assert_eq!(tree("┌──┐\n│a │\n", 80, true), "┌──┐\n│a │\n");
        assert_eq!(tree("", 80, true), "");
    }
}

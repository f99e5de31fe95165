//! The lines that are for the shell itself: `.help`, `.tables`, ….

use super::catalog::Catalog;
use super::completion::{Completion, words};
use super::suggest;
use crate::cli::arguments::{Format, parse_rows};
use crate::cli::output::{Chart, FORMATS};

/// A command, understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Tables,
    /// Of all tables, or of one.
    Schema(Option<String>),
    Indexes,
    Timer(bool),
    Types(bool),
    /// Of INSERT statements also which table they are for.
    Mode(Format, Option<String>),
    MaxRows(usize),
    Read(String),
    /// A file for all results from now on; `None`: the terminal.
    Output(Option<String>),
    /// A file for the next statement's result.
    Once(String),
    /// A database in place of this one; `None`: a temporary one.
    Open(Option<String>),
    /// All tables and views, or one.
    Dump(Option<String>),
    Chart(Chart, String),
    Import {
        file: String,
        table: String,
    },
    Quit,
}

/// Name, arguments, what it does.
const COMMANDS: &[(&str, &str, &str)] = &[
    (".help", "", "this list"),
    (".tables", "", "tables and views"),
    (".schema", "[TABLE]", "columns and indexes"),
    (".indexes", "", "indexes"),
    (".timer", "on|off", "time of each statement"),
    (
        ".mode",
        "FORMAT [TABLE]",
        "how results are printed: automatic, table, box, line, markdown, html, insert (into TABLE), csv, tsv, json, ndjson",
    ),
    (".types", "on|off", "types of columns below their names"),
    (".maxrows", "N|inf", "rows shown of a table"),
    (
        ".output",
        "[FILE]",
        "write results to a file from now on, or to the terminal again",
    ),
    (".once", "FILE", "write the next result to a file"),
    (
        ".chart",
        "[bar|line] QUERY",
        "draw a query's result: first column what, last column how much",
    ),
    (".read", "FILE", "run the statements in a file"),
    (".open", "[DIR]", "another database, or a new temporary one"),
    (
        ".dump",
        "[TABLE]",
        "statements that make the tables and views anew, or one of them",
    ),
    (
        ".import",
        "FILE TABLE",
        "add the rows of a Parquet, CSV, JSON or Arrow file to a table, made if missing",
    ),
    (".quit", "", "leave; so does Ctrl-D"),
];

/// What people know from elsewhere.
const ALIASES: &[(&str, &str)] = &[
    ("help", ".help"),
    ("exit", ".quit"),
    ("quit", ".quit"),
    ("\\?", ".help"),
    ("\\h", ".help"),
    ("\\q", ".quit"),
    ("\\d", ".schema"),
    ("\\dt", ".tables"),
    ("\\di", ".indexes"),
    ("\\i", ".read"),
    ("\\o", ".output"),
    ("\\timing", ".timer"),
    (".exit", ".quit"),
    (".describe", ".schema"),
];

/// The text of `.help`.
pub(super) fn help() -> String {
    let mut text = String::from("A statement ends with a semicolon. Lines for the shell:\n\n");
    for (name, arguments, meaning) in COMMANDS {
        text += &format!("  {:<20} {meaning}\n", format!("{name} {arguments}"));
    }
    text += "\nTab completes, Ctrl-R searches the history, Ctrl-C stops a statement.";
    text
}

fn parse_switch(word: &str) -> Option<bool> {
    match word.to_lowercase().as_str() {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// A chart of a query, where a line asks for one: the query is as it was typed.
fn parse_chart(line: &str) -> Option<Result<Command, String>> {
    let line = line.trim().trim_end_matches(';').trim_end();
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if !name.eq_ignore_ascii_case(".chart") {
        return None;
    }
    let rest = rest.trim();
    let (kind, query) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let (chart, query) = match kind.to_lowercase().as_str() {
        "bar" => (Chart::Bar, query.trim()),
        "line" => (Chart::Line, query.trim()),
        _ => (Chart::Bar, rest),
    };
    Some(match query.is_empty() {
        true => Err("write .chart [bar|line] QUERY".into()),
        false => Ok(Command::Chart(chart, query.into())),
    })
}

/// Understands a line; the error says what to write.
pub(super) fn parse(line: &str) -> Result<Command, String> {
    if let Some(chart) = parse_chart(line) {
        return chart;
    }
    let arguments = split(line)?;
    let typed = arguments.first().map_or("", String::as_str).to_lowercase();
    let alias = ALIASES.iter().find(|(alias, _)| *alias == typed);
    let name = alias.map_or(typed.as_str(), |(_, name)| name);
    let Some((name, usage, _)) = COMMANDS.iter().find(|(known, ..)| *known == name) else {
        let known = COMMANDS.iter().map(|(name, ..)| *name);
        return Err(match suggest::nearest(&typed, known) {
            Some(meant) => format!("there is no command {typed}; did you mean {meant}?"),
            None => format!("there is no command {typed}; .help lists them"),
        });
    };
    let wrong = || format!("write {}", format!("{name} {usage}").trim_end());
    Ok(match (*name, &arguments[1..]) {
        (".help", []) => Command::Help,
        (".tables", []) => Command::Tables,
        (".schema", []) => Command::Schema(None),
        (".schema", [table]) => Command::Schema(Some(table.clone())),
        (".indexes", []) => Command::Indexes,
        (".timer", [switch]) => Command::Timer(parse_switch(switch).ok_or_else(wrong)?),
        (".types", [switch]) => Command::Types(parse_switch(switch).ok_or_else(wrong)?),
        (".mode", [format, table @ ..]) if table.len() <= 1 => {
            let formats = FORMATS.iter();
            let known = formats.clone().map(|(name, _)| *name);
            match formats
                .clone()
                .find(|(name, _)| name.eq_ignore_ascii_case(format))
            {
                Some((_, format)) if table.is_empty() || *format == Format::Insert => {
                    Command::Mode(*format, table.first().cloned())
                }
                Some(_) => return Err(wrong()),
                None => {
                    let names: Vec<_> = known.clone().collect();
                    let meant = suggest::nearest(format, known);
                    let meant = meant.map(|meant| format!("; did you mean {meant}?"));
                    return Err(format!(
                        "there is no format {format}, but {}{}",
                        names.join(", "),
                        meant.unwrap_or_default()
                    ));
                }
            }
        }
        (".maxrows", [rows]) => Command::MaxRows(parse_rows(rows)?),
        (".read", [file]) => Command::Read(file.clone()),
        (".output", []) => Command::Output(None),
        (".output", [file]) => Command::Output(Some(file.clone()).filter(|file| *file != "-")),
        (".once", [file]) => Command::Once(file.clone()),
        (".open", []) => Command::Open(None),
        (".open", [folder]) => Command::Open(Some(folder.clone())),
        (".dump", []) => Command::Dump(None),
        (".dump", [table]) => Command::Dump(Some(table.clone())),
        (".import", [file, table]) => Command::Import {
            file: file.clone(),
            table: table.clone(),
        },
        (".quit", []) => Command::Quit,
        _ => return Err(wrong()),
    })
}

/// The words of a line; one in quotes may hold spaces.
fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim().trim_end_matches(';').trim_end();
    while let Some(first) = rest.chars().next() {
        if matches!(first, '\'' | '"') {
            let Some(end) = rest[1..].find(first) else {
                return Err(format!("the quote {first} has no end"));
            };
            words.push(rest[1..=end].to_string());
            rest = rest[end + 2..].trim_start();
        } else {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            words.push(rest[..end].to_string());
            rest = rest[end..].trim_start();
        }
    }
    Ok(words)
}

/// What may come at the end of `line`, which starts at the byte `offset` of the input.
pub(super) fn complete(line: &str, offset: usize, catalog: &Catalog) -> Completion {
    let start = line.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let (typed, before) = (&line[start..], line[..start].trim());
    let mut before = before.split_whitespace();
    let offered = |words_: Vec<String>| words(offset + start, typed, words_);
    let tables = || {
        let tables = catalog.tables.iter();
        tables
            .map(|table| catalog.shown(&table.schema, &table.name))
            .collect()
    };
    let Some(command) = before.next() else {
        return offered(COMMANDS.iter().map(|(name, ..)| name.to_string()).collect());
    };
    let command = command.to_lowercase();
    let alias = ALIASES.iter().find(|(alias, _)| *alias == command);
    match (
        alias.map_or(command.as_str(), |(_, name)| name),
        before.count(),
    ) {
        (".schema" | ".dump", 0) | (".import", 1) => offered(tables()),
        (".chart", 0) => offered(vec!["bar".into(), "line".into(), "SELECT".into()]),
        (".timer" | ".types", 0) => offered(vec!["on".into(), "off".into()]),
        (".mode", 0) => offered(FORMATS.iter().map(|(name, _)| name.to_string()).collect()),
        (".read" | ".import" | ".output" | ".once" | ".open", 0) => Completion::File,
        _ => offered(vec![]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_understood() {
        for (line, command) in [
            (".help", Command::Help),
            ("\\?", Command::Help),
            (".QUIT;", Command::Quit),
            ("exit", Command::Quit),
            ("\\d t", Command::Schema(Some("t".into()))),
            (".timer ON", Command::Timer(true)),
            (".mode NDJSON", Command::Mode(Format::NdJson, None)),
            (
                ".mode insert t",
                Command::Mode(Format::Insert, Some("t".into())),
            ),
            (".types on", Command::Types(true)),
            (".output", Command::Output(None)),
            (".output -", Command::Output(None)),
            (".once 'a b.csv'", Command::Once("a b.csv".into())),
            (".open", Command::Open(None)),
            (".dump t", Command::Dump(Some("t".into()))),
            (
                ".chart LINE SELECT 'a  b', 1;",
                Command::Chart(Chart::Line, "SELECT 'a  b', 1".into()),
            ),
            (
                ".chart select 1",
                Command::Chart(Chart::Bar, "select 1".into()),
            ),
            (".maxrows inf", Command::MaxRows(usize::MAX)),
            (".read 'a file.sql'", Command::Read("a file.sql".into())),
            (
                ".import data.csv  t",
                Command::Import {
                    file: "data.csv".into(),
                    table: "t".into(),
                },
            ),
        ] {
            assert_eq!(parse(line), Ok(command), "{line}");
        }
    }

    #[test]
    fn wrong_commands_say_what_is_right() {
        for (line, part) in [
            (".tabels", "did you mean .tables?"),
            (".xyz", ".help lists them"),
            (".timer", "write .timer on|off"),
            (".timer perhaps", "write .timer on|off"),
            (".mode cvs", "did you mean csv?"),
            (".maxrows few", "a number"),
            (".mode csv t", "write .mode FORMAT [TABLE]"),
            (".chart", "write .chart [bar|line] QUERY"),
            (".chart bar", "write .chart [bar|line] QUERY"),
            (".once", "write .once FILE"),
            (".read 'x", "no end"),
            (".import x", "write .import FILE TABLE"),
            (".help me", "write .help"),
        ] {
            let message = parse(line).unwrap_err();
            assert!(message.contains(part), "{line}: {message}");
        }
    }

    #[test]
    fn every_command_and_alias_is_known() {
        for (name, ..) in COMMANDS {
            assert!(help().contains(name));
            assert!(
                !parse(name).is_err_and(|e| e.contains("no command")),
                "{name}"
            );
        }
        for (alias, _) in ALIASES {
            assert!(
                !parse(alias).is_err_and(|e| e.contains("no command")),
                "{alias}"
            );
        }
    }
}

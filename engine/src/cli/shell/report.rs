//! Errors with the place in the statement, and with the name that may have been meant.

use std::fmt::Write as _;

use crate::Error;
use crate::accounts::redacted;
use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use flashmesh_storage::StorageError;

use super::catalog::Catalog;
use super::keywords::KEYWORDS;
use super::lex::{Kind, Token, tokens};
use super::suggest;

/// Characters of a long line that are shown before the place and from it on.
const SHOWN_BEFORE: usize = 50;
const SHOWN_BEHIND: usize = 40;

/// A place in a text: line and column count from 1, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    line: usize,
    column: usize,
    /// Characters from there on that are meant.
    width: usize,
}

/// A name that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unknown {
    Table(String),
    Index(String),
    Column(String, Vec<String>),
    Function(String),
    /// A word where the parser expected another.
    Word(String),
}

/// Whether an error is about a name that is not known, so that [`report`] may know a better one.
pub(super) fn is_of_name(error: &Error) -> bool {
    unknown(error, &error.to_string()).is_some()
}

/// What to tell of an error: its message, the line of `sql` with a caret below the place if that
/// is known, and the known name nearest to one that is not. So many `lines` stand before `sql`.
pub(super) fn report(error: &Error, sql: &str, lines: usize, catalog: &Catalog) -> String {
    let message = error.to_string();
    let unknown = unknown(error, &message);
    let place = place_of(error, &message).or_else(|| {
        unknown
            .as_ref()
            .and_then(|unknown| find(sql, unknown.name()))
    });
    // The caret says where.
    let message = match (place, message.find(" at Line: ")) {
        (Some(_), Some(at)) => &message[..at],
        _ => message.as_str(),
    };
    let mut report = format!("error: {message}");
    if let Some(excerpt) = place.and_then(|place| excerpt(sql, lines, place)) {
        let _ = write!(report, "\n{excerpt}");
    }
    if !message.contains("Did you mean")
        && let Some(meant) = unknown.and_then(|unknown| unknown.meant(catalog))
    {
        let _ = write!(report, "\ndid you mean {meant}?");
    }
    report
}

/// Where the parser or the planner says that the error is.
fn place_of(error: &Error, message: &str) -> Option<Place> {
    if let Error::Query(error) = error
        && let Some(span) = error.diagnostic().and_then(|diagnostic| diagnostic.span)
    {
        let width = match span.start.line == span.end.line {
            true => span.end.column.saturating_sub(span.start.column),
            false => 1,
        };
        return Some(Place {
            line: span.start.line as usize,
            column: span.start.column as usize,
            width: width as usize,
        });
    }
    let (_, numbers) = message.rsplit_once(" at Line: ")?;
    let (line, column) = numbers.split_once(", Column: ")?;
    let digits = column.find(|c: char| !c.is_ascii_digit());
    Some(Place {
        line: line.parse().ok()?,
        column: column[..digits.unwrap_or(column.len())].parse().ok()?,
        width: 0,
    })
}

/// The first place where a name stands.
fn find(sql: &str, name: &str) -> Option<Place> {
    let last = name.rsplit('.').next().unwrap_or(name);
    let token = tokens(sql).find(|token| is_name(sql, token, last))?;
    let before = &sql[..token.range.start];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    Some(Place {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        width: sql[token.range].chars().count(),
    })
}

fn is_name(sql: &str, token: &Token, name: &str) -> bool {
    let text = &sql[token.range.clone()];
    match token.kind {
        Kind::Word => text.eq_ignore_ascii_case(name),
        // Functions such as bfs name tables and indexes in texts.
        Kind::Quoted | Kind::Text => {
            let inner = text.trim_matches(['"', '`', '\'']);
            inner == name || inner.rsplit('.').next() == Some(name)
        }
        _ => false,
    }
}

/// The line of a place, with its number, and a caret below.
/// Nothing where a password may be in it.
fn excerpt(sql: &str, lines: usize, place: Place) -> Option<String> {
    let at = place.line.checked_sub(1)?;
    let line = sql.lines().nth(at)?;
    if redacted(sql).text.lines().nth(at) != Some(line) {
        return None;
    }
    let column = place.column.checked_sub(1)?;
    let characters: Vec<char> = line.chars().collect();
    // Behind the last character is a place, too: where something is missing.
    let column = column.min(characters.len());
    let width = match place.width {
        0 => width_of_token(line, column),
        width => width,
    };
    let start = column.saturating_sub(SHOWN_BEFORE);
    let end = characters.len().min(column + SHOWN_BEHIND.max(width));
    let mut shown = String::new();
    if start > 0 {
        shown.push('…');
    }
    let indent = shown.chars().count() + column - start;
    // A tab is as wide as it likes.
    let visible = characters[start..end].iter();
    shown.extend(visible.map(|c| if c.is_whitespace() { ' ' } else { *c }));
    if end < characters.len() {
        shown.push('…');
    }
    let carets = width.clamp(1, (end - column).max(1));
    let number = (lines + place.line).to_string();
    let margin = " ".repeat(number.len());
    Some(format!(
        "{number} | {shown}\n{margin} | {}{}",
        " ".repeat(indent),
        "^".repeat(carets)
    ))
}

/// Characters of the piece of SQL that starts at a column.
fn width_of_token(line: &str, column: usize) -> usize {
    let start = line.char_indices().nth(column).map(|(at, _)| at);
    let Some(start) = start else { return 1 };
    let first = tokens(&line[start..]).next();
    first.map_or(1, |token| line[start..][token.range].chars().count())
}

impl Unknown {
    fn name(&self) -> &str {
        match self {
            Self::Table(name)
            | Self::Index(name)
            | Self::Column(name, _)
            | Self::Function(name)
            | Self::Word(name) => name,
        }
    }

    /// The known name that is nearest.
    fn meant(&self, catalog: &Catalog) -> Option<String> {
        let last = self.name().rsplit('.').next()?;
        let text = |name: &str| Some(name.to_string());
        match self {
            Self::Table(_) => {
                let names = catalog.tables.iter().map(|table| table.name.as_str());
                let meant = suggest::nearest(last, names)?;
                let table = catalog.tables.iter().find(|table| table.name == meant)?;
                text(&catalog.shown(&table.schema, &table.name))
            }
            Self::Index(_) => {
                let names = catalog.indexes.iter().map(|index| index.name.as_str());
                let meant = suggest::nearest(last, names)?;
                let index = catalog.indexes.iter().find(|index| index.name == meant)?;
                text(&catalog.shown(&index.schema, &index.name))
            }
            Self::Column(_, valid) if !valid.is_empty() => {
                text(suggest::nearest(last, valid.iter().map(String::as_str))?)
            }
            Self::Column(..) => {
                let columns = catalog.tables.iter().flat_map(|table| &table.columns);
                text(suggest::nearest(last, columns.map(|c| c.name.as_str()))?)
            }
            Self::Function(_) => {
                let functions = catalog.functions.iter().chain(&catalog.table_functions);
                text(suggest::nearest(last, functions.map(String::as_str))?)
            }
            Self::Word(_) => text(suggest::nearest(last, KEYWORDS.iter().copied())?),
        }
    }
}

/// The name that an error says is not known.
fn unknown(error: &Error, message: &str) -> Option<Unknown> {
    match error {
        Error::Storage(error) => of_storage(error),
        Error::Query(error) => of_query(error).or_else(|| of_message(message)),
        _ => of_message(message),
    }
}

fn of_storage(error: &StorageError) -> Option<Unknown> {
    match error {
        StorageError::NotFound {
            kind: "table",
            name,
        } => Some(Unknown::Table(name.clone())),
        StorageError::NotFound {
            kind: "index",
            name,
        } => Some(Unknown::Index(name.clone())),
        _ => None,
    }
}

fn of_query(error: &DataFusionError) -> Option<Unknown> {
    match error {
        DataFusionError::SchemaError(schema, _) => match schema.as_ref() {
            SchemaError::FieldNotFound {
                field,
                valid_fields,
            } => {
                let valid = valid_fields.iter().map(|column| column.name.clone());
                Some(Unknown::Column(field.name.clone(), valid.collect()))
            }
            _ => None,
        },
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => {
            of_query(inner)
        }
        DataFusionError::Shared(inner) => of_query(inner),
        DataFusionError::Collection(errors) => errors.iter().find_map(of_query),
        DataFusionError::External(inner) => inner.downcast_ref().and_then(of_storage),
        _ => None,
    }
}

/// The name out of messages that carry it as text alone.
fn of_message(message: &str) -> Option<Unknown> {
    let quoted_after = |before: &str| {
        let (_, rest) = message.split_once(before)?;
        let (name, rest) = rest.split_once('\'')?;
        Some((name.to_string(), rest))
    };
    if let Some((name, _)) = quoted_after("Invalid function '") {
        return Some(Unknown::Function(name));
    }
    if let Some((name, rest)) = quoted_after("able function '")
        && rest.starts_with(" not found")
    {
        return Some(Unknown::Function(name));
    }
    if let Some((name, rest)) = quoted_after("table '")
        && rest.starts_with(" not found")
    {
        return Some(Unknown::Table(name));
    }
    if let Some((name, rest)) = quoted_after("has no column '") {
        let valid = rest.split_once("it has: ").map_or("", |(_, names)| names);
        let valid = valid.split(", ").filter(|name| !name.is_empty());
        return Some(Unknown::Column(name, valid.map(str::to_string).collect()));
    }
    let (_, found) = message.split_once(", found: ")?;
    let word = found.split(' ').next()?;
    Some(Unknown::Word(word.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: usize, column: usize, width: usize) -> Place {
        Place {
            line,
            column,
            width,
        }
    }

    #[test]
    fn the_caret_is_below_the_place() {
        for (sql, place, expected) in [
            ("SELEC 1", at(1, 1, 0), "1 | SELEC 1\n  | ^^^^^"),
            (
                "SELECT 1,\n\t'ü', nmae\nFROM t",
                at(2, 7, 4),
                "2 |  'ü', nmae\n  |       ^^^^",
            ),
            ("SELECT", at(1, 7, 0), "1 | SELECT\n  |       ^"),
            ("SELECT", at(1, 99, 5), "1 | SELECT\n  |       ^"),
        ] {
            assert_eq!(excerpt(sql, 0, place).as_deref(), Some(expected), "{sql}");
        }
        assert_eq!(excerpt("SELECT 1", 0, at(2, 1, 1)), None);
        assert_eq!(excerpt("SELECT 1", 0, at(0, 0, 0)), None);
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let sql = format!("SELECT {} nmae {}", "x, ".repeat(100), "y ".repeat(100));
        let column = sql.find("nmae").unwrap() + 1;
        let excerpt = excerpt(&sql, 0, at(1, column, 4)).unwrap();
        let (line, carets) = excerpt.split_once('\n').unwrap();
        assert!(line.chars().count() < 110, "{line}");
        let indent = carets.find('^').unwrap();
        let below: String = line.chars().skip(indent).take(4).collect();
        assert_eq!(below, "nmae");
        assert!(carets.ends_with("^^^^"));
    }

    #[test]
    fn names_are_found_where_they_stand() {
        assert_eq!(
            find("SELECT 1\nFROM Ordres o", "public.ordres"),
            Some(at(2, 6, 6))
        );
        assert_eq!(
            find("SELECT * FROM bfs('raods', 1)", "raods"),
            Some(at(1, 19, 7))
        );
        assert_eq!(find("SELECT ordres_", "ordres"), None);
    }

    #[test]
    fn messages_tell_what_is_not_known() {
        for (message, expected) in [
            (
                "table 'flashmesh.public.x' not found",
                Unknown::Table("flashmesh.public.x".into()),
            ),
            (
                "table function 'bsf' not found",
                Unknown::Function("bsf".into()),
            ),
            (
                "Invalid function 'sume'.\nDid you mean 'sum'?",
                Unknown::Function("sume".into()),
            ),
            (
                "matches: table 't' has no column 'x'; it has: a, b",
                Unknown::Column("x".into(), vec!["a".into(), "b".into()]),
            ),
            (
                "syntax error: Expected: an SQL statement, found: SELEC at Line: 1, Column: 1",
                Unknown::Word("SELEC".into()),
            ),
        ] {
            assert_eq!(of_message(message), Some(expected), "{message}");
        }
        assert_eq!(of_message("division by zero"), None);
    }

    #[test]
    fn a_report_has_message_place_and_suggestion() {
        let error = Error::usage(
            "syntax error: Expected: an SQL statement, found: SELEC at Line: 1, Column: 1",
        );
        assert_eq!(
            report(&error, "SELEC 1", 6, &Catalog::default()),
            "error: syntax error: Expected: an SQL statement, found: SELEC\n7 | SELEC 1\n  | ^^^^^\ndid you mean SELECT?"
        );
        let error = Error::usage("an error at Line: 2, Column: 1");
        let hidden = "SELECT 1;\nCREATE USR ann PASSWORD 'geheim';";
        let told = report(&error, hidden, 0, &Catalog::default());
        assert_eq!(told, "error: an error");
        let error = Error::usage("no room");
        assert_eq!(
            report(&error, "SELECT 1", 0, &Catalog::default()),
            "error: no room"
        );
    }
}

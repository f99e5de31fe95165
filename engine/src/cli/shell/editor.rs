//! The line that is being typed: completion, colours, when it is complete.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::RwLock;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use super::catalog::Catalog;
use super::complete::complete;
use super::completion::Completion;
use super::keywords::is_keyword;
use super::lex::{Kind, items, tokens};

/// What the line editor asks.
pub(super) struct LineHelper {
    catalog: Arc<RwLock<Catalog>>,
    files: FilenameCompleter,
    has_colours: bool,
}

impl LineHelper {
    /// A helper that completes the names in `catalog`, whatever they are by then.
    pub fn new(catalog: Arc<RwLock<Catalog>>, has_colours: bool) -> Self {
        Self {
            catalog,
            files: FilenameCompleter::new(),
            has_colours,
        }
    }
}

impl Completer for LineHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        cursor: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        match complete(line, cursor, &self.catalog.read()) {
            Completion::File => self.files.complete_path(line, cursor),
            Completion::Words { start, words } => {
                let pair = |word: String| Pair {
                    display: word.clone(),
                    replacement: word,
                };
                Ok((start, words.into_iter().map(pair).collect()))
            }
        }
    }
}

impl Hinter for LineHelper {
    type Hint = String;
}

impl Highlighter for LineHelper {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        match self.has_colours {
            true => Cow::Owned(coloured(line)),
            false => Cow::Borrowed(line),
        }
    }

    fn highlight_char(&self, _: &str, _: usize, kind: CmdKind) -> bool {
        // A quote changes all that comes after it.
        self.has_colours && kind != CmdKind::MoveCursor
    }
}

impl Validator for LineHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let (_, unfinished) = items(context.input());
        Ok(match unfinished.is_empty() {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Helper for LineHelper {}

/// SQL with the colours of a terminal.
fn coloured(sql: &str) -> String {
    let mut coloured = String::with_capacity(2 * sql.len());
    for token in tokens(sql) {
        let text = &sql[token.range];
        let colour = match token.kind {
            Kind::Word if is_keyword(text) => "1;34",
            Kind::Text => "32",
            Kind::Number => "36",
            Kind::Comment => "2",
            _ => "",
        };
        match colour {
            "" => coloured.push_str(text),
            colour => coloured.push_str(&format!("\x1b[{colour}m{text}\x1b[0m")),
        }
    }
    coloured
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_change_no_character() {
        let sql = "SELECT 'ü', 1.5, \"select\" -- from\nFROM t";
        let mut bare = String::new();
        let shown = coloured(sql);
        let mut rest = shown.as_str();
        while let Some(at) = rest.find("\x1b[") {
            bare.push_str(&rest[..at]);
            rest = &rest[at..][rest[at..].find('m').unwrap() + 1..];
        }
        bare.push_str(rest);
        assert_eq!(bare, sql);
        assert!(shown.starts_with("\x1b[1;34mSELECT\x1b[0m \x1b[32m'ü'\x1b[0m"));
        assert!(shown.contains("\"select\" \x1b[2m-- from\x1b[0m\n"));
    }
}

//! SQL text in pieces, for all that looks at what is being typed: where a statement ends, what to
//! highlight, what to complete, what an error points at. Unlike the parser's own tokenizer it
//! takes any text, finished or not.

use std::borrow::Cow;
use std::ops::Range;

/// What a [`Token`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Space,
    Comment,
    /// A keyword or a name.
    Word,
    /// A name in double quotes or backticks.
    Quoted,
    /// A text in single quotes, or between `$$`.
    Text,
    Number,
    /// One character of anything else.
    Symbol,
}

/// A piece of SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub kind: Kind,
    /// Its bytes.
    pub range: Range<usize>,
    /// The text ends before it does: a quote or a block comment is missing its end.
    pub is_open: bool,
}

impl Token {
    /// Whether it means something to the parser.
    pub fn is_significant(&self) -> bool {
        !matches!(self.kind, Kind::Space | Kind::Comment)
    }
}

/// The pieces of `sql`, which together are all of it.
pub(super) fn tokens(sql: &str) -> impl Iterator<Item = Token> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = sql[at..].chars().next()?;
        let (kind, length, is_open) = token(&sql[at..], first);
        let start = at;
        at += length;
        Some(Token {
            kind,
            range: start..at,
            is_open,
        })
    })
}

/// Kind and length of the piece that `rest` begins with, and whether it is unfinished.
fn token(rest: &str, first: char) -> (Kind, usize, bool) {
    let while_chars = |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    match first {
        c if c.is_whitespace() => (Kind::Space, while_chars(char::is_whitespace), false),
        '-' if rest.starts_with("--") => {
            (Kind::Comment, rest.find('\n').unwrap_or(rest.len()), false)
        }
        '/' if rest.starts_with("/*") => block_comment(rest),
        '\'' => quoted(rest, Kind::Text, 0, '\'', false),
        'e' | 'E' if rest[1..].starts_with('\'') => quoted(rest, Kind::Text, 1, '\'', true),
        'x' | 'X' | 'b' | 'B' | 'n' | 'N' if rest[1..].starts_with('\'') => {
            quoted(rest, Kind::Text, 1, '\'', false)
        }
        '"' | '`' => quoted(rest, Kind::Quoted, 0, first, false),
        '$' => dollar_quoted(rest),
        c if is_word_start(c) => (Kind::Word, while_chars(is_word_part), false),
        c if c.is_ascii_digit() => (Kind::Number, while_chars(is_number_part), false),
        c => (Kind::Symbol, c.len_utf8(), false),
    }
}

fn is_word_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn is_word_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn is_number_part(c: char) -> bool {
    c.is_alphanumeric() || c == '.'
}

/// Up to the quote that is not doubled, nor escaped by a backslash where that is possible.
fn quoted(
    rest: &str,
    kind: Kind,
    before: usize,
    quote: char,
    has_escapes: bool,
) -> (Kind, usize, bool) {
    let mut chars = rest[before + 1..].char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c == '\\' && has_escapes {
            chars.next();
        } else if c == quote && chars.next_if(|(_, next)| *next == quote).is_none() {
            return (kind, before + 1 + at + 1, false);
        }
    }
    (kind, rest.len(), true)
}

fn block_comment(rest: &str) -> (Kind, usize, bool) {
    let (mut depth, mut at) = (0, 0);
    loop {
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return (Kind::Comment, at, false);
            }
        } else if let Some(c) = rest[at..].chars().next() {
            at += c.len_utf8();
        } else {
            return (Kind::Comment, at, true);
        }
    }
}

/// `$$ … $$`, `$tag$ … $tag$`, or a parameter such as `$1`.
fn dollar_quoted(rest: &str) -> (Kind, usize, bool) {
    let tag = rest[1..].find(|c| !is_word_part(c) || c == '$');
    let tag = tag.filter(|end| {
        let name = &rest[1..][..*end];
        rest[1 + end..].starts_with('$') && !name.starts_with(|c: char| c.is_ascii_digit())
    });
    let Some(tag) = tag else {
        let length = rest[1..].find(|c: char| !is_word_part(c) || c == '$');
        return (Kind::Word, 1 + length.unwrap_or(rest.len() - 1), false);
    };
    let fence = &rest[..tag + 2];
    match rest[fence.len()..].find(fence) {
        Some(end) => (Kind::Text, end + 2 * fence.len(), false),
        None => (Kind::Text, rest.len(), true),
    }
}

/// Something to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// SQL, without the semicolon.
    Statement(&'a str),
    /// A line for the shell itself.
    Command(&'a str),
}

/// Splits input into what can be run, and the beginning of a statement that lacks its semicolon
/// (empty if none does).
///
/// A line at the start of a statement that begins with a dot or a backslash is a command of the
/// shell, and so is a lone `exit`, `quit` or `help`.
pub(super) fn items(input: &str) -> (Vec<Item<'_>>, &str) {
    let mut items = Vec::new();
    let mut rest = input;
    'next: loop {
        let mut start = None;
        for token in tokens(rest) {
            let text = &rest[token.range.clone()];
            if !token.is_significant() && (start.is_none() || token.kind == Kind::Space) {
                continue;
            }
            if start.is_none() {
                if text == "." || text == "\\" {
                    let line = rest[token.range.start..].lines().next().unwrap_or_default();
                    items.push(Item::Command(line.trim_end()));
                    rest = &rest[token.range.start + line.len()..];
                    continue 'next;
                }
                start = Some(token.range.start);
            }
            if token.kind == Kind::Symbol && text == ";" {
                let statement = rest[start.unwrap_or_default()..token.range.start].trim_end();
                rest = &rest[token.range.end..];
                if is_word_for_shell(statement) {
                    items.push(Item::Command(statement));
                } else if !statement.is_empty() {
                    items.push(Item::Statement(statement));
                }
                continue 'next;
            }
        }
        let unfinished = start.map_or("", |start| rest[start..].trim_end());
        if is_word_for_shell(unfinished) {
            items.push(Item::Command(unfinished));
            return (items, "");
        }
        // A block comment without an end goes on in the next line.
        let is_open = tokens(rest).last().is_some_and(|token| token.is_open);
        return match unfinished.is_empty() && is_open {
            true => (items, rest),
            false => (items, unfinished),
        };
    }
}

/// What a script is made of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Statements. They begin in the script's line after so many; what is before them in it is blank.
    Sql(Cow<'a, str>, usize),
    /// A command of the shell.
    Command(&'a str),
}

/// A script's statements, cut only where a command of the shell is.
pub(super) fn pieces(script: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut start, mut lines) = (0, 0);
    let sql = |start: usize, end: usize, lines: usize| {
        let has_more = |token: Token| token.is_significant() || token.is_open;
        let part = &script[start..end];
        tokens(part).any(has_more).then(|| {
            let line = script[..start].rfind('\n').map_or(0, |at| at + 1);
            let before = script[line..start].chars().count();
            let text = match before {
                0 => Cow::Borrowed(part),
                before => Cow::Owned(" ".repeat(before) + part),
            };
            Piece::Sql(text, lines)
        })
    };
    for item in items(script).0 {
        if let Item::Command(line) = item {
            let at = line.as_ptr() as usize - script.as_ptr() as usize;
            pieces.extend(sql(start, at, lines));
            pieces.push(Piece::Command(line));
            let end = at + line.len();
            lines += script[start..end].matches('\n').count();
            start = end;
        }
    }
    pieces.extend(sql(start, script.len(), lines));
    pieces
}

fn is_word_for_shell(statement: &str) -> bool {
    ["exit", "quit", "help"].contains(&statement.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_cut_where_commands_are() {
        let sql = |text: &str, lines| Piece::Sql(Cow::Owned(text.into()), lines);
        for (script, expected) in [
            ("", vec![]),
            (" -- nothing\n", vec![]),
            ("SELECT 1; SELECT 2", vec![sql("SELECT 1; SELECT 2", 0)]),
            (".tables", vec![Piece::Command(".tables")]),
            (
                "SELECT 'ü';\n.mode csv\nSELECT 2;\n",
                vec![
                    sql("SELECT 'ü';\n", 0),
                    Piece::Command(".mode csv"),
                    sql("         \nSELECT 2;\n", 1),
                ],
            ),
            (
                "SELECT\n.5; quit; SELECT 1",
                vec![
                    sql("SELECT\n.5; ", 0),
                    Piece::Command("quit"),
                    sql("        ; SELECT 1", 1),
                ],
            ),
            // An end that is missing is the parser's to find.
            ("/* SELECT 1", vec![sql("/* SELECT 1", 0)]),
        ] {
            assert_eq!(pieces(script), expected, "{script}");
        }
    }

    fn kinds(sql: &str) -> Vec<(Kind, &str)> {
        let tokens = tokens(sql).filter(Token::is_significant);
        tokens
            .map(|token| (token.kind, &sql[token.range]))
            .collect()
    }

    #[test]
    fn pieces_of_sql() {
        use Kind::*;
        assert_eq!(
            kinds(
                "SELECT 'it''s', E'\\'x', X'00ff', \"a b\".c, 1.5e3 -- end; 'here'\n+ /* a /* b */ ; */ $1 $q$;$q$ ü"
            ),
            [
                (Word, "SELECT"),
                (Text, "'it''s'"),
                (Symbol, ","),
                (Text, "E'\\'x'"),
                (Symbol, ","),
                (Text, "X'00ff'"),
                (Symbol, ","),
                (Quoted, "\"a b\""),
                (Symbol, "."),
                (Word, "c"),
                (Symbol, ","),
                (Number, "1.5e3"),
                (Symbol, "+"),
                (Word, "$1"),
                (Text, "$q$;$q$"),
                (Word, "ü"),
            ]
        );
        for open in ["'abc", "\"abc", "/* a */ /* b", "$$ x", "E'\\'"] {
            assert!(tokens(open).last().unwrap().is_open, "{open}");
        }
    }

    #[test]
    fn any_text_is_cut_without_a_gap() {
        for text in [
            "",
            "$",
            "$$",
            "/*",
            "-",
            "--",
            "e",
            "x'",
            "\\",
            "é'ü\"日本`",
            "$a",
            "$1$",
            "/*/**/",
        ] {
            let mut end = 0;
            for token in tokens(text) {
                assert_eq!(token.range.start, end, "{text}");
                assert!(token.range.end > end, "{text}");
                end = token.range.end;
            }
            assert_eq!(end, text.len(), "{text}");
        }
    }

    #[test]
    fn statements_end_at_semicolons_outside_of_quotes() {
        use Item::*;
        assert_eq!(
            items("SELECT 1; SELECT ';' -- ;\n;; x"),
            (
                vec![Statement("SELECT 1"), Statement("SELECT ';' -- ;")],
                "x"
            )
        );
        assert_eq!(items("  \n -- nothing\n"), (vec![], ""));
        assert_eq!(items("SELECT 'a;\nb"), (vec![], "SELECT 'a;\nb"));
        assert_eq!(items("/* a ;"), (vec![], "/* a ;"));
    }

    #[test]
    fn commands_stand_at_the_start_of_a_statement() {
        use Item::*;
        assert_eq!(
            items(".tables\nSELECT 1\n.5;\n  .mode csv  \n\\q"),
            (
                vec![
                    Command(".tables"),
                    Statement("SELECT 1\n.5"),
                    Command(".mode csv"),
                    Command("\\q")
                ],
                ""
            )
        );
        assert_eq!(items("Quit"), (vec![Command("Quit")], ""));
        assert_eq!(items("exit;"), (vec![Command("exit")], ""));
        assert_eq!(items("-- c\n.help"), (vec![Command(".help")], ""));
    }
}

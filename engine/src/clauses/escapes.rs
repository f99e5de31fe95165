//! Backslashes in texts. `LIKE … ESCAPE '!'`: the planner knows the backslash alone; and `'\xAA'::BYTEA`, which to it are
//! these four characters.

use datafusion::sql::sqlparser::ast::{DataType, Expr, Value};
use flashmesh_planner::byte_texts::{bytes_of, is_marked};

use super::refuse;
use crate::error::Result;
use crate::names::quoted_text;

/// Writes a constant text that is cast to bytes as those for which it stands.
pub(super) fn read_bytes(text: &mut Expr, to: &DataType) {
    let is_of_bytes = matches!(
        to,
        DataType::Bytea | DataType::Binary(_) | DataType::Varbinary(_) | DataType::Blob(_)
    );
    let marked = quoted_text(text).filter(|text| is_of_bytes && is_marked(text));
    if let Some(bytes) = marked.and_then(bytes_of) {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        *text = Expr::value(Value::HexStringLiteral(digits.collect()));
    }
}

/// Writes a constant pattern with backslashes in the place of another character that escapes.
///
/// # Errors
/// A refusal of patterns that are no constants.
pub(super) fn with_backslashes(expr: &mut Expr) -> Result<()> {
    let (Expr::Like {
        pattern,
        escape_char,
        ..
    }
    | Expr::ILike {
        pattern,
        escape_char,
        ..
    }) = expr
    else {
        return Ok(());
    };
    let Some(Value::SingleQuotedString(escape)) = escape_char.as_ref().map(|given| &given.value)
    else {
        return Ok(());
    };
    let mut chars = escape.chars();
    let escape = match (chars.next(), chars.next()) {
        (Some('\\'), None) => return Ok(()),
        (escape, None) => escape,
        _ => return refuse("an ESCAPE of several characters", "write one"),
    };
    match pattern.as_mut() {
        Expr::Value(value) => match &mut value.value {
            Value::SingleQuotedString(text) => *text = rewritten(text, escape)?,
            Value::Null => {}
            other => {
                return refuse(
                    &format!("LIKE {other} with ESCAPE"),
                    "write a text in quotes",
                );
            }
        },
        other => {
            return refuse(
                &format!("ESCAPE behind {other}, a pattern that is no constant"),
                "escape with backslashes, and write no ESCAPE",
            );
        }
    }
    *escape_char = None;
    Ok(())
}

fn rewritten(pattern: &str, escape: Option<char>) -> Result<String> {
    let mut written = String::with_capacity(pattern.len() + 8);
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        let (char, is_escaped) = match Some(char) == escape {
            false => (char, false),
            true => match chars.next() {
                Some(char) => (char, true),
                None => {
                    return refuse(
                        "a pattern that ends with its ESCAPE",
                        "write the character twice",
                    );
                }
            },
        };
        if char == '\\' || is_escaped && matches!(char, '%' | '_') {
            written.push('\\');
        }
        written.push(char);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_written_with_backslashes() {
        for (pattern, escape, expected) in [
            ("50!%", Some('!'), r"50\%"),
            ("a!_b%", Some('!'), r"a\_b%"),
            ("a!!b", Some('!'), "a!b"),
            ("a!bc", Some('!'), "abc"),
            (r"c:\%", Some('!'), r"c:\\%"),
            (r"c:\%", None, r"c:\\%"),
            ("a%%b", Some('%'), r"a\%b"),
        ] {
            assert_eq!(rewritten(pattern, escape).unwrap(), expected, "{pattern}");
        }
        assert!(rewritten("a!", Some('!')).is_err());
    }
}

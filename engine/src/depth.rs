//! Statements that are chains without end: `1 + 1 + …`, `SELECT … UNION ALL SELECT …`.
//!
//! The parser, whose recursion has a limit, reads a chain in a loop and makes a tree of it as deep
//! as the chain is long. Copying, comparing and dropping such a tree takes stack for each level,
//! and a stack that overflows ends the process: no chain may be longer than what a thread's stack
//! holds.

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::error::{Error, Result};

/// Operators of one expression, one after the other. (DuckDB allows 1,000 levels.)
const OPERATORS: usize = 1000;
/// SELECTs and joins of one query, one after the other.
const QUERIES: usize = 500;

/// Parentheses within parentheses. The parser takes fewer, and takes its time to find that out.
const NESTED: usize = 500;

/// What has been read between two parentheses.
#[derive(Default)]
struct Level {
    operators: usize,
    queries: usize,
}

/// Refuses SQL with a chain that is too long.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn check(sql: &str, dialect: &dyn Dialect) -> Result<()> {
    // Each link of a chain takes two bytes at least.
    if sql.len() < (2 * OPERATORS.min(QUERIES)).min(NESTED) {
        return Ok(());
    }
    // The parser says what is wrong with what has no tokens.
    let Ok(tokens) = Tokenizer::new(dialect, sql).tokenize() else {
        return Ok(());
    };
    let mut levels = vec![Level::default()];
    for token in &tokens {
        match token {
            Token::LParen | Token::LBracket | Token::LBrace => {
                levels.push(Level::default());
                if levels.len() > NESTED {
                    return Err(Error::usage(format!(
                        "a statement has more than {NESTED} parentheses within each other"
                    )));
                }
            }
            Token::RParen | Token::RBracket | Token::RBrace if levels.len() > 1 => {
                levels.pop();
            }
            _ => {}
        }
        let Some(level) = levels.last_mut() else {
            continue;
        };
        match token {
            Token::SemiColon => *level = Level::default(),
            Token::Comma => level.operators = 0,
            Token::Word(word) => match word.keyword {
                Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT | Keyword::JOIN => {
                    *level = Level {
                        operators: 0,
                        queries: level.queries + 1,
                    };
                }
                Keyword::SELECT
                | Keyword::FROM
                | Keyword::WHERE
                | Keyword::ON
                | Keyword::WHEN
                | Keyword::THEN
                | Keyword::ELSE
                | Keyword::HAVING
                | Keyword::BY
                | Keyword::VALUES => level.operators = 0,
                Keyword::AND
                | Keyword::OR
                | Keyword::XOR
                | Keyword::IS
                | Keyword::IN
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::SIMILAR
                | Keyword::BETWEEN
                | Keyword::COLLATE
                | Keyword::DIV
                | Keyword::AT => level.operators += 1,
                _ => {}
            },
            Token::Number(..)
            | Token::Char(_)
            | Token::Whitespace(_)
            | Token::Period
            | Token::Placeholder(_)
            | Token::LParen
            | Token::RParen
            | Token::LBrace
            | Token::RBrace
            | Token::LBracket
            | Token::SingleQuotedString(_)
            | Token::DoubleQuotedString(_)
            | Token::EOF => {}
            // Operators; a subscript is one too.
            _ => level.operators += 1,
        }
        let (length, limit, of) = match level.operators > OPERATORS {
            true => (level.operators, OPERATORS, "operators"),
            false => (level.queries, QUERIES, "set operations or joins"),
        };
        if length > limit {
            return Err(Error::usage(format!(
                "a statement has more than {limit} {of} one after the other; put values into IN (…), VALUES or a table, or write several statements"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::*;

    fn is_refused(sql: &str) -> bool {
        check(sql, &GenericDialect {}).is_err()
    }

    #[test]
    fn chains_have_an_end() {
        for (link, count) in [
            ("1 + ", 1001),
            ("a OR ", 1001),
            ("x = 1 AND ", 501),
            ("'a' || ", 1001),
        ] {
            assert!(
                is_refused(&format!("SELECT {}1", link.repeat(count))),
                "{link}"
            );
            assert!(
                !is_refused(&format!("SELECT {}1", link.repeat(490))),
                "{link}"
            );
        }
        assert!(is_refused(&"SELECT 1 UNION ALL ".repeat(501)));
        assert!(is_refused(&format!("SELECT ({}1)", "1-".repeat(1100))));
        assert!(is_refused(&format!("SELECT a{}", "[1]".repeat(1100))));
        assert!(is_refused(&format!("SELECT a{}", "::INT".repeat(1100))));
        assert!(is_refused(&format!("SELECT {}1", "(".repeat(600))));
    }

    #[test]
    fn long_statements_without_chains_are_taken() {
        let many = |text: &str| text.repeat(20_000);
        for sql in [
            format!(
                "INSERT INTO t VALUES {}(1)",
                many("(-1, -2.5, 'a' || 'b'), ")
            ),
            format!("SELECT * FROM t WHERE a IN ({}1)", many("-1, ")),
            format!("SELECT CASE {}END", many("WHEN a = 1 AND b > 2 THEN -3 ")),
            format!("SELECT {}1", many("a.b + c.d, ")),
            many("SELECT 1 + 1; "),
            format!("SELECT '{}'", many("+ UNION ")),
        ] {
            assert!(!is_refused(&sql), "{}", &sql[..60]);
        }
    }
}

//! `PIVOT t ON column [IN (…)] USING sum(x) [GROUP BY …]` and `UNPIVOT t ON a, b INTO NAME n VALUE v` as statements
//! or queries.

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::operators::behind_closing;
use super::{is, tokens_at};

/// The call by which a PIVOT says by what it groups.
pub(crate) const GROUPED_BY: &str = "flashmesh:grouped_by";

/// Writes such a query as `SELECT * FROM t PIVOT (sum(x) FOR column IN (ANY))`.
pub(super) fn replace_pivots(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    replace(tokens, dialect, ["PIVOT", "PIVOT_WIDER"], written)
}

/// Writes `SELECT * FROM t UNPIVOT (v FOR n IN (a, b))` for such a query.
pub(super) fn replace_unpivots(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    replace(tokens, dialect, ["UNPIVOT", "PIVOT_LONGER"], unpivoted)
}

/// Where a query ends that begins at a place, and what is written for it; `None` where none does.
type Written = fn(&[TokenWithSpan], usize, &dyn Dialect) -> Option<(usize, Vec<TokenWithSpan>)>;

/// Writes queries otherwise that begin with one of the words.
fn replace(
    tokens: &mut Vec<TokenWithSpan>,
    dialect: &dyn Dialect,
    words: [&str; 2],
    written: Written,
) -> bool {
    let mut has_replaced = false;
    for place in (0..tokens.len()).rev() {
        if !words.iter().any(|word| is(tokens.get(place), word)) {
            continue;
        }
        if let Some((end, written)) = written(tokens, place, dialect) {
            tokens.splice(place..end, written);
            has_replaced = true;
        }
    }
    has_replaced
}

/// A PIVOT.
fn written(
    tokens: &[TokenWithSpan],
    place: usize,
    dialect: &dyn Dialect,
) -> Option<(usize, Vec<TokenWithSpan>)> {
    let words = |text: &str| tokens_at(text, dialect, &tokens[place]).collect::<Vec<_>>();
    let source = place + 1;
    let on = end_of_source(tokens, source)?;
    if !is(tokens.get(on), "ON") {
        return None;
    }
    let end_of_on = end_of_part(tokens, on + 1, &["IN", "USING", "GROUP", "ORDER", "LIMIT"]);
    let (mut end, mut values) = (end_of_on, words("ANY"));
    if is(tokens.get(end), "IN") && tokens.get(end + 1)?.token == Token::LParen {
        let closed = behind_closing(tokens, end + 1)?;
        values = tokens[end + 2..closed - 1].to_vec();
        end = closed;
    }
    let mut aggregates = words("count(*)");
    if is(tokens.get(end), "USING") {
        let first = end + 1;
        end = end_of_part(tokens, first, &["GROUP", "ORDER", "LIMIT"]);
        aggregates = tokens[first..end].to_vec();
    }
    let mut grouped = Vec::new();
    if is(tokens.get(end), "GROUP") && is(tokens.get(end + 1), "BY") {
        let first = end + 2;
        end = end_of_part(tokens, first, &["ORDER", "LIMIT"]);
        grouped = words(&format!("DEFAULT ON NULL (\"{GROUPED_BY}\" ("));
        grouped.extend_from_slice(&tokens[first..end]);
        grouped.extend(words("))"));
    }
    let parts = [
        words("SELECT * FROM"),
        tokens[source..on].to_vec(),
        words("PIVOT ("),
        aggregates,
        words("FOR"),
        tokens[on + 1..end_of_on].to_vec(),
        words("IN ("),
        values,
        words(")"),
        grouped,
        words(")"),
    ];
    Some((end, parts.concat()))
}

/// An UNPIVOT.
fn unpivoted(
    tokens: &[TokenWithSpan],
    place: usize,
    dialect: &dyn Dialect,
) -> Option<(usize, Vec<TokenWithSpan>)> {
    let words = |text: &str| tokens_at(text, dialect, &tokens[place]).collect::<Vec<_>>();
    let mut source = place + 1;
    let keeps_nulls = is(tokens.get(source), "INCLUDE") && is(tokens.get(source + 1), "NULLS");
    source += 2 * usize::from(keeps_nulls);
    let on = end_of_source(tokens, source)?;
    if !is(tokens.get(on), "ON") {
        return None;
    }
    let mut end = end_of_part(tokens, on + 1, &["INTO", "ORDER", "LIMIT"]);
    let columns = tokens[on + 1..end].to_vec();
    let (mut name, mut value) = (words("name"), words("value"));
    if is(tokens.get(end), "INTO") && is(tokens.get(end + 1), "NAME") {
        name = tokens.get(end + 2..end + 3)?.to_vec();
        if !is(tokens.get(end + 3), "VALUE") {
            return None;
        }
        value = tokens.get(end + 4..end + 5)?.to_vec();
        end += 5;
    }
    let parts = [
        words("SELECT * FROM"),
        tokens[source..on].to_vec(),
        words("UNPIVOT"),
        words(if keeps_nulls { "INCLUDE NULLS" } else { "" }),
        words("("),
        value,
        words("FOR"),
        name,
        words("IN ("),
        columns,
        words("))"),
    ];
    Some((end, parts.concat()))
}

/// Behind a table: a name, a call, a text in quotes or a query in parentheses.
fn end_of_source(tokens: &[TokenWithSpan], start: usize) -> Option<usize> {
    let mut end = start;
    loop {
        match &tokens.get(end)?.token {
            Token::LParen => return behind_closing(tokens, end),
            Token::SingleQuotedString(_) => return Some(end + 1),
            Token::Word(_) => end += 1,
            _ => return None,
        }
        match tokens.get(end).map(|token| &token.token) {
            Some(Token::Period) => end += 1,
            Some(Token::LParen) => return behind_closing(tokens, end),
            _ => return Some(end),
        }
    }
}

/// Where a part ends: before one of the words, or what closes the query.
fn end_of_part(tokens: &[TokenWithSpan], start: usize, words: &[&str]) -> usize {
    let mut depth = 0;
    for (place, token) in tokens.iter().enumerate().skip(start) {
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => depth += 1,
            Token::RParen | Token::RBracket | Token::RBrace if depth == 0 => return place,
            Token::RParen | Token::RBracket | Token::RBrace => depth -= 1,
            Token::SemiColon if depth == 0 => return place,
            _ if depth == 0 && words.iter().any(|word| is(Some(token), word)) => return place,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::*;

    #[test]
    fn pivots_are_tables() {
        let text = |query: &str| {
            let mut tokens = super::super::tokens(query, &GenericDialect {}).unwrap();
            replace_pivots(&mut tokens, &GenericDialect {});
            let words: Vec<_> = tokens.iter().map(|token| token.token.to_string()).collect();
            words.join(" ").replace(GROUPED_BY, "by")
        };
        for (query, expected) in [
            (
                "PIVOT s.t ON k USING sum(x) ORDER BY ALL",
                "SELECT * FROM s . t PIVOT ( sum ( x ) FOR k IN ( ANY ) ) ORDER BY ALL",
            ),
            (
                "FROM (PIVOT (SELECT 1) ON k IN ('a', 'b') GROUP BY a, b) WHERE a",
                "FROM ( SELECT * FROM ( SELECT 1 ) PIVOT ( count ( * ) FOR k IN ( 'a' , 'b' ) DEFAULT ON NULL ( \"by\" ( a , b ) ) ) ) WHERE a",
            ),
        ] {
            assert_eq!(text(query), expected);
        }
        let unpivoted = |query: &str| {
            let mut tokens = super::super::tokens(query, &GenericDialect {}).unwrap();
            replace_unpivots(&mut tokens, &GenericDialect {});
            let words: Vec<_> = tokens.iter().map(|token| token.token.to_string()).collect();
            words.join(" ")
        };
        for (query, expected) in [
            (
                "UNPIVOT t ON a, b INTO NAME n VALUE v ORDER BY ALL",
                "SELECT * FROM t UNPIVOT ( v FOR n IN ( a , b ) ) ORDER BY ALL",
            ),
            (
                "FROM (UNPIVOT INCLUDE NULLS (SELECT 1) ON a)",
                "FROM ( SELECT * FROM ( SELECT 1 ) UNPIVOT INCLUDE NULLS ( value FOR name IN ( a ) ) )",
            ),
        ] {
            assert_eq!(unpivoted(query), expected);
        }
        let same = "FROM t UNPIVOT ( v FOR n IN ( a ) )";
        assert_eq!(unpivoted(same), same);
        for same in [
            "FROM t PIVOT ( sum ( x ) FOR k IN ( 'a' ) )",
            "SELECT pivot FROM t",
            "PIVOT",
        ] {
            assert_eq!(text(same), same);
        }
    }
}

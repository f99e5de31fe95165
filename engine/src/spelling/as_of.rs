//! `ASOF JOIN … ON`: the parser knows it in another form alone.

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use flashmesh_planner::asof::MARK;

use super::{is, tokens_at};
use crate::error::{Error, Result};

/// Writes `a ASOF [LEFT] JOIN b ON condition` as a join with [`MARK`] in its condition.
///
/// # Errors
/// [`Error::Usage`] for one without ON.
pub(super) fn mark_joins(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> Result<bool> {
    let mut has_marked = false;
    let mut place = 0;
    while place < tokens.len() {
        if is_join(tokens, place) {
            let Some(on) = condition_of(tokens, place) else {
                return Err(Error::usage(
                    "ASOF JOIN without ON is not supported; write ASOF JOIN b ON a.key = b.key AND a.time >= b.time",
                ));
            };
            let mut mark: Vec<_> = tokens_at("mark() AND", dialect, &tokens[on]).collect();
            if let Some(Token::Word(word)) = mark.first_mut().map(|token| &mut token.token) {
                word.value = MARK.to_owned();
                // Where these stand around texts, others do around names.
                let quotes = ['"', '`'];
                word.quote_style = quotes
                    .into_iter()
                    .find(|q| dialect.is_delimited_identifier_start(*q));
            }
            tokens.splice(on + 1..on + 1, mark);
            tokens.remove(place);
            has_marked = true;
        }
        place += 1;
    }
    Ok(has_marked)
}

/// Whether such a join is there, and no table of that name.
fn is_join(tokens: &[TokenWithSpan], place: usize) -> bool {
    let at = |offset: usize, word| is(tokens.get(place + offset), word);
    let kinds = ["LEFT", "RIGHT", "FULL", "INNER"];
    let kind = usize::from(kinds.iter().any(|kind| at(1, kind)));
    let is_outer = kind == 1 && at(2, "OUTER");
    let before = place.checked_sub(1).and_then(|before| tokens.get(before));
    let names = [
        "AS", "FROM", "JOIN", "INTO", "UPDATE", "USING", "TABLE", "ONLY", "LATERAL",
    ];
    let is_name = before.is_none_or(|before| {
        matches!(before.token, Token::Comma | Token::LParen | Token::Period)
            || names.iter().any(|word| is(Some(before), word))
    });
    at(0, "ASOF") && at(1 + kind + usize::from(is_outer), "JOIN") && !is_name
}

/// Where the ON of a join is that begins at `place`: those of joins that begin behind it come before.
fn condition_of(tokens: &[TokenWithSpan], place: usize) -> Option<usize> {
    const ENDS: [&str; 11] = [
        "USING",
        "WHERE",
        "GROUP",
        "HAVING",
        "WINDOW",
        "QUALIFY",
        "ORDER",
        "LIMIT",
        "UNION",
        "EXCEPT",
        "INTERSECT",
    ];
    let mut depth = 0usize;
    // The join itself, and those within it.
    let mut open = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(place) {
        match &token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.checked_sub(1)?,
            Token::SemiColon => return None,
            _ if depth > 0 => {}
            Token::Comma => return None,
            _ if is(Some(token), "JOIN") => open += 1,
            _ if is(Some(token), "ON") => {
                open -= 1;
                if open == 0 {
                    let is_conflict = is(tokens.get(at + 1), "CONFLICT");
                    return (!is_conflict).then_some(at);
                }
            }
            _ if ENDS.iter().any(|word| is(Some(token), word)) => return None,
            _ => {}
        }
    }
    None
}

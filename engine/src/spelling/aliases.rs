//! Names in front of what they name, as DuckDB takes them: `SELECT total: sum(x)` is `SELECT sum(x) AS total`.

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::{is, tokens_at};

/// Whether a text may have such names: a word before a colon that is none of a cast or of a time of day.
pub(super) fn may_be(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_colon = |place: usize| bytes.get(place) == Some(&b':');
    let of_names = |place: &usize| {
        let before = bytes[..*place].trim_ascii_end();
        let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_\"".contains(byte);
        let word = before.iter().rev().take_while(|byte| is_of_word(byte));
        !is_colon(place - 1)
            && !is_colon(place + 1)
            && word.last().is_some_and(|first| !first.is_ascii_digit())
    };
    let mut colons = (1..bytes.len()).filter(|place| is_colon(*place));
    colons.any(|place| of_names(&place))
}

/// Writes the names of columns behind what they name.
pub(super) fn replace_aliases(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    // Of each bracket that is open, and of the statement, whether a SELECT list stands there.
    let mut lists = vec![false];
    let mut place = 0;
    while let Some(token) = tokens.get(place) {
        if let Some(behind) = behind_type(tokens, place) {
            place = behind;
            continue;
        }
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => lists.push(false),
            Token::RParen | Token::RBracket | Token::RBrace => drop(lists.pop()),
            Token::SemiColon => lists = vec![false],
            Token::Word(word) if word.quote_style.is_none() && word.keyword == Keyword::SELECT => {
                if let Some(list) = lists.last_mut() {
                    *list = true;
                }
            }
            _ if ends_item(tokens, place) && token.token != Token::Comma => {
                if let Some(list) = lists.last_mut() {
                    *list = false;
                }
            }
            _ => {}
        }
        let begins = lists.last() == Some(&true)
            && (token.token == Token::Comma
                || ["SELECT", "DISTINCT", "ALL"]
                    .iter()
                    .any(|word| is(Some(token), word)));
        let is_name = matches!(
            tokens.get(place + 1).map(|name| &name.token),
            Some(Token::Word(_))
        );
        let is_behind = tokens
            .get(place + 2)
            .is_some_and(|colon| colon.token == Token::Colon);
        if begins && is_name && is_behind {
            let mut named: Vec<_> = tokens_at("AS", dialect, &tokens[place + 1]).collect();
            named.extend(tokens.drain(place + 1..place + 3).take(1));
            let end = end_of_item(tokens, place + 1);
            tokens.splice(end..end, named);
            has_replaced = true;
        }
        place += 1;
    }
    has_replaced
}

/// Where a type ends that begins at a place and has names within, `STRUCT<a: INT>`.
fn behind_type(tokens: &[TokenWithSpan], place: usize) -> Option<usize> {
    let is_type = ["STRUCT", "ARRAY", "MAP"]
        .iter()
        .any(|word| is(tokens.get(place), word));
    if !is_type || tokens.get(place + 1)?.token != Token::Lt {
        return None;
    }
    let mut depth = 0_usize;
    let rest = tokens[place + 1..].iter();
    let end = rest.into_iter().position(|token| {
        match token.token {
            Token::Lt => depth += 1,
            Token::Gt => depth = depth.saturating_sub(1),
            Token::ShiftRight => depth = depth.saturating_sub(2),
            _ => {}
        }
        depth == 0
    })?;
    Some(place + 2 + end)
}

/// Where an item of a SELECT list ends that begins at a place.
fn end_of_item(tokens: &[TokenWithSpan], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut place = start;
    while let Some(token) = tokens.get(place) {
        if let Some(behind) = behind_type(tokens, place) {
            place = behind;
            continue;
        }
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => depth += 1,
            Token::RParen | Token::RBracket | Token::RBrace if depth == 0 => return place,
            Token::RParen | Token::RBracket | Token::RBrace => depth -= 1,
            _ if depth == 0 && ends_item(tokens, place) => return place,
            _ => {}
        }
        place += 1;
    }
    tokens.len()
}

/// Whether an item of a SELECT list ends before a token beside it.
fn ends_item(tokens: &[TokenWithSpan], place: usize) -> bool {
    let before = place.checked_sub(1).and_then(|before| tokens.get(before));
    match &tokens[place].token {
        Token::Comma | Token::SemiColon | Token::EOF => true,
        Token::Word(word) if word.quote_style.is_none() => match word.keyword {
            Keyword::FROM => !is(before, "DISTINCT"),
            Keyword::GROUP => !is(before, "WITHIN"),
            Keyword::ON => is(tokens.get(place + 1), "CONFLICT"),
            Keyword::EXCEPT => before.is_none_or(|before| before.token != Token::Mul),
            Keyword::WHERE
            | Keyword::HAVING
            | Keyword::ORDER
            | Keyword::LIMIT
            | Keyword::OFFSET
            | Keyword::FETCH
            | Keyword::RETURNING
            | Keyword::UNION
            | Keyword::INTERSECT
            | Keyword::QUALIFY
            | Keyword::WINDOW
            | Keyword::INTO => true,
            _ => false,
        },
        _ => false,
    }
}

//! Operators of DuckDB that the parser does not know, `a ** b`, `@ a` and `a GLOB b`, and lists that it takes for queries.

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::copy::separated;
use super::{is, tokens_at};

/// The function that stands for the pattern of GLOB, behind RLIKE.
pub(crate) const GLOB: &str = "flashmesh:glob";

/// Writes `a RLIKE "flashmesh:glob" (b)` for `a GLOB b`.
pub(super) fn replace_globs(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    for place in (1..tokens.len().saturating_sub(1)).rev() {
        if !is(tokens.get(place), "GLOB") || !is_infix(tokens, place) {
            continue;
        }
        let Some(end) = end_of_chain(tokens, place + 1, &[Token::StringConcat]) else {
            continue;
        };
        let words = |text: &str| tokens_at(text, dialect, &tokens[place]).collect::<Vec<_>>();
        let (called, closed) = (words(&format!("RLIKE \"{GLOB}\" (")), words(")"));
        tokens.splice(end..end, closed);
        tokens.splice(place..=place, called);
        has_replaced = true;
    }
    has_replaced
}

/// Parts words such as `@a` and `@(`, which some dialects read as one name.
pub(super) fn part_signs(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) {
    for place in (0..tokens.len()).rev() {
        if let Token::Word(word) = &tokens[place].token
            && word.quote_style.is_none()
            && let Some(rest) = word.value.strip_prefix('@')
            && !rest.starts_with('@')
        {
            let mut parts: Vec<_> = tokens_at(rest, dialect, &tokens[place]).collect();
            let sign = TokenWithSpan {
                token: Token::AtSign,
                span: tokens[place].span,
            };
            parts.insert(0, sign);
            tokens.splice(place..=place, parts);
        }
    }
}

/// Writes `abs(a)` for `@ a`, which binds behind arithmetic.
pub(super) fn replace_absolutes(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    for place in (0..tokens.len()).rev() {
        if tokens[place].token != Token::AtSign || ends_before(tokens, place) {
            continue;
        }
        let Some(end) = end_of_chain(tokens, place + 1, &ARITHMETIC) else {
            continue;
        };
        let words = |text: &str| tokens_at(text, dialect, &tokens[place]).collect::<Vec<_>>();
        let (called, closed) = (words("abs("), words(")"));
        tokens.splice(end..end, closed);
        tokens.splice(place..=place, called);
        has_replaced = true;
    }
    has_replaced
}

/// Operators that bind before `@`.
const ARITHMETIC: [Token; 7] = [
    Token::Plus,
    Token::Minus,
    Token::Mul,
    Token::Div,
    Token::DuckIntDiv,
    Token::Mod,
    Token::Caret,
];

/// Behind the operands that begin at a place, with such operators between them.
fn end_of_chain(tokens: &[TokenWithSpan], start: usize, operators: &[Token]) -> Option<usize> {
    let mut end = end_of_operand(tokens, start)?;
    while tokens
        .get(end)
        .is_some_and(|next| operators.contains(&next.token))
    {
        let mut next = end + 1;
        while tokens
            .get(next)
            .is_some_and(|more| operators.contains(&more.token))
        {
            next += 1;
        }
        end = end_of_operand(tokens, next)?;
    }
    Some(end)
}

/// Whether a word stands between operands, NOT perhaps before it.
fn is_infix(tokens: &[TokenWithSpan], place: usize) -> bool {
    let before = match is(tokens.get(place - 1), "NOT") {
        true => place - 1,
        false => place,
    };
    ends_before(tokens, before)
}

/// Writes `power(a, b)` for `a ** b`, in doubles and from the left as DuckDB does.
pub(super) fn replace_powers(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    let mut place = 0;
    while place < tokens.len() {
        let is_at = |at: usize, token: &Token| tokens.get(at).is_some_and(|t| t.token == *token);
        if is_at(place, &Token::Mul) && is_at(place + 1, &Token::Mul) {
            let start = start_of_operand(tokens, place);
            let end = end_of_operand(tokens, place + 2);
            if let (Some(start), Some(end)) = (start, end) {
                let at = tokens[place].clone();
                let words = |text: &str| tokens_at(text, dialect, &at).collect::<Vec<_>>();
                tokens.splice(end..end, words("AS DOUBLE))"));
                tokens.splice(place..place + 2, words("AS DOUBLE), CAST("));
                tokens.splice(start..start, words("power(CAST("));
                // The call is the left side of what follows.
                place = start;
                has_replaced = true;
            }
        }
        place += 1;
    }
    has_replaced
}

/// Whether an operand ends before a place.
fn ends_before(tokens: &[TokenWithSpan], place: usize) -> bool {
    let before = place.checked_sub(1);
    before.is_some_and(|before| is_word(tokens, before) || ends_operand(&tokens[before].token))
}

/// Whether an operand, or the SELECT list, comes behind a word.
fn begins_operand(word: Keyword) -> bool {
    matches!(
        word,
        Keyword::SELECT
            | Keyword::FROM
            | Keyword::JOIN
            | Keyword::LATERAL
            | Keyword::WHERE
            | Keyword::HAVING
            | Keyword::QUALIFY
            | Keyword::ON
            | Keyword::AND
            | Keyword::OR
            | Keyword::NOT
            | Keyword::BY
            | Keyword::WHEN
            | Keyword::THEN
            | Keyword::ELSE
            | Keyword::CASE
            | Keyword::IN
            | Keyword::LIKE
            | Keyword::ILIKE
            | Keyword::BETWEEN
            | Keyword::DISTINCT
            | Keyword::AS
            | Keyword::SET
            | Keyword::LIMIT
            | Keyword::OFFSET
            | Keyword::VALUES
            | Keyword::RETURNING
    )
}

fn ends_operand(token: &Token) -> bool {
    matches!(
        token,
        Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::RParen
            | Token::RBracket
            | Token::RBrace
            | Token::Placeholder(_)
    )
}

fn is_word(tokens: &[TokenWithSpan], place: usize) -> bool {
    matches!(&tokens[place].token, Token::Word(word)
        if word.quote_style.is_some() || !begins_operand(word.keyword))
}

/// Where an operand begins that ends before a place: a sign, a name, a value or what is in parentheses, with
/// calls, subscripts and casts.
fn start_of_operand(tokens: &[TokenWithSpan], end: usize) -> Option<usize> {
    let mut start = end.checked_sub(1)?;
    loop {
        match &tokens[start].token {
            Token::RParen | Token::RBracket | Token::RBrace => {
                let opened = opening(tokens, start)?;
                let is_list = tokens[opened].token != Token::LParen;
                start = opened;
                // Of a call or a subscript there is something before.
                if let Some(before) = opened.checked_sub(1) {
                    let of_call = is_word(tokens, before);
                    let of_subscript = is_list && ends_operand(&tokens[before].token);
                    if of_call || of_subscript {
                        start = before;
                        if of_subscript && !of_call {
                            continue;
                        }
                    }
                }
            }
            Token::Number(..) | Token::SingleQuotedString(_) | Token::Placeholder(_) => {}
            Token::Word(_) if is_word(tokens, start) => {}
            _ => return None,
        }
        let before = start.checked_sub(1).map(|before| &tokens[before].token);
        match before {
            Some(Token::Period | Token::DoubleColon) => start = start.checked_sub(2)?,
            Some(Token::Minus | Token::Plus) if !ends_before(tokens, start - 1) => {
                return Some(start - 1);
            }
            _ => return Some(start),
        }
    }
}

/// Where the parenthesis is that another one closes.
fn opening(tokens: &[TokenWithSpan], closing: usize) -> Option<usize> {
    let mut depth = 0;
    for place in (0..=closing).rev() {
        match &tokens[place].token {
            Token::RParen | Token::RBracket | Token::RBrace => depth += 1,
            Token::LParen | Token::LBracket | Token::LBrace => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(place);
        }
    }
    None
}

/// Behind the parenthesis that closes one.
pub(super) fn behind_closing(tokens: &[TokenWithSpan], opening: usize) -> Option<usize> {
    let mut depth = 0;
    for (place, token) in tokens.iter().enumerate().skip(opening) {
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => depth += 1,
            Token::RParen | Token::RBracket | Token::RBrace => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(place + 1);
        }
    }
    None
}

/// Behind the operand that begins at a place.
fn end_of_operand(tokens: &[TokenWithSpan], start: usize) -> Option<usize> {
    let mut end = start;
    while matches!(tokens.get(end)?.token, Token::Minus | Token::Plus) {
        end += 1;
    }
    end = match &tokens.get(end)?.token {
        Token::LParen | Token::LBracket | Token::LBrace => behind_closing(tokens, end)?,
        Token::Number(..) | Token::SingleQuotedString(_) | Token::Placeholder(_) => end + 1,
        Token::Word(_) if is_word(tokens, end) => end + 1,
        _ => return None,
    };
    loop {
        match tokens.get(end).map(|token| &token.token) {
            Some(Token::Period | Token::DoubleColon) => end += 2,
            Some(Token::LParen | Token::LBracket) => end = behind_closing(tokens, end)?,
            _ => return (end <= tokens.len()).then_some(end),
        }
    }
}

/// Writes `x IN (coalesce((SELECT …)), …)` for `x IN ((SELECT …), …)`, of which the parser takes the first for all.
pub(super) fn call_queries(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    for place in (0..tokens.len()).rev() {
        let open = place + 1;
        let mut rest = tokens.get(open..).unwrap_or_default().iter();
        let first = rest.find(|token| token.token != Token::LParen);
        let is_query = ["SELECT", "WITH", "FROM"]
            .iter()
            .any(|word| is(first, word));
        let is_nested = tokens.get(open + 1).map(|token| &token.token) == Some(&Token::LParen);
        if !is(tokens.get(place), "IN") || !is_nested || !is_query {
            continue;
        }
        let Some(end) = closes(tokens, open) else {
            continue;
        };
        let list = separated(&tokens[open + 1..end]);
        let [first, _, ..] = list.as_slice() else {
            continue;
        };
        let behind = open + 1 + first.len();
        let close = tokens[end].clone();
        tokens.insert(behind, close);
        let call: Vec<_> = tokens_at("coalesce (", dialect, &tokens[place]).collect();
        tokens.splice(open + 1..open + 1, call);
        has_replaced = true;
    }
    has_replaced
}

/// Where the parenthesis is that closes the one at a place.
fn closes(tokens: &[TokenWithSpan], open: usize) -> Option<usize> {
    let mut depth = 0;
    tokens
        .iter()
        .enumerate()
        .skip(open)
        .find_map(|(place, token)| {
            match token.token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                _ => {}
            }
            (depth == 0).then_some(place)
        })
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::*;

    fn text(query: &str) -> String {
        let mut tokens = super::super::tokens(query, &GenericDialect {}).unwrap();
        replace_powers(&mut tokens, &GenericDialect {});
        let words: Vec<_> = tokens.iter().map(|token| token.token.to_string()).collect();
        words.join(" ")
    }

    #[test]
    fn queries_in_lists_are_called() {
        let called = |query: &str| {
            let mut tokens = super::super::tokens(query, &GenericDialect {}).unwrap();
            let has_changed = call_queries(&mut tokens, &GenericDialect {});
            let words: Vec<_> = tokens.iter().map(|token| token.token.to_string()).collect();
            has_changed.then(|| words.join(" "))
        };
        for (query, expected) in [
            (
                "a IN ((SELECT 1, 2), 3, b)",
                "a IN ( coalesce ( ( SELECT 1 , 2 ) ) , 3 , b )",
            ),
            (
                "a IN ((SELECT 1) + 2, (SELECT b IN (((SELECT 3)), 4)))",
                "a IN ( coalesce ( ( SELECT 1 ) + 2 ) , ( SELECT b IN ( coalesce ( ( ( SELECT 3 ) ) ) , 4 ) ) )",
            ),
        ] {
            assert_eq!(called(query).as_deref(), Some(expected));
        }
        for same in [
            "a IN ((SELECT 1))",
            "(a, b) IN ((1, 2), (3, 4))",
            "a IN ((SELECT 1), 2",
            "a IN (",
            "IN",
        ] {
            assert_eq!(called(same), None, "{same}");
        }
    }

    #[test]
    fn powers_bind_before_all_else() {
        let power =
            |a: &str, b: &str| format!("power ( CAST ( {a} AS DOUBLE ) , CAST ( {b} AS DOUBLE ) )");
        for (query, expected) in [
            ("SELECT 5 ** 2", format!("SELECT {}", power("5", "2"))),
            (
                "SELECT -2 ** -x.y",
                format!("SELECT {}", power("- 2", "- x . y")),
            ),
            ("a - 2 ** b", format!("a - {}", power("2", "b"))),
            (
                "2 * f(a, (b))[1] ** (c + 1) + 1",
                format!("2 * {} + 1", power("f ( a , ( b ) ) [ 1 ]", "( c + 1 )")),
            ),
            ("2 ** 3 ** 2", power(&power("2", "3"), "2")),
            ("x::INT ** 2", power("x :: INT", "2")),
        ] {
            assert_eq!(text(query), expected, "{query}");
        }
        for same in ["SELECT ** 2", "2 **", "SELECT count ( * )"] {
            assert_eq!(text(same), same.replace("**", "* *"), "{same}");
        }
    }
}

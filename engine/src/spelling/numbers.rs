//! Numbers whose digits are in groups, `1_000_000` (ISO/IEC 9075-2:2023): to the parser that is a 1 with
//! an alias, in most dialects.

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Whether a text may have such numbers.
pub(super) fn may_be_grouped(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut pairs = bytes.windows(2);
    pairs.any(|pair| pair[0].is_ascii_digit() && pair[1] == b'_')
}

/// Makes one number of each that is in groups; what stands between words has to be among the tokens.
pub(super) fn join_groups(tokens: &mut Vec<TokenWithSpan>) {
    let mut joined: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    // Whether the last one has groups: what follows a point is a number of its own.
    let mut is_grouped = false;
    for token in tokens.drain(..) {
        let touches = joined
            .last()
            .is_some_and(|last| last.span.end == token.span.start);
        if let Some(last) = joined.last_mut()
            && let Token::Number(digits, _) = &mut last.token
            && touches
        {
            let more = match &token.token {
                Token::Word(word) if word.quote_style.is_none() => without_underscores(&word.value),
                Token::Number(more, _) if is_grouped => Some(more.clone()),
                _ => None,
            };
            if let Some(more) = more {
                digits.push_str(&more);
                last.span.end = token.span.end;
                is_grouped = true;
                continue;
            }
        }
        is_grouped = false;
        joined.push(token);
    }
    *tokens = joined;
}

/// The digits of what follows a number, of which each group begins with an underscore; an exponent may
/// come last.
fn without_underscores(groups: &str) -> Option<String> {
    let groups = groups.strip_prefix('_')?;
    let (digits, exponent) = match groups.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, Some(exponent)),
        None => (groups, None),
    };
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_grouped = digits.split('_').all(is_number) && exponent.is_none_or(is_number);
    let digits: String = digits.split('_').collect();
    is_grouped.then(|| match exponent {
        Some(exponent) => format!("{digits}e{exponent}"),
        None => digits,
    })
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use crate::spelling::read_otherwise;

    fn text(query: &str) -> Option<String> {
        let tokens = read_otherwise(query, &GenericDialect {})?;
        let words: Vec<_> = tokens.iter().map(|token| token.token.to_string()).collect();
        Some(words.join(" "))
    }

    #[test]
    fn groups_of_digits_are_one_number() {
        for (query, expected) in [
            ("SELECT 1_000_000", "SELECT 1000000"),
            (
                "SELECT -1_2.3_4, 1_0.5 AS a_1",
                "SELECT - 12.34 , 10.5 AS a_1",
            ),
            ("SELECT 1_0e1_0", "SELECT 1 _0e1_0"),
            ("SELECT 1_0e2 FROM t1_1", "SELECT 10e2 FROM t1_1"),
            // No numbers: names behind one.
            (
                "SELECT 1 _2, 1__2, 1_, 1_a",
                "SELECT 1 _2 , 1 __2 , 1 _ , 1 _a",
            ),
            ("SELECT '1_0', \"1_0\"", "SELECT '1_0' , \"1_0\""),
        ] {
            assert_eq!(text(query).as_deref(), Some(expected));
        }
        assert_eq!(text("SELECT 10"), None);
    }
}

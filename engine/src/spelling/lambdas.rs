//! Lambda functions and list comprehensions. The parser reads `x -> x > 1` as an operator of JSON, and not at
//! all `[x + 1 FOR x IN list]`.

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::{is, tokens_at};

/// The function that stands for a lambda function: of its parameters, and its body.
pub(crate) const LAMBDA: &str = "flashmesh:lambda";

/// Functions whose arguments behind the first may be lambda functions.
const CALLERS: [&str; 17] = [
    "any_match",
    "apply",
    "array_any_match",
    "array_apply",
    "array_filter",
    "array_first",
    "array_reduce",
    "array_transform",
    "filter",
    "list_any_match",
    "list_apply",
    "list_filter",
    "list_first",
    "list_reduce",
    "list_transform",
    "reduce",
    "try",
];

/// Whether a text may have a lambda function.
pub(super) fn may_be(text: &str) -> bool {
    (text.contains("->") || text.contains("lambda"))
        && CALLERS.iter().any(|caller| text.contains(caller))
}

/// What is open in a text.
struct Open {
    /// Whether it is the arguments of one of [`CALLERS`].
    is_call: bool,
    /// Whether a lambda function is open in it.
    has_lambda: bool,
}

/// Writes lambda functions as calls.
pub(super) fn replace_lambdas(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) {
    let mut written = Vec::with_capacity(tokens.len());
    let mut open: Vec<Open> = Vec::new();
    let mut place = 0;
    while let Some(token) = tokens.get(place) {
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => open.push(Open {
                is_call: token.token == Token::LParen
                    && place > 0
                    && CALLERS
                        .iter()
                        .any(|caller| is(tokens.get(place - 1), caller)),
                has_lambda: false,
            }),
            Token::RParen | Token::RBracket | Token::RBrace => {
                let ended = open.pop();
                let has_lambda = ended.is_some_and(|ended| ended.has_lambda);
                written.extend(
                    has_lambda
                        .then(|| tokens_at(")", dialect, token))
                        .into_iter()
                        .flatten(),
                );
            }
            _ => {}
        }
        let inner = open.last_mut().filter(|_| token.token == Token::Comma);
        let Some(inner) = inner else {
            written.push(token.clone());
            place += 1;
            continue;
        };
        if std::mem::take(&mut inner.has_lambda) {
            written.extend(tokens_at(")", dialect, token));
        }
        written.push(token.clone());
        place += 1;
        if inner.is_call
            && let Some((parameters, behind)) = parameters(tokens, place)
        {
            written.extend(tokens_at(&format!("\"{LAMBDA}\" ("), dialect, token));
            for parameter in parameters {
                written.push(parameter.clone());
                written.extend(tokens_at(",", dialect, token));
            }
            inner.has_lambda = true;
            place = behind;
        }
    }
    *tokens = written;
}

/// The parameters of a lambda function that begins at a place, and where its body does: `x -> …`,
/// `(x, y) -> …` or `lambda x, y : …`.
fn parameters(tokens: &[TokenWithSpan], start: usize) -> Option<(Vec<&TokenWithSpan>, usize)> {
    let token = |place: usize| tokens.get(place).map(|token| &token.token);
    let (mut place, closing) = match token(start)? {
        Token::LParen => (start + 1, &[Token::RParen, Token::Arrow][..]),
        _ if is(tokens.get(start), "lambda") && matches!(token(start + 1)?, Token::Word(_)) => {
            (start + 1, &[Token::Colon][..])
        }
        _ => (start, &[Token::Arrow][..]),
    };
    let mut parameters = Vec::new();
    loop {
        let Token::Word(_) = token(place)? else {
            return None;
        };
        parameters.push(&tokens[place]);
        place += 1;
        if token(place)? != &Token::Comma || closing == [Token::Arrow] {
            break;
        }
        place += 1;
    }
    let ends = closing.iter().enumerate();
    let mut ends = ends.map(|(at, end)| token(place + at) == Some(end));
    ends.all(|is_there| is_there)
        .then_some((parameters, place + closing.len()))
}

/// Writes `[body FOR x IN list IF condition]` as calls of functions on lists.
pub(super) fn replace_comprehensions(
    tokens: &mut Vec<TokenWithSpan>,
    dialect: &dyn Dialect,
) -> bool {
    let mut written: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    // Where in `written` what is open begins, and the parts of those that are comprehensions.
    let mut open: Vec<Comprehension> = Vec::new();
    let mut has_replaced = false;
    for (place, token) in tokens.iter().enumerate() {
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => open.push(Comprehension {
                start: written.len(),
                is_list: token.token == Token::LBracket,
                name: None,
                condition: None,
            }),
            Token::RParen | Token::RBracket | Token::RBrace => {
                let ended = open.pop().filter(|_| token.token == Token::RBracket);
                if let Some(call) = ended.and_then(|ended| ended.as_call(&written, dialect)) {
                    let start = call.0;
                    written.truncate(start);
                    written.extend(call.1);
                    has_replaced = true;
                    continue;
                }
            }
            Token::Word(_) => {
                if let Some(inner) = open.last_mut().filter(|inner| inner.is_list) {
                    let behind = |offset: usize| tokens.get(place + offset);
                    match inner.name {
                        None => {
                            let begins = is(Some(token), "FOR") && is(behind(2), "IN");
                            inner.name = begins.then_some(written.len() + 1);
                        }
                        // Behind a list that is whole; else it is the function or a name.
                        Some(name) if inner.condition.is_none() => {
                            let is_whole = written.len() > name + 2 && !ends_open(written.last());
                            let is_if = is_whole && is(Some(token), "IF");
                            inner.condition = is_if.then_some(written.len() + 1);
                        }
                        Some(_) => {}
                    }
                }
            }
            _ => {}
        }
        written.push(token.clone());
    }
    if has_replaced {
        *tokens = written;
    }
    has_replaced
}

/// Whether behind a token an operand follows.
fn ends_open(token: Option<&TokenWithSpan>) -> bool {
    token.is_none_or(|token| {
        !matches!(
            token.token,
            Token::Word(_)
                | Token::RParen
                | Token::RBracket
                | Token::RBrace
                | Token::Number(..)
                | Token::SingleQuotedString(_)
        )
    })
}

/// What is open in a text: where it begins, and where the parts of a comprehension are.
struct Comprehension {
    start: usize,
    is_list: bool,
    name: Option<usize>,
    /// Where what stands behind IF begins.
    condition: Option<usize>,
}

impl Comprehension {
    /// Where it begins, and what is written in its place.
    fn as_call(
        &self,
        written: &[TokenWithSpan],
        dialect: &dyn Dialect,
    ) -> Option<(usize, Vec<TokenWithSpan>)> {
        let name = self.name?;
        let end_of_list = self
            .condition
            .map_or(written.len(), |condition| condition - 1);
        let body = written.get(self.start + 1..name - 1)?;
        let list = written.get(name + 2..end_of_list)?;
        let at = written.get(name)?;
        let words = |text: &str| tokens_at(text, dialect, at).collect::<Vec<_>>();
        let lambda = |body: &[TokenWithSpan]| {
            [
                words(&format!(", \"{LAMBDA}\" (")),
                vec![at.clone()],
                words(","),
                body.to_vec(),
                words("))"),
            ]
            .concat()
        };
        let mut list = list.to_vec();
        if let Some(condition) = self.condition {
            let condition = lambda(written.get(condition..)?);
            list = [words("array_filter ("), list, condition].concat();
        }
        let call = [words("array_transform ("), list, lambda(body)].concat();
        Some((self.start, call))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::super::{read_otherwise, respelled};
    use super::*;

    fn text(tokens: Option<Vec<TokenWithSpan>>) -> String {
        let tokens = tokens.unwrap_or_default().into_iter();
        let words: Vec<_> = tokens.map(|token| token.token.to_string()).collect();
        words.join(" ").replace(LAMBDA, "fn")
    }

    #[test]
    fn lambda_functions_are_calls() {
        for (query, expected) in [
            (
                "SELECT list_filter(l, x -> x > f(1, 2)), a -> 'b'",
                "SELECT list_filter ( l , \"fn\" ( x , x > f ( 1 , 2 ) ) ) , a -> 'b'",
            ),
            (
                "list_transform(list_filter(a, x -> x), (x, i) -> apply([x], y -> y + i))",
                "list_transform ( list_filter ( a , \"fn\" ( x , x ) ) , \"fn\" ( x , i , apply ( [ x ] , \"fn\" ( y , y + i ) ) ) )",
            ),
            (
                "Array_Transform(a, lambda x, y : x, 1)",
                "Array_Transform ( a , \"fn\" ( x , y , x ) , 1 )",
            ),
            // Operators of JSON.
            (
                "list_filter(j -> 'a', (j -> 'b'))",
                "list_filter ( j -> 'a' , ( j -> 'b' ) )",
            ),
            ("list_filter(a, x ->", "list_filter ( a , \"fn\" ( x ,"),
        ] {
            assert_eq!(text(read_otherwise(query, &GenericDialect {})), expected);
        }
        assert!(read_otherwise("SELECT j -> 'a', filter", &GenericDialect {}).is_some());
        assert!(read_otherwise("SELECT j -> 'a'", &GenericDialect {}).is_none());
    }

    #[test]
    fn comprehensions_are_calls() {
        for (query, expected) in [
            (
                "[x + 1 for x in l]",
                "array_transform ( l , \"fn\" ( x , x + 1 ) )",
            ),
            (
                "SELECT [[y FOR y IN x] FOR x IN [a, [b]] IF f(x, 1) > 2]",
                "SELECT array_transform ( array_filter ( [ a , [ b ] ] , \"fn\" ( x , f ( x , 1 ) > 2 ) ) , \"fn\" ( x , array_transform ( x , \"fn\" ( y , y ) ) ) )",
            ),
        ] {
            let tokens = respelled(query, &GenericDialect {}).unwrap();
            assert_eq!(text(tokens), expected);
        }
        for (query, expected) in [
            (
                "[x FOR x IN if(a, [1], [2]) IF (x)]",
                "array_transform ( array_filter ( if ( a , [ 1 ] , [ 2 ] ) , \"fn\" ( x , ( x ) ) ) , \"fn\" ( x , x ) )",
            ),
            (
                "[if FOR if IN [1]]",
                "array_transform ( [ 1 ] , \"fn\" ( if , if ) )",
            ),
        ] {
            let tokens = respelled(query, &GenericDialect {}).unwrap();
            assert_eq!(text(tokens), expected);
        }
        for same in [
            "[a, b",
            "[x FOR x",
            "[x FOR x IN",
            "SELECT [a FOR b c]",
            "]] [x FOR",
        ] {
            assert!(
                respelled(same, &GenericDialect {}).unwrap().is_none(),
                "{same}"
            );
        }
    }
}

//! `INSERT INTO t BY NAME …`, `CREATE FUNCTION f(x) AS expression`, `CREATE MACRO IF NOT EXISTS`, `LIMIT 10%`, and `FROM t USING SAMPLE 10%`.

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::copy::separated;
use super::{is, tokens_at};

/// The only column of an INSERT whose columns go by the names that its query gives them.
pub(crate) const BY_NAME: &str = "flashmesh:by_name";

/// The schema of a macro that is made unless there is one.
pub(crate) const IF_NOT_EXISTS: &str = "flashmesh:if_not_exists";

/// Writes `CREATE MACRO "flashmesh:if_not_exists".f(x) AS …` for `CREATE MACRO IF NOT EXISTS f(x) AS …`.
pub(super) fn replace_if_not_exists(
    tokens: &mut Vec<TokenWithSpan>,
    dialect: &dyn Dialect,
) -> bool {
    let mut has_replaced = false;
    for place in (0..tokens.len()).rev() {
        let mut words = ["MACRO", "IF", "NOT", "EXISTS"].iter().enumerate();
        if words.all(|(offset, word)| is(tokens.get(place + offset), word)) {
            let schema = format!("\"{IF_NOT_EXISTS}\".");
            let words: Vec<_> = tokens_at(&schema, dialect, &tokens[place]).collect();
            tokens.splice(place + 1..place + 4, words);
            has_replaced = true;
        }
    }
    has_replaced
}

/// Writes `EXPLAIN (FORMAT pgjson)` for `EXPLAIN (FORMAT json)`, and `VACUUM t` for `VACUUM ANALYZE t`: statistics are
/// always those of the rows.
pub(super) fn replace_words(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    let mut is_explain = false;
    let mut place = 0;
    while place < tokens.len() {
        let has = |offset, word| is(tokens.get(place + offset), word);
        // Options stand before the statement.
        let begins = ["SELECT", "WITH", "FROM"].iter().any(|word| has(0, word));
        if tokens[place].token == Token::SemiColon || begins {
            is_explain = false;
        } else if has(0, "EXPLAIN") {
            is_explain = true;
        } else if is_explain && has(0, "FORMAT") && has(1, "JSON") {
            let words: Vec<_> = tokens_at("pgjson", dialect, &tokens[place]).collect();
            tokens.splice(place + 1..place + 2, words);
            has_replaced = true;
        } else if has(0, "VACUUM") && has(1, "ANALYZE") {
            tokens.remove(place + 1);
            has_replaced = true;
        }
        place += 1;
    }
    has_replaced
}

/// The call that is a LIMIT in percent.
pub(crate) const PERCENT: &str = "flashmesh:percent";

/// Writes `LIMIT "flashmesh:percent" (10)` for `LIMIT 10%` and `LIMIT 10 PERCENT`.
pub(super) fn replace_percents(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    for place in (2..tokens.len()).rev() {
        let Token::Number(number, _) = &tokens[place - 1].token else {
            continue;
        };
        let is_percent = tokens[place].token == Token::Mod || is(tokens.get(place), "PERCENT");
        if is_percent && is(tokens.get(place - 2), "LIMIT") {
            let share = format!("\"{PERCENT}\" ({number})");
            let words: Vec<_> = tokens_at(&share, dialect, &tokens[place]).collect();
            tokens.splice(place - 1..=place, words);
            has_replaced = true;
        }
    }
    has_replaced
}

/// Writes `INSERT INTO t ("flashmesh:by_name")` for `INSERT INTO t BY NAME`, and leaves out `BY POSITION`.
pub(super) fn replace_by_name(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    let mut place = 2;
    while place + 1 < tokens.len() {
        let (by_name, by_position) = (
            is(tokens.get(place + 1), "NAME"),
            is(tokens.get(place + 1), "POSITION"),
        );
        if is(tokens.get(place), "BY") && (by_name || by_position) && is_inserted(tokens, place) {
            let words: Vec<_> = match by_name {
                true => {
                    let columns = format!("(\"{BY_NAME}\")");
                    tokens_at(&columns, dialect, &tokens[place]).collect()
                }
                false => Vec::new(),
            };
            tokens.splice(place..place + 2, words);
            has_replaced = true;
        }
        place += 1;
    }
    has_replaced
}

/// Whether what ends before a place is the table of an INSERT.
fn is_inserted(tokens: &[TokenWithSpan], end: usize) -> bool {
    let mut first = end - 1;
    while first >= 2 && tokens[first - 1].token == Token::Period {
        first -= 2;
    }
    let before = first.checked_sub(1).and_then(|before| tokens.get(before));
    is(before, "INTO")
}

/// Writes MACRO for FUNCTION where an expression or a table follows the parameters at once: functions of packages
/// have a text there.
pub(super) fn replace_functions(tokens: &mut [TokenWithSpan], dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    for place in 1..tokens.len() {
        let before = tokens[..place].iter().rev().take(3);
        let is_created = is(tokens.get(place), "FUNCTION")
            && before.into_iter().any(|token| is(Some(token), "CREATE"));
        if !is_created || tokens.get(place + 2).map(|t| &t.token) != Some(&Token::LParen) {
            continue;
        }
        let Some(end) = super::operators::behind_closing(tokens, place + 2) else {
            continue;
        };
        let body = tokens.get(end + 1).map(|token| &token.token);
        let is_macro = is(tokens.get(end), "AS")
            && body.is_some_and(|body| !matches!(body, Token::SingleQuotedString(_)));
        if is_macro && let Some(word) = tokens_at("MACRO", dialect, &tokens[place]).next() {
            tokens[place] = word;
            has_replaced = true;
        }
    }
    has_replaced
}

/// Writes `FROM t TABLESAMPLE …` for `FROM t … USING SAMPLE …`, where FROM has one table.
pub(super) fn replace_samples(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    let mut place = 1;
    while place + 2 < tokens.len() {
        if !is(tokens.get(place), "USING") || !is(tokens.get(place + 1), "SAMPLE") {
            place += 1;
            continue;
        }
        let sample = sample_at(tokens, place + 2);
        let table = end_of_table(tokens, place);
        if let (Some((sample, end)), Some(table)) = (sample, table) {
            let words = format!("TABLESAMPLE {sample}");
            let words: Vec<_> = tokens_at(&words, dialect, &tokens[place]).collect();
            tokens.drain(place..end);
            tokens.splice(table..table, words);
            has_replaced = true;
        }
        place += 1;
    }
    has_replaced
}

/// Writes `TABLESAMPLE (10 PERCENT)` for `TABLESAMPLE 10%`.
pub(super) fn bracket_samples(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    for place in (0..tokens.len()).rev() {
        let behind = tokens.get(place + 1).map(|token| &token.token);
        if !is(tokens.get(place), "TABLESAMPLE") || !matches!(behind, Some(Token::Number(..))) {
            continue;
        }
        if let Some((sample, end)) = sample_at(tokens, place + 1) {
            let words: Vec<_> = tokens_at(&sample, dialect, &tokens[place]).collect();
            tokens.splice(place + 1..end, words);
            has_replaced = true;
        }
    }
    has_replaced
}

/// Writes `PRAGMA table_info('t')` for `PRAGMA table_info(t)`.
pub(super) fn quote_pragmas(tokens: &mut Vec<TokenWithSpan>) -> bool {
    let mut has_replaced = false;
    for place in (0..tokens.len().saturating_sub(3)).rev() {
        let is_called = is(tokens.get(place), "PRAGMA")
            && is(tokens.get(place + 1), "table_info")
            && tokens[place + 2].token == Token::LParen;
        let end = super::operators::behind_closing(tokens, place + 2).filter(|_| is_called);
        if let Some(end) = end
            && matches!(tokens[place + 3].token, Token::Word(_))
        {
            let name = tokens[place + 3..end - 1].iter();
            let name: String = name.map(|token| token.token.to_string()).collect();
            tokens[place + 3].token = Token::SingleQuotedString(name);
            tokens.drain(place + 4..end - 1);
            has_replaced = true;
        }
    }
    has_replaced
}

/// What is said of a sample, as TABLESAMPLE has it, and where that ends: `10%`, `10 PERCENT`, `10`, `10 ROWS`,
/// and the method in front of parentheses or in parentheses behind.
fn sample_at(tokens: &[TokenWithSpan], start: usize) -> Option<(String, usize)> {
    let at = |place: usize| tokens.get(place).map(|token| &token.token);
    let is_method = |place: usize| {
        ["BERNOULLI", "SYSTEM", "RESERVOIR"]
            .iter()
            .any(|method| is(tokens.get(place), method))
    };
    let (first, closes) = match is_method(start) && at(start + 1) == Some(&Token::LParen) {
        true => (start + 2, true),
        false => (start, false),
    };
    let Some(Token::Number(number, _)) = at(first) else {
        return None;
    };
    let (unit, mut end) = match at(first + 1) {
        Some(Token::Mod) => ("PERCENT", first + 2),
        _ if is(tokens.get(first + 1), "PERCENT") => ("PERCENT", first + 2),
        _ if is(tokens.get(first + 1), "ROWS") => ("ROWS", first + 2),
        _ => ("ROWS", first + 1),
    };
    if closes {
        (at(end) == Some(&Token::RParen)).then_some(())?;
        end += 1;
    } else if at(end) == Some(&Token::LParen)
        && is_method(end + 1)
        && at(end + 2) == Some(&Token::RParen)
    {
        end += 3;
    }
    Some((format!("({number} {unit})"), end))
}

/// Where the only table ends in the FROM of the SELECT that ends before a place.
fn end_of_table(tokens: &[TokenWithSpan], end: usize) -> Option<usize> {
    let mut depth = 0;
    let mut table = end;
    for place in (0..end).rev() {
        match &tokens[place].token {
            Token::RParen => depth += 1,
            Token::LParen if depth == 0 => return None,
            Token::LParen => depth -= 1,
            Token::Comma if depth == 0 && table == end => {}
            Token::SemiColon => return None,
            Token::Word(word) if depth == 0 && word.quote_style.is_none() => match word.keyword {
                Keyword::WHERE
                | Keyword::GROUP
                | Keyword::HAVING
                | Keyword::WINDOW
                | Keyword::QUALIFY => table = place,
                Keyword::JOIN | Keyword::SELECT => return None,
                Keyword::FROM => {
                    let is_one = separated(&tokens[place + 1..table]).len() == 1;
                    return (is_one && table > place + 1).then_some(table);
                }
                _ => {}
            },
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::*;

    type Rule = fn(&mut Vec<TokenWithSpan>, &dyn Dialect) -> bool;

    fn text(query: &str, rule: Rule) -> Option<String> {
        let mut tokens = super::super::tokens(query, &GenericDialect {}).unwrap();
        let has_changed = rule(&mut tokens, &GenericDialect {});
        let words: Vec<_> = tokens.iter().map(|token| token.token.to_string()).collect();
        has_changed.then(|| words.join(" "))
    }

    #[test]
    fn columns_go_by_name() {
        let replaced = |query| text(query, replace_by_name);
        assert_eq!(
            replaced("INSERT INTO s.t BY NAME SELECT 1 AS a"),
            Some(format!("INSERT INTO s . t ( \"{BY_NAME}\" ) SELECT 1 AS a"))
        );
        assert_eq!(
            replaced("INSERT INTO t BY POSITION SELECT 1"),
            Some("INSERT INTO t SELECT 1".into())
        );
        assert_eq!(replaced("SELECT 1 UNION BY NAME SELECT 2"), None);
        assert_eq!(replaced("SELECT a FROM t ORDER BY name"), None);
    }

    #[test]
    fn words_of_others_are_ours() {
        let replaced = |query| text(query, replace_words);
        for (query, expected) in [
            (
                "EXPLAIN (ANALYZE, FORMAT json) SELECT format, json FROM t",
                "EXPLAIN ( ANALYZE , FORMAT pgjson ) SELECT format , json FROM t",
            ),
            ("VACUUM ANALYZE s.t; VACUUM", "VACUUM s . t ; VACUUM"),
        ] {
            assert_eq!(replaced(query).as_deref(), Some(expected));
        }
        assert_eq!(replaced("SELECT 1 AS format, 2 AS json"), None);
    }

    #[test]
    fn functions_of_expressions_are_macros() {
        let replaced = |query| text(query, |tokens, dialect| replace_functions(tokens, dialect));
        assert_eq!(
            replaced("CREATE OR REPLACE FUNCTION f(x, y := 1) AS x + y"),
            Some("CREATE OR REPLACE MACRO f ( x , y := 1 ) AS x + y".into())
        );
        for same in [
            "CREATE FUNCTION f() LANGUAGE hls AS 'f.fmk'",
            "CREATE FUNCTION f() AS 'f.fmk'",
            "DROP FUNCTION f",
        ] {
            assert_eq!(replaced(same), None, "{same}");
        }
    }

    #[test]
    fn samples_stand_behind_the_table() {
        let replaced = |query| text(query, replace_samples);
        for (query, expected) in [
            (
                "SELECT a FROM t x WHERE a IN (SELECT 1, 2) USING SAMPLE 50% ORDER BY a",
                "SELECT a FROM t x TABLESAMPLE ( 50 PERCENT ) WHERE a IN ( SELECT 1 , 2 ) ORDER BY a",
            ),
            (
                "SELECT a FROM (SELECT 1, 2) t USING SAMPLE reservoir(3 ROWS)",
                "SELECT a FROM ( SELECT 1 , 2 ) t TABLESAMPLE ( 3 ROWS )",
            ),
            (
                "FROM t USING SAMPLE 10 PERCENT (bernoulli)",
                "FROM t TABLESAMPLE ( 10 PERCENT )",
            ),
            ("FROM t USING SAMPLE 5", "FROM t TABLESAMPLE ( 5 ROWS )"),
        ] {
            assert_eq!(replaced(query).as_deref(), Some(expected), "{query}");
        }
        for same in [
            "SELECT 1 FROM a, b USING SAMPLE 5",
            "SELECT 1 FROM a JOIN b USING (sample)",
        ] {
            assert_eq!(replaced(same), None, "{same}");
        }
    }
}

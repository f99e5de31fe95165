//! What other databases take and the parser does not, in words that it takes.

mod aliases;
mod as_of;
mod copy;
mod definitions;
mod lambdas;
mod numbers;
mod operators;
mod pivots;

use std::ops::Range;

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

pub(crate) use self::definitions::{BY_NAME, IF_NOT_EXISTS, PERCENT};
pub(crate) use self::lambdas::LAMBDA;
pub(crate) use self::operators::GLOB;
pub(crate) use self::pivots::GROUPED_BY;
use crate::error::{Error, Result};

/// The column that a clause of MERGE sets which is to do nothing.
pub(crate) const NOTHING: &str = "flashmesh:nothing";
/// The function that stands for a table at a version: of the table, and what AT says.
pub(crate) const VERSION_OF: &str = "flashmesh:at";

/// The function that stands for the rows of a statement, of its text.
pub(crate) const SHOWN: &str = "flashmesh:shown";

/// Names that no text has: what they stand for is written out before a text is kept.
const MARKS: [&str; 8] = [
    BY_NAME,
    GLOB,
    GROUPED_BY,
    IF_NOT_EXISTS,
    LAMBDA,
    NOTHING,
    PERCENT,
    SHOWN,
];

/// Options of a sequence in the order in which the parser wants them.
const OPTIONS: [&str; 6] = [
    "INCREMENT",
    "MINVALUE",
    "MAXVALUE",
    "START",
    "CACHE",
    "CYCLE",
];

/// The words of a text that can't be parsed, if there is another way to say it: options of identity
/// columns in any order, `DO NOTHING` in MERGE, versions of tables, columns called `key` or `index`, COPY
/// with options in parentheses or FROM a file, queries that begin with FROM and have no SELECT, `TABLE t`,
/// comprehensions of lists, `ASOF JOIN … ON`, WITH with the hint MATERIALIZED, `a ** b`, `@ a`, FILTER without
/// WHERE, structs as types, `INSERT … BY NAME`, functions that are macros, macros IF NOT EXISTS, USING SAMPLE,
/// PIVOT and UNPIVOT as queries, LIMIT and TABLESAMPLE in percent, PRAGMA of a table's name, DESCRIBE, SUMMARIZE and
/// SHOW in FROM, lists that end in a comma, and names of columns in front of these.
///
/// # Errors
/// [`Error::Usage`] for options of COPY that are none, and for ASOF JOIN without ON.
pub(crate) fn respelled(query: &str, dialect: &dyn Dialect) -> Result<Option<Vec<TokenWithSpan>>> {
    let Some(mut tokens) = tokens(query, dialect) else {
        return Ok(None);
    };
    let has_sorted = sort_options(&mut tokens);
    let has_replaced = replace_nothing(&mut tokens, dialect);
    let has_versions = replace_versions(&mut tokens, dialect);
    let has_quoted = quote_columns(&mut tokens);
    let has_copies = copy::replace_copies(&mut tokens, dialect)?;
    let has_selected = select_all(&mut tokens, dialect);
    let has_hints = drop_hints(&mut tokens);
    let has_tables = select_tables(&mut tokens, dialect);
    let has_lists = lambdas::replace_comprehensions(&mut tokens, dialect);
    let has_nearest = as_of::mark_joins(&mut tokens, dialect)?;
    let has_globs = operators::replace_globs(&mut tokens, dialect);
    let has_names = definitions::replace_by_name(&mut tokens, dialect);
    let has_macros = definitions::replace_functions(&mut tokens, dialect);
    let has_samples = definitions::replace_samples(&mut tokens, dialect);
    let has_shares_of_rows = definitions::bracket_samples(&mut tokens, dialect);
    let has_pragmas = definitions::quote_pragmas(&mut tokens);
    let has_powers = operators::replace_powers(&mut tokens, dialect);
    let has_absolutes = operators::replace_absolutes(&mut tokens, dialect);
    let has_conditions = definitions::replace_if_not_exists(&mut tokens, dialect);
    let has_pivots = pivots::replace_pivots(&mut tokens, dialect);
    let has_unpivots = pivots::replace_unpivots(&mut tokens, dialect);
    let has_shares = definitions::replace_percents(&mut tokens, dialect);
    let has_filters = write_where(&mut tokens, dialect);
    let has_structs = bracket_structs(&mut tokens);
    let has_commas = drop_commas(&mut tokens);
    let has_intervals = bare_intervals(&mut tokens);
    let has_shown = call_shown(&mut tokens, dialect);
    let has_words = definitions::replace_words(&mut tokens, dialect);
    let has_queries = operators::call_queries(&mut tokens, dialect);
    let has_aliases = aliases::replace_aliases(&mut tokens, dialect);
    let has_changed = has_sorted
        || has_replaced
        || has_versions
        || has_quoted
        || has_copies
        || has_selected
        || has_hints
        || has_tables
        || has_lists
        || has_nearest
        || has_globs
        || has_names
        || has_macros
        || has_samples
        || has_shares_of_rows
        || has_pragmas
        || has_powers
        || has_absolutes
        || has_conditions
        || has_pivots
        || has_unpivots
        || has_shares
        || has_filters
        || has_structs
        || has_commas
        || has_intervals
        || has_shown
        || has_words
        || has_queries
        || has_aliases;
    Ok(has_changed.then_some(tokens))
}

/// Takes commas out behind which a list ends.
fn drop_commas(tokens: &mut Vec<TokenWithSpan>) -> bool {
    let before = tokens.len();
    tokens.dedup_by(|next, comma| {
        comma.token == Token::Comma && ends_list(&next.token) && {
            std::mem::swap(next, comma);
            true
        }
    });
    if tokens.last().is_some_and(|last| last.token == Token::Comma) {
        tokens.pop();
    }
    tokens.len() < before
}

fn ends_list(token: &Token) -> bool {
    match token {
        Token::RParen | Token::RBracket | Token::SemiColon | Token::EOF => true,
        Token::Word(word) => word.keyword == Keyword::FROM && word.quote_style.is_none(),
        _ => false,
    }
}

/// The words of a text that can be parsed and would mean something else: that creates a table whose
/// columns are called `key` or `index`, or has numbers like `1_000`, lambda functions, GLOB, `@a`,
/// `INTERVAL (1) DAY`, `FROM (DESCRIBE t)` or `SELECT a: b`.
pub(crate) fn read_otherwise(query: &str, dialect: &dyn Dialect) -> Option<Vec<TokenWithSpan>> {
    let text = query.to_ascii_lowercase();
    let has = |word: &str| text.contains(word);
    let has_columns = has("create") && has("table") && (has("key") || has("index"));
    let has_numbers = numbers::may_be_grouped(query);
    let has_lambdas = lambdas::may_be(&text);
    let has_globs = has("glob");
    let has_signs = has("@");
    let begins_with = |word: &&str| {
        text.split('(')
            .skip(1)
            .any(|rest| rest.trim_start().starts_with(&word.to_ascii_lowercase()))
    };
    let has_shown = has("from") && SHOWING.iter().any(begins_with);
    let has_intervals = has("interval") && has("(");
    let has_aliases = aliases::may_be(query);
    let may_be = [
        has_columns,
        has_numbers,
        has_lambdas,
        has_globs,
        has_signs,
        has_shown,
        has_intervals,
        has_aliases,
    ];
    if !may_be.contains(&true) {
        return None;
    }
    let mut tokens = tokens(query, dialect)?;
    let has_quoted = has_columns && quote_columns(&mut tokens);
    let has_globs = has_globs && operators::replace_globs(&mut tokens, dialect);
    let has_signs = has_signs && operators::replace_absolutes(&mut tokens, dialect);
    let has_shown = has_shown && call_shown(&mut tokens, dialect);
    let has_intervals = has_intervals && bare_intervals(&mut tokens);
    let has_aliases = has_aliases && aliases::replace_aliases(&mut tokens, dialect);
    let has_changed = [
        has_quoted,
        has_numbers,
        has_lambdas,
        has_globs,
        has_signs,
        has_shown,
        has_intervals,
        has_aliases,
    ];
    has_changed.contains(&true).then_some(tokens)
}

/// Refuses the names that [`respelled`] gives to what it writes otherwise: where a user wrote them they would
/// mean that.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn check_names(query: &str, dialect: &dyn Dialect) -> Result<()> {
    if !query.contains("flashmesh:") {
        return Ok(());
    }
    // What can't be read the parser tells.
    let tokens = Tokenizer::new(dialect, query)
        .tokenize()
        .unwrap_or_default();
    let ours = tokens.iter().find_map(|token| match token {
        Token::Word(word) if MARKS.contains(&word.value.as_str()) => Some(&word.value),
        _ => None,
    });
    match ours {
        Some(name) => Err(Error::usage(format!(
            "the name \"{name}\" is flashmesh's own; choose another"
        ))),
        None => Ok(()),
    }
}

fn tokens(text: &str, dialect: &dyn Dialect) -> Option<Vec<TokenWithSpan>> {
    let mut tokens = Tokenizer::new(dialect, text)
        .tokenize_with_location()
        .ok()?;
    if numbers::may_be_grouped(text) {
        numbers::join_groups(&mut tokens);
    }
    tokens.retain(|token| !matches!(token.token, Token::Whitespace(_)));
    operators::part_signs(&mut tokens, dialect);
    if lambdas::may_be(&text.to_ascii_lowercase()) {
        lambdas::replace_lambdas(&mut tokens, dialect);
    }
    Some(tokens)
}

/// Whether a token is that word, and no name in quotes.
pub(crate) fn is_word(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(found)
        if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
}

/// Whether there is that word.
fn is(token: Option<&TokenWithSpan>, word: &str) -> bool {
    token.is_some_and(|token| is_word(&token.token, word))
}

/// Sorts the options of identity columns, and of sequences that are made.
fn sort_options(tokens: &mut [TokenWithSpan]) -> bool {
    let mut has_sorted = false;
    for place in 0..tokens.len() {
        let options =
            options_of_column(tokens, place).or_else(|| options_of_sequence(tokens, place));
        if let Some(options) = options {
            has_sorted |= sort_groups(&mut tokens[options]);
        }
    }
    has_sorted
}

/// What stands in parentheses behind IDENTITY at a place.
fn options_of_column(tokens: &[TokenWithSpan], place: usize) -> Option<Range<usize>> {
    let opens = tokens.get(place + 1).map(|token| &token.token) == Some(&Token::LParen);
    let is_column = is(tokens.get(place), "IDENTITY") && opens;
    let options = tokens[place..].iter().filter(|_| is_column);
    let end = options
        .into_iter()
        .position(|token| token.token == Token::RParen)?;
    Some(place + 2..place + end)
}

/// What stands behind the name of a sequence, where SEQUENCE at a place is that of CREATE.
fn options_of_sequence(tokens: &[TokenWithSpan], place: usize) -> Option<Range<usize>> {
    let is_word = |token: &TokenWithSpan, words: &[&str]| {
        let mut words = words.iter();
        words.any(|word| is(Some(token), word))
    };
    let mut before = tokens[..place].iter().rev();
    let before = before.find(|token| !is_word(token, &["TEMP", "TEMPORARY"]));
    if !is(before, "CREATE") || !is(tokens.get(place), "SEQUENCE") {
        return None;
    }
    let statement = &tokens[place..];
    let ends = |token: &TokenWithSpan| matches!(token.token, Token::SemiColon | Token::EOF);
    let end = statement.iter().position(ends).unwrap_or(statement.len());
    let begins = |token: &TokenWithSpan| is_word(token, &OPTIONS) || is_word(token, &["NO"]);
    let first = statement[..end].iter().position(begins)?;
    Some(place + first..place + end)
}

/// Sorts options of a sequence.
fn sort_groups(options: &mut [TokenWithSpan]) -> bool {
    // The arguments of a function, or `IDENTITY (start, increment)`.
    if options.iter().any(|token| token.token == Token::Comma) {
        return false;
    }
    let mut groups: Vec<Vec<TokenWithSpan>> = Vec::new();
    for (at, token) in options.iter().enumerate() {
        let begins = OPTIONS.iter().any(|option| is(Some(token), option));
        let is_negated = at > 0 && is(options.get(at - 1), "NO");
        match groups.last_mut() {
            Some(group) if is_negated || !(begins || is(Some(token), "NO")) => {
                group.push(token.clone());
            }
            _ => groups.push(vec![token.clone()]),
        }
    }
    let rank = |group: &Vec<TokenWithSpan>| {
        let of = |token: &TokenWithSpan| OPTIONS.iter().position(|o| is(Some(token), o));
        group.iter().find_map(of)
    };
    let has_sorted = !groups.is_sorted_by_key(rank);
    groups.sort_by_key(rank);
    options.clone_from_slice(&groups.concat());
    has_sorted
}

/// Puts names of new columns in quotes that begin MySQL's keys and indexes, which flashmesh has not:
/// `CREATE TABLE t (key INT, …)`.
fn quote_columns(tokens: &mut [TokenWithSpan]) -> bool {
    let mut has_quoted = false;
    let mut is_create = false;
    for place in 1..tokens.len() {
        let at = |place: usize| tokens.get(place).map(|token| &token.token);
        match at(place) {
            Some(Token::SemiColon) => is_create = false,
            _ => is_create |= is(tokens.get(place), "TABLE"),
        }
        let begins = matches!(at(place - 1), Some(Token::LParen | Token::Comma));
        let has_type = matches!(at(place + 1), Some(Token::Word(_)));
        let is_name = ["KEY", "INDEX"]
            .iter()
            .any(|word| is(tokens.get(place), word));
        if is_create
            && begins
            && has_type
            && is_name
            && let Token::Word(word) = &mut tokens[place].token
        {
            // As it would be without quotes.
            word.value = word.value.to_lowercase();
            word.quote_style = Some('"');
            word.keyword = Keyword::NoKeyword;
            has_quoted = true;
        }
    }
    has_quoted
}

/// Puts what sets [`NOTHING`] in place of `THEN DO NOTHING`.
fn replace_nothing(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    let mut place = 0;
    // Whether the clause is one of rows that are not in the table.
    let mut inserts = false;
    while place < tokens.len() {
        let at = |offset: usize, word| is(tokens.get(place + offset), word);
        if at(0, "WHEN") && at(1, "MATCHED") {
            inserts = false;
        }
        if at(0, "WHEN") && at(1, "NOT") && at(2, "MATCHED") {
            inserts = !(at(3, "BY") && at(4, "SOURCE"));
        }
        if at(0, "THEN") && at(1, "DO") && at(2, "NOTHING") {
            let words = match inserts {
                true => format!("INSERT (\"{NOTHING}\") VALUES (NULL)"),
                false => format!("UPDATE SET \"{NOTHING}\" = NULL"),
            };
            let words = tokens_at(&words, dialect, &tokens[place + 1]);
            tokens.splice(place + 1..place + 3, words);
            has_replaced = true;
        }
        place += 1;
    }
    has_replaced
}

/// Writes `t AT (VERSION => 17)` as a function of `t` and what AT says.
fn replace_versions(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    let mut place = 0;
    while place < tokens.len() {
        let token = |offset: usize| tokens.get(place + offset).map(|token| &token.token);
        let says = ["VERSION", "TIMESTAMP"]
            .into_iter()
            .find(|word| is(tokens.get(place + 2), word));
        let is_at = is(tokens.get(place), "AT")
            && token(1) == Some(&Token::LParen)
            && token(3) == Some(&Token::RArrow);
        let (Some(says), true, Some(first)) = (says, is_at, start_of_name(tokens, place)) else {
            place += 1;
            continue;
        };
        // `name AT ( VERSION => …` becomes `"flashmesh:at" ( name , "version" => …`.
        let at = tokens[place].clone();
        let words = |text: &str| tokens_at(text, dialect, &at).collect::<Vec<_>>();
        let says = words(&format!(", \"{}\"", says.to_ascii_lowercase()));
        tokens.splice(place..place + 3, says);
        let called = words(&format!("\"{VERSION_OF}\" ("));
        place += called.len();
        tokens.splice(first..first, called);
        has_replaced = true;
    }
    has_replaced
}

/// Leaves out `[NOT] MATERIALIZED` between AS and a query in parentheses.
fn drop_hints(tokens: &mut Vec<TokenWithSpan>) -> bool {
    let before = tokens.len();
    let mut place = 0;
    while place < tokens.len() {
        let at = |offset: usize, word| is(tokens.get(place + offset), word);
        let hint = match (at(0, "AS"), at(1, "NOT")) {
            (true, true) if at(2, "MATERIALIZED") => 2,
            (true, false) if at(1, "MATERIALIZED") => 1,
            _ => 0,
        };
        let behind = tokens.get(place + 1 + hint).map(|token| &token.token);
        if hint > 0 && behind == Some(&Token::LParen) {
            tokens.drain(place + 1..place + 1 + hint);
        }
        place += 1;
    }
    tokens.len() < before
}

/// Takes the number of `INTERVAL (1) DAY` out of its parentheses, with which the parser has it for digits of a type.
fn bare_intervals(tokens: &mut Vec<TokenWithSpan>) -> bool {
    let before = tokens.len();
    let mut place = 0;
    while place + 4 < tokens.len() {
        let is_unit = matches!(&tokens[place + 4].token, Token::Word(word)
            if matches!(word.keyword, Keyword::YEAR | Keyword::YEARS | Keyword::QUARTER
                | Keyword::MONTH | Keyword::MONTHS | Keyword::WEEK | Keyword::WEEKS
                | Keyword::DAY | Keyword::DAYS | Keyword::HOUR | Keyword::HOURS
                | Keyword::MINUTE | Keyword::MINUTES | Keyword::SECOND | Keyword::SECONDS
                | Keyword::MILLISECOND | Keyword::MILLISECONDS
                | Keyword::MICROSECOND | Keyword::MICROSECONDS));
        if is_unit
            && is(tokens.get(place), "INTERVAL")
            && tokens[place + 1].token == Token::LParen
            && matches!(tokens[place + 2].token, Token::Number(..))
            && tokens[place + 3].token == Token::RParen
        {
            tokens.remove(place + 3);
            tokens.remove(place + 1);
        }
        place += 1;
    }
    tokens.len() < before
}

/// Statements that show something.
const SHOWING: [&str; 4] = ["DESCRIBE", "DESC", "SUMMARIZE", "SHOW"];

/// Writes DESCRIBE, SUMMARIZE and SHOW in parentheses as a function of their text.
fn call_shown(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    let mut place = 0;
    while place + 3 < tokens.len() {
        place += 1;
        let mut words = SHOWING.iter();
        // Behind the word is what it shows: elsewhere it is a column.
        let is_shown = words.any(|word| is(tokens.get(place + 1), word))
            && matches!(
                tokens[place + 2].token,
                Token::Word(_) | Token::SingleQuotedString(_)
            );
        let is_distinct = place > 1 && is(tokens.get(place - 2), "DISTINCT");
        let is_table =
            is(tokens.get(place - 1), "FROM") && !is_distinct || is(tokens.get(place - 1), "JOIN");
        if !is_shown || !is_table || tokens[place].token != Token::LParen {
            continue;
        }
        let Some(end) = operators::behind_closing(tokens, place) else {
            continue;
        };
        let statement = tokens[place + 1..end - 1].iter();
        let statement = statement.map(|token| match &token.token {
            Token::SingleQuotedString(text) => format!("'{}'", text.replace('\'', "''")),
            other => other.to_string(),
        });
        let statement: Vec<_> = statement.collect();
        let statement = statement.join(" ").replace('\'', "''");
        let call = format!("\"{SHOWN}\" ('{statement}')");
        let call: Vec<_> = tokens_at(&call, dialect, &tokens[place]).collect();
        tokens.splice(place..end, call);
        has_replaced = true;
    }
    has_replaced
}

/// Writes WHERE in `FILTER (condition)` behind a call.
fn write_where(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_written = false;
    for place in (1..tokens.len().saturating_sub(2)).rev() {
        let is_filter = tokens[place - 1].token == Token::RParen
            && is(tokens.get(place), "FILTER")
            && tokens[place + 1].token == Token::LParen;
        if is_filter && !is(tokens.get(place + 2), "WHERE") {
            let words = tokens_at("WHERE", dialect, &tokens[place + 1]);
            tokens.splice(place + 2..place + 2, words);
            has_written = true;
        }
    }
    has_written
}

/// Writes `STRUCT<name type>` for the type `STRUCT(name type)`.
fn bracket_structs(tokens: &mut [TokenWithSpan]) -> bool {
    let mut has_replaced = false;
    for place in 0..tokens.len().saturating_sub(3) {
        let is_name = |token: &Token| {
            matches!(token, Token::Word(word) if word.quote_style.is_some()
                || !matches!(word.keyword, Keyword::AS | Keyword::CASE | Keyword::NOT | Keyword::DISTINCT))
        };
        let is_type = is(tokens.get(place), "STRUCT")
            && tokens[place + 1].token == Token::LParen
            && is_name(&tokens[place + 2].token)
            && is_name(&tokens[place + 3].token);
        let end = operators::behind_closing(tokens, place + 1).filter(|_| is_type);
        if let Some(end) = end {
            tokens[place + 1].token = Token::Lt;
            tokens[end - 1].token = Token::Gt;
            has_replaced = true;
        }
    }
    has_replaced
}

/// Writes `SELECT *` in front of FROM, where a query has none.
fn select_all(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let places = without_select(tokens);
    for place in &places {
        let words = tokens_at("SELECT *", dialect, &tokens[*place]);
        tokens.splice(place..place, words);
    }
    !places.is_empty()
}

/// Writes `SELECT * FROM t` for a statement `TABLE t`, or such a query in parentheses.
fn select_tables(tokens: &mut Vec<TokenWithSpan>, dialect: &dyn Dialect) -> bool {
    let mut has_replaced = false;
    for place in (0..tokens.len()).rev() {
        let before = place.checked_sub(1).map(|before| &tokens[before].token);
        let begins = matches!(before, None | Some(Token::SemiColon | Token::LParen));
        if begins && is(tokens.get(place), "TABLE") {
            let words = tokens_at("SELECT * FROM", dialect, &tokens[place]);
            tokens.splice(place..=place, words);
            has_replaced = true;
        }
    }
    has_replaced
}

/// Where in a text that can't be parsed `SELECT *` is missing in front of FROM, from the last to the first.
fn without_select(tokens: &[TokenWithSpan]) -> Vec<usize> {
    let mut missing = Vec::new();
    // What is open, the statement first.
    let mut open = vec![Part::at(0)];
    for (place, token) in tokens.iter().enumerate() {
        let is_inner = open.len() > 1;
        let part = open.last_mut().expect("a statement is always open");
        match &token.token {
            Token::LParen => open.push(Part::at(place + 1)),
            // One that nothing has opened is the parser's to tell.
            Token::RParen if is_inner => missing.extend(open.pop().and_then(|ended| ended.lacks)),
            Token::SemiColon => {
                missing.extend(open.drain(..).filter_map(|ended| ended.lacks));
                open.push(Part::at(place + 1));
            }
            Token::Word(word) if word.quote_style.is_none() => match word.keyword {
                Keyword::FROM if !part.has_begun => {
                    part.has_begun = true;
                    let may_begin = part.may_begin_with(place, tokens, is_inner);
                    part.lacks = may_begin.then_some(place);
                }
                Keyword::SELECT => {
                    part.has_begun = true;
                    part.lacks = None;
                }
                Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT => {
                    missing.extend(part.lacks);
                    *part = Part::at(place + 1);
                }
                // Behind WITH, too.
                Keyword::DELETE => part.has_begun = true,
                _ => {}
            },
            _ => {}
        }
    }
    missing.extend(open.into_iter().filter_map(|ended| ended.lacks));
    missing.sort_unstable_by(|a, b| b.cmp(a));
    missing
}

/// What has been read of a statement, of what stands in parentheses, or of a side of a set operation.
struct Part {
    start: usize,
    /// A FROM from here on is none that it begins with.
    has_begun: bool,
    /// The FROM that it begins with, as long as no SELECT has come behind.
    lacks: Option<usize>,
}

impl Part {
    fn at(start: usize) -> Self {
        Self {
            start,
            has_begun: false,
            lacks: None,
        }
    }

    /// Whether FROM at a place begins a query. It is a word of functions, too (`extract(year FROM d)`), and of
    /// statements (`DELETE FROM t`, `REVOKE READ FROM u`).
    fn may_begin_with(&self, place: usize, tokens: &[TokenWithSpan], is_inner: bool) -> bool {
        let keyword = |token: &TokenWithSpan| match &token.token {
            Token::Word(word) => word.keyword,
            _ => Keyword::NoKeyword,
        };
        let mut before = tokens[self.start..place].iter().map(keyword).peekable();
        match before.peek().copied() {
            Some(Keyword::WITH) => true,
            Some(
                Keyword::CREATE
                | Keyword::DESCRIBE
                | Keyword::EXPLAIN
                | Keyword::INSERT
                | Keyword::PREPARE,
            ) => !is_inner,
            // Of set operations, if there is any.
            _ => before.all(|word| {
                matches!(
                    word,
                    Keyword::ALL | Keyword::DISTINCT | Keyword::BY | Keyword::NAME
                )
            }),
        }
    }
}

/// Where the name of a table begins that ends before a place; not of one that INSERT names, which
/// takes no function.
fn start_of_name(tokens: &[TokenWithSpan], end: usize) -> Option<usize> {
    let is_word = |place: usize| {
        matches!(
            tokens.get(place).map(|token| &token.token),
            Some(Token::Word(_))
        )
    };
    let is_period = |place: usize| tokens[place].token == Token::Period;
    let mut first = end.checked_sub(1).filter(|place| is_word(*place))?;
    while first >= 2 && is_period(first - 1) && is_word(first - 2) {
        first -= 2;
    }
    let before = first.checked_sub(1).and_then(|place| tokens.get(place));
    (!is(before, "INTO") || is_merged(tokens, first)).then_some(first)
}

/// Whether the name is that of `MERGE INTO`.
fn is_merged(tokens: &[TokenWithSpan], first: usize) -> bool {
    let merge = first.checked_sub(2).and_then(|place| tokens.get(place));
    is(merge, "MERGE")
}

/// Words in the place of another, for errors too.
fn tokens_at(
    text: &str,
    dialect: &dyn Dialect,
    place: &TokenWithSpan,
) -> impl Iterator<Item = TokenWithSpan> + use<> {
    let span = place.span;
    let tokens = tokens(text, dialect).unwrap_or_default();
    tokens.into_iter().map(move |token| TokenWithSpan {
        token: token.token,
        span,
    })
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::*;

    fn text(query: &str) -> Option<String> {
        let tokens = respelled(query, &GenericDialect {}).unwrap()?;
        let words: Vec<_> = tokens.iter().map(|token| token.token.to_string()).collect();
        Some(words.join(" "))
    }

    #[test]
    fn options_come_in_the_parsers_order() {
        assert_eq!(
            text("(a INT GENERATED ALWAYS AS IDENTITY (START WITH 5 NO CYCLE INCREMENT BY -2))"),
            Some(
                "( a INT GENERATED ALWAYS AS IDENTITY ( INCREMENT BY - 2 START WITH 5 NO CYCLE ) )"
                    .into()
            )
        );
        assert_eq!(
            text("CREATE TEMP SEQUENCE a.s START 5 INCREMENT BY 2; SELECT 1"),
            Some("CREATE TEMP SEQUENCE a . s INCREMENT BY 2 START 5 ; SELECT 1".into())
        );
        for same in [
            "CREATE SEQUENCE s INCREMENT 1 START 2",
            "DROP SEQUENCE start increment",
            "IDENTITY (INCREMENT BY 1 START WITH 2)",
            "IDENTITY (",
            "IDENTITY (1, 2)",
            "SELECT identity(start, increment)",
            "IDENTITY",
        ] {
            assert_eq!(text(same), None, "{same}");
        }
    }

    #[test]
    fn doing_nothing_is_said_otherwise() {
        assert_eq!(
            text("WHEN MATCHED THEN DO NOTHING WHEN NOT MATCHED AND a = 'it''s' THEN do nothing"),
            Some(format!(
                "WHEN MATCHED THEN UPDATE SET \"{NOTHING}\" = NULL \
                 WHEN NOT MATCHED AND a = 'it's' THEN INSERT ( \"{NOTHING}\" ) VALUES ( NULL )"
            ))
        );
        assert_eq!(text("ON CONFLICT DO NOTHING"), None);
    }

    #[test]
    fn columns_may_be_called_key_and_index() {
        assert_eq!(
            text("CREATE TABLE kv (Key INT PRIMARY KEY, index TEXT)"),
            Some("CREATE TABLE kv ( \"key\" INT PRIMARY KEY , \"index\" TEXT )".into())
        );
        for same in [
            "CREATE TABLE t (a INT, PRIMARY KEY (a))",
            "SELECT (key AS b)",
        ] {
            assert_eq!(text(same), None, "{same}");
        }
    }

    #[test]
    fn queries_may_begin_with_from() {
        for (query, expected) in [
            ("FROM t WHERE a > 1", "SELECT * FROM t WHERE a > 1"),
            (
                "SELECT 1; FROM (FROM t WHERE a) GROUP BY ALL",
                "SELECT 1 ; SELECT * FROM ( SELECT * FROM t WHERE a ) GROUP BY ALL",
            ),
            (
                "WITH x AS (SELECT a FROM t) FROM x WHERE b IN (FROM u) UNION ALL FROM t LIMIT 1",
                "WITH x AS ( SELECT a FROM t ) SELECT * FROM x WHERE b IN ( SELECT * FROM u ) UNION ALL SELECT * FROM t LIMIT 1",
            ),
            (
                "CREATE VIEW v AS FROM t WHERE a IS DISTINCT FROM extract(year FROM b)",
                "CREATE VIEW v AS SELECT * FROM t WHERE a IS DISTINCT FROM extract ( year FROM b )",
            ),
        ] {
            assert_eq!(text(query).as_deref(), Some(expected));
        }
        for same in [
            "FROM t SELECT a WHERE b",
            "SELECT a FROM t WHERE",
            "DELETE FROM t WHERE",
            "UPDATE t SET a = 1 FROM u WHERE",
            "SELECT a IS DISTINCT FROM b FROM t WHERE",
            "SELECT extract(year FROM a), trim(BOTH FROM b) WHERE",
            "INSERT INTO u SELECT a FROM t WHERE",
            "REVOKE READ ON t FROM u",
            "FROM t) SELECT",
        ] {
            assert_eq!(text(same), None, "{same}");
        }
    }

    #[test]
    fn names_may_stand_in_front() {
        for (query, expected) in [
            (
                "SELECT a: 1, b: f(x, y) FILTER (WHERE z) FROM t",
                "SELECT 1 AS a , f ( x , y ) FILTER ( WHERE z ) AS b FROM t",
            ),
            (
                "SELECT DISTINCT \"A b\": x IS DISTINCT FROM y, (SELECT c: max(z) FROM u) WHERE x",
                "SELECT DISTINCT x IS DISTINCT FROM y AS \"A b\" , ( SELECT max ( z ) AS c FROM u ) WHERE x",
            ),
            (
                "SELECT s: {'a': 1, b: [2, c]} UNION SELECT d: 4; SELECT e:5",
                "SELECT { 'a' : 1 , b : [ 2 , c ] } AS s UNION SELECT 4 AS d ; SELECT 5 AS e",
            ),
        ] {
            assert_eq!(text(query).as_deref(), Some(expected));
        }
        for same in [
            "SELECT x[a:b], {c: d}, e FROM t WHERE f, g: h",
            "SELECT {'a': 1}::STRUCT<a: INT, b: ARRAY<STRUCT<c: INT, d: INT>>>, e",
            "INSERT INTO t SELECT 1 RETURNING a, b:",
        ] {
            assert_eq!(text(same), None, "{same}");
        }
    }

    #[test]
    fn hints_of_with_are_left_out() {
        assert_eq!(
            text("WITH a AS MATERIALIZED (SELECT 1), b AS NOT MATERIALIZED (SELECT materialized)"),
            Some("WITH a AS ( SELECT 1 ) , b AS ( SELECT materialized )".into())
        );
        assert_eq!(text("SELECT 1 AS materialized"), None);
    }

    #[test]
    fn versions_of_tables_are_arguments() {
        assert_eq!(
            text("SELECT b FROM a.\"t\" AT (VERSION => 17) x JOIN t at (timestamp => now()) y"),
            Some(format!(
                "SELECT b FROM \"{VERSION_OF}\" ( a . \"t\" , \"version\" => 17 ) x JOIN \"{VERSION_OF}\" ( t , \"timestamp\" => now ( ) ) y"
            ))
        );
        for same in [
            "INSERT INTO t AT (VERSION => 1)",
            "t AT (version)",
            "AT (VERSION => 1)",
        ] {
            assert_eq!(text(same), None, "{same}");
        }
    }
}

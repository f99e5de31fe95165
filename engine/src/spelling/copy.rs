//! COPY in the words of PostgreSQL and DuckDB: `COPY t TO 'f' (FORMAT parquet, …)`, `COPY t FROM 'f'`.

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::{is, tokens_at};
use crate::error::{Error, Result};

/// What the options are called here; all others keep their names.
const NAMES: [(&str, &str); 10] = [
    ("HEADER", "has_header"),
    ("DELIMITER", "delimiter"),
    ("DELIM", "delimiter"),
    ("SEP", "delimiter"),
    ("NULL", "null_value"),
    ("NULLSTR", "null_value"),
    ("CODEC", "compression"),
    ("ROW_GROUP_SIZE", "max_row_group_size"),
    ("DATEFORMAT", "date_format"),
    ("TIMESTAMPFORMAT", "timestamp_format"),
];

/// Compressions of Parquet that want a level, with the one that they have by default elsewhere.
const LEVELS: [(&str, &str); 3] = [
    ("zstd", "zstd(3)"),
    ("gzip", "gzip(6)"),
    ("brotli", "brotli(4)"),
];

/// What is so in any case: files that are there stay, and one of the same name is written over.
const ALWAYS: [&str; 2] = ["APPEND", "OVERWRITE_OR_IGNORE"];

/// Files whose columns have types of their own.
const TYPED: [&str; 8] = [
    "parquet", "parq", "pq", "arrow", "arrows", "feather", "ipc", "avro",
];

/// Writes options in parentheses as STORED AS, PARTITIONED BY and OPTIONS, and COPY … FROM as INSERT.
///
/// # Errors
/// [`Error::Usage`] for options that are none, and for what COPY does not read.
pub(super) fn replace_copies(
    tokens: &mut Vec<TokenWithSpan>,
    dialect: &dyn Dialect,
) -> Result<bool> {
    let mut has_replaced = false;
    let mut place = 0;
    while place < tokens.len() {
        let begins = place == 0
            || tokens[place - 1].token == Token::SemiColon
            || is(tokens.get(place - 1), "EXPLAIN");
        if !begins || !is(tokens.get(place), "COPY") {
            place += 1;
            continue;
        }
        let rest = &tokens[place..];
        let length = rest.iter().position(|t| t.token == Token::SemiColon);
        let end = place + length.unwrap_or(rest.len());
        let copy = &tokens[place..end];
        let replaced = match options_replaced(copy, dialect)? {
            Some(replaced) => Some(replaced),
            None => insert(copy, dialect)?,
        };
        if let Some(replaced) = replaced {
            has_replaced = true;
            tokens.splice(place..end, replaced);
        }
        place += 1;
    }
    Ok(has_replaced)
}

/// `COPY … TO 'path' [WITH] (…)` in DataFusion's words.
fn options_replaced(
    copy: &[TokenWithSpan],
    dialect: &dyn Dialect,
) -> Result<Option<Vec<TokenWithSpan>>> {
    let is_target =
        |place: &usize| is(copy.get(*place), "TO") && quoted(copy.get(place + 1)).is_some();
    let Some(to) = (0..copy.len()).rev().find(is_target) else {
        return Ok(None);
    };
    let path = to + 1;
    let opens = path + 1 + usize::from(is(copy.get(path + 1), "WITH"));
    let Some([open, given @ .., close]) = copy.get(opens..) else {
        return Ok(None);
    };
    if open.token != Token::LParen || close.token != Token::RParen {
        return Ok(None);
    }
    let given = match given {
        [] => Vec::new(),
        given => separated(given),
    };
    let options: Vec<_> = given.into_iter().map(named).collect::<Result<_>>()?;
    let find = |name| options.iter().find(|(other, _)| other == name);
    let word = |text: &str| tokens_at(text, dialect, open).collect::<Vec<_>>();
    let mut replaced = copy[..=path].to_vec();

    let ends = |path: &str| {
        [".parquet", ".parq", ".pq"]
            .iter()
            .any(|of| path.ends_with(of))
    };
    let mut is_parquet = quoted(copy.get(path)).is_some_and(ends);
    if let Some((_, value)) = find("FORMAT") {
        let format = text_of("FORMAT", value)?;
        if !format.chars().all(|c| c.is_ascii_alphanumeric()) || format.is_empty() {
            return Err(Error::usage(format!("COPY does not write '{format}'")));
        }
        is_parquet = format.eq_ignore_ascii_case("parquet");
        replaced.extend(word(&format!("STORED AS {format}")));
    }
    if let Some((_, value)) = find("PARTITION_BY") {
        let columns = match value {
            [open, columns @ .., close]
                if open.token == Token::LParen && close.token == Token::RParen =>
            {
                columns
            }
            columns => columns,
        };
        let is_name = |token: &TokenWithSpan| matches!(token.token, Token::Word(_) | Token::Comma);
        if !columns.iter().all(is_name) {
            return Err(Error::usage("PARTITION_BY takes names of columns"));
        }
        replaced.extend(word("PARTITIONED BY ("));
        replaced.extend(columns.iter().cloned().map(|mut token| {
            // The names are taken as they stand.
            if let Token::Word(word) = &mut token.token
                && word.quote_style.take().is_none()
            {
                word.value = word.value.to_lowercase();
            }
            token
        }));
        replaced.extend(word(")"));
    }
    let mut settings = Vec::new();
    for (name, value) in &options {
        let has = |names: &[&str]| names.contains(&name.as_str());
        if has(&["FORMAT", "PARTITION_BY"]) || has(&ALWAYS) && truth(name, &text_of(name, value)?)?
        {
            continue;
        }
        if has(&["ARRAY", "OVERWRITE"]) {
            if !truth(name, &text_of(name, value)?)? {
                continue;
            }
            let way_out = match name.as_str() {
                "ARRAY" => {
                    "COPY writes JSON with a row in each line, which is what ARRAY false says"
                }
                _ => "COPY removes no files; remove them before",
            };
            return Err(Error::usage(format!("{name} is not supported: {way_out}")));
        }
        let known = NAMES.iter().find(|(theirs, _)| theirs == name);
        let ours = known.map_or_else(|| name.to_lowercase(), |(_, ours)| (*ours).to_owned());
        let mut value = text_of(name, value)?;
        if name == "HEADER" {
            value = truth(name, &value)?.to_string();
        }
        if is_parquet && ours == "compression" {
            value = value.to_lowercase();
            if let Some((_, level)) = LEVELS.iter().find(|(codec, _)| *codec == value) {
                value = (*level).to_owned();
            }
        }
        settings.push((ours, value));
    }
    if !settings.is_empty() {
        replaced.extend(word("OPTIONS ("));
        for (place, (name, value)) in settings.into_iter().enumerate() {
            replaced.extend(word(if place == 0 { "" } else { "," }));
            for text in [format!("format.{name}"), value] {
                replaced.push(TokenWithSpan {
                    token: Token::SingleQuotedString(text),
                    span: open.span,
                });
            }
        }
        replaced.extend(word(")"));
    }
    Ok(Some(replaced))
}

/// The text of a literal.
fn quoted(token: Option<&TokenWithSpan>) -> Option<&str> {
    match &token?.token {
        Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => Some(text),
        _ => None,
    }
}

/// What commas separate that stand in no parentheses.
pub(super) fn separated(tokens: &[TokenWithSpan]) -> Vec<&[TokenWithSpan]> {
    let mut depth = 0;
    let parts = tokens.split(|token| {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        depth == 0 && token.token == Token::Comma
    });
    parts.collect()
}

/// The name of an option, in capitals, and what stands behind it.
fn named(option: &[TokenWithSpan]) -> Result<(String, &[TokenWithSpan])> {
    if let [name, value @ ..] = option
        && let Token::Word(name) = &name.token
    {
        return Ok((name.value.to_uppercase(), value));
    }
    Err(Error::usage("an option of COPY is a name and a value"))
}

/// An option's value: one word, number or literal, or nothing.
fn text_of(name: &str, value: &[TokenWithSpan]) -> Result<String> {
    match value {
        [] => Ok(String::new()),
        [one] => match (&one.token, quoted(Some(one))) {
            (_, Some(text)) => Ok(text.to_owned()),
            (Token::Word(word), _) => Ok(word.value.clone()),
            (Token::Number(digits, _), _) => Ok(digits.clone()),
            (other, _) => Err(Error::usage(format!("{name} can't be {other}"))),
        },
        _ => Err(Error::usage(format!(
            "{name} takes one value; write it in quotes"
        ))),
    }
}

/// Options of COPY … FROM a CSV file, and what `read_csv` calls them.
const OF_READING: [(&str, &str); 12] = [
    ("COMPRESSION", "compression"),
    ("DELIM", "delim"),
    ("DELIMITER", "delim"),
    ("ESCAPE", "escape"),
    ("HEADER", "header"),
    ("NEW_LINE", "new_line"),
    ("NULL", "nullstr"),
    ("NULLSTR", "nullstr"),
    ("QUOTE", "quote"),
    ("SAMPLE_SIZE", "sample_size"),
    ("SEP", "delim"),
    ("SEPARATOR", "delim"),
];

/// `COPY t (a, b) FROM 'path' [WITH] (…)` as INSERT. What is in CSV files comes as text, which becomes what the columns
/// are: types that are guessed would make a 7 of a `007` for a column of text.
fn insert(copy: &[TokenWithSpan], dialect: &dyn Dialect) -> Result<Option<Vec<TokenWithSpan>>> {
    let is_source =
        |place: &usize| is(copy.get(*place), "FROM") && quoted(copy.get(place + 1)).is_some();
    let Some(from) = (2..copy.len()).find(is_source) else {
        return Ok(None);
    };
    let path = quoted(copy.get(from + 1)).unwrap_or_default();
    let ending = path.rsplit('.').next().unwrap_or_default();
    let is_typed = TYPED.iter().any(|typed| ending.eq_ignore_ascii_case(typed));
    let of_json = ["json", "jsonl", "ndjson"];
    let mut options = given_options(&copy[from + 2..])?;
    let mut format = None;
    options.retain(|(name, value)| {
        let is_format = name == "FORMAT";
        if is_format {
            format = Some(*value);
        }
        !is_format
    });
    let format = format.map(|value| text_of("FORMAT", value)).transpose()?;
    let is_csv = match &format {
        Some(format) => format.eq_ignore_ascii_case("csv"),
        None => !is_typed && !of_json.iter().any(|json| ending.eq_ignore_ascii_case(json)),
    };
    if !is_csv && (!is_typed || !options.is_empty()) {
        return Err(Error::usage(
            "COPY … FROM reads CSV files, and Parquet, Arrow and Avro files without options; others are loaded by \
             `flashmesh load --append`, or in Python by con.load(name, path, mode='append')",
        ));
    }
    let mut insert: Vec<_> = tokens_at("INSERT INTO", dialect, &copy[0]).collect();
    insert.extend_from_slice(&copy[1..from]);
    if !is_csv {
        insert.extend(tokens_at("SELECT *", dialect, &copy[from]));
        insert.extend_from_slice(&copy[from..from + 2]);
        return Ok(Some(insert));
    }
    insert.extend(tokens_at("SELECT * FROM read_csv(", dialect, &copy[from]));
    insert.push(copy[from + 1].clone());
    insert.extend(tokens_at(", all_varchar = true", dialect, &copy[from]));
    for (name, value) in options {
        let Some((_, ours)) = OF_READING.iter().find(|(theirs, _)| *theirs == name) else {
            let known = OF_READING.map(|(name, _)| name).join(", ");
            return Err(Error::usage(format!(
                "COPY … FROM has no option {name}; there are: FORMAT, {known}"
            )));
        };
        insert.extend(tokens_at(&format!(", {ours} ="), dialect, &copy[from]));
        match (*ours, value) {
            ("header", value) => {
                let is_there = truth("HEADER", &text_of("HEADER", value)?)?;
                insert.extend(tokens_at(&is_there.to_string(), dialect, &copy[from]));
            }
            (_, value) => insert.extend_from_slice(value),
        }
    }
    insert.extend(tokens_at(")", dialect, &copy[from]));
    Ok(Some(insert))
}

/// Options in parentheses, if there are any: their names in capitals, and what stands behind them.
fn given_options(behind: &[TokenWithSpan]) -> Result<Vec<(String, &[TokenWithSpan])>> {
    let given = match behind {
        [with, rest @ ..] if is(Some(with), "WITH") => rest,
        rest => rest,
    };
    match given {
        [] => Ok(Vec::new()),
        [open, given @ .., close]
            if open.token == Token::LParen && close.token == Token::RParen =>
        {
            let given = match given {
                [] => Vec::new(),
                given => separated(given),
            };
            given.into_iter().map(named).collect()
        }
        _ => Err(Error::usage(
            "options of COPY stand in parentheses: COPY t FROM 'x.csv' (HEADER, DELIMITER ';')",
        )),
    }
}

/// What an option says that is on where nothing stands behind it.
fn truth(name: &str, value: &str) -> Result<bool> {
    match value.to_lowercase().as_str() {
        "0" | "off" | "false" => Ok(false),
        "" | "1" | "on" | "true" => Ok(true),
        _ => Err(Error::usage(format!(
            "{name} is true or false, not '{value}'"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::super::respelled;

    fn text(query: &str) -> Option<String> {
        let tokens = respelled(query, &GenericDialect {}).unwrap()?;
        let words: Vec<_> = tokens.iter().map(|token| token.token.to_string()).collect();
        Some(words.join(" "))
    }

    #[test]
    fn options_are_those_of_datafusion() {
        for (query, expected) in [
            (
                "COPY t TO 'f.csv' (HEADER, DELIMITER ';'); SELECT 1",
                "COPY t TO 'f.csv' OPTIONS ( 'format.has_header' 'true' , 'format.delimiter' ';' ) ; SELECT 1",
            ),
            (
                "EXPLAIN COPY (SELECT a, 'to' FROM t) TO 'f' WITH (FORMAT 'parquet', COMPRESSION ZSTD, PARTITION_BY (A, \"B c\"))",
                "EXPLAIN COPY ( SELECT a , 'to' FROM t ) TO 'f' STORED AS parquet PARTITIONED BY ( a , B c ) OPTIONS ( 'format.compression' 'zstd(3)' )",
            ),
            (
                "COPY t TO 'f.csv' (HEADER off, NULL 'it''s', DELIMITER E'\\t', COMPRESSION gzip)",
                "COPY t TO 'f.csv' OPTIONS ( 'format.has_header' 'false' , 'format.null_value' 'it's' , 'format.delimiter' '\t' , 'format.compression' 'gzip' )",
            ),
            (
                "COPY t TO 'f' (FORMAT JSON)",
                "COPY t TO 'f' STORED AS JSON",
            ),
            ("COPY t TO 'f' ()", "COPY t TO 'f'"),
            (
                "COPY t TO 'f.pq' (ARRAY false, ROW_GROUP_SIZE 10, COMPRESSION zstd, OVERWRITE_OR_IGNORE)",
                "COPY t TO 'f.pq' OPTIONS ( 'format.max_row_group_size' '10' , 'format.compression' 'zstd(3)' )",
            ),
            (
                "COPY s.t (a, b) FROM 'f.parquet'; COPY u FROM 'f.arrow'",
                "INSERT INTO s . t ( a , b ) SELECT * FROM 'f.parquet' ; INSERT INTO u SELECT * FROM 'f.arrow'",
            ),
            (
                "COPY t FROM 'f.csv' (FORMAT csv, HEADER, DELIMITER ';', NULL '-'); COPY u (a) FROM 'f.tsv' WITH (HEADER off)",
                "INSERT INTO t SELECT * FROM read_csv ( 'f.csv' , all_varchar = true , header = true , delim = ';' , nullstr = '-' ) ; INSERT INTO u ( a ) SELECT * FROM read_csv ( 'f.tsv' , all_varchar = true , header = false )",
            ),
        ] {
            assert_eq!(text(query).as_deref(), Some(expected));
        }
        for same in [
            "COPY t TO 'f.csv'",
            "COPY t TO 'f.csv' STORED AS CSV OPTIONS ('format.has_header' 'true')",
            "COPY t TO 'f.csv' (",
            "COPY t TO 'f.csv' (;",
            "COPY t FROM STDIN",
            "SELECT copy FROM 'f.csv'",
            "COPY FROM 'f.csv'",
        ] {
            assert_eq!(text(same), None, "{same}");
        }
    }

    #[test]
    fn what_is_no_option_is_told() {
        for (query, expected) in [
            (
                "COPY t TO 'f' (FORMAT 'csv; DROP TABLE t')",
                "does not write",
            ),
            ("COPY t TO 'f' (FORMAT 'c''sv')", "does not write"),
            ("COPY t TO 'f' (FORMAT)", "does not write ''"),
            ("COPY t TO 'f' (PARTITION_BY (a + 1))", "names of columns"),
            (
                "COPY t TO 'f.csv' (HEADER maybe)",
                "HEADER is true or false",
            ),
            ("COPY t TO 'f.csv' ('HEADER')", "a name and a value"),
            ("COPY t TO 'f.json' (ARRAY)", "a row in each line"),
            ("COPY t TO 'f' (OVERWRITE)", "remove them before"),
            ("COPY t TO 'f.csv' (NULL a b)", "NULL takes one value"),
            (
                "COPY t FROM 'f.dat' (FORMAT json)",
                "flashmesh load --append",
            ),
            ("COPY t FROM 'f.jsonl'", "flashmesh load --append"),
            (
                "COPY t FROM 'f.csv' (NO_SUCH 1)",
                "no option NO_SUCH; there are: FORMAT, ",
            ),
            ("COPY t FROM 'f.csv' CSV HEADER", "stand in parentheses"),
            ("COPY t FROM 'f.parquet' (NULL '')", "without options"),
        ] {
            let said = respelled(query, &GenericDialect {}).map(drop);
            let said = said.map_err(|error| error.to_string()).unwrap_err();
            assert!(said.contains(expected), "{query}: {said}");
        }
    }
}

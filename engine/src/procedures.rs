//! `BACKUP DATABASE` and `CLEAR CACHE`, which are calls of procedures: parsers of drivers that do
//! not know the statements know CALL.

use datafusion::sql::parser::{DFParser, Statement as ParsedStatement};
use datafusion::sql::sqlparser::ast::{
    self, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Value, ValueWithSpan,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::ParserError;
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::error::{Error, Result};
use crate::own_statement::{BackupStatement, OwnStatement};

/// The procedure that `BACKUP DATABASE` is.
const BACKUP: &str = "backup_database";
/// The procedure that `CLEAR CACHE` is.
const CLEAR_CACHE: &str = "clear_cache";

/// Parses `BACKUP DATABASE` or `CLEAR CACHE` as the call of a procedure, where one comes next.
pub(crate) fn parse_procedure(
    parser: &mut DFParser<'_>,
) -> Result<Option<ParsedStatement>, ParserError> {
    match parse_backup(parser)? {
        None => parse_clear(parser),
        backup => Ok(backup),
    }
}

/// Parses `BACKUP DATABASE TO 'place' [KEEP n]`.
fn parse_backup(parser: &mut DFParser<'_>) -> Result<Option<ParsedStatement>, ParserError> {
    let parser = &mut parser.parser;
    if !is_word(&parser.peek_token_ref().token, "backup") {
        return Ok(None);
    }
    parser.next_token();
    parser.expect_keyword_is(Keyword::DATABASE)?;
    parser.expect_keyword_is(Keyword::TO)?;
    let mut arguments = vec![parser.parse_value()?];
    if is_word(&parser.peek_token_ref().token, "keep") {
        parser.next_token();
        arguments.push(parser.parse_value()?);
    }
    Ok(Some(call(BACKUP, arguments)))
}

/// Parses `CLEAR CACHE`.
fn parse_clear(parser: &mut DFParser<'_>) -> Result<Option<ParsedStatement>, ParserError> {
    let parser = &mut parser.parser;
    if !is_word(&parser.peek_token_ref().token, "clear") {
        return Ok(None);
    }
    parser.next_token();
    let next = parser.next_token();
    match is_word(&next.token, "cache") {
        true => Ok(Some(call(CLEAR_CACHE, vec![]))),
        false => parser.expected("CACHE", next),
    }
}

/// Whether a token is that word, and no name in quotes.
fn is_word(token: &Token, text: &str) -> bool {
    matches!(token, Token::Word(word)
        if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(text))
}

/// The call of a procedure.
fn call(procedure: &str, arguments: Vec<ValueWithSpan>) -> ParsedStatement {
    let arguments = arguments.into_iter();
    let arguments = arguments
        .map(|value| FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value))))
        .collect();
    let call = ast::Function {
        name: Ident::new(procedure).into(),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args: arguments,
            clauses: vec![],
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    };
    ParsedStatement::Statement(Box::new(ast::Statement::Call(call)))
}

/// What a parsed CALL is.
///
/// # Errors
/// [`Error::Usage`] for another procedure, and for other arguments.
pub(crate) fn parsed_call(call: &ast::Function) -> Result<OwnStatement> {
    if !call.name.to_string().eq_ignore_ascii_case(CLEAR_CACHE) {
        return Ok(OwnStatement::Backup(parsed_backup(call)?));
    }
    match &call.args {
        FunctionArguments::List(list) if list.args.is_empty() => Ok(OwnStatement::ClearCache),
        FunctionArguments::None => Ok(OwnStatement::ClearCache),
        _ => Err(Error::usage(format!("{CLEAR_CACHE} takes no arguments"))),
    }
}

/// The backup that a parsed CALL is.
///
/// # Errors
/// [`Error::Usage`] for another procedure, of which there is none, and for other arguments.
fn parsed_backup(call: &ast::Function) -> Result<BackupStatement> {
    let name = call.name.to_string();
    if !name.eq_ignore_ascii_case(BACKUP) {
        return Err(Error::usage(format!(
            "there is no procedure '{name}', only {BACKUP} and {CLEAR_CACHE}"
        )));
    }
    let wrong = || {
        Error::usage(
            "a backup takes the folder or the URL that it goes to, and how many backups stay there: \
             BACKUP DATABASE TO '/backups/shop' KEEP 7",
        )
    };
    let FunctionArguments::List(list) = &call.args else {
        return Err(wrong());
    };
    let values = list.args.iter().map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value))) => Some(&value.value),
        _ => None,
    });
    let values: Option<Vec<_>> = values.collect();
    let (to, keep) = match values.as_deref() {
        Some([to]) => (to, None),
        Some([to, Value::Number(keep, _)]) => {
            (to, Some(keep.to_string().parse().map_err(|_| wrong())?))
        }
        _ => return Err(wrong()),
    };
    match to {
        Value::SingleQuotedString(to) if !to.is_empty() => Ok(BackupStatement {
            to: to.clone(),
            keep,
        }),
        _ => Err(wrong()),
    }
}

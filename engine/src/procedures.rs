//! `BACKUP DATABASE`, `CHECK DATABASE`, `CLEAR CACHE`, `EXPLAIN RACK`, `SUMMARIZE`, and statements about users, roles and
//! grants, which are calls of procedures:
//! parsers of drivers that do not know the statements know CALL.

use datafusion::sql::parser::{DFParser, Statement as ParsedStatement};
use datafusion::sql::sqlparser::ast::{
    self, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Query, Value,
};
use datafusion::sql::sqlparser::dialect::DuckDbDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::accounts::{self, AccountStatement};
use crate::error::{Error, Result};
use crate::names::{CHANGE_ACCOUNTS, name_of, quoted_text};
use crate::own_statement::{BackupStatement, MacroStatement, OwnStatement};
use crate::spelling::is_word;

/// The procedure that `BACKUP DATABASE` is.
const BACKUP: &str = "backup_database";
/// The procedure that `CHECK DATABASE` is.
const CHECK: &str = "check_database";
/// The procedure that `CLEAR CACHE` is.
const CLEAR_CACHE: &str = "clear_cache";
/// The procedure that `CHECKPOINT` is.
const CHECKPOINT: &str = "checkpoint";
/// The procedure that `DROP MACRO` is.
const DROP_MACRO: &str = "drop_macro";
/// The procedures that `SET VARIABLE` and `RESET VARIABLE` are.
const SET_VARIABLE: &str = "set_variable";
const RESET_VARIABLE: &str = "reset_variable";
/// The procedure that `EXPLAIN RACK` is.
const EXPLAIN_RACK: &str = "explain_rack";
/// The procedure that `SUMMARIZE` is.
const SUMMARIZE: &str = "summarize";

/// Parses `BACKUP DATABASE`, `CHECK DATABASE`, `CLEAR CACHE`, `EXPLAIN RACK`, `SUMMARIZE` or a statement about accounts as
/// the call of a procedure, and `SHOW GRANTS` as a query, where one comes next.
pub(crate) fn parse_procedure(
    parser: &mut DFParser<'_>,
) -> Result<Option<ParsedStatement>, ParserError> {
    let parser = &mut parser.parser;
    if let Some(query) = parse_show_grants(parser)? {
        let query = ast::Statement::Query(query);
        return Ok(Some(ParsedStatement::Statement(Box::new(query))));
    }
    for parse in [
        parse_accounts,
        parse_backup,
        parse_check,
        parse_checkpoint,
        parse_clear,
        parse_drop_macro,
        parse_variable,
        parse_explain_rack,
        parse_summarize,
    ] {
        if let Some((procedure, arguments)) = parse(parser)? {
            return Ok(Some(call(procedure, arguments)));
        }
    }
    Ok(None)
}

/// A procedure with its arguments.
type Called = (&'static str, Vec<Expr>);

/// Parses `CREATE USER`, `GRANT` and their like.
fn parse_accounts(parser: &mut Parser<'_>) -> Result<Option<Called>, ParserError> {
    if !accounts::comes_next(parser) {
        return Ok(None);
    }
    let text = accounts::take_text(parser)?;
    let text = Expr::Value(Value::SingleQuotedString(text).into());
    Ok(Some((CHANGE_ACCOUNTS, vec![text])))
}

/// Parses `SHOW GRANTS [FOR name]`.
fn parse_show_grants(parser: &mut Parser<'_>) -> Result<Option<Box<Query>>, ParserError> {
    let is_grants = is_word(&parser.peek_token_ref().token, "show")
        && is_word(&parser.peek_nth_token(1).token, "grants");
    if !is_grants {
        return Ok(None);
    }
    parser.advance_token();
    parser.advance_token();
    let mut query = "SELECT * FROM system.grants".to_string();
    if parser.parse_keyword(Keyword::FOR) {
        let name = name_of(&parser.parse_identifier()?);
        query = format!("{query} WHERE grantee = '{}'", name.replace('\'', "''"));
    }
    let query = Parser::new(&DuckDbDialect {})
        .try_with_sql(&query)?
        .parse_query()?;
    Ok(Some(query))
}

/// Parses `BACKUP DATABASE TO 'place' [KEEP n]`.
fn parse_backup(parser: &mut Parser<'_>) -> Result<Option<Called>, ParserError> {
    if !is_word(&parser.peek_token_ref().token, "backup") {
        return Ok(None);
    }
    parser.next_token();
    parser.expect_keyword_is(Keyword::DATABASE)?;
    parser.expect_keyword_is(Keyword::TO)?;
    let mut arguments = vec![Expr::Value(parser.parse_value()?)];
    if is_word(&parser.peek_token_ref().token, "keep") {
        parser.next_token();
        arguments.push(Expr::Value(parser.parse_value()?));
    }
    Ok(Some((BACKUP, arguments)))
}

/// Parses `CHECK DATABASE`.
fn parse_check(parser: &mut Parser<'_>) -> Result<Option<Called>, ParserError> {
    if !is_word(&parser.peek_token_ref().token, "check") {
        return Ok(None);
    }
    parser.next_token();
    parser.expect_keyword_is(Keyword::DATABASE)?;
    Ok(Some((CHECK, vec![])))
}

/// Parses `[FORCE] CHECKPOINT`.
fn parse_checkpoint(parser: &mut Parser<'_>) -> Result<Option<Called>, ParserError> {
    let is_forced = is_word(&parser.peek_token_ref().token, "force");
    let checkpoint = parser.peek_nth_token(usize::from(is_forced));
    if !is_word(&checkpoint.token, "checkpoint") {
        return Ok(None);
    }
    for _ in 0..=usize::from(is_forced) {
        parser.advance_token();
    }
    Ok(Some((CHECKPOINT, vec![])))
}

/// Parses `DROP MACRO [TABLE] [IF EXISTS] name`.
fn parse_drop_macro(parser: &mut Parser<'_>) -> Result<Option<Called>, ParserError> {
    let is_macro = is_word(&parser.peek_token_ref().token, "drop")
        && is_word(&parser.peek_nth_token(1).token, "macro");
    if !is_macro {
        return Ok(None);
    }
    parser.advance_token();
    parser.advance_token();
    // There are no two of one name.
    let _ = parser.parse_keyword(Keyword::TABLE);
    let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    let name = name_of(&parser.parse_identifier()?);
    let name = Expr::Value(Value::SingleQuotedString(name).into());
    let if_exists = Expr::Value(Value::Boolean(if_exists).into());
    Ok(Some((DROP_MACRO, vec![name, if_exists])))
}

/// Parses `SET VARIABLE name = value` and `RESET VARIABLE name`.
fn parse_variable(parser: &mut Parser<'_>) -> Result<Option<Called>, ParserError> {
    let is_set = is_word(&parser.peek_token_ref().token, "set");
    let is_variable = (is_set || is_word(&parser.peek_token_ref().token, "reset"))
        && is_word(&parser.peek_nth_token(1).token, "variable")
        && matches!(parser.peek_nth_token(2).token, Token::Word(_))
        && !is_word(&parser.peek_nth_token(2).token, "to");
    if !is_variable {
        return Ok(None);
    }
    parser.advance_token();
    parser.advance_token();
    let name = parser.parse_identifier()?.value.to_lowercase();
    let name = Expr::Value(Value::SingleQuotedString(name).into());
    if !is_set {
        return Ok(Some((RESET_VARIABLE, vec![name])));
    }
    if !parser.parse_keyword(Keyword::TO) {
        parser.expect_token(&Token::Eq)?;
    }
    Ok(Some((SET_VARIABLE, vec![name, parser.parse_expr()?])))
}

/// The name of the variable that a CALL sets, and the value, if it does.
pub(crate) fn parsed_variable(call: &ast::Function) -> Option<(String, Option<Expr>)> {
    let name = call.name.to_string().to_lowercase();
    let FunctionArguments::List(list) = &call.args else {
        return None;
    };
    let args = list.args.iter().map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) => Some(argument),
        _ => None,
    });
    let args: Vec<_> = args.collect::<Option<_>>()?;
    match (name.as_str(), args.as_slice()) {
        (SET_VARIABLE, [name, value]) => Some((quoted_text(name)?.into(), Some((*value).clone()))),
        (RESET_VARIABLE, [name]) => Some((quoted_text(name)?.into(), None)),
        _ => None,
    }
}

/// The macro that a CALL drops, if it does.
fn parsed_drop_macro(call: &ast::Function) -> Option<MacroStatement> {
    let FunctionArguments::List(list) = &call.args else {
        return None;
    };
    let is_it = call.name.to_string().eq_ignore_ascii_case(DROP_MACRO);
    match list.args.as_slice() {
        [
            FunctionArg::Unnamed(FunctionArgExpr::Expr(name)),
            FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(if_exists))),
        ] if is_it => Some(MacroStatement::Drop {
            name: quoted_text(name)?.into(),
            if_exists: if_exists.value == Value::Boolean(true),
        }),
        _ => None,
    }
}

/// Parses `CLEAR CACHE`.
fn parse_clear(parser: &mut Parser<'_>) -> Result<Option<Called>, ParserError> {
    if !is_word(&parser.peek_token_ref().token, "clear") {
        return Ok(None);
    }
    parser.next_token();
    let next = parser.next_token();
    match is_word(&next.token, "cache") {
        true => Ok(Some((CLEAR_CACHE, vec![]))),
        false => parser.expected("CACHE", next),
    }
}

/// Parses `EXPLAIN RACK 'file' [(SCALE n)] query`.
fn parse_explain_rack(parser: &mut Parser<'_>) -> Result<Option<Called>, ParserError> {
    let is_rack = is_word(&parser.peek_token_ref().token, "explain")
        && is_word(&parser.peek_nth_token(1).token, "rack");
    if !is_rack {
        return Ok(None);
    }
    parser.advance_token();
    parser.advance_token();
    let file = parser.peek_token();
    if !matches!(file.token, Token::SingleQuotedString(_)) {
        let file_in_quotes = "a rack file in quotes, as in EXPLAIN RACK 'rack.toml' SELECT …";
        return parser.expected(file_in_quotes, file);
    }
    let file = Expr::Value(parser.parse_value()?);
    let has_options = parser.peek_token_ref().token == Token::LParen
        && matches!(parser.peek_nth_token(1).token, Token::Word(_))
        && !begins_query(&parser.peek_nth_token(1).token);
    let mut scale = None;
    if has_options {
        parser.advance_token();
        let option = parser.next_token();
        if !is_word(&option.token, "scale") {
            return parser.expected("SCALE and a number, the only option", option);
        }
        scale = Some(Expr::Value(parser.parse_value()?));
        parser.expect_token(&Token::RParen)?;
    }
    let next = parser.peek_token();
    if !begins_query(&next.token) {
        let query = "a query, as EXPLAIN RACK runs it and changes nothing";
        return parser.expected(query, next);
    }
    let query = Expr::Subquery(parser.parse_query()?);
    let arguments = [file, query].into_iter().chain(scale);
    Ok(Some((EXPLAIN_RACK, arguments.collect())))
}

/// Parses `SUMMARIZE table` or `SUMMARIZE query`.
fn parse_summarize(parser: &mut Parser<'_>) -> Result<Option<Called>, ParserError> {
    if !is_word(&parser.peek_token_ref().token, "summarize") {
        return Ok(None);
    }
    parser.advance_token();
    let query = match begins_query(&parser.peek_token_ref().token) {
        true => parser.parse_query()?,
        // A table, a file in quotes, a table function.
        false => {
            let relation = parser.parse_table_factor()?;
            let query = format!("SELECT * FROM {relation}");
            Parser::new(&DuckDbDialect {})
                .try_with_sql(&query)?
                .parse_query()?
        }
    };
    Ok(Some((SUMMARIZE, vec![Expr::Subquery(query)])))
}

fn begins_query(token: &Token) -> bool {
    let words = ["select", "with", "values", "table", "from"];
    *token == Token::LParen || words.into_iter().any(|word| is_word(token, word))
}

/// The call of a procedure.
fn call(procedure: &str, arguments: Vec<Expr>) -> ParsedStatement {
    let arguments = arguments.into_iter();
    let arguments = arguments
        .map(|argument| FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)))
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

/// What a parsed CALL of `explain_rack` asks for.
pub(crate) struct ExplainRackCall {
    pub rack: String,
    pub query: Box<Query>,
    pub scale: u64,
}

/// What a parsed CALL asks for, if it is one of `explain_rack`.
///
/// # Errors
/// [`Error::Usage`] for other arguments.
pub(crate) fn parsed_explain_rack(call: &ast::Function) -> Result<Option<ExplainRackCall>> {
    if !call.name.to_string().eq_ignore_ascii_case(EXPLAIN_RACK) {
        return Ok(None);
    }
    let wrong = || {
        Error::usage(
            "EXPLAIN RACK takes a rack file, a query, and, if more than the data at hand is meant, how \
             many times as much, a whole number: EXPLAIN RACK 'rack.toml' (SCALE 100) SELECT …",
        )
    };
    let FunctionArguments::List(list) = &call.args else {
        return Err(wrong());
    };
    let arguments = list.args.iter().map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) => Some(argument),
        _ => None,
    });
    let arguments: Option<Vec<_>> = arguments.collect();
    let (file, query, scale) = match arguments.as_deref() {
        Some([Expr::Value(file), Expr::Subquery(query)]) => (file, query, 1),
        Some([Expr::Value(file), Expr::Subquery(query), Expr::Value(scale)]) => {
            let scale = match &scale.value {
                Value::Number(scale, _) => scale.to_string().parse().ok(),
                _ => None,
            };
            (file, query, scale.filter(|n| *n > 0).ok_or_else(wrong)?)
        }
        _ => return Err(wrong()),
    };
    match &file.value {
        Value::SingleQuotedString(rack) => Ok(Some(ExplainRackCall {
            rack: rack.clone(),
            query: query.clone(),
            scale,
        })),
        _ => Err(wrong()),
    }
}

/// The query that a parsed CALL of `summarize` is about, if it is one.
///
/// # Errors
/// [`Error::Usage`] for other arguments.
pub(crate) fn parsed_summarize(call: &ast::Function) -> Result<Option<Box<Query>>> {
    if !call.name.to_string().eq_ignore_ascii_case(SUMMARIZE) {
        return Ok(None);
    }
    if let FunctionArguments::List(list) = &call.args
        && let [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Subquery(query)))] =
            list.args.as_slice()
    {
        return Ok(Some(query.clone()));
    }
    Err(Error::usage(
        "SUMMARIZE takes a table or a query: SUMMARIZE orders; SUMMARIZE SELECT …",
    ))
}

/// What another parsed CALL is.
///
/// # Errors
/// [`Error::Usage`] for another procedure, and for other arguments.
pub(crate) fn parsed_call(call: &ast::Function, default_schema: &str) -> Result<OwnStatement> {
    if call.name.to_string().eq_ignore_ascii_case(CHANGE_ACCOUNTS) {
        return parsed_accounts(call, default_schema);
    }
    if let Some(drop) = parsed_drop_macro(call) {
        return Ok(OwnStatement::Macro(drop));
    }
    let without_arguments = [
        (CHECK, OwnStatement::Check),
        // What is committed is durable already.
        (CHECKPOINT, OwnStatement::Nothing("Checkpoint")),
        (CLEAR_CACHE, OwnStatement::ClearCache),
    ];
    for (name, statement) in without_arguments {
        if call.name.to_string().eq_ignore_ascii_case(name) {
            return match &call.args {
                FunctionArguments::List(list) if list.args.is_empty() => Ok(statement),
                FunctionArguments::None => Ok(statement),
                _ => Err(Error::usage(format!("{name} takes no arguments"))),
            };
        }
    }
    Ok(OwnStatement::Backup(parsed_backup(call)?))
}

/// The statement about accounts that a parsed CALL is.
///
/// # Errors
/// [`Error::Usage`].
fn parsed_accounts(call: &ast::Function, default_schema: &str) -> Result<OwnStatement> {
    if let FunctionArguments::List(list) = &call.args
        && let [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(text)))] =
            list.args.as_slice()
        && let Value::SingleQuotedString(text) = &text.value
    {
        let statement = AccountStatement::parse(text, Some(default_schema))?;
        return Ok(OwnStatement::Accounts(Box::new(statement)));
    }
    Err(Error::usage(format!(
        "{CHANGE_ACCOUNTS} takes a statement in quotes: CALL {CHANGE_ACCOUNTS}('GRANT read ON orders TO bob')"
    )))
}

/// The backup that a parsed CALL is.
///
/// # Errors
/// [`Error::Usage`] for another procedure, of which there is none, and for other arguments.
fn parsed_backup(call: &ast::Function) -> Result<BackupStatement> {
    let name = call.name.to_string();
    if !name.eq_ignore_ascii_case(BACKUP) {
        return Err(Error::usage(format!(
            "there is no procedure '{name}', only {BACKUP}, {CHANGE_ACCOUNTS}, {CHECK}, {CHECKPOINT}, {CLEAR_CACHE}, {EXPLAIN_RACK} and {SUMMARIZE}"
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

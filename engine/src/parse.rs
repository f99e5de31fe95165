//! The text of statements: what DataFusion's parser takes, and what flashmesh takes besides.

use std::ops::ControlFlow;

use datafusion::error::DataFusionError;
use datafusion::sql::parser::{DFParser, DFParserBuilder, Statement as ParsedStatement};
use datafusion::sql::sqlparser::ast::{Expr, Statement, Value};
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::error::{Error, Result};
use crate::procedures::parse_procedure;
use crate::spelling::{check_names, read_otherwise, respelled};
use crate::walk::{visit_expressions_mut, walk_statement};
use crate::{clauses, depth, from_first, past, precedence};

/// Splits SQL of a dialect into statements.
pub(crate) fn parse(query: &str, dialect: &str) -> Result<Vec<ParsedStatement>> {
    let dialect = dialect_from_str(dialect)
        .ok_or_else(|| Error::usage(format!("there is no SQL dialect '{dialect}'")))?;
    depth::check(query, dialect.as_ref())?;
    check_names(query, dialect.as_ref())?;
    let parser = match read_otherwise(query, dialect.as_ref()) {
        Some(tokens) => DFParserBuilder::new(tokens),
        None => DFParserBuilder::new(query),
    };
    let parser = parser.with_dialect(dialect.as_ref());
    let parsed = parser.build().map_err(Error::from).and_then(parse_all);
    let mut statements = parsed.or_else(|error| {
        let parser = DFParserBuilder::new(respelled(query, dialect.as_ref())?.ok_or(error)?);
        parse_all(parser.with_dialect(dialect.as_ref()).build()?)
    })?;
    if past::may_name_versions(query, dialect.as_ref()) {
        statements.iter_mut().try_for_each(past::with_versions)?;
    }
    let text = query.to_ascii_lowercase();
    for statement in &mut statements {
        number_marks(statement)?;
        if text.contains("from") {
            let _ = walk_statement(statement, &mut from_first::Correct);
        }
        if ["distinct", "||", "->"].iter().any(|of| text.contains(of)) {
            let _ = walk_statement(statement, &mut precedence::Correct);
        }
        clauses::correct(statement)?;
    }
    Ok(statements)
}

/// All statements up to the end.
fn parse_all(mut parser: DFParser<'_>) -> Result<Vec<ParsedStatement>> {
    let mut statements = Vec::new();
    loop {
        let mut is_separate = statements.is_empty();
        while parser.parser.consume_token(&Token::SemiColon) {
            is_separate = true;
        }
        let next = parser.parser.peek_token();
        if next.token == Token::EOF {
            return Ok(statements);
        }
        if !is_separate {
            let found = parser.parser.expected("end of statement", next);
            return found.map_err(|error| DataFusionError::from(error).into());
        }
        // Some dialects of the parser know it.
        if parser.parser.parse_keyword(Keyword::COMMENT) {
            let comment = parser.parser.parse_comment();
            let comment = comment.map_err(DataFusionError::from)?;
            statements.push(ParsedStatement::Statement(Box::new(comment)));
            continue;
        }
        let call = parse_procedure(&mut parser).map_err(DataFusionError::from)?;
        statements.push(match call {
            Some(call) => call,
            None => parser.parse_statement()?,
        });
    }
}

/// Numbers the parameters of PREPARE that are written `?`, in their order.
///
/// # Errors
/// [`Error::Usage`] where others are numbered.
fn number_marks(statement: &mut ParsedStatement) -> Result<()> {
    let ParsedStatement::Statement(parsed) = statement else {
        return Ok(());
    };
    let Statement::Prepare { statement, .. } = parsed.as_mut() else {
        return Ok(());
    };
    let mut count = 0;
    let mut has_numbers = false;
    let _ = visit_expressions_mut(statement, |expr| {
        if let Expr::Value(value) = expr
            && let Value::Placeholder(name) = &mut value.value
        {
            has_numbers |= name != "?";
            if name == "?" {
                count += 1;
                *name = format!("${count}");
            }
        }
        ControlFlow::<()>::Continue(())
    });
    match has_numbers && count > 0 {
        true => Err(Error::usage("parameters are written either ? or $1, $2, …")),
        false => Ok(()),
    }
}

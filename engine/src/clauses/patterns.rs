//! GLOB, and SIMILAR TO, whose pattern is one of SQL's for a whole text; to the planner it is a regular
//! expression for a part of it.

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, UnaryOperator,
    Value, ValueWithSpan,
};
use flashmesh_planner::{REGULAR_OF_GLOB, push_literal, regular_of_glob};

use super::{call, refuse};
use crate::error::Result;
use crate::spelling::GLOB;

/// Says `x SIMILAR TO 'pattern'` by a regular expression.
///
/// # Errors
/// A refusal of patterns that are no constants, and of what a pattern can't say.
pub(super) fn correct_similar(expr: &mut Expr) -> Result<()> {
    let Expr::SimilarTo {
        negated,
        expr: text,
        pattern,
        escape_char,
    } = expr
    else {
        return Ok(());
    };
    let escape = match escape_char.as_ref().map(|escape| &escape.value) {
        None => Some('\\'),
        Some(Value::SingleQuotedString(escape)) => {
            let mut chars = escape.chars();
            match (chars.next(), chars.next()) {
                (escape, None) => escape,
                _ => return refuse("an ESCAPE of several characters", "write one"),
            }
        }
        Some(other) => return refuse(&format!("ESCAPE {other}"), "write one character"),
    };
    let regular = match pattern.as_ref() {
        Expr::Value(ValueWithSpan {
            value:
                Value::SingleQuotedString(pattern)
                | Value::EscapedStringLiteral(pattern)
                | Value::DollarQuotedString(datafusion::sql::sqlparser::ast::DollarQuotedString {
                    value: pattern,
                    ..
                }),
            ..
        }) => regular(pattern, escape)?,
        Expr::Value(ValueWithSpan {
            value: Value::Null, ..
        }) => return Ok(()),
        other => {
            return refuse(
                &format!("SIMILAR TO {other}, a pattern that is no constant"),
                "write regexp_like(text, pattern), with a regular expression",
            );
        }
    };
    let placeholder = Expr::value(Value::Null);
    let text = std::mem::replace(text, Box::new(placeholder));
    let negated = *negated;
    *expr = nested(matched(text, regular, negated));
    Ok(())
}

/// What is kept as text has parentheses: the operators bind differently.
fn nested(expr: Expr) -> Expr {
    Expr::Nested(Box::new(expr))
}

/// Whether a regular expression matches a text.
fn matched(text: Box<Expr>, regular: String, negated: bool) -> Expr {
    Expr::BinaryOp {
        left: text,
        op: match negated {
            false => BinaryOperator::PGRegexMatch,
            true => BinaryOperator::PGRegexNotMatch,
        },
        right: Box::new(Expr::value(Value::SingleQuotedString(regular))),
    }
}

/// Says `x GLOB 'pattern'` by LIKE, or by a regular expression where the pattern has brackets or is no
/// constant.
///
/// # Errors
/// A refusal of an open bracket, and of RLIKE and REGEXP themselves.
pub(super) fn correct_glob(expr: &mut Expr) -> Result<()> {
    let Expr::RLike {
        negated,
        expr: text,
        pattern,
        ..
    } = expr
    else {
        return Ok(());
    };
    let Some(glob) = glob_of(pattern) else {
        return refuse("RLIKE or REGEXP", "write regexp_like(text, pattern)");
    };
    let negated = *negated;
    let text = std::mem::replace(text, Box::new(Expr::value(Value::Null)));
    let Expr::Value(ValueWithSpan {
        value: Value::SingleQuotedString(glob),
        ..
    }) = &glob
    else {
        let regular = call(Ident::with_quote('"', REGULAR_OF_GLOB), vec![glob]);
        let test = call(Ident::new("regexp_like"), vec![*text, regular]);
        *expr = nested(match negated {
            false => test,
            true => Expr::UnaryOp {
                op: UnaryOperator::Not,
                expr: Box::new(test),
            },
        });
        return Ok(());
    };
    *expr = nested(match like_of_glob(glob) {
        Some(like) => Expr::Like {
            negated,
            any: false,
            expr: text,
            pattern: Box::new(Expr::value(Value::SingleQuotedString(like))),
            escape_char: None,
        },
        None => match regular_of_glob(glob) {
            Ok(regular) => matched(text, regular, negated),
            Err(wrong) => return refuse(&wrong.0, wrong.1),
        },
    });
    Ok(())
}

/// The pattern of GLOB for which a call stands.
pub(super) fn glob_of(pattern: &Expr) -> Option<Expr> {
    let Expr::Function(function) = pattern else {
        return None;
    };
    let is_glob = matches!(function.name.0.as_slice(), [name]
        if name.as_ident().is_some_and(|name| name.value == GLOB));
    match &function.args {
        FunctionArguments::List(list) if is_glob => match list.args.as_slice() {
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(glob))] => Some(glob.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// The pattern of LIKE that says the same, if there is one.
fn like_of_glob(glob: &str) -> Option<String> {
    let mut like = String::new();
    let mut chars = glob.chars();
    while let Some(char) = chars.next() {
        match char {
            '[' => return None,
            '*' => like.push('%'),
            '?' => like.push('_'),
            literal => {
                let literal = match literal {
                    '\\' => chars.next()?,
                    literal => literal,
                };
                if matches!(literal, '%' | '_' | '\\') {
                    like.push('\\');
                }
                like.push(literal);
            }
        }
    }
    Some(like)
}

/// The regular expression of a pattern (ISO/IEC 9075-2, 8.6): `%` and `_` are those of LIKE; `|`, `*`,
/// `+`, `?`, `{n,m}`, `( )` and `[ ]` mean what they do in regular expressions, and nothing else does.
fn regular(pattern: &str, escape: Option<char>) -> Result<String> {
    // What is matched may have several lines.
    let mut regular = String::from("(?s)^(?:");
    let mut chars = pattern.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            _ if Some(char) == escape => match chars.next() {
                Some(literal) => push_literal(&mut regular, literal),
                None => {
                    return refuse(
                        "a pattern of SIMILAR TO that ends in its escape character",
                        "write that twice",
                    );
                }
            },
            '%' => regular.push_str(".*"),
            '_' => regular.push('.'),
            '(' => regular.push_str("(?:"),
            '|' | '*' | '+' | '?' | '{' | '}' | ')' => regular.push(char),
            '[' => {
                regular.push('[');
                if chars.next_if_eq(&'^').is_some() {
                    regular.push('^');
                }
                // How deep in brackets: `[[:alpha:]]`.
                let mut depth = 1;
                while depth > 0 {
                    let Some(char) = chars.next() else {
                        return refuse(
                            "a pattern of SIMILAR TO with an open bracket",
                            "close it, or write the escape character before it",
                        );
                    };
                    match char {
                        _ if Some(char) == escape => {
                            push_literal(&mut regular, chars.next().unwrap_or(char));
                            continue;
                        }
                        '[' if chars.peek() == Some(&':') => depth += 1,
                        ']' => depth -= 1,
                        // Operators between classes are none of SQL's.
                        '[' | '&' | '~' | '\\' => regular.push('\\'),
                        _ => {}
                    }
                    regular.push(char);
                }
            }
            literal => push_literal(&mut regular, literal),
        }
    }
    regular.push_str(")$");
    Ok(regular)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_of_whole_texts() {
        for (pattern, expected) in [
            ("a%b_", r"(?s)^(?:a.*b.)$"),
            ("(ab|c)+d{2}", r"(?s)^(?:(?:ab|c)+d{2})$"),
            (r"1.5\%^$", r"(?s)^(?:1\.5%\^\$)$"),
            ("[^a-c][[:digit:]]", r"(?s)^(?:[^a-c][[:digit:]])$"),
            ("<a>", "(?s)^(?:<a>)$"),
            (r"[a&&b\]]", r"(?s)^(?:[a\&\&b\]])$"),
        ] {
            assert_eq!(regular(pattern, Some('\\')).unwrap(), expected);
        }
        assert_eq!(regular("a!%", Some('!')).unwrap(), r"(?s)^(?:a%)$");
        assert_eq!(regular(r"a\", None).unwrap(), r"(?s)^(?:a\\)$");
        for wrong in [r"a\", "[ab"] {
            assert!(regular(wrong, Some('\\')).is_err(), "{wrong}");
        }
    }
}

//! What logs may have of statements that set passwords.

use std::borrow::Cow;

use datafusion::sql::sqlparser::dialect::DuckDbDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::statement::written;
use crate::names::CHANGE_ACCOUNTS as PROCEDURE;
use crate::spelling::is_word;

/// In the place of what is not told.
const HIDDEN: &str = "'…'";

/// Words that stand beside passwords. Whatever else does is taken for one, however it is written: the
/// statement may be one that nobody understands.
const TOLD: [&str; 24] = [
    "admin",
    "and",
    "by",
    "certificate",
    "encrypted",
    "exists",
    "identified",
    "if",
    "in",
    "is",
    "login",
    "noadmin",
    "nologin",
    "nosuperuser",
    "not",
    "null",
    "password",
    "rename",
    "role",
    "set",
    "superuser",
    "to",
    "user",
    "with",
];

/// A statement as logs may have it, and what is left out of it there.
#[derive(Debug, Default)]
pub(crate) struct Redacted<'a> {
    /// Without passwords.
    pub text: Cow<'a, str>,
    /// What is left out.
    pub secrets: Secrets,
}

/// What is not told.
#[derive(Default)]
pub(crate) struct Secrets(Vec<String>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// An error as logs may have it.
    pub fn hide(&self, error: String) -> String {
        // As they are, and as they were written in quotes.
        let written = self.0.iter().map(|secret| secret.replace('\'', "''"));
        let mut secrets: Vec<String> = self.0.iter().cloned().chain(written).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets
            .into_iter()
            .fold(error, |error, secret| match secret.len() {
                0 => error,
                // Letters that any word has: in quotes they may be meant.
                1..4 => ["'", "\""].into_iter().fold(error, |error, quote| {
                    error.replace(&format!("{quote}{secret}{quote}"), HIDDEN)
                }),
                _ => error.replace(secret.as_str(), "…"),
            })
    }
}

/// A statement without passwords: those of `CREATE USER` and its like, wherever these stand in it, and
/// what follows the word PASSWORD.
pub(crate) fn redacted(sql: &str) -> Redacted<'_> {
    let lower = sql.to_ascii_lowercase();
    let has = |word: &str| lower.contains(word);
    let of_account = (has("create") || has("alter")) && (has("user") || has("role"));
    if !of_account && !has("password") {
        return Redacted {
            text: sql.into(),
            ..Redacted::default()
        };
    }
    let Ok(tokens) = Tokenizer::new(&DuckDbDialect {}, sql).tokenize() else {
        let words = ["user", "role", "password"].into_iter();
        let first = words.filter_map(|word| lower.find(word)).min().unwrap_or(0);
        return Redacted {
            text: format!("{}…", &sql[..first]).into(),
            secrets: Secrets(vec![sql[first..].to_string()]),
        };
    };
    let mut walk = Walk {
        is_call: has(PROCEDURE),
        ..Walk::default()
    };
    for token in &tokens {
        walk.step(token);
    }
    match walk.secrets.is_empty() {
        true => Redacted {
            text: sql.into(),
            ..Redacted::default()
        },
        false => Redacted {
            text: walk.shown.into(),
            secrets: Secrets(walk.secrets),
        },
    }
}

/// Goes over the tokens of a statement.
#[derive(Default)]
struct Walk {
    shown: String,
    secrets: Vec<String>,
    place: Place,
    /// The token before was the word PASSWORD.
    is_behind_password: bool,
    /// Texts may be such statements.
    is_call: bool,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Place {
    #[default]
    Elsewhere,
    /// Behind CREATE or ALTER.
    Verb,
    /// Behind USER or ROLE, before the name.
    Kind,
    /// Behind the name.
    Options,
}

impl Walk {
    fn step(&mut self, token: &Token) {
        let is = |words: &[&str]| words.iter().any(|word| is_word(token, word));
        if matches!(token, Token::Whitespace(_)) {
            self.shown.push_str(&written(token));
            return;
        }
        let was_behind_password =
            std::mem::replace(&mut self.is_behind_password, is(&["password"]));
        let is_quoted = match token {
            Token::Word(word) => word.quote_style.is_some(),
            token => is_text(token),
        };
        let is_secret = match self.place {
            Place::Options => !is(&TOLD) && *token != Token::SemiColon,
            _ => was_behind_password && is_quoted,
        };
        self.place = match self.place {
            _ if *token == Token::SemiColon => Place::Elsewhere,
            Place::Options => Place::Options,
            Place::Kind if is(&["if", "not", "exists"]) => Place::Kind,
            Place::Kind => Place::Options,
            Place::Verb if is(&["user", "role"]) => Place::Kind,
            Place::Verb if is(&["or", "replace"]) => Place::Verb,
            _ if is(&["create", "alter"]) => Place::Verb,
            _ => Place::Elsewhere,
        };
        if is_secret {
            self.secrets.push(text_of(token));
            self.shown.push_str(HIDDEN);
            return;
        }
        if let Token::SingleQuotedString(text) = token
            && self.is_call
        {
            let inner = redacted(text);
            if !inner.secrets.0.is_empty() {
                self.secrets.extend(inner.secrets.0);
                let inner = Token::SingleQuotedString(inner.text.into_owned());
                self.shown.push_str(&written(&inner));
                return;
            }
        }
        self.shown.push_str(&written(token));
    }
}

/// Whether a token is a text in any quotes.
fn is_text(token: &Token) -> bool {
    !matches!(
        token,
        Token::Word(_) | Token::Number(..) | Token::Whitespace(_) | Token::EOF
    ) && token.to_string().chars().count() > 2
}

/// What a token says, without its quotes.
fn text_of(token: &Token) -> String {
    match token {
        Token::SingleQuotedString(text) => text.clone(),
        Token::Word(word) => word.value.clone(),
        other => other.to_string().trim_matches(['\'', '"', '$']).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_have_no_passwords() {
        for sql in [
            "CREATE USER a PASSWORD 'secret'",
            "ALTER USER a PASSWORD /* x */ 'secret' ADMIN",
            "create user a password $$secret$$",
            "CREATE USER a PASSWORD E'secret'",
            "CREATE USER a PASSWORD 'secret",
            "CREATE USER a PASSWORD secret",
            "CREATE USER a PASSWORD \"secret\"",
            "CREATE USER a PASSWROD 'secret'",
            "CREATE USER a IDENTIFIED BY 'secret'",
            "CREATE OR REPLACE USER a PASSWORD 'secret'",
            "CREATE USER a PASSWORD = 'secret'",
            "create/**/user a password 'secret'; SELECT 'x'",
            "CREATE USER IF NOT EXISTS \"password\" PASSWORD 'secret'",
            "EXPLAIN CREATE USER a PASSWORD 'secret'",
            "PREPARE p AS CREATE USER a PASSWORD='secret'",
            "CALL change_accounts('CREATE USER a PASSWORD ''secret''')",
            "ALTER ROLE a PASSWORD 'it''s secret'",
            "ALTER USER a PASSWORD 'it\\'s secret'",
            "GRANT x TO y PASSWORD 'secret'",
        ] {
            let redacted = redacted(sql);
            assert!(
                !redacted.text.contains("secret"),
                "{sql}: {}",
                redacted.text
            );
            let error = format!("no such thing: {sql}");
            let error = redacted.secrets.hide(error);
            assert!(!error.contains("secret"), "{sql}: {error}");
        }
        assert_eq!(
            redacted("CREATE USER a PASSWORD 'x' ADMIN; SELECT 'y'").text,
            "CREATE USER a PASSWORD '…' ADMIN; SELECT 'y'"
        );
        assert_eq!(
            redacted("CALL change_accounts('CREATE USER a PASSWORD ''x''')").text,
            "CALL change_accounts('CREATE USER a PASSWORD ''…''')"
        );
    }

    #[test]
    fn what_has_none_stays_as_it_is() {
        for sql in [
            "ALTER USER a PASSWORD NULL ADMIN",
            "SELECT password, E'it''s' FROM user",
            "SELECT 'password' FROM t",
            "CREATE TABLE user (password TEXT DEFAULT 'x')",
            "CREATE ROLE r",
            "DROP USER IF EXISTS a",
            "GRANT read ON user TO a",
            "INSERT INTO log VALUES ('create user x: password reset')",
        ] {
            assert_eq!(redacted(sql).text, sql);
        }
    }
}

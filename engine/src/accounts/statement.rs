//! `CREATE USER`, `GRANT` and their like: from words to what they ask for.
//!
//! To parsers they are calls of a procedure with the statement for its argument, as some other statements
//! of flashmesh's own are: see [`procedures`](crate::procedures).

use std::fmt;

use datafusion::sql::sqlparser::dialect::DuckDbDialect;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::error::{Error, Result};
use crate::grants::{NamePattern, Principal, RightName, TablePattern};
use crate::spelling::is_word;

/// A statement about users, roles or grants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum AccountStatement {
    CreateUser {
        name: String,
        if_not_exists: bool,
        options: UserOptions,
    },
    AlterUser {
        name: String,
        options: UserOptions,
    },
    CreateRole {
        name: String,
        if_not_exists: bool,
    },
    Drop {
        kind: AccountKind,
        names: Vec<String>,
        if_exists: bool,
    },
    Grant {
        granted: Vec<Granted>,
        to: Vec<String>,
    },
    Revoke {
        granted: Vec<Granted>,
        from: Vec<String>,
    },
}

/// A user or a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AccountKind {
    User,
    Role,
}

impl fmt::Display for AccountKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Role => "role",
        })
    }
}

/// What is said of a user; `None` where nothing is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct UserOptions {
    /// `Some(None)`: without a password.
    pub password: Option<Option<Secret>>,
    /// `Some(None)`: without a certificate.
    pub certificate: Option<Option<String>>,
    pub admin: Option<bool>,
}

/// A password as it was typed, which no log shows.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// What is granted or taken away.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Granted {
    /// A right on tables.
    Tables(RightName, TablePattern),
    /// To use functions.
    UseFunctions(NamePattern),
    /// To make functions.
    CreateFunctions(NamePattern),
    /// All that a role may.
    Role(String),
}

impl Granted {
    /// The right, of what kind of thing, and of which.
    pub fn words(&self) -> [String; 3] {
        match self {
            Self::Tables(right, tables) => [right.to_string(), "table".into(), tables.to_string()],
            Self::UseFunctions(names) => ["use".into(), "function".into(), names.to_string()],
            Self::CreateFunctions(names) => ["create".into(), "function".into(), names.to_string()],
            Self::Role(role) => ["all".into(), "role".into(), role.clone()],
        }
    }
}

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [right, kind, name] = self.words();
        match self {
            Self::Tables(..) => write!(f, "{right} on {name}"),
            Self::Role(_) => write!(f, "{kind} {name}"),
            _ => write!(f, "{right} on {kind} {name}"),
        }
    }
}

impl fmt::Display for AccountStatement {
    /// Without passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |granted: &[Granted]| {
            let texts: Vec<_> = granted.iter().map(ToString::to_string).collect();
            texts.join(", ")
        };
        match self {
            Self::CreateUser { name, .. } => write!(f, "create user {name}"),
            Self::AlterUser { name, .. } => write!(f, "alter user {name}"),
            Self::CreateRole { name, .. } => write!(f, "create role {name}"),
            Self::Drop { kind, names, .. } => write!(f, "drop {kind} {}", names.join(", ")),
            Self::Grant { granted, to } => {
                write!(f, "grant {} to {}", list(granted), to.join(", "))
            }
            Self::Revoke { granted, from } => {
                write!(f, "revoke {} from {}", list(granted), from.join(", "))
            }
        }
    }
}

/// Whether such a statement comes next.
pub(crate) fn comes_next(parser: &Parser<'_>) -> bool {
    let is = |place: usize, words: &[&str]| {
        let token = &parser.peek_nth_token_ref(place).token;
        words.iter().any(|word| is_word(token, word))
    };
    is(0, &["grant", "revoke"]) || (is(0, &["create", "alter", "drop"]) && is(1, &["user", "role"]))
}

/// The words of such a statement up to its end, as one text.
///
/// # Errors
/// What is wrong with it; never with a password in it.
pub(crate) fn take_text(parser: &mut Parser<'_>) -> Result<String, ParserError> {
    let mut words = Vec::new();
    loop {
        match &parser.peek_token_ref().token {
            Token::EOF | Token::SemiColon => break,
            token => words.push(written(token)),
        }
        parser.advance_token();
    }
    let text = words.join(" ");
    match AccountStatement::parse(&text, None) {
        Ok(_) => Ok(text),
        Err(error) => Err(ParserError::ParserError(error.to_string())),
    }
}

/// A token as it is written: the parser has taken the quotes within quotes away.
pub(super) fn written(token: &Token) -> String {
    match token {
        Token::SingleQuotedString(text) => format!("'{}'", text.replace('\'', "''")),
        Token::Word(word) if word.quote_style.is_some() => {
            format!("\"{}\"", word.value.replace('"', "\"\""))
        }
        other => other.to_string(),
    }
}

/// The words that the statements have.
const USAGE: &str = "CREATE USER name [PASSWORD 'text'] [CERTIFICATE 'name'] [ADMIN]; ALTER USER name …; \
     CREATE ROLE name; DROP USER | ROLE name; GRANT | REVOKE read, write, create, kernel | ALL ON table | \
     schema.* | ALL TABLES TO | FROM name; GRANT use, create ON FUNCTION name TO name; GRANT role TO name";

impl AccountStatement {
    /// Whether it gives a user another password and does nothing else.
    pub fn is_own_password_of(&self, user: &Principal) -> bool {
        match self {
            Self::AlterUser { name, options } => {
                let is_password = matches!(options.password, Some(Some(_)));
                let is_all = options.certificate.is_none() && options.admin.is_none();
                user.is_of_database(name) && is_password && is_all
            }
            _ => false,
        }
    }

    /// The password that it sets.
    pub fn password(&self) -> Option<&str> {
        let (Self::CreateUser { options, .. } | Self::AlterUser { options, .. }) = self else {
            return None;
        };
        let password = options.password.as_ref()?.as_ref()?;
        Some(&password.0)
    }

    /// The statement of a text; tables without a schema are of `schema`.
    ///
    /// # Errors
    /// [`Error::Usage`], which does not quote passwords.
    pub fn parse(text: &str, schema: Option<&str>) -> Result<Self> {
        let tokens = Tokenizer::new(&DuckDbDialect {}, text).tokenize();
        let tokens = tokens.map_err(|e| Error::usage(e.to_string()))?;
        let tokens = tokens.into_iter();
        let tokens = tokens.filter(|token| !matches!(token, Token::Whitespace(_)));
        let mut words = Words {
            tokens: tokens.collect(),
            next: 0,
            schema,
            is_secret: false,
        };
        let statement = words.statement()?;
        match words.peek() {
            None => Ok(statement),
            Some(_) => Err(words.unexpected("the end of the statement")),
        }
    }
}

/// The tokens of a statement.
struct Words<'a> {
    tokens: Vec<Token>,
    next: usize,
    schema: Option<&'a str>,
    /// What comes next may be a password.
    is_secret: bool,
}

impl Words<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    /// Takes the word, if it is next.
    fn take(&mut self, word: &str) -> bool {
        let is_next = self.peek().is_some_and(|token| is_word(token, word));
        self.next += usize::from(is_next);
        is_next
    }

    fn take_token(&mut self, token: &Token) -> bool {
        let is_next = self.peek() == Some(token);
        self.next += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        match self.take(word) {
            true => Ok(()),
            false => Err(self.unexpected(&word.to_uppercase())),
        }
    }

    fn unexpected(&self, expected: &str) -> Error {
        let found = match self.peek() {
            None => "the end of the statement".to_string(),
            Some(Token::Word(word)) if word.quote_style.is_none() && !self.is_secret => {
                format!("'{}'", word.value)
            }
            // It may be a password, or a part of one.
            Some(_) => "something else".into(),
        };
        Error::usage(format!("expected {expected}, found {found}: {USAGE}"))
    }

    /// A name of a user, a role, a schema, a table or a function: in small letters where it is not in
    /// quotes, as SQL has it.
    fn name(&mut self, what: &str) -> Result<String> {
        let name = match self.peek() {
            Some(Token::Word(word)) => match word.quote_style {
                None => word.value.to_ascii_lowercase(),
                Some(_) => word.value.clone(),
            },
            _ => return Err(self.unexpected(what)),
        };
        if name.is_empty() {
            return Err(self.unexpected(what));
        }
        self.next += 1;
        Ok(name)
    }

    fn names(&mut self, what: &str) -> Result<Vec<String>> {
        let mut names = vec![self.name(what)?];
        while self.take_token(&Token::Comma) {
            names.push(self.name(what)?);
        }
        Ok(names)
    }

    fn text(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Some(Token::SingleQuotedString(text)) => {
                let text = text.clone();
                self.next += 1;
                Ok(text)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    fn statement(&mut self) -> Result<AccountStatement> {
        if self.take("grant") {
            let granted = self.granted("to")?;
            let to = self.names("the name of a user or a role")?;
            if self.take("with") {
                return Err(Error::usage(
                    "only admins grant: leave WITH GRANT OPTION out",
                ));
            }
            return Ok(AccountStatement::Grant { granted, to });
        }
        if self.take("revoke") {
            let granted = self.granted("from")?;
            let from = self.names("the name of a user or a role")?;
            return Ok(AccountStatement::Revoke { granted, from });
        }
        if self.take("create") {
            let kind = self.kind()?;
            let if_not_exists = self.take("if");
            if if_not_exists {
                self.expect("not")?;
                self.expect("exists")?;
            }
            let name = self.name("a name")?;
            return Ok(match kind {
                AccountKind::Role => AccountStatement::CreateRole {
                    name,
                    if_not_exists,
                },
                AccountKind::User => AccountStatement::CreateUser {
                    name,
                    if_not_exists,
                    options: self.options()?,
                },
            });
        }
        if self.take("alter") {
            self.expect("user")?;
            let name = self.name("the name of a user")?;
            let options = self.options()?;
            if options == UserOptions::default() {
                return Err(self.unexpected("PASSWORD, CERTIFICATE, ADMIN or NOADMIN"));
            }
            return Ok(AccountStatement::AlterUser { name, options });
        }
        self.expect("drop")?;
        let kind = self.kind()?;
        let if_exists = self.take("if");
        if if_exists {
            self.expect("exists")?;
        }
        let names = self.names("a name")?;
        Ok(AccountStatement::Drop {
            kind,
            names,
            if_exists,
        })
    }

    fn kind(&mut self) -> Result<AccountKind> {
        if self.take("user") {
            return Ok(AccountKind::User);
        }
        self.expect("role").map(|()| AccountKind::Role)
    }

    fn options(&mut self) -> Result<UserOptions> {
        let mut options = UserOptions::default();
        self.is_secret = true;
        self.take("with");
        loop {
            if self.take("password") {
                options.password = Some(match self.take("null") {
                    true => None,
                    false => Some(Secret(self.text("the password, in quotes")?)),
                });
            } else if self.take("certificate") {
                options.certificate = Some(match self.take("null") {
                    true => None,
                    false => Some(self.text("the name in the user's certificates, in quotes")?),
                });
            } else if self.take("admin") || self.take("superuser") {
                options.admin = Some(true);
            } else if self.take("noadmin") || self.take("nosuperuser") {
                options.admin = Some(false);
            } else {
                return Ok(options);
            }
        }
    }

    /// What stands between GRANT and TO.
    fn granted(&mut self, before_names: &str) -> Result<Vec<Granted>> {
        let mut words = Vec::new();
        loop {
            let is_quoted =
                matches!(self.peek(), Some(Token::Word(word)) if word.quote_style.is_some());
            words.push((self.name("a right or a role")?, is_quoted));
            if words.len() == 1 && !is_quoted && words[0].0 == "all" {
                self.take("privileges");
            }
            if !self.take_token(&Token::Comma) {
                break;
            }
        }
        if self.take(before_names) {
            return Ok(words
                .into_iter()
                .map(|(role, _)| Granted::Role(role))
                .collect());
        }
        self.expect("on")?;
        let rights: Vec<String> = words.into_iter().map(|(right, _)| right).collect();
        let granted = if self.take("function") {
            self.of_functions(&rights)?
        } else {
            self.of_tables(&rights)?
        };
        self.expect(before_names)?;
        Ok(granted)
    }

    fn of_tables(&mut self, words: &[String]) -> Result<Vec<Granted>> {
        let rights = rights_of(words)?;
        let patterns = if self.take("all") {
            self.expect("tables")?;
            let schema = match self.take("in") {
                true => {
                    self.expect("schema")?;
                    self.pattern()?
                }
                false => "*".into(),
            };
            vec![format!("{schema}.*")]
        } else {
            self.take("table");
            let mut patterns = vec![self.table_pattern()?];
            while self.take_token(&Token::Comma) {
                patterns.push(self.table_pattern()?);
            }
            patterns
        };
        let mut granted = Vec::new();
        for pattern in patterns {
            let tables = TablePattern::try_from(pattern).map_err(Error::usage)?;
            let each = rights.iter();
            granted.extend(each.map(|right| Granted::Tables(*right, tables.clone())));
        }
        Ok(granted)
    }

    fn table_pattern(&mut self) -> Result<String> {
        let first = self.pattern()?;
        if self.take_token(&Token::Period) {
            return Ok(format!("{first}.{}", self.pattern()?));
        }
        Ok(match self.schema {
            Some(schema) => format!("{schema}.{first}"),
            None => first,
        })
    }

    fn of_functions(&mut self, words: &[String]) -> Result<Vec<Granted>> {
        let mut patterns = vec![self.pattern()?];
        while self.take_token(&Token::Comma) {
            patterns.push(self.pattern()?);
        }
        let mut granted = Vec::new();
        for pattern in patterns {
            let names = NamePattern::try_from(pattern).map_err(Error::usage)?;
            for word in words {
                match word.as_str() {
                    "use" | "usage" | "execute" => {
                        granted.push(Granted::UseFunctions(names.clone()));
                    }
                    "create" => granted.push(Granted::CreateFunctions(names.clone())),
                    "all" => granted.extend([
                        Granted::UseFunctions(names.clone()),
                        Granted::CreateFunctions(names.clone()),
                    ]),
                    other => {
                        return Err(Error::usage(format!(
                            "'{other}' is no right on functions: USE and CREATE are"
                        )));
                    }
                }
            }
        }
        Ok(granted)
    }

    /// A name, where `*` may stand for its end.
    fn pattern(&mut self) -> Result<String> {
        if self.take_token(&Token::Mul) {
            return Ok("*".into());
        }
        let name = self.name("a name, where * may stand at the end")?;
        if name.contains(['*', '.']) {
            return Err(Error::usage(format!(
                "'{name}' can't be granted by its name, which has a '*' or a '.'; grant all tables of its schema"
            )));
        }
        Ok(match self.take_token(&Token::Mul) {
            true => format!("{name}*"),
            false => name,
        })
    }
}

/// The rights that some words mean.
///
/// # Errors
/// [`Error::Usage`] for a word that is none, and for a part of the right to write: who was granted INSERT
/// could DELETE.
fn rights_of(words: &[String]) -> Result<Vec<RightName>> {
    let has = |word: &str| words.iter().any(|other| other == word);
    let of_write = ["insert", "update", "delete"];
    let mut rights = Vec::new();
    for word in words {
        match word.as_str() {
            "all" => rights.extend(RightName::ALL),
            "read" | "select" => rights.push(RightName::Read),
            "write" => rights.push(RightName::Write),
            "create" => rights.push(RightName::Create),
            "kernel" => rights.push(RightName::Kernel),
            "insert" | "update" | "delete" | "truncate" => {
                if !of_write.iter().all(|word| has(word)) {
                    return Err(Error::usage(format!(
                        "{} comes with INSERT, UPDATE and DELETE: GRANT WRITE, which is all of them",
                        word.to_uppercase()
                    )));
                }
                rights.push(RightName::Write);
            }
            other => {
                return Err(Error::usage(format!(
                    "'{other}' is no right on tables: READ, WRITE, CREATE and KERNEL are, and ALL"
                )));
            }
        }
    }
    rights.sort_unstable();
    rights.dedup();
    Ok(rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_stay_what_they_are() {
        let text = r#"CREATE USER "a ""b""" PASSWORD 'it''s "x"'"#;
        let mut parser = Parser::new(&DuckDbDialect {}).try_with_sql(text).unwrap();
        let taken = take_text(&mut parser).unwrap();
        let parsed = AccountStatement::parse(&taken, None).unwrap();
        assert_eq!(parsed.password(), Some("it's \"x\""));
        assert_eq!(parsed.to_string(), "create user a \"b\"");
    }

    fn shown(text: &str) -> String {
        match AccountStatement::parse(text, Some("s")) {
            Ok(statement) => statement.to_string(),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn statements_say_what_they_ask_for() {
        for (text, expected) in [
            ("CREATE USER Ada PASSWORD 'x' ADMIN", "create user ada"),
            ("create user if not exists \"A b\"", "create user A b"),
            (
                "ALTER USER ada WITH PASSWORD NULL CERTIFICATE 'c'",
                "alter user ada",
            ),
            ("DROP USER IF EXISTS ada, bob", "drop user ada, bob"),
            ("DROP ROLE r", "drop role r"),
            ("GRANT SELECT ON t TO ada", "grant read on s.t to ada"),
            (
                "GRANT read, write ON TABLE a.t, u TO ada, r",
                "grant read on a.t, write on a.t, read on s.u, write on s.u to ada, r",
            ),
            (
                "GRANT insert, update, delete ON a.eu_* TO ada",
                "grant write on a.eu_* to ada",
            ),
            (
                "GRANT ALL PRIVILEGES ON a.* TO ada",
                "grant read on a.*, write on a.*, create on a.*, kernel on a.* to ada",
            ),
            (
                "GRANT read ON ALL TABLES TO ada",
                "grant read on *.* to ada",
            ),
            (
                "GRANT read ON ALL TABLES IN SCHEMA a TO ada",
                "grant read on a.* to ada",
            ),
            ("GRANT read ON *.* TO ada", "grant read on *.* to ada"),
            (
                "GRANT use, create ON FUNCTION price_* TO ada",
                "grant use on function price_*, create on function price_* to ada",
            ),
            ("GRANT r, q TO ada", "grant role r, role q to ada"),
            ("REVOKE r FROM ada", "revoke role r from ada"),
            ("REVOKE read ON a.t FROM ada", "revoke read on a.t from ada"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        let parsed =
            AccountStatement::parse("CREATE USER a PASSWORD 'it''s' NOADMIN", None).unwrap();
        assert_eq!(
            parsed,
            AccountStatement::CreateUser {
                name: "a".into(),
                if_not_exists: false,
                options: UserOptions {
                    password: Some(Some(Secret("it's".into()))),
                    certificate: None,
                    admin: Some(false),
                },
            }
        );
        assert!(!format!("{parsed:?}").contains("it"), "{parsed:?}");
    }

    #[test]
    fn what_is_none_is_refused_without_its_password() {
        for (text, expected) in [
            ("CREATE USER", "expected a name"),
            ("CREATE USER a 'secret'", "expected the end"),
            ("CREATE USER a PASSWORD", "expected the password"),
            (
                "CREATE USER a PASSWORD 'secret' 'secret'",
                "found something else",
            ),
            ("ALTER USER a", "expected PASSWORD"),
            ("GRANT INSERT ON t TO a", "GRANT WRITE"),
            ("GRANT rule ON t TO a", "'rule' is no right"),
            ("GRANT read ON a.b.c TO a", "expected TO"),
            ("GRANT read ON \"a.b\" TO a", "'a.b' can't be granted"),
            (
                "GRANT read ON t TO a WITH GRANT OPTION",
                "only admins grant",
            ),
            ("GRANT read ON FUNCTION f TO a", "no right on functions"),
            ("REVOKE read ON t TO a", "expected FROM"),
        ] {
            let error = shown(text);
            assert!(
                error.starts_with("error:") && error.contains(expected),
                "{text}: {error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
    }
}

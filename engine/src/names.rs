//! What things are called: the catalog and its schemas, and names in statements.

use datafusion::common::TableReference;
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::Token;

/// Name of the catalog that holds the database's schemas.
pub const CATALOG: &str = "flashmesh";
/// Name of the schema that every database has.
pub(crate) const DEFAULT_SCHEMA: &str = "public";
/// Name of the schema in which the process tells of itself.
pub(crate) const SYSTEM_SCHEMA: &str = "system";
/// The procedure that statements about users, roles and grants are.
pub(crate) const CHANGE_ACCOUNTS: &str = "change_accounts";
/// The key of a field's metadata that says what a column is for.
pub(crate) const COMMENT: &str = "comment";

/// A table's name as SQL reads it. Most are a plain word, for which no parser need be asked: it would
/// take longer than a row by its key.
pub(crate) fn table_reference(name: &str) -> TableReference {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let is_word = name.bytes().next().is_some_and(is_plain)
        && name
            .bytes()
            .all(|byte| is_plain(byte) || byte.is_ascii_digit());
    match is_word {
        true => TableReference::bare(name),
        false => TableReference::from(name),
    }
}

/// Whether what a column is said to be makes it count by itself, in the words of SQLite and MySQL.
pub(crate) fn is_auto_increment(said: &[Token]) -> bool {
    let [Token::Word(word)] = said else {
        return false;
    };
    let words = ["AUTOINCREMENT", "AUTO_INCREMENT"];
    words
        .iter()
        .any(|name| word.value.eq_ignore_ascii_case(name))
}

/// The text that stands in quotes.
pub(crate) fn quoted_text(expr: &ast::Expr) -> Option<&str> {
    match expr {
        ast::Expr::Value(value) => match &value.value {
            ast::Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// A name as statements that DataFusion plans have it.
pub(crate) fn name_of(ident: &ast::Ident) -> String {
    IdentNormalizer::default().normalize(ident.clone())
}

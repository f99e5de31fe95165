//! The SQL signature of a kernel: parameters and result.
//!
//! Grammar, keywords in any case: `(name TYPE [CONSTANT], …) RETURNS TYPE`, or
//! `… RETURNS TABLE (name TYPE, …)`.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, TimeUnit};

use super::functions::element_type;
use super::manifest::{Kind, is_name};

/// Parameters of one kernel at most: more than any real signature.
const MAX_PARAMETERS: usize = 32;
/// Columns of a table kernel at most.
const MAX_COLUMNS: usize = 64;
/// Bytes of a signature's text at most.
const MAX_TEXT: usize = 8 << 10;
/// Elements of one vector at most, as of the engine's columns.
const MAX_DIMENSION: u32 = 65_536;

/// One parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, a C identifier.
    pub name: String,
    /// Its type. The length 0 of a `FixedSizeList` or a `FixedSizeBinary` is `FLOAT[]`, `BYTES[]`:
    /// any length.
    pub data_type: DataType,
    /// Whether all rows of a query have one value.
    pub constant: bool,
}

/// What a kernel gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returns {
    /// One value a row (or a group).
    Scalar(DataType),
    /// Rows with these columns, none of them nullable.
    Table(Vec<Field>),
}

/// The signature of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The parameters in order.
    pub parameters: Vec<Parameter>,
    /// The result.
    pub returns: Returns,
}

impl Signature {
    /// Reads a signature.
    ///
    /// # Errors
    /// A sentence that says where it is wrong and what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_TEXT {
            return Err(format!(
                "is longer than {MAX_TEXT} bytes; write a shorter one"
            ));
        }
        let mut parser = Parser {
            tokens: tokens(text)?,
            at: 0,
        };
        parser.symbol('(')?;
        let mut parameters = Vec::new();
        if !parser.take_symbol(')') {
            loop {
                let name = parser.name()?;
                let data_type = parser.data_type()?;
                let constant = parser.take_word("CONSTANT");
                parameters.push(Parameter {
                    name,
                    data_type,
                    constant,
                });
                if parameters.len() > MAX_PARAMETERS {
                    return Err(format!("has more than {MAX_PARAMETERS} parameters"));
                }
                if !parser.take_symbol(',') {
                    break;
                }
            }
            parser.symbol(')')?;
        }
        if !parser.take_word("RETURNS") {
            return Err(parser.expected("RETURNS and a type"));
        }
        let returns = if parser.take_word("TABLE") {
            Returns::Table(parser.columns()?)
        } else {
            Returns::Scalar(parser.data_type()?)
        };
        if parser.at < parser.tokens.len() {
            return Err(parser.expected("the end"));
        }
        Ok(Self {
            parameters,
            returns,
        })
    }

    /// Whether it fits the kind of kernel, by the table of docs/kernels.md.
    pub(super) fn check(&self, kind: Kind) -> Result<(), String> {
        for (i, parameter) in self.parameters.iter().enumerate() {
            let name = &parameter.name;
            if self.parameters[..i].iter().any(|p| p.name == *name) {
                return Err(format!("has two parameters named '{name}'; rename one"));
            }
            if is_any_length(&parameter.data_type) && kind != Kind::Distance {
                return Err(format!(
                    "leaves the length of '{name}' open, which only distance kernels may; write \
                     the length, as in FLOAT[768]"
                ));
            }
        }
        let scalar = match &self.returns {
            Returns::Scalar(data_type) => Some(data_type),
            Returns::Table(_) => None,
        };
        if scalar.is_none() != (kind == Kind::Table) {
            return Err(match kind {
                Kind::Table => "of a table kernel has to end with RETURNS TABLE (name TYPE, …)",
                _ => "has RETURNS TABLE, which only kernels of kind \"table\" may",
            }
            .to_owned());
        }
        let fixed = |data_type: &DataType| element_type(data_type).is_some();
        match kind {
            Kind::Scalar => match scalar {
                Some(DataType::Utf8View | DataType::BinaryView) => Ok(()),
                Some(other) if fixed(other) => Ok(()),
                _ => Err("can't return a vector; return one value, TEXT or BLOB".to_owned()),
            },
            Kind::Filter if scalar == Some(&DataType::Boolean) => Ok(()),
            Kind::Filter => Err("of a filter has to end with RETURNS BOOLEAN".to_owned()),
            Kind::Search => self.check_search(scalar),
            Kind::Distance => self.check_distance(scalar),
            Kind::Aggregate if scalar.is_some_and(fixed) => Ok(()),
            Kind::Aggregate => {
                Err("of an aggregate can't return text, bytes or a vector".to_owned())
            }
            Kind::Table => self.check_table(),
        }
    }

    fn check_search(&self, returns: Option<&DataType>) -> Result<(), String> {
        let parameters_fit = match self.parameters.as_slice() {
            [text, pattern] => {
                text.data_type == DataType::Utf8View
                    && !text.constant
                    && pattern.data_type == DataType::Utf8View
                    && pattern.constant
            }
            _ => false,
        };
        let returns_fit = matches!(returns, Some(DataType::Boolean | DataType::Int32));
        if parameters_fit && returns_fit {
            return Ok(());
        }
        Err(
            "of a search has to be (text TEXT, pattern TEXT CONSTANT) RETURNS BOOLEAN or INTEGER"
                .to_owned(),
        )
    }

    fn check_distance(&self, returns: Option<&DataType>) -> Result<(), String> {
        let parameters_fit = match self.parameters.as_slice() {
            [a, b] => {
                is_any_length(&a.data_type)
                    && a.data_type == b.data_type
                    && !a.constant
                    && !b.constant
            }
            _ => false,
        };
        if parameters_fit && returns == Some(&DataType::Float64) {
            return Ok(());
        }
        Err(
            "of a distance has to be (a FLOAT[], b FLOAT[]) RETURNS DOUBLE or (a BYTES[], b \
             BYTES[]) RETURNS DOUBLE"
                .to_owned(),
        )
    }

    fn check_table(&self) -> Result<(), String> {
        if let Some(column) = self.parameters.iter().find(|p| !p.constant) {
            let name = &column.name;
            return Err(format!(
                "of a table kernel takes constants only; write CONSTANT behind the type of '{name}'"
            ));
        }
        let Returns::Table(columns) = &self.returns else {
            return Ok(());
        };
        for (i, column) in columns.iter().enumerate() {
            let name = column.name();
            if element_type(column.data_type()).is_none() {
                return Err(format!(
                    "can't return the column '{name}': text, bytes and vectors are not possible \
                     in a table's rows"
                ));
            }
            if columns[..i].iter().any(|c| c.name() == name) {
                return Err(format!("has two columns named '{name}'; rename one"));
            }
        }
        Ok(())
    }
}

/// Whether it is `FLOAT[]` or `BYTES[]`.
pub(super) fn is_any_length(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::FixedSizeList(_, 0) | DataType::FixedSizeBinary(0)
    )
}

/// As it is written in a manifest; parses back to the same signature.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, parameter) in self.parameters.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(
                f,
                "{comma}{} {}",
                parameter.name,
                sql_type(&parameter.data_type)
            )?;
            if parameter.constant {
                f.write_str(" CONSTANT")?;
            }
        }
        f.write_str(") RETURNS ")?;
        match &self.returns {
            Returns::Scalar(data_type) => f.write_str(&sql_type(data_type)),
            Returns::Table(columns) => {
                f.write_str("TABLE (")?;
                for (i, column) in columns.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    let data_type = sql_type(column.data_type());
                    write!(f, "{comma}{} {data_type}", column.name())?;
                }
                f.write_str(")")
            }
        }
    }
}

/// The SQL name of a type of a signature; Arrow's for others.
pub(super) fn sql_type(data_type: &DataType) -> String {
    let length = |n: &i32| match n {
        0 => String::new(),
        n => n.to_string(),
    };
    match data_type {
        DataType::Boolean => "BOOLEAN".to_owned(),
        DataType::Int16 => "SMALLINT".to_owned(),
        DataType::Int32 => "INTEGER".to_owned(),
        DataType::Int64 => "BIGINT".to_owned(),
        DataType::Float32 => "REAL".to_owned(),
        DataType::Float64 => "DOUBLE".to_owned(),
        DataType::Date32 => "DATE".to_owned(),
        DataType::Timestamp(TimeUnit::Microsecond, None) => "TIMESTAMP".to_owned(),
        DataType::Decimal128(precision, scale) => format!("DECIMAL({precision}, {scale})"),
        DataType::Utf8View => "TEXT".to_owned(),
        DataType::BinaryView => "BLOB".to_owned(),
        DataType::FixedSizeList(_, n) => format!("FLOAT[{}]", length(n)),
        DataType::FixedSizeBinary(n) => format!("BYTES[{}]", length(n)),
        other => format!("{other}"),
    }
}

/// The Arrow type of `FLOAT[length]`.
pub(super) fn float_vector(length: i32) -> DataType {
    let item = Field::new_list_field(DataType::Float32, true);
    DataType::FixedSizeList(Arc::new(item), length)
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Number(u32),
    Symbol(char),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "'{word}'"),
            Self::Number(number) => write!(f, "'{number}'"),
            Self::Symbol(symbol) => write!(f, "'{symbol}'"),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = |keep: fn(char) -> bool| rest.find(|c| !keep(c)).unwrap_or(rest.len());
        let end = if first.is_ascii_alphabetic() || first == '_' {
            let end = length(|c| c.is_ascii_alphanumeric() || c == '_');
            tokens.push(Token::Word(rest[..end].to_owned()));
            end
        } else if first.is_ascii_digit() {
            let end = length(|c| c.is_ascii_digit());
            let number = rest[..end].parse();
            tokens.push(Token::Number(
                number.map_err(|_| "has a number that is too large".to_owned())?,
            ));
            end
        } else if "()[],".contains(first) {
            tokens.push(Token::Symbol(first));
            1
        } else if first.is_ascii_whitespace() {
            1
        } else {
            return Err(format!(
                "has the character {first:?}, which no signature has"
            ));
        };
        rest = &rest[end..];
    }
    Ok(tokens)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn expected(&self, what: &str) -> String {
        match self.tokens.get(self.at) {
            Some(token) => format!("has {token} where {what} should be"),
            None => format!("ends where {what} should be"),
        }
    }

    fn take_symbol(&mut self, symbol: char) -> bool {
        let found = self.tokens.get(self.at) == Some(&Token::Symbol(symbol));
        self.at += usize::from(found);
        found
    }

    fn symbol(&mut self, symbol: char) -> Result<(), String> {
        match self.take_symbol(symbol) {
            true => Ok(()),
            false => Err(self.expected(&format!("'{symbol}'"))),
        }
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(
            self.tokens.get(self.at),
            Some(Token::Word(found)) if found.eq_ignore_ascii_case(word)
        );
        self.at += usize::from(found);
        found
    }

    fn name(&mut self) -> Result<String, String> {
        match self.tokens.get(self.at) {
            Some(Token::Word(word)) if is_name(word) => {
                self.at += 1;
                Ok(word.clone())
            }
            Some(Token::Word(word)) => Err(format!(
                "has the name '{word}'; write a lower-case letter, then lower-case letters, digits \
                 and '_', 63 at most"
            )),
            _ => Err(self.expected("a parameter's name")),
        }
    }

    fn number(&mut self, what: &str) -> Result<u32, String> {
        match self.tokens.get(self.at) {
            Some(Token::Number(number)) => {
                self.at += 1;
                Ok(*number)
            }
            _ => Err(self.expected(what)),
        }
    }

    fn columns(&mut self) -> Result<Vec<Field>, String> {
        self.symbol('(')?;
        let mut columns = Vec::new();
        loop {
            let name = self.name()?;
            columns.push(Field::new(name, self.data_type()?, false));
            if columns.len() > MAX_COLUMNS {
                return Err(format!("returns more than {MAX_COLUMNS} columns"));
            }
            if !self.take_symbol(',') {
                break;
            }
        }
        self.symbol(')')?;
        Ok(columns)
    }

    fn data_type(&mut self) -> Result<DataType, String> {
        let Some(Token::Word(word)) = self.tokens.get(self.at) else {
            return Err(self.expected("a type"));
        };
        let word = word.to_ascii_uppercase();
        self.at += 1;
        Ok(match word.as_str() {
            "BOOLEAN" => DataType::Boolean,
            "SMALLINT" => DataType::Int16,
            "INTEGER" | "INT" => DataType::Int32,
            "BIGINT" => DataType::Int64,
            "FLOAT" if self.take_symbol('[') => float_vector(self.length()?),
            "REAL" | "FLOAT" => DataType::Float32,
            "DOUBLE" => DataType::Float64,
            "DATE" => DataType::Date32,
            "TIMESTAMP" => DataType::Timestamp(TimeUnit::Microsecond, None),
            "DECIMAL" => self.decimal()?,
            "TEXT" | "VARCHAR" => DataType::Utf8View,
            "BLOB" => DataType::BinaryView,
            "BYTES" => {
                self.symbol('[')?;
                DataType::FixedSizeBinary(self.length()?)
            }
            _ => {
                self.at -= 1;
                return Err(self.expected(
                    "one of BOOLEAN, SMALLINT, INTEGER, BIGINT, REAL, DOUBLE, DATE, TIMESTAMP, \
                     DECIMAL(p, s), TEXT, BLOB, FLOAT[n], BYTES[n]",
                ));
            }
        })
    }

    /// What is between the brackets of a vector, 0 for nothing, and the closing one.
    fn length(&mut self) -> Result<i32, String> {
        if self.take_symbol(']') {
            return Ok(0);
        }
        let length = self.number("a length")?;
        self.symbol(']')?;
        match i32::try_from(length) {
            Ok(length) if (1..=MAX_DIMENSION).contains(&length.unsigned_abs()) => Ok(length),
            _ => Err(format!(
                "has a vector of {length} elements; write 1 to {MAX_DIMENSION}"
            )),
        }
    }

    fn decimal(&mut self) -> Result<DataType, String> {
        self.symbol('(')?;
        let precision = self.number("a precision")?;
        self.symbol(',')?;
        let scale = self.number("a scale")?;
        self.symbol(')')?;
        match (u8::try_from(precision), i8::try_from(scale)) {
            (Ok(p @ 1..=18), Ok(s)) if scale <= precision => Ok(DataType::Decimal128(p, s)),
            _ => Err(format!(
                "has DECIMAL({precision}, {scale}); kernels take precisions from 1 to 18 and \
                 scales up to the precision"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_print_as_they_parse() {
        for text in [
            "(price DOUBLE, low DOUBLE CONSTANT) RETURNS BOOLEAN",
            "() RETURNS BIGINT",
            "(a TEXT, b BLOB CONSTANT, c DECIMAL(18, 4), d FLOAT[768], e BYTES[32]) RETURNS TEXT",
            "(a FLOAT[], b FLOAT[]) RETURNS DOUBLE",
            "(n SMALLINT, i INTEGER, d DATE, t TIMESTAMP, r REAL) RETURNS DECIMAL(9, 2)",
            "(low DATE CONSTANT) RETURNS TABLE (day DATE, count BIGINT)",
        ] {
            assert_eq!(Signature::parse(text).unwrap().to_string(), text);
        }
        let other = Signature::parse("( x int , y varchar constant)returns float").unwrap();
        let text = "(x INTEGER, y TEXT CONSTANT) RETURNS REAL";
        assert_eq!(other.to_string(), text);
    }

    #[test]
    fn what_is_no_signature_is_refused_with_the_place() {
        for (text, reason) in [
            ("", "ends where '('"),
            ("(x)", "')' where a type"),
            ("(x DOUBLE", "ends where ')'"),
            ("(x DOUBLE) DOUBLE", "'DOUBLE' where RETURNS"),
            ("(x DOUBLE) RETURNS DOUBLE x", "'x' where the end"),
            ("(x HUGEINT) RETURNS DOUBLE", "'HUGEINT' where one of"),
            ("(X DOUBLE) RETURNS DOUBLE", "the name 'X'"),
            ("(é DOUBLE) RETURNS DOUBLE", "the character 'é'"),
            (
                "(x DECIMAL(19, 2)) RETURNS DOUBLE",
                "precisions from 1 to 18",
            ),
            ("(x DECIMAL(3, 4)) RETURNS DOUBLE", "scales up to"),
            ("(x FLOAT[99999999]) RETURNS DOUBLE", "1 to 65536"),
            ("(x FLOAT[99999999999]) RETURNS DOUBLE", "too large"),
            ("(x BYTES) RETURNS DOUBLE", "')' where '['"),
        ] {
            let error = Signature::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}

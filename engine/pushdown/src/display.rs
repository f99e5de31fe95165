//! Programs in words, as `EXPLAIN` prints them: close to SQL, long constants cut short.

use std::fmt::{self, Display, Formatter, Write};

use arrow::datatypes::DataType;
use arrow::temporal_conversions::{date32_to_datetime, date64_to_datetime};

use crate::types::units_per_second;
use crate::{
    Aggregate, AggregateFunction, ArithmeticOp, CompareOp, DatePart, Expr, InputColumn, Literal,
    Output, Program, QueryVector, RuntimeFilter, RuntimePredicate, Scalar,
};

/// Values of an `IN` list that are printed before the rest is only counted.
const LIST_VALUES: usize = 8;
/// Characters of a text constant that are printed.
const TEXT_CHARS: usize = 60;
/// Bytes of an expression that an error message prints.
const BRIEF_BYTES: usize = 300;

impl Expr {
    /// The expression with its columns' names; `Display` alone prints column numbers.
    pub fn display<'a>(&'a self, columns: &'a [InputColumn]) -> impl Display + 'a {
        Named {
            part: self,
            columns,
        }
    }

    /// [`Expr::display`], cut to a length that suits an error message.
    pub(crate) fn brief(&self, columns: &[InputColumn]) -> String {
        brief(self.display(columns))
    }
}

impl Aggregate {
    /// The aggregate with its columns' names.
    pub fn display<'a>(&'a self, columns: &'a [InputColumn]) -> impl Display + 'a {
        Named {
            part: self,
            columns,
        }
    }

    pub(crate) fn brief(&self, columns: &[InputColumn]) -> String {
        brief(self.display(columns))
    }
}

impl RuntimeFilter {
    /// The filter with its column's name.
    pub fn display<'a>(&'a self, columns: &'a [InputColumn]) -> impl Display + 'a {
        Named {
            part: self,
            columns,
        }
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Named {
            part: self,
            columns: &[],
        }
        .fmt(f)
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_scalar(f, &self.value, &self.data_type)
    }
}

impl Display for CompareOp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eq => "=",
            Self::NotEq => "<>",
            Self::Lt => "<",
            Self::LtEq => "<=",
            Self::Gt => ">",
            Self::GtEq => ">=",
        })
    }
}

impl Display for ArithmeticOp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
        })
    }
}

impl Display for DatePart {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Year => "YEAR",
            Self::Month => "MONTH",
            Self::Day => "DAY",
        })
    }
}

impl Display for AggregateFunction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Count => "count",
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
        })
    }
}

/// One line each, absent parts left out: `read`, `where`, then `rows`, `order by`, `limit` or
/// `group by`, `aggregate`.
impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let columns = self.columns.as_slice();
        f.write_str("read ")?;
        write_list(f, columns, |f, column| write_name(f, &column.name))?;
        if !self.filter.is_empty() {
            f.write_str("\nwhere ")?;
            write_separated(f, &self.filter, " AND ", |f, conjunct| {
                write_expr(f, conjunct, columns, Binding::And)
            })?;
        }
        match &self.output {
            Output::Rows {
                exprs,
                order,
                limit,
            } => {
                f.write_str("\nrows ")?;
                write_list(f, exprs, |f, expr| expr.display(columns).fmt(f))?;
                if !order.is_empty() {
                    f.write_str("\norder by ")?;
                    write_list(f, order, |f, key| {
                        match exprs.get(key.output as usize) {
                            Some(expr) => expr.display(columns).fmt(f)?,
                            None => write!(f, "output {}", key.output)?,
                        }
                        f.write_str(if key.descending { " DESC" } else { "" })?;
                        f.write_str(if key.nulls_first {
                            " NULLS FIRST"
                        } else {
                            " NULLS LAST"
                        })
                    })?;
                }
                if let Some(limit) = limit {
                    write!(f, "\nlimit {limit}")?;
                }
            }
            Output::Aggregate { keys, aggregates } => {
                if !keys.is_empty() {
                    f.write_str("\ngroup by ")?;
                    write_list(f, keys, |f, key| key.display(columns).fmt(f))?;
                }
                f.write_str("\naggregate ")?;
                write_list(f, aggregates, |f, aggregate| {
                    aggregate.display(columns).fmt(f)
                })?;
            }
            Output::Nearest {
                queries,
                metric,
                expr,
                k,
                exprs,
            } => {
                let vectors = expr.display(columns);
                write!(f, "\nnearest {k} by {metric}({vectors}) to ")?;
                match queries.as_slice() {
                    [query] => write_vector(f, query)?,
                    queries => write!(f, "{} queries", queries.len())?,
                }
                if !exprs.is_empty() {
                    f.write_str("\nrows ")?;
                    write_list(f, exprs, |f, expr| expr.display(columns).fmt(f))?;
                }
            }
        }
        Ok(())
    }
}

/// A part of a Program with the columns that it counts.
struct Named<'a, T> {
    part: &'a T,
    columns: &'a [InputColumn],
}

impl Display for Named<'_, Expr> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_expr(f, self.part, self.columns, Binding::None)
    }
}

impl Display for Named<'_, Aggregate> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.part.function)?;
        match &self.part.argument {
            Some(argument) => argument.display(self.columns).fmt(f)?,
            None => f.write_char('*')?,
        }
        f.write_char(')')?;
        if let Some(filter) = &self.part.filter {
            write!(f, " FILTER (WHERE {})", filter.display(self.columns))?;
        }
        Ok(())
    }
}

impl Display for Named<'_, RuntimeFilter> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let column = Expr::Column(self.part.column);
        let data_type = column.data_type(self.columns);
        let column = column.display(self.columns);
        match &self.part.predicate {
            RuntimePredicate::Range { min, max } => {
                if let Some(min) = min {
                    write_scalar(f, min, &data_type)?;
                    f.write_str(" <= ")?;
                }
                column.fmt(f)?;
                if let Some(max) = max {
                    f.write_str(" <= ")?;
                    write_scalar(f, max, &data_type)?;
                }
            }
            RuntimePredicate::Set(values) => {
                write!(f, "{column} IN (")?;
                write_values(f, values, &data_type)?;
                f.write_char(')')?;
            }
            RuntimePredicate::Bitmap { base, bits } => {
                let set: u64 = bits.iter().map(|word| u64::from(word.count_ones())).sum();
                write!(f, "{column} IN (bitmap of {set} values from {base})")?;
            }
        }
        f.write_str(if self.part.keep_nulls { " OR NULL" } else { "" })
    }
}

/// How tightly what surrounds an expression binds: an expression that binds less is put in
/// parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    None,
    Or,
    And,
    Not,
    Comparison,
    Sum,
    Product,
    Operand,
}

fn binding(expr: &Expr) -> Binding {
    match expr {
        Expr::Or(operands) if operands.len() != 1 => Binding::Or,
        Expr::And(operands) if operands.len() != 1 => Binding::And,
        // A single operand stands for itself.
        Expr::Or(operands) | Expr::And(operands) => binding(&operands[0]),
        Expr::Not(operand) if matches!(**operand, Expr::IsNull(_)) => Binding::Comparison,
        Expr::Not(_) => Binding::Not,
        Expr::Compare { .. }
        | Expr::IsNull(_)
        | Expr::InList { .. }
        | Expr::Like { .. }
        | Expr::Regex { .. } => Binding::Comparison,
        Expr::Arithmetic {
            op: ArithmeticOp::Multiply,
            ..
        } => Binding::Product,
        Expr::Arithmetic { .. } => Binding::Sum,
        _ => Binding::Operand,
    }
}

fn write_expr(
    f: &mut Formatter<'_>,
    expr: &Expr,
    columns: &[InputColumn],
    around: Binding,
) -> fmt::Result {
    if binding(expr) < around {
        f.write_char('(')?;
        write_bare(f, expr, columns)?;
        f.write_char(')')
    } else {
        write_bare(f, expr, columns)
    }
}

fn write_bare(f: &mut Formatter<'_>, expr: &Expr, columns: &[InputColumn]) -> fmt::Result {
    let operand = |f: &mut Formatter<'_>, expr: &Expr| write_expr(f, expr, columns, Binding::Sum);
    let not = |negated: &bool| if *negated { " NOT" } else { "" };
    match expr {
        Expr::Column(index) => match columns.get(*index as usize) {
            Some(column) => write_name(f, &column.name),
            None => write!(f, "#{index}"),
        },
        Expr::Literal(literal) => literal.fmt(f),
        Expr::Compare { op, left, right } => {
            operand(f, left)?;
            write!(f, " {op} ")?;
            operand(f, right)
        }
        Expr::And(operands) => write_separated(f, operands, " AND ", |f, expr| {
            // An AND inside of an AND keeps its parentheses: the tree stays visible.
            write_expr(f, expr, columns, Binding::Not)
        }),
        Expr::Or(operands) => write_separated(f, operands, " OR ", |f, expr| {
            write_expr(f, expr, columns, Binding::And)
        }),
        Expr::Not(inner) => match &**inner {
            Expr::IsNull(tested) => {
                operand(f, tested)?;
                f.write_str(" IS NOT NULL")
            }
            other => {
                f.write_str("NOT ")?;
                write_expr(f, other, columns, Binding::Comparison)
            }
        },
        Expr::IsNull(tested) => {
            operand(f, tested)?;
            f.write_str(" IS NULL")
        }
        Expr::InList {
            expr,
            list,
            negated,
        } => {
            operand(f, expr)?;
            write!(f, "{} IN (", not(negated))?;
            write_values(f, list, &expr.data_type(columns))?;
            f.write_char(')')
        }
        Expr::Like {
            expr,
            pattern,
            negated,
            case_insensitive,
        } => {
            operand(f, expr)?;
            let like = if *case_insensitive { "ILIKE" } else { "LIKE" };
            write!(f, "{} {like} ", not(negated))?;
            write_text(f, pattern)
        }
        Expr::Arithmetic {
            op, left, right, ..
        } => {
            let own = binding(expr);
            write_expr(f, left, columns, own)?;
            write!(f, " {op} ")?;
            // `a - (b + c)` needs its parentheses, and `a * (b * c)` may overflow differently.
            let tighter = if own == Binding::Sum {
                Binding::Product
            } else {
                Binding::Operand
            };
            write_expr(f, right, columns, tighter)
        }
        Expr::Cast { expr, data_type } => {
            write!(f, "CAST({} AS {data_type})", expr.display(columns))
        }
        Expr::Case {
            branches,
            otherwise,
            ..
        } => {
            f.write_str("CASE")?;
            for (condition, value) in branches {
                let (condition, value) = (condition.display(columns), value.display(columns));
                write!(f, " WHEN {condition} THEN {value}")?;
            }
            if let Some(otherwise) = otherwise {
                write!(f, " ELSE {}", otherwise.display(columns))?;
            }
            f.write_str(" END")
        }
        Expr::DatePart { part, expr } => {
            write!(f, "EXTRACT({part} FROM {})", expr.display(columns))
        }
        Expr::Substring {
            expr,
            start,
            length,
        } => {
            write!(
                f,
                "SUBSTRING({} FROM {start} FOR {length})",
                expr.display(columns)
            )
        }
        Expr::Position { expr, needle } => {
            write!(f, "strpos({}, ", expr.display(columns))?;
            write_text(f, needle)?;
            f.write_char(')')
        }
        Expr::Regex {
            expr,
            pattern,
            negated,
            case_insensitive,
        } => {
            operand(f, expr)?;
            let not = if *negated { "!" } else { "" };
            let any_case = if *case_insensitive { "*" } else { "" };
            write!(f, " {not}~{any_case} ")?;
            write_text(f, pattern)
        }
        Expr::ContainsAny { expr, needles } => {
            write!(f, "contains_any({}", expr.display(columns))?;
            for needle in needles {
                f.write_str(", ")?;
                write_text(f, needle)?;
            }
            f.write_char(')')
        }
        Expr::Distance {
            metric,
            expr,
            query,
        } => {
            write!(f, "{metric}({}, ", expr.display(columns))?;
            write_vector(f, query)?;
            f.write_char(')')
        }
        Expr::Kernel {
            kernel,
            arguments,
            query,
            ..
        } => {
            write!(f, "{}(", kernel.name)?;
            write_separated(f, arguments, ", ", |f, expr| {
                write!(f, "{}", expr.display(columns))
            })?;
            if let Some(query) = query {
                f.write_str(if arguments.is_empty() { "" } else { ", " })?;
                write_vector(f, query)?;
            }
            f.write_char(')')
        }
    }
}

/// Its first elements.
fn write_vector(f: &mut Formatter<'_>, vector: &QueryVector) -> fmt::Result {
    match vector {
        QueryVector::Bits(bytes) => {
            f.write_str("X'")?;
            for byte in bytes.iter().take(LIST_VALUES) {
                write!(f, "{byte:02x}")?;
            }
            f.write_str(if bytes.len() > LIST_VALUES {
                "…'"
            } else {
                "'"
            })
        }
        QueryVector::Floats(values) => {
            f.write_char('[')?;
            let shown = &values[..values.len().min(LIST_VALUES)];
            write_list(f, shown, |f, value| write!(f, "{value}"))?;
            f.write_str(if values.len() > LIST_VALUES {
                ", …]"
            } else {
                "]"
            })
        }
    }
}

fn write_list<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    write: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    if items.is_empty() {
        return f.write_str("nothing");
    }
    write_separated(f, items, ", ", write)
}

fn write_separated<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    separator: &str,
    mut write: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(separator)?;
        }
        write(f, item)?;
    }
    Ok(())
}

/// A column name, in double quotes when SQL would need them.
fn write_name(f: &mut Formatter<'_>, name: &str) -> fmt::Result {
    let plain = name
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && !name
            .bytes()
            .next()
            .is_none_or(|first| first.is_ascii_digit());
    if plain {
        f.write_str(name)
    } else {
        write!(f, "\"{}\"", name.replace('"', "\"\""))
    }
}

fn write_values(f: &mut Formatter<'_>, values: &[Scalar], data_type: &DataType) -> fmt::Result {
    // One value more is printed rather than "1 more".
    let shown = if values.len() <= LIST_VALUES + 1 {
        values.len()
    } else {
        LIST_VALUES
    };
    write_separated(f, &values[..shown], ", ", |f, value| {
        write_scalar(f, value, data_type)
    })?;
    if shown < values.len() {
        write!(f, ", … {} more", values.len() - shown)?;
    }
    Ok(())
}

/// A constant as SQL writes it; of a type that it doesn't fit, its bare value.
fn write_scalar(f: &mut Formatter<'_>, value: &Scalar, data_type: &DataType) -> fmt::Result {
    match (value, data_type) {
        (Scalar::Null, _) => f.write_str("NULL"),
        (Scalar::Boolean(value), _) => f.write_str(if *value { "TRUE" } else { "FALSE" }),
        (Scalar::Int(value), DataType::Decimal128(_, scale)) => write_decimal(f, *value, *scale),
        (Scalar::Int(value), DataType::Date32) => {
            match i32::try_from(*value).ok().and_then(date32_to_datetime) {
                Some(day) => write!(f, "DATE '{}'", day.date()),
                None => write!(f, "DATE {value}"),
            }
        }
        (Scalar::Int(value), DataType::Date64) => {
            match i64::try_from(*value).ok().and_then(date64_to_datetime) {
                Some(time) => write!(f, "DATE '{time}'"),
                None => write!(f, "DATE {value}"),
            }
        }
        (Scalar::Int(value), DataType::Timestamp(unit, zone)) => {
            let per_second = i128::from(units_per_second(unit));
            let (seconds, rest) = (value.div_euclid(per_second), value.rem_euclid(per_second));
            let nanos = rest * (1_000_000_000 / per_second);
            let time = i64::try_from(seconds)
                .ok()
                .and_then(|seconds| arrow_timestamp(seconds, nanos as u32));
            match time {
                Some(time) => write!(f, "TIMESTAMP '{time}'")?,
                None => write!(f, "TIMESTAMP {value}")?,
            }
            // The value itself is in UTC; the zone is how it is shown elsewhere.
            f.write_str(if zone.is_some() { " UTC" } else { "" })
        }
        (Scalar::Int(value), DataType::Time32(unit) | DataType::Time64(unit)) => {
            write!(f, "TIME {value}{unit}")
        }
        (Scalar::Int(value), DataType::Duration(unit)) => write!(f, "DURATION {value}{unit}"),
        (Scalar::Int(value), _) => write!(f, "{value}"),
        (Scalar::Float(value), _) => write!(f, "{value:?}"),
        (Scalar::Bytes(bytes), DataType::Utf8View) => {
            write_text(f, &String::from_utf8_lossy(bytes))
        }
        (Scalar::Bytes(bytes), _) => {
            f.write_str("X'")?;
            for byte in bytes.iter().take(TEXT_CHARS / 2) {
                write!(f, "{byte:02X}")?;
            }
            f.write_str(if bytes.len() > TEXT_CHARS / 2 {
                "…'"
            } else {
                "'"
            })
        }
    }
}

/// Seconds and nanoseconds since 1970 as a date and time.
fn arrow_timestamp(seconds: i64, nanos: u32) -> Option<impl Display> {
    let whole = arrow::temporal_conversions::timestamp_s_to_datetime(seconds)?;
    Some(std::fmt::from_fn(move |f| {
        write!(f, "{whole}")?;
        if nanos > 0 {
            let fraction = format!("{nanos:09}");
            write!(f, ".{}", fraction.trim_end_matches('0'))?;
        }
        Ok(())
    }))
}

fn write_decimal(f: &mut Formatter<'_>, unscaled: i128, scale: i8) -> fmt::Result {
    let sign = if unscaled < 0 { "-" } else { "" };
    let digits = unscaled.unsigned_abs().to_string();
    match usize::try_from(scale) {
        Ok(0) => write!(f, "{sign}{digits}"),
        Ok(scale) => {
            let digits = format!("{digits:0>width$}", width = scale + 1);
            let (whole, fraction) = digits.split_at(digits.len() - scale);
            write!(f, "{sign}{whole}.{fraction}")
        }
        Err(_) => write!(f, "{sign}{digits}e{}", -i32::from(scale)),
    }
}

/// Text in single quotes, its control characters escaped so that it stays on one line.
fn write_text(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('\'')?;
    for c in text.chars().take(TEXT_CHARS) {
        match c {
            '\'' => f.write_str("''")?,
            c if c.is_control() => write!(f, "{}", c.escape_default())?,
            c => f.write_char(c)?,
        }
    }
    f.write_str(if text.chars().nth(TEXT_CHARS).is_some() {
        "…'"
    } else {
        "'"
    })
}

/// Prints at most [`BRIEF_BYTES`] bytes, without making the rest.
fn brief(part: impl Display) -> String {
    struct Brief(String);
    impl Write for Brief {
        fn write_str(&mut self, s: &str) -> fmt::Result {
            let room = BRIEF_BYTES - self.0.len();
            if s.len() <= room {
                self.0.push_str(s);
                return Ok(());
            }
            self.0.push_str(&s[..s.floor_char_boundary(room)]);
            Err(fmt::Error)
        }
    }
    let mut text = Brief(String::new());
    if write!(text, "{part}").is_err() {
        text.0.push('…');
    }
    text.0
}

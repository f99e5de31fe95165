//! `format` and `printf`: texts with values in them.
//!
//! The forms of `format` are those of C++'s library of that name (and of Python), those of `printf` are C's.

use std::iter::Peekable;
use std::str::Chars;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Float64Type};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

/// The widest that a value is made, and the most digits: more is a mistake, or meant to fill the memory.
const WIDEST: usize = 10_000;

/// The functions.
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let format = Printed::new(
        "format",
        "the text with values in the places of `{}`, or as `{:>8.2f}` says, as in C++ and Python",
        Style::Braces,
    );
    let printf = Printed::new(
        "printf",
        "the text with values in the places of `%s`, `%d`, `%8.2f` and the like, as in C",
        Style::Percent,
    );
    [format, printf]
        .map(|f| Arc::new(ScalarUDF::from(f)))
        .to_vec()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Style {
    Braces,
    Percent,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Printed {
    name: &'static str,
    style: Style,
    signature: Signature,
    documentation: Documentation,
}

impl Printed {
    fn new(name: &'static str, says: &'static str, style: Style) -> Self {
        let call = format!("{name}(text, value, …)");
        Self {
            name,
            style,
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: Documentation::builder(DocSection::default(), says, call).build(),
        }
    }
}

impl ScalarUDFImpl for Printed {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [form, values @ ..] = types else {
            return plan_err!("{} takes a text and values", self.name);
        };
        if !form.is_string() && !form.is_null() {
            return plan_err!("{} takes a text and values, not {form}", self.name);
        }
        let values = values.iter().map(|given| match given {
            given if given.is_integer() => DataType::Decimal128(38, 0),
            DataType::Decimal128(38, 0) | DataType::Boolean => given.clone(),
            given if given.is_numeric() => DataType::Float64,
            _ => DataType::Utf8View,
        });
        Ok([DataType::Utf8View].into_iter().chain(values).collect())
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (name, style) = (self.name, self.style);
        let print = move |columns: &[ArrayRef]| print(name, style, columns);
        make_scalar_function(print, Vec::new())(&args.args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// A value to be printed.
enum Value<'a> {
    Whole(i128),
    Float(f64),
    Boolean(bool),
    Text(&'a str),
}

impl Value<'_> {
    fn is_of(&self) -> &'static str {
        match self {
            Self::Whole(_) => "a whole number",
            Self::Float(_) => "a number with a fraction",
            Self::Boolean(_) => "a boolean",
            Self::Text(_) => "a text",
        }
    }
}

fn print(name: &str, style: Style, columns: &[ArrayRef]) -> Result<ArrayRef> {
    let Some((forms, columns)) = columns.split_first() else {
        return exec_err!("{name} takes a text and values");
    };
    let columns = columns.iter().map(|column| match column.data_type() {
        DataType::Decimal128(_, 0) | DataType::Float64 | DataType::Boolean => {
            Ok(Arc::clone(column))
        }
        _ => cast(column, &DataType::Utf8View),
    });
    let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
    let value = |column: usize, row: usize| {
        let column: &ArrayRef = &columns[column];
        match column.data_type() {
            DataType::Decimal128(..) => {
                Value::Whole(column.as_primitive::<Decimal128Type>().value(row))
            }
            DataType::Float64 => Value::Float(column.as_primitive::<Float64Type>().value(row)),
            DataType::Boolean => Value::Boolean(column.as_boolean().value(row)),
            _ => Value::Text(column.as_string_view().value(row)),
        }
    };
    let forms = cast(forms, &DataType::Utf8View)?;
    let forms = forms.as_string_view();
    let mut printed = StringBuilder::new();
    for row in 0..forms.len() {
        if forms.is_null(row) || columns.iter().any(|column| column.is_null(row)) {
            printed.append_null();
            continue;
        }
        let given = (0..columns.len()).map(|column| value(column, row));
        let given: Vec<_> = given.collect();
        let text = match style {
            Style::Braces => braces(forms.value(row), &given),
            Style::Percent => percents(forms.value(row), &given),
        };
        match text {
            Ok(text) => printed.append_value(text),
            Err(why) => return exec_err!("{name}('{}'): {why}", forms.value(row)),
        }
    }
    Ok(Arc::new(printed.finish()))
}

/// What says how a value is printed.
#[derive(Debug, Clone, Default)]
struct Form {
    fill: Option<char>,
    align: Option<char>,
    /// `+` or a blank in front of numbers that are not negative.
    sign: Option<char>,
    is_alternate: bool,
    has_zeros: bool,
    width: usize,
    /// What stands between each three digits.
    groups: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
    /// Whether it is one of `printf`, in which whole numbers have precisions, and digits that are not decimal
    /// are those of their bits.
    is_percent: bool,
}

type Said<T> = std::result::Result<T, String>;

fn number(chars: &mut Peekable<Chars<'_>>) -> Said<Option<usize>> {
    let mut number = None;
    while let Some(digit) = chars.peek().and_then(|char| char.to_digit(10)) {
        chars.next();
        let next = number.unwrap_or(0) * 10 + digit as usize;
        if next > WIDEST {
            return Err(format!("a width or precision is at most {WIDEST}"));
        }
        number = Some(next);
    }
    Ok(number)
}

/// The value of that number.
fn pick<'a, 'b>(given: &'b [Value<'a>], at: usize) -> Said<&'b Value<'a>> {
    given
        .get(at)
        .ok_or_else(|| format!("there is no value number {} among {}", at + 1, given.len()))
}

fn braces(form: &str, given: &[Value<'_>]) -> Said<String> {
    let mut printed = String::new();
    let mut chars = form.chars().peekable();
    let mut next = 0;
    while let Some(char) = chars.next() {
        match char {
            '{' if chars.next_if_eq(&'{').is_some() => printed.push('{'),
            '}' if chars.next_if_eq(&'}').is_some() => printed.push('}'),
            '}' => return Err("a '}' alone; it is written twice".into()),
            '{' => {
                let at = match number(&mut chars)? {
                    Some(at) => at,
                    None => {
                        next += 1;
                        next - 1
                    }
                };
                let mut form = Form::default();
                if chars.next_if_eq(&':').is_some() {
                    form = form_in_braces(&mut chars)?;
                }
                if chars.next() != Some('}') {
                    return Err("between '{' and '}' may stand a number and, behind a colon, a form such as >8.2f".into());
                }
                put(&mut printed, pick(given, at)?, &form)?;
            }
            other => printed.push(other),
        }
    }
    Ok(printed)
}

/// `[[fill]align][sign][#][0][width][,][.precision][kind]`.
fn form_in_braces(chars: &mut Peekable<Chars<'_>>) -> Said<Form> {
    let mut form = Form::default();
    let is_align = |char: &char| matches!(char, '<' | '>' | '^');
    let mut ahead = chars.clone();
    let first = ahead.next();
    if ahead.peek().is_some_and(is_align) && first != Some('}') {
        form.fill = chars.next();
    }
    form.align = chars.next_if(is_align);
    form.sign = chars.next_if(|char| matches!(char, '+' | '-' | ' '));
    form.is_alternate = chars.next_if_eq(&'#').is_some();
    form.has_zeros = chars.next_if_eq(&'0').is_some();
    form.width = number(chars)?.unwrap_or(0);
    form.groups = chars.next_if(|char| matches!(char, ',' | '_' | '\''));
    if chars.next_if_eq(&'.').is_some() {
        form.precision = number(chars)?;
    }
    form.kind = chars.next_if(char::is_ascii_alphabetic);
    Ok(form)
}

fn percents(form: &str, given: &[Value<'_>]) -> Said<String> {
    let mut printed = String::new();
    let mut chars = form.chars().peekable();
    let mut next = 0;
    while let Some(char) = chars.next() {
        if char != '%' {
            printed.push(char);
            continue;
        }
        if chars.next_if_eq(&'%').is_some() {
            printed.push('%');
            continue;
        }
        let mut form = Form {
            align: Some('>'),
            is_percent: true,
            ..Form::default()
        };
        while let Some(flag) = chars.next_if(|char| "-+ #0,'_".contains(*char)) {
            match flag {
                '-' => form.align = Some('<'),
                '#' => form.is_alternate = true,
                '0' => form.has_zeros = true,
                ',' | '\'' | '_' => form.groups = Some(flag),
                sign => form.sign = Some(sign),
            }
        }
        form.width = number(&mut chars)?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            form.precision = Some(number(&mut chars)?.unwrap_or(0));
        }
        // Sizes of C's types.
        while chars.next_if(|char| matches!(char, 'l' | 'h')).is_some() {}
        form.kind = match chars.next() {
            Some('i') => Some('d'),
            Some(kind) if kind.is_ascii_alphabetic() => Some(kind),
            _ => return Err("a '%' that says no kind; a percent sign is written twice".into()),
        };
        // Zeros stand on the left alone.
        form.has_zeros &= form.align == Some('>');
        if form.has_zeros {
            form.align = None;
        }
        put(&mut printed, pick(given, next)?, &form)?;
        next += 1;
    }
    Ok(printed)
}

/// Prints a value.
fn put(printed: &mut String, value: &Value<'_>, form: &Form) -> Said<()> {
    let unfit = || {
        let kind = form.kind.map(String::from).unwrap_or_default();
        Err(format!("'{kind}' does not print {}", value.is_of()))
    };
    let (is_negative, prefix, digits) = match (value, form.kind) {
        (Value::Text(text), None | Some('s')) => {
            let text: String = match form.precision {
                Some(most) => text.chars().take(most).collect(),
                None => (*text).into(),
            };
            pad(printed, &text, form, '<');
            return Ok(());
        }
        (Value::Boolean(value), None | Some('s')) => {
            pad(printed, if *value { "true" } else { "false" }, form, '<');
            return Ok(());
        }
        (Value::Whole(number), Some('c')) => {
            let char = u32::try_from(*number).ok().and_then(char::from_u32);
            let Some(char) = char else {
                return Err(format!("{number} is the number of no character"));
            };
            pad(printed, &char.to_string(), form, '<');
            return Ok(());
        }
        (
            Value::Whole(number),
            kind @ (None | Some('d' | 's' | 'u' | 'x' | 'X' | 'o' | 'b' | 'B')),
        ) if kind != Some('u') || form.is_percent => {
            let is_of_bits =
                form.is_percent && matches!(kind, Some('u' | 'x' | 'X' | 'o' | 'b' | 'B'));
            let size = match i64::try_from(*number) {
                _ if !is_of_bits => number.unsigned_abs(),
                Ok(number) if number < 0 => (number as u64).into(),
                _ => *number as u128,
            };
            let (prefix, digits) = match kind {
                Some('x') => ("0x", format!("{size:x}")),
                Some('X') => ("0X", format!("{size:X}")),
                Some('o') => ("0", format!("{size:o}")),
                Some('b') => ("0b", format!("{size:b}")),
                Some('B') => ("0B", format!("{size:b}")),
                _ => ("", size.to_string()),
            };
            let least = form.precision.filter(|_| form.is_percent).unwrap_or(0);
            let digits = format!("{digits:0>least$}");
            (*number < 0 && !is_of_bits, prefix, digits)
        }
        (Value::Boolean(value), Some('d')) => (false, "", u8::from(*value).to_string()),
        (Value::Whole(number), Some('e' | 'E' | 'f' | 'F' | 'g' | 'G')) => {
            (*number < 0, "", float((*number as f64).abs(), form))
        }
        (Value::Float(number), None | Some('s' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G')) => (
            number.is_sign_negative() && !number.is_nan(),
            "",
            float(number.abs(), form),
        ),
        _ => return unfit(),
    };
    let sign = match (is_negative, form.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let prefix = if form.is_alternate { prefix } else { "" };
    let digits = match form.groups {
        Some(between) => grouped(&digits, between),
        None => digits,
    };
    let is_number = digits.starts_with(|char: char| char.is_ascii_hexdigit());
    if form.has_zeros && form.align.is_none() && is_number {
        let length = sign.len() + prefix.len() + digits.len();
        let zeros = "0".repeat(form.width.saturating_sub(length));
        printed.extend([sign, prefix, &zeros, &digits]);
        return Ok(());
    }
    pad(printed, &format!("{sign}{prefix}{digits}"), form, '>');
    Ok(())
}

fn pad(printed: &mut String, text: &str, form: &Form, otherwise: char) {
    let missing = form.width.saturating_sub(text.chars().count());
    let before = match form.align.unwrap_or(otherwise) {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    let fill = form.fill.unwrap_or(' ');
    printed.extend(std::iter::repeat_n(fill, before));
    printed.push_str(text);
    printed.extend(std::iter::repeat_n(fill, missing - before));
}

/// Digits with something between each three before the point.
fn grouped(digits: &str, between: char) -> String {
    let whole = digits.find(|char: char| !char.is_ascii_digit());
    let (whole, rest) = digits.split_at(whole.unwrap_or(digits.len()));
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            grouped.push(between);
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// A number that is not negative.
fn float(number: f64, form: &Form) -> String {
    let kind = form.kind.filter(|kind| *kind != 's');
    let is_upper = kind.is_some_and(|kind| kind.is_ascii_uppercase());
    let text = match kind.map(|kind| kind.to_ascii_lowercase()) {
        _ if !number.is_finite() => {
            let name = if number.is_nan() { "nan" } else { "inf" };
            name.to_owned()
        }
        Some('f') => format!("{number:.*}", form.precision.unwrap_or(6)),
        Some('e') => scientific(number, form.precision.unwrap_or(6)),
        Some(_) => significant(number, form.precision.unwrap_or(6), false),
        None => match form.precision {
            Some(precision) => significant(number, precision, true),
            None => shortest(number),
        },
    };
    match is_upper {
        true => text.to_uppercase(),
        false => text,
    }
}

/// `1.5e+08`.
fn scientific(number: f64, precision: usize) -> String {
    with_exponent(&format!("{number:.precision$e}"))
}

/// An exponent of two digits and with a sign.
fn with_exponent(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// So many digits, as `%g` has it, which leaves out zeros at the end.
fn significant(number: f64, precision: usize, keeps_zeros: bool) -> String {
    let precision = precision.max(1);
    let text = format!("{number:.*e}", precision - 1);
    let exponent = text
        .split_once('e')
        .and_then(|(_, e)| e.parse::<i32>().ok());
    let exponent = exponent.unwrap_or(0);
    let without_zeros = |text: &str| match text.contains('.') && !keeps_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= precision as i32 {
        let digits = text.split_once('e').map_or(&*text, |(digits, _)| digits);
        return with_exponent(&format!("{}e{exponent}", without_zeros(digits)));
    }
    let behind = (precision as i32 - 1 - exponent).max(i32::from(keeps_zeros)) as usize;
    without_zeros(&format!("{number:.behind$}"))
}

/// The fewest digits that tell it from all others.
fn shortest(number: f64) -> String {
    let text = format!("{number:e}");
    let exponent = text
        .split_once('e')
        .and_then(|(_, e)| e.parse::<i32>().ok());
    match exponent {
        Some(-4..16) | None => format!("{number:?}"),
        Some(_) => with_exponent(&text),
    }
}

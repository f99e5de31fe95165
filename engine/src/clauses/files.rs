//! `read_parquet('path')` and the like, which are the table `'path'`, read as it is said behind the path.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, Query, TableAlias,
    TableFactor, TableFunctionArgs, Value, VisitorMut,
};

use super::parsed;
use super::sample::alias_of;
use crate::error::{Error, Result};
use crate::file_lists::FileList;
use crate::files::{FileOptions, format_of};
use crate::names::quoted_text;
use crate::walk::walk_mut;

/// Functions, and the format that they read.
const FUNCTIONS: [(&str, &str); 5] = [
    ("read_parquet", "parquet"),
    ("read_csv", "csv"),
    ("read_csv_auto", "csv"),
    ("read_json", "json"),
    ("read_json_auto", "json"),
];

/// What is so in any case, and may be said: of CSV files, and of others.
const ALWAYS: [&[&str]; 2] = [
    &["auto_detect", "hive_partitioning"],
    &["hive_partitioning", "union_by_name"],
];

/// What the names of tables begin with that are calls in hexadecimal digits: their quotes would not come
/// through where a statement is written out.
const NAMED: &str = "flashmesh:files:";

/// Names of compressions, and what they are called here.
const COMPRESSIONS: [(&[&str], Option<&str>); 6] = [
    (&["auto"], None),
    (&["none", "uncompressed"], Some("uncompressed")),
    (&["gz", "gzip"], Some("gz")),
    (&["bz2", "bzip2"], Some("bz2")),
    (&["xz"], Some("xz")),
    (&["zst", "zstd"], Some("zst")),
];

/// What can be said of files of any format.
const OF_ALL: [&str; 1] = ["filename"];

/// What can be said of CSV files.
const OF_CSV: [&str; 22] = [
    "all_varchar",
    "allow_quoted_newlines",
    "columns",
    "comment",
    "compression",
    "dateformat",
    "decimal_separator",
    "delim",
    "escape",
    "header",
    "ignore_errors",
    "names",
    "new_line",
    "null_padding",
    "nullstr",
    "quote",
    "sample_size",
    "sep",
    "skip",
    "timestampformat",
    "types",
    "union_by_name",
];

/// Puts the name of a table in the place of such a call: the path, or what [`files_of_name`] reads. No file
/// is looked at: who may not read any is to learn nothing of them.
///
/// # Errors
/// [`Error::Usage`] for other arguments; it lists the options that there are.
pub(super) fn name_files(
    name: &mut ObjectName,
    alias: &mut Option<TableAlias>,
    arguments: &mut Option<TableFunctionArgs>,
) -> Result<()> {
    let Some(args) = arguments else {
        return Ok(());
    };
    if list_of(name, args)?.is_some() {
        let named = name_of_call(name, alias, args);
        *name = ObjectName::from(vec![Ident::with_quote('\'', named)]);
        *arguments = None;
        return Ok(());
    }
    let Some((format, paths, options)) = files_of(name, args)? else {
        return Ok(());
    };
    let is_of_format = |path: &String| match format_of(path) {
        Some(of) => of == format,
        None => path.ends_with('/'),
    };
    let named = match paths.as_slice() {
        [path] if is_of_format(path) && options == FileOptions::default() => path.clone(),
        _ => name_of_call(name, alias, args),
    };
    *name = ObjectName::from(vec![Ident::with_quote('\'', named)]);
    *arguments = None;
    Ok(())
}

/// The name of the table that a call is, which is called as the function if nothing else is said.
fn name_of_call(
    name: &ObjectName,
    alias: &mut Option<TableAlias>,
    args: &TableFunctionArgs,
) -> String {
    let call = format!("{name}({})", written(args));
    alias.get_or_insert_with(|| alias_of(Ident::new(name.to_string())));
    let mut named = NAMED.to_owned();
    for byte in call.bytes() {
        let _ = write!(named, "{byte:02x}");
    }
    named
}

/// What a call of `glob` or `read_text` lists; `None` of other functions.
fn list_of(name: &ObjectName, args: &TableFunctionArgs) -> Result<Option<(FileList, Vec<String>)>> {
    let called = name.to_string().to_ascii_lowercase();
    let Some(list) = FileList::of(&called) else {
        return Ok(None);
    };
    let paths = match args.args.as_slice() {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(path))] => texts(path),
        _ => None,
    };
    match paths.filter(|paths| !paths.is_empty()) {
        Some(paths) => Ok(Some((list, paths))),
        None => Err(Error::usage(format!(
            "{called} takes a path in quotes, which may have wildcards, or a list of such paths"
        ))),
    }
}

/// The files that a table's name stands for which is a call that lists them; `None` of all others.
pub(crate) fn list_of_name(name: &str) -> Option<Result<(FileList, Vec<String>)>> {
    match call_of_name(name)? {
        Ok(TableFactor::Table {
            name,
            args: Some(args),
            ..
        }) => list_of(&name, &args).transpose(),
        _ => None,
    }
}

fn written(args: &TableFunctionArgs) -> String {
    let args: Vec<_> = args.args.iter().map(ToString::to_string).collect();
    args.join(", ")
}

/// The call that a table's name stands for.
fn call_of_name(name: &str) -> Option<Result<TableFactor>> {
    let digits = name.strip_prefix(NAMED)?.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let call: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    let call = call.and_then(|call| String::from_utf8(call).ok());
    Some(match call {
        Some(call) => parsed(&call, |parser| parser.parse_table_factor()),
        None => Err(Error::usage(format!("'{name}' names no files"))),
    })
}

/// The paths, and how they are read, of a table's name that stands for a call; `None` of all others.
pub(crate) fn files_of_name(name: &str) -> Option<Result<(Vec<String>, FileOptions)>> {
    let of_call = |factor| match factor {
        TableFactor::Table {
            name,
            args: Some(args),
            ..
        } => files_of(&name, &args),
        _ => Ok(None),
    };
    let files = match call_of_name(name)?.and_then(of_call) {
        Ok(Some((format, paths, mut options))) => {
            let tells_other = |path: &String| format_of(path).is_some_and(|of| of != format);
            match paths.iter().any(tells_other) {
                true => options.format = Some(format.to_owned()),
                false => options.format_without_ending = Some(format.to_owned()),
            }
            Ok((paths, options))
        }
        Ok(None) => Err(Error::usage(format!("'{name}' names no files"))),
        Err(error) => Err(error),
    };
    Some(files)
}

/// Has a query that is kept name files as its user has.
pub(crate) fn write_out_files(query: &mut Query) {
    let _ = walk_mut(query, &mut WriteOut);
}

struct WriteOut;

impl VisitorMut for WriteOut {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name, args, .. } = factor
            && let [part] = name.0.as_slice()
            && let Some(named) = part.as_ident()
            && let Some(Ok(TableFactor::Table {
                name: function,
                args: given,
                ..
            })) = call_of_name(&named.value)
        {
            (*name, *args) = (function, given);
        }
        ControlFlow::Continue(())
    }
}

type Files = (&'static str, Vec<String>, FileOptions);

/// What a call reads, and how.
fn files_of(name: &ObjectName, args: &TableFunctionArgs) -> Result<Option<Files>> {
    let called = name.to_string().to_ascii_lowercase();
    let Some((_, format)) = FUNCTIONS.iter().find(|(name, _)| *name == called) else {
        return Ok(None);
    };
    let paths = match args.args.split_first() {
        Some((FunctionArg::Unnamed(FunctionArgExpr::Expr(path)), options)) => texts(path)
            .filter(|paths| !paths.is_empty())
            .zip(Some(options)),
        _ => None,
    };
    let Some((paths, given)) = paths else {
        return Err(Error::usage(format!(
            "{called} takes a path in quotes, which may be a folder or have wildcards, or a list of such \
             paths, and how to read them behind it"
        )));
    };
    let mut options = FileOptions::default();
    let is_csv = *format == "csv";
    let always = ALWAYS[usize::from(!is_csv)];
    for arg in given {
        let Some((option, value)) = said(arg) else {
            return Err(Error::usage(format!(
                "{called} takes options with their names behind the path, as in header = true; not {arg}"
            )));
        };
        if always.contains(&option.as_str()) && truth(value) == Some(true) {
            continue;
        }
        let of_format: &[&str] = if is_csv { &OF_CSV } else { &[] };
        if !OF_ALL.iter().chain(of_format).any(|known| *known == option) {
            let known = match is_csv {
                true => format!("{}, {}", OF_ALL.join(", "), OF_CSV.join(", ")),
                false => format!(
                    "{}, and {} (which are so in any case)",
                    OF_ALL.join(", "),
                    always.join(", ")
                ),
            };
            return Err(Error::usage(format!(
                "{called} has no option '{option}'; there are: {known}"
            )));
        }
        if set(&mut options, &option, value).is_none() {
            return Err(Error::usage(format!("{called}: {option} can't be {value}")));
        }
    }
    Ok(Some((format, paths, options)))
}

/// An option and its value, in any of the forms in which these are written.
fn said(arg: &FunctionArg) -> Option<(String, &Expr)> {
    match arg {
        FunctionArg::Named {
            name,
            arg: FunctionArgExpr::Expr(value),
            ..
        } => Some((name.value.to_ascii_lowercase(), value)),
        FunctionArg::ExprNamed {
            name: Expr::Identifier(name),
            arg: FunctionArgExpr::Expr(value),
            ..
        } => Some((name.value.to_ascii_lowercase(), value)),
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::BinaryOp {
            left,
            op: BinaryOperator::Eq,
            right,
        })) => match left.as_ref() {
            Expr::Identifier(name) => Some((name.value.to_ascii_lowercase(), right)),
            _ => None,
        },
        _ => None,
    }
}

/// `None` for a value that the option can't have.
fn set(options: &mut FileOptions, option: &str, value: &Expr) -> Option<()> {
    match option {
        "all_varchar" => options.all_text = truth(value)?,
        "allow_quoted_newlines" => options.newlines_in_values = truth(value)?,
        "columns" => options.columns = fields(value)?,
        "comment" => options.comment = sign(value)?,
        "compression" => {
            let name = quoted_text(value)?.to_ascii_lowercase();
            let known = COMPRESSIONS
                .iter()
                .find(|(names, _)| names.contains(&name.as_str()));
            options.compression = known?.1.map(str::to_owned);
        }
        "dateformat" => options.date_format = Some(quoted_text(value)?.to_owned()),
        "decimal_separator" => options.decimal_separator = Some(sign(value)??),
        "delim" | "sep" => options.delimiter = Some(sign(value)??),
        "escape" => options.escape = sign(value)?,
        "filename" => {
            options.file_name = match quoted_text(value) {
                Some(column) => Some(column.to_owned()),
                None => truth(value)?.then(|| "filename".to_owned()),
            }
        }
        "header" => options.header = Some(truth(value)?),
        "ignore_errors" => options.ignore_errors = truth(value)?,
        "names" => options.names = texts(value)?,
        // Both are read.
        "new_line" => drop(quoted_text(value)?),
        "null_padding" => options.missing_values = truth(value)?,
        "nullstr" => options.null = Some(quoted_text(value)?.to_owned()),
        // None is one that no text has.
        "quote" => options.quote = Some(sign(value)?.unwrap_or('\0')),
        "sample_size" => options.sample_rows = Some(number(value)?),
        "skip" => options.skipped_lines = number(value)?,
        "timestampformat" => options.timestamp_format = Some(quoted_text(value)?.to_owned()),
        "types" => options.types = fields(value)?,
        "union_by_name" => options.union_by_name = truth(value)?,
        _ => return None,
    }
    Some(())
}

/// One text, or a list of them.
fn texts(value: &Expr) -> Option<Vec<String>> {
    match value {
        Expr::Array(list) => {
            let texts = list
                .elem
                .iter()
                .map(|text_of| quoted_text(text_of).map(str::to_owned));
            texts.collect()
        }
        one => Some(vec![quoted_text(one)?.to_owned()]),
    }
}

fn truth(value: &Expr) -> Option<bool> {
    match value {
        Expr::Value(of) => match &of.value {
            Value::Boolean(truth) => Some(*truth),
            Value::Number(..) => match number(value)? {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

fn number(value: &Expr) -> Option<usize> {
    value.to_string().parse().ok()
}

/// One character of one byte, as they are here, or none.
fn sign(value: &Expr) -> Option<Option<char>> {
    let text = match quoted_text(value)? {
        "\\t" => "\t",
        text => text,
    };
    let mut signs = text.chars();
    match (signs.next(), signs.next()) {
        (sign, None) if sign.is_none_or(|sign| sign.is_ascii()) => Some(sign),
        _ => None,
    }
}

/// `{'name': 'type', …}`.
fn fields(value: &Expr) -> Option<Vec<(String, String)>> {
    let Expr::Dictionary(fields) = value else {
        return None;
    };
    let fields = fields.iter().map(|field| {
        let data_type = quoted_text(&field.value)?.to_owned();
        Some((field.key.value.clone(), data_type))
    });
    fields.collect()
}

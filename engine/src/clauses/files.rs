//! `read_parquet('path')` and the like, which are the table `'path'`.

use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, ObjectName, TableFunctionArgs, Value,
};

use crate::error::{Error, Result};

/// Functions, and the endings of the files that they read.
const FUNCTIONS: [(&str, &[&str]); 5] = [
    ("read_parquet", &["parquet", "parq", "pq"]),
    ("read_csv", &["csv", "tsv", "tab"]),
    ("read_csv_auto", &["csv", "tsv", "tab"]),
    ("read_json", &["json", "ndjson", "jsonl"]),
    ("read_json_auto", &["json", "ndjson", "jsonl"]),
];
/// Endings of compressed files.
const COMPRESSED: [&str; 4] = ["gz", "bz2", "xz", "zst"];

/// The path that such a function reads; `None` of all others.
///
/// # Errors
/// [`Error::Usage`] for other arguments, and for files whose names say that they are something else.
pub(super) fn file_of(name: &ObjectName, args: &TableFunctionArgs) -> Result<Option<String>> {
    let called = name.to_string().to_ascii_lowercase();
    let Some((_, endings)) = FUNCTIONS.iter().find(|(name, _)| *name == called) else {
        return Ok(None);
    };
    let more = "for how to read it, write CREATE EXTERNAL TABLE name STORED AS format LOCATION 'path' OPTIONS (…)";
    let [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value)))] = args.args.as_slice()
    else {
        return Err(Error::usage(format!(
            "{called} takes one path, which may be a folder or have wildcards; {more}"
        )));
    };
    let Value::SingleQuotedString(path) = &value.value else {
        return Err(Error::usage(format!("{called} takes a path in quotes")));
    };
    let file = path.rsplit('/').next().unwrap_or(path);
    let ends = file.split('.').skip(1).map(str::to_ascii_lowercase);
    let ending = ends
        .filter(|end| !COMPRESSED.contains(&end.as_str()))
        .last();
    match ending {
        Some(ending) if !endings.contains(&ending.as_str()) => Err(Error::usage(format!(
            "{called} reads files that end in .{}, not '{path}'; {more}",
            endings.join(" or .")
        ))),
        _ => Ok(Some(path.clone())),
    }
}

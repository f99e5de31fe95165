//! `regexp_extract` and `regexp_extract_all`: what a regular expression finds, or a group of it.
//! `regexp_match` leaves out groups that took no part, so nothing can be made of it by their numbers. And
//! `regexp_split_to_array`: what is between.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListBuilder, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, internal_err, plan_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use regex::{Regex, RegexBuilder};

/// The functions.
pub(crate) fn functions() -> [Arc<ScalarUDF>; 3] {
    let extracts = [false, true].map(|all| Arc::new(ScalarUDF::from(Extract::new(all))));
    let [one, all] = extracts;
    [one, all, Arc::new(ScalarUDF::from(Split::new()))]
}

/// One of them.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Extract {
    all: bool,
    signature: Signature,
    documentation: Documentation,
}

impl Extract {
    fn new(all: bool) -> Self {
        let (name, says) = match all {
            false => (
                "regexp_extract",
                "What a regular expression finds first in a text, or its group of that number; an empty text where there is none. Flags are `i`, `s`, `m`, `x` of the syntax of Rust's crate `regex`.",
            ),
            true => (
                "regexp_extract_all",
                "The list of all that a regular expression finds in a text, or of its groups of that number, NULL for those that took no part.",
            ),
        };
        let example = format!("{name}(text, pattern [, group [, flags]])");
        Self {
            all,
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: Documentation::builder(DocSection::default(), says, example).build(),
        }
    }
}

impl ScalarUDFImpl for Extract {
    fn name(&self) -> &str {
        match self.all {
            false => "regexp_extract",
            true => "regexp_extract_all",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let is_number = |given: &DataType| given.is_integer() || given.is_null();
        let are_right = match types {
            [text, pattern] => is_text(text) && is_text(pattern),
            [text, pattern, group] => is_text(text) && is_text(pattern) && is_number(group),
            [text, pattern, group, flags] => {
                is_text(text) && is_text(pattern) && is_number(group) && is_text(flags)
            }
            _ => false,
        };
        if !are_right {
            return plan_err!("write {}", self.documentation.syntax_example);
        }
        let wanted = [
            DataType::Utf8,
            DataType::Utf8,
            DataType::Int64,
            DataType::Utf8,
        ];
        Ok(wanted[..types.len()].to_vec())
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.all {
            false => DataType::Utf8,
            true => DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true))),
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        make_scalar_function(|columns| self.extracted(columns), Vec::new())(&args.args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

impl Extract {
    fn extracted(&self, columns: &[ArrayRef]) -> Result<ArrayRef> {
        let text_of = |at: usize| {
            columns
                .get(at)
                .map(|c| cast(c, &DataType::Utf8))
                .transpose()
        };
        let (Some(texts), Some(patterns)) = (text_of(0)?, text_of(1)?) else {
            return internal_err!("{} of two arguments", self.name());
        };
        let (texts, patterns) = (texts.as_string::<i32>(), patterns.as_string::<i32>());
        let groups = columns
            .get(2)
            .map(|c| cast(c, &DataType::Int64))
            .transpose()?;
        let groups = groups
            .as_ref()
            .map(|groups| groups.as_primitive::<Int64Type>());
        let flags = text_of(3)?;
        let flags = flags.as_ref().map(|flags| flags.as_string::<i32>());
        let mut one = StringBuilder::new();
        let mut all = ListBuilder::new(StringBuilder::new());
        let mut compiled = Compiled::default();
        for row in 0..texts.len() {
            let is_null = columns.iter().any(|column| column.is_null(row));
            if is_null {
                one.append_null();
                all.append_null();
                continue;
            }
            let (pattern, flags) = (patterns.value(row), flags.map_or("", |f| f.value(row)));
            let regex = compiled.regex(pattern, flags)?;
            let group = groups.map_or(0, |groups| groups.value(row));
            let group = usize::try_from(group).ok();
            let group = group.filter(|group| *group < regex.captures_len());
            let Some(group) = group else {
                return Err(exec_datafusion_err!(
                    "{}: '{pattern}' has groups 0 to {}",
                    self.name(),
                    regex.captures_len() - 1
                ));
            };
            let text = texts.value(row);
            if self.all {
                for found in regex.captures_iter(text) {
                    all.values()
                        .append_option(found.get(group).map(|part| part.as_str()));
                }
                all.append(true);
            } else {
                let found = regex.captures(text).and_then(|found| found.get(group));
                one.append_value(found.map_or("", |part| part.as_str()));
            }
        }
        Ok(match self.all {
            false => Arc::new(one.finish()),
            true => Arc::new(all.finish()),
        })
    }
}

/// `regexp_split_to_array`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Split {
    aliases: Vec<String>,
    signature: Signature,
    documentation: Documentation,
}

impl Split {
    fn new() -> Self {
        let says = "The list of what is before, between and behind all that a regular expression finds in a text. Flags are those of regexp_extract.";
        let example = "regexp_split_to_array(text, pattern [, flags])";
        let documentation = Documentation::builder(DocSection::default(), says, example);
        Self {
            aliases: vec!["string_split_regex".into(), "str_split_regex".into()],
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: documentation.build(),
        }
    }
}

impl ScalarUDFImpl for Split {
    fn name(&self) -> &str {
        "regexp_split_to_array"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match (2..=3).contains(&types.len()) && types.iter().all(is_text) {
            true => Ok(vec![DataType::Utf8; types.len()]),
            false => plan_err!("write {}", self.documentation.syntax_example),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::List(Arc::new(Field::new_list_field(
            DataType::Utf8,
            true,
        ))))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        make_scalar_function(split, Vec::new())(&args.args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

fn split(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let texts = columns.iter().map(|column| cast(column, &DataType::Utf8));
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    let texts: Vec<_> = texts.iter().map(|texts| texts.as_string::<i32>()).collect();
    let [values, patterns, flags @ ..] = texts.as_slice() else {
        return internal_err!("regexp_split_to_array of two arguments");
    };
    let mut all = ListBuilder::new(StringBuilder::new());
    let mut compiled = Compiled::default();
    for row in 0..values.len() {
        if columns.iter().any(|column| column.is_null(row)) {
            all.append_null();
            continue;
        }
        let flags = flags.first().map_or("", |flags| flags.value(row));
        let regex = compiled.regex(patterns.value(row), flags)?;
        for part in regex.split(values.value(row)) {
            all.values().append_value(part);
        }
        all.append(true);
    }
    Ok(Arc::new(all.finish()))
}

fn is_text(given: &DataType) -> bool {
    let given = match given {
        DataType::Dictionary(_, values) => values,
        given => given,
    };
    given.is_string() || given.is_null()
}

/// The regular expression of the row before, which is that of most rows.
#[derive(Default)]
struct Compiled(Option<(String, String, Regex)>);

impl Compiled {
    fn regex(&mut self, pattern: &str, flags: &str) -> Result<&Regex> {
        let is_known =
            matches!(&self.0, Some((known, with, _)) if known == pattern && with == flags);
        if !is_known {
            let regex = compile(pattern, flags)?;
            self.0 = Some((pattern.into(), flags.into(), regex));
        }
        match &self.0 {
            Some((_, _, regex)) => Ok(regex),
            None => internal_err!("a regular expression was not kept"),
        }
    }
}

fn compile(pattern: &str, flags: &str) -> Result<Regex> {
    let mut builder = RegexBuilder::new(pattern);
    for flag in flags.chars() {
        match flag {
            'i' => builder.case_insensitive(true),
            's' => builder.dot_matches_new_line(true),
            'm' => builder.multi_line(true),
            'x' => builder.ignore_whitespace(true),
            _ => return plan_err!("there is no flag '{flag}' of regular expressions"),
        };
    }
    let compiled = builder.build();
    compiled.map_err(|error| exec_datafusion_err!("the regular expression '{pattern}': {error}"))
}

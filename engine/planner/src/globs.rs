//! Patterns of GLOB as regular expressions.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// The function by which plans make a regular expression of a pattern that is no constant. SQL does not
/// know it.
pub const REGULAR_OF_GLOB: &str = "flashmesh:regular_of_glob";

/// What is wrong with a pattern, and the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongGlob(pub String, pub &'static str);

/// The regular expression that matches what a pattern of GLOB does.
///
/// # Errors
/// [`WrongGlob`] for an open bracket, and a backslash at the end.
pub fn regular_of_glob(glob: &str) -> std::result::Result<String, WrongGlob> {
    let mut regular = String::from("(?s)^(?:");
    let mut chars = glob.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '*' => regular.push_str(".*"),
            '?' => regular.push('.'),
            '[' => {
                regular.push('[');
                if chars.next_if_eq(&'!').is_some() {
                    regular.push('^');
                }
                let mut is_first = true;
                loop {
                    match chars.next() {
                        Some(']') if !is_first => break,
                        // A range.
                        Some('-') if !is_first => regular.push('-'),
                        Some(char) => push_literal(&mut regular, char),
                        None => {
                            let what = "a pattern of GLOB with an open bracket";
                            return Err(WrongGlob(what.into(), "write [[]"));
                        }
                    }
                    is_first = false;
                }
                regular.push(']');
            }
            '\\' => match chars.next() {
                Some(literal) => push_literal(&mut regular, literal),
                None => {
                    let what = "a pattern of GLOB that ends in \\";
                    return Err(WrongGlob(what.into(), "write that twice"));
                }
            },
            literal => push_literal(&mut regular, literal),
        }
    }
    regular.push_str(")$");
    Ok(regular)
}

/// Characters that mean something in a regular expression; others may mean something with a backslash.
const META: &str = r"\.+*?()|[]{}^$#&-~";

/// Adds a character that stands for itself to a regular expression.
pub fn push_literal(regular: &mut String, literal: char) {
    if META.contains(literal) {
        regular.push('\\');
    }
    regular.push(literal);
}

/// [`REGULAR_OF_GLOB`].
pub(crate) fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(RegularOfGlob {
        signature: Signature::string(1, Volatility::Immutable),
    }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct RegularOfGlob {
    signature: Signature,
}

impl ScalarUDFImpl for RegularOfGlob {
    fn name(&self) -> &str {
        REGULAR_OF_GLOB
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let regular = |columns: &[ArrayRef]| {
            let [globs] = columns else {
                return exec_err!("a pattern is missing");
            };
            let globs = cast(globs, &DataType::Utf8)?;
            let regular = globs.as_string::<i32>().iter().map(|glob| {
                let regular = glob.map(regular_of_glob).transpose();
                regular.map_err(|WrongGlob(what, instead)| {
                    exec_datafusion_err!("{what} is not supported; {instead}")
                })
            });
            let regular = regular.collect::<Result<StringArray>>()?;
            Ok(Arc::new(regular) as ArrayRef)
        };
        make_scalar_function(regular, vec![])(&args.args)
    }
}

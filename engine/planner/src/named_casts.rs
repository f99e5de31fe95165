//! Casts that are told apart by their names: DataFusion calls `s::INT` as it calls `s`, and refuses a query that
//! has both where names must differ, as `SELECT max(s), max(s::INT) …`.
//!
//! While such a query is planned, a function stands around each cast that is called after value and type. It is
//! [taken off](without_marks) before types are given, and columns of the result are called [as ever](plain_name).

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use crate::tree::change_parts;
use crate::walk::Walk as _;

/// The function, of a cast and of the text that tells it from others.
pub const NAME: &str = "flashmesh:cast";

/// Around what tells a cast from others in a name: characters that mean nothing and are in no text that people write.
const MARKS: [char; 2] = ['\u{f10f0}', '\u{f10f1}'];

/// The function.
pub fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Named {
        signature: Signature::any(2, Volatility::Immutable),
    }))
}

/// Whether a text has names of such casts in it.
pub fn has_marks(text: &str) -> bool {
    text.contains(MARKS)
}

/// A name without what tells casts in it from others.
pub fn plain_name(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, behind)) = rest.split_once(MARKS[0]) {
        plain.push_str(before);
        rest = behind.split_once(MARKS[1]).map_or("", |(_, rest)| rest);
    }
    plain + rest
}

/// The plan with casts alone where the function stands around them; its columns keep their names.
///
/// # Errors
/// Those of walking.
pub fn without_marks(plan: LogicalPlan) -> Result<LogicalPlan> {
    let is_one =
        |expr: &Expr| matches!(expr, Expr::ScalarFunction(call) if call.func.name() == NAME);
    change_parts(plan, is_one, |expr, _| {
        expr.transform_up(|expr| match expr {
            Expr::ScalarFunction(mut call) if call.func.name() == NAME => {
                Ok(Transformed::yes(call.args.swap_remove(0)))
            }
            other => Ok(Transformed::no(other)),
        })
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Named {
    signature: Signature,
}

impl ScalarUDFImpl for Named {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let [cast, apart] = args else {
            return internal_err!("{NAME} takes a cast and a text");
        };
        let apart = apart
            .as_literal()
            .and_then(|text| text.try_as_str().flatten());
        let [before, behind] = MARKS;
        let apart = apart.unwrap_or_default();
        Ok(format!("{}{before}{apart}{behind}", cast.schema_name()))
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::clone(&args.arg_fields[0]))
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(args.args.swap_remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_without_what_tells_casts_apart() {
        let [before, behind] = MARKS;
        let name = format!("max(t.s{before}INT{behind}) + t.k{before}TEXT{behind}");
        assert!(has_marks(&name));
        assert_eq!(plain_name(&name), "max(t.s) + t.k");
        assert_eq!(plain_name("max(t.s)"), "max(t.s)");
    }
}

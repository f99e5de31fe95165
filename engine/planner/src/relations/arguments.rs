//! The arguments of a table function.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result, ScalarValue, plan_datafusion_err, plan_err};
use datafusion::logical_expr::planner::RelationPlannerContext;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::sqlparser::ast::{FunctionArg, FunctionArgExpr};

use crate::config::FlashmeshOptions;
use crate::tree::value_of;

/// An argument.
pub(super) enum Argument {
    /// A constant.
    Constant(ScalarValue),
    /// The rows of a subquery.
    Rows(LogicalPlan),
}

/// The arguments of one call, in their order, and those given by name.
pub(super) struct Arguments<'a> {
    function: String,
    usage: String,
    positional: std::vec::IntoIter<Argument>,
    count: usize,
    named: Vec<(String, ScalarValue)>,
    context: &'a mut dyn RelationPlannerContext,
}

impl<'a> Arguments<'a> {
    pub fn new(
        function: &str,
        usage: &str,
        arguments: Vec<FunctionArg>,
        context: &'a mut dyn RelationPlannerContext,
    ) -> Result<Self> {
        let mut positional = Vec::new();
        let mut named = Vec::new();
        for argument in arguments {
            let (name, argument) = match argument {
                FunctionArg::Unnamed(argument) => (None, argument),
                FunctionArg::Named { name, arg, .. } => (Some(context.normalize_ident(name)), arg),
                FunctionArg::ExprNamed { name, arg, .. } => (Some(name.to_string()), arg),
            };
            let FunctionArgExpr::Expr(argument) = argument else {
                return plan_err!("{function} is called as {function}({usage})");
            };
            let argument = match context.sql_to_expr(argument, &DFSchema::empty())? {
                Expr::ScalarSubquery(subquery) => {
                    Argument::Rows(Arc::unwrap_or_clone(subquery.subquery))
                }
                expr => Argument::Constant(value_of(&expr).map_err(|e| {
                    plan_datafusion_err!("{function}: '{expr}' is not a constant: {e}")
                })?),
            };
            match (name, argument) {
                (Some(name), Argument::Constant(value)) => named.push((name, value)),
                (Some(name), Argument::Rows(_)) => {
                    return plan_err!("{function}: option '{name}' takes a constant");
                }
                (None, argument) => positional.push(argument),
            }
        }
        Ok(Self {
            function: function.into(),
            usage: usage.into(),
            count: positional.len(),
            positional: positional.into_iter(),
            named,
            context,
        })
    }

    /// The function's name.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// The schema that names without one are in.
    pub fn default_schema(&self) -> String {
        let options = self.context.context_provider().options();
        options.catalog.default_schema.clone()
    }

    /// What the session says of its queries.
    pub fn session_options(&self) -> FlashmeshOptions {
        FlashmeshOptions::of(self.context.context_provider().options())
    }

    /// The next argument by position.
    pub fn next(&mut self) -> Result<Argument> {
        match self.positional.next() {
            Some(argument) => Ok(argument),
            None => plan_err!(
                "{0} is called as {0}({2}); {1} of its arguments are there",
                self.function,
                self.count,
                self.usage
            ),
        }
    }

    /// The next argument, which must be a text.
    pub fn text(&mut self) -> Result<String> {
        if let Argument::Constant(
            ScalarValue::Utf8(Some(text))
            | ScalarValue::Utf8View(Some(text))
            | ScalarValue::LargeUtf8(Some(text)),
        ) = self.next()?
        {
            return Ok(text);
        }
        plan_err!(
            "{0}: an argument is not the text that it should be: {0}({1})",
            self.function,
            self.usage
        )
    }

    /// Whether another argument comes by position.
    pub fn has_next(&self) -> bool {
        !self.positional.as_slice().is_empty()
    }

    /// The next argument, which must be a number from 0 on.
    pub fn number(&mut self) -> Result<u32> {
        if let Argument::Constant(value) = self.next()?
            && let Some(number) = unsigned(&value)
        {
            return Ok(number);
        }
        plan_err!(
            "{0}: an argument is not the whole number that it should be: {0}({1})",
            self.function,
            self.usage
        )
    }

    fn option<T>(
        &mut self,
        name: &str,
        what: &str,
        value: impl Fn(&ScalarValue) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(place) = self.named.iter().position(|(known, _)| known == name) else {
            return Ok(None);
        };
        let (_, given) = self.named.remove(place);
        match value(&given) {
            Some(value) => Ok(Some(value)),
            None => plan_err!("{}: option '{name}' is {what}, not {given}", self.function),
        }
    }

    /// An option that is a text.
    pub fn option_text(&mut self, name: &str) -> Result<Option<String>> {
        self.option(name, "a text", |value| {
            value.try_as_str().flatten().map(str::to_string)
        })
    }

    /// An option that is a whole number.
    pub fn option_number(&mut self, name: &str) -> Result<Option<u32>> {
        self.option(name, "a whole number", unsigned)
    }

    /// An option that is a number.
    pub fn option_float(&mut self, name: &str) -> Result<Option<f64>> {
        self.option(name, "a number", |value| {
            match value.cast_to(&DataType::Float64).ok()? {
                ScalarValue::Float64(number) => number,
                _ => None,
            }
        })
    }

    /// An option that is TRUE or FALSE.
    pub fn option_bool(&mut self, name: &str) -> Result<Option<bool>> {
        self.option(name, "true or false", |value| match value {
            ScalarValue::Boolean(value) => *value,
            _ => None,
        })
    }

    /// Nothing more may come.
    pub fn end(mut self) -> Result<()> {
        if self.positional.next().is_some() {
            return plan_err!(
                "{0} is called as {0}({2}); {1} arguments are too many",
                self.function,
                self.count,
                self.usage
            );
        }
        match self.named.first() {
            Some((name, _)) => plan_err!(
                "{0} has no option '{name}': {0}({1})",
                self.function,
                self.usage
            ),
            None => Ok(()),
        }
    }
}

fn unsigned(value: &ScalarValue) -> Option<u32> {
    if !value.data_type().is_integer() {
        return None;
    }
    match value.cast_to(&DataType::UInt32).ok()? {
        ScalarValue::UInt32(number) => number,
        _ => None,
    }
}

/// The values of a constant: those of an array, or itself.
pub(super) fn constants(value: &ScalarValue) -> Result<Vec<ScalarValue>> {
    let values: ArrayRef = match value {
        ScalarValue::List(list) => list.value(0),
        ScalarValue::LargeList(list) => list.value(0),
        ScalarValue::FixedSizeList(list) => list.value(0),
        one => return Ok(vec![one.clone()]),
    };
    (0..values.len())
        .map(|i| ScalarValue::try_from_array(&values, i))
        .collect()
}

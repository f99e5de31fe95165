//! The functions that Programs know.

use std::collections::HashSet;
use std::sync::LazyLock;

use arrow::datatypes::DataType;
use datafusion::logical_expr::Volatility;
use datafusion::physical_expr::expressions::Literal as DfLiteral;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use flashmesh_pushdown::{DatePart, Expr};
use flashmesh_storage::kernel::Kind;

use super::{Scope, string_literal, text_of, translate, translate_string};
use crate::Reason;
use crate::functions::{metric_of, query_vector};
use crate::hidden::is_as_it_is;
use crate::kernels::KernelFunction;

/// Names of DataFusion's own functions, to tell a missing one from a user's.
static BUILT_IN: LazyLock<HashSet<String>> = LazyLock::new(|| {
    datafusion::functions::all_default_functions()
        .iter()
        .map(|function| function.name().to_owned())
        .collect()
});

pub(super) fn translate_function(
    function: &ScalarFunctionExpr,
    scope: &Scope,
) -> Result<Expr, Reason> {
    let args: Vec<&dyn PhysicalExpr> = function.args().iter().map(AsRef::as_ref).collect();
    if function.fun().signature().volatility == Volatility::Volatile {
        return Err(Reason::Volatile(function.name().into()));
    }
    let refused = || Err(Reason::Function(text_of(function)));
    if let [value] = args.as_slice()
        && is_as_it_is(function.fun())
    {
        return translate(*value, scope);
    }
    if let Some(kernel) = KernelFunction::of(function.fun()) {
        return translate_kernel(kernel, function, &args, scope);
    }
    match (function.fun().name(), args.as_slice()) {
        ("date_part", [part, date]) => {
            let part = match string_literal(*part)
                .map(|p| p.to_ascii_lowercase())
                .as_deref()
            {
                Some("year") => DatePart::Year,
                Some("month") => DatePart::Month,
                Some("day") => DatePart::Day,
                _ => return refused(),
            };
            if scope.type_of(*date)? != DataType::Date32 {
                return refused();
            }
            Ok(Expr::DatePart {
                part,
                expr: Box::new(translate(*date, scope)?),
            })
        }
        ("substr", [text, start]) => {
            substring(*text, integer_literal(*start), Some(i64::MAX), scope).unwrap_or_else(refused)
        }
        ("substr", [text, start, length]) => substring(
            *text,
            integer_literal(*start),
            integer_literal(*length),
            scope,
        )
        .unwrap_or_else(refused),
        ("starts_with", [text, needle]) => {
            like(*text, *needle, "", "%", scope).unwrap_or_else(refused)
        }
        ("ends_with", [text, needle]) => {
            like(*text, *needle, "%", "", scope).unwrap_or_else(refused)
        }
        ("contains", [text, needle]) => {
            like(*text, *needle, "%", "%", scope).unwrap_or_else(refused)
        }
        ("strpos", [text, needle]) => match string_literal(*needle) {
            Some(needle) => Ok(Expr::Position {
                expr: Box::new(translate_string(*text, scope)?),
                needle,
            }),
            None => refused(),
        },
        ("regexp_like", [text, pattern]) => {
            regex(*text, *pattern, "", scope).unwrap_or_else(refused)
        }
        ("regexp_like", [text, pattern, flags]) => match string_literal(*flags) {
            Some(flags) => regex(*text, *pattern, &flags, scope).unwrap_or_else(refused),
            None => refused(),
        },
        (name, [left, right]) if let Some(metric) = metric_of(name) => {
            let constant = |expr: &dyn PhysicalExpr| {
                let value = expr.downcast_ref::<DfLiteral>()?.value();
                query_vector(value, metric)
            };
            // All metrics are symmetric.
            let (vectors, query) = match (constant(*left), constant(*right)) {
                (None, Some(query)) => (*left, query),
                (Some(query), None) => (*right, query),
                _ => return refused(),
            };
            if metric.length_of(&scope.type_of(vectors)?) != Some(query.len()) {
                return refused();
            }
            Ok(Expr::Distance {
                metric,
                expr: Box::new(translate(vectors, scope)?),
                query,
            })
        }
        (name, _) if BUILT_IN.contains(name) => refused(),
        (name, _) => Err(Reason::UserFunction(name.into())),
    }
}

fn translate_kernel(
    kernel: &KernelFunction,
    call: &ScalarFunctionExpr,
    args: &[&dyn PhysicalExpr],
    scope: &Scope,
) -> Result<Expr, Reason> {
    let refused = || Reason::Function(text_of(call));
    let function = kernel.function();
    // What can't be compiled can't be pushed; the call above the scan says why.
    kernel
        .compiles()
        .map_err(|e| Reason::Refused(e.strip_backtrace()))?;
    let (arguments, query) = match (function.manifest().kind, args) {
        (Kind::Distance, [vectors, query]) => {
            let query = query.downcast_ref::<DfLiteral>().ok_or_else(refused)?;
            let query = query_vector(query.value(), kernel.vectors()).ok_or_else(refused)?;
            if kernel.vectors().length_of(&scope.type_of(*vectors)?) != Some(query.len()) {
                return Err(refused());
            }
            (vec![translate(*vectors, scope)?], Some(query))
        }
        (Kind::Distance, _) => return Err(refused()),
        _ => {
            let signature = function.manifest().signature.as_ref();
            let parameters = signature.into_iter().flat_map(|s| &s.parameters);
            let mut arguments = Vec::with_capacity(args.len());
            for (parameter, arg) in parameters.zip(args) {
                let expr = translate(*arg, scope)?;
                let is_literal = matches!(expr, Expr::Literal(_));
                if scope.type_of(*arg)? != parameter.data_type
                    || (parameter.constant && !is_literal)
                {
                    return Err(refused());
                }
                arguments.push(expr);
            }
            (arguments, None)
        }
    };
    Ok(Expr::Kernel {
        kernel: function.id(),
        arguments,
        query,
        data_type: call.return_type().clone(),
    })
}

fn integer_literal(expr: &dyn PhysicalExpr) -> Option<i64> {
    let value = expr.downcast_ref::<DfLiteral>()?.value();
    match value.cast_to(&DataType::Int64).ok()? {
        datafusion::common::ScalarValue::Int64(value) => value,
        _ => None,
    }
}

/// `None` for the arguments that a Program can't have.
fn substring(
    text: &dyn PhysicalExpr,
    start: Option<i64>,
    length: Option<i64>,
    scope: &Scope,
) -> Option<Result<Expr, Reason>> {
    let start = u32::try_from(start?).ok().filter(|start| *start >= 1)?;
    let length = length.filter(|length| *length >= 0)?;
    Some(translate_string(text, scope).map(|expr| Expr::Substring {
        expr: Box::new(expr),
        start,
        // No text has more characters than that.
        length: u32::try_from(length).unwrap_or(u32::MAX),
    }))
}

/// `None` for patterns and flags that are not constants or not known.
fn regex(
    text: &dyn PhysicalExpr,
    pattern: &dyn PhysicalExpr,
    flags: &str,
    scope: &Scope,
) -> Option<Result<Expr, Reason>> {
    let pattern = string_literal(pattern)?;
    let case_insensitive = match flags {
        "" => false,
        "i" => true,
        _ => return None,
    };
    Some(translate_string(text, scope).map(|expr| Expr::Regex {
        expr: Box::new(expr),
        pattern: pattern.to_string(),
        negated: false,
        case_insensitive,
    }))
}

/// `text LIKE before || needle || after`.
fn like(
    text: &dyn PhysicalExpr,
    needle: &dyn PhysicalExpr,
    before: &str,
    after: &str,
    scope: &Scope,
) -> Option<Result<Expr, Reason>> {
    let needle = string_literal(needle)?;
    let mut pattern = String::with_capacity(needle.len() + 2);
    pattern.push_str(before);
    for c in needle.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push_str(after);
    Some(translate_string(text, scope).map(|expr| Expr::Like {
        expr: Box::new(expr),
        pattern,
        negated: false,
        case_insensitive: false,
    }))
}

//! Functions that other databases have under other names, or that are said by others.

use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, DataType, ExactNumberInfo, Expr, Function, FunctionArg,
    FunctionArgExpr, FunctionArgumentClause, FunctionArguments, Ident, NullTreatment, ObjectName,
    ObjectNamePart, OrderByExpr, OrderByOptions, UnaryOperator, Value,
};

use super::forms::of_strftime;
use super::lambdas::{is_lambda, put_lambda};
use super::{call, flow, parsed, refuse};
use crate::error::Result;
use crate::names::quoted_text;
use crate::walk::visit_expressions_mut;

/// What a function is called here, by what it is called elsewhere.
const NAMES: &[(&str, &str)] = &[
    ("apply", "array_transform"),
    ("approx_count_distinct", "approx_distinct"),
    ("approx_quantile", "approx_percentile_cont"),
    ("arbitrary", "first_value"),
    ("array_apply", "array_transform"),
    ("array_inner_product", "inner_product"),
    ("array_value", "make_array"),
    ("ceiling", "ceil"),
    ("datepart", "date_part"),
    ("datetrunc", "date_trunc"),
    ("editdist3", "levenshtein"),
    ("every", "bool_and"),
    ("favg", "avg"),
    ("filter", "array_filter"),
    ("first", "first_value"),
    ("fsum", "sum"),
    ("gen_random_uuid", "uuid"),
    ("get_current_timestamp", "now"),
    ("greatest_common_divisor", "gcd"),
    ("group_concat", "string_agg"),
    ("grouping_id", "grouping"),
    ("kahan_sum", "sum"),
    ("last", "last_value"),
    ("lcase", "lower"),
    ("least_common_multiple", "lcm"),
    ("len", "length"),
    ("list", "array_agg"),
    ("list_apply", "array_transform"),
    ("list_dot_product", "inner_product"),
    ("list_inner_product", "inner_product"),
    ("list_max", "array_max"),
    ("list_min", "array_min"),
    ("list_pack", "make_array"),
    ("list_product", "array_product"),
    ("list_value", "make_array"),
    ("listagg", "string_agg"),
    ("quantile", "quantile_disc"),
    ("strftime", "to_char"),
    ("strptime", "to_timestamp"),
    ("struct_extract", "get_field"),
    ("sumkahan", "sum"),
    ("today", "current_date"),
    ("transaction_timestamp", "now"),
    ("ucase", "upper"),
    ("unicode", "ascii"),
    ("variance", "var_samp"),
];

/// Calls that are expressions: their parameters, and what is written in their place.
const OPERATIONS: [(&str, &[&str], &str); 24] = [
    ("array_select", &["a", "b"], SELECT),
    ("array_to_json", &["a"], "to_json(a)"),
    ("array_where", &["a", "b"], WHERE),
    ("date", &["a"], "CAST(a AS DATE)"),
    ("generate_subscripts", &["a", "b"], SUBSCRIPTS),
    ("if", &["c", "a", "b"], "(CASE WHEN c THEN a ELSE b END)"),
    ("iff", &["c", "a", "b"], "(CASE WHEN c THEN a ELSE b END)"),
    ("isoyear", &["a"], "CAST(extract(isoyear FROM a) AS BIGINT)"),
    ("json_group_object", &["a", "b"], OBJECT),
    ("list_select", &["a", "b"], SELECT),
    ("list_where", &["a", "b"], WHERE),
    (
        "microsecond",
        &["a"],
        "CAST(extract(microsecond FROM a) AS BIGINT)",
    ),
    (
        "millisecond",
        &["a"],
        "CAST(extract(millisecond FROM a) AS BIGINT)",
    ),
    ("mod", &["a", "b"], "((a) % (b))"),
    ("regexp_split_to_table", &["a", "b"], PARTS),
    ("row_to_json", &["a"], "to_json(a)"),
    ("split", &["a", "b"], SPLIT),
    ("str_split", &["a", "b"], SPLIT),
    ("string_split", &["a", "b"], SPLIT),
    (
        "string_to_table",
        &["a", "b"],
        "unnest(string_to_array(a, b))",
    ),
    ("to_centuries", &["a"], "to_years(100 * (a))"),
    ("to_decades", &["a"], "to_years(10 * (a))"),
    ("to_quarters", &["a"], "to_months(3 * (a))"),
    ("xor", &["a", "b"], "((a) ^ (b))"),
];
/// The places of the elements of `a`, which has one dimension.
const SUBSCRIPTS: &str = "unnest(range(1, CAST(array_length(a, b) AS BIGINT) + 1))";
/// As DuckDB has it: of no text there is one part, and by none it comes apart into characters.
const SPLIT: &str = "(CASE WHEN (a) = '' THEN [''] ELSE string_to_array(a, nullif(b, '')) END)";
const PARTS: &str = "unnest(regexp_split_to_array(a, b))";
const OBJECT: &str = "to_json(MAP(array_agg(a), array_agg(b)))";
/// An expression that is computed where it may fail.
const TRY: &str = r#"try(true, "flashmesh:lambda"("flashmesh:row", a))"#;
/// The distinct elements of `a` but NULL.
const DISTINCT: &str = r#""array_distinct"(array_filter(
    a,
    "flashmesh:lambda"("flashmesh:element", "flashmesh:element" IS NOT NULL)
))"#;
/// A list of the value of `b` in the map `a`, or an empty one.
const VALUES_OF: &str = r#"(CASE
    WHEN array_has(map_keys(a), b) THEN "map_extract"(a, b)
    WHEN (a) IS NOT NULL THEN []
END)"#;
/// The elements of `a` at the places `b`.
const SELECT: &str =
    r#"array_transform(b, "flashmesh:lambda"("flashmesh:i", array_element(a, "flashmesh:i")))"#;
/// The elements of `a` where `b` is true.
const WHERE: &str = r#"array_transform(
    array_filter(
        range(1, CAST(array_length(b) AS BIGINT) + 1),
        "flashmesh:lambda"("flashmesh:i", array_element(b, "flashmesh:i"))
    ),
    "flashmesh:lambda"("flashmesh:i", array_element(a, "flashmesh:i"))
)"#;

/// Functions for which the planner takes ORDER BY among the arguments for WITHIN GROUP, and what it orders by for
/// the first argument.
const QUANTILES: [&str; 6] = [
    "approx_percentile_cont",
    "approx_percentile_cont_with_weight",
    "percentile_cont",
    "percentile_disc",
    "quantile_cont",
    "quantile_disc",
];

/// Says a call of a function that the session does not know by those that it knows.
///
/// # Errors
/// A refusal of what can't be said of the function, with the way out.
pub(super) fn correct_call(expr: &mut Expr, state: &SessionState) -> Result<()> {
    let Expr::Function(function) = expr else {
        return Ok(());
    };
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else {
        return Ok(());
    };
    // In texts of ours it is what the session has under the name.
    let is_quoted = name.quote_style.is_some();
    let name = name.value.to_lowercase();
    if name == "any_value" {
        any_in_order(function);
        return Ok(());
    }
    if matches!(name.as_str(), "to_char" | "to_date" | "to_timestamp")
        && let Some(form) = plain_arguments(function).nth(1).and_then(text_of)
        && let Some(written) = of_strftime(form)?
    {
        *form = written;
    }
    null_treatment_of_call(function);
    if let Some(call) = with_default(&name, function)? {
        *expr = call;
        return Ok(());
    }
    if name == "mode"
        && plain_arguments(function).next().is_none()
        && let [order] = function.within_group.as_slice()
    {
        let value = order.expr.clone();
        function.within_group.clear();
        put_argument(function, value);
        return Ok(());
    }
    if let Some(parts) = named_parts(&name, function)? {
        *expr = parts;
        return Ok(());
    }
    if name == "date_trunc"
        && let Some([Expr::Value(unit), time]) = arguments(function)
        && let Value::SingleQuotedString(unit) = &unit.value
        && let Some(years) = years_of(unit)
    {
        let text = "date_trunc('year', a) - to_years(CAST(extract(year FROM a) % b AS BIGINT))";
        let years = Expr::value(Value::Number(years.to_string(), false));
        *expr = template(text, vec![("a", time), ("b", years)])?;
        return Ok(());
    }
    let of_lists: Option<(_, &[&str])> = match name.as_str() {
        "array_distinct" | "list_distinct" if !is_quoted => Some((DISTINCT, &["a"])),
        "element_at" | "map_extract" if !is_quoted => Some((VALUES_OF, &["a", "b"])),
        _ => None,
    };
    if let Some((text, parameters)) = of_lists
        && let Some(args) = all_arguments(function).filter(|args| args.len() == parameters.len())
        && is_plain(function)
    {
        *expr = template(text, parameters.iter().copied().zip(args).collect())?;
        return Ok(());
    }
    // With a condition it is the first element that meets it.
    if matches!(name.as_str(), "array_first" | "list_first")
        && let Some([list]) = arguments(function)
        && is_plain(function)
    {
        *expr = template("array_element(a, 1)", vec![("a", list)])?;
        return Ok(());
    }
    if let Some(several) = several_quantiles(&name, function)? {
        *expr = several;
        return Ok(());
    }
    if let Some(several) = several_extremes(&name, function)? {
        *expr = several;
        return Ok(());
    }
    if name == "try"
        && let Some([tried]) = arguments(function)
        && is_plain(function)
        && !matches!(tried, Expr::Lambda(_))
    {
        *expr = template(TRY, vec![("a", tried)])?;
        return Ok(());
    }
    if name == "try_strptime" {
        rename(function, "strptime");
        correct_call(expr, state)?;
        *expr = template(TRY, vec![("a", expr.clone())])?;
        return Ok(());
    }
    // What stands before the first element is one.
    if matches!(name.as_str(), "array_reduce" | "list_reduce" | "reduce")
        && let Some([list, lambda, initial]) = arguments(function)
        && is_plain(function)
    {
        let values = vec![("a", list), ("b", initial)];
        let list = template("array_prepend(b, a)", values)?;
        *expr = call(Ident::new("list_reduce"), vec![list, lambda]);
        return Ok(());
    }
    // Texts and their bytes in UTF-8; with two arguments these are of other forms.
    if matches!(name.as_str(), "encode" | "decode")
        && let Some([value]) = arguments(function)
        && is_plain(function)
    {
        let as_type = if name == "encode" { "BYTEA" } else { "VARCHAR" };
        *expr = template(&format!("CAST(a AS {as_type})"), vec![("a", value)])?;
        return Ok(());
    }
    if name == "age"
        && let Some([time]) = arguments(function)
        && is_plain(function)
    {
        *expr = template("age(current_date(), a)", vec![("a", time)])?;
        return Ok(());
    }
    let is_known = state.scalar_functions().contains_key(&name)
        || state.aggregate_functions().contains_key(&name)
        || state.window_functions().contains_key(&name)
        || state.higher_order_functions().contains_key(&name);
    if !is_known {
        if let Some((_, parameters, text)) = OPERATIONS.iter().find(|(known, ..)| *known == name) {
            if let Some(args) = all_arguments(function)
                && args.len() == parameters.len()
                && is_plain(function)
            {
                *expr = template(text, parameters.iter().copied().zip(args).collect())?;
            }
            return Ok(());
        }
        match name.as_str() {
            "count_if" | "countif" => {
                if let Some([condition]) = arguments(function) {
                    let counted = template("CASE WHEN c THEN 1 END", vec![("c", condition)])?;
                    put_argument(function, counted);
                    rename(function, "count");
                }
                return Ok(());
            }
            "geomean" | "geometric_mean" => {
                if let Some([value]) = arguments(function) {
                    put_argument(function, template("ln(a)", vec![("a", value)])?);
                    rename(function, "avg");
                    let mean = expr.clone();
                    *expr = template("exp(a)", vec![("a", mean)])?;
                }
                return Ok(());
            }
            "list_aggregate" | "array_aggregate" | "list_aggr" | "array_aggr" | "aggregate" => {
                if let Some(call) = of_list(function)? {
                    *expr = call;
                }
                return Ok(());
            }
            "json_group_array" => {
                rename(function, "array_agg");
                let list = expr.clone();
                *expr = template("to_json(a)", vec![("a", list)])?;
                return Ok(());
            }
            "arg_max" | "argmax" | "max_by" => return row_of_extreme(function, false),
            "arg_min" | "argmin" | "min_by" => return row_of_extreme(function, true),
            _ => {}
        }
        if let Some((_, here)) = NAMES.iter().find(|(elsewhere, _)| *elsewhere == name) {
            if matches!(name.as_str(), "strftime" | "strptime") {
                with_fractions(function, name == "strptime");
            }
            rename(function, here);
        }
    }
    let name = function.name.to_string().to_lowercase();
    if name == "string_agg" {
        separate_by_comma(function);
    }
    if name == "regexp_replace" {
        keep_dollars(function)?;
    }
    if QUANTILES.contains(&name.as_str()) {
        count_in_order(function);
    }
    Ok(())
}

/// `f(g(x) IGNORE NULLS) OVER …` says it of `f`; the parser takes it for the clause of `g`.
fn null_treatment_of_call(function: &mut Function) {
    if function.over.is_none() || function.null_treatment.is_some() {
        return;
    }
    let inner = plain_arguments(function).find_map(|argument| match argument {
        Expr::Function(inner) if inner.over.is_none() => inner.null_treatment.take(),
        _ => None,
    });
    function.null_treatment = inner;
}

/// `lag(a, n, b)` and `lead` with a default that differs from row to row, for which the planner has no call: there
/// is no row so far away where one of a constant is NULL.
fn with_default(name: &str, function: &Function) -> Result<Option<Expr>> {
    if !matches!(name, "lag" | "lead") || function.over.is_none() || function.filter.is_some() {
        return Ok(None);
    }
    let Some([value, rows, default]) = arguments(function) else {
        return Ok(None);
    };
    let is_constant = match &default {
        Expr::UnaryOp { expr, .. } => matches!(expr.as_ref(), Expr::Value(_)),
        expr => matches!(
            expr,
            Expr::Value(_) | Expr::TypedString(_) | Expr::Interval(_)
        ),
    };
    if is_constant {
        return Ok(None);
    }
    let call_of = |value: Expr| {
        let mut call = function.clone();
        if let FunctionArguments::List(list) = &mut call.args {
            let args = [value, rows.clone()].map(FunctionArgExpr::Expr);
            list.args = args.map(FunctionArg::Unnamed).to_vec();
        }
        Expr::Function(call)
    };
    let one = Expr::value(Value::Number("1".to_owned(), false));
    let values = vec![
        ("there", call_of(one)),
        ("a", call_of(value)),
        ("b", default),
    ];
    let text = "(CASE WHEN there IS NULL THEN b ELSE a END)";
    template(text, values).map(Some)
}

/// The years of a unit of time that is longer than one.
fn years_of(unit: &str) -> Option<u32> {
    match unit.to_lowercase().as_str() {
        "decade" | "decades" => Some(10),
        "century" | "centuries" => Some(100),
        "millennium" | "millennia" => Some(1000),
        _ => None,
    }
}

/// The arguments of a call that are expressions without a name.
fn plain_arguments(function: &mut Function) -> impl Iterator<Item = &mut Expr> {
    let args = match &mut function.args {
        FunctionArguments::List(list) => list.args.as_mut_slice(),
        _ => &mut [],
    };
    args.iter_mut().filter_map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    })
}

fn text_of(expr: &mut Expr) -> Option<&mut String> {
    match expr {
        Expr::Value(value) => match &mut value.value {
            Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// Fractions of seconds as Python and DuckDB write them in the form of a time: `%f` of six digits or, where it is
/// read, of as many as there are, `%g` of three and `%n` of nine. Here `%f` is a number of nanoseconds.
fn with_fractions(function: &mut Function, is_read: bool) {
    let Some(form) = plain_arguments(function).nth(1).and_then(text_of) else {
        return;
    };
    let mut written = String::with_capacity(form.len());
    let mut rest = form.as_str();
    while let Some(place) = rest.find('%') {
        let (before, directive) = rest.split_at(place);
        written.push_str(before);
        let Some(letter) = directive[1..].chars().next() else {
            rest = directive;
            break;
        };
        match letter {
            'f' if is_read && written.ends_with('.') => {
                written.pop();
                written.push_str("%.f");
            }
            'f' => written.push_str("%6f"),
            'g' => written.push_str("%3f"),
            'n' => written.push_str("%9f"),
            other => written.extend(['%', other]),
        }
        rest = &directive[1 + letter.len_utf8()..];
    }
    written.push_str(rest);
    *form = written;
}

/// A `$` in what takes the place of a match is one; to the planner's function it names a group, as `\1` does.
fn keep_dollars(function: &mut Function) -> Result<()> {
    let Some(by) = plain_arguments(function).nth(2) else {
        return Ok(());
    };
    let is_kept = match &*by {
        Expr::Function(call) => call.to_string().ends_with(", '$', '$$')"),
        _ => false,
    };
    if !is_kept && text_of(by).is_none_or(|text| text.contains('$')) {
        let values = vec![("a", std::mem::replace(by, Expr::value(Value::Null)))];
        *by = template("replace(a, '$', '$$')", values)?;
    }
    Ok(())
}

fn rename(function: &mut Function, name: &str) {
    function.name = ObjectName::from(vec![Ident::new(name)]);
}

/// The arguments of a call, if there are so many and nothing is said besides.
fn arguments<const N: usize>(function: &Function) -> Option<[Expr; N]> {
    all_arguments(function)?.try_into().ok()
}

/// The arguments of a call, if nothing is said besides.
fn all_arguments(function: &Function) -> Option<Vec<Expr>> {
    let FunctionArguments::List(list) = &function.args else {
        return None;
    };
    let args = list.args.iter().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)) => Some(arg.clone()),
        _ => None,
    });
    let args: Vec<Expr> = args.collect::<Option<_>>()?;
    let is_bare = list.duplicate_treatment.is_none() && list.clauses.is_empty();
    let is_bare = is_bare && function.null_treatment.is_none() && function.within_group.is_empty();
    is_bare.then_some(args)
}

/// Whether nothing is said of a call that only aggregates and window functions heed.
fn is_plain(function: &Function) -> bool {
    function.filter.is_none() && function.over.is_none()
}

/// A text of ours with expressions in the places of names. They are put there on the way up, so that names
/// within them are not taken for those of the text.
fn template(text: &str, values: Vec<(&str, Expr)>) -> Result<Expr> {
    let mut expr = parsed(text, |parser| parser.parse_expr())?;
    let replaced = visit_expressions_mut(&mut expr, |part| {
        match part {
            Expr::Identifier(name) => {
                if let Some((_, value)) = values.iter().find(|(known, _)| *known == name.value) {
                    *part = Expr::Nested(Box::new(value.clone()));
                }
            }
            Expr::Function(function) if is_lambda(function) => return flow(put_lambda(part)),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    match replaced {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(expr),
    }
}

/// Puts a value in the place of a call's only argument.
fn put_argument(function: &mut Function, value: Expr) {
    if let FunctionArguments::List(list) = &mut function.args {
        list.args = vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(value))];
    }
}

/// `list_aggregate(list, 'name', …)`: the function of lists that does what the aggregate does.
fn of_list(function: &Function) -> Result<Option<Expr>> {
    let Some(args) = all_arguments(function).filter(|_| is_plain(function)) else {
        return Ok(None);
    };
    let [list, Expr::Value(name), more @ ..] = args.as_slice() else {
        return Ok(None);
    };
    let Value::SingleQuotedString(name) = &name.value else {
        return Ok(None);
    };
    let list = || ("a", list.clone());
    let text = match (name.to_lowercase().as_str(), more) {
        ("sum", []) => "list_sum(a)",
        ("avg" | "mean", []) => "list_avg(a)",
        ("min", []) => "array_min(a)",
        ("max", []) => "array_max(a)",
        ("count", []) => "list_count(a)",
        ("first", []) => "array_element(a, 1)",
        ("last", []) => "array_element(a, -1)",
        ("product", []) => "array_product(a)",
        ("string_agg" | "group_concat" | "listagg", []) => "list_string_agg(a)",
        ("string_agg" | "group_concat" | "listagg", [separator]) => {
            let values = vec![list(), ("b", separator.clone())];
            return template("array_to_string(a, b)", values).map(Some);
        }
        (name, _) => {
            return refuse(
                &format!("list_aggregate of '{name}'"),
                "write (SELECT f(x) FROM (SELECT unnest(list) AS x))",
            );
        }
    };
    template(text, vec![list()]).map(Some)
}

/// `arg_max(x, y)`, the x of the row with the greatest y, as DuckDB has it: among the rows where
/// neither is NULL. It is `first_value(x ORDER BY y DESC) FILTER (WHERE x IS NOT NULL AND y IS NOT NULL)`.
fn row_of_extreme(function: &mut Function, is_least: bool) -> Result<()> {
    let name = function.name.to_string();
    let Some([value, by]) = arguments(function) else {
        return refuse(
            &format!("{name} but of two arguments"),
            "write first_value(x ORDER BY y)",
        );
    };
    if function.over.is_some() {
        return refuse(
            &format!("{name} as a window function"),
            "write first_value(x) OVER (PARTITION BY … ORDER BY y)",
        );
    }
    let is_there = |expr: &Expr| Expr::IsNotNull(Box::new(Expr::Nested(Box::new(expr.clone()))));
    let and = |left: Expr, right: Expr| Expr::BinaryOp {
        left: Box::new(left),
        op: BinaryOperator::And,
        right: Box::new(right),
    };
    let mut filter = and(is_there(&value), is_there(&by));
    if let Some(given) = function.filter.take() {
        filter = and(Expr::Nested(given), filter);
    }
    function.filter = Some(Box::new(filter));
    if let FunctionArguments::List(list) = &mut function.args {
        list.args = vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(value))];
        list.clauses = vec![FunctionArgumentClause::OrderBy(vec![OrderByExpr {
            expr: by,
            options: OrderByOptions {
                asc: Some(is_least),
                nulls_first: None,
            },
            with_fill: None,
        }])];
    }
    rename(function, "first_value");
    Ok(())
}

/// `max(x, n)`, the n greatest, and `arg_max(x, y, n)`, the x of the n rows with the greatest y, as DuckDB has
/// them: among the rows where neither is NULL, in order.
fn several_extremes(name: &str, function: &Function) -> Result<Option<Expr>> {
    let (is_least, has_order) = match name {
        "max" => (false, false),
        "min" => (true, false),
        "arg_max" | "argmax" | "max_by" => (false, true),
        "arg_min" | "argmin" | "min_by" => (true, true),
        _ => return Ok(None),
    };
    let (value, by, count) = match (all_arguments(function).as_deref(), has_order) {
        (Some([value, count]), false) => (value.clone(), value.clone(), count.clone()),
        (Some([value, by, count]), true) => (value.clone(), by.clone(), count.clone()),
        _ => return Ok(None),
    };
    if function.over.is_some() {
        return refuse(
            &format!("{name} of several rows as a window function"),
            "write array_agg(x) OVER (PARTITION BY … ORDER BY …)",
        );
    }
    let order = if is_least { "ASC" } else { "DESC" };
    let mut values = vec![("x", value), ("y", by), ("n", count)];
    let mut filter = "x IS NOT NULL AND y IS NOT NULL".to_owned();
    if let Some(given) = &function.filter {
        values.push(("f", given.as_ref().clone()));
        filter += " AND f";
    }
    let text =
        format!("array_slice(array_agg(x ORDER BY y {order}) FILTER (WHERE {filter}), 1, n)");
    template(&text, values).map(Some)
}

/// `quantile_cont(x, [0.25, 0.5])`: a list of the quantiles, of no values none.
fn several_quantiles(name: &str, function: &Function) -> Result<Option<Expr>> {
    let is_quantile = QUANTILES.contains(&name)
        || NAMES
            .iter()
            .any(|(known, here)| *known == name && QUANTILES.contains(here));
    let FunctionArguments::List(list) = &function.args else {
        return Ok(None);
    };
    let [
        _,
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Array(shares))),
        ..,
    ] = list.args.as_slice()
    else {
        return Ok(None);
    };
    let of = |share: &Expr| {
        let mut one = function.clone();
        if let FunctionArguments::List(list) = &mut one.args {
            list.args[1] = FunctionArg::Unnamed(FunctionArgExpr::Expr(share.clone()));
        }
        Expr::Function(one)
    };
    let quantiles: Vec<_> = shares.elem.iter().map(of).collect();
    match quantiles.first().filter(|_| is_quantile) {
        Some(first) => {
            let first = ("a", first.clone());
            let list = ("b", call(Ident::new("make_array"), quantiles));
            template("CASE WHEN a IS NOT NULL THEN b END", vec![first, list]).map(Some)
        }
        None => Ok(None),
    }
}

/// `date_part(['year', 'month'], d)` and `regexp_extract(text, pattern, ['key', 'value'])`: a struct of what is found for
/// each name.
fn named_parts(name: &str, function: &Function) -> Result<Option<Expr>> {
    let (names_at, value_at) = match name {
        "date_part" => (0, 1),
        "regexp_extract" => (2, 0),
        _ => return Ok(None),
    };
    let Some(args) = all_arguments(function).filter(|_| is_plain(function)) else {
        return Ok(None);
    };
    let (Some(Expr::Array(names)), Some(value)) = (args.get(names_at), args.get(value_at)) else {
        return Ok(None);
    };
    let names: Option<Vec<_>> = names.elem.iter().map(quoted_text).collect();
    let Some(names) = names else {
        return Ok(None);
    };
    let mut fields = Vec::with_capacity(2 * names.len());
    for (place, field) in (1..).zip(names) {
        let field = Value::SingleQuotedString(field.to_owned());
        let mut args = args.clone();
        args[names_at] = Expr::value(match name {
            "date_part" => field.clone(),
            _ => Value::Number(i32::to_string(&place), false),
        });
        fields.push(Expr::value(field));
        fields.push(call(Ident::new(name), args));
    }
    let values = vec![
        ("a", value.clone()),
        ("b", call(Ident::new("named_struct"), fields)),
    ];
    template("CASE WHEN a IS NOT NULL THEN b END", values).map(Some)
}

/// `quantile_disc(x, q ORDER BY y DESC)` counts from the largest value, whatever `y` is, as in DuckDB, which is what a
/// number below zero says; of the order of rows itself a quantile of a column knows nothing.
fn count_in_order(function: &mut Function) {
    let FunctionArguments::List(list) = &mut function.args else {
        return;
    };
    if !function.within_group.is_empty() {
        return;
    }
    let mut is_descending = false;
    list.clauses.retain(|clause| match clause {
        FunctionArgumentClause::OrderBy(orders) => {
            let first = orders.first().map(|order| &order.options);
            is_descending = first.is_some_and(|by| by.asc == Some(false));
            false
        }
        _ => true,
    });
    if is_descending
        && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(share))) = list.args.get_mut(1)
    {
        let float = Expr::Cast {
            kind: CastKind::Cast,
            expr: Box::new(share.clone()),
            data_type: DataType::Double(ExactNumberInfo::None),
            array: false,
            format: None,
        };
        *share = Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr: Box::new(float),
        };
    }
}

/// `any_value(x ORDER BY y)`: the first that is not NULL; the function itself takes any.
fn any_in_order(function: &mut Function) {
    let FunctionArguments::List(list) = &function.args else {
        return;
    };
    let is_ordered =
        |clause: &FunctionArgumentClause| matches!(clause, FunctionArgumentClause::OrderBy(_));
    if list.clauses.iter().any(is_ordered) && function.null_treatment.is_none() {
        function.null_treatment = Some(NullTreatment::IgnoreNulls);
        rename(function, "first_value");
    }
}

/// `string_agg(x)` is `string_agg(x, ',')`.
fn separate_by_comma(function: &mut Function) {
    if let FunctionArguments::List(list) = &mut function.args
        && list.args.len() == 1
    {
        let comma = Expr::value(Value::SingleQuotedString(",".into()));
        let comma = FunctionArg::Unnamed(FunctionArgExpr::Expr(comma));
        list.args.push(comma);
    }
}

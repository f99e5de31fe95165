//! Parts of values: fields of structs, and what is behind a path in a JSON text.

use datafusion::sql::sqlparser::ast::{
    AccessExpr, BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments,
    Ident, ObjectName, ObjectNamePart, Subscript, UnaryOperator, Value,
};
use flashmesh_planner::JSON;

use super::{call, refuse};
use crate::error::Result;
use crate::names::name_of;

/// `struct_pack(a := 1)` and `struct_insert(s, a := 1)` as calls that have names and values in turn.
///
/// # Errors
/// A refusal of values without a name.
pub(super) fn pack(function: &mut Function) -> Result<()> {
    let is_called = |called: &str| {
        matches!(function.name.0.as_slice(), [ObjectNamePart::Identifier(name)]
        if name.value.eq_ignore_ascii_case(called))
    };
    let (is_pack, is_insert) = (is_called("struct_pack"), is_called("struct_insert"));
    let FunctionArguments::List(list) = &mut function.args else {
        return Ok(());
    };
    if !is_pack && !is_insert {
        return Ok(());
    }
    // As it is kept: names and values in turn.
    let is_kept = |arg: &FunctionArg| matches!(arg, FunctionArg::Unnamed(_));
    if is_insert && list.args.len() > 2 && list.args.iter().all(is_kept) {
        return Ok(());
    }
    let mut args = Vec::with_capacity(list.args.len() * 2);
    let mut given = std::mem::take(&mut list.args).into_iter();
    if is_insert && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(first))) = given.next() {
        args.push(first);
    }
    for arg in given {
        let FunctionArg::Named {
            name,
            arg: FunctionArgExpr::Expr(value),
            ..
        } = arg
        else {
            return refuse(
                &format!("a value without a name in {}", function.name),
                "write name := value",
            );
        };
        let name = Expr::value(Value::SingleQuotedString(name_of(&name)));
        args.extend([name, value]);
    }
    let args = args.into_iter().map(FunctionArgExpr::Expr);
    list.args = args.map(FunctionArg::Unnamed).collect();
    if is_pack {
        function.name = ObjectName::from(vec![Ident::new("named_struct")]);
    }
    Ok(())
}

/// `(struct).field`: the planner takes the field's name as a text, but where it belongs to the name of a column
/// (`table.column[1]`).
pub(super) fn correct_access(root: &Expr, chain: &mut [AccessExpr]) {
    let of_name = match root {
        Expr::Identifier(_) => {
            let is_name =
                |access: &AccessExpr| matches!(access, AccessExpr::Dot(Expr::Identifier(_)));
            chain.iter().take_while(|access| is_name(access)).count()
        }
        _ => 0,
    };
    for access in &mut chain[of_name..] {
        if let AccessExpr::Subscript(Subscript::Slice {
            lower_bound,
            upper_bound,
            stride: _,
        }) = access
        {
            let number = |number: &str| Expr::value(Value::Number(number.into(), false));
            lower_bound.get_or_insert_with(|| number("1"));
            upper_bound.get_or_insert_with(|| Expr::UnaryOp {
                op: UnaryOperator::Minus,
                expr: Box::new(number("1")),
            });
        }
        if let AccessExpr::Dot(Expr::Identifier(name)) = access {
            let name = match name.quote_style {
                None => name.value.to_lowercase(),
                Some(_) => name.value.clone(),
            };
            *access = AccessExpr::Dot(Expr::value(Value::SingleQuotedString(name)));
        }
    }
}

/// Functions that give JSON.
const GIVE_JSON: [&str; 7] = [
    "json",
    "json_array",
    "json_extract",
    "json_extract_path",
    "json_group_array",
    "json_object",
    "to_json",
];
/// Functions that make JSON of their arguments.
const MAKE_JSON: [&str; 4] = ["json_array", "json_group_array", "json_object", "to_json"];

/// Has JSON within what makes JSON be a part of it, and no text: both are texts, so the type says it.
pub(super) fn keep_json(function: &mut Function) {
    let name = function.name.to_string().to_lowercase();
    let FunctionArguments::List(list) = &mut function.args else {
        return;
    };
    if !MAKE_JSON.contains(&name.as_str()) {
        return;
    }
    for arg in &mut list.args {
        if let FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)) = arg
            && gives_json(arg)
        {
            let given = std::mem::replace(arg, Expr::value(Value::Null));
            *arg = call(Ident::with_quote('"', JSON), vec![given]);
        }
    }
}

fn gives_json(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => gives_json(inner),
        Expr::BinaryOp { op, .. } => *op == BinaryOperator::Arrow,
        Expr::Function(function) => {
            GIVE_JSON.contains(&function.name.to_string().to_lowercase().as_str())
        }
        _ => false,
    }
}

/// `json -> path` and `json ->> path` as calls.
pub(super) fn extract(expr: &mut Expr) {
    let Expr::BinaryOp { left, op, right } = expr else {
        return;
    };
    let name = match op {
        BinaryOperator::Arrow => "json_extract",
        BinaryOperator::LongArrow => "json_extract_string",
        _ => return,
    };
    *expr = call(
        Ident::new(name),
        vec![left.as_ref().clone(), right.as_ref().clone()],
    );
}

//! Lambda functions, which [`crate::spelling`] has written as calls.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, LambdaFunction,
    LambdaFunctionParameter, LambdaSyntax, OneOrManyWithParens, Value,
};

use super::{call, refuse};
use crate::error::Result;
use crate::names::name_of;
use crate::spelling::LAMBDA;
use crate::walk::visit_expressions_mut;

/// Whether a call stands for a lambda function.
pub(super) fn is_lambda(function: &Function) -> bool {
    matches!(function.name.0.as_slice(), [name]
        if name.as_ident().is_some_and(|name| name.value == LAMBDA))
}

/// Puts the lambda function that a call stands for in its place: its last argument is the body, those
/// before are the parameters.
pub(super) fn put_lambda(expr: &mut Expr) -> Result<()> {
    let Expr::Function(function) = expr else {
        return Ok(());
    };
    let FunctionArguments::List(list) = &function.args else {
        return refuse("a lambda function without parameters", "write x -> …");
    };
    let mut args = list.args.iter().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)) => Some(arg.clone()),
        _ => None,
    });
    let body = args.next_back().flatten();
    let parameters = args.map(|arg| match arg? {
        Expr::Identifier(name) => Some(LambdaFunctionParameter {
            name,
            data_type: None,
        }),
        _ => None,
    });
    let parameters: Option<Vec<_>> = parameters.collect();
    let (Some(mut body), Some(mut parameters)) = (body, parameters) else {
        return refuse("a lambda function like this", "write x -> x + 1");
    };
    read_fields(&mut body, &parameters);
    let params = match parameters.len() {
        1 => OneOrManyWithParens::One(parameters.remove(0)),
        _ => OneOrManyWithParens::Many(parameters),
    };
    *expr = Expr::Lambda(LambdaFunction {
        params,
        body: Box::new(body),
        syntax: LambdaSyntax::Arrow,
    });
    Ok(())
}

/// Says `e.x` of a parameter `e` by a function: to the planner it is the column `x` of a table `e`.
fn read_fields(body: &mut Expr, parameters: &[LambdaFunctionParameter]) {
    let is_parameter = |name: &Ident| {
        let mut parameters = parameters.iter();
        parameters.any(|parameter| name_of(&parameter.name) == name_of(name))
    };
    let _: ControlFlow<Infallible> = visit_expressions_mut(body, |part| {
        if let Expr::CompoundIdentifier(names) = part
            && let [first, fields @ ..] = names.as_slice()
            && is_parameter(first)
        {
            let value = Expr::Identifier(first.clone());
            *part = fields.iter().fold(value, |of, field| {
                let key = Expr::value(Value::SingleQuotedString(name_of(field)));
                call(Ident::new("get_field"), vec![of, key])
            });
        }
        ControlFlow::Continue(())
    });
}

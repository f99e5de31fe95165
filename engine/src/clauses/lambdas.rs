//! Lambda functions, which [`crate::spelling`] has written as calls.

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, LambdaFunction,
    LambdaFunctionParameter, LambdaSyntax, OneOrManyWithParens,
};

use super::refuse;
use crate::error::Result;
use crate::spelling::LAMBDA;

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
    let (Some(body), Some(mut parameters)) = (body, parameters) else {
        return refuse("a lambda function like this", "write x -> x + 1");
    };
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

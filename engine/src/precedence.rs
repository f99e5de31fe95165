//! Operators that bind in another way than the parser has it.
//!
//! `a IS [NOT] DISTINCT FROM b AND c`: the parser takes all that follows FROM for its right side;
//! in SQL it binds as IS NULL does, stronger than NOT, AND and OR.
//!
//! `a || b % c`: the parser takes `||` for as strong as `*`; in PostgreSQL and DuckDB it is weaker than
//! `+`, too.
//!
//! `a -> b = c`: the parser takes the arrows of JSON for weaker than comparisons; in PostgreSQL they are
//! stronger.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator, Value, VisitorMut};

/// Gives every `IS [NOT] DISTINCT FROM`, `||`, `->` and `->>` the operands that SQL gives it.
pub(crate) struct Correct;

impl VisitorMut for Correct {
    type Break = ();

    // Before its operands: only the outermost expression shows what follows what.
    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if reaches_too_far(expr) {
            let whole = std::mem::replace(expr, Expr::value(Value::Boolean(false)));
            let mut tokens = Vec::new();
            flatten(whole, &mut tokens);
            *expr = parse(&mut tokens.into_iter().peekable(), 0);
        }
        if joins_too_soon(expr) {
            let whole = std::mem::replace(expr, Expr::value(Value::Boolean(false)));
            *expr = with_late_joins(whole);
        }
        strengthen_arrows(expr);
        ControlFlow::Continue(())
    }
}

/// What stands between operands, weak operators only: to stronger ones the parser is right.
enum Operator {
    Or,
    And,
    Is(fn(Box<Expr>, Box<Expr>) -> Expr),
    /// `IS NULL` and the like.
    After(fn(Box<Expr>) -> Expr),
}

enum Token {
    Operand(Box<Expr>),
    Not,
    Operator(Operator),
}

const NOT: u8 = 3;

impl Operator {
    fn precedence(&self) -> u8 {
        match self {
            Operator::Or => 1,
            Operator::And => 2,
            Operator::Is(_) | Operator::After(_) => NOT + 1,
        }
    }
}

/// An expression of a weak operator: its operands and the operator.
enum Weak<'a> {
    Infix(&'a mut Box<Expr>, Operator, &'a mut Box<Expr>),
    After(&'a mut Box<Expr>, Operator),
    Not(&'a mut Box<Expr>),
}

fn weak(expr: &mut Expr) -> Option<Weak<'_>> {
    let after = |expr, operator| Some(Weak::After(expr, Operator::After(operator)));
    match expr {
        Expr::BinaryOp { left, op, right } => match op {
            BinaryOperator::And => Some(Weak::Infix(left, Operator::And, right)),
            BinaryOperator::Or => Some(Weak::Infix(left, Operator::Or, right)),
            _ => None,
        },
        Expr::IsDistinctFrom(left, right) => {
            Some(Weak::Infix(left, Operator::Is(Expr::IsDistinctFrom), right))
        }
        Expr::IsNotDistinctFrom(left, right) => Some(Weak::Infix(
            left,
            Operator::Is(Expr::IsNotDistinctFrom),
            right,
        )),
        Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr,
        } => Some(Weak::Not(expr)),
        Expr::IsNull(expr) => after(expr, Expr::IsNull),
        Expr::IsNotNull(expr) => after(expr, Expr::IsNotNull),
        Expr::IsTrue(expr) => after(expr, Expr::IsTrue),
        Expr::IsNotTrue(expr) => after(expr, Expr::IsNotTrue),
        Expr::IsFalse(expr) => after(expr, Expr::IsFalse),
        Expr::IsNotFalse(expr) => after(expr, Expr::IsNotFalse),
        Expr::IsUnknown(expr) => after(expr, Expr::IsUnknown),
        Expr::IsNotUnknown(expr) => after(expr, Expr::IsNotUnknown),
        _ => None,
    }
}

/// Whether an `IS DISTINCT FROM` among the weak operators of `expr` has one to its right.
fn reaches_too_far(mut expr: &mut Expr) -> bool {
    // A loop to the left, where long chains of AND and OR grow.
    loop {
        expr = match weak(expr) {
            Some(Weak::Infix(left, operator, right)) => {
                let weak_right = matches!(weak(right), Some(Weak::Infix(..) | Weak::After(..)));
                if matches!(operator, Operator::Is(_)) && weak_right || reaches_too_far(right) {
                    return true;
                }
                left
            }
            Some(Weak::After(inner, _) | Weak::Not(inner)) => inner,
            None => return false,
        }
    }
}

/// `expr` as it was written.
fn flatten(mut expr: Expr, tokens: &mut Vec<Token>) {
    let take = |expr: &mut Box<Expr>, tokens: &mut Vec<Token>| {
        flatten(
            std::mem::replace(expr, Expr::value(Value::Boolean(false))),
            tokens,
        );
    };
    match weak(&mut expr) {
        Some(Weak::Infix(left, operator, right)) => {
            take(left, tokens);
            tokens.push(Token::Operator(operator));
            take(right, tokens);
        }
        Some(Weak::After(inner, operator)) => {
            take(inner, tokens);
            tokens.push(Token::Operator(operator));
        }
        Some(Weak::Not(inner)) => {
            tokens.push(Token::Not);
            take(inner, tokens);
        }
        None => tokens.push(Token::Operand(Box::new(expr))),
    }
}

/// The expression of the tokens up to an operator that is not stronger than `above`.
fn parse(tokens: &mut std::iter::Peekable<std::vec::IntoIter<Token>>, above: u8) -> Expr {
    let mut left = match tokens.next() {
        Some(Token::Operand(expr)) => *expr,
        Some(Token::Not) => Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr: Box::new(parse(tokens, NOT)),
        },
        _ => unreachable!("an expression begins with an operand"),
    };
    while let Some(Token::Operator(operator)) =
        tokens.next_if(|token| matches!(token, Token::Operator(next) if next.precedence() > above))
    {
        let precedence = operator.precedence();
        let mut right = || Box::new(parse(tokens, precedence));
        let binary = |op, left, right| Expr::BinaryOp { left, op, right };
        left = match operator {
            Operator::Or => binary(BinaryOperator::Or, Box::new(left), right()),
            Operator::And => binary(BinaryOperator::And, Box::new(left), right()),
            Operator::Is(make) => make(Box::new(left), right()),
            Operator::After(make) => make(Box::new(left)),
        };
    }
    left
}

/// How strong an operator of a chain of arithmetic and `||` is.
fn strength(operator: &BinaryOperator) -> Option<u8> {
    match operator {
        BinaryOperator::StringConcat => Some(1),
        BinaryOperator::Plus | BinaryOperator::Minus => Some(2),
        BinaryOperator::Multiply
        | BinaryOperator::Divide
        | BinaryOperator::Modulo
        | BinaryOperator::DuckIntegerDivide => Some(3),
        _ => None,
    }
}

fn is_join(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::BinaryOp {
            op: BinaryOperator::StringConcat,
            ..
        }
    )
}

/// Whether arithmetic in the chain of `expr` has a `||` for an operand that stands in no parentheses.
fn joins_too_soon(expr: &Expr) -> bool {
    let mut chain = vec![expr];
    while let Some(expr) = chain.pop() {
        let Expr::BinaryOp { left, op, right } = expr else {
            continue;
        };
        match strength(op) {
            None => continue,
            Some(1) => {}
            Some(_) if is_join(left) || is_join(right) => return true,
            Some(_) => {}
        }
        chain.extend([left.as_ref(), right.as_ref()]);
    }
    false
}

/// The chain of `expr` with each operator as strong as it is.
fn with_late_joins(expr: Expr) -> Expr {
    let mut operands: Vec<Expr> = Vec::new();
    let mut operators: Vec<BinaryOperator> = Vec::new();
    let apply = |operands: &mut Vec<Expr>, op: BinaryOperator| {
        let right = operands.pop().expect("an operator has two operands");
        let left = operands.pop().expect("an operator has two operands");
        operands.push(Expr::BinaryOp {
            left: Box::new(left),
            op,
            right: Box::new(right),
        });
    };
    for token in in_order(expr) {
        match token {
            Ok(operand) => operands.push(operand),
            Err(operator) => {
                while let Some(last) =
                    operators.pop_if(|last| strength(last) >= strength(&operator))
                {
                    apply(&mut operands, last);
                }
                operators.push(operator);
            }
        }
    }
    while let Some(operator) = operators.pop() {
        apply(&mut operands, operator);
    }
    operands.pop().expect("an expression")
}

/// A chain as it was written: operands, and operators (`Err`) between them.
fn in_order(expr: Expr) -> Vec<Result<Expr, BinaryOperator>> {
    let mut written = Vec::new();
    let mut left_to_see = vec![Ok(expr)];
    while let Some(next) = left_to_see.pop() {
        match next {
            Ok(Expr::BinaryOp { left, op, right }) if strength(&op).is_some() => {
                left_to_see.extend([Ok(*right), Err(op), Ok(*left)]);
            }
            other => written.push(other),
        }
    }
    written
}

fn is_arrow(operator: &BinaryOperator) -> bool {
    matches!(operator, BinaryOperator::Arrow | BinaryOperator::LongArrow)
}

fn is_comparison(operator: &BinaryOperator) -> bool {
    matches!(
        operator,
        BinaryOperator::Eq
            | BinaryOperator::NotEq
            | BinaryOperator::Lt
            | BinaryOperator::LtEq
            | BinaryOperator::Gt
            | BinaryOperator::GtEq
    )
}

/// What is applied to the arrow's result where it stands behind it: from left to right.
fn is_as_strong(operator: &BinaryOperator) -> bool {
    matches!(
        operator,
        BinaryOperator::StringConcat
            | BinaryOperator::PGRegexMatch
            | BinaryOperator::PGRegexIMatch
            | BinaryOperator::PGRegexNotMatch
            | BinaryOperator::PGRegexNotIMatch
            | BinaryOperator::PGLikeMatch
            | BinaryOperator::PGILikeMatch
            | BinaryOperator::PGNotLikeMatch
            | BinaryOperator::PGNotILikeMatch
            | BinaryOperator::BitwiseAnd
            | BinaryOperator::BitwiseOr
    )
}

/// The operand with which what is weaker than an arrow begins.
fn first_operand(expr: &mut Expr) -> Option<&mut Expr> {
    match expr {
        Expr::BinaryOp { left, op, .. } if is_comparison(op) || is_as_strong(op) => Some(left),
        Expr::AnyOp { left, .. } | Expr::AllOp { left, .. } => Some(left),
        Expr::Like { expr, .. }
        | Expr::ILike { expr, .. }
        | Expr::SimilarTo { expr, .. }
        | Expr::RLike { expr, .. }
        | Expr::InList { expr, .. }
        | Expr::InSubquery { expr, .. }
        | Expr::InUnnest { expr, .. }
        | Expr::Between { expr, .. }
        | Expr::IsDistinctFrom(expr, _)
        | Expr::IsNotDistinctFrom(expr, _)
        | Expr::IsNull(expr)
        | Expr::IsNotNull(expr)
        | Expr::IsTrue(expr)
        | Expr::IsNotTrue(expr)
        | Expr::IsFalse(expr)
        | Expr::IsNotFalse(expr)
        | Expr::IsUnknown(expr)
        | Expr::IsNotUnknown(expr) => Some(expr),
        _ => None,
    }
}

/// The operand with which what is weaker than an arrow ends.
fn last_operand(expr: &mut Expr) -> Option<&mut Expr> {
    match expr {
        Expr::BinaryOp { right, op, .. } if is_comparison(op) => Some(right),
        Expr::Like { pattern, .. }
        | Expr::ILike { pattern, .. }
        | Expr::SimilarTo { pattern, .. }
        | Expr::RLike { pattern, .. } => Some(pattern),
        Expr::Between { high, .. } => Some(high),
        Expr::IsDistinctFrom(_, expr) | Expr::IsNotDistinctFrom(_, expr) => Some(expr),
        _ => None,
    }
}

/// Makes `(a = b) -> c` an `a = (b -> c)`, and `a -> (b = c)` an `(a -> b) = c`.
fn strengthen_arrows(expr: &mut Expr) {
    let take = |expr: &mut Expr| std::mem::replace(expr, Expr::value(Value::Boolean(false)));
    let Expr::BinaryOp { left, op, right } = expr else {
        return;
    };
    if !is_arrow(op) {
        return;
    }
    strengthen_arrows(left);
    if last_operand(left).is_none() && first_operand(right).is_none() {
        return;
    }
    let (left, op) = (take(left), op.clone());
    let mut whole = take(right);
    put_before_first(&mut whole, left, &op);
    *expr = whole;
}

/// Gives an arrow behind `left` to the innermost first operand of what follows it.
fn put_before_first(expr: &mut Expr, left: Expr, op: &BinaryOperator) {
    if first_operand(expr).is_none() {
        let first = std::mem::replace(expr, Expr::value(Value::Boolean(false)));
        *expr = arrow_behind_last(left, op, first);
    } else if let Some(first) = first_operand(expr) {
        put_before_first(first, left, op);
    }
}

/// Gives an arrow to the last operand of `left`.
fn arrow_behind_last(mut left: Expr, op: &BinaryOperator, right: Expr) -> Expr {
    if let Some(last) = last_operand(&mut left) {
        let operand = std::mem::replace(last, Expr::value(Value::Boolean(false)));
        *last = arrow_behind_last(operand, op, right);
        return left;
    }
    let [left, right] = [left, right].map(Box::new);
    let op = op.clone();
    Expr::BinaryOp { left, op, right }
}

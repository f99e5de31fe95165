//! DataFusion's physical expressions ▸ the Program's expressions.
//!
//! The translation is exact or it does not happen: what comes back computes the same values,
//! NULLs and errors included, and everything else is refused with a [`Reason`]. The one
//! exception is [`weaken`], whose result may let more rows pass than the predicate it was given;
//! the predicate itself then stays above the scan.
//!
//! Here and in the scan's description [`Expr::Column`] is the ordinal of a column in the *table*;
//! only the finished Program numbers the columns that it reads.

mod functions;
mod literal;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal as DfLiteral, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::{fmt_sql, is_volatile};
use flashmesh_pushdown::types::is_widening_cast;
use flashmesh_pushdown::{ArithmeticOp, CompareOp, Expr, Literal, Scalar};

use crate::Reason;

pub use literal::{program_type, scalar_of, scalar_value_of};

/// What the columns of an expression's input are, in terms of the table.
#[derive(Debug, Clone)]
pub struct Scope {
    schema: SchemaRef,
    columns: Vec<Result<Expr, Reason>>,
}

impl Scope {
    /// An input whose column `i` has the value of `columns[i]`, or has no translation.
    pub fn new(schema: SchemaRef, columns: Vec<Result<Expr, Reason>>) -> Self {
        debug_assert_eq!(schema.fields().len(), columns.len());
        Self { schema, columns }
    }

    /// The table itself.
    pub fn of_table(schema: SchemaRef) -> Self {
        let columns = (0..schema.fields().len())
            .map(|i| Ok(Expr::Column(i as u32)))
            .collect();
        Self { schema, columns }
    }

    /// What comes out of a projection over this input.
    pub fn project<'a>(
        &self,
        exprs: impl IntoIterator<Item = &'a dyn PhysicalExpr>,
        schema: SchemaRef,
    ) -> Self {
        Self::new(
            schema,
            exprs.into_iter().map(|e| translate(e, self)).collect(),
        )
    }

    /// The input's schema.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The type of an expression over this input, as a Program has it.
    pub fn type_of(&self, expr: &dyn PhysicalExpr) -> Result<DataType, Reason> {
        expr.data_type(&self.schema)
            .map(|t| program_type(&t))
            .map_err(|e| Reason::Operator(e.strip_backtrace()))
    }
}

/// The text of an expression as plans show it.
pub fn text_of(expr: &dyn PhysicalExpr) -> String {
    fmt_sql(expr).to_string()
}

/// Translates `expr` over the columns of `scope`.
pub fn translate(expr: &dyn PhysicalExpr, scope: &Scope) -> Result<Expr, Reason> {
    if let Some(column) = expr.downcast_ref::<Column>() {
        let unknown = || {
            Err(Reason::Operator(format!(
                "column {} is not of the scan",
                column.name()
            )))
        };
        return scope
            .columns
            .get(column.index())
            .cloned()
            .unwrap_or_else(unknown);
    }
    if let Some(literal) = expr.downcast_ref::<DfLiteral>() {
        return literal::literal_of(literal.value()).map(Expr::Literal);
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return translate_binary(binary, scope);
    }
    if let Some(not) = expr.downcast_ref::<NotExpr>() {
        require_boolean(not.arg().as_ref(), scope)?;
        return Ok(not_expr(translate(not.arg().as_ref(), scope)?));
    }
    if let Some(is_null) = expr.downcast_ref::<IsNullExpr>() {
        return Ok(Expr::IsNull(Box::new(translate(
            is_null.arg().as_ref(),
            scope,
        )?)));
    }
    if let Some(is_not_null) = expr.downcast_ref::<IsNotNullExpr>() {
        let arg = translate(is_not_null.arg().as_ref(), scope)?;
        return Ok(not_expr(Expr::IsNull(Box::new(arg))));
    }
    if let Some(in_list) = expr.downcast_ref::<InListExpr>() {
        return translate_in_list(in_list, scope);
    }
    if let Some(like) = expr.downcast_ref::<LikeExpr>() {
        return Ok(Expr::Like {
            expr: Box::new(translate_string(like.expr().as_ref(), scope)?),
            pattern: string_literal(like.pattern().as_ref()).ok_or_else(|| {
                Reason::Operator("LIKE with a pattern that is no constant".into())
            })?,
            negated: like.negated(),
            case_insensitive: like.case_insensitive(),
        });
    }
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        return translate_case(case, scope);
    }
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        return translate_cast(cast.expr().as_ref(), cast.cast_type(), scope);
    }
    if let Some(cast) = expr.downcast_ref::<TryCastExpr>() {
        let widened = translate_cast(cast.expr().as_ref(), cast.cast_type(), scope)?;
        // Where the cast can't fail TRY makes no difference; those to timestamps can.
        return match cast.cast_type() {
            to @ DataType::Timestamp(..) => Err(Reason::Cast(
                scope.type_of(cast.expr().as_ref())?,
                to.clone(),
            )),
            _ => Ok(widened),
        };
    }
    if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
        return translate_negative(negative.arg().as_ref(), scope);
    }
    if let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() {
        return functions::translate_function(function, scope);
    }
    if expr.downcast_ref::<ScalarSubqueryExpr>().is_some() {
        return Err(Reason::Subquery);
    }
    if is_volatile_node(expr) {
        return Err(Reason::Volatile(text_of(expr)));
    }
    Err(Reason::Operator(text_of(expr)))
}

fn is_volatile_node(expr: &dyn PhysicalExpr) -> bool {
    // `is_volatile` wants the shared pointer only to look at the node itself.
    expr.is_volatile_node() || expr.children().into_iter().any(is_volatile)
}

fn not_expr(expr: Expr) -> Expr {
    match expr {
        Expr::Not(inner) => *inner,
        other => Expr::Not(Box::new(other)),
    }
}

fn require_boolean(expr: &dyn PhysicalExpr, scope: &Scope) -> Result<(), Reason> {
    match scope.type_of(expr)? {
        DataType::Boolean => Ok(()),
        other => Err(Reason::Type(other)),
    }
}

/// The value of a constant string.
fn string_literal(expr: &dyn PhysicalExpr) -> Option<String> {
    let value = expr.downcast_ref::<DfLiteral>()?.value();
    value.try_as_str().flatten().map(str::to_owned)
}

fn translate_string(expr: &dyn PhysicalExpr, scope: &Scope) -> Result<Expr, Reason> {
    match scope.type_of(expr)? {
        DataType::Utf8View => translate(expr, scope),
        other => Err(Reason::Type(other)),
    }
}

fn translate_binary(binary: &BinaryExpr, scope: &Scope) -> Result<Expr, Reason> {
    let (left, right) = (binary.left().as_ref(), binary.right().as_ref());
    let compare = |op| translate_compare(op, left, right, scope);
    let arithmetic = |op| translate_arithmetic(op, binary, scope);
    match binary.op() {
        Operator::Eq => compare(CompareOp::Eq),
        Operator::NotEq => compare(CompareOp::NotEq),
        Operator::Lt => compare(CompareOp::Lt),
        Operator::LtEq => compare(CompareOp::LtEq),
        Operator::Gt => compare(CompareOp::Gt),
        Operator::GtEq => compare(CompareOp::GtEq),
        Operator::And | Operator::Or => {
            require_boolean(left, scope)?;
            require_boolean(right, scope)?;
            let (left, right) = (translate(left, scope)?, translate(right, scope)?);
            Ok(if *binary.op() == Operator::And {
                flatten_and([left, right])
            } else {
                needles_as_list(equalities_as_list(flatten_or([left, right])))
            })
        }
        Operator::RegexMatch
        | Operator::RegexIMatch
        | Operator::RegexNotMatch
        | Operator::RegexNotIMatch => {
            let Some(pattern) = string_literal(right) else {
                return Err(Reason::Operator(binary.op().to_string()));
            };
            let op = binary.op();
            Ok(Expr::Regex {
                expr: Box::new(translate_string(left, scope)?),
                pattern: pattern.to_string(),
                negated: matches!(op, Operator::RegexNotMatch | Operator::RegexNotIMatch),
                case_insensitive: matches!(op, Operator::RegexIMatch | Operator::RegexNotIMatch),
            })
        }
        Operator::Plus => arithmetic(ArithmeticOp::Add),
        Operator::Minus => arithmetic(ArithmeticOp::Subtract),
        Operator::Multiply => arithmetic(ArithmeticOp::Multiply),
        Operator::IsNotDistinctFrom => translate_distinct(left, right, scope, false),
        Operator::IsDistinctFrom => translate_distinct(left, right, scope, true),
        other => Err(Reason::Operator(other.to_string())),
    }
}

/// `c = 1 OR c = 2` as `c IN (1, 2)`, which is one test, and one that an index may answer.
/// DataFusion writes short lists the other way round.
fn equalities_as_list(or: Expr) -> Expr {
    let Expr::Or(operands) = &or else { return or };
    let mut column = None;
    let mut list = Vec::with_capacity(operands.len());
    for operand in operands {
        let (this, values) = match operand {
            Expr::Compare {
                op: CompareOp::Eq,
                left,
                right,
            } => match (&**left, &**right) {
                (this @ Expr::Column(_), Expr::Literal(value)) => {
                    (this, std::slice::from_ref(&value.value))
                }
                _ => return or,
            },
            Expr::InList {
                expr,
                list,
                negated: false,
            } => (&**expr, list.as_slice()),
            _ => return or,
        };
        if **column.get_or_insert(this) != *this {
            return or;
        }
        list.extend_from_slice(values);
    }
    // Lists hold floats by their bits, `=` takes both zeros for one.
    let has_float = list.iter().any(|value| matches!(value, Scalar::Float(_)));
    match column {
        Some(column) if !has_float => Expr::InList {
            expr: Box::new(column.clone()),
            list,
            negated: false,
        },
        _ => or,
    }
}

/// `t LIKE '%a%' OR t LIKE '%b%'` as one search for several needles.
fn needles_as_list(or: Expr) -> Expr {
    let Expr::Or(operands) = &or else { return or };
    let mut text = None;
    let mut list = Vec::with_capacity(operands.len());
    for operand in operands {
        let (this, mut needles) = match operand {
            Expr::Like {
                expr,
                pattern,
                negated: false,
                case_insensitive: false,
            } => match needle_of(pattern) {
                Some(needle) => (&**expr, vec![needle]),
                None => return or,
            },
            Expr::ContainsAny { expr, needles } => (&**expr, needles.clone()),
            _ => return or,
        };
        if **text.get_or_insert(this) != *this {
            return or;
        }
        list.append(&mut needles);
    }
    match text {
        Some(text) => Expr::ContainsAny {
            expr: Box::new(text.clone()),
            needles: list,
        },
        None => or,
    }
}

/// What `LIKE '%needle%'` looks for; `None` for other patterns.
fn needle_of(pattern: &str) -> Option<String> {
    let inner = pattern.strip_prefix('%')?.strip_suffix('%')?;
    let mut needle = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '%' | '_' => return None,
            // What ends in a backslash escapes the last wildcard.
            '\\' => needle.push(chars.next()?),
            c => needle.push(c),
        }
    }
    Some(needle)
}

/// AND of all, without an AND directly below an AND.
pub fn flatten_and(operands: impl IntoIterator<Item = Expr>) -> Expr {
    let mut flat = Vec::new();
    for operand in operands {
        match operand {
            Expr::And(inner) => flat.extend(inner),
            other => flat.push(other),
        }
    }
    Expr::And(flat)
}

fn flatten_or(operands: impl IntoIterator<Item = Expr>) -> Expr {
    let mut flat = Vec::new();
    for operand in operands {
        match operand {
            Expr::Or(inner) => flat.extend(inner),
            other => flat.push(other),
        }
    }
    Expr::Or(flat)
}

/// `a IS [NOT] DISTINCT FROM constant`; two columns would need a comparison of NULLs that
/// Programs don't have.
fn translate_distinct(
    left: &dyn PhysicalExpr,
    right: &dyn PhysicalExpr,
    scope: &Scope,
    distinct: bool,
) -> Result<Expr, Reason> {
    let (expr, constant) = if right.downcast_ref::<DfLiteral>().is_some() {
        (left, right)
    } else if left.downcast_ref::<DfLiteral>().is_some() {
        (right, left)
    } else {
        return Err(Reason::Operator("IS DISTINCT FROM between columns".into()));
    };
    let is_null = Expr::IsNull(Box::new(translate(expr, scope)?));
    let value = constant.downcast_ref::<DfLiteral>().map(DfLiteral::value);
    if value.is_some_and(|v| v.is_null()) {
        return Ok(if distinct { not_expr(is_null) } else { is_null });
    }
    // FALSE AND NULL is FALSE and TRUE OR NULL is TRUE, so that a NULL operand never shows.
    Ok(if distinct {
        Expr::Or(vec![
            is_null,
            translate_compare(CompareOp::NotEq, expr, constant, scope)?,
        ])
    } else {
        Expr::And(vec![
            not_expr(is_null),
            translate_compare(CompareOp::Eq, expr, constant, scope)?,
        ])
    })
}

fn translate_compare(
    op: CompareOp,
    left: &dyn PhysicalExpr,
    right: &dyn PhysicalExpr,
    scope: &Scope,
) -> Result<Expr, Reason> {
    let (left_type, right_type) = (scope.type_of(left)?, scope.type_of(right)?);
    if left_type != right_type {
        return Err(Reason::Operator(format!(
            "comparison of {left_type} with {right_type}"
        )));
    }
    let left = translate(left, scope)?;
    let right = translate(right, scope)?;
    Ok(match (left, right) {
        (Expr::Literal(literal), expr) => compare_with_literal(mirror(op), expr, literal, scope),
        (expr, Expr::Literal(literal)) => compare_with_literal(op, expr, literal, scope),
        (left, right) => Expr::Compare {
            op,
            left: Box::new(left),
            right: Box::new(right),
        },
    })
}

/// `expr op literal`, with a widening cast taken off `expr` where the literal has an exact
/// counterpart of the narrow type: zone maps and encoded pages know only the stored type.
fn compare_with_literal(op: CompareOp, expr: Expr, literal: Literal, scope: &Scope) -> Expr {
    let (expr, literal) = match expr {
        Expr::Cast {
            expr: inner,
            data_type,
        } => match literal::narrow(&literal, &type_in_scope(&inner, scope)) {
            Some(narrow) => (*inner, narrow),
            None => (
                Expr::Cast {
                    expr: inner,
                    data_type,
                },
                literal,
            ),
        },
        other => (other, literal),
    };
    Expr::Compare {
        op,
        left: Box::new(expr),
        right: Box::new(Expr::Literal(literal)),
    }
}

/// The type of a translated expression where it is evident without the table: what stands below
/// a cast is a column in all but contrived cases.
fn type_in_scope(expr: &Expr, scope: &Scope) -> Option<DataType> {
    match expr {
        Expr::Column(_) => {
            let index = scope.columns.iter().position(|c| c.as_ref() == Ok(expr))?;
            Some(program_type(scope.schema.field(index).data_type()))
        }
        Expr::Cast { data_type, .. }
        | Expr::Arithmetic { data_type, .. }
        | Expr::Case { data_type, .. } => Some(data_type.clone()),
        Expr::Literal(literal) => Some(literal.data_type.clone()),
        _ => None,
    }
}

/// The operator with its sides exchanged.
fn mirror(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::LtEq => CompareOp::GtEq,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::GtEq => CompareOp::LtEq,
        same => same,
    }
}

fn is_number(data_type: &DataType) -> bool {
    data_type.is_integer()
        || data_type.is_floating()
        || matches!(data_type, DataType::Decimal128(..))
}

fn translate_arithmetic(
    op: ArithmeticOp,
    binary: &BinaryExpr,
    scope: &Scope,
) -> Result<Expr, Reason> {
    for side in [binary.left(), binary.right()] {
        let data_type = scope.type_of(side.as_ref())?;
        if !is_number(&data_type) {
            return Err(Reason::Type(data_type));
        }
    }
    let data_type = scope.type_of(binary)?;
    if !is_number(&data_type) {
        return Err(Reason::Type(data_type));
    }
    Ok(Expr::Arithmetic {
        op,
        left: Box::new(translate(binary.left().as_ref(), scope)?),
        right: Box::new(translate(binary.right().as_ref(), scope)?),
        data_type,
    })
}

fn translate_negative(arg: &dyn PhysicalExpr, scope: &Scope) -> Result<Expr, Reason> {
    let data_type = scope.type_of(arg)?;
    // Times minus one wraps as negation does. But it keeps the sign of a NaN, by which NaNs are
    // ordered, and a decimal product has another type than its operand.
    if !data_type.is_signed_integer() {
        return Err(Reason::Operator(format!("negation of {data_type}")));
    }
    Ok(Expr::Arithmetic {
        op: ArithmeticOp::Multiply,
        left: Box::new(translate(arg, scope)?),
        right: Box::new(Expr::Literal(Literal {
            value: Scalar::Int(-1),
            data_type: data_type.clone(),
        })),
        data_type,
    })
}

fn translate_in_list(in_list: &InListExpr, scope: &Scope) -> Result<Expr, Reason> {
    let data_type = scope.type_of(in_list.expr().as_ref())?;
    let list = in_list
        .list()
        .iter()
        .map(|item| {
            let literal = item
                .downcast_ref::<DfLiteral>()
                .ok_or_else(|| Reason::Operator("IN with a list that is not constant".into()))?;
            let item = literal::literal_of(literal.value())?;
            if item.value != Scalar::Null && item.data_type != data_type {
                return Err(Reason::Operator(format!(
                    "IN over {data_type} with {}",
                    item.data_type
                )));
            }
            Ok(item.value)
        })
        .collect::<Result<Vec<_>, Reason>>()?;
    Ok(Expr::InList {
        expr: Box::new(translate(in_list.expr().as_ref(), scope)?),
        list,
        negated: in_list.negated(),
    })
}

fn translate_case(case: &CaseExpr, scope: &Scope) -> Result<Expr, Reason> {
    let data_type = scope.type_of(case)?;
    let value = |expr: &dyn PhysicalExpr| -> Result<Expr, Reason> {
        let found = scope.type_of(expr)?;
        if found == data_type {
            translate(expr, scope)
        } else if found == DataType::Null {
            Ok(Expr::Literal(Literal {
                value: Scalar::Null,
                data_type: data_type.clone(),
            }))
        } else {
            Err(Reason::Operator(format!(
                "CASE of {data_type} with a branch of {found}"
            )))
        }
    };
    let branches = case
        .when_then_expr()
        .iter()
        .map(|(when, then)| {
            let condition = match case.expr() {
                Some(base) if !is_true(base.as_ref()) => {
                    translate_compare(CompareOp::Eq, base.as_ref(), when.as_ref(), scope)?
                }
                _ => {
                    require_boolean(when.as_ref(), scope)?;
                    translate(when.as_ref(), scope)?
                }
            };
            Ok((condition, value(then.as_ref())?))
        })
        .collect::<Result<Vec<_>, Reason>>()?;
    let otherwise = case
        .else_expr()
        .map(|e| value(e.as_ref()))
        .transpose()?
        .map(Box::new);
    Ok(Expr::Case {
        branches,
        otherwise,
        data_type,
    })
}

fn is_true(expr: &dyn PhysicalExpr) -> bool {
    let literal = expr.downcast_ref::<DfLiteral>();
    literal.is_some_and(|l| *l.value() == ScalarValue::Boolean(Some(true)))
}

fn translate_cast(arg: &dyn PhysicalExpr, to: &DataType, scope: &Scope) -> Result<Expr, Reason> {
    let (from, to) = (scope.type_of(arg)?, program_type(to));
    if from == to {
        return translate(arg, scope);
    }
    if !is_widening_cast(&from, &to) {
        return Err(Reason::Cast(from, to));
    }
    Ok(Expr::Cast {
        expr: Box::new(translate(arg, scope)?),
        data_type: to,
    })
}

/// A predicate that is TRUE wherever `expr` is TRUE, for a predicate that does not translate
/// whole: conjuncts that don't translate are left out, and each side of an OR must keep
/// something. `None` when nothing remains.
pub fn weaken(expr: &dyn PhysicalExpr, scope: &Scope) -> Option<Expr> {
    if let Ok(exact) = translate(expr, scope) {
        return Some(exact);
    }
    let binary = expr.downcast_ref::<BinaryExpr>()?;
    let (left, right) = (
        weaken(binary.left().as_ref(), scope),
        weaken(binary.right().as_ref(), scope),
    );
    match binary.op() {
        Operator::And => match (left, right) {
            (Some(left), Some(right)) => Some(flatten_and([left, right])),
            (one, other) => one.or(other),
        },
        Operator::Or => Some(flatten_or([left?, right?])),
        _ => None,
    }
}

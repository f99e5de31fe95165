//! Numbers with more digits than a DOUBLE has, which is what DataFusion reads a number with a fraction as:
//! where one is the value for a column it is written as text, of which the column's type takes all digits.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Assignment, Expr, MergeAction, MergeInsertKind, OnConflictAction, OnInsert, Query, SetExpr,
    Statement, UnaryOperator, Value, Values, VisitorMut,
};

/// Digits that each DOUBLE keeps.
const DOUBLE_DIGITS: usize = 15;

/// Has INSERT, UPDATE and MERGE take numbers with all of their digits.
pub(crate) struct Correct;

impl VisitorMut for Correct {
    type Break = ();

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<()> {
        match statement {
            Statement::Insert(insert) => {
                if let Some(Query { body, .. }) = insert.source.as_deref_mut()
                    && let SetExpr::Values(values) = body.as_mut()
                {
                    in_values(values);
                }
                if let Some(OnInsert::OnConflict(conflict)) = &mut insert.on
                    && let OnConflictAction::DoUpdate(update) = &mut conflict.action
                {
                    in_assignments(&mut update.assignments);
                }
            }
            Statement::Update(update) => in_assignments(&mut update.assignments),
            Statement::Merge(merge) => {
                for clause in &mut merge.clauses {
                    match &mut clause.action {
                        MergeAction::Insert(insert) => {
                            if let MergeInsertKind::Values(values) = &mut insert.kind {
                                in_values(values);
                            }
                        }
                        MergeAction::Update(update) => in_assignments(&mut update.assignments),
                        MergeAction::Delete { .. } => {}
                    }
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn in_values(values: &mut Values) {
    let rows = values.rows.iter_mut();
    rows.flat_map(|row| &mut row.content)
        .for_each(with_all_digits);
}

fn in_assignments(assignments: &mut [Assignment]) {
    let values = assignments.iter_mut().map(|set| &mut set.value);
    values.for_each(with_all_digits);
}

fn with_all_digits(value: &mut Expr) {
    let number = |expr: &Expr| match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) if is_long(text) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    };
    let text = match &*value {
        Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr,
        } => number(expr).map(|text| format!("-{text}")),
        other => number(other),
    };
    if let Some(text) = text {
        *value = Expr::value(Value::SingleQuotedString(text));
    }
}

fn is_long(number: &str) -> bool {
    let digits = number.bytes().filter(u8::is_ascii_digit);
    let digits = digits.skip_while(|digit| *digit == b'0').count();
    let is_plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    is_plain && number.contains('.') && digits > DOUBLE_DIGITS
}

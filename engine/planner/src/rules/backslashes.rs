//! Regular expressions that DataFusion makes something else of than they are.
//!
//! Of one that is a plain text it makes LIKE, and does not write its backslashes for that, where each takes the next
//! character for itself: `s ~ '\\'` finds the texts that are `%`. Of `s ~ '.*'` it makes `s IS NOT NULL`, which is
//! FALSE of NULL.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};
use datafusion::optimizer::AnalyzerRule;
use regex_syntax::hir::{Hir, HirKind};

use crate::tree::change_parts;
use crate::walk::Walk as _;

/// Functions that say whether a text has a match.
const TESTS: [&str; 3] = ["regexp_like", "regexp_matches", "regexp_full_match"];

/// Keeps those regular expressions from becoming LIKE.
#[derive(Debug)]
pub struct LiteralBackslashes;

impl AnalyzerRule for LiteralBackslashes {
    fn name(&self) -> &str {
        "flashmesh_literal_backslashes"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| pattern_of(expr).is_some();
        change_parts(plan, is_one, |expr, _| expr.transform_up(grouped))
    }
}

/// The constant pattern of a test.
fn pattern_of(expr: &Expr) -> Option<&ScalarValue> {
    let pattern = match expr {
        Expr::BinaryExpr(BinaryExpr { op, right, .. }) if is_regex(*op) => right.as_ref(),
        Expr::ScalarFunction(call) if TESTS.contains(&call.name()) => call.args.get(1)?,
        _ => return None,
    };
    match pattern {
        // To the type of the text.
        Expr::Cast(cast) => cast.expr.as_literal(),
        plain => plain.as_literal(),
    }
}

fn is_regex(op: Operator) -> bool {
    use Operator::{RegexIMatch, RegexMatch, RegexNotIMatch, RegexNotMatch};
    matches!(
        op,
        RegexMatch | RegexIMatch | RegexNotMatch | RegexNotIMatch
    )
}

/// The test with its pattern in a group, which DataFusion leaves as it is.
fn grouped(mut expr: Expr) -> Result<Transformed<Expr>> {
    let pattern = pattern_of(&expr).and_then(|pattern| pattern.try_as_str().flatten());
    let hir = pattern.and_then(|pattern| regex_syntax::Parser::new().parse(pattern).ok());
    let takes_all = pattern == Some(".*");
    let Some(hir) = hir.filter(|hir| takes_all || has_backslash(hir)) else {
        return Ok(Transformed::no(expr));
    };
    let pattern = Expr::Literal(ScalarValue::Utf8(Some(format!("({hir})"))), None);
    match &mut expr {
        Expr::BinaryExpr(test) => *test.right = pattern,
        Expr::ScalarFunction(call) => call.args[1] = pattern,
        _ => return Ok(Transformed::no(expr)),
    }
    Ok(Transformed::yes(expr))
}

/// The parser bounds how deep it goes.
fn has_backslash(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => literal.0.contains(&b'\\'),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(has_backslash),
        HirKind::Capture(capture) => has_backslash(&capture.sub),
        HirKind::Repetition(repetition) => has_backslash(&repetition.sub),
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

//! `FROM orders WHERE …`, without SELECT: all columns, where the parser ends behind the tables and
//! DataFusion would give none.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Query, Select, SelectFlavor, SelectItem, SetExpr, VisitorMut, WildcardAdditionalOptions,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Has every FROM without SELECT give all columns.
pub(crate) struct Correct;

impl VisitorMut for Correct {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        correct_body(&mut query.body);
        ControlFlow::Continue(())
    }
}

/// The parts of a set operation are no queries of their own.
fn correct_body(body: &mut SetExpr) {
    match body {
        SetExpr::Select(select) => correct_select(select),
        SetExpr::SetOperation { left, right, .. } => {
            correct_body(left);
            correct_body(right);
        }
        _ => {}
    }
}

fn correct_select(select: &mut Select) {
    if select.flavor == SelectFlavor::FromFirstNoSelect {
        select.flavor = SelectFlavor::Standard;
        let options = WildcardAdditionalOptions::default();
        select.projection = vec![SelectItem::Wildcard(options)];
    }
}

/// Where in a text that can't be parsed `SELECT *` is missing in front of FROM, from the last to the first.
pub(crate) fn without_select(tokens: &[TokenWithSpan]) -> Vec<usize> {
    let mut missing = Vec::new();
    // What is open, the statement first.
    let mut open = vec![Part::at(0)];
    for (place, token) in tokens.iter().enumerate() {
        let is_inner = open.len() > 1;
        let part = open.last_mut().expect("a statement is always open");
        match &token.token {
            Token::LParen => open.push(Part::at(place + 1)),
            // One that nothing has opened is the parser's to tell.
            Token::RParen if is_inner => missing.extend(open.pop().and_then(|ended| ended.lacks)),
            Token::SemiColon => {
                missing.extend(open.drain(..).filter_map(|ended| ended.lacks));
                open.push(Part::at(place + 1));
            }
            Token::Word(word) if word.quote_style.is_none() => match word.keyword {
                Keyword::FROM if !part.has_begun => {
                    part.has_begun = true;
                    let may_begin = part.may_begin_with(place, tokens, is_inner);
                    part.lacks = may_begin.then_some(place);
                }
                Keyword::SELECT => {
                    part.has_begun = true;
                    part.lacks = None;
                }
                Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT => {
                    missing.extend(part.lacks);
                    *part = Part::at(place + 1);
                }
                // Behind WITH, too.
                Keyword::DELETE => part.has_begun = true,
                _ => {}
            },
            _ => {}
        }
    }
    missing.extend(open.into_iter().filter_map(|ended| ended.lacks));
    missing.sort_unstable_by(|a, b| b.cmp(a));
    missing
}

/// What has been read of a statement, of what stands in parentheses, or of a side of a set operation.
struct Part {
    start: usize,
    /// A FROM from here on is none that it begins with.
    has_begun: bool,
    /// The FROM that it begins with, as long as no SELECT has come behind.
    lacks: Option<usize>,
}

impl Part {
    fn at(start: usize) -> Self {
        Self {
            start,
            has_begun: false,
            lacks: None,
        }
    }

    /// Whether FROM at a place begins a query. It is a word of functions, too (`extract(year FROM d)`), and of
    /// statements (`DELETE FROM t`, `REVOKE READ FROM u`).
    fn may_begin_with(&self, place: usize, tokens: &[TokenWithSpan], is_inner: bool) -> bool {
        let keyword = |token: &TokenWithSpan| match &token.token {
            Token::Word(word) => word.keyword,
            _ => Keyword::NoKeyword,
        };
        let mut before = tokens[self.start..place].iter().map(keyword).peekable();
        match before.peek().copied() {
            Some(Keyword::WITH) => true,
            Some(
                Keyword::CREATE
                | Keyword::DESCRIBE
                | Keyword::EXPLAIN
                | Keyword::INSERT
                | Keyword::PREPARE,
            ) => !is_inner,
            // Of set operations, if there is any.
            _ => before.all(|word| {
                matches!(
                    word,
                    Keyword::ALL | Keyword::DISTINCT | Keyword::BY | Keyword::NAME
                )
            }),
        }
    }
}

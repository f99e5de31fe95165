//! `SELECT upper(c), upper(c)`: several columns of one name, which DataFusion refuses. They get
//! names of their own while the query is planned, and so do casts, which are called as what is cast; the result
//! has those that were asked for.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, TableReference};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    self, CastKind, Ident, Select, SelectItem, SetExpr, Statement, TableFactor, Value, Visitor,
    VisitorMut,
};
use flashmesh_planner::named_casts::{self, has_marks, plain_name, without_marks};
use flashmesh_planner::walk::Walk as _;

use crate::called_columns::call_column;
use crate::capitals::{has_any, write_capitals};
use crate::clauses::{self, OfOuter};
use crate::error::Result;
use crate::reused_aliases::{missing, write_out};
use crate::walk::{walk, walk_mut, walk_statement};

/// How many aliases of a statement are written out where it uses them.
const MOST_ALIASES: usize = 64;

/// What DataFusion says of columns of one name: in a SELECT list, of aggregates, in the sides of EXCEPT and
/// INTERSECT; and of a cast that has the name of another column.
const REFUSALS: [&str; 5] = [
    "unique expression names",
    "which would be ambiguous",
    "Ambiguous reference to unqualified field",
    "contains duplicate unqualified field name",
    "must appear in select list",
];

/// Plans a statement.
pub(crate) async fn plan(
    state: &SessionState,
    mut statement: ParsedStatement,
) -> Result<LogicalPlan> {
    let mut of_outer = OfOuter::new(&state.config_options().catalog.default_schema);
    let ControlFlow::Continue(()) = walk_statement(&mut statement, &mut of_outer);
    let mut again = statement.clone();
    let mut planned = state.statement_to_plan(statement).await;
    let mut capitals = Vec::new();
    let mut refused = None;
    for _ in 0..MOST_ALIASES {
        let Some(error) = planned.as_ref().err() else {
            break;
        };
        let is_said_otherwise = match missing(error) {
            Some(name) => write_out(&mut again, &name, state) || call_column(&mut again, &name),
            None => false,
        };
        if !is_said_otherwise {
            let Some(name) = write_capitals(&mut again, error) else {
                break;
            };
            capitals.push(name);
        }
        let replanned = state.statement_to_plan(again.clone()).await;
        let before = std::mem::replace(&mut planned, replanned);
        refused = refused.or_else(|| before.err().filter(|_| !is_said_otherwise));
    }
    if let (Ok(plan), Some(error)) = (&planned, refused)
        && has_any(plan, &capitals)?
    {
        return Err(error.into());
    }
    let has_twins = match &planned {
        Ok(plan) => groups_by_twins(plan)?,
        Err(error) => REFUSALS.iter().any(|why| error.message().contains(why)),
    };
    let Some((statement, wanted)) = has_twins.then(|| with_own_names(again)).flatten() else {
        return Ok(planned?);
    };
    match state.statement_to_plan(statement).await {
        Ok(plan) => Ok(finished(without_marks(plan)?, &wanted)?),
        Err(error) if planned.is_err() && !has_marks(&error.message()) => Err(error.into()),
        // Not in names that nobody has written.
        Err(_) => Ok(planned?),
    }
}

/// Whether a plan groups by two keys of one name, a column and a cast of it, over which its optimizer fails.
fn groups_by_twins(plan: &LogicalPlan) -> Planned<bool> {
    plan.exists(|node| {
        let LogicalPlan::Aggregate(aggregate) = node else {
            return Ok(false);
        };
        let keys = aggregate.group_expr.iter();
        let mut names = HashSet::new();
        let mut names_of_keys = keys.map(|key| key.schema_name().to_string());
        Ok(names_of_keys.any(|name| !names.insert(name)))
    })
}

/// The names that columns of the result are to have, by those that they have.
type Wanted = HashMap<String, Name>;

enum Name {
    Known(String),
    /// That of the column at a position.
    Of(usize),
}

/// The statement with different names for the columns of each SELECT, and the names that the
/// result is to have, which only queries and EXPLAIN have.
fn with_own_names(statement: ParsedStatement) -> Option<(ParsedStatement, Wanted)> {
    match statement {
        ParsedStatement::Explain(mut explain) => {
            (*explain.statement, _) = with_own_names(*explain.statement)?;
            Some((ParsedStatement::Explain(explain), Wanted::new()))
        }
        ParsedStatement::Statement(statement) if is_kept(&statement) => None,
        mut statement => {
            let mut wanted = Wanted::new();
            if let ParsedStatement::Statement(inner) = &mut statement {
                if let Statement::Query(query) = inner.as_mut()
                    && let Some(select) = clauses::first_select(&mut query.body)
                {
                    wanted = rename(select);
                }
                // Elsewhere the names are those of columns that are made.
                if let Statement::Query(_) | Statement::Insert(_) | Statement::Explain { .. } =
                    inner.as_ref()
                {
                    let _ = walk_mut(inner, &mut Rename);
                }
            }
            let ControlFlow::Continue(()) = walk_statement(&mut statement, &mut NameCasts);
            Some((statement, wanted))
        }
    }
}

type Planned<T = LogicalPlan> = std::result::Result<T, DataFusionError>;

/// Whether the text of a statement is kept.
fn is_kept(statement: &Statement) -> bool {
    matches!(statement, Statement::CreateView(_))
}

/// The plan with the names that were asked for, of the result or of what is made of its input.
fn finished(plan: LogicalPlan, wanted: &Wanted) -> Planned {
    match plan {
        LogicalPlan::Ddl(_) | LogicalPlan::Copy(_) => {
            let renamed = |input| with_wanted_names(input, wanted).map(Transformed::yes);
            plan.map_children(renamed).map(|plan| plan.data)
        }
        query => with_wanted_names(query, wanted),
    }
}

struct Rename;

impl VisitorMut for Rename {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        rename(select);
        ControlFlow::Continue(())
    }
}

/// Puts the function around casts by whose name they are told apart ([`flashmesh_planner::named_casts`]).
struct NameCasts;

impl VisitorMut for NameCasts {
    type Break = Infallible;

    fn post_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<Infallible> {
        if let ast::Expr::Cast {
            kind, data_type, ..
        } = expr
        {
            let is_try = matches!(kind, CastKind::TryCast | CastKind::SafeCast);
            let apart = format!("{}{data_type}", if is_try { "TRY " } else { "" });
            let cast = std::mem::replace(expr, ast::Expr::value(Value::Null));
            let apart = ast::Expr::value(Value::SingleQuotedString(apart));
            *expr = clauses::call(Ident::with_quote('"', named_casts::NAME), vec![cast, apart]);
        }
        ControlFlow::Continue(())
    }
}

/// Gives a name to each column that has that of one before it, or may have that of one that a
/// wildcard stands for.
fn rename(select: &mut Select) -> Wanted {
    let is_wildcard = |item: &SelectItem| {
        matches!(
            item,
            SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..)
        )
    };
    let wildcard = select.projection.iter().position(is_wildcard);
    let mut taken: HashSet<String> = select.projection.iter().map(name_of).collect();
    let mut before: Vec<Called> = Vec::new();
    let mut wanted = Wanted::new();
    for item in &mut select.projection {
        let called = called(item);
        let twin = before.iter().position(|other| other.is_twin_of(&called));
        let is_column = column(item).is_some();
        let is_cast = called.cast_of.is_some();
        let name = called.name.clone();
        before.push(called);
        let (expr, name) = match item {
            // What DataFusion calls an expression is seen where its twin is.
            SelectItem::UnnamedExpr(expr) if !is_column => match twin {
                Some(twin) if wildcard.is_none_or(|wildcard| twin < wildcard) => {
                    (expr, Name::Of(twin))
                }
                Some(_) => (expr, Name::Known(name)),
                // A cast is called as its column is, which the wildcard may stand for.
                None if is_cast && wildcard.is_some() => (expr, Name::Known(name)),
                // A subquery is called as its column, which one of the query around it may be, too.
                None if let Some(column) = column_of_subquery(expr) => (expr, Name::Known(column)),
                None => continue,
            },
            SelectItem::UnnamedExpr(expr) if twin.is_some() || wildcard.is_some() => {
                (expr, Name::Known(name))
            }
            // One that the wildcard stands for may have that name, too.
            SelectItem::ExprWithAlias { expr, alias }
                if twin.is_some() || wildcard.is_some() && !is_own(&alias.value) =>
            {
                (expr, Name::Known(name))
            }
            _ => continue,
        };
        let alias = free(&before.last().expect("was pushed").name, &mut taken);
        wanted.insert(alias.value.clone(), name);
        *item = SelectItem::ExprWithAlias {
            expr: expr.clone(),
            alias,
        };
    }
    wanted
}

/// What a column of the result is called.
struct Called {
    name: String,
    /// Of a column within a cast: the relation that the text says it is of, if it says one.
    cast_of: Option<Option<String>>,
}

impl Called {
    fn is_twin_of(&self, other: &Self) -> bool {
        let are_of_two = match (&self.cast_of, &other.cast_of) {
            (Some(Some(one)), Some(Some(other))) => one != other,
            _ => false,
        };
        self.name == other.name && !are_of_two
    }
}

/// What a column of the result is called, as far as the text says it: as if it had no casts.
fn called(item: &SelectItem) -> Called {
    let is_column = column(item).is_some();
    let mut item = item.clone();
    if let SelectItem::UnnamedExpr(expr) = &mut item {
        let _ = walk_mut(expr, &mut WithoutCasts);
        while let ast::Expr::Nested(inner) = expr {
            *expr = inner.as_ref().clone();
        }
    }
    let cast_of = match &item {
        _ if is_column || column(&item).is_none() => None,
        SelectItem::UnnamedExpr(ast::Expr::CompoundIdentifier(parts)) => {
            let relation = parts[..parts.len() - 1].iter().cloned();
            let relation = relation.map(|part| IdentNormalizer::default().normalize(part));
            Some(Some(relation.collect::<Vec<_>>().join(".")))
        }
        _ => Some(None),
    };
    let name = match (&item, column(&item)) {
        (SelectItem::ExprWithAlias { alias, .. }, _) => {
            IdentNormalizer::default().normalize(alias.clone())
        }
        (_, Some(column)) => IdentNormalizer::default().normalize(column.clone()),
        (SelectItem::UnnamedExpr(ast::Expr::Subquery(query)), None) => {
            name_of_subquery(&query.body).unwrap_or_else(|| item.to_string())
        }
        (item, None) => item.to_string(),
    };
    Called { name, cast_of }
}

fn name_of(item: &SelectItem) -> String {
    called(item).name
}

/// A subquery is called as its column is. That says its tables, unless it names none of their columns, as
/// `count(*)`, or has a name of its own, but not which of their rows or which versions of them are meant.
/// `None` for one of other things than tables.
fn name_of_subquery(body: &SetExpr) -> Option<String> {
    match body {
        SetExpr::Select(select) => {
            let [item] = select.projection.as_slice() else {
                return None;
            };
            let says_tables = match item {
                SelectItem::UnnamedExpr(expr) => walk(expr, &mut NamesColumn).is_break(),
                SelectItem::ExprWithAlias { .. } => false,
                _ => true,
            };
            if !says_tables {
                return Some(name_of(item));
            }
            let tables = select.from.iter().map(|from| match &from.relation {
                TableFactor::Table { name, alias, .. } if from.joins.is_empty() => {
                    let alias = alias.as_ref().map(|alias| alias.to_string());
                    Some(format!("{name} {}", alias.unwrap_or_default()))
                }
                _ => None,
            });
            let tables = tables.collect::<Option<Vec<_>>>()?.join(", ");
            Some(format!("({} FROM {tables})", name_of(item)))
        }
        SetExpr::Query(query) => name_of_subquery(&query.body),
        _ => None,
    }
}

/// What the one column of a subquery is called, where it is a column.
fn column_of_subquery(expr: &ast::Expr) -> Option<String> {
    let ast::Expr::Subquery(query) = expr else {
        return None;
    };
    let SetExpr::Select(select) = query.body.as_ref() else {
        return None;
    };
    match select.projection.as_slice() {
        [item] => Some(IdentNormalizer::default().normalize(column(item)?.clone())),
        _ => None,
    }
}

/// Leaves of a cast what is cast.
struct WithoutCasts;

impl VisitorMut for WithoutCasts {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
        match expr {
            ast::Expr::Cast { expr: inner, .. } => {
                let inner = inner.as_ref().clone();
                *expr = match inner {
                    ast::Expr::BinaryOp { .. } | ast::Expr::UnaryOp { .. } => {
                        ast::Expr::Nested(Box::new(inner))
                    }
                    inner => inner,
                };
            }
            ast::Expr::TypedString(typed) => *expr = ast::Expr::Value(typed.value.clone()),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Ends where an expression names a column, or may.
struct NamesColumn;

impl Visitor for NamesColumn {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
        match expr {
            ast::Expr::Identifier(_)
            | ast::Expr::CompoundIdentifier(_)
            | ast::Expr::Subquery(_)
            | ast::Expr::Exists { .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// The column that an item is.
fn column(item: &SelectItem) -> Option<&Ident> {
    match item {
        SelectItem::UnnamedExpr(ast::Expr::Identifier(name)) => Some(name),
        SelectItem::UnnamedExpr(ast::Expr::CompoundIdentifier(parts)) => parts.last(),
        _ => None,
    }
}

fn free(name: &str, taken: &mut HashSet<String>) -> Ident {
    let mut numbered = (1..).map(|number| format!("{name}:{number}"));
    let free = numbered.find(|name| taken.insert(name.clone()));
    Ident::with_quote('"', free.expect("there is always another number"))
}

/// Whether [`free`] has made a name: a SELECT may be gone through twice.
fn is_own(name: &str) -> bool {
    let number = name.rsplit_once(':').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The result with the names that were asked for, each that is there twice in a relation of its
/// own: names without one would have to differ.
fn with_wanted_names(plan: LogicalPlan, wanted: &Wanted) -> Planned {
    let columns = plan.schema().columns();
    if wanted.is_empty() && !columns.iter().any(|column| has_marks(&column.name)) {
        return Ok(plan);
    }
    let name_of = |column: &Column| match wanted.get(column.name()) {
        Some(Name::Known(name)) => name.clone(),
        Some(Name::Of(position)) => plain_name(&columns[*position].name),
        None => plain_name(&column.name),
    };
    let names: Vec<_> = columns.iter().map(name_of).collect();
    let named = columns.iter().zip(&names).map(|(column, name)| {
        let value = Expr::Column(column.clone());
        match names.iter().filter(|other| *other == name).count() {
            1 => value,
            _ => value.alias_qualified(Some(TableReference::bare(column.name())), name),
        }
    });
    let named: Vec<_> = named.collect();
    LogicalPlanBuilder::from(plan).project(named)?.build()
}

//! `COLUMNS('regex')`, `COLUMNS(*)`, `* RENAME (a AS b)` and `* REPLACE (f(a) AS a)` in a SELECT list: the columns are
//! looked up and written out before the statement is planned. So are those of `* EXCLUDE (a)` where tables are joined
//! by USING, whose columns are ambiguous to the planner, and of `count(t.*)` over an outer join, which counts the rows
//! that have one of `t`: the planner counts all.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::common::DFSchema;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, Cte, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident,
    JoinOperator, ObjectName, Query, RenameSelectItem, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, TableWithJoins, Value, VisitorMut,
    WildcardAdditionalOptions, With,
};
use regex::Regex;

use crate::Session;
use crate::asked_first::{Pending, first};
use crate::clauses::{
    self, arguments_of_columns, call, has_join, has_table, joins_by_keys, order_by_places,
    write_out_keys,
};
use crate::error::{Error, Result};
use crate::names::quoted_text;
use crate::parameters::Values;
use crate::walk::{visit_expressions, visit_expressions_mut, walk_mut, walk_statement};

/// What one COLUMNS stands for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wanted {
    /// All but those.
    All(Vec<ObjectName>),
    /// Those of a table but those.
    Of(ObjectName, Vec<ObjectName>),
    /// Those in whose names it is found.
    Matching(String),
    /// Those of these names.
    Named(Vec<String>),
}

/// A column, as it is written and called.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub expr: Expr,
    table: Option<String>,
    pub name: String,
}

impl Column {
    /// Whether a name that was written is meant to be that of the column, of all that there are.
    fn is_called(&self, name: &ObjectName, all: &[Self]) -> bool {
        let mut parts = name.0.iter().rev().map(|part| part.as_ident());
        let Some(Some(own)) = parts.next() else {
            return false;
        };
        let is_of = |table: &Ident| {
            self.table
                .as_ref()
                .is_some_and(|known| known.eq_ignore_ascii_case(&table.value))
        };
        self.is_named(own, all) && parts.next().is_none_or(|table| table.is_some_and(is_of))
    }

    /// The same of a name without a table. Without quotes it is also that of a column with capitals, if no other has it.
    pub fn is_named(&self, written: &Ident, all: &[Self]) -> bool {
        let is_exact = |column: &Self| column.name == written.value;
        match written.quote_style.is_some() || all.iter().any(is_exact) {
            true => is_exact(self),
            false => self.name.eq_ignore_ascii_case(&written.value),
        }
    }
}

/// What marks a star that the planner is to write out.
const LEFT: &str = "flashmesh:left";

impl Session {
    /// Writes columns out where a SELECT list asks for them by COLUMNS and the like.
    ///
    /// # Errors
    /// [`Error::Usage`] where there are none, and for COLUMNS elsewhere; those of planning FROM.
    pub(crate) async fn write_out_columns(
        &self,
        statement: &mut ParsedStatement,
        variables: &Values,
    ) -> Result<()> {
        if !is_there(statement) {
            return Ok(());
        }
        while let Some((scopes, Asking(mut select))) = first(statement) {
            self.count_rows(&scopes, &mut select, variables).await;
            select.projection = self.written_out(scopes, &select, variables).await?;
            write_out_keys(&mut select)?;
            let _ = walk_statement(statement, &mut Replace(Some(select)));
        }
        let ControlFlow::Continue(()) = walk_statement(statement, &mut Places);
        let is_there = is_there(statement);
        let ControlFlow::Continue(()) = walk_statement(statement, &mut Unmark);
        match is_there {
            false => Ok(()),
            true => Err(Error::usage(
                "COLUMNS stands in a SELECT list alone; name the columns elsewhere",
            )),
        }
    }

    /// Has `count(t.*)` count the rows that have one of `t`; all, as the planner does, where FROM can't be planned by
    /// itself.
    async fn count_rows(&self, scopes: &[With], select: &mut Select, variables: &Values) {
        let mut known = HashMap::new();
        for table in counted(select) {
            let of = Wanted::Of(table.clone(), Vec::new());
            let columns = self.columns_of(scopes, select, &of, variables).await;
            let all = FunctionArgExpr::Wildcard;
            known.insert(table, columns.map_or(all, |columns| has_row(&columns)));
        }
        visit_counts(select, |table| known.get(table).cloned());
    }

    /// The items of a SELECT list, which may be more then.
    async fn written_out(
        &self,
        scopes: Vec<With>,
        select: &Select,
        variables: &Values,
    ) -> Result<Vec<SelectItem>> {
        let mut items = Vec::with_capacity(select.projection.len());
        for item in &select.projection {
            match item {
                SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options)
                    if is_starred(item, &select.from) =>
                {
                    let excluded = excluded(options);
                    let wanted = match item {
                        SelectItem::QualifiedWildcard(
                            SelectItemQualifiedWildcardKind::ObjectName(table),
                            _,
                        ) => Wanted::Of(table.clone(), excluded),
                        _ => Wanted::All(excluded),
                    };
                    let columns = self.columns_of(&scopes, select, &wanted, variables).await;
                    match columns {
                        Ok(columns) => items.extend(said(columns, options)?),
                        Err(error) if options.opt_rename.is_some() => return Err(error),
                        // FROM can't be planned by itself where it uses columns of a query around.
                        Err(_) => items.push(left(item)),
                    }
                }
                SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                    let Some(wanted) = wanted(expr)? else {
                        items.push(item.clone());
                        continue;
                    };
                    let alias = match item {
                        SelectItem::ExprWithAlias { alias, .. } => Some(alias),
                        _ => None,
                    };
                    let columns = self.columns_of(&scopes, select, &wanted, variables).await?;
                    let pattern = wanted.regex()?;
                    for column in columns {
                        let alias = alias_of(pattern.as_ref(), &column, alias);
                        let expr = with_column(expr.clone(), &column);
                        items.push(SelectItem::ExprWithAlias { expr, alias });
                    }
                }
                other => items.push(other.clone()),
            }
        }
        Ok(items)
    }

    /// The columns of a SELECT's FROM that are wanted.
    ///
    /// # Errors
    /// [`Error::Usage`] where there are none that are named; those of planning FROM.
    pub(crate) async fn columns_of(
        &self,
        scopes: &[With],
        select: &Select,
        wanted: &Wanted,
        variables: &Values,
    ) -> Result<Vec<Column>> {
        let table = match wanted {
            Wanted::Of(table, _) => format!("{table}.*"),
            _ => "*".to_owned(),
        };
        let parsed = self.parse(&format!("SELECT {table} FROM nothing"))?.pop();
        let Some(ParsedStatement::Statement(mut statement)) = parsed else {
            return Err(Error::usage("COLUMNS without a query"));
        };
        if let ast::Statement::Query(query) = statement.as_mut()
            && let ast::SetExpr::Select(probe) = query.body.as_mut()
        {
            probe.from.clone_from(&select.from);
            query.with = merged(&without_asking(scopes));
        }
        let statement = ParsedStatement::Statement(statement);
        let plan = Box::pin(self.plan_in(statement, variables)).await?;
        let mut all = columns(plan.schema(), matches!(wanted, Wanted::Of(..)));
        if let Wanted::All(excluded) | Wanted::Of(_, excluded) = wanted {
            for name in excluded {
                check_there("EXCLUDE", name, &all)?;
            }
            let known = all.clone();
            all.retain(|column| !excluded.iter().any(|name| column.is_called(name, &known)));
        }
        if let Wanted::Named(names) = wanted
            && let Some(missing) = names.iter().find(|n| all.iter().all(|of| of.name != **n))
        {
            return Err(Error::usage(format!(
                "COLUMNS asks for '{missing}', which is not there"
            )));
        }
        let pattern = wanted.regex()?;
        let is_wanted = |column: &Column| match (wanted, &pattern) {
            (Wanted::Named(names), _) => names.contains(&column.name),
            (_, Some(pattern)) => pattern.is_match(&column.name),
            _ => true,
        };
        let found: Vec<_> = all.into_iter().filter(is_wanted).collect();
        let columns = plan
            .schema()
            .columns()
            .into_iter()
            .map(|column| column.name);
        let is_star = matches!(wanted, Wanted::All(_) | Wanted::Of(..));
        match found.is_empty() && !is_star {
            false => Ok(found),
            true => Err(Error::usage(format!(
                "COLUMNS finds none; there are: {}",
                columns.collect::<Vec<_>>().join(", ")
            ))),
        }
    }
}

impl Wanted {
    /// What names have to match, if that is said.
    fn regex(&self) -> Result<Option<Regex>> {
        let Self::Matching(pattern) = self else {
            return Ok(None);
        };
        let regex = Regex::new(pattern);
        let wrong = |error| Error::usage(format!("COLUMNS('{pattern}'): {error}"));
        regex.map(Some).map_err(wrong)
    }
}

/// The columns of a schema, with the table where several have one name, or everywhere.
fn columns(schema: &DFSchema, has_tables: bool) -> Vec<Column> {
    let mut names = HashSet::new();
    let fields = schema.fields().iter();
    let twice: HashSet<_> = fields.filter(|f| !names.insert(f.name())).collect();
    let twice: HashSet<_> = twice.into_iter().map(|field| field.name()).collect();
    let columns = schema.iter().map(|(table, field)| {
        let quoted = |name: &str| Ident::with_quote('"', name);
        let name = quoted(field.name());
        let expr = match table {
            Some(table) if has_tables || twice.contains(field.name()) => {
                let mut parts: Vec<_> = table.to_vec().iter().map(|part| quoted(part)).collect();
                parts.push(name);
                Expr::CompoundIdentifier(parts)
            }
            _ => Expr::Identifier(name),
        };
        Column {
            expr,
            table: table.map(|table| table.table().to_owned()),
            name: field.name().clone(),
        }
    });
    columns.collect()
}

/// What EXCLUDE and EXCEPT name.
fn excluded(options: &WildcardAdditionalOptions) -> Vec<ObjectName> {
    let mut names = clauses::excluded(options).to_vec();
    if let Some(except) = &options.opt_except {
        let others = std::iter::once(&except.first_element).chain(&except.additional_elements);
        names.extend(others.map(|name| ObjectName::from(vec![name.clone()])));
    }
    names
}

/// # Errors
/// [`Error::Usage`] where no column has the name.
fn check_there(clause: &str, name: &ObjectName, columns: &[Column]) -> Result<()> {
    if columns.iter().any(|column| column.is_called(name, columns)) {
        return Ok(());
    }
    let names = columns.iter().map(|column| column.name.as_str());
    Err(Error::usage(format!(
        "{clause} names '{name}', which is not there; there are: {}",
        names.collect::<Vec<_>>().join(", ")
    )))
}

/// Columns as REPLACE computes them and RENAME calls them. A name in RENAME that none has is passed over, as in DuckDB.
///
/// # Errors
/// [`Error::Usage`] for a name in REPLACE that none has.
fn said(columns: Vec<Column>, options: &WildcardAdditionalOptions) -> Result<Vec<SelectItem>> {
    let names = match &options.opt_rename {
        Some(RenameSelectItem::Single(name)) => std::slice::from_ref(name),
        Some(RenameSelectItem::Multiple(names)) => names.as_slice(),
        None => &[],
    };
    let replaced = options.opt_replace.iter();
    let replaced: Vec<_> = replaced.flat_map(|replaced| &replaced.items).collect();
    for item in &replaced {
        let name = ObjectName::from(vec![item.column_name.clone()]);
        check_there("REPLACE", &name, &columns)?;
    }
    let items = columns.iter().map(|column| {
        let mut computed = replaced.iter();
        let computed = computed.find(|item| column.is_named(&item.column_name, &columns));
        let mut names = names.iter();
        let alias = match names.find(|new| column.is_named(&new.ident, &columns)) {
            Some(new) => Some(new.alias.clone()),
            None => computed.map(|_| Ident::with_quote('"', &column.name)),
        };
        let expr = computed.map_or(&column.expr, |item| &item.expr).clone();
        match alias {
            Some(alias) => SelectItem::ExprWithAlias { expr, alias },
            None => SelectItem::UnnamedExpr(expr),
        }
    });
    Ok(items.collect())
}

/// How a column that is computed of another one is called: as that, if nothing is said.
fn alias_of(pattern: Option<&Regex>, column: &Column, alias: Option<&Ident>) -> Ident {
    let Some(alias) = alias else {
        return Ident::with_quote('"', &column.name);
    };
    let Some(pattern) = pattern else {
        return alias.clone();
    };
    let mut name = alias.value.clone();
    if let Some(found) = pattern.captures(&column.name) {
        for (number, part) in found.iter().enumerate().take(10) {
            let part = part.map_or("", |part| part.as_str());
            name = name.replace(&format!("\\{number}"), part);
        }
    }
    Ident {
        value: name,
        ..alias.clone()
    }
}

/// What COLUMNS within an expression stands for, if it is there.
fn wanted(expr: &Expr) -> Result<Option<Wanted>> {
    let mut all: Vec<Wanted> = Vec::new();
    let found = visit_expressions(expr, |part| {
        match arguments_of_columns(part).map(wanted_of) {
            Some(Ok(wanted)) => all.push(wanted),
            Some(Err(error)) => return ControlFlow::Break(error),
            None => {}
        }
        ControlFlow::Continue(())
    });
    if let ControlFlow::Break(error) = found {
        return Err(error);
    }
    all.dedup();
    match all.len() {
        0 | 1 => Ok(all.pop()),
        _ => Err(Error::usage(
            "several COLUMNS in one expression must be the same; write an expression for each",
        )),
    }
}

fn wanted_of(args: &[FunctionArg]) -> Result<Wanted> {
    let text = |expr| quoted_text(expr).map(str::to_owned);
    let wanted = match args {
        [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)] => Some(Wanted::All(Vec::new())),
        [FunctionArg::Unnamed(FunctionArgExpr::WildcardWithOptions(options))] => {
            let known = WildcardAdditionalOptions {
                wildcard_token: options.wildcard_token.clone(),
                opt_exclude: options.opt_exclude.clone(),
                ..WildcardAdditionalOptions::default()
            };
            (known == *options).then(|| Wanted::All(excluded(&known)))
        }
        [FunctionArg::Unnamed(FunctionArgExpr::QualifiedWildcard(table))] => {
            Some(Wanted::Of(table.clone(), Vec::new()))
        }
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Array(list)))] => {
            let names = list.elem.iter().map(text);
            names.collect::<Option<_>>().map(Wanted::Named)
        }
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(pattern))] => {
            text(pattern).map(Wanted::Matching)
        }
        _ => None,
    };
    wanted.ok_or_else(|| {
        Error::usage(
            "COLUMNS takes a regular expression in quotes, *, * EXCLUDE (name), table.* or a list of names",
        )
    })
}

/// An expression with a column in the place of COLUMNS.
fn with_column(mut expr: Expr, column: &Column) -> Expr {
    let _ = visit_expressions_mut(&mut expr, |part| {
        if arguments_of_columns(part).is_some() {
            *part = column.expr.clone();
        }
        ControlFlow::<()>::Continue(())
    });
    expr
}

/// The scopes without queries that ask for columns themselves. One that names itself has the columns of its first part.
fn without_asking(scopes: &[With]) -> Vec<With> {
    let asks = |query: &Query| walk_mut(&mut query.clone(), &mut Present).is_break();
    let mut scopes = scopes.to_vec();
    for with in &mut scopes {
        for table in &mut with.cte_tables {
            if asks(&table.query)
                && with.recursive
                && let SetExpr::SetOperation { left, .. } = table.query.body.as_ref()
            {
                table.query.body = left.clone();
            }
        }
        with.cte_tables.retain(|table| !asks(&table.query));
    }
    scopes
}

/// One WITH of several, of which the inner ones hide the outer ones.
fn merged(scopes: &[With]) -> Option<With> {
    let mut tables: Vec<Cte> = Vec::new();
    for table in scopes.iter().flat_map(|with| &with.cte_tables) {
        tables.retain(|known| known.alias.name != table.alias.name);
        tables.push(table.clone());
    }
    let first = scopes.first()?;
    (!tables.is_empty()).then(|| With {
        with_token: first.with_token.clone(),
        recursive: scopes.iter().any(|with| with.recursive),
        cte_tables: tables,
    })
}

/// The same of scopes up to the queries in which a visitor finds what is to be written out still: what that is of
/// does not name those behind.
pub(crate) fn merged_without<V: VisitorMut + Default>(scopes: &[With]) -> Option<With> {
    let mut scopes = scopes.to_vec();
    for with in &mut scopes {
        let mut tables = with.cte_tables.iter_mut();
        let pending =
            tables.position(|table| walk_mut(&mut table.query, &mut V::default()).is_break());
        with.cte_tables.truncate(pending.unwrap_or(usize::MAX));
    }
    merged(&scopes)
}

/// Whether a statement asks for columns anywhere.
fn is_there(statement: &mut ParsedStatement) -> bool {
    walk_statement(statement, &mut Present).is_break()
}

/// Ends where columns are asked for.
struct Present;

impl VisitorMut for Present {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let is_starred = |item| is_starred(item, &select.from);
        match select.projection.iter().any(is_starred) || !counted(select).is_empty() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match arguments_of_columns(expr) {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }
}

/// Whether an item stands for columns of a FROM that are to be written out.
fn is_starred(item: &SelectItem, from: &[TableWithJoins]) -> bool {
    match item {
        SelectItem::Wildcard(options) => {
            options.opt_alias.is_none()
                && (options.opt_rename.is_some()
                    || options.opt_replace.is_some()
                    || !excluded(options).is_empty() && from.iter().any(joins_by_keys))
        }
        // Of others the planner knows the columns.
        SelectItem::QualifiedWildcard(
            SelectItemQualifiedWildcardKind::ObjectName(table),
            options,
        ) => {
            let parts = table.0.iter().filter_map(|part| part.as_ident().cloned());
            options.opt_rename.is_some() && has_table(from, &parts.collect::<Vec<_>>())
        }
        _ => false,
    }
}

fn asks(item: &SelectItem, from: &[TableWithJoins]) -> bool {
    is_starred(item, from)
        || match item {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                let found = visit_expressions(expr, |part| match arguments_of_columns(part) {
                    Some(_) => ControlFlow::Break(()),
                    None => ControlFlow::Continue(()),
                });
                found.is_break()
            }
            _ => false,
        }
}

/// Goes through the calls of `count(t.*)` of one SELECT: those of queries within are of theirs.
struct Counts<F> {
    depth: usize,
    each: F,
}

impl<F: FnMut(&ObjectName) -> Option<FunctionArgExpr>> VisitorMut for Counts<F> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.depth == 0
            && let Expr::Function(function) = expr
            && function.name.to_string().eq_ignore_ascii_case("count")
            && let FunctionArguments::List(list) = &mut function.args
            && let [FunctionArg::Unnamed(argument)] = list.args.as_mut_slice()
            && let FunctionArgExpr::QualifiedWildcard(table) = argument
            && let Some(instead) = (self.each)(table)
        {
            *argument = instead;
        }
        ControlFlow::Continue(())
    }
}

/// What a SELECT counts rows of tables in, where some may be of no row of theirs.
fn visit_counts(select: &mut Select, each: impl FnMut(&ObjectName) -> Option<FunctionArgExpr>) {
    let mut counts = Counts { depth: 0, each };
    // It goes to the end.
    let _ = walk_mut(&mut select.projection, &mut counts);
    let _ = walk_mut(&mut select.having, &mut counts);
    let _ = walk_mut(&mut select.qualify, &mut counts);
}

/// The tables of which a SELECT counts such rows.
fn counted(select: &mut Select) -> Vec<ObjectName> {
    let mut tables = Vec::new();
    if select.from.iter().any(has_outer_join) {
        visit_counts(select, |table| {
            tables.push(table.clone());
            None
        });
    }
    tables
}

/// TRUE for the rows in which a table has a value, and NULL for others.
fn has_row(columns: &[Column]) -> FunctionArgExpr {
    let tests = columns.iter();
    let tests = tests.map(|column| Expr::IsNotNull(Box::new(column.expr.clone())));
    let any = tests.reduce(|any, test| Expr::BinaryOp {
        left: Box::new(any),
        op: BinaryOperator::Or,
        right: Box::new(test),
    });
    let truth = |truth| Expr::value(Value::Boolean(truth));
    let any = any.unwrap_or_else(|| truth(true));
    FunctionArgExpr::Expr(call(Ident::new("nullif"), vec![any, truth(false)]))
}

fn has_outer_join(table: &TableWithJoins) -> bool {
    has_join(table, &|operator| {
        matches!(
            operator,
            JoinOperator::Left(_)
                | JoinOperator::LeftOuter(_)
                | JoinOperator::Right(_)
                | JoinOperator::RightOuter(_)
                | JoinOperator::FullOuter(_)
        )
    })
}

/// Whether something in a SELECT is to be written out.
fn is_asking(select: &mut Select) -> bool {
    let asks = |item| asks(item, &select.from);
    select.projection.iter().any(asks) || !counted(select).is_empty()
}

/// A SELECT to be written out.
struct Asking(Select);

impl Pending for Asking {
    fn in_select(select: &mut Select) -> Option<Self> {
        is_asking(select).then(|| Self(select.clone()))
    }
}

/// A star that the planner is to write out.
fn left(item: &SelectItem) -> SelectItem {
    let mut item = item.clone();
    if let SelectItem::Wildcard(options) = &mut item {
        options.opt_alias = Some(Ident::new(LEFT));
    }
    item
}

/// Takes the marks off such stars.
struct Unmark;

impl VisitorMut for Unmark {
    type Break = Infallible;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Infallible> {
        for item in &mut select.projection {
            if let SelectItem::Wildcard(options) = item
                && options
                    .opt_alias
                    .as_ref()
                    .is_some_and(|name| name.value == LEFT)
            {
                options.opt_alias = None;
            }
        }
        ControlFlow::Continue(())
    }
}

/// Orders by all columns of which it is known now how many there are.
struct Places;

impl VisitorMut for Places {
    type Break = Infallible;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Infallible> {
        if let Some(order_by) = &mut query.order_by {
            order_by_places(order_by, &query.body);
        }
        ControlFlow::Continue(())
    }
}

/// Puts another SELECT in the place of the first that is [`Asking`].
struct Replace(Option<Select>);

impl VisitorMut for Replace {
    type Break = ();

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        if !is_asking(select) {
            return ControlFlow::Continue(());
        }
        if let Some(written) = self.0.take() {
            *select = written;
        }
        ControlFlow::Break(())
    }
}

//! Clauses that the parser takes and DataFusion's planner leaves out without a word, or does not know:
//! they are said in words that it plans, or refused.
//!
//! The nodes of the syntax tree are taken apart whole, so that a field which the parser gains has to be
//! thought of here before it compiles.

mod assignments;
mod collations;
mod correlated;
mod definitions;
mod deletes;
mod escapes;
mod exact_numbers;
mod fields;
mod files;
mod forms;
mod functions;
mod groups;
mod inserts;
mod intervals;
mod joins;
mod keys;
mod lambdas;
mod ordered;
mod patterns;
mod pivots;
mod quantified;
mod row_values;
mod sample;
mod sequences;
mod series;
mod sets;
mod shown;
mod standard_views;
mod synonyms;
mod unnamed;
mod windows;
mod with;

use std::ops::ControlFlow;

use datafusion::error::DataFusionError;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Cte, DataType, ExcludeSelectItem, Expr, Fetch, Function, FunctionArg,
    FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, LimitClause, ObjectName,
    ObjectNamePart, OrderBy, OrderByExpr, OrderByKind, OrderByOptions, PipeOperator, Query, Select,
    SelectInto, SelectItem, SetExpr, SetOperator, SetQuantifier, Statement, TableAlias,
    TableFactor, TableWithJoins, TypedString, UnaryOperator, Value, VisitorMut,
    WildcardAdditionalOptions,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};

use self::assignments::column_by_column;
use self::collations::{compare_as_collated, order_as_collated, order_calls_as_collated};
pub(crate) use self::correlated::OfOuter;
use self::correlated::call_lists;
use self::definitions::{check_column, check_statement, place_temporary};
use self::deletes::by_its_name;
use self::escapes::{read_bytes, with_backslashes};
use self::exact_numbers::exact_number;
use self::fields::{correct_access, extract, keep_json, pack};
use self::files::name_files;
pub(crate) use self::files::{files_of_name, list_of_name, write_out_files};
pub(crate) use self::functions::Calls;
use self::functions::{check_function, is_list_of_rows, put_list_of_rows};
use self::groups::correct_groups;
use self::inserts::read_values;
use self::intervals::{computed, correct_interval, fit_unit};
use self::joins::{call_subqueries, check_names, correct_changes, correct_joins, twins};
pub(crate) use self::joins::{check_qualifier, has_join, has_table};
use self::keys::write_out_ordered_keys;
pub(crate) use self::keys::{joins_by_keys, write_out_keys};
use self::lambdas::{is_lambda, put_lambda};
use self::ordered::{by_places, first_rows, select_keys};
use self::patterns::{correct_glob, correct_similar};
use self::pivots::said_otherwise;
use self::quantified::with_nulls;
use self::row_values::{by_existence, by_fields};
use self::sample::{alias_of, sampled};
pub(crate) use self::sequences::NEXT;
use self::sequences::as_table;
pub(crate) use self::series::SERIES;
use self::series::as_lists;
use self::sets::name_sides;
use self::shown::correct_shown;
use self::standard_views::as_queries;
use self::unnamed::name_columns;
pub(crate) use self::unnamed::{argument_of_unnest, arguments_of_columns};
use self::windows::{quote_bounds, write_out};
use self::with::with_its_tables;
use crate::error::{Error, Result};
use crate::files::write_as_named;
use crate::names::{name_of, quoted_text};
use crate::walk::{visit_relations, walk_statement};

/// What COPY writes. By the planner any other name means what the path's ending means.
const WRITTEN: [&str; 5] = ["arrow", "avro", "csv", "json", "parquet"];

/// Has every clause of a statement planned or refused.
///
/// # Errors
/// [`Error::Usage`] for clauses that are refused; it names the way out.
pub(crate) fn correct(statement: &mut ParsedStatement) -> Result<()> {
    match statement {
        ParsedStatement::CreateExternalTable(create) => {
            for column in &create.columns {
                check_column(&column.name, &column.options)?;
            }
        }
        ParsedStatement::CopyTo(copy) => {
            write_as_named(copy);
            if let Some(format) = &copy.stored_as
                && !WRITTEN
                    .iter()
                    .any(|known| format.eq_ignore_ascii_case(known))
            {
                return Err(Error::usage(format!(
                    "COPY does not write '{format}'; it writes {}",
                    WRITTEN.join(", ")
                )));
            }
        }
        _ => {}
    }
    name_columns(statement);
    if let ControlFlow::Break(error) = walk_statement(statement, &mut Correct) {
        return Err(error);
    }
    Ok(())
}

struct Correct;

impl VisitorMut for Correct {
    type Break = Error;

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<Error> {
        flow(correct_shown(statement))?;
        flow(as_table(statement))?;
        with_its_tables(statement)?;
        read_values(statement)?;
        by_its_name(statement);
        flow(column_by_column(statement))?;
        let corrected = correct_changes(statement).and_then(|()| place_temporary(statement));
        flow(corrected.and_then(|()| check_statement(statement)))
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        flow(correct_query(query))
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        flow(correct_select(select))
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        flow(correct_factor(factor))
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        flow(compare_as_collated(expr))?;
        match expr {
            Expr::Function(function) if is_lambda(function) => flow(put_lambda(expr)),
            Expr::Function(function) if is_list_of_rows(function) => flow(put_list_of_rows(expr)),
            Expr::Function(function) => {
                if let FunctionArguments::List(list) = &mut function.args
                    && let [FunctionArg::Unnamed(FunctionArgExpr::WildcardWithOptions(options))] =
                        list.args.as_mut_slice()
                {
                    read_names(options);
                }
                flow(order_calls_as_collated(function))?;
                keep_json(function);
                quote_bounds(function);
                flow(pack(function).and_then(|()| check_function(function)))
            }
            Expr::BinaryOp {
                left,
                op: BinaryOperator::PGStartsWith,
                right,
            } => {
                let sides = [left, right]
                    .map(|side| std::mem::replace(&mut **side, Expr::value(Value::Null)));
                *expr = call(Ident::new("starts_with"), sides.to_vec());
                ControlFlow::Continue(())
            }
            // Of whole numbers the quotient is one.
            Expr::BinaryOp {
                op: op @ BinaryOperator::DuckIntegerDivide,
                ..
            } => {
                *op = BinaryOperator::Divide;
                ControlFlow::Continue(())
            }
            Expr::BinaryOp {
                op: BinaryOperator::Arrow | BinaryOperator::LongArrow,
                ..
            } => {
                extract(expr);
                ControlFlow::Continue(())
            }
            Expr::CompoundFieldAccess { root, access_chain } => {
                correct_access(root, access_chain);
                ControlFlow::Continue(())
            }
            Expr::AtTimeZone {
                timestamp,
                time_zone,
            } => {
                let args = vec![(**time_zone).clone(), (**timestamp).clone()];
                *expr = call(Ident::new("timezone"), args);
                ControlFlow::Continue(())
            }
            Expr::RLike { .. } => flow(correct_glob(expr)),
            Expr::SimilarTo { .. } => flow(correct_similar(expr)),
            Expr::Like { .. } | Expr::ILike { .. } => flow(with_backslashes(expr)),
            Expr::Interval(interval) if interval.leading_field.is_some() => {
                if let Some(computed) = computed(interval) {
                    *expr = computed;
                }
                ControlFlow::Continue(())
            }
            Expr::Interval(interval) => {
                let written = interval.to_string();
                flow(correct_interval(&mut interval.value, &written))
            }
            // All bits but those of the operand.
            Expr::UnaryOp {
                op: UnaryOperator::BitwiseNot,
                expr: operand,
            } => {
                let operand = std::mem::replace(&mut **operand, Expr::value(Value::Null));
                *expr = Expr::Nested(Box::new(Expr::BinaryOp {
                    left: Box::new(Expr::Nested(Box::new(operand))),
                    op: BinaryOperator::BitwiseXor,
                    right: Box::new(Expr::value(Value::Number("-1".to_owned(), false))),
                }));
                ControlFlow::Continue(())
            }
            Expr::Value(value) => {
                if let Value::Number(digits, _) = &value.value
                    && let Some(exact) = exact_number(digits)
                {
                    *expr = exact;
                }
                ControlFlow::Continue(())
            }
            Expr::TypedString(TypedString {
                data_type, value, ..
            }) => {
                if let Value::SingleQuotedString(text) = &value.value {
                    fit_unit(data_type, text);
                }
                ControlFlow::Continue(())
            }
            // The planner writes the sign before the text, where it is that of the first unit alone.
            Expr::UnaryOp {
                op: UnaryOperator::Minus,
                expr,
            } if matches!(**expr, Expr::Interval(_)) => {
                let interval = std::mem::replace(&mut **expr, Expr::value(Value::Null));
                **expr = Expr::Nested(Box::new(interval));
                ControlFlow::Continue(())
            }
            Expr::Cast {
                expr,
                data_type: DataType::Interval { .. },
                ..
            } => {
                let written = expr.to_string();
                flow(correct_interval(expr, &written))
            }
            Expr::Cast {
                expr, data_type, ..
            } => {
                if let Some(text) = quoted_text(expr) {
                    fit_unit(data_type, text);
                    read_bytes(expr, data_type);
                }
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        }
    }

    // What it makes of an expression has that within it.
    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        by_fields(expr);
        with_nulls(expr);
        call_lists(expr);
        ControlFlow::Continue(())
    }
}

fn flow(result: Result<()>) -> ControlFlow<Error> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    }
}

/// A text of ours as a part of the syntax tree.
///
/// # Errors
/// None that a user can bring about, where names in it are written as identifiers.
fn parsed<T>(
    text: &str,
    parse: impl FnOnce(&mut Parser<'_>) -> std::result::Result<T, ParserError>,
) -> Result<T> {
    let parser = Parser::new(&GenericDialect).try_with_sql(text);
    let part = parser.and_then(|mut parser| parse(&mut parser));
    Ok(part.map_err(DataFusionError::from)?)
}

/// A call of a function.
pub(crate) fn call(name: Ident, args: Vec<Expr>) -> Expr {
    let args = args.into_iter();
    let args = args.map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)));
    Expr::Function(Function {
        name: ObjectName::from(vec![name]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: args.collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// Makes a query of a table: the table takes the place of the first one in the innermost FROM of `query`.
fn query_of(
    table: &mut TableFactor,
    mut query: Box<Query>,
    alias: Option<TableAlias>,
) -> TableFactor {
    if let Some(place) = innermost_table(query.body.as_mut()) {
        std::mem::swap(place, table);
    }
    TableFactor::Derived {
        lateral: false,
        subquery: query,
        alias,
        sample: None,
    }
}

fn innermost_table(body: &mut SetExpr) -> Option<&mut TableFactor> {
    let SetExpr::Select(select) = body else {
        return None;
    };
    match &mut select.from.first_mut()?.relation {
        TableFactor::Derived { subquery, .. } => innermost_table(subquery.body.as_mut()),
        found => Some(found),
    }
}

/// The SELECT that names the columns of a query.
pub(crate) fn first_select(body: &mut SetExpr) -> Option<&mut Select> {
    match body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(query) => first_select(&mut query.body),
        SetExpr::SetOperation { left, .. } => first_select(left),
        _ => None,
    }
}

/// Refuses a clause; `instead` is the way out, or empty.
fn refuse<T>(clause: &str, instead: &str) -> Result<T> {
    let instead = match instead {
        "" => String::new(),
        instead => format!("; {instead}"),
    };
    Err(Error::usage(format!("{clause} is not supported{instead}")))
}

fn correct_query(query: &mut Query) -> Result<()> {
    let Query {
        with,
        body,
        order_by,
        limit_clause,
        fetch,
        locks,
        for_clause,
        settings,
        format_clause,
        pipe_operators,
    } = query;
    if let Some(OrderBy {
        kind: OrderByKind::Expressions(keys),
        ..
    }) = &mut *order_by
    {
        order_as_collated(keys)?;
    }
    if let Some(fetch) = fetch.take() {
        *limit_clause = Some(limit_of(fetch, limit_clause.take())?);
    }
    if let Some(lock) = locks.first() {
        return refuse(
            &lock.to_string(),
            "a transaction whose rows another one has changed is refused at COMMIT, and one of \
             ISOLATION LEVEL SERIALIZABLE also where it has only read them",
        );
    }
    if let Some(clause) = for_clause {
        return refuse(&clause.to_string(), "");
    }
    if settings.is_some() {
        return refuse("SETTINGS", "write SET name = value before the query");
    }
    if let Some(clause) = format_clause {
        return refuse(&clause.to_string(), "clients choose the form of results");
    }
    match body.as_mut() {
        SetExpr::Select(select) => {
            check_names(&twins(&select.from)?, &*order_by)?;
            write_out(select, order_by.as_mut())?;
            if let Some(order_by) = &mut *order_by {
                first_rows(select, order_by)?;
                by_places(select, order_by);
                write_out_ordered_keys(select, order_by)?;
                select_keys(body, order_by)?;
            }
        }
        SetExpr::SetOperation { left, right, .. } => {
            check_no_into(left)?;
            check_no_into(right)?;
            name_sides(body)?;
        }
        _ => {}
    }
    if let Some(order_by) = order_by {
        order_by_all(order_by);
        order_by_places(order_by, body);
        if order_by.interpolate.is_some() {
            return refuse("INTERPOLATE", "");
        }
    }
    if let Some(with) = with {
        let is_recursive = with.recursive;
        for table in &mut with.cte_tables {
            correct_named(table, is_recursive)?;
        }
    }
    pipe_operators.iter().try_for_each(check_pipe)
}

/// `ORDER BY ALL` is a column's name to some dialects' parsers, which no column has without quotes.
fn order_by_all(order_by: &mut OrderBy) {
    if let OrderByKind::Expressions(columns) = &order_by.kind
        && let [only] = columns.as_slice()
        && let Expr::Identifier(name) = &only.expr
        && name.quote_style.is_none()
        && name.value.eq_ignore_ascii_case("all")
        && only.with_fill.is_none()
    {
        order_by.kind = OrderByKind::All(only.options);
    }
}

/// Says ORDER BY ALL by the places of the columns, where it is known how many there are.
pub(crate) fn order_by_places(order_by: &mut OrderBy, body: &SetExpr) {
    if let Some(columns) = columns_of(body) {
        order_by_columns(order_by, columns);
    }
}

/// Whether a query orders by all columns, and it is not known how many there are.
pub(crate) fn orders_by_all(query: &Query) -> bool {
    let kind = query.order_by.as_ref().map(|order_by| &order_by.kind);
    matches!(kind, Some(OrderByKind::All(_))) && columns_of(&query.body).is_none()
}

/// Says ORDER BY ALL by the places of that many columns.
pub(crate) fn order_by_columns(order_by: &mut OrderBy, columns: usize) {
    if let OrderByKind::All(options) = order_by.kind {
        order_by.kind = OrderByKind::Expressions(by_position(columns, options));
    }
}

/// How many columns a query has; `None` where a wildcard stands for some.
fn columns_of(body: &SetExpr) -> Option<usize> {
    match body {
        SetExpr::Select(select) => {
            let is_one = |item: &SelectItem| match item {
                SelectItem::UnnamedExpr(Expr::Function(call)) => {
                    // Of a struct it gives several.
                    let name = call.name.0.last().and_then(|part| part.as_ident());
                    !name.is_some_and(|name| name.value.eq_ignore_ascii_case("unnest"))
                }
                SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. } => true,
                _ => false,
            };
            let items = &select.projection;
            items.iter().all(is_one).then_some(items.len())
        }
        SetExpr::Query(query) => columns_of(&query.body),
        // By their names both sides' columns are together.
        SetExpr::SetOperation {
            left,
            set_quantifier: SetQuantifier::All | SetQuantifier::Distinct | SetQuantifier::None,
            ..
        } => columns_of(left),
        _ => None,
    }
}

/// `ORDER BY 1, 2, …`.
fn by_position(columns: usize, options: OrderByOptions) -> Vec<OrderByExpr> {
    let column = |position: usize| OrderByExpr {
        expr: Expr::value(Value::Number(position.to_string(), false)),
        options,
        with_fill: None,
    };
    (1..=columns).map(column).collect()
}

/// A query of WITH. Of a UNION in WITH RECURSIVE the planner takes the two sides alone.
fn correct_named(table: &mut Cte, is_recursive: bool) -> Result<()> {
    let Cte {
        alias,
        query,
        from,
        // A hint.
        materialized: _,
        closing_paren_token: _,
    } = table;
    check_alias(Some(alias))?;
    if from.is_some() {
        return refuse("FROM behind a query of WITH", "");
    }
    let has_others = columns_of(&query.body).is_none_or(|all| all > alias.columns.len());
    if !is_recursive && !alias.columns.is_empty() && has_others {
        // Of a table in FROM those behind keep their names.
        let mut named = alias_of(alias.name.clone());
        named.columns = std::mem::take(&mut alias.columns);
        let whole = std::mem::replace(query, parsed("SELECT *", |parser| parser.parse_query())?);
        if let SetExpr::Select(select) = query.body.as_mut() {
            select.from = vec![TableWithJoins {
                relation: TableFactor::Derived {
                    lateral: false,
                    subquery: whole,
                    alias: Some(named),
                    sample: None,
                },
                joins: Vec::new(),
            }];
        }
        return Ok(());
    }
    let is_union = matches!(
        query.body.as_ref(),
        SetExpr::SetOperation {
            op: SetOperator::Union,
            ..
        }
    );
    let has_more = query.with.is_some()
        || query.order_by.is_some()
        || query.limit_clause.is_some()
        || query.fetch.is_some()
        || !query.pipe_operators.is_empty();
    if !(is_recursive && is_union && has_more) {
        return Ok(());
    }
    let own = alias.name.value.to_lowercase();
    let names_itself = visit_relations(query.as_ref(), |name| {
        match name.to_string().to_lowercase() == own {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    if names_itself.is_break() {
        return refuse(
            "WITH, ORDER BY or LIMIT of a query that names itself",
            "write them in the query that reads it",
        );
    }
    // One that is no UNION for the planner.
    let whole = SetExpr::Query(query.clone());
    **query = query_of_body(whole);
    Ok(())
}

/// A query of nothing but that.
fn query_of_body(body: SetExpr) -> Query {
    Query {
        with: None,
        body: Box::new(body),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    }
}

fn check_pipe(operator: &PipeOperator) -> Result<()> {
    match operator {
        PipeOperator::Select { exprs } | PipeOperator::Extend { exprs } => {
            exprs.iter().try_for_each(check_item)
        }
        PipeOperator::Aggregate {
            full_table_exprs,
            group_by_expr,
        } => {
            let none = OrderByOptions {
                asc: None,
                nulls_first: None,
            };
            let mut all = full_table_exprs.iter().chain(group_by_expr);
            match all.all(|expr| expr.order_by == none) {
                true => Ok(()),
                false => refuse("an order in AGGREGATE", "write |> ORDER BY behind it"),
            }
        }
        // What the planner does not know of the others it refuses.
        _ => Ok(()),
    }
}

/// `FETCH FIRST n ROWS ONLY` as a LIMIT.
fn limit_of(fetch: Fetch, clause: Option<LimitClause>) -> Result<LimitClause> {
    let Fetch {
        with_ties,
        percent,
        quantity,
    } = fetch;
    if with_ties {
        return refuse(
            "FETCH … WITH TIES",
            "number the rows with rank() OVER (ORDER BY …) and keep those up to n",
        );
    }
    if percent {
        return refuse("FETCH … PERCENT", "write the number of rows");
    }
    let limit = Some(quantity.unwrap_or_else(|| Expr::value(Value::Number("1".into(), false))));
    match clause {
        None => Ok(LimitClause::LimitOffset {
            limit,
            offset: None,
            limit_by: Vec::new(),
        }),
        Some(LimitClause::LimitOffset {
            limit: None,
            offset,
            limit_by,
        }) => Ok(LimitClause::LimitOffset {
            limit,
            offset,
            limit_by,
        }),
        Some(_) => refuse("FETCH beside LIMIT", "leave one of them out"),
    }
}

/// The planner makes a table of a whole query, or none.
fn check_no_into(body: &SetExpr) -> Result<()> {
    match body {
        SetExpr::Select(select) if select.into.is_some() => refuse(
            "INTO in a part of a set operation",
            "write CREATE TABLE … AS and the query",
        ),
        SetExpr::SetOperation { left, right, .. } => {
            check_no_into(left)?;
            check_no_into(right)
        }
        _ => Ok(()),
    }
}

fn correct_select(select: &mut Select) -> Result<()> {
    write_out_keys(select)?;
    let Select {
        select_token: _,
        // Hints are comments, and may be passed over.
        optimizer_hints: _,
        distinct: _,
        select_modifiers,
        // Refused by the planner, as lateral views and CLUSTER, DISTRIBUTE and SORT BY are.
        top: _,
        top_before_distinct: _,
        projection,
        exclude,
        into,
        from,
        lateral_views: _,
        prewhere,
        selection,
        connect_by,
        group_by,
        cluster_by: _,
        distribute_by: _,
        sort_by: _,
        having: _,
        // Written out.
        named_window: _,
        qualify: _,
        window_before_qualify: _,
        value_table_mode,
        flavor: _,
    } = select;
    if let Some(SelectInto {
        temporary,
        unlogged,
        ..
    }) = into
        && (*temporary || *unlogged)
    {
        return refuse("INTO TEMPORARY and INTO UNLOGGED", "write INTO alone");
    }
    if let Some(modifiers) = select_modifiers {
        return refuse(&format!("SELECT{modifiers}"), "");
    }
    if let Some(exclude) = exclude {
        return refuse(
            &format!("{exclude} behind all columns"),
            "write it behind the asterisk",
        );
    }
    if !connect_by.is_empty() {
        return refuse("CONNECT BY", "write WITH RECURSIVE");
    }
    if let Some(mode) = value_table_mode {
        return refuse(&format!("SELECT {mode}"), "");
    }
    for item in projection.iter_mut() {
        check_item(item)?;
        if let SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options) = item {
            read_names(options);
        }
    }
    for table in from.iter_mut() {
        correct_joins(table)?;
    }
    call_subqueries(from);
    // ClickHouse's hint of what to filter by first.
    if let Some(prewhere) = prewhere.take() {
        *selection = Some(match selection.take() {
            None => prewhere,
            Some(selection) => Expr::BinaryOp {
                left: Box::new(Expr::Nested(Box::new(prewhere))),
                op: BinaryOperator::And,
                right: Box::new(Expr::Nested(Box::new(selection))),
            },
        });
    }
    // Not of HAVING, whose aggregates would be those of the query that is looked in.
    selection.as_mut().map_or(Ok(()), by_existence)?;
    correct_groups(group_by, projection)?;
    check_names(&twins(&select.from)?, select)?;
    write_out(select, None)
}

/// What is left out of a star by EXCLUDE.
pub(crate) fn excluded(options: &WildcardAdditionalOptions) -> &[ObjectName] {
    match &options.opt_exclude {
        Some(ExcludeSelectItem::Single(name)) => std::slice::from_ref(name),
        Some(ExcludeSelectItem::Multiple(names)) => names,
        None => &[],
    }
}

fn check_item(item: &SelectItem) -> Result<()> {
    let (SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options)) = item else {
        return Ok(());
    };
    let WildcardAdditionalOptions {
        wildcard_token: _,
        opt_ilike,
        // Their names are read by `read_names`.
        opt_exclude: _,
        opt_except: _,
        opt_replace: _,
        // Refused by the planner, as an alias is.
        opt_rename: _,
        opt_alias: _,
    } = options;
    match opt_ilike {
        Some(pattern) => refuse(&format!("* {pattern}"), "name the columns"),
        None => Ok(()),
    }
}

/// Has the names in EXCLUDE and REPLACE read as all others are; the planner takes them as they stand.
fn read_names(options: &mut WildcardAdditionalOptions) {
    let excluded = match &mut options.opt_exclude {
        Some(ExcludeSelectItem::Single(name)) => std::slice::from_mut(name),
        Some(ExcludeSelectItem::Multiple(names)) => names.as_mut_slice(),
        None => &mut [],
    };
    let parts = excluded.iter_mut().flat_map(|name| &mut name.0);
    let excluded = parts.filter_map(|part| match part {
        ObjectNamePart::Identifier(name) => Some(name),
        ObjectNamePart::Function(_) => None,
    });
    let replaced = options.opt_replace.iter_mut();
    let replaced = replaced.flat_map(|replaced| &mut replaced.items);
    for name in excluded.chain(replaced.map(|item| &mut item.column_name)) {
        name.value = name_of(name);
    }
}

fn correct_factor(factor: &mut TableFactor) -> Result<()> {
    as_lists(factor)?;
    as_queries(factor)?;
    match factor {
        TableFactor::Table {
            name,
            alias,
            args,
            with_hints,
            // Made or refused by `past`.
            version: _,
            // Made or refused above.
            with_ordinality: _,
            partitions,
            json_path,
            sample,
            index_hints,
        } => {
            check_alias(alias.as_ref())?;
            if let Some(hint) = with_hints.first() {
                return refuse(&format!("WITH ({hint}) behind a table"), "leave it out");
            }
            if !partitions.is_empty() {
                return refuse("PARTITION behind a table", "write a condition in WHERE");
            }
            if json_path.is_some() {
                return refuse("a path into a table's JSON", "");
            }
            if let Some(hint) = index_hints.first() {
                return refuse(&hint.to_string(), "leave it out");
            }
            if args.as_ref().is_some_and(|given| given.settings.is_some()) {
                return refuse("SETTINGS of a function", "leave it out");
            }
            name_files(name, alias, args)?;
            if let Some(sample) = sample.take() {
                let name = name.0.last().and_then(|part| part.as_ident()).cloned();
                let called = alias.clone().or_else(|| Some(alias_of(name?)));
                sampled(factor, called, sample)?;
            }
        }
        TableFactor::Derived {
            lateral,
            subquery: _,
            alias,
            sample,
        } => {
            check_alias(alias.as_ref())?;
            if let Some(sample) = sample.take() {
                if *lateral {
                    return refuse(
                        "TABLESAMPLE of a LATERAL query",
                        "write it within the query",
                    );
                }
                let called = alias.clone();
                sampled(factor, called, sample)?;
            }
        }
        TableFactor::Function {
            lateral: _,
            name,
            args,
            with_ordinality: _,
            alias,
        } => {
            check_alias(alias.as_ref())?;
            if args
                .iter()
                .any(|arg| !matches!(arg, FunctionArg::Unnamed(_)))
            {
                return refuse(
                    &format!("a name of an argument of {name}"),
                    "write them in their order",
                );
            }
        }
        TableFactor::NestedJoin {
            table_with_joins,
            alias,
        } => {
            check_alias(alias.as_ref())?;
            correct_joins(table_with_joins)?;
        }
        TableFactor::UNNEST { alias, .. } => check_alias(alias.as_ref())?,
        TableFactor::Pivot { .. } | TableFactor::Unpivot { .. } => said_otherwise(factor)?,
        // What the planner knows of the others it plans, and refuses the rest.
        _ => {}
    }
    Ok(())
}

fn check_alias(alias: Option<&TableAlias>) -> Result<()> {
    let Some(TableAlias {
        explicit: _,
        name,
        columns,
        at,
    }) = alias
    else {
        return Ok(());
    };
    if at.is_some() {
        return refuse(&format!("AT behind {name}"), "");
    }
    match columns.iter().find(|column| column.data_type.is_some()) {
        Some(column) => refuse(
            &format!("a type for column {}", column.name),
            "write a CAST in the SELECT list",
        ),
        None => Ok(()),
    }
}

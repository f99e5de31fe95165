//! Random SELECT statements whose answers are determined.

use arrow::datatypes::DataType;
use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use super::shapes::shape;
use super::tables::{Abilities, RandomColumn, RandomTable};

/// How two results of a query are to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Row by row.
    Ordered,
    /// In any order.
    Multiset,
}

/// Around what only the oracle needs parentheses for.
const TIGHT: (char, char) = ('\u{1}', '\u{2}');

/// A query and how to compare its results.
pub struct Query {
    pub sql: String,
    /// The text for the oracle, where it answers `sql` wrongly.
    pub oracle: Option<String>,
    pub comparison: Comparison,
}

impl Query {
    /// A query whose rows come in any order.
    pub fn new(sql: String) -> Query {
        Query {
            sql,
            oracle: None,
            comparison: Comparison::Multiset,
        }
    }

    /// A random query on one or both tables.
    pub fn random(rng: &mut SmallRng, tables: &[RandomTable; 2]) -> Query {
        let query = Query::marked(rng, tables);
        let oracle = query.oracle.as_ref().unwrap_or(&query.sql);
        Query {
            oracle: Some(oracle.replace(TIGHT.0, "(").replace(TIGHT.1, ")")),
            sql: query.sql.replace([TIGHT.0, TIGHT.1], ""),
            ..query
        }
    }

    /// With the marks of [`distinct_from`].
    fn marked(rng: &mut SmallRng, tables: &[RandomTable; 2]) -> Query {
        if rng.random_bool(0.35) {
            return shape(rng, tables);
        }
        let table = tables.choose(rng).expect("two tables");
        match rng.random_range(0..10) {
            0..=1 => projection(rng, table),
            2..=5 => aggregate(rng, table),
            6..=7 => top_k(rng, table),
            8 => join(rng, tables),
            _ => distinct(rng, table),
        }
    }
}

/// `SELECT columns WHERE …`, in any order.
fn projection(rng: &mut SmallRng, table: &RandomTable) -> Query {
    let mut columns: Vec<String> = (0..rng.random_range(1..5))
        .map(|_| any(rng, table).name.clone())
        .collect();
    if let Some(column) = pick(rng, table, |a| a.small_integer) {
        columns.push(format!("CAST({} AS BIGINT) * 3 - 1", column.name));
    }
    let sql = format!(
        "SELECT {} FROM {}{}",
        aliased(&columns),
        table.name,
        where_clause(rng, table)
    );
    Query::new(sql)
}

/// `SELECT groups, aggregates … GROUP BY groups`.
fn aggregate(rng: &mut SmallRng, table: &RandomTable) -> Query {
    let mut groups: Vec<String> = (0..rng.random_range(0..4))
        .filter_map(|_| pick(rng, table, |a| a.grouped))
        .map(|column| column.name.clone())
        .collect();
    groups.dedup();
    if let Some(date) = pick_column(rng, table, |c| c.data_type == DataType::Date32)
        && rng.random_bool(0.5)
    {
        groups.push(format!(
            "date_part('{}', {})",
            ["year", "month", "day"].choose(rng).expect("parts"),
            date.name
        ));
    }
    let mut outputs = groups.clone();
    for _ in 0..rng.random_range(1..5) {
        outputs.push(aggregate_call(rng, table));
    }
    let mut sql = format!(
        "SELECT {} FROM {}{}",
        aliased(&outputs),
        table.name,
        where_clause(rng, table)
    );
    if !groups.is_empty() {
        sql += &format!(" GROUP BY {}", groups.join(", "));
        if rng.random_bool(0.15) {
            sql += " HAVING count(*) > 1";
        }
    }
    Query {
        oracle: Some(in_total_order(&sql, table)),
        ..Query::new(sql)
    }
}

/// The query with the first value in order for `min` and `max` of a column with NaN: DataFusion's
/// depend on the order of the rows there.
fn in_total_order(sql: &str, table: &RandomTable) -> String {
    let columns = table.columns.iter().filter(|column| column.abilities.nan);
    columns.fold(sql.to_owned(), |sql, column| {
        let name = &column.name;
        let first = |order: &str| format!("first_value({name} ORDER BY {name}{order} NULLS LAST)");
        sql.replace(&format!("min({name})"), &first(""))
            .replace(&format!("max({name})"), &first(" DESC"))
    })
}

fn aggregate_call(rng: &mut SmallRng, table: &RandomTable) -> String {
    let call = match rng.random_range(0..9) {
        0 | 1 => "count(*)".to_string(),
        2 => format!("count({})", any(rng, table).name),
        3 => on(rng, table, "sum", |a| a.summed),
        4 => on(rng, table, "avg", |a| a.summed),
        5 => on(rng, table, "min", |a| a.ordered),
        6 => on(rng, table, "max", |a| a.ordered),
        7 => match pick(rng, table, |a| a.small_integer) {
            Some(column) => format!("sum(CAST({} AS BIGINT) * 2 + 1)", column.name),
            None => "count(*)".to_string(),
        },
        _ => on(rng, table, "count", |a| a.grouped).replacen("count(", "count(DISTINCT ", 1),
    };
    if rng.random_bool(0.1) && !call.contains("DISTINCT") {
        format!("{call} FILTER (WHERE {})", predicate(rng, table, 1))
    } else {
        call
    }
}

/// `ORDER BY … LIMIT k`: all columns under a total order, or the keys alone under any order.
fn top_k(rng: &mut SmallRng, table: &RandomTable) -> Query {
    let mut keys: Vec<String> = Vec::new();
    for _ in 0..rng.random_range(1..4) {
        let column = pick(rng, table, |a| a.ordered)
            .map_or("id", |c| &c.name)
            .to_string();
        if !keys.contains(&column) {
            keys.push(column);
        }
    }
    let is_total = rng.random_bool(0.5);
    if is_total && !keys.iter().any(|key| key == "id") {
        keys.push("id".to_string());
    }
    let order: Vec<String> = keys
        .iter()
        .map(|key| {
            let direction = ["", " DESC"].choose(rng).expect("directions");
            let nulls = ["", " NULLS FIRST", " NULLS LAST"]
                .choose(rng)
                .expect("places");
            format!("{key}{direction}{nulls}")
        })
        .collect();
    let outputs = if is_total {
        "*".to_string()
    } else {
        keys.join(", ")
    };
    let mut sql = format!(
        "SELECT {outputs} FROM {}{} ORDER BY {} LIMIT {}",
        table.name,
        where_clause(rng, table),
        order.join(", "),
        [1, 3, 10, 100, 5_000].choose(rng).expect("limits"),
    );
    if rng.random_bool(0.2) {
        sql += &format!(" OFFSET {}", rng.random_range(0..20));
    }
    Query {
        comparison: Comparison::Ordered,
        ..Query::new(sql)
    }
}

/// `SELECT DISTINCT`, or how many rows a LIMIT without an order lets through.
fn distinct(rng: &mut SmallRng, table: &RandomTable) -> Query {
    let sql = match pick(rng, table, |a| a.grouped) {
        Some(column) if rng.random_bool(0.7) => {
            format!(
                "SELECT DISTINCT {} FROM {}{}",
                column.name,
                table.name,
                where_clause(rng, table)
            )
        }
        _ => format!(
            "SELECT count(*) FROM (SELECT id FROM {}{} LIMIT {})",
            table.name,
            where_clause(rng, table),
            rng.random_range(0..3_000)
        ),
    };
    Query::new(sql)
}

/// An inner, semi or anti join on `key`; the small side's filter reaches the big side's scan.
fn join(rng: &mut SmallRng, [big, small]: &[RandomTable; 2]) -> Query {
    let filter = predicate(rng, small, 1);
    let sql = match rng.random_range(0..4) {
        0 => format!(
            "SELECT count(*), sum(big.id), min(small.id) FROM big JOIN small ON big.key = small.key \
             WHERE {}",
            qualified(&filter, small)
        ),
        1 => format!(
            "SELECT id, key FROM big WHERE key IN (SELECT key FROM small WHERE {filter}) AND {}",
            predicate(rng, big, 1)
        ),
        2 => format!(
            "SELECT count(*), sum(id) FROM big WHERE NOT EXISTS \
             (SELECT 1 FROM small WHERE small.key = big.key AND {})",
            qualified(&filter, small)
        ),
        _ => format!(
            "SELECT big.id, small.id AS other FROM big JOIN small ON big.id = small.id \
             WHERE {} ORDER BY 1 LIMIT 50",
            qualified(&filter, small)
        ),
    };
    Query::new(sql)
}

/// The predicate with the table's name before its columns.
pub fn qualified(predicate: &str, table: &RandomTable) -> String {
    let mut out = String::new();
    let mut in_text = false;
    let mut word = String::new();
    for character in predicate.chars().chain([' ']) {
        if !in_text && (character.is_ascii_alphanumeric() || character == '_') {
            word.push(character);
            continue;
        }
        if table.columns.iter().any(|column| column.name == word) {
            out += table.name;
            out.push('.');
        }
        out += &std::mem::take(&mut word);
        in_text ^= character == '\'';
        out.push(character);
    }
    out
}

pub fn where_clause(rng: &mut SmallRng, table: &RandomTable) -> String {
    if rng.random_bool(0.15) {
        String::new()
    } else {
        format!(" WHERE {}", predicate(rng, table, 2))
    }
}

/// A random condition; `depth` bounds how AND, OR, NOT and CASE nest.
pub fn predicate(rng: &mut SmallRng, table: &RandomTable, depth: u32) -> String {
    if depth > 0 && rng.random_bool(0.5) {
        let (left, right) = (
            predicate(rng, table, depth - 1),
            predicate(rng, table, depth - 1),
        );
        return match rng.random_range(0..8) {
            0..=3 => format!("({left} AND {right})"),
            4..=5 => format!("({left} OR {right})"),
            6 => format!("NOT ({left})"),
            _ => format!(
                "CASE WHEN {left} THEN {right} ELSE {} END",
                predicate(rng, table, 0)
            ),
        };
    }
    leaf(rng, table)
}

/// `left IS [NOT] DISTINCT FROM right`: DataFusion takes all that follows for the right side, were
/// it not in parentheses.
pub fn distinct_from(left: &str, not: &str, right: &str) -> String {
    let (open, close) = TIGHT;
    format!("{open}{left} IS {not}DISTINCT FROM {right}{close}")
}

fn leaf(rng: &mut SmallRng, table: &RandomTable) -> String {
    let operator = *["=", "<>", "<", "<=", ">", ">="]
        .choose(rng)
        .expect("operators");
    let Some(column) = pick(rng, table, |a| a.ordered || a.grouped) else {
        return "true".into();
    };
    let name = &column.name;
    match rng.random_range(0..16) {
        0 => format!("{} IS NULL", any(rng, table).name),
        1 => format!("{} IS NOT NULL", any(rng, table).name),
        2 => {
            let not = if rng.random_bool(0.3) { "NOT " } else { "" };
            format!(
                "{name} {not}BETWEEN {} AND {}",
                literal(rng, table, column),
                literal(rng, table, column)
            )
        }
        3 => {
            let not = if rng.random_bool(0.3) { "NOT " } else { "" };
            let mut values: Vec<_> = (0..rng.random_range(1..12))
                .map(|_| literal(rng, table, column))
                .collect();
            if rng.random_bool(0.1) {
                values.push("NULL".into());
            }
            format!("{name} {not}IN ({})", values.join(", "))
        }
        4 => {
            let not = if rng.random_bool(0.5) { "NOT " } else { "" };
            distinct_from(name, not, &literal(rng, table, column))
        }
        5 => match pick(rng, table, |a| a.small_integer) {
            Some(small) => {
                let (small, k) = (&small.name, rng.random_range(-5..1_000));
                match rng.random_range(0..3) {
                    0 => format!(
                        "CAST({small} AS BIGINT) + {k} {operator} {}",
                        rng.random_range(-100..10_000)
                    ),
                    1 => format!("CAST({small} AS BIGINT) * {k} {operator} id"),
                    _ => format!("CAST({small} AS BIGINT) % 7 = {}", rng.random_range(-3..7)),
                }
            }
            None => format!("id % 3 = {}", rng.random_range(0..3)),
        },
        6 => {
            let same = pick_column(rng, table, |other| {
                other.data_type == column.data_type && other.name != *name
            });
            match same {
                Some(other) => format!("{name} {operator} {}", other.name),
                None => format!("{} {operator} {name}", literal(rng, table, column)),
            }
        }
        7..=9 => match pick(rng, table, |a| a.text) {
            Some(text) => like(rng, table, text),
            None => format!("{name} {operator} {}", literal(rng, table, column)),
        },
        10 => match pick(rng, table, |a| a.boolean) {
            Some(flag) => {
                let flag = &flag.name;
                [
                    flag.clone(),
                    format!("NOT {flag}"),
                    format!("{flag} IS TRUE"),
                    format!("{flag} IS NOT FALSE"),
                ]
                .choose(rng)
                .expect("forms")
                .clone()
            }
            None => format!("{name} {operator} {}", literal(rng, table, column)),
        },
        _ => format!("{name} {operator} {}", literal(rng, table, column)),
    }
}

/// A LIKE, or a comparison of a substring, cut from a value of the column.
fn like(rng: &mut SmallRng, table: &RandomTable, column: &RandomColumn) -> String {
    let sample: Vec<char> = sample(rng, table, column)
        .unwrap_or_else(|| "flash".into())
        .chars()
        .collect();
    let from = rng.random_range(0..=sample.len());
    let to = rng.random_range(from..=sample.len()).min(from + 20);
    let part: String = sample[from..to].iter().collect();
    if rng.random_bool(0.15) {
        let length = to - from;
        return format!(
            "substring({}, {}, {length}) = '{}'",
            column.name,
            from + 1,
            quote(&part)
        );
    }
    let part = quote(&part.replace('\\', "\\\\"));
    let pattern = match rng.random_range(0..6) {
        0 => format!("{part}%"),
        1 => format!("%{part}"),
        2 | 3 => format!("%{part}%"),
        4 => format!("_{part}%"),
        _ => format!(
            "%{}%{part}%",
            sample
                .first()
                .filter(|c| c.is_ascii_alphanumeric())
                .map_or('a', |c| *c)
        ),
    };
    let operator = ["LIKE", "LIKE", "NOT LIKE", "ILIKE"]
        .choose(rng)
        .expect("operators");
    format!("{} {operator} '{pattern}'", column.name)
}

/// A value of the column, one beside it, or the same value of another row.
fn literal(rng: &mut SmallRng, table: &RandomTable, column: &RandomColumn) -> String {
    let Some(mut text) = sample(rng, table, column) else {
        return format!("arrow_cast(NULL, '{}')", column.data_type);
    };
    if column.abilities.small_integer
        && rng.random_bool(0.3)
        && let Ok(number) = text.parse::<i64>()
    {
        // May leave the column's type: the literal is then of a wider one.
        return (number + rng.random_range(-2..=300)).to_string();
    }
    if column.abilities.text && rng.random_bool(0.2) {
        text.push('a');
    }
    if column.abilities.boolean {
        return text;
    }
    if column.abilities.text {
        return format!("'{}'", quote(&text));
    }
    match &column.data_type {
        DataType::Binary => format!("arrow_cast(X'{text}', 'Binary')"),
        data_type => format!(
            "arrow_cast('{}', '{}')",
            quote(&text),
            data_type.to_string().replace('\'', "''")
        ),
    }
}

/// A value that the column has, unless the few rows looked at are NULL.
fn sample(rng: &mut SmallRng, table: &RandomTable, column: &RandomColumn) -> Option<String> {
    let index = table
        .columns
        .iter()
        .position(|other| other.name == column.name)?;
    (0..5).find_map(|_| table.sample(rng, index))
}

fn quote(text: &str) -> String {
    text.replace('\'', "''")
}

fn any<'a>(rng: &mut SmallRng, table: &'a RandomTable) -> &'a RandomColumn {
    table.columns.choose(rng).expect("columns")
}

pub fn pick<'a>(
    rng: &mut SmallRng,
    table: &'a RandomTable,
    able: impl Fn(Abilities) -> bool,
) -> Option<&'a RandomColumn> {
    pick_column(rng, table, |column| able(column.abilities))
}

pub fn pick_column<'a>(
    rng: &mut SmallRng,
    table: &'a RandomTable,
    fits: impl Fn(&RandomColumn) -> bool,
) -> Option<&'a RandomColumn> {
    let columns: Vec<_> = table.columns.iter().filter(|column| fits(column)).collect();
    columns.choose(rng).copied()
}

fn on(
    rng: &mut SmallRng,
    table: &RandomTable,
    function: &str,
    able: impl Fn(Abilities) -> bool,
) -> String {
    format!(
        "{function}({})",
        pick(rng, table, able).map_or("id", |column| &column.name)
    )
}

/// Expressions with names of their own: two of them may be the same.
fn aliased(expressions: &[String]) -> String {
    let aliased: Vec<_> = expressions
        .iter()
        .enumerate()
        .map(|(i, e)| format!("{e} AS o{i}"))
        .collect();
    aliased.join(", ")
}

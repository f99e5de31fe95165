//! Queries of more than a scan: sets, joins that take NULL for equal, windows, recursion, and
//! what needs another text to be answered by the oracle.

use arrow::datatypes::DataType;
use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use super::queries::{
    Comparison, Query, distinct_from, pick, pick_column, predicate, qualified, where_clause,
};
use super::tables::RandomTable;

/// A random query of one of these kinds.
pub fn shape(rng: &mut SmallRng, tables: &[RandomTable; 2]) -> Query {
    let table = tables.choose(rng).expect("two tables");
    let query = match rng.random_range(0..9) {
        0 => sets(rng, tables),
        1 => null_equal_join(rng, tables),
        2 => same_names(rng, table),
        3 => recursion(rng, &tables[1]),
        4 => windows(rng, table),
        5 => not_in(rng, tables),
        6 => volatile(rng, table),
        7 => zoned(rng, table),
        _ => nested(rng, table),
    };
    query.unwrap_or_else(|| Query::new(format!("SELECT count(*) FROM {}", table.name)))
}

/// UNION, INTERSECT and EXCEPT of the keys of both tables, or of a column with itself.
fn sets(rng: &mut SmallRng, [big, small]: &[RandomTable; 2]) -> Option<Query> {
    let operator = ["UNION", "UNION ALL", "INTERSECT", "EXCEPT"];
    let operator = operator.choose(rng)?;
    let (left, right, column) = match rng.random_range(0..3) {
        0 => (big, small, "key"),
        1 => (small, big, "key"),
        _ => (big, big, pick(rng, big, |a| a.grouped)?.name.as_str()),
    };
    Some(Query::new(format!(
        "SELECT {column} AS v FROM {}{} {operator} SELECT {column} FROM {}{}",
        left.name,
        where_clause(rng, left),
        right.name,
        where_clause(rng, right)
    )))
}

fn null_equal_join(rng: &mut SmallRng, [big, small]: &[RandomTable; 2]) -> Option<Query> {
    let filter = qualified(&predicate(rng, small, 1), small);
    let on = distinct_from("big.key", "NOT ", "small.key");
    Some(Query::new(match rng.random_range(0..4) {
        0 => format!("SELECT count(*), sum(big.id) FROM small JOIN big ON {on} WHERE {filter}"),
        1 => format!(
            "SELECT count(*), count(small.id) FROM big LEFT JOIN small ON {on} AND {filter}"
        ),
        2 => format!(
            "SELECT big.id FROM big WHERE NOT EXISTS (SELECT 1 FROM small WHERE {on} AND {filter}) \
             AND {}",
            qualified(&predicate(rng, big, 1), big)
        ),
        _ => format!(
            "SELECT count(*), sum(small.id) FROM small WHERE {filter} AND EXISTS \
             (SELECT 1 FROM big WHERE {on})"
        ),
    }))
}

/// Results that are called like columns that they are not.
fn same_names(rng: &mut SmallRng, table: &RandomTable) -> Option<Query> {
    let select = [
        "key % 7 AS id, id AS key",
        "-id AS id, key",
        "id AS key, key AS id",
        "abs(id - 100) AS id, id AS key",
        "id * 2 AS key, CAST(key AS BIGINT) AS id",
    ];
    let directions = ["", " DESC", " NULLS FIRST", " DESC NULLS LAST"];
    let mut order = || directions.choose(rng).expect("directions");
    let order = format!("key{}, id{}", order(), order());
    Some(Query {
        comparison: Comparison::Ordered,
        ..Query::new(format!(
            "SELECT {} FROM {}{} ORDER BY {order} LIMIT {}",
            select.choose(rng)?,
            table.name,
            where_clause(rng, table),
            rng.random_range(1..50)
        ))
    })
}

/// From row to row by their keys, until no new one is found.
fn recursion(rng: &mut SmallRng, table: &RandomTable) -> Option<Query> {
    let filter = qualified(&predicate(rng, table, 1), table);
    Some(Query::new(format!(
        "WITH RECURSIVE r(n) AS (SELECT CAST({} AS BIGINT) UNION \
         SELECT CAST({name}.key AS BIGINT) FROM r JOIN {name} ON r.n = {name}.id WHERE {filter}) \
         SELECT count(*), sum(n), min(n) FROM r",
        rng.random_range(0..100),
        name = table.name,
    )))
}

fn windows(rng: &mut SmallRng, table: &RandomTable) -> Option<Query> {
    let group = &pick(rng, table, |a| a.grouped)?.name;
    let summed = &pick(rng, table, |a| a.summed)?.name;
    let call = match rng.random_range(0..5) {
        0 => format!("row_number() OVER (PARTITION BY {group} ORDER BY id)"),
        1 => format!("rank() OVER (ORDER BY {group})"),
        2 => format!("lag({summed}) OVER (PARTITION BY {group} ORDER BY id DESC)"),
        3 => format!(
            "sum({summed}) OVER (PARTITION BY {group} ORDER BY id ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)"
        ),
        _ => format!("count(*) OVER (PARTITION BY {group}), max(id) OVER (ORDER BY id)"),
    };
    Some(Query {
        comparison: Comparison::Ordered,
        ..Query::new(format!(
            "SELECT id, {call} FROM {}{} ORDER BY id LIMIT 200",
            table.name,
            where_clause(rng, table)
        ))
    })
}

/// `NOT IN` beside another condition: the oracle takes NULL for FALSE there.
fn not_in(rng: &mut SmallRng, [big, small]: &[RandomTable; 2]) -> Option<Query> {
    let set = qualified(&predicate(rng, small, 1), small);
    let other = qualified(&predicate(rng, big, 1), big);
    let from = format!("FROM small WHERE {set}");
    let select = "SELECT count(*), sum(big.id) FROM big WHERE";
    let in_set = format!("big.key IN (SELECT small.key {from} AND small.key IS NOT NULL)");
    let sets = format!("SELECT count(*) {from}");
    Some(Query {
        oracle: Some(format!(
            "{select} CASE WHEN ({sets}) = 0 THEN true WHEN {in_set} THEN false \
             WHEN big.key IS NULL OR ({sets} AND small.key IS NULL) > 0 THEN false ELSE true END \
             OR {other}"
        )),
        ..Query::new(format!(
            "{select} big.key NOT IN (SELECT small.key {from}) OR {other}"
        ))
    })
}

/// Random numbers where they change nothing.
fn volatile(rng: &mut SmallRng, table: &RandomTable) -> Option<Query> {
    let grouped = &pick(rng, table, |a| a.grouped)?.name;
    let (name, filter) = (table.name, predicate(rng, table, 1));
    Some(Query::new(match rng.random_range(0..3) {
        0 => format!("SELECT count(*), sum(id) FROM {name} WHERE random() < 2 AND {filter}"),
        1 => format!(
            "SELECT {grouped}, count(*) FROM {name} WHERE {filter} AND random() >= 0 GROUP BY {grouped}"
        ),
        _ => format!(
            "SELECT CASE WHEN random() < 2 THEN id END AS id FROM {name} WHERE {filter} AND id < 500"
        ),
    }))
}

/// Points in time, with and without a zone.
fn zoned(rng: &mut SmallRng, table: &RandomTable) -> Option<Query> {
    let column = pick_column(rng, table, |c| {
        matches!(c.data_type, DataType::Timestamp(..))
    })?;
    let (name, column) = (table.name, &column.name);
    let filter = where_clause(rng, table);
    Some(Query::new(match rng.random_range(0..3) {
        0 => format!(
            "SELECT date_trunc('month', {column}) AS month, count(*) FROM {name}{filter} GROUP BY month"
        ),
        1 => format!(
            "SELECT extract(hour FROM {column}) AS hour, min({column}), max({column}) FROM {name}{filter} GROUP BY hour"
        ),
        _ => format!(
            "SELECT count(*), max(id) FROM {name} WHERE {column} >= arrow_cast('1999-12-31T23:30:00+05:30', 'Timestamp(Microsecond, Some(\"+05:30\"))')"
        ),
    }))
}

/// Parts of lists and structs.
fn nested(rng: &mut SmallRng, table: &RandomTable) -> Option<Query> {
    let is_nested = |t: &DataType| matches!(t, DataType::List(_) | DataType::Struct(_));
    let column = pick_column(rng, table, |c| is_nested(&c.data_type))?;
    let (part, test) = match column.data_type {
        DataType::List(_) => (
            format!("{}[1]", column.name),
            format!("array_length({}) > 1", column.name),
        ),
        _ => (
            format!("{}['number']", column.name),
            format!("{}['number'] % 2 = 0", column.name),
        ),
    };
    let (name, whole) = (table.name, &column.name);
    Some(Query::new(match rng.random_range(0..3) {
        0 => format!("SELECT {part}, count(*), sum(id) FROM {name} WHERE {test} GROUP BY {part}"),
        1 => format!("SELECT id, {whole}, {part} FROM {name} WHERE {test} AND id < 2000"),
        _ => format!("SELECT count({whole}), count({part}), max({part}) FROM {name}"),
    }))
}

//! TABLESAMPLE.

use datafusion::sql::sqlparser::ast::{
    Ident, TableAlias, TableFactor, TableSample, TableSampleKind, TableSampleMethod,
    TableSampleModifier, TableSampleQuantity, TableSampleUnit,
};

use super::{parsed, query_of, refuse};
use crate::error::Result;

pub(super) fn alias_of(name: Ident) -> TableAlias {
    TableAlias {
        explicit: true,
        name,
        columns: Vec::new(),
        at: None,
    }
}

/// Makes a table a query for some of its rows, each with the chance that is asked for, or for a number of
/// them.
pub(super) fn sampled(
    factor: &mut TableFactor,
    called: Option<TableAlias>,
    sample: TableSampleKind,
) -> Result<()> {
    let (TableSampleKind::BeforeTableAlias(sample) | TableSampleKind::AfterTableAlias(sample)) =
        sample;
    let rest = rest_of_sample(&sample)?;
    // The table takes the place of `sampled`.
    let text = format!("SELECT * FROM sampled {rest}");
    let query = parsed(&text, |parser| parser.parse_query())?;
    // The alias, and names of columns in it, are those of the query.
    if let TableFactor::Table { alias, .. } | TableFactor::Derived { alias, .. } = factor {
        *alias = None;
    }
    *factor = query_of(factor, query, called);
    Ok(())
}

/// What follows FROM in the query for a sample.
fn rest_of_sample(sample: &TableSample) -> Result<String> {
    let TableSample {
        modifier,
        name,
        quantity,
        seed,
        bucket,
        offset,
    } = sample;
    let said =
        "write TABLESAMPLE BERNOULLI (10), TABLESAMPLE (10 PERCENT) or TABLESAMPLE (10 ROWS)";
    if seed.is_some() {
        return refuse("REPEATABLE", "leave it out");
    }
    let Some(TableSampleQuantity {
        parenthesized: _,
        value,
        unit,
    }) = quantity
    else {
        return refuse(sample.to_string().trim(), said);
    };
    let is_percent = match (modifier, name, unit) {
        _ if bucket.is_some() || offset.is_some() => None,
        (TableSampleModifier::TableSample, _, Some(TableSampleUnit::Percent)) => Some(true),
        (TableSampleModifier::TableSample, _, Some(TableSampleUnit::Rows)) => Some(false),
        (
            TableSampleModifier::TableSample,
            Some(TableSampleMethod::Bernoulli | TableSampleMethod::System),
            None,
        ) => Some(true),
        _ => None,
    };
    let number = value.to_string();
    match is_percent {
        Some(true)
            if number
                .parse()
                .is_ok_and(|n: f64| (0.0..=100.0).contains(&n)) =>
        {
            Ok(format!("WHERE random() * 100 < {number}"))
        }
        Some(false) if number.parse::<u64>().is_ok() => {
            Ok(format!("ORDER BY random() LIMIT {number}"))
        }
        _ => refuse(sample.to_string().trim(), said),
    }
}

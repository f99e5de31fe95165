//! The options of a table: `CREATE TABLE … WITH (retention = '7 days', distribute_by = 'customer')`.
//!
//! DataFusion knows none of them: they are taken out of the statement before it is planned, and put
//! into the plan as metadata of what the table is made of.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::compute::kernels::cast_utils::parse_interval_month_day_nano;
use arrow::datatypes::SchemaRef;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{
    CreateMemoryTable, DdlStatement, EmptyRelation, Expr, LogicalPlan, Projection,
};
use datafusion::sql::sqlparser::ast::{self, CreateTableOptions, SqlOption, Value};
use flashmesh_storage::table::{Distribution, MAX_BUCKETS, TableLayout, normalise_schema};

use crate::error::{Error, Result};
use crate::names::name_of;

/// What marks the plan of CREATE TABLE with a retention: microseconds.
const RETENTION: &str = "flashmesh.retention_us";
/// What marks it with a layout: its name.
const LAYOUT: &str = "flashmesh.layout";
/// What marks it with columns by which rows lie: a list in JSON.
const DISTRIBUTE_BY: &str = "flashmesh.distribute_by";
/// What marks it with how many buckets they have.
const BUCKETS: &str = "flashmesh.buckets";
/// What there is.
const KNOWN: &str =
    "retention = '7 days', layout = 'pax', distribute_by = 'column', buckets = 16, replicas = 2";

/// What a table is created with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TableOptions {
    /// For how long its past versions stay readable.
    pub retention: Option<Duration>,
    /// How its rows lie in pages.
    pub layout: Option<TableLayout>,
    /// By which columns its rows lie on nodes; by none, where these are none.
    pub distribute_by: Option<Vec<String>>,
    /// In how many buckets.
    pub buckets: Option<u16>,
    /// On how many nodes each of its pages has to be.
    pub replicas: Option<u16>,
}

impl TableOptions {
    /// Takes the options out of CREATE TABLE, if it has any.
    pub fn take(statement: &mut ast::Statement) -> Result<Option<Self>> {
        let ast::Statement::CreateTable(create) = statement else {
            return Ok(None);
        };
        match std::mem::take(&mut create.table_options) {
            CreateTableOptions::None => Ok(None),
            CreateTableOptions::With(options) => Self::parse(&options).map(Some),
            other => Err(Error::usage(format!(
                "CREATE TABLE takes no {other}; it takes WITH ({KNOWN})"
            ))),
        }
    }

    /// What `WITH (…)` or `SET (…)` says.
    fn parse(options: &[SqlOption]) -> Result<Self> {
        fn put<T>(place: &mut Option<T>, value: T, key: &ast::Ident) -> Result<()> {
            match place.replace(value) {
                None => Ok(()),
                Some(_) => Err(Error::usage(format!(
                    "the table option '{key}' is given twice"
                ))),
            }
        }
        let mut all = Self::default();
        for option in options {
            let SqlOption::KeyValue { key, value } = option else {
                return Err(Error::usage(format!("table options are ({KNOWN})")));
            };
            match key.value.to_ascii_lowercase().as_str() {
                "retention" => {
                    let retention = parsed_retention(&text_of(value))?;
                    put(&mut all.retention, retention, key)?;
                }
                "layout" => put(&mut all.layout, TableLayout::parse(&text_of(value))?, key)?,
                "distribute_by" => put(&mut all.distribute_by, columns_of(value)?, key)?,
                "buckets" => put(&mut all.buckets, number_of(value, key, MAX_BUCKETS)?, key)?,
                "replicas" => put(&mut all.replicas, number_of(value, key, u16::MAX)?, key)?,
                _ => {
                    return Err(Error::usage(format!(
                        "tables have no option '{key}'; they have ({KNOWN})"
                    )));
                }
            }
        }
        if all.buckets.is_some() && all.distribute_by.is_none() {
            return Err(Error::usage(
                "buckets = … says how many there are of a table that is distributed: add distribute_by = 'column'",
            ));
        }
        Ok(all)
    }

    /// Checks that each page is on as many nodes as the table asks for; `replicas`: on how many it is.
    pub fn check_replicas(&self, replicas: u16) -> Result<()> {
        match self.replicas {
            Some(asked) if asked > replicas => Err(Error::usage(format!(
                "a table with replicas = {asked} asks for each page on {asked} nodes, and here it is on {replicas}; \
                 `replicas` in the rack file says so, for all tables"
            ))),
            _ => Ok(()),
        }
    }

    /// The plan of CREATE TABLE with the options in it, but for those that are checked alone.
    pub fn put(self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) = plan else {
            return Ok(plan);
        };
        let by = self.distribute_by.map(|columns| serde_json::json!(columns));
        let marks = [
            (
                RETENTION,
                self.retention.map(|of| of.as_micros().to_string()),
            ),
            (LAYOUT, self.layout.map(|layout| layout.name().to_string())),
            (DISTRIBUTE_BY, by.map(|columns| columns.to_string())),
            (BUCKETS, self.buckets.map(|buckets| buckets.to_string())),
        ];
        let marks = marks
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_string(), value?)));
        let marks: HashMap<_, _> = marks.collect();
        with_marks(create, marks)
    }

    /// The options that [`Self::put`] has put into a plan.
    pub fn of(input: &LogicalPlan) -> Self {
        let mark = |key| input.schema().metadata().get(key);
        let retention = mark(RETENTION).and_then(|mark| mark.parse().ok());
        let columns = mark(DISTRIBUTE_BY).and_then(|mark| serde_json::from_str(mark).ok());
        Self {
            retention: retention.map(Duration::from_micros),
            layout: mark(LAYOUT).and_then(|mark| TableLayout::parse(mark).ok()),
            distribute_by: columns,
            buckets: mark(BUCKETS).and_then(|mark| mark.parse().ok()),
            replicas: None,
        }
    }

    /// What `ALTER TABLE … SET (…)` says, which is one thing.
    pub fn to_set(options: &[SqlOption]) -> Result<NewOption> {
        match Self::parse(options)? {
            Self {
                retention: Some(retention),
                layout: None,
                distribute_by: None,
                buckets: None,
                replicas: None,
            } => Ok(NewOption::Retention(retention)),
            options @ Self {
                retention: None,
                layout: None,
                distribute_by: Some(_),
                replicas: None,
                ..
            } => Ok(NewOption::Distribution(options)),
            Self {
                layout: Some(_), ..
            } => Err(Error::usage(
                "the layout of a table is that of its creation; CREATE TABLE … WITH (layout = …) AS SELECT * FROM it makes another",
            )),
            Self {
                replicas: Some(_), ..
            } => Err(Error::usage(
                "on how many nodes each page is, `replicas` in the rack file says, for all tables",
            )),
            _ => Err(Error::usage(
                "ALTER TABLE … SET takes (retention = '7 days') or (distribute_by = 'column')",
            )),
        }
    }

    /// By which of these columns of `table` rows lie: on a rack of so many nodes, where it does not say in
    /// how many buckets.
    pub fn distribution(
        &self,
        table: &str,
        columns: &SchemaRef,
        nodes: usize,
    ) -> Result<Option<Arc<Distribution>>> {
        let Some(by) = self.distribute_by.as_ref().filter(|by| !by.is_empty()) else {
            return Ok(None);
        };
        let columns = normalise_schema(columns)?;
        let place_of = |name: &String| {
            let place = columns.index_of(name).map_err(|_| {
                Error::usage(format!(
                    "table '{table}' has no column '{name}' to be distributed by"
                ))
            })?;
            Ok(place as u32)
        };
        let by = by.iter().map(place_of).collect::<Result<_>>()?;
        let buckets = self.buckets;
        let buckets = buckets.unwrap_or_else(|| Distribution::default_buckets(nodes));
        let distribution = Distribution::new(&columns, by, buckets);
        Ok(Some(Arc::new(distribution?)))
    }
}

/// The plan of CREATE TABLE with more marks: metadata of what the table is made of.
pub(crate) fn with_marks(
    create: CreateMemoryTable,
    mut marks: HashMap<String, String>,
) -> Result<LogicalPlan> {
    let schema = create.input.schema();
    let known = schema.metadata().iter();
    marks.extend(known.map(|(key, value)| (key.clone(), value.clone())));
    let fields = schema.iter();
    let fields = fields.map(|(name, field)| (name.cloned(), Arc::clone(field)));
    let marked = Arc::new(DFSchema::new_with_metadata(fields.collect(), marks)?);
    let input = match create.input.as_ref() {
        LogicalPlan::EmptyRelation(EmptyRelation {
            produce_one_row: false,
            ..
        }) => LogicalPlan::EmptyRelation(EmptyRelation {
            produce_one_row: false,
            schema: marked,
        }),
        _ => {
            let columns = schema.columns().into_iter().map(Expr::Column).collect();
            let input = Arc::clone(&create.input);
            LogicalPlan::Projection(Projection::try_new_with_schema(columns, input, marked)?)
        }
    };
    let create = CreateMemoryTable {
        input: Arc::new(input),
        ..create
    };
    Ok(LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)))
}

/// What ALTER TABLE gives a table.
pub(crate) enum NewOption {
    /// For how long its past versions stay readable.
    Retention(Duration),
    /// By what its rows lie.
    Distribution(TableOptions),
}

fn text_of(value: &ast::Expr) -> String {
    match value {
        ast::Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => text.clone(),
            Value::Number(number, _) => number.to_string(),
            other => other.to_string(),
        },
        ast::Expr::Identifier(name) => name.value.clone(),
        other => other.to_string(),
    }
}

fn number_of(value: &ast::Expr, key: &ast::Ident, most: u16) -> Result<u16> {
    let text = text_of(value);
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| Error::usage(format!("{key} is a number of 1 to {most}, not '{text}'")))
}

/// The columns that `'a, b'`, `a` or `(a, b)` names; none: `''`.
fn columns_of(value: &ast::Expr) -> Result<Vec<String>> {
    let one = |value: &ast::Expr| match value {
        ast::Expr::Identifier(name) => Ok(name_of(name)),
        ast::Expr::Value(ast::ValueWithSpan {
            value: Value::SingleQuotedString(text),
            ..
        }) => Ok(text.clone()),
        other => Err(Error::usage(format!(
            "distribute_by takes columns ('customer', or (region, customer)), not {other}"
        ))),
    };
    match value {
        ast::Expr::Tuple(all) => all.iter().map(one).collect(),
        ast::Expr::Nested(nested) => Ok(vec![one(nested)?]),
        ast::Expr::Identifier(_) => Ok(vec![one(value)?]),
        _ => {
            let text = one(value)?;
            let names = text.split(',').map(str::trim);
            Ok(names
                .filter(|name| !name.is_empty())
                .map(Into::into)
                .collect())
        }
    }
}

/// The length of time that a text says.
fn parsed_retention(text: &str) -> Result<Duration> {
    let wrong = || {
        Error::usage(format!(
            "retention takes weeks, days, hours, minutes or seconds ('7 days'), or '0' for none, not '{text}'"
        ))
    };
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let interval = parse_interval_month_day_nano(text).map_err(|_| wrong())?;
    let days = u64::try_from(interval.days).map_err(|_| wrong())?;
    let nanoseconds = u64::try_from(interval.nanoseconds).map_err(|_| wrong())?;
    if interval.months != 0 {
        // A month is not always as long.
        return Err(wrong());
    }
    let retention = Duration::from_secs(days * 24 * 3600) + Duration::from_nanos(nanoseconds);
    match retention.as_micros() {
        0 => Err(wrong()),
        _ => Ok(retention),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_is_a_length_of_time() {
        let day = 24 * 3600;
        for (text, seconds) in [
            ("0", 0),
            ("7 days", 7 * day),
            ("1 week", 7 * day),
            ("1 hour", 3600),
            ("1 day 2 minutes", day + 120),
        ] {
            let parsed = parsed_retention(text).unwrap();
            assert_eq!(parsed, Duration::from_secs(seconds), "{text}");
        }
        for text in [
            "",
            "soon",
            "-1 day",
            "1 month",
            "5",
            "1 nanosecond",
            "1 day -25 hours",
        ] {
            assert!(parsed_retention(text).is_err(), "{text}");
        }
    }
}

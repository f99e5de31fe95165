//! `SUMMARIZE`: a row for each column of a table or query, with what its values are like, as DuckDB
//! gives it. It is a query over one scan, so that counts, minima and maxima come from the store; of wide tables it is
//! several, as the time that a planner takes grows with the square of how many aggregates there are together.

use arrow::datatypes::DataType;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{Query, SetExpr, Statement, TableFactor, Value};

use crate::Session;
use crate::error::{Error, Result};
use crate::parameters::Values;
use crate::parse::parse;

/// The columns of the answer: name, type, and what gives the value for a column of the query, which
/// [`Summarized`] says.
type Column = (
    &'static str,
    &'static str,
    fn(&Summarized) -> Option<String>,
);

const COLUMNS: [Column; 12] = [
    ("column_name", "VARCHAR", |c| Some(c.name.clone())),
    ("column_type", "VARCHAR", |c| {
        Some(text(&flashmesh_planner::type_name(&c.data_type)))
    }),
    ("min", "VARCHAR", |c| c.if_ordered("min")),
    ("max", "VARCHAR", |c| c.if_ordered("max")),
    ("approx_unique", "BIGINT", Summarized::distinct),
    ("avg", "DOUBLE", |c| c.if_number("avg({})")),
    ("std", "DOUBLE", |c| c.if_number("stddev({})")),
    ("q25", "DOUBLE", |c| c.quantile("0.25")),
    ("q50", "DOUBLE", |c| c.quantile("0.5")),
    ("q75", "DOUBLE", |c| c.quantile("0.75")),
    ("count", "BIGINT", |_| Some("count(*)".into())),
    ("null_percentage", "DOUBLE", |c| {
        let alias = &c.alias;
        Some(format!(
            "round(100.0 * (count(*) - count({alias})) / nullif(count(*), 0), 2)"
        ))
    }),
];

/// Columns whose aggregates are planned together.
const TOGETHER: usize = 32;

/// A column that is summarised.
struct Summarized {
    /// As a literal.
    name: String,
    data_type: DataType,
    /// What it is called in the query: names may be there twice.
    alias: String,
}

impl Summarized {
    fn is_text(&self) -> bool {
        self.data_type.is_string()
    }

    fn is_number(&self) -> bool {
        self.data_type.is_numeric()
    }

    fn is_ordered(&self) -> bool {
        let is_time = self.data_type.is_temporal()
            && !matches!(
                self.data_type,
                DataType::Interval(_) | DataType::Duration(_)
            );
        self.is_number() || self.is_text() || is_time || self.data_type == DataType::Boolean
    }

    fn if_ordered(&self, function: &str) -> Option<String> {
        let aggregate = format!("{function}({})", self.alias);
        self.is_ordered().then_some(aggregate)
    }

    fn if_number(&self, aggregate: &str) -> Option<String> {
        self.is_number()
            .then(|| aggregate.replace("{}", &self.alias))
    }

    fn quantile(&self, at: &str) -> Option<String> {
        self.if_number(&format!(
            "approx_percentile_cont({at}) WITHIN GROUP (ORDER BY CAST({{}} AS DOUBLE))"
        ))
    }

    fn distinct(&self) -> Option<String> {
        // It takes no floats, whose texts tell them apart as well.
        let value = match self.data_type.is_floating() {
            true => format!("CAST({} AS VARCHAR)", self.alias),
            false => self.alias.clone(),
        };
        self.is_ordered()
            .then(|| format!("approx_distinct({value})"))
    }
}

fn text(text: &str) -> String {
    Value::SingleQuotedString(text.into()).to_string()
}

/// The query that summarises another one.
///
/// # Errors
/// Those of planning the query; [`Error::Usage`] where it has no columns.
pub(crate) async fn summary(
    session: &Session,
    query: Box<Query>,
    variables: &Values,
) -> Result<ParsedStatement> {
    let statement = ParsedStatement::Statement(Box::new(Statement::Query(query.clone())));
    let plan = Box::pin(session.plan_in(statement, variables)).await?;
    let fields = plan.schema().fields().iter().enumerate();
    let columns: Vec<_> = fields
        .map(|(number, field)| Summarized {
            name: text(field.name()),
            data_type: field.data_type().clone(),
            alias: format!("c{number}"),
        })
        .collect();
    if columns.is_empty() {
        return Err(Error::usage(
            "SUMMARIZE needs a table or a query that has columns",
        ));
    }
    let aliases: Vec<_> = columns.iter().map(|column| column.alias.as_str()).collect();
    let aliases = aliases.join(", ");
    let parts = columns.chunks(TOGETHER).enumerate();
    let parts = parts.map(|(number, columns)| part(number, columns, &aliases));
    let summary = format!(
        "SELECT {} FROM ({}) ORDER BY part, place",
        COLUMNS.map(|(name, ..)| name).join(", "),
        parts.collect::<Vec<_>>().join(" UNION ALL "),
    );
    let mut parsed = parse(&summary, "generic")?.pop();
    let whole = parsed.as_mut().and_then(|parsed| match parsed {
        ParsedStatement::Statement(statement) => match statement.as_mut() {
            Statement::Query(whole) => subquery(&mut whole.body),
            _ => None,
        },
        _ => None,
    });
    // As it was parsed, with what its text would not tell: parameters, versions of tables.
    put(&query, &mut whole.ok_or_else(no_query)?.body)?;
    parsed.ok_or_else(no_query)
}

/// A query of some of the columns, over `(SELECT 1)` in place of what is summarised.
fn part(number: usize, columns: &[Summarized], aliases: &str) -> String {
    let arrays = COLUMNS.map(|(name, sql_type, value)| {
        let of_column = |column: &Summarized| {
            let value = value(column).unwrap_or_else(|| "NULL".into());
            format!("CAST({value} AS {sql_type})")
        };
        let values: Vec<_> = columns.iter().map(of_column).collect();
        format!("[{}] AS {name}", values.join(", "))
    });
    let unnested = COLUMNS.map(|(name, ..)| format!("unnest({name}) AS {name}"));
    format!(
        "SELECT {}, unnest(range(0, {})) AS place, {number} AS part \
         FROM (SELECT {} FROM (SELECT 1) AS summarized({aliases}))",
        unnested.join(", "),
        columns.len(),
        arrays.join(", "),
    )
}

/// Puts the query where the parts have none.
fn put(query: &Query, parts: &mut SetExpr) -> Result<()> {
    match parts {
        SetExpr::SetOperation { left, right, .. } => {
            put(query, left)?;
            put(query, right)
        }
        part => {
            let inner = subquery(part).and_then(|part| subquery(&mut part.body));
            *inner.ok_or_else(no_query)? = query.clone();
            Ok(())
        }
    }
}

fn no_query() -> Error {
    Error::usage("SUMMARIZE has no query")
}

/// What a query selects from, where that is a query.
fn subquery(body: &mut SetExpr) -> Option<&mut Query> {
    let SetExpr::Select(select) = body else {
        return None;
    };
    match &mut select.from.first_mut()?.relation {
        TableFactor::Derived { subquery, .. } => Some(subquery),
        _ => None,
    }
}

//! Tables of a dump: statements that define them.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema};
use futures::TryStreamExt;

use super::super::backend::Backend;
use super::super::catalog::{Catalog, Index, Table, quoted};
use super::{full_name, text};
use crate::cli::output::sql_type;
use crate::{Error, Result};

/// The statements that define a table.
pub(super) struct Definitions {
    /// What makes it.
    pub create: String,
    /// What stands behind its rows: they are not generated again, and an index is built once.
    pub after: String,
}

/// What the system tells of a column.
struct Known {
    name: String,
    default: Option<String>,
    comment: Option<String>,
    generated: Option<Generated>,
}

struct Generated {
    when: String,
    next: Option<String>,
    increment: String,
}

impl Definitions {
    /// Asks for what there is to say of a table.
    ///
    /// # Errors
    /// [`Error::Usage`] for types that SQL does not name.
    pub async fn of(backend: &dyn Backend, catalog: &Catalog, table: &Table) -> Result<Self> {
        let none = format!("SELECT * FROM {} LIMIT 0", full_name(table));
        let schema = backend.run(none.into()).await?.rows.schema();
        let of_table = format!(
            "\"schema\" = {} AND \"table\" = {}",
            text(&table.schema),
            text(&table.name)
        );
        let columns = format!(
            "SELECT name, \"default\", \"generated\", next, increment, comment FROM system.columns \
             WHERE {of_table} ORDER BY position"
        );
        let columns = texts::<6>(backend, columns).await?.into_iter();
        let columns = columns.map(|[name, default, when, next, increment, comment]| Known {
            name: name.unwrap_or_default(),
            default,
            comment,
            generated: when.map(|when| Generated {
                when,
                next,
                increment: increment.unwrap_or_default(),
            }),
        });
        let columns: Vec<_> = columns.collect();
        let options = format!(
            "SELECT retention, layout, distributed_by, buckets, comment FROM system.tables WHERE {of_table}"
        );
        let options = texts::<5>(backend, options).await?.into_iter().next();
        let (options, of_table_itself) = match options {
            Some([retention, layout, by, buckets, comment]) => (
                options_of(table, [retention, layout, by, buckets])?,
                comment,
            ),
            None => (String::new(), None),
        };
        let shown = catalog.shown(&table.schema, &table.name);
        let mut after = String::new();
        if let Some(comment) = of_table_itself {
            after += &format!("COMMENT ON TABLE {shown} IS {};\n", text(&comment));
        }
        for column in &columns {
            if let Some(comment) = &column.comment {
                let name = quoted(&column.name);
                let comment = text(comment);
                after += &format!("COMMENT ON COLUMN {shown}.{name} IS {comment};\n");
            }
            let Some(generated) = &column.generated else {
                continue;
            };
            let Generated {
                when,
                next,
                increment,
            } = generated;
            let name = quoted(&column.name);
            let next = next.as_ref().ok_or_else(|| {
                Error::usage(format!(
                    "column {name} of {shown} is generated, and its numbers are used up or lost; \
                     ALTER TABLE {shown} ALTER COLUMN {name} DROP DEFAULT, then .dump"
                ))
            })?;
            after += &format!(
                "ALTER TABLE {shown} ALTER COLUMN {name} ADD GENERATED {when} AS IDENTITY \
                 (START WITH {next} INCREMENT BY {increment});\n"
            );
        }
        let indexes = format!(
            "SELECT name, options FROM system.indexes WHERE {of_table} AND options IS NOT NULL"
        );
        let of_indexes = texts::<2>(backend, indexes).await?;
        after += &create_indexes(catalog, table, &of_indexes);
        Ok(Self {
            create: create_table(catalog, table, &schema, &columns, &options)?,
            after,
        })
    }
}

/// The rows of a query, as texts.
async fn texts<const N: usize>(
    backend: &dyn Backend,
    question: String,
) -> Result<Vec<[Option<String>; N]>> {
    let answer = backend.run(question.into()).await?;
    let batches: Vec<RecordBatch> = answer.rows.try_collect().await?;
    let mut rows = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter();
        let columns = columns.map(|column| cast(column, &DataType::Utf8));
        let columns = columns.collect::<std::result::Result<Vec<ArrayRef>, _>>()?;
        for row in 0..batch.num_rows() {
            rows.push(std::array::from_fn(|place| {
                let column = columns.get(place)?.as_string_opt::<i32>()?;
                (!column.is_null(row)).then(|| column.value(row).to_owned())
            }));
        }
    }
    Ok(rows)
}

fn create_table(
    catalog: &Catalog,
    table: &Table,
    schema: &Schema,
    known: &[Known],
    options: &str,
) -> Result<String> {
    let mut parts = Vec::new();
    for field in schema.fields() {
        let name = quoted(field.name());
        let mut part = sql_type(field.data_type()).ok_or_else(|| {
            Error::usage(format!(
                "column '{}' of {}.{} is {}, which .dump can not write; COPY … TO 'file.parquet' can",
                field.name(),
                table.schema,
                table.name,
                field.data_type()
            ))
        })?;
        let of_table = table.columns.iter().find(|c| c.name == *field.name());
        if of_table.is_some_and(|column| !column.nullable) {
            part += " NOT NULL";
        }
        let known = known.iter().find(|known| known.name == *field.name());
        if let Some(default) = known.and_then(|known| known.default.as_ref()) {
            part += &format!(" DEFAULT {default}");
        }
        parts.push(format!("{name} {part}"));
    }
    let keys = indexes_of(catalog, table).filter(|index| index.constraint == "primary key");
    parts.extend(keys.map(|key| format!("PRIMARY KEY ({})", names(&key.columns))));
    let checks = table.checks.iter();
    parts.extend(checks.map(|(name, condition)| {
        let name = quoted(name);
        format!("CONSTRAINT {name} CHECK ({condition})")
    }));
    let name = catalog.shown(&table.schema, &table.name);
    Ok(format!(
        "CREATE TABLE {name} (\n  {}\n){options};\n",
        parts.join(",\n  ")
    ))
}

/// ` WITH (…)`, where a table has options.
fn options_of(table: &Table, options: [Option<String>; 4]) -> Result<String> {
    let [retention, layout, distributed_by, buckets] = options;
    let mut with = Vec::new();
    if let Some(retention) = retention {
        with.push(format!("retention = {}", text(&retention)));
    }
    if let Some(layout) = layout.filter(|layout| layout != "column") {
        with.push(format!("layout = {}", text(&layout)));
    }
    if let Some(by) = distributed_by {
        let is_column = |name: &&str| table.columns.iter().any(|column| column.name == *name);
        let by: Vec<_> = by.split(", ").collect();
        if !by.iter().all(is_column) {
            return Err(Error::usage(format!(
                "{}.{} is distributed by a column whose name has a comma, which .dump can not write; ALTER TABLE … RENAME COLUMN",
                table.schema, table.name
            )));
        }
        let by: Vec<_> = by.into_iter().map(quoted).collect();
        with.push(format!("distribute_by = ({})", by.join(", ")));
    }
    if let Some(buckets) = buckets {
        with.push(format!("buckets = {buckets}"));
    }
    Ok(match with.is_empty() {
        true => String::new(),
        false => format!(" WITH ({})", with.join(", ")),
    })
}

fn indexes_of<'a>(catalog: &'a Catalog, table: &'a Table) -> impl Iterator<Item = &'a Index> {
    let indexes = catalog.indexes.iter();
    indexes.filter(|index| index.schema == table.schema && index.table == table.name)
}

fn create_indexes(catalog: &Catalog, table: &Table, options: &[[Option<String>; 2]]) -> String {
    let indexes = indexes_of(catalog, table).filter(|index| index.constraint != "primary key");
    let create = indexes.map(|index| {
        let unique = match index.constraint {
            "unique" => "UNIQUE ",
            _ => "",
        };
        let with = options.iter().find_map(|[name, options]| {
            let is_its = name.as_ref() == Some(&index.name);
            let options = options.as_ref().filter(|_| is_its)?;
            Some(format!(" WITH ({options})"))
        });
        format!(
            "CREATE {unique}INDEX {} ON {} USING {} ({}){};\n",
            quoted(&index.name),
            catalog.shown(&table.schema, &table.name),
            index.kind,
            names(&index.columns),
            with.unwrap_or_default()
        )
    });
    create.collect()
}

fn names(columns: &[String]) -> String {
    let names = columns.iter().map(|column| quoted(column));
    names.collect::<Vec<_>>().join(", ")
}

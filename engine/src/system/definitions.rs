//! What the schema `system` tells of tables: their columns, constraints and indexes.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    ArrayRef, BooleanBuilder, Int64Builder, ListBuilder, RecordBatch, StringBuilder, UInt64Array,
};
use datafusion::error::Result;
use flashmesh_storage::flash::PAGE_SIZE_BYTES;
use flashmesh_storage::table::TableSnapshot;

use super::SystemSchema;
use crate::error::Error;
use crate::names::COMMENT;

impl SystemSchema {
    /// The tables on which one has a right. One that is dropped meanwhile is left out.
    fn seen(&self) -> Vec<(String, String, Arc<TableSnapshot>)> {
        let mut seen = Vec::new();
        for schema in self.database.schemas() {
            for table in self.database.tables(&schema) {
                if self.principal.rights(&schema, &table).is_empty() {
                    continue;
                }
                if let Ok(snapshot) = self.database.snapshot(&schema, &table) {
                    seen.push((schema.clone(), table, snapshot));
                }
            }
        }
        seen
    }

    pub(super) fn tables(&self) -> Result<RecordBatch> {
        let mut names = [StringBuilder::new(), StringBuilder::new()];
        let (mut layouts, mut retentions) = (StringBuilder::new(), StringBuilder::new());
        let (mut distributed, mut buckets) = (StringBuilder::new(), vec![]);
        let mut comments = StringBuilder::new();
        let (mut rows, mut segments, mut bytes) = (vec![], vec![], vec![]);
        for (schema, table, snapshot) in self.seen() {
            names[0].append_value(&schema);
            names[1].append_value(&table);
            layouts.append_value(snapshot.layout.name());
            let retention = self.database.retention(&schema, &table);
            retentions.append_option(text_of_retention(retention.unwrap_or_default()));
            let comment = self.database.comment(&schema, &table).unwrap_or_default();
            comments.append_option((!comment.is_empty()).then_some(comment));
            let by = snapshot.distribution.as_ref();
            distributed.append_option(by.map(|by| {
                let fields = snapshot.schema.fields();
                let columns = by.columns().iter();
                let columns = columns.map(|column| fields[*column as usize].name().as_str());
                columns.collect::<Vec<_>>().join(", ")
            }));
            buckets.push(by.map(|by| u64::from(by.buckets())));
            rows.push(snapshot.rows());
            segments.push(snapshot.segments.len() as u64);
            let pages = snapshot.runs().map(|run| u64::from(run.count));
            bytes.push(pages.sum::<u64>() * PAGE_SIZE_BYTES as u64);
        }
        let [schemas, tables] = names.map(|mut of| Arc::new(of.finish()) as ArrayRef);
        let number = |values: Vec<u64>| Arc::new(UInt64Array::from(values)) as ArrayRef;
        let text = |mut values: StringBuilder| Arc::new(values.finish()) as ArrayRef;
        let buckets = Arc::new(UInt64Array::from(buckets)) as ArrayRef;
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("schema", schemas, false),
            ("table", tables, false),
            ("layout", text(layouts), false),
            ("distributed_by", text(distributed), true),
            ("buckets", buckets, true),
            ("retention", text(retentions), true),
            ("rows", number(rows), false),
            ("segments", number(segments), false),
            ("bytes", number(bytes), false),
            ("comment", text(comments), true),
        ])?)
    }

    pub(super) fn columns(&self) -> Result<RecordBatch> {
        let mut names = ["schema", "table", "name", "type"].map(|n| (n, StringBuilder::new()));
        let (mut positions, mut nullable) = (vec![], BooleanBuilder::new());
        let (mut defaults, mut generated) = (StringBuilder::new(), StringBuilder::new());
        let mut comments = StringBuilder::new();
        let (mut next, mut increments) = (Int64Builder::new(), Int64Builder::new());
        for (schema, table, snapshot) in self.seen() {
            for (place, field) in snapshot.schema.fields().iter().enumerate() {
                let data_type = field.data_type().to_string();
                let values = [&schema, &table, field.name(), &data_type];
                for ((_, column), value) in names.iter_mut().zip(values) {
                    column.append_value(value);
                }
                positions.push(place as u64 + 1);
                nullable.append_value(field.is_nullable());
                comments.append_option(field.metadata().get(COMMENT));
                let Some(of) = snapshot.generated(place) else {
                    defaults.append_option(snapshot.defaults.get(place).and_then(Option::as_ref));
                    generated.append_null();
                    next.append_null();
                    increments.append_null();
                    continue;
                };
                defaults.append_null();
                generated.append_value(of.when());
                let number = self.database.next_of_sequence(of.sequence);
                let number = number.map_err(Error::Storage)?;
                next.append_option(number.and_then(|number| of.value(number)));
                increments.append_value(of.increment);
            }
        }
        let [schemas, tables, names, types] = names.map(|(name, mut column)| {
            let column: ArrayRef = Arc::new(column.finish());
            (name, column, false)
        });
        let positions = Arc::new(UInt64Array::from(positions)) as ArrayRef;
        let text = |mut values: StringBuilder| Arc::new(values.finish()) as ArrayRef;
        Ok(RecordBatch::try_from_iter_with_nullable([
            schemas,
            tables,
            names,
            ("position", positions, false),
            types,
            ("nullable", Arc::new(nullable.finish()) as ArrayRef, false),
            ("default", text(defaults), true),
            ("generated", text(generated), true),
            ("next", Arc::new(next.finish()) as ArrayRef, true),
            ("increment", Arc::new(increments.finish()) as ArrayRef, true),
            ("comment", text(comments), true),
        ])?)
    }

    pub(super) fn checks(&self) -> Result<RecordBatch> {
        let mut columns =
            ["schema", "table", "name", "condition"].map(|n| (n, StringBuilder::new()));
        for (schema, table, snapshot) in self.seen() {
            for check in &snapshot.checks {
                let values = [&schema, &table, &check.name, &check.text];
                for ((_, column), value) in columns.iter_mut().zip(values) {
                    column.append_value(value);
                }
            }
        }
        let columns = columns.map(|(name, mut column)| {
            let column: ArrayRef = Arc::new(column.finish());
            (name, column, false)
        });
        Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
    }

    pub(super) fn indexes(&self) -> Result<RecordBatch> {
        let (mut schemas, mut tables) = (StringBuilder::new(), StringBuilder::new());
        let (mut names, mut kinds) = (StringBuilder::new(), StringBuilder::new());
        let mut columns = ListBuilder::new(StringBuilder::new());
        let (mut constraints, mut options) = (StringBuilder::new(), StringBuilder::new());
        let (mut parts, mut tail_segments, mut tail_rows) = (vec![], vec![], vec![]);
        let mut failures = StringBuilder::new();
        let number = |values: Vec<u64>| Arc::new(UInt64Array::from(values)) as ArrayRef;
        for (schema, table, snapshot) in self.seen() {
            for index in &snapshot.indexes {
                let definition = &index.definition;
                schemas.append_value(&schema);
                tables.append_value(&table);
                names.append_value(&definition.name);
                kinds.append_value(definition.kind.to_string());
                columns.append_value(snapshot.index_columns(definition).into_iter().map(Some));
                constraints.append_option(match (definition.primary, definition.unique) {
                    (true, _) => Some("primary key"),
                    (_, true) => Some("unique"),
                    _ => None,
                });
                options.append_option((!definition.options.is_empty()).then(|| {
                    let options = definition.options.iter();
                    let options = options
                        .map(|(name, value)| format!("{name} = '{}'", value.replace('\'', "''")));
                    options.collect::<Vec<_>>().join(", ")
                }));
                parts.push(index.parts.len() as u64);
                tail_segments.push(index.tail.len() as u64);
                tail_rows.push(index.tail_rows());
                let failure = self.database.index_failure(snapshot.id, &definition.name);
                failures.append_option(failure);
            }
        }
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("schema", Arc::new(schemas.finish()) as ArrayRef, false),
            ("table", Arc::new(tables.finish()) as ArrayRef, false),
            ("name", Arc::new(names.finish()) as ArrayRef, false),
            ("kind", Arc::new(kinds.finish()) as ArrayRef, false),
            ("columns", Arc::new(columns.finish()) as ArrayRef, false),
            (
                "constraint",
                Arc::new(constraints.finish()) as ArrayRef,
                true,
            ),
            ("options", Arc::new(options.finish()) as ArrayRef, true),
            ("parts", number(parts), false),
            ("uncovered_segments", number(tail_segments), false),
            ("uncovered_rows", number(tail_rows), false),
            ("failure", Arc::new(failures.finish()) as ArrayRef, true),
        ])?)
    }
}

/// A length of time as `WITH (retention = …)` takes it; `None` of none.
fn text_of_retention(retention: Duration) -> Option<String> {
    let mut left = retention.as_micros();
    let mut text = String::new();
    for (unit, microseconds) in [
        ("day", 86_400_000_000),
        ("hour", 3_600_000_000),
        ("minute", 60_000_000),
        ("second", 1_000_000),
        ("microsecond", 1),
    ] {
        let count = left / microseconds;
        left %= microseconds;
        if count > 0 {
            let space = if text.is_empty() { "" } else { " " };
            let plural = if count == 1 { "" } else { "s" };
            let _ = write!(text, "{space}{count} {unit}{plural}");
        }
    }
    (!text.is_empty()).then_some(text)
}

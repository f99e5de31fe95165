//! What files in Parquet say of their floats.
//!
//! Their writers leave NaN out of the least and the greatest value of a column, and the format has no other place for
//! it (apache/parquet-format, README, "NaN"). Here NaN is greater than all numbers: `f > 2` has rows where the greatest
//! value is 1, and that is not `max(f)`.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, IsNotNullExpr, IsNullExpr, Literal,
};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::walk::Walk as _;

/// Leaves out of what parts of files are passed over by all that would pass over NaN. The rows that are read are
/// filtered above; where they are filtered as they are read, which is a setting, it does nothing.
#[derive(Debug)]
pub(super) struct FloatsOfFiles;

impl PhysicalOptimizerRule for FloatsOfFiles {
    fn name(&self) -> &str {
        "flashmesh_floats_of_files"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let changed = plan.transform_up(|node| {
            Ok(match with_all_floats(&node) {
                Some(changed) => Transformed::yes(changed),
                None => Transformed::no(node),
            })
        });
        Ok(changed?.data)
    }
}

/// Statistics without what NaN is left out of.
pub(super) fn without_bounds_of_floats(mut known: Statistics, schema: &Schema) -> Statistics {
    for (column, field) in known.column_statistics.iter_mut().zip(schema.fields()) {
        if field.data_type().is_floating() {
            (column.min_value, column.max_value) = (Precision::Absent, Precision::Absent);
        }
    }
    known
}

/// A scan of files that passes over no NaN; `None` where it does not.
fn with_all_floats(node: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let scan = node.downcast_ref::<DataSourceExec>()?;
    let (config, source) = scan.downcast_to_file_source::<ParquetSource>()?;
    let schema = config.file_source().table_schema().table_schema();
    let predicate = match source.table_parquet_options().global.pushdown_filters {
        true => None,
        false => config.file_source().filter(),
    };
    let all = predicate
        .as_ref()
        .map(split_conjunction)
        .unwrap_or_default();
    let of_numbers = all.iter().filter(|part| !may_pass_over_nan(part, schema));
    let of_numbers: Vec<_> = of_numbers.map(|part| Arc::clone(part)).collect();
    let groups = without_bounds(&config.file_groups, schema);
    if of_numbers.len() == all.len() && groups.is_none() {
        return None;
    }
    let mut changed = FileScanConfigBuilder::from(config.clone());
    if of_numbers.len() < all.len() {
        let source = source.with_predicate(conjunction(of_numbers));
        changed = changed.with_source(Arc::new(source));
    }
    if let Some(groups) = groups {
        changed = changed.with_file_groups(groups);
    }
    Some(DataSourceExec::from_data_source(changed.build()))
}

/// Files that say nothing of the least and the greatest of their floats: of a column that has one number, and
/// NaN besides, they are that number, and what reads the file would not look at its rows. `None` where none does.
fn without_bounds(groups: &[FileGroup], schema: &Schema) -> Option<Vec<FileGroup>> {
    let says_any = |file: &PartitionedFile| {
        let known = file.statistics.as_ref();
        known.is_some_and(|known| {
            let columns = known.column_statistics.iter().zip(schema.fields());
            let mut floats = columns.filter(|(_, field)| field.data_type().is_floating());
            floats.any(|(column, _)| column.min_value != Precision::Absent)
        })
    };
    if !groups.iter().flat_map(FileGroup::iter).any(says_any) {
        return None;
    }
    let groups = groups.iter().map(|group| {
        let mut changed = group.clone().into_inner();
        for file in &mut changed {
            if let Some(known) = &file.statistics {
                let known = without_bounds_of_floats(known.as_ref().clone(), schema);
                file.statistics = Some(Arc::new(known));
            }
        }
        let changed = FileGroup::new(changed);
        match group.file_statistics(None) {
            Some(known) => changed.with_statistics(Arc::new(known.clone())),
            None => changed,
        }
    });
    Some(groups.collect())
}

/// Whether a condition may be true of NaN where it is true of no number.
fn may_pass_over_nan(condition: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    let is_float = |column: &Column| {
        let field = schema.field_with_name(column.name());
        field.is_ok_and(|field| field.data_type().is_floating())
    };
    if !collect_columns(condition).iter().any(is_float) {
        return false;
    }
    if condition.is::<IsNullExpr>() || condition.is::<IsNotNullExpr>() {
        return false;
    }
    let Some(comparison) = condition.downcast_ref::<BinaryExpr>() else {
        return true;
    };
    let (left, right) = (comparison.left(), comparison.right());
    match comparison.op() {
        Operator::Eq | Operator::Lt | Operator::LtEq => !(left.is::<Column>() && is_number(right)),
        Operator::Gt | Operator::GtEq => !(is_number(left) && right.is::<Column>()),
        _ => true,
    }
}

fn is_number(value: &Arc<dyn PhysicalExpr>) -> bool {
    let literal = value.downcast_ref::<Literal>();
    literal.is_some_and(|literal| match literal.value() {
        ScalarValue::Float64(Some(value)) => !value.is_nan(),
        ScalarValue::Float32(Some(value)) => !value.is_nan(),
        _ => false,
    })
}

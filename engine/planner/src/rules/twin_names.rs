//! Filters that go down past columns of one name.
//!
//! DataFusion 55 finds the column of a filter among those of a child by its name, and takes the
//! first of that name: `a LEFT JOIN b … WHERE b.id IS DISTINCT FROM 1`, whose sides were swapped,
//! would test `a.id`. Its rule runs here with such filters held back where a name says too little;
//! they stay above, where columns are told apart by their places.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;

use super::guard::HeldBack;

/// Filters of columns with one of these names, by which the node may not find the one that is meant.
#[derive(Debug)]
pub(super) struct OfTwins(HashSet<String>);

impl HeldBack for OfTwins {
    fn at(node: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        // A projection knows its expressions by the names that it gives them.
        let own = node.is::<ProjectionExec>().then(|| node.schema());
        let children = node.children().into_iter().map(|child| child.schema());
        let mut twins = HashSet::new();
        for schema in own.into_iter().chain(children) {
            twins.extend(twin_names(&schema));
        }
        (!twins.is_empty()).then_some(Self(twins))
    }

    fn hold_filters(&self, filters: &mut [Arc<dyn PhysicalExpr>]) {
        for filter in filters {
            let columns = collect_columns(filter);
            if columns.iter().any(|c| self.0.contains(c.name())) {
                // A column that no child has: the node refuses it, and the filter itself stays.
                *filter = Arc::new(Column::new("", usize::MAX));
            }
        }
    }
}

fn twin_names(schema: &Schema) -> impl Iterator<Item = String> {
    let mut seen = HashSet::with_capacity(schema.fields().len());
    let names = schema.fields().iter().map(|field| field.name().as_str());
    names
        .filter(move |name| !seen.insert(*name))
        .map(str::to_owned)
}

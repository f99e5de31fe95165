//! Aggregates that DataFusion has not, or has otherwise.

mod joined_texts;
mod min_max;
mod moments;
mod of_values;
mod sliding;

use std::sync::Arc;

use datafusion::logical_expr::AggregateUDF;

/// The functions, to stand beside DataFusion's and to take the places of those with the same names.
pub fn functions() -> Vec<Arc<AggregateUDF>> {
    let all = min_max::functions().into_iter();
    all.chain(of_values::functions())
        .chain(moments::functions())
        .chain(sliding::functions())
        .chain([joined_texts::function()])
        .collect()
}

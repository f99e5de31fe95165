//! Aggregates that DataFusion has not, or has otherwise.

mod joined_texts;
mod min_max;
mod moments;
mod of_values;
mod sliding;
mod temporal;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::logical_expr::AggregateUDF;
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;

/// The functions, to stand beside DataFusion's and to take the places of those with the same names.
pub fn functions() -> Vec<Arc<AggregateUDF>> {
    let all = min_max::functions().into_iter();
    all.chain(of_values::functions())
        .chain(moments::functions())
        .chain(sliding::functions())
        .chain([joined_texts::function()])
        .collect()
}

/// The types that DataFusion's function takes for one argument of that type.
fn coerced(of: &DataType, function: &AggregateUDF) -> Option<Vec<DataType>> {
    let field = Arc::new(Field::new("", of.clone(), true));
    let fields = fields_with_udf(&[field], function).ok()?;
    Some(fields.iter().map(|of| of.data_type().clone()).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::SessionStateBuilder;

    /// A node that is sent a plan finds its functions by their names alone.
    #[test]
    fn functions_are_found_by_their_own_names() {
        let builder = SessionStateBuilder::new().with_default_features();
        let state = crate::configure(builder).build();
        let all = state.aggregate_functions();
        for (name, function) in all {
            let found = all.get(function.name());
            let is_it = found.is_some_and(|found| Arc::ptr_eq(found, function));
            assert!(is_it, "{name} is {}", function.name());
        }
    }
}

//! `string_agg` in several orders at once: `string_agg(a, ',' ORDER BY b), string_agg(a, ',' ORDER BY c)`.
//! DataFusion's has its rows come in its order, and refuses two orders; its accumulator sorts them by itself, as that
//! of `array_agg` does.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::functions_aggregate::string_agg::string_agg_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, Signature,
};

/// The function, to take the place of DataFusion's.
pub fn function() -> Arc<AggregateUDF> {
    let inner = string_agg_udaf();
    Arc::new(AggregateUDF::from(JoinedTexts { inner }))
}

/// DataFusion's function, whose rows may come in any order.
#[derive(Debug, PartialEq, Eq, Hash)]
struct JoinedTexts {
    inner: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for JoinedTexts {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.inner.accumulator(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::SoftRequirement
    }

    fn with_beneficial_ordering(
        self: Arc<Self>,
        _is_sorted: bool,
    ) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        // It sorts, be they sorted.
        Ok(Some(self))
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

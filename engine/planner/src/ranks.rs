//! `row_number`, `rank`, `dense_rank` and `ntile` as signed numbers, which PostgreSQL and DuckDB give: of
//! DataFusion's unsigned ones `r1 - r2` fails where the second is the greater one.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::{SortOptions, cast};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_window::ntile::ntile_udwf;
use datafusion::functions_window::rank::{dense_rank_udwf, rank_udwf};
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::function::{
    ExpressionArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs,
};
use datafusion::logical_expr::window_state::WindowAggState;
use datafusion::logical_expr::{
    Documentation, Expr, LimitEffect, PartitionEvaluator, Signature, WindowUDF, WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;

/// The functions, to take the places of DataFusion's.
pub fn functions() -> [Arc<WindowUDF>; 4] {
    [
        row_number_udwf(),
        rank_udwf(),
        dense_rank_udwf(),
        ntile_udwf(),
    ]
    .map(signed_function)
}

/// The number of a row in its partition, from 1. What plans call must be what nodes that run a part of them know.
pub fn row_number() -> Expr {
    signed_function(row_number_udwf()).call(vec![])
}

fn signed_function(inner: Arc<WindowUDF>) -> Arc<WindowUDF> {
    Arc::new(WindowUDF::from(Signed { inner }))
}

/// DataFusion's function, with signed numbers.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Signed {
    inner: Arc<WindowUDF>,
}

impl WindowUDFImpl for Signed {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn expressions(&self, args: ExpressionArgs<'_>) -> Vec<Arc<dyn PhysicalExpr>> {
        self.inner.expressions(args)
    }

    fn partition_evaluator(
        &self,
        args: PartitionEvaluatorArgs<'_>,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        let inner = self.inner.partition_evaluator_factory(args)?;
        Ok(Box::new(Evaluator { inner }))
    }

    fn field(&self, args: WindowUDFFieldArgs<'_>) -> Result<FieldRef> {
        let field = self.inner.field(args)?.as_ref().clone();
        Ok(Arc::new(field.with_data_type(DataType::Int64)))
    }

    fn sort_options(&self) -> Option<SortOptions> {
        self.inner.sort_options()
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn limit_effect(&self, args: &[Arc<dyn PhysicalExpr>]) -> LimitEffect {
        self.inner.inner().limit_effect(args)
    }
}

#[derive(Debug)]
struct Evaluator {
    inner: Box<dyn PartitionEvaluator>,
}

impl PartitionEvaluator for Evaluator {
    fn memoize(&mut self, state: &mut WindowAggState) -> Result<()> {
        self.inner.memoize(state)
    }

    fn get_range(&self, row: usize, rows: usize) -> Result<Range<usize>> {
        self.inner.get_range(row, rows)
    }

    fn is_causal(&self) -> bool {
        self.inner.is_causal()
    }

    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        signed(&self.inner.evaluate_all(values, rows)?)
    }

    fn evaluate(&mut self, values: &[ArrayRef], range: &Range<usize>) -> Result<ScalarValue> {
        self.inner
            .evaluate(values, range)?
            .cast_to(&DataType::Int64)
    }

    fn evaluate_all_with_rank(&self, rows: usize, ranks: &[Range<usize>]) -> Result<ArrayRef> {
        signed(&self.inner.evaluate_all_with_rank(rows, ranks)?)
    }

    fn supports_bounded_execution(&self) -> bool {
        self.inner.supports_bounded_execution()
    }

    fn uses_window_frame(&self) -> bool {
        self.inner.uses_window_frame()
    }

    fn include_rank(&self) -> bool {
        self.inner.include_rank()
    }
}

/// There are fewer rows than signed numbers.
fn signed(numbers: &ArrayRef) -> Result<ArrayRef> {
    Ok(cast(numbers, &DataType::Int64)?)
}

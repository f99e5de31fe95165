//! [`JoinKeysExec`]: the build side of a join, whose keys are told to all nodes.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, apply_expression_roots};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt, stream};

use super::collect::JoinKey;
use super::hub::{Collecting, QueryKeys};

/// Gives on the rows of a join's build side as they are. When all rows of a task have passed, all nodes
/// are told which keys these had: see [`join_keys`](super). Outside a plan in parts it does nothing.
#[derive(Debug)]
pub struct JoinKeysExec {
    input: Arc<dyn ExecutionPlan>,
    join: u32,
    keys: Arc<[JoinKey]>,
}

impl JoinKeysExec {
    /// Of the join with this number in its plan.
    ///
    /// # Errors
    /// Those of a key that is none of the input's.
    pub fn new(
        input: Arc<dyn ExecutionPlan>,
        join: u32,
        keys: impl IntoIterator<Item = (Arc<dyn PhysicalExpr>, Option<(i64, i64)>)>,
    ) -> Result<Self> {
        let schema = input.schema();
        let key = |(expr, span): (Arc<dyn PhysicalExpr>, _)| {
            Ok(JoinKey {
                data_type: expr.data_type(&schema)?,
                expr,
                span,
            })
        };
        let keys = keys.into_iter().map(key).collect::<Result<_>>()?;
        Ok(Self { input, join, keys })
    }

    /// The number of the join.
    pub fn join(&self) -> u32 {
        self.join
    }

    /// What is noted of each row.
    pub fn keys(&self) -> &[JoinKey] {
        &self.keys
    }
}

impl DisplayAs for JoinKeysExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.keys.iter().map(|key| key.expr.to_string()).collect();
        write!(
            f,
            "JoinKeysExec: join={}, keys=[{}]",
            self.join,
            keys.join(", ")
        )
    }
}

impl ExecutionPlan for JoinKeysExec {
    fn name(&self) -> &str {
        "JoinKeysExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(self.keys.iter().map(|key| &key.expr), visit)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(input), true) = (children.pop(), children.is_empty()) else {
            return internal_err!("JoinKeysExec has one child");
        };
        Ok(Arc::new(Self {
            input,
            join: self.join,
            keys: Arc::clone(&self.keys),
        }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, Arc::clone(&context))?;
        let Some(told) = context.session_config().get_extension::<QueryKeys>() else {
            return Ok(rows);
        };
        let streams = self.properties().partitioning.partition_count();
        let (join, keys) = (self.join, Arc::clone(&self.keys));
        let noted = told.collecting(join, &keys, streams, context.memory_pool());
        let stream = Noting { told, join, noted };
        let rows = stream::try_unfold((rows, stream), move |(mut rows, stream)| {
            let keys = Arc::clone(&keys);
            async move {
                let Some(batch) = rows.next().await.transpose()? else {
                    return Ok(None);
                };
                for (key, noted) in keys.iter().zip(&stream.noted.keys) {
                    noted.add(&key.expr.evaluate(&batch)?.into_array(batch.num_rows())?)?;
                }
                Ok(Some((batch, (rows, stream))))
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// A stream of the build side, until its end, or until nobody asks for its rows any more. An error ends the
/// query.
struct Noting {
    told: Arc<QueryKeys>,
    join: u32,
    noted: Arc<Collecting>,
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.told.ended(self.join, &self.noted);
    }
}

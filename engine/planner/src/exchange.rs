//! [`LocalExchangeExec`]: rows that meet on the node on which they are.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

/// An exchange of rows by the hash of a key among the streams of one node, where all nodes have an
/// exchange of their own: as no key is on two of them. What cuts plans into parts for nodes takes any
/// other exchange for one among these.
#[derive(Debug)]
pub struct LocalExchangeExec {
    exchange: Arc<RepartitionExec>,
}

impl LocalExchangeExec {
    /// One of the rows of `input`. Where it preserves order, streams have the order of the input's.
    ///
    /// # Errors
    /// `Internal` for an exchange by something else than a hash.
    pub fn new(
        input: Arc<dyn ExecutionPlan>,
        partitioning: Partitioning,
        preserves_order: bool,
    ) -> Result<Self> {
        if !matches!(partitioning, Partitioning::Hash(..)) {
            return internal_err!("a local exchange by {partitioning}");
        }
        let mut exchange = RepartitionExec::try_new(input, partitioning)?;
        if preserves_order {
            exchange = exchange.with_preserve_order();
        }
        Ok(Self {
            exchange: Arc::new(exchange),
        })
    }

    /// The key, and the number of streams.
    pub fn keys(&self) -> (&[Arc<dyn PhysicalExpr>], usize) {
        match self.exchange.partitioning() {
            Partitioning::Hash(keys, partitions) => (keys, *partitions),
            _ => (&[], 0),
        }
    }

    /// Whether rows of a stream keep the order of its inputs.
    pub fn preserves_order(&self) -> bool {
        self.exchange.preserve_order()
    }
}

impl DisplayAs for LocalExchangeExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalExchangeExec: {}", self.exchange.partitioning())
    }
}

impl ExecutionPlan for LocalExchangeExec {
    fn name(&self) -> &str {
        "LocalExchangeExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.exchange.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.exchange.children()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.exchange.maintains_input_order()
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.exchange.apply_expressions(visit)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(input), true) = (children.pop(), children.is_empty()) else {
            return internal_err!("LocalExchangeExec has one child");
        };
        let partitioning = self.exchange.partitioning().clone();
        let exchange = Self::new(input, partitioning, self.preserves_order())?;
        Ok(Arc::new(exchange))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.exchange.execute(partition, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.exchange.metrics()
    }
}

//! [`LeadingRowsExec`].

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::row::{RowConverter, SortField};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, apply_expression_roots};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;

use super::MOST_ROWS;
use super::heaps::{Heaps, Place};
use super::keys::{has_places, places};

/// Rows after which it is seen whether any are held back, and again after each so many.
const TRIED_ROWS: usize = 1 << 18;
/// Bytes of memory at which that is seen the first time, if not before.
const TRIED_BYTES: usize = 8 << 20;

/// Lets no row pass of whose partition it has seen so many better rows.
#[derive(Debug)]
pub struct LeadingRowsExec {
    input: Arc<dyn ExecutionPlan>,
    /// What rows of a partition have in common.
    partition: Vec<Arc<dyn PhysicalExpr>>,
    /// What makes a row better than another: the first of these in which they differ.
    order: Vec<PhysicalSortExpr>,
    most: usize,
    ties: bool,
    metrics: ExecutionPlanMetricsSet,
}

impl LeadingRowsExec {
    /// The first `most` rows of each partition of `input`, and perhaps others; with `ties` also those that are as good
    /// as the last of them.
    ///
    /// # Errors
    /// Where types have no order or are not grouped as windows do it, and for more rows than [`MOST_ROWS`].
    pub fn new(
        input: Arc<dyn ExecutionPlan>,
        partition: Vec<Arc<dyn PhysicalExpr>>,
        order: Vec<PhysicalSortExpr>,
        most: usize,
        ties: bool,
    ) -> Result<Self> {
        let schema = input.schema();
        if partition.is_empty() || !(1..=MOST_ROWS).contains(&most) || (ties && order.is_empty()) {
            return internal_err!("the first {most} rows of no partitions");
        }
        for key in &partition {
            let of = key.data_type(&schema)?;
            if !is_one_value(&of) {
                return internal_err!("partitions of {of}");
            }
        }
        for key in &order {
            let of = key.expr.data_type(&schema)?;
            let is_one = order.len() == 1 && has_places(&of);
            if !is_one && !is_one_value(&of) {
                return internal_err!("rows in an order of {of}");
            }
        }
        Ok(Self {
            input,
            partition,
            order,
            most,
            ties,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// What rows of a partition have in common.
    pub fn partition(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.partition
    }

    /// What makes a row better than another.
    pub fn order(&self) -> &[PhysicalSortExpr] {
        &self.order
    }

    /// How many rows of each partition pass.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether rows pass that are as good as the last of these.
    pub fn ties(&self) -> bool {
        self.ties
    }

    fn leading(&self) -> Result<Leading> {
        let schema = self.input.schema();
        let fields = self.partition.iter().enumerate();
        let fields = fields.map(|(place, key)| {
            let of = key.data_type(&schema)?;
            Ok(Field::new(format!("{place}"), of, true))
        });
        let keys = Schema::new(fields.collect::<Result<Vec<_>>>()?);
        let types = self.order.iter().map(|key| key.expr.data_type(&schema));
        let types = types.collect::<Result<Vec<_>>>()?;
        let heaps = match types.as_slice() {
            [] => Best::Any(Heaps::new(self.most, false)),
            [only] if has_places(only) => Best::Numbers(Heaps::new(self.most, self.ties)),
            _ => {
                let fields = types.into_iter().zip(&self.order);
                let fields = fields.map(|(of, key)| SortField::new_with_options(of, key.options));
                let rows = RowConverter::new(fields.collect())?;
                Best::Rows(rows, Heaps::new(self.most, self.ties))
            }
        };
        Ok(Leading {
            groups: new_group_values(Arc::new(keys), &GroupOrdering::None)?,
            heaps,
            ids: Vec::new(),
            rows: 0,
            passed: 0,
            last: (0, 0),
        })
    }
}

/// Whether values of a type that are equal are written in one way: floats have two zeros.
fn is_one_value(of: &DataType) -> bool {
    has_places(of) && !of.is_floating()
        || of.is_string()
        || of.is_binary()
        || matches!(of, DataType::Boolean | DataType::Decimal128(..))
}

/// What a stream has seen.
struct Leading {
    groups: Box<dyn GroupValues>,
    heaps: Best,
    ids: Vec<usize>,
    rows: usize,
    passed: usize,
    /// Rows and those that passed, when it was last seen whether any are held back.
    last: (usize, usize),
}

enum Best {
    /// In no order.
    Any(Heaps<u128>),
    Numbers(Heaps<u128>),
    Rows(RowConverter, Heaps<Box<[u8]>>),
}

impl Leading {
    /// Bytes in memory, with room for the partitions that there are.
    fn bytes(&self) -> usize {
        let partitions = self.groups.len();
        let heaps = match &self.heaps {
            Best::Any(heaps) | Best::Numbers(heaps) => heaps.bytes(partitions),
            Best::Rows(_, heaps) => heaps.bytes(partitions),
        };
        heaps + self.groups.size()
    }

    /// Whether rows are held back, as far as that can be said.
    fn holds_back(&mut self) -> bool {
        let (rows, passed) = (self.rows - self.last.0, self.passed - self.last.1);
        let is_first = self.last.0 == 0;
        if rows < TRIED_ROWS && !(is_first && self.bytes() > TRIED_BYTES) {
            return true;
        }
        self.last = (self.rows, self.passed);
        match is_first {
            // Of new partitions all pass at first.
            true => self.groups.len() * 2 <= rows,
            false => passed * 20 <= rows * 19,
        }
    }

    /// The rows of a batch that pass; `None` where there is no memory to tell.
    fn passing(
        &mut self,
        batch: &RecordBatch,
        exec: &LeadingRowsExec,
        memory: &mut MemoryReservation,
    ) -> Result<Option<RecordBatch>> {
        let rows = batch.num_rows();
        let value = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(batch)?.into_array(rows);
        let keys: Vec<ArrayRef> = exec.partition.iter().map(value).collect::<Result<_>>()?;
        let order = exec.order.iter().map(|key| value(&key.expr));
        let order: Vec<ArrayRef> = order.collect::<Result<_>>()?;
        self.groups.intern(&keys, &mut self.ids)?;
        if memory.try_resize(self.bytes()).is_err() {
            return Ok(None);
        }
        let partitions = self.groups.len();
        let passing = match &mut self.heaps {
            Best::Any(heaps) => passing(heaps, partitions, &self.ids, |_| 0),
            Best::Numbers(heaps) => {
                let [only] = order.as_slice() else {
                    return internal_err!("an order of {} columns", order.len());
                };
                let Some(places) = places(only, exec.order[0].options) else {
                    return internal_err!("an order of {}", only.data_type());
                };
                passing(heaps, partitions, &self.ids, |row| places[row])
            }
            Best::Rows(converter, heaps) => {
                let places = converter.convert_columns(&order)?;
                passing(heaps, partitions, &self.ids, |row| places.row(row).data())
            }
        };
        self.rows += rows;
        self.passed += passing.true_count();
        Ok(Some(match passing.true_count() == rows {
            true => batch.clone(),
            false => filter_record_batch(batch, &passing)?,
        }))
    }
}

fn passing<'a, P: Place>(
    heaps: &mut Heaps<P>,
    partitions: usize,
    ids: &[usize],
    place: impl Fn(usize) -> P::Of<'a>,
) -> BooleanArray {
    heaps.grow(partitions);
    let rows = ids.iter().enumerate();
    let passing = rows.map(|(row, id)| heaps.keeps(*id, place(row)));
    BooleanArray::from(passing.collect::<Vec<_>>())
}

impl DisplayAs for LeadingRowsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partition: Vec<_> = self.partition.iter().map(ToString::to_string).collect();
        let order: Vec<_> = self.order.iter().map(ToString::to_string).collect();
        write!(
            f,
            "LeadingRowsExec: first={}{}, partition=[{}], order=[{}]",
            self.most,
            if self.ties { " with ties" } else { "" },
            partition.join(", "),
            order.join(", ")
        )
    }
}

impl ExecutionPlan for LeadingRowsExec {
    fn name(&self) -> &str {
        "LeadingRowsExec"
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

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let order = self.order.iter().map(|key| &key.expr);
        apply_expression_roots(self.partition.iter().chain(order), visit)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(input), true) = (children.pop(), children.is_empty()) else {
            return internal_err!("LeadingRowsExec has one child");
        };
        let (partition, order) = (self.partition.clone(), self.order.clone());
        let exec = Self::new(input, partition, order, self.most, self.ties)?;
        Ok(Arc::new(exec))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, Arc::clone(&context))?;
        let consumer = MemoryConsumer::new(format!("LeadingRows[{partition}]"));
        let exec = Self {
            input: Arc::clone(&self.input),
            partition: self.partition.clone(),
            order: self.order.clone(),
            metrics: self.metrics.clone(),
            ..*self
        };
        let mut stream = Stream {
            leading: Some(self.leading()?),
            memory: consumer.register(context.memory_pool()),
            metrics: BaselineMetrics::new(&self.metrics, partition),
            exec,
        };
        let rows = rows.map(move |batch| stream.next(batch?));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

struct Stream {
    exec: LeadingRowsExec,
    /// `None` when all rows pass.
    leading: Option<Leading>,
    memory: MemoryReservation,
    metrics: BaselineMetrics,
}

impl Stream {
    fn next(&mut self, batch: RecordBatch) -> Result<RecordBatch> {
        let Some(leading) = &mut self.leading else {
            return Ok(batch.record_output(&self.metrics));
        };
        let elapsed = self.metrics.elapsed_compute().clone();
        let _timer = elapsed.timer();
        let passing = leading.passing(&batch, &self.exec, &mut self.memory)?;
        if passing.is_none() || !leading.holds_back() {
            self.leading = None;
            self.memory.free();
        }
        let passing = passing.unwrap_or(batch);
        Ok(passing.record_output(&self.metrics))
    }
}

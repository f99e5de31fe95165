//! [`AsOfJoinExec`]: a merge of two sides that are sorted by keys and time.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow::array::{Array, ArrayRef, RecordBatch, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::compute::{FilterBuilder, SortOptions, interleave};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatchOptions;
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{JoinType, Result, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::{
    EquivalenceProperties, LexOrdering, OrderingRequirements, PhysicalExpr, PhysicalSortExpr,
};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{
    Boundedness, EmissionType, apply_expression_roots,
};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PlanProperties,
};
use futures::{Stream, StreamExt};

/// What batches of the right side may take up that wait for rows of the left one, before these leave.
const HELD_BYTES: usize = 4 << 20;

const ORDER: SortOptions = SortOptions {
    descending: false,
    nulls_first: false,
};

type Pair = (Arc<dyn PhysicalExpr>, Arc<dyn PhysicalExpr>);

/// Joins each row of the left side with the nearest of the right: see the [module](super).
#[derive(Debug)]
pub(crate) struct AsOfJoinExec {
    left: Arc<dyn ExecutionPlan>,
    right: Arc<dyn ExecutionPlan>,
    /// The keys, then the time.
    pairs: Vec<Pair>,
    op: Operator,
    join_type: JoinType,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl AsOfJoinExec {
    /// A join with columns of `schema`; `pairs` are of one type each, the times last.
    pub fn new(
        (left, right): (Arc<dyn ExecutionPlan>, Arc<dyn ExecutionPlan>),
        pairs: Vec<Pair>,
        op: Operator,
        join_type: JoinType,
        schema: SchemaRef,
    ) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            left,
            right,
            pairs,
            op,
            join_type,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn order(&self, of: impl Fn(&Pair) -> &Arc<dyn PhysicalExpr>) -> Option<OrderingRequirements> {
        let exprs = self.pairs.iter();
        let exprs = exprs.map(|pair| PhysicalSortExpr::new(Arc::clone(of(pair)), ORDER));
        LexOrdering::new(exprs).map(OrderingRequirements::from)
    }
}

impl DisplayAs for AsOfJoinExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsOfJoinExec: {}", self.join_type)?;
        let Some(((left, right), keys)) = self.pairs.split_last() else {
            return Ok(());
        };
        for (left, right) in keys {
            write!(f, " {left} = {right} AND")?;
        }
        write!(f, " {left} {} {right}", self.op)
    }
}

impl ExecutionPlan for AsOfJoinExec {
    fn name(&self) -> &str {
        "AsOfJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.left, &self.right]
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::SinglePartition; 2]
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![self.order(|pair| &pair.0), self.order(|pair| &pair.1)]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![true; 2]
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let exprs = self.pairs.iter().flat_map(|(left, right)| [left, right]);
        apply_expression_roots(exprs, visit)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([left, right]) = <[_; 2]>::try_from(children) else {
            return internal_err!("AsOfJoinExec has two inputs");
        };
        Ok(Arc::new(Self::new(
            (left, right),
            self.pairs.clone(),
            self.op,
            self.join_type,
            self.schema(),
        )))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("AsOfJoinExec has one stream");
        }
        let right_schema = self.right.schema();
        let nothing = right_schema.fields().iter();
        let nothing = nothing.map(|field| new_null_array(field.data_type(), 1));
        // Sides may be passed whole before anything leaves: they give others the thread.
        let joined = Joined {
            left: Side::new(
                make_cooperative(self.left.execute(0, Arc::clone(&context))?),
                self.pairs.iter().map(|pair| Arc::clone(&pair.0)).collect(),
                &self.left.schema(),
            )?,
            right: Side::new(
                make_cooperative(self.right.execute(0, context)?),
                self.pairs.iter().map(|pair| Arc::clone(&pair.1)).collect(),
                &right_schema,
            )?,
            nothing: nothing.collect(),
            op: self.op,
            join_type: self.join_type,
            schema: self.schema(),
            place: 0,
            done: 0,
            matches: Vec::new(),
            held: Vec::new(),
            held_bytes: 0,
            nearest: None,
            metrics: BaselineMetrics::new(&self.metrics, 0),
        };
        Ok(Box::pin(joined))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// A batch, and its keys and times in a form in which they compare as bytes.
struct Batch {
    columns: RecordBatch,
    keys: Option<Rows>,
    /// Keys and time.
    whole: Rows,
    /// Rows of which a key or the time is NULL are nobody's nearest.
    nulls: Option<NullBuffer>,
}

impl Batch {
    fn bytes(&self) -> usize {
        let keys = self.keys.as_ref().map_or(0, Rows::size);
        self.columns.get_array_memory_size() + keys + self.whole.size()
    }
}

/// One input.
struct Side {
    rows: SendableRecordBatchStream,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    /// Of the keys, if there are any.
    keys: Option<RowConverter>,
    whole: RowConverter,
    batch: Option<Arc<Batch>>,
    is_over: bool,
}

impl Side {
    fn new(
        rows: SendableRecordBatchStream,
        exprs: Vec<Arc<dyn PhysicalExpr>>,
        schema: &SchemaRef,
    ) -> Result<Self> {
        let fields = exprs.iter();
        let fields =
            fields.map(|expr| Ok(SortField::new_with_options(expr.data_type(schema)?, ORDER)));
        let fields: Vec<SortField> = fields.collect::<Result<_>>()?;
        let keys = match &fields[..fields.len() - 1] {
            [] => None,
            keys => Some(RowConverter::new(keys.to_vec())?),
        };
        Ok(Self {
            rows,
            exprs,
            keys,
            whole: RowConverter::new(fields)?,
            batch: None,
            is_over: false,
        })
    }

    /// Has `batch` be the next one that has rows, `None` behind the last one.
    fn poll_next_batch(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.batch = None;
        while !self.is_over {
            match ready!(self.rows.poll_next_unpin(context)).transpose()? {
                None => self.is_over = true,
                Some(columns) if columns.num_rows() == 0 => {}
                Some(columns) => {
                    self.batch = Some(Arc::new(self.batch_of(columns)?));
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn batch_of(&self, columns: RecordBatch) -> Result<Batch> {
        let rows = columns.num_rows();
        let values = self.exprs.iter();
        let values = values.map(|expr| expr.evaluate(&columns)?.into_array(rows));
        let values: Vec<ArrayRef> = values.collect::<Result<_>>()?;
        let nulls = values.iter().fold(None, |nulls, values| {
            NullBuffer::union(nulls.as_ref(), values.logical_nulls().as_ref())
        });
        let keys = self.keys.as_ref();
        let keys = keys.map(|keys| keys.convert_columns(&values[..values.len() - 1]));
        Ok(Batch {
            whole: self.whole.convert_columns(&values)?,
            keys: keys.transpose()?,
            nulls,
            columns,
        })
    }
}

/// A row of the right side.
#[derive(Clone)]
struct Row {
    batch: Arc<Batch>,
    row: usize,
}

/// What leaves the join.
struct Joined {
    left: Side,
    right: Side,
    /// A row of the right side's columns that has nothing.
    nothing: Vec<ArrayRef>,
    op: Operator,
    join_type: JoinType,
    schema: SchemaRef,
    /// How far the right side's batch was looked at.
    place: usize,
    /// How many rows of the left side's batch have left.
    done: usize,
    /// What rows of the left side's batch behind these met, up to the one that is looked at: a batch of `held`, where 0
    /// is [`Joined::nothing`], and a row of it.
    matches: Vec<(usize, usize)>,
    held: Vec<Arc<Batch>>,
    held_bytes: usize,
    /// The last row of the right side that was passed; with `>=` and `>` the one that may be the nearest.
    nearest: Option<Row>,
    metrics: BaselineMetrics,
}

impl Joined {
    /// Looks at rows of the left side's batch until all of them have met theirs, or much is held.
    fn poll_matches(&mut self, batch: &Batch, context: &mut Context<'_>) -> Poll<Result<()>> {
        while self.done + self.matches.len() < batch.columns.num_rows() {
            let row = self.done + self.matches.len();
            if batch.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                self.matches.push((0, 0));
                continue;
            }
            let wanted = batch.whole.row(row);
            // Passes all that lie before the row: at the same time, too, unless that is the nearest.
            let passes_equal = matches!(self.op, Operator::GtEq | Operator::Lt);
            loop {
                let Some(right) = &self.right.batch else {
                    if self.right.is_over {
                        break;
                    }
                    ready!(self.right.poll_next_batch(context))?;
                    self.place = 0;
                    continue;
                };
                if self.place == right.columns.num_rows() {
                    ready!(self.right.poll_next_batch(context))?;
                    self.place = 0;
                    continue;
                }
                if right
                    .nulls
                    .as_ref()
                    .is_some_and(|nulls| nulls.is_null(self.place))
                {
                    self.place += 1;
                    continue;
                }
                let order = right.whole.row(self.place).cmp(&wanted);
                if order.is_gt() || (order.is_eq() && !passes_equal) {
                    break;
                }
                self.nearest = Some(Row {
                    batch: Arc::clone(right),
                    row: self.place,
                });
                self.place += 1;
            }
            let nearest = match self.op {
                Operator::GtEq | Operator::Gt => self.nearest.clone(),
                _ => self.right.batch.as_ref().map(|batch| Row {
                    batch: Arc::clone(batch),
                    row: self.place,
                }),
            };
            let has_keys = |nearest: &Row| match (&batch.keys, &nearest.batch.keys) {
                (Some(left), Some(right)) => left.row(row) == right.row(nearest.row),
                _ => true,
            };
            let met = nearest.filter(has_keys).map(|nearest| {
                let is_last = |held: &Arc<Batch>| Arc::ptr_eq(held, &nearest.batch);
                if !self.held.last().is_some_and(is_last) {
                    self.held.push(Arc::clone(&nearest.batch));
                    self.held_bytes += nearest.batch.bytes();
                }
                (self.held.len(), nearest.row)
            });
            self.matches.push(met.unwrap_or((0, 0)));
            if self.held_bytes >= HELD_BYTES {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The rows of the left side's batch that were looked at, each with what it met.
    fn take_matched(&mut self, batch: &Batch) -> Result<RecordBatch> {
        let rows = self.matches.len();
        let left = batch.columns.slice(self.done, rows);
        let right = self.nothing.iter().enumerate().map(|(column, nothing)| {
            let held = self.held.iter();
            let held = held.map(|batch| batch.columns.column(column).as_ref());
            let sources: Vec<&dyn Array> = std::iter::once(nothing.as_ref()).chain(held).collect();
            Ok(interleave(&sources, &self.matches)?)
        });
        let right: Vec<ArrayRef> = right.collect::<Result<_>>()?;
        let mut columns: Vec<ArrayRef> = left.columns().iter().cloned().chain(right).collect();
        let mut count = rows;
        if self.join_type == JoinType::Inner {
            let met = self.matches.iter().map(|(batch, _)| Some(*batch != 0));
            let met = FilterBuilder::new(&met.collect()).optimize().build();
            count = met.count();
            for column in &mut columns {
                *column = met.filter(column)?;
            }
        }
        self.done += rows;
        self.matches.clear();
        self.held.clear();
        self.held_bytes = 0;
        if self.done == batch.columns.num_rows() {
            self.left.batch = None;
            self.done = 0;
        }
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let schema = Arc::clone(&self.schema);
        Ok(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?)
    }

    fn poll_joined(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        loop {
            let Some(batch) = self.left.batch.clone() else {
                if self.left.is_over {
                    return Poll::Ready(None);
                }
                ready!(self.left.poll_next_batch(context))?;
                continue;
            };
            ready!(self.poll_matches(&batch, context))?;
            let compute = self.metrics.elapsed_compute().clone();
            let timer = compute.timer();
            let joined = self.take_matched(&batch)?;
            timer.done();
            if joined.num_rows() > 0 {
                return Poll::Ready(Some(Ok(joined)));
            }
        }
    }
}

impl Stream for Joined {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let joined = self.poll_joined(context);
        self.metrics.record_poll(joined)
    }
}

impl RecordBatchStream for Joined {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

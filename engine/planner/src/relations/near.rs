//! The nearest rows to vectors (BlueDBM section 7.1).

use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float32Type, Schema, SchemaRef, UInt32Type, UInt64Type};
use datafusion::common::{Column, Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{Expr, JoinType, LogicalPlan, LogicalPlanBuilder, lit};
use flashmesh_pushdown::{Expr as ProgramExpr, Limits, Metric, Output, QueryVector};
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::index::{Index, IndexKind, lsh};
use flashmesh_storage::node::{Command, RuntimeFilters};
use flashmesh_storage::segment::{Segment, row_id};
use flashmesh_storage::table::TableSnapshot;

use super::arguments::{Argument, Arguments};
use super::exec::{Emit, Run, StoreFunction, StoreFunctionNode};
use super::store::StoreRelations;
use crate::Reason;
use crate::config::{Fallback, Pushdown};
use crate::error::from_storage;
use crate::functions::{query_vector, scalar_functions};
use crate::named::NamedTable;
use crate::scan::spec::ScanSpec;

/// Neighbours when the call doesn't say how many.
const DEFAULT_K: u32 = 10;

/// Vectors that a subquery is expected to give, for the order of joins.
const EXPECTED_QUERIES: usize = 100;

/// `nearest('table', 'column', query [, k] [, metric => 'l2' | 'cosine' | 'dot']
/// [, exact => true])`: the k rows nearest to a vector, or to each vector of a subquery. Gives
/// `query`, the number of the vector (0 for a constant), `distance` and the table's columns.
///
/// An lsh index on the column is used if there is one of the metric, and may then miss some,
/// unless `exact`.
pub(super) fn nearest(store: &StoreRelations, mut arguments: Arguments<'_>) -> Result<LogicalPlan> {
    let name = arguments.text()?;
    let table = store.table(&name, &arguments)?;
    let column = arguments.text()?;
    let ordinal = table.column(&column, &arguments)?;
    let data_type = table.snapshot().schema.field(ordinal).data_type().clone();
    let metric = match (&data_type, arguments.option_text("metric")?.as_deref()) {
        (DataType::FixedSizeBinary(_), None | Some("hamming")) => Metric::Hamming,
        (DataType::FixedSizeList(..), None | Some("l2")) => Metric::L2,
        (DataType::FixedSizeList(..), Some("cosine")) => Metric::Cosine,
        (DataType::FixedSizeList(..), Some("dot")) => Metric::Dot,
        (data_type, metric) => {
            return plan_err!(
                "nearest: column '{column}' of type {data_type} has no metric '{}'; fixed-size binary has hamming, fixed-size lists of float32 have l2, cosine and dot",
                metric.unwrap_or("hamming or l2")
            );
        }
    };
    let Some(length) = metric.length_of(&data_type) else {
        return plan_err!(
            "nearest: column '{column}' of type {data_type} holds no vectors; fixed-size binary and fixed-size lists of float32 do"
        );
    };
    let query = arguments.next()?;
    let k = match arguments.has_next() {
        true => arguments.number()?,
        false => DEFAULT_K,
    };
    let exact = arguments.option_bool("exact")?.unwrap_or(false);
    let session = arguments.session_options();
    arguments.end()?;
    let table_name = table.name().to_string();
    let own = |name: &str| Expr::Column(Column::new(Some(table_name.clone()), name));
    // The function's columns get out of the way of the table's.
    let free = |name: &str| {
        let mut name = name.to_string();
        while table.snapshot().schema.index_of(&name).is_ok() {
            name.insert(0, '_');
        }
        name
    };
    let fields = table.snapshot().schema.fields();
    let columns = fields.iter().map(|field| own(field.name()));
    match query {
        Argument::Constant(value) => {
            let Some(query) = query_vector(&value, metric) else {
                return plan_err!("nearest: the query is no vector: {value}");
            };
            check_length(query.len(), length)?;
            let distance = distance_to(metric, own(&column), &query);
            let distance_name = free("distance");
            let order = Expr::Column(Column::new_unqualified(&distance_name));
            let first = [
                lit(0u32).alias(free("query")),
                distance.alias(&distance_name),
            ];
            let is_near_first = metric != Metric::Dot;
            table
                .near_scan(!exact)?
                .project(first.into_iter().chain(columns))?
                .sort([order.sort(is_near_first, false)])?
                .limit(0, Some(k as usize))?
                .build()
        }
        Argument::Rows(queries) => {
            if queries.schema().fields().len() != 1 {
                return plan_err!(
                    "nearest: the subquery gives {} columns, not the vectors alone",
                    queries.schema().fields().len()
                );
            }
            let function = NearestBatch {
                table: table.0.clone(),
                column: ordinal,
                metric,
                length,
                k: k as usize,
                exact,
                recall_sample: session.measure_recall,
                accelerator: session.accelerator.as_deref().map(Arc::from),
                forbids_fallback: session.fallback == Fallback::Error,
            };
            let found = StoreFunctionNode::plan(Arc::new(function), Some(queries))?;
            let found = LogicalPlanBuilder::from(found).alias("found")?.build()?;
            let ids = table.snapshot().scan_schema.fields().last().cloned();
            let id = ids.map(|field| field.name().clone()).unwrap_or_default();
            let found_column = |name: &str| Expr::Column(Column::new(Some("found"), name));
            let on = (
                vec![Column::new(Some("found"), "row")],
                vec![Column::new(Some(table_name.clone()), &id)],
            );
            let first = [
                found_column("query").alias(free("query")),
                found_column("distance").alias(free("distance")),
            ];
            LogicalPlanBuilder::from(found)
                .join(table.scan(true)?.build()?, JoinType::Inner, on, None)?
                .project(first.into_iter().chain(columns))?
                .build()
        }
    }
}

fn check_length(found: usize, length: usize) -> Result<()> {
    if found != length {
        return plan_err!("nearest: a query of length {found} for vectors of length {length}");
    }
    Ok(())
}

/// The call of a distance function.
fn distance_to(metric: Metric, vectors: Expr, query: &QueryVector) -> Expr {
    let constant = match query {
        QueryVector::Bits(bytes) => {
            ScalarValue::FixedSizeBinary(bytes.len() as i32, Some(bytes.clone()))
        }
        QueryVector::Floats(values) => {
            let values: ArrayRef = Arc::new(Float32Array::from(values.clone()));
            let item = Arc::new(Field::new_list_field(DataType::Float32, true));
            let length = values.len() as i32;
            let list = arrow::array::FixedSizeListArray::new(item, length, values, None);
            ScalarValue::FixedSizeList(Arc::new(list))
        }
    };
    let name = metric.to_string();
    let function = scalar_functions().into_iter().find(|f| f.name() == name);
    function
        .expect("every metric has a function")
        .call(vec![vectors, lit(constant)])
}

/// The nearest rows to many vectors at once: one Program, or one pass through an index.
#[derive(Debug, Clone)]
struct NearestBatch {
    table: NamedTable,
    column: usize,
    metric: Metric,
    length: usize,
    k: usize,
    /// Whether it may miss none, and so uses no index.
    exact: bool,
    /// Of how many vectors the exact answer is computed too, for the recall.
    recall_sample: usize,
    accelerator: Option<Arc<str>>,
    forbids_fallback: bool,
}

/// A neighbour, the best first.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Hit {
    distance: f64,
    row: u64,
}

impl Eq for Hit {}

impl Ord for Hit {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let by_distance = self.distance.total_cmp(&other.distance);
        by_distance.then(self.row.cmp(&other.row))
    }
}

impl PartialOrd for Hit {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The best hits of one query.
#[derive(Debug, Default, Clone)]
struct Best(BinaryHeap<Hit>);

impl Best {
    fn add(&mut self, hit: Hit, k: usize) {
        if self.0.len() < k {
            self.0.push(hit);
        } else if self.0.peek().is_some_and(|worst| hit < *worst) {
            self.0.pop();
            self.0.push(hit);
        }
    }

    /// Distances, the least first.
    fn distances(&self) -> Vec<f64> {
        let mut distances: Vec<f64> = self.0.iter().map(|hit| hit.distance).collect();
        distances.sort_unstable_by(f64::total_cmp);
        distances
    }
}

impl NearestBatch {
    fn snapshot(&self) -> &Arc<TableSnapshot> {
        self.table.snapshot()
    }

    /// The index that it goes by.
    fn index(&self) -> Option<&Arc<Index>> {
        let table = self.snapshot();
        let data_type = table.schema.field(self.column).data_type();
        let mut indexes = table.indexes.iter().filter(|_| !self.exact);
        indexes.find(|index| {
            let definition = &index.definition;
            definition.kind == IndexKind::Lsh
                && definition.columns == [self.column as u32]
                && definition.metric(data_type) == Some(self.metric)
        })
    }
}

impl StoreFunction for NearestBatch {
    fn name(&self) -> &str {
        "nearest"
    }

    fn table(&self) -> &NamedTable {
        &self.table
    }

    fn at(&self, table: NamedTable) -> Result<Arc<dyn StoreFunction>> {
        Ok(Arc::new(Self {
            table,
            ..self.clone()
        }))
    }

    fn arguments(&self) -> String {
        let how = match self.index() {
            Some(index) => format!("index={} (lsh)", index.definition.name),
            None => match self.accelerator.as_deref() {
                None | Some("cpu") => "exact".into(),
                Some(name) => format!("exact, on {name}"),
            },
        };
        let column = self.snapshot().schema.field(self.column).name();
        format!(
            "{}.{column}, {} by {}, {how}",
            self.snapshot().name,
            self.k,
            self.metric
        )
    }

    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("query", DataType::UInt32, false),
            Field::new("distance", self.metric.data_type(), true),
            Field::new("row", DataType::UInt64, false),
        ]))
    }

    fn expected_rows(&self) -> usize {
        self.k * EXPECTED_QUERIES
    }

    fn run(&self, input: Vec<RecordBatch>, run: &Run, emit: &mut Emit<'_>) -> Result<()> {
        let mut queries = Vec::new();
        for batch in &input {
            for row in 0..batch.num_rows() {
                let value = ScalarValue::try_from_array(batch.column(0), row)?;
                match query_vector(&value, self.metric) {
                    Some(query) if query.len() == self.length => queries.push(query),
                    Some(query) => {
                        return exec_err!(
                            "nearest: query {} has length {}, the vectors have {}",
                            queries.len(),
                            query.len(),
                            self.length
                        );
                    }
                    None => {
                        return exec_err!("nearest: query {} is no vector: {value}", queries.len());
                    }
                }
            }
        }
        if queries.is_empty() || self.k == 0 {
            return Ok(());
        }
        let best = match self.index() {
            Some(index) => {
                let best = self.by_index(index, &queries, run)?;
                self.measure_recall(&queries, &best, run)?;
                best
            }
            None => {
                let metrics = Arc::<ScanMetrics>::default();
                let segments = &self.snapshot().segments;
                let best = self.by_scan(&queries, segments, run, &metrics);
                run.cost.scan.add_reads(metrics.reads());
                run.cost.scan.add_device(&metrics);
                best?
            }
        };
        let (mut of, mut distances, mut rows) = (vec![], vec![], vec![]);
        for (query, best) in (0u32..).zip(best) {
            for hit in best.0.into_sorted_vec() {
                of.push(query);
                distances.push(hit.distance);
                rows.push(hit.row);
            }
        }
        let distances: ArrayRef = match self.metric {
            Metric::Hamming => Arc::new(UInt32Array::from_iter_values(
                distances.iter().map(|d| *d as u32),
            )),
            Metric::Dot => Arc::new(Float32Array::from_iter_values(
                distances.iter().map(|d| -*d as f32),
            )),
            _ => Arc::new(Float32Array::from_iter_values(
                distances.iter().map(|d| *d as f32),
            )),
        };
        emit(RecordBatch::try_new(
            self.schema(),
            vec![
                Arc::new(UInt32Array::from(of)),
                distances,
                Arc::new(UInt64Array::from(rows)),
            ],
        )?)
    }
}

impl NearestBatch {
    /// One Program for all queries, a stream for each thread.
    fn by_scan(
        &self,
        queries: &[QueryVector],
        segments: &[Arc<Segment>],
        run: &Run,
        metrics: &Arc<ScanMetrics>,
    ) -> Result<Vec<Best>> {
        let (table, capability) = (Arc::clone(self.snapshot()), self.table.capability());
        let mut scan = ScanSpec::new(table, capability, Pushdown::Auto);
        scan.accelerator = self.accelerator.clone();
        scan.forbids_fallback = self.forbids_fallback;
        let id = self.snapshot().scan_schema.fields().len() - 1;
        scan.output = Output::Nearest {
            queries: queries.to_vec(),
            metric: self.metric,
            expr: ProgramExpr::Column(self.column as u32),
            k: self.k as u64,
            exprs: vec![ProgramExpr::Column(id as u32)],
        };
        let command = Command {
            program: scan
                .verified(self.table.node())
                .map_err(Reason::into_error)?,
            table: Arc::clone(self.snapshot()),
            work: scan.work(segments.to_vec(), None),
            runtime_filters: Arc::new(RuntimeFilters::default()),
            batch_rows: run.batch_rows,
            metrics: Arc::clone(metrics),
            capability: self.table.capability(),
        };
        let threads = run.threads.min(segments.len()).max(1);
        let streams = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|_| {
                    let command = command.clone();
                    scope.spawn(move || self.stream(command, queries.len(), run))
                })
                .collect();
            running
                .into_iter()
                .map(|thread| match thread.join() {
                    Ok(best) => best,
                    Err(_) => exec_err!("nearest: a stream failed"),
                })
                .collect::<Result<Vec<_>>>()
        })?;
        Ok(merge(streams, self.k))
    }

    fn stream(&self, command: Command, queries: usize, run: &Run) -> Result<Vec<Best>> {
        let mut best = vec![Best::default(); queries];
        let mut stream = self.table.node().submit(command).map_err(from_storage)?;
        while let Some(step) = stream.step() {
            run.check()?;
            let flashmesh_storage::node::Step::Batch(batch) = step.map_err(from_storage)? else {
                continue;
            };
            let of = batch.column(0).as_primitive::<UInt32Type>();
            let distances = cast(batch.column(1), &DataType::Float32)?;
            let distances = distances.as_primitive::<Float32Type>();
            let rows = batch.column(2).as_primitive::<UInt64Type>();
            for i in 0..batch.num_rows() {
                if let Some(best) = best.get_mut(of.value(i) as usize) {
                    let distance = match distances.is_valid(i) {
                        true => f64::from(distances.value(i)),
                        false => continue,
                    };
                    let distance = match self.metric {
                        // The greatest first, and what is not a number last.
                        Metric::Dot if !distance.is_nan() => -distance,
                        _ => distance,
                    };
                    let row = rows.value(i);
                    best.add(Hit { distance, row }, self.k);
                }
            }
        }
        Ok(best)
    }

    /// Compares what the index has found for some of the queries, evenly spaced, with the exact
    /// answer.
    fn measure_recall(&self, queries: &[QueryVector], best: &[Best], run: &Run) -> Result<()> {
        if self.recall_sample == 0 {
            return Ok(());
        }
        let sample = self.recall_sample.min(self.queries_at_once());
        let step = queries.len().div_ceil(sample);
        let sample: Vec<_> = queries.iter().step_by(step).cloned().collect();
        // Its cost is not the query's.
        let segments = &self.snapshot().segments;
        let exact = self.by_scan(&sample, segments, run, &Arc::default())?;
        for (exact, found) in exact.iter().zip(best.iter().step_by(step)) {
            let (exact, found) = (exact.distances(), found.distances());
            run.cost.scan.add_recall(&exact, &found);
        }
        Ok(())
    }

    /// Queries that one search may ask for.
    fn queries_at_once(&self) -> usize {
        let limits = Limits::default();
        let most = (limits.top_k_rows / self.k as u64).min(limits.queries.into());
        (most as usize).max(1)
    }

    /// What the index finds, and what there is among the rows that it does not cover.
    fn by_index(&self, index: &Index, queries: &[QueryVector], run: &Run) -> Result<Vec<Best>> {
        let found = self.by_parts(index, queries, run)?;
        if index.tail.is_empty() {
            return Ok(found);
        }
        let metrics = Arc::<ScanMetrics>::default();
        let mut in_tail = Vec::with_capacity(queries.len());
        for queries in queries.chunks(self.queries_at_once()) {
            in_tail.extend(self.by_scan(queries, &index.tail, run, &metrics)?);
        }
        run.cost.scan.add_reads(metrics.reads());
        run.cost.scan.add_device(&metrics);
        Ok(merge(vec![found, in_tail], self.k))
    }

    /// Each thread asks the index for a share of the queries.
    fn by_parts(&self, index: &Index, queries: &[QueryVector], run: &Run) -> Result<Vec<Best>> {
        self.table
            .node()
            .authorize(&self.table.capability(), self.snapshot())
            .map_err(from_storage)?;
        let mut reader = self.table.store().reader().map_err(from_storage)?;
        let parts = lsh::parts(index, &mut reader).map_err(from_storage)?;
        run.cost.scan.add_reads(reader.take_counters());
        drop(reader);
        let segments: HashMap<_, _> = self
            .snapshot()
            .segments
            .iter()
            .map(|s| (s.id, Arc::clone(s)))
            .collect();
        let share = queries.len().div_ceil(run.threads.max(1)).max(1);
        let ask = |queries: &[QueryVector]| -> Result<Vec<Best>> {
            let mut reader = self.table.store().reader().map_err(from_storage)?;
            let mut best = vec![Best::default(); queries.len()];
            for part in &parts {
                run.check()?;
                let found = part
                    .nearest(queries, self.k, self.column, &segments, &mut reader)
                    .map_err(from_storage)?;
                run.cost.scan.add_reads(reader.take_counters());
                for (best, found) in best.iter_mut().zip(found) {
                    for neighbour in found {
                        let hit = Hit {
                            distance: f64::from(neighbour.distance),
                            row: row_id(neighbour.segment, neighbour.row),
                        };
                        best.add(hit, self.k);
                    }
                }
            }
            Ok(best)
        };
        std::thread::scope(|scope| {
            let running: Vec<_> = queries
                .chunks(share)
                .map(|queries| scope.spawn(|| ask(queries)))
                .collect();
            let mut best = Vec::with_capacity(queries.len());
            for thread in running {
                match thread.join() {
                    Ok(found) => best.extend(found?),
                    Err(_) => return exec_err!("nearest: a search failed"),
                }
            }
            Ok(best)
        })
    }
}

/// The best of several streams.
fn merge(streams: Vec<Vec<Best>>, k: usize) -> Vec<Best> {
    let mut streams = streams.into_iter();
    let mut best = streams.next().unwrap_or_default();
    for stream in streams {
        for (best, other) in best.iter_mut().zip(stream) {
            other.0.into_iter().for_each(|hit| best.add(hit, k));
        }
    }
    best
}

//! The `cpu` accelerator: runs Programs on encoded pages, as fast as a CPU can.
//!
//! For each segment: zone maps rule out pages ([`prune`]), the filter reduces a selection bitmap
//! ([`filter`]), and what the output needs is read for the survivors only ([`output`], [`topk`],
//! [`aggregate`]). Expressions are computed on vectors of a block of rows ([`eval`]).

mod aggregate;
mod bitmap;
mod chunk_zones;
mod columns;
mod eval;
mod filter;
mod nearest;
mod nearest_on_device;
mod output;
mod pages;
mod prune;
mod row_ids;
mod topk;
mod values;
mod work;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use flashmesh_pushdown::{Output, Program, RuntimeFilter};

use crate::Result;
use crate::accelerator::device::Device;
use crate::accelerator::offload::Offload;
use crate::accelerator::{Accelerator, MAX_AHEAD, ScanMetrics, Task, TaskRun, Work as SegmentWork};
use crate::segment::{RowSelection, Segment};
use crate::store::PageReader;
use aggregate::Aggregation;
use bitmap::Bitmap;
pub(crate) use chunk_zones::ChunkZones;
use columns::Columns;
use eval::Evaluator;
use eval::graph::Graph;
use filter::{Filter, RuntimeTests, ZonePlan};
use nearest::Nearest;
use output::RowOutput;
use topk::TopK;
use work::Work;

/// Rows that expressions are computed on at a time: their vectors stay in the nearest caches. A
/// multiple of the 256 values of a packed block.
const BLOCK_ROWS: u32 = 2048;
/// Share of the output columns' pages that survived the filter lately from which on they are read
/// ahead together with the filter's.
const SURVIVAL_TO_PREFETCH: f64 = 0.6;

/// Runs Programs on the CPU.
#[derive(Debug, Default)]
pub struct CpuAccelerator {
    offload: Option<Arc<dyn Offload>>,
}

impl CpuAccelerator {
    /// Its name.
    pub const NAME: &'static str = "cpu";

    /// An accelerator on the CPU.
    pub fn new() -> Self {
        Self::default()
    }

    /// An accelerator that gives to `offload` what that can compute.
    pub fn with_offload(offload: Arc<dyn Offload>) -> Self {
        Self {
            offload: Some(offload),
        }
    }
}

impl Accelerator for CpuAccelerator {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn supports(&self, _program: &Program) -> std::result::Result<(), String> {
        Ok(())
    }

    fn offload(&self) -> Option<Arc<dyn Offload>> {
        self.offload.clone()
    }

    fn open(&self, task: Task) -> Result<Box<dyn TaskRun>> {
        Ok(Box::new(CpuRun::new(task, self.offload.as_ref())))
    }
}

/// A task of the `cpu` accelerator.
struct CpuRun {
    metrics: Arc<ScanMetrics>,
    graph: Arc<Graph>,
    evaluator: Evaluator,
    columns: Columns,
    /// Segments that are read ahead, with what zone maps leave of them.
    planned: VecDeque<Planned>,
    /// Columns without a segment, for the next that is planned.
    spare: Vec<Columns>,
    filter: Filter,
    runtime: RuntimeTests,
    runtime_ahead: RuntimeTests,
    /// The columns that the output reads.
    output_columns: Vec<usize>,
    sink: Sink,
    /// The segment at work.
    present: Option<Present>,
    /// How much of the output columns' pages survives, lately.
    survival: f64,
}

/// A segment that is read ahead.
struct Planned {
    segment: Arc<Segment>,
    /// Its columns, with the pages that the cache had.
    columns: Columns,
    plan: Option<ZonePlan>,
    /// The output's columns were announced too. Announced twice, a page might be read twice.
    has_outputs: bool,
}

/// What becomes of the surviving rows.
enum Sink {
    Rows(RowOutput),
    TopK(TopK),
    Aggregate(Aggregation),
    Nearest(Nearest),
}

/// A segment at work.
struct Present {
    rows: u32,
    /// What zone maps left, what an index left of that, what runtime filters' bounds left, and
    /// what survived.
    zone_rows: Bitmap,
    index_rows: Bitmap,
    runtime_rows: Bitmap,
    selection: Bitmap,
    selected: usize,
}

impl CpuRun {
    fn new(task: Task, offload: Option<&Arc<dyn Offload>>) -> Self {
        let device = offload.map(|offload| {
            Device::new(
                Arc::clone(offload),
                task.fallback,
                Arc::clone(&task.metrics),
            )
        });
        let program: &Program = &task.program;
        let graph = Arc::new(Graph::new(program, &task.kernels));
        let schema = Arc::clone(task.program.output_schema());
        let batch_rows = task.batch_rows.max(1);
        let sink = match &program.output {
            Output::Rows {
                order,
                limit: Some(limit),
                ..
            } if !order.is_empty() => {
                Sink::TopK(TopK::new(schema, &graph, order.clone(), *limit, batch_rows))
            }
            Output::Rows { limit, .. } => Sink::Rows(RowOutput::new(
                schema,
                graph.outputs.clone(),
                batch_rows,
                *limit,
                task.plain_text,
            )),
            Output::Aggregate { .. } => Sink::Aggregate(Aggregation::new(
                program,
                &graph,
                &task.table,
                schema,
                batch_rows,
            )),
            Output::Nearest {
                queries, metric, k, ..
            } => Sink::Nearest(Nearest::new(
                schema, &graph, *metric, queries, *k, batch_rows,
            )),
        };
        let outputs = graph.outputs.iter().copied();
        let aggregates = graph
            .aggregates
            .iter()
            .flat_map(|(a, f)| a.iter().chain(f).copied());
        let output_columns: BTreeSet<usize> = outputs
            .chain(aggregates)
            .chain(graph.vectors)
            .flat_map(|n| graph.node(n).columns.iter().copied())
            .collect();
        Self {
            evaluator: Evaluator::new(Arc::clone(&graph)),
            columns: Columns::new(program),
            spare: Vec::new(),
            planned: VecDeque::new(),
            filter: Filter::new(&graph, device),
            runtime: RuntimeTests::default(),
            runtime_ahead: RuntimeTests::default(),
            output_columns: output_columns.into_iter().collect(),
            survival: if program.filter.is_empty() { 1.0 } else { 0.0 },
            metrics: task.metrics,
            graph,
            sink,
            present: None,
        }
    }

    /// The runtime filters, the top-k's threshold among them.
    fn filters(&self, runtime: &[RuntimeFilter]) -> Vec<RuntimeFilter> {
        let threshold = match &self.sink {
            Sink::TopK(topk) => topk.threshold(),
            _ => None,
        };
        runtime.iter().chain(threshold).cloned().collect()
    }

    fn start(
        &mut self,
        work: &SegmentWork,
        runtime: &[RuntimeFilter],
        reader: &mut PageReader,
    ) -> Result<()> {
        let segment = &work.segment;
        if self.is_satisfied() || segment.rows == 0 {
            return Ok(());
        }
        let planned = self
            .planned
            .iter()
            .position(|planned| Arc::ptr_eq(&planned.segment, segment));
        let mut has_outputs = false;
        let plan = match planned.and_then(|index| self.planned.remove(index)) {
            Some(planned) => {
                has_outputs = planned.has_outputs;
                let mut spare = std::mem::replace(&mut self.columns, planned.columns);
                spare.close();
                self.spare.push(spare);
                planned.plan
            }
            None => {
                let columns = &mut self.columns;
                columns.open(segment)?;
                self.filter
                    .plan(&self.graph, columns, segment.rows, reader)?
            }
        };
        let Some(plan) = plan else {
            add(&self.metrics.segments_skipped_zone_map, 1);
            add(
                &self.metrics.pages_skipped_zone_map,
                self.columns.data_pages(),
            );
            return Ok(());
        };
        let mut rows = plan.rows.clone();
        let empty = || Bitmap::filled(plan.rows.len(), false);
        if !restrict(&mut rows, work.rows.as_deref()) {
            add(&self.metrics.segments_skipped_index, 1);
            self.count_pages(&plan.rows, &empty(), &empty());
            return Ok(());
        }
        let index_rows = rows.clone();
        let filters = self.filters(runtime);
        self.runtime.update(&filters, &self.columns);
        if !self.runtime.plan(&self.columns, &mut rows) {
            add(&self.metrics.segments_skipped_runtime, 1);
            self.count_pages(&plan.rows, &index_rows, &empty());
            return Ok(());
        }
        add(&self.metrics.segments_read, 1);
        add(&self.metrics.rows_in, segment.rows.into());
        self.evaluator.bind(|column| self.columns.bound(column));
        if planned.is_none() {
            prefetch_filter(
                &self.filter,
                &plan,
                &self.runtime,
                &rows,
                &mut self.columns,
                reader,
            )?;
        }
        let mut selection = rows.clone();
        self.filter.run(
            &plan,
            &mut self.runtime,
            &mut self.columns,
            &mut self.evaluator,
            &mut selection,
            reader,
        )?;
        let selected = selection.count();
        if selected > 0 && !has_outputs {
            for column in self.prefetch_columns() {
                self.columns.prefetch(column, &selection, reader)?;
            }
        }
        self.learn_survival(&rows, &selection);
        if let Sink::Rows(output) = &mut self.sink {
            output.begin();
        }
        self.present = Some(Present {
            rows: segment.rows,
            zone_rows: plan.rows,
            index_rows,
            runtime_rows: rows,
            selection,
            selected,
        });
        Ok(())
    }

    /// The output's columns that are surely read for every survivor.
    fn prefetch_columns(&self) -> Vec<usize> {
        match &self.sink {
            // A limit needs few of them, a top-k its keys first.
            Sink::Rows(output) if output.rows_left() < u64::from(BLOCK_ROWS) => Vec::new(),
            Sink::TopK(topk) => topk.key_columns(&self.graph),
            Sink::Nearest(nearest) => nearest.vector_columns(&self.graph),
            _ => self.output_columns.clone(),
        }
    }

    /// Notes which share of the output columns' pages had a survivor.
    fn learn_survival(&mut self, before: &Bitmap, selection: &Bitmap) {
        let pages_with = |rows: &Bitmap| -> usize {
            let columns = self.output_columns.iter();
            columns
                .map(|column| self.columns.pages_with(*column, rows))
                .sum()
        };
        let pages = pages_with(before);
        let alive = match selection == before {
            true => pages,
            false => pages_with(selection),
        };
        if pages > 0 {
            self.survival = 0.5 * self.survival + 0.5 * alive as f64 / pages as f64;
        }
    }

    fn advance(&mut self, reader: &mut PageReader) -> Result<Option<RecordBatch>> {
        if let Some(present) = &self.present {
            let mut work = Work {
                device: self.filter.device(),
                columns: &mut self.columns,
                evaluator: &mut self.evaluator,
                reader,
                selection: &present.selection,
                selected: present.selected,
                rows: present.rows,
            };
            match &mut self.sink {
                Sink::Rows(output) => {
                    if let Some(batch) = output.next(&mut work)? {
                        return Ok(Some(batch));
                    }
                }
                Sink::TopK(topk) if present.selected > 0 => topk.consume(&mut work)?,
                Sink::Aggregate(aggregation) if present.selected > 0 => {
                    aggregation.consume(&mut work)?
                }
                Sink::Nearest(nearest) if present.selected > 0 => nearest.consume(&mut work)?,
                _ => {}
            }
            self.end_segment();
        }
        match &mut self.sink {
            Sink::Aggregate(aggregation) => Ok(aggregation.next()),
            _ => Ok(None),
        }
    }

    fn end_segment(&mut self) {
        if let Some(present) = self.present.take() {
            self.count_pages(
                &present.zone_rows,
                &present.index_rows,
                &present.runtime_rows,
            );
            self.columns.close();
        }
    }

    /// Counts the pages that were not read by what made it so.
    fn count_pages(&self, zone_rows: &Bitmap, index_rows: &Bitmap, runtime_rows: &Bitmap) {
        let (mut zone_map, mut index, mut runtime, mut selection) = (0, 0, 0, 0);
        let (index_changed, runtime_changed) =
            (index_rows != zone_rows, runtime_rows != index_rows);
        for column in 0..self.columns.count() {
            // Each leaves some pages of what the one before it left.
            let all = self.columns.pages(column);
            let after_zones = self.columns.pages_with(column, zone_rows);
            let after_index = match index_changed {
                true => self.columns.pages_with(column, index_rows),
                false => after_zones,
            };
            let after_runtime = match runtime_changed {
                true => self.columns.pages_with(column, runtime_rows),
                false => after_index,
            };
            let read = self.columns.pages_read(column);
            zone_map += all.saturating_sub(after_zones) as u64;
            index += after_zones.saturating_sub(after_index) as u64;
            runtime += after_index.saturating_sub(after_runtime) as u64;
            selection += after_runtime.saturating_sub(read) as u64;
        }
        add(&self.metrics.pages_skipped_zone_map, zone_map);
        add(&self.metrics.pages_skipped_index, index);
        add(&self.metrics.pages_skipped_runtime, runtime);
        add(&self.metrics.pages_skipped_selection, selection);
    }
}

impl TaskRun for CpuRun {
    fn prefetch(
        &mut self,
        work: &SegmentWork,
        runtime: &[RuntimeFilter],
        reader: &mut PageReader,
    ) -> Result<()> {
        let segment = &work.segment;
        if self.is_satisfied() || segment.rows == 0 {
            return Ok(());
        }
        let mut columns = self.spare.pop().unwrap_or_else(|| self.columns.fresh());
        columns.open(segment)?;
        let plan = self
            .filter
            .plan(&self.graph, &mut columns, segment.rows, reader)?;
        let mut has_outputs = false;
        if let Some(plan) = &plan {
            let filters = self.filters(runtime);
            self.runtime_ahead.update(&filters, &columns);
            let mut rows = plan.rows.clone();
            if restrict(&mut rows, work.rows.as_deref())
                && self.runtime_ahead.plan(&columns, &mut rows)
            {
                prefetch_filter(
                    &self.filter,
                    plan,
                    &self.runtime_ahead,
                    &rows,
                    &mut columns,
                    reader,
                )?;
                if self.survival >= SURVIVAL_TO_PREFETCH {
                    has_outputs = true;
                    for column in self.prefetch_columns() {
                        columns.prefetch(column, &rows, reader)?;
                    }
                }
            }
        }
        self.planned.push_back(Planned {
            segment: Arc::clone(segment),
            columns,
            plan,
            has_outputs,
        });
        if self.planned.len() > MAX_AHEAD
            && let Some(mut planned) = self.planned.pop_front()
        {
            planned.columns.close();
            self.spare.push(planned.columns);
        }
        Ok(())
    }

    fn start_segment(
        &mut self,
        work: SegmentWork,
        runtime: &[RuntimeFilter],
        reader: &mut PageReader,
    ) -> Result<()> {
        self.start(&work, runtime, reader)
    }

    fn next(&mut self, reader: &mut PageReader) -> Result<Option<RecordBatch>> {
        self.advance(reader)
    }

    fn finish(&mut self) -> Result<Option<RecordBatch>> {
        match &mut self.sink {
            Sink::Rows(output) => output.finish(),
            Sink::TopK(topk) => topk.finish(),
            Sink::Aggregate(aggregation) => aggregation.finish(),
            Sink::Nearest(nearest) => nearest.finish(),
        }
    }

    fn is_satisfied(&self) -> bool {
        match &self.sink {
            Sink::Rows(output) => output.is_satisfied(),
            Sink::TopK(topk) => topk.is_satisfied(),
            Sink::Aggregate(_) => false,
            Sink::Nearest(nearest) => nearest.is_satisfied(),
        }
    }

    fn memory_bytes(&self) -> usize {
        match &self.sink {
            Sink::Rows(_) => 0,
            Sink::TopK(topk) => topk.memory_bytes(),
            Sink::Aggregate(aggregation) => aggregation.memory_bytes(),
            Sink::Nearest(nearest) => nearest.memory_bytes(),
        }
    }

    fn shed(&mut self) -> Result<()> {
        match &mut self.sink {
            Sink::Rows(_) => Ok(()),
            Sink::TopK(topk) => topk.shed(),
            Sink::Aggregate(aggregation) => aggregation.shed(),
            Sink::Nearest(nearest) => nearest.shed(),
        }
    }
}

/// Leaves of `rows` those that an index named; FALSE when there are none.
fn restrict(rows: &mut Bitmap, named: Option<&RowSelection>) -> bool {
    let Some(named) = named else { return true };
    let mut bits = Bitmap::filled(rows.len(), false);
    let end = rows.len() as u32;
    for range in named.ranges() {
        bits.set_range(range.start.min(end)..range.end.min(end));
    }
    rows.and(&bits);
    rows.any()
}

/// Asks for the pages that the filter has to look at.
fn prefetch_filter(
    filter: &Filter,
    plan: &ZonePlan,
    runtime: &RuntimeTests,
    rows: &Bitmap,
    columns: &mut Columns,
    reader: &mut PageReader,
) -> Result<()> {
    filter.for_columns(plan, rows, |column, rows| {
        columns.prefetch(column, rows, reader)
    })?;
    for column in runtime.columns() {
        columns.prefetch(column, rows, reader)?;
    }
    Ok(())
}

fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

//! Searches in graphs (BlueDBM section 7.2): the frontier and what was visited stay in the store,
//! only the answer leaves it. With `SET flashmesh.pushdown = 'never'` those that start somewhere
//! run [above the store](host).

mod host;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::kernels::cmp::not_distinct;
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::LogicalPlan;
use flashmesh_storage::accelerator::offload::{Fallback, Offload, Operation};
use flashmesh_storage::graph::{Direction, Graph, Job, PageRankOptions, PathStep};
use flashmesh_storage::index::adjacency::KeyType;
use flashmesh_storage::index::{Index, IndexKind};

use self::host::Traversal;
use super::arguments::{Argument, Arguments, constants};
use super::exec::{Emit, Run, StoreFunction, StoreFunctionNode};
use super::store::StoreRelations;
use crate::config::{self, FlashmeshOptions, Pushdown};
use crate::error::from_storage;
use crate::named::NamedTable;

/// What the order of joins takes for granted: vertices of a path, neighbours of seeds, edges of a
/// vertex.
const EXPECTED_STEPS: usize = 10;
const EXPECTED_NEIGHBOURS: usize = 1_000;
const EDGES_PER_VERTEX: usize = 16;

/// A search in a graph.
#[derive(Debug, Clone)]
struct GraphFunction {
    name: &'static str,
    /// The edges.
    table: NamedTable,
    /// The index of that version of them.
    index: Arc<Index>,
    keys: DataType,
    seeds: Seeds,
    search: Search,
    /// Whether it runs above the store.
    on_host: bool,
    /// What takes its steps, if not the CPU.
    device: Option<Device>,
}

/// A device that takes the steps of a search.
#[derive(Debug, Clone)]
struct Device {
    /// The accelerator's name.
    name: &'static str,
    offload: Arc<dyn Offload>,
    fallback: Fallback,
}

/// Where a search starts.
#[derive(Debug, Clone)]
enum Seeds {
    /// At these vertices.
    Given(ArrayRef),
    /// At those that the subquery gives.
    Input,
    /// Nowhere in particular.
    None,
}

#[derive(Debug, Clone)]
enum Search {
    Expand {
        hops: u32,
        direction: Direction,
    },
    Bfs {
        max_depth: u32,
        direction: Direction,
    },
    Path {
        weighted: bool,
        direction: Direction,
    },
    Components,
    PageRank(PageRankOptions),
}

/// `expand('index', seeds, hops [, direction => 'out' | 'in' | 'both'])`: for each seed every
/// other vertex within so many hops, once, with its least depth and the id of an edge's row that
/// leads to it.
pub(super) fn expand(store: &StoreRelations, mut arguments: Arguments<'_>) -> Result<LogicalPlan> {
    let graph = Opened::new(store, &mut arguments)?;
    let seeds = graph.seeds(&mut arguments)?;
    let hops = arguments.number()?;
    let direction = direction(&mut arguments)?;
    arguments.end()?;
    graph.plan("expand", seeds, Search::Expand { hops, direction })
}

/// `bfs('index', seeds [, max_depth] [, direction => …])`: every vertex that can be reached, its
/// depth, and the vertex before it; NULL for seeds.
pub(super) fn bfs(store: &StoreRelations, mut arguments: Arguments<'_>) -> Result<LogicalPlan> {
    let graph = Opened::new(store, &mut arguments)?;
    let seeds = graph.seeds(&mut arguments)?;
    let max_depth = match arguments.has_next() {
        true => arguments.number()?,
        false => u32::MAX,
    };
    let direction = direction(&mut arguments)?;
    arguments.end()?;
    let search = Search::Bfs {
        max_depth,
        direction,
    };
    graph.plan("bfs", seeds, search)
}

/// `shortest_path('index', from, to [, 'weight column'] [, direction => …])`: the vertices of a
/// shortest path, one a row, with the ids of the edges' rows between them; no row when there is
/// none.
pub(super) fn shortest_path(
    store: &StoreRelations,
    mut arguments: Arguments<'_>,
) -> Result<LogicalPlan> {
    let graph = Opened::new(store, &mut arguments)?;
    let mut ends = Vec::new();
    for _ in 0..2 {
        let Argument::Constant(end) = arguments.next()? else {
            return plan_err!("shortest_path goes between two constants, not from a subquery");
        };
        let end = graph.keys(&end)?;
        if end.len() != 1 {
            return plan_err!("shortest_path goes from one vertex to one, not to NULL or several");
        }
        ends.push(end);
    }
    let weighted = arguments.has_next();
    if weighted {
        let column = arguments.text()?;
        let definition = &graph.index.definition;
        let names = graph.table.snapshot().index_columns(definition);
        if names.get(2) != Some(&column.as_str()) {
            return plan_err!(
                "shortest_path: index '{}' does not hold '{column}' as its weight; make one USING adjacency (source, target, {column})",
                definition.name
            );
        }
    }
    let direction = direction(&mut arguments)?;
    arguments.end()?;
    let ends: Vec<&dyn Array> = ends.iter().map(AsRef::as_ref).collect();
    let seeds = (Seeds::Given(concat(&ends)?), None);
    let search = Search::Path {
        weighted,
        direction,
    };
    graph.plan("shortest_path", seeds, search)
}

/// `connected_components('index')`: each vertex with the least vertex of its component, edges
/// taken both ways.
pub(super) fn connected_components(
    store: &StoreRelations,
    mut arguments: Arguments<'_>,
) -> Result<LogicalPlan> {
    let graph = Opened::new(store, &mut arguments)?;
    arguments.end()?;
    let seeds = (Seeds::None, None);
    graph.plan("connected_components", seeds, Search::Components)
}

/// `page_rank('index' [, damping => 0.85] [, max_iterations => 100] [, tolerance => 1e-6])`: each
/// vertex with its rank; ranks sum to 1.
pub(super) fn page_rank(
    store: &StoreRelations,
    mut arguments: Arguments<'_>,
) -> Result<LogicalPlan> {
    let graph = Opened::new(store, &mut arguments)?;
    let mut options = PageRankOptions::default();
    if let Some(damping) = arguments.option_float("damping")? {
        options.damping = damping;
    }
    if let Some(iterations) = arguments.option_number("max_iterations")? {
        options.max_iterations = iterations;
    }
    if let Some(tolerance) = arguments.option_float("tolerance")? {
        options.tolerance = tolerance;
    }
    arguments.end()?;
    let seeds = (Seeds::None, None);
    graph.plan("page_rank", seeds, Search::PageRank(options))
}

fn direction(arguments: &mut Arguments<'_>) -> Result<Direction> {
    match arguments.option_text("direction")?.as_deref() {
        None | Some("out") => Ok(Direction::Out),
        Some("in") => Ok(Direction::In),
        Some("both") => Ok(Direction::Both),
        Some(other) => plan_err!(
            "{}: direction is 'out', 'in' or 'both', not '{other}'",
            arguments.function()
        ),
    }
}

/// The index that the first argument names.
struct Opened {
    table: NamedTable,
    index: Arc<Index>,
    keys: DataType,
    function: String,
    options: FlashmeshOptions,
}

/// A number, or the text of one, as a vertex of some type; `None` where that is another one, or none.
fn whole(value: &ScalarValue, keys: &DataType) -> Option<ScalarValue> {
    let of = value.data_type();
    let key = value.cast_to(keys).ok()?;
    let is_same = || key.cast_to(&of).is_ok_and(|back| back == *value);
    (of.is_string() || of.is_numeric() && is_same()).then_some(key)
}

impl Opened {
    fn new(store: &StoreRelations, arguments: &mut Arguments<'_>) -> Result<Self> {
        let name = arguments.text()?;
        let written = store.written(&name, arguments)?;
        let schema = store
            .workspace
            .place_of_index(&written.schema, &written.table);
        let (schema, name) = (schema.to_owned(), written.table.to_string());
        let index = store.workspace.index(&schema, &name);
        let (table_name, table, index) = index.map_err(from_storage)?;
        let table = store.named((schema, table_name), table);
        store.check_readable(&table, "index", &name)?;
        let definition = &index.definition;
        if definition.kind != IndexKind::Adjacency {
            return plan_err!(
                "{}: '{name}' is a {} index; a graph is searched by an index made USING adjacency (source, target)",
                arguments.function(),
                definition.kind
            );
        }
        let data_type = |i: usize| {
            let column = definition.columns[i] as usize;
            table.snapshot().schema.field(column).data_type()
        };
        let keys = KeyType::of(data_type(0), data_type(1)).map_err(from_storage)?;
        Ok(Self {
            keys: keys.data_type(),
            table: table.0,
            index,
            function: arguments.function().to_string(),
            options: arguments.session_options(),
        })
    }

    /// The next argument: where to start, and the subquery for it.
    fn seeds(&self, arguments: &mut Arguments<'_>) -> Result<(Seeds, Option<LogicalPlan>)> {
        match arguments.next()? {
            Argument::Constant(seeds) => Ok((Seeds::Given(self.keys(&seeds)?), None)),
            Argument::Rows(seeds) if seeds.schema().fields().len() == 1 => {
                Ok((Seeds::Input, Some(seeds)))
            }
            Argument::Rows(seeds) => plan_err!(
                "{}: the subquery gives {} columns, not the vertices alone",
                self.function,
                seeds.schema().fields().len()
            ),
        }
    }

    /// A constant, or an array of them, as vertices.
    fn keys(&self, value: &ScalarValue) -> Result<ArrayRef> {
        let values = constants(value)?
            .into_iter()
            .filter(|value| !value.is_null());
        let keys = values.map(|value| match whole(&value, &self.keys) {
            Some(key) => Ok(key),
            None => plan_err!(
                "{}: {value} is no vertex of index '{}', which are of type {}",
                self.function,
                self.index.definition.name,
                self.keys
            ),
        });
        let keys = keys.collect::<Result<Vec<_>>>()?;
        if keys.is_empty() {
            return Ok(arrow::array::new_empty_array(&self.keys));
        }
        ScalarValue::iter_to_array(keys)
    }

    /// The device of the accelerator that the session asks for, if that has one that takes steps.
    fn device(&self) -> Result<Option<Device>> {
        let Some(name) = &self.options.accelerator else {
            return Ok(None);
        };
        let accelerator = match self.table.node().accelerator_asked_for(name) {
            Ok(accelerator) => accelerator,
            Err(unknown) => return plan_err!("{}: {unknown}", self.function),
        };
        let offload = accelerator.offload();
        let offload = offload.filter(|offload| offload.supports(Operation::GraphStep));
        Ok(offload.map(|offload| Device {
            name: accelerator.name(),
            offload,
            fallback: match self.options.fallback {
                config::Fallback::Allow => Fallback::Allow,
                config::Fallback::Error => Fallback::Error,
            },
        }))
    }

    fn plan(
        self,
        name: &'static str,
        (seeds, input): (Seeds, Option<LogicalPlan>),
        search: Search,
    ) -> Result<LogicalPlan> {
        let is_whole = matches!(search, Search::Components | Search::PageRank(_));
        // What looks at every edge has no hops to choose.
        let on_host = self.options.pushdown == Pushdown::Never && !is_whole;
        let has_steps = matches!(search, Search::Expand { .. } | Search::Bfs { .. });
        let device = self.device()?.filter(|_| has_steps && !on_host);
        let function = GraphFunction {
            name,
            on_host,
            device,
            table: self.table,
            index: self.index,
            keys: self.keys,
            seeds,
            search,
        };
        StoreFunctionNode::plan(Arc::new(function), input)
    }
}

impl StoreFunction for GraphFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn table(&self) -> &NamedTable {
        &self.table
    }

    fn at(&self, table: NamedTable) -> Result<Arc<dyn StoreFunction>> {
        let definition = &self.index.definition;
        let index = table.snapshot().index(&definition.name);
        let Some(index) = index.filter(|index| index.definition == *definition) else {
            return plan_err!(
                "{}: index '{}' was dropped or changed after the query was planned; plan it again",
                self.name,
                definition.name
            );
        };
        Ok(Arc::new(Self {
            index: Arc::clone(index),
            table,
            ..self.clone()
        }))
    }

    fn arguments(&self) -> String {
        let index = &self.index.definition.name;
        let seeds = match &self.seeds {
            Seeds::Given(seeds) if seeds.len() == 1 => ", 1 vertex".to_string(),
            Seeds::Given(seeds) => format!(", {} vertices", seeds.len()),
            Seeds::Input => ", vertices of the input".to_string(),
            Seeds::None => String::new(),
        };
        let hops = match &self.search {
            Search::Expand { hops, .. } => format!(", {hops} hops"),
            _ => String::new(),
        };
        let place = match (self.on_host, &self.device) {
            (true, _) => "above the store, a command for each hop".to_string(),
            (false, None) => "in the store".to_string(),
            (false, Some(device)) => format!("in the store, on {}", device.name),
        };
        format!("{index}{seeds}{hops}, {place}")
    }

    fn is_in_store(&self) -> bool {
        !self.on_host
    }

    fn schema(&self) -> SchemaRef {
        let key = |name: &str, nullable| Field::new(name, self.keys.clone(), nullable);
        let fields = match &self.search {
            Search::Expand { .. } => vec![
                key("seed", false),
                Field::new("depth", DataType::UInt32, false),
                key("vertex", false),
                Field::new("edge", DataType::UInt64, false),
            ],
            Search::Bfs { .. } => vec![
                key("vertex", false),
                Field::new("depth", DataType::UInt32, false),
                key("parent", true),
            ],
            Search::Path { .. } => vec![
                Field::new("step", DataType::UInt32, false),
                key("vertex", false),
                Field::new("edge", DataType::UInt64, true),
                Field::new("cost", DataType::Float64, false),
            ],
            Search::Components => vec![key("vertex", false), key("component", false)],
            Search::PageRank(_) => vec![
                key("vertex", false),
                Field::new("rank", DataType::Float64, false),
            ],
        };
        Arc::new(Schema::new(fields))
    }

    fn expected_rows(&self) -> usize {
        let edges = self.table.snapshot().rows();
        match &self.search {
            Search::Path { .. } => EXPECTED_STEPS,
            // A neighbourhood of one hop is short, one of several may be everything.
            Search::Expand { hops: 1, .. } | Search::Bfs { max_depth: 1, .. } => {
                EXPECTED_NEIGHBOURS
            }
            _ => edges as usize / EDGES_PER_VERTEX,
        }
    }

    fn run(&self, input: Vec<RecordBatch>, run: &Run, emit: &mut Emit<'_>) -> Result<()> {
        self.table
            .node()
            .authorize(&self.table.capability(), self.table.snapshot())
            .map_err(from_storage)?;
        let graph = Graph::of(self.table.snapshot(), &self.index, self.table.store())
            .map_err(from_storage)?;
        let mut job = Job::new(run.threads).cancelled_by(Arc::clone(&run.cancelled));
        if let Some(device) = &self.device {
            let (offload, metrics) = (Arc::clone(&device.offload), Arc::clone(&run.cost.scan));
            job = job.offloaded_to(offload, device.fallback, metrics);
        }
        let seeds = match &self.seeds {
            Seeds::Given(seeds) => Arc::clone(seeds),
            Seeds::Input => self.seeds_of(&input)?,
            Seeds::None => arrow::array::new_empty_array(&self.keys),
        };
        let done = match self.on_host {
            true => self.run_on_host(&graph, &job, &seeds, run, emit),
            false => self.run_in_store(&graph, &job, &seeds, run, emit),
        };
        run.cost.scan.add_reads(job.counters());
        done
    }
}

impl GraphFunction {
    fn run_in_store(
        &self,
        graph: &Graph,
        job: &Job,
        seeds: &ArrayRef,
        run: &Run,
        emit: &mut Emit<'_>,
    ) -> Result<()> {
        match &self.search {
            Search::Expand { hops, direction } => {
                self.expand(graph, job, seeds, *hops, *direction, emit)
            }
            Search::Bfs {
                max_depth,
                direction,
            } => {
                let found = graph
                    .bfs(job, seeds, *max_depth, *direction)
                    .map_err(from_storage)?;
                for rows in slices(found.len(), run) {
                    let (vertices, depths, parents) =
                        found.rows(job, rows).map_err(from_storage)?;
                    emit(self.batch(vec![vertices, Arc::new(depths), parents])?)?;
                }
                Ok(())
            }
            Search::Path {
                weighted,
                direction,
            } => {
                let path = graph
                    .shortest_path(
                        job,
                        &seeds.slice(0, 1),
                        &seeds.slice(1, 1),
                        *direction,
                        *weighted,
                    )
                    .map_err(from_storage)?;
                self.emit_path(path, emit)
            }
            Search::Components => {
                let found = graph.connected_components(job).map_err(from_storage)?;
                for rows in slices(found.len(), run) {
                    let (vertices, components) = found.rows(job, rows).map_err(from_storage)?;
                    emit(self.batch(vec![vertices, components])?)?;
                }
                Ok(())
            }
            Search::PageRank(options) => {
                let found = graph.page_rank(job, *options).map_err(from_storage)?;
                for rows in slices(found.len(), run) {
                    let (vertices, ranks) = found.rows(job, rows).map_err(from_storage)?;
                    emit(self.batch(vec![vertices, Arc::new(ranks)])?)?;
                }
                Ok(())
            }
        }
    }
}

impl GraphFunction {
    fn run_on_host(
        &self,
        graph: &Graph,
        job: &Job,
        seeds: &ArrayRef,
        run: &Run,
        emit: &mut Emit<'_>,
    ) -> Result<()> {
        let traversal = |direction| Traversal {
            graph,
            job,
            run,
            direction,
        };
        match &self.search {
            Search::Expand { hops, direction } => {
                let traversal = traversal(*direction);
                traversal.expand(seeds, *hops, |place, found| {
                    let seed = self.repeated(seeds, place, found.len())?;
                    let [depths, vertices, rows] = found.columns(&traversal)?;
                    emit(self.batch(vec![seed, depths, vertices, rows])?)
                })
            }
            Search::Bfs {
                max_depth,
                direction,
            } => {
                let traversal = traversal(*direction);
                let found = traversal.bfs(seeds, *max_depth)?;
                for rows in slices(found.len(), run) {
                    let (vertices, depths, parents) = traversal.rows_of(&found, rows)?;
                    emit(self.batch(vec![vertices, Arc::new(depths), parents])?)?;
                }
                Ok(())
            }
            Search::Path {
                weighted,
                direction,
            } => {
                let path = traversal(*direction).shortest_path(seeds, *weighted)?;
                self.emit_path(path, emit)
            }
            Search::Components | Search::PageRank(_) => {
                internal_err!("{} runs in the store", self.name)
            }
        }
    }

    fn emit_path(
        &self,
        path: Option<(ArrayRef, Vec<PathStep>)>,
        emit: &mut Emit<'_>,
    ) -> Result<()> {
        let Some((keys, steps)) = path else {
            return Ok(());
        };
        let places = UInt32Array::from_iter_values(steps.iter().map(|step| step.step));
        let vertices = take(&keys, &places, None)?;
        let edges = UInt64Array::from_iter(steps.iter().map(|step| step.row));
        let costs = Float64Array::from_iter_values(steps.iter().map(|step| step.cost));
        emit(self.batch(vec![
            Arc::new(places),
            vertices,
            Arc::new(edges),
            Arc::new(costs),
        ])?)
    }

    /// One of the seeds, so many times.
    fn repeated(&self, seeds: &ArrayRef, place: usize, times: usize) -> Result<ArrayRef> {
        let places = UInt32Array::from_iter_values(std::iter::repeat_n(place as u32, times));
        Ok(take(seeds, &places, None)?)
    }

    fn batch(&self, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
        Ok(RecordBatch::try_new(self.schema(), columns)?)
    }

    /// The vertices of the subquery, without NULLs.
    fn seeds_of(&self, input: &[RecordBatch]) -> Result<ArrayRef> {
        let mut seeds = Vec::with_capacity(input.len());
        for batch in input {
            let keys = self.vertices(batch.column(0))?;
            let valid = arrow::compute::is_not_null(&keys)?;
            seeds.push(arrow::compute::filter(&keys, &valid)?);
        }
        if seeds.is_empty() {
            return Ok(arrow::array::new_empty_array(&self.keys));
        }
        let seeds: Vec<&dyn Array> = seeds.iter().map(AsRef::as_ref).collect();
        Ok(concat(&seeds)?)
    }

    /// Values as vertices; NULL where they are.
    fn vertices(&self, values: &ArrayRef) -> Result<ArrayRef> {
        let (of, keys) = (values.data_type(), cast(values, &self.keys)?);
        let has_digits = !of.is_integer() && of.is_numeric();
        let same = match has_digits {
            true => Some(not_distinct(values, &cast(&keys, of)?)?),
            false => None,
        };
        let is_known = of.is_numeric() || of.is_string();
        let is_lost = |row: &usize| {
            let differs = same.as_ref().is_some_and(|same| !same.value(*row));
            values.is_valid(*row) && (!is_known || keys.is_null(*row) || differs)
        };
        match (0..values.len()).find(is_lost) {
            None => Ok(keys),
            Some(row) => exec_err!(
                "{}: {} is no vertex of the index, which are of type {}",
                self.name,
                ScalarValue::try_from_array(values, row)?,
                self.keys
            ),
        }
    }

    fn expand(
        &self,
        graph: &Graph,
        job: &Job,
        seeds: &ArrayRef,
        hops: u32,
        direction: Direction,
        emit: &mut Emit<'_>,
    ) -> Result<()> {
        // What the receiver answered, which has no place in the store's error.
        let mut answer = Ok(());
        let done = graph.expand(job, seeds, hops, direction, |found| {
            answer = self
                .repeated(seeds, found.seed, found.vertices.len())
                .and_then(|seed| {
                    self.batch(vec![
                        seed,
                        Arc::new(found.depths),
                        found.vertices,
                        Arc::new(found.rows),
                    ])
                })
                .and_then(&mut *emit);
            match answer {
                Ok(()) => Ok(()),
                Err(_) => Err(flashmesh_storage::StorageError::Cancelled),
            }
        });
        answer?;
        done.map_err(from_storage)
    }
}

/// The rows of an answer, a batch at a time.
fn slices(rows: usize, run: &Run) -> impl Iterator<Item = Range<usize>> {
    let batch = run.batch_rows.max(1);
    (0..rows)
        .step_by(batch)
        .map(move |start| start..rows.min(start + batch))
}

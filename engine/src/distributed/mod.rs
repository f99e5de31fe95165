//! Plans of which the nodes of a rack run parts (BlueDBM section 4: computing goes to where the data
//! is; here also what takes rows of several tables).
//!
//! The head plans as ever. Where much of what scans give would come to it from other nodes, and
//! something above them joins, groups or sorts it, `datafusion-distributed` cuts the plan into stages
//! ([`planner`]): each node scans the segments that lie on it, and nodes give rows to each other by the
//! hash of a key, or small inputs of joins to all, as gRPC on streams of the mesh ([`channels`]). The
//! last stage runs on the head.
//!
//! ```text
//! head: last stage ◀── stream ── node: join, aggregate ◀── stream ── every node: its segments
//! ```
//!
//! What lies by the key is not given to anybody ([`colocated`]), small tables each node reads by itself
//! ([`whole`]), and what would meet nothing in a join on the other side of an exchange is dropped where it is
//! scanned ([`join_keys`]).
//!
//! A scan is the storage's own command, which its node verifies
//! ([`ScanCodec`](flashmesh_planner::ScanCodec)). What is there on the node is a [`Worker`], in the memory
//! of its engine and on threads of its own.

mod channels;
mod colocated;
mod deferred;
mod exec;
mod join_keys;
mod planner;
mod sent;
mod sorts;
mod whole;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::error::DataFusionError;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{
    DistributedExt, DistributedTaskContext, Worker, WorkerPlanRewriteEvent,
    WorkerPlanRewriteEventResponse, WorkerQueryContext, WorkerResolver,
};
use flashmesh_cluster::mesh::{MeshError, Streams};
use flashmesh_planner::{KeyHub, QueryKeys, ScanCodec};
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::store::NodeId;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use url::Url;

use self::channels::{Channels, Serving};
use self::join_keys::Ways;
pub(crate) use self::planner::DistributedPlanner;
use crate::bounded::{bound_functions, bounded_concatenation};
use crate::threads::runtime;

/// Of the memory of a node, for the rows of another one that wait: a part asks all nodes.
const BUFFER_SHARE: usize = 128;

/// What a node needs to run parts of plans.
pub(crate) struct WorkerParts {
    /// Its number.
    pub own: NodeId,
    /// Those of all nodes of the rack.
    pub nodes: Vec<NodeId>,
    /// The ways to the others.
    pub streams: Streams,
    /// Where its segments are.
    pub storage: Arc<StorageNode>,
    /// What the operators may take up, without files and object stores.
    pub memory: Arc<RuntimeEnv>,
    /// How many bytes that is.
    pub memory_limit: usize,
    /// Threads for all parts of plans that it runs.
    pub threads: usize,
}

/// The nodes that run parts of plans, as one of them sees them. Dropping it ends its own part.
pub(crate) struct Workers {
    own: NodeId,
    nodes: Vec<NodeId>,
    storage: Arc<StorageNode>,
    worker: Worker,
    session: WorkerSession,
    counts: Counts,
    whole_scans: WholeScans,
    _serving: [Serving; 2],
    /// Until it is dropped.
    runtime: Option<Runtime>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("own", &self.own)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Counts {
    queries: AtomicU64,
    on_head_alone: AtomicU64,
}

/// For how long no plan has small tables read by each node, once one has failed that did: some node
/// may not reach some other one, or be of an earlier build.
const WHOLE_RESTS: Duration = Duration::from_secs(10);

/// Whether nodes read what others have.
#[derive(Debug, Default)]
struct WholeScans(Mutex<Option<Instant>>);

impl WholeScans {
    fn have_failed(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    fn may_be(&self) -> bool {
        self.0
            .lock()
            .is_none_or(|when| when.elapsed() > WHOLE_RESTS)
    }
}

/// What is in every session that runs a part of a plan.
#[derive(Clone)]
struct WorkerSession {
    /// With all functions, and the options of joins.
    template: Arc<SessionState>,
    codec: Arc<ScanCodec>,
    channels: Arc<Channels>,
    keys: Arc<KeyHub>,
    /// What is kept of each node's rows at most before they are asked for.
    buffer_bytes: usize,
}

impl WorkerSession {
    /// Gives a session what reads and asks other nodes.
    fn configure(&self, config: SessionConfig) -> Result<SessionConfig> {
        config
            .with_distributed_user_codec_arc(Arc::clone(&self.codec) as _)
            .with_distributed_channel_resolver(Arc::clone(&self.channels) as ArcChannels)
            .with_distributed_worker_connection_buffer_budget_bytes(self.buffer_bytes)
    }

    /// Whether functions give the same on all nodes as with these options of a session: some read its
    /// time zone, and nodes have none of it.
    fn means_the_same(&self, config: &SessionConfig) -> bool {
        let zone = |config: &SessionConfig| config.options().execution.time_zone.clone();
        zone(config) == zone(self.template.config())
    }

    /// The session of a part that this node runs.
    fn build(&self, mut context: WorkerQueryContext) -> Result<SessionState> {
        let of_task = context.builder.config().take().unwrap_or_default();
        let options = self.template.config().options();
        let mut config = self.configure(of_task)?;
        // What is read while operators run: that of this node, by its memory.
        config.options_mut().execution = options.execution.clone();
        config.options_mut().optimizer = options.optimizer.clone();
        if let Some(execution) = join_keys::execution_of(&context.headers) {
            let task = config.get_extension::<DistributedTaskContext>();
            let (part, parts) = task.map_or((0, 1), |task| (task.task_index, task.task_count));
            let keys = QueryKeys::new(Arc::clone(&self.keys), execution, part, parts);
            config = config.with_extension(Arc::new(keys));
        }
        let config = config.with_distributed_worker_plan_rewrite_handler(only_known_operators);
        let runtime = context.builder.runtime_env().take();
        let runtime = runtime.unwrap_or_else(|| Arc::clone(self.template.runtime_env()));
        Ok(
            SessionStateBuilder::new_from_existing(self.template.as_ref().clone())
                .with_config(config)
                .with_runtime_env(runtime)
                .build(),
        )
    }
}

type ArcChannels = Arc<dyn datafusion_distributed::ChannelResolver + Send + Sync>;

/// Refuses a part of a plan that reads or writes anything but tables of the rack.
fn only_known_operators(
    event: WorkerPlanRewriteEvent<'_>,
) -> Result<WorkerPlanRewriteEventResponse> {
    match planner::unknown_operator(event.plan.as_ref()) {
        None => Ok(WorkerPlanRewriteEventResponse::new(event.plan)),
        Some(name) => exec_err!("a node runs no {name} for others"),
    }
}

impl Workers {
    /// From now on this node runs parts of plans for others.
    ///
    /// # Errors
    /// When somebody else does on the same mesh, or threads can't be started.
    pub fn start(parts: WorkerParts, options: SessionConfig) -> crate::Result<Arc<Self>> {
        let runtime = runtime("worker", parts.threads)?;
        let channels = Channels::new(parts.streams.clone(), runtime.handle().clone());
        let ways = Ways {
            own: parts.own,
            nodes: parts.nodes.clone(),
            streams: parts.streams.clone(),
            runtime: runtime.handle().clone(),
        };
        let keys = Arc::new(KeyHub::new(Box::new(ways)));
        let of_mesh = |error: MeshError| crate::Error::usage(format!("the mesh: {error}"));
        let listening = join_keys::listen(&parts.streams, &keys, runtime.handle());
        let listening = listening.map_err(of_mesh)?;
        let template = SessionStateBuilder::new()
            .with_config(options)
            .with_runtime_env(Arc::clone(&parts.memory))
            .with_default_features();
        let template = flashmesh_planner::configure(template).build();
        let template = SessionContext::new_with_state(template);
        bound_functions(&template, parts.memory_limit)?;
        template.register_udf(bounded_concatenation(parts.memory_limit));
        for function in flashmesh_planner::functions_of_plans() {
            template.register_udf(function.as_ref().clone());
        }
        template.register_udwf(flashmesh_planner::first_of_keys().as_ref().clone());
        let session = WorkerSession {
            template: Arc::new(template.state()),
            codec: Arc::new(ScanCodec::new(Arc::clone(&parts.storage))),
            channels: Arc::new(channels),
            keys,
            buffer_bytes: (parts.memory_limit / BUFFER_SHARE).clamp(1 << 20, 64 << 20),
        };
        let of_parts = session.clone();
        let build = move |context| {
            let session = of_parts.clone();
            async move { session.build(context) }
        };
        let worker = Worker::from_session_builder(build).with_runtime_env(parts.memory);
        let serving =
            channels::serve(&parts.streams, worker.clone(), runtime.handle()).map_err(of_mesh)?;
        let mut nodes = parts.nodes;
        nodes.sort();
        Ok(Arc::new(Self {
            own: parts.own,
            nodes,
            storage: parts.storage,
            worker,
            session,
            counts: Counts::default(),
            whole_scans: WholeScans::default(),
            _serving: [serving, listening],
            runtime: Some(runtime),
        }))
    }

    /// How many queries (and subqueries of one value) were left to several nodes, and how many of these were then done on this one
    /// alone, since one of them went away or could not do its part.
    pub fn counts(&self) -> (u64, u64) {
        let Counts {
            queries,
            on_head_alone,
        } = &self.counts;
        let [queries, on_head_alone] =
            [queries, on_head_alone].map(|count| count.load(Ordering::Relaxed));
        (queries, on_head_alone)
    }

    /// The nodes that can be asked now, in a fixed order; this one is among them.
    fn reachable(&self) -> Vec<NodeId> {
        let nodes = self.nodes.iter().copied();
        nodes
            .filter(|node| *node == self.own || self.storage.works(*node))
            .collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // A task, in which the last of it may go, may not wait for threads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// As what `datafusion-distributed` knows a node.
fn url_of(node: NodeId) -> Url {
    let url = format!("http://n{}", node.0);
    Url::parse(&url).expect("a number makes a host's name")
}

fn node_of(url: &Url) -> Result<NodeId> {
    let number = url.host_str().and_then(|host| host.strip_prefix('n'));
    let number = number.and_then(|number| number.parse().ok());
    number
        .map(NodeId)
        .ok_or_else(|| exec_datafusion_err!("'{url}' is no node"))
}

/// The nodes that a plan is for.
struct Nodes(Vec<NodeId>);

impl WorkerResolver for Nodes {
    fn get_urls(&self) -> std::result::Result<Vec<Url>, DataFusionError> {
        Ok(self.0.iter().map(|node| url_of(*node)).collect())
    }
}

/// Whether any operator of `plan` is such a one.
fn has(plan: &dyn ExecutionPlan, is: &impl Fn(&dyn ExecutionPlan) -> bool) -> bool {
    is(plan) || plan.children().iter().any(|child| has(child.as_ref(), is))
}

/// How many rows an operator is expected to give.
fn rows_of(plan: &dyn ExecutionPlan) -> Option<usize> {
    let statistics = StatisticsContext::new().compute(plan, &StatisticsArgs::new());
    statistics.ok()?.num_rows.get_value().copied()
}

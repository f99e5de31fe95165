//! Which plans are cut into parts, and where the parts run.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::format::ExplainFormat;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinType, Result, exec_err, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, PlanType};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, PartitionMode, SortMergeJoinExec,
};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, Partitioning, ReplaceChildrenOptions, displayable,
};
use datafusion::prelude::SessionConfig;
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DistributedCodec, DistributedExec,
    DistributedExt, DistributedLeafExec, RouteTasksEvent, RouteTasksEventResponse,
    ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse, SessionStateBuilderExt,
};
use datafusion_proto::bytes::physical_plan_to_bytes_with_proto_converter;
use datafusion_proto::physical_plan::DeduplicatingProtoConverter;
use flashmesh_macros::async_impl;
use flashmesh_planner::interrupt::with_plain_conditions;
use flashmesh_planner::scan::statistics;
use flashmesh_planner::walk::Walk as _;
use flashmesh_planner::{Distributed, FlashScanExec, FlashmeshOptions};
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::segment::Segment;
use flashmesh_storage::store::NodeId;
use futures::future::BoxFuture;

use super::colocated::{Places, localised};
use super::deferred::{DeferredExec, subqueries_of};
use super::exec::{Measure, RackExec};
use super::join_keys::with_join_keys;
use super::sent::is_kept;
use super::sorts::with_whole_sorts;
use super::whole::Readers;
use super::{Nodes, Workers, has, rows_of, url_of};

/// What scans have to give to the head, from other nodes, for their rows to be joined there instead:
/// below it a stage more costs more than it spares.
const WORTH_BYTES: u64 = 16 << 20;

/// The operators that nodes run for each other: without files, without effects, and such that what
/// they do ends when nobody asks for it.
const KNOWN: [&str; 32] = [
    "AggregateExec",
    "BoundedWindowAggExec",
    "BroadcastExec",
    "CoalesceBatchesExec",
    "CoalescePartitionsExec",
    "CooperativeExec",
    "CrossJoinExec",
    "EmptyExec",
    "FilterExec",
    "FlashScanExec",
    "ForgettingExec",
    "GlobalLimitExec",
    "HashJoinExec",
    "InterleaveExec",
    "JoinKeysExec",
    "LeadingRowsExec",
    "LocalExchangeExec",
    "LocalLimitExec",
    "NetworkBroadcastExec",
    "NetworkCoalesceExec",
    "NetworkShuffleExec",
    "PlaceholderRowExec",
    "ProjectionExec",
    "RepartitionExec",
    "SlicingExec",
    "SortExec",
    "SortExec(TopK)",
    "SortMergeJoinExec",
    "SortPreservingMergeExec",
    "SortedRanksExec",
    "UnionExec",
    "WindowAggExec",
];

/// The first operator of a plan that nodes do not run for each other, or would run otherwise.
pub(super) fn unknown_operator(plan: &dyn ExecutionPlan) -> Option<String> {
    if !KNOWN.contains(&plan.name()) || !is_kept(plan) {
        return Some(plan.name().into());
    }
    let mut children = plan.children().into_iter();
    children.find_map(|child| unknown_operator(child.as_ref()))
}

/// A session's planner on the head of a rack.
#[derive(Debug, Clone)]
pub(crate) struct DistributedPlanner {
    pub planner: Arc<dyn QueryPlanner + Send + Sync>,
    pub workers: Arc<Workers>,
}

#[async_impl]
impl QueryPlanner for DistributedPlanner {
    async fn create_physical_plan(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match query {
            LogicalPlan::Explain(explain) => {
                let plan = self.planner.create_physical_plan(query, session).await?;
                let explained = &explain.plan;
                let here = self
                    .planner
                    .create_physical_plan(explained, session)
                    .await?;
                let parts = self.in_parts(explained, &here, session, None).await?;
                let options = session.config_options();
                Ok(match parts {
                    Some(parts) => shown(&plan, parts.as_ref(), &explain.explain_format, options),
                    None => plan,
                })
            }
            LogicalPlan::Analyze(analyze) => {
                let plan = self.planner.create_physical_plan(query, session).await?;
                let Some(analyzing) = plan.downcast_ref::<AnalyzeExec>() else {
                    return Ok(plan);
                };
                let measure = match analyze.verbose {
                    true => Measure::PerTask,
                    false => Measure::Aggregated,
                };
                let (analyzed, here) = (&analyze.input, analyzing.input());
                let parts = self.in_parts(analyzed, here, session, Some(measure));
                match parts.await? {
                    Some(parts) => plan.replace_children(
                        vec![parts],
                        ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
                    ),
                    None => Ok(plan),
                }
            }
            query => self.planned(query, session, None).await,
        }
    }
}

impl DistributedPlanner {
    /// The plan of a query that is no EXPLAIN, in parts where that is worth it; with `measure` they tell what
    /// they did.
    pub(super) async fn planned(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
        measure: Option<Measure>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let here = self.planner.create_physical_plan(query, session).await?;
        let parts = self.in_parts(query, &here, session, measure).await?;
        Ok(parts.unwrap_or(here))
    }

    /// A query as nodes do parts of it; `None` where all of it is for this one, which would do it as
    /// `here`.
    fn in_parts<'a>(
        &'a self,
        query: &'a LogicalPlan,
        here: &'a Arc<dyn ExecutionPlan>,
        session: &'a dyn Session,
        measure: Option<Measure>,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn ExecutionPlan>>>> {
        Box::pin(async move {
            if let Some(with_subqueries) = here.downcast_ref::<ScalarSubqueryExec>() {
                return self
                    .of_subqueries(query, with_subqueries, session, measure)
                    .await;
            }
            if !self.workers.are_worth_asking(here, session.config()) {
                return Ok(None);
            }
            // Another one for the nodes: where they fail, nothing of what they have done is in this one.
            let of_nodes = self.planner.create_physical_plan(query, session).await?;
            let parts = self
                .workers
                .distribute(here, of_nodes, session.config(), measure);
            match parts.await {
                Ok(parts) => Ok(parts),
                Err(error) => {
                    log::warn!("a plan is not cut into parts for other nodes: {error}");
                    Ok(None)
                }
            }
        })
    }

    /// [`DistributedPlanner::in_parts`] of a query with subqueries that are one value each, which are
    /// computed before it: each of them may be in parts, and so may the query, when the values are known.
    async fn of_subqueries(
        &self,
        query: &LogicalPlan,
        here: &ScalarSubqueryExec,
        session: &dyn Session,
        measure: Option<Measure>,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let subqueries = subqueries_of(query)?;
        let state = session.as_any().downcast_ref::<SessionState>();
        let Some(state) = state.filter(|_| subqueries.len() == here.subqueries().len()) else {
            return Ok(None);
        };
        let mut links = here.subqueries().to_vec();
        let mut is_in_parts = false;
        for (subquery, link) in subqueries.iter().zip(&mut links) {
            let parts = self.in_parts(&subquery.subquery, &link.plan, session, measure);
            if let Some(parts) = parts.await? {
                link.plan = parts;
                is_in_parts = true;
            }
        }
        let mut input = Arc::clone(here.input());
        if self.workers.are_worth_asking(&input, session.config()) {
            let values = (subqueries, here.results().clone());
            let (query, session) = (query.clone(), state.clone());
            let deferred = DeferredExec::new(self.clone(), session, query, values, input, measure);
            input = Arc::new(deferred);
            is_in_parts = true;
        }
        let results = here.results().clone();
        let whole = || Arc::new(ScalarSubqueryExec::new(input, links, results)) as _;
        Ok(is_in_parts.then(whole))
    }
}

impl Workers {
    fn are_worth_asking(&self, query: &Arc<dyn ExecutionPlan>, config: &SessionConfig) -> bool {
        let wanted = FlashmeshOptions::of(config.options()).distributed;
        if wanted == Distributed::Never || unknown_operator(query.as_ref()).is_some() {
            return false;
        }
        if !self.session.means_the_same(config) || self.reachable().len() < 2 {
            return false;
        }
        if wanted == Distributed::Always {
            return true;
        }
        let come = self.bytes_to_come(query.as_ref(), None);
        log::debug!("a query takes {come:?} bytes from other nodes where it is done on this one");
        let meet = |plan: &dyn ExecutionPlan| match plan.downcast_ref::<RepartitionExec>() {
            Some(repartition) => matches!(repartition.partitioning(), Partitioning::Hash(..)),
            None => {
                plan.is::<HashJoinExec>()
                    || plan.is::<SortMergeJoinExec>()
                    || plan.is::<CrossJoinExec>()
            }
        };
        come.is_some_and(|bytes| bytes >= WORTH_BYTES) && has(query.as_ref(), &meet)
    }

    /// What scans that can be divided are expected to take from other nodes where all is done on this
    /// one: what they give, or their pages, whichever is less. `None` where there is no such scan.
    fn bytes_to_come(&self, plan: &dyn ExecutionPlan, probed: Option<&Probed>) -> Option<u64> {
        if let Some(scan) = plan.downcast_ref::<FlashScanExec>() {
            return is_divided(scan, &self.storage).then(|| self.bytes_of(scan, probed));
        }
        let children = plan.children();
        let come = match plan.downcast_ref::<HashJoinExec>() {
            Some(join) => {
                let built = self.bytes_to_come(join.left().as_ref(), None);
                let probed = Probed::by(plan, join);
                [
                    built,
                    self.bytes_to_come(join.right().as_ref(), probed.as_ref()),
                ]
            }
            None => {
                let probed = probed.filter(|_| children.len() == 1 && !plan.is::<AggregateExec>());
                let of_child =
                    |child: &&Arc<dyn ExecutionPlan>| self.bytes_to_come(child.as_ref(), probed);
                [
                    children
                        .iter()
                        .filter_map(of_child)
                        .reduce(u64::saturating_add),
                    None,
                ]
            }
        };
        come.into_iter().flatten().reduce(u64::saturating_add)
    }

    fn bytes_of(&self, scan: &FlashScanExec, probed: Option<&Probed>) -> u64 {
        let spec = scan.spec();
        let segments = scan.segments();
        let others = segments.iter().filter(|s| self.storage.holder(s).is_some());
        let others: Vec<_> = others.cloned().collect();
        let all = statistics::of_scan(spec, &scan.schema(), scan.partitions());
        let count = |value: &Precision<usize>| value.get_value().map_or(0.0, |v| *v as f64);
        let (rows, mut bytes) = (count(&all.num_rows), count(&all.total_byte_size));
        if let Some(probed) = probed.filter(|p| scan.will_know_keys(p.keys, p.partitioned)) {
            bytes *= (probed.left as f64 / rows.max(1.0)).min(1.0);
        }
        let answers = bytes * others.len() as f64 / segments.len().max(1) as f64;
        answers.min(self.storage.bytes_to_fetch(scan.program(), &others)) as u64
    }

    /// The plan in parts, for those nodes that can be asked now; `None` where nothing of it is for
    /// others. `here` and `of_nodes` are the same plan, and share nothing.
    async fn distribute(
        self: &Arc<Self>,
        here: &Arc<dyn ExecutionPlan>,
        of_nodes: Arc<dyn ExecutionPlan>,
        config: &SessionConfig,
        measure: Option<Measure>,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let nodes = self.reachable();
        if nodes.len() < 2 {
            return Ok(None);
        }
        let portable = with_plain_conditions(of_nodes)?;
        let places = Places::of(&portable, &self.storage, self.own, &nodes);
        let (portable, places) = match localised(&portable, &places, config.target_partitions())? {
            Some(local) => (local, places),
            None => (portable, Places::default()),
        };
        let portable = with_whole_sorts(with_join_keys(portable)?)?;
        let config = self.coordinator(config.clone(), &nodes, &places, measure.is_some())?;
        check_form(&portable, &config)?;
        let given = Arc::new(Given(portable));
        let session = SessionStateBuilder::new()
            .with_config(config)
            .with_query_planner(given)
            .with_distributed_planner()
            .build();
        let nothing = LogicalPlanBuilder::empty(false).build()?;
        let planner = Arc::clone(session.query_planner());
        let distributed = planner.create_physical_plan(&nothing, &session).await?;
        if !distributed.is::<DistributedExec>() {
            return Ok(None);
        }
        let readers = Readers {
            storage: &self.storage,
            own: self.own,
            nodes: &nodes,
        };
        let (distributed, has_whole) = match self.whole_scans.may_be() {
            true => readers.with_whole_scans(distributed)?,
            false => (distributed, false),
        };
        Ok(Some(Arc::new(RackExec::new(
            distributed,
            Arc::clone(here),
            Arc::clone(self),
            nodes,
            measure,
            has_whole,
        ))))
    }

    /// What a session has that leaves parts of a plan to `nodes`. `places`: where buckets are worked on;
    /// they are of no meaning for a plan that is cut.
    pub(super) fn coordinator(
        &self,
        config: SessionConfig,
        nodes: &[NodeId],
        places: &Places,
        is_measured: bool,
    ) -> Result<SessionConfig> {
        let own = self.own;
        let (tasks, storage) = (nodes.len(), Arc::clone(&self.storage));
        let options = FlashmeshOptions::of(config.options());
        let always = options.distributed == Distributed::Always;
        let by_buckets = places.clone();
        let desired = move |event: DesiredTaskCountEvent<'_>| {
            let scan = event.plan.downcast_ref::<FlashScanExec>()?;
            let is_divided = match always {
                true => scan.is_divisible(),
                false => is_divided(scan, &storage) || by_buckets.divide(scan),
            };
            is_divided.then(|| Ok(DesiredTaskCountEventResponse::desired(tasks)))
        };
        let (of_tasks, storage) = (nodes.to_vec(), Arc::clone(&self.storage));
        let places = places.clone();
        let divide = move |event: ScaleUpLeafNodeEvent<'_>| {
            let scan = event.plan.downcast_ref::<FlashScanExec>()?;
            if event.task_count == 1 {
                return None;
            }
            let parts = match places.divide(scan) {
                true => places.divided(scan),
                false => by_holders(scan, &storage, own),
            };
            let divided = divided(scan, event.plan, parts, own, &of_tasks, event.task_count);
            Some(divided.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
        };
        let of_routes = nodes.to_vec();
        let route = move |event: RouteTasksEvent<'_>| {
            let urls = match event.task_count {
                1 => vec![url_of(own)],
                tasks if tasks == of_routes.len() => {
                    of_routes.iter().map(|node| url_of(*node)).collect()
                }
                tasks => {
                    let nodes = of_routes.len();
                    return Some(exec_err!("a part for {tasks} of {nodes} nodes"));
                }
            };
            Some(Ok(RouteTasksEventResponse::new(urls)))
        };
        let config = self.session.configure(config)?;
        config
            .with_distributed_worker_resolver(Nodes(nodes.to_vec()))
            .with_distributed_desired_task_count_handler(desired)
            .with_distributed_scale_up_leaf_node_handler(divide)
            .with_distributed_route_tasks_handler(route)
            // Its tasks are numbered in another way than the nodes that have the segments.
            .with_distributed_children_isolator_unions(false)?
            .with_distributed_metrics_collection(is_measured)
    }
}

/// What a join does to the scan of its right side, which may know its keys before it starts.
struct Probed {
    /// How many rows the join is expected to leave.
    left: usize,
    /// How many keys there are expected to be.
    keys: Option<usize>,
    partitioned: bool,
}

impl Probed {
    fn by(plan: &dyn ExecutionPlan, join: &HashJoinExec) -> Option<Self> {
        let leaves_fewer = matches!(
            join.join_type(),
            JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi
        );
        // Of several keys the scan knows each by itself.
        (leaves_fewer && join.on().len() == 1).then_some(())?;
        Some(Self {
            left: rows_of(plan)?,
            keys: rows_of(join.left().as_ref()),
            partitioned: *join.partition_mode() == PartitionMode::Partitioned,
        })
    }
}

/// Checks that a plan has a form in which it can be sent. Of its scans that is known, and long.
fn check_form(plan: &Arc<dyn ExecutionPlan>, config: &SessionConfig) -> Result<()> {
    let without_segments = Arc::clone(plan).transform_up(|node| {
        let scan = node.downcast_ref::<FlashScanExec>();
        Ok(match scan.map(|scan| scan.over(Vec::new())) {
            Some(scan) => Transformed::yes(Arc::new(scan) as _),
            None => Transformed::no(node),
        })
    })?;
    let codec = DistributedCodec::new_combined_with_user(config);
    let converter = DeduplicatingProtoConverter::default();
    let plan = without_segments.data;
    physical_plan_to_bytes_with_proto_converter(plan, &codec, &converter).map(|_| ())
}

/// What EXPLAIN gives, with the plan that nodes run parts of in place of the one that it was made of.
fn shown(
    explain: &Arc<dyn ExecutionPlan>,
    plan: &dyn ExecutionPlan,
    format: &ExplainFormat,
    options: &ConfigOptions,
) -> Arc<dyn ExecutionPlan> {
    let Some(known) = explain.downcast_ref::<ExplainExec>() else {
        return Arc::clone(explain);
    };
    let plan = displayable(plan);
    let text = match format {
        ExplainFormat::Tree => {
            let width = options.explain.tree_maximum_render_width;
            let plan = plan.set_tree_maximum_render_width(width);
            plan.tree_render().to_string()
        }
        _ => plan.indent(known.verbose()).to_string(),
    };
    let mut plans = known.stringified_plans().to_vec();
    for shown in &mut plans {
        if shown.plan_type == PlanType::FinalPhysicalPlan {
            shown.plan = Arc::new(text.clone());
        }
    }
    Arc::new(ExplainExec::new(explain.schema(), plans, known.verbose()))
}

/// Whether each node scans its own part of a table: it lies on several.
fn is_divided(scan: &FlashScanExec, storage: &StorageNode) -> bool {
    let segments = scan.segments();
    let mut holders = segments.iter().map(|segment| storage.holder(segment));
    let first = holders.next();
    let lies_on_several = first.is_some_and(|first| holders.any(|holder| holder != first));
    lies_on_several && scan.is_divisible()
}

/// The segments of a scan, by the nodes that have them.
fn by_holders(
    scan: &FlashScanExec,
    storage: &StorageNode,
    own: NodeId,
) -> BTreeMap<NodeId, Vec<Arc<Segment>>> {
    let mut parts: BTreeMap<NodeId, Vec<Arc<Segment>>> = BTreeMap::new();
    for segment in scan.segments().iter() {
        let holder = storage.holder(segment).unwrap_or(own);
        parts.entry(holder).or_default().push(Arc::clone(segment));
    }
    parts
}

/// A scan of each node, of its part.
fn divided(
    scan: &FlashScanExec,
    plan: &Arc<dyn ExecutionPlan>,
    mut parts: BTreeMap<NodeId, Vec<Arc<Segment>>>,
    own: NodeId,
    nodes: &[NodeId],
    tasks: usize,
) -> Result<DistributedLeafExec> {
    if tasks != nodes.len() {
        return internal_err!("a scan in {tasks} parts for {} nodes", nodes.len());
    }
    let variants: Vec<_> = nodes
        .iter()
        .map(|node| {
            let segments = parts.remove(node).unwrap_or_default();
            Arc::new(match *node == own {
                true => scan.over(segments),
                false => scan.carried_over(segments),
            }) as _
        })
        .collect();
    if let Some((node, _)) = parts.pop_first() {
        return exec_err!("node {} has come back meanwhile", node.0);
    }
    DistributedLeafExec::try_new(Arc::clone(plan), variants)
}

/// Takes a plan that is there for one that it has made.
#[derive(Debug)]
struct Given(Arc<dyn ExecutionPlan>);

#[async_impl]
impl QueryPlanner for Given {
    async fn create_physical_plan(
        &self,
        _: &LogicalPlan,
        _: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::clone(&self.0))
    }
}

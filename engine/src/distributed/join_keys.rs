//! Where scans learn of joins on the other side of an exchange
//! ([`join_keys`](flashmesh_planner::JoinKeysExec)): which joins tell their keys, and the way between nodes.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use flashmesh_cluster::mesh::{MeshError, Streams};
use flashmesh_planner::scan::spec::DynamicFilter;
use flashmesh_planner::{FlashScanExec, JoinKeysExec, KeyFilter, KeyHub, TellNodes};
use flashmesh_pushdown::Scalar;
use flashmesh_storage::store::NodeId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;

use super::rows_of;

/// Scans of fewer rows start at once.
const WORTH_ROWS: f64 = 10_000.0;
/// A join whose build side has more than this share of the keys of the other one leaves too many of its
/// rows for them to be worth waiting.
const WORTH_SHARE: f64 = 0.75;

/// The service of the mesh on which nodes tell each other keys.
const SERVICE: &str = "join-keys";
/// A message of several keys, each of which has a bit for every value, is no longer.
const MESSAGE_MAX_BYTES: usize = 64 << 20;

/// The header by which the tasks of an execution know each other.
const EXECUTION: &str = "x-flashmesh-execution";

/// What marks the tasks of one execution of a plan.
pub(super) fn mark_of(execution: u128) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = HeaderValue::from_str(&format!("{execution:032x}"));
    headers.insert(EXECUTION, value.expect("digits make a header"));
    headers
}

/// The execution of a task with these headers.
pub(super) fn execution_of(headers: &HeaderMap) -> Option<u128> {
    let value = headers.get(EXECUTION)?.to_str().ok()?;
    u128::from_str_radix(value, 16).ok()
}

/// The plan, where joins tell their keys to scans that are in another part of it than they are.
pub(super) fn with_join_keys(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let mut told: HashMap<u64, Told> = HashMap::new();
    let plan = plan.transform_up(|node| {
        let join = node.downcast_ref::<HashJoinExec>();
        let number = u32::try_from(told.len()).unwrap_or(u32::MAX);
        let Some((filter, keys)) = join.and_then(|join| Told::by(join, number)) else {
            return Ok(Transformed::no(node));
        };
        let mut children: Vec<_> = node.children().into_iter().cloned().collect();
        children[0] = keys.noted_in(&children[0])?;
        told.insert(filter, keys);
        Ok(Transformed::yes(with_children(node, children)?))
    })?;
    let plan = plan.data.transform_up(|node| {
        let Some(scan) = node.downcast_ref::<FlashScanExec>() else {
            return Ok(Transformed::no(node));
        };
        let (mut keys, mut known) = (Vec::new(), Vec::new());
        for filter in &scan.spec().dynamic_filters {
            let id = filter.expr.expression_id();
            if let Some((id, told)) = id.and_then(|id| Some((id, told.get(&id)?))) {
                known.push(id);
                keys.extend(told.filters_of(filter));
            }
        }
        Ok(match known.is_empty() {
            true => Transformed::no(node),
            false => Transformed::yes(Arc::new(scan.with_key_filters(keys, &known)) as _),
        })
    })?;
    Ok(plan.data)
}

fn with_children(
    plan: Arc<dyn ExecutionPlan>,
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    plan.replace_children(children, options)
}

/// What a join tells.
struct Told {
    join: u32,
    keys: Vec<ToldKey>,
}

struct ToldKey {
    /// Its place in the join's condition.
    place: usize,
    expr: Arc<dyn PhysicalExpr>,
    /// Between which integers those are that hear of it.
    span: Option<(i64, i64)>,
}

impl Told {
    /// What is worth telling by a join, and the number of the filter by which scans know it. On one node
    /// each stream of a join that is partitioned tells the scans by that filter; all of them have what a
    /// node has, and the scan has what all nodes have.
    fn by(join: &HashJoinExec, number: u32) -> Option<(u64, Self)> {
        let filter = join.dynamic_expressions_produced();
        let filter = filter.first()?.expression_id()?;
        if join.null_aware {
            return None;
        }
        // Where all tasks have all of the build side, one that gives rows of it gives each as often: who
        // cuts the plan makes it a join that exchanges both sides.
        let gets_exchanges = *join.partition_mode() == PartitionMode::CollectLeft
            && matches!(
                join.join_type(),
                JoinType::Left
                    | JoinType::Full
                    | JoinType::LeftSemi
                    | JoinType::LeftAnti
                    | JoinType::LeftMark
            );
        let mut scans = Vec::new();
        beyond_exchanges(join.right(), filter, gets_exchanges, &mut scans);
        let rows = rows_of(join.left().as_ref());
        let mut keys: BTreeMap<usize, Option<(i64, i64)>> = BTreeMap::new();
        for (scan, filter) in scans {
            let statistics = &scan.spec().table.statistics;
            for (place, ordinal) in columns_of(filter) {
                let column = statistics.get(ordinal as usize);
                let span = column.and_then(|c| Some((integer(&c.min)?, integer(&c.max)?)));
                let distinct = column.and_then(|column| column.distinct);
                let leaves_few = rows
                    .zip(distinct)
                    .is_none_or(|(rows, of)| (rows as f64) < of as f64 * WORTH_SHARE);
                if leaves_few && scan.spec().rows_after_filter() >= WORTH_ROWS {
                    let both = |(least, greatest): (i64, i64), (l, g): (i64, i64)| {
                        (least.min(l), greatest.max(g))
                    };
                    let known = keys.entry(place).or_insert(span);
                    *known = known.zip(span).map(|(known, span)| both(known, span));
                }
            }
        }
        let schema = join.left().schema();
        let key = |(place, span): (usize, _)| {
            let expr = Arc::clone(&join.on().get(place)?.0);
            let is_told = JoinKeysExec::tells(&expr.data_type(&schema).ok()?);
            is_told.then_some(ToldKey { place, expr, span })
        };
        let keys: Vec<_> = keys.into_iter().filter_map(key).collect();
        let told = Self { join: number, keys };
        (!told.keys.is_empty()).then_some((filter, told))
    }

    /// The build side, where the keys of its rows are noted: before its streams become one, where each
    /// task still has its own.
    fn noted_in(&self, build: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let keys = self
            .keys
            .iter()
            .map(|key| (Arc::clone(&key.expr), key.span));
        let noted = |input: &Arc<dyn ExecutionPlan>| {
            JoinKeysExec::new(Arc::clone(input), self.join, keys).map(Arc::new)
        };
        match build.downcast_ref::<CoalescePartitionsExec>() {
            Some(coalesce) if coalesce.fetch().is_none() => {
                let noted = noted(coalesce.input())?;
                with_children(Arc::clone(build), vec![noted])
            }
            _ => Ok(noted(build)?),
        }
    }

    /// What a scan hears that has this filter.
    fn filters_of(&self, filter: &DynamicFilter) -> Vec<KeyFilter> {
        let columns: BTreeMap<_, _> = columns_of(filter).collect();
        let keys = self.keys.iter().zip(0..);
        keys.filter_map(|(key, number)| {
            Some(KeyFilter {
                join: self.join,
                key: number,
                ordinal: *columns.get(&key.place)?,
            })
        })
        .collect()
    }
}

/// The columns of a scan's table that are keys of the join whose filter it has, by their places in the
/// join's condition.
fn columns_of(filter: &DynamicFilter) -> impl Iterator<Item = (usize, u32)> {
    // What a filter of a join reads are its keys of that side.
    let keys = filter.expr.children().into_iter().enumerate();
    keys.filter_map(|(place, key)| {
        let column = key.downcast_ref::<Column>()?;
        Some((place, (*filter.ordinals.get(column.index())?)?))
    })
}

fn integer(value: &Option<Scalar>) -> Option<i64> {
    match value {
        Some(Scalar::Int(value)) => i64::try_from(*value).ok(),
        _ => None,
    }
}

/// The scans that have this filter, and are in another part of a plan that is cut than its top, as far as
/// is known before.
fn beyond_exchanges<'a>(
    plan: &'a Arc<dyn ExecutionPlan>,
    filter: u64,
    is_beyond: bool,
    found: &mut Vec<(&'a FlashScanExec, &'a DynamicFilter)>,
) {
    if let Some(scan) = plan.downcast_ref::<FlashScanExec>() {
        let mut filters = scan.spec().dynamic_filters.iter();
        let mine = filters.find(|known| known.expr.expression_id() == Some(filter));
        found.extend(mine.filter(|_| is_beyond).map(|mine| (scan, mine)));
    }
    let exchange = plan.downcast_ref::<RepartitionExec>();
    let is_beyond = is_beyond
        || exchange.is_some_and(|e| matches!(e.partitioning(), Partitioning::Hash(..)))
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>();
    for child in plan.children() {
        beyond_exchanges(child, filter, is_beyond, found);
    }
}

/// The ways to the other nodes.
#[derive(Debug)]
pub(super) struct Ways {
    pub own: NodeId,
    pub nodes: Vec<NodeId>,
    pub streams: Streams,
    pub runtime: Handle,
}

impl TellNodes for Ways {
    fn tell(&self, message: Vec<u8>) {
        let message = match zstd::bulk::compress(&message, 1) {
            Ok(compressed) => Arc::new(compressed),
            Err(error) => return log::warn!("keys of a join are not told: {error}"),
        };
        for node in self.nodes.iter().copied().filter(|node| *node != self.own) {
            let (streams, message) = (self.streams.clone(), Arc::clone(&message));
            self.runtime.spawn(async move {
                if let Err(error) = send(&streams, node, &message).await {
                    log::debug!("node {} does without the keys of a join: {error}", node.0);
                }
            });
        }
    }
}

async fn send(streams: &Streams, node: NodeId, message: &[u8]) -> io::Result<()> {
    let stream = streams.connect(node, SERVICE).await;
    let mut stream = stream.map_err(io::Error::other)?;
    stream.write_all(message).await?;
    stream.shutdown().await
}

/// What takes what other nodes tell, until it is dropped.
pub(super) struct Listening(Streams);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.stop_listening(SERVICE);
    }
}

/// Tells `hub` what other nodes tell this one, on `runtime`.
///
/// # Errors
/// `Taken` when somebody does on this mesh.
pub(super) fn listen(
    streams: &Streams,
    hub: &Arc<KeyHub>,
    runtime: &Handle,
) -> std::result::Result<Listening, MeshError> {
    let mut listener = streams.listen(SERVICE)?;
    let hub = Arc::clone(hub);
    runtime.spawn(async move {
        while let Ok((node, stream)) = listener.accept().await {
            let hub = Arc::clone(&hub);
            tokio::spawn(async move {
                if let Err(error) = hear(stream, &hub).await {
                    log::warn!("keys of a join from node {} are not used: {error}", node.0);
                }
            });
        }
    });
    Ok(Listening(streams.clone()))
}

async fn hear(stream: impl AsyncRead + Unpin, hub: &KeyHub) -> Result<()> {
    let mut message = Vec::new();
    let mut stream = stream.take(MESSAGE_MAX_BYTES as u64);
    stream.read_to_end(&mut message).await?;
    hub.receive(&zstd::bulk::decompress(&message, MESSAGE_MAX_BYTES)?)
}

//! Where scans learn of joins on the other side of an exchange
//! ([`join_keys`](flashmesh_planner::JoinKeysExec)): which joins tell their keys, and the way between nodes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue};
use datafusion::common::tree_node::Transformed;
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
use flashmesh_planner::walk::Walk as _;
use flashmesh_planner::{
    FlashScanExec, JoinKeysExec, KeyFilter, KeyHub, TellNodes, says_something,
};
use flashmesh_storage::store::NodeId;
use flashmesh_storage::table::ColumnStatistics;
use futures::TryFutureExt;
use futures::future::join_all;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;

use super::channels::Serving;
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
    let mut told: HashMap<u64, ToldKeys> = HashMap::new();
    let mut number = 0;
    let plan = plan.transform_up(|node| {
        let join = node.downcast_ref::<HashJoinExec>();
        let Some((filter, keys)) = join.and_then(|join| ToldKeys::by(join, number)) else {
            return Ok(Transformed::no(node));
        };
        number += 1;
        let mut children: Vec<_> = node.children().into_iter().cloned().collect();
        children[0] = keys.noted_in(&children[0])?;
        told.insert(filter, keys);
        Ok(Transformed::yes(with_children(node, children)?))
    })?;
    match told.is_empty() {
        true => Ok(plan.data),
        false => heard(plan.data, &told, &BTreeMap::new()),
    }
}

/// The plan, where scans hear of joins. `above`: the filters of those that are above, and whether an
/// exchange is between.
fn heard(
    plan: Arc<dyn ExecutionPlan>,
    told: &HashMap<u64, ToldKeys>,
    above: &BTreeMap<u64, bool>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(scan) = plan.downcast_ref::<FlashScanExec>() {
        let (mut keys, mut known) = (Vec::new(), Vec::new());
        for filter in &scan.spec().dynamic_filters {
            if let Some(id) = filter.expr.expression_id()
                && let (Some(told), Some(true)) = (told.get(&id), above.get(&id))
            {
                known.push(id);
                keys.extend(told.filters_of(filter));
            }
        }
        return Ok(match known.is_empty() {
            true => plan,
            false => Arc::new(scan.with_key_filters(keys, &known)),
        });
    }
    let mut above = above.clone();
    if is_exchange(&plan) {
        above.values_mut().for_each(|is_beyond| *is_beyond = true);
    }
    let join = plan.downcast_ref::<HashJoinExec>();
    let filter = join.and_then(filter_of).filter(|id| told.contains_key(id));
    let mut children = Vec::new();
    for (side, child) in plan.children().into_iter().enumerate() {
        let mut above = above.clone();
        if let (1, Some(join), Some(filter)) = (side, join, filter) {
            above.insert(filter, gets_exchanges(join));
        }
        children.push(heard(Arc::clone(child), told, &above)?);
    }
    let mut pairs = plan.children().into_iter().zip(&children);
    match pairs.all(|(old, new)| Arc::ptr_eq(old, new)) {
        true => Ok(plan),
        false => with_children(plan, children),
    }
}

fn with_children(
    plan: Arc<dyn ExecutionPlan>,
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    plan.replace_children(children, options)
}

/// The filter by which scans of its right side know a join.
fn filter_of(join: &HashJoinExec) -> Option<u64> {
    let produced = join.dynamic_expressions_produced();
    produced.first()?.expression_id()
}

/// Whether who cuts the plan exchanges both sides of a join, of which all tasks have the build side whole
/// until then: as it gives rows of that side, each task would give them.
fn gets_exchanges(join: &HashJoinExec) -> bool {
    *join.partition_mode() == PartitionMode::CollectLeft
        && matches!(
            join.join_type(),
            JoinType::Left
                | JoinType::Full
                | JoinType::LeftSemi
                | JoinType::LeftAnti
                | JoinType::LeftMark
        )
}

/// Whether rows may go to other nodes here, as far as is known before the plan is cut.
fn is_exchange(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.downcast_ref::<RepartitionExec>() {
        Some(exchange) => matches!(exchange.partitioning(), Partitioning::Hash(..)),
        None => plan.is::<CoalescePartitionsExec>() || plan.is::<SortPreservingMergeExec>(),
    }
}

/// What a join tells.
struct ToldKeys {
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

/// Who hears of a key.
struct Hearers {
    span: Option<(i64, i64)>,
    rows: u64,
    is_worth_it: bool,
}

impl ToldKeys {
    /// What is worth telling by a join, and the filter by which scans know it.
    fn by(join: &HashJoinExec, number: u32) -> Option<(u64, Self)> {
        let filter = filter_of(join).filter(|_| !join.null_aware)?;
        let mut scans = Vec::new();
        scans_with(join.right(), filter, gets_exchanges(join), &mut scans);
        let rows = rows_of(join.left().as_ref());
        let mut hearers: BTreeMap<usize, Hearers> = BTreeMap::new();
        for (scan, filter, is_beyond) in scans {
            let (spec, statistics) = (scan.spec(), &scan.spec().table.statistics);
            for (place, ordinal) in columns_of(filter) {
                let column = statistics.get(ordinal as usize);
                let span = column.and_then(ColumnStatistics::span);
                let distinct = column.and_then(|column| column.distinct);
                let leaves_few = rows
                    .zip(distinct)
                    .is_none_or(|(rows, of)| (rows as f64) < of as f64 * WORTH_SHARE);
                let is_worth_it = is_beyond && leaves_few && spec.rows_after_filter() >= WORTH_ROWS;
                let one = Hearers {
                    span,
                    rows: spec.table.rows(),
                    is_worth_it,
                };
                match hearers.entry(place) {
                    Entry::Vacant(first) => drop(first.insert(one)),
                    Entry::Occupied(mut all) => all.get_mut().add(&one),
                }
            }
        }
        let schema = join.left().schema();
        let key = |(place, of): (usize, Hearers)| {
            let expr = Arc::clone(&join.on().get(place)?.0);
            let data_type = expr.data_type(&schema).ok()?;
            let says = says_something(&data_type, of.span, rows, of.rows);
            let span = of.span;
            (of.is_worth_it && says).then_some(ToldKey { place, expr, span })
        };
        let keys: Vec<_> = hearers.into_iter().filter_map(key).collect();
        (!keys.is_empty()).then_some((filter, Self { join: number, keys }))
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

impl Hearers {
    /// A key that one of them has may be none of the others'.
    fn add(&mut self, other: &Self) {
        let both = self.span.zip(other.span);
        self.span = both.map(|(one, other)| (one.0.min(other.0), one.1.max(other.1)));
        self.rows = self.rows.saturating_add(other.rows);
        self.is_worth_it |= other.is_worth_it;
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

/// All scans that have this filter, and whether an exchange is between.
fn scans_with<'a>(
    plan: &'a Arc<dyn ExecutionPlan>,
    filter: u64,
    is_beyond: bool,
    found: &mut Vec<(&'a FlashScanExec, &'a DynamicFilter, bool)>,
) {
    if let Some(scan) = plan.downcast_ref::<FlashScanExec>() {
        let mut filters = scan.spec().dynamic_filters.iter();
        let mine = filters.find(|known| known.expr.expression_id() == Some(filter));
        found.extend(mine.map(|mine| (scan, mine, is_beyond)));
    }
    let is_beyond = is_beyond || is_exchange(plan);
    for child in plan.children() {
        scans_with(child, filter, is_beyond, found);
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
        let others = self.nodes.iter().copied().filter(|node| *node != self.own);
        let (others, streams): (Vec<_>, _) = (others.collect(), self.streams.clone());
        self.runtime.spawn(async move {
            let message = match zstd::bulk::compress(&message, 1) {
                Ok(compressed) => compressed,
                Err(error) => return log::warn!("keys of a join are not told: {error}"),
            };
            let sent = others.iter().map(|node| {
                let sent = send(&streams, *node, &message);
                sent.inspect_err(|error| {
                    log::debug!("node {} does without the keys of a join: {error}", node.0);
                })
            });
            join_all(sent).await;
        });
    }
}

async fn send(streams: &Streams, node: NodeId, message: &[u8]) -> io::Result<()> {
    let stream = streams.connect(node, SERVICE).await;
    let mut stream = stream.map_err(io::Error::other)?;
    stream.write_all(message).await?;
    stream.shutdown().await
}

/// Tells `hub` what other nodes tell this one, on `runtime`.
///
/// # Errors
/// `Taken` when somebody does on this mesh.
pub(super) fn listen(
    streams: &Streams,
    hub: &Arc<KeyHub>,
    runtime: &Handle,
) -> std::result::Result<Serving, MeshError> {
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
    Ok(Serving::new(streams, SERVICE))
}

async fn hear(stream: impl AsyncRead + Unpin, hub: &KeyHub) -> Result<()> {
    let mut message = Vec::new();
    let mut stream = stream.take(MESSAGE_MAX_BYTES as u64);
    stream.read_to_end(&mut message).await?;
    hub.receive(&zstd::bulk::decompress(&message, MESSAGE_MAX_BYTES)?)
}

//! Exchanges that each node can do by itself: of tables that
//! [lie by a key](flashmesh_storage::table::Distribution), each node works on whole buckets, so that equal
//! keys are on one node before anybody exchanged a row.
//!
//! A plan says that by exchanges: under a join, a group, a window, rows go to streams by the hash of a
//! key. Where the input of such an exchange lies by columns of that key, it becomes one among the streams
//! of each node ([`LocalExchangeExec`]). Who is above several exchanges has to find equal keys in one
//! place: of these, all become local, or none.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinType, Result};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, JoinOnRef, PartitionMode, SortMergeJoinExec};
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions,
};
use flashmesh_planner::walk::Walk as _;
use flashmesh_planner::{FlashScanExec, LeadingRowsExec, LocalExchangeExec, SortedRanksExec};
use flashmesh_pushdown::Expr;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::segment::{Segment, bytes_in_memory};
use flashmesh_storage::store::NodeId;

use super::rows_of;

/// Bytes of pages in memory that go to nodes with a plan, at most: what small commits have left.
const CARRIED_MAX_BYTES: u64 = 32 << 20;

/// Rows that all nodes get whole rather than exchange the other side of a join among their streams.
const BROADCAST_ROWS: usize = 8192;

/// The node that works on each bucket, of tables with so many. All tables of a plan that have as many are
/// divided alike.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(BTreeMap<u16, Vec<NodeId>>);

impl Places {
    /// Those of the tables that a plan scans, as far as each bucket is on one of these nodes.
    pub fn of(
        plan: &Arc<dyn ExecutionPlan>,
        storage: &StorageNode,
        own: NodeId,
        nodes: &[NodeId],
    ) -> Self {
        let mut scans = Vec::new();
        collect_scans(plan, &mut scans);
        let mut found: BTreeMap<u16, Vec<Option<NodeId>>> = BTreeMap::new();
        let mut scattered = HashSet::new();
        let mut in_memory = HashMap::new();
        for (buckets, segments) in scans {
            let places = found.entry(buckets);
            let places = places.or_insert_with(|| vec![None; buckets.into()]);
            for segment in segments {
                let Some(bucket) = segment.bucket else {
                    continue;
                };
                let bytes = bytes_in_memory(segment);
                if bytes > 0 {
                    // A table may be scanned twice.
                    in_memory.insert(Arc::as_ptr(segment), bytes);
                    continue;
                }
                let holder = storage.holder(segment).unwrap_or(own);
                let place = &mut places[usize::from(bucket)];
                if *place.get_or_insert(holder) != holder || !nodes.contains(&holder) {
                    scattered.insert(buckets);
                }
            }
        }
        if in_memory.values().sum::<u64>() > CARRIED_MAX_BYTES {
            return Self::default();
        }
        let found = found.into_iter().filter(|(b, _)| !scattered.contains(b));
        Self(
            found
                .map(|(buckets, places)| {
                    let turns = nodes.iter().cycle();
                    let places = places.into_iter().zip(turns);
                    (
                        buckets,
                        places.map(|(place, turn)| place.unwrap_or(*turn)).collect(),
                    )
                })
                .collect(),
        )
    }

    /// Whether a scan is divided by them.
    pub fn divide(&self, scan: &FlashScanExec) -> bool {
        buckets_of(scan).is_some_and(|buckets| self.0.contains_key(&buckets))
    }

    /// The segments of a scan that is, by the nodes that work on them.
    pub fn divided(&self, scan: &FlashScanExec) -> BTreeMap<NodeId, Vec<Arc<Segment>>> {
        let mut parts: BTreeMap<NodeId, Vec<Arc<Segment>>> = BTreeMap::new();
        let places = buckets_of(scan).and_then(|buckets| self.0.get(&buckets));
        for segment in scan.segments().iter() {
            let place = segment.bucket.zip(places);
            if let Some(node) = place.and_then(|(bucket, nodes)| nodes.get(usize::from(bucket))) {
                parts.entry(*node).or_default().push(Arc::clone(segment));
            }
        }
        parts
    }
}

/// How many buckets the table of a scan has; `None` where it lies by no key, or a segment is in none of
/// them, or it can't be divided.
fn buckets_of(scan: &FlashScanExec) -> Option<u16> {
    let table = &scan.spec().table;
    let buckets = table.distribution.as_ref()?.buckets();
    let mut segments = table.segments.iter();
    let all_lie = segments.all(|segment| segment.bucket.is_some_and(|bucket| bucket < buckets));
    (all_lie && scan.is_divisible()).then_some(buckets)
}

fn collect_scans<'a>(plan: &'a Arc<dyn ExecutionPlan>, scans: &mut Vec<(u16, &'a [Arc<Segment>])>) {
    if let Some(scan) = plan.downcast_ref::<FlashScanExec>()
        && let Some(buckets) = buckets_of(scan)
    {
        scans.push((buckets, &scan.spec().table.segments));
    }
    for child in plan.children() {
        collect_scans(child, scans);
    }
}

/// The plan with local exchanges, of so many streams, wherever that is the same; `None` where it is nowhere.
///
/// # Errors
/// Those of making operators anew.
pub(super) fn localised(
    plan: &Arc<dyn ExecutionPlan>,
    places: &Places,
    streams: usize,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if places.0.is_empty() {
        return Ok(None);
    }
    let plan = Arc::clone(plan).transform_down(|node| with_exchanges(node, streams))?;
    let plan = &plan.data;
    let mut exchanges = Exchanges {
        places,
        streams,
        remote: HashSet::new(),
        count: 0,
    };
    // Each look assumes of all others that they are local: until no more are not.
    loop {
        let before = exchanges.remote.len();
        exchanges.count = 0;
        exchanges.look(plan);
        if exchanges.remote.len() == before {
            break;
        }
    }
    if exchanges.remote.len() == exchanges.count {
        return Ok(None);
    }
    exchanges.count = 0;
    exchanges.replaced(plan).map(Some)
}

/// A join that collects its left side, and gives rows of it, with exchanges of both sides instead: as what
/// cuts the plan would make of it.
fn with_exchanges(
    node: Arc<dyn ExecutionPlan>,
    streams: usize,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let collecting = collecting(&node).filter(|(join, _)| gives_left(join.join_type()));
    let Some((join, collected)) = collecting.filter(|(join, _)| !join.null_aware) else {
        return Ok(Transformed::no(node));
    };
    let [of_left, of_right] = by_keys(join, streams);
    let left = RepartitionExec::try_new(Arc::clone(collected.input()), of_left)?;
    let right = RepartitionExec::try_new(Arc::clone(join.right()), of_right)?;
    in_streams(join, Arc::new(left), Arc::new(right)).map(Transformed::yes)
}

/// A join that collects its left side for each of several streams of its right side, and what it collects.
fn collecting(plan: &Arc<dyn ExecutionPlan>) -> Option<(&HashJoinExec, &CoalescePartitionsExec)> {
    let join = plan.downcast_ref::<HashJoinExec>()?;
    let collected = join.left().downcast_ref::<CoalescePartitionsExec>()?;
    let is_one = *join.partition_mode() == PartitionMode::CollectLeft
        && collected.fetch().is_none()
        && streams_of(join.right()) > 1;
    is_one.then_some((join, collected))
}

/// Streams of both sides of a join of which each has the rows of some keys.
fn by_keys(join: &HashJoinExec, streams: usize) -> [Partitioning; 2] {
    let (left, right) = join.on().iter().cloned().unzip();
    [left, right].map(|keys| Partitioning::Hash(keys, streams))
}

/// The join of inputs that are in such streams.
fn in_streams(
    join: &HashJoinExec,
    left: Arc<dyn ExecutionPlan>,
    right: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let join = join
        .builder()
        .with_partition_mode(PartitionMode::Partitioned);
    Ok(Arc::new(
        join.with_new_children(vec![left, right])?.build()?,
    ))
}

/// The streams of the right side of a join, if each has the rows of some keys of the join.
fn streams_by_keys(join: &HashJoinExec, right: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let Partitioning::Hash(keys, streams) = right.output_partitioning() else {
        return None;
    };
    let of_join = join.on().iter().map(|(_, right)| column_of(right));
    let is_of_columns = keys.iter().all(|key| column_of(key).is_some());
    let is_same = is_of_columns && keys.iter().map(column_of).eq(of_join);
    is_same.then_some(*streams)
}

fn streams_of(plan: &Arc<dyn ExecutionPlan>) -> usize {
    plan.output_partitioning().partition_count()
}

/// A join of which all nodes would get the left side, and that is so large that they are better off with
/// an exchange of their own of both sides; and what it collects.
fn broadcast(plan: &Arc<dyn ExecutionPlan>) -> Option<(&HashJoinExec, &CoalescePartitionsExec)> {
    let (join, collected) = collecting(plan)?;
    let is_one = !gives_left(join.join_type())
        && rows_of(join.left().as_ref()).is_none_or(|rows| rows >= BROADCAST_ROWS);
    is_one.then_some((join, collected))
}

/// Whether a join gives rows of its left side by themselves.
fn gives_left(join_type: &JoinType) -> bool {
    !matches!(
        join_type,
        JoinType::Inner
            | JoinType::Right
            | JoinType::RightSemi
            | JoinType::RightAnti
            | JoinType::RightMark
    )
}

/// The exchanges by a hash in a plan, and [broadcasts](broadcast) that may become such, numbered from above
/// and from the left.
struct Exchanges<'a> {
    places: &'a Places,
    /// Of a new one.
    streams: usize,
    /// Those that go between nodes.
    remote: HashSet<usize>,
    /// Those that were seen so far.
    count: usize,
}

/// Output columns by whose values rows are on nodes, those of a distribution in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    buckets: u16,
    columns: Vec<usize>,
}

/// What is known of the rows of an operator.
#[derive(Debug, Default)]
struct Rows {
    /// By which keys they lie: by each of these.
    keys: Vec<Key>,
    /// The exchanges that brought them into their streams.
    exchanges: Vec<usize>,
}

impl Rows {
    /// The same with other columns: `place_of` says where each is.
    fn moved(self, place_of: impl Fn(usize) -> Option<usize>) -> Self {
        let moved = |key: Key| {
            let columns = key.columns.into_iter().map(&place_of);
            Some(Key {
                columns: columns.collect::<Option<_>>()?,
                ..key
            })
        };
        Self {
            keys: self.keys.into_iter().filter_map(moved).collect(),
            ..self
        }
    }

    /// The same, of which some columns are left.
    fn projected(self, columns: Option<&[usize]>) -> Self {
        match columns {
            Some(columns) => self.moved(|column| columns.iter().position(|left| *left == column)),
            None => self,
        }
    }
}

impl Exchanges<'_> {
    fn look(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Rows {
        if let Some((exchange, keys)) = exchange_by_hash(plan) {
            let number = self.count;
            self.count += 1;
            let input = self.look(exchange.input());
            let keys: Vec<_> = keys.iter().map(column_of).collect();
            let is_of_keys = |column: &usize| keys.contains(&Some(*column));
            let mut lies = input.keys.iter();
            if !lies.any(|key| key.columns.iter().all(is_of_keys)) {
                self.remote.insert(number);
            }
            return Rows {
                keys: match self.remote.contains(&number) {
                    true => Vec::new(),
                    false => input.keys,
                },
                exchanges: vec![number],
            };
        }
        if let Some(scan) = plan.downcast_ref::<FlashScanExec>() {
            return self.of_scan(scan);
        }
        if let Some((join, collected)) = broadcast(plan) {
            let number = self.count;
            self.count += 1;
            let left = self.look(collected.input());
            let right = self.look(join.right());
            return self.of_large_broadcast(number, left, right, join);
        }
        let children = plan.children();
        let mut inputs: Vec<Rows> = children.iter().map(|child| self.look(child)).collect();
        if let Some(join) = plan.downcast_ref::<HashJoinExec>()
            && let (Some(right), Some(left)) = (inputs.pop(), inputs.pop())
        {
            let projection = join.projection.as_deref();
            let widths = left_width(join.left());
            let rows = match join.partition_mode() {
                PartitionMode::Partitioned => {
                    self.of_join(left, right, join.on(), join.join_type(), widths)
                }
                _ => self.of_broadcast(left, right, join.on(), join.join_type(), widths),
            };
            return rows.projected(projection);
        }
        if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>()
            && let (Some(right), Some(left)) = (inputs.pop(), inputs.pop())
        {
            let width = left_width(join.left());
            return self.of_join(left, right, join.on(), &join.join_type(), width);
        }
        if plan.is::<CoalescePartitionsExec>() || plan.is::<SortPreservingMergeExec>() {
            return Rows::default();
        }
        if plan.is::<RepartitionExec>() {
            // In turns: the streams are others, the node is the same.
            let keys = inputs.pop().unwrap_or_default().keys;
            return Rows {
                keys,
                exchanges: Vec::new(),
            };
        }
        if plan.is::<UnionExec>() {
            // Nobody expects equal keys of its inputs in one stream.
            return Rows::default();
        }
        match (one_input(plan), inputs.pop()) {
            (Some(output), Some(input)) if inputs.is_empty() => input.moved(output),
            (_, last) => {
                inputs.extend(last);
                let exchanges = inputs.into_iter().flat_map(|input| input.exchanges);
                let exchanges: Vec<_> = exchanges.collect();
                self.remote.extend(&exchanges);
                Rows {
                    keys: Vec::new(),
                    exchanges,
                }
            }
        }
    }

    fn of_scan(&self, scan: &FlashScanExec) -> Rows {
        let distribution = scan.spec().table.distribution.as_ref();
        let Some(distribution) = distribution.filter(|_| self.places.divide(scan)) else {
            return Rows::default();
        };
        let output = scan.spec().output_columns();
        let place_of = |ordinal: &u32| {
            let is_it = |output: &Option<&Expr>| matches!(output, Some(Expr::Column(column)) if column == ordinal);
            output.iter().position(is_it)
        };
        let columns = distribution.columns().iter().map(place_of);
        let columns: Option<Vec<_>> = columns.collect();
        let key = |columns| Key {
            buckets: distribution.buckets(),
            columns,
        };
        Rows {
            keys: columns.map(key).into_iter().collect(),
            exchanges: Vec::new(),
        }
    }

    /// A join of which each stream has the rows of some keys.
    fn of_join(
        &mut self,
        left: Rows,
        right: Rows,
        on: JoinOnRef<'_>,
        join_type: &JoinType,
        left_width: usize,
    ) -> Rows {
        let meets = meet(&left, &right, on);
        if !meets || left.exchanges.is_empty() || right.exchanges.is_empty() {
            self.remote.extend(&left.exchanges);
            self.remote.extend(&right.exchanges);
        }
        let exchanges: Vec<_> = { left.exchanges.iter() }
            .chain(&right.exchanges)
            .copied()
            .collect();
        if exchanges.iter().any(|number| self.remote.contains(number)) {
            self.remote.extend(&exchanges);
            return Rows {
                keys: Vec::new(),
                exchanges,
            };
        }
        let keys = kept_keys(left, right, join_type, left_width);
        Rows { keys, exchanges }
    }

    /// A join of which all nodes would get the left side whole, of many rows, and need none of it where
    /// equal keys are on one node.
    fn of_large_broadcast(
        &mut self,
        number: usize,
        left: Rows,
        right: Rows,
        join: &HashJoinExec,
    ) -> Rows {
        let (on, join_type) = (join.on(), join.join_type());
        let width = left_width(join.left());
        // Who is above may expect the rows in the streams, and in the order, in which the right side has them.
        let right_side = join.right();
        let stays = streams_by_keys(join, right_side).is_some();
        let may_go = right.exchanges.is_empty() && right_side.output_ordering().is_none();
        if !meet(&left, &right, on) || !(stays || may_go) {
            self.remote.insert(number);
        }
        let rows = match self.remote.contains(&number) {
            true => self.of_broadcast(Rows::default(), right, on, join_type, width),
            false => Rows {
                exchanges: right.exchanges.clone(),
                keys: kept_keys(left, right, join_type, width),
            },
        };
        rows.projected(join.projection.as_deref())
    }

    /// A join of which all nodes have the left side whole.
    fn of_broadcast(
        &mut self,
        left: Rows,
        right: Rows,
        on: JoinOnRef<'_>,
        join_type: &JoinType,
        left_width: usize,
    ) -> Rows {
        self.remote.extend(&left.exchanges);
        if gives_left(join_type) {
            // One node does all of it.
            self.remote.extend(&right.exchanges);
            return Rows {
                keys: Vec::new(),
                exchanges: right.exchanges,
            };
        }
        let mut equal = Vec::new();
        if *join_type == JoinType::Inner {
            let on = on.iter();
            let on = on.filter_map(|(left, right)| Some((column_of(right)?, column_of(left)?)));
            let left_of: HashMap<usize, usize> = on.collect();
            let keys = right.keys.clone();
            let rows = Rows {
                keys,
                exchanges: Vec::new(),
            };
            equal = rows.moved(|column| left_of.get(&column).copied()).keys;
        }
        let first = first_of_right(join_type, left_width);
        let mut rows = right.moved(|column| Some(first + column));
        rows.keys.extend(equal);
        rows
    }

    /// The plan with those exchanges local that may be.
    fn replaced(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let exchange = exchange_by_hash(plan).map(|(exchange, _)| exchange);
        let number = self.count;
        if let Some((join, collected)) = broadcast(plan) {
            self.count += 1;
            if !self.remote.contains(&number) {
                let left = self.replaced(collected.input())?;
                let right = self.replaced(join.right())?;
                let is_there = streams_by_keys(join, &right);
                let [of_left, of_right] = by_keys(join, is_there.unwrap_or(self.streams));
                let left = Arc::new(LocalExchangeExec::new(left, of_left, false)?);
                let right = match is_there {
                    Some(_) => right,
                    None => Arc::new(LocalExchangeExec::new(right, of_right, false)?),
                };
                return in_streams(join, left, right);
            }
        }
        self.count += usize::from(exchange.is_some());
        let children = plan.children().into_iter();
        let children = children.map(|child| self.replaced(child));
        let children = children.collect::<Result<Vec<_>>>()?;
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        if let Some(exchange) = exchange
            && !self.remote.contains(&number)
            && let Some(input) = children.first()
        {
            let (input, by) = (Arc::clone(input), exchange.partitioning().clone());
            let local = LocalExchangeExec::new(input, by, exchange.preserve_order())?;
            return Ok(Arc::new(local));
        }
        match children.is_empty() {
            true => Ok(Arc::clone(plan)),
            false => Arc::clone(plan).replace_children(children, options),
        }
    }
}

/// Whether equal keys of a join are on one node.
fn meet(left: &Rows, right: &Rows, on: JoinOnRef<'_>) -> bool {
    let on = on.iter();
    let on = on.filter_map(|(left, right)| Some((column_of(left)?, column_of(right)?)));
    let on: HashSet<_> = on.collect();
    let meet = |left: &Key, right: &Key| {
        let mut pairs = left.columns.iter().zip(&right.columns);
        left.buckets == right.buckets
            && left.columns.len() == right.columns.len()
            && pairs.all(|(left, right)| on.contains(&(*left, *right)))
    };
    let mut of_left = left.keys.iter();
    of_left.any(|left| right.keys.iter().any(|right| meet(left, right)))
}

/// By what the rows of a join lie whose equal keys were on one node.
fn kept_keys(left: Rows, right: Rows, join_type: &JoinType, left_width: usize) -> Vec<Key> {
    // Rows that found nobody have NULL in place of the other side's key.
    let (keeps_left, keeps_right) = match join_type {
        JoinType::Inner => (true, true),
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
            (true, false)
        }
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
            (false, true)
        }
        JoinType::Full => (false, false),
    };
    let mut keys = Vec::new();
    if keeps_left {
        keys.extend(left.keys);
    }
    if keeps_right {
        let first = first_of_right(join_type, left_width);
        keys.extend(right.moved(|column| Some(first + column)).keys);
    }
    keys
}

fn left_width(left: &Arc<dyn ExecutionPlan>) -> usize {
    left.schema().fields().len()
}

/// Where the columns of the right side begin.
fn first_of_right(join_type: &JoinType, left_width: usize) -> usize {
    match join_type {
        JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => 0,
        _ => left_width,
    }
}

fn exchange_by_hash(
    plan: &Arc<dyn ExecutionPlan>,
) -> Option<(&RepartitionExec, &[Arc<dyn PhysicalExpr>])> {
    let exchange = plan.downcast_ref::<RepartitionExec>()?;
    match exchange.partitioning() {
        Partitioning::Hash(keys, _) => Some((exchange, keys)),
        _ => None,
    }
}

fn column_of(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// The place of an input column in the output, if it is there.
type PlaceOf = Box<dyn Fn(usize) -> Option<usize>>;

/// Of an operator that gives each row, or each group of rows, where its input has it: the place of an
/// input column in its output.
fn one_input(plan: &Arc<dyn ExecutionPlan>) -> Option<PlaceOf> {
    let among = |outputs: Vec<Option<usize>>| -> PlaceOf {
        let places = (0..).zip(outputs);
        let places: HashMap<usize, usize> = places.filter_map(|(o, i)| Some((i?, o))).collect();
        Box::new(move |column| places.get(&column).copied())
    };
    if let Some(filter) = plan.downcast_ref::<FilterExec>()
        && let Some(left) = filter.projection()
    {
        return Some(among(left.iter().map(|column| Some(*column)).collect()));
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let outputs = projection.expr().iter();
        return Some(among(
            outputs.map(|output| column_of(&output.expr)).collect(),
        ));
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let group = aggregate.group_expr();
        let keys = group.expr().iter().map(|(key, _)| column_of(key));
        return group.is_single().then(|| among(keys.collect()));
    }
    let gives_the_same = plan.is::<FilterExec>()
        || plan.is::<SortExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<LocalLimitExec>()
        || plan.is::<BoundedWindowAggExec>()
        || plan.is::<WindowAggExec>()
        || plan.is::<LeadingRowsExec>()
        || plan.is::<SortedRanksExec>();
    gives_the_same.then(|| Box::new(Some) as _)
}

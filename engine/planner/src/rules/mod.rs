//! The rules that move work from the plan into its scans.
//!
//! Filters need no rule here: the table takes them while the plan is made, and DataFusion's
//! filter push-down offers the rest to the scan. Projections reach the scan the same way. What
//! DataFusion has no hook for is rewritten here, late, when the plan's shape is settled: partial
//! aggregates and top-k.

mod aggregate;
mod backslashes;
mod casts;
mod coarser_moments;
mod comparisons;
mod conditions;
mod cooperative;
mod correlated;
mod date_parts;
mod days;
mod distinct_keys;
mod early_groups;
mod failing_constants;
mod fallible_projections;
mod filters;
mod floats_of_files;
mod forgetting;
mod frames;
mod grouping_keys;
mod guard;
mod guarded_case;
mod in_lists;
mod inner_joins;
mod intervals;
mod known_values;
mod lambdas;
mod large_constants;
mod large_joins;
mod leading_rows;
mod list_casts;
mod local_times;
mod multisets;
mod not_in;
mod number_casts;
mod one_nan;
mod orders;
mod overflow;
mod ranges;
mod repeated_keys;
mod rounded_decimals;
mod scalar_subqueries;
mod set_comparisons;
mod sort_keys;
mod sorted_lists;
mod sorted_ranks;
mod subqueries;
mod sums;
mod top_groups;
mod top_k;
mod twin_names;
mod typed_values;
mod volatile_filter;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::ScalarUDF;
use datafusion::optimizer::{Optimizer, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

pub use aggregate::AggregateIntoScan;
pub use backslashes::LiteralBackslashes;
pub use casts::LossyCasts;
pub use coarser_moments::CoarserMoments;
pub use comparisons::Comparisons;
pub use cooperative::CooperativeJoins;
pub use correlated::CorrelatedSubqueries;
pub use date_parts::DateParts;
pub(crate) use date_parts::date_part;
pub use days::{DaysBesideMoments, DaysBetween, TimesOfDays};
pub use frames::BoundsOfRanges;
pub use grouping_keys::GroupingKeys;
pub use guarded_case::GuardedCase;
pub use in_lists::{Lists, TwoZeros};
pub use lambdas::LambdaParameters;
pub use large_joins::SortLargeJoins;
pub use list_casts::NoTextsAsLists;
pub use local_times::LocalTimes;
pub use multisets::{Multisets, SIDE_OF_ALL};
pub use not_in::NullsOfIn;
pub use number_casts::NumberCasts;
pub use one_nan::OneNan;
pub use orders::OrderOfSubqueries;
pub use overflow::CheckedArithmetic;
pub use rounded_decimals::RoundedDecimals;
pub use scalar_subqueries::ScalarSubqueries;
pub use set_comparisons::SetComparisons;
pub use subqueries::TestsAsColumns;
pub use sums::CheckedSums;
pub use top_k::TopKIntoScan;
pub use typed_values::TypedValues;
pub use volatile_filter::VolatileFilter;

use self::casts::CastsOfTexts;
use self::conditions::ConditionsThatGuard;
use self::distinct_keys::DistinctKeys;
use self::early_groups::EarlyGroups;
use self::failing_constants::FailingConstants;
use self::fallible_projections::ForRowsLeftOut;
use self::filters::FiltersOfColumns;
use self::floats_of_files::FloatsOfFiles;
use self::forgetting::SortsAsAskedFor;
use self::guard::Guarded;
use self::inner_joins::{KeysOfOneKind, KeysOfTwo};
use self::known_values::Unreliable;
use self::large_constants::LargeConstants;
use self::leading_rows::LeadingRows;
use self::repeated_keys::RepeatedKeys;
use self::sort_keys::SortKeys;
use self::sorted_lists::SortedLists;
use self::sorted_ranks::SortedRanks;
use self::top_groups::OfFloats;
use self::twin_names::OfTwins;
use crate::Reason;
use crate::asof::AsOfFilters;
use crate::join_order::JoinOrder;
use crate::scan::{FlashScanExec, ScanBuilder};
use crate::walk::Walk as _;

/// DataFusion's physical rules with flashmesh's among them.
pub fn physical_optimizer_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = PhysicalOptimizer::new().rules;
    for rule in &mut rules {
        if rule.name().starts_with("FilterPushdown") {
            *rule = Arc::new(Guarded::<OfTwins>::new(rule));
        }
        if rule.name() == "aggregate_statistics" {
            *rule = Arc::new(Guarded::<Unreliable>::new(rule));
        }
        if rule.name() == "LimitAggregation" {
            *rule = Arc::new(Guarded::<OfFloats>::new(rule));
        }
        if rule.name() == "EnsureRequirements" {
            *rule = Arc::new(SortsAsAskedFor(Arc::clone(rule)));
        }
        if rule.name() == "ProjectionPushdown" {
            *rule = Arc::new(Guarded::<ForRowsLeftOut>::new(rule));
        }
    }
    // The smaller input of a join is its left one by then.
    let selected = rules.iter().position(|r| r.name() == "join_selection");
    rules.insert(
        selected.map_or(0, |place| place + 1),
        Arc::new(SortLargeJoins),
    );
    // After everything that shapes the plan, before dynamic filters are tied to its scans.
    let place = rules
        .iter()
        .position(|r| r.name() == "EnsureCooperative")
        .unwrap_or(rules.len());
    // After DataFusion's rule for leaves, which would take those below such a join for settled.
    rules.insert((place + 1).min(rules.len()), Arc::new(CooperativeJoins));
    rules.splice(
        place..place,
        [
            Arc::new(AggregateIntoScan) as _,
            Arc::new(TopKIntoScan) as _,
            Arc::new(LeadingRows) as _,
            Arc::new(SortedRanks) as _,
        ],
    );
    rules.push(Arc::new(FloatsOfFiles));
    rules.push(Arc::new(LargeConstants));
    rules.push(Arc::new(ConditionsThatGuard));
    rules
}

/// DataFusion's logical rules with flashmesh's among them.
pub fn optimizer_rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules = Optimizer::new().rules;
    for rule in &mut rules {
        if rule.name() == "rewrite_set_comparison" {
            *rule = Arc::new(SetComparisons);
        }
        if rule.name() == "extract_equijoin_predicate" {
            *rule = Arc::new(KeysOfOneKind(Arc::clone(rule)));
        }
        if rule.name() == "eliminate_cross_join" {
            *rule = Arc::new(KeysOfTwo(Arc::clone(rule)));
        }
        if rule.name() == "push_down_filter" {
            *rule = Arc::new(FiltersOfColumns::new());
        }
    }
    // Filters have reached the scans by then, whose sizes decide the order.
    let place = rules
        .iter()
        .position(|r| r.name() == "optimize_projections")
        .unwrap_or(rules.len());
    rules.splice(
        place..place,
        [
            Arc::new(JoinOrder) as _,
            Arc::new(DistinctKeys) as _,
            Arc::new(EarlyGroups) as _,
        ],
    );
    let subqueries = rules
        .iter()
        .position(|r| r.name() == "decorrelate_predicate_subquery")
        .unwrap_or(0);
    rules.splice(
        subqueries..subqueries,
        [Arc::new(NullsOfIn) as _, Arc::new(TestsAsColumns) as _],
    );
    let filters = rules.iter().position(|r| r.name() == "push_down_filter");
    rules.insert(filters.unwrap_or(0), Arc::new(AsOfFilters));
    let first: [Arc<dyn OptimizerRule + Send + Sync>; 8] = [
        Arc::new(NoTextsAsLists),
        Arc::new(SortedLists),
        Arc::new(CheckedSums),
        Arc::new(CorrelatedSubqueries),
        Arc::new(GuardedCase),
        Arc::new(FailingConstants),
        Arc::new(Lists),
        Arc::new(VolatileFilter),
    ];
    rules.splice(0..0, first);
    rules.push(Arc::new(SortKeys));
    rules.push(Arc::new(RepeatedKeys));
    rules.push(Arc::new(CastsOfTexts));
    rules
}

/// The functions that the rules have plans call.
pub fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    let others = [
        overflow::function(),
        intervals::function(),
        sorted_lists::function(),
    ];
    let casts = number_casts::functions().into_iter();
    casts.chain(coarser_moments::functions()).chain(others)
}

/// The scan below operators that change neither rows nor values but for projections; expressions
/// come over what those give. What stands in the way is given back as the reason, if a scan is
/// below that.
fn scan_below(plan: &Arc<dyn ExecutionPlan>) -> Result<ScanBuilder, Option<Reason>> {
    if let Some(scan) = plan.downcast_ref::<FlashScanExec>() {
        return Ok(ScanBuilder::of_scan(scan));
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        return Ok(scan_below(projection.input())?.through(projection));
    }
    if is_transparent(plan.as_ref()) {
        return scan_below(plan.children()[0]);
    }
    match plan.children().as_slice() {
        [only] => match scan_below(only) {
            Ok(_) => Err(Some(Reason::Blocked(format!(
                "{} is in between",
                plan.name()
            )))),
            Err(reason) => Err(reason),
        },
        _ => Err(None),
    }
}

/// Whether an operator passes every row on as it is, in any order.
fn is_transparent(plan: &dyn ExecutionPlan) -> bool {
    if let Some(repartition) = plan.downcast_ref::<RepartitionExec>() {
        return matches!(repartition.partitioning(), Partitioning::RoundRobinBatch(_));
    }
    if let Some(coalesce) = plan.downcast_ref::<CoalescePartitionsExec>() {
        return coalesce.fetch().is_none();
    }
    plan.downcast_ref::<CooperativeExec>().is_some()
}

/// `node` with the one scan below it changed by `change`.
fn change_scan(
    node: Arc<dyn ExecutionPlan>,
    change: impl Fn(&FlashScanExec) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    node.transform_up(|node| {
        Ok(match node.downcast_ref::<FlashScanExec>() {
            Some(scan) => Transformed::yes(change(scan)?),
            None => Transformed::no(node),
        })
    })
}

/// `node` with a note at the scan below it of what stays above, and why.
fn note_at_scan(
    node: Arc<dyn ExecutionPlan>,
    text: &str,
    reason: &Reason,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    change_scan(node, |scan| {
        Ok(Arc::new(scan.with_note(text.to_owned(), reason.clone())))
    })
}

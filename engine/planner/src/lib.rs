//! DataFusion plans ▸ Programs that run beside the pages.
//!
//! The way of a query through this crate:
//!
//! 1. [`FlashTable`] is what the catalog gives DataFusion for a table. Its `scan` offers the
//!    filters and leaves what Programs can't express in a filter above the scan.
//! 2. [`FlashScanExec`] is the leaf of the plan. It holds a verified Program and takes in what
//!    DataFusion's own rules offer to leaves: projections, limits, further filters, and filters
//!    that change while the query runs.
//! 3. The rules in [`rules`] move partial aggregates and top-k into the scan.
//!
//!    All three go through one [`scan::ScanBuilder`], which translates ([`translate`]).
//! 4. `cost` estimates rows and bytes: what is worth it under `flashmesh.pushdown = 'auto'`, and in
//!    which order joins go (`join_order`). Each thing that stays above the scan carries a
//!    [`Reason`] that `EXPLAIN` prints.
//!
//! [`physical_plan`] spares a query that was run before its optimising.
//!
//! [`kernels`] are functions that users added.
//!
//! `unnest` makes joins of subqueries that use columns of the query around them.
//!
//! [`relations`] plans the functions that stand where a table stands.
//!
//! [`configure`] adds all of it to a session.

mod ages;
mod aggregates;
pub mod asof;
mod authority;
mod bars;
mod bits;
pub mod byte_texts;
pub mod config;
mod cost;
mod dependencies;
pub mod error;
mod exchange;
mod failing;
mod first_rows;
mod forgetting;
pub mod functions;
mod globs;
mod hidden;
pub mod interrupt;
mod interval_products;
mod join_keys;
mod join_order;
mod json;
pub mod kernels;
mod leading_rows;
mod lengths;
mod map_values;
mod moments;
mod named;
pub mod named_casts;
mod now;
mod plan_cache;
mod printed;
pub mod progress;
mod quotients;
pub mod ranks;
mod reason;
mod reduce;
mod regexps;
pub mod relations;
pub mod rules;
pub mod scan;
mod sink;
mod slicing;
mod sorted_ranks;
mod structs;
mod sums;
mod table;
mod text_slices;
mod texts;
pub mod translate;
mod tree;
mod tries;
mod type_names;
mod unnest;
mod value_texts;
pub mod version;
pub mod walk;
mod whole_parts;
mod work;
mod written;
mod zones;

use std::sync::Arc;

use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{HigherOrderUDF, ScalarUDF};
use datafusion::optimizer::Analyzer;

pub use authority::Authority;
pub use config::{Distributed, Fallback, FlashmeshOptions, Pushdown, parse_size};
pub use dependencies::TrueTables;
pub use exchange::LocalExchangeExec;
pub use first_rows::first_of_keys;
pub use forgetting::ForgettingExec;
pub use globs::{REGULAR_OF_GLOB, WrongGlob, push_literal, regular_of_glob};
pub use join_keys::{JoinKeysExec, KeyFilter, KeyHub, QueryKeys, TellNodes, says_something};
pub use json::JSON;
pub use leading_rows::LeadingRowsExec;
pub use moments::whole_moments;
pub use named::{NamedTable, TableName};
pub use plan_cache::{physical_plan, plans_reused, repeatable};
pub use reason::Reason;
pub use scan::{FlashScanExec, ScanCodec};
pub use slicing::SlicingExec;
pub use sorted_ranks::SortedRanksExec;
pub use table::FlashTable;
pub use tree::map_named_expressions;
pub use type_names::{name_of_arrow_type, type_name};
pub use value_texts::{IntervalTexts, MOMENT, MOMENT_OF_ZONE, has_text, texts_of};
pub use work::StoreWork;

/// The functions that plans call and SQL has no names for: a node that runs a part of a plan must know them.
pub fn functions_of_plans() -> impl Iterator<Item = Arc<ScalarUDF>> {
    unnest::functions()
        .into_iter()
        .chain(rules::functions())
        .chain(hidden::functions())
        .chain([interval_products::function(), value_texts::function()])
}

/// The functions that SQL has besides DataFusion's.
fn own_functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    let all = functions::scalar_functions().into_iter();
    all.chain(regexps::functions())
        .chain(json::functions())
        .chain(texts::functions())
        .chain(bits::functions())
        .chain([globs::function()])
        .chain(structs::functions())
        .chain(printed::functions())
        .chain([
            Arc::new(ScalarUDF::from(ages::Age::new())),
            Arc::new(ScalarUDF::from(bars::Bar::new())),
            Arc::new(ScalarUDF::from(whole_parts::DateSub::new())),
            Arc::new(ScalarUDF::from(zones::Timezone::new())),
            named_casts::function(),
            type_names::type_of(),
        ])
        .chain(lengths::functions())
        .chain([now::function(), sums::function()])
        .chain(written::functions())
}

/// Gives a session the options `flashmesh.*` and the rules of this crate.
pub fn configure(builder: SessionStateBuilder) -> SessionStateBuilder {
    let mut analyzer = Analyzer::new().rules;
    // Before types are given.
    let typing = analyzer.iter().position(|r| r.name() == "type_coercion");
    let typing = typing.unwrap_or(0);
    analyzer.insert(typing, Arc::new(unnest::OuterTypes));
    analyzer.insert(typing, Arc::new(rules::DaysBesideMoments));
    analyzer.insert(typing, Arc::new(rules::Comparisons));
    analyzer.insert(typing, Arc::new(rules::BoundsOfRanges));
    analyzer.insert(typing, Arc::new(rules::LocalTimes));
    analyzer.insert(typing, Arc::new(rules::TimesOfDays));
    analyzer.insert(typing, Arc::new(rules::GroupingKeys));
    analyzer.insert(typing, Arc::new(rules::RoundedDecimals));
    analyzer.insert(typing, Arc::new(rules::OrderOfSubqueries));
    let mut builder = builder
        .with_analyzer_rules(analyzer)
        .with_analyzer_rule(Arc::new(rules::ScalarSubqueries))
        .with_analyzer_rule(Arc::new(rules::TypedValues))
        .with_analyzer_rule(Arc::new(rules::LiteralBackslashes))
        .with_analyzer_rule(Arc::new(moments::WholeMoments))
        .with_analyzer_rule(Arc::new(moments::PrintedMoments))
        .with_analyzer_rule(Arc::new(asof::AsOfJoins))
        .with_analyzer_rule(Arc::new(rules::LambdaParameters))
        .with_analyzer_rule(Arc::new(version::PinTables))
        .with_analyzer_rule(Arc::new(rules::Multisets))
        .with_analyzer_rule(Arc::new(unnest::UnnestSubqueries))
        .with_analyzer_rule(Arc::new(rules::DaysBetween))
        .with_analyzer_rule(Arc::new(rules::NumberCasts))
        .with_analyzer_rule(Arc::new(rules::CoarserMoments))
        .with_analyzer_rule(Arc::new(rules::LossyCasts))
        .with_analyzer_rule(Arc::new(rules::OneNan))
        .with_analyzer_rule(Arc::new(rules::TwoZeros))
        .with_analyzer_rule(Arc::new(rules::CheckedArithmetic))
        .with_analyzer_rule(Arc::new(dependencies::TrueDependencies))
        .with_optimizer_rules(rules::optimizer_rules())
        .with_physical_optimizer_rules(rules::physical_optimizer_rules())
        .with_query_planner(Arc::new(relations::StorePlanner));
    builder
        .scalar_functions()
        .get_or_insert_default()
        .extend(own_functions().chain([asof::mark()]));
    builder
        .aggregate_functions()
        .get_or_insert_default()
        .extend(aggregates::functions());
    builder
        .window_functions()
        .get_or_insert_default()
        .extend(ranks::functions());
    builder
        .higher_order_functions()
        .get_or_insert_default()
        .extend([
            Arc::new(HigherOrderUDF::new_from_impl(reduce::Reduce::new())),
            Arc::new(HigherOrderUDF::new_from_impl(tries::Try::new())),
        ]);
    // Before that of lists.
    let planners = builder.expr_planners().get_or_insert_default();
    planners.insert(0, Arc::new(text_slices::TextSlices));
    planners.insert(0, Arc::new(map_values::MapValues));
    planners.insert(0, Arc::new(interval_products::IntervalProducts));
    planners.insert(0, Arc::new(quotients::WholeQuotients));
    let config = builder.config().get_or_insert_default();
    *config = plan_cache::with_plan_cache(std::mem::take(config));
    // `OrderOfSubqueries` knows which of them nobody sees.
    config
        .options_mut()
        .sql_parser
        .enable_subquery_sort_elimination = false;
    if config
        .options()
        .extensions
        .get::<FlashmeshOptions>()
        .is_none()
    {
        config
            .options_mut()
            .extensions
            .insert(FlashmeshOptions::default());
    }
    builder
}

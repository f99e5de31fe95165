//! Which options a session may set, and to what.

use std::collections::HashMap;

use datafusion::common::config::ExtensionOptions;
use datafusion::logical_expr::{LogicalPlan, ResetVariable, SetVariable, Statement};
use flashmesh_planner::FlashmeshOptions;

use crate::error::{Error, Result};
use crate::grants::{Principal, matches_pattern};

/// Options that change how one's own statements are read, planned and shown, and nothing else:
/// any user may set them. `*` stands for any end of a name.
const EVERYBODYS: &[&str] = &[
    "datafusion.catalog.default_schema",
    "datafusion.execution.batch_size",
    "datafusion.execution.coalesce_batches",
    "datafusion.execution.collect_statistics",
    "datafusion.execution.enable_ansi_mode",
    "datafusion.execution.enable_recursive_ctes",
    "datafusion.execution.enforce_batch_size_in_joins",
    "datafusion.execution.skip_partial_aggregation_*",
    "datafusion.execution.target_partitions",
    "datafusion.execution.time_zone",
    "datafusion.explain.*",
    "datafusion.format.*",
    "datafusion.optimizer.default_filter_selectivity",
    "datafusion.optimizer.enable_*",
    "datafusion.optimizer.filter_null_join_keys",
    "datafusion.optimizer.join_reordering",
    "datafusion.optimizer.prefer_*",
    "datafusion.optimizer.repartition_*",
    "datafusion.optimizer.top_down_join_key_reordering",
    "datafusion.sql_parser.collect_spans",
    "datafusion.sql_parser.default_null_ordering",
    "datafusion.sql_parser.dialect",
    "datafusion.sql_parser.enable_*",
    "datafusion.sql_parser.map_string_types_to_utf8view",
    "datafusion.sql_parser.parse_float_as_decimal",
    "datafusion.sql_parser.support_varchar_with_length",
    "flashmesh.accelerator",
    "flashmesh.approximate",
    "flashmesh.distributed",
    "flashmesh.fallback",
    "flashmesh.hash_join_size",
    "flashmesh.measure_recall",
    "flashmesh.pushdown",
];

/// Partitions for each thread that a query has, at most: every operator that exchanges rows keeps
/// a channel for each pair of them.
const PARTITIONS_PER_THREAD: usize = 4;
/// What may be asked for however few the threads are.
const PARTITIONS: usize = 64;

/// What a value is at most and at least. Beyond it a query reserves memory that nobody has, or
/// runs out of stack, which ends the process and not the query alone: so it holds for admins, too.
fn bounds(name: &str, threads: usize) -> Option<(f64, f64)> {
    let (least, most) = match name.strip_prefix("datafusion.")? {
        "execution.batch_size" => (1, 1 << 20),
        "execution.target_partitions" | "execution.planning_concurrency" => {
            (0, PARTITIONS.max(threads * PARTITIONS_PER_THREAD))
        }
        "execution.meta_fetch_concurrency"
        | "execution.minimum_parallel_output_files"
        | "execution.max_buffered_batches_per_output_file"
        | "execution.parquet.maximum_parallel_row_group_writers"
        | "execution.parquet.maximum_buffered_record_batches_per_stream" => (1, 1024),
        "execution.parquet.write_batch_size" => (1, 1 << 20),
        "execution.parquet.max_row_group_size"
        | "execution.parquet.column_index_truncate_length"
        | "execution.parquet.statistics_truncate_length" => return Some((1.0, f64::INFINITY)),
        // Entries of an array of 4 bytes each.
        "execution.perfect_hash_join_small_build_threshold" => (0, 1 << 28),
        // The reciprocal of the entries for each row of such an array.
        "execution.perfect_hash_join_min_key_density" => return Some((0.001, f64::INFINITY)),
        "execution.objectstore_writer_buffer_size" | "execution.hash_join_buffering_capacity" => {
            (0, 1 << 30)
        }
        "explain.tree_maximum_render_width" => (0, 10_000),
        "optimizer.max_passes" => (0, 100),
        "sql_parser.recursion_limit" => (1, 200),
        _ => return None,
    };
    Some((least as f64, most as f64))
}

/// Refuses to set an option that `principal` may not set, or to what nobody may set it.
///
/// # Errors
/// [`Error::Denied`]; [`Error::Usage`] with the bounds.
pub(crate) fn check_set(principal: &Principal, set: &SetVariable, threads: usize) -> Result<()> {
    check_name(principal, &set.variable)?;
    let name = set.variable.to_ascii_lowercase();
    if !name.contains('.') {
        return Err(Error::usage(format!(
            "there is no setting '{name}'; SHOW ALL lists them"
        )));
    }
    check_bounds(&name, &set.value, threads)
}

/// Refuses options of COPY that no file can be written with.
///
/// # Errors
/// [`Error::Usage`] with the bounds.
pub(crate) fn check_copy(options: &HashMap<String, String>, threads: usize) -> Result<()> {
    options.iter().try_for_each(|(key, value)| {
        let option = key.strip_prefix("format.").unwrap_or(key);
        let name = format!("datafusion.execution.parquet.{option}");
        check_bounds(&name, value, threads)
    })
}

fn check_bounds(name: &str, value: &str, threads: usize) -> Result<()> {
    let Some((least, most)) = bounds(name, threads) else {
        return Ok(());
    };
    let bounds = match value.trim().parse::<f64>() {
        // What is no number, the option itself refuses.
        Err(_) => return Ok(()),
        Ok(value) if (least..=most).contains(&value) => return Ok(()),
        Ok(_) if most.is_infinite() => format!("{least} at least"),
        Ok(_) => format!("from {least} to {most}"),
    };
    Err(Error::usage(format!(
        "{name} can't be {value}; it is {bounds}"
    )))
}

/// Refuses to set or reset an option that is not `principal`'s.
///
/// # Errors
/// [`Error::Denied`].
pub(crate) fn check_name(principal: &Principal, name: &str) -> Result<()> {
    let lower = name.to_ascii_lowercase();
    match EVERYBODYS.iter().any(|own| matches_pattern(own, &lower)) {
        true => Ok(()),
        false => principal.check_admin(&format!("set {name}")),
    }
}

/// RESET of one of our options as SET to its default: DataFusion resets its own only.
pub(crate) fn without_reset(plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Statement(Statement::ResetVariable(ResetVariable { variable })) = &plan else {
        return Ok(plan);
    };
    let name = variable.to_ascii_lowercase();
    if !name.starts_with("flashmesh.") {
        return Ok(plan);
    }
    let entries = FlashmeshOptions::default().entries();
    let entry = entries.into_iter().find(|entry| entry.key == name);
    let entry = entry.ok_or_else(|| Error::usage(format!("there is no option '{name}'")))?;
    let value = entry.value.ok_or_else(|| {
        Error::usage(format!(
            "{name} was given when the database was opened; SET it to what it shall be"
        ))
    })?;
    Ok(LogicalPlan::Statement(Statement::SetVariable(
        SetVariable {
            variable: name,
            value,
        },
    )))
}

#[cfg(test)]
mod tests {
    use datafusion::config::ConfigOptions;

    use super::*;

    fn set(principal: &Principal, name: &str, value: &str) -> Result<()> {
        let set = SetVariable {
            variable: name.into(),
            value: value.into(),
        };
        check_set(principal, &set, 2)
    }

    #[test]
    fn values_that_end_the_process_are_refused_to_admins_too() {
        let (admin, user) = (
            Principal::owner(),
            Principal::user("eve", vec![], Default::default()),
        );
        for (name, good, bad) in [
            (
                "datafusion.execution.batch_size",
                "1048576",
                "100000000000000",
            ),
            ("DataFusion.Execution.Batch_Size", "1", "0"),
            ("datafusion.execution.target_partitions", "64", "100000"),
            ("datafusion.execution.target_partitions", "0", "-1"),
        ] {
            for principal in [&admin, &user] {
                set(principal, name, good).unwrap();
                let error = set(principal, name, bad).unwrap_err();
                assert!(matches!(error, Error::Usage(_)), "{name}: {error}");
            }
        }
        assert!(set(&admin, "datafusion.sql_parser.recursion_limit", "1e9").is_err());
        assert!(set(&admin, "datafusion.execution.batch_size", "nan").is_err());
    }

    #[test]
    fn options_that_are_not_listed_are_an_admins() {
        let user = Principal::user("eve", vec![], Default::default());
        for name in [
            "flashmesh.cache_size",
            "FlashMesh.Cache_Size",
            "datafusion.runtime.memory_limit",
            "datafusion.catalog.location",
            "datafusion.sql_parser.recursion_limit",
            "datafusion.execution.perfect_hash_join_small_build_threshold",
            "nonsense",
        ] {
            assert!(
                matches!(set(&user, name, "1"), Err(Error::Denied(_))),
                "{name}"
            );
            assert!(
                matches!(check_name(&user, name), Err(Error::Denied(_))),
                "{name}"
            );
        }
    }

    #[test]
    fn every_listed_option_is_there() {
        let mut options = ConfigOptions::default();
        options.extensions.insert(FlashmeshOptions::default());
        let known: Vec<_> = options.entries().into_iter().map(|e| e.key).collect();
        for own in EVERYBODYS {
            assert!(known.iter().any(|name| matches_pattern(own, name)), "{own}");
        }
        let bounded = known.iter().filter(|name| bounds(name, 2).is_some());
        assert_eq!(bounded.count(), 19);
    }
}

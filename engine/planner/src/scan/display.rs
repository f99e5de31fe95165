//! A scan in a plan's text.

use std::fmt;

use datafusion::physical_plan::DisplayFormatType;
use flashmesh_pushdown::Output;

use super::FlashScanExec;
use super::spec::NotPushed;

/// Parts of a scan's line in the order in which plans print them, each with its text.
fn parts(scan: &FlashScanExec, verbose: bool) -> Vec<(&'static str, String)> {
    let spec = scan.spec();
    let mut parts = vec![("table", spec.table.name.clone())];
    match &spec.output {
        Output::Rows { order, limit, .. } => {
            parts.push(("output", list(&spec.text.columns)));
            match limit {
                Some(limit) if !order.is_empty() => {
                    parts.push((
                        "top_k",
                        format!("[{}; limit {limit}]", spec.text.order.join(", ")),
                    ));
                }
                Some(limit) => parts.push(("limit", limit.to_string())),
                None => {}
            }
        }
        Output::Nearest {
            queries, metric, k, ..
        } => {
            parts.push(("output", list(&spec.text.columns)));
            parts.push((
                "nearest",
                format!("{k} by {metric} of {} queries", queries.len()),
            ));
        }
        Output::Aggregate { keys, .. } => {
            if !keys.is_empty() {
                parts.push(("group_by", list(&spec.text.columns)));
            }
            parts.push(("aggregate", list(&spec.text.aggregates)));
        }
    }
    let pushed: Vec<_> = spec
        .filters
        .iter()
        .map(|f| {
            if f.exact {
                f.text.clone()
            } else {
                format!("{} (prunes)", f.text)
            }
        })
        .collect();
    if !pushed.is_empty() {
        parts.push(("pushed", list(&pushed)));
    }
    if let Some(path) = scan.access() {
        parts.push(("index", path.to_string()));
    }
    let (some, all) = (scan.segments().len(), spec.table.segments.len());
    if some < all {
        parts.push(("by_key", format!("{some} of {all} segments")));
    }
    if spec.is_whole {
        parts.push(("scanned", "whole on each node".into()));
    }
    if !spec.not_pushed.is_empty() {
        let reasons: Vec<_> = spec
            .not_pushed
            .iter()
            .map(|n| not_pushed(n, verbose))
            .collect();
        parts.push(("not_pushed", list(&reasons)));
    }
    let dynamic = spec.dynamic_filters.iter().map(|f| f.expr.to_string());
    let of_joins = spec.key_filters.iter().map(|filter| {
        let column = spec.table.scan_schema.field(filter.ordinal as usize).name();
        format!("{column} in the keys of join {}", filter.join)
    });
    let dynamic: Vec<_> = dynamic.chain(of_joins).collect();
    if !dynamic.is_empty() {
        parts.push(("runtime", list(&dynamic)));
    }
    let accelerator = spec.accelerator.as_deref().unwrap_or("cpu");
    if verbose || accelerator != "cpu" {
        let held = scan.node().accelerator(accelerator);
        let text = held.map_or_else(|| accelerator.to_owned(), |held| held.describe());
        parts.push(("accelerator", text));
    }
    if verbose {
        let read: Vec<_> = scan
            .program()
            .columns
            .iter()
            .map(|c| c.name.clone())
            .collect();
        parts.push(("read", list(&read)));
        parts.push(("expected_rows", format!("{:.0}", spec.rows_after_filter())));
        parts.push(("partitions", scan.partitions().to_string()));
    }
    parts
}

fn not_pushed(note: &NotPushed, verbose: bool) -> String {
    if verbose {
        format!("{} ({})", note.text, note.reason)
    } else {
        format!("{} ({})", note.text, note.reason.code())
    }
}

fn list(items: &[String]) -> String {
    format!("[{}]", items.join(", "))
}

pub(super) fn write(
    scan: &FlashScanExec,
    format: DisplayFormatType,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match format {
        DisplayFormatType::Default | DisplayFormatType::Verbose => {
            write!(f, "FlashScanExec: ")?;
            let parts = parts(scan, matches!(format, DisplayFormatType::Verbose));
            for (i, (name, text)) in parts.iter().enumerate() {
                let comma = if i == 0 { "" } else { ", " };
                write!(f, "{comma}{name}={text}")?;
            }
            Ok(())
        }
        DisplayFormatType::TreeRender => {
            for (name, text) in parts(scan, false) {
                writeln!(f, "{name}={text}")?;
            }
            Ok(())
        }
    }
}

//! The store's counters as DataFusion's metrics.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use datafusion::physical_plan::metrics::{
    Count, Metric, MetricValue, MetricsSet, RatioMetrics, Time,
};
use flashmesh_storage::accelerator::ScanMetrics;

/// What `EXPLAIN ANALYZE` prints of a scan.
pub fn metrics_set(scan: &ScanMetrics, fallbacks: usize) -> MetricsSet {
    let mut set = MetricsSet::new();
    let mut push = |value| set.push(Arc::new(Metric::new(value, None)));
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);

    let output_rows = Count::new();
    output_rows.add(load(&scan.rows_out) as usize);
    push(MetricValue::OutputRows(output_rows));
    for (name, counter) in [
        ("rows_in", &scan.rows_in),
        ("pages_from_flash", &scan.pages_from_flash),
        ("bytes_from_flash", &scan.bytes_from_flash),
        ("pages_from_cache", &scan.pages_from_cache),
        ("bytes_to_host", &scan.bytes_to_host),
        ("segments_read", &scan.segments_read),
        ("segments_skipped_zone_map", &scan.segments_skipped_zone_map),
        ("segments_skipped_runtime", &scan.segments_skipped_runtime),
        ("segments_skipped_index", &scan.segments_skipped_index),
        ("pages_skipped_zone_map", &scan.pages_skipped_zone_map),
        ("pages_skipped_index", &scan.pages_skipped_index),
        ("pages_skipped_runtime", &scan.pages_skipped_runtime),
        ("pages_skipped_selection", &scan.pages_skipped_selection),
    ] {
        push(count(name, load(counter) as usize));
    }
    if load(&scan.device_calls) > 0 {
        for (name, counter) in [
            ("device_calls", &scan.device_calls),
            ("bytes_to_device", &scan.bytes_to_device),
            ("bytes_from_device", &scan.bytes_from_device),
        ] {
            push(count(name, load(counter) as usize));
        }
    }
    if load(&scan.segments_of_nodes) > 0 {
        for (name, counter) in [
            ("segments_of_nodes", &scan.segments_of_nodes),
            ("bytes_to_nodes", &scan.bytes_to_nodes),
            ("bytes_from_nodes", &scan.bytes_from_nodes),
        ] {
            push(count(name, load(counter) as usize));
        }
    }
    let fallbacks = fallbacks + load(&scan.device_fallbacks) as usize;
    push(count("fallbacks", fallbacks));
    push(time("device_time", load(&scan.device_time_ns)));
    push(time("flash_wait", load(&scan.flash_wait_ns)));
    if let Some(recall) = recall(scan) {
        push(recall);
    }
    set
}

/// What `EXPLAIN ANALYZE` prints of a function that the store runs as a whole, or that asks the
/// store in so many `commands`.
pub fn function_metrics(cost: &ScanMetrics, commands: u64) -> MetricsSet {
    let mut set = MetricsSet::new();
    let mut push = |value| set.push(Arc::new(Metric::new(value, None)));
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);

    let output_rows = Count::new();
    output_rows.add(load(&cost.rows_out) as usize);
    push(MetricValue::OutputRows(output_rows));
    push(count("commands", commands as usize));
    for (name, counter) in [
        ("pages_from_flash", &cost.pages_from_flash),
        ("bytes_from_flash", &cost.bytes_from_flash),
        ("pages_from_cache", &cost.pages_from_cache),
        ("bytes_to_host", &cost.bytes_to_host),
    ] {
        push(count(name, load(counter) as usize));
    }
    if load(&cost.device_calls) > 0 || load(&cost.device_fallbacks) > 0 {
        for (name, counter) in [
            ("device_calls", &cost.device_calls),
            ("bytes_to_device", &cost.bytes_to_device),
            ("bytes_from_device", &cost.bytes_from_device),
            ("fallbacks", &cost.device_fallbacks),
        ] {
            push(count(name, load(counter) as usize));
        }
    }
    push(time("flash_wait", load(&cost.flash_wait_ns)));
    if let Some(recall) = recall(cost) {
        push(recall);
    }
    set
}

/// The recall, if it was measured.
fn recall(cost: &ScanMetrics) -> Option<MetricValue> {
    let expected = cost.recall_expected.load(Ordering::Relaxed);
    if expected == 0 {
        return None;
    }
    let ratio_metrics = RatioMetrics::new();
    ratio_metrics.set_total(expected as usize);
    ratio_metrics.set_part(cost.recall_found.load(Ordering::Relaxed) as usize);
    Some(MetricValue::Ratio {
        name: Cow::Borrowed("recall"),
        ratio_metrics,
    })
}

fn count(name: &'static str, value: usize) -> MetricValue {
    let count = Count::new();
    count.add(value);
    MetricValue::Count {
        name: Cow::Borrowed(name),
        count,
    }
}

fn time(name: &'static str, ns: u64) -> MetricValue {
    let time = Time::new();
    time.add_duration(Duration::from_nanos(ns));
    MetricValue::Time {
        name: Cow::Borrowed(name),
        time,
    }
}

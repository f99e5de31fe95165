//! The store's counters as DataFusion's metrics.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use datafusion::physical_plan::metrics::{Count, Metric, MetricValue, MetricsSet, Time};
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
    push(count("fallbacks", fallbacks));
    push(time("device_time", load(&scan.device_time_ns)));
    push(time("flash_wait", load(&scan.flash_wait_ns)));
    set
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

//! What Prometheus reads.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::state::State;
use crate::queries::TOOK_SECONDS;

/// Processor and system.
const TARGET: &str = match cfg!(target_arch = "x86_64") {
    true => "x86_64-linux",
    false => "aarch64-linux",
};

/// The state's numbers, read when they are asked for.
#[derive(Debug)]
struct Numbers {
    gauges: Vec<(&'static str, &'static str, i64)>,
    counters: Vec<(&'static str, &'static str, u64)>,
    ended: [(&'static str, u64); 3],
    took: ([u64; TOOK_SECONDS.len() + 1], f64),
}

/// All metrics in OpenMetrics' text format.
pub(super) fn text(state: &State) -> Result<String, fmt::Error> {
    let totals = state.queries().totals();
    let limits = &state.limits;
    let cache = state.engine.database().store().cache();
    let external = state.engine.database().block_cache();
    let external = external.map(|cache| cache.stats()).unwrap_or_default();
    let (distributed, on_head) = state.engine.distributed_queries().unwrap_or_default();
    let connections = state.connections.len();
    let waiting = state.queries().running() as i64
        - (limits.queries - state.running.available_permits()) as i64;
    let numbers = Numbers {
        gauges: vec![
            (
                "queries_running",
                "Queries that run or wait",
                state.queries().running() as i64,
            ),
            (
                "queries_waiting",
                "Queries that wait for their turn",
                waiting.max(0),
            ),
            (
                "sessions",
                "Sessions of clients",
                state.sessions.len() as i64,
            ),
            ("connections", "Connections of clients", connections as i64),
            (
                "memory_used_bytes",
                "Memory that queries hold",
                state.engine.memory_used() as i64,
            ),
            (
                "page_cache_bytes",
                "Pages in the page cache",
                cache.stats().used_bytes as i64,
            ),
            (
                "external_cache_bytes",
                "What the cache of external files takes up on flash",
                external.used_bytes as i64,
            ),
            (
                "external_cache_capacity_bytes",
                "What it may take up",
                external.capacity_bytes as i64,
            ),
            (
                "damaged_places",
                "What the check of all pages has found damaged since the database was opened",
                state.engine.database().scrubbed().problems.len() as i64,
            ),
            (
                "uptime_seconds",
                "Since the database was opened",
                seconds(state.engine.uptime()),
            ),
        ],
        counters: vec![
            (
                "rows_sent",
                "Rows sent to clients, of queries that have ended",
                totals.rows(),
            ),
            (
                "flash_read_bytes",
                "Bytes that scans read from flash, of queries that have ended",
                totals.bytes_from_flash(),
            ),
            (
                "scan_output_bytes",
                "Bytes that scans gave to the operators above them, of queries that have ended",
                totals.bytes_to_host(),
            ),
            (
                "distributed_queries",
                "Queries, and subqueries of one value, that were left to several nodes of a rack",
                distributed,
            ),
            (
                "distributed_queries_on_head",
                "Of these, those that were done on the head alone then, as a node went away or could not do its part",
                on_head,
            ),
            (
                "external_cache_hits",
                "Reads of blocks of external files that the cache answered",
                external.hits,
            ),
            (
                "external_cache_misses",
                "Blocks of external files that were fetched",
                external.misses,
            ),
            (
                "external_cache_hit_bytes",
                "Bytes of external files that the cache answered",
                external.hit_bytes,
            ),
            (
                "external_cache_fetched_bytes",
                "Bytes of the blocks that were fetched",
                external.fetched_bytes,
            ),
            (
                "external_cache_damaged_blocks",
                "Blocks that were not what was written, and were fetched again",
                external.damaged,
            ),
        ],
        ended: totals.queries(),
        took: totals.took().read(),
    };
    let mut registry = Registry::with_prefix("flashmesh");
    registry.register_collector(Box::new(numbers));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn seconds(time: Duration) -> i64 {
    time.as_secs() as i64
}

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for (name, help, value) in &self.gauges {
            let gauge = ConstGauge::new(*value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        for (name, help, value) in &self.counters {
            let counter = ConstCounter::new(*value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let kind = MetricType::Counter;
        let mut family =
            encoder.encode_descriptor("queries", "Queries that have ended", None, kind)?;
        for (state, count) in self.ended {
            let counter = ConstCounter::new(count);
            counter.encode(family.encode_family(&[("state", state)])?)?;
        }
        let help = "How long queries took that have ended, from when they were asked for";
        let mut took =
            encoder.encode_descriptor("query_seconds", help, None, MetricType::Histogram)?;
        let (counts, sum) = &self.took;
        let bounds = TOOK_SECONDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(*counts).collect();
        took.encode_histogram::<NoLabelSet>(*sum, counts.iter().sum(), &buckets, None)?;
        let help = "What is running, as labels";
        let mut build = encoder.encode_descriptor("build_info", help, None, MetricType::Gauge)?;
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("target", TARGET)];
        ConstGauge::new(1i64).encode(build.encode_family(&labels)?)?;
        Ok(())
    }
}

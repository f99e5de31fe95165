//! `flashmesh demo`: TPC-H from Parquet to flash, a tour of queries, and what pushdown saved.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Engine, Error, FileOptions, LoadMode, Result, Session, make_temporary_folder};
use arrow::record_batch::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::{ExecutionPlan, collect};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget};

use super::arguments::{DemoArguments, EngineArguments};
use super::load::{bytes_on_flash, load_with_bar, style};
use super::signals;
use super::tpch::{self, TABLES};

/// One stop of the tour.
struct Stop {
    title: &'static str,
    sql: &'static str,
}

const TOUR: [Stop; 7] = [
    Stop {
        title: "TPC-H Q6: a filter and a sum. One number leaves the store",
        sql: "\
SELECT sum(l_extendedprice * l_discount) AS revenue
FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
  AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24",
    },
    Stop {
        title: "TPC-H Q1: groups over nearly all rows. Four groups leave the store",
        sql: "\
SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
       sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
       sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
       avg(l_quantity) AS avg_qty, avg(l_discount) AS avg_disc, count(*) AS count_order
FROM lineitem
WHERE l_shipdate <= DATE '1998-09-02'
GROUP BY l_returnflag, l_linestatus
ORDER BY l_returnflag, l_linestatus",
    },
    Stop {
        title: "TPC-H Q14: a join. The order lines of one month go up, two columns of the parts",
        sql: "\
SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
       / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
FROM lineitem JOIN part ON l_partkey = p_partkey
WHERE l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-10-01'",
    },
    Stop {
        title: "TPC-H Q3: two joins. What one side of a join holds filters the other's scan while it runs",
        sql: "\
SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
GROUP BY l_orderkey, o_orderdate, o_shippriority
ORDER BY revenue DESC, o_orderdate LIMIT 10",
    },
    Stop {
        title: "LIKE: text is searched where it lies",
        sql: "\
SELECT count(*) AS orders
FROM orders
WHERE o_comment LIKE '%special%requests%'",
    },
    Stop {
        title: "Top-k: the store sorts out the ten greatest and reads the other columns for them alone",
        sql: "\
SELECT l_orderkey, l_extendedprice, l_comment
FROM lineitem
ORDER BY l_extendedprice DESC, l_orderkey LIMIT 10",
    },
    Stop {
        title: "One order: zone maps know the page, the rest is not read",
        sql: "\
SELECT l_orderkey, l_linenumber, l_quantity, l_shipdate, l_shipmode
FROM lineitem
WHERE l_orderkey = 1027",
    },
];

/// Runs of which the median is told.
const RUNS: usize = 3;
/// Rows of a result that are printed.
const SHOWN_ROWS: usize = 5;

pub(super) async fn run(engine: &EngineArguments, demo: DemoArguments) -> Result<ExitCode> {
    let engine = Engine::open(engine.options()?)?;
    let data = make_temporary_folder()?;
    signals::end_on_signal(engine.temporary_folders().chain([data.path()]), true)?;
    let session = engine.session()?;
    if session.table_snapshot("lineitem").is_ok() {
        println!(
            "{} has the tables already.\n",
            engine.database().path().display()
        );
    } else {
        load_tables(&session, data.path(), demo.scale_factor).await?;
    }
    drop(data);

    let mut saved = Vec::new();
    for (number, stop) in TOUR.iter().enumerate() {
        println!(
            "── {} of {} ── {}\n\n{}\n",
            number + 1,
            TOUR.len(),
            stop.title,
            stop.sql
        );
        saved.push(visit(&session, stop, demo.explain).await?);
    }
    print_summary(&saved);
    if engine.is_temporary() {
        println!(
            "\nThe database was a temporary one. Keep it with: flashmesh demo --db DIR; then try flashmesh --db DIR"
        );
    } else {
        println!(
            "\nGo on with: flashmesh --db {}",
            engine.database().path().display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

async fn load_tables(session: &Session, folder: &Path, scale_factor: f64) -> Result<()> {
    let start = Instant::now();
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style(
        "making TPC-H data: {wide_bar} {human_pos}/{human_len} rows, {eta} left",
    ));
    let (threads, to, counting) = (
        session.engine().threads(),
        folder.to_path_buf(),
        bar.clone(),
    );
    tokio::task::spawn_blocking(move || tpch::write_parquet(&to, scale_factor, threads, &counting))
        .await
        .map_err(|e| Error::usage(format!("making TPC-H data: {e}")))??;
    bar.finish_and_clear();
    println!(
        "TPC-H at scale factor {scale_factor} as Parquet files: {}, made in {:.1} s.",
        HumanBytes(folder_bytes(folder)?),
        start.elapsed().as_secs_f64()
    );

    let start = Instant::now();
    let mut total = 0;
    for (table, _) in TABLES {
        let files = [format!("{}/{table}.*.parquet", folder.display())];
        let rows = load_with_bar(
            session,
            table,
            &files,
            &FileOptions::default(),
            LoadMode::Create,
            false,
        )
        .await?;
        let bytes = bytes_on_flash(session, table)?;
        total += bytes;
        println!(
            "  {table:9} {:>12} rows {:>12} on flash",
            HumanCount(rows).to_string(),
            HumanBytes(bytes).to_string()
        );
    }
    println!(
        "Loaded into 8 KiB pages on flash: {}, in {:.1} s.\n",
        HumanBytes(total),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn folder_bytes(folder: &Path) -> Result<u64> {
    let failed = |e| Error::io(format!("listing {}", folder.display()), e);
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        bytes += entry
            .and_then(|entry| entry.metadata())
            .map_err(failed)?
            .len();
    }
    Ok(bytes)
}

/// What one way of running a query cost.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    bytes_from_flash: u64,
    bytes_to_host: u64,
    pages_by_zone_map: u64,
    pages_by_runtime_filter: u64,
    pages_by_selection: u64,
    segments_skipped: u64,
    /// With an empty page cache.
    cold: Duration,
    /// With what the cache can hold of the pages in it.
    warm: Duration,
}

struct Saved {
    title: &'static str,
    store: Cost,
    host: Cost,
}

/// Runs a query both ways and tells.
async fn visit(session: &Session, stop: &Stop, explain: bool) -> Result<Saved> {
    let (host, _, _) = measure(session, stop.sql, "never").await?;
    let (store, plan, rows) = measure(session, stop.sql, "auto").await?;
    println!("{}", shown(&rows)?);
    let text = DisplayableExecutionPlan::with_metrics(plan.as_ref())
        .indent(false)
        .to_string();
    println!(
        "EXPLAIN ANALYZE{}:",
        if explain { "" } else { ", the scans of it" }
    );
    for line in text
        .lines()
        .filter(|line| explain || line.contains("FlashScanExec"))
    {
        println!("  {}", if explain { line } else { line.trim_start() });
    }
    println!();
    println!("{:26}{:>14}{:>14}", "", "in the store", "on the host");
    let bytes = |what: &str, cost: fn(&Cost) -> u64| {
        println!(
            "{what:26}{:>14}{:>14}",
            HumanBytes(cost(&store)).to_string(),
            HumanBytes(cost(&host)).to_string()
        );
    };
    bytes("read from flash", |cost| cost.bytes_from_flash);
    bytes("passed to the host", |cost| cost.bytes_to_host);
    println!(
        "{:26}{:>14}{:>14}",
        "time, empty page cache",
        milliseconds(store.cold),
        milliseconds(host.cold)
    );
    println!(
        "{:26}{:>14}{:>14}",
        "time, pages cached",
        milliseconds(store.warm),
        milliseconds(host.warm)
    );
    let skipped = [
        (store.segments_skipped, "whole segments"),
        (store.pages_by_zone_map, "pages ruled out by zone maps"),
        (
            store.pages_by_runtime_filter,
            "pages ruled out by what the query learned on its way",
        ),
        (store.pages_by_selection, "pages in which no row was left"),
    ];
    let skipped: Vec<_> = skipped
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{} {what}", HumanCount(*count)))
        .collect();
    if !skipped.is_empty() {
        println!("not read: {}", skipped.join(", "));
    }
    println!();
    Ok(Saved {
        title: stop.title,
        store,
        host,
    })
}

/// Runs a query with `pushdown` set so: once with an empty page cache, then some times more.
async fn measure(
    session: &Session,
    sql: &str,
    pushdown: &str,
) -> Result<(Cost, Arc<dyn ExecutionPlan>, Vec<RecordBatch>)> {
    session
        .sql(&format!("SET flashmesh.pushdown = '{pushdown}'"))
        .await?;
    session.engine().database().store().cache().clear();
    let (cold, plan, rows) = timed(session, sql).await?;
    let mut cost = Cost {
        cold,
        ..Cost::default()
    };
    add_scans(plan.as_ref(), &mut cost);
    let mut warm = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        warm.push(timed(session, sql).await?.0);
    }
    warm.sort();
    cost.warm = warm[RUNS / 2];
    Ok((cost, plan, rows))
}

async fn timed(
    session: &Session,
    sql: &str,
) -> Result<(Duration, Arc<dyn ExecutionPlan>, Vec<RecordBatch>)> {
    let start = Instant::now();
    let plan = session.sql(sql).await?.create_physical_plan().await?;
    let rows = collect(Arc::clone(&plan), session.context().task_ctx()).await?;
    Ok((start.elapsed(), plan, rows))
}

/// Adds up the counters of the scans in a plan that has run.
fn add_scans(plan: &dyn ExecutionPlan, cost: &mut Cost) {
    if plan.name() == "FlashScanExec"
        && let Some(metrics) = plan.metrics()
    {
        let counter = |name| {
            metrics
                .sum_by_name(name)
                .map_or(0, |value| value.as_usize() as u64)
        };
        cost.bytes_from_flash += counter("bytes_from_flash");
        cost.bytes_to_host += counter("bytes_to_host");
        cost.pages_by_zone_map += counter("pages_skipped_zone_map");
        cost.pages_by_runtime_filter += counter("pages_skipped_runtime");
        cost.pages_by_selection += counter("pages_skipped_selection");
        cost.segments_skipped +=
            counter("segments_skipped_zone_map") + counter("segments_skipped_runtime");
    }
    for child in plan.children() {
        add_scans(child.as_ref(), cost);
    }
}

/// The first rows of a result.
fn shown(batches: &[RecordBatch]) -> Result<String> {
    let mut left = SHOWN_ROWS;
    let mut first = Vec::new();
    for batch in batches {
        let taken = left.min(batch.num_rows());
        first.push(batch.slice(0, taken));
        left -= taken;
    }
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let more = if rows > SHOWN_ROWS {
        format!("… {} more rows\n", rows - SHOWN_ROWS)
    } else {
        String::new()
    };
    Ok(format!("{}\n{more}", pretty_format_batches(&first)?))
}

fn print_summary(saved: &[Saved]) {
    println!("── What pushdown saved ──\n");
    for (number, Saved { title, store, host }) in saved.iter().enumerate() {
        let name = title.split(':').next().unwrap_or(title);
        println!(
            "{}. {name:12} {:>10} in place of {:>10} to the host, {:>10} in place of {:>10} from flash; {}, {} from flash",
            number + 1,
            HumanBytes(store.bytes_to_host).to_string(),
            HumanBytes(host.bytes_to_host).to_string(),
            HumanBytes(store.bytes_from_flash).to_string(),
            HumanBytes(host.bytes_from_flash).to_string(),
            compared(store.warm, host.warm),
            compared(store.cold, host.cold),
        );
    }
}

/// How one time compares with another, in words that hold either way.
fn compared(store: Duration, host: Duration) -> String {
    let ratio = host.as_secs_f64() / store.as_secs_f64().max(1e-9);
    if ratio >= 1.0 {
        format!("{ratio:.1} × as fast")
    } else {
        format!("{:.1} × slower", 1.0 / ratio)
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

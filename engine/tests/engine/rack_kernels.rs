//! Kernels of users on racks: they run where the pages are, and answer as on one node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flashmesh::{FunctionGrants, Grant, NamePattern, Principal, RightName, Session};
use flashmesh_storage::accelerator::sandbox::SandboxOptions;
use flashmesh_storage::kernel::Package;
use rand::RngExt;

use crate::kernels::{band, calling, create, times};
use crate::racks::metric;
use crate::support::{error, random, rows, run};
use crate::test_rack::TestRack;

const TABLE: &str = "CREATE TABLE t AS SELECT value AS a, CAST(value AS DOUBLE) / 4 AS x,
    nullif(value % 5, 0) AS n, value % 7 AS k, 'text ' || value AS s
    FROM generate_series(1, 400000) AS g(value)";

async fn rack(of_nodes: SandboxOptions) -> (TestRack, Session) {
    let rack = TestRack::with_kernels_of_nodes(3, of_nodes);
    // One writer: no other segment's zone map has the rows of a segment, too.
    let writes = format!("SET datafusion.execution.target_partitions = 1; {TABLE}");
    run(&rack.session(), &writes).await;
    let session = rack.session();
    (rack, session)
}

/// What a query answers in a mode, and how many segments were left to other nodes.
async fn asked(session: &Session, mode: &str, query: &str) -> (Vec<String>, u64) {
    run(session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
    let answer = rows(session, query).await;
    let plan = rows(session, &format!("EXPLAIN ANALYZE {query}")).await;
    (answer, metric(&plan, "segments_of_nodes"))
}

/// The bytes that a query sent to other nodes.
async fn bytes_sent(session: &Session, query: &str) -> f64 {
    let plan = rows(session, &format!("EXPLAIN ANALYZE {query}"))
        .await
        .join(" ");
    let (_, sent) = plan
        .split_once(" bytes_to_nodes=")
        .expect("nodes were asked");
    let (number, unit) = sent
        .split_once([',', ']'])
        .unwrap()
        .0
        .split_once(' ')
        .unwrap();
    let unit = match unit {
        "B" => 1.0,
        "K" => 1e3,
        unit => panic!("{unit}"),
    };
    number.parse::<f64>().unwrap() * unit
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernels_run_on_the_nodes_that_have_the_pages() {
    let (_rack, session) = rack(SandboxOptions::default()).await;
    for package in [
        band("band"),
        times("triple", 3, ""),
        calling("through", "triple"),
        calling("twice_through", "through"),
    ] {
        run(&session, &create(&package, "")).await;
    }
    for query in [
        "SELECT count(*), min(a), max(a), max(s) FROM t WHERE band(x, 10, 20)",
        "SELECT a, s FROM t WHERE band(x, 10, 20) AND a % 2 = 0 ORDER BY a",
        "SELECT k, sum(triple(n)), count(triple(n)) FROM t GROUP BY k ORDER BY k",
        "SELECT a, triple(a) FROM t WHERE s LIKE '%9999%' ORDER BY triple(a) DESC LIMIT 3",
        "SELECT sum(twice_through(a)) FROM t WHERE band(x, 500, 600)",
    ] {
        let (expected, left) = asked(&session, "never", query).await;
        assert_eq!(left, 0, "{query}");
        for mode in ["auto", "always"] {
            let (answer, left) = asked(&session, mode, query).await;
            assert_eq!(answer, expected, "{mode}: {query}");
            // Where the head has the pages in its cache, they need not travel.
            assert!(left > 0 || mode == "auto", "{mode}: {query}");
        }
    }
    // Another one of that name is another one everywhere.
    let query = "SELECT sum(triple(a)) FROM t WHERE a <= 300000";
    let (before, _) = asked(&session, "always", query).await;
    run(&session, &create(&times("triple", 4, ""), "OR REPLACE")).await;
    let (after, left) = asked(&session, "always", query).await;
    let value = |rows: &[String]| rows[0].parse::<i64>().unwrap();
    assert_eq!(value(&before) / 3 * 4, value(&after));
    assert!(left > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_travels_once_and_again_to_a_node_that_has_it_no_more() {
    let (_rack, session) = rack(SandboxOptions::default()).await;
    let mut bytes = vec![0; 100_000];
    random().fill(&mut bytes[..]);
    let of = times("large", 1, "");
    let large = Package::new(&of.manifest_text, &of.wasm, Some(&bytes), [0; 32]).unwrap();
    run(&session, &create(&large, "")).await;
    let query = "SELECT sum(large(a)) FROM t";
    let expected = ["80000200000"];
    run(&session, "SET flashmesh.pushdown = 'always'").await;
    let package = f64::from(2 * 100_000);
    let sent = async || bytes_sent(&session, query).await;
    // To two nodes.
    assert!(sent().await > package);
    assert!(sent().await < package / 10.0);
    assert_eq!(rows(&session, query).await, expected);
    // So many others that the nodes have forgotten it.
    for number in 0..70 {
        let name = format!("other_{number}");
        run(&session, &create(&times(&name, number, ""), "")).await;
        let sum = rows(&session, &format!("SELECT sum({name}(a)) FROM t")).await;
        assert_eq!(sum, [(80_000_200_000_i64 * number).to_string()]);
    }
    assert_eq!(rows(&session, query).await, expected);
    assert!(sent().await > package);
    assert!(sent().await < package / 10.0);
    assert_eq!(rows(&session, query).await, expected);
}

/// Of nodes; the head's kernels have the ten seconds that are the default.
fn seconds(time_per_call: u64) -> SandboxOptions {
    SandboxOptions {
        time_per_call: Duration::from_secs(time_per_call),
        ..SandboxOptions::default()
    }
}

/// Its calls may take a minute, where nodes let them.
fn endless() -> Package {
    let of = times("endless", 1, "(loop $forever (br $forever))");
    let manifest = format!("{}[limits]\ntime_per_call_ms = 60000\n", of.manifest_text);
    Package::new(&manifest, &of.wasm, None, [0; 32]).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_kernel_of_a_node_fails_with_is_its_own() {
    let (_rack, session) = rack(seconds(1)).await;
    run(&session, &create(&endless(), "")).await;
    run(&session, "SET flashmesh.pushdown = 'always'").await;
    // Of a segment that is not the head's, whose kernels have ten seconds.
    let mut elsewhere = None;
    for row in (1..400_000).step_by(20_000) {
        let query = format!("SELECT sum(x) FROM t WHERE a = {row}");
        if asked(&session, "always", &query).await.1 == 1 {
            elsewhere = Some(row);
        }
    }
    let row = elsewhere.expect("segments of other nodes");
    let query = format!("SELECT sum(endless(a)) FROM t WHERE a = {row}");
    let said = error(&session, &query).await;
    assert!(
        said.contains("endless") && said.contains("1000 ms"),
        "{said}"
    );
    assert!(!said.contains("asking node"), "{said}");
}

/// Their own limit would let them run for a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernels_of_nodes_end_with_their_query() {
    let (rack, session) = rack(seconds(3600)).await;
    run(&session, &create(&endless(), "")).await;
    run(&session, "SET flashmesh.pushdown = 'always'").await;
    let running = || {
        let nodes = rack.nodes.iter().flatten();
        nodes
            .map(|(_, serving, _)| serving.commands_running())
            .sum::<usize>()
    };
    let query = tokio::spawn(async move {
        let plan = session.sql("SELECT sum(endless(a)) FROM t").await.unwrap();
        plan.collect().await
    });
    let until = async |count: usize| {
        let patience = Instant::now() + Duration::from_secs(30);
        while running() != count {
            assert!(
                Instant::now() < patience,
                "{} run and not {count}",
                running()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until(2).await;
    query.abort();
    until(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_leaves_the_head_with_those_that_its_user_may_use() {
    let (rack, session) = rack(SandboxOptions::default()).await;
    run(&session, &create(&times("helper", 3, ""), "")).await;
    run(&session, &create(&calling("through", "helper"), "")).await;
    // Whoever may use a function need not have the right to those that it calls: then it runs at the head.
    let names = |names: &[&str]| -> Vec<NamePattern> {
        let names = names.iter().map(|name| (*name).to_string());
        names.map(|name| name.try_into().unwrap()).collect()
    };
    let user = |usable: &[&str]| {
        let grant = Grant {
            tables: "public.*".to_string().try_into().unwrap(),
            rights: vec![RightName::Read, RightName::Kernel],
        };
        let functions = FunctionGrants {
            usable: names(usable),
            ..FunctionGrants::default()
        };
        let user = Principal::user("ada", vec![grant], functions);
        rack.engine().session_for(Arc::new(user)).unwrap()
    };
    let query = "SELECT sum(through(a)) FROM t";
    for (usable, leaves) in [(&["through"][..], false), (&["through", "helper"], true)] {
        let (answer, left) = asked(&user(usable), "always", query).await;
        assert_eq!(answer, ["240000600000"]);
        assert_eq!(left > 0, leaves, "{usable:?}");
    }
    let refused = error(&user(&["helper"]), query).await;
    assert!(refused.contains("through"), "{refused}");
}

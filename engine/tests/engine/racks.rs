//! Racks of several nodes in one process, which share nothing but the mesh: all answers are those of
//! one node.
//!
//! `FLASHMESH_TEST_RACK=3` has every test that opens a [`session`](super::support::session) do so on
//! such a rack.

use std::fmt::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flashmesh::{Engine, EngineOptions, Session};
use flashmesh_cluster::Rack;
use flashmesh_cluster::cards::TermStore;
use flashmesh_cluster::copies::{CopyFile, holders};
use flashmesh_cluster::mesh::Mesh;
use flashmesh_cluster::node::{CopyParts, Head, HeadParts, ServingNode, ServingOptions};
use flashmesh_storage::flash::{Geometry, MemoryFlash};
use flashmesh_storage::store::{CardId, NodeId, StoreCard};
use rand::RngExt;
use rand::seq::IndexedRandom;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::support::{random, rows, run, session_of_threads};

const MODES: [&str; 3] = ["auto", "always", "never"];
const KEY: [u8; 32] = [7; 32];

#[derive(Debug, Default)]
struct TermInMemory(AtomicU64);

impl TermStore for TermInMemory {
    fn load(&self) -> flashmesh_storage::Result<u64> {
        Ok(self.0.load(Ordering::SeqCst))
    }

    fn store(&self, term: u64) -> flashmesh_storage::Result<()> {
        self.0.store(term, Ordering::SeqCst);
        Ok(())
    }
}

/// A rack whose first node is the head.
pub struct TestRack {
    // In the order in which they are dropped.
    engine: Option<Arc<Engine>>,
    nodes: Vec<Option<(ServingNode, Mesh)>>,
    head: Arc<Head>,
    _mesh: Mesh,
    runtime: Option<Runtime>,
    _folder: TempDir,
}

/// A card of memory.
fn card(of: u16, at: u16) -> StoreCard {
    let geometry = Geometry {
        pages_per_erase_block: 256,
        erase_blocks: 4096,
    };
    StoreCard {
        node: NodeId(of),
        card: CardId(0),
        flash: Arc::new(MemoryFlash::new(
            geometry,
            (u64::from(of) << 16) + u64::from(at),
        )),
    }
}

impl TestRack {
    /// A rack of so many nodes in a line, whose cards are memory. May be called from a task.
    pub fn new(nodes: u16, options: EngineOptions) -> Self {
        Self::with_copies(nodes, 1, options)
    }

    /// The same, with each card on so many nodes.
    pub fn with_copies(nodes: u16, replicas: u16, options: EngineOptions) -> Self {
        let made = std::thread::spawn(move || Self::make(nodes, replicas, [KEY; 2], options));
        made.join().unwrap().unwrap()
    }

    /// `keys`: the head's, and that of the others.
    fn make(
        nodes: u16,
        replicas: u16,
        keys: [[u8; 32]; 2],
        options: EngineOptions,
    ) -> Result<Self, flashmesh::Error> {
        let mut text = String::from(
            "[mesh]\ndeadline_ms = 1000\n[[endpoint]]\nindex = 0\nname = 'pages'\nflow = 'end-to-end'\n\
             [[endpoint]]\nindex = 1\nname = 'streams'\nflow = 'end-to-end'\n",
        );
        for node in 0..nodes {
            let _ = write!(
                text,
                "[[node]]\nid = {node}\nname = 'n{node}'\naddress = 'unix:///n{node}'\n\
                 [[node.card]]\nid = 0\npath = 'n{node}'\n",
            );
        }
        for to in 1..nodes {
            // Where nodes may end, no way leads through another one.
            let first = if replicas > 1 { 0 } else { to - 1 };
            for from in first..to {
                let (at, into) = if replicas > 1 { (to - 1, from) } else { (1, 0) };
                let _ = write!(
                    text,
                    "[[cable]]\nfrom = 'n{from}/{at}'\nto = 'n{to}/{into}'\n"
                );
            }
        }
        let rack = Rack::parse(&text).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let meshes = runtime.block_on(async { Mesh::in_process(&rack) }).unwrap();
        let mut meshes = meshes.into_iter();
        let head_mesh = meshes.next().unwrap();
        let all: Vec<_> = (0..nodes).map(NodeId).collect();
        let cards_at = |at: u16| {
            let is_held = |of: &u16| {
                let holders = holders(&all, NodeId(*of), replicas);
                *of != at && holders.contains(&NodeId(at))
            };
            let held = (0..nodes).filter(is_held);
            held.map(|of| card(of, at)).collect::<Vec<_>>()
        };
        let serving = (1..nodes).zip(meshes).map(|(node, mesh)| {
            let serving = ServingNode::start(
                &mesh,
                &mesh.streams("streams").unwrap(),
                NodeId(node),
                [card(node, node)]
                    .into_iter()
                    .chain(cards_at(node))
                    .collect(),
                Arc::new(TermInMemory::default()),
                &keys[1],
                ServingOptions {
                    cache_bytes: 8 << 20,
                    threads: 2,
                    commands: 4,
                },
            );
            Some((serving.unwrap(), mesh))
        });
        let nodes_that_serve = serving.collect();
        let folder = tempfile::tempdir().unwrap();
        let copies = (replicas > 1).then(|| CopyParts {
            replicas,
            held: cards_at(0),
            file: CopyFile::open(folder.path().join("copies")).unwrap(),
            catalog: None,
        });
        let others: Vec<_> = (1..nodes).map(|n| (NodeId(n), vec![CardId(0)])).collect();
        let head = Head::connect(
            &head_mesh,
            &head_mesh.streams("streams").unwrap(),
            HeadParts {
                node: NodeId(0),
                cards: copies.iter().map(|_| card(0, 0)).collect(),
                term: 1,
                copies,
            },
            &others,
            Arc::new(TermInMemory::default()),
            &keys[0],
        )
        .unwrap();
        let head = Arc::new(head);
        let engine = Engine::open(EngineOptions {
            card: head.home(),
            rack: Some(Arc::clone(&head)),
            ..options
        })?;
        Ok(Self {
            engine: Some(engine),
            nodes: nodes_that_serve,
            head,
            _mesh: head_mesh,
            runtime: Some(runtime),
            _folder: folder,
        })
    }

    pub fn session(&self) -> Session {
        self.engine.as_ref().unwrap().session().unwrap()
    }
}

impl Drop for TestRack {
    fn drop(&mut self) {
        // The log is written to the cards of all nodes first.
        self.engine = None;
        self.nodes.clear();
        if let Some(runtime) = self.runtime.take() {
            // It may not be waited for on a thread of another one.
            runtime.shutdown_background();
        }
    }
}

/// An engine on a rack of so many nodes that stays until the process ends.
pub fn engine_that_stays(nodes: u16, options: EngineOptions) -> Arc<Engine> {
    let mut rack = TestRack::new(nodes, options);
    let engine = rack.engine.take().unwrap();
    std::mem::forget(rack);
    engine
}

fn threads(count: usize) -> EngineOptions {
    EngineOptions {
        threads: NonZeroUsize::new(count),
        ..EngineOptions::default()
    }
}

const TABLES: &str = "
    CREATE TABLE t AS SELECT value AS id, value % 97 AS k, CAST(value AS DOUBLE) / 4 AS x,
        CASE WHEN value % 11 = 0 THEN NULL ELSE 'word ' || (value * 7919 % 1009) END AS s
    FROM generate_series(1, 400000) AS g(value);
    CREATE TABLE u (id BIGINT PRIMARY KEY, v BIGINT);
    INSERT INTO u SELECT value * 3, value FROM generate_series(1, 150000) AS g(value);
";

fn statements() -> impl Iterator<Item = &'static str> {
    TABLES
        .split(';')
        .map(str::trim)
        .filter(|sql| !sql.is_empty())
}

/// The figure of a metric that a plan's text has, summed over its scans.
fn metric(plan: &[String], name: &str) -> u64 {
    let text = plan.join(" ");
    let name = format!(" {name}=");
    let found = text.split(&name).skip(1);
    let digits = found.map(|rest| {
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..end].parse::<u64>().unwrap_or(0)
    });
    digits.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_are_left_to_the_nodes_that_have_the_segments() {
    let rack = TestRack::new(3, threads(2));
    let session = rack.session();
    for statement in statements() {
        run(&session, statement).await;
    }
    let full = "SELECT node, live_bytes > 1000000 FROM system.flash ORDER BY node";
    assert_eq!(rows(&session, full).await, ["0 true", "1 true", "2 true"]);
    let query = "SELECT k, count(*), sum(x) FROM t WHERE s LIKE '%ord 5%' GROUP BY k";
    for mode in MODES {
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        let plan = rows(&session, &format!("EXPLAIN ANALYZE {query}")).await;
        let left = metric(&plan, "segments_of_nodes");
        assert_eq!(left > 0, mode != "never", "{mode}: {plan:#?}");
        if left > 0 {
            // What travels is less than what was read for it.
            let (sent, read) = (
                metric(&plan, "bytes_from_nodes"),
                metric(&plan, "bytes_to_nodes"),
            );
            assert!(sent > 0 && read > 0, "{plan:#?}");
        }
    }
}

/// Rows that take more than the pages that they are in stay there; the pages travel, and those that
/// are cached at the head need not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_goes_where_fewer_bytes_travel() {
    for is_cached in [false, true] {
        let rack = TestRack::new(
            3,
            EngineOptions {
                cache_bytes: Some(if is_cached { 256 << 20 } else { 1 << 16 }),
                ..threads(2)
            },
        );
        let session = rack.session();
        for statement in statements() {
            run(&session, statement).await;
        }
        for (query, is_left, is_left_if_cached) in [
            ("SELECT id, k FROM t", false, false),
            ("SELECT id, k FROM t WHERE x >= 0", false, false),
            ("SELECT id, k FROM t WHERE s LIKE '%d 57%'", true, false),
            // Of these little comes back.
            ("SELECT id, k FROM t ORDER BY x LIMIT 5", true, true),
            ("SELECT k, sum(id) FROM t GROUP BY k", true, true),
            // What a join leaves of it is not known before.
            (
                "SELECT u.v, t.k FROM u JOIN t ON t.id = u.id WHERE u.v % 9999 = 7",
                true,
                true,
            ),
        ] {
            for mode in ["never", "auto", "always"] {
                run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
                let plan = rows(&session, &format!("EXPLAIN ANALYZE {query}")).await;
                let is_left = if is_cached {
                    is_left_if_cached
                } else {
                    is_left
                };
                let expected = mode == "always" || (mode == "auto" && is_left);
                let left = metric(&plan, "segments_of_nodes");
                assert_eq!(
                    left > 0,
                    expected,
                    "{mode}: {is_cached}: {query}: {plan:#?}"
                );
            }
        }
    }
}

/// The head knows the zone maps of all segments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_node_is_asked_for_segments_that_zone_maps_rule_out() {
    let rack = TestRack::new(3, threads(2));
    let session = rack.session();
    for statement in statements() {
        run(&session, statement).await;
    }
    for (filter, most) in [("id > 1000000", 0), ("id = 70001", 1), ("k = 97", 0)] {
        let query = format!("SELECT sum(x), count(s) FROM t WHERE {filter}");
        let mut answers = Vec::new();
        for mode in MODES {
            run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
            let plan = rows(&session, &format!("EXPLAIN ANALYZE {query}")).await;
            let left = metric(&plan, "segments_of_nodes");
            assert!(left <= most, "{mode}: {filter}: {plan:#?}");
            let skipped = metric(&plan, "segments_skipped_zone_map");
            assert_eq!(skipped > 0, mode != "never", "{mode}: {filter}: {plan:#?}");
            answers.push(rows(&session, &query).await);
        }
        answers.dedup();
        assert_eq!(answers.len(), 1, "{filter}: {answers:?}");
    }
}

/// Queries of all kinds that are pushed down, and some that are not, against one node, while rows
/// change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_one_node() {
    compare(TestRack::new(4, threads(2)), None).await;
}

/// The same where each card is on two nodes, and a node ends in the middle: nobody is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_one_node_when_a_node_ends_that_is_not_the_only_one() {
    let node = random().random_range(0..3);
    println!("node {} ends", node + 1);
    let rack = TestRack::with_copies(4, 2, threads(2));
    assert!(
        rack.head
            .copies()
            .iter()
            .all(|copy| copy.is_there && !copy.is_behind)
    );
    let rack = compare(rack, Some(node)).await;
    let ended = NodeId(node as u16 + 1);
    let copies = rack.head.copies();
    assert_eq!(copies.len(), 8);
    for copy in copies {
        assert_eq!(
            copy.is_there && !copy.is_behind,
            copy.holder != ended,
            "{copy:?}"
        );
    }
}

/// Compares answers of a rack with those of one node, while rows change; after two rounds a node ends.
async fn compare(mut rack: TestRack, ends: Option<usize>) -> TestRack {
    let mut rng = random();
    let (many, one) = (rack.session(), session_of_threads(2));
    for statement in statements() {
        run(&many, statement).await;
        run(&one, statement).await;
    }
    let mut round = 0;
    while round < 6 {
        round += 1;
        if let Some(node) = ends.filter(|_| round == 3) {
            rack.nodes[node] = None;
        }
        let (a, b) = (rng.random_range(0..400_000), rng.random_range(1..40_000));
        let word = rng.random_range(0..1009);
        let queries = [
            format!(
                "SELECT count(*), sum(id), min(s), max(x) FROM t WHERE id BETWEEN {a} AND {a} + {b}"
            ),
            format!("SELECT k, count(s), avg(x) FROM t WHERE id > {a} GROUP BY k ORDER BY k"),
            format!("SELECT id, s FROM t WHERE s = 'word {word}' ORDER BY id DESC LIMIT 7"),
            format!("SELECT * FROM t WHERE s LIKE '%{word}%' ORDER BY id LIMIT 50"),
            format!("SELECT count(*) FROM (SELECT id FROM t WHERE k = 5 LIMIT {b})"),
            format!(
                "SELECT t.k, count(*) FROM t JOIN u ON t.id = u.id WHERE u.v < {b} GROUP BY t.k ORDER BY 1"
            ),
            format!(
                "SELECT v FROM u WHERE id IN (3, {}, 9, 999999999) ORDER BY v",
                a * 3
            ),
            "SELECT count(*), count(DISTINCT s), count(DISTINCT k) FROM t".to_string(),
            format!("SELECT id FROM t WHERE x < {b} EXCEPT SELECT id FROM u ORDER BY id LIMIT 20"),
            format!(
                "SELECT k, id, row_number() OVER (PARTITION BY k ORDER BY id) AS n FROM t WHERE id < {b} ORDER BY id LIMIT 30"
            ),
        ];
        for mode in MODES {
            let set = format!("SET flashmesh.pushdown = '{mode}'");
            run(&many, &set).await;
            for query in &queries {
                assert_eq!(
                    rows(&many, query).await,
                    rows(&one, query).await,
                    "{mode}: {query}"
                );
            }
        }
        let changes = [
            format!("DELETE FROM t WHERE id BETWEEN {a} AND {a} + {b} AND k < 40"),
            format!(
                "UPDATE t SET x = x + 1, s = 'word {word}' WHERE k = {}",
                a % 97
            ),
            format!(
                "INSERT INTO u SELECT value * 3, {b} FROM generate_series({a}, {a} + {b}) AS g(value) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
            ),
            "CREATE INDEX t_s ON t USING ngram (s)".to_string(),
            "DROP INDEX t_s".to_string(),
            "VACUUM".to_string(),
        ];
        let change = match round {
            1 => changes.choose(&mut rng).unwrap(),
            _ => &changes[round % changes.len()],
        };
        let (on_many, on_one) = (many.sql(change).await, one.sql(change).await);
        match (on_many, on_one) {
            (Ok(_), Ok(_)) | (Err(_), Err(_)) => {}
            (on_many, _) => panic!("{change}: {:?}", on_many.err()),
        }
    }
    rack
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_away_is_named_and_nothing_is_lost() {
    let mut rack = TestRack::new(3, threads(2));
    let session = rack.session();
    for statement in statements() {
        run(&session, statement).await;
    }
    // The mesh of node 2 ends, too.
    rack.nodes[1] = None;
    for mode in MODES {
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        let error = crate::support::error(&session, "SELECT sum(x), max(s) FROM t").await;
        assert!(
            error.contains("node 2") || error.contains("n2"),
            "{mode}: {error}"
        );
    }
    // What is on no other node is answered still, and small changes are taken.
    run(&session, "CREATE TABLE small (a BIGINT PRIMARY KEY)").await;
    run(&session, "INSERT INTO small VALUES (1), (2)").await;
    assert_eq!(rows(&session, "SELECT sum(a) FROM small").await, ["3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_believes_the_key_of_its_rack_alone() {
    let made = std::thread::spawn(|| TestRack::make(2, 1, [KEY, [8; 32]], threads(1)));
    let rack = made.join().unwrap().unwrap();
    let session = rack.session();
    for statement in statements() {
        run(&session, statement).await;
    }
    run(&session, "SET flashmesh.pushdown = 'always'").await;
    let error = crate::support::error(&session, "SELECT sum(x) FROM t").await;
    assert!(error.contains("was not sealed"), "{error}");
}

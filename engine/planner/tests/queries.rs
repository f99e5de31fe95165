//! Queries over flash give what DataFusion gives over the same rows in memory, however much goes
//! into the store.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{dimension, facts, load, memory_session, rng, rows, seed};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use flashmesh_planner::interrupt::StopOnDrop;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What every kind of push-down is in at least once.
const QUERIES: &[&str] = &[
    "select * from t where id = 17",
    "select count(*) from t",
    "select count(*), count(k), count(1) from t where k < 100",
    "select id, s from t where s like '%special%requests%'",
    "select id from t where s like 'slyly%' or s = ''",
    "select id, g from t where g in ('A', 'R') and k between 10 and 20",
    "select id, g from t where g not in ('A', 'R') and not (k > 900 or k is null)",
    "select sum(p * q) from t where d >= date '1992-03-01' and d < date '1992-06-01' and q between 0.05 and 0.07",
    "select g, b, sum(p), sum(p * (1 - q)), sum(p * (1 - q) * (1 + q)), avg(p), avg(q), avg(f), count(*) from t where d <= date '1993-01-01' group by g, b",
    "select g, min(s), max(s), min(d), max(d), min(f), max(f), min(id), max(ts), min(q) from t group by g",
    "select k, count(*), sum(small) from t group by k",
    "select id, sum(p) from t group by id",
    "select sum(case when g = 'A' then p else 0 end), sum(case when s like 'x%' then 1 else 0 end) from t",
    "select count(*) filter (where b), sum(p) filter (where k > 500), avg(f) filter (where g = 'N') from t",
    "select extract(year from d), count(*) from t group by 1",
    "select substring(s, 1, 2), count(*) from t group by 1",
    "select distinct g from t",
    "select count(distinct g), count(distinct k) from t where b",
    "select sum(k), avg(k), sum(small), avg(small), min(small) from t where id < 0",
    "select g, count(*) from t where id < 0 group by g",
    "select id, p from t order by p desc, id limit 10",
    "select id, k from t where b order by k nulls first, id limit 25",
    "select s, id from t order by s desc, id offset 5 limit 7",
    "select id from t order by f + 1, id limit 3",
    "select count(*) from (select id from t limit 100)",
    "select count(*) from (select id from t where k > 10 limit 100)",
    "select count(*) from (select id from t where upper(s) like 'X%' limit 5)",
    "select id + k, p * 2 from t where k = 3",
    "select -id, -f, abs(small) from t where k = 3",
    "select id from t where f > 999 and upper(g) = 'A'",
    "select id from t where (upper(g) = 'A' and k = 3) or (upper(g) = 'R' and k = 5)",
    "select id from t where k is distinct from 3 and id < 100",
    "select id from t where b and not b",
    "select id from t where b is not true and id < 1000",
    "select id from t where cast(small as bigint) = 3 and id < 100",
    "select id from t where small + 0.5 > 4",
    "select id from t where ts between timestamp '2001-09-09T01:46:40' and timestamp '2001-09-09T01:47:00'",
    "select t.id, u.name from t join u on t.k = u.k where u.w < 30",
    "select u.name, sum(t.p) from t join u on t.k = u.k where t.d < date '1992-02-01' group by u.name",
    "select count(*) from t left join u on t.k = u.k where u.name is null",
    "select count(*) from t where k in (select k from u where w > 2000)",
    "select count(*) from t where k not in (select k from u where w > 2000)",
    "select count(*) from t where p > (select avg(p) from t)",
    "select a.g, count(*) from t a join t b on a.id = b.id where b.k = 7 group by a.g",
    "select u.name, x.n from u join (select k, count(*) n from t group by k) x on u.k = x.k where u.w = 33",
    "select u.k, (select sum(p) from t where t.k = u.k) from u where u.w < 60",
    "select * from (select id, k from t order by id limit 50) x where k > 500",
    "select k, id from t where id in (select max(id) from t group by g)",
    "select row_number() over (partition by g order by id) r, id from t where k = 1",
    "select g, count(*) from t group by rollup (g)",
    "select f, count(*) from t group by f having count(*) > 30",
    "select g from t union all select name from u where k < 10",
];

async fn agree(partitions: usize, table_rows: usize, seed: u64, queries: &[String]) {
    let mut rng = rng(seed);
    let tables = [facts(table_rows, &mut rng), dimension(&mut rng)];
    let oracle = memory_session(&tables, partitions);
    let flash = load(&tables);
    let sessions = ["auto", "always", "never"].map(|mode| (mode, flash.session(partitions, mode)));
    for sql in queries {
        let expected = rows(&oracle, sql).await;
        for (mode, session) in &sessions {
            let found = rows(session, sql).await;
            match (&expected, &found) {
                (Ok(expected), Ok(found)) if expected == found => {}
                (Err(_), Err(_)) => {}
                (Ok(expected), Ok(found)) => {
                    let only = |a: &[String], b: &[String]| -> Vec<String> {
                        a.iter()
                            .filter(|r| !b.contains(r))
                            .take(5)
                            .cloned()
                            .collect()
                    };
                    panic!(
                        "pushdown={mode}, {partitions} partitions: {sql}\n{} rows expected, {} found; missing {:?}, too many {:?}\n{}",
                        expected.len(),
                        found.len(),
                        only(expected, found),
                        only(found, expected),
                        common::plan(session, sql).await,
                    );
                }
                _ => panic!("pushdown={mode}: {sql}\nexpected {expected:?}\nfound {found:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fixed_queries_agree_with_memory() {
    let queries: Vec<String> = QUERIES.iter().map(|q| q.to_string()).collect();
    agree(2, 200_000, seed(), &queries).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fixed_queries_agree_in_one_partition() {
    let queries: Vec<String> = QUERIES.iter().map(|q| q.to_string()).collect();
    agree(1, 70_000, seed(), &queries).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fixed_queries_agree_over_empty_tables() {
    let queries: Vec<String> = QUERIES.iter().map(|q| q.to_string()).collect();
    agree(2, 0, seed(), &queries).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_queries_agree_with_memory() {
    let seed = seed();
    let mut generator = Generator(rng(seed ^ 1));
    let queries: Vec<String> = (0..150).map(|_| generator.query()).collect();
    agree(2, 150_000, seed, &queries).await;
}

/// Makes queries over `t` (and `u`) that give the same rows in every engine: no order but with
/// `id` to break ties, no sums of floats that round.
struct Generator(StdRng);

impl Generator {
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.0.random_range(0..of.len())]
    }

    fn literal(&mut self, column: &str) -> String {
        let rng = &mut self.0;
        match column {
            "id" => rng.random_range(0..160_000).to_string(),
            "k" => rng.random_range(-10..1010).to_string(),
            "small" => rng.random_range(-6..6).to_string(),
            "g" => format!("'{}'", ["A", "N", "R", "Z"][rng.random_range(0..4)]),
            "s" => format!(
                "'{}'",
                ["", "slyly", "green tin", "über", "x"][rng.random_range(0..5)]
            ),
            "d" => format!(
                "date '{}-{:02}-{:02}'",
                rng.random_range(1991..1997),
                rng.random_range(1..13),
                rng.random_range(1..29)
            ),
            "p" => format!(
                "{}.{:02}",
                rng.random_range(0..10_000),
                rng.random_range(0..100)
            ),
            "q" => format!("0.{:02}", rng.random_range(0..12)),
            "f" => format!("{}", f64::from(rng.random_range(-4000..4000)) / 4.0),
            "ts" => format!(
                "to_timestamp_micros({})",
                1_000_000_000_000_000i64 + rng.random_range(0..160_000_000_000)
            ),
            _ => "true".into(),
        }
    }

    fn column(&mut self) -> &'static str {
        self.one(&["id", "k", "small", "g", "s", "d", "p", "q", "f", "ts"])
    }

    fn predicate(&mut self, depth: u32) -> String {
        let kind = self.0.random_range(0..if depth > 0 { 14 } else { 10 });
        match kind {
            0..=3 => {
                let column = self.column();
                let op = self.one(&["=", "<>", "<", "<=", ">", ">="]);
                let literal = self.literal(column);
                format!("{column} {op} {literal}")
            }
            4 => {
                let column = self.column();
                let (a, b) = (self.literal(column), self.literal(column));
                let not = self.one(&["", "not "]);
                format!("{column} {not}between {a} and {b}")
            }
            5 => {
                let column = self.column();
                let list: Vec<_> = (0..self.0.random_range(1..6))
                    .map(|_| self.literal(column))
                    .collect();
                let not = self.one(&["", "not "]);
                format!("{column} {not}in ({})", list.join(", "))
            }
            6 => {
                let pattern = self.one(&[
                    "%special%",
                    "green%",
                    "%tin",
                    "_",
                    "%\\_b%",
                    "50\\%%",
                    "%ü%",
                    "",
                    "%green%tin%",
                    "s%y",
                ]);
                let not = self.one(&["", "not "]);
                let like = self.one(&["like", "ilike"]);
                format!("s {not}{like} '{pattern}'")
            }
            7 => {
                let column = self.one(&["k", "g", "d", "q", "f", "b"]);
                let not = self.one(&["", "not "]);
                format!("{column} is {not}null")
            }
            8 => self
                .one(&["b", "not b", "b is true", "b is not false", "b = false"])
                .into(),
            9 => self
                .one(&[
                    "p * q > 100",
                    "id + k > 5000",
                    "k - small < 100",
                    "f * 2 > p",
                    "small * small = 16",
                    "case when k > 500 then small else 0 end > 1",
                    "extract(year from d) = 1992",
                    "extract(month from d) in (1, 2, 12)",
                    "substring(s, 1, 1) = 's'",
                    "starts_with(s, 'green')",
                    "upper(g) = 'A'",
                    "length(s) > 12",
                    "k % 7 = 3",
                    "coalesce(k, 5) = 5",
                    "cast(small as int) = k",
                ])
                .into(),
            10 | 11 => format!(
                "({} and {})",
                self.predicate(depth - 1),
                self.predicate(depth - 1)
            ),
            12 => format!(
                "({} or {})",
                self.predicate(depth - 1),
                self.predicate(depth - 1)
            ),
            _ => format!("not ({})", self.predicate(depth - 1)),
        }
    }

    fn aggregate(&mut self) -> String {
        let filter = if self.0.random_bool(0.15) {
            format!(" filter (where {})", self.predicate(1))
        } else {
            String::new()
        };
        let call = self.one(&[
            "count(*)",
            "count(k)",
            "sum(k)",
            "sum(p)",
            "avg(p)",
            "avg(q)",
            "avg(k)",
            "min(s)",
            "max(s)",
            "min(d)",
            "max(ts)",
            "min(f)",
            "sum(f)",
            "avg(f)",
            "sum(p * (1 - q))",
            "sum(small)",
            "max(q)",
            "sum(case when b then p else 0 end)",
            "min(id + small)",
            "count(distinct g)",
            "sum(id * small)",
            "max(b)",
            "median(k)",
            "sum(-small)",
        ]);
        format!("{call}{filter}")
    }

    fn query(&mut self) -> String {
        let filter = self.predicate(3);
        match self.0.random_range(0..6) {
            0 => {
                let columns: Vec<_> = (0..self.0.random_range(1..5))
                    .map(|_| self.column())
                    .collect();
                let columns: Vec<_> = columns
                    .iter()
                    .enumerate()
                    .map(|(i, c)| format!("{c} as c{i}"))
                    .collect();
                format!("select {} from t where {filter}", columns.join(", "))
            }
            1 | 2 => {
                let aggregates: Vec<_> = (0..self.0.random_range(1..4))
                    .map(|i| format!("{} as a{i}", self.aggregate()))
                    .collect();
                let key = self.one(&[
                    "",
                    "g",
                    "b",
                    "k",
                    "g, b",
                    "extract(year from d)",
                    "substring(s, 1, 1)",
                    "small",
                    "id",
                ]);
                let (select, group) = if key.is_empty() {
                    (String::new(), String::new())
                } else {
                    (format!("{key}, "), format!(" group by {key}"))
                };
                format!(
                    "select {select}{} from t where {filter}{group}",
                    aggregates.join(", ")
                )
            }
            3 => {
                let key = self.column();
                let order = self.one(&[
                    "asc nulls first",
                    "asc nulls last",
                    "desc nulls first",
                    "desc nulls last",
                ]);
                format!(
                    "select id, {key} as x from t where {filter} order by x {order}, id limit {}",
                    self.0.random_range(0..50)
                )
            }
            4 => {
                let join = self.one(&["join", "left join", "right join", "full join"]);
                let weight = self.0.random_range(0..3600);
                format!(
                    "select count(*), sum(t.p), min(u.name) from (select * from t where {filter}) t {join} (select * from u where w < {weight}) u on t.k = u.k"
                )
            }
            _ => {
                let semi = self.one(&["in", "not in"]);
                let weight = self.0.random_range(0..3600);
                format!(
                    "select g, count(*), sum(p) from t where {filter} and k {semi} (select k from u where w > {weight}) group by g"
                )
            }
        }
    }
}

/// An aggregate gives its one batch at the end of the table; whoever shares its thread must not
/// wait for that. The runtime has one thread, so that the order of turns is the same every time.
#[tokio::test]
async fn a_scan_lets_others_have_the_thread_between_segments() {
    const SEGMENTS: usize = 5;
    let mut rng = rng(seed());
    let flash = load(&[facts(SEGMENTS * 65_536, &mut rng)]);
    let session = flash.session(1, "always");
    let turns = Arc::new(AtomicUsize::new(0));
    let others = tokio::spawn({
        let turns = Arc::clone(&turns);
        async move {
            loop {
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        }
    });
    let frame = session.sql("select sum(p), max(s) from t").await.unwrap();
    let plan = frame.create_physical_plan().await.unwrap();
    let before = turns.load(Ordering::Relaxed);
    let batches = datafusion::physical_plan::collect(plan, session.task_ctx())
        .await
        .unwrap();
    let during = turns.load(Ordering::Relaxed) - before;
    assert_eq!(batches.iter().map(|b| b.num_rows()).sum::<usize>(), 1);
    assert!(during >= SEGMENTS, "{during} turns in {SEGMENTS} segments");
    others.abort();
}

/// Joins of 10^13 pairs of rows, which nobody has the time to wait for.
#[test]
fn joins_end_when_nobody_wants_their_rows() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let outcome = runtime.block_on(runtime.spawn(end_joins()));
    // A join that does not end shall fail the test, not keep it.
    runtime.shutdown_background();
    outcome.unwrap();
}

async fn end_joins() {
    const ROWS: usize = 3_000_000;
    let session = load(&[]).session(1, "auto");
    // Without help, a join would not look up before it has seen 10^12 pairs.
    let sql = "set datafusion.execution.batch_size = 1000000";
    session.sql(sql).await.unwrap();
    for (join, condition) in [
        ("NestedLoopJoinExec", "a.v * b.v < 0"),
        ("CrossJoinExec", "true"),
        ("HashJoinExec", "a.v % 2 = b.v % 2 and a.v * b.v < 0"),
        ("HashJoinExec", "a.v % 2 = b.v % 2"),
    ] {
        let sql = format!(
            "select count(*) from generate_series(1, {ROWS}) as a(v) \
             join generate_series(1, {ROWS}) as b(v) on {condition}"
        );
        let frame = session.sql(&sql).await.unwrap();
        let plan = frame.create_physical_plan().await.unwrap();
        let shown = displayable(plan.as_ref()).indent(false).to_string();
        assert!(shown.contains(join), "{condition}: {shown}");
        let stop = StopOnDrop::new(&plan);
        let task = tokio::spawn(collect(Arc::clone(&plan), session.task_ctx()));
        let joined = async {
            while !(metric(&plan, join, "build_input_rows") == ROWS
                && metric(&plan, join, "input_rows") > 0)
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, joined).await.expect("the join begins");
        match condition.contains('<') {
            true => drop(stop),
            false => task.abort(),
        }
        match timeout(PATIENCE, task).await.expect("the join ends") {
            Ok(result) => {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("cancelled"), "{condition}: {error}");
            }
            Err(error) => assert!(error.is_cancelled(), "{condition}: {error}"),
        }
    }
}

/// What an operator of a plan has counted.
fn metric(plan: &Arc<dyn ExecutionPlan>, operator: &str, name: &str) -> usize {
    let metrics = plan.metrics().filter(|_| plan.name() == operator);
    let value = metrics.and_then(|metrics| metrics.sum_by_name(name));
    let below = plan.children().into_iter();
    let below: usize = below.map(|child| metric(child, operator, name)).sum();
    below + value.map_or(0, |value| value.as_usize())
}

//! The group in a time that is simulated: nodes end, come back, lose their disks and are cut off from
//! others, and heads hand over, while heads write, for minutes that take a moment.
//!
//! A seed draws what happens and when. In which order tasks run that are ready at one time, and how
//! long openraft waits for an election, it does not draw: the same seed gives the same faults, and a
//! run that is alike.

use std::sync::atomic::{AtomicUsize, Ordering};

use openraft::Vote;
use rand::seq::IteratorRandom;
use tokio::sync::mpsc;

use super::runtime::Life;
use super::*;
use crate::mesh::tests::cables::Cables;
use crate::mesh::tests::clock::{run, timeout};

const DEADLINE: Duration = Duration::from_secs(1);
/// In which a group whose nodes are all there is whole again.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is looked at what has become of the nodes.
const LOOK: Duration = Duration::from_millis(50);
/// Runs, unless `FLASHMESH_SIMULATIONS` says how many.
const RUNS: usize = 200;
const THREADS: usize = 2;

/// The bytes of the files, in the order of [`Part::ALL`].
type Content = [Vec<u8>; 3];

/// What the catalog has to be.
#[derive(Default)]
struct Expected {
    /// Of the last head that took office.
    term: u64,
    content: Content,
    /// What that head has asked for and was not answered yet.
    asked: Option<Content>,
    /// Heads of before that ended while they asked, and whether the next one has it.
    left: BTreeMap<u64, bool>,
    answers: usize,
    /// No head writes any more.
    is_still: bool,
}

fn content(office: &Office) -> Content {
    Part::ALL.map(|part| super::content(&office.file(part)))
}

impl Expected {
    /// Whether the office is not over yet.
    fn take_office(&mut self, office: &Office) -> Result<bool, String> {
        let term = office.term();
        if term <= self.term {
            // The next one was faster, and this one finds it out.
            let is_over = term < self.term && office.check_current().is_err();
            let why = format!("term {term} comes after {}", self.term);
            return is_over.then_some(false).ok_or(why);
        }
        let found = content(office);
        let asked = self.asked.take();
        let has_asked = asked.as_ref() == Some(&found);
        if !has_asked && found != self.content {
            return Err(format!("the head of term {term} has another catalog"));
        }
        if asked.is_some() {
            self.left.insert(self.term, has_asked);
        }
        (self.content, self.term) = (found, term);
        Ok(true)
    }

    /// What a head that may still read finds is the catalog.
    fn read(&self, office: &Office) -> Result<(), String> {
        let term = office.term();
        match office.check_current() {
            Err(_) => Ok(()),
            Ok(()) if term == self.term && content(office) == self.content => Ok(()),
            Ok(()) => Err(format!("the head of term {term} reads what is old")),
        }
    }

    fn answer(&mut self, term: u64, content: Content) -> Result<(), String> {
        self.answers += 1;
        if term == self.term {
            (self.content, self.asked) = (content, None);
            return Ok(());
        }
        match self.left.remove(&term) {
            Some(true) => Ok(()),
            _ => Err(format!(
                "the head of term {term} was told of a commit that is lost"
            )),
        }
    }
}

struct Node {
    life: Life,
    group: Arc<Group>,
    mesh: Mesh,
}

struct Simulated {
    folder: TempDir,
    cables: Cables,
    nodes: Vec<Option<Node>>,
    expected: Arc<Mutex<Expected>>,
    /// What went wrong.
    wrong: mpsc::UnboundedSender<String>,
    told: mpsc::UnboundedReceiver<String>,
    /// Nodes whose head is none any more; their processes begin anew.
    over: mpsc::UnboundedSender<usize>,
    ended: mpsc::UnboundedReceiver<usize>,
    random: StdRng,
    begun: Instant,
    story: Story,
}

/// What has happened, which is told where a simulation fails.
#[derive(Default)]
struct Story(Mutex<Vec<String>>);

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", std::mem::take(&mut *self.0.lock()).join("\n"));
        }
    }
}

impl Simulated {
    fn new(count: usize, mut random: StdRng) -> Self {
        let folder = memory_folder();
        let rack = Rack::draft(folder.path(), count, Shape::Full, 1, 50051).unwrap();
        let rack = Rack::parse(&rack).unwrap();
        let cables = Cables::new(&rack, StdRng::seed_from_u64(random.random()));
        let (wrong, told) = mpsc::unbounded_channel();
        let (over, ended) = mpsc::unbounded_channel();
        Self {
            folder,
            cables,
            nodes: (0..count).map(|_| None).collect(),
            expected: Arc::default(),
            wrong,
            told,
            over,
            ended,
            random,
            begun: Instant::now(),
            story: Story::default(),
        }
    }

    fn say(&self, what: &str) {
        let time = self.begun.elapsed().as_secs_f64();
        self.story.0.lock().push(format!("{time:8.3} s: {what}"));
    }

    fn folder(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("{node}"))
    }

    async fn start(&mut self, node: usize) {
        let mesh = self.cables.start(node);
        let streams = mesh.streams(STREAMS).unwrap();
        let life = Life::default();
        let begun = Instant::now();
        let group = loop {
            let parts = GroupParts {
                node: NodeId(node as u16),
                group: (0..self.nodes.len()).map(|n| NodeId(n as u16)).collect(),
                is_first: node == 0,
                folder: self.folder(node),
                alone: None,
                deadline: DEADLINE,
            };
            let tasks = Tasks::of(life.clone());
            match life.within(Group::begin(tasks, &streams, parts)).await {
                Ok(group) => break Arc::new(group),
                // The one before has not let go of its files yet.
                Err(_) if begun.elapsed() < PATIENCE => sleep(LOOK).await,
                Err(error) => panic!("node {node} does not start: {error}"),
            }
        };
        let reign = Reign {
            group: Arc::clone(&group),
            expected: Arc::clone(&self.expected),
            random: StdRng::seed_from_u64(self.random.random()),
        };
        let (wrong, over) = (self.wrong.clone(), self.over.clone());
        life.spawn(async move {
            if let Err(what) = reign.last().await {
                let _ = wrong.send(what);
            }
            let _ = over.send(node);
        });
        self.nodes[node] = Some(Node { life, group, mesh });
    }

    fn stop(&mut self, node: usize) {
        if let Some(node) = self.nodes[node].take() {
            node.life.end();
        }
    }

    /// The node that leads, as far as it knows.
    fn leader(&self) -> Option<usize> {
        let mut running = self.running();
        let leads = |node: &Node| matches!(*node.group.role().borrow(), Role::Leads(_));
        running.find_map(|(at, node)| leads(node).then_some(at))
    }

    /// A head is told to end. It may be killed before it has handed over.
    async fn hand_over(&mut self, at: usize) -> Option<NodeId> {
        let node = self.nodes[at].as_ref()?;
        let (group, life) = (Arc::clone(&node.group), node.life.clone());
        let mut handed = life.spawn(async move { group.hand_over().await });
        self.say(&format!("node {at} hands over"));
        let patience = match self.random.random_bool(0.3) {
            true => Duration::from_millis(self.random.random_range(0..200)),
            false => PATIENCE,
        };
        let begun = Instant::now();
        while !handed.is_finished() && begun.elapsed() < patience {
            self.pass(Duration::from_millis(10)).await;
        }
        let given = match handed.is_finished() {
            // It was stopped where nothing came of it.
            true => (&mut handed).await.ok(),
            false => None,
        };
        self.say(&match &given {
            Some(Ok(node)) => format!("to node {}", node.0),
            Some(Err(error)) => format!("to nobody: {error}"),
            None => "and is killed meanwhile".into(),
        });
        if let Some(Ok(_)) = given
            && let Some(node) = &self.nodes[at]
            && self.random.random_bool(0.5)
        {
            let _ = timeout(DEADLINE, node.mesh.end()).await;
        }
        self.stop(at);
        given?.ok()
    }

    fn running(&self) -> impl Iterator<Item = (usize, &Node)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(at, node)| Some((at, node.as_ref()?)))
    }

    /// Whether all nodes run, and any of them may lose what it has.
    fn is_whole(&self) -> bool {
        let groups: Vec<_> = self.running().map(|(_, node)| &*node.group).collect();
        groups.len() == self.nodes.len() && are_whole(&groups)
    }

    /// Lets time pass.
    async fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            sleep(LOOK).await;
            if let Ok(what) = self.told.try_recv() {
                panic!("{what}");
            }
            for (at, node) in self.running() {
                assert!(
                    !node.life.has_panicked(),
                    "a task of node {at} has panicked"
                );
                if let Role::Failed(why) = &*node.group.role().borrow() {
                    panic!("node {at} can't go on: {why}");
                }
            }
            let expected = self.expected.lock().term;
            for (at, node) in self.running() {
                let office = node.group.office.lock().clone();
                if let Some(office) = office
                    && office.term() < expected
                    && office.check_current().is_ok()
                {
                    panic!("node {at} holds the lease of term {}", office.term());
                }
            }
            while let Ok(node) = self.ended.try_recv() {
                if self.nodes[node].is_some() {
                    self.say(&format!("the process of node {node} begins anew"));
                    self.stop(node);
                    self.start(node).await;
                }
            }
        }
    }

    async fn until(&mut self, what: &str, there: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !there(self) {
            assert!(begun.elapsed() < PATIENCE, "{what}");
            self.pass(LOOK).await;
        }
    }

    async fn fault(&mut self) {
        let count = self.nodes.len();
        let node = self.random.random_range(0..count);
        if self.random.random_bool(0.3)
            && let Some(leader) = self.leader()
        {
            self.hand_over(leader).await;
        }
        match self.random.random_range(0..10) {
            0..4 if self.nodes[node].is_some() => {
                let is_lost = self.is_whole() && self.random.random_bool(0.5);
                self.stop(node);
                self.say(&format!("node {node} ends"));
                if is_lost {
                    self.say("and loses its disk");
                    // Its tasks let go of the files.
                    sleep(LOOK).await;
                    std::fs::remove_dir_all(self.folder(node)).unwrap();
                }
            }
            4..6 => {
                self.say(&format!("node {node} is cut off"));
                self.cables.cut(|ends| ends.contains(&node));
            }
            6 => {
                let side: Vec<bool> = (0..count).map(|_| self.random.random()).collect();
                self.say(&format!("sides are cut off: {side:?}"));
                self.cables.cut(|[a, b]| side[a] != side[b]);
            }
            7 => {
                let cut = self.cables.ends().choose(&mut self.random);
                self.say(&format!("a cable is cut: {cut:?}"));
                self.cables.cut(|ends| Some(ends) == cut);
            }
            _ => {
                self.say("cables are whole");
                self.cables.cut(|_| false);
            }
        }
        let down: Vec<_> = (0..count).filter(|at| self.nodes[*at].is_none()).collect();
        for node in down {
            if self.random.random_bool(0.5) {
                self.say(&format!("node {node} starts"));
                self.start(node).await;
            }
        }
    }

    async fn simulate(mut self) {
        for node in 0..self.nodes.len() {
            self.start(node).await;
        }
        // A group that has yet to be made may lose its nodes, too.
        if self.random.random_bool(0.5) {
            self.until("all vote", Self::is_whole).await;
        }
        for _ in 0..self.random.random_range(5..20) {
            let time = match self.random.random_bool(0.5) {
                true => self.random.random_range(0..500),
                false => self.random.random_range(500..8000),
            };
            self.pass(Duration::from_millis(time)).await;
            self.fault().await;
        }
        self.say("no more faults");
        self.cables.cut(|_| false);
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_none() {
                self.start(node).await;
            }
        }
        self.until("all vote again", Self::is_whole).await;
        let before = self.expected.lock().answers;
        let goes_on = |this: &Self| this.expected.lock().answers > before + 5;
        self.until("a head writes again", goes_on).await;
        self.expected.lock().is_still = true;
        let agree = |this: &Self| have_same_files(this.running().map(|(_, node)| &*node.group));
        self.until("all have the same files", agree).await;
        self.pass(LOOK).await;
    }
}

/// What a node does that becomes the head.
struct Reign {
    group: Arc<Group>,
    expected: Arc<Mutex<Expected>>,
    random: StdRng,
}

impl Reign {
    /// Returns when it was the head and is not any more.
    async fn last(mut self) -> Result<(), String> {
        let mut role = self.group.role();
        let (leads, office) = loop {
            let leads = |role: &Role| matches!(role, Role::Leads(_));
            let Ok(now) = role.wait_for(leads).await.map(|role| role.clone()) else {
                return Ok(());
            };
            match self.group.take_office(0).await {
                Ok(office) => break (now, office),
                Err(_) => sleep(LOOK).await,
            }
        };
        if !self.expected.lock().take_office(&office)? {
            return Ok(());
        }
        loop {
            let time = self.random.random_range(1..300);
            sleep(Duration::from_millis(time)).await;
            self.expected.lock().read(&office)?;
            if self.expected.lock().is_still {
                continue;
            }
            let mut after = content(&office);
            let mut write = || {
                // Of two files it is less than a batch: all of it is there, or nothing.
                for part in Part::ALL.into_iter().sample(&mut self.random, 2) {
                    let file = office.file(part);
                    write_some(&mut self.random, &file, &mut after[part as usize])?;
                }
                std::io::Result::Ok(())
            };
            if write().is_err() {
                break;
            }
            let asks = |expected: &mut Expected| {
                if expected.term == office.term() {
                    expected.asked = Some(after.clone());
                }
            };
            asks(&mut self.expected.lock());
            match office.synced().await {
                Ok(()) => self.expected.lock().answer(office.term(), after)?,
                Err(_) => break,
            }
        }
        // Whoever looks at the role later sees it, too.
        sleep(2 * DEADLINE).await;
        match *self.group.role().borrow() == leads {
            true => Err("a head that is over is told that it leads as before".into()),
            false => Ok(()),
        }
    }
}

/// Where all nodes are there, the one that is asked to lead next does, in the very next term: nobody waits
/// for a lease to be over.
#[test]
fn a_head_that_ends_hands_over() {
    let seed = std::env::var("FLASHMESH_TEST_SEED");
    let seed = seed.map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    let mut random = StdRng::seed_from_u64(seed);
    let count = if random.random_bool(0.5) { 3 } else { 5 };
    run(async move {
        let mut simulated = Simulated::new(count, random);
        simulated.say(&format!("FLASHMESH_TEST_SEED={seed}, {count} nodes"));
        for node in 0..count {
            simulated.start(node).await;
        }
        for _ in 0..5 {
            simulated.until("all vote", Simulated::is_whole).await;
            let leader = simulated.leader().unwrap();
            let group = Arc::clone(&simulated.nodes[leader].as_ref().unwrap().group);
            let before = group.raft.metrics().borrow().vote;
            let life = simulated.nodes[leader].as_ref().unwrap().life.clone();
            let (begun, told) = (Instant::now(), Arc::clone(&group));
            let mut handed = life.spawn(async move { told.hand_over().await });
            while !handed.is_finished() {
                simulated.pass(Duration::from_millis(1)).await;
            }
            let next = (&mut handed).await.unwrap().unwrap();
            let time = begun.elapsed().as_millis();
            simulated.say(&format!("node {leader} to {} in {time} ms", next.0));
            let next = simulated.nodes[usize::from(next.0)].as_ref().unwrap();
            let now = next.group.raft.metrics().borrow().vote;
            assert_eq!(
                now,
                Vote::new_committed(before.leader_id.term + 1, next.group.parts.own)
            );
            assert!(!group.parts.lease.holds());
            // It holds the files.
            drop(group);
            simulated.stop(leader);
            simulated.start(leader).await;
        }
    });
}

fn simulation(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let count = if random.random_bool(0.7) { 3 } else { 5 };
    run(async move {
        let simulated = Simulated::new(count, random);
        simulated.say(&format!("FLASHMESH_TEST_SEED={seed}, {count} nodes"));
        simulated.simulate().await;
    });
}

/// What a head was told is committed is there whichever nodes go away, none reads what is old, and
/// the group is whole again when its nodes are.
#[test]
fn heads_come_and_go_in_simulated_time() {
    if let Ok(seed) = std::env::var("FLASHMESH_TEST_SEED") {
        return simulation(seed.parse().expect("FLASHMESH_TEST_SEED is a number"));
    }
    let runs = std::env::var("FLASHMESH_SIMULATIONS");
    let runs = runs.map_or(RUNS, |runs| runs.parse().expect("a number of runs"));
    let next = AtomicUsize::new(0);
    let one_after_another = || {
        while next.fetch_add(1, Ordering::Relaxed) < runs {
            let done = std::panic::catch_unwind(|| simulation(rand::random()));
            if let Err(failure) = done {
                // No more of them.
                next.store(runs, Ordering::Relaxed);
                std::panic::resume_unwind(failure);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(one_after_another);
        }
    });
}

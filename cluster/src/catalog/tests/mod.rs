//! Groups whose members end, come back, and lose what they had.

pub(super) mod runtime;
mod simulation;

use std::collections::BTreeMap;
use std::{fs, io};

use flashmesh_storage::table::CatalogStore;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use tempfile::TempDir;

use super::*;
use crate::mesh::Mesh;
use crate::sealed::Body;
use crate::{Rack, STREAMS, Shape};

const DEADLINE: Duration = Duration::from_millis(2000);
const PATIENCE: Duration = Duration::from_secs(60);

/// Nodes that keep a catalog in folders of their own.
struct Nodes {
    folder: TempDir,
    runtime: tokio::runtime::Runtime,
    meshes: Vec<Mesh>,
    groups: Vec<Option<Group>>,
}

fn eventually<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(there) = there() {
            return there;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// On a disk of memory where there is one: a busy machine's own takes longer than a lease at times.
fn memory_folder() -> TempDir {
    let memory_disk = Path::new("/dev/shm");
    let folder = match memory_disk.is_dir() {
        true => tempfile::tempdir_in(memory_disk),
        false => tempfile::tempdir(),
    };
    folder.unwrap()
}

impl Nodes {
    fn new(count: usize) -> Self {
        let folder = memory_folder();
        let rack = Rack::draft(folder.path(), count, Shape::Full, 1, 50051).unwrap();
        let rack = Rack::parse(&rack).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        let meshes = runtime.block_on(async { Mesh::in_process(&rack) }).unwrap();
        Self {
            folder,
            runtime,
            groups: meshes.iter().map(|_| None).collect(),
            meshes,
        }
    }

    fn folder(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("{node}"))
    }

    fn start(&mut self, node: usize) {
        let numbers: Vec<_> = (0..self.meshes.len()).map(|n| NodeId(n as u16)).collect();
        let alone = self.folder.path().join("alone");
        let parts = GroupParts {
            node: NodeId(node as u16),
            group: numbers,
            is_first: node == 0,
            folder: self.folder(node),
            alone: (node == 0).then(|| (alone.clone(), alone.join("copies-behind"))),
            deadline: DEADLINE,
        };
        let streams = self.meshes[node].streams(STREAMS).unwrap();
        let streams = self.runtime.block_on(async { streams });
        // The service of the one before may not be given up yet.
        let start = || Group::start(&streams, parts_of(&parts)).ok();
        self.groups[node] = Some(eventually("the group starts", start));
    }

    fn stop(&mut self, node: usize) {
        self.groups[node] = None;
    }

    fn group(&self, node: usize) -> &Group {
        self.groups[node].as_ref().unwrap()
    }

    fn running(&self) -> Vec<usize> {
        let running = self.groups.iter().enumerate();
        running
            .filter(|(_, one)| one.is_some())
            .map(|(at, _)| at)
            .collect()
    }

    /// Who leads, as a whole: it has taken office.
    fn office(&self) -> (usize, Arc<Office>) {
        eventually("one is elected and takes office", || {
            let running = self.running().into_iter();
            let mut leading =
                running.filter(|at| matches!(*self.group(*at).role().borrow(), Role::Leads(_)));
            let leader = leading.next()?;
            let office = self
                .runtime
                .block_on(self.group(leader).take_office(0))
                .ok()?;
            Some((leader, office))
        })
    }

    /// Waits until all that run vote, and have what the leader has: one of them may end then.
    fn until_whole(&self) {
        let running = self.running();
        let groups: Vec<_> = running.iter().map(|at| self.group(*at)).collect();
        eventually("all vote", || are_whole(&groups).then_some(()));
    }

    /// Waits until all that run have the same files.
    fn all_agree(&self) {
        let running = self.running();
        eventually("all have the same files", || {
            have_same_files(running.iter().map(|at| self.group(*at))).then_some(())
        });
    }
}

fn have_same_files<'a>(groups: impl Iterator<Item = &'a Group>) -> bool {
    let image = |group: &Group| {
        let mut image = Vec::new();
        group.held.dump(&mut image).unwrap();
        image
    };
    let mut images = groups.map(image);
    let first = images.next();
    images.all(|image| Some(image) == first)
}

/// Whether all of these vote, know it of each other, and have what their leader has.
fn are_whole(groups: &[&Group]) -> bool {
    let votes_of_all = |group: &&Group| {
        let metrics = group.raft.metrics().borrow().clone();
        let mut members = groups.iter().map(|group| group.parts.own);
        members.all(|member| voters::votes(member, &metrics))
    };
    let leads = |group: &Group| matches!(*group.role().borrow(), Role::Leads(_));
    // Those that do not run are behind.
    let lacks = |group: &Group| {
        let behind = group.behind().into_iter();
        let running: Vec<_> = groups.iter().map(|of| node_of(of.parts.own)).collect();
        { behind }.any(|node| running.contains(&node))
    };
    groups.iter().all(votes_of_all) && groups.iter().any(|group| leads(group) && !lacks(group))
}

fn parts_of(parts: &GroupParts) -> GroupParts {
    GroupParts {
        group: parts.group.clone(),
        folder: parts.folder.clone(),
        alone: parts.alone.clone(),
        ..*parts
    }
}

fn content(file: &dyn redb::StorageBackend) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read(0, &mut bytes).unwrap();
    bytes
}

/// Writes at random places and cuts, to the file and to what is expected of it.
fn write_some(
    random: &mut StdRng,
    file: &dyn redb::StorageBackend,
    model: &mut Vec<u8>,
) -> io::Result<()> {
    for _ in 0..random.random_range(1..6) {
        if random.random_bool(0.1) {
            let bytes = random.random_range(0..=model.len());
            file.set_len(bytes as u64)?;
            model.truncate(bytes);
            continue;
        }
        let at = random.random_range(0..40_000);
        let mut bytes = vec![0; random.random_range(1..20_000)];
        random.fill_bytes(&mut bytes);
        file.write(at as u64, &bytes)?;
        model.resize(model.len().max(at + bytes.len()), 0);
        model[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(())
}

/// Whatever node ends, with or without its disk: the next head has all that was synced, and nothing
/// that was not.
#[test]
fn the_catalog_outlives_its_heads() {
    let seed = rand::rng().next_u64();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut nodes = Nodes::new(3);
    (0..3).for_each(|node| nodes.start(node));
    let mut synced: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    let mut term = 0;
    for round in 0..8 {
        let (leader, office) = nodes.office();
        assert!(office.term() > term, "terms grow");
        term = office.term();
        let files = [("catalog", office.catalog()), ("log", office.log())];
        for (name, file) in &files {
            let expected = synced.entry(name).or_default();
            assert!(
                content(&**file) == *expected,
                "round {round}: another {name}"
            );
        }
        let behind = Arc::clone(&office).load().unwrap();
        assert_eq!(behind, synced.get("behind").cloned());
        let body = vec![round as u8; random.random_range(0..100)];
        Arc::clone(&office).store(&body).unwrap();
        synced.insert("behind", body);
        for _ in 0..random.random_range(1..10) {
            for (name, file) in &files {
                write_some(&mut random, &**file, synced.get_mut(name).unwrap()).unwrap();
            }
            files.choose(&mut random).unwrap().1.sync_data().unwrap();
            for (name, file) in &files {
                assert!(content(&**file) == synced[name]);
            }
        }
        // One that is not synced is with nobody.
        files[1].1.write(0, b"not synced").unwrap();
        nodes.until_whole();
        let victim = match random.random_bool(0.6) {
            true => leader,
            false => random.random_range(0..3),
        };
        if victim == leader && random.random_bool(0.5) {
            let handed = nodes.runtime.block_on(nodes.group(leader).hand_over());
            println!("round {round}: node {leader} hands over: {handed:?}");
            assert!(office.check_current().is_err());
        }
        nodes.stop(victim);
        if victim == leader {
            let error = files[0]
                .1
                .write(0, b"of nobody")
                .and_then(|()| files[0].1.sync_data());
            assert!(error.is_err());
        } else {
            // The two others go on.
            write_some(
                &mut random,
                &*files[0].1,
                synced.get_mut("catalog").unwrap(),
            )
            .unwrap();
            let log = synced.get_mut("log").unwrap();
            log.splice(..10.min(log.len()), *b"not synced");
            files[0].1.sync_data().unwrap();
            // Its process ends, as another one is to lead.
            nodes.stop(leader);
            nodes.start(leader);
        }
        if random.random_bool(0.4) {
            println!("round {round}: node {victim} loses its disk");
            fs::remove_dir_all(nodes.folder(victim)).unwrap();
        }
        nodes.start(victim);
        nodes.until_whole();
    }
    nodes.all_agree();
}

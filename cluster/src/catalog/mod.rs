//! The catalog on several nodes: a group of three or five agrees on every write to it, by Raft
//! (Ongaro and Ousterhout, USENIX ATC 2014; `openraft`).
//!
//! What the group agrees on are the writes between two syncs of the catalog's files: `redb`'s file, the
//! log of commits, whose records are the edits of tables, and which copies of cards lack something.
//! Its leader is the rack's head. It reads these files as the group has them, with its own writes over
//! that ([`Office`]); a sync returns when more than half of the group has what was written before. So
//! a commit that was told as done is there whichever of them goes away.
//!
//! A node that is elected takes office by an entry with a term of its own, which cards hold writers to
//! ([`crate::cards`]); whoever was head before finds that it is not, and starts anew as a process.
//! A head that is told to end has another one elected before ([`Group::hand_over`]).

mod election;
mod entry;
mod files;
mod handover;
mod network;
mod office;
mod raft_log;
mod role;
mod state;
mod tasks;
mod voters;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use flashmesh_pages::flash::make_folder;
use flashmesh_pages::store::NodeId;
use flashmesh_pages::{Result, StorageError};
use openraft::{Config, Raft, ServerState, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::watch;

#[cfg(test)]
mod tests;

use self::election::{Looking, elect};
use self::entry::{Change, FileWrite, Part, Types};
use self::files::Files;
use self::handover::hand_over;
use self::network::{GivenUp, Introduction, Member, Peers, draw_member, hello, node_of};
use self::raft_log::RaftLog;
use self::role::Lease;
use self::state::Held;
use self::tasks::{Tasks, block_in_place};
use self::voters::Voters;
use crate::copies::behind_in_file;
use crate::mesh::Streams;
use crate::mesh::clock::{Instant, sleep};

pub use network::watch_head;
pub use office::Office;
pub use role::Role;

/// How long a node waits for the log of one that is ending: on a busy machine a process has its files for a while after
/// others see that it has ended.
const ENDING_TIME: Duration = Duration::from_secs(5);

/// How often the group is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// When a node that was not reached is tried again, at the latest.
const MOST_PAUSE: Duration = Duration::from_millis(500);
/// How often it is said what is waited for.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Entries that are kept when the log is cut, for nodes that were away shortly.
const KEPT_ENTRIES: u64 = 256;
/// Bytes of a file of a head alone that are an entry, when a group takes it over.
const COPY_BYTES: usize = 1 << 20;
/// What is added to the names of files that a group has taken over.
const TAKEN_OVER: &str = "before-the-group";

/// What a node of the group is made from.
#[derive(Debug)]
pub struct GroupParts {
    /// Its number.
    pub node: NodeId,
    /// All nodes that keep the catalog.
    pub group: Vec<NodeId>,
    /// Whether it makes the catalog where there is none.
    pub is_first: bool,
    /// Where it keeps what it has of it.
    pub folder: PathBuf,
    /// The folder of the database of a head that kept the catalog alone, and its file of copies that
    /// lack something: taken over when the group begins.
    pub alone: Option<(PathBuf, PathBuf)>,
    /// When a node counts as away.
    pub deadline: Duration,
}

/// A node of the group that keeps the catalog. Dropping it ends that.
pub struct Group {
    parts: Arc<Parts>,
    member: Arc<Member>,
    streams: Streams,
    raft: Raft<Types>,
    held: Held,
    role: watch::Receiver<Role>,
    office: Mutex<Option<Arc<Office>>>,
    tasks: Tasks,
}

struct Parts {
    group: Vec<NodeId>,
    alone: Option<(PathBuf, PathBuf)>,
    own: u64,
    lease: Arc<Lease>,
}

fn of_raft(error: impl std::fmt::Display) -> StorageError {
    StorageError::io(
        "the group that keeps the catalog",
        std::io::Error::other(error.to_string()),
    )
}

/// When leaders are missed. One that has not heard more than half of the group for the shorter time of
/// an election gives up; the others elect nobody before the longer one is over.
fn config(deadline: Duration) -> Config {
    let deadline = (deadline.as_millis() as u64).max(100);
    Config {
        cluster_name: "catalog".into(),
        // By [`elect`], where more than half of the group hears no leader.
        enable_elect: false,
        heartbeat_interval: deadline / 4,
        election_timeout_min: deadline * 3 / 4,
        election_timeout_max: deadline,
        install_snapshot_timeout: 600_000,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: KEPT_ENTRIES,
        ..Config::default()
    }
}

impl Group {
    /// Begins. What it needs of others it waits for in the background.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `Invalid` where the mesh has such a group already.
    pub fn start(streams: &Streams, parts: GroupParts) -> Result<Self> {
        let tasks = Tasks::of_their_own()?;
        let handle = tasks.handle().clone();
        handle.block_on(Self::begin(tasks, streams, parts))
    }

    async fn begin(tasks: Tasks, streams: &Streams, parts: GroupParts) -> Result<Self> {
        let folder = &parts.folder;
        let opening = |error| StorageError::of_path("opening", folder, error);
        make_folder(folder).map_err(opening)?;
        let log = opened_log(&folder.join("group.redb")).await?;
        let member = log.fact::<u64>("member").map_err(of_raft)?;
        let files = Files::open(folder, member.is_none()).map_err(|error| match error.kind() {
            ErrorKind::NotFound => StorageError::corrupt(format!(
                "{error}; remove the folder {}, and the node gets the catalog from the others",
                folder.display()
            )),
            _ => opening(error),
        })?;
        let own = match member {
            Some(own) => own,
            None => {
                let own = draw_member(parts.node, random());
                log.set_fact("member", &own).map_err(of_raft)?;
                own
            }
        };
        if node_of(own) != parts.node {
            return Err(StorageError::Invalid(format!(
                "{} is what node {} has of the catalog, not node {}",
                folder.display(),
                node_of(own).0,
                parts.node.0
            )));
        }
        let held = Held::open(log.clone(), files)?;
        let config = config(parts.deadline).validate();
        let config = Arc::new(config.map_err(of_raft)?);
        let listener = network::listen(streams);
        let listener = listener.map_err(|error| StorageError::Invalid(error.to_string()))?;
        let lease = Duration::from_millis(config.election_timeout_min);
        let heartbeats = Duration::from_millis(config.election_timeout_max / 8);
        let deadline = Duration::from_millis(config.election_timeout_max);
        let network = Peers {
            streams: streams.clone(),
            held: held.clone(),
            pause: heartbeats.min(MOST_PAUSE),
            given_up: GivenUp::default(),
        };
        let given_up = Arc::clone(&network.given_up);
        let raft = Raft::new(own, config, network, log, held.clone());
        let raft = raft.await.map_err(of_raft)?;
        let (sender, role) = watch::channel(Role::Follows(None));
        let until = Arc::new(Lease::new());
        let member = Arc::new(Member {
            number: own,
            raft: raft.clone(),
            held: held.clone(),
            role: role.clone(),
            lease: Arc::clone(&until),
            deadline,
            heard: Mutex::default(),
            given_up,
            retired: AtomicBool::new(false),
        });
        tasks.spawn(network::answer(listener, Arc::clone(&member)));
        tasks.spawn(elect(Arc::clone(&member), streams.clone()));
        let looking = Looking {
            raft: raft.clone(),
            held: held.clone(),
            lasts: lease,
            heartbeats,
            lease: Arc::clone(&until),
            role: sender,
        };
        tasks.spawn(looking.look());
        let voters = Voters {
            own,
            wanted: parts.group.clone(),
            streams: streams.clone(),
            raft: raft.clone(),
            held: held.clone(),
            lease: Arc::clone(&until),
        };
        tasks.spawn(voters.tend());
        if parts.is_first {
            let others: Vec<_> = {
                let others = parts.group.iter().copied();
                others.filter(|node| *node != parts.node).collect()
            };
            tasks.spawn(begin(raft.clone(), own, streams.clone(), others));
        }
        Ok(Self {
            parts: Arc::new(Parts {
                group: parts.group,
                alone: parts.alone,
                own,
                lease: until,
            }),
            member,
            streams: streams.clone(),
            raft,
            held,
            role,
            office: Mutex::default(),
            tasks,
        })
    }

    /// What the node is, as it changes.
    pub fn role(&self) -> watch::Receiver<Role> {
        self.role.clone()
    }

    /// The head, as far as it is known here.
    pub fn head(&self) -> watch::Receiver<Option<NodeId>> {
        let mut role = self.role();
        let own = node_of(self.parts.own);
        let head = move |role: &Role| role.head(own);
        let (sender, receiver) = watch::channel(head(&role.borrow_and_update()));
        self.tasks.spawn(async move {
            while role.changed().await.is_ok() && !sender.is_closed() {
                let _ = sender.send(head(&role.borrow_and_update()));
            }
        });
        receiver
    }

    /// The nodes that are to keep the catalog and lack what the leader, this one, has: they have no vote,
    /// or are away for longer.
    pub fn behind(&self) -> Vec<NodeId> {
        let metrics = self.raft.metrics().borrow().clone();
        if metrics.state != ServerState::Leader {
            return Vec::new();
        }
        let has_all = |node: &NodeId| voters::has_all(self.parts.own, *node, &metrics);
        let group = self.parts.group.iter().copied();
        group.filter(|node| !has_all(node)).collect()
    }

    /// Whether this node has a vote, as far as it knows: one that lost what it had gets the catalog
    /// before it has.
    pub fn votes(&self) -> bool {
        voters::votes(self.parts.own, &self.raft.metrics().borrow())
    }

    /// Takes office, with a term greater than `term` and those of all heads before. Returns when more
    /// than half of the nodes that are to keep the catalog do.
    ///
    /// # Errors
    /// `Io` where another is elected meanwhile.
    pub async fn take_office(&self, term: u64) -> Result<Arc<Office>> {
        let (raft, held) = (self.raft.clone(), self.held.clone());
        let (parts, role) = (Arc::clone(&self.parts), self.role());
        let leads = role.borrow().clone();
        if !matches!(leads, Role::Leads(_)) {
            return Err(of_raft("another node was elected"));
        }
        let now = leads.clone();
        let taken = async move { take_office(&raft, &held, &parts, term, (&now, &role)).await };
        let office = Arc::new(self.tasks.spawn(taken).await.map_err(of_raft)??);
        self.tasks.spawn(office.ask_group(self.raft.clone()));
        self.tasks
            .spawn(close_with(Arc::clone(&office), leads, self.role()));
        *self.office.lock() = Some(Arc::clone(&office));
        Ok(office)
    }

    /// From now on this node is not to become the head: it ends.
    pub fn retire(&self) {
        self.member.retire();
    }

    /// Gives up the lead for good, as the process ends, and has a node elected that lacks nothing; gives
    /// that one. What the office is asked for fails from then on. It waits
    /// a deadline for such a node, and one for each that it asks and that is not elected.
    ///
    /// # Errors
    /// `Io` where no other node took it, and why: they elect one as if this one had gone away.
    pub async fn hand_over(&self) -> Result<NodeId> {
        if let Some(office) = &*self.office.lock() {
            office.close("the node ends");
        }
        let (member, streams) = (Arc::clone(&self.member), self.streams.clone());
        let given = async move { hand_over(&member, &streams, member.deadline).await };
        let given = self.tasks.spawn(given).await.map_err(of_raft)?;
        given.map_err(of_raft)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(office) = self.office.lock().take() {
            office.close("the node ends");
        }
    }
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) & ((1 << 48) - 1)
}

/// Whoever waits for the group fails when another one leads it.
async fn close_with(office: Arc<Office>, leads: Role, mut role: watch::Receiver<Role>) {
    let is_over = role.wait_for(|role| *role != leads).await;
    let why = match is_over.as_deref() {
        Ok(Role::Failed(why)) => why.clone(),
        _ => "this node is not the head any more, and the next one knows whether this was committed: ask it".into(),
    };
    office.close(&why);
}

/// Begins the group where there is none: with this node alone, which takes up the others as soon as
/// it has made the catalog. All of them must say that they have nothing, as this one could have lost
/// what it had.
async fn begin(raft: Raft<Types>, own: u64, streams: Streams, others: Vec<NodeId>) {
    let mut said = Instant::now();
    while let Ok(false) = raft.is_initialized().await {
        let mut silent = Vec::new();
        for node in &others {
            match hello(&streams, *node).await {
                Ok(Introduction { is_blank: true, .. }) => {}
                Ok(_) => {
                    log::info!("node {} has a catalog: it comes from there", node.0);
                    return;
                }
                Err(_) => silent.push(node.0),
            }
        }
        if silent.is_empty() {
            if let Err(error) = raft
                .initialize(std::collections::BTreeSet::from([own]))
                .await
            {
                log::warn!("beginning the catalog: {error}");
            }
        } else if said.elapsed() > SAY_EVERY {
            said = Instant::now();
            log::info!("before a catalog is made, nodes {silent:?} must say that they have none");
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn take_office(
    raft: &Raft<Types>,
    held: &Held,
    parts: &Parts,
    term: u64,
    (leads, role): (&Role, &watch::Receiver<Role>),
) -> Result<Office> {
    while let Err(error) = raft.ensure_linearizable().await {
        if *role.borrow() != *leads {
            return Err(of_raft(error));
        }
        sleep(LOOK_EVERY).await;
    }
    let is_new = held.term() == 0;
    if let (true, Some((database, behind))) = (is_new, &parts.alone) {
        for (part, path) in of_head_alone(database, behind) {
            take_over(raft, part, &path).await?;
        }
    }
    // A leader that was one before it was started may not have applied all: then the term is not taken.
    let term = loop {
        let term = held.term().max(term) + 1;
        let answer = raft.client_write(Change::of_term(term)).await;
        if answer.map_err(of_raft)?.data {
            break term;
        }
    };
    if let Some((database, behind)) = &parts.alone {
        for (_, path) in of_head_alone(database, behind) {
            let mut name = path.clone().into_os_string();
            name.push(format!(".{TAKEN_OVER}"));
            std::fs::rename(&path, &name)
                .map_err(|error| StorageError::of_path("renaming", &path, error))?;
        }
    }
    let mut said = Instant::now();
    loop {
        if *role.borrow() != *leads {
            return Err(of_raft("another node was elected"));
        }
        if voters::count(&raft.metrics().borrow()) > parts.group.len() / 2 {
            return Ok(Office::new(term, held.files(), Arc::clone(&parts.lease)));
        }
        if said.elapsed() > SAY_EVERY {
            said = Instant::now();
            log::info!("waits for other nodes that are to keep the catalog");
        }
        sleep(LOOK_EVERY).await;
    }
}

/// What a head that kept the catalog alone has of it.
fn of_head_alone(database: &Path, behind: &Path) -> Vec<(Part, PathBuf)> {
    let in_folder = |part: Part| (part, database.join(part.file_name()));
    let all = [
        in_folder(Part::Catalog),
        in_folder(Part::Log),
        (Part::Behind, behind.to_path_buf()),
    ];
    all.into_iter().filter(|(_, path)| path.exists()).collect()
}

/// Has the group take over a file. It begins anew where it did not come to its end.
async fn take_over(raft: &Raft<Types>, part: Part, path: &Path) -> Result<()> {
    let bytes = match part {
        Part::Behind => office::framed(&behind_in_file(path)?),
        _ => block_in_place(|| std::fs::read(path))
            .await
            .map_err(|error| StorageError::of_path("reading", path, error))?,
    };
    let write = |at, bytes| FileWrite { part, at, bytes };
    let first = vec![write(0, None)];
    let chunks = bytes.chunks(COPY_BYTES).enumerate();
    let chunks = chunks.map(|(at, bytes)| {
        let at = (at * COPY_BYTES) as u64;
        vec![write(at, Some(bytes.to_vec()))]
    });
    for writes in std::iter::once(first).chain(chunks) {
        let written = raft.client_write(Change::of_writes(0, &writes)).await;
        written.map_err(of_raft)?;
    }
    Ok(())
}

/// The log at `path`, when nobody has it any more.
async fn opened_log(path: &Path) -> Result<RaftLog> {
    let until = Instant::now() + ENDING_TIME;
    loop {
        match RaftLog::open(path) {
            Err(StorageError::InUse { .. }) if Instant::now() < until => {
                sleep(ENDING_TIME / 100).await;
            }
            opened => return opened,
        }
    }
}

//! The storage node: takes commands, gives streams of batches (Minerva section III: a command
//! to a storage processor is queued, its status carries state, results and counters).
//!
//! A scan is one command for each of its streams and one stream of batches for each command.
//! Upstream travel only credits (the pull itself), runtime filters and cancel (dropping the
//! stream); the counters of [`ScanMetrics`] are the status.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use flashmesh_pushdown::{KernelId, Program, RuntimeFilter, VerifiedProgram};
use parking_lot::RwLock;

use crate::accelerator::cpu::{ChunkZones, CpuAccelerator};
use crate::accelerator::offload::Fallback;
use crate::accelerator::sandbox::SandboxOptions;
use crate::accelerator::{Accelerator, MAX_AHEAD, ScanMetrics, Task, TaskRun, Work};
use crate::access::{AccessPath, RowsBySegment, SharedAccess};
use crate::capability::{Capability, CapabilityKey, KernelRights, Right, Rights};
use crate::flash::PAGE_SIZE_BYTES;
use crate::functions::{self, Kernels};
use crate::kernel::{Kernel, KernelSet, QueryCalls, has_kernels};
use crate::lookup::KeyLookup;
use crate::memory::MemoryBudget;
use crate::page::RowValues;
use crate::peer::{CommandKernels, KernelsOfCommand, PeerCommand, PeerStream, Peers};
use crate::segment::{self, CarriedRun, Segment};
use crate::shipped::{OfCommand, Sent, ShippedKernels, ToShip};
use crate::store::{NodeId, PageReader, PageRun, PageStore};
use crate::table::TableSnapshot;
use crate::{Result, StorageError};

/// How long a capability holds: longer than a query waits and runs, short enough that one which
/// got out is soon worth nothing.
pub const CAPABILITY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Answers of nodes that are expected to be shorter are always asked for.
const ANSWER_MIN_BYTES: f64 = 16384.0;
/// Segments of a node whose pages are looked for in the cache.
const SAMPLED_SEGMENTS: usize = 64;

/// One machine's flash with the accelerators beside it.
#[derive(Debug)]
pub struct StorageNode {
    store: Arc<PageStore>,
    accelerators: Vec<Arc<dyn Accelerator>>,
    key: CapabilityKey,
    kernels: Option<Arc<Kernels>>,
    /// Those that commands bring, where they may.
    shipped: OnceLock<ShippedKernels>,
    /// Which of its own a head has sent to whom.
    sent: Arc<Sent>,
    peers: Option<Arc<dyn Peers>>,
}

/// What a node has of its rack.
#[derive(Debug, Clone)]
pub struct RackSide {
    /// Seals what may be done; all nodes of the rack know it.
    pub key: CapabilityKey,
    /// The others.
    pub peers: Arc<dyn Peers>,
}

/// A request to run a Program over segments.
#[derive(Debug, Clone)]
pub struct Command {
    /// What to run.
    pub program: Arc<VerifiedProgram>,
    /// The version of the table that it runs over.
    pub table: Arc<TableSnapshot>,
    /// The segments to do; the commands of one scan share it.
    pub work: Arc<SegmentQueue>,
    /// Where further filters appear.
    pub runtime_filters: Arc<RuntimeFilters>,
    /// Rows that a batch should have at most.
    pub batch_rows: usize,
    /// Where the counters go.
    pub metrics: Arc<ScanMetrics>,
    /// For whom it is made, and that they may read the table.
    pub capability: Arc<Capability>,
}

impl StorageNode {
    /// A node over `store` with the `cpu` accelerator, and a capability key that is drawn now.
    pub fn new(store: Arc<PageStore>) -> Arc<Self> {
        Self::with_accelerators(store, vec![Arc::new(CpuAccelerator::new())])
    }

    /// A node with these accelerators, the preferred one first.
    pub fn with_accelerators(
        store: Arc<PageStore>,
        accelerators: Vec<Arc<dyn Accelerator>>,
    ) -> Arc<Self> {
        Self::with_parts(store, accelerators, None, None)
    }

    /// [`StorageNode::with_accelerators`], with kernels that users added, and as the head of a rack, if
    /// it is one.
    pub fn with_parts(
        store: Arc<PageStore>,
        accelerators: Vec<Arc<dyn Accelerator>>,
        kernels: Option<Arc<Kernels>>,
        rack: Option<RackSide>,
    ) -> Arc<Self> {
        let (key, peers) = match rack {
            Some(RackSide { key, peers }) => (key, Some(peers)),
            None => (CapabilityKey::random(), None),
        };
        Arc::new(Self {
            store,
            accelerators,
            key,
            kernels,
            shipped: OnceLock::new(),
            sent: Arc::default(),
            peers,
        })
    }

    /// A node of a rack that runs the commands of others over what lies on its own cards, with the
    /// `cpu` accelerator. `key` is the rack's.
    pub fn serving(store: Arc<PageStore>, key: CapabilityKey) -> Arc<Self> {
        Arc::new(Self {
            store,
            accelerators: vec![Arc::new(CpuAccelerator::new())],
            key,
            kernels: None,
            shipped: OnceLock::new(),
            sent: Arc::default(),
            peers: None,
        })
    }

    /// From now on, commands may bring kernels, which run within `options`; what they take is charged to
    /// `memory`.
    pub fn run_shipped_kernels(&self, options: SandboxOptions, memory: Arc<dyn MemoryBudget>) {
        let kernels = ShippedKernels::new(options, memory);
        self.shipped.get_or_init(|| kernels);
    }

    pub(crate) fn shipped_kernels(&self) -> Option<&ShippedKernels> {
        self.shipped.get()
    }

    /// The kernels that users added, if the node runs any.
    pub fn kernels(&self) -> Option<&Arc<Kernels>> {
        self.kernels.as_ref()
    }

    /// The key with which the node's front end seals what its users may do.
    pub fn capability_key(&self) -> &CapabilityKey {
        &self.key
    }

    /// A capability for whoever holds the node itself: everything may be done with `table`.
    pub fn owner_capability(&self, table: &TableSnapshot) -> Arc<Capability> {
        let all = self.key.seal(
            "owner".into(),
            table.id,
            Rights::all(),
            KernelRights::All,
            CAPABILITY_LIFETIME,
        );
        Arc::new(all)
    }

    /// Verifies that a request may read a table: what [`StorageNode::submit`] does with a command,
    /// for what the store runs as a whole.
    ///
    /// # Errors
    /// `Denied` with what does not hold.
    pub fn authorize(&self, capability: &Capability, table: &TableSnapshot) -> Result<()> {
        self.key.verify(capability, &table.id.into(), Right::Read)
    }

    /// Rows by their keys, few enough that a device would be asked for less than the asking costs.
    ///
    /// # Errors
    /// `Denied` when the capability does not hold; those of a [`KeyLookup`].
    pub fn look_up(
        &self,
        lookup: &KeyLookup<'_>,
        capability: &Capability,
    ) -> Result<Vec<RecordBatch>> {
        self.authorize(capability, lookup.table)?;
        lookup.run(&mut self.store.reader()?)
    }

    /// The same from cached pages; `None` where one would have to come from flash.
    ///
    /// # Errors
    /// Those of [`Self::look_up`].
    pub fn look_up_cached(
        &self,
        lookup: &KeyLookup<'_>,
        capability: &Capability,
    ) -> Result<Option<Vec<RecordBatch>>> {
        self.run_cached(lookup, capability, KeyLookup::run)
    }

    /// A row with one of the keys, if there is one, likewise. The index is of one column, which is among
    /// those that are wanted.
    ///
    /// # Errors
    /// Those of [`Self::look_up`]; `Invalid` for an index of several columns, or of one that is not
    /// wanted.
    pub fn look_up_one_cached(
        &self,
        lookup: &KeyLookup<'_>,
        capability: &Capability,
    ) -> Result<Option<Option<RowValues>>> {
        self.run_cached(lookup, capability, KeyLookup::run_for_one)
    }

    /// What `run` finds without flash; `None` where it would have had to wait for that.
    fn run_cached<'a, T>(
        &self,
        lookup: &KeyLookup<'a>,
        capability: &Capability,
        run: impl FnOnce(&KeyLookup<'a>, &mut PageReader) -> Result<T>,
    ) -> Result<Option<T>> {
        self.authorize(capability, lookup.table)?;
        let mut reader = self.store.reader()?;
        reader.bypass_flash();
        match run(lookup, &mut reader) {
            Err(_) if reader.has_missed() => Ok(None),
            found => found.map(Some),
        }
    }

    /// The accelerator of that name, if the node has it.
    pub fn accelerator(&self, name: &str) -> Option<&Arc<dyn Accelerator>> {
        self.accelerators.iter().find(|a| a.name() == name)
    }

    /// The accelerator of a name that somebody asks for; the error names those that there are.
    pub fn accelerator_asked_for(
        &self,
        name: &str,
    ) -> std::result::Result<&Arc<dyn Accelerator>, String> {
        self.accelerator(name).ok_or_else(|| {
            let names: Vec<_> = self.accelerators.iter().map(|a| a.name()).collect();
            format!(
                "there is no accelerator '{name}' here, but {}; a device comes with --xclbin FILE",
                names.join(", ")
            )
        })
    }

    /// Whether some accelerator (that of the name `asked_for`, if one is asked for) runs `program`;
    /// the error says what they lack.
    pub fn supports(
        &self,
        program: &Program,
        asked_for: Option<&str>,
    ) -> std::result::Result<(), String> {
        self.choose(program, asked_for).map(|_| ())
    }

    fn choose(
        &self,
        program: &Program,
        asked_for: Option<&str>,
    ) -> std::result::Result<&Arc<dyn Accelerator>, String> {
        if let Some(name) = asked_for {
            let accelerator = self.accelerator_asked_for(name)?;
            let supported = accelerator.supports(program);
            return supported
                .map(|()| accelerator)
                .map_err(|why| format!("{name}: {why}"));
        }
        let mut lacks = Vec::new();
        for accelerator in &self.accelerators {
            match accelerator.supports(program) {
                Ok(()) => return Ok(accelerator),
                Err(why) => lacks.push(format!("{}: {why}", accelerator.name())),
            }
        }
        Err(lacks.join("; "))
    }

    /// Verifies that a request may run a kernel over a table, and gives the kernel for its query.
    ///
    /// # Errors
    /// `Denied` with what does not hold, or when the principal may not run it; `NotFound` when it is
    /// gone, `Invalid` when another took its place.
    pub fn authorize_kernel(
        &self,
        capability: &Capability,
        table: &TableSnapshot,
        id: &KernelId,
        calls: &Arc<QueryCalls>,
    ) -> Result<Arc<Kernel>> {
        self.authorize(capability, table)?;
        match &self.kernels {
            Some(kernels) => functions::kernel_for(kernels.as_ref(), id, capability, calls),
            None => Err(StorageError::Invalid("this node runs no kernels".into())),
        }
    }

    fn bind_kernels(
        &self,
        program: &Program,
        capability: &Capability,
        accelerator: &Arc<dyn Accelerator>,
        work: &SegmentQueue,
    ) -> Result<KernelSet> {
        if !has_kernels(program) {
            return Ok(KernelSet::default());
        }
        let device = accelerator.as_ref();
        if let (Some(brought), Some(calls)) = (work.brought.get(), work.calls.get()) {
            return functions::bind(brought, program, capability, device, calls);
        }
        let Some(kernels) = &self.kernels else {
            return Err(StorageError::Invalid(
                "this node runs no kernels; keep the function above the scan".into(),
            ));
        };
        let calls = work.calls.get_or_init(|| kernels.calls());
        functions::bind(kernels.as_ref(), program, capability, device, calls)
    }

    /// Takes a command. Its work is done on the thread that pulls the stream.
    ///
    /// # Errors
    /// `Denied` when the command's capability does not hold; `Invalid` when no accelerator runs
    /// the Program; the device's errors.
    pub fn submit(&self, command: Command) -> Result<ResultStream> {
        self.authorize(&command.capability, &command.table)?;
        let accelerator = self
            .choose(&command.program, command.work.asked_for())
            .map_err(StorageError::Invalid)?;
        let table = &command.table;
        let filters = command.runtime_filters.current();
        let access = command
            .work
            .access
            .settle(|| AccessPath::choose_runtime(&filters, &command.program, table));
        let program = match access {
            Some(path) => path.residual(&command.program, table)?,
            None => Arc::clone(&command.program),
        };
        let (peers, again) = self.ask_peers(&command, &program, &filters, access.is_some());
        let run = accelerator.open(Task {
            kernels: self.bind_kernels(
                &program,
                &command.capability,
                accelerator,
                &command.work,
            )?,
            program,
            table: Arc::clone(&command.table),
            batch_rows: command.batch_rows,
            plain_text: command.work.plain_text.load(Ordering::Relaxed),
            metrics: Arc::clone(&command.metrics),
            fallback: command.work.fallback(),
        })?;
        command.work.streams.fetch_add(1, Ordering::Relaxed);
        Ok(ResultStream {
            run,
            peers,
            again,
            table: Arc::clone(&command.table),
            reader: self.store.reader()?,
            work: command.work,
            runtime_filters: command.runtime_filters,
            metrics: command.metrics,
            ahead: VecDeque::new(),
            rows: None,
            state: State::BetweenSegments,
        })
    }
}

impl StorageNode {
    /// Whether segments may lie on other nodes, which work on them.
    pub fn has_peers(&self) -> bool {
        self.peers.is_some()
    }

    /// Whether another node can be asked for what lies on it.
    pub fn works(&self, node: NodeId) -> bool {
        let peers = self.peers.as_ref();
        peers.is_some_and(|peers| peers.holder(node) == Some(node))
    }

    /// The pages of segments that are in memory here, for [`StorageNode::put_down`] on another node.
    ///
    /// # Errors
    /// `Corrupt`, naming the run, for one that is not there.
    pub fn carried(&self, segments: &[Arc<Segment>]) -> Result<Vec<CarriedRun>> {
        segment::carried(&self.store, segments)
    }

    /// Segments with pages in memory that came with them: in that of this node for as long as they are held.
    ///
    /// # Errors
    /// `Corrupt` where pages are missing, or others than theirs.
    pub fn put_down(
        &self,
        segments: &[Arc<Segment>],
        carried: Vec<CarriedRun>,
    ) -> Result<Vec<Arc<Segment>>> {
        segment::put_down(&self.store, segments, carried)
    }

    /// The node that works on a segment now: the one that has it, or a copy of it. `None` for this
    /// one.
    pub fn holder(&self, segment: &Segment) -> Option<NodeId> {
        let peers = self.peers.as_ref()?;
        segment.node().and_then(|node| peers.holder(node))
    }

    /// Whether the nodes of the rack can read the pages of each other.
    pub fn nodes_read_each_other(&self) -> bool {
        self.peers
            .as_ref()
            .is_some_and(|peers| peers.read_each_other())
    }

    /// Leaves segments to the nodes on whose cards they are, or copies of them, by the first stream of
    /// a scan. What an index names are few rows of many segments: their pages are read from here.
    ///
    /// Also gives the segments of nodes that can't be asked.
    fn ask_peers(
        &self,
        command: &Command,
        program: &Arc<VerifiedProgram>,
        filters: &Arc<[RuntimeFilter]>,
        has_access_path: bool,
    ) -> (VecDeque<PeerStream>, VecDeque<Arc<Segment>>) {
        let work = &command.work;
        let asked_for = work.asked_for();
        let is_first = self.peers.is_some() && work.segments.get().is_none();
        let kernels = self.kernels.as_ref();
        let to_ship = kernels.filter(|_| is_first && has_kernels(program));
        let to_ship = to_ship.and_then(|kernels| {
            let to_ship = ToShip::of(program, kernels, &command.capability)?;
            Some((kernels, to_ship))
        });
        let may_leave = |_: &&Arc<dyn Peers>| {
            !has_access_path
                && !work.keeps_here.load(Ordering::Relaxed)
                && (to_ship.is_some() || !has_kernels(program))
                && asked_for.is_none_or(|name| name == CpuAccelerator::NAME)
        };
        let Some(peers) = self.peers.as_ref().filter(may_leave) else {
            work.segments.get_or_init(|| work.all.clone());
            return Default::default();
        };
        let mut left: BTreeMap<NodeId, Vec<Arc<Segment>>> = BTreeMap::new();
        let mut zones = ChunkZones::new(program, filters);
        work.segments.get_or_init(|| {
            let mut here = Vec::new();
            for segment in &work.all {
                match self.holder(segment) {
                    // What is known here leaves nothing of it: nobody has to be asked.
                    Some(_) if zones.rule_out(segment, &command.metrics) => {}
                    Some(node) => left.entry(node).or_default().push(Arc::clone(segment)),
                    None => here.push(Arc::clone(segment)),
                }
            }
            // Pages travel where they are less than what would come back.
            let looked_at = here.len() + left.values().map(Vec::len).sum::<usize>();
            let expected = work.expected_bytes.load(Ordering::Relaxed) as f64;
            left.retain(|_, segments| {
                let answer = expected * segments.len() as f64 / looked_at as f64;
                let is_left =
                    answer < ANSWER_MIN_BYTES || answer <= self.bytes_to_fetch(program, segments);
                if !is_left {
                    here.append(segments);
                }
                is_left
            });
            here
        });
        let (mut streams, mut again) = (VecDeque::new(), VecDeque::new());
        if left.is_empty() {
            return (streams, again);
        }
        for (node, segments) in left {
            let kernels = match &to_ship {
                Some((kernels, to_ship)) => to_ship.records(node, &self.sent, kernels),
                None => Ok(CommandKernels::default()),
            };
            let Ok(kernels) = kernels else {
                // Whoever binds them here says what is wrong.
                again.extend(segments);
                continue;
            };
            let to_send = PeerCommand {
                program: Arc::clone(program),
                table: Arc::clone(&command.table),
                runtime_filters: zones.narrowed(&segments),
                batch_rows: command.batch_rows,
                plain_text: work.plain_text.load(Ordering::Relaxed),
                forbids_fallback: work.forbids_fallback.load(Ordering::Relaxed),
                accelerator: asked_for.map(Into::into),
                capability: Arc::clone(&command.capability),
                kernels,
            };
            let kernels = to_ship.as_ref().map(|(_, to_ship)| KernelsOfCommand {
                digests: to_ship.digests(),
                sent: Arc::clone(&self.sent),
            });
            let (peers, metrics) = (peers.as_ref(), &command.metrics);
            match PeerStream::start(peers, node, &to_send, &segments, metrics, kernels) {
                Ok(stream) => streams.push_back(stream),
                Err(error) => {
                    log::warn!("{error}; its part of a scan is done here");
                    again.extend(segments);
                }
            }
        }
        (streams, again)
    }
}

impl StorageNode {
    /// Bytes of the pages that a Program may read of these segments and that are not in memory; of many
    /// segments an even sample is looked at.
    pub fn bytes_to_fetch(&self, program: &Program, segments: &[Arc<Segment>]) -> f64 {
        bytes_of_pages(program, segments, |run| self.store.pages_on_flash(run))
    }
}

/// Bytes of all pages that a Program may read of these segments; of many segments an even sample is looked
/// at.
pub fn bytes_to_read(program: &Program, segments: &[Arc<Segment>]) -> f64 {
    bytes_of_pages(program, segments, |run| run.count)
}

fn bytes_of_pages(
    program: &Program,
    segments: &[Arc<Segment>],
    pages_of: impl Fn(&PageRun) -> u32,
) -> f64 {
    let step = segments.len().div_ceil(SAMPLED_SEGMENTS).max(1);
    let (mut sampled, mut pages) = (0, 0);
    for segment in segments.iter().step_by(step) {
        let columns = program.columns.iter();
        let chunks = columns.filter_map(|c| segment.chunks.get(c.ordinal as usize));
        let runs = chunks.map(|chunk| match &chunk.run.part {
            Some(part) => part.run.as_ref(),
            None => &chunk.run,
        });
        // Columns may share their pages.
        let runs: BTreeMap<_, _> = runs.map(|run| (run.first, run)).collect();
        pages += runs.values().map(|run| pages_of(run)).sum::<u32>();
        sampled += 1;
    }
    let share = segments.len() as f64 / f64::from(sampled.max(1));
    f64::from(pages) * share * PAGE_SIZE_BYTES as f64
}

/// The segments of a scan that no stream has taken up yet.
#[derive(Debug)]
pub struct SegmentQueue {
    all: Vec<Arc<Segment>>,
    /// Those of them that are not left to other nodes, from the first stream on.
    segments: OnceLock<Vec<Arc<Segment>>>,
    keeps_here: AtomicBool,
    expected_bytes: AtomicU64,
    next: AtomicUsize,
    streams: AtomicUsize,
    access: SharedAccess,
    accelerator: OnceLock<Arc<str>>,
    forbids_fallback: AtomicBool,
    plain_text: AtomicBool,
    calls: OnceLock<Arc<QueryCalls>>,
    /// The kernels that came with the command of another node.
    brought: OnceLock<OfCommand>,
}

impl SegmentQueue {
    /// A queue of `segments`, taken from the front.
    pub fn new(segments: Vec<Arc<Segment>>) -> Arc<Self> {
        Self::with_access(segments, None)
    }

    /// A queue of which only the rows that `access` names are looked at; `None`: all. An index
    /// must be one of the version of the table that the segments are of, chosen for the Program of the scan.
    pub fn with_access(segments: Vec<Arc<Segment>>, access: Option<Arc<AccessPath>>) -> Arc<Self> {
        Arc::new(Self {
            all: segments,
            segments: OnceLock::new(),
            keeps_here: AtomicBool::new(false),
            expected_bytes: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            access: SharedAccess::new(access),
            accelerator: OnceLock::new(),
            forbids_fallback: AtomicBool::new(false),
            plain_text: AtomicBool::new(false),
            calls: OnceLock::new(),
            brought: OnceLock::new(),
        })
    }

    /// Leaves no segment to the node that has it; before its streams are submitted.
    pub fn keep_here(&self) {
        self.keeps_here.store(true, Ordering::Relaxed);
    }

    /// Says how much is expected to come of all segments together: those of nodes that have less of it
    /// in pages, beside what is cached here, are not left to them. Before its streams are submitted.
    pub fn expect_bytes(&self, bytes: u64) {
        self.expected_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Makes it an error of the scan if a device fails at what was given to it; before its streams
    /// are submitted.
    pub fn forbid_fallback(&self) {
        self.forbids_fallback.store(true, Ordering::Relaxed);
    }

    /// Has a scan of rows in no order give text as [plain](crate::page::plain) arrays; before its
    /// streams are submitted.
    pub fn ask_for_plain_text(&self) {
        self.plain_text.store(true, Ordering::Relaxed);
    }

    /// Asks for the accelerator of that name; before its streams are submitted. The first that was
    /// asked for stays.
    pub fn ask_for(&self, accelerator: Arc<str>) {
        self.accelerator.get_or_init(|| accelerator);
    }

    /// Has the scan's kernels be among `calls`, those of its query; before its streams are
    /// submitted. Without this, the scan is a query of its own, which ends with its streams.
    pub fn run_kernels_of(&self, calls: Arc<QueryCalls>) {
        self.calls.get_or_init(|| calls);
    }

    /// Has the scan call kernels that came with it; before its streams are submitted.
    pub(crate) fn bring(&self, kernels: OfCommand) {
        self.brought.get_or_init(|| kernels);
    }

    fn asked_for(&self) -> Option<&str> {
        self.accelerator.get().map(AsRef::as_ref)
    }

    fn fallback(&self) -> Fallback {
        match self.forbids_fallback.load(Ordering::Relaxed) {
            true => Fallback::Error,
            false => Fallback::Allow,
        }
    }

    /// The next segment, and the one whose page indexes are to be read meanwhile: so far ahead that
    /// they are there when some stream takes it.
    fn take(&self) -> Option<(Arc<Segment>, Option<&Arc<Segment>>)> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let segments = self.segments.get()?;
        let segment = segments.get(index).cloned()?;
        let distance = 2 * self.streams.load(Ordering::Relaxed);
        Some((segment, segments.get(index + distance)))
    }

    /// A segment to read ahead for. Near the end a stream takes none, as another stream may be
    /// free to start on it at once.
    fn take_ahead(&self) -> Option<(Arc<Segment>, Option<&Arc<Segment>>)> {
        let segments = self.segments.get().map_or(0, Vec::len);
        let left = segments.saturating_sub(self.next.load(Ordering::Relaxed));
        if left < 2 * self.streams.load(Ordering::Relaxed) {
            None
        } else {
            self.take()
        }
    }
}

/// The runtime filters of a scan; its streams look here before each segment.
#[derive(Debug, Default)]
pub struct RuntimeFilters {
    current: RwLock<Arc<[RuntimeFilter]>>,
}

impl RuntimeFilters {
    /// Replaces the filters. A later set must not let pass what an earlier one removed.
    pub fn publish(&self, filters: Vec<RuntimeFilter>) {
        *self.current.write() = filters.into();
    }

    fn current(&self) -> Arc<[RuntimeFilter]> {
        Arc::clone(&self.current.read())
    }
}

/// The answer to a [`Command`]: batches in the Program's output schema.
///
/// Pulling computes on the caller's thread while the pages of the next segment are read.
/// Dropping the stream cancels it. After an error it is at its end.
///
/// As an iterator it works until it has a batch, which may take all of a table; who shares the
/// thread with others pulls by [`ResultStream::step`], or by [`ResultStream::poll_step`] where
/// other nodes are not to be waited for.
pub struct ResultStream {
    run: Box<dyn TaskRun>,
    /// What other nodes do of the scan.
    peers: VecDeque<PeerStream>,
    /// What they could not do, of which nothing has come: done here, with pages from whoever has them.
    again: VecDeque<Arc<Segment>>,
    table: Arc<TableSnapshot>,
    reader: PageReader,
    work: Arc<SegmentQueue>,
    runtime_filters: Arc<RuntimeFilters>,
    metrics: Arc<ScanMetrics>,
    /// The next segments; their first pages are being read.
    ahead: VecDeque<Work>,
    /// The rows to look at, once an index was asked; the outer `None`: not yet.
    rows: Option<Option<Arc<RowsBySegment>>>,
    state: State,
}

/// What a [`ResultStream`] has after a bounded amount of work.
#[derive(Debug)]
pub enum Step {
    /// A batch.
    Batch(RecordBatch),
    /// It is done with a segment and has no batch yet: call again.
    SegmentDone,
    /// Only other nodes still work; the waker is woken when one of them has something.
    Waiting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    BetweenSegments,
    InSegment,
    /// No segment is left here.
    OfPeers,
    Finishing,
    Ended,
}

impl ResultStream {
    /// The next segment that has rows to look at, to work on or to read ahead for.
    fn take(&mut self, is_ahead: bool) -> Result<Option<Work>> {
        if self.rows.is_none() {
            self.rows = Some(self.work.access.rows(
                &self.table,
                &mut self.reader,
                &self.metrics,
            )?);
        }
        if let Some(segment) = self.again.pop_front() {
            let rows = segment.live(None);
            return Ok(Some(Work { segment, rows }));
        }
        loop {
            let segment = match is_ahead {
                true => self.work.take_ahead(),
                false => self.work.take(),
            };
            let Some((segment, later)) = segment else {
                return Ok(None);
            };
            let Some(Some(by_segment)) = &self.rows else {
                if let Some(later) = later {
                    later.prefetch_page_indexes(&mut self.reader)?;
                }
                let rows = segment.live(None);
                return Ok(Some(Work { segment, rows }));
            };
            if let Some(named) = by_segment.get(&segment.id) {
                let rows = segment.live(Some(named));
                return Ok(Some(Work { segment, rows }));
            }
            self.metrics
                .segments_skipped_index
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A batch of another node, if one has come.
    fn ask_around(&mut self, waker: &Waker) -> Result<Option<RecordBatch>> {
        for _ in 0..self.peers.len() {
            let Some(mut peer) = self.peers.pop_front() else {
                break;
            };
            match peer.poll(waker) {
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Ok(batch)) => {
                    self.peers.push_back(peer);
                    return Ok(batch);
                }
                Poll::Ready(Err(error)) => {
                    let undone = peer.left_undone(&error);
                    if undone.is_empty() {
                        return Err(error);
                    }
                    log::warn!("{error}; the part of node {} is done here", peer.node().0);
                    self.again.extend(undone);
                }
                Poll::Pending => self.peers.push_back(peer),
            }
        }
        Ok(None)
    }

    fn advance(&mut self, waker: &Waker) -> Result<Option<Step>> {
        loop {
            match self.state {
                State::BetweenSegments => {
                    if let Some(batch) = self.ask_around(waker)? {
                        return Ok(Some(Step::Batch(batch)));
                    }
                    let ahead = self.ahead.pop_front();
                    let was_ahead = ahead.is_some();
                    let next = match ahead {
                        _ if self.run.is_satisfied() => None,
                        None => self.take(false)?,
                        ahead => ahead,
                    };
                    let Some(work) = next else {
                        self.state = State::OfPeers;
                        continue;
                    };
                    let filters = self.runtime_filters.current();
                    if !was_ahead {
                        self.run.prefetch(&work, &filters, &mut self.reader)?;
                    }
                    // The next segment's reads go out before this one is computed (double
                    // buffering), so that the device never waits for the processor; those of
                    // more where one has too few pages to keep the device busy.
                    while self.ahead.is_empty()
                        || (self.ahead.len() < MAX_AHEAD && self.reader.wants_more())
                    {
                        let Some(work) = self.take(true)? else {
                            break;
                        };
                        self.run.prefetch(&work, &filters, &mut self.reader)?;
                        self.ahead.push_back(work);
                    }
                    self.run.start_segment(work, &filters, &mut self.reader)?;
                    self.state = State::InSegment;
                }
                State::InSegment => match self.run.next(&mut self.reader)? {
                    Some(batch) => return Ok(Some(Step::Batch(batch))),
                    None => {
                        self.state = State::BetweenSegments;
                        return Ok(Some(Step::SegmentDone));
                    }
                },
                State::OfPeers => {
                    if self.run.is_satisfied() {
                        self.peers.clear();
                        self.again.clear();
                    }
                    if let Some(batch) = self.ask_around(waker)? {
                        return Ok(Some(Step::Batch(batch)));
                    }
                    self.state = match self.again.is_empty() {
                        false => State::BetweenSegments,
                        true if !self.peers.is_empty() => return Ok(Some(Step::Waiting)),
                        true => State::Finishing,
                    };
                }
                State::Finishing => match self.run.finish()? {
                    Some(batch) => return Ok(Some(Step::Batch(batch))),
                    None => self.state = State::Ended,
                },
                State::Ended => return Ok(None),
            }
        }
    }
}

impl ResultStream {
    /// Works until there is a batch or a segment is done, and waits for other nodes where nothing
    /// else is to be done; `None` at the end.
    ///
    /// # Errors
    /// The device's errors, `Corrupt` for what it holds, and what the Program may fail with.
    pub fn step(&mut self) -> Option<Result<Step>> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match self.poll_step(&waker)? {
                Ok(Step::Waiting) => thread::park(),
                step => return Some(step),
            }
        }
    }

    /// [`Self::step`], but says so in place of waiting for other nodes.
    ///
    /// # Errors
    /// Those of [`Self::step`].
    pub fn poll_step(&mut self, waker: &Waker) -> Option<Result<Step>> {
        let start = Instant::now();
        let step = self.advance(waker).transpose();
        let metrics = &self.metrics;
        metrics.add_reads(self.reader.take_counters());
        metrics
            .device_time_ns
            .fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        match &step {
            Some(Ok(Step::Batch(batch))) => {
                metrics
                    .rows_out
                    .fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
                metrics
                    .bytes_to_host
                    .fetch_add(data_bytes(batch), Ordering::Relaxed);
            }
            Some(Err(_)) => self.state = State::Ended,
            Some(Ok(Step::SegmentDone | Step::Waiting)) | None => {}
        }
        step
    }

    /// Bytes of memory that its results so far take up: groups, or the first rows in an order.
    pub fn memory_bytes(&self) -> usize {
        self.run.memory_bytes()
    }

    /// Gives up what it can of that memory, as batches or by leaving out what no longer matters.
    ///
    /// # Errors
    /// None that a sound Program meets.
    pub fn shed(&mut self) -> Result<()> {
        self.run.shed()?;
        if matches!(self.state, State::BetweenSegments) {
            self.state = State::InSegment;
        }
        Ok(())
    }
}

impl Iterator for ResultStream {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.step()? {
                Ok(Step::Batch(batch)) => return Some(Ok(batch)),
                Ok(Step::SegmentDone | Step::Waiting) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Wakes a thread that waits for another node.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl std::fmt::Debug for ResultStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResultStream")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// Bytes of a batch's values: what a link to the host would carry. Buffers that are larger than
/// their slice, or that several columns share, count by what is used of them.
pub fn data_bytes(batch: &RecordBatch) -> u64 {
    let columns = batch.columns().iter();
    columns.map(|column| array_bytes(column.as_ref())).sum()
}

/// Bytes of an array's values: see [`data_bytes`].
pub fn array_bytes(array: &dyn Array) -> u64 {
    // A view stands in 16 bytes, and holds texts of up to 12 bytes itself.
    let views = |texts: usize| {
        16 * array.len() + texts + array.nulls().map_or(0, |_| array.len().div_ceil(8))
    };
    let bytes = match array.data_type() {
        DataType::Utf8View => views(array.as_string_view().total_buffer_bytes_used()),
        DataType::BinaryView => views(array.as_binary_view().total_buffer_bytes_used()),
        _ => array
            .to_data()
            .get_slice_memory_size()
            .unwrap_or_else(|_| array.get_array_memory_size()),
    };
    bytes as u64
}

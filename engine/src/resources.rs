//! What the queries of a process share, memory, spill files and threads, and how joins are tuned to it.

use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::config::{ConfigOptions, FormatOptions};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, MemoryPool, TrackConsumersPool};
use datafusion::prelude::SessionConfig;
use flashmesh_planner::{FlashmeshOptions, MOMENT, MOMENT_OF_ZONE};
use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::memory::MergedMemory;
use crate::names::{CATALOG, DEFAULT_SCHEMA};
use crate::threads::cores;

/// Share of the memory limit that the smaller input of a hash join may be estimated at: its table takes
/// more than its rows, and a plan may have several.
const HASH_JOIN_SHARE: usize = 3;
/// A hash join builds one table, on one thread, up to these rows times threads; above, both sides
/// are partitioned first, which copies every row but builds on all threads.
const COLLECTED_ROWS_THREADS: usize = 8 << 20;
/// The least of that, as in DataFusion.
const MIN_COLLECTED_ROWS: usize = 128 << 10;
/// The same limit in bytes, for each row: wide rows are not collected as gladly.
const COLLECTED_ROW_BYTES: usize = 32;

/// Integer keys that span so few values make an array, whatever the number of rows: 32 MiB at
/// most. An array is probed several times as fast as a hash table, and tells the scan of the other
/// side exactly which keys can match.
const ARRAY_KEYS: usize = 8 << 20;
/// Nor may such an array take a greater part of the memory limit than this.
const ARRAY_MEMORY_SHARE: usize = 64;
/// Keys of a wider span do if their rows are at least this share of it: 200 bytes a row at most.
const ARRAY_KEY_DENSITY: f64 = 0.02;

/// Rows of a hash table up to which the scan of the other side gets its keys as a list: the only
/// form in which the store can use keys of several columns, or of text.
const LISTED_KEYS: usize = 2048;
/// What those may take. Short keys may be slices of long buffers, which count as a whole.
const LISTED_KEYS_BYTES: usize = 16 << 20;

/// Threads of a query: one a core, unless it is said.
pub(crate) fn threads(wanted: Option<NonZeroUsize>) -> usize {
    wanted.map_or_else(cores, NonZeroUsize::get)
}

/// Where queries spill, and how much at once.
pub(crate) fn spill_files(folder: &Path, limit_bytes: Option<u64>) -> DiskManagerBuilder {
    let files =
        DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![folder.into()]));
    match limit_bytes {
        Some(bytes) => files.with_max_temp_directory_size(bytes),
        None => files,
    }
}

/// What queries may hold at once.
pub(crate) fn memory_limit(wanted: Option<u64>) -> usize {
    let limit = wanted.unwrap_or(memory_bytes() / 4 * 3);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The memory that queries share.
pub(crate) fn memory_pool(limit: usize) -> Arc<dyn MemoryPool> {
    Arc::new(TrackConsumersPool::new(
        MergedMemory::new(FairSpillPool::new(limit)),
        NonZeroUsize::new(3).expect("3 is not 0"),
    ))
}

/// The options that sessions begin with.
pub(crate) fn session_config(threads: usize, memory_limit: usize) -> Result<SessionConfig> {
    let mut options = ConfigOptions::from_env()?;
    tune_joins(&mut options, threads, memory_limit);
    options.format = printed();
    // Of `CASE WHEN a IS NULL THEN b ELSE a END` the two kinds of plans differ in whether it may be NULL.
    options.execution.skip_physical_aggregate_schema_check = true;
    options.extensions.insert(FlashmeshOptions {
        hash_join_bytes: Some((memory_limit / HASH_JOIN_SHARE) as u64),
        ..FlashmeshOptions::default()
    });
    Ok(SessionConfig::from(options)
        .with_default_catalog_and_schema(CATALOG, DEFAULT_SCHEMA)
        .with_create_default_catalog_and_schema(false)
        .with_information_schema(true)
        .with_target_partitions(threads))
}

/// How results are printed: with what tells NULL from the empty text, and moments as they are as texts.
pub(crate) fn printed() -> FormatOptions {
    FormatOptions {
        null: "NULL".into(),
        datetime_format: Some(MOMENT.into()),
        timestamp_format: Some(MOMENT.into()),
        timestamp_tz_format: Some(MOMENT_OF_ZONE.into()),
        ..FormatOptions::default()
    }
}

/// How hash joins build their tables, where the environment does not say it.
fn tune_joins(options: &mut ConfigOptions, threads: usize, memory_limit: usize) {
    fn set<T: PartialEq>(option: &mut T, unset: &T, value: T) {
        if option == unset {
            *option = value;
        }
    }
    let unset = ConfigOptions::default();
    let optimizer = &mut options.optimizer;
    let rows = (COLLECTED_ROWS_THREADS / threads.max(1)).max(MIN_COLLECTED_ROWS);
    set(
        &mut optimizer.hash_join_single_partition_threshold_rows,
        &unset.optimizer.hash_join_single_partition_threshold_rows,
        rows,
    );
    set(
        &mut optimizer.hash_join_single_partition_threshold,
        &unset.optimizer.hash_join_single_partition_threshold,
        rows * COLLECTED_ROW_BYTES,
    );
    set(
        &mut optimizer.hash_join_inlist_pushdown_max_size,
        &unset.optimizer.hash_join_inlist_pushdown_max_size,
        LISTED_KEYS_BYTES,
    );
    set(
        &mut optimizer.hash_join_inlist_pushdown_max_distinct_values,
        &unset
            .optimizer
            .hash_join_inlist_pushdown_max_distinct_values,
        LISTED_KEYS,
    );
    set(
        &mut options.execution.perfect_hash_join_small_build_threshold,
        &unset.execution.perfect_hash_join_small_build_threshold,
        ARRAY_KEYS.min(memory_limit / ARRAY_MEMORY_SHARE / size_of::<u32>()),
    );
    set(
        &mut options.execution.perfect_hash_join_min_key_density,
        &unset.execution.perfect_hash_join_min_key_density,
        ARRAY_KEY_DENSITY,
    );
}

/// The folder for temporary databases and spill files: `$TMPDIR` when it is set, else `/var/tmp`
/// (on many systems `/tmp` is memory, which spilling is to save), else the system's choice.
pub fn temporary_folder() -> PathBuf {
    let var_tmp = Path::new("/var/tmp");
    if std::env::var_os("TMPDIR").is_none() && var_tmp.is_dir() {
        return var_tmp.to_path_buf();
    }
    std::env::temp_dir()
}

/// A fresh folder for a temporary database or its data.
pub fn make_temporary_folder() -> Result<TempDir> {
    temporary_folder_in(&temporary_folder())
}

/// A fresh folder in another one.
pub(crate) fn temporary_folder_in(parent: &Path) -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("flashmesh-")
        .tempdir_in(parent)
        .map_err(|e| {
            Error::io(
                format!(
                    "making a temporary folder in {} (set TMPDIR to a folder with room, or name the database with --db)",
                    parent.display()
                ),
                e,
            )
        })
}

/// The machine's memory, or the control group's limit where that is lower; 4 GiB where neither is known.
pub(crate) fn memory_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let total = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let group = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .iter()
    .filter_map(|path| read(path)?.trim().parse::<u64>().ok())
    .min();
    let total = total.map_or(4 << 30, |kib| kib * 1024);
    group.map_or(total, |limit| limit.min(total))
}

/// What tells one version of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    file: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl FileStamp {
    /// Of the file that is there now; `None` where there is none.
    pub fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        Some(Self {
            file: file.ino(),
            bytes: file.len(),
            changed: (file.mtime(), file.mtime_nsec()),
        })
    }
}

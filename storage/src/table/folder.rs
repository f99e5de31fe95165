//! The folder of a database: what must be there, and the making of a new one.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::StorageBackend;
use redb::backends::InMemoryBackend;

use crate::flash::{make_folder, sync_folder};
use crate::table::DatabaseOptions;
use crate::table::catalog::{Catalog, CatalogFile, FORMAT_WITH_LOG, FirstState, UNFINISHED};
use crate::table::commit_log::{CAPACITY_BYTES, Log};
use crate::{Result, StorageError};

const CATALOG_FILE: &str = "catalog.redb";
const CARD_FILE: &str = "card0.flash";
const LOG_FILE: &str = "commits.log";

/// Where the catalog and the log of a database are, in place of files in its folder. What is written
/// is durable when it was synced, in the order in which it was written.
pub trait CatalogStore: Debug + Send + Sync {
    /// The catalog; empty before there is one. A write to an empty one is there as a whole or not at
    /// all.
    fn catalog(&self) -> Box<dyn StorageBackend>;

    /// The log of commits.
    fn log(&self) -> Box<dyn StorageBackend>;

    /// Whether nobody else can have committed anything meanwhile: asked before anything is read.
    ///
    /// # Errors
    /// `Io` where somebody may have.
    fn check_current(&self) -> Result<()>;
}

/// The files of a database.
pub(super) struct Folder {
    path: PathBuf,
    catalog: PathBuf,
    pub card: PathBuf,
    log: PathBuf,
}

impl Folder {
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            catalog: path.join(CATALOG_FILE),
            card: path.join(CARD_FILE),
            log: path.join(LOG_FILE),
        }
    }

    /// Opens the catalog and the log; makes a new database where the folder is missing or empty.
    ///
    /// # Errors
    /// `Corrupt` when the catalog, the card or the log is missing; nothing is changed then.
    pub fn open(&self, options: &DatabaseOptions) -> Result<(Catalog, Log)> {
        if let Some(store) = &options.catalog {
            let log = Log::boxed(&self.log, store.log(), CAPACITY_BYTES);
            return Ok((self.open_catalog_in(store.catalog())?, log));
        }
        let catalog = self.open_catalog(options)?;
        let log = match options.read_only {
            true if !self.log.exists() => Log::new(&self.log, InMemoryBackend::new(), 0),
            read_only => Log::open(&self.log, read_only)?,
        };
        Ok((catalog, log))
    }

    /// An empty catalog and log, of which nothing is in the folder.
    ///
    /// # Errors
    /// Those of [`Catalog::make`].
    pub fn open_temporary(&self) -> Result<(Catalog, Log)> {
        let file = CatalogFile::new(InMemoryBackend::new());
        let catalog = Catalog::make(&self.catalog, &self.path, file, &FirstState::empty())?;
        let log = Log::new(&self.log, InMemoryBackend::new(), CAPACITY_BYTES);
        Ok((catalog, log))
    }

    /// The catalog that is kept elsewhere; makes it where there is none.
    fn open_catalog_in(&self, file: Box<dyn StorageBackend>) -> Result<Catalog> {
        let failed = |e| self.failed("writing the catalog of", e);
        if file.len().map_err(failed)? == 0 {
            let made = CatalogFile::new(InMemoryBackend::new());
            let first = FirstState::empty();
            drop(Catalog::make(
                &self.catalog,
                &self.path,
                Arc::clone(&made),
                &first,
            )?);
            let bytes = made.content().map_err(failed)?;
            file.write(0, &bytes).map_err(failed)?;
            file.sync_data().map_err(failed)?;
        }
        Catalog::existing(&self.catalog, &self.path, CatalogFile::boxed(file))
    }

    /// Whether the log may be missing: databases of earlier formats get it now.
    fn check_log(&self, read_only: bool) -> Result<()> {
        match Catalog::format_of(&self.catalog, &self.path)? {
            FORMAT_WITH_LOG.. => Err(self.is_missing(LOG_FILE)),
            _ if read_only => Ok(()),
            _ => {
                self.make(&self.log)?;
                sync_folder(&self.path).map_err(|e| self.failed("syncing", e))
            }
        }
    }

    fn make(&self, file: &Path) -> Result<()> {
        let mut options = OpenOptions::new();
        let made = options.write(true).create(true).truncate(false).open(file);
        made.and_then(|file| file.sync_all())
            .map_err(|e| self.failed("making a file in", e))
    }

    fn open_catalog(&self, options: &DatabaseOptions) -> Result<Catalog> {
        // An empty catalog is none: it gets its name when it is whole.
        let has_catalog = std::fs::metadata(&self.catalog).is_ok_and(|file| file.len() > 0);
        match (has_catalog, self.card.exists()) {
            (true, true) => {
                if !self.log.exists() {
                    self.check_log(options.read_only)?;
                }
                Catalog::open(&self.catalog, &self.path, options.read_only)
            }
            (true, false) => Err(self.is_missing(CARD_FILE)),
            // A card on which nothing was written is what a crash leaves that came before the
            // catalog was made.
            (false, true) if !self.is_blank(&self.card)? => Err(self.is_missing(CATALOG_FILE)),
            (false, _) if std::fs::metadata(&self.log).is_ok_and(|log| log.len() > 0) => {
                Err(self.is_missing(CATALOG_FILE))
            }
            (false, _) if options.read_only => Err(StorageError::NotFound {
                kind: "database",
                name: self.path.display().to_string(),
            }),
            (false, _) => self.create(),
        }
    }

    fn is_missing(&self, file: &str) -> StorageError {
        StorageError::corrupt(format!(
            "database {:?} lacks its file {file}; put it back, or restore the folder from a copy \
             (nothing was changed)",
            self.path
        ))
    }

    fn is_blank(&self, path: &Path) -> Result<bool> {
        let read = |e| StorageError::io(format!("reading {}", path.display()), e);
        let mut file = File::open(path).map_err(read)?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).map_err(read)? {
                0 => return Ok(true),
                count if buffer[..count].iter().any(|byte| *byte != 0) => return Ok(false),
                _ => {}
            }
        }
    }

    fn create(&self) -> Result<Catalog> {
        self.begin()?;
        self.finish(&FirstState::empty())
    }

    /// Begins a new database: makes its card and its log, both empty. It is none before
    /// [`Folder::finish`].
    ///
    /// # Errors
    /// `AlreadyExists` when the folder has a database; `Invalid` when it has other files, or the card
    /// of an unfinished one; `Io`, `ReadOnly`.
    pub fn begin(&self) -> Result<()> {
        if std::fs::metadata(&self.catalog).is_ok_and(|file| file.len() > 0) {
            return Err(StorageError::AlreadyExists {
                kind: "database",
                name: self.path.display().to_string(),
            });
        }
        make_folder(&self.path).map_err(|e| self.failed("making the folder", e))?;
        let listing = |e| self.failed("listing", e);
        for entry in std::fs::read_dir(&self.path).map_err(listing)? {
            let name = entry.map_err(listing)?.file_name();
            let unfinished = format!("catalog.{UNFINISHED}");
            if ![CARD_FILE, LOG_FILE, CATALOG_FILE, &unfinished]
                .iter()
                .any(|ours| name == *ours)
            {
                return Err(StorageError::Invalid(format!(
                    "{:?} holds files but no flashmesh database; name an empty or a new folder",
                    self.path
                )));
            }
        }
        if self.card.exists() && !self.is_blank(&self.card)? {
            return Err(StorageError::Invalid(format!(
                "{:?} holds the pages of a database that lacks its catalog, or was never finished; \
                 name another folder",
                self.path
            )));
        }
        self.make(&self.card)?;
        self.make(&self.log)
    }

    /// Removes what [`Folder::begin`] has made, with what was written since, but for the folder.
    pub fn abandon(&self) {
        for file in [&self.card, &self.log] {
            if let Err(error) = std::fs::remove_file(file) {
                log::warn!("removing {}: {error}", file.display());
            }
        }
    }

    /// Makes the catalog of what is there then.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn finish(&self, first: &FirstState) -> Result<Catalog> {
        let catalog = Catalog::create(&self.catalog, &self.path, first)?;
        // The names must survive a power cut as well as the files will.
        sync_folder(&self.path).map_err(|e| self.failed("syncing", e))?;
        Ok(catalog)
    }

    fn failed(&self, doing: &str, error: io::Error) -> StorageError {
        StorageError::of_path(doing, &self.path, error)
    }
}

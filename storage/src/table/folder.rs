//! The folder of a database: what must be there, and the making of a new one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::flash::sync_folder;
use crate::table::DatabaseOptions;
use crate::table::catalog::{Catalog, UNFINISHED};
use crate::{Result, StorageError};

const CATALOG_FILE: &str = "catalog.redb";
const CARD_FILE: &str = "card0.flash";

/// The files of a database.
pub(super) struct Folder {
    path: PathBuf,
    catalog: PathBuf,
    pub card: PathBuf,
}

impl Folder {
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            catalog: path.join(CATALOG_FILE),
            card: path.join(CARD_FILE),
        }
    }

    /// Opens the catalog; makes a new database where the folder is missing or empty.
    ///
    /// # Errors
    /// `Corrupt` when the catalog or the card is missing; nothing is changed then.
    pub fn open(&self, options: &DatabaseOptions) -> Result<Catalog> {
        // An empty catalog is none: it gets its name when it is whole.
        let has_catalog = std::fs::metadata(&self.catalog).is_ok_and(|file| file.len() > 0);
        match (has_catalog, self.card.exists()) {
            (true, true) => Catalog::open(&self.catalog, &self.path, options.read_only),
            (true, false) => Err(self.is_missing(CARD_FILE)),
            // A card on which nothing was written is what a crash leaves that came before the
            // catalog was made.
            (false, true) if !self.is_blank(&self.card)? => Err(self.is_missing(CATALOG_FILE)),
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
        let present = self.path.ancestors().find(|folder| folder.exists());
        let present = present.unwrap_or(Path::new("")).to_path_buf();
        std::fs::create_dir_all(&self.path).map_err(|e| self.failed("making the folder", e))?;
        let listing = |e| self.failed("listing", e);
        for entry in std::fs::read_dir(&self.path).map_err(listing)? {
            let name = entry.map_err(listing)?.file_name();
            let unfinished = format!("catalog.{UNFINISHED}");
            if ![CARD_FILE, CATALOG_FILE, &unfinished]
                .iter()
                .any(|ours| name == *ours)
            {
                return Err(StorageError::Invalid(format!(
                    "{:?} holds files but no flashmesh database; name an empty or a new folder",
                    self.path
                )));
            }
        }
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.card)
            .and_then(|card| card.sync_all())
            .map_err(|e| self.failed("making a card in", e))?;
        let catalog = Catalog::create(&self.catalog, &self.path)?;
        // The names must survive a power cut as well as the files will.
        for folder in self.path.ancestors() {
            sync_folder(folder).map_err(|e| self.failed("syncing", e))?;
            if folder == present {
                break;
            }
        }
        Ok(catalog)
    }

    fn failed(&self, doing: &str, error: io::Error) -> StorageError {
        StorageError::of_path(doing, &self.path, error)
    }
}

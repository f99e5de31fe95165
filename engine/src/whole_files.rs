//! Files that COPY writes: whole, or not at all.
//!
//! DataFusion ends a file as it should be ended also where the query behind it has failed: what was there is lost,
//! and what is there looks complete.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::logical_expr::dml::CopyTo;

use crate::error::{Error, Result};

/// A file beside the one that COPY is to write; gone, where it did not come to take its place.
#[derive(Debug)]
pub(crate) struct Draft {
    draft: PathBuf,
    file: PathBuf,
    is_whole: bool,
}

impl Draft {
    /// Has COPY write a draft; `None` where it writes something else than one file of this machine.
    pub fn of(copy: &mut CopyTo) -> Option<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let is_several =
            copy.options.get("single_file_output").map(String::as_str) == Some("false");
        let url = &copy.output_url;
        let is_elsewhere = url.contains("://") || url.ends_with(std::path::MAIN_SEPARATOR);
        if !copy.partition_by.is_empty() || is_several || is_elsewhere {
            return None;
        }
        let file = PathBuf::from(&copy.output_url);
        // A name without an ending is one of a folder. Pipes and devices are written as they are.
        let extension = file.extension()?.to_str()?;
        let is_special = |known: std::fs::Metadata| !known.is_file();
        if std::fs::symlink_metadata(&file).is_ok_and(is_special) {
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".flashmesh-{}-{number}.{extension}", std::process::id());
        let draft = file.parent().unwrap_or(Path::new("")).join(name);
        copy.output_url = draft.to_str()?.to_owned();
        Some(Self {
            draft,
            file,
            is_whole: false,
        })
    }

    /// What COPY gave; the draft is the file, unless that is an error.
    ///
    /// # Errors
    /// That of COPY, which names the file; [`Error::Io`].
    pub fn end<T>(self, written: Result<T>) -> Result<T> {
        match written {
            Ok(written) => self.take_place().map(|()| written),
            Err(error) => Err(self.named(error)),
        }
    }

    fn named(&self, error: Error) -> Error {
        let [draft, file] = [&self.draft, &self.file].map(|path| path.to_string_lossy());
        match error.to_string() {
            text if text.contains(&*draft) => Error::usage(text.replace(&*draft, &file)),
            _ => error,
        }
    }

    fn take_place(mut self) -> Result<()> {
        // Of no rows there may be no file.
        if self.draft.exists() {
            let renamed = std::fs::rename(&self.draft, &self.file);
            renamed
                .map_err(|error| Error::io(format!("writing {}", self.file.display()), error))?;
        }
        self.is_whole = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_whole {
            // There may be none yet.
            let _ = std::fs::remove_file(&self.draft);
        }
    }
}

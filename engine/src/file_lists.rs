//! `glob('*.csv')`, the files of a pattern, `read_text('*.txt')`, those with what is in them, and what Parquet files say of
//! themselves.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int64Array, RecordBatch, StringArray, StringBuilder, TimestampMicrosecondArray,
};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::SessionState;
use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::error::{Error, Result};
use crate::files::{is_pattern, matching, parse_path, url_of};
use crate::parquet_footers::Footers;

/// What is told of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileList {
    /// Their names.
    Names,
    /// Names, contents, sizes and times.
    Texts,
    /// What they say of themselves.
    Footers(Footers),
}

/// Bytes of the files that are read as texts, at most: they are in memory together.
const MOST_BYTES: u64 = 256 << 20;

impl FileList {
    /// What a function of that name tells.
    pub fn of(function: &str) -> Option<Self> {
        match function {
            "glob" => Some(Self::Names),
            "read_text" => Some(Self::Texts),
            "parquet_file_metadata" => Some(Self::Footers(Footers::Files)),
            "parquet_schema" => Some(Self::Footers(Footers::Schemas)),
            "parquet_metadata" => Some(Self::Footers(Footers::Chunks)),
            _ => None,
        }
    }

    /// The table of the files of some paths, by their names.
    ///
    /// # Errors
    /// [`Error::Usage`] for a file that is not there, is no text or too large, or no Parquet; those of the store.
    pub async fn table(
        self,
        paths: &[String],
        state: &SessionState,
    ) -> Result<Arc<dyn TableProvider>> {
        let mut files: Vec<(String, ObjectMeta, Arc<dyn ObjectStore>)> = Vec::new();
        for path in paths {
            let is_local = !path.contains("://");
            // No file is no error to a pattern.
            if self == Self::Names && is_local && !is_pattern(path) && !Path::new(path).exists() {
                continue;
            }
            let urls = match matching(path).await? {
                Some(found) => found
                    .iter()
                    .map(|file| url_of(file))
                    .collect::<Result<_>>()?,
                None => vec![parse_path(path)?],
            };
            for url in urls {
                let store = state.runtime_env().object_store(&url)?;
                let listed = url.list_all_files(state, store.as_ref(), "").await?;
                let listed: Vec<ObjectMeta> = listed.try_collect().await?;
                for file in listed {
                    files.push((name_of(path, &url, &file), file, Arc::clone(&store)));
                }
            }
        }
        files.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        files.dedup_by(|(one, ..), (other, ..)| one == other);
        let names = StringArray::from_iter_values(files.iter().map(|(name, ..)| name));
        let names = Arc::new(names) as ArrayRef;
        let batch = match self {
            Self::Footers(footers) => footers.of(&files).await?,
            Self::Names => RecordBatch::try_from_iter_with_nullable([("file", names, false)])?,
            Self::Texts => {
                let sizes = files.iter().map(|(_, file, _)| file.size as i64);
                let sizes = Arc::new(Int64Array::from_iter_values(sizes)) as ArrayRef;
                let times = files
                    .iter()
                    .map(|(_, file, _)| file.last_modified.timestamp_micros());
                let times = TimestampMicrosecondArray::from_iter_values(times);
                let times = Arc::new(times.with_timezone("UTC")) as ArrayRef;
                let texts = Arc::new(texts(&files).await?) as ArrayRef;
                RecordBatch::try_from_iter_with_nullable([
                    ("filename", names, false),
                    ("content", texts, false),
                    ("size", sizes, false),
                    ("last_modified", times, false),
                ])?
            }
        };
        Ok(Arc::new(MemTable::try_new(
            batch.schema(),
            vec![vec![batch]],
        )?))
    }
}

/// A file as it would be written beside the path that led to it.
fn name_of(path: &str, url: &ListingTableUrl, file: &ObjectMeta) -> String {
    if path.contains("://") {
        let store = url.object_store();
        return format!("{}{}", store.as_str(), file.location);
    }
    let name = format!("/{}", file.location);
    let folder = std::env::current_dir()
        .ok()
        .filter(|_| !path.starts_with(['/', '~']));
    let here = folder.and_then(|folder| {
        let name = Path::new(&name).strip_prefix(folder).ok()?;
        Some(name.to_string_lossy().into_owned())
    });
    match (here, path.starts_with("./")) {
        (Some(here), true) => format!("./{here}"),
        (Some(here), false) => here,
        (None, _) => name,
    }
}

async fn texts(files: &[(String, ObjectMeta, Arc<dyn ObjectStore>)]) -> Result<StringArray> {
    let bytes = files.iter().map(|(_, file, _)| file.size).sum::<u64>();
    if bytes > MOST_BYTES {
        return Err(Error::usage(format!(
            "read_text takes {} MiB at most, and these files have {}; name fewer of them",
            MOST_BYTES >> 20,
            bytes >> 20
        )));
    }
    let mut texts = StringBuilder::new();
    for (name, file, store) in files {
        let read = store.get(&file.location).await;
        let bytes = match read {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        let bytes = bytes.map_err(|e| Error::usage(format!("can't read '{name}': {e}")))?;
        let text = std::str::from_utf8(&bytes);
        texts
            .append_value(text.map_err(|_| Error::usage(format!("'{name}' is no text of UTF-8")))?);
    }
    Ok(texts.finish())
}

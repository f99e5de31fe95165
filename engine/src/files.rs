//! Files as tables: `SELECT * FROM 'file.parquet'`, and what `flashmesh load` reads.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};

use arrow::datatypes::{DataType, Field, Schema};
use async_trait::async_trait;
use datafusion::catalog::{TableProvider, UrlTableFactory};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::execution::SessionState;
use datafusion::functions::core::expr_fn::nullif;
use datafusion::logical_expr::{Expr, cast, lit};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Result};

/// How to read files whose format leaves questions open. Parquet and Arrow files answer them
/// themselves.
#[derive(Debug, Clone, Default)]
pub struct FileOptions {
    /// The format's name (`parquet`, `csv`, `tsv`, `json`, `arrow`); `None`: by the ending.
    pub format: Option<String>,
    /// CSV: the first line names the columns; `None`: as `datafusion.catalog.has_header` says.
    pub header: Option<bool>,
    /// CSV: what separates fields.
    pub delimiter: Option<char>,
    /// CSV: fields that equal this text are NULL, quoted or not (an empty field always is).
    pub null: Option<String>,
    /// CSV: quoted fields may hold line ends. A file is then read by one thread.
    pub newlines_in_values: bool,
}

/// A file name's ending, the format it stands for, and the options that it alone implies.
type Format = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const FORMATS: [Format; 14] = [
    ("parquet", "parquet", &[]),
    ("parq", "parquet", &[]),
    ("pq", "parquet", &[]),
    ("csv", "csv", &[]),
    ("tsv", "csv", &[("format.delimiter", "\t")]),
    ("tab", "csv", &[("format.delimiter", "\t")]),
    ("json", "json", &[]),
    ("ndjson", "json", &[]),
    ("jsonl", "json", &[]),
    ("arrow", "arrow", &[]),
    ("arrows", "arrow", &[]),
    ("feather", "arrow", &[]),
    ("ipc", "arrow", &[]),
    ("avro", "avro", &[]),
];

/// Opens files (or folders, globs, URLs) of one format as one table. Their schemas are merged by
/// name. Text formats are read with the types of `target`, where it has a column of that name,
/// rather than with what their values look like (`007` may be text).
///
/// # Errors
/// [`Error::Usage`] for a file that is not there or whose format is unknown, and for files whose
/// columns don't fit together; it names the file.
pub(crate) async fn open(
    paths: &[String],
    options: &FileOptions,
    target: Option<&Schema>,
    state: &SessionState,
) -> Result<ListingTable> {
    let (config, schema) = listing_config(paths, options, target, state).await?;
    Ok(ListingTable::try_new(config.with_schema(Arc::new(schema)))?)
}

/// Opens files as [`open`] does, and takes [`FileOptions::null`] as well.
pub(crate) async fn read(
    context: &SessionContext,
    paths: &[String],
    options: &FileOptions,
    target: Option<&Schema>,
) -> Result<DataFrame> {
    let state = context.state();
    let (config, schema) = listing_config(paths, options, target, &state).await?;
    let is_csv = config
        .options
        .as_ref()
        .is_some_and(|options| options.format.get_ext() == "csv");
    let null = options.null.as_deref().filter(|_| is_csv);
    // DataFusion 55 heeds `null_regex` when it infers a CSV file's schema, but not when it reads
    // the file: so fields are read as text, compared, and then given their type.
    let read_as = match null {
        Some(_) => typed(&schema, |_| Some(DataType::Utf8View)),
        None => schema.clone(),
    };
    let table = ListingTable::try_new(config.with_schema(Arc::new(read_as)))?;
    let frame = context.read_table(Arc::new(table))?;
    let Some(null) = null else {
        return Ok(frame);
    };
    let columns: Vec<_> = frame
        .schema()
        .columns()
        .into_iter()
        .map(|column| {
            let name = column.name.clone();
            match schema.field_with_name(&name) {
                Ok(field) => cast(
                    nullif(Expr::Column(column), lit(null)),
                    field.data_type().clone(),
                )
                .alias(name),
                // Made of the path.
                Err(_) => Expr::Column(column),
            }
        })
        .collect();
    Ok(frame.select(columns)?)
}

/// What to list, and the schema to read it with.
async fn listing_config(
    paths: &[String],
    options: &FileOptions,
    target: Option<&Schema>,
    state: &SessionState,
) -> Result<(ListingTableConfig, Schema)> {
    let mut urls = Vec::with_capacity(paths.len());
    for path in paths {
        urls.push(parse_path(path)?);
    }
    let Some((first_path, first)) = paths.first().zip(urls.first()) else {
        return Err(Error::usage("no file was named"));
    };
    let listing = listing_options(first_path, first, options, state).await?;
    let is_text = matches!(listing.format.get_ext().as_str(), "csv" | "json");
    let mut schema = Schema::empty();
    for (path, url) in paths.iter().zip(&urls) {
        let inferred = listing
            .infer_schema(state, url)
            .await
            .map_err(|e| Error::usage(format!("can't read '{path}': {}", Error::from(e))))?;
        schema = Schema::try_merge([schema, inferred.as_ref().clone()]).map_err(|e| {
            Error::usage(format!(
                "the columns of '{path}' don't fit those of '{first_path}': {e}"
            ))
        })?;
    }
    let target = target.filter(|_| is_text);
    let schema = typed(&schema, |field| {
        let target = target?.field_with_name(field.name()).ok()?;
        Some(target.data_type().clone())
    });
    let config = ListingTableConfig::new_with_multi_paths(urls)
        .with_listing_options(listing)
        .infer_partitions_from_path(state)
        .await?;
    Ok((config, schema))
}

/// A path or URL, checked to exist where that is cheap to know.
fn parse_path(path: &str) -> Result<ListingTableUrl> {
    let path = match (path.strip_prefix("~/"), std::env::var("HOME")) {
        (Some(rest), Ok(home)) => format!("{home}/{rest}"),
        _ => path.to_string(),
    };
    let is_pattern = path.contains(['*', '?', '[']);
    if !is_pattern && !path.contains("://") && !Path::new(&path).exists() {
        let place = match std::env::current_dir() {
            Ok(folder) if !Path::new(&path).is_absolute() => format!(" in {}", folder.display()),
            _ => String::new(),
        };
        return Err(Error::usage(format!("file '{path}' does not exist{place}")));
    }
    ListingTableUrl::parse(&path)
        .map_err(|e| Error::usage(format!("'{path}' is no path or URL: {}", Error::from(e))))
}

/// Reader options for the format that the caller or the file's ending names; a folder has the
/// format of its first file.
async fn listing_options(
    path: &str,
    url: &ListingTableUrl,
    options: &FileOptions,
    state: &SessionState,
) -> Result<ListingOptions> {
    let mut name = path.to_string();
    if url.is_folder() && url.get_glob().is_none() && options.format.is_none() {
        let store = state.runtime_env().object_store(url)?;
        let mut files = url.list_all_files(state, store.as_ref(), "").await?;
        loop {
            let Some(file) = files.next().await else {
                return Err(Error::usage(format!(
                    "folder '{path}' holds no file of a known format ({})",
                    endings()
                )));
            };
            let location = file?.location.to_string();
            if split_ending(&location).is_some() {
                name = location;
                break;
            }
        }
    }
    let (ending, compression) = match (&options.format, split_ending(&name)) {
        (Some(format), split) => (format.to_ascii_lowercase(), split.and_then(|(_, c)| c)),
        (None, Some((ending, compression))) => (ending, compression),
        (None, None) => {
            return Err(Error::usage(format!(
                "'{path}' has no ending that tells its format; known are {}",
                endings()
            )));
        }
    };
    let unknown = || {
        Error::usage(format!(
            "'{ending}' is no format that can be read; known are {}",
            endings()
        ))
    };
    let (_, format, implied) = FORMATS
        .iter()
        .find(|(e, ..)| *e == ending)
        .ok_or_else(unknown)?;
    let mut settings: HashMap<String, String> = implied
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    if let Some(compression) = &compression {
        settings.insert("format.compression".into(), compression.clone());
    }
    if *format == "csv" {
        if let Some(header) = options.header {
            settings.insert("format.has_header".into(), header.to_string());
        }
        if let Some(delimiter) = options.delimiter {
            settings.insert("format.delimiter".into(), delimiter.to_string());
        }
        if let Some(null) = &options.null {
            settings.insert(
                "format.null_regex".into(),
                format!("^$|^{}$", escape_regex(null)),
            );
        }
        if options.newlines_in_values {
            settings.insert("format.newlines_in_values".into(), "true".into());
        }
    }
    let format = state
        .get_file_format_factory(format)
        .ok_or_else(unknown)?
        .create(state, &settings)?;
    // A file that was named is read whatever its ending; the ending selects among a folder's.
    let ending = if url.is_folder() && url.get_glob().is_none() {
        compression.map_or(format!(".{ending}"), |c| format!(".{ending}.{c}"))
    } else {
        String::new()
    };
    Ok(ListingOptions::new(format).with_file_extension(ending))
}

/// A known ending and the compression after it (`x.csv.gz` is `csv`, `gz`).
fn split_ending(path: &str) -> Option<(String, Option<String>)> {
    let path = path.to_ascii_lowercase();
    let (stem, last) = path.rsplit_once('.')?;
    let (ending, compression) = match last {
        "gz" | "bz2" | "xz" | "zst" => {
            (stem.rsplit_once('.')?.1.to_string(), Some(last.to_string()))
        }
        _ => (last.to_string(), None),
    };
    FORMATS
        .iter()
        .any(|(e, ..)| *e == ending)
        .then_some((ending, compression))
}

fn endings() -> String {
    FORMATS
        .iter()
        .map(|(e, ..)| format!(".{e}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The types to read: the `wanted` ones, else the inferred ones. A column in which no value was
/// found is text: there is no column of no type.
fn typed(inferred: &Schema, wanted: impl Fn(&Field) -> Option<DataType>) -> Schema {
    let fields = inferred.fields().iter().map(|field| {
        let data_type = match wanted(field) {
            Some(data_type) => data_type,
            None if field.data_type().is_null() => DataType::Utf8View,
            None => return Arc::clone(field),
        };
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    });
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), inferred.metadata().clone())
}

fn escape_regex(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if !c.is_alphanumeric() && c.is_ascii() {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Makes tables of names that look like files: `SELECT * FROM 'data/*.parquet'`.
///
/// A name without a path separator or a known ending is never looked up among the files, so that
/// a mistyped table name does not become the folder of that name.
#[derive(Debug, Default)]
pub(crate) struct FileTables {
    session: Mutex<Weak<RwLock<SessionState>>>,
}

impl FileTables {
    /// The session whose options apply.
    pub(crate) fn use_session(&self, session: Weak<RwLock<SessionState>>) {
        *self.session.lock() = session;
    }
}

#[async_trait]
impl UrlTableFactory for FileTables {
    async fn try_new(
        &self,
        name: &str,
    ) -> datafusion::error::Result<Option<Arc<dyn TableProvider>>> {
        if !name.contains(['/', '\\']) && split_ending(name).is_none() {
            return Ok(None);
        }
        let Some(session) = self.session.lock().upgrade() else {
            return Ok(None);
        };
        let state = session.read().clone();
        let table = open(&[name.to_string()], &FileOptions::default(), None, &state).await?;
        Ok(Some(Arc::new(table)))
    }
}

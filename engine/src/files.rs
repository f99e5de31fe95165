//! Files as tables: `SELECT * FROM 'file.parquet'`, and what `flashmesh load` reads.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::TableProvider;
use datafusion::common::{Column, DFSchema};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::functions::core::expr_fn::nullif;
use datafusion::logical_expr::{Expr, cast, lit, try_cast};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::CopyToStatement;
use datafusion::sql::sqlparser::ast::Value;
use futures::StreamExt;
use glob::{MatchOptions, Pattern, PatternError};
use url::Url;

use crate::csv_files::{CsvFiles, with_types_of};
use crate::csv_lines::LeftOut;
use crate::error::{Error, Result};
use crate::folder_keys::with_types_of_keys;
use crate::json_files::{Arrays, is_array, schema_of_arrays};
use crate::named_files::NamedFiles;
use crate::rewritten_files::{RewrittenFormat, SAMPLED_ROWS};
use crate::written_types::type_to_read;
use crate::written_values::WrittenValues;

/// How to read files whose format leaves questions open. Parquet and Arrow files answer them
/// themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// The format's name (`parquet`, `csv`, `tsv`, `json`, `arrow`); `None`: by the ending.
    pub format: Option<String>,
    /// The format of files whose ending tells none.
    pub format_without_ending: Option<String>,
    /// CSV: the first line names the columns; `None`: where it has no values, if `datafusion.catalog.has_header`.
    pub header: Option<bool>,
    /// CSV: what separates fields.
    pub delimiter: Option<char>,
    /// CSV: fields that equal this text are NULL, quoted or not (an empty field always is).
    pub null: Option<String>,
    /// CSV: quoted fields may hold line ends, as is seen where one of the first rows has them. A file is then read by
    /// one thread.
    pub newlines_in_values: bool,
    /// CSV: what stands around fields in which separators are text; `"` in general.
    pub quote: Option<char>,
    /// CSV: what stands before a quote that is text; it is doubled in general.
    pub escape: Option<char>,
    /// CSV: lines that begin with it are left out.
    pub comment: Option<char>,
    /// How it is compressed (`gz`, `bz2`, `xz`, `zst`, or `uncompressed`); `None`: by the ending.
    pub compression: Option<String>,
    /// CSV: names and SQL types of all columns, in their order, in place of what the file says.
    pub columns: Vec<(String, String)>,
    /// CSV: names of the columns, or of the first of them, in place of what the file says.
    pub names: Vec<String>,
    /// CSV: SQL types of columns by their names, in place of what their values look like.
    pub types: Vec<(String, String)>,
    /// CSV: every column is text.
    pub all_text: bool,
    /// CSV: how many rows are looked at to find the types of columns; `None`: 1,000.
    pub sample_rows: Option<usize>,
    /// CSV: how dates are written, in the signs of strftime; `None`: as in ISO 8601.
    pub date_format: Option<String>,
    /// CSV: the same of timestamps.
    pub timestamp_format: Option<String>,
    /// CSV: what stands before the fraction of a number; `None`: a point.
    pub decimal_separator: Option<char>,
    /// CSV: so many lines at the beginning of each file are left out.
    pub skipped_lines: usize,
    /// CSV: lines are left out that have too few or too many values, or one that is not of its column's type.
    pub ignore_errors: bool,
    /// CSV: lines may have fewer values than there are columns, and NULL for the others.
    pub missing_values: bool,
    /// CSV: files of different columns are one table of all of them, with NULL where a file has none.
    pub union_by_name: bool,
    /// What a column is called, behind all others, that says of which file a row is.
    pub file_name: Option<String>,
}

impl FileOptions {
    /// Whether files are read by [`read`] alone.
    pub(crate) fn need_a_query(&self) -> bool {
        self.null.is_some()
            || self.union_by_name
            || self.date_format.is_some()
            || self.timestamp_format.is_some()
            || self.decimal_separator.is_some()
            || self.ignore_errors
    }
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
/// name, but for CSV, whose columns are where the first file has them. Text formats are read with the
/// types of `target`, where it has a column of that name, rather than with what their values look like (`007` may be text).
///
/// # Errors
/// [`Error::Usage`] for a file that is not there or whose format is unknown, and for files whose
/// columns don't fit together; it names the file.
pub(crate) async fn open(
    paths: &[String],
    options: &FileOptions,
    target: Option<&Schema>,
    state: &SessionState,
) -> Result<Arc<dyn TableProvider>> {
    let (config, schema) = listing_config(paths, options, target, state).await?;
    table(config, schema, options)
}

fn table(
    config: ListingTableConfig,
    schema: Schema,
    options: &FileOptions,
) -> Result<Arc<dyn TableProvider>> {
    let table = ListingTable::try_new(config.with_schema(Arc::new(schema)))?;
    Ok(match &options.file_name {
        None => Arc::new(table),
        Some(column) => Arc::new(NamedFiles::new(table, column)?),
    })
}

/// Opens files as [`open`] does, and takes as well what it does not of [`FileOptions`]: `null`, `union_by_name`,
/// `ignore_errors`, and how dates, timestamps and numbers are written.
pub(crate) async fn read(
    context: &SessionContext,
    paths: &[String],
    options: &FileOptions,
    target: Option<&Schema>,
) -> Result<DataFrame> {
    if options.union_by_name {
        return read_by_name(context, paths, options, target).await;
    }
    let state = context.state();
    let (config, schema) = listing_config(paths, options, target, &state).await?;
    let is_csv = config
        .options
        .as_ref()
        .is_some_and(|options| options.format.get_ext() == "csv");
    let null = options.null.as_deref().filter(|_| is_csv);
    let (dates, timestamps) = (&options.date_format, &options.timestamp_format);
    let separator = options.decimal_separator;
    let written = WrittenValues::new(dates.as_deref(), timestamps.as_deref(), separator);
    let written = written.filter(|_| is_csv);
    let ignores_errors = options.ignore_errors && is_csv;
    if ignores_errors && (dates.is_some() || timestamps.is_some()) {
        return Err(Error::usage(
            "ignore_errors is not there beside dateformat and timestampformat; read the column as text, \
             types = {'d': 'VARCHAR'}, and take try_strptime(d, format)",
        ));
    }
    // DataFusion 55 heeds `null_regex` when it infers a CSV file's schema, but not when it reads
    // the file: so fields are read as text, compared, and then given their type.
    let is_said = |name: &str| {
        let mut said = options.types.iter().chain(&options.columns);
        said.any(|(said, _)| said == name)
    };
    // What looks like a date of ISO 8601 is one.
    let is_written = |field: &Field| {
        let is_of = |written: WrittenValues<'_>| written.are_of(field.data_type());
        field.data_type().is_string() || is_said(field.name()) && written.is_some_and(is_of)
    };
    let before = schema.clone();
    let read_as = typed(&schema, |field| {
        let is_text = null.is_some() || ignores_errors || is_written(field);
        is_text.then_some(DataType::Utf8View)
    });
    let frame = context.read_table(table(config, read_as, options)?)?;
    if null.is_none() && written.is_none() && !ignores_errors {
        return Ok(frame);
    }
    let schema = match written {
        Some(written) => with_written(&frame, schema, written, options.sample_rows).await?,
        None => schema,
    };
    let mut are_values = Vec::new();
    let columns = frame.schema().iter().map(|(table, read)| {
        let column = Expr::Column(Column::from((table, read)));
        // Another one is made of the path.
        let Ok(field) = schema.field_with_name(read.name()) else {
            return column;
        };
        let text = match null {
            Some(null) => nullif(column, lit(null)),
            None if field.data_type() == read.data_type() => return column,
            None => column,
        };
        let was_written = before.field_with_name(read.name()).is_ok_and(is_written);
        let value = match written.filter(|_| was_written) {
            Some(written) => written.read(text.clone(), field.data_type()),
            None => cast(text.clone(), field.data_type().clone()),
        };
        let value = match value {
            Expr::Cast(of) if ignores_errors => {
                let value = try_cast(*of.expr, of.field.data_type().clone());
                are_values.push(text.is_null().or(value.clone().is_not_null()));
                value
            }
            value => value,
        };
        value.alias(read.name())
    });
    let columns: Vec<_> = columns.collect();
    let rows = match are_values.into_iter().reduce(Expr::and) {
        Some(are_values) => frame.filter(are_values)?,
        None => frame,
    };
    Ok(rows.select(columns)?)
}

/// The schema with dates, timestamps and numbers where the first rows have texts that are so written.
async fn with_written(
    frame: &DataFrame,
    schema: Schema,
    written: WrittenValues<'_>,
    rows: Option<usize>,
) -> Result<Schema> {
    let rows = frame.clone().limit(0, Some(rows.unwrap_or(SAMPLED_ROWS)))?;
    let all = Arc::clone(rows.schema().inner());
    let rows = concat_batches(&all, &rows.collect().await?).map_err(DataFusionError::from)?;
    Ok(typed(&schema, |field| {
        let texts = rows.column_by_name(field.name());
        let texts = texts.filter(|_| field.data_type().is_string());
        texts.and_then(|texts| written.found_in(texts))
    }))
}

/// Reads each file by itself.
async fn read_by_name(
    context: &SessionContext,
    paths: &[String],
    options: &FileOptions,
    target: Option<&Schema>,
) -> Result<DataFrame> {
    let options = FileOptions {
        union_by_name: false,
        ..options.clone()
    };
    let mut frames = Vec::new();
    for path in paths {
        let files = match matching(path).await? {
            None => vec![path.clone()],
            Some(found) => {
                let pattern = at_home(path);
                if found.iter().any(|file| has_keys(file, wild_part(&pattern))) {
                    return Err(Error::usage(format!(
                        "'{path}': the folders' keys (key=value) are not read with union_by_name; leave it out, or \
                         write a UNION ALL BY NAME of the folders"
                    )));
                }
                let names = found.iter().map(|file| file.to_string_lossy().into_owned());
                names.collect()
            }
        };
        for file in files {
            let file = [file];
            frames.push(Box::pin(read(context, &file, &options, target)).await?);
        }
    }
    let mut frames = with_texts_of(frames)?;
    // In pairs, then pairs of these: each union looks at all columns of those below it.
    while frames.len() > 1 {
        let mut pairs = Vec::with_capacity(frames.len().div_ceil(2));
        let mut left = frames.into_iter();
        while let Some(frame) = left.next() {
            pairs.push(match left.next() {
                Some(next) => frame.union_by_name(next)?,
                None => frame,
            });
        }
        frames = pairs;
    }
    let all = frames.pop();
    all.ok_or_else(|| Error::usage(format!("no file matches '{}'", paths.join("', '"))))
}

/// Frames whose columns are texts where those of one name are texts in one and something else in another, or times of
/// day or dates in one and numbers in another.
fn with_texts_of(frames: Vec<DataFrame>) -> Result<Vec<DataFrame>> {
    let mut types: HashMap<String, Vec<DataType>> = HashMap::new();
    for field in frames.iter().flat_map(|frame| frame.schema().fields()) {
        let of = types.entry(field.name().clone()).or_default();
        of.push(field.data_type().clone());
    }
    let is_mixed = |name: &str| {
        types.get(name).is_some_and(|types| {
            types.iter().any(|of| of.is_string() || of.is_temporal())
                && types.iter().any(|of| *of != types[0])
        })
    };
    if !types.keys().any(|name| is_mixed(name)) {
        return Ok(frames);
    }
    let frames = frames.into_iter().map(|frame| {
        let columns = frame.schema().iter().map(|(table, field)| {
            let column = Expr::Column(Column::from((table, field)));
            match is_mixed(field.name()) {
                true => cast(column, DataType::Utf8View).alias(field.name()),
                false => column,
            }
        });
        let columns: Vec<_> = columns.collect();
        Ok(frame.select(columns)?)
    });
    frames.collect()
}

/// What to list, and the schema to read it with.
async fn listing_config(
    paths: &[String],
    options: &FileOptions,
    target: Option<&Schema>,
    state: &SessionState,
) -> Result<(ListingTableConfig, Schema)> {
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        match matching(path).await? {
            None => files.push((path.clone(), parse_path(path)?)),
            Some(found) if found.is_empty() => {
                return Err(Error::usage(format!("no file matches '{path}'")));
            }
            Some(found) => files.extend(located(path, found).await?),
        }
    }
    let tells_format =
        |(path, url): &&(String, ListingTableUrl)| url.is_folder() || split_ending(path).is_some();
    let first = files.iter().find(tells_format).or(files.first());
    let Some((first_path, first)) = first else {
        return Err(Error::usage("no file was named"));
    };
    let mut listing = listing_options(first_path, first, options, state).await?;
    let format = listing.format.get_ext();
    let is_text = format == "csv" || format == "json";
    let arrays = match listing.format.downcast_ref::<JsonFormat>() {
        Some(json) if is_array(json, first, &listing.file_extension, state).await? => {
            Some(JsonFormat::default().with_options(json.options().clone()))
        }
        _ => None,
    };
    let urls = files.iter().map(|(_, url)| url.clone()).collect();
    let left_out = LeftOut {
        lines: options.skipped_lines,
        misfits: options.ignore_errors,
        columns: Some(options.columns.len()).filter(|columns| *columns > 0),
    };
    if !options.columns.is_empty() {
        if let Some(csv) = listing.format.downcast_ref::<CsvFormat>()
            && left_out.is_any()
        {
            let lines = Arc::new(left_out.of(csv.options()));
            listing.format = Arc::new(RewrittenFormat::new(listing.format, lines));
        }
        let columns = options.columns.iter();
        let columns = columns.map(|(name, data_type)| {
            let data_type = type_of(data_type, state)?;
            Ok(Field::new(name, data_type, true))
        });
        let schema = Schema::new(columns.collect::<Result<Vec<_>>>()?);
        return Ok((listed(urls, listing, state).await?, schema));
    }
    let csv = listing.format.downcast_ref();
    let mut csv = csv.map(|csv| CsvFiles::new(csv, left_out.clone()));
    let mut schema = Schema::empty();
    for (path, url) in &files {
        let unreadable =
            |e: DataFusionError| Error::usage(format!("can't read '{path}': {}", Error::from(e)));
        if let Some(csv) = &mut csv {
            // The names of a table's columns are those of the file.
            let is_said = target.is_some() || !state.config_options().catalog.has_header;
            let header = options.header.or(is_said.then_some(true));
            let may_guess = options.delimiter.is_none();
            let ending = &listing.file_extension;
            let looked_at = csv.look_at(path, url, ending, header, may_guess, state);
            looked_at.await.map_err(unreadable)?;
            continue;
        }
        let inferred = match &arrays {
            Some(json) => schema_of_arrays(json, url, &listing.file_extension, state).await,
            None => {
                let inferred = listing.infer_schema(state, url).await;
                inferred.map(|inferred| inferred.as_ref().clone())
            }
        };
        let inferred = inferred.map_err(unreadable)?;
        schema = Schema::try_merge([schema, inferred]).map_err(|e| {
            Error::usage(format!(
                "the columns of '{path}' don't fit those of '{first_path}': {e}"
            ))
        })?;
    }
    if let Some(csv) = csv {
        schema = of_all(&csv.schemas)?;
        let lines = Arc::new(left_out.of(csv.format.options()));
        listing.format = match left_out.is_any() {
            true => Arc::new(RewrittenFormat::new(Arc::new(csv.format), lines)),
            false => Arc::new(csv.format),
        };
    }
    if let Some(json) = arrays {
        listing.format = Arc::new(RewrittenFormat::new(Arc::new(json), Arc::new(Arrays)));
    }
    let target = target.filter(|_| is_text);
    let schema = renamed(&schema, &options.names)?;
    let mut types = HashMap::with_capacity(options.types.len());
    for (name, data_type) in &options.types {
        if schema.field_with_name(name).is_err() {
            return Err(Error::usage(format!(
                "'{first_path}' has no column '{name}'; there are: {}",
                names_of(&schema).join(", ")
            )));
        }
        types.insert(name.as_str(), type_of(data_type, state)?);
    }
    let schema = typed(&schema, |field| {
        if let Some(data_type) = types.get(field.name().as_str()) {
            return Some(data_type.clone());
        }
        if options.all_text {
            return Some(DataType::Utf8View);
        }
        let target = target?.field_with_name(field.name()).ok()?;
        Some(type_to_read(target.data_type(), &format))
    });
    Ok((listed(urls, listing, state).await?, schema))
}

async fn listed(
    urls: Vec<ListingTableUrl>,
    listing: ListingOptions,
    state: &SessionState,
) -> Result<ListingTableConfig> {
    let config = ListingTableConfig::new_with_multi_paths(urls).with_listing_options(listing);
    let config = config.infer_partitions_from_path(state).await?;
    Ok(with_types_of_keys(config, state).await?)
}

/// The columns of CSV files.
fn of_all(files: &[(String, Schema)]) -> Result<Schema> {
    let Some(((first, schema), others)) = files.split_first() else {
        return Ok(Schema::empty());
    };
    others
        .iter()
        .try_fold(schema.clone(), |all, (file, schema)| {
            check_places(&all, schema, first, file)?;
            Ok(with_types_of(&all, schema))
        })
}

/// Refuses CSV files of other columns than the first one has: they are read by their places.
fn check_places(first: &Schema, other: &Schema, first_path: &str, path: &str) -> Result<()> {
    let (first, other) = (names_of(first), names_of(other));
    match first == other {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "'{path}' has the columns {}, and '{first_path}' has {}; CSV files of one table have the same columns \
             in one order, or write a UNION BY NAME of them",
            other.join(", "),
            first.join(", ")
        ))),
    }
}

fn names_of(schema: &Schema) -> Vec<&str> {
    let fields = schema.fields().iter();
    fields.map(|field| field.name().as_str()).collect()
}

/// The first columns under other names.
fn renamed(schema: &Schema, names: &[String]) -> Result<Schema> {
    let fields = schema.fields();
    if names.len() > fields.len() {
        return Err(Error::usage(format!(
            "{} names for {} columns",
            names.len(),
            fields.len()
        )));
    }
    let fields = fields
        .iter()
        .enumerate()
        .map(|(place, field)| match names.get(place) {
            Some(name) => Arc::new(field.as_ref().clone().with_name(name)),
            None => Arc::clone(field),
        });
    Ok(Schema::new_with_metadata(
        fields.collect::<Vec<_>>(),
        schema.metadata().clone(),
    ))
}

/// A type by its name in SQL.
fn type_of(name: &str, state: &SessionState) -> Result<DataType> {
    let cast = state.create_logical_expr(&format!("CAST(NULL AS {name})"), &DFSchema::empty());
    match cast {
        Ok(Expr::Cast(cast)) => Ok(cast.field.data_type().clone()),
        _ => Err(Error::usage(format!(
            "'{name}' is no type that a column can have"
        ))),
    }
}

/// What a name has that stands for several files.
const WILD: [char; 3] = ['*', '?', '['];

/// Whether a path stands for several files.
pub(crate) fn is_pattern(path: &str) -> bool {
    path.contains(WILD)
}

/// The files of this machine that match a pattern, by their names; `None` for what is no such pattern.
///
/// # Errors
/// [`Error::Usage`] for a pattern that is none, and for a folder that can't be read; one that may not is passed over.
pub(crate) async fn matching(path: &str) -> Result<Option<Vec<PathBuf>>> {
    if !is_pattern(path) || path.contains("://") {
        return Ok(None);
    }
    let pattern = at_home(path);
    let unreadable = |e: &dyn Display| Error::usage(format!("can't look for '{path}': {e}"));
    let search = tokio::task::spawn_blocking(move || {
        // `*` is of names; `**` is of folders.
        let options = MatchOptions {
            require_literal_separator: true,
            ..MatchOptions::new()
        };
        Ok(glob::glob_with(&pattern, options)?.collect::<Vec<_>>())
    });
    let found: std::result::Result<_, PatternError> = search.await.map_err(|e| unreadable(&e))?;
    let found = found.map_err(|e| Error::usage(format!("'{path}' is no pattern: {e}")))?;
    let mut files = Vec::with_capacity(found.len());
    for file in found {
        match file {
            Ok(file) if file.is_file() => files.push(file),
            Ok(_) => {}
            Err(error) if error.error().kind() == ErrorKind::PermissionDenied => {}
            Err(error) => return Err(unreadable(&error)),
        }
    }
    Ok(Some(files))
}

/// What to list for the files that match a pattern: each, or the folder above where folders called `key=value` are in
/// between, whose keys become columns, and all files of the name are wanted.
async fn located(path: &str, files: Vec<PathBuf>) -> Result<Vec<(String, ListingTableUrl)>> {
    let pattern = at_home(path);
    let folder = wild_part(&pattern);
    if let Some((_, name)) = pattern.rsplit_once('/')
        && pattern[folder..].starts_with('/')
        && !files.is_empty()
        && files.iter().all(|file| has_keys(file, folder))
        && let Ok(name_pattern) = Pattern::new(name)
    {
        let above = &pattern[..=folder];
        let all = Box::pin(matching(&format!("{above}**/{name}"))).await?;
        let url = std::path::absolute(above).ok();
        let url = url.and_then(|above| Url::from_directory_path(above).ok());
        if let Some(url) = url.filter(|_| all.is_some_and(|all| all.len() == files.len())) {
            let url = ListingTableUrl::try_new(url, Some(name_pattern))?;
            return Ok(vec![(path.to_owned(), url)]);
        }
    }
    let files = files
        .iter()
        .map(|file| Ok((file.to_string_lossy().into_owned(), url_of(file)?)));
    files.collect()
}

/// Where in a pattern the last folder ends that is the same for all files.
fn wild_part(pattern: &str) -> usize {
    let wild = pattern.find(WILD).unwrap_or(pattern.len());
    pattern[..wild].rfind('/').unwrap_or(0)
}

/// Whether a file is in folders behind that place of its path, all of them called `key=value`.
fn has_keys(file: &Path, place: usize) -> bool {
    let name = file.to_string_lossy();
    let below = name.get(place..).and_then(|below| below.rsplit_once('/'));
    let folders = below.map_or("", |(folders, _)| folders).trim_matches('/');
    folders.split('/').all(|folder| folder.contains('='))
}

/// A file that is there, whatever signs are in its name.
pub(crate) fn url_of(file: &Path) -> Result<ListingTableUrl> {
    let whole = std::path::absolute(file).ok();
    let url = whole.and_then(|file| Url::from_file_path(file).ok());
    let url = url.ok_or_else(|| Error::usage(format!("'{}' is no path", file.display())))?;
    Ok(ListingTableUrl::try_new(url, None)?)
}

/// A path whose `~` is the user's folder.
fn at_home(path: &str) -> String {
    match (path.strip_prefix("~/"), std::env::var("HOME")) {
        (Some(rest), Ok(home)) => format!("{home}/{rest}"),
        _ => path.to_string(),
    }
}

/// A path or URL, checked to exist where that is cheap to know.
pub(crate) fn parse_path(path: &str) -> Result<ListingTableUrl> {
    let path = at_home(path);
    if !is_pattern(&path) && !path.contains("://") && !Path::new(&path).exists() {
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
    let is_folder = url.is_folder() && url.get_glob().is_none();
    let says_nothing = url.get_glob().is_some() && split_ending(path).is_none();
    if (is_folder || says_nothing) && options.format.is_none() {
        let store = state.runtime_env().object_store(url)?;
        let mut files = url.list_all_files(state, store.as_ref(), "").await?;
        loop {
            let Some(file) = files.next().await else {
                if options.format_without_ending.is_some() {
                    break;
                }
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
        (None, None) if options.format_without_ending.is_some() => (
            options.format_without_ending.clone().unwrap_or_default(),
            None,
        ),
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
    let compression = options.compression.clone().or(compression);
    let compression = compression.filter(|compression| compression != "uncompressed");
    if let Some(compression) = &compression {
        settings.insert("format.compression".into(), compression.clone());
    }
    if *format == "csv" {
        if let Some(header) = options.header {
            settings.insert("format.has_header".into(), header.to_string());
        }
        // A comma in numbers separates no values.
        let other = (options.decimal_separator == Some(',')).then_some(';');
        if let Some(delimiter) = options.delimiter.or(other) {
            settings.insert("format.delimiter".into(), delimiter.to_string());
        }
        if let Some(null) = &options.null {
            settings.insert(
                "format.null_regex".into(),
                format!("^$|^{}$", escape_regex(null)),
            );
        }
        if options.missing_values {
            settings.insert("format.truncated_rows".into(), "true".into());
        }
        if options.newlines_in_values {
            settings.insert("format.newlines_in_values".into(), "true".into());
        }
        let signs = [
            ("format.quote", options.quote),
            ("format.escape", options.escape),
            ("format.comment", options.comment),
        ];
        let signs = signs
            .into_iter()
            .filter_map(|(key, sign)| Some((key, sign?)));
        settings.extend(signs.map(|(key, sign)| (key.to_owned(), sign.to_string())));
        if let Some(rows) = options.sample_rows {
            settings.insert("format.schema_infer_max_rec".into(), rows.to_string());
        }
    }
    let format = state
        .get_file_format_factory(format)
        .ok_or_else(unknown)?
        .create(state, &settings)?;
    // A file that was named is read whatever its ending; the ending selects among a folder's.
    let ending = if is_folder {
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

/// The format that a path's ending tells.
pub(crate) fn format_of(path: &str) -> Option<&'static str> {
    let (ending, _) = split_ending(path)?;
    let known = FORMATS.iter().find(|(known, ..)| *known == ending);
    known.map(|(_, format, _)| *format)
}

/// Says of files to be written what their names tell, and DataFusion does not read in them.
pub(crate) fn write_as_named(copy: &mut CopyToStatement) {
    let Some((ending, compression)) = split_ending(&copy.target) else {
        return;
    };
    let Some((_, format, implied)) = FORMATS.iter().find(|(known, ..)| *known == ending) else {
        return;
    };
    let said = copy.stored_as.as_deref();
    if said.is_some_and(|said| !said.eq_ignore_ascii_case(format)) {
        return;
    }
    let mut told = Vec::new();
    if said.is_none() && (ending != *format || compression.is_some()) {
        copy.stored_as = Some((*format).to_owned());
        told.extend(
            implied
                .iter()
                .map(|(key, value)| (*key, (*value).to_owned())),
        );
    }
    if ["csv", "json"].contains(format) {
        told.extend(compression.map(|compression| ("format.compression", compression)));
    }
    for (key, value) in told {
        let is_said = |said: &str| said == key || Some(said) == key.strip_prefix("format.");
        if !copy.options.iter().any(|(said, _)| is_said(said)) {
            let value = Value::SingleQuotedString(value);
            copy.options.push((key.to_owned(), value));
        }
    }
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

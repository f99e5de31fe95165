//! What CSV files say of themselves: what separates their values, whether their first line names the columns, which
//! types those have, and whether line ends stand within quotes.
//!
//! DataFusion looks at a part of a file up to any line end, also one within quotes, takes the first line for names
//! whatever stands in it, and the columns of further files for those of the first, in whatever order they stand.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::csv::ReaderBuilder;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use chrono::{NaiveTime, Timelike};
use datafusion::common::config::CsvOptions;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStore};

use crate::csv_lines::{LeftOut, Records};
use crate::rewritten_files::{Content, Rewrite, SAMPLED_ROWS, content};

/// What separates values where no commas do.
const DELIMITERS: [u8; 3] = *b";\t|";
/// Bytes of a file that are looked at, at most.
const MOST_BYTES: usize = 64 << 20;

/// What files were found to be.
#[derive(Debug)]
pub(crate) struct CsvFiles {
    /// How they are read.
    pub format: CsvFormat,
    /// Each with its columns.
    pub schemas: Vec<(String, Schema)>,
    /// What is not read of them.
    left_out: LeftOut,
}

impl CsvFiles {
    /// Of files that are read as `format` says, but for what is left out.
    pub fn new(format: &CsvFormat, left_out: LeftOut) -> Self {
        Self {
            format: CsvFormat::default().with_options(format.options().clone()),
            schemas: Vec::new(),
            left_out,
        }
    }

    /// Looks at the files of a path, which is `url`, that end so. Without `has_names` the first line of the first one
    /// says whether it names columns; with `may_guess` the lines say what separates their values.
    ///
    /// # Errors
    /// Those of the store, and where a file is no CSV.
    pub async fn look_at(
        &mut self,
        path: &str,
        url: &ListingTableUrl,
        ending: &str,
        has_names: Option<bool>,
        may_guess: bool,
        state: &SessionState,
    ) -> Result<()> {
        let store = state.runtime_env().object_store(url)?;
        let files = url.list_all_files(state, store.as_ref(), ending).await?;
        let files: Vec<ObjectMeta> = files.try_collect().await?;
        if files.is_empty() {
            return Err(DataFusionError::Plan(format!("there is no file at {url}")));
        }
        let is_one = files.len() == 1;
        for file in files.into_iter().filter(|file| file.size > 0) {
            let name = match is_one {
                true => path.to_owned(),
                false => format!("/{}", file.location),
            };
            let rows = self
                .format
                .options()
                .schema_infer_max_rec
                .unwrap_or(SAMPLED_ROWS);
            let mut beginning = self.beginning(&store, &file, rows).await?;
            if self.schemas.is_empty()
                && may_guess
                && let Some(delimiter) = beginning
                    .delimiter(self.format.options(), rows, state)
                    .await
            {
                self.change(|format| format.with_delimiter(delimiter));
                beginning = self.beginning(&store, &file, rows).await?;
            }
            let options = self.format.options();
            if self.schemas.is_empty()
                && has_names.is_none()
                && beginning.is_data(options, rows, state).await?
            {
                self.change(|format| format.with_has_header(false));
            }
            if beginning.has_line_ends {
                self.change(|format| format.with_newlines_in_values(true));
            }
            let schema = beginning.schema(&self.format, rows, state).await;
            let schema = schema.map_err(|error| match is_one {
                true => error,
                false => error.context(format!("in '{name}'")),
            })?;
            self.schemas.push((name, schema));
        }
        Ok(())
    }

    async fn beginning(
        &self,
        store: &Arc<dyn ObjectStore>,
        file: &ObjectMeta,
        rows: usize,
    ) -> Result<Beginning> {
        let options = self.format.options();
        let parts = content(store, &file.location, options.compression.into()).await?;
        let parts = self.left_out.of(options).rewritten(parts);
        Beginning::read(parts, options, rows).await
    }

    fn change(&mut self, change: impl FnOnce(CsvFormat) -> CsvFormat) {
        self.format = change(std::mem::take(&mut self.format));
    }
}

/// The types of columns that have values of both.
pub(crate) fn with_types_of(schema: &Schema, other: &Schema) -> Schema {
    let fields = schema.fields().iter().zip(other.fields());
    let fields = fields.map(|(field, other)| {
        let of = match (field.data_type(), other.data_type()) {
            (one, other) if one == other => one.clone(),
            (DataType::Null, of) | (of, DataType::Null) => of.clone(),
            (DataType::Int64, DataType::Float64) | (DataType::Float64, DataType::Int64) => {
                DataType::Float64
            }
            _ => DataType::Utf8,
        };
        Field::clone(field).with_data_type(of)
    });
    Schema::new(fields.collect::<Vec<_>>())
}

/// Whether a text is a time of day, `7:30:00.5`.
fn is_time(text: &str) -> bool {
    let mut signs = text.bytes();
    // A leap second is none of a type.
    signs.all(|byte| byte.is_ascii_digit() || b":.".contains(&byte))
        && NaiveTime::parse_from_str(text, "%H:%M:%S%.f")
            .is_ok_and(|time| time.nanosecond() < 1_000_000_000)
}

/// The first records of a file.
struct Beginning {
    text: Bytes,
    /// Whether a value of these has a line end in it.
    has_line_ends: bool,
    records: usize,
}

impl Beginning {
    async fn read(mut parts: Content, options: &CsvOptions, rows: usize) -> Result<Self> {
        let mut text = Vec::new();
        let mut records = Records::new(options, rows.saturating_add(1));
        while !records.are_enough() && text.len() < MOST_BYTES {
            let Some(part) = parts.next().await.transpose()? else {
                // The last line need not end.
                records.found += usize::from(records.end < text.len());
                records.end = text.len();
                break;
            };
            text.extend_from_slice(&part);
            records.go_on(&text);
        }
        if records.end > 0 {
            text.truncate(records.end);
        }
        Ok(Self {
            text: Bytes::from(text),
            has_line_ends: records.have_line_ends,
            records: records.found,
        })
    }

    async fn schema(
        &self,
        format: &CsvFormat,
        rows: usize,
        state: &SessionState,
    ) -> Result<Schema> {
        let text = stream::once(std::future::ready(Ok(self.text.clone())));
        let (schema, _) = format.infer_schema_from_stream(state, rows, text).await?;
        let has_header = state.config_options().catalog.has_header;
        let has_header = format.options().has_header.unwrap_or(has_header);
        Ok(self.with_times(schema, format.options(), has_header))
    }

    /// The schema with times of day where all texts are so written, which DataFusion does not look for.
    fn with_times(&self, schema: Schema, options: &CsvOptions, has_header: bool) -> Schema {
        if !self.text.contains(&b':') {
            return schema;
        }
        let texts = schema.fields().iter();
        let texts = texts.map(|field| field.as_ref().clone().with_data_type(DataType::Utf8));
        let texts = Arc::new(Schema::new(texts.collect::<Vec<_>>()));
        let mut reader = ReaderBuilder::new(texts)
            .with_header(has_header)
            .with_delimiter(options.delimiter)
            .with_quote(options.quote)
            .with_truncated_rows(options.truncated_rows.unwrap_or(false))
            .with_batch_size(self.records.max(1));
        if let Some(escape) = options.escape {
            reader = reader.with_escape(escape);
        }
        if let Some(comment) = options.comment {
            reader = reader.with_comment(comment);
        }
        let batch = reader.build(self.text.as_ref()).ok();
        // What can't be read is said where it is.
        let Some(Ok(batch)) = batch.and_then(|mut batches| batches.next()) else {
            return schema;
        };
        let fields = schema.fields().iter().zip(batch.columns());
        let fields = fields.map(|(field, texts)| {
            let texts = texts.as_string::<i32>();
            let are_times = field.data_type().is_string()
                && texts.null_count() < texts.len()
                && texts.iter().flatten().all(is_time);
            let of = match are_times {
                true => DataType::Time64(TimeUnit::Nanosecond),
                false => field.data_type().clone(),
            };
            field.as_ref().clone().with_data_type(of)
        });
        Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
    }

    /// What separates the values of all lines, where commas make one column of them, or not the same number in each.
    async fn delimiter(
        &self,
        options: &CsvOptions,
        rows: usize,
        state: &SessionState,
    ) -> Option<u8> {
        let columns = async |delimiter| {
            let format = CsvFormat::default().with_options(options.clone());
            let schema = self
                .schema(&format.with_delimiter(delimiter), rows, state)
                .await;
            schema.map_or(0, |schema| schema.fields().len())
        };
        if options.delimiter != b',' || columns(b',').await > 1 {
            return None;
        }
        for delimiter in DELIMITERS {
            if columns(delimiter).await > 1 {
                return Some(delimiter);
            }
        }
        None
    }

    /// Whether the first line has no text where those below it have none, and one value that is no text: then it names
    /// no columns.
    async fn is_data(
        &self,
        options: &CsvOptions,
        rows: usize,
        state: &SessionState,
    ) -> Result<bool> {
        let read = |has_header| {
            let format = CsvFormat::default().with_options(options.clone());
            let format = format.with_has_header(has_header);
            async move { self.schema(&format, rows, state).await }
        };
        // What can't be read is said where it is.
        let (Ok(all), Ok(below)) = (read(false).await, read(true).await) else {
            return Ok(false);
        };
        let types = all.fields().iter().zip(below.fields());
        let mut types = types.map(|(all, below)| (all.data_type(), below.data_type()));
        let is_name = |(all, below): (&DataType, &DataType)| {
            all.is_string() && !below.is_string() && !below.is_null()
        };
        let is_alike = self.records < 2 || !types.clone().any(is_name);
        Ok(is_alike && types.any(|(all, _)| !all.is_string() && !all.is_null()))
    }
}

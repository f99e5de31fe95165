//! What CSV files say of themselves: what separates their values, whether their first line names the columns, which
//! types those have, and whether line ends stand within quotes.
//!
//! DataFusion looks at a part of a file up to any line end, also one within quotes, takes the first line for names
//! whatever stands in it, and the columns of further files for those of the first, in whatever order they stand.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use datafusion::common::config::CsvOptions;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

/// Rows that are looked at where nobody says how many.
pub(crate) const SAMPLED_ROWS: usize = 1000;
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
}

impl CsvFiles {
    /// Of files that are read as `format` says.
    pub fn new(format: &CsvFormat) -> Self {
        Self {
            format: CsvFormat::default().with_options(format.options().clone()),
            schemas: Vec::new(),
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
            let mut beginning = Beginning::read(&store, &file, self.format.options(), rows).await?;
            if self.schemas.is_empty()
                && may_guess
                && let Some(delimiter) = beginning
                    .delimiter(self.format.options(), rows, state)
                    .await
            {
                self.change(|format| format.with_delimiter(delimiter));
                beginning = Beginning::read(&store, &file, self.format.options(), rows).await?;
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

    fn change(&mut self, change: impl FnOnce(CsvFormat) -> CsvFormat) {
        self.format = change(std::mem::take(&mut self.format));
    }
}

/// What is in a file when it is no longer compressed, part by part.
///
/// # Errors
/// Those of the store.
pub(crate) async fn content(
    store: &Arc<dyn ObjectStore>,
    location: &Path,
    compression: FileCompressionType,
) -> Result<BoxStream<'static, Result<Bytes>>> {
    let parts = store.get(location).await?.into_stream();
    compression.convert_stream(parts.map_err(DataFusionError::from).boxed())
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

/// The first records of a file.
struct Beginning {
    text: Bytes,
    /// Whether a value of these has a line end in it.
    has_line_ends: bool,
    records: usize,
}

impl Beginning {
    async fn read(
        store: &Arc<dyn ObjectStore>,
        file: &ObjectMeta,
        options: &CsvOptions,
        rows: usize,
    ) -> Result<Self> {
        let mut parts = content(store, &file.location, options.compression.into()).await?;
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
        Ok(schema)
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

/// Finds where records end.
struct Records {
    quote: u8,
    escape: Option<u8>,
    delimiter: u8,
    wanted: usize,
    found: usize,
    /// Behind the last one.
    end: usize,
    /// What was looked at.
    at: usize,
    place: Place,
    have_line_ends: bool,
}

/// Where in a record a byte stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    FieldBegins,
    Unquoted,
    Quoted,
    Escaped,
    /// Behind a quote that ends a value, or is the first of two that stand for one.
    Quote,
}

impl Records {
    fn new(options: &CsvOptions, wanted: usize) -> Self {
        Self {
            quote: options.quote,
            escape: options.escape,
            delimiter: options.delimiter,
            wanted,
            found: 0,
            end: 0,
            at: 0,
            place: Place::FieldBegins,
            have_line_ends: false,
        }
    }

    fn are_enough(&self) -> bool {
        self.found >= self.wanted
    }

    /// Looks at what of `text` is new.
    fn go_on(&mut self, text: &[u8]) {
        while let Some(byte) = text.get(self.at).copied().filter(|_| !self.are_enough()) {
            self.at += 1;
            self.place = match self.place {
                Place::Escaped => Place::Quoted,
                Place::Quoted if Some(byte) == self.escape => Place::Escaped,
                Place::Quoted if byte == self.quote => Place::Quote,
                Place::Quoted => {
                    self.have_line_ends |= byte == b'\n';
                    Place::Quoted
                }
                Place::FieldBegins | Place::Quote if byte == self.quote => Place::Quoted,
                _ if byte == b'\n' => {
                    self.found += 1;
                    self.end = self.at;
                    Place::FieldBegins
                }
                _ if byte == self.delimiter => Place::FieldBegins,
                _ => Place::Unquoted,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_end_where_quotes_do() {
        let text = b"a,b\n1,\"x\ny\"\n2,\"\"\"\n\"\n3,5\" pipe\n4,\"\"\n";
        for part in 1..text.len() {
            let mut records = Records::new(&CsvOptions::default(), usize::MAX);
            let mut ends = Vec::new();
            for end in (part..text.len()).step_by(part).chain([text.len()]) {
                let before = records.found;
                records.go_on(&text[..end]);
                ends.extend((records.found > before).then_some(records.end));
            }
            assert_eq!((records.found, records.end), (5, text.len()), "{part}");
            assert!(records.have_line_ends);
            let of_records = [4, 12, 20, 30, text.len()];
            assert!(ends.iter().all(|end| of_records.contains(end)), "{ends:?}");
        }
    }
}

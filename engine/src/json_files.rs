//! JSON files that are one array, `[{…}, {…}]`, over as many lines as they like, rather than a value in each line.
//!
//! DataFusion's reader of arrays takes a line for a value, passes over what stands behind the array, and is given parts
//! of large files, which it refuses. So its reader of lines gets the elements of the array in lines.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::json::reader::infer_json_schema;
use bytes::{Buf, Bytes};
use datafusion::catalog::Session;
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::{
    FileOpener, FileScanConfig, FileScanConfigBuilder, FileSource,
};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use flashmesh_macros::async_impl;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use crate::csv_files::{SAMPLED_ROWS, content};

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Whether the first of the files at `url` that says anything is an array.
///
/// # Errors
/// Those of the store, and of what is not compressed as `format` says.
pub(crate) async fn is_array(
    format: &JsonFormat,
    url: &ListingTableUrl,
    ending: &str,
    state: &SessionState,
) -> Result<bool> {
    let store = state.runtime_env().object_store(url)?;
    let compression = FileCompressionType::from(format.options().compression);
    let mut files = url.list_all_files(state, store.as_ref(), ending).await?;
    while let Some(file) = files.try_next().await? {
        let mut parts = content(&store, &file.location, compression).await?;
        while let Some(part) = parts.try_next().await? {
            let is_blank = |byte: &u8| byte.is_ascii_whitespace() || BYTE_ORDER_MARK.contains(byte);
            if let Some(first) = part.iter().find(|byte| !is_blank(byte)) {
                return Ok(*first == b'[');
            }
        }
    }
    Ok(false)
}

/// The format of such files.
#[derive(Debug)]
pub(crate) struct JsonArrays(JsonFormat);

impl JsonArrays {
    /// With the options of `format`.
    pub fn new(format: &JsonFormat) -> Self {
        Self(JsonFormat::default().with_options(format.options().clone()))
    }
}

#[async_impl]
impl FileFormat for JsonArrays {
    fn get_ext(&self) -> String {
        self.0.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.0.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.0.compression_type()
    }

    async fn infer_schema(
        &self,
        _: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        files: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        let options = self.0.options();
        let most = options.schema_infer_max_rec.unwrap_or(SAMPLED_ROWS);
        let mut text = Vec::new();
        let mut left = most;
        for file in files {
            let content = content(store, &file.location, options.compression.into()).await?;
            let mut lines = lines(content);
            while left > 0
                && let Some(part) = lines.try_next().await?
            {
                text.extend_from_slice(&part);
                left = left.saturating_sub(part.iter().filter(|byte| **byte == b'\n').count());
            }
        }
        let (schema, _) = infer_json_schema(text.reader(), Some(most))?;
        Ok(Arc::new(schema))
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        file: &ObjectMeta,
    ) -> Result<Statistics> {
        self.0.infer_stats(state, store, schema, file).await
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.create_physical_plan(state, config).await
    }

    fn file_source(&self, schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(ArraySource(self.0.file_source(schema)))
    }
}

/// Reads each file from its beginning to its end, in lines.
struct ArraySource(Arc<dyn FileSource>);

impl FileSource for ArraySource {
    fn supports_repartitioning(&self) -> bool {
        false
    }

    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let compression = config.file_compression_type;
        let plain = FileCompressionType::UNCOMPRESSED;
        let config = FileScanConfigBuilder::from(config.clone()).with_file_compression_type(plain);
        let lines = Arc::new(Lines { store, compression });
        self.0.create_file_opener(lines, &config.build(), partition)
    }

    fn table_schema(&self) -> &TableSchema {
        self.0.table_schema()
    }

    fn with_batch_size(&self, rows: usize) -> Arc<dyn FileSource> {
        Arc::new(Self(self.0.with_batch_size(rows)))
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.0.projection()
    }

    fn try_pushdown_projection(
        &self,
        projection: &ProjectionExprs,
    ) -> Result<Option<Arc<dyn FileSource>>> {
        let source = self.0.try_pushdown_projection(projection)?;
        Ok(source.map(|source| Arc::new(Self(source)) as _))
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.0.metrics()
    }

    fn file_type(&self) -> &str {
        self.0.file_type()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.0.apply_expressions(f)
    }
}

/// A store whose objects are arrays, which are read in lines, and not compressed.
#[derive(Debug)]
struct Lines {
    store: Arc<dyn ObjectStore>,
    compression: FileCompressionType,
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "elements of arrays in {}", self.store)
    }
}

type Stored<T> = object_store::Result<T>;

#[async_impl]
impl ObjectStore for Lines {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Stored<GetResult> {
        let found = self.store.get_opts(location, options).await?;
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let attributes = found.attributes.clone();
        let parts = found.into_stream().map_err(DataFusionError::from).boxed();
        let content = self.compression.convert_stream(parts).map_err(unreadable)?;
        let payload = GetResultPayload::Stream(lines(content).map_err(unreadable).boxed());
        Ok(GetResult {
            payload,
            meta,
            range,
            attributes,
        })
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Stored<PutResult> {
        self.store.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Stored<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Stored<Path>>,
    ) -> BoxStream<'static, Stored<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Stored<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Stored<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Stored<()> {
        self.store.copy_opts(from, to, options).await
    }
}

fn unreadable(error: DataFusionError) -> object_store::Error {
    object_store::Error::Generic {
        store: "JSON",
        source: Box::new(error),
    }
}

/// The elements of an array, each in a line.
fn lines(content: BoxStream<'static, Result<Bytes>>) -> BoxStream<'static, Result<Bytes>> {
    let state = (content, Some(Elements::default()));
    let parts = stream::try_unfold(state, |(mut content, elements)| async {
        let Some(mut elements) = elements else {
            return Ok(None);
        };
        let Some(part) = content.try_next().await? else {
            elements.end()?;
            return Ok(Some((Bytes::from_static(b"\n"), (content, None))));
        };
        let mut lines = Vec::with_capacity(part.len());
        elements.go_on(&part, &mut lines)?;
        Ok(Some((Bytes::from(lines), (content, Some(elements)))))
    });
    parts.boxed()
}

/// Finds where the elements of an array end.
#[derive(Debug, Default)]
struct Elements {
    place: Place,
    /// Arrays and objects around a byte, but for the array itself.
    depth: usize,
}

/// Where in an array a byte stands.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Before,
    /// Where an element begins, or the array ends.
    First,
    Element,
    Text,
    Escaped,
    /// Where an element has to begin.
    Next,
    Behind,
}

impl Elements {
    fn go_on(&mut self, text: &[u8], lines: &mut Vec<u8>) -> Result<()> {
        for byte in text.iter().copied() {
            let is_blank = byte.is_ascii_whitespace();
            self.place = match (self.place, byte) {
                (Place::Escaped, _) => Place::Text,
                (Place::Text, b'\\') => Place::Escaped,
                (Place::Text, b'"') => Place::Element,
                (Place::Text, _) => Place::Text,
                // What ends a line would end the value.
                _ if is_blank => {
                    lines.push(b' ');
                    continue;
                }
                (Place::Before, b'[') => {
                    self.place = Place::First;
                    continue;
                }
                (Place::Before, _) if BYTE_ORDER_MARK.contains(&byte) => continue,
                (Place::Before | Place::Behind, _) => {
                    return Err(DataFusionError::Plan(
                        "a JSON file is one array, or has a value in each line; this has more than an array"
                            .into(),
                    ));
                }
                (Place::First | Place::Element, b']') if self.depth == 0 => {
                    self.place = Place::Behind;
                    continue;
                }
                (Place::Element, b',') if self.depth == 0 => {
                    self.place = Place::Next;
                    lines.push(b'\n');
                    continue;
                }
                (Place::First | Place::Next, b',' | b']' | b'}') => {
                    return Err(DataFusionError::Plan(
                        "an element is missing in a JSON array".into(),
                    ));
                }
                (_, b'"') => Place::Text,
                (_, b'[' | b'{') => {
                    self.depth += 1;
                    Place::Element
                }
                (_, b']' | b'}') => {
                    self.depth = self.depth.saturating_sub(1);
                    Place::Element
                }
                _ => Place::Element,
            };
            lines.push(byte);
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        match self.place {
            Place::Before | Place::Behind => Ok(()),
            _ => Err(DataFusionError::Plan(
                "a JSON array has no end: the file is cut off, or is no array".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_lines(text: &str, part: usize) -> Result<String> {
        let mut elements = Elements::default();
        let mut lines = Vec::new();
        for part in text.as_bytes().chunks(part) {
            elements.go_on(part, &mut lines)?;
        }
        elements.end()?;
        Ok(String::from_utf8(lines).expect("text"))
    }

    #[test]
    fn elements_are_lines() {
        let text = "\u{FEFF} [{\"a\": [1,\n2], \"b]\": \"},\\\"[\"},\r\n3 , \"x\"]\n";
        let expected = " {\"a\": [1, 2], \"b]\": \"},\\\"[\"}\n  3 \n \"x\" ";
        for part in 1..text.len() {
            assert_eq!(in_lines(text, part).unwrap(), expected, "{part}");
        }
        assert_eq!(in_lines("[]", 1).unwrap(), "");
        assert_eq!(in_lines("", 1).unwrap(), "");
    }

    #[test]
    fn what_is_no_array_is_an_error() {
        for (text, why) in [
            ("[1] [2]", "more than an array"),
            ("x[1]", "more than an array"),
            ("[1,]", "an element is missing"),
            ("[,1]", "an element is missing"),
            ("[{\"a\": 1}", "no end"),
            ("[\"]", "no end"),
        ] {
            let error = in_lines(text, 3).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}

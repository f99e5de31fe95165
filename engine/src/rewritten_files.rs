//! Files of which a format's reader gets another text than what stands in them: the elements of an array in lines, or
//! the lines of a CSV file that are rows.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Statistics, internal_err};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::physical_plan::{
    FileOpener, FileScanConfig, FileScanConfigBuilder, FileSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use flashmesh_macros::async_impl;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

/// Rows that are looked at where nobody says how many, to find what columns there are.
pub(crate) const SAMPLED_ROWS: usize = 1000;

/// What is in a file that is not compressed, part by part.
pub(crate) type Content = BoxStream<'static, Result<Bytes>>;

/// What is in a file when it is no longer compressed.
///
/// # Errors
/// Those of the store.
pub(crate) async fn content(
    store: &Arc<dyn ObjectStore>,
    location: &Path,
    compression: FileCompressionType,
) -> Result<Content> {
    let parts = store.get(location).await?.into_stream();
    compression.convert_stream(parts.map_err(DataFusionError::from).boxed())
}

/// Makes the text that is read of the one that is in a file.
pub(crate) trait Rewrite: fmt::Debug + Send + Sync {
    fn rewritten(&self, content: Content) -> Content;
}

/// A format whose files are rewritten. Each is read from its beginning to its end.
#[derive(Debug)]
pub(crate) struct RewrittenFormat {
    format: Arc<dyn FileFormat>,
    rewrite: Arc<dyn Rewrite>,
}

impl RewrittenFormat {
    /// Files of `format`, rewritten.
    pub fn new(format: Arc<dyn FileFormat>, rewrite: Arc<dyn Rewrite>) -> Self {
        Self { format, rewrite }
    }
}

#[async_impl]
impl FileFormat for RewrittenFormat {
    fn get_ext(&self) -> String {
        self.format.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.format.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.format.compression_type()
    }

    async fn infer_schema(
        &self,
        _: &dyn Session,
        _: &Arc<dyn ObjectStore>,
        _: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        internal_err!("the columns of rewritten files are known before")
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        file: &ObjectMeta,
    ) -> Result<Statistics> {
        self.format.infer_stats(state, store, schema, file).await
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // Formats look for a source of their own.
        let plan = self.format.create_physical_plan(state, config).await?;
        let scan = plan.downcast_ref::<DataSourceExec>();
        let config = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
        let Some(config) = config else {
            return internal_err!("a file is read by {}", plan.name());
        };
        let source = RewrittenSource {
            source: Arc::clone(config.file_source()),
            rewrite: Arc::clone(&self.rewrite),
        };
        let config = FileScanConfigBuilder::from(config.clone()).with_source(Arc::new(source));
        Ok(DataSourceExec::from_data_source(config.build()))
    }

    fn file_source(&self, schema: TableSchema) -> Arc<dyn FileSource> {
        self.format.file_source(schema)
    }
}

/// Reads each file from its beginning to its end.
struct RewrittenSource {
    source: Arc<dyn FileSource>,
    rewrite: Arc<dyn Rewrite>,
}

impl RewrittenSource {
    fn of(&self, source: Arc<dyn FileSource>) -> Arc<dyn FileSource> {
        let rewrite = Arc::clone(&self.rewrite);
        Arc::new(Self { source, rewrite })
    }
}

impl FileSource for RewrittenSource {
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
        let rewrite = Arc::clone(&self.rewrite);
        let store = Arc::new(RewrittenStore {
            store,
            compression,
            rewrite,
        });
        self.source
            .create_file_opener(store, &config.build(), partition)
    }

    fn table_schema(&self) -> &TableSchema {
        self.source.table_schema()
    }

    fn with_batch_size(&self, rows: usize) -> Arc<dyn FileSource> {
        self.of(self.source.with_batch_size(rows))
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.source.projection()
    }

    fn try_pushdown_projection(
        &self,
        projection: &ProjectionExprs,
    ) -> Result<Option<Arc<dyn FileSource>>> {
        let source = self.source.try_pushdown_projection(projection)?;
        Ok(source.map(|source| self.of(source)))
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.source.metrics()
    }

    fn file_type(&self) -> &str {
        self.source.file_type()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.source.apply_expressions(f)
    }
}

/// A store whose objects are read as they are rewritten, and not compressed.
#[derive(Debug)]
struct RewrittenStore {
    store: Arc<dyn ObjectStore>,
    compression: FileCompressionType,
    rewrite: Arc<dyn Rewrite>,
}

impl fmt::Display for RewrittenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rewritten files of {}", self.store)
    }
}

type Stored<T> = object_store::Result<T>;

#[async_impl]
impl ObjectStore for RewrittenStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Stored<GetResult> {
        let found = self.store.get_opts(location, options).await?;
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let attributes = found.attributes.clone();
        let parts = found.into_stream().map_err(DataFusionError::from).boxed();
        let content = self.compression.convert_stream(parts).map_err(unreadable)?;
        let content = self.rewrite.rewritten(content);
        let payload = GetResultPayload::Stream(content.map_err(unreadable).boxed());
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
        store: "rewritten files",
        source: Box::new(error),
    }
}

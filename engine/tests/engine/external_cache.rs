//! External files through the cache: what is fetched, that nothing is stale, who sees what.

use std::fmt;
use std::ops::Range;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::execution::object_store::{
    DefaultObjectStoreRegistry, ObjectStoreRegistry, ObjectStoreUrl,
};
use flashmesh::{Engine, EngineOptions, FunctionGrants, Grant, Principal, RightName, Session};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use rand::{Rng as _, RngExt};
use tempfile::TempDir;
use tokio::sync::Barrier;
use url::Url;

use crate::support::{error, random, rows, run};

const BUCKET: &str = "s3://bucket";

/// A store of which all objects were modified at one time, which counts what is asked of it.
#[derive(Debug, Default)]
struct Bucket {
    inner: InMemory,
    gets: AtomicU64,
    heads: AtomicU64,
    /// Requests wait until so many have come.
    barrier: Option<Barrier>,
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bucket")
    }
}

impl Bucket {
    /// Requests for data since the last call.
    fn take_gets(&self) -> u64 {
        self.gets.swap(0, Ordering::SeqCst)
    }

    async fn put_bytes(&self, path: &str, bytes: &[u8]) {
        let payload = PutPayload::from(bytes.to_vec());
        self.inner.put(&Path::from(path), payload).await.unwrap();
    }

    async fn bytes(&self, path: &str) -> Bytes {
        let got = self.inner.get(&Path::from(path)).await.unwrap();
        got.bytes().await.unwrap()
    }
}

fn at_one_time(mut meta: ObjectMeta) -> ObjectMeta {
    meta.last_modified = SystemTime::UNIX_EPOCH.into();
    meta
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, at: &Path, data: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(at, data, how).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        match options.head {
            true => self.heads.fetch_add(1, Ordering::SeqCst),
            false => self.gets.fetch_add(1, Ordering::SeqCst),
        };
        if let (Some(barrier), false) = (&self.barrier, options.head) {
            barrier.wait().await;
        }
        let mut result = self.inner.get_opts(at, options).await?;
        result.meta = at_one_time(result.meta);
        Ok(result)
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(all)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix).map_ok(at_one_time).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        listed.objects = listed.objects.into_iter().map(at_one_time).collect();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn engine(folder: &FilePath, bucket: &Arc<Bucket>, options: EngineOptions) -> Arc<Engine> {
    let stores = DefaultObjectStoreRegistry::new();
    stores.register_store(&Url::parse(BUCKET).unwrap(), Arc::clone(bucket) as _);
    let options = EngineOptions {
        path: Some(folder.to_path_buf()),
        object_stores: Some(Arc::new(stores)),
        ..options
    };
    Engine::open(options).unwrap()
}

fn open(folder: &FilePath, bucket: &Arc<Bucket>) -> Session {
    let engine = engine(folder, bucket, EngineOptions::default());
    engine.session().unwrap()
}

/// The session's own way to the bucket.
fn through(session: &Session) -> Arc<dyn ObjectStore> {
    let url = ObjectStoreUrl::parse(BUCKET).unwrap();
    let environment = session.context().runtime_env();
    environment.object_store(url).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_query_fetches_nothing_also_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::<Bucket>::default();
    let make = |from: u32| {
        format!(
            "SELECT value AS a, 'text ' || (value % 100) AS b FROM generate_series({from}, {}) AS s(value)",
            from + 20_000
        )
    };
    let queries = [
        "SELECT count(*), sum(a), min(b), max(a) FROM e",
        "SELECT a, b FROM e WHERE a % 1000 = 17 ORDER BY a",
        "SELECT count(DISTINCT b) FROM e WHERE a > 12345",
    ];
    for (format, options) in [
        ("PARQUET", ""),
        ("CSV", "OPTIONS ('format.has_header' 'true')"),
        ("JSON", ""),
    ] {
        let ending = format.to_lowercase();
        let session = open(folder.path(), &bucket);
        let copy = |from: u32, to: &str| {
            format!(
                "COPY ({}) TO '{BUCKET}/{to}.{ending}' STORED AS {format} {options}",
                make(from)
            )
        };
        let of_this_format = |sql: &str| sql.replace(" e", &format!(" {ending}"));
        run(&session, &copy(0, &format!("{ending}/1"))).await;
        run(&session, &copy(50_000, &format!("{ending}/2"))).await;
        run(&session, &copy(100_000, "new")).await;
        let create = format!(
            "CREATE EXTERNAL TABLE {ending} STORED AS {format} LOCATION '{BUCKET}/{ending}/' {options}"
        );
        let plain = format!(
            "CREATE TABLE plain_{ending} AS {} UNION ALL {}",
            make(0),
            make(50_000)
        );
        run(&session, &plain).await;
        run(&session, &create).await;
        let mut answers = Vec::new();
        for query in queries {
            let expected = query.replace(" e", &format!(" plain_{ending}"));
            let found = rows(&session, &of_this_format(query)).await;
            assert_eq!(found, rows(&session, &expected).await, "{format}: {query}");
            answers.push(found);
        }
        assert!(bucket.take_gets() > 0);
        for (query, answer) in queries.iter().zip(&answers) {
            assert_eq!(&rows(&session, &of_this_format(query)).await, answer);
            assert_eq!(bucket.take_gets(), 0, "{format}: {query}");
        }
        drop(session);
        let session = open(folder.path(), &bucket);
        run(&session, &create).await;
        for (query, answer) in queries.iter().zip(&answers) {
            assert_eq!(&rows(&session, &of_this_format(query)).await, answer);
        }
        assert_eq!(bucket.take_gets(), 0, "{format} after a restart");
        // Somebody else replaces a file: its size may be the same, its time is.
        let other = bucket.bytes(&format!("new.{ending}")).await;
        bucket
            .put_bytes(&format!("{ending}/2.{ending}"), &other)
            .await;
        run(&session, &format!("DROP TABLE plain_{ending}")).await;
        run(&session, &plain.replace(&make(50_000), &make(100_000))).await;
        for query in queries {
            let expected = query.replace(" e", &format!(" plain_{ending}"));
            let expected = rows(&session, &expected).await;
            assert_eq!(
                rows(&session, &of_this_format(query)).await,
                expected,
                "{format}"
            );
        }
        assert!(bucket.take_gets() > 0);
        // What the session writes it reads.
        run(&session, &copy(50_000, &format!("{ending}/2"))).await;
        for (query, answer) in queries.iter().zip(&answers) {
            assert_eq!(&rows(&session, &of_this_format(query)).await, answer);
        }
        let at = Path::from(format!("{ending}/2.{ending}"));
        bucket.inner.delete(&at).await.unwrap();
        let count = rows(&session, &of_this_format("SELECT count(*) FROM e")).await;
        assert_eq!(count, ["20001"], "{format}");
        bucket.take_gets();
    }
}

/// A file of the same size, from the same second: footers, statistics and rows are the new ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_same_size_and_time_is_told_by_its_tag() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::<Bucket>::default();
    let session = open(folder.path(), &bucket);
    for (name, from) in [("old", 1000), ("new", 5000)] {
        let sql = format!(
            "COPY (SELECT value AS a FROM generate_series({from}, {}) AS s(value)) TO '{BUCKET}/{name}.parquet'
             OPTIONS ('format.compression' 'uncompressed', 'format.dictionary_enabled' 'false')",
            from + 99
        );
        run(&session, &sql).await;
    }
    let (old, new) = (
        bucket.bytes("old.parquet").await,
        bucket.bytes("new.parquet").await,
    );
    assert_eq!(old.len(), new.len());
    let create = format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{BUCKET}/x.parquet'");
    bucket.put_bytes("x.parquet", &old).await;
    run(&session, &create).await;
    let others = session.engine().session().unwrap();
    run(&others, &create).await;
    for (bytes, least) in [(&old, "1000"), (&new, "5000"), (&old, "1000")] {
        bucket.put_bytes("x.parquet", bytes).await;
        for session in [&session, &others] {
            for query in [
                "SELECT min(a) FROM t",
                "SELECT a FROM t ORDER BY a LIMIT 1",
                &format!("SELECT a FROM t WHERE a = {least}"),
                &format!("SELECT min(a) FROM '{BUCKET}/x.parquet'"),
            ] {
                assert_eq!(rows(session, query).await, [least], "{query}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_reads_find_what_the_store_has() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::<Bucket>::default();
    let mut random = random();
    let options = || EngineOptions {
        // Eight regions: less than there is.
        external_cache_bytes: Some(16 << 20),
        ..EngineOptions::default()
    };
    let mut session = engine(folder.path(), &bucket, options()).session().unwrap();
    let mut objects: Vec<Vec<u8>> = Vec::new();
    let some = |random: &mut rand::rngs::StdRng| {
        let size = [10, 5_000, 520_192, 600_000, 3_000_000][random.random_range(0..5)];
        let mut bytes = vec![0; random.random_range(1..=size)];
        random.fill_bytes(&mut bytes);
        bytes
    };
    for number in 0..8 {
        objects.push(some(&mut random));
        bucket
            .put_bytes(&format!("o/{number}"), &objects[number])
            .await;
    }
    for _ in 0..150 {
        let number = random.random_range(0..objects.len());
        let path = Path::from(format!("o/{number}"));
        match random.random_range(0..12) {
            0 => {
                objects[number] = some(&mut random);
                bucket.put_bytes(path.as_ref(), &objects[number]).await;
                // As the next statement begins.
                run(&session, "SELECT 1").await;
            }
            1 => {
                objects[number] = some(&mut random);
                let payload = PutPayload::from(objects[number].clone());
                through(&session).put(&path, payload).await.unwrap();
            }
            2 => {
                bucket.inner.delete(&path).await.unwrap();
                run(&session, "SELECT 1").await;
                let found = through(&session).get(&path).await;
                assert!(matches!(found, Err(Error::NotFound { .. })));
                bucket.put_bytes(path.as_ref(), &objects[number]).await;
            }
            3 => {
                drop(session);
                session = engine(folder.path(), &bucket, options()).session().unwrap();
            }
            4 => {
                let listed: Vec<_> = through(&session).list(None).try_collect().await.unwrap();
                assert_eq!(listed.len(), objects.len());
            }
            _ => {}
        }
        let (store, whole) = (through(&session), &objects[number]);
        let ranges: Vec<Range<u64>> = (0..random.random_range(1..5))
            .map(|_| {
                let start = random.random_range(0..whole.len());
                let end = random.random_range(start + 1..=whole.len() + 10);
                start as u64..end as u64
            })
            .collect();
        let of =
            |range: &Range<u64>| &whole[range.start as usize..whole.len().min(range.end as usize)];
        match random.random_range(0..3) {
            0 => {
                let found = store.get_ranges(&path, &ranges).await.unwrap();
                for (range, found) in ranges.iter().zip(found) {
                    assert_eq!(found, of(range));
                }
            }
            1 => {
                let found = store.get_range(&path, ranges[0].clone()).await.unwrap();
                assert_eq!(found, of(&ranges[0]));
            }
            _ => {
                let found = store.get(&path).await.unwrap();
                assert_eq!(found.meta.size, whole.len() as u64);
                assert_eq!(found.bytes().await.unwrap(), whole);
            }
        }
        let stats = session.engine().database().block_cache().unwrap().stats();
        assert!(stats.used_bytes <= stats.capacity_bytes, "{stats:?}");
    }
    let stats = session.engine().database().block_cache().unwrap().stats();
    assert_eq!(stats.damaged, 0);
}

/// A statement that has seen one version never gets bytes of another, nor of both.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_changes_while_it_is_read_is_an_error() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::<Bucket>::default();
    let session = open(folder.path(), &bucket);
    let path = Path::from("x");
    let (old, new) = (vec![1; 1_500_000], vec![2; 1_500_000]);
    bucket.put_bytes("x", &old).await;
    let store = through(&session);
    store.head(&path).await.unwrap();
    assert_eq!(store.get_range(&path, 0..5).await.unwrap(), &old[..5]);
    bucket.put_bytes("x", &new).await;
    // What is cached is of the version that was seen.
    assert_eq!(store.get_range(&path, 7..9).await.unwrap(), &old[7..9]);
    let error = store.get_range(&path, 1_400_000..1_400_005).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    assert!(
        error.to_string().contains("run the statement again"),
        "{error}"
    );
    // It knows better now.
    assert_eq!(store.get_range(&path, 0..5).await.unwrap(), &new[..5]);
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), new);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_one_block_are_one_and_neighbours_come_together() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::<Bucket>::default();
    let bytes = vec![7; 4_000_000];
    bucket.put_bytes("x", &bytes).await;
    let session = open(folder.path(), &bucket);
    let path = Path::from("x");
    let reads = (0..20).map(|_| {
        let (session, path) = (session.clone(), path.clone());
        tokio::spawn(async move {
            let store = through(&session);
            store.get_range(&path, 100..200).await.unwrap()
        })
    });
    for read in reads.collect::<Vec<_>>() {
        assert_eq!(read.await.unwrap(), &bytes[100..200]);
    }
    assert_eq!(bucket.take_gets(), 1);
    // The rest of all blocks but the first.
    let store = through(&session);
    let found = store.get_range(&path, 0..4_000_000).await.unwrap();
    assert_eq!(found, bytes);
    let gets = bucket.take_gets();
    // What is read ahead of a stream grows: 1, 2, 4 blocks.
    assert!(gets <= 3, "{gets}");
    let found = store
        .get_ranges(&path, &[0..4_000_000, 5..6])
        .await
        .unwrap();
    assert_eq!((found[0].len(), found[1].len()), (4_000_000, 1));
    assert_eq!(bucket.take_gets(), 0);
}

/// What a stream waits for is fetched whoever polls it: of two that want the same blocks the one
/// that is read to its end does not wait for the one that nobody reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_nobody_reads_holds_up_no_other() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::new(Bucket {
        barrier: Some(Barrier::new(1)),
        ..Bucket::default()
    });
    bucket.put_bytes("x", &vec![7; 6_000_000]).await;
    let session = open(folder.path(), &bucket);
    let store = through(&session);
    let path = Path::from("x");
    let mut first = store.get(&path).await.unwrap().into_stream();
    let begun = first.next().await.unwrap().unwrap();
    let whole = store.get(&path).await.unwrap().bytes().await.unwrap();
    assert_eq!(whole.len(), 6_000_000);
    let rest: usize = first
        .map_ok(|bytes| bytes.len())
        .try_fold(0, |a, b| async move { Ok(a + b) })
        .await
        .unwrap();
    assert_eq!(begun.len() + rest, 6_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn admins_see_and_clear_it_and_users_reach_nothing_through_it() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::<Bucket>::default();
    bucket.put_bytes("t.csv", b"a,b\n1,2\n3,4\n").await;
    let engine = engine(folder.path(), &bucket, EngineOptions::default());
    let admin = engine.session().unwrap();
    let query = format!("SELECT sum(a), sum(b) FROM '{BUCKET}/t.csv'");
    for _ in 0..3 {
        assert_eq!(rows(&admin, &query).await, ["4 6"]);
    }
    let look = "SELECT store, path, size_bytes, cached_bytes, hits > 0, misses, last_used <= now() FROM system.cache";
    assert_eq!(
        rows(&admin, look).await,
        ["s3://bucket t.csv 12 12 true 1 true"]
    );
    let all = Grant {
        tables: "*".to_string().try_into().unwrap(),
        rights: vec![RightName::Read, RightName::Write, RightName::Create],
    };
    let ada = Principal::user("ada", vec![all], FunctionGrants::default());
    let ada = engine.session_for(Arc::new(ada)).unwrap();
    bucket.take_gets();
    assert!(ada.sql(&query).await.is_err());
    assert_eq!(bucket.take_gets(), 0);
    let url = ObjectStoreUrl::parse(BUCKET).unwrap();
    assert!(ada.context().runtime_env().object_store(url).is_err());
    assert_eq!(rows(&ada, "SELECT count(*) FROM system.cache").await, ["0"]);
    for sql in ["CLEAR CACHE", "CALL clear_cache()"] {
        let refused = error(&ada, sql).await;
        assert!(refused.contains("may not"), "{refused}");
    }
    assert_eq!(rows(&admin, look).await.len(), 1);
    for sql in ["clear cache", "CALL clear_cache()"] {
        assert_eq!(rows(&admin, &query).await, ["4 6"]);
        run(&admin, sql).await;
        assert_eq!(
            rows(&admin, "SELECT count(*) FROM system.cache").await,
            ["0"]
        );
        bucket.take_gets();
        assert_eq!(rows(&admin, &query).await, ["4 6"]);
        assert!(bucket.take_gets() > 0);
    }
    for (sql, what) in [
        ("CLEAR", "CACHE"),
        ("CLEAR TABLE", "CACHE"),
        ("CALL clear_cache(1)", "no arguments"),
    ] {
        let message = error(&admin, sql).await;
        assert!(message.contains(what), "{sql}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_can_be_off_and_files_of_the_machine_are_asked_for() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::<Bucket>::default();
    bucket.put_bytes("t.csv", b"a,b\n1,2\n3,4\n").await;
    let file = folder.path().join("t.csv");
    std::fs::write(&file, "a,b\n1,2\n").unwrap();
    let local = format!("SELECT a, b FROM '{}'", file.display());
    let remote = format!("SELECT sum(a) FROM '{BUCKET}/t.csv'");
    let database = folder.path().join("database");
    for (bytes, local_files, cached) in [
        (None, false, &["t.csv"][..]),
        (Some(0), true, &[]),
        (Some(32 << 20), true, &["local", "t.csv"]),
        (None, false, &["local", "t.csv"]),
    ] {
        let options = EngineOptions {
            external_cache_bytes: bytes,
            cache_local_files: local_files,
            ..EngineOptions::default()
        };
        let engine = engine(&database, &bucket, options);
        let session = engine.session().unwrap();
        assert_eq!(engine.database().block_cache().is_some(), bytes != Some(0));
        for _ in 0..2 {
            assert_eq!(rows(&session, &local).await, ["1 2"]);
            assert_eq!(rows(&session, &remote).await, ["4"]);
        }
        let look = "SELECT CASE store WHEN 'file://' THEN 'local' ELSE path END AS c FROM system.cache ORDER BY c";
        assert_eq!(
            rows(&session, look).await,
            cached,
            "{bytes:?}, {local_files}"
        );
        // Of the size that it had.
        if local_files {
            std::fs::write(&file, "a,b\n7,8\n").unwrap();
            assert_eq!(rows(&session, &local).await, ["7 8"]);
            std::fs::write(&file, "a,b\n1,2\n").unwrap();
        }
    }
    let read_only = EngineOptions {
        read_only: true,
        ..EngineOptions::default()
    };
    let engine = engine(&database, &bucket, read_only);
    let session = engine.session().unwrap();
    assert_eq!(rows(&session, &remote).await, ["4"]);
    assert!(engine.database().block_cache().is_none());
}

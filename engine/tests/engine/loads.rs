//! Loading files and Arrow data.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use flashmesh::{FileOptions, LoadMode, LoadProgress, Result, Session};

use crate::support::{rows, session};

async fn load(
    session: &Session,
    file: &Path,
    options: &FileOptions,
    mode: LoadMode,
) -> Result<u64> {
    session
        .load_files(
            "t",
            &[file.display().to_string()],
            options,
            mode,
            Arc::default(),
        )
        .await
}

#[tokio::test]
async fn text_is_read_as_the_table_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.csv");
    std::fs::write(&file, "code,price,day\n007,1.10,2020-02-29\n042,,\n").unwrap();
    let session = session();
    session
        .sql("CREATE TABLE t (day DATE, code TEXT, price DECIMAL(9, 3), note TEXT)")
        .await
        .unwrap();
    // By name, in any order; what the file lacks is NULL.
    assert_eq!(
        load(&session, &file, &FileOptions::default(), LoadMode::Append)
            .await
            .unwrap(),
        2
    );
    assert_eq!(
        rows(&session, "SELECT * FROM t ORDER BY code").await,
        ["2020-02-29 007 1.100 ", " 042  "]
    );
    // Without a table to say so, a code of digits is a number.
    load(&session, &file, &FileOptions::default(), LoadMode::Replace)
        .await
        .unwrap();
    assert_eq!(
        rows(&session, "SELECT code FROM t ORDER BY code").await,
        ["7", "42"]
    );
}

#[tokio::test]
async fn csv_options_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.data");
    std::fs::write(&file, "1;-;\"two\nlines; one field\"\n2;3;plain\n").unwrap();
    let session = session();
    let options = FileOptions {
        format: Some("csv".into()),
        header: Some(false),
        delimiter: Some(';'),
        null: Some("-".into()),
        newlines_in_values: true,
        ..FileOptions::default()
    };
    assert_eq!(
        load(&session, &file, &options, LoadMode::Create)
            .await
            .unwrap(),
        2
    );
    assert_eq!(
        rows(
            &session,
            "SELECT column_1, column_2, strpos(column_3, 'lines') FROM t ORDER BY 1"
        )
        .await,
        ["1  5", "2 3 0"]
    );
}

#[tokio::test]
async fn endings_tell_formats() {
    let folder = tempfile::tempdir().unwrap();
    let session = session();
    for (name, text) in [
        ("x.tsv", "a\tb\n1\tx\n"),
        ("x.ndjson", "{\"a\": 1, \"b\": \"x\"}\n"),
        ("x.CSV", "a,b\n1,x\n"),
    ] {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        load(&session, &file, &FileOptions::default(), LoadMode::Replace)
            .await
            .unwrap();
        assert_eq!(
            rows(&session, "SELECT a, b FROM t").await,
            ["1 x"],
            "{name}"
        );
    }
    // A column without any value is text.
    let file = folder.path().join("empty.csv");
    std::fs::write(&file, "a,b\n1,\n").unwrap();
    load(&session, &file, &FileOptions::default(), LoadMode::Replace)
        .await
        .unwrap();
    assert_eq!(
        rows(
            &session,
            "SELECT column_name, column_type, \"null\" FROM (DESCRIBE t)"
        )
        .await,
        ["a BIGINT YES", "b VARCHAR YES"]
    );
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_names_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("1.csv"), folder.path().join("2.csv"));
    std::fs::write(&one, "a,b\n1,x\n").unwrap();
    std::fs::write(&two, "a,c\n2,y\n").unwrap();
    let session = session();
    let options = FileOptions::default();
    let failed = async |file: &Path, mode| {
        load(&session, file, &options, mode)
            .await
            .unwrap_err()
            .to_string()
    };

    assert!(
        failed(&one, LoadMode::Append)
            .await
            .contains("'public.t' does not exist")
    );
    session
        .sql("CREATE TABLE t (a INT, b TEXT NOT NULL)")
        .await
        .unwrap();
    assert!(
        failed(&one, LoadMode::Create)
            .await
            .contains("already exists")
    );
    let message = failed(&two, LoadMode::Append).await;
    assert!(
        message.contains("no column 'c'") && message.contains("'a', 'b'"),
        "{message}"
    );
    std::fs::write(&two, "a\n2\n").unwrap();
    let message = failed(&two, LoadMode::Append).await;
    assert!(
        message.contains("no column 'b'") && message.contains("NOT NULL"),
        "{message}"
    );
    std::fs::write(&two, "a,b\nthree,y\n").unwrap();
    assert!(failed(&two, LoadMode::Append).await.contains("three"));
    let message = failed(&folder.path().join("none.csv"), LoadMode::Append).await;
    assert!(
        message.contains("none.csv") && message.contains("does not exist"),
        "{message}"
    );
    let torn = folder.path().join("torn.parquet");
    std::fs::write(&torn, "PAR1 this is none").unwrap();
    let message = failed(&torn, LoadMode::Replace).await;
    assert!(message.contains("torn.parquet"), "{message}");
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["0"]);
}

#[tokio::test]
async fn many_files_are_one_table_and_progress_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let session = session();
    for part in 0..3 {
        session
            .sql(&format!(
                "COPY (SELECT value AS a FROM generate_series({}, {}) AS s(value)) TO '{}/{part}.parquet'",
                part * 100_000 + 1,
                (part + 1) * 100_000,
                folder.path().display()
            ))
            .await
            .unwrap();
    }
    let progress = Arc::new(LoadProgress::default());
    let files = [format!("{}/*.parquet", folder.path().display())];
    let loaded = session
        .load_files(
            "t",
            &files,
            &FileOptions::default(),
            LoadMode::Create,
            Arc::clone(&progress),
        )
        .await;
    assert_eq!(loaded.unwrap(), 300_000);
    assert_eq!(
        (progress.rows(), progress.total_rows()),
        (300_000, Some(300_000))
    );
    assert!(progress.bytes() >= 8 * 300_000);
    assert_eq!(
        rows(
            &session,
            "SELECT count(*), count(DISTINCT a), min(a), max(a) FROM t"
        )
        .await,
        ["300000 300000 1 300000"]
    );
}

fn batch(from: i64, rows: i64) -> RecordBatch {
    let schema = Schema::new(vec![
        Field::new("a", DataType::Int64, false),
        Field::new("b", DataType::Utf8, true),
    ]);
    let a = Int64Array::from_iter_values(from..from + rows);
    let b = StringArray::from_iter(
        (from..from + rows).map(|n| (n % 7 != 0).then(|| format!("row {n}"))),
    );
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(a), Arc::new(b)]).unwrap()
}

#[tokio::test]
async fn arrow_data_loads_from_any_reader() {
    let session = session();
    let batches: Vec<_> = (0..40).map(|n| Ok(batch(n * 5_000, 5_000))).collect();
    let reader = RecordBatchIterator::new(batches, batch(0, 0).schema());
    assert_eq!(
        session
            .load_reader("t", Box::new(reader), LoadMode::Create)
            .await
            .unwrap(),
        200_000
    );
    assert_eq!(
        rows(&session, "SELECT count(*), count(b), min(a), max(a) FROM t").await,
        ["200000 171428 0 199999"]
    );
    // An error of the reader ends the load, which leaves nothing.
    let batches = vec![
        Ok(batch(0, 10)),
        Err(ArrowError::CsvError("the wire was cut".into())),
    ];
    let reader = RecordBatchIterator::new(batches, batch(0, 0).schema());
    let failed = session
        .load_reader("t", Box::new(reader), LoadMode::Append)
        .await
        .unwrap_err();
    assert!(failed.to_string().contains("the wire was cut"), "{failed}");
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["200000"]);
}

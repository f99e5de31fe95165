//! Times durable commits of one row each, by one client and by several at once, with and without a
//! primary key; and how often the device alone can be synced, one write of a record at a time.
//!
//! `cargo run --release -p flashmesh-storage --example appends -- FOLDER [ROWS]`
//!
//! The databases it makes in FOLDER are removed again.

mod measure;

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use flashmesh_storage::index::{IndexDefinition, IndexKind};
use flashmesh_storage::table::{Database, DatabaseOptions, LoadTarget};
use measure::processor_time;

/// What the server and the Python module have.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("appends FOLDER [ROWS]")?);
    let rows = arguments.next().and_then(|rows| rows.parse().ok());
    let rows: usize = rows.unwrap_or(10_000);
    println!("syncs of a written block: {:.0} a second", syncs(&folder)?);
    for has_key in [false, true] {
        for clients in [1, 8] {
            let folder = folder.join(format!("appends-{has_key}-{clients}"));
            let _ = std::fs::remove_dir_all(&folder);
            let (seconds, processor) = append(&folder, rows, clients, has_key)?;
            println!(
                "{clients} clients{}: {:.0} commits a second, {:.0} µs of processor each",
                if has_key { ", primary key" } else { "" },
                rows as f64 / seconds,
                processor * 1e6 / rows as f64
            );
            std::fs::remove_dir_all(&folder)?;
        }
    }
    Ok(())
}

/// Writes of a block to a file that has it, each synced, a second.
fn syncs(folder: &Path) -> Result<f64, Box<dyn Error>> {
    const SYNCS: u64 = 2000;
    std::fs::create_dir_all(folder)?;
    let path = folder.join("syncs");
    let file = File::create(&path)?;
    file.write_all_at(&vec![1; 1 << 20], 0)?;
    file.sync_all()?;
    let start = Instant::now();
    for number in 0..SYNCS {
        file.write_all_at(&[number as u8; 4096], number % 200 * 4096)?;
        file.sync_data()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(SYNCS as f64 / seconds)
}

/// Seconds, and seconds of processor, that the commits take.
fn append(
    folder: &Path,
    rows: usize,
    clients: usize,
    has_key: bool,
) -> Result<(f64, f64), Box<dyn Error>> {
    let database = Database::open(folder, DatabaseOptions::default())?;
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("client", DataType::Int64, false),
        Field::new("text", DataType::Utf8, true),
    ]);
    let key = IndexDefinition {
        name: "t_key".into(),
        kind: IndexKind::Hash,
        columns: vec![0],
        unique: true,
        primary: true,
        options: Default::default(),
    };
    database
        .begin_load(LoadTarget::Create {
            distribution: None,
            layout: Default::default(),
            retention: std::time::Duration::ZERO,
            defaults: vec![],
            checks: vec![],
            schema: "public".into(),
            table: "t".into(),
            arrow_schema: Arc::new(schema),
            or_replace: false,
            indexes: has_key.then_some(key).into_iter().collect(),
        })?
        .commit()?;
    let (start, before) = (Instant::now(), processor_time());
    thread::scope(|scope| {
        let clients = (0..clients).map(|client| {
            let database = &database;
            scope.spawn(move || -> flashmesh_storage::Result<()> {
                for id in (client..rows).step_by(clients) {
                    let columns: Vec<(&str, ArrayRef)> = vec![
                        ("id", Arc::new(Int64Array::from(vec![id as i64]))),
                        ("client", Arc::new(Int64Array::from(vec![client as i64]))),
                        (
                            "text",
                            Arc::new(StringArray::from(vec![format!("row {id}")])),
                        ),
                    ];
                    let load = database.begin_load(LoadTarget::Append {
                        schema: "public".into(),
                        table: "t".into(),
                    })?;
                    let mut writer = load.writer()?;
                    writer.append(&RecordBatch::try_from_iter(columns)?)?;
                    writer.finish()?;
                    load.commit()?;
                }
                Ok(())
            })
        });
        let clients: Vec<_> = clients.collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().expect("no panic"))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let processor = (processor_time() - before).as_secs_f64();
    assert_eq!(database.snapshot("public", "t")?.rows(), rows as u64);
    Ok((seconds, processor))
}

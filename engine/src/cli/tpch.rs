//! TPC-H data as Parquet files.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Error, Result};
use arrow::record_batch::RecordBatchReader;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;
use indicatif::ProgressBar;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

/// The tables and their rows at scale factor 1; nation and region don't grow with it. The number
/// of order lines is drawn, so theirs is about right.
pub(super) const TABLES: [(&str, f64); 8] = [
    ("lineitem", 6_000_000.0),
    ("orders", 1_500_000.0),
    ("partsupp", 800_000.0),
    ("part", 200_000.0),
    ("customer", 150_000.0),
    ("supplier", 10_000.0),
    ("nation", 0.0),
    ("region", 0.0),
];

/// Rows of one file at most, about.
const FILE_ROWS: f64 = 1_500_000.0;

/// Writes the tables to `folder`, as files `table.part.parquet`, with `threads` threads. `bar`
/// counts rows.
pub(super) fn write_parquet(
    folder: &Path,
    scale_factor: f64,
    threads: usize,
    bar: &ProgressBar,
) -> Result<()> {
    let files: Vec<(&str, i32, i32)> = TABLES
        .iter()
        .flat_map(|(table, rows)| {
            let parts = (rows * scale_factor / FILE_ROWS).ceil().max(1.0) as i32;
            (1..=parts).map(move |part| (*table, part, parts))
        })
        .collect();
    bar.set_length(
        TABLES
            .iter()
            .map(|(_, rows)| (rows * scale_factor) as u64)
            .sum(),
    );
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(&(table, part, parts)) =
                        files.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let path = folder.join(format!("{table}.{part}.parquet"));
                        write_file(&path, table_part(table, scale_factor, part, parts), bar)?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err(Error::usage("the TPC-H generator failed")))
        })
    })
}

/// Part `part` (from 1) of `parts` of a table.
fn table_part(table: &str, scale_factor: f64, part: i32, parts: i32) -> Box<dyn RecordBatchReader> {
    match table {
        "lineitem" => Box::new(LineItemArrow::new(LineItemGenerator::new(
            scale_factor,
            part,
            parts,
        ))),
        "orders" => Box::new(OrderArrow::new(OrderGenerator::new(
            scale_factor,
            part,
            parts,
        ))),
        "partsupp" => Box::new(PartSuppArrow::new(PartSuppGenerator::new(
            scale_factor,
            part,
            parts,
        ))),
        "part" => Box::new(PartArrow::new(PartGenerator::new(
            scale_factor,
            part,
            parts,
        ))),
        "customer" => Box::new(CustomerArrow::new(CustomerGenerator::new(
            scale_factor,
            part,
            parts,
        ))),
        "supplier" => Box::new(SupplierArrow::new(SupplierGenerator::new(
            scale_factor,
            part,
            parts,
        ))),
        "nation" => Box::new(NationArrow::new(NationGenerator::new(
            scale_factor,
            part,
            parts,
        ))),
        _ => Box::new(RegionArrow::new(RegionGenerator::new(
            scale_factor,
            part,
            parts,
        ))),
    }
}

fn write_file(path: &Path, batches: Box<dyn RecordBatchReader>, bar: &ProgressBar) -> Result<()> {
    let io = |e| Error::io(format!("writing {}", path.display()), e);
    let failed = |e: datafusion::parquet::errors::ParquetError| io(std::io::Error::other(e));
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build();
    let file = File::create(path).map_err(io)?;
    let mut writer =
        ArrowWriter::try_new(file, batches.schema(), Some(properties)).map_err(failed)?;
    for batch in batches {
        let batch = batch?;
        writer.write(&batch).map_err(failed)?;
        bar.inc(batch.num_rows() as u64);
    }
    writer.close().map_err(failed)?;
    Ok(())
}

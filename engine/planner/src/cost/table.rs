//! What the store knows of a table's columns.
//!
//! The zone maps of chunks serve as histograms; those of pages may be on flash, which planning does
//! not read. A chunk's values are taken to lie evenly between its least and its greatest, so that a
//! range on a clustered column is estimated to the segment and a range on a shuffled one by its
//! share of the whole span.

use arrow::datatypes::DataType;
use flashmesh_pushdown::Expr;
use flashmesh_storage::segment::Totals;
use flashmesh_storage::table::TableSnapshot;

use super::{Columns, KeyRange, default_share};

/// Chunks that an estimate looks at; of more an even sample is taken.
const SAMPLED_CHUNKS: usize = 2048;

/// A sample of the column's chunks.
fn chunks(column: u32, table: &TableSnapshot) -> impl Iterator<Item = &Totals> {
    let step = table.segments.len().div_ceil(SAMPLED_CHUNKS).max(1);
    let segments = table.segments.iter().step_by(step);
    segments.filter_map(move |segment| Some(&segment.chunks.get(column as usize)?.totals))
}

fn keys(zone: &Totals) -> KeyRange {
    KeyRange {
        min: zone.min,
        max: zone.max,
    }
}

impl Columns for TableSnapshot {
    fn base_rows(&self) -> f64 {
        self.rows() as f64
    }

    fn distinct(&self, column: u32) -> Option<f64> {
        let distinct = self.statistics.get(column as usize)?.distinct?;
        Some((distinct as f64).max(1.0))
    }

    fn null_share(&self, column: u32) -> f64 {
        match self.statistics.get(column as usize) {
            // Deleted rows are counted too.
            Some(known) => (known.null_count as f64 / self.base_rows().max(1.0)).min(1.0),
            None => default_share::NULL,
        }
    }

    fn range_share(&self, column: u32, wanted: KeyRange) -> Option<f64> {
        let data_type = self.scan_schema.field(column as usize).data_type();
        let (mut rows, mut passing) = (0.0, 0.0);
        for zone in chunks(column, self) {
            rows += f64::from(zone.rows);
            let values = f64::from(zone.rows.saturating_sub(zone.null_count));
            let share = keys(zone).share_within(wanted, data_type);
            passing += values * share.unwrap_or(default_share::RANGE);
        }
        (rows > 0.0).then(|| passing / rows)
    }

    fn lacks(&self, column: u32, key: i64) -> bool {
        // Of a sample only the hits prove something.
        self.segments.len() <= SAMPLED_CHUNKS
            && !chunks(column, self).any(|zone| (zone.min..=zone.max).contains(&key))
    }
}

/// Bytes of one value in memory, for columns of the table by their size on flash where the type
/// alone doesn't say.
pub fn width_bytes(data_type: &DataType, expr: Option<&Expr>, table: &TableSnapshot) -> f64 {
    if let Some(width) = data_type.primitive_width() {
        return width as f64;
    }
    match data_type {
        DataType::Boolean => 0.125,
        DataType::FixedSizeBinary(size) => f64::from(*size),
        _ => {
            // Text halves or better on flash; a view takes 16 bytes beside its text.
            let statistics = match expr {
                Some(Expr::Column(column)) => table.statistics.get(*column as usize),
                _ => None,
            };
            let on_flash = statistics.map_or(0, |s| s.bytes_on_flash) as f64;
            16.0 + 2.0 * on_flash / (table.rows().max(1) as f64)
        }
    }
}

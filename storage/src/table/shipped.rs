//! What another node is told of a table: as much as it takes to run a Program over some of its
//! segments, whose pages that node has.

use std::sync::Arc;

use prost::Message;

use super::manifest::{SegmentRecord, decode_segment, encode_segment};
use super::schema_record::{decode_schema, encode_schema};
use super::state::Labels;
use super::{TableLayout, TableSnapshot, scan_schema};
use crate::Result;
use crate::segment::{Segment, SegmentId, TableId};

/// A version of a table with some of its segments.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ShippedTable {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(string, tag = "2")]
    name: String,
    /// Arrow IPC's flatbuffer of the schema.
    #[prost(bytes = "vec", tag = "3")]
    schema: Vec<u8>,
    #[prost(uint64, tag = "4")]
    version: u64,
    #[prost(message, repeated, tag = "5")]
    segments: Vec<ShippedSegment>,
}

#[derive(Clone, PartialEq, Message)]
struct ShippedSegment {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(message, required, tag = "2")]
    record: SegmentRecord,
}

impl ShippedTable {
    /// `segments` are some of the table's.
    pub fn new(table: &TableSnapshot, segments: &[Arc<Segment>]) -> Self {
        let ship = |segment: &Arc<Segment>| ShippedSegment {
            id: segment.id.0,
            record: encode_segment(segment, 0),
        };
        Self {
            id: table.id.0,
            name: table.name.clone(),
            schema: encode_schema(&table.schema),
            version: table.version,
            segments: segments.iter().map(ship).collect(),
        }
    }

    /// The table as a Program sees it: without indexes and statistics.
    ///
    /// # Errors
    /// `Corrupt` for what is no table.
    pub fn unpack(&self) -> Result<TableSnapshot> {
        let what = format!("table '{}'", self.name);
        let schema = decode_schema(&self.schema, &what)?;
        let labels = Labels::new(&self.name, &schema);
        let id = TableId(self.id);
        let segments = self.segments.iter().map(|shipped| {
            let segment = decode_segment(&shipped.record, id, SegmentId(shipped.id), &labels)?;
            Ok(Arc::new(segment))
        });
        Ok(TableSnapshot {
            id,
            name: self.name.clone(),
            scan_schema: scan_schema(&schema),
            version: self.version,
            rows_version: self.version,
            segments: segments.collect::<Result<_>>()?,
            statistics: Vec::new(),
            indexes: Vec::new(),
            lost_rows: true,
            defaults: vec![None; schema.fields().len()],
            checks: Vec::new(),
            layout: TableLayout::default(),
            distribution: None,
            schema,
        })
    }
}

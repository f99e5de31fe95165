//! A column of vectors as the segments of a table, and an index part over them, in one store.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Float32Array};
use arrow::datatypes::{DataType, Field};
use flashmesh_pushdown::Metric;
use flashmesh_storage::Result;
use flashmesh_storage::index::PartData;
use flashmesh_storage::index::lsh::{LshBuilder, LshOptions, LshPart};
use flashmesh_storage::page::{ChunkIdentity, encode_chunk};
use flashmesh_storage::segment::{Chunk, Segment, SegmentId};
use flashmesh_storage::store::{PageRun, PageStore, PageWriter};

/// The number of the table's only column.
pub const COLUMN: usize = 0;

/// What is stored.
pub struct Indexed {
    pub store: Arc<PageStore>,
    pub segments: HashMap<SegmentId, Arc<Segment>>,
    pub data: PartData,
    pub arrays: Vec<Vec<(PageRun, u16, Vec<flashmesh_storage::page::PageZone>)>>,
}

impl Indexed {
    /// Stores columns as segments, and the part that is built over them.
    pub fn new(
        store: Arc<PageStore>,
        columns: &[ArrayRef],
        metric: Metric,
        options: LshOptions,
    ) -> Result<Self> {
        let mut writer = store.writer()?;
        let mut builder = LshBuilder::new(columns[0].data_type(), metric, options)?;
        let mut segments = HashMap::new();
        for (number, column) in (0..).zip(columns) {
            builder.add(SegmentId(number), column)?;
            // No table has segments without rows.
            if column.is_empty() {
                continue;
            }
            let (run, aux, zones) = write(&mut writer, column, 1, number)?;
            let chunk = Chunk::new(run, aux.into(), zones);
            let segment = Segment::new(SegmentId(number), 1, column.len() as u32, vec![chunk]);
            segments.insert(SegmentId(number), Arc::new(segment));
        }
        let data = builder.finish()?;
        let mut arrays = Vec::new();
        let mut number = 0;
        for slices in &data.arrays {
            let mut chunks = Vec::new();
            for slice in slices {
                chunks.push(write(&mut writer, slice, 2, number)?);
                number += 1;
            }
            arrays.push(chunks);
        }
        writer.finish()?.keep();
        Ok(Self {
            store,
            segments,
            data,
            arrays,
        })
    }

    /// The chunks of the part's arrays.
    pub fn chunks(&self) -> Vec<Vec<Chunk>> {
        let chunk = |(run, aux, zones): &(PageRun, u16, Vec<_>)| {
            Chunk::new(run.clone(), u32::from(*aux), zones.clone())
        };
        let chunks = |array: &Vec<_>| array.iter().map(chunk).collect();
        self.arrays.iter().map(chunks).collect()
    }

    /// The part, opened.
    pub fn open(&self) -> Result<LshPart> {
        LshPart::open(&self.data.meta, self.chunks(), &mut self.store.reader()?)
    }
}

fn write(
    writer: &mut PageWriter,
    array: &ArrayRef,
    table: u32,
    segment: u32,
) -> Result<(PageRun, u16, Vec<flashmesh_storage::page::PageZone>)> {
    let identity = ChunkIdentity {
        table,
        segment,
        column_group: 0,
        generation: 1,
    };
    let encoded = encode_chunk(array.as_ref(), identity)?;
    let run = PageRun {
        count: encoded.pages.len() as u32,
        first: writer.append(encoded.pages)?,
        identity: identity.first_page(),
        label: "test".into(),
        part: None,
    };
    Ok((run, encoded.aux_pages, encoded.zones))
}

/// A column of codes.
pub fn codes<const N: usize>(rows: &[[u8; N]]) -> ArrayRef {
    Arc::new(FixedSizeBinaryArray::try_from_iter(rows.iter()).expect("codes"))
}

/// A column of vectors of floats, one after the other.
pub fn vectors(values: Vec<f32>, length: usize) -> ArrayRef {
    let field = Arc::new(Field::new("item", DataType::Float32, true));
    let values = Arc::new(Float32Array::from(values));
    Arc::new(FixedSizeListArray::new(field, length as i32, values, None))
}

//! Searching parts.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::DataType;
use flashmesh_pushdown::{Metric, QueryVector};
use multiversion::multiversion;
use prost::Message;

use super::build::{LEVELS, code_size};
use super::centres::{self, Vectors};
use super::{ARRAYS_EACH_TABLE, MAX_BITS, MAX_SEGMENTS, MAX_TABLES, Meta, VERSION};
use super::{corrupt, floats, normalised};
use crate::distance::{FixedVectors, Found, Order, Search, Targets};
use crate::index::paged::PagedArray;
use crate::page::{Aux, Page, PageZone, gather};
use crate::segment::{Chunk, Segment, SegmentId};
use crate::store::PageReader;
use crate::{Result, StorageError};

/// One part of an index, open: its centres and the starts of its buckets are in memory, all else
/// in pages.
#[derive(Debug)]
pub struct LshPart {
    metric: Metric,
    length: usize,
    probes: usize,
    steps: Vec<f32>,
    segments: Vec<SegmentId>,
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    centres: Vec<u8>,
    /// The bucket `b` is rows `starts[b]..starts[b + 1]` of the arrays.
    starts: Vec<u32>,
    rows: PagedArray,
    codes: PagedArray,
}

/// A row that may be a neighbour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its segment.
    pub segment: SegmentId,
    /// Its row there.
    pub row: u32,
    /// Its distance; [`Candidates::exact`] says whether it is more than an estimate. Estimates
    /// for cosine are L2 distances of the vectors scaled to a length of 1.
    pub distance: f32,
}

/// What a round of a search has found.
#[derive(Debug)]
pub struct Candidates {
    /// For each query, nearest first.
    pub of_queries: Vec<Vec<Candidate>>,
    /// Distances are exact.
    pub exact: bool,
    /// All rows of the part were looked at. Where a query still has fewer candidates than asked
    /// for, there are no others in the part.
    pub complete: bool,
}

/// A neighbour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Neighbour {
    /// Its segment.
    pub segment: SegmentId,
    /// Its row there.
    pub row: u32,
    /// Its distance: see [`flashmesh_pushdown::distance`].
    pub distance: f32,
}

impl LshPart {
    /// Opens a part: `meta` and the chunks of `arrays` are what
    /// [`PartData`](crate::index::PartData) was stored as, in its order.
    ///
    /// # Errors
    /// `Corrupt` for what no builder has made; the reader's errors.
    pub fn open(
        meta: &[u8],
        arrays: Vec<Vec<impl Into<Arc<Chunk>>>>,
        reader: &mut PageReader,
    ) -> Result<Self> {
        let meta = Meta::decode(meta).map_err(corrupt)?;
        if meta.version != VERSION {
            return Err(corrupt(format!(
                "version {} is not known, only {VERSION}; open it with a newer flashmesh",
                meta.version
            )));
        }
        let metric = meta.metric()?;
        let length = meta.length as usize;
        let tables = meta.tables as usize;
        let is_sound = (1..=i32::MAX as usize / 4).contains(&length)
            && meta.segments.len() <= MAX_SEGMENTS
            && (1..=MAX_TABLES).contains(&meta.tables)
            && arrays.len() == tables * ARRAYS_EACH_TABLE
            && meta.probes > 0
            && (metric == Metric::Hamming || meta.steps.len() == length);
        if !is_sound {
            return Err(corrupt("its blob contradicts itself or its arrays"));
        }
        let size = match metric {
            Metric::Hamming => length,
            _ => 4 * length,
        };
        let mut arrays = arrays.into_iter();
        let mut next =
            |reader: &mut PageReader| PagedArray::new(arrays.next().into_iter().flatten(), reader);
        let mut opened = Vec::with_capacity(tables);
        for _ in 0..tables {
            let (centres, starts, rows, codes) =
                (next(reader)?, next(reader)?, next(reader)?, next(reader)?);
            centres.prefetch(reader, &(0..centres.len()))?;
            let mut centre_bytes = Vec::new();
            for page in 0..centres.pages() as u32 {
                let page = centres.bytes_page(reader, page, size)?;
                centre_bytes.extend_from_slice(page.values());
            }
            let mut start_values: Vec<u32> = Vec::new();
            starts.read(reader, 0..starts.len(), &mut start_values)?;
            let buckets = centre_bytes.len() / size;
            let is_sound = buckets <= 1 << MAX_BITS
                && start_values.len() == buckets + 1
                && start_values.is_sorted()
                && start_values.first() == Some(&0)
                && start_values.last() == Some(&meta.rows)
                && rows.len() == u64::from(meta.rows)
                && codes.len() == u64::from(meta.rows);
            if !is_sound {
                return Err(corrupt("its arrays are not of one length"));
            }
            opened.push(Table {
                centres: centre_bytes,
                starts: start_values,
                rows,
                codes,
            });
        }
        Ok(Self {
            metric,
            length,
            probes: meta.probes as usize,
            segments: meta.segments(),
            steps: meta.steps,
            tables: opened,
        })
    }

    /// The segments that it covers.
    pub fn segments(&self) -> &[SegmentId] {
        &self.segments
    }

    /// The metric that it serves.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// Bytes that it holds in memory.
    pub fn memory_bytes(&self) -> usize {
        let tables = self.tables.iter();
        let arrays = tables.map(|table| table.centres.len() + 4 * table.starts.len());
        arrays.sum::<usize>() + 4 * self.steps.len() + 4 * self.segments.len()
    }

    /// Buckets that are looked at in the first round.
    pub fn probes(&self) -> usize {
        self.probes
    }

    /// The nearest `wanted` rows to each query among those in the buckets that are probed.
    ///
    /// Round 0 probes as many buckets as the index was tuned for, each further round twice as
    /// many as the one before, until a round is [complete](Candidates::complete): so whoever
    /// loses rows to a filter (or rejects them later) goes on with the next round and, where
    /// distances are estimates, a greater `wanted`. A later round finds again what earlier ones
    /// have found.
    ///
    /// For estimates `wanted` should be [`Self::wanted`].
    ///
    /// # Errors
    /// `Invalid` for queries of another kind or length; `Corrupt`, `Io`.
    pub fn candidates(
        &self,
        queries: &[QueryVector],
        wanted: usize,
        round: u32,
        reader: &mut PageReader,
    ) -> Result<Candidates> {
        let queries = self.prepared(queries)?;
        let mut of_queries: Vec<Vec<Candidate>> = vec![Vec::new(); queries.len()];
        let mut complete = true;
        for table in &self.tables {
            let buckets = table.starts.len() - 1;
            let shift = round.min(MAX_BITS + 1);
            let probes = self.probes.saturating_mul(1 << shift).min(buckets);
            complete &= probes == buckets;
            let found = self.probe(table, &queries, wanted, probes, reader)?;
            for (of_query, found) in of_queries.iter_mut().zip(found) {
                of_query.extend(found);
            }
        }
        if self.tables.len() > 1 {
            for of_query in &mut of_queries {
                of_query.sort_by(|l, r| {
                    let row = |c: &Candidate| (c.segment.0, c.row);
                    l.distance.total_cmp(&r.distance).then(row(l).cmp(&row(r)))
                });
                of_query.dedup_by_key(|candidate| (candidate.segment, candidate.row));
                of_query.truncate(wanted);
            }
        }
        Ok(Candidates {
            of_queries,
            exact: self.metric == Metric::Hamming,
            complete,
        })
    }

    /// How many candidates to ask for to have the `k` nearest among them: more than `k` where
    /// distances are estimates.
    pub fn wanted(&self, k: usize) -> usize {
        match self.metric {
            Metric::Hamming => k,
            _ => k.saturating_mul(2).saturating_add(20),
        }
    }

    /// The queries as the index has its vectors.
    fn prepared(&self, queries: &[QueryVector]) -> Result<Vec<QueryVector>> {
        let prepare = |query: &QueryVector| {
            if !self.metric.takes(query) || query.len() != self.length {
                return Err(StorageError::Invalid(format!(
                    "a query of {} elements to an lsh index for {} of {}",
                    query.len(),
                    self.metric,
                    self.length
                )));
            }
            Ok(match (self.metric, query) {
                // Of a query without a direction all are equally far.
                (Metric::Cosine, QueryVector::Floats(values)) => QueryVector::Floats(
                    normalised(values).unwrap_or_else(|| vec![0.0; values.len()]),
                ),
                _ => query.clone(),
            })
        };
        queries.iter().map(prepare).collect()
    }

    fn probe(
        &self,
        table: &Table,
        queries: &[QueryVector],
        wanted: usize,
        probes: usize,
        reader: &mut PageReader,
    ) -> Result<Vec<Vec<Candidate>>> {
        if wanted == 0 || probes == 0 {
            return Ok(vec![Vec::new(); queries.len()]);
        }
        let (metric, size) = match self.metric {
            Metric::Hamming => (Metric::Hamming, self.length),
            _ => (Metric::L2, 4 * self.length),
        };
        let centres = Vectors {
            metric,
            size,
            values: &table.centres,
        };
        // Bucket by bucket, so that a page serves all queries that want it.
        let mut visits: Vec<(u32, u32)> = Vec::with_capacity(queries.len() * probes);
        for (query, buckets) in (0..).zip(centres::nearest(&centres, queries, probes)) {
            visits.extend(buckets.iter().map(|bucket| (*bucket as u32, query)));
        }
        visits.sort_unstable();
        let rows_of = |bucket: u32| {
            let bucket = bucket as usize;
            u64::from(table.starts[bucket])..u64::from(table.starts[bucket + 1])
        };
        for same in visits.chunk_by(|l, r| l.0 == r.0) {
            let rows = rows_of(same[0].0);
            table.codes.prefetch(reader, &rows)?;
        }
        let targets = Targets::new(metric, self.length, queries);
        let mut search = Search::new(targets, Order::Ascending, wanted);
        let mut distances = Vec::new();
        let mut residual = Vec::new();
        let mut pages = Vec::new();
        let code_size = code_size(self.metric, self.length);
        for same in visits.chunk_by(|l, r| l.0 == r.0) {
            let rows = rows_of(same[0].0);
            pages.clear();
            for page in table.codes.pages_with(&rows)? {
                pages.push(table.codes.bytes_page(reader, page, code_size)?);
            }
            let centre = &table.centres[same[0].0 as usize * size..][..size];
            for (_, query) in same {
                let query = *query as usize;
                if let QueryVector::Floats(values) = &queries[query] {
                    residual.clear();
                    residual.extend(values.iter().zip(floats(centre)).map(|(v, c)| v - c));
                }
                for page in &pages {
                    let (first, values) = page.at(&rows);
                    let place = |number: u32| Some(first + u64::from(number));
                    if metric == Metric::Hamming {
                        search.add_codes(query, values, place);
                    } else {
                        distances.clear();
                        estimate(&residual, &self.steps, values, &mut distances);
                        search.add_distances(query, &distances, place);
                    }
                }
            }
        }
        let found = search.take();
        self.located(table, &found, &search, reader)
    }

    /// The rows of what was found.
    fn located(
        &self,
        table: &Table,
        found: &[Vec<Found>],
        search: &Search,
        reader: &mut PageReader,
    ) -> Result<Vec<Vec<Candidate>>> {
        let places = found.iter().flatten().map(|found| found.place);
        let mut places: Vec<u64> = places.collect();
        places.sort_unstable();
        places.dedup();
        let mut numbers: Vec<u32> = Vec::with_capacity(places.len());
        table.rows.gather(reader, &places, &mut numbers)?;
        let candidate = |found: &Found| {
            let index = places.binary_search(&found.place);
            let number = index.ok().and_then(|index| numbers.get(index)).copied();
            let number = number.ok_or_else(|| corrupt("a row is missing"))?;
            let segment = self.segments.get((number >> 16) as usize);
            Ok(Candidate {
                segment: *segment.ok_or_else(|| corrupt("a row of a segment beyond its own"))?,
                row: number & 0xffff,
                distance: match self.metric {
                    Metric::Hamming => search.count_of(found.key) as f32,
                    _ => search.distance_of(found.key).sqrt(),
                },
            })
        };
        let of_query = |found: &Vec<Found>| found.iter().map(candidate).collect();
        found.iter().map(of_query).collect()
    }

    /// Reads the vectors of candidates from their table's pages, at the device's full depth, and
    /// gives the `k` nearest by their exact distances, nearest first. `column` is the vectors'
    /// place in the table. Candidates of segments that are not among `segments` are dropped.
    ///
    /// # Errors
    /// `Corrupt` when the table doesn't have the rows; the reader's errors.
    pub fn rerank(
        &self,
        queries: &[QueryVector],
        candidates: &[Vec<Candidate>],
        k: usize,
        column: usize,
        segments: &HashMap<SegmentId, Arc<Segment>>,
        reader: &mut PageReader,
    ) -> Result<Vec<Vec<Neighbour>>> {
        self.prepared(queries)?;
        let size = match self.metric {
            Metric::Hamming => self.length,
            _ => 4 * self.length,
        };
        let data_type = self.column_type();
        // (segment, row, query): pages are read in the order of their addresses.
        let mut wanted: Vec<(SegmentId, u32, u32)> = Vec::new();
        for (query, candidates) in (0..).zip(candidates) {
            let rows = candidates.iter().map(|c| (c.segment, c.row, query));
            wanted.extend(rows.filter(|(segment, ..)| segments.contains_key(segment)));
        }
        wanted.sort_unstable_by_key(|(segment, row, query)| (segment.0, *row, *query));
        let mut places = Vec::with_capacity(wanted.len());
        let mut last = None;
        for (segment, row, _) in &wanted {
            let chunk = segments[segment].chunks.get(column);
            let chunk = chunk.ok_or_else(|| corrupt("a segment without the column"))?;
            let index = chunk.page_index(reader)?;
            let zone = index
                .page_of_row(*row)
                .ok_or_else(|| corrupt(format!("{}: no page holds row {row}", chunk.run.label)))?;
            let page = chunk.aux_pages + zone as u32;
            if last.replace((*segment, page)) != Some((*segment, page)) {
                reader.prefetch(&chunk.run, page..page + 1)?;
            }
            places.push((chunk, zone, index.zones()[zone]));
        }
        let targets = Targets::new(self.metric, self.length, queries);
        let mut search = Search::new(targets, Order::Ascending, k);
        let mut present: Option<((SegmentId, usize), Arc<Page>, Aux)> = None;
        for (number, ((segment, row, query), (chunk, zone, map))) in
            (0..).zip(wanted.iter().zip(places))
        {
            let key = (*segment, zone);
            let (page, aux) = match present.take() {
                Some((loaded, page, aux)) if loaded == key => (page, aux),
                _ => load(chunk, zone, &map, &data_type, reader)?,
            };
            let local = row - u32::from(page.header().first_row);
            let query = *query as usize;
            let place = |_| Some(number);
            match page.plain_values(size) {
                Some(values) if page.validity().is_none() => {
                    let start = local as usize * size;
                    search.add_vector(query, &values[start..start + size], place);
                }
                _ => {
                    let array = gather(&page, &aux, &data_type, &[local])?;
                    let vectors = FixedVectors::of(&array)?;
                    if vectors.is_valid(0) {
                        search.add_vector(query, vectors.values(), place);
                    }
                }
            }
            present = Some((key, page, aux));
        }
        let found = search.take();
        let neighbour = |found: &Found| {
            let (segment, row, _) = wanted[found.place as usize];
            Neighbour {
                segment,
                row,
                distance: match self.metric {
                    Metric::Hamming => search.count_of(found.key) as f32,
                    _ => search.distance_of(found.key),
                },
            }
        };
        let of_query = |found: &Vec<Found>| found.iter().map(neighbour).collect();
        Ok(found.iter().map(of_query).collect())
    }

    fn column_type(&self) -> DataType {
        match self.metric {
            Metric::Hamming => DataType::FixedSizeBinary(self.length as i32),
            _ => DataType::new_fixed_size_list(DataType::Float32, self.length as i32, true),
        }
    }

    /// The `k` nearest rows of the part to each query, without a filter: candidates, re-ranked
    /// where their distances are estimates.
    ///
    /// # Errors
    /// As [`Self::candidates`] and [`Self::rerank`].
    pub fn nearest(
        &self,
        queries: &[QueryVector],
        k: usize,
        column: usize,
        segments: &HashMap<SegmentId, Arc<Segment>>,
        reader: &mut PageReader,
    ) -> Result<Vec<Vec<Neighbour>>> {
        let (mut round, mut wanted) = (0, self.wanted(k));
        loop {
            let mut found = self.candidates(queries, wanted, round, reader)?;
            let is_cut = found.of_queries.iter().any(|found| found.len() >= wanted);
            for found in &mut found.of_queries {
                let has =
                    |c: &Candidate| segments.get(&c.segment).is_some_and(|s| s.has_row(c.row));
                found.retain(has);
            }
            let is_short = found.of_queries.iter().any(|found| found.len() < k);
            if is_short && is_cut {
                // Deleted rows were among the nearest.
                wanted = wanted.saturating_mul(2);
                continue;
            }
            if is_short && !found.complete {
                round += 1;
                continue;
            }
            if !found.exact {
                return self.rerank(queries, &found.of_queries, k, column, segments, reader);
            }
            let neighbour = |candidate: &Candidate| Neighbour {
                segment: candidate.segment,
                row: candidate.row,
                distance: candidate.distance,
            };
            let of_query = |found: &Vec<Candidate>| found.iter().take(k).map(neighbour).collect();
            return Ok(found.of_queries.iter().map(of_query).collect());
        }
    }
}

/// A data page, checked against its zone map, and its auxiliary page.
fn load(
    chunk: &Chunk,
    number: usize,
    zone: &PageZone,
    data_type: &DataType,
    reader: &mut PageReader,
) -> Result<(Arc<Page>, Aux)> {
    let aux = match chunk.aux_pages {
        0 => Aux::None,
        _ => Aux::parse(reader.get(&chunk.run, 0)?.as_ref(), data_type)?,
    };
    let page = reader.get(&chunk.run, chunk.aux_pages + number as u32)?;
    let header = page.header();
    if header.row_count != zone.row_count || u32::from(header.first_row) != zone.first_row {
        return Err(corrupt(format!(
            "{}: a page's rows are not those of its zone map",
            chunk.run.label
        )));
    }
    Ok((page, aux))
}

/// Appends the squares of the estimated L2 distances of a bucket's codes; `residual` is the
/// difference of the query to the bucket's centre.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
fn estimate(residual: &[f32], steps: &[f32], codes: &[u8], out: &mut Vec<f32>) {
    const SIDE: usize = 16;
    let half = residual.len().div_ceil(2);
    let middle = (LEVELS - 1.0) / 2.0;
    let (low, high) = residual.split_at(half);
    let (low_steps, high_steps) = steps.split_at(half);
    for code in codes.chunks_exact(half) {
        let mut lanes = [0.0_f32; SIDE];
        let mut add = |residual: &[f32], steps: &[f32], shift: u8| {
            let (codes, code_rest) = code[..residual.len()].as_chunks::<SIDE>();
            let (values, value_rest) = residual.as_chunks::<SIDE>();
            let (steps, step_rest) = steps.as_chunks::<SIDE>();
            for ((codes, values), steps) in codes.iter().zip(values).zip(steps) {
                for lane in 0..SIDE {
                    let level = f32::from(codes[lane] >> shift & 15) - middle;
                    let difference = values[lane] - level * steps[lane];
                    lanes[lane] += difference * difference;
                }
            }
            let rest = code_rest.iter().zip(value_rest).zip(step_rest);
            for (lane, ((code, value), step)) in lanes.iter_mut().zip(rest) {
                let difference = value - (f32::from(code >> shift & 15) - middle) * step;
                *lane += difference * difference;
            }
        };
        add(low, low_steps, 0);
        add(high, high_steps, 4);
        out.push(lanes.iter().sum());
    }
}

//! The search for the nearest codes, with a device.
//!
//! Codes go to the device by batches, and of each batch it gives the *k* nearest to each query.
//! Only these are compared with what was found before: the k nearest of all rows are among the
//! k nearest of their batches. While the device searches one batch, the next is read.

use arrow::datatypes::ToByteSlice;

use super::nearest::PRESENT;
use super::work::Work;
use crate::accelerator::device::Device;
use crate::accelerator::offload::{OffloadCall, Operation};
use crate::distance::{Positions, Search};
use crate::kernel::{Argument, ScalarArgument};
use crate::{Result, StorageError};

/// Limits of `fpga/hls/hamming_nearest`.
const MAX_NEIGHBOURS: usize = 1024;
const MAX_CODE_BYTES: usize = 8192;
/// Queries from which on comparing them all at once on the CPU reads the codes once only.
const MAX_QUERIES: usize = 16;
/// Bytes of codes of one batch.
const BATCH_BYTES: usize = 1 << 20;

/// A search whose codes go to a device.
pub(super) struct DeviceSearch<'a> {
    search: &'a mut Search,
    device: &'a Device,
    k: usize,
}

/// Codes side by side, and the rows that they are of.
#[derive(Default)]
struct Batch {
    codes: Vec<u8>,
    rows: Vec<u32>,
}

/// A batch that is searched, with a call for each query.
struct Pending {
    batch: Batch,
    calls: Vec<Box<dyn OffloadCall>>,
}

impl<'a> DeviceSearch<'a> {
    /// The search, if the device can do it.
    pub fn of(search: &'a mut Search, device: Option<&'a Device>) -> Option<Self> {
        let device = device?;
        let k = search.nearest_codes()?;
        let fits = (1..=MAX_NEIGHBOURS).contains(&k)
            && (1..=MAX_CODE_BYTES).contains(&search.targets().size())
            && (1..=MAX_QUERIES).contains(&search.targets().len())
            && device.supports(Operation::HammingNearest)
            && device.is_usable();
        fits.then_some(Self { search, device, k })
    }

    /// Takes in the surviving rows of a segment; gives how many are not NULL.
    pub fn run(mut self, column: usize, work: &mut Work<'_>) -> Result<usize> {
        let size = self.search.targets().size();
        let batch_rows = (BATCH_BYTES / size).max(1);
        let mut count = 0;
        let mut batch = Batch::default();
        let mut pending = None;
        let mut outcome = Ok(());
        // Once the device has failed, the CPU does the rest of the segment.
        let mut has_failed = false;
        let add = |page: &super::columns::VectorPage<'_>| {
            count += page.positions.len();
            let mut take = |position: u32| {
                let at = position as usize * size;
                batch.codes.extend_from_slice(&page.values[at..at + size]);
                batch.rows.push(page.row(position));
                if batch.rows.len() == batch_rows && outcome.is_ok() {
                    let full = std::mem::take(&mut batch);
                    outcome = self.search_batch(full, &mut pending, &mut has_failed);
                }
            };
            match page.positions {
                Positions::All(count) => (0..count as u32).for_each(&mut take),
                Positions::List(list) => list.iter().for_each(|position| take(*position)),
            }
        };
        work.columns
            .for_vectors(column, size, work.selection, work.reader, add)?;
        outcome?;
        self.search_batch(batch, &mut pending, &mut has_failed)?;
        // An empty batch only waits for the one before it.
        self.search_batch(Batch::default(), &mut pending, &mut has_failed)?;
        Ok(count)
    }

    /// Starts a batch, then takes in what the device found in the batch before it.
    fn search_batch(
        &mut self,
        batch: Batch,
        pending: &mut Option<Pending>,
        has_failed: &mut bool,
    ) -> Result<()> {
        let mut next = None;
        if !batch.rows.is_empty() {
            match *has_failed {
                true => self.take_in(&batch, Positions::All(batch.rows.len())),
                false => match self.start(&batch) {
                    Ok(calls) => next = Some(Pending { batch, calls }),
                    Err(error) => {
                        self.device.fall_back(error)?;
                        *has_failed = true;
                        self.take_in(&batch, Positions::All(batch.rows.len()));
                    }
                },
            }
        }
        let Some(Pending { batch, calls }) = std::mem::replace(pending, next) else {
            return Ok(());
        };
        match self.finish(&batch, calls) {
            Ok(positions) => self.take_in(&batch, Positions::List(&positions)),
            Err(error) => {
                if !*has_failed {
                    self.device.fall_back(error)?;
                    *has_failed = true;
                }
                self.take_in(&batch, Positions::All(batch.rows.len()));
            }
        }
        Ok(())
    }

    /// Compares rows of a batch with what was found before.
    fn take_in(&mut self, batch: &Batch, positions: Positions<'_>) {
        self.search.add(&batch.codes, positions, |position| {
            PRESENT | u64::from(batch.rows[position as usize])
        });
    }

    fn start(&self, batch: &Batch) -> Result<Vec<Box<dyn OffloadCall>>> {
        let targets = self.search.targets();
        let rows = batch.rows.len();
        let selected = vec![u64::MAX; rows.div_ceil(64)];
        let scalar = |value: usize| Argument::Scalar(ScalarArgument::I32(value as i32));
        let k = self.k.min(rows);
        let (mut found_rows, mut distances) = (vec![0; 4 * k], vec![0; 4 * k]);
        let mut found = [0; 4];
        let calls = (0..targets.len()).map(|query| {
            self.device.start(
                Operation::HammingNearest,
                &mut [
                    Argument::In(&batch.codes),
                    scalar(targets.size()),
                    Argument::In(selected.to_byte_slice()),
                    Argument::In(&targets.code(query)),
                    scalar(k),
                    scalar(rows),
                    Argument::Out(&mut found_rows),
                    Argument::Out(&mut distances),
                    Argument::Out(&mut found),
                ],
            )
        });
        calls.collect()
    }

    /// The positions in the batch of what is nearest to some query, ascending.
    fn finish(&self, batch: &Batch, calls: Vec<Box<dyn OffloadCall>>) -> Result<Vec<u32>> {
        let k = self.k.min(batch.rows.len());
        let mut positions = Vec::with_capacity(k * calls.len());
        for call in calls {
            let (mut rows, mut distances) = (vec![0; 4 * k], vec![0; 4 * k]);
            let mut found = [0; 4];
            call.finish(&mut [&mut rows, &mut distances, &mut found])?;
            let (rows, _) = rows.as_chunks::<4>();
            positions.extend(rows.iter().map(|row| u32::from_le_bytes(*row)));
            let in_range = |row: &u32| (*row as usize) < batch.rows.len();
            if u32::from_le_bytes(found) as usize != k || !positions.iter().all(in_range) {
                return Err(StorageError::Kernel {
                    kernel: Operation::HammingNearest.name().into(),
                    reason: "it gave rows that it was not asked for".into(),
                });
            }
        }
        positions.sort_unstable();
        positions.dedup();
        Ok(positions)
    }
}

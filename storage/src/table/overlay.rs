//! Writes that a file does not have yet, kept over it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::Range;

use parking_lot::Mutex;
use redb::StorageBackend;

const BLOCK_BYTES: u64 = 4096;

/// A file, and over it what was written since: reading shows both as one. Each write and change of the
/// length belongs to a *turn*, which only grows; what the file has got by other ways may then be
/// forgotten here, turn by turn.
#[derive(Debug)]
pub struct Overlay {
    base: Box<dyn StorageBackend>,
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    /// The length, and the turn in which it was set; `None`: the file's.
    length: Option<(u64, u64)>,
    /// To what it was cut, and in which turns: what the file has behind that is gone.
    cuts: Vec<(u64, u64)>,
    /// Blocks by number, and in which turn they were written last.
    blocks: BTreeMap<u64, (u64, Vec<u8>)>,
}

/// The blocks that so many bytes from `offset` on touch: number, range in the block, range in the
/// bytes.
fn blocks(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let end = offset + bytes as u64;
    (offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(move |block| {
        let start = block * BLOCK_BYTES;
        let (from, to) = (offset.max(start), end.min(start + BLOCK_BYTES));
        let within = |base: u64| (from - base) as usize..(to - base) as usize;
        (block, within(start), within(offset))
    })
}

impl Overlay {
    /// Over `base`, which nobody changes but by what was written here, in its order.
    pub fn over(base: impl StorageBackend) -> Self {
        Self {
            base: Box::new(base),
            written: Mutex::default(),
        }
    }

    /// The file.
    pub fn base(&self) -> &dyn StorageBackend {
        &*self.base
    }

    /// Reads what the file has of bytes that were not cut off; behind that are zeros.
    fn read_base(&self, written: &Written, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let cuts = written.cuts.iter().map(|(bytes, _)| *bytes);
        let bytes = cuts.fold(self.base.len()?, u64::min);
        let there = bytes.saturating_sub(offset).min(out.len() as u64) as usize;
        out[there..].fill(0);
        match there {
            0 => Ok(()),
            _ => self.base.read(offset, &mut out[..there]),
        }
    }

    fn len_of(&self, written: &Written) -> io::Result<u64> {
        match written.length {
            Some((bytes, _)) => Ok(bytes),
            None => self.base.len(),
        }
    }

    /// Bytes of the file as it is written.
    ///
    /// # Errors
    /// Those of the file.
    #[expect(clippy::len_without_is_empty, reason = "it is a file's")]
    pub fn len(&self) -> io::Result<u64> {
        self.len_of(&self.written.lock())
    }

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` behind the end; those of the file.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written.lock();
        if offset + out.len() as u64 > self.len_of(&written)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_base(&written, offset, out)?;
        for (block, inside, of_out) in blocks(offset, out.len()) {
            if let Some((_, bytes)) = written.blocks.get(&block) {
                out[of_out].copy_from_slice(&bytes[inside]);
            }
        }
        Ok(())
    }

    /// Cuts the file, or lets it grow by zeros.
    ///
    /// # Errors
    /// Those of the file.
    pub fn set_len(&self, len: u64, turn: u64) -> io::Result<()> {
        let mut written = self.written.lock();
        let before = self.len_of(&written)?;
        written.length = Some((len, turn));
        if len < before {
            written.cuts.push((len, turn));
            let last = len / BLOCK_BYTES;
            written.blocks.split_off(&len.div_ceil(BLOCK_BYTES));
            if let Some((at, bytes)) = written.blocks.get_mut(&last) {
                bytes[(len % BLOCK_BYTES) as usize..].fill(0);
                *at = turn;
            }
        }
        Ok(())
    }

    /// Writes; the file grows where that is needed.
    ///
    /// # Errors
    /// Those of the file, of which parts of blocks are read.
    pub fn write(&self, offset: u64, data: &[u8], turn: u64) -> io::Result<()> {
        let mut written = self.written.lock();
        let end = offset + data.len() as u64;
        if end > self.len_of(&written)? {
            written.length = Some((end, turn));
        }
        for (block, inside, of_data) in blocks(offset, data.len()) {
            let is_whole = inside.len() as u64 == BLOCK_BYTES;
            let mut base = None;
            if !is_whole && !written.blocks.contains_key(&block) {
                let mut bytes = vec![0; BLOCK_BYTES as usize];
                self.read_base(&written, block * BLOCK_BYTES, &mut bytes)?;
                base = Some(bytes);
            }
            let (at, bytes) = match written.blocks.entry(block) {
                Entry::Occupied(place) => place.into_mut(),
                Entry::Vacant(place) => {
                    place.insert((turn, base.unwrap_or_else(|| vec![0; BLOCK_BYTES as usize])))
                }
            };
            *at = turn;
            bytes[inside].copy_from_slice(&data[of_data]);
        }
        Ok(())
    }

    /// Forgets what was written in turns up to that one: the file has it.
    pub fn settle(&self, turn: u64) {
        let mut written = self.written.lock();
        written.length.take_if(|(_, at)| *at <= turn);
        written.cuts.retain(|(_, at)| *at > turn);
        written.blocks.retain(|_, (at, _)| *at > turn);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use rand::rngs::StdRng;
    use rand::{Rng, RngExt, SeedableRng};

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        Length(u64),
    }

    fn apply(file: &dyn StorageBackend, step: &Step) {
        match step {
            Step::Write(offset, bytes) => {
                let end = offset + bytes.len() as u64;
                if end > file.len().unwrap() {
                    file.set_len(end).unwrap();
                }
                file.write(*offset, bytes).unwrap();
            }
            Step::Length(bytes) => file.set_len(*bytes).unwrap(),
        }
    }

    /// Whatever the file has got of what was written, reading shows the whole.
    #[test]
    fn a_file_and_what_it_lacks_read_as_one() {
        let seed = rand::rng().next_u64();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..200 {
            let base = Plain::default();
            let overlay = Overlay::over(base.clone());
            let model = Plain::default();
            let (mut waiting, mut turn) = (VecDeque::new(), 0);
            for _ in 0..60 {
                turn += u64::from(random.random_bool(0.5));
                let step = match random.random_range(0..4) {
                    0 => Step::Length(random.random_range(0..20_000)),
                    _ => {
                        let mut bytes = vec![0; random.random_range(1..9_000)];
                        random.fill_bytes(&mut bytes);
                        Step::Write(random.random_range(0..16_000), bytes)
                    }
                };
                apply(&model, &step);
                match &step {
                    Step::Write(offset, bytes) => overlay.write(*offset, bytes, turn).unwrap(),
                    Step::Length(bytes) => overlay.set_len(*bytes, turn).unwrap(),
                }
                waiting.push_back((turn, step));
                // A turn that is over reaches the file step by step, and is settled when it has.
                while random.random_bool(0.4) {
                    let Some((of, step)) = waiting.pop_front_if(|(of, _)| *of < turn) else {
                        break;
                    };
                    apply(&base, &step);
                    if waiting.front().is_none_or(|(next, _)| *next > of) {
                        overlay.settle(of);
                    }
                }
                let bytes = model.len().unwrap();
                assert_eq!(overlay.len().unwrap(), bytes);
                let mut expected = vec![0; bytes as usize];
                model.read(0, &mut expected).unwrap();
                let mut found = vec![0; bytes as usize];
                overlay.read(0, &mut found).unwrap();
                assert!(found == expected, "another content");
                assert!(overlay.read(bytes, &mut [0]).is_err());
            }
        }
    }

    /// A file in memory; its clones are the same one.
    #[derive(Debug, Default, Clone)]
    struct Plain(Arc<Mutex<Vec<u8>>>);

    impl StorageBackend for Plain {
        fn len(&self) -> io::Result<u64> {
            Ok(self.0.lock().len() as u64)
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            out.copy_from_slice(&self.0.lock()[offset as usize..][..out.len()]);
            Ok(())
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.lock().resize(len as usize, 0);
            Ok(())
        }
        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.0.lock()[offset as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }
    }
}

//! Error correction: what a flash controller does between the chips and everybody else.
//!
//! A page is sixteen code words of 512 bytes and as much again as a quarter of that, in the code
//! TM5120 of CCSDS 131.0-B (low-density parity check, as in controllers of today). A word is
//! decoded by flipping bits, which mends about 32 of its 5,120, and where that fails by passing
//! messages (min-sum), which mends about 64. What a decoder takes for right and is not is left to
//! the page's checksum.
//!
//! The code words of a page follow from its bytes. So the model keeps the bytes alone and makes a
//! word when one of its bits was read wrongly; the others would be decoded to what they are.

use std::collections::BTreeMap;

use labrador_ldpc::LDPCCode;

use crate::flash::PAGE_SIZE_BYTES;

const CODE: LDPCCode = LDPCCode::TM5120;
const WORD_DATA_BYTES: usize = 512;
const WORD_BITS: usize = 5120;
const ITERATIONS: usize = 30;
/// Bits of a page on the chips, those of the code among them.
pub(super) const PAGE_BITS: usize = PAGE_SIZE_BYTES / WORD_DATA_BYTES * WORD_BITS;

/// A word has more wrong bits than the code can mend.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Uncorrectable;

/// What the decoder makes of a page whose bits at these places below [`PAGE_BITS`] were read
/// wrongly. `bytes` are what was written.
pub(super) fn decode(bytes: &mut [u8], wrong: &[usize]) -> Result<(), Uncorrectable> {
    let mut words: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for bit in wrong {
        let word = words.entry(bit / WORD_BITS).or_default();
        word.push(bit % WORD_BITS);
    }
    for (word, wrong) in words {
        let place = word * WORD_DATA_BYTES..(word + 1) * WORD_DATA_BYTES;
        decode_word(&mut bytes[place], &wrong)?;
    }
    Ok(())
}

fn decode_word(data: &mut [u8], wrong: &[usize]) -> Result<(), Uncorrectable> {
    let mut word = vec![0; WORD_BITS / 8];
    CODE.copy_encode(data, &mut word);
    for bit in wrong {
        word[bit / 8] ^= 0x80 >> (bit % 8);
    }
    let mut decoded = vec![0; CODE.output_len()];
    let mut working = vec![0; CODE.decode_bf_working_len()];
    let (mut is_right, _) = CODE.decode_bf(&word, &mut decoded, &mut working, ITERATIONS);
    if !is_right {
        let mut likelihoods = vec![0i8; WORD_BITS];
        CODE.hard_to_llrs(&word, &mut likelihoods);
        let mut working = vec![0; CODE.decode_ms_working_len()];
        let mut bits = vec![0; CODE.decode_ms_working_u8_len()];
        let likelihoods = &likelihoods;
        (is_right, _) = CODE.decode_ms(
            likelihoods,
            &mut decoded,
            &mut working,
            &mut bits,
            ITERATIONS,
        );
    }
    data.copy_from_slice(&decoded[..WORD_DATA_BYTES]);
    is_right.then_some(()).ok_or(Uncorrectable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::Random;

    fn trial(random: &mut Random, wrong: usize) -> Option<bool> {
        let written: Vec<u8> = (0..PAGE_SIZE_BYTES).map(|_| random.next() as u8).collect();
        let word = random.below(16) as usize * WORD_BITS;
        let mut places = std::collections::BTreeSet::new();
        while places.len() < wrong {
            places.insert(word + random.below(WORD_BITS as u64) as usize);
        }
        let mut read = written.clone();
        let decoded = decode(&mut read, &places.into_iter().collect::<Vec<_>>());
        decoded.ok().map(|()| read == written)
    }

    #[test]
    fn a_few_wrong_bits_of_a_word_are_mended_and_many_are_noticed() {
        let seed = crate::flash::tests::seeds(1).next().unwrap();
        let mut random = Random::new(seed);
        for wrong in [0, 1, 2, 7, 16, 40] {
            assert_eq!(trial(&mut random, wrong), Some(true), "{wrong} wrong bits");
        }
        for wrong in [400, 1000] {
            assert_ne!(trial(&mut random, wrong), Some(true), "{wrong} wrong bits");
        }
    }

    #[test]
    fn wrong_bits_all_over_a_page_are_mended() {
        let mut written = vec![0x5A; PAGE_SIZE_BYTES];
        let wrong: Vec<usize> = (0..PAGE_BITS).step_by(997).collect();
        decode(&mut written, &wrong).unwrap();
        assert!(written.iter().all(|byte| *byte == 0x5A));
    }
}

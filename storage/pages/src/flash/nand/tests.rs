//! The card against the suite of all devices, and against the rules of NAND.

use std::collections::BTreeMap;

use super::blocks::BlockMap;
use super::chips::{Content, Found, Spare};
use super::*;
use crate::flash::tests::seeds;
use crate::flash::{FlashPage, PageBuffer, Tag, conformance};

/// Builds without optimisation are slow at correcting errors.
const ROUNDS: u64 = if cfg!(debug_assertions) { 1 } else { 6 };

fn options(seed: u64) -> NandOptions {
    NandOptions {
        seed,
        shape: NandShape {
            buses: 2,
            chips_per_bus: 2,
            blocks_per_chip: 16,
            pages_per_block: 8,
        },
        lanes: 2,
        ..NandOptions::default()
    }
}

/// Much goes wrong.
fn rough(seed: u64) -> NandOptions {
    NandOptions {
        reserve: 0.4,
        bad_at_birth: 0.05,
        bit_errors: WearRate::always(1e-5),
        program_failures: WearRate::always(2e-3),
        erase_failures: WearRate::always(5e-3),
        ..options(seed)
    }
}

fn contents(number: u64) -> PageBuffer {
    let mut random = Random::new(number);
    let mut buffer = PageBuffer::zeroed();
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    buffer
}

fn run(flash: &NandFlash, op: FlashOp) -> Completion {
    let mut queue = flash.open_queue().unwrap();
    queue.submit(op).unwrap();
    let mut completions = Vec::new();
    queue.wait(1, &mut completions).unwrap();
    completions.remove(0)
}

fn write(flash: &NandFlash, page: u64, number: u64) -> Result<()> {
    let op = FlashOp::Write {
        tag: Tag(1),
        first: FlashPage(page),
        buffers: vec![contents(number)],
    };
    run(flash, op).result
}

fn read(flash: &NandFlash, page: u64) -> Result<PageBuffer> {
    let op = FlashOp::Read {
        tag: Tag(1),
        first: FlashPage(page),
        buffers: vec![contents(u64::MAX)],
    };
    let mut completion = run(flash, op);
    completion.result.map(|()| completion.buffers.remove(0))
}

fn erase(flash: &NandFlash, page: u64) -> Result<()> {
    let op = FlashOp::Erase {
        tag: Tag(1),
        first: FlashPage(page),
    };
    run(flash, op).result
}

struct Cards(fn(u64) -> NandOptions, u64);

impl conformance::Subject for Cards {
    fn create(&self) -> Arc<dyn Flash> {
        Arc::new(NandFlash::new(self.0(self.1)).unwrap())
    }
}

#[test]
fn a_card_is_a_device_like_any_other() {
    for seed in seeds(ROUNDS) {
        conformance::run_all(&Cards(options, seed), seed);
        conformance::run_all(&Cards(rough, seed), seed);
    }
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, rule: &str) {
    match result {
        Err(StorageError::Invalid(why)) if why.contains(rule) => {}
        other => panic!("{other:?} instead of '{rule}'"),
    }
}

#[test]
fn chips_refuse_what_would_damage_data() {
    let mut chips = Chips::new(NandOptions {
        bad_at_birth: 0.0,
        ..options(1)
    });
    let data = contents(1);
    let spare = Spare {
        slot: 0,
        sequence: 0,
        copied_pages: 0,
        erases: 0,
        content: Content::Data(crc_fast::crc32_iscsi(&data)),
    };
    let program = |chips: &mut Chips, page| chips.program(3, page, spare, Some(&data));
    assert_refused(program(&mut chips, 1), "pages before it are not programmed");
    assert!(program(&mut chips, 0).unwrap());
    assert_refused(program(&mut chips, 0), "a second time without an erase");
    for page in 1..8 {
        assert!(program(&mut chips, page).unwrap());
    }
    assert_refused(program(&mut chips, 8), "no such page");
    assert!(chips.erase(3).unwrap());
    assert!(program(&mut chips, 0).unwrap());
    chips.power_up();
    assert_refused(program(&mut chips, 1), "it was open when the power came");
    assert!(chips.erase(3).unwrap());
    assert!(program(&mut chips, 0).unwrap());
    let mut buffer = PageBuffer::zeroed();
    assert_eq!(
        chips.read(3, 0, &mut buffer).unwrap(),
        Found::Written(spare)
    );
    assert!(*buffer == *data);
    assert_eq!(chips.read(3, 1, &mut buffer).unwrap(), Found::Blank);
}

#[test]
fn a_device_refuses_what_would_break_the_rules_and_fills_what_is_left_out() {
    let flash = NandFlash::new(options(2)).unwrap();
    write(&flash, 5, 5).unwrap();
    assert_refused(write(&flash, 5, 6), "a second time without an erase");
    assert_refused(write(&flash, 3, 3), "behind its turn");
    write(&flash, 7, 7).unwrap();
    assert!(*read(&flash, 3).unwrap() == *PageBuffer::zeroed());
    let flash = flash.restart().unwrap();
    assert!(*read(&flash, 3).unwrap() == *PageBuffer::zeroed());
    assert!(*read(&flash, 7).unwrap() == *contents(7));
    assert!(*read(&flash, 8).unwrap() == *PageBuffer::zeroed());
    assert_refused(write(&flash, 9, 9), "an earlier opening");
    erase(&flash, 0).unwrap();
    write(&flash, 0, 9).unwrap();
    assert!(*read(&flash, 0).unwrap() == *contents(9));
}

#[test]
fn a_card_that_was_taken_out_and_one_without_power_say_so() {
    let flash = NandFlash::new(options(3)).unwrap();
    write(&flash, 0, 0).unwrap();
    let again = flash.restart().unwrap();
    let error = read(&flash, 0).unwrap_err().to_string();
    assert!(error.contains("taken out"), "{error}");
    again.fail_power_at(0);
    assert!(erase(&again, 0).is_err() && !again.has_power());
    for error in [read(&again, 0).err(), again.sync().err()] {
        let error = error.unwrap().to_string();
        assert!(error.contains("power has failed"), "{error}");
    }
    assert!(again.restart().unwrap().has_power());
}

/// A history of writes, erases, restarts and power cuts on a card where much fails, against a map.
#[test]
fn what_was_written_is_there_whatever_fails() {
    for seed in seeds(2 * ROUNDS) {
        let mut random = Random::new(seed);
        let mut flash = NandFlash::new(rough(seed)).unwrap();
        let stripe = u64::from(flash.geometry().pages_per_erase_block);
        let blocks = flash.geometry().erase_blocks;
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let mut next = vec![0; blocks as usize];
        let mut is_closed = vec![false; blocks as usize];
        let (mut cuts, mut failed) = (0, false);
        for step in 0..3000 {
            let block = random.below(blocks);
            let place = block as usize;
            if next[place] == stripe || is_closed[place] {
                match erase(&flash, block * stripe) {
                    Ok(()) => {
                        model.retain(|page, _| page / stripe != block);
                        (next[place], is_closed[place]) = (0, false);
                    }
                    // Nobody knows what is in it.
                    Err(_) => {
                        model.retain(|page, _| page / stripe != block);
                        failed = true;
                    }
                }
            } else {
                let page = block * stripe + next[place];
                match write(&flash, page, step) {
                    Ok(()) => drop(model.insert(page, step)),
                    Err(StorageError::Full { .. }) => break,
                    Err(_) => failed = true,
                }
                next[place] += 1;
            }
            if failed {
                assert!(!flash.has_power(), "seed {seed}: only the power may fail");
                cuts += 1;
            }
            if failed || random.below(200) == 0 {
                flash = flash.restart().unwrap();
                for place in 0..blocks as usize {
                    is_closed[place] = next[place] > 0;
                }
                failed = false;
                if random.below(2) == 0 {
                    flash.fail_power_at(random.below(300));
                }
                for (page, number) in &model {
                    let found = read(&flash, *page);
                    let found = found.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    assert!(*found == *contents(*number), "seed {seed}: page {page}");
                }
            }
        }
        let health = flash.health().unwrap();
        assert!(health.corrected_bits > 0, "{health:?}");
        println!("{cuts} power cuts, {health:?}");
    }
}

#[test]
fn data_that_the_code_cannot_correct_is_an_error_that_names_the_page() {
    let flash = NandFlash::new(NandOptions {
        bit_errors: WearRate::always(0.05),
        ..options(4)
    })
    .unwrap();
    write(&flash, 0, 0).unwrap();
    let error = read(&flash, 0).unwrap_err().to_string();
    assert!(
        error.starts_with("corrupt: page 0 of the NAND card"),
        "{error}"
    );
    assert_eq!(flash.health().unwrap().uncorrectable_pages, 1);
}

#[test]
fn a_card_out_of_spares_is_full() {
    let flash = NandFlash::new(NandOptions {
        bad_at_birth: 0.5,
        ..options(5)
    })
    .unwrap();
    let stripe = u64::from(flash.geometry().pages_per_erase_block);
    let writes = (0..flash.geometry().erase_blocks).map(|block| write(&flash, block * stripe, 1));
    let refused = writes.filter_map(Result::err).next().unwrap();
    assert!(matches!(refused, StorageError::Full { .. }), "{refused}");
    assert!(refused.to_string().contains("spare blocks"), "{refused}");
}

/// Parts of a card, full or not, are cold; the rest is erased and written all the time.
#[test]
fn wear_is_even_whatever_is_cold() {
    for (seed, filled, hot) in [(6, 1.0, 0.5), (7, 1.0, 0.1), (8, 0.6, 0.5), (9, 0.9, 1.0)] {
        let flash = NandFlash::new(NandOptions {
            shape: NandShape {
                blocks_per_chip: 32,
                pages_per_block: 2,
                ..options(seed).shape
            },
            bad_at_birth: 0.05,
            bit_errors: WearRate::always(0.0),
            ..options(seed)
        })
        .unwrap();
        let stripe = u64::from(flash.geometry().pages_per_erase_block);
        let blocks = (flash.geometry().erase_blocks as f64 * filled) as u64;
        for page in 0..blocks * stripe {
            write(&flash, page, page).unwrap();
        }
        let mut random = Random::new(seed);
        let health = loop {
            let block = random.below((blocks as f64 * hot) as u64);
            erase(&flash, block * stripe).unwrap();
            (block * stripe..(block + 1) * stripe)
                .for_each(|page| write(&flash, page, page).unwrap());
            let health = flash.health().unwrap();
            if health.erase_count_mean >= 60.0 {
                break health;
            }
        };
        for page in 0..blocks * stripe {
            let found = read(&flash, page).unwrap();
            assert!(*found == *contents(page), "page {page}");
        }
        let spread = f64::from(health.erase_count_max) / health.erase_count_mean;
        println!("{filled} full, {hot} of it hot: wear spread {spread:.3}, {health:?}");
        assert!(spread < 1.2, "{health:?}");
    }
}

#[test]
fn a_broken_card_is_refused_with_a_reason() {
    let refused = [
        NandOptions {
            lanes: 5,
            ..options(7)
        },
        NandOptions {
            reserve: 1.0,
            ..options(7)
        },
    ];
    for options in refused {
        assert!(matches!(
            NandFlash::new(options),
            Err(StorageError::Invalid(_))
        ));
    }
}

#[test]
fn stripes_lie_on_different_chips_and_modelled_time_shows_it() {
    let elapsed_ns = |lanes| {
        let flash = NandFlash::new(NandOptions {
            lanes,
            bad_at_birth: 0.0,
            ..options(8)
        })
        .unwrap();
        let mut queue = flash.open_queue().unwrap();
        // Programs of 8 pages, all under way at once.
        for page in 0..8 {
            let op = FlashOp::Write {
                tag: Tag(page),
                first: FlashPage(page),
                buffers: vec![contents(page)],
            };
            queue.submit(op).unwrap();
        }
        queue.wait(8, &mut Vec::new()).unwrap();
        flash.health().unwrap().modelled_elapsed_ns
    };
    let (one, four) = (elapsed_ns(1), elapsed_ns(4));
    assert!(four < one, "{four} ns with four lanes, {one} ns with one");
}

#[test]
fn the_map_is_found_again_on_the_chips() {
    let flash = NandFlash::new(rough(9)).unwrap();
    for page in 0..60 {
        write(&flash, page, page).unwrap();
    }
    let chips = flash.with(|card| Ok(card.chips.clone())).unwrap();
    let map = BlockMap::open(chips).unwrap();
    assert_eq!(map.used_erase_blocks(), flash.used_erase_blocks().unwrap());
    assert_eq!(map.bad_blocks(), flash.health().unwrap().bad_blocks);
}

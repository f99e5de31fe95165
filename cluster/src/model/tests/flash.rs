//! Cards, the flash server, and nodes.

use super::super::parameters::{GB, GIB, US};
use super::super::{
    Access, Card, FlashServer, Parameters, Place, Random, Simulation, Time, closed_loop, latency,
};
use super::{assert_near, between, run_together, seed};

const PLACE: Place = Place { bus: 0, chip: 0 };

/// Of a page on a bus, in seconds.
fn on_bus(p: &Parameters) -> f64 {
    p.page / (p.card_rate * GIB / p.buses)
}

/// Reads on chips of one bus: they overlap, and the bus takes one after the other.
#[test]
fn reads_in_flight_fill_a_bus() {
    let p = Parameters::default();
    let transfer = on_bus(&p);
    for in_flight in 1..=p.chips as u64 {
        let mut simulation = Simulation::new();
        let card = Card::new(&mut simulation, &p, 0);
        let measured = closed_loop(&mut simulation, in_flight, 400, |chip| {
            let chip = chip as usize;
            card.read(Place { bus: 0, chip }, &[]).into()
        });
        // The last burst is on the card's link while the chip reads on.
        let alone = p.flash_read * US + transfer;
        let expected = (in_flight as f64 / alone).min(1.0 / transfer);
        assert_near(measured.rate, expected, 2.0);
    }
}

/// Random pages: no more than tags, chips and buses allow, and near what buses do.
#[test]
fn a_card_gives_its_bandwidth_to_random_reads() {
    let p = Parameters::default();
    let mut random = Random::new(seed());
    let mut simulation = Simulation::new();
    let card = Card::new(&mut simulation, &p, 0);
    let measured = closed_loop(&mut simulation, 1000, 10_000, |_| {
        card.read(card.place(&mut random), &[]).into()
    });
    let rate = measured.rate * p.page / GIB;
    assert!(rate <= p.card_rate * 1.001, "{rate}");
    assert_near(rate, p.card_rate, 6.0);
    assert_eq!(simulation.running(), 0);
}

#[test]
fn pages_in_are_pages_out() {
    let p = Parameters::default();
    let mut random = Random::new(seed());
    let mut simulation = Simulation::new();
    let card = Card::new(&mut simulation, &p, 0);
    let jobs: Vec<_> = (0..3000)
        .map(|_| {
            let place = card.place(&mut random);
            match random.below(10) {
                0 => card.erase(place),
                1..=3 => card.program(place),
                _ => card.read(place, &[]),
            }
        })
        .collect();
    let bursts: usize = jobs.iter().map(|job| usize::from(job.len() > 3)).sum();
    let mut tags: Vec<u64> = run_together(&mut simulation, jobs)
        .into_iter()
        .map(|(tag, _)| tag)
        .collect();
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..3000));
    assert!(bursts > 0);
    let of = |name| {
        let stations = simulation.stations().iter();
        let of_name = stations.filter(|station| station.name() == name);
        of_name.map(|station| station.served()).sum::<u64>()
    };
    // What crosses a bus crosses the link, burst for burst.
    assert_eq!(of("flash bus"), of("card link"));
    assert_eq!(of("flash bus") % (p.page / p.burst) as u64, 0);
}

#[test]
fn single_operations_take_what_their_parts_take() {
    let p = Parameters::default();
    let time = |steps: fn(&Card) -> Vec<super::Step>| {
        let mut simulation = Simulation::new();
        let card = Card::new(&mut simulation, &p, 0);
        let job = steps(&card);
        run_together(&mut simulation, vec![job])[0].1.seconds()
    };
    let over_link = p.burst / (p.card_link_rate * GB) + p.card_link_delay * US;
    let read = p.flash_read * US + on_bus(&p) + over_link;
    assert_near(time(|card| card.read(PLACE, &[])), read, 0.01);
    let program = over_link + on_bus(&p) + p.flash_program * US;
    assert_near(time(|card| card.program(PLACE)), program, 0.01);
    assert_near(time(|card| card.erase(PLACE)), p.flash_erase * US, 0.01);
}

/// Tags end out of order; behind the flash server pages come in the order of their requests, and
/// the model's card gives no more for it.
#[test]
fn the_flash_server_puts_pages_in_order() {
    let p = Parameters::default();
    let seed = seed();
    let run = |is_in_order: bool| -> (Vec<u64>, Time) {
        let mut random = Random::new(seed);
        let depth = between(&mut random, 8, 64) as u64;
        let mut simulation = Simulation::new();
        let card = Card::new(&mut simulation, &p, 0);
        let server = FlashServer::new(&mut simulation, depth);
        let jobs = (0..500).map(|_| card.read(card.place(&mut random), &[]));
        let jobs = jobs.map(|job| {
            if is_in_order {
                server.in_order(job)
            } else {
                job
            }
        });
        let ended = run_together(&mut simulation, jobs.collect());
        let end = ended.last().map_or(Time::ZERO, |last| last.1);
        (ended.into_iter().map(|(tag, _)| tag).collect(), end)
    };
    let (in_order, later) = run(true);
    let (out_of_order, sooner) = run(false);
    assert!(in_order.is_sorted());
    assert!(!out_of_order.is_sorted());
    assert!(later >= sooner);
}

/// BlueDBM section 6.4: a remote page's latency is the sum of software, flash, transfer and hops.
#[test]
fn hops_add_to_the_latency_of_remote_pages_and_nothing_else() {
    let p = Parameters::default();
    for access in Access::ALL {
        let over = |hops| latency(&p, access, hops).seconds();
        for hops in 2..10 {
            // A request and the last burst, which each link takes in whole.
            let burst = (p.burst - p.packet) / (p.lane_rate / 8.0 * GB);
            let one = 2.0 * p.hop * US + burst;
            assert_near(over(hops) - over(1), (hops - 1) as f64 * one, 0.01);
        }
        let software = f64::from(access.software_passes()) * p.software * US;
        assert!(over(1) > software);
        // Ten hops more are less than a tenth.
        assert!(over(10) < over(1) * 1.2, "{access:?}");
    }
}

//! A card of another node passes what every device passes.

use std::cell::Cell;
use std::sync::Arc;

use flashmesh_pages::flash::{Flash, FlashHealth, conformance};

use super::{Bed, memory, seed};

/// Cards of the last node of a line, one for each check, as the first node sees them.
struct Remote {
    bed: Bed,
    nodes: usize,
    next: Cell<u16>,
}

impl Remote {
    fn new(nodes: usize, bounds: &str) -> Self {
        let cards = |node| match node + 1 == nodes {
            true => (0..16).map(|_| memory()).collect(),
            false => Vec::new(),
        };
        Self {
            bed: Bed::line((0..nodes).map(cards).collect(), bounds),
            nodes,
            next: Cell::new(0),
        }
    }
}

impl conformance::Subject for Remote {
    fn create(&self) -> Arc<dyn Flash> {
        let card = self.next.replace(self.next.get() + 1);
        Arc::new(self.bed.open(0, self.nodes - 1, card, 1).unwrap())
    }

    /// As another one sees it, with a later term.
    fn reopen(&self, flash: Arc<dyn Flash>) -> Arc<dyn Flash> {
        drop(flash);
        let card = self.next.get() - 1;
        Arc::new(self.bed.open(0, self.nodes - 1, card, 2).unwrap())
    }
}

#[test]
fn a_card_of_a_neighbour_is_a_device() {
    conformance::run_all(&Remote::new(2, ""), seed());
}

#[test]
fn so_is_one_behind_another_node() {
    conformance::run_all(&Remote::new(3, ""), seed());
}

#[test]
fn so_is_ones_own_by_way_of_the_mesh() {
    conformance::run_all(&Remote::new(1, ""), seed());
}

/// A page a packet, three of them, and packets of which few are under way.
#[test]
fn operations_are_cut_into_packets_of_any_size() {
    for bounds in [
        "[mesh]\npacket_bytes = 8248",
        "[mesh]\npacket_bytes = 30000\nlink_packets = 2\nwindow_packets = 2",
    ] {
        conformance::run_all(&Remote::new(2, bounds), seed());
    }
}

#[test]
fn what_a_card_says_of_itself_comes_over() {
    let bed = Bed::line(vec![vec![], vec![memory(), memory()]], "");
    let card = bed.open(0, 1, 1, 7).unwrap();
    assert_eq!(card.name(), "n1 card 1");
    assert_eq!((card.geometry(), card.term()), (super::GEOMETRY, 7));
    assert!(card.continues_blocks());
    assert_eq!(card.used_erase_blocks().unwrap(), 0);
    assert_eq!(card.health(), None::<FlashHealth>);
    let error = bed.open(0, 1, 2, 7).unwrap_err().to_string();
    assert!(error.contains("'n1' serves no card of number 2"), "{error}");
    let error = bed.open(0, 9, 0, 7).unwrap_err().to_string();
    assert!(error.contains("no node of number 9"), "{error}");
}

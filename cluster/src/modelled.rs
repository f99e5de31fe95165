//! A rack file as the [`model`](crate::model) has it: BlueDBM's hardware in the place of its nodes,
//! cables and cards. The counts of a query that ran somewhere are spread over the nodes as a rack
//! would have placed its data.

use flashmesh_pages::store::NodeId;

use crate::mesh::Network;
use crate::model::{Appliance, Counts, Parameters, Report, Workload};
use crate::{Rack, RackError};

/// What one scan of a query did, wherever that was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanCounts {
    /// Segments that it looked at.
    pub segments: u64,
    /// Pages that it read, be it from flash or from a cache.
    pub pages: u64,
    /// Bytes of its answers.
    pub bytes: u64,
    /// Whose these answers are.
    pub answers: Answers,
    /// Requests to each node that has segments of it.
    pub requests: u64,
}

/// What the answers of a scan go with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// Rows of segments: of twice the segments, twice the bytes.
    OfSegments,
    /// Partial aggregates or first rows of an order, of so many streams that shared the segments: a
    /// node gives what a stream gave, however many segments it has.
    OfStreams(u64),
}

/// A rack of which each node is one of BlueDBM's, with as many flash cards as the rack file says.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelledRack {
    appliance: Appliance,
    /// In the order of their numbers.
    nodes: Vec<ModelledNode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ModelledNode {
    id: NodeId,
    cards: u64,
    /// Links to the head.
    hops: u32,
}

impl ModelledRack {
    /// What the model makes of a rack: its head asks, answers come to it by the mesh's routes, and
    /// the parallel cables between two nodes are the lanes of a link.
    ///
    /// # Errors
    /// Those of [`Network::new`].
    pub fn new(rack: &Rack) -> Result<Self, RackError> {
        let way = Network::new(rack)?.way_to(rack.head().number());
        let of_node = |node: &crate::Node| ModelledNode {
            id: node.number(),
            cards: node.cards.len() as u64,
            hops: way.hops.get(&node.number()).copied().unwrap_or(0),
        };
        let mut nodes: Vec<_> = rack.nodes.iter().map(of_node).collect();
        nodes.sort_by_key(|node| node.id);
        let mut parameters = Parameters::default();
        // Who has fewer cards has fewer segments on them: the time is that of the node with most.
        let cards = nodes.iter().map(|node| node.cards).max().unwrap_or(1) as f64;
        parameters.power_flash *= cards / parameters.cards;
        parameters.cards = cards;
        Ok(Self {
            appliance: Appliance {
                parameters,
                arms: way.neighbours.max(1),
                lanes: (way.cables / way.neighbours.max(1)).max(1) as u32,
            },
            nodes,
        })
    }

    /// How many nodes it has.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The head and those that are nearest to it, `count` in all: a smaller rack of the same kind.
    pub fn nearest(&self, count: usize) -> Self {
        let mut nodes = self.nodes.clone();
        nodes.sort_by_key(|node| (node.hops, node.id));
        nodes.truncate(count.max(1));
        nodes.sort_by_key(|node| node.id);
        let mut appliance = self.appliance.clone();
        appliance.arms = appliance.arms.min(nodes.len() - 1).max(1);
        Self { appliance, nodes }
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.appliance.parameters.page as u64
    }

    /// The scans of a query over `scale` times the data, spread over the nodes: segments take turns
    /// between the cards, scan after scan, and take their pages, and their rows, with them.
    ///
    /// A comparison is what a host's thread does with a page, which takes it as long as to search
    /// so much text (BlueDBM 7.3); all cores of a host share it.
    pub fn workload(&self, scans: &[ScanCounts], scale: u64) -> Workload {
        let hops = |node: &ModelledNode| Counts {
            hops: node.hops,
            ..Counts::default()
        };
        let mut counts: Vec<Counts> = self.nodes.iter().map(hops).collect();
        let cards: u64 = self.nodes.iter().map(|node| node.cards).sum();
        let mut turn = 0;
        for scan in scans {
            let segments = scan.segments.max(1).saturating_mul(scale);
            // What falls to the first so many of the segments.
            let part = |of: u64, first: u64| {
                let all = u128::from(of.saturating_mul(scale));
                (all * u128::from(first) / u128::from(segments)) as u64
            };
            let (mut card, mut done) = (0, 0);
            for (node, counts) in self.nodes.iter().zip(&mut counts) {
                let before = done;
                for of_node in card..card + node.cards {
                    let place = (of_node + cards - turn) % cards;
                    done += segments / cards + u64::from(place < segments % cards);
                }
                card += node.cards;
                if done == before {
                    continue;
                }
                let own = |of: u64| part(of, done) - part(of, before);
                let bytes = match scan.answers {
                    Answers::OfSegments => own(scan.bytes),
                    Answers::OfStreams(streams) => scan.bytes.div_ceil(streams.max(1)),
                };
                counts.pages = counts.pages.saturating_add(own(scan.pages));
                counts.bytes_shipped = counts.bytes_shipped.saturating_add(bytes);
                counts.requests = counts.requests.saturating_add(scan.requests);
            }
            turn = (turn + segments % cards) % cards;
        }
        for of_node in &mut counts {
            of_node.comparisons = of_node.pages;
        }
        let p = &self.appliance.parameters;
        Workload {
            nodes: counts,
            comparison_seconds: p.scan_byte * 1e-9 * p.page,
            threads: p.cores as u32,
            in_flight: None,
            seed: 1,
        }
    }

    /// Models it, in the store and in the hosts.
    pub fn run(&self, workload: &Workload) -> Report {
        self.appliance.run(workload)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::Shape;

    fn rack(nodes: usize, shape: Shape) -> ModelledRack {
        let text = Rack::draft(Path::new("/r"), nodes, shape, 1, 50051).unwrap();
        ModelledRack::new(&Rack::parse(&text).unwrap()).unwrap()
    }

    fn scan(segments: u64, pages: u64, bytes: u64) -> ScanCounts {
        ScanCounts {
            segments,
            pages,
            bytes,
            answers: Answers::OfSegments,
            requests: 1,
        }
    }

    fn sums(workload: &Workload) -> [u64; 3] {
        let sum = |of: fn(&Counts) -> u64| workload.nodes.iter().map(of).sum();
        [
            sum(|node| node.pages),
            sum(|node| node.bytes_shipped),
            sum(|node| node.requests),
        ]
    }

    #[test]
    fn hops_arms_and_lanes_are_those_of_the_rack_file() {
        let hops =
            |rack: &ModelledRack| -> Vec<u32> { rack.nodes.iter().map(|n| n.hops).collect() };
        let line = rack(4, Shape::Line);
        assert_eq!(hops(&line), [0, 1, 2, 3]);
        assert_eq!((line.appliance.arms, line.appliance.lanes), (1, 1));
        let ring = rack(5, Shape::Ring);
        assert_eq!(hops(&ring), [0, 1, 2, 2, 1]);
        assert_eq!(ring.appliance.arms, 2);
        let full = rack(6, Shape::Full);
        assert_eq!(hops(&full), [0, 1, 1, 1, 1, 1]);
        assert_eq!(full.appliance.arms, 5);
        // Two cables between two nodes, of which the second is the head; more cards than BlueDBM's.
        let text = "head = 'b'
            [[node]]
            id = 3
            name = 'a'
            card = [{ id = 0, path = 'a0' }, { id = 1, path = 'a1' }, { id = 2, path = 'a2' }]
            [[node]]
            id = 7
            name = 'b'
            address = 'unix:///b'
            card = [{ id = 0, path = 'b0' }]
            [[cable]]
            from = 'a/0'
            to = 'b/0'
            [[cable]]
            from = 'a/1'
            to = 'b/1'";
        let pair = ModelledRack::new(&Rack::parse(text).unwrap()).unwrap();
        assert_eq!(hops(&pair), [1, 0]);
        assert_eq!((pair.appliance.arms, pair.appliance.lanes), (1, 2));
        let p = &pair.appliance.parameters;
        assert_eq!((p.cards, p.power_flash), (3.0, 15.0));
        let workload = pair.workload(&[scan(8, 800, 80)], 1);
        let pages: Vec<_> = workload.nodes.iter().map(|node| node.pages).collect();
        assert_eq!(pages, [600, 200]);
    }

    #[test]
    fn the_nearest_nodes_are_a_smaller_rack() {
        let ring = rack(6, Shape::Ring);
        let ids = |rack: &ModelledRack| -> Vec<u16> { rack.nodes.iter().map(|n| n.id.0).collect() };
        assert_eq!(ids(&ring.nearest(1)), [0]);
        assert_eq!(ids(&ring.nearest(3)), [0, 1, 5]);
        assert_eq!(ring.nearest(2).appliance.arms, 1);
        assert_eq!(ring.nearest(3).appliance.arms, 2);
        assert_eq!(ring.nearest(99), ring);
    }

    /// Whatever the rack and the scans: nothing is lost or invented, and no card has two segments
    /// more of a scan than another.
    #[test]
    fn counts_are_spread_evenly_and_whole() {
        let seed = std::env::var("FLASHMESH_TEST_SEED");
        let seed = seed.map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
        println!("FLASHMESH_TEST_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..200 {
            let rack = rack(random.random_range(1..=20), Shape::Torus);
            let nodes = rack.nodes() as u64;
            let scale = random.random_range(1..=1000);
            // Each segment has as many pages as another, so that they can be counted by them.
            let (segments, each) = (random.random_range(1..=100), random.random_range(1..=100));
            let one = scan(segments, segments * each, random.random_range(0..1 << 40));
            let workload = rack.workload(&[one], scale);
            let asked = nodes.min(segments * scale);
            assert_eq!(
                sums(&workload),
                [one.pages * scale, one.bytes * scale, asked]
            );
            let of_nodes = workload.nodes.iter().map(|node| node.pages / each);
            let (least, most) = (of_nodes.clone().min(), of_nodes.max());
            assert!(most.unwrap() - least.unwrap() <= 1);
            let several = vec![one; random.random_range(1..=5)];
            let times = several.len() as u64 * scale;
            let [pages, bytes, _] = sums(&rack.workload(&several, scale));
            assert_eq!([pages, bytes], [one.pages * times, one.bytes * times]);
        }
    }

    /// Four scans of one segment each keep four nodes busy.
    #[test]
    fn scans_take_turns_too() {
        let workload = rack(4, Shape::Ring).workload(&[scan(1, 10, 1); 4], 1);
        assert!(workload.nodes.iter().all(|node| node.pages == 10));
    }

    #[test]
    fn partial_aggregates_grow_with_the_nodes_and_not_with_the_data() {
        let sums_of = |nodes, scale| {
            let count = ScanCounts {
                answers: Answers::OfStreams(2),
                ..scan(8, 80, 64)
            };
            sums(&rack(nodes, Shape::Ring).workload(&[count], scale))
        };
        assert_eq!(sums_of(1, 1), [80, 32, 1]);
        assert_eq!(sums_of(1, 100), [8000, 32, 1]);
        assert_eq!(sums_of(4, 100), [8000, 4 * 32, 4]);
        // Of 20 nodes 12 have no segment.
        assert_eq!(sums_of(20, 1), [80, 8 * 32, 8]);
    }

    #[test]
    fn absurd_counts_are_spread() {
        let most = scan(u64::MAX, u64::MAX, u64::MAX);
        let workload = rack(3, Shape::Ring).workload(&[most, scan(0, 0, 0)], u64::MAX);
        assert_eq!(workload.nodes.len(), 3);
    }
}

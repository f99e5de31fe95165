//! What a step chooses.

use super::*;

/// Blocks of ten pages, as (live, room).
fn blocks(of: &[(u32, u32)]) -> Vec<ClosedBlock> {
    let blocks = (0..).zip(of);
    let block = |(index, (live, room)): (u64, &(u32, u32))| ClosedBlock {
        pages: index * 10..(index + 1) * 10,
        live_pages: *live,
        room: *room,
    };
    blocks.map(block).collect()
}

fn chosen(of: &[(u32, u32)], runs: &[(u64, u64)]) -> (Vec<u64>, Vec<u64>) {
    let (victims, mut blocks) = choose(blocks(of), runs.iter().copied(), 30);
    let mut runs: Vec<u64> = victims.firsts.into_keys().collect();
    runs.sort_unstable();
    blocks.sort_unstable();
    (runs, blocks)
}

#[test]
fn the_emptiest_blocks_are_moved_until_two_are_gained() {
    let of = [(9, 0), (1, 0), (3, 0), (2, 0), (10, 0)];
    let runs = [(0, 9), (10, 1), (20, 3), (35, 2), (40, 10)];
    assert_eq!(chosen(&of, &runs), (vec![10, 20, 35], vec![10, 20, 30]));
}

#[test]
fn nothing_is_moved_where_no_block_is_gained() {
    assert_eq!(chosen(&[], &[]), (vec![], vec![]));
    assert_eq!(chosen(&[(9, 0)], &[(0, 9)]), (vec![], vec![]));
    // What is not dead can be written still.
    let of = [(2, 8), (3, 7), (1, 9)];
    assert_eq!(chosen(&of, &[(0, 2), (10, 3), (20, 1)]), (vec![], vec![]));
}

#[test]
fn pages_of_readers_and_writers_stay() {
    // The state has one of two live pages of the first block.
    let of = [(2, 0), (2, 0), (2, 0), (2, 0)];
    let runs = [(0, 1), (10, 2), (20, 2), (30, 2)];
    assert_eq!(chosen(&of, &runs), (vec![10, 20, 30], vec![10, 20, 30]));
}

#[test]
fn a_run_over_several_blocks_moves_whole_and_empties_those_between() {
    let of = [(4, 0), (10, 0), (10, 0), (1, 0)];
    assert_eq!(chosen(&of, &[(6, 25)]), (vec![6], vec![0, 30]));
}

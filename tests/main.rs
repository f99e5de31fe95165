//! Whole-system tests: SQL in, answers out, against oracles.
//!
//! | module | what it shows |
//! |---|---|
//! | `tpch` | the 22 TPC-H queries at scale factor 0.1, on one node and on a rack, against committed answers |
//! | `random_queries` | random queries on random tables, against DataFusion on the same rows |
//! | `corruption` | flipped bits and misplaced pages give errors that name the page, never answers |
//! | `devices` | queries on a device behind XRT (the device model), against the CPU; devices that die |
//! | `nand` | TPC-H on a modelled card of raw NAND with bad blocks and wrong bits |
//! | `refusals` | what can't be done is refused with a message that says why and what to do |
//!
//! Random tests print their seed; `FLASHMESH_TEST_SEED=<seed>` replays it.

mod corruption;
mod devices;
mod nand;
mod random_queries;
mod refusals;
mod support;
// The engine's own tests use more of it.
#[allow(dead_code)]
#[path = "../engine/tests/engine/test_rack.rs"]
mod test_rack;
mod tpch;

//! One truth for all targets: the vectors of `tests/vectors` on everything that runs a kernel or
//! computes what a kernel stands for, and wrong kernels and Programs that must fail there.
//!
//! C simulation of the HLS sources is the business of `fpga/check`, which runs the same vectors and
//! all mutants; the device model behind XRT runs C simulation too. What a machine lacks is skipped,
//! with a line that says so: `FLASHMESH_REQUIRE_KERNELS=1` (ziglang, for the sandbox) and
//! `FLASHMESH_REQUIRE_XRT=1` make that a failure.
//!
//! | kernel | sandbox, C simulation, XRT emulation | interpreter, cpu |
//! |---|---|---|
//! | `predicate_filter` | yes | the filter's conjunct, but malformed conditions |
//! | `price_band` | yes | two comparisons, but bounds that are NaN: C's comparisons are FALSE there, a Program's have an order |
//! | `fair_price` | yes; calls `price_band` | three comparisons |
//! | `morris_pratt` | yes | `Position`, and `ContainsAny` of one needle, of UTF-8 |
//! | `fgrep8` | yes | `ContainsAny` for each slot, of UTF-8 |
//! | `hamming_nearest` | yes | `Output::Nearest`, but what the kernel has limits for; among rows equally far, any |
//! | `partial_aggregate` | yes | `Output::Aggregate`, but what the kernel has limits for |
//! | `page_decode` | yes; and pages of the store's writer, against the store's decoder (not C simulation) | no: a Program reads columns, pages are below it |
//! | `text_decode` | yes; and texts of the store's writer (not C simulation) | no: a Program reads columns, pages are below it |
//! | `key_lookup` | yes; and pages of a real hash index, against its entries (not C simulation) | no: an index is asked before a Program runs |
//! | `graph_step` | yes | no: a Program looks at each row alone |
//! | `read_modify_write` | yes | no: a Program writes nothing |
//! | `dna_kmer`, `geometric_mean`, `haversine`, `manhattan`, `page_summary`, `shout` | yes | no: a Program has no such operation; these are what kernels are for |

#[path = "../common/mod.rs"]
mod common;
mod kernels;
mod pages;
mod programs;
mod runner;
mod sandbox;
mod vectors;
mod xrt;

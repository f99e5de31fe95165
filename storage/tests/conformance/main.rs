//! One truth for all targets: the vectors of `tests/vectors` on everything that runs a kernel or
//! what a kernel stands for.

#[path = "../common/mod.rs"]
mod common;
mod kernels;
mod pages;
mod programs;
mod runner;
mod sandbox;
mod vectors;
mod xrt;

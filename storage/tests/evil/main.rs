//! Hostile guests: README.md lists the attacks. Each has to be contained.

#[path = "../sandbox/guest.rs"]
mod guest;
mod harness;
mod modules;
mod packages;
mod results;
mod running;
mod tenants;

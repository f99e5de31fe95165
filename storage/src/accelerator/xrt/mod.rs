//! Devices behind XRT, the runtime of AMD's FPGA cards.

pub mod container;

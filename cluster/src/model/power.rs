//! Power and energy (BlueDBM table 3).

use super::parameters::Parameters;

/// What the parts of a node take, in watts, from data sheets: busy or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Power {
    /// The FPGA board.
    pub fpga: f64,
    /// The flash boards.
    pub flash: f64,
    /// The host.
    pub server: f64,
}

impl Power {
    /// Of a node.
    pub fn of(p: &Parameters) -> Self {
        Self {
            fpga: p.power_fpga,
            flash: p.power_flash,
            server: p.power_server,
        }
    }

    /// A node with its host, in watts.
    pub fn node(&self) -> f64 {
        self.storage() + self.server
    }

    /// The storage device of a node, in watts.
    pub fn storage(&self) -> f64 {
        self.fpga + self.flash
    }
}

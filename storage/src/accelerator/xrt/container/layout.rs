//! Where a container's compute units and memory banks are: registers, addresses, connections.

use std::fmt;

use super::axlf::{broken, text_until_zero, u32_at, u64_at};
use crate::Result;
use crate::kernel::interface::{
    ArgumentInterface, BankKind, FunctionInterface, KernelInterface, MAX_FUNCTIONS, parse_bank,
};

/// The first unit's control registers; the others follow every 64 KiB, as Vitis places them.
const FIRST_UNIT: u64 = 0x180_0000;
const UNIT_BYTES: u64 = 0x1_0000;
/// The first argument's register: control, interrupt enables and status lie before it.
const FIRST_ARGUMENT: u32 = 0x10;

const MEM_DDR4: u8 = 1;
const MEM_HBM: u8 = 6;
const MEM_HOST: u8 = 10;
const IP_KERNEL: u32 = 1;
const MEMORY_BYTES: usize = 40;
const UNIT_ENTRY_BYTES: usize = 80;

/// A compute unit: one copy of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeUnit {
    /// The function.
    pub function: String,
    /// The copy's own name: `<function>_<number from 1>` where flashmesh has chosen it.
    pub instance: String,
    /// Where its control registers begin.
    pub base_address: u64,
}

/// A memory bank of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryBank {
    /// Its name: `DDR[0]`, `bank0`, …
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Whether a compute unit is connected to it.
    pub is_used: bool,
    pub(super) kind: u8,
    pub(super) base_address: u64,
}

impl fmt::Display for ComputeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {}, registers at {:#x}",
            self.instance, self.function, self.base_address
        )
    }
}

impl fmt::Display for MemoryBank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = if self.is_used { "" } else { ", not used" };
        write!(f, "{}, {} MiB{used}", self.name, self.size_bytes >> 20)
    }
}

/// Where an argument's register begins, by ap_ctrl_hs as Vitis lays it out: after every argument
/// four bytes are reserved.
pub(super) fn register_offsets(function: &FunctionInterface) -> Vec<u32> {
    let mut next = FIRST_ARGUMENT;
    function
        .arguments
        .iter()
        .map(|argument| {
            let offset = next;
            next += register_bytes(argument) + 4;
            offset
        })
        .collect()
}

/// Bytes of an argument in the registers: an array's is its 64-bit address.
pub(super) fn register_bytes(argument: &ArgumentInterface) -> u32 {
    match argument.usage.is_buffer() {
        true => 8,
        false => argument.element.size_bytes().max(4) as u32,
    }
}

/// The units of all functions, in the order of the interfaces.
pub(super) fn compute_units(kernels: &[KernelInterface]) -> Result<Vec<ComputeUnit>> {
    let mut units = Vec::new();
    let mut functions = 0;
    for kernel in kernels {
        kernel.validate()?;
        for function in &kernel.functions {
            functions += 1;
            let named = |unit: &ComputeUnit| unit.function == function.name;
            if units.iter().any(named) {
                return Err(broken(format!(
                    "two functions are named '{}'",
                    function.name
                )));
            }
            for number in 1..=kernel.compute_units {
                units.push(ComputeUnit {
                    function: function.name.clone(),
                    instance: format!("{}_{number}", function.name),
                    base_address: FIRST_UNIT + UNIT_BYTES * units.len() as u64,
                });
            }
        }
    }
    // XRT has 128 units a device.
    if functions == 0 || functions > MAX_FUNCTIONS || units.len() > 128 {
        return Err(broken(format!(
            "{functions} functions on {} compute units; 1 to {MAX_FUNCTIONS} functions and 128 \
             units are possible",
            units.len()
        )));
    }
    Ok(units)
}

/// The banks that the interfaces name, in the order of XRT: by kind, then by number.
pub(super) fn memory_banks(kernels: &[KernelInterface]) -> Result<Vec<MemoryBank>> {
    let functions = kernels.iter().flat_map(|kernel| &kernel.functions);
    let arguments = functions.flat_map(|function| &function.arguments);
    let mut banks = vec![(BankKind::Ddr, 0)];
    for argument in arguments.filter(|argument| argument.usage.is_buffer()) {
        banks.push(parse_bank(&argument.bank)?);
    }
    banks.sort_unstable();
    banks.dedup();
    let size_bytes = 16 << 30;
    Ok(banks
        .into_iter()
        .zip(0u64..)
        .map(|((kind, number), index)| {
            let (kind, name) = match kind {
                BankKind::Ddr => (MEM_DDR4, "DDR"),
                BankKind::Hbm => (MEM_HBM, "HBM"),
                BankKind::Host => (MEM_HOST, "HOST"),
            };
            MemoryBank {
                name: format!("{name}[{number}]"),
                size_bytes,
                is_used: true,
                kind,
                base_address: index * size_bytes,
            }
        })
        .collect())
}

/// The MEM_TOPOLOGY section. In emulation all banks are plain memory of the model.
pub(super) fn write_memory(banks: &[MemoryBank]) -> Vec<u8> {
    let mut section = counted(banks.len());
    section.extend_from_slice(&[0; 4]);
    for bank in banks {
        let kind = if bank.kind == MEM_HOST {
            MEM_DDR4
        } else {
            bank.kind
        };
        section.extend_from_slice(&[kind, u8::from(bank.is_used), 0, 0, 0, 0, 0, 0]);
        section.extend_from_slice(&(bank.size_bytes >> 10).to_le_bytes());
        section.extend_from_slice(&bank.base_address.to_le_bytes());
        section.extend_from_slice(&padded::<16>(&bank.name));
    }
    section
}

/// The IP_LAYOUT section, with units by ascending address.
pub(super) fn write_units(units: &[ComputeUnit]) -> Vec<u8> {
    let mut section = counted(units.len());
    section.extend_from_slice(&[0; 4]);
    for unit in units {
        section.extend_from_slice(&IP_KERNEL.to_le_bytes());
        // Interrupt enabled, number 0, ap_ctrl_hs.
        section.extend_from_slice(&1u32.to_le_bytes());
        section.extend_from_slice(&unit.base_address.to_le_bytes());
        section.extend_from_slice(&padded::<64>(&format!(
            "{}:{}",
            unit.function, unit.instance
        )));
    }
    section
}

/// The CONNECTIVITY section: which array of which unit lies in which bank.
pub(super) fn write_connections(
    kernels: &[KernelInterface],
    units: &[ComputeUnit],
    banks: &[MemoryBank],
) -> Vec<u8> {
    let mut connections = Vec::new();
    let functions = kernels.iter().flat_map(|kernel| &kernel.functions);
    for function in functions {
        for (unit_index, unit) in units.iter().enumerate() {
            if unit.function != function.name {
                continue;
            }
            for (index, argument) in function.arguments.iter().enumerate() {
                let bank = banks.iter().position(|bank| bank.name == argument.bank);
                if let (true, Some(bank)) = (argument.usage.is_buffer(), bank) {
                    connections.push([index as i32, unit_index as i32, bank as i32]);
                }
            }
        }
    }
    let mut section = counted(connections.len());
    for number in connections.iter().flatten() {
        section.extend_from_slice(&number.to_le_bytes());
    }
    section
}

/// Reads IP_LAYOUT: the kernels' units only, as a device has other logic too.
pub(super) fn read_units(section: &[u8]) -> Result<Vec<ComputeUnit>> {
    entries(section, UNIT_ENTRY_BYTES, "IP_LAYOUT")?
        .filter(|entry| u32_at(entry, 0) == IP_KERNEL)
        .map(|entry| {
            let name = text_until_zero(&entry[16..]);
            let (function, instance) = name
                .split_once(':')
                .ok_or_else(|| broken(format!("the compute unit '{name}' has no kernel's name")))?;
            Ok(ComputeUnit {
                function: function.to_owned(),
                instance: instance.to_owned(),
                base_address: u64_at(entry, 8),
            })
        })
        .collect()
}

/// Reads MEM_TOPOLOGY.
pub(super) fn read_memory(section: &[u8]) -> Result<Vec<MemoryBank>> {
    Ok(entries(section, MEMORY_BYTES, "MEM_TOPOLOGY")?
        .map(|entry| MemoryBank {
            name: text_until_zero(&entry[24..]),
            size_bytes: u64_at(entry, 8).saturating_mul(1 << 10),
            is_used: entry[1] != 0,
            kind: entry[0],
            base_address: u64_at(entry, 16),
        })
        .collect())
}

/// The entries behind a count of 32 bits and as much padding.
fn entries<'s>(
    section: &'s [u8],
    entry_bytes: usize,
    name: &str,
) -> Result<impl Iterator<Item = &'s [u8]>> {
    if section.len() < 8 {
        return Err(broken(format!(
            "its {name} section has {} bytes",
            section.len()
        )));
    }
    let count = u32_at(section, 0);
    let needed = u64::from(count) * entry_bytes as u64;
    let content = &section[8..];
    if needed > content.len() as u64 {
        return Err(broken(format!(
            "its {name} section counts {count} entries, but has {} bytes",
            section.len()
        )));
    }
    Ok(content[..needed as usize].chunks_exact(entry_bytes))
}

fn counted(count: usize) -> Vec<u8> {
    (count as i32).to_le_bytes().to_vec()
}

/// A name in a field of fixed length, which ends with a zero.
fn padded<const N: usize>(name: &str) -> [u8; N] {
    let mut field = [0; N];
    let length = name.len().min(N - 1);
    field[..length].copy_from_slice(&name.as_bytes()[..length]);
    field
}

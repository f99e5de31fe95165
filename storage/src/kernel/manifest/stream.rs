//! `[stream]`: the C function that an accelerator slot on a card calls, with its ports.

use std::collections::BTreeMap;
use std::fmt;

use toml::Value;

use super::keys::Keys;
use super::{ElementType, element, is_c_identifier};

/// Bits of a beat of an AXI-Stream (`fpga/hls/include/flashmesh/beat.hpp`).
const BEAT_BITS: u64 = 512;
/// Beats that wait at a kernel's edge: a page.
const EDGE_BEATS: u64 = 128;

/// The streaming form of a kernel: pages and results go through it as packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamTop {
    /// The C function.
    pub name: String,
    /// Whether a call may start before the one before it has ended (`ap_ctrl_chain`).
    pub is_chained: bool,
    /// Its arguments in order.
    pub arguments: Vec<StreamArgument>,
}

/// One argument of a streaming form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamArgument {
    /// The C name.
    pub name: String,
    /// The type of the value, of a memory's elements, or of what a packet holds.
    pub element: ElementType,
    /// What it becomes on the card.
    pub port: Port,
}

/// What an argument becomes on the card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    /// A register.
    Scalar,
    /// An AXI-Stream of packets of 512-bit beats with tags.
    Stream {
        /// Whether packets come in; else they leave.
        is_input: bool,
    },
    /// An AXI memory port.
    Memory {
        /// Whether the kernel writes it.
        is_written: bool,
        /// Bits of a transfer.
        bits: u32,
        /// Bursts that may be under way.
        outstanding: u32,
        /// The port that it shares with all arguments of this bundle, which have its width.
        bundle: String,
    },
}

/// Its declaration in C++, with the types of `flashmesh/beat.hpp`.
impl fmt::Display for StreamTop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "void {}(", self.name)?;
        for (i, argument) in self.arguments.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let (name, element) = (&argument.name, argument.element.c_name());
            match argument.port {
                Port::Scalar => write!(f, "{comma}{element} {name}")?,
                Port::Stream { .. } => write!(f, "{comma}flashmesh::axis &{name}")?,
                Port::Memory {
                    is_written, bits, ..
                } => match (is_written, u64::from(bits) == BEAT_BITS) {
                    (false, true) => write!(f, "{comma}flashmesh::wide_port {name}")?,
                    (false, false) => write!(f, "{comma}const {element} *{name}")?,
                    (true, _) => write!(f, "{comma}{element} *{name}")?,
                },
            }
        }
        f.write_str(")")
    }
}

pub(super) fn stream_top(keys: Option<Keys>) -> Result<Option<StreamTop>, String> {
    let Some(mut keys) = keys else {
        return Ok(None);
    };
    let name = keys.string("top")?.ok_or("stream.top is missing")?;
    if !is_c_identifier(&name) {
        return Err(format!(
            "stream.top is {name:?}; write the name of a C function"
        ));
    }
    let is_chained = match keys.string("control")?.as_deref() {
        Some("ap_ctrl_chain") => true,
        Some("ap_ctrl_hs") => false,
        _ => return Err("stream.control has to be ap_ctrl_chain or ap_ctrl_hs".to_owned()),
    };
    let wrong = || "write each of 1 to 64 arguments as a table: [[stream.argument]]".to_owned();
    let items = match keys.take("argument") {
        Some(Value::Array(items)) if (1..=64).contains(&items.len()) => items,
        _ => return Err(wrong()),
    };
    keys.finish()?;
    let mut arguments: Vec<StreamArgument> = Vec::new();
    for item in items {
        let Value::Table(table) = item else {
            return Err(wrong());
        };
        let argument = argument(Keys::new("stream.argument.", table))?;
        if arguments.iter().any(|other| other.name == argument.name) {
            return Err(format!(
                "two arguments of '{name}' are named '{}'",
                argument.name
            ));
        }
        arguments.push(argument);
    }
    one_width_a_bundle(&arguments)?;
    if !arguments
        .iter()
        .any(|argument| matches!(argument.port, Port::Stream { .. }))
    {
        return Err(format!(
            "'{name}' has no argument with use = \"stream\"; leave [stream] out"
        ));
    }
    Ok(Some(StreamTop {
        name,
        is_chained,
        arguments,
    }))
}

fn argument(mut keys: Keys) -> Result<StreamArgument, String> {
    let name = keys
        .string("name")?
        .ok_or("stream.argument.name is missing")?;
    if !is_c_identifier(&name) {
        return Err(format!(
            "stream.argument.name is {name:?}; write a C identifier"
        ));
    }
    let word = keys.string("type")?.unwrap_or_default();
    let element = element(&word).ok_or_else(|| {
        format!("stream.argument.type is {word:?}; write u8, i16, i32, u32, i64, u64, f32 or f64")
    })?;
    let usage = keys.string("use")?.unwrap_or_default();
    let port = match usage.as_str() {
        "scalar" => Port::Scalar,
        "stream" => stream(&mut keys, &name)?,
        "in" => memory(&mut keys, &name, element, false)?,
        "out" => memory(&mut keys, &name, element, true)?,
        _ => {
            return Err(format!(
                "stream.argument.use is {usage:?}; write scalar, in, out or stream"
            ));
        }
    };
    keys.finish()?;
    Ok(StreamArgument {
        name,
        element,
        port,
    })
}

fn stream(keys: &mut Keys, name: &str) -> Result<Port, String> {
    for (key, only) in [("bits", BEAT_BITS), ("depth", EDGE_BEATS)] {
        if keys.number(key, only..=only)?.is_none() {
            return Err(format!("the stream '{name}' needs {key} = {only}"));
        }
    }
    match keys.string("direction")?.as_deref() {
        Some("in") => Ok(Port::Stream { is_input: true }),
        Some("out") => Ok(Port::Stream { is_input: false }),
        _ => Err(format!(
            "the stream '{name}' needs a direction, \"in\" or \"out\""
        )),
    }
}

fn memory(
    keys: &mut Keys,
    name: &str,
    element: ElementType,
    is_written: bool,
) -> Result<Port, String> {
    let bits = keys.number("bits", 8..=BEAT_BITS)?;
    let own = 8 * element.size_bytes() as u64;
    let is_wide = bits == Some(BEAT_BITS) && element == ElementType::U8 && !is_written;
    let Some(bits) = bits.filter(|&bits| bits == own || is_wide) else {
        return Err(format!(
            "the memory port '{name}' needs bits = {own}, those of its type, or 512 where it reads \
             u8"
        ));
    };
    let outstanding = keys.number("outstanding", 1..=64)?;
    let outstanding = outstanding.ok_or(format!("'{name}' needs outstanding, 1 to 64 bursts"))?;
    let bundle = keys.string("bundle")?.unwrap_or_default();
    if !is_c_identifier(&bundle) {
        return Err(format!("'{name}' needs a bundle, a C identifier"));
    }
    Ok(Port::Memory {
        is_written,
        bits: bits as u32,
        outstanding: outstanding as u32,
        bundle,
    })
}

/// A port of several widths makes no bursts.
fn one_width_a_bundle(arguments: &[StreamArgument]) -> Result<(), String> {
    let mut widths = BTreeMap::new();
    for argument in arguments {
        if let Port::Memory { bits, bundle, .. } = &argument.port
            && *widths.entry(bundle).or_insert(bits) != bits
        {
            return Err(format!(
                "bundle '{bundle}' has ports of several widths; give '{}' its own",
                argument.name
            ));
        }
    }
    Ok(())
}

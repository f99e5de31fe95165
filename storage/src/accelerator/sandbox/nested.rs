//! Calls between kernels: through the store, which copies arguments and results.

use std::sync::Arc;

use wasmtime::{Caller, Val};

use super::instance::{Guest, Stop};
use crate::kernel::interface::ArgumentUse;
use crate::kernel::{Argument, CArgument, CFunction, Extent, Kernel, Kind, ScalarArgument, Target};
use crate::memory::Charge;

/// A kernel that another one may call.
#[derive(Debug, Clone)]
pub(super) struct Callee {
    pub(super) name: String,
    pub(super) function: CFunction,
    pub(super) target: Arc<dyn Target>,
    rows_per_call: usize,
    bytes_per_call: usize,
}

impl Callee {
    /// The kernel as a callee.
    pub(super) fn new(kernel: &Kernel) -> Result<Self, String> {
        let manifest = kernel.manifest();
        let name = manifest.name.clone();
        let has_rows = matches!(manifest.kind, Kind::Scalar | Kind::Filter | Kind::Search)
            && manifest.signature.is_some();
        let function = manifest.functions().first();
        let writes_text = |function: &&CFunction| {
            let mut arguments = function.arguments.iter();
            arguments.any(|a| a.usage == ArgumentUse::Out && a.extent == Extent::Offsets)
        };
        let function = function.filter(|function| has_rows && !writes_text(function));
        let function = function.ok_or_else(|| {
            format!(
                "may not call '{name}': only kernels of kind scalar, filter and search without \
                 text results can be called"
            )
        })?;
        Ok(Self {
            name,
            function: function.clone(),
            target: Arc::clone(kernel.target()),
            rows_per_call: manifest.limits.rows_per_call,
            bytes_per_call: manifest.limits.bytes_per_call,
        })
    }
}

/// The import of `callee`: copies what it reads out of the caller's memory, calls it, and copies
/// what it wrote back. Every address and length comes from the caller, a guest.
pub(super) fn call(
    mut caller: Caller<'_, Guest>,
    values: &[Val],
    index: usize,
    callee: &Callee,
) -> wasmtime::Result<()> {
    let memory = caller.get_export("memory").and_then(|e| e.into_memory());
    let outcome = match memory {
        Some(memory) => {
            let (bytes, guest) = memory.data_and_store_mut(&mut caller);
            copy_and_call(bytes, guest, values, index, callee)
        }
        None => Err("its memory is gone".to_owned()),
    };
    outcome.map_err(|reason| {
        wasmtime::Error::new(Stop::Nested(format!(
            "its call of '{}' failed: {reason}",
            callee.name
        )))
    })
}

fn copy_and_call(
    memory: &mut [u8],
    guest: &Guest,
    values: &[Val],
    index: usize,
    callee: &Callee,
) -> Result<(), String> {
    let arguments = &callee.function.arguments;
    let context = guest.context().ok_or("no call runs")?;
    let target = guest.callees.get(index).ok_or("it is gone")?;
    let places = places(memory, values, callee)?;

    let writes =
        |argument: &CArgument| matches!(argument.usage, ArgumentUse::Out | ArgumentUse::InOut);
    let out_bytes = |(argument, place): (&CArgument, &std::ops::Range<usize>)| match argument.usage
    {
        ArgumentUse::Out => place.len(),
        _ => 0,
    };
    let total = arguments.iter().zip(&places).map(out_bytes).sum();
    let _charge = Charge::new(context.memory, total).map_err(|error| error.to_string())?;
    // What the callee reads is passed as it lies; what it writes may overlap that, and goes
    // through arrays of our own.
    let mut written: Vec<Vec<u8>> = arguments
        .iter()
        .zip(&places)
        .filter(|(argument, _)| writes(argument))
        .map(|(_, place)| vec![0; place.len()])
        .collect();
    let mut outs = written.iter_mut();
    let mut passed = Vec::with_capacity(arguments.len());
    for ((argument, place), value) in arguments.iter().zip(&places).zip(values) {
        passed.push(match argument.usage {
            ArgumentUse::Scalar => Argument::Scalar(scalar(value)?),
            ArgumentUse::In => Argument::In(&memory[place.clone()]),
            ArgumentUse::Out | ArgumentUse::InOut => match outs.next() {
                Some(out) => Argument::Out(out),
                None => return Err("it has no place for a result".to_owned()),
            },
        });
    }
    let name = &callee.function.name;
    let outcome = target.call(name, &mut passed, context);
    drop(passed);
    outcome.map_err(|error| error.to_string())?;
    let outs = arguments
        .iter()
        .zip(&places)
        .filter(|(argument, _)| writes(argument));
    for ((_, place), bytes) in outs.zip(&written) {
        memory[place.clone()].copy_from_slice(bytes);
    }
    Ok(())
}

/// Where each array is in the caller's memory; empty for scalars.
fn places(
    memory: &[u8],
    values: &[Val],
    callee: &Callee,
) -> Result<Vec<std::ops::Range<usize>>, String> {
    let arguments = &callee.function.arguments;
    let scalar_at = |index: usize| match values.get(index) {
        Some(Val::I32(value)) => Ok(*value as u32 as usize),
        _ => Err("its arguments are not the callee's".to_owned()),
    };
    let rows = arguments
        .iter()
        .position(|argument| argument.usage == ArgumentUse::Scalar && argument.name == "rows");
    let rows = scalar_at(rows.ok_or("the callee takes no rows")?)?;
    if rows > callee.rows_per_call {
        return Err(format!(
            "it passes {rows} rows, the callee takes {} in a call",
            callee.rows_per_call
        ));
    }
    let mut places: Vec<std::ops::Range<usize>> = Vec::with_capacity(arguments.len());
    for (at, argument) in arguments.iter().enumerate() {
        if argument.usage == ArgumentUse::Scalar {
            places.push(0..0);
            continue;
        }
        let elements = match argument.extent {
            Extent::Fixed(n) => n as usize,
            Extent::PerRow(n) => rows.saturating_mul(n as usize),
            Extent::Offsets => rows + 1,
            Extent::Bitmap => rows.div_ceil(64),
            Extent::Length(index) => scalar_at(index)?,
            Extent::Text(index) => {
                let offsets = places
                    .get(index)
                    .and_then(|place| memory.get(place.clone()));
                text_length(offsets.ok_or("its text has no offsets")?)?
            }
            _ => return Err(format!("'{}' can't be copied", argument.name)),
        };
        let text = matches!(argument.extent, Extent::Text(_) | Extent::Length(_));
        if text && elements > callee.bytes_per_call {
            return Err(format!(
                "it passes {elements} bytes of text, the callee takes {} in a call",
                callee.bytes_per_call
            ));
        }
        let start = scalar_at(at)?;
        let end = elements
            .checked_mul(argument.element.size_bytes())
            .and_then(|bytes| start.checked_add(bytes))
            .filter(|&end| end <= memory.len());
        places.push(match end {
            Some(end) => start..end,
            None => {
                return Err(format!(
                    "'{}' of {elements} elements at {start} reaches beyond its memory",
                    argument.name
                ));
            }
        });
    }
    Ok(places)
}

/// The last of the offsets, which have to rise from 0.
fn text_length(offsets: &[u8]) -> Result<usize, String> {
    let mut before = 0;
    for (row, bytes) in offsets.chunks_exact(4).enumerate() {
        let offset = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if offset < before || (row == 0 && offset != 0) {
            return Err("it passes text offsets that do not rise from 0".to_owned());
        }
        before = offset;
    }
    Ok(before as usize)
}

fn scalar(value: &Val) -> Result<ScalarArgument, String> {
    Ok(match value {
        Val::I32(value) => ScalarArgument::I32(*value),
        Val::I64(value) => ScalarArgument::I64(*value),
        Val::F32(bits) => ScalarArgument::F32(f32::from_bits(*bits)),
        Val::F64(bits) => ScalarArgument::F64(f64::from_bits(*bits)),
        _ => return Err("its arguments are not the callee's".to_owned()),
    })
}

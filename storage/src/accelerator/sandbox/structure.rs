//! Limits on a module's form, before a compiler sees it: so that compiling is bounded in time and
//! memory.

use super::{SandboxOptions, loops};
use crate::kernel::Cursor;

const TYPES: u8 = 1;
const IMPORTS: u8 = 2;
const FUNCTIONS: u8 = 3;
const GLOBALS: u8 = 6;
const EXPORTS: u8 = 7;
const ELEMENTS: u8 = 9;
const CODE: u8 = 10;
const DATA: u8 = 11;

/// Types, globals, exports and segments of a module at most, each.
const MAX_ITEMS: u32 = 4096;
/// Parameters of one function type at most: the longest argument list of a contract, and room.
const MAX_PARAMETERS: usize = 192;
/// Results of one function type or block at most. Every branch carries them.
const MAX_RESULTS: usize = 8;

/// A module that keeps to the limits.
pub(super) struct Checked {
    /// Without custom sections, which say nothing that is needed.
    pub(super) module: Vec<u8>,
    /// Whether the better register allocator, whose time grows with the square of much, is through
    /// with it in a fraction of a second.
    pub(super) simple: bool,
}

/// Bytes of code, bytes times variables, and nested loops of modules that get the better register
/// allocator. Measured: 180 ms at worst within these limits, a minute for 2,400 nested loops in 17 KiB.
const SIMPLE_BYTES: usize = 16 << 10;
const SIMPLE_COMPLEXITY: u64 = 256 << 10;
const SIMPLE_LOOPS: usize = 16;
/// Local variables of one function at most.
const MAX_LOCALS: u64 = 4096;
/// Loops nested in each other at most: the other allocator's time grows with them times variables.
const MAX_LOOPS: usize = 64;

/// Checks the module's form.
///
/// # Errors
/// A sentence that says what passes which limit. Whether the module is valid is not found out.
pub(super) fn check(wasm: &[u8], options: &SandboxOptions) -> Result<Checked, String> {
    let mut simple = true;
    let mut parameters = 0;
    let mut module = wasm.get(..8).unwrap_or_default().to_vec();
    let mut cursor = Cursor { bytes: wasm, at: 8 };
    while cursor.at < wasm.len() {
        let start = cursor.at;
        let section = cursor.section();
        let section = section.ok_or_else(|| format!("the section at byte {start} is cut off"))?;
        if section.id == 0 {
            continue;
        }
        let mut inside = Cursor {
            bytes: &wasm[section.content],
            at: 0,
        };
        let fits = match section.id {
            TYPES => types(&mut inside).map(|most| parameters = most),
            IMPORTS | GLOBALS | EXPORTS | ELEMENTS | DATA => {
                items(&mut inside, MAX_ITEMS, section.id)
            }
            FUNCTIONS => items(&mut inside, options.functions as u32, section.id),
            CODE => code(&mut inside, options, parameters).map(|fits| simple &= fits),
            _ => Ok(()),
        };
        fits?;
        module.extend_from_slice(&wasm[start..cursor.at]);
    }
    if module.len() > options.module_bytes {
        return Err(format!(
            "the module has {} bytes, the limit is {}",
            module.len(),
            options.module_bytes
        ));
    }
    Ok(Checked { module, simple })
}

fn cut_off() -> String {
    "a section of the module is cut off".to_owned()
}

fn items(section: &mut Cursor<'_>, limit: u32, id: u8) -> Result<(), String> {
    let count = section.number().ok_or_else(cut_off)?;
    if count > limit {
        return Err(format!(
            "section {id} of the module has {count} items, the limit is {limit}"
        ));
    }
    Ok(())
}

/// Checks the types; gives the most parameters that one has.
fn types(section: &mut Cursor<'_>) -> Result<u64, String> {
    let mut most = 0;
    let count = section.number().ok_or_else(cut_off)?;
    if count > MAX_ITEMS {
        return Err(format!(
            "the module has {count} types, the limit is {MAX_ITEMS}"
        ));
    }
    for _ in 0..count {
        if section.byte().ok_or_else(cut_off)? != 0x60 {
            return Err("the module has types that are no function types".to_owned());
        }
        for (what, limit) in [("parameters", MAX_PARAMETERS), ("results", MAX_RESULTS)] {
            let values = section.number().ok_or_else(cut_off)? as usize;
            if values > limit {
                return Err(format!(
                    "a function type has {values} {what}, the limit is {limit}"
                ));
            }
            section.take(values).ok_or_else(cut_off)?;
            most = most.max(values as u64);
        }
    }
    Ok(most)
}

/// Checks the functions; gives whether they are simple.
fn code(
    section: &mut Cursor<'_>,
    options: &SandboxOptions,
    parameters: u64,
) -> Result<bool, String> {
    let count = section.number().ok_or_else(cut_off)?;
    let mut complexity = 0u64;
    let mut simple = section.bytes.len() <= SIMPLE_BYTES;
    for index in 0..count {
        let length = section.number().ok_or_else(cut_off)? as usize;
        let body = section.take(length).ok_or_else(cut_off)?;
        if length > options.function_bytes {
            return Err(format!(
                "function {index} of the module has {length} bytes, the limit is {}",
                options.function_bytes
            ));
        }
        let mut body = Cursor { bytes: body, at: 0 };
        let groups = body.number().ok_or_else(cut_off)?;
        let mut locals = 1 + parameters;
        for _ in 0..groups {
            locals += u64::from(body.number().ok_or_else(cut_off)?);
            body.byte().ok_or_else(cut_off)?;
        }
        if locals > MAX_LOCALS {
            return Err(format!(
                "function {index} of the module has {locals} local variables, the limit is \
                 {MAX_LOCALS}"
            ));
        }
        complexity = complexity.saturating_add(locals.saturating_mul(length as u64));
        if complexity > options.complexity {
            return Err(format!(
                "function {index} of the module has {locals} local variables in {length} bytes: \
                 bytes times variables of all functions pass the limit of {}; split it, or compile \
                 with -O2",
                options.complexity
            ));
        }
        let loops = loops::depth(&mut body).ok_or_else(|| {
            format!("function {index} of the module is not valid: it has an unknown instruction")
        })?;
        if loops > MAX_LOOPS {
            return Err(format!(
                "function {index} of the module nests {loops} loops, the limit is {MAX_LOOPS}"
            ));
        }
        simple &= loops <= SIMPLE_LOOPS;
    }
    Ok(simple && complexity <= SIMPLE_COMPLEXITY)
}

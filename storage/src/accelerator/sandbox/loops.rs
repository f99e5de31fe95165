//! How deep loops are nested in a function: the one property of code that a register allocator
//! can't bear much of.

use crate::kernel::Cursor;

/// The deepest nesting of loops in an expression, or `None` where an instruction is not known.
///
/// Lengths of instructions are those of the WebAssembly core specification, chapter "Binary
/// Format", section "Instructions". Whether the code is valid is not found out.
pub(super) fn depth(code: &mut Cursor<'_>) -> Option<usize> {
    const LOOP: u8 = 0x03;
    // Of each open block, whether it is a loop.
    let mut open = Vec::new();
    let (mut depth, mut deepest) = (0, 0);
    while code.at < code.bytes.len() {
        let instruction = code.byte()?;
        match instruction {
            0x02..=0x04 => {
                // The type of a block: a number of 33 bits at most.
                leb(code)?;
                open.push(instruction == LOOP);
                depth += usize::from(instruction == LOOP);
                deepest = deepest.max(depth);
            }
            // Of the last `end` the block is the function.
            0x0b => depth -= usize::from(open.pop().unwrap_or(false)),
            // br_table
            0x0e => {
                for _ in 0..=code.number()? {
                    leb(code)?;
                }
            }
            // br, br_if, call; variables; memory.size and memory.grow; constants
            0x0c | 0x0d | 0x10 | 0x20..=0x24 | 0x3f | 0x40 | 0x41 | 0x42 => leb(code)?,
            // call_indirect; loads and stores
            0x11 | 0x28..=0x3e => {
                leb(code)?;
                leb(code)?;
            }
            0x43 => skip(code, 4)?,
            0x44 => skip(code, 8)?,
            0xfc => match code.number()? {
                0..=7 => {}
                9 | 11 => leb(code)?,
                8 | 10 => {
                    leb(code)?;
                    leb(code)?;
                }
                _ => return None,
            },
            0xfd => vector(code)?,
            0x00 | 0x01 | 0x05 | 0x0f | 0x1a | 0x1b | 0x45..=0xc4 => {}
            _ => return None,
        }
    }
    Some(deepest)
}

fn vector(code: &mut Cursor<'_>) -> Option<()> {
    match code.number()? {
        // Constants and shuffles.
        12 | 13 => skip(code, 16),
        // Lanes.
        21..=34 => skip(code, 1),
        // Loads and stores; those of one lane say which.
        number @ (0..=11 | 84..=93) => {
            leb(code)?;
            leb(code)?;
            match number {
                84..=91 => skip(code, 1),
                _ => Some(()),
            }
        }
        0..=255 => Some(()),
        _ => None,
    }
}

fn skip(code: &mut Cursor<'_>, bytes: usize) -> Option<()> {
    code.take(bytes).map(|_| ())
}

/// Skips a number of any width.
fn leb(code: &mut Cursor<'_>) -> Option<()> {
    while code.byte()? >= 0x80 {}
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_counted_by_nesting() {
        for (code, loops) in [
            ("", 0),
            ("(loop) (loop (loop)) (block (loop))", 2),
            (
                "(loop (if (i32.const 0x0303) (then (loop (f64.store offset=3 (i32.const 3) \
                 (f64.const 3))))) (br_table 0 0 0 (i32.const 3)))",
                2,
            ),
            (
                "(drop (v128.const i64x2 0x0303030303030303 0x0303030303030303)) \
                 (drop (i8x16.shuffle 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 (v128.const i64x2 3 3) \
                 (v128.load8_lane offset=3 3 (i32.const 3) (v128.const i64x2 3 3)))) \
                 (memory.copy (i32.const 3) (i32.const 3) (i32.const 3)) (loop)",
                1,
            ),
        ] {
            let wat = format!("(module (memory 1) (func {code}))");
            let wasm = wat::parse_str(&wat).unwrap();
            let mut cursor = Cursor {
                bytes: &wasm,
                at: 8,
            };
            let mut section = cursor.section().unwrap();
            while section.id != 10 {
                section = cursor.section().unwrap();
            }
            // One function, its length, no variables.
            let bytes = &wasm[section.content];
            let mut code = Cursor { bytes, at: 1 };
            code.number().unwrap();
            code.number().unwrap();
            assert_eq!(depth(&mut code), Some(loops), "{wat}");
        }
    }
}

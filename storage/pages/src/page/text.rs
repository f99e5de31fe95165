//! Arrow's string views.

/// Strings up to this many bytes lie within their view.
pub(super) const INLINE_BYTES: usize = 12;

/// The view of `bytes[start..end]`, where `bytes` is buffer number `buffer` of the array.
#[inline]
pub(super) fn view(bytes: &[u8], start: usize, end: usize, buffer: u32) -> u128 {
    let length = end - start;
    // The string's first 16 bytes, zeros after its end.
    let head = match bytes.get(start..start + 16) {
        Some(head) => u128::from_le_bytes(head.try_into().expect("16 bytes")),
        None => {
            let mut head = [0; 16];
            let known = (bytes.len() - start).min(16);
            head[..known].copy_from_slice(&bytes[start..start + known]);
            u128::from_le_bytes(head)
        }
    };
    if length <= INLINE_BYTES {
        let mask = (1u128 << (8 * length)) - 1;
        (head & mask) << 32 | length as u128
    } else {
        let prefix = u128::from(head as u32);
        (start as u128) << 96 | u128::from(buffer) << 64 | prefix << 32 | length as u128
    }
}

/// Whether `bytes[offsets[0]..offsets[last]]` is UTF-8 and every offset is at a character.
pub(super) fn check_utf8(bytes: &[u8], offsets: &[u32]) -> bool {
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return true;
    };
    let text = &bytes[first as usize..last as usize];
    if text.is_ascii() {
        return true;
    }
    match std::str::from_utf8(text) {
        Ok(text) => offsets
            .iter()
            .all(|offset| text.is_char_boundary((offset - first) as usize)),
        Err(_) => false,
    }
}

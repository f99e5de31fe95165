//! Pages of bytes that belong to no column: a RAW page with one value.

use super::{Encoding, HEADER_SIZE_BYTES, PAYLOAD_SIZE_BYTES, PageHeader, PageIdentity};
use crate::flash::PageBuffer;

/// A page that holds `bytes`; [`Page::data`](super::Page::data) of it gives them back.
///
/// # Panics
/// When they are more than [`PAYLOAD_SIZE_BYTES`].
pub fn bytes_page(bytes: &[u8], identity: &PageIdentity) -> PageBuffer {
    assert!(bytes.len() <= PAYLOAD_SIZE_BYTES, "they fit a page");
    let mut page = PageBuffer::zeroed();
    page[HEADER_SIZE_BYTES..][..bytes.len()].copy_from_slice(bytes);
    let header = PageHeader {
        encoding: Encoding::Raw,
        width: 0,
        flags: 0,
        column_group: identity.column_group,
        payload_length: bytes.len() as u16,
        table: identity.table,
        segment: identity.segment,
        page: identity.page,
        first_row: 0,
        generation: identity.generation,
        row_count: 1,
        null_count: 0,
        reference: bytes.len() as i64,
        min: i64::MIN,
        max: i64::MAX,
    };
    header.write(&mut page);
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Page;

    #[test]
    fn the_bytes_come_back_from_their_page_alone() {
        let identity = PageIdentity {
            table: u32::MAX,
            segment: 7,
            column_group: 3,
            page: 255,
            generation: 9,
        };
        for length in [0, 1, 100, PAYLOAD_SIZE_BYTES] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let buffer = bytes_page(&bytes, &identity);
            let page = Page::verify(buffer.clone(), &identity, "test").unwrap();
            assert_eq!(page.data(), bytes);
            let other = PageIdentity {
                page: 254,
                ..identity
            };
            assert!(Page::verify(buffer.clone(), &other, "test").is_err());
            let mut torn = buffer;
            torn[8 + length / 2] ^= 16;
            assert!(Page::verify(torn, &identity, "test").is_err());
        }
    }
}

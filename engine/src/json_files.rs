//! JSON files that are one array, `[{…}, {…}]`, over as many lines as they like, rather than a value in each line.
//!
//! DataFusion's reader of arrays takes a line for a value, passes over what stands behind the array, and is given parts
//! of large files, which it refuses. So its reader of lines gets the elements of the array in lines.

use arrow::datatypes::Schema;
use arrow::json::reader::infer_json_schema;
use bytes::{Buf, Bytes};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use futures::{StreamExt, TryStreamExt, stream};

use crate::rewritten_files::{Content, Rewrite, SAMPLED_ROWS, content};

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Whether the first of the files at `url` that says anything is an array.
///
/// # Errors
/// Those of the store, and of what is not compressed as `format` says.
pub(crate) async fn is_array(
    format: &JsonFormat,
    url: &ListingTableUrl,
    ending: &str,
    state: &SessionState,
) -> Result<bool> {
    let store = state.runtime_env().object_store(url)?;
    let compression = FileCompressionType::from(format.options().compression);
    let mut files = url.list_all_files(state, store.as_ref(), ending).await?;
    while let Some(file) = files.try_next().await? {
        let mut parts = content(&store, &file.location, compression).await?;
        while let Some(part) = parts.try_next().await? {
            let is_blank = |byte: &u8| byte.is_ascii_whitespace() || BYTE_ORDER_MARK.contains(byte);
            if let Some(first) = part.iter().find(|byte| !is_blank(byte)) {
                return Ok(*first == b'[');
            }
        }
    }
    Ok(false)
}

/// The columns of the files at `url`, as their first elements have them.
///
/// # Errors
/// Those of the store, and where a file is no array of objects.
pub(crate) async fn schema_of_arrays(
    format: &JsonFormat,
    url: &ListingTableUrl,
    ending: &str,
    state: &SessionState,
) -> Result<Schema> {
    let store = state.runtime_env().object_store(url)?;
    let options = format.options();
    let most = options.schema_infer_max_rec.unwrap_or(SAMPLED_ROWS);
    let mut text = Vec::new();
    let mut left = most;
    let mut files = url.list_all_files(state, store.as_ref(), ending).await?;
    while left > 0
        && let Some(file) = files.try_next().await?
    {
        let content = content(&store, &file.location, options.compression.into()).await?;
        let mut lines = Arrays.rewritten(content);
        while left > 0
            && let Some(part) = lines.try_next().await?
        {
            text.extend_from_slice(&part);
            left = left.saturating_sub(part.iter().filter(|byte| **byte == b'\n').count());
        }
    }
    Ok(infer_json_schema(text.reader(), Some(most))?.0)
}

/// The elements of an array, each in a line.
#[derive(Debug)]
pub(crate) struct Arrays;

impl Rewrite for Arrays {
    fn rewritten(&self, content: Content) -> Content {
        let state = (content, Some(Elements::default()));
        let parts = stream::try_unfold(state, |(mut content, elements)| async {
            let Some(mut elements) = elements else {
                return Ok(None);
            };
            let Some(part) = content.try_next().await? else {
                elements.end()?;
                return Ok(Some((Bytes::from_static(b"\n"), (content, None))));
            };
            let mut lines = Vec::with_capacity(part.len());
            elements.go_on(&part, &mut lines)?;
            Ok(Some((Bytes::from(lines), (content, Some(elements)))))
        });
        parts.boxed()
    }
}

/// Finds where the elements of an array end.
#[derive(Debug, Default)]
struct Elements {
    place: Place,
    /// Arrays and objects around a byte, but for the array itself.
    depth: usize,
}

/// Where in an array a byte stands.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Before,
    /// Where an element begins, or the array ends.
    First,
    Element,
    Text,
    Escaped,
    /// Where an element has to begin.
    Next,
    Behind,
}

impl Elements {
    fn go_on(&mut self, text: &[u8], lines: &mut Vec<u8>) -> Result<()> {
        for byte in text.iter().copied() {
            let is_blank = byte.is_ascii_whitespace();
            self.place = match (self.place, byte) {
                (Place::Escaped, _) => Place::Text,
                (Place::Text, b'\\') => Place::Escaped,
                (Place::Text, b'"') => Place::Element,
                (Place::Text, _) => Place::Text,
                // What ends a line would end the value.
                _ if is_blank => {
                    lines.push(b' ');
                    continue;
                }
                (Place::Before, b'[') => {
                    self.place = Place::First;
                    continue;
                }
                (Place::Before, _) if BYTE_ORDER_MARK.contains(&byte) => continue,
                (Place::Before | Place::Behind, _) => {
                    return Err(DataFusionError::Plan(
                        "a JSON file is one array, or has a value in each line; this has more than an array"
                            .into(),
                    ));
                }
                (Place::First | Place::Element, b']') if self.depth == 0 => {
                    self.place = Place::Behind;
                    continue;
                }
                (Place::Element, b',') if self.depth == 0 => {
                    self.place = Place::Next;
                    lines.push(b'\n');
                    continue;
                }
                (Place::First | Place::Next, b',' | b']' | b'}') => {
                    return Err(DataFusionError::Plan(
                        "an element is missing in a JSON array".into(),
                    ));
                }
                (_, b'"') => Place::Text,
                (_, b'[' | b'{') => {
                    self.depth += 1;
                    Place::Element
                }
                (_, b']' | b'}') => {
                    self.depth = self.depth.saturating_sub(1);
                    Place::Element
                }
                _ => Place::Element,
            };
            lines.push(byte);
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        match self.place {
            Place::Before | Place::Behind => Ok(()),
            _ => Err(DataFusionError::Plan(
                "a JSON array has no end: the file is cut off, or is no array".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_lines(text: &str, part: usize) -> Result<String> {
        let mut elements = Elements::default();
        let mut lines = Vec::new();
        for part in text.as_bytes().chunks(part) {
            elements.go_on(part, &mut lines)?;
        }
        elements.end()?;
        Ok(String::from_utf8(lines).expect("text"))
    }

    #[test]
    fn elements_are_lines() {
        let text = "\u{FEFF} [{\"a\": [1,\n2], \"b]\": \"},\\\"[\"},\r\n3 , \"x\"]\n";
        let expected = " {\"a\": [1, 2], \"b]\": \"},\\\"[\"}\n  3 \n \"x\" ";
        for part in 1..text.len() {
            assert_eq!(in_lines(text, part).unwrap(), expected, "{part}");
        }
        assert_eq!(in_lines("[]", 1).unwrap(), "");
        assert_eq!(in_lines("", 1).unwrap(), "");
    }

    #[test]
    fn what_is_no_array_is_an_error() {
        for (text, why) in [
            ("[1] [2]", "more than an array"),
            ("x[1]", "more than an array"),
            ("[1,]", "an element is missing"),
            ("[,1]", "an element is missing"),
            ("[{\"a\": 1}", "no end"),
            ("[\"]", "no end"),
        ] {
            let error = in_lines(text, 3).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}

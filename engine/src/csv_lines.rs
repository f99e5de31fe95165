//! The lines of CSV files: where records end, and which are left out (`skip`, `ignore_errors`).

use bytes::Bytes;
use datafusion::common::config::CsvOptions;
use futures::{StreamExt, TryStreamExt, stream};

use crate::rewritten_files::{Content, Rewrite};

/// Bytes of a record at most; more have a quote that nothing ends.
const MOST_BYTES: usize = 2 << 20;

/// Leaves lines out before a file is read.
#[derive(Debug, Clone)]
pub(crate) struct LeftOut {
    /// So many at a file's beginning, which need be no CSV.
    pub lines: usize,
    /// Records that have not as many values as the first one, or as columns are said to be.
    pub misfits: bool,
    /// How many columns are said to be.
    pub columns: Option<usize>,
}

impl LeftOut {
    /// Whether lines may be left out.
    pub fn is_any(&self) -> bool {
        self.lines > 0 || self.misfits
    }

    /// Of a file that is written as `options` say.
    pub fn of(&self, options: &CsvOptions) -> Lines {
        let (options, left_out) = (options.clone(), self.clone());
        Lines { options, left_out }
    }
}

/// The lines of a file that are read.
#[derive(Debug)]
pub(crate) struct Lines {
    options: CsvOptions,
    left_out: LeftOut,
}

impl Rewrite for Lines {
    fn rewritten(&self, content: Content) -> Content {
        if !self.left_out.is_any() {
            return content;
        }
        let kept = Kept {
            options: self.options.clone(),
            left_out: self.left_out.clone(),
            records: Records::new(&self.options, 1),
            text: Vec::new(),
        };
        let parts = stream::try_unfold((content, Some(kept)), |(mut content, kept)| async {
            let Some(mut kept) = kept else {
                return Ok(None);
            };
            Ok(Some(match content.try_next().await? {
                Some(part) => (Bytes::from(kept.of_part(&part)), (content, Some(kept))),
                None => (Bytes::from(kept.of_end()), (content, None)),
            }))
        });
        parts.boxed()
    }
}

/// Finds what is kept of a file, part by part.
struct Kept {
    options: CsvOptions,
    left_out: LeftOut,
    /// Looks at one record.
    records: Records,
    /// From where that record begins.
    text: Vec<u8>,
}

impl Kept {
    fn of_part(&mut self, part: &[u8]) -> Vec<u8> {
        let mut part = part;
        while self.left_out.lines > 0 {
            let Some(end) = part.iter().position(|byte| *byte == b'\n') else {
                return Vec::new();
            };
            part = &part[end + 1..];
            self.left_out.lines -= 1;
        }
        if !self.left_out.misfits {
            return part.to_vec();
        }
        self.text.extend_from_slice(part);
        self.of_records(false)
    }

    /// The last line need not end.
    fn of_end(&mut self) -> Vec<u8> {
        let mut kept = self.of_records(true);
        let text = std::mem::take(&mut self.text);
        if self.fits(&text) {
            kept.extend_from_slice(&text);
        }
        kept
    }

    /// The records of the text that have ended and are kept.
    fn of_records(&mut self, is_all: bool) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.text);
        let mut kept = Vec::with_capacity(text.len().min(MOST_BYTES));
        let mut begin = 0;
        loop {
            self.records.go_on(&text[begin..]);
            let rest = &text[begin..];
            if self.records.are_enough() {
                let record = &rest[..self.records.end];
                if self.fits(record) {
                    kept.extend_from_slice(record);
                }
                begin += record.len();
            } else if rest.len() > MOST_BYTES || is_all && self.records.is_within_quotes() {
                // A quote that nothing ends is in its first line.
                let end = rest.iter().position(|byte| *byte == b'\n');
                begin += end.map_or(rest.len(), |end| end + 1);
            } else {
                break;
            }
            self.records = Records::new(&self.options, 1);
        }
        text.drain(..begin);
        self.text = text;
        kept
    }

    fn fits(&mut self, record: &[u8]) -> bool {
        let is_blank = record.iter().all(|byte| b"\r\n".contains(byte));
        if is_blank || record.first().copied() == self.options.comment {
            return true;
        }
        let values = self.records.values;
        let columns = *self.left_out.columns.get_or_insert(values);
        match self.options.truncated_rows {
            Some(true) => values <= columns,
            _ => values == columns,
        }
    }
}

/// Finds where records end.
pub(crate) struct Records {
    quote: u8,
    escape: Option<u8>,
    delimiter: u8,
    wanted: usize,
    pub found: usize,
    /// Behind the last one.
    pub end: usize,
    /// What was looked at.
    at: usize,
    place: Place,
    pub have_line_ends: bool,
    /// Of the record that is looked at, or of the last one where that has ended.
    values: usize,
}

/// Where in a record a byte stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    FieldBegins,
    Unquoted,
    Quoted,
    Escaped,
    /// Behind a quote that ends a value, or is the first of two that stand for one.
    Quote,
}

impl Records {
    /// Of a text that is written so, up to as many records as are `wanted`.
    pub fn new(options: &CsvOptions, wanted: usize) -> Self {
        Self {
            quote: options.quote,
            // A quote that is doubled is told from one that ends a value.
            escape: options.escape.filter(|escape| *escape != options.quote),
            delimiter: options.delimiter,
            wanted,
            found: 0,
            end: 0,
            at: 0,
            place: Place::FieldBegins,
            have_line_ends: false,
            values: 1,
        }
    }

    /// Whether the text has ended where a quote has not.
    pub fn is_within_quotes(&self) -> bool {
        matches!(self.place, Place::Quoted | Place::Escaped)
    }

    /// Whether all that are wanted were found.
    pub fn are_enough(&self) -> bool {
        self.found >= self.wanted
    }

    /// Looks at what of `text` is new.
    pub fn go_on(&mut self, text: &[u8]) {
        while let Some(byte) = text.get(self.at).copied().filter(|_| !self.are_enough()) {
            self.at += 1;
            self.place = match self.place {
                Place::Escaped => Place::Quoted,
                Place::Quoted if Some(byte) == self.escape => Place::Escaped,
                Place::Quoted if byte == self.quote => Place::Quote,
                Place::Quoted => {
                    self.have_line_ends |= byte == b'\n';
                    Place::Quoted
                }
                Place::FieldBegins | Place::Quote if byte == self.quote => Place::Quoted,
                _ if byte == b'\n' => {
                    self.found += 1;
                    self.end = self.at;
                    Place::FieldBegins
                }
                _ if byte == self.delimiter => {
                    self.values += 1;
                    Place::FieldBegins
                }
                _ => Place::Unquoted,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &str, left_out: &LeftOut, part: usize) -> String {
        let mut kept = Kept {
            options: CsvOptions::default(),
            left_out: left_out.clone(),
            records: Records::new(&CsvOptions::default(), 1),
            text: Vec::new(),
        };
        let mut all = Vec::new();
        for part in text.as_bytes().chunks(part) {
            all.extend(kept.of_part(part));
        }
        all.extend(kept.of_end());
        String::from_utf8(all).expect("text")
    }

    #[test]
    fn lines_are_left_out_wherever_parts_end() {
        let text = "no \"csv\nhere, at, all\na,b\n1,\"x,\ny\"\n2\n\n3,4,5\n6,\"\"\"\"\n7";
        for part in 1..=text.len() {
            let mut left_out = LeftOut {
                lines: 2,
                misfits: true,
                columns: None,
            };
            let expected = "a,b\n1,\"x,\ny\"\n\n6,\"\"\"\"\n";
            assert_eq!(kept(text, &left_out, part), expected, "{part}");
            left_out.columns = Some(1);
            assert_eq!(kept(text, &left_out, part), "2\n\n7", "{part}");
            left_out.misfits = false;
            let (_, below) = text.split_at(22);
            assert_eq!(kept(text, &left_out, part), below, "{part}");
            left_out.lines = 1000;
            assert_eq!(kept(text, &left_out, part), "", "{part}");
        }
    }

    #[test]
    fn a_quote_that_nothing_ends_costs_its_line() {
        let left_out = LeftOut {
            lines: 0,
            misfits: true,
            columns: None,
        };
        let long = format!("a,b\n1,\"x\n{}", "2,y\n".repeat(MOST_BYTES / 2));
        assert_eq!(kept("a,b\n1,\"x\n2,y\n", &left_out, 3), "a,b\n2,y\n");
        let ended = "a,b\n1,\"x\n2,y\n3,\"z\n4,5\n";
        assert_eq!(kept(ended, &left_out, 3), ended);
        let endless = "x".repeat(MOST_BYTES * 2);
        assert!(kept(&endless, &left_out, 1 << 20).len() < MOST_BYTES);
        assert_eq!(kept(&long, &left_out, 8192).len(), long.len() - 5);
    }

    #[test]
    fn records_end_where_quotes_do() {
        let text = b"a,b\n1,\"x\ny\"\n2,\"\"\"\n\"\n3,5\" pipe\n4,\"\"\n";
        for part in 1..text.len() {
            let mut records = Records::new(&CsvOptions::default(), usize::MAX);
            let mut ends = Vec::new();
            for end in (part..text.len()).step_by(part).chain([text.len()]) {
                let before = records.found;
                records.go_on(&text[..end]);
                ends.extend((records.found > before).then_some(records.end));
            }
            assert_eq!((records.found, records.end), (5, text.len()), "{part}");
            assert!(records.have_line_ends);
            let of_records = [4, 12, 20, 30, text.len()];
            assert!(ends.iter().all(|end| of_records.contains(end)), "{ends:?}");
        }
    }
}

//! Forms of times as PostgreSQL and Oracle write them: `to_char(t, 'YYYY-MM-DD HH24:MI')`.
//!
//! The planner's functions take those of `strftime`, to which letters without `%` are text: every row was that.

use crate::error::{Error, Result};

/// What they write, longer ones before their beginnings, and what it is to `strftime`.
const PATTERNS: [(&str, &str); 35] = [
    ("YYYY", "%Y"),
    ("yyyy", "%Y"),
    ("IYYY", "%G"),
    ("YY", "%y"),
    ("yy", "%y"),
    ("IW", "%V"),
    ("FMMonth", "%B"),
    ("Month", "%B"),
    ("Mon", "%b"),
    ("MM", "%m"),
    ("mm", "%m"),
    ("MI", "%M"),
    ("mi", "%M"),
    ("MS", "%3f"),
    ("ms", "%3f"),
    ("FMDay", "%A"),
    ("Day", "%A"),
    ("Dy", "%a"),
    ("DDD", "%j"),
    ("ddd", "%j"),
    ("ID", "%u"),
    ("DD", "%d"),
    ("dd", "%d"),
    ("HH24", "%H"),
    ("hh24", "%H"),
    ("HH12", "%I"),
    ("hh12", "%I"),
    ("HH", "%I"),
    ("hh", "%I"),
    ("SS", "%S"),
    ("ss", "%S"),
    ("US", "%6f"),
    ("us", "%6f"),
    ("AM", "%p"),
    ("PM", "%p"),
];

/// A form as `strftime` has it, if it is none yet.
///
/// # Errors
/// [`Error::Usage`] for letters that stand for what `strftime` has not.
pub(super) fn of_strftime(form: &str) -> Result<Option<String>> {
    if form.contains('%') || !form.contains(|c: char| c.is_ascii_alphabetic()) {
        return Ok(None);
    }
    let mut written = String::with_capacity(form.len());
    let mut rest = form;
    while let Some(next) = rest.chars().next() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (text, behind) = quoted.split_once('"').unwrap_or((quoted, ""));
            written.push_str(text);
            rest = behind;
            continue;
        }
        if let Some((pattern, here)) = PATTERNS.iter().find(|(p, _)| rest.starts_with(p)) {
            written.push_str(here);
            rest = &rest[pattern.len()..];
            continue;
        }
        // Between a day and a time, as ISO 8601 has it.
        let is_text = !next.is_ascii_alphabetic() || matches!(next, 'T' | 'Z');
        if !is_text {
            return Err(Error::usage(format!(
                "the form '{form}' has '{next}', which stands for nothing; write it as strftime does, e.g. \
                 '%Y-%m-%d %H:%M:%S', or text within double quotes"
            )));
        }
        written.push(next);
        rest = &rest[next.len_utf8()..];
    }
    Ok(Some(written))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_those_of_strftime() {
        for (form, expected) in [
            ("YYYY-MM-DD", Some("%Y-%m-%d")),
            ("DD.MM.YY HH24:MI:SS.MS", Some("%d.%m.%y %H:%M:%S.%3f")),
            ("YYYY-MM-DD\"T\"HH24:MI:SSZ", Some("%Y-%m-%dT%H:%M:%SZ")),
            ("FMMonth, Day, Mon, Dy", Some("%B, %A, %b, %a")),
            ("%Y-MM", None),
            ("%F", None),
            ("--", None),
        ] {
            assert_eq!(of_strftime(form).unwrap().as_deref(), expected, "{form}");
        }
        for form in ["YYYY-Q", "J", "MONTH", "nonsense"] {
            assert!(of_strftime(form).is_err(), "{form}");
        }
    }
}

//! Texts of intervals: times of day in them, `1 month 03:30:00`, are written out in units, as Arrow reads them.

use std::borrow::Cow;

/// Whether a text is anything else than a number, to which Arrow gives a unit of its own.
pub(crate) fn has_unit(text: &str) -> bool {
    text.trim().parse::<f64>().is_err()
}

/// The text with `[-]h:m[:s]` in hours, minutes and seconds, and a number alone before that in days.
pub(crate) fn spelt(text: &str) -> Cow<'_, str> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let Some(place) = words.iter().position(|word| word.contains(':')) else {
        return Cow::Borrowed(text);
    };
    let Some(time) = time_in_units(words[place]) else {
        return Cow::Borrowed(text);
    };
    let mut spelt: Vec<&str> = words[..place].to_vec();
    if let [.., days] = spelt.as_slice()
        && days.parse::<i64>().is_ok()
    {
        spelt.push("days");
    }
    spelt.push(&time);
    spelt.extend(&words[place + 1..]);
    Cow::Owned(spelt.join(" "))
}

fn time_in_units(word: &str) -> Option<String> {
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", word.strip_prefix('+').unwrap_or(word)),
    };
    let parts: Vec<&str> = digits.split(':').collect();
    let (hours, minutes, seconds) = match parts.as_slice() {
        [hours, minutes] => (hours, minutes, &"0"),
        [hours, minutes, seconds] => (hours, minutes, seconds),
        _ => return None,
    };
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let is_time = [hours, minutes, whole, fraction].into_iter().all(is_number)
        && [minutes, whole]
            .into_iter()
            .all(|part| part.parse::<u8>().is_ok_and(|part| part < 60));
    is_time.then(|| format!("{sign}{hours} hours {sign}{minutes} minutes {sign}{seconds} seconds"))
}

#[cfg(test)]
mod tests {
    use super::spelt;

    #[test]
    fn times_are_spelt_and_the_rest_is_left_as_it_is() {
        for (text, expected) in [
            ("12:30:00", "12 hours 30 minutes 00 seconds"),
            ("-0:30", "-0 hours -30 minutes -0 seconds"),
            (
                "1 month 2 days 03:00:01.5",
                "1 month 2 days 03 hours 00 minutes 01.5 seconds",
            ),
            ("1 12:30", "1 days 12 hours 30 minutes 0 seconds"),
            ("3 days", "3 days"),
            ("12:60", "12:60"),
            ("1:2:3:4", "1:2:3:4"),
            (":30", ":30"),
            ("1:é", "1:é"),
        ] {
            assert_eq!(spelt(text), expected, "{text}");
        }
    }
}

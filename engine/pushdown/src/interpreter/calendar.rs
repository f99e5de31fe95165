//! Days since 1970-01-01 as dates of the proleptic Gregorian calendar.

use crate::DatePart;

/// Years that Arrow (by way of chrono) has dates for; beyond them a calendar field is NULL.
const YEARS: std::ops::RangeInclusive<i128> = -262_143..=262_142;

/// The field of the date that is `days` after 1970-01-01.
///
/// The algorithm is `civil_from_days` of Howard Hinnant's "chrono-compatible low-level date
/// algorithms": the year is taken to begin on 1 March, so that the leap day is its last, and
/// 400 years are always 146,097 days.
pub(super) fn date_part(part: DatePart, days: i128) -> Option<i32> {
    let days_since_march_of_year_0 = days + 719_468;
    let era = days_since_march_of_year_0.div_euclid(146_097);
    let day_of_era = days_since_march_of_year_0.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = (months_since_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i128::from(month <= 2);
    let value = match part {
        _ if !YEARS.contains(&year) => return None,
        DatePart::Year => year,
        DatePart::Month => month,
        DatePart::Day => day,
    };
    i32::try_from(value).ok()
}

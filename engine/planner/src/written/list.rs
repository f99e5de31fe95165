//! What the functions are called, and how they are written.

use arrow::datatypes::{DataType, TimeUnit};

/// Names of parameters, and the body that is written with them.
type Bodies = &'static [(&'static [&'static str], &'static str)];
type SpecialBodies = &'static [(Takes, &'static [&'static str], &'static str)];

/// A function.
#[derive(Debug)]
pub(super) struct Text {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// What of, in the reference.
    pub says: &'static str,
    /// Which types its arguments have.
    pub takes: Takes,
    /// Parameters and body, one for each number of arguments. A body does no arithmetic on whole numbers that
    /// may leave their type: nothing in it is checked.
    pub bodies: Bodies,
    /// Bodies for arguments of which the last is of certain types, which go before.
    pub special: SpecialBodies,
}

impl Text {
    /// The parameters and the body for arguments of these types.
    pub fn body(&self, types: &[DataType]) -> Option<(&'static [&'static str], &'static str)> {
        let mut special = self.special.iter();
        let special = special.find(|(takes, parameters, _)| {
            parameters.len() == types.len() && types.last().is_some_and(|of| takes.has(of))
        });
        if let Some((_, parameters, body)) = special {
            return Some((parameters, body));
        }
        let mut bodies = self.bodies.iter();
        bodies
            .find(|(parameters, _)| parameters.len() == types.len())
            .copied()
    }

    const fn with(mut self, special: SpecialBodies) -> Self {
        self.special = special;
        self
    }
}

/// What a function takes. The body itself refuses other types than it can compute with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Takes {
    Any,
    Numbers,
    /// Texts and bytes.
    Texts,
    /// Dates, times, timestamps and intervals, and texts of them.
    Times,
    Dates,
    Floats,
    /// Timestamps of microseconds or nanoseconds.
    Microseconds,
    Integers,
    /// What [`Self::Times`] has, and whole numbers.
    TimesOrIntegers,
    /// Timestamps of nanoseconds.
    Nanoseconds,
    Intervals,
    /// Dates, and timestamps of a coarser unit than that.
    CoarserThan(TimeUnit),
}

impl Takes {
    pub fn has(self, given: &DataType) -> bool {
        if let DataType::Dictionary(_, values) = given {
            return self.has(values);
        }
        match self {
            Self::Dates => matches!(given, DataType::Date32 | DataType::Date64),
            Self::Intervals => matches!(given, DataType::Interval(_) | DataType::Duration(_)),
            Self::Floats => given.is_floating(),
            Self::Integers => given.is_integer(),
            Self::TimesOrIntegers => given.is_integer() || Self::Times.has(given),
            Self::Microseconds => {
                matches!(given, DataType::Timestamp(TimeUnit::Microsecond, _))
                    || Self::Nanoseconds.has(given)
            }
            Self::Nanoseconds => matches!(given, DataType::Timestamp(TimeUnit::Nanosecond, _)),
            Self::CoarserThan(unit) => match given {
                DataType::Timestamp(of, _) => *of < unit,
                of => Self::Dates.has(of),
            },
            Self::Any => true,
            Self::Texts => given.is_string() || given.is_binary() || given.is_null(),
            Self::Numbers => given.is_numeric() || given.is_null(),
            Self::Times => {
                given.is_temporal()
                    || given.is_string()
                    || given.is_null()
                    || matches!(given, DataType::Interval(_))
            }
        }
    }

    pub fn says(self) -> &'static str {
        match self {
            Self::Any => "any value",
            Self::Numbers => "a number",
            Self::Texts => "a text, or bytes",
            Self::Dates => "a date",
            Self::Intervals => "an interval",
            Self::Floats => "a float",
            Self::Integers => "a whole number",
            Self::TimesOrIntegers => "a date, a time, a timestamp, an interval or a whole number",
            Self::Microseconds | Self::Nanoseconds | Self::CoarserThan(_) => "a timestamp",
            Self::Times => "a date, a time, a timestamp or an interval",
        }
    }
}

const fn text(
    takes: Takes,
    name: &'static str,
    aliases: &'static [&'static str],
    says: &'static str,
    bodies: Bodies,
) -> Text {
    Text {
        name,
        aliases,
        says,
        takes,
        bodies,
        special: &[],
    }
}

/// The number of a moment in a finer unit than it has. Planners that saw how that comes about would compare the moment
/// with a constant of which they had cut off what the moment's unit does not have.
macro_rules! as_finer {
    ($unit:literal) => {
        concat!(
            "CAST(\"flashmesh:as_it_is\"(arrow_cast(x, 'Timestamp(",
            $unit,
            ", None)')) AS BIGINT)"
        )
    };
}

/// A call of `date_part`.
macro_rules! part {
    ($name:literal) => {
        part!($name, [])
    };
    ($name:literal, [$($alias:literal),*]) => {
        text(
            Takes::Times,
            $name,
            &[$($alias),*],
            concat!("the ", $name, " of a time"),
            &[(X, concat!("date_part('", $name, "', x)"))],
        )
    };
}

/// An interval of a number of units.
macro_rules! interval {
    ($unit:literal) => {
        text(
            Takes::Numbers,
            concat!("to_", $unit),
            &[],
            concat!("an interval of a number of ", $unit),
            &[(
                X,
                concat!("CAST(CAST(x AS VARCHAR) || ' ", $unit, "' AS INTERVAL)"),
            )],
        )
    };
}

const X: &[&str] = &["x"];
const XY: &[&str] = &["x", "y"];
const BETWEEN: &[&str] = &["unit", "a", "b"];

/// How many borders of a unit lie between two times.
const BORDERS: &str = "CAST(CASE regexp_replace(lower(unit), 's$', '')
    WHEN 'millennium' THEN floor(date_part('year', b) / 1000.0) - floor(date_part('year', a) / 1000.0)
    WHEN 'century' THEN floor(date_part('year', b) / 100.0) - floor(date_part('year', a) / 100.0)
    WHEN 'decade' THEN floor(date_part('year', b) / 10.0) - floor(date_part('year', a) / 10.0)
    WHEN 'year' THEN date_part('year', b) - date_part('year', a)
    WHEN 'quarter' THEN (date_part('year', b) * 4 + date_part('quarter', b)) - (date_part('year', a) * 4 + date_part('quarter', a))
    WHEN 'month' THEN (date_part('year', b) * 12 + date_part('month', b)) - (date_part('year', a) * 12 + date_part('month', a))
    WHEN 'week' THEN floor((epoch_days(b) + 3) / 7.0) - floor((epoch_days(a) + 3) / 7.0)
    WHEN 'day' THEN epoch_days(b) - epoch_days(a)
    WHEN 'hour' THEN floor(epoch_us(b) / 3600000000.0) - floor(epoch_us(a) / 3600000000.0)
    WHEN 'minute' THEN floor(epoch_us(b) / 60000000.0) - floor(epoch_us(a) / 60000000.0)
    WHEN 'second' THEN floor(epoch_us(b) / 1000000.0) - floor(epoch_us(a) / 1000000.0)
    WHEN 'millisecond' THEN epoch_ms(b) - epoch_ms(a)
    WHEN 'microsecond' THEN epoch_us(b) - epoch_us(a)
    ELSE CASE WHEN unit IS NOT NULL THEN CAST(error(concat('there is no unit ''', unit, ''' of time')) AS BIGINT) END END AS BIGINT)";

pub(super) static FUNCTIONS: &[Text] = &[
    part!("year"),
    part!("quarter"),
    part!("month"),
    part!("week", ["weekofyear"]),
    part!("day", ["dayofmonth"]),
    part!("hour"),
    part!("minute"),
    part!("second"),
    part!("epoch"),
    part!("isodow"),
    text(
        Takes::Times,
        "dayofweek",
        &["weekday"],
        "the day of the week, 0 for Sunday",
        &[(X, "date_part('dow', x)")],
    ),
    text(
        Takes::Times,
        "dayofyear",
        &[],
        "the day of the year, 1 for the first",
        &[(X, "date_part('doy', x)")],
    ),
    text(
        Takes::Times,
        "decade",
        &[],
        "the year without its last digit",
        &[(X, "CAST(floor(date_part('year', x) / 10.0) AS BIGINT)")],
    ),
    text(
        Takes::Times,
        "century",
        &[],
        "the century, which begins with year 1",
        &[(X, "CAST(ceil(date_part('year', x) / 100.0) AS BIGINT)")],
    ),
    text(
        Takes::Times,
        "millennium",
        &[],
        "the millennium, which begins with year 1",
        &[(X, "CAST(ceil(date_part('year', x) / 1000.0) AS BIGINT)")],
    ),
    text(
        Takes::Times,
        "dayname",
        &[],
        "the name of the day of the week",
        &[(X, "to_char(x, '%A')")],
    ),
    text(
        Takes::Times,
        "monthname",
        &[],
        "the name of the month",
        &[(X, "to_char(x, '%B')")],
    ),
    text(
        Takes::Times,
        "last_day",
        &[],
        "the last day of the month",
        &[(
            X,
            "CAST(date_trunc('month', x) + INTERVAL '1 month' - INTERVAL '1 day' AS DATE)",
        )],
    )
    .with(&[(
        Takes::Dates,
        X,
        "CAST(x + INTERVAL '1 month' - to_days(date_part('day', x + INTERVAL '1 month')) AS DATE)",
    )]),
    text(
        Takes::Times,
        "epoch_days",
        &[],
        "days since 1970",
        &[(X, "CAST(arrow_cast(CAST(x AS DATE), 'Int32') AS BIGINT)")],
    ),
    text(
        Takes::TimesOrIntegers,
        "epoch_ms",
        &[],
        "milliseconds since 1970, or the timestamp of a number of them",
        &[(
            X,
            "CAST(arrow_cast(x, 'Timestamp(Millisecond, None)') AS BIGINT)",
        )],
    )
    .with(&[
        (
            Takes::Integers,
            X,
            "arrow_cast(CAST(x AS BIGINT), 'Timestamp(Millisecond, None)')",
        ),
        (
            Takes::Microseconds,
            X,
            "(epoch_us(x) - ((epoch_us(x) % 1000) + 1000) % 1000) / 1000",
        ),
        (
            Takes::CoarserThan(TimeUnit::Millisecond),
            X,
            as_finer!("Millisecond"),
        ),
    ]),
    text(
        Takes::Times,
        "epoch_us",
        &[],
        "microseconds since 1970",
        &[(
            X,
            "CAST(arrow_cast(x, 'Timestamp(Microsecond, None)') AS BIGINT)",
        )],
    )
    .with(&[
        (
            Takes::Nanoseconds,
            X,
            "(epoch_ns(x) - ((epoch_ns(x) % 1000) + 1000) % 1000) / 1000",
        ),
        (
            Takes::CoarserThan(TimeUnit::Microsecond),
            X,
            as_finer!("Microsecond"),
        ),
    ]),
    text(
        Takes::Times,
        "epoch_ns",
        &[],
        "nanoseconds since 1970",
        &[(
            X,
            "CAST(arrow_cast(x, 'Timestamp(Nanosecond, None)') AS BIGINT)",
        )],
    )
    .with(&[(
        Takes::CoarserThan(TimeUnit::Nanosecond),
        X,
        as_finer!("Nanosecond"),
    )]),
    text(
        Takes::Times,
        "date_diff",
        &["datediff"],
        "how many borders between units of time, `'month'` for one, lie between two times; weeks begin with Monday",
        &[(BETWEEN, BORDERS)],
    ),
    text(
        Takes::Any,
        "date_add",
        &[],
        "a time later by an interval",
        &[(XY, "x + y")],
    ),
    text(
        Takes::Times,
        "time_bucket",
        &[],
        "the beginning of the interval, one of many of the same width, in which a time is; days and weeks are counted from Monday 2000-01-03, months from 2000-01-01, or both from an origin, or so much later as an interval says",
        &[(
            &["width", "x"],
            "CASE WHEN date_part('month', width) <> 0 OR date_part('year', width) <> 0
             THEN date_bin(width, x, TIMESTAMP '2000-01-01')
             ELSE date_bin(width, x, TIMESTAMP '2000-01-03') END",
        ),
        (&["width", "x", "origin"], "date_bin(width, x, CAST(origin AS TIMESTAMP))")],
    )
    .with(&[
        (
            Takes::Dates,
            &["width", "x"],
            "CAST(time_bucket(width, arrow_cast(x, 'Timestamp(Second, None)')) AS DATE)",
        ),
        (
            Takes::Intervals,
            &["width", "x", "offset"],
            "time_bucket(width, x - offset) + offset",
        ),
    ]),
    text(
        Takes::Times,
        "era",
        &[],
        "1 for years since the year 1, 0 for those before",
        &[(X, "CAST(CASE WHEN date_part('year', x) > 0 THEN 1 WHEN x IS NOT NULL THEN 0 END AS BIGINT)")],
    ),
    text(
        Takes::Times,
        "julian",
        &[],
        "the Julian day, with the part of the day since midnight",
        &[(
            X,
            "CAST(epoch_days(CAST(x AS DATE)) AS DOUBLE) + 2440588.0
             + date_part('epoch', CAST(x AS TIMESTAMP) - CAST(CAST(x AS DATE) AS TIMESTAMP)) / 86400.0",
        )],
    ),
    text(
        Takes::Numbers,
        "make_timestamp",
        &[],
        "the timestamp of a year, a month, a day, an hour, a minute and a second",
        &[(
            &["year", "month", "day", "hour", "minute", "second"],
            "CAST(make_date(year, month, day) AS TIMESTAMP) + to_hours(hour) + to_minutes(minute)
             + to_microseconds(CAST(round(second * 1000000.0) AS BIGINT))",
        )],
    ),
    interval!("years"),
    interval!("months"),
    interval!("weeks"),
    interval!("days"),
    interval!("hours"),
    interval!("minutes"),
    interval!("seconds"),
    interval!("milliseconds"),
    interval!("microseconds"),
    text(
        Takes::Any,
        "regexp_matches",
        &[],
        "whether a regular expression is found in a text",
        &[
            (&["text", "pattern"], "regexp_like(text, pattern)"),
            (
                &["text", "pattern", "flags"],
                "regexp_like(text, pattern, flags)",
            ),
        ],
    ),
    text(
        Takes::Any,
        "regexp_full_match",
        &[],
        "whether a regular expression is that of a whole text",
        &[
            (
                &["text", "pattern"],
                "regexp_like(text, '^(?:' || pattern || ')\\z')",
            ),
            (
                &["text", "pattern", "flags"],
                "regexp_like(text, '^(?:' || pattern || ')\\z', flags)",
            ),
        ],
    ),
    text(
        Takes::Any,
        "prefix",
        &[],
        "whether a text begins with another",
        &[(XY, "starts_with(x, y)")],
    ),
    text(
        Takes::Any,
        "suffix",
        &[],
        "whether a text ends with another",
        &[(XY, "ends_with(x, y)")],
    ),
    text(
        Takes::Any,
        "strlen",
        &[],
        "the number of bytes of a text",
        &[(X, "octet_length(x)")],
    ),
    text(
        Takes::Any,
        "ord",
        &[],
        "the number of the first character",
        &[(X, "ascii(x)")],
    ),
    text(
        Takes::Any,
        "base64",
        &["to_base64"],
        "bytes as text in base 64, with padding",
        &[(X, "encode(x, 'base64pad')")],
    ),
    text(
        Takes::Any,
        "from_base64",
        &[],
        "the bytes that a text in base 64 stands for",
        &[(X, "decode(x, 'base64pad')")],
    ),
    text(
        Takes::Texts,
        "hex",
        &[],
        "hexadecimal digits of a text or of bytes",
        &[(X, "upper(encode(x, 'hex'))")],
    ),
    text(
        Takes::Any,
        "unhex",
        &["from_hex"],
        "the bytes that hexadecimal digits stand for",
        &[(X, "decode(x, 'hex')")],
    ),
    text(
        Takes::Numbers,
        "sign",
        &[],
        "-1, 0 or 1",
        &[(
            X,
            "CAST(CASE WHEN x > 0 THEN 1 WHEN x < 0 THEN -1 WHEN x = 0 THEN 0 END AS TINYINT)",
        )],
    )
    .with(&[(
        Takes::Floats,
        X,
        "CAST(CASE WHEN isnan(x) THEN 0 WHEN x > 0 THEN 1 WHEN x < 0 THEN -1 WHEN x = 0 THEN 0 END AS TINYINT)",
    )]),
    text(
        Takes::Numbers,
        "fmod",
        &[],
        "the rest of a division, with the sign of the divisor",
        &[(
            XY,
            "CAST(x AS DOUBLE) - floor(CAST(x AS DOUBLE) / CAST(y AS DOUBLE)) * CAST(y AS DOUBLE)",
        )],
    ),
    text(
        Takes::Numbers,
        "fdiv",
        &[],
        "the whole part of a quotient, towards the smaller number, as a float",
        &[(XY, "floor(CAST(x AS DOUBLE) / CAST(y AS DOUBLE))")],
    ),
    text(
        Takes::Numbers,
        "even",
        &[],
        "the next even number, away from zero",
        &[(
            X,
            "CASE WHEN x < 0 THEN floor(x / 2.0) * 2.0 ELSE ceil(x / 2.0) * 2.0 END",
        )],
    ),
    text(
        Takes::Numbers,
        "divide",
        &[],
        "the quotient, a whole number for whole numbers",
        &[(XY, "x / y")],
    ),
    text(
        Takes::Numbers,
        "isinf",
        &[],
        "whether a float is infinite",
        &[(X, "abs(CAST(x AS DOUBLE)) = CAST('inf' AS DOUBLE)")],
    ),
    text(
        Takes::Numbers,
        "isfinite",
        &[],
        "whether a float is neither infinite nor NaN",
        &[(X, "abs(CAST(x AS DOUBLE)) < CAST('inf' AS DOUBLE)")],
    ),
    text(
        Takes::Any,
        "list_last",
        &[],
        "the last element of a list",
        &[(X, "x[-1]")],
    ),
    text(
        Takes::Any,
        "list_count",
        &[],
        "how many elements of a list are not NULL",
        &[(X, "CASE WHEN x IS NOT NULL THEN coalesce(array_length(array_compact(x)), arrow_cast(0, 'UInt64')) END")],
    ),
    text(
        Takes::Any,
        "list_unique",
        &["array_unique"],
        "how many different elements a list has but NULL",
        &[(
            X,
            "CASE WHEN x IS NOT NULL THEN coalesce(array_length(array_distinct(array_compact(x))), arrow_cast(0, 'UInt64')) END",
        )],
    ),
    text(
        Takes::Any,
        "list_reverse_sort",
        &["array_reverse_sort"],
        "a list from its greatest element to its smallest, NULL last",
        &[(X, "array_sort(x, 'DESC', 'NULLS LAST')")],
    ),
    text(
        Takes::Times,
        "yearweek",
        &[],
        "the year and the week of a time by ISO 8601, 202401 for one",
        &[(X, "date_part('isoyear', x) * 100 + date_part('week', x)")],
    ),
    text(
        Takes::Any,
        "list_string_agg",
        &["array_string_agg"],
        "the elements of a list as one text, with commas between",
        &[(X, "CASE WHEN array_length(x) > 0 THEN array_to_string(x, ',') END")],
    ),
    text(
        Takes::Any,
        "map_contains",
        &[],
        "whether a map has a key",
        &[(XY, "array_has(map_keys(x), y)")],
    ),
    text(
        Takes::Any,
        "list_cosine_distance",
        &["array_cosine_distance"],
        "the cosine distance of two lists of numbers",
        &[(XY, "CAST(cosine_distance(x, y) AS DOUBLE)")],
    ),
    text(
        Takes::Any,
        "list_cosine_similarity",
        &["array_cosine_similarity"],
        "how alike the directions of two lists of numbers are",
        &[(XY, "1 - CAST(cosine_distance(x, y) AS DOUBLE)")],
    ),
    text(
        Takes::Texts,
        "parse_filename",
        &[],
        "what stands behind the last slash of a path",
        &[(X, "regexp_replace(x, '^(?s:.*)/', '')")],
    ),
    text(
        Takes::Texts,
        "parse_dirname",
        &[],
        "the first folder of a path",
        &[(
            X,
            "CASE WHEN strpos(x, '/') = 0 THEN '' WHEN starts_with(x, '/') THEN '/' ELSE split_part(x, '/', 1) END",
        )],
    ),
    text(
        Takes::Texts,
        "parse_path",
        &[],
        "a path as a list of its folders and the file",
        &[(
            X,
            "CASE WHEN starts_with(x, '/') THEN array_prepend('/', string_to_array(btrim(regexp_replace(x, '/+', '/', 'g'), '/'), '/'))
             ELSE string_to_array(btrim(regexp_replace(x, '/+', '/', 'g'), '/'), '/') END",
        )],
    ),
    text(
        Takes::Texts,
        "parse_dirpath",
        &[],
        "what stands before the last slash of a path",
        &[(X, "CASE WHEN strpos(x, '/') = 0 THEN '' ELSE regexp_replace(x, '/[^/]*$', '') END")],
    ),
];

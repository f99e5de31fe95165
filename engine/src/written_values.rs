//! Values of CSV files that are written in another way than SQL's: `dateformat = '%d/%m/%Y'`, `decimal_separator = ','`.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast as cast_array;
use arrow::datatypes::{DataType, TimeUnit};
use chrono::{NaiveDate, NaiveDateTime};
use datafusion::functions::datetime::expr_fn::{to_date, to_timestamp_micros};
use datafusion::functions::string::expr_fn::replace;
use datafusion::logical_expr::{Expr, cast, lit};

/// The type of timestamps that are found.
const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

/// How they are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WrittenValues<'a> {
    /// In the signs of strftime.
    dates: Option<&'a str>,
    timestamps: Option<&'a str>,
    /// What stands before a number's fraction.
    separator: Option<char>,
}

impl<'a> WrittenValues<'a> {
    /// `None` where nothing is said of any.
    pub fn new(
        dates: Option<&'a str>,
        timestamps: Option<&'a str>,
        separator: Option<char>,
    ) -> Option<Self> {
        let is_said = dates.is_some() || timestamps.is_some() || separator.is_some();
        is_said.then_some(Self {
            dates,
            timestamps,
            separator,
        })
    }

    fn format(&self, of: &DataType) -> Option<&'a str> {
        match of {
            DataType::Date32 => self.dates,
            DataType::Timestamp(..) => self.timestamps,
            _ => None,
        }
    }

    /// Whether values of a type are read as texts.
    pub fn are_of(&self, of: &DataType) -> bool {
        self.format(of).is_some() || self.separator_of(of).is_some()
    }

    fn separator_of(&self, of: &DataType) -> Option<char> {
        self.separator
            .filter(|_| of.is_floating() || of.is_decimal())
    }

    /// What all of some texts are; `None` where one is nothing of these, or there is none.
    pub fn found_in(&self, texts: &ArrayRef) -> Option<DataType> {
        let texts = cast_array(texts, &DataType::Utf8View).ok()?;
        let texts = texts.as_string_view();
        let are_all = |is_one: &dyn Fn(&str) -> bool| {
            texts.null_count() < texts.len() && texts.iter().flatten().all(is_one)
        };
        let is_date = |format| are_all(&|text| NaiveDate::parse_from_str(text, format).is_ok());
        let is_moment =
            |format| are_all(&|text| NaiveDateTime::parse_from_str(text, format).is_ok());
        let is_number = |separator| {
            are_all(&|text| {
                let is_sign = |sign: char| sign.is_ascii_digit() || "+-eE".contains(sign);
                let are_signs = text.chars().all(|sign| sign == separator || is_sign(sign));
                are_signs && text.replace(separator, ".").parse::<f64>().is_ok()
            })
        };
        if self.dates.is_some_and(is_date) {
            return Some(DataType::Date32);
        }
        if self.separator.is_some_and(is_number) {
            return Some(DataType::Float64);
        }
        self.timestamps.is_some_and(is_moment).then_some(TIMESTAMP)
    }

    /// A text as a value of a type.
    pub fn read(&self, text: Expr, to: &DataType) -> Expr {
        if let Some(separator) = self.separator_of(to) {
            let text = replace(text, lit(separator.to_string()), lit("."));
            return cast(text, to.clone());
        }
        match (to, self.format(to)) {
            (DataType::Date32, Some(format)) => to_date(vec![text, lit(format)]),
            (DataType::Timestamp(..), Some(format)) => {
                let moment = to_timestamp_micros(vec![text, lit(format)]);
                match *to == TIMESTAMP {
                    true => moment,
                    false => cast(moment, to.clone()),
                }
            }
            _ => cast(text, to.clone()),
        }
    }
}

//! What a figure draws.

/// A named list of points.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// As the legend has it.
    pub name: String,
    /// (x, y); of bars, x is the number of the group.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    pub(super) fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        let name = name.into();
        Self { name, points }
    }
}

/// Lines, or bars of one group for each label.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// What x is; empty of bars.
    pub x: &'static str,
    /// What y is.
    pub y: &'static str,
    /// Names of groups of bars; empty of lines.
    pub labels: Vec<String>,
    /// Bars of a group stand on each other.
    pub is_stacked: bool,
    /// The modelled values.
    pub series: Vec<Series>,
    /// Values that the paper's text states, where it does.
    pub stated: Vec<(f64, f64)>,
}

impl Plot {
    pub(super) fn lines(x: &'static str, y: &'static str, series: Vec<Series>) -> Self {
        Self {
            x,
            y,
            labels: Vec::new(),
            is_stacked: false,
            series,
            stated: Vec::new(),
        }
    }

    /// One bar for each label.
    pub(super) fn bars(y: &'static str, bars: &[(&str, f64)]) -> Self {
        let values = bars.iter().map(|(_, value)| *value).collect();
        let labels = bars.iter().map(|(label, _)| (*label).into()).collect();
        Self::groups(y, labels, vec![("modelled", values)], false)
    }

    /// A group of bars for each label, of each series one.
    pub(super) fn groups(
        y: &'static str,
        labels: Vec<String>,
        series: Vec<(&str, Vec<f64>)>,
        is_stacked: bool,
    ) -> Self {
        let numbered =
            |values: Vec<f64>| values.into_iter().enumerate().map(|(x, y)| (x as f64, y));
        let series = series.into_iter();
        Self {
            x: "",
            y,
            labels,
            is_stacked,
            series: series
                .map(|(name, values)| Series::new(name, numbered(values).collect()))
                .collect(),
            stated: Vec::new(),
        }
    }

    pub(super) fn with_stated(mut self, stated: Vec<(f64, f64)>) -> Self {
        self.stated = stated;
        self
    }
}

//! Plots as SVG, by hand: lines or bars, a legend, and rings where the paper states a value.

use std::fmt::Write;

use super::{Figure, Plot};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 84.0;
/// Told apart without red and green, too (Okabe and Ito).
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00",
];
const TICKS: usize = 5;

/// A figure's plot; its title says that it is modelled.
pub fn svg(figure: &Figure) -> String {
    let plot = &figure.plot;
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"13\" font-weight=\"bold\">{} (modelled)</text>\n\
         <text x=\"{LEFT}\" y=\"34\" fill=\"#555\">after {}</text>",
        escaped(figure.title),
        escaped(figure.of),
    );
    let frame = Frame::of(plot);
    frame.axes(plot, &mut text);
    if plot.labels.is_empty() {
        lines(plot, &frame, &mut text);
    } else {
        bars(plot, &frame, &mut text);
    }
    for &(x, y) in &plot.stated {
        let x = if plot.labels.is_empty() {
            frame.x(x)
        } else {
            frame.group(x + 0.5)
        };
        let y = frame.y(y);
        let _ = writeln!(
            text,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"none\" stroke=\"black\" stroke-width=\"1.5\"/>"
        );
    }
    legend(plot, &mut text);
    text.push_str("</svg>\n");
    text
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;")
}

/// Where values lie on the page.
struct Frame {
    x_least: f64,
    x_most: f64,
    /// Each step is twice the one before.
    is_log: bool,
    step: f64,
    groups: f64,
}

impl Frame {
    fn of(plot: &Plot) -> Self {
        let points = plot.series.iter().flat_map(|series| &series.points);
        let xs = points.clone().map(|(x, _)| *x);
        let (x_least, x_most) = (xs.clone().fold(f64::MAX, f64::min), xs.fold(0.0, f64::max));
        let mut highest = points
            .chain(&plot.stated)
            .map(|(_, y)| *y)
            .fold(0.0, f64::max);
        if plot.is_stacked {
            let sums = (0..plot.labels.len())
                .map(|x| plot.series.iter().map(|series| series.points[x].1).sum());
            highest = sums.fold(0.0, f64::max);
        }
        Self {
            x_least,
            x_most,
            is_log: x_least > 0.0 && x_most / x_least > 20.0,
            step: round_step(highest / TICKS as f64),
            groups: plot.labels.len() as f64,
        }
    }

    fn x(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value / self.x_least).log2() / (self.x_most / self.x_least).log2()
        } else {
            (value - self.x_least) / (self.x_most - self.x_least)
        };
        LEFT + 12.0 + share * (WIDTH - LEFT - RIGHT - 24.0)
    }

    fn group(&self, number: f64) -> f64 {
        LEFT + number / self.groups * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let most = self.step * TICKS as f64;
        HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&self, plot: &Plot, text: &mut String) {
        let (floor, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for tick in 0..=TICKS {
            let value = tick as f64 * self.step;
            let y = self.y(value);
            let _ = writeln!(
                text,
                "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                short(value),
            );
        }
        let below = floor + 16.0;
        for (number, label) in plot.labels.iter().enumerate() {
            let x = self.group(number as f64 + 0.5);
            let label = escaped(label);
            let _ = writeln!(
                text,
                "<text x=\"{x:.1}\" y=\"{below}\" text-anchor=\"middle\">{label}</text>"
            );
        }
        if plot.labels.is_empty() {
            let mut xs: Vec<f64> = plot
                .series
                .iter()
                .flat_map(|s| &s.points)
                .map(|p| p.0)
                .collect();
            xs.sort_by(f64::total_cmp);
            xs.dedup();
            for x in xs {
                let at = self.x(x);
                let _ = writeln!(
                    text,
                    "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>",
                    short(x)
                );
            }
            let middle = (LEFT + end) / 2.0;
            let _ = writeln!(
                text,
                "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                below + 16.0,
                escaped(plot.x)
            );
        }
        let middle = (TOP + floor) / 2.0;
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {TOP}V{floor}H{end}\" fill=\"none\" stroke=\"black\"/>\n\
             <text transform=\"translate(16 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escaped(plot.y),
        );
    }
}

/// 1, 2, 2.5 or 5 times a power of ten, not below.
fn round_step(least: f64) -> f64 {
    let mut scale = 1.0;
    while scale * 10.0 <= least {
        scale *= 10.0;
    }
    while scale > least && scale > 1e-9 {
        scale /= 10.0;
    }
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let fitting = steps
        .iter()
        .map(|step| step * scale)
        .find(|step| *step >= least);
    fitting.unwrap_or(least)
}

/// A number of an axis.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

fn lines(plot: &Plot, frame: &Frame, text: &mut String) {
    for (series, colour) in plot.series.iter().zip(COLOURS.iter().cycle()) {
        let mut path = String::new();
        let mut dots = String::new();
        for (number, &(x, y)) in series.points.iter().enumerate() {
            let (x, y) = (frame.x(x), frame.y(y));
            let _ = write!(path, "{}{x:.1} {y:.1}", if number == 0 { 'M' } else { 'L' });
            let _ = write!(dots, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>");
        }
        let _ = writeln!(
            text,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/><g fill=\"{colour}\">{dots}</g>"
        );
    }
}

fn bars(plot: &Plot, frame: &Frame, text: &mut String) {
    let width = (frame.group(1.0) - frame.group(0.0)) * 0.7;
    let beside = if plot.is_stacked {
        1.0
    } else {
        plot.series.len() as f64
    };
    let mut bases = vec![0.0; plot.labels.len()];
    for (number, (series, colour)) in plot.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
        for (group, &(_, value)) in series.points.iter().enumerate() {
            let shift = if plot.is_stacked {
                0.0
            } else {
                number as f64 * width / beside
            };
            let x = frame.group(group as f64 + 0.15) + shift;
            let top = frame.y(bases[group] + value);
            let height = frame.y(bases[group]) - top;
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>",
                width / beside,
            );
            if plot.is_stacked {
                bases[group] += value;
            }
        }
    }
}

fn legend(plot: &Plot, text: &mut String) {
    let names = plot.series.iter().map(|series| series.name.as_str());
    let mut x = LEFT;
    let y = HEIGHT - 24.0;
    for (name, colour) in names.zip(COLOURS.iter().cycle()) {
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{y}\">{}</text>",
            y - 9.0,
            x + 14.0,
            escaped(name),
        );
        x += 30.0 + name.chars().count() as f64 * 6.2;
    }
    if !plot.stated.is_empty() {
        let _ = writeln!(
            text,
            "<circle cx=\"{:.1}\" cy=\"{}\" r=\"5\" fill=\"none\" stroke=\"black\" stroke-width=\"1.5\"/>\
             <text x=\"{:.1}\" y=\"{}\">stated in the paper's text</text>",
            LEFT + 5.0,
            HEIGHT - 10.0,
            LEFT + 14.0,
            HEIGHT - 6.0,
        );
    }
}

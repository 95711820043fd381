//! Common parts of all charts: axes, lines, bars and hover texts.

use super::scale::Scale;
use super::text::escape;
use std::fmt::Write as _;

/// Size of the picture, and margins for its axes.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 68.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 46.0;

/// Pixels of the axes: left to right, bottom to top.
pub const ACROSS: [f64; 2] = [LEFT, WIDTH - RIGHT];
pub const UP: [f64; 2] = [HEIGHT - BOTTOM, TOP];

/// A chart being drawn. Later elements cover earlier ones.
pub struct Chart {
    x: Scale,
    y: Scale,
    body: String,
    hits: String,
}

/// Formats a pixel with one decimal: finer than any screen, and short.
fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Formats points as the data of a path; `None` breaks the line.
pub fn line_path(points: impl IntoIterator<Item = Option<(f64, f64)>>) -> String {
    let (mut path, mut pen_down) = (String::new(), false);
    for point in points {
        if let Some((x, y)) = point {
            let command = if pen_down { 'L' } else { 'M' };
            let _ = write!(path, "{command}{} {}", px(x), px(y));
        }
        pen_down = point.is_some();
    }
    path
}

impl Chart {
    /// Creates an empty chart.
    pub fn new(x: Scale, y: Scale) -> Chart {
        Chart {
            x,
            y,
            body: String::new(),
            hits: String::new(),
        }
    }

    /// Adds the horizontal axis: its figures, the text of each, and a title.
    pub fn x_axis(&mut self, wanted: usize, text: impl Fn(f64) -> String, title: &str) {
        let [bottom, top] = self.y.range();
        for (i, tick) in self.x.ticks(wanted).into_iter().enumerate() {
            let x = px(self.x.at(tick));
            // On a narrow screen, where text is larger, every other figure is omitted.
            let class = if i % 2 == 1 { " class=\"o\"" } else { "" };
            let _ = write!(
                self.body,
                "<path class=\"grid\" d=\"M{x} {}V{}\"/><text x=\"{x}\" y=\"{}\" \
                 text-anchor=\"middle\"{class}>{}</text>",
                px(bottom),
                px(top),
                px(bottom + 18.0),
                escape(&text(tick)),
            );
        }
        let _ = write!(
            self.body,
            "<text class=\"title\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            px(ACROSS[1]),
            px(HEIGHT - 7.0),
            escape(title),
        );
    }

    /// Adds the vertical axis.
    pub fn y_axis(&mut self, wanted: usize, text: impl Fn(f64) -> String) {
        let [left, right] = self.x.range();
        let mut last = f64::INFINITY;
        for tick in self.y.ticks(wanted) {
            let y = self.y.at(tick);
            let text = text(tick);
            // On a narrow screen, where text is larger, long labels and close ones are omitted.
            let short = text.chars().count() <= 7 && last - y >= 20.0;
            let class = if short { "" } else { " class=\"o\"" };
            last = if short { y } else { last };
            let _ = write!(
                self.body,
                "<path class=\"grid\" d=\"M{} {y}H{}\"/><text x=\"{}\" y=\"{}\" \
                 text-anchor=\"end\"{class}>{}</text>",
                px(left),
                px(right),
                px(left - 8.0),
                px(y + 4.5),
                escape(&text),
                y = px(y),
            );
        }
    }

    /// Adds a line through (x, y); `None` breaks it. A single point is drawn as a dot.
    pub fn line(&mut self, class: &str, points: &[Option<(f64, f64)>]) {
        let place = |(x, y)| (self.x.at(x), self.y.at(y));
        let path = line_path(points.iter().map(|point| point.map(place)));
        let _ = write!(self.body, "<path class=\"line {class}\" d=\"{path}\"/>");
        for (i, point) in points.iter().enumerate() {
            let there = |i: Option<usize>| i.and_then(|i| points.get(i)).is_some_and(Option::is_some);
            let alone = !there(i.checked_sub(1)) && !there(Some(i + 1));
            if let Some(point) = point
                && alone
            {
                self.dot(class, *point);
            }
        }
    }

    /// Adds the area between a line and the horizontal axis.
    pub fn area(&mut self, class: &str, points: &[(f64, f64)]) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return;
        };
        let line = line_path(points.iter().map(|&(x, y)| Some((self.x.at(x), self.y.at(y)))));
        let _ = write!(
            self.body,
            "<path class=\"area {class}\" d=\"{line}V{bottom}H{}Z\"/>",
            px(self.x.at(first.0)),
            bottom = px(self.y.range()[0]),
        );
        debug_assert!(first.0 <= last.0);
    }

    /// Adds bars of one colour, each from one figure up to another.
    pub fn bars(&mut self, class: &str, bars: impl Iterator<Item = ([f64; 2], [f64; 2])>) {
        let mut path = String::new();
        for (across, up) in bars {
            let [left, right] = across.map(|x| self.x.at(x));
            let [low, high] = up.map(|y| self.y.at(y));
            let gap = if right - left > 5.0 { 1.0 } else { 0.0 };
            // A minimum width, so that every bar is visible.
            let width = (right - left - gap).max(0.6);
            let height = (low - high).max(0.6);
            let _ = write!(
                path,
                "M{} {}h{}v{}h{}z",
                px(left),
                px(low),
                px(width),
                px(-height),
                px(-width)
            );
        }
        if !path.is_empty() {
            let _ = write!(self.body, "<path class=\"fill {class}\" d=\"{path}\"/>");
        }
    }

    /// Shades a range of the horizontal axis.
    pub fn shade(&mut self, class: &str, [from, to]: [f64; 2]) {
        let [bottom, top] = self.y.range();
        let [left, right] = [from, to].map(|x| self.x.at(x));
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
            px(left),
            px(top),
            px((right - left).max(0.6)),
            px(bottom - top),
        );
    }

    /// Adds a dashed horizontal line at a figure, with its name.
    pub fn level(&mut self, class: &str, y: f64, name: &str) {
        let [left, right] = self.x.range();
        let y = self.y.at(y);
        let below = if y < TOP + 16.0 { 15.0 } else { -6.0 };
        let _ = write!(
            self.body,
            "<path class=\"mark {class}\" d=\"M{} {}H{}\"/><text class=\"note {class}\" x=\"{}\" \
             y=\"{}\">{}</text>",
            px(left),
            px(y),
            px(right),
            px(left + 6.0),
            px(y + below),
            escape(name),
        );
    }

    /// Adds a dashed vertical line at a figure, with its name at the top or the bottom.
    pub fn mark(&mut self, class: &str, x: f64, name: &str, at_top: bool) {
        let [bottom, top] = self.y.range();
        let x = self.x.at(x);
        let (anchor, aside) = side(x);
        let _ = write!(
            self.body,
            "<path class=\"mark {class}\" d=\"M{} {}V{}\"/><text class=\"note {class}\" x=\"{}\" \
             y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            px(x),
            px(bottom),
            px(top),
            px(x + aside),
            px(if at_top { top + 14.0 } else { bottom - 8.0 }),
            escape(name),
        );
    }

    /// Adds a dot.
    pub fn dot(&mut self, class: &str, (x, y): (f64, f64)) {
        let (x, y) = (self.x.at(x), self.y.at(y));
        let _ = write!(
            self.body,
            "<circle class=\"dot {class}\" cx=\"{}\" cy=\"{}\" r=\"3.5\"/>",
            px(x),
            px(y)
        );
    }

    /// Adds a dot with a label, above the rising line that it lies on.
    pub fn label(&mut self, class: &str, (x, y): (f64, f64), words: &str) {
        self.dot(class, (x, y));
        let (x, y) = (self.x.at(x), self.y.at(y));
        // At the left border there is room only on the right, below the line.
        let (anchor, aside, down) = match (x - ACROSS[0] < 120.0, y < TOP + 14.0) {
            (true, _) => ("start", 8.0, if y > UP[0] - 20.0 { -5.0 } else { 14.0 }),
            (false, true) => ("end", -9.0, 5.0),
            (false, false) => ("end", -6.0, -7.0),
        };
        let _ = write!(
            self.body,
            "<text class=\"note\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            px(x + aside),
            px(y + down),
            escape(words)
        );
    }

    /// Adds the hover text of a range of the horizontal axis. Lines are separated by line feeds.
    pub fn hover(&mut self, [from, to]: [f64; 2], text: &str) {
        let [bottom, top] = self.y.range();
        let [left, right] = [from, to].map(|x| self.x.at(x));
        let lines: Vec<String> = text.lines().map(escape).collect();
        let _ = write!(
            self.hits,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>",
            px(left),
            px(top),
            px((right - left).max(0.1)),
            px(bottom - top),
            lines.join("\n"),
        );
    }

    /// Adds the hover text of a dot.
    pub fn hover_dot(&mut self, (x, y): (f64, f64), text: &str) {
        let (x, y) = (self.x.at(x), self.y.at(y));
        let lines: Vec<String> = text.lines().map(escape).collect();
        let _ = write!(
            self.hits,
            "<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"14\"><title>{}</title></rect>",
            px(x - 7.0),
            px(y - 7.0),
            lines.join("\n"),
        );
    }

    /// Returns the picture. `summary` describes it for screen readers.
    pub fn finish(self, summary: &str) -> String {
        let [bottom, _] = self.y.range();
        let [left, right] = self.x.range();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{}\">{}<path class=\"axis\" d=\"M{} {}H{}\"/><g class=\"hits\">{}</g></svg>\n",
            escape(summary),
            self.body,
            px(left),
            px(bottom),
            px(right),
            self.hits,
        )
    }
}

/// Returns the side with room for a label: anchor and distance.
fn side(x: f64) -> (&'static str, f64) {
    if x > ACROSS[1] - 130.0 {
        ("end", -7.0)
    } else {
        ("start", 7.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_break_where_nothing_was_measured() {
        let points = [Some((1.0, 2.04)), Some((3.25, 4.0)), None, None, Some((5.0, 6.0))];
        assert_eq!(line_path(points), "M1 2L3.2 4M5 6");
        assert_eq!(line_path([None, None]), "");
    }

    #[test]
    fn charts_escape_what_they_are_given() {
        let [x, y] = [ACROSS, UP].map(|range| Scale::from_zero(10.0, range));
        let mut chart = Chart::new(x, y);
        let evil = "<b>\"&'";
        chart.x_axis(5, |_| evil.to_owned(), evil);
        chart.y_axis(5, |_| evil.to_owned());
        chart.level("a", 3.0, evil);
        chart.mark("a", 3.0, evil, true);
        chart.label("a", (9.9, 5.0), evil);
        chart.hover([1.0, 2.0], "<i>\n<u>");
        chart.line("a", &[None, Some((1.0, 1.0)), None]);
        chart.bars("a", [([0.0, 1.0], [0.0, 5.0])].into_iter());
        let svg = chart.finish(evil);
        assert!(
            !svg.contains("<b>") && !svg.contains("<i>") && !svg.contains("<u>"),
            "{svg}"
        );
        assert!(svg.contains("<title>&lt;i&gt;\n&lt;u&gt;</title>"));
        // A point without neighbours would be an invisible line.
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("M68 254h62v-118h-62z"), "{svg}");
    }
}

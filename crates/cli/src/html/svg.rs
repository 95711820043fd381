//! Common parts of all charts: axes, lines, bars and hover texts.
//!
//! No plotting crate: `plotters` (5 crates) writes fixed colours without the CSS classes of dark and narrow pages, and
//! no hover texts; `charming` draws by JavaScript, in the browser or in V8.

use super::scale::Scale;
use crate::text::one_line;
use maud::{Markup, html};
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
    body: Vec<Markup>,
    hits: Vec<Markup>,
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
        let (body, hits) = (Vec::new(), Vec::new());
        Chart { x, y, body, hits }
    }

    /// Adds the horizontal axis: its figures, the text of each, and a title.
    pub fn x_axis(&mut self, wanted: usize, text: impl Fn(f64) -> String, title: &str) {
        let [bottom, top] = self.y.range();
        for (i, tick) in self.x.ticks(wanted).into_iter().enumerate() {
            let x = px(self.x.at(tick));
            // On a narrow screen, where text is larger, every other figure is omitted.
            let class = (i % 2 == 1).then_some("o");
            self.body.push(html! {
                path.grid d={ "M" (x) " " (px(bottom)) "V" (px(top)) } {}
                text x=(x) y=(px(bottom + 18.0)) text-anchor="middle" class=[class] { (text(tick)) }
            });
        }
        self.body.push(html! {
            text.title x=(px(ACROSS[1])) y=(px(HEIGHT - 7.0)) text-anchor="end" { (title) }
        });
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
            last = if short { y } else { last };
            self.body.push(html! {
                path.grid d={ "M" (px(left)) " " (px(y)) "H" (px(right)) } {}
                text x=(px(left - 8.0)) y=(px(y + 4.5)) text-anchor="end" class=[(!short).then_some("o")] { (text) }
            });
        }
    }

    /// Adds a line through (x, y); `None` breaks it. A single point is drawn as a dot.
    pub fn line(&mut self, class: &str, points: &[Option<(f64, f64)>]) {
        let place = |(x, y)| (self.x.at(x), self.y.at(y));
        let path = line_path(points.iter().map(|point| point.map(place)));
        self.body.push(html! { path.line.(class) d=(path) {} });
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
        debug_assert!(first.0 <= last.0);
        let line = line_path(points.iter().map(|&(x, y)| Some((self.x.at(x), self.y.at(y)))));
        let (start, bottom) = (px(self.x.at(first.0)), px(self.y.range()[0]));
        self.body
            .push(html! { path.area.(class) d={ (line) "V" (bottom) "H" (start) "Z" } {} });
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
            let [left, low, right, up, back] = [left, low, width, -height, -width].map(px);
            let _ = write!(path, "M{left} {low}h{right}v{up}h{back}z");
        }
        if !path.is_empty() {
            self.body.push(html! { path.fill.(class) d=(path) {} });
        }
    }

    /// Shades a range of the horizontal axis.
    pub fn shade(&mut self, class: &str, [from, to]: [f64; 2]) {
        let [bottom, top] = self.y.range();
        let [left, right] = [from, to].map(|x| self.x.at(x));
        let [x, y, width, height] = [left, top, (right - left).max(0.6), bottom - top].map(px);
        self.body
            .push(html! { rect.(class) x=(x) y=(y) width=(width) height=(height) {} });
    }

    /// Adds a dashed horizontal line at a figure, with its name.
    pub fn level(&mut self, class: &str, y: f64, name: &str) {
        let [left, right] = self.x.range();
        let y = self.y.at(y);
        let below = if y < TOP + 16.0 { 15.0 } else { -6.0 };
        self.body.push(html! {
            path.mark.(class) d={ "M" (px(left)) " " (px(y)) "H" (px(right)) } {}
            text.note.(class) x=(px(left + 6.0)) y=(px(y + below)) { (name) }
        });
    }

    /// Adds a dashed vertical line at a figure, with its name at the top or the bottom.
    pub fn mark(&mut self, class: &str, x: f64, name: &str, at_top: bool) {
        let [bottom, top] = self.y.range();
        let x = self.x.at(x);
        let (anchor, aside) = side(x);
        let y = if at_top { top + 14.0 } else { bottom - 8.0 };
        self.body.push(html! {
            path.mark.(class) d={ "M" (px(x)) " " (px(bottom)) "V" (px(top)) } {}
            text.note.(class) x=(px(x + aside)) y=(px(y)) text-anchor=(anchor) { (name) }
        });
    }

    /// Adds a dot.
    pub fn dot(&mut self, class: &str, (x, y): (f64, f64)) {
        let (x, y) = (px(self.x.at(x)), px(self.y.at(y)));
        self.body.push(html! { circle.dot.(class) cx=(x) cy=(y) r="3.5" {} });
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
        self.body.push(html! {
            text.note x=(px(x + aside)) y=(px(y + down)) text-anchor=(anchor) { (words) }
        });
    }

    /// Adds the hover text of a range of the horizontal axis. Lines are separated by line feeds.
    pub fn hover(&mut self, [from, to]: [f64; 2], text: &str) {
        let [bottom, top] = self.y.range();
        let [left, right] = [from, to].map(|x| self.x.at(x));
        self.hit([left, top, (right - left).max(0.1), bottom - top], text);
    }

    /// Adds the hover text of a dot.
    pub fn hover_dot(&mut self, (x, y): (f64, f64), text: &str) {
        self.hit([self.x.at(x) - 7.0, self.y.at(y) - 7.0, 14.0, 14.0], text);
    }

    /// Adds the hover text of a rectangle: left, top, width and height.
    fn hit(&mut self, pixels: [f64; 4], text: &str) {
        let [x, y, width, height] = pixels.map(px);
        self.hits.push(html! {
            rect x=(x) y=(y) width=(width) height=(height) { title { (text) } }
        });
    }

    /// Returns the picture. `summary` describes it for screen readers.
    pub fn finish(self, summary: &str) -> Markup {
        let [left, right] = self.x.range().map(px);
        let bottom = px(self.y.range()[0]);
        html! {
            svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img"
                aria-label=(one_line(summary)) {
                @for element in self.body { (element) }
                path.axis d={ "M" (left) " " (bottom) "H" (right) } {}
                g.hits { @for hit in self.hits { (hit) } }
            }
        }
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
        let svg = chart.finish(evil).into_string();
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

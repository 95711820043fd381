//! Diagram of a study: a self-contained SVG document.

use std::fmt::Write;

use super::series::Point;
use super::study::{BurstStudy, LatencyRow};
use super::text::micros;

/// Width of the document in pixels; sizes of a panel within it follow.
const WIDTH: f64 = 1_000.0;
const PANEL: f64 = 150.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const GAP: f64 = 46.0;
const TOP: f64 = 70.0;

/// Panel: title, colour and value.
type Panel = (&'static str, &'static str, fn(&Point) -> u32);
const PANELS: [Panel; 3] = [
    ("packets per ms", "#1f6f8b", |point| point.packets),
    ("packets of one flow per ms (whales)", "#b3541e", |point| {
        point.flow_packets
    }),
    ("new flows per ms (minnows)", "#4b7f52", |point| point.new_flows),
];

pub(super) fn svg(study: &BurstStudy) -> String {
    let rows = study.whales.len() as f64;
    let height = TOP + PANELS.len() as f64 * (PANEL + GAP) + 60.0 + rows * 18.0;
    let mut out = String::new();
    // Writing to memory does not fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"18\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"48\" fill=\"#555\">{} packets, {} flows in {:.3} s</text>\n",
        escaped(&study.name),
        study.packets,
        study.flows,
        study.duration.as_secs_f64(),
    );
    for (index, panel) in PANELS.iter().enumerate() {
        let top = TOP + index as f64 * (PANEL + GAP) + 16.0;
        draw(&mut out, study, panel, top);
    }
    let top = TOP + PANELS.len() as f64 * (PANEL + GAP) + 20.0;
    tables(&mut out, study, top);
    out.push_str("</svg>\n");
    out
}

/// Draws one panel: the largest value of each column as an area, with its maximum marked.
fn draw(out: &mut String, study: &BurstStudy, panel: &Panel, top: f64) {
    let (title, colour, figure) = *panel;
    let points = &study.series.points;
    let width = WIDTH - LEFT - RIGHT;
    let bottom = top + PANEL;
    let columns = points.len().clamp(1, width as usize);
    let column = |index: usize| {
        let range = index * points.len() / columns..(index + 1) * points.len() / columns;
        points[range].iter().map(figure).max().unwrap_or(0)
    };
    let heights: Vec<u32> = (0..columns).map(column).collect();
    let most = heights.iter().copied().max().unwrap_or(0);
    let scale = PANEL / f64::from(most.max(1));
    let step = width / columns as f64;
    let _ = write!(
        out,
        "<text x=\"{LEFT}\" y=\"{}\">{title}</text>\n<path fill=\"{colour}\" d=\"M{LEFT} {bottom}",
        top - 6.0
    );
    for (index, height) in heights.iter().enumerate() {
        let y = bottom - f64::from(*height) * scale;
        let x = LEFT + index as f64 * step;
        let _ = write!(out, "L{x:.1} {y:.1}H{:.1}", x + step);
    }
    let _ = writeln!(out, "V{bottom}Z\"/>");
    let right = WIDTH - RIGHT;
    let seconds = study.duration.as_secs_f64();
    let _ = write!(
        out,
        "<path stroke=\"#999\" fill=\"none\" d=\"M{LEFT} {top}V{bottom}H{right}\"/>\n\
         <text x=\"{x}\" y=\"{}\" text-anchor=\"end\">{most}</text>\n\
         <text x=\"{x}\" y=\"{bottom}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{LEFT}\" y=\"{y}\" fill=\"#555\">0 s</text>\n\
         <text x=\"{right}\" y=\"{y}\" fill=\"#555\" text-anchor=\"end\">{seconds:.3} s</text>\n",
        top + 10.0,
        x = LEFT - 6.0,
        y = bottom + 16.0,
    );
    if let Some(at) = heights.iter().position(|height| *height == most)
        && most > 0
    {
        let x = LEFT + (at as f64 + 0.5) * step;
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{top:.1}\" r=\"4\" fill=\"none\" stroke=\"#c00\"/>"
        );
    }
}

fn tables(out: &mut String, study: &BurstStudy, top: f64) {
    let cells = |row: Option<&LatencyRow>| match row {
        Some(row) => format!("p50 {}, p99 {}", micros(row.p50), micros(row.p99)),
        None => "-".to_owned(),
    };
    for (index, whale) in study.whales.iter().enumerate() {
        let mut text = format!(
            "service time {} per packet: one core per flow: {}",
            whale.service,
            cells(Some(&whale.latency))
        );
        if let Some(minnow) = study.minnows.get(index)
            && let Some(cores) = minnow.cores
        {
            let row = cells(minnow.latency.as_ref());
            let _ = write!(text, "; shaped and hashed to {cores} cores: {row}");
        }
        let y = top + index as f64 * 18.0;
        let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{y}\">{}</text>", escaped(&text));
    }
}

/// Escapes text for XML, and removes characters that XML does not allow.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

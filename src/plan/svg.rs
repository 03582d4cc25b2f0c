//! Error over load as a self-contained SVG that works on light and dark pages.

use super::curve::{Decades, LOAD_MAX, pieces};
use super::text::count;
use super::{Comparison, Row};
use std::fmt::Write as _;

/// Size of the picture, and of the margins around the curves, in pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
/// Colors that colorblind readers can distinguish (Okabe, Ito: "Color Universal Design", 2008), and dash patterns for readers who
/// see no colors.
const LINES: [(&str, &str); 7] = [
    ("#0072b2", "none"),
    ("#56b4e9", "6 3"),
    ("#d55e00", "9 9"),
    ("#009e73", "8 2 2 2"),
    ("#cc79a7", "none"),
    ("#999999", "none"),
    ("#e69f00", "3 3"),
];

fn x(load: f64) -> f64 {
    LEFT + load / LOAD_MAX * (WIDTH - LEFT - RIGHT)
}

fn y(place: f64) -> f64 {
    TOP + place * (HEIGHT - TOP - BOTTOM)
}

impl Comparison {
    /// Renders the curves of all kinds as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let decades = Decades::new(self);
        let (right, bottom) = (x(LOAD_MAX), y(1.0));
        let keys = count(self.ask.keys);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">\n\
             <title>Error over load of filters planned for {keys} keys at {:e}</title>\n\
             <style>\n\
             text {{ font: 13px system-ui, sans-serif; fill: #57606a }}\n\
             .grid {{ stroke: #8b949e; stroke-opacity: 0.3 }}\n\
             .plan {{ stroke: #8b949e; stroke-dasharray: 2 3 }}\n\
             .curve {{ fill: none; stroke-width: 2; stroke-linejoin: round }}\n\
             @media (prefers-color-scheme: dark) {{ text {{ fill: #9da7b1 }} }}\n\
             </style>\n",
            self.ask.false_positive_rate
        );
        for decade in 0..=decades.0 {
            let y = y(f64::from(decade) / f64::from(decades.0));
            line(&mut svg, "grid", (LEFT, y), (right, y));
            text(&mut svg, "end", (LEFT - 8.0, y + 4.0), &Decades::label(decade));
        }
        for load in 0..=4_u8 {
            let x = x(f64::from(load));
            line(&mut svg, "grid", (x, TOP), (x, bottom));
            text(&mut svg, "middle", (x, bottom + 20.0), &format!("{load}x"));
        }
        line(&mut svg, "plan", (x(1.0), TOP), (x(1.0), bottom));
        if let Some(place) = decades.place(self.ask.false_positive_rate) {
            line(&mut svg, "plan", (LEFT, y(place)), (right, y(place)));
        }
        text(&mut svg, "start", (10.0, 22.0), "error: share of unseen keys that are called seen");
        text(&mut svg, "middle", (f64::midpoint(LEFT, right), HEIGHT - 14.0), &format!("load: keys in a window over the planned {keys}"));
        for (index, row) in self.kinds.iter().enumerate() {
            curve(&mut svg, row, index, decades);
        }
        svg + "</svg>\n"
    }
}

/// Draws the curve of a kind, and its line in the legend.
fn curve(svg: &mut String, row: &Row, index: usize, decades: Decades) {
    let (colour, dashes) = LINES[index % LINES.len()];
    let style = format!("class=\"curve\" stroke=\"{colour}\" stroke-dasharray=\"{dashes}\"");
    for piece in pieces(row, decades) {
        let points: Vec<_> = piece.iter().map(|&(load, place)| format!("{:.1},{:.1}", x(load), y(place))).collect();
        _ = writeln!(svg, "<polyline {style} points=\"{}\"/>", points.join(" "));
    }
    let (left, down) = (WIDTH - RIGHT + 16.0, TOP + 10.0 + 22.0 * f64::from(u32::try_from(index).unwrap_or(0)));
    _ = writeln!(svg, "<polyline {style} points=\"{left:.1},{down:.1} {:.1},{down:.1}\"/>", left + 26.0);
    let exact = row.curve.iter().all(|point| point.rate == 0.0);
    let note = if exact { ": no error" } else { "" };
    text(svg, "start", (left + 33.0, down + 4.0), &format!("{}{note}", row.kind));
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    _ = writeln!(svg, "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>", from.0, from.1, to.0, to.1);
}

/// Writes a text. It needs no XML escaping, because it contains only names of kinds, numbers, and fixed words.
fn text(svg: &mut String, anchor: &str, at: (f64, f64), words: &str) {
    _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{words}</text>", at.0, at.1);
}

//! Bar and line charts as SVG, in the colors of the surrounding page, light or dark.

use std::fmt::Write;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:11px;fill:#59636e}.title{font-weight:600}\
.grid{stroke:#d1d9e0;stroke-width:1}.a{fill:#0969da;stroke:#0969da}.b{fill:#8c959f;stroke:#8c959f}.c{fill:#bc4c00;stroke:#bc4c00}\
.line{fill:none;stroke-width:2}rect,.dot{stroke-width:0}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.grid{stroke:#3d444d}\
.a{fill:#4493f8;stroke:#4493f8}.b{fill:#656c76;stroke:#656c76}.c{fill:#f0883e;stroke:#f0883e}}";

/// A color of a chart, as a class in [`STYLE`]. The caller chooses the meaning of each color.
#[derive(Clone, Copy)]
pub enum Colour {
    A,
    B,
    C,
}

impl Colour {
    fn class(self) -> char {
        match self {
            Self::A => 'a',
            Self::B => 'b',
            Self::C => 'c',
        }
    }
}

pub type Say = fn(f64) -> String;

pub struct Bar {
    pub name: String,
    pub colour: Colour,
    /// One value for each group of bars.
    pub values: Vec<f64>,
}

/// Draws groups of bars side by side. Each group has a title and a format for its values.
pub fn bars(groups: &[(&str, Say)], bars: &[Bar]) -> String {
    const NAMES: f64 = 290.0;
    const GROUP: f64 = 270.0;
    const LINE: f64 = 26.0;
    // Leaves space for a value next to the longest bar.
    const LONGEST: f64 = 180.0;
    let height = 44.0 + LINE * bars.len() as f64;
    let mut svg = head(NAMES + GROUP * groups.len() as f64, height);
    for (number, bar) in bars.iter().enumerate() {
        text(&mut svg, (NAMES - 12.0, 52.0 + LINE * number as f64), "end", "", &bar.name);
    }
    for (group, (title, say)) in groups.iter().enumerate() {
        let left = NAMES + GROUP * group as f64;
        text(&mut svg, (left, 24.0), "start", "title", title);
        let most = bars.iter().map(|bar| bar.values[group]).fold(f64::MIN_POSITIVE, f64::max);
        for (number, bar) in bars.iter().enumerate() {
            let (top, value) = (38.0 + LINE * number as f64, bar.values[group]);
            let width = (value / most * LONGEST).max(1.0);
            let class = bar.colour.class();
            put(&mut svg, format_args!(r#"<rect class="{class}" x="{left}" y="{top}" width="{width:.1}" height="19" rx="2"/>"#));
            text(&mut svg, (left + width + 6.0, top + 14.0), "start", "small", &say(value));
        }
    }
    svg + "</svg>\n"
}

pub struct Line {
    pub name: String,
    pub colour: Colour,
    pub points: Vec<(f64, f64)>,
}

/// Draws line charts side by side. Both axes are logarithmic and are the same in all charts. `ticks` contains the labeled values of the
/// horizontal axis and of the vertical axis. An axis ends at its first and at its last labeled value.
pub fn lines(panels: &[(String, Vec<Line>)], across: &str, ticks: (&[f64], &[f64]), say: Say) -> String {
    const PANEL: f64 = 250.0;
    const LEFT: f64 = 60.0;
    const TOP: f64 = 40.0;
    const WIDTH: f64 = 180.0;
    const HEIGHT: f64 = 220.0;
    let (xs, ys) = ticks;
    let place = |value: f64, ticks: &[f64]| (value.ln() - ticks[0].ln()) / (ticks[ticks.len() - 1].ln() - ticks[0].ln());
    let mut svg = head(40.0 + PANEL * panels.len() as f64, TOP + HEIGHT + 60.0);
    for (number, (title, lines)) in panels.iter().enumerate() {
        let left = LEFT + PANEL * number as f64;
        let x = |value: f64| left + WIDTH * place(value, xs);
        let y = |value: f64| TOP + HEIGHT * (1.0 - place(value.max(ys[0]), ys));
        text(&mut svg, (left, 24.0), "start", "title", title);
        for &tick in ys {
            let (at, end) = (y(tick), left + WIDTH);
            put(&mut svg, format_args!(r#"<path class="grid" d="M{left} {at:.1}H{end}"/>"#));
            text(&mut svg, (left - 6.0, at + 4.0), "end", "small", &say(tick));
        }
        for &tick in xs {
            text(&mut svg, (x(tick), TOP + HEIGHT + 18.0), "middle", "small", &say(tick));
        }
        text(&mut svg, (left + WIDTH / 2.0, TOP + HEIGHT + 40.0), "middle", "small", across);
        for Line { colour, points, .. } in lines {
            let class = colour.class();
            let path: Vec<_> = points.iter().map(|&(across, up)| format!("{:.1} {:.1}", x(across), y(up))).collect();
            put(&mut svg, format_args!(r#"<path class="{class} line" style="fill:none" d="M{}"/>"#, path.join("L")));
            for &(across, up) in points {
                put(&mut svg, format_args!(r#"<circle class="{class} dot" cx="{:.1}" cy="{:.1}" r="3.5"/>"#, x(across), y(up)));
            }
        }
        // The names are in a legend, because there is no space for names next to lines that are close together.
        for (place, Line { name, colour, .. }) in lines.iter().enumerate() {
            let (across, class) = (left + 8.0 + 60.0 * place as f64, colour.class());
            put(&mut svg, format_args!(r#"<circle class="{class} dot" cx="{across}" cy="{}" r="3.5"/>"#, TOP + 12.0));
            text(&mut svg, (across + 7.0, TOP + 16.0), "start", "small", name);
        }
    }
    svg + "</svg>\n"
}

fn head(width: f64, height: f64) -> String {
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"><style>{STYLE}</style>"#
    ) + "\n"
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, class: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    put(svg, format_args!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{words}</text>"#));
}

fn put(svg: &mut String, shape: std::fmt::Arguments) {
    writeln!(svg, "{shape}").expect("writing to memory");
}

//! Error over load, drawn in a terminal with braille dots, and a mark for each kind.
//!
//! Also contains the axis of rates, which the terminal curve shares with the SVG.

use super::{Comparison, Point, Row};
use std::fmt::Write as _;

/// Size of the drawing in characters. Each character has two dots across and four down.
const WIDTH: usize = 64;
const HEIGHT: usize = 18;
const DOTS_ACROSS: usize = WIDTH * 2;
const DOTS_DOWN: usize = HEIGHT * 4;
/// Marks of the kinds, in the order of rows.
const MARKS: [char; 8] = ['●', '○', '▲', '◆', '■', '□', '△', '◇'];
/// Number of characters between two marks of a curve, which leaves room for the marks of other kinds.
const MARK_STEP: usize = 14;

/// An axis of decades, from an error rate of 1 downward.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decades(pub(super) u32);

impl Decades {
    /// Creates an axis that ends two decades below the requested rate.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most eleven")]
    pub(super) fn new(report: &Comparison) -> Self {
        Self((2.0 - report.ask.false_positive_rate.log10().floor()).clamp(3.0, 15.0) as u32)
    }

    /// Position of a rate: 0 at the top and 1 at the bottom. Lower rates are not drawn.
    pub(super) fn place(self, rate: f64) -> Option<f64> {
        let place = -rate.log10() / f64::from(self.0);
        (place <= 1.0).then(|| place.max(0.0))
    }

    /// Label of a decade: `1`, `1e-1`, …
    pub(super) fn label(decade: u32) -> String {
        if decade == 0 { "1".to_owned() } else { format!("1e-{decade}") }
    }
}

/// Returns the drawable pieces of a curve, as (load, position).
pub(super) fn pieces(row: &Row, decades: Decades) -> Vec<Vec<(f64, f64)>> {
    let place = |point: &Point| Some((point.load, decades.place(point.rate)?));
    let points: Vec<_> = row.curve.iter().map(place).collect();
    points.split(Option::is_none).filter(|piece| !piece.is_empty()).map(|piece| piece.iter().copied().flatten().collect()).collect()
}

/// The largest load of any curve.
pub(super) const LOAD_MAX: f64 = super::CURVE_STEP * super::CURVE_STEPS as f64;

impl Comparison {
    /// Draws the curves of all kinds, in 80 columns.
    #[must_use]
    pub fn curve(&self) -> String {
        let decades = Decades::new(self);
        let mut dots = vec![[0_u8; WIDTH]; HEIGHT];
        let mut marks = vec![[None; WIDTH]; HEIGHT];
        for (index, row) in self.kinds.iter().enumerate() {
            for piece in pieces(row, decades) {
                for (across, down) in path(&piece) {
                    dots[down / 4][across / 2] |= dot(across % 2, down % 4);
                    if (across / 2) % MARK_STEP == (3 + index * 2) % MARK_STEP {
                        marks[down / 4][across / 2] = Some(MARKS[index % MARKS.len()]);
                    }
                }
            }
        }
        let planned = cell(1.0 / LOAD_MAX, WIDTH);
        let asked = decades.place(self.ask.false_positive_rate).map(|place| cell(place, HEIGHT));
        let mut text = "share of unseen keys called seen\n".to_owned();
        for (line, (dots, marks)) in dots.iter().zip(&marks).enumerate() {
            let decade = (0..=decades.0).find(|&decade| cell(f64::from(decade) / f64::from(decades.0), HEIGHT) == line);
            let (label, edge) = decade.map_or((String::new(), '│'), |decade| (Decades::label(decade), '┤'));
            let cells = (0..WIDTH).map(|column| match (marks[column], dots[column]) {
                (Some(mark), _) => mark,
                (None, 0) if Some(line) == asked => '┈',
                (None, 0) if column == planned => '┊',
                (None, 0) => ' ',
                (None, dots) => char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '),
            });
            let cells: String = cells.collect();
            _ = writeln!(text, "{}", format!("{label:>6} {edge}{cells}").trim_end());
        }
        let (mut axis, mut labels) = (['─'; WIDTH], [' '; WIDTH + 1]);
        for load in 0..=4_u8 {
            let column = cell(f64::from(load) / LOAD_MAX, WIDTH);
            axis[column] = '┬';
            labels[column] = char::from(b'0' + load);
            labels[column + 1] = 'x';
        }
        _ = writeln!(text, "       └{}", axis.iter().collect::<String>());
        _ = writeln!(text, "        {}", labels.iter().collect::<String>().trim_end());
        _ = writeln!(text, "        load: keys in a window over the planned {}", super::text::count(self.ask.keys));
        text + &legend(self, decades)
    }
}

/// Lists the kinds and their marks, several per line.
fn legend(report: &Comparison, decades: Decades) -> String {
    let mut lines: Vec<String> = Vec::new();
    for (index, row) in report.kinds.iter().enumerate() {
        let note = match () {
            () if row.curve.iter().all(|point| point.rate == 0.0) => " (no error)",
            () if pieces(row, decades).is_empty() => " (below the picture)",
            () => "",
        };
        let entry = format!("{} {}{note}", MARKS[index % MARKS.len()], row.kind);
        match lines.last_mut() {
            Some(line) if line.chars().count() + entry.chars().count() <= 66 => {
                line.push_str("   ");
                line.push_str(&entry);
            }
            _ => lines.push(entry),
        }
    }
    format!("        {}\n", lines.join("\n        "))
}

/// Returns every dot on a curve's path, without gaps in steep parts.
fn path(piece: &[(f64, f64)]) -> Vec<(usize, usize)> {
    let dots = piece.iter().map(|&(load, place)| (cell(load / LOAD_MAX, DOTS_ACROSS), cell(place, DOTS_DOWN)));
    let dots: Vec<_> = dots.collect();
    let mut way: Vec<_> = dots.first().copied().into_iter().collect();
    for pair in dots.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let steps = x0.abs_diff(x1).max(y0.abs_diff(y1)).max(1);
        // Interpolates between two dots, rounded.
        let between = |from: usize, to: usize, step: usize| (from * (steps - step) * 2 + to * step * 2 + steps) / (steps * 2);
        way.extend((1..=steps).map(|step| (between(x0, x1, step), between(y0, y1, step))));
    }
    way
}

/// Index of the cell for a fraction of a length that is divided into `cells`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a few hundred at most")]
fn cell(share: f64, cells: usize) -> usize {
    (share.clamp(0.0, 1.0) * (cells - 1) as f64).round() as usize
}

/// The bit of a dot in a braille character. Unicode numbers the columns of the top three rows first, and the bottom row last.
fn dot(across: usize, down: usize) -> u8 {
    [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]][across][down]
}

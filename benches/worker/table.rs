//! A table for the terminal that is also Markdown.

use std::fmt;

pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len(), "a row must have the same number of cells as the header");
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..self.rows[0].len()).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Names are left-aligned, and numbers are right-aligned.
                if column == 0 { write!(f, "| {cell:<width$} ")? } else { write!(f, "| {cell:>width$} ")? }
            }
            writeln!(f, "|")?;
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let end = if column == 0 { '-' } else { ':' };
                    write!(f, "|{:-<1$}{end}", "", width + 1)?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

/// Formats 1234567 as `1,234,567`.
pub fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

/// The median of the ratios of two contenders. Each ratio is within one round, because a disturbance of a round affects both contenders.
pub fn ratio<T>(rounds: &[T], to: &[T], figure: impl Fn(&T) -> f64, other: impl Fn(&T) -> f64) -> f64 {
    median(rounds.iter().zip(to).map(|(round, to)| figure(round) / other(to)))
}

pub fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut all: Vec<_> = numbers.into_iter().collect();
    all.sort_by(f64::total_cmp);
    f64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2])
}

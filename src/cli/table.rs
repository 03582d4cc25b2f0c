//! Text formatting: aligned tables, and sizes with a unit.

pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Formats a number of bytes with one decimal and a binary unit.
pub fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let (shift, unit) = units.into_iter().find(|(shift, _)| bytes >> shift > 0).unwrap_or((10, "KiB"));
    let tenths = bytes.saturating_mul(10) >> shift;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

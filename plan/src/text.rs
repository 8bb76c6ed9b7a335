//! Tables of text.

/// Lays rows out in columns: the first `left` columns begin at the same place, the other columns
/// end at the same place. The first row is the head.
pub(crate) fn table(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let cell =
                if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            line.push_str(&cell);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The cells of a row.
pub(crate) fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [row(["part", "price"]), row(["é", "$1,234"])];
        assert_eq!(table(&rows, 1), "part   price\né     $1,234\n");
    }
}

//! Tables for people and for other programs. The first line holds the headings.

/// Lines of cells, all of one length.
pub struct Table {
    lines: Vec<Vec<String>>,
    /// Columns, from the left, that hold words; numbers stand at the right of theirs.
    words: usize,
}

impl Table {
    /// Of lines, the headings first.
    pub fn of_lines(lines: Vec<Vec<String>>, words: usize) -> Table {
        Table { lines, words }
    }

    /// Of columns, each with its heading first.
    pub fn of_columns(columns: Vec<Vec<String>>, words: usize) -> Table {
        let count = columns.iter().map(Vec::len).max().unwrap_or(0);
        let line = |index: usize| {
            let cells = columns.iter().map(|cells| cells.get(index).cloned().unwrap_or_default());
            cells.collect()
        };
        Table { lines: (0..count).map(line).collect(), words }
    }

    /// For a terminal: columns of equal width, two spaces apart.
    pub fn aligned(&self) -> String {
        let widths = self.widths();
        let lines = self.lines.iter().map(|cells| {
            let line = self.padded(cells, &widths).join("  ");
            format!("{}\n", line.trim_end())
        });
        lines.collect()
    }

    /// For a document in Markdown.
    pub fn markdown(&self) -> String {
        let clean = |cell: &String| cell.replace('|', "\\|").replace(['\n', '\r'], " ");
        let lines = self.lines.iter().map(|cells| cells.iter().map(clean).collect()).collect();
        let table = Table { lines, words: self.words };
        let widths = table.widths();
        let line = |cells: &Vec<String>| format!("| {} |\n", table.padded(cells, &widths).join(" | "));
        let rule = widths.iter().enumerate().map(|(number, width)| {
            if number < table.words { "-".repeat(width + 2) } else { format!("{}:", "-".repeat(width + 1)) }
        });
        let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
        let mut lines = table.lines.iter().map(line);
        lines.next().into_iter().chain([rule]).chain(lines).collect()
    }

    /// Comma-separated values (RFC 4180, lines ended by a line feed).
    pub fn csv(&self) -> String {
        let cell = |cell: &String| {
            let plain = !cell.contains([',', '"', '\n', '\r']);
            if plain { cell.clone() } else { format!("\"{}\"", cell.replace('"', "\"\"")) }
        };
        let line = |cells: &Vec<String>| cells.iter().map(cell).collect::<Vec<_>>().join(",") + "\n";
        self.lines.iter().map(line).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.lines.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.lines.iter().filter_map(|cells| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        (0..columns).map(width).collect()
    }

    fn padded(&self, cells: &[String], widths: &[usize]) -> Vec<String> {
        let pad = |(number, (cell, &width)): (usize, (&String, &usize))| match number < self.words {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        };
        cells.iter().zip(widths).enumerate().map(pad).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let columns = [["model", "a,b", "c|\"d\""], ["tokens/s", "7", "1234.5"]];
        Table::of_columns(columns.map(|c| c.map(str::to_owned).to_vec()).to_vec(), 1)
    }

    #[test]
    fn words_stand_left_and_numbers_right() {
        assert_eq!(table().aligned(), "model  tokens/s\na,b           7\nc|\"d\"    1234.5\n");
    }

    #[test]
    fn separators_in_cells_do_not_separate() {
        let markdown =
            "| model  | tokens/s |\n|--------|---------:|\n| a,b    |        7 |\n| c\\|\"d\" |   1234.5 |\n";
        assert_eq!(table().markdown(), markdown);
        assert_eq!(table().csv(), "model,tokens/s\n\"a,b\",7\n\"c|\"\"d\"\"\",1234.5\n");
    }
}

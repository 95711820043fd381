//! Columns of the chains, and which of them a terminal has room for.

/// Column: its head, its width, and its rank, from 0 for the one that is shown last of all to be left out.
struct Column {
    head: &'static str,
    width: u16,
    rank: u8,
}

const fn column(head: &'static str, width: u16, rank: u8) -> Column {
    Column { head, width, rank }
}

/// All columns, in order. The first one is as wide as the names; the last one takes what is left, at least its width.
const COLUMNS: [Column; 14] = [
    column("NAME", 5, 0),
    column("PHASE", 8, 4),
    column("P50", 9, 7),
    column("P99", 9, 1),
    column("P99/OBJECTIVE", 15, 6),
    column("MET", 4, 2),
    column("OFFERED", 8, 5),
    column("DROPPED", 8, 8),
    column("LOST", 7, 3),
    column("CORES", 9, 9),
    column("AUX", 5, 12),
    column("FLOWS", 7, 11),
    column("PROMISE", 9, 13),
    column("LATE MOSTLY FOR", 22, 10),
];

/// Longest name that has room beside the columns that matter.
const LONGEST_NAME: u16 = 32;

/// Number of a column that is shown, its head, and its width.
pub type Shown = (usize, &'static str, u16);

/// Returns the columns that are shown whole within `width` cells, with one between two: a value that is cut lacks its
/// unit. `longest` is the length of the longest name.
pub fn shown(width: u16, longest: u16) -> Vec<Shown> {
    let name = longest.clamp(5, LONGEST_NAME).min((width / 3).max(8));
    let of = |(number, column): (usize, &Column)| match number {
        0 => name,
        _ => column.width,
    };
    let mut by_rank: Vec<(usize, &Column)> = COLUMNS.iter().enumerate().collect();
    by_rank.sort_by_key(|(_, column)| column.rank);
    let mut taken = 0;
    let fits = by_rank.into_iter().take_while(|ranked| {
        taken += of(*ranked) + u16::from(taken > 0);
        taken <= width || ranked.0 == 0
    });
    let mut shown: Vec<Shown> = fits
        .map(|(number, column)| (number, column.head, of((number, column))))
        .collect();
    shown.sort_by_key(|(number, ..)| *number);
    shown
}

/// Number of the column that takes what is left.
pub const LAST: usize = COLUMNS.len() - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_matter_less_are_left_out_first() {
        let heads = |width| shown(width, 4).iter().map(|(_, head, _)| *head).collect::<Vec<_>>();
        assert_eq!(heads(0), ["NAME"]);
        assert_eq!(heads(40), ["NAME", "PHASE", "P99", "MET", "LOST"]);
        assert_eq!(
            heads(80),
            ["NAME", "PHASE", "P50", "P99", "P99/OBJECTIVE", "MET", "OFFERED", "LOST"]
        );
        assert_eq!(heads(160).len(), COLUMNS.len());
        for width in 20..200 {
            let columns = shown(width, 100);
            let all: u16 = columns.iter().map(|(_, _, width)| width + 1).sum();
            assert!(all - 1 <= width, "{width}");
            assert!(columns.len() > 1, "{width}");
        }
    }
}

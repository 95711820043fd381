//! Formats lines of figures as Markdown tables, beside the published values.

use serde_json::Value;

/// Columns in this order.
const COLUMNS: [&str; 4] = ["p50", "p99", "cores", "loss"];

/// Table with its name, its columns, and its rows with a cell per column.
#[derive(Default)]
struct Table {
    name: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<(String, String)>)>,
}

/// Prints the lines of a file. Of duplicate figures only the last counts.
pub fn print(path: &str) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut tables: Vec<Table> = Vec::new();
    for line in text.lines() {
        let Ok(figure) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let parts: Vec<&str> = figure["name"].as_str().unwrap_or("").split('/').collect();
        let [_, paper, table, row, column] = parts[..] else {
            continue;
        };
        let name = format!("{paper}, {}", table.replace('-', " "));
        let table = find(
            &mut tables,
            |table: &Table| table.name == name,
            || Table {
                name: name.clone(),
                ..Table::default()
            },
        );
        if !table.columns.iter().any(|known| known == column) {
            table.columns.push(column.to_owned());
        }
        let row = find(
            &mut table.rows,
            |known: &(String, Vec<_>)| known.0 == row,
            || (row.to_owned(), Vec::new()),
        );
        let cell = cell(&figure, column);
        match row.1.iter_mut().find(|(known, _)| known == column) {
            Some(known) => known.1 = cell,
            None => row.1.push((column.to_owned(), cell)),
        }
    }
    tables.sort_by_key(|table| natural(&table.name));
    for mut table in tables {
        table
            .columns
            .sort_by_key(|column| COLUMNS.iter().position(|known| known == column));
        table.rows.sort_by_key(|row| natural(&row.0));
        println!("## {}\n\n| | {} |", table.name, table.columns.join(" | "));
        println!("|---|{}", "---|".repeat(table.columns.len()));
        for (row, cells) in table.rows {
            let cells = table.columns.iter().map(|column| {
                let cell = cells.iter().find(|(known, _)| known == column);
                cell.map_or("", |(_, cell)| cell)
            });
            println!("| {row} | {} |", cells.collect::<Vec<&str>>().join(" | "));
        }
        println!();
    }
}

/// Returns a sort key for natural order: numbers in names compare as numbers.
fn natural(name: &str) -> Vec<(u64, String)> {
    let parts = name.split_inclusive(|c: char| !c.is_ascii_digit());
    let parts = parts.map(|part| {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        (digits.parse().unwrap_or(0), part[digits.len()..].to_owned())
    });
    parts.collect()
}

/// Returns the matching element, and creates it if it is missing.
fn find<T>(list: &mut Vec<T>, is: impl FnMut(&T) -> bool, make: impl FnOnce() -> T) -> &mut T {
    let place = list.iter().position(is).unwrap_or_else(|| {
        list.push(make());
        list.len() - 1
    });
    &mut list[place]
}

/// Formats a value, with the published one in brackets, and a mark if an objective was met or missed.
fn cell(figure: &Value, column: &str) -> String {
    let number = |value: f64| match column {
        "loss" | "late" => format!("{:.3} %", 100.0 * value),
        _ if value < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    let mut cell = number(figure["value"].as_f64().unwrap_or(f64::NAN));
    if figure["slo_met"] == Value::Bool(false) {
        cell.push_str(" late");
    }
    if let Some(published) = figure["published"].as_f64() {
        cell.push_str(&format!(" ({})", number(published)));
    }
    cell
}

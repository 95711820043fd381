//! Formatting of text and numbers for people.

use std::fmt::Write as _;

/// Escapes control characters in untrusted text: it stays on its line, cannot send escape sequences to a terminal, and
/// cannot reorder the characters around it, as characters of bidirectional text do.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') || is_bidirectional(c) {
            let _ = write!(line, "{}", c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// Returns `true` for characters that set the direction of the text around them.
fn is_bidirectional(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Formats `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats with two decimals and separators: `12,345.67`.
pub fn fixed(value: f64) -> String {
    let hundredths = (value.max(0.0) * 100.0).round() as u64;
    format!("{}.{:02}", thousands(hundredths / 100), hundredths % 100)
}

/// Formats with three digits and a unit prefix: `847`, `12.3k`, `1.25M`.
pub fn short(number: f64) -> String {
    let (value, prefix) = match number {
        n if n >= 1e9 => (n / 1e9, "G"),
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e3 => (n / 1e3, "k"),
        n => return format!("{n:.0}"),
    };
    let decimals = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}{prefix}")
}

/// Like [`short`], but rounds down, so that a value beyond a limit does not read as one within it.
pub fn short_at_most(number: f64) -> String {
    let digits = number.max(1.0).log10().floor() as i32;
    let unit = 10f64.powi((digits - 2).max(0));
    // The small addition compensates for division of whole numbers of units.
    short((number / unit + 1e-9).floor() * unit)
}

/// Formats a ratio as percent with at most three decimals, rounded down: less than 99 % must not read as 99 %.
pub fn percent(share: f64) -> String {
    // The small addition is for shares such as 0.29, which are a bit less in binary.
    let thousandths = (share.clamp(0.0, 1.0) * 1e5 + 1e-6).floor();
    let text = format!("{:.3}", thousandths / 1e3);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Formats a ratio of any size, such as a slowdown, as percent with one decimal.
pub fn tenths_percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_never_told_as_more() {
        for (number, text) in [
            (5_308_593.0, "5.30M"),
            (5_300_000.0, "5.30M"),
            (69_096_000.0, "69.0M"),
            (999_999.0, "999k"),
            (1000.0, "1.00k"),
            (847.9, "847"),
            (7.0, "7"),
            (0.0, "0"),
        ] {
            assert_eq!(short_at_most(number), text, "{number}");
        }
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(one_line("a\nb\u{1b}[31m é"), "a\\nb\\u{1b}[31m é");
        assert_eq!(one_line("lmay.\u{202e}exe\u{2066}"), "lmay.\\u{202e}exe\\u{2066}");
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1234567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
        assert_eq!(fixed(12345.678), "12,345.68");
        assert_eq!(fixed(0.004), "0.00");
    }

    #[test]
    fn short_numbers_have_three_digits() {
        for (number, text) in [(0.0, "0"), (847.0, "847"), (12_345.0, "12.3k"), (1.25e6, "1.25M")] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn shares_are_never_rounded_up() {
        for (share, text) in [
            (1.0, "100 %"),
            (0.9899999, "98.999 %"),
            (0.99, "99 %"),
            (0.999, "99.9 %"),
            (0.0, "0 %"),
            (0.2, "20 %"),
        ] {
            assert_eq!(percent(share), text);
        }
    }
}

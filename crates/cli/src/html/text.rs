//! Text of a page: hidden characters, and numbers with units.

use crate::text::thousands;

/// Replaces control characters other than line feeds, and characters that change the text direction, by their escapes.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push(c),
            '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {
                shown.extend(c.escape_unicode());
            }
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// Shortens a name to `most` characters, with an ellipsis for the rest.
pub fn shortened(name: &str, most: usize) -> String {
    match name.char_indices().nth(most) {
        None => name.to_owned(),
        Some(_) => name.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// Formats with up to `digits` significant digits and without trailing zeros; keeps all integer digits.
pub fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (digits - 1 - magnitude).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Formats microseconds in a suitable unit: `850 ns`, `31.2 µs`, `4.1 ms`, `2 s`.
pub fn micros(us: f64) -> String {
    // The thresholds account for rounding: values that round to 1000 get the next unit.
    let (value, unit) = match us {
        us if us >= 999_500.0 => (us / 1e6, "s"),
        us if us >= 999.5 => (us / 1e3, "ms"),
        us if us >= 0.9995 || us <= 0.0 => (us, "µs"),
        us => (us * 1e3, "ns"),
    };
    format!("{} {unit}", significant(value, 3))
}

/// Formats a count with its noun: `1 packet`, `1,234 packets`.
pub fn count(number: u64, one: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {one}{plural}", thousands(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_shown() {
        assert_eq!(
            visible("<é>\n\r\u{202e}\u{2069}\u{85}\u{ffff}"),
            "<é>\n\\r\\u{202e}\\u{2069}\\u{85}\\u{ffff}"
        );
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("äbcdefg", 6), "äbcde…");
    }

    #[test]
    fn numbers_have_units() {
        for (us, text) in [
            (0.0, "0 µs"),
            (0.02, "20 ns"),
            (0.9999, "1 µs"),
            (31.24, "31.2 µs"),
            (999.7, "1 ms"),
            (1234.0, "1.23 ms"),
            (2e6, "2 s"),
            (123_456_789.0, "123 s"),
            (1_234_567_890.0, "1235 s"),
        ] {
            assert_eq!(micros(us), text, "{us}");
        }
        assert_eq!(significant(0.1 + 0.2, 4), "0.3");
        assert_eq!(significant(1200.0, 2), "1200");
        assert_eq!(count(1, "packet"), "1 packet");
        assert_eq!(count(1234, "packet"), "1,234 packets");
    }
}

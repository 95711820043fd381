//! Dates and times as text.

use std::time::{SystemTime, UNIX_EPOCH};

/// Formats a time as `2025-03-01 12:34 UTC`.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, minutes) = (seconds / 86_400, seconds / 60 % 1440);
    let (year, month, day) = date(days);
    let (hour, minute) = (minutes / 60, minutes % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Formats a time in nanoseconds since the Unix epoch as `2025-03-01T12:34:56Z`.
#[cfg_attr(not(feature = "control"), allow(dead_code, reason = "for the clients of servers"))]
pub fn timestamp(nanos: u64) -> String {
    let seconds = nanos / 1_000_000_000;
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Converts days since 1970-01-01 to year, month and day. Internally years start in March, so that a leap day is the
/// last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    // Days since 0000-03-01, in periods of 400 years.
    let days = days + 719_468;
    let (period, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (period * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_740_832_440, "2025-03-01 12:34 UTC"),
            (4_107_542_399, "2100-02-28 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        assert_eq!(timestamp(951_782_399_999_999_999), "2000-02-28T23:59:59Z");
    }
}

//! How long ago something was, as kubectl shows it. Pure.

use jiff::Timestamp;

/// The time since a moment, such as `7d3h`; `<unknown>` without one.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else { return "<unknown>".to_owned() };
    duration(now.as_second() - since.as_second())
}

/// A duration of so many seconds.
fn duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        let (count, rest) = (seconds / large, seconds % large / small);
        if rest == 0 {
            format!("{count}{large_unit}")
        } else {
            format!("{count}{large_unit}{rest}{small_unit}")
        }
    };
    match seconds {
        // Clocks may differ by a little.
        ..=-2 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        _ if seconds < 2 * MINUTE => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two(MINUTE, "m", 1, "s"),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two(HOUR, "h", MINUTE, "m"),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(DAY, "d", HOUR, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(YEAR, "y", DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_written_as_kubectl_expects_them() {
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (303, "5m3s"),
            (120, "2m"),
            (179 * 60 + 59, "179m"),
            (7 * 3600 + 5 * 60, "7h5m"),
            (47 * 3600, "47h"),
            (7 * 86_400 + 3 * 3600, "7d3h"),
            (400 * 86_400, "400d"),
            ((3 * 365 + 20) * 86_400, "3y20d"),
            (8 * 365 * 86_400, "8y"),
        ] {
            assert_eq!(duration(seconds), expected, "{seconds} s");
        }
        let now = Timestamp::from_second(100).expect("a time");
        assert_eq!(age(None, now), "<unknown>");
        assert_eq!(age(Timestamp::from_second(40).ok(), now), "60s");
    }
}

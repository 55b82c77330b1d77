//! Ages in the format of kubectl: two units at most, and one unit for long times.

use std::time::Duration;

use jiff::Timestamp;

use super::UNKNOWN;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const YEAR: u64 = 365 * DAY;

/// The time since a moment. A moment in the future, from a clock that is ahead of ours, gives `0s`.
pub(crate) fn since(moment: Option<Timestamp>, now: Timestamp) -> String {
    match moment {
        Some(moment) => {
            let elapsed = now.duration_since(moment);
            short(Duration::try_from(elapsed).unwrap_or_default())
        }
        None => UNKNOWN.to_owned(),
    }
}

/// The time until a moment; `0s` if the moment has passed.
pub(crate) fn until(moment: Timestamp, now: Timestamp) -> String {
    since(Some(now), moment)
}

/// A moment to the second: nobody reads more digits.
pub(crate) fn moment(moment: Timestamp) -> String {
    Timestamp::from_second(moment.as_second()).unwrap_or(moment).to_string()
}

/// A duration in one or two units.
pub(crate) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => two(seconds, MINUTE, "m", 1, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(seconds, HOUR, "h", MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(seconds, DAY, "d", HOUR, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two(seconds, YEAR, "y", DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

fn two(seconds: u64, large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    let (whole, rest) = (seconds / large, seconds % large / small);
    if rest == 0 { format!("{whole}{large_unit}") } else { format!("{whole}{large_unit}{rest}{small_unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_format_of_kubectl() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 90, "3h1m"),
            (8 * HOUR, "8h"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + HOUR, "2d1h"),
            (8 * DAY, "8d"),
            (729 * DAY, "729d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + DAY, "2y1d"),
            (9 * YEAR, "9y"),
        ] {
            assert_eq!(short(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn future_and_unknown_moments_have_an_age_too() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(since(Some(at(5)), at(65)), "60s");
        assert_eq!(since(Some(at(65)), at(5)), "0s");
        assert_eq!(since(None, at(5)), "<unknown>");
        assert_eq!(until(at(65), at(5)), "60s");
        assert_eq!(until(at(5), at(65)), "0s");
        assert_eq!(moment("2026-05-04T12:00:00.123456Z".parse().unwrap()), "2026-05-04T12:00:00Z");
    }
}

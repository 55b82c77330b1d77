//! Spans of time as flags write them: `90s`, `1m30s`, `1.5h`.

use std::time::Duration;

/// The text is not a span of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a span of time such as 90s or 1m30s")]
pub struct DurationError;

/// Reads a row of numbers with units, the way Kubernetes' flags do; `0` needs no unit.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(DurationError)?;
        let (number, tail) = rest.split_at(end);
        let (unit, tail) = unit(tail).ok_or(DurationError)?;
        let seconds = number.parse::<f64>().map_err(|_| DurationError)? * unit;
        let part = Duration::try_from_secs_f64(seconds).map_err(|_| DurationError)?;
        total = total.checked_add(part).ok_or(DurationError)?;
        rest = tail;
    }
    if text.is_empty() { Err(DurationError) } else { Ok(total) }
}

/// The unit at the front, in seconds, and what follows it.
fn unit(text: &str) -> Option<(f64, &str)> {
    // Longer names first: `ms` is not `m` and a stray `s`.
    const UNITS: [(&str, f64); 7] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    UNITS.iter().find_map(|(name, seconds)| Some((*seconds, text.strip_prefix(name)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_a_row_of_numbers_with_units() {
        for (text, expected_ms) in [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("90s", Some(90_000)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("2h45m", Some(9_900_000)),
            ("500ms", Some(500)),
            ("1m500ms", Some(60_500)),
            ("", None),
            ("90", None),
            ("-1s", None),
            ("1d", None),
            ("s", None),
            ("1m30", None),
            ("1..5s", None),
            ("99999999999999999999h", None),
        ] {
            let expected = expected_ms.map(Duration::from_millis).ok_or(DurationError);
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}

//! Durations as flags write them: `90s`, `1m30s`, `1.5h`.

use std::time::Duration;

use jiff::SignedDuration;

/// The text is not a duration that a flag can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("must be a duration such as 40s or 1m30s, not {0:?}")]
    NotADuration(String),
    #[error("must not be negative, as {0:?} is")]
    Negative(String),
}

/// Reads a duration as people and Kubernetes' flags write it: `40s`, `100ms`, `1m30s`, `2h`. `0` needs no unit.
///
/// # Errors
/// When the text is not a duration, or a negative one.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let parsed: SignedDuration = text.parse().map_err(|_| DurationError::NotADuration(text.to_owned()))?;
    Duration::try_from(parsed).map_err(|_| DurationError::Negative(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_list_of_numbers_with_units() {
        for (text, expected_ms) in [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("90s", Some(90_000)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("2h45m", Some(9_900_000)),
            ("500ms", Some(500)),
            ("1m500ms", Some(60_500)),
            ("5m0s", Some(300_000)),
            ("", None),
            ("90", None),
            ("-1s", None),
            ("1d", None),
            ("s", None),
            ("soon", None),
            ("1m30", None),
            ("1..5s", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(parse(text).ok(), expected_ms.map(Duration::from_millis), "{text:?}");
        }
        assert_eq!(parse("-1s").unwrap_err().to_string(), "must not be negative, as \"-1s\" is");
    }
}

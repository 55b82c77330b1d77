//! A number or a percentage: `3` or `30%`, as in disruption budgets.
//!
//! A percentage of a number of pods is rounded up, for both kinds of budget.

use std::fmt;
use std::str::FromStr;

/// An absolute number, or a percentage of a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOrPercent {
    Int(u32),
    Percent(Percent),
}

/// A whole percentage, at most 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

/// Why a text or number is neither a number nor a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PercentError {
    #[error("must be a whole number such as 3, or a percentage such as 30%")]
    Shape,
    #[error("must not be negative")]
    Negative,
    #[error("must be 100% or less")]
    OverHundred,
    #[error("must be {} or less", IntOrPercent::MAX)]
    TooLarge,
}

impl IntOrPercent {
    /// The largest count.
    pub const MAX: u32 = i32::MAX as u32;

    /// The number for a total of `total`, rounded up.
    pub fn scaled(&self, total: u32) -> u32 {
        match self {
            Self::Int(count) => *count,
            Self::Percent(percent) => percent.of(total),
        }
    }
}

impl Percent {
    /// `None` above 100.
    pub fn new(hundredths: u8) -> Option<Self> {
        (hundredths <= 100).then_some(Self(hundredths))
    }

    pub fn get(self) -> u8 {
        self.0
    }

    /// The percentage of `total`, rounded up.
    pub fn of(self, total: u32) -> u32 {
        let share = (u64::from(total) * u64::from(self.0)).div_ceil(100);
        u32::try_from(share).expect("a share of 100% or less is no larger than the whole")
    }
}

impl TryFrom<i64> for IntOrPercent {
    type Error = PercentError;

    fn try_from(number: i64) -> Result<Self, PercentError> {
        match u32::try_from(number) {
            Ok(count) if count <= Self::MAX => Ok(Self::Int(count)),
            _ if number < 0 => Err(PercentError::Negative),
            _ => Err(PercentError::TooLarge),
        }
    }
}

impl FromStr for IntOrPercent {
    type Err = PercentError;

    fn from_str(text: &str) -> Result<Self, PercentError> {
        let number = text.strip_suffix('%').unwrap_or(text);
        let digits = number.strip_prefix('-').unwrap_or(number);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(PercentError::Shape);
        }
        if number.len() != digits.len() {
            return Err(PercentError::Negative);
        }
        if number.len() == text.len() {
            return digits.parse().map_or(Err(PercentError::TooLarge), i64::try_into);
        }
        let percent = digits.parse().ok().and_then(Percent::new).ok_or(PercentError::OverHundred)?;
        Ok(Self::Percent(percent))
    }
}

impl fmt::Display for IntOrPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}"),
        }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_rounded_up() {
        for (text, total, expected) in [
            ("3", 10, 3),
            ("3", 1, 3),
            ("0", 10, 0),
            ("30%", 10, 3),
            ("30%", 11, 4),
            ("1%", 1, 1),
            ("1%", 0, 0),
            ("0%", 10, 0),
            ("50%", 3, 2),
            ("100%", 7, 7),
            ("99%", u32::MAX, 4_252_017_623),
            ("100%", u32::MAX, u32::MAX),
        ] {
            let value: IntOrPercent = text.parse().unwrap();
            assert_eq!(value.scaled(total), expected, "{text} of {total}");
            assert_eq!(value.to_string(), text);
        }
    }

    #[test]
    fn a_text_that_is_neither_number_nor_percentage_is_refused() {
        for (text, expected) in [
            ("", PercentError::Shape),
            ("%", PercentError::Shape),
            ("-", PercentError::Shape),
            ("+3", PercentError::Shape),
            ("3.5%", PercentError::Shape),
            (" 3", PercentError::Shape),
            ("30%%", PercentError::Shape),
            ("half", PercentError::Shape),
            ("-1", PercentError::Negative),
            ("-1%", PercentError::Negative),
            ("101%", PercentError::OverHundred),
            ("99999999999999999999%", PercentError::OverHundred),
            ("2147483648", PercentError::TooLarge),
            ("99999999999999999999", PercentError::TooLarge),
        ] {
            assert_eq!(text.parse::<IntOrPercent>(), Err(expected), "{text:?}");
        }
        assert_eq!(IntOrPercent::try_from(5), Ok(IntOrPercent::Int(5)));
        assert_eq!(IntOrPercent::try_from(-5), Err(PercentError::Negative));
        assert_eq!(IntOrPercent::try_from(i64::MAX), Err(PercentError::TooLarge));
    }
}

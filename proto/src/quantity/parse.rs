//! The text form of quantities: sign, digits with or without a point, suffix.
//!
//! `1E` is an exa, `1e3` and `1E3` are a thousand. Anything finer than a billionth is rounded away from
//! zero, so that a quantity above zero never becomes zero.

use std::str::FromStr;

use super::{Family, NANO, Quantity, QuantityError};

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (whole, rest) = digits(unsigned);
        let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err(QuantityError::Number);
        }
        let (scale, family) = scale(suffix)?;
        let magnitude = match scale {
            Scale::Tens(exponent) => tens(whole, fraction, exponent)?,
            Scale::Times(factor) => times(whole, fraction, factor)?,
        };
        let nanos = if text.starts_with('-') { -magnitude } else { magnitude };
        Ok(Self { nanos, family })
    }
}

/// The meaning of a suffix.
enum Scale {
    /// Moves the point: times ten to the power of this.
    Tens(i32),
    Times(i128),
}

fn scale(suffix: &str) -> Result<(Scale, Family), QuantityError> {
    let decimal = |exponent| Ok((Scale::Tens(exponent), Family::Decimal));
    let binary = |power: u32| Ok((Scale::Times(1 << (10 * power)), Family::Binary));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
            let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            match digits(unsigned) {
                ("", _) => Err(QuantityError::Suffix),
                (_, "") => {
                    let exponent = exponent.parse().map_err(|_| QuantityError::Overflow)?;
                    Ok((Scale::Tens(exponent), Family::Exponent))
                }
                _ => Err(QuantityError::Suffix),
            }
        }
    }
}

/// `whole.fraction` times ten to the `exponent`, in billionths.
fn tens(whole: &str, fraction: &str, exponent: i32) -> Result<i128, QuantityError> {
    // The digits are one number, with the decimal point some places from its end; billionths move it by nine more.
    let length = i64::try_from(whole.len()).map_err(|_| QuantityError::Overflow)?;
    let kept = length.saturating_add(i64::from(exponent)).saturating_add(9);
    let mut nanos = 0i128;
    let mut lost = false;
    let mut place = 0i64;
    for byte in whole.bytes().chain(fraction.bytes()) {
        if place < kept {
            nanos = shifted(nanos, byte)?;
        } else {
            lost |= byte != b'0';
        }
        place += 1;
    }
    while place < kept && nanos != 0 {
        nanos = shifted(nanos, b'0')?;
        place += 1;
    }
    nanos.checked_add(i128::from(lost)).ok_or(QuantityError::Overflow)
}

/// `whole.fraction` times `factor`, in billionths.
fn times(whole: &str, fraction: &str, factor: i128) -> Result<i128, QuantityError> {
    let unit = factor.checked_mul(NANO).ok_or(QuantityError::Overflow)?;
    let whole = number(whole)?.checked_mul(unit).ok_or(QuantityError::Overflow)?;
    // Divides from the last digit to the first, which is exact for any number of digits.
    let (mut part, mut lost) = (0i128, false);
    for byte in fraction.bytes().rev() {
        let sum = i128::from(byte - b'0') * unit + part;
        lost |= sum % 10 != 0;
        part = sum / 10;
    }
    whole.checked_add(part + i128::from(lost)).ok_or(QuantityError::Overflow)
}

fn number(digits: &str) -> Result<i128, QuantityError> {
    digits.bytes().try_fold(0, shifted)
}

/// The number with one more digit at its end.
fn shifted(number: i128, digit: u8) -> Result<i128, QuantityError> {
    let digit = i128::from(digit - b'0');
    number.checked_mul(10).and_then(|tenfold| tenfold.checked_add(digit)).ok_or(QuantityError::Overflow)
}

/// The digits a text starts with, and the rest.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

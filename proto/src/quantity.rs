//! Quantities of a resource: `500m` of a CPU, `16Gi` of memory.
//!
//! A quantity is a whole number of billionths, so sums are exact. It keeps the suffix family that it was written with,
//! and is printed in that family. Equality and order compare the value only: `1` equals `1000m`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

mod parse;
#[cfg(test)]
mod tests;

/// Quantities by resource, such as `cpu` and `memory`.
pub type Resources = BTreeMap<String, Quantity>;

/// The number of the smallest units in one.
const NANO: i128 = 1_000_000_000;

/// An exact amount.
#[derive(Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    family: Family,
}

/// The suffix family in which a quantity is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// n, u, m, none, k, M, G, T, P, E: powers of a thousand.
    Decimal,
    /// Ki, Mi, Gi, Ti, Pi, Ei: powers of 1024.
    Binary,
    /// e3, e6, e-3: powers of ten.
    Exponent,
}

/// Why a text is not a quantity, or a sum of quantities overflows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("must be a number such as 2, 0.5 or -1, with a suffix or without")]
    Number,
    #[error(
        "has an unknown suffix; the suffixes are n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei, \
         and an exponent such as e3"
    )]
    Suffix,
    #[error("is too large to keep exactly")]
    Overflow,
}

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, family: Family::Decimal };

    /// A whole number, such as of pods.
    pub const fn whole(value: i64) -> Self {
        Self { nanos: value as i128 * NANO, family: Family::Decimal }
    }

    /// A number of thousandths, such as millicores.
    pub const fn from_milli(milli: i64) -> Self {
        Self { nanos: milli as i128 * (NANO / 1000), family: Family::Decimal }
    }

    /// A number of bytes, printed in Ki, Mi and so on.
    pub const fn bytes(value: i64) -> Self {
        Self { nanos: value as i128 * NANO, family: Family::Binary }
    }

    pub fn family(&self) -> Family {
        self.family
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// The value as a whole number, rounded away from zero.
    ///
    /// It saturates at the limits of an i64.
    pub fn value(&self) -> i64 {
        self.in_units_of(NANO)
    }

    /// The value in thousandths, rounded and saturated as [`value`](Self::value) is.
    pub fn milli(&self) -> i64 {
        self.in_units_of(NANO / 1000)
    }

    fn in_units_of(&self, unit: i128) -> i64 {
        let rounded = self.nanos / unit + (self.nanos % unit).signum();
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }

    /// The sum, in this quantity's family; if this one is zero, in the family of the other.
    pub fn add(&self, other: &Quantity) -> Result<Quantity, QuantityError> {
        self.with(other, self.nanos.checked_add(other.nanos))
    }

    /// The difference, in this quantity's family. It may be negative.
    pub fn sub(&self, other: &Quantity) -> Result<Quantity, QuantityError> {
        self.with(other, self.nanos.checked_sub(other.nanos))
    }

    fn with(&self, other: &Quantity, nanos: Option<i128>) -> Result<Quantity, QuantityError> {
        let family = if self.is_zero() { other.family } else { self.family };
        // The minimum of the integer type could be printed but not parsed: its opposite does not fit.
        let nanos = nanos.filter(|&nanos| nanos != i128::MIN).ok_or(QuantityError::Overflow)?;
        Ok(Self { nanos, family })
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

impl fmt::Display for Quantity {
    /// The canonical text of a value in its family: the largest suffix that leaves no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.nanos / NANO;
        let fits_binary = self.nanos % NANO == 0 && whole.unsigned_abs() >= 1024;
        let text = match self.family {
            // Small and fractional amounts are exact, and easier to read, in the decimal family.
            Family::Binary if fits_binary => {
                const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
                let (number, steps) = divided(whole, 1024, SUFFIXES.len() - 1);
                format!("{number}{}", SUFFIXES[steps])
            }
            Family::Binary | Family::Decimal => {
                const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
                let (number, steps) = divided(self.nanos, 1000, SUFFIXES.len() - 1);
                format!("{number}{}", SUFFIXES[steps])
            }
            Family::Exponent => {
                let (number, steps) = divided(self.nanos, 1000, usize::MAX);
                match steps {
                    3 => number.to_string(),
                    _ => format!("{number}e{}", steps as i64 * 3 - 9),
                }
            }
        };
        f.pad(if self.is_zero() { "0" } else { &text })
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Divides by `base` while there is no remainder, at most `limit` times; returns the result and how often it divided.
fn divided(mut number: i128, base: i128, limit: usize) -> (i128, usize) {
    let mut steps = 0;
    while steps < limit && number != 0 && number % base == 0 {
        number /= base;
        steps += 1;
    }
    (number, steps)
}

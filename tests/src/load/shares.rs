//! The comparison of two rates that were measured in turns, on a machine that others use too.
//!
//! Every turn is compared with the plain turn of its round, and the median of these ratios counts. On a busy machine the
//! ratios vary; [`Shares::side`] says on which side of a limit the median is, once that is clear.

/// On which side of a limit a ratio is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Enough,
    TooLittle,
    Unclear,
}

/// The ratios of two rates in all rounds, sorted.
#[derive(Clone, Debug)]
pub struct Shares(Vec<f64>);

impl Shares {
    /// Of each rate to the plain one of the same round.
    pub fn of(rates: &[f64], plain: &[f64]) -> Shares {
        let mut shares: Vec<f64> = rates.iter().zip(plain).map(|(rate, plain)| rate / plain).collect();
        shares.sort_by(f64::total_cmp);
        Shares(shares)
    }

    pub fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// The 95 % confidence interval of the median. A round is above the true median with probability 1/2, so the number
    /// of rounds above it is within two standard deviations of half of them; two standard deviations are the square
    /// root of the number of rounds.
    fn bounds(&self) -> (f64, f64) {
        let rounds = self.0.len();
        let outside = ((rounds as f64 - 2.0 * (rounds as f64).sqrt()) / 2.0) as usize;
        (self.0[outside], self.0[rounds - 1 - outside])
    }

    /// On which side of a limit the median is, if that is clear.
    pub fn side(&self, limit: f64) -> Side {
        match self.bounds() {
            (low, _) if low >= limit => Side::Enough,
            (_, high) if high < limit => Side::TooLittle,
            _ => Side::Unclear,
        }
    }
}

/// The median of rates.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

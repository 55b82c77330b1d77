//! Parses eviction thresholds: `memory.available<100Mi,nodefs.available<10%` and the flags that go with them.
//!
//! An invalid threshold stops the agent at its start: one that is silently dropped would be noticed only when the
//! machine is full.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_proto::duration;

use super::{Amount, Signal, Threshold};

/// The hard thresholds if the flag is not given.
pub const DEFAULT_HARD: &str = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,\
                                imagefs.available<15%,imagefs.inodesFree<5%";

const HARD: &str = "--eviction-hard";
const SOFT: &str = "--eviction-soft";
const SOFT_GRACE: &str = "--eviction-soft-grace-period";
const RECLAIM: &str = "--eviction-minimum-reclaim";

/// The flags as they were given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags<'a> {
    /// `--eviction-hard`: `None` is [`DEFAULT_HARD`]; any other value, even an empty one, replaces all of it.
    pub hard: Option<&'a str>,
    /// `--eviction-soft`.
    pub soft: &'a str,
    /// `--eviction-soft-grace-period`: `memory.available=1m30s`.
    pub soft_grace: &'a str,
    /// `--eviction-minimum-reclaim`: `memory.available=50Mi`.
    pub min_reclaim: &'a str,
}

/// A part of a flag that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag}: {part:?} {reason}")]
pub struct FlagError {
    pub flag: &'static str,
    pub part: String,
    /// Continues the sentence that the part begins.
    pub reason: String,
}

/// The thresholds that the flags set, hard ones first.
pub fn thresholds(flags: &Flags<'_>) -> Result<Vec<Threshold>, FlagError> {
    let hard = limits(HARD, flags.hard.unwrap_or(DEFAULT_HARD))?;
    let soft = limits(SOFT, flags.soft)?;
    let graces = settings(SOFT_GRACE, flags.soft_grace, |text| {
        duration::parse(text).map_err(|error| error.to_string())
    })?;
    let reclaims = settings(RECLAIM, flags.min_reclaim, reclaim)?;
    let threshold = |(signal, value): (Signal, Amount), grace: Option<Duration>| Threshold {
        signal,
        value,
        grace,
        min_reclaim: reclaims.get(&signal).copied(),
    };
    let mut all: Vec<Threshold> = hard.into_iter().map(|limit| threshold(limit, None)).collect();
    for (signal, value) in soft {
        let grace = graces.get(&signal).ok_or_else(|| FlagError {
            flag: SOFT,
            part: format!("{signal}<{value}"),
            reason: format!("needs a grace period: set {SOFT_GRACE} for {signal}"),
        })?;
        all.push(threshold((signal, value), Some(*grace)));
    }
    Ok(all)
}

/// `signal<amount` pairs, without those that are disabled.
fn limits(flag: &'static str, text: &str) -> Result<BTreeMap<Signal, Amount>, FlagError> {
    let pairs = pairs(flag, text, '<', "must be written signal<amount", limit)?;
    Ok(pairs.into_iter().filter_map(|(signal, value)| Some((signal, value?))).collect())
}

/// `signal=value` pairs.
fn settings<V>(
    flag: &'static str,
    text: &str,
    value: impl Fn(&str) -> Result<V, String>,
) -> Result<BTreeMap<Signal, V>, FlagError> {
    pairs(flag, text, '=', "must be written signal=value", value)
}

fn pairs<V>(
    flag: &'static str,
    text: &str,
    operator: char,
    shape: &str,
    value: impl Fn(&str) -> Result<V, String>,
) -> Result<BTreeMap<Signal, V>, FlagError> {
    let mut found = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let fail = |reason: String| FlagError { flag, part: part.to_owned(), reason };
        let (name, amount) = part.split_once(operator).ok_or_else(|| fail(shape.to_owned()))?;
        let signal = Signal::ALL.into_iter().find(|signal| signal.name() == name.trim());
        let signal = signal.ok_or_else(|| fail(format!("names no signal; the signals are {}", names())))?;
        let value = value(amount.trim()).map_err(fail)?;
        if found.insert(signal, value).is_some() {
            return Err(fail(format!("sets {signal} a second time")));
        }
    }
    Ok(found)
}

fn names() -> String {
    Signal::ALL.map(Signal::name).join(", ")
}

/// The amount of a threshold; 0% and 100% disable it.
fn limit(text: &str) -> Result<Option<Amount>, String> {
    let amount = amount(text)?;
    match amount {
        Amount::Percent(percent) => Ok((percent > 0.0 && percent < 100.0).then_some(amount)),
        Amount::Quantity(quantity) if quantity.is_zero() => Err("must be more than nothing".to_owned()),
        Amount::Quantity(_) => Ok(Some(amount)),
    }
}

fn reclaim(text: &str) -> Result<Amount, String> {
    amount(text)
}

fn amount(text: &str) -> Result<Amount, String> {
    if let Some(number) = text.strip_suffix('%') {
        let percent = number.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
        return percent.map(Amount::Percent).ok_or_else(|| "must be from 0% to 100%".to_owned());
    }
    let quantity: muster_proto::quantity::Quantity =
        text.parse().map_err(|error| format!("has an amount that is not valid: it {error}"))?;
    if quantity.is_negative() {
        return Err("must not be less than nothing".to_owned());
    }
    Ok(Amount::Quantity(quantity))
}

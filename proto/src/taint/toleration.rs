//! Tolerations: which taints a pod tolerates, and for how long.
//!
//! Also the defaults that pods get: five minutes on a node that is not ready or unreachable, and for pods of daemon
//! sets no time limit.

use std::fmt;
use std::str::FromStr;

use super::{Taint, TaintEffect};
use crate::invalid::{Check, Path};
use crate::label::{check_label_key, check_label_value};
use crate::wellknown::taint as keys;

#[cfg(test)]
mod tests;

/// How a toleration compares a taint's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TolerationOperator {
    /// The values are equal.
    #[default]
    Equal,
    /// Any value matches.
    Exists,
}

/// The text is not an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be Equal or Exists")]
pub struct TolerationOperatorError;

/// A toleration of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toleration {
    /// Empty means any key.
    pub key: String,
    pub operator: TolerationOperator,
    pub value: String,
    /// `None` means any effect.
    pub effect: Option<TaintEffect>,
    /// How long the pod stays after a NoExecute taint was observed; `None` means forever, 0 or less not at all.
    pub toleration_seconds: Option<i64>,
}

impl Toleration {
    /// Tolerates the key with that effect, whatever its value, forever.
    pub fn exists(key: impl Into<String>, effect: TaintEffect) -> Self {
        let operator = TolerationOperator::Exists;
        Self { key: key.into(), operator, effect: Some(effect), ..Self::default() }
    }

    /// The same toleration with a time limit.
    pub fn for_seconds(self, seconds: i64) -> Self {
        Self { toleration_seconds: Some(seconds), ..self }
    }

    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.effect.is_none_or(|effect| effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && (self.operator == TolerationOperator::Exists || self.value == taint.value)
    }

    /// Whether both tolerate the same taints; only the time may differ.
    pub fn matches(&self, other: &Toleration) -> bool {
        self.key == other.key
            && self.operator == other.operator
            && self.value == other.value
            && self.effect == other.effect
    }
}

/// Adds a toleration, replacing the one for the same taints; returns whether the list changed.
pub fn add_or_update_toleration(tolerations: &mut Vec<Toleration>, toleration: Toleration) -> bool {
    match tolerations.iter_mut().find(|held| held.matches(&toleration)) {
        Some(held) if *held == toleration => false,
        Some(held) => {
            *held = toleration;
            true
        }
        None => {
            tolerations.push(toleration);
            true
        }
    }
}

/// Adds the default tolerations of the not-ready and unreachable taints, unless the pod has its own.
///
/// Any toleration of the key counts, even one with another value.
pub fn default_tolerations(tolerations: &mut Vec<Toleration>, not_ready_secs: i64, unreachable_secs: i64) {
    for (key, seconds) in [(keys::NOT_READY, not_ready_secs), (keys::UNREACHABLE, unreachable_secs)] {
        let spoken_for = tolerations.iter().any(|held| {
            (held.key.is_empty() || held.key == key)
                && held.effect.is_none_or(|effect| effect == TaintEffect::NoExecute)
        });
        if !spoken_for {
            tolerations.push(Toleration::exists(key, TaintEffect::NoExecute).for_seconds(seconds));
        }
    }
}

/// The tolerations of a daemon set's pods: they belong to the node and stay while it is not healthy.
///
/// Add these before [`default_tolerations`], which then does not add its own.
pub fn daemon_tolerations(host_network: bool) -> Vec<Toleration> {
    use TaintEffect::{NoExecute, NoSchedule};
    let mut tolerations = vec![
        Toleration::exists(keys::NOT_READY, NoExecute),
        Toleration::exists(keys::UNREACHABLE, NoExecute),
        Toleration::exists(keys::DISK_PRESSURE, NoSchedule),
        memory_pressure_toleration(),
        Toleration::exists(keys::PID_PRESSURE, NoSchedule),
        Toleration::exists(keys::UNSCHEDULABLE, NoSchedule),
    ];
    if host_network {
        // A pod in the host network does not wait for the pod network: it may be the one that sets it up.
        tolerations.push(Toleration::exists(keys::NETWORK_UNAVAILABLE, NoSchedule));
    }
    tolerations
}

/// The toleration of memory pressure, for all pods except BestEffort ones.
pub fn memory_pressure_toleration() -> Toleration {
    Toleration::exists(keys::MEMORY_PRESSURE, TaintEffect::NoSchedule)
}

/// Whether `new` keeps every toleration of `old`; times may change and others may be added.
pub fn only_extended(old: &[Toleration], new: &[Toleration]) -> bool {
    old.iter().all(|held| new.iter().any(|kept| kept.matches(held)))
}

/// Reports every invalid toleration.
pub fn check_tolerations(check: &mut Check, path: &Path<'_>, tolerations: &[Toleration]) {
    for (i, toleration) in tolerations.iter().enumerate() {
        check_toleration(check, &path.index(i), toleration);
    }
}

/// Reports what breaks a rule in one toleration.
pub(crate) fn check_toleration(check: &mut Check, path: &Path<'_>, toleration: &Toleration) {
    use TolerationOperator::{Equal, Exists};
    let Toleration { key, operator, value, effect, toleration_seconds } = toleration;
    if !key.is_empty() {
        check.field(&path.key("key"), check_label_key(key));
    } else {
        check.ensure(&path.key("operator"), *operator == Exists, "must be Exists when key is empty");
    }
    match operator {
        Equal => {
            check.field(&path.key("value"), check_label_value(value));
        }
        Exists => {
            check.ensure(&path.key("value"), value.is_empty(), "must be empty when operator is Exists");
        }
    }
    check.ensure(
        &path.key("effect"),
        toleration_seconds.is_none() || *effect == Some(TaintEffect::NoExecute),
        "must be NoExecute when tolerationSeconds is set",
    );
}

impl FromStr for TolerationOperator {
    type Err = TolerationOperatorError;

    /// Empty text is Equal, the default.
    fn from_str(text: &str) -> Result<Self, TolerationOperatorError> {
        match text {
            "" | "Equal" => Ok(Self::Equal),
            "Exists" => Ok(Self::Exists),
            _ => Err(TolerationOperatorError),
        }
    }
}

impl fmt::Display for TolerationOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Equal => "Equal",
            Self::Exists => "Exists",
        })
    }
}

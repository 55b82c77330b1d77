//! Taints: they repel pods from a node, or evict pods from it.
//!
//! Key and effect identify a taint; value and time can change. A pod tolerates taints by its [`Toleration`]s.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

use crate::invalid::{Check, Path};
use crate::label::{LabelError, check_label_key, check_label_value};

mod toleration;

pub(crate) use toleration::check_toleration;
pub use toleration::{
    Toleration, TolerationOperator, TolerationOperatorError, add_or_update_toleration, check_tolerations,
    daemon_tolerations, default_tolerations, memory_pressure_toleration, only_extended,
};

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    /// New pods are not scheduled on the node.
    NoSchedule,
    /// New pods are scheduled on other nodes if possible.
    PreferNoSchedule,
    /// As NoSchedule, and pods that run on the node are evicted.
    NoExecute,
}

/// The text is not an effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be NoSchedule, PreferNoSchedule or NoExecute")]
pub struct TaintEffectError;

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: TaintEffect,
    /// When it was added, by the writer's clock. For people only: no timer starts from it.
    pub time_added: Option<Timestamp>,
}

/// Why a text such as `key=value:NoSchedule` is not a taint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaintError {
    #[error("must be written key=value:effect or key:effect")]
    NoEffect,
    #[error("has a key that is not valid: it {0}")]
    Key(LabelError),
    #[error("has a value that is not valid: it {0}")]
    Value(LabelError),
    #[error("has an effect that is not valid: it {0}")]
    Effect(#[from] TaintEffectError),
}

impl Taint {
    /// A taint without a time. Key and value are not validated here; [`check_taints`] does that.
    pub fn new(key: impl Into<String>, value: impl Into<String>, effect: TaintEffect) -> Self {
        Self { key: key.into(), value: value.into(), effect, time_added: None }
    }

    /// The same taint with the time when it was added.
    pub fn added_at(self, time: Timestamp) -> Self {
        Self { time_added: Some(time), ..self }
    }

    /// Whether this is the taint of that key and effect, whatever its value.
    pub fn is(&self, key: &str, effect: TaintEffect) -> bool {
        self.effect == effect && self.key == key
    }

    /// Whether both have the same key and effect; a node has at most one of them.
    pub fn matches(&self, other: &Taint) -> bool {
        self.is(&other.key, other.effect)
    }
}

/// Adds a taint to the list, replacing the one with the same key and effect; returns whether the list changed.
pub fn add_or_update(taints: &mut Vec<Taint>, taint: Taint) -> bool {
    match taints.iter_mut().find(|held| held.matches(&taint)) {
        Some(held) if *held == taint => false,
        Some(held) => {
            *held = taint;
            true
        }
        None => {
            taints.push(taint);
            true
        }
    }
}

/// Removes every taint of that key and effect from the list; returns whether there was one.
pub fn remove(taints: &mut Vec<Taint>, key: &str, effect: TaintEffect) -> bool {
    let before = taints.len();
    taints.retain(|held| !held.is(key, effect));
    taints.len() != before
}

/// Reports every invalid taint, and every duplicate of a key and effect.
pub fn check_taints(check: &mut Check, path: &Path<'_>, taints: &[Taint]) {
    let mut seen = BTreeSet::new();
    for (i, taint) in taints.iter().enumerate() {
        let path = path.index(i);
        check_taint(check, &path, &taint.key, &taint.value);
        check_new_taint(check, &path, seen.insert((taint.key.as_str(), taint.effect)));
    }
}

/// Reports a key or value that breaks a rule.
pub(crate) fn check_taint(check: &mut Check, path: &Path<'_>, key: &str, value: &str) {
    check.field(&path.key("key"), check_label_key(key));
    check.field(&path.key("value"), check_label_value(value));
}

/// Reports a taint that is not the first of its key and effect.
pub(crate) fn check_new_taint(check: &mut Check, path: &Path<'_>, is_new: bool) {
    check.ensure(path, is_new, "must not have the key and effect of an earlier taint");
}

impl FromStr for Taint {
    type Err = TaintError;

    /// Parses `key=value:effect` and `key:effect`.
    fn from_str(text: &str) -> Result<Self, TaintError> {
        let (mark, effect) = text.split_once(':').ok_or(TaintError::NoEffect)?;
        let (key, value) = mark.split_once('=').unwrap_or((mark, ""));
        check_label_key(key).map_err(TaintError::Key)?;
        check_label_value(value).map_err(TaintError::Value)?;
        Ok(Self::new(key, value, effect.parse()?))
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, effect, .. } = self;
        match value.as_str() {
            "" => write!(f, "{key}:{effect}"),
            value => write!(f, "{key}={value}:{effect}"),
        }
    }
}

impl FromStr for TaintEffect {
    type Err = TaintEffectError;

    fn from_str(text: &str) -> Result<Self, TaintEffectError> {
        match text {
            "NoSchedule" => Ok(Self::NoSchedule),
            "PreferNoSchedule" => Ok(Self::PreferNoSchedule),
            "NoExecute" => Ok(Self::NoExecute),
            _ => Err(TaintEffectError),
        }
    }
}

impl fmt::Display for TaintEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::TaintEffect::*;
    use super::*;

    fn taints(texts: &[&str]) -> Vec<Taint> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_taint_is_written_key_value_effect() {
        let key = LabelError::Prefix(crate::name::NameError::Empty);
        let long = format!("a={}:NoSchedule", "v".repeat(64));
        for (text, expected) in [
            ("k=v:NoSchedule", Ok(Taint::new("k", "v", NoSchedule))),
            ("k:NoExecute", Ok(Taint::new("k", "", NoExecute))),
            ("a/b=:PreferNoSchedule", Ok(Taint::new("a/b", "", PreferNoSchedule))),
            ("a", Err(TaintError::NoEffect)),
            ("a=b", Err(TaintError::NoEffect)),
            ("a:", Err(TaintError::Effect(TaintEffectError))),
            ("a:NoRun", Err(TaintError::Effect(TaintEffectError))),
            ("a:NoSchedule:x", Err(TaintError::Effect(TaintEffectError))),
            ("/x:NoSchedule", Err(TaintError::Key(key))),
            ("a/b/c:NoSchedule", Err(TaintError::Key(LabelError::Slashes))),
            (":NoSchedule", Err(TaintError::Key(LabelError::NoName))),
            ("a=b=c:NoSchedule", Err(TaintError::Value(LabelError::ValueShape))),
            (&long, Err(TaintError::Value(LabelError::ValueTooLong))),
        ] {
            assert_eq!(text.parse::<Taint>(), expected, "{text:?}");
        }
        assert_eq!(taints(&["k=v:NoSchedule", "k:NoExecute"])[0].to_string(), "k=v:NoSchedule");
        assert_eq!(Taint::new("k", "", NoExecute).to_string(), "k:NoExecute");
    }

    #[test]
    fn adding_replaces_the_taint_of_the_same_key_and_effect_in_place() {
        let held = ["a=1:NoSchedule", "b:NoExecute"];
        for (added, changed, expected) in [
            ("a=1:NoSchedule", false, vec!["a=1:NoSchedule", "b:NoExecute"]),
            ("a=2:NoSchedule", true, vec!["a=2:NoSchedule", "b:NoExecute"]),
            ("a=1:NoExecute", true, vec!["a=1:NoSchedule", "b:NoExecute", "a=1:NoExecute"]),
            ("c:NoSchedule", true, vec!["a=1:NoSchedule", "b:NoExecute", "c:NoSchedule"]),
        ] {
            let mut list = taints(&held);
            assert_eq!(add_or_update(&mut list, added.parse().unwrap()), changed, "{added}");
            assert_eq!(list, taints(&expected), "{added}");
        }
        let mut list = taints(&held);
        let timed = list[0].clone().added_at(Timestamp::UNIX_EPOCH);
        assert!(add_or_update(&mut list, timed.clone()), "another time is a change");
        assert_eq!(list[0], timed);
    }

    #[test]
    fn removing_removes_only_the_given_key_and_effect() {
        for (key, effect, changed, expected) in [
            ("a", NoSchedule, true, vec!["a:NoExecute", "b:NoSchedule"]),
            ("a", NoExecute, true, vec!["a=1:NoSchedule", "b:NoSchedule"]),
            ("c", NoSchedule, false, vec!["a=1:NoSchedule", "a:NoExecute", "b:NoSchedule"]),
        ] {
            let mut list = taints(&["a=1:NoSchedule", "a:NoExecute", "b:NoSchedule"]);
            assert_eq!(remove(&mut list, key, effect), changed, "{key}:{effect}");
            assert_eq!(list, taints(&expected), "{key}:{effect}");
        }
    }

    #[test]
    fn a_list_may_hold_each_key_and_effect_once() {
        let path = Path::ROOT.key("spec.taints");
        for (list, expected) in [
            (taints(&["a=1:NoSchedule", "a=1:NoExecute"]), ""),
            (
                taints(&["a=1:NoSchedule", "a=2:NoSchedule"]),
                "spec.taints[1]: must not have the key and effect of an earlier taint",
            ),
            (
                vec![Taint::new("a/b/c", "v".repeat(64), NoSchedule)],
                "spec.taints[0].key: must be a name or prefix/name, with one '/' at most; \
                 spec.taints[0].value: must be 63 bytes or fewer",
            ),
        ] {
            let mut check = Check::new();
            check_taints(&mut check, &path, &list);
            let found = check.finish(()).map_or_else(|invalid| invalid.to_string(), |()| String::new());
            assert_eq!(found, expected, "{list:?}");
        }
    }

    #[test]
    fn an_effect_is_parsed_as_it_is_written() {
        for effect in [NoSchedule, PreferNoSchedule, NoExecute] {
            assert_eq!(effect.to_string().parse(), Ok(effect));
        }
        for text in ["", "NoRun", "noexecute"] {
            assert_eq!(text.parse::<TaintEffect>(), Err(TaintEffectError), "{text:?}");
        }
    }
}

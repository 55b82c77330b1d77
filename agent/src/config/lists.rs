//! Lists in flags: labels, taints, reservations, seconds by priority.
//!
//! Each function takes the entries as clap split them and returns what is wrong with the first bad one. Empty entries
//! are skipped: a trailing comma, or a variable set to nothing, means no entry.

use std::time::Duration;

use muster_proto::label::{Labels, check_label_key, check_label_value};
use muster_proto::quantity::{Quantity, Resources};
use muster_proto::restriction::node_may_set_label;
use muster_proto::taint::Taint;

/// The resources that can be reserved.
const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

/// The entries without blanks around them, and without empty ones.
pub(super) fn entries(list: &[String]) -> impl Iterator<Item = &str> {
    list.iter().map(|entry| entry.trim()).filter(|entry| !entry.is_empty())
}

/// Labels that a node may set on itself. Of two with the same key the last counts.
pub(super) fn labels(list: &[String]) -> Result<Labels, String> {
    let mut labels = Labels::new();
    for entry in entries(list) {
        let (key, value) = pair(entry)?;
        check_label_key(key).map_err(|error| format!("the key {key:?} {error}"))?;
        check_label_value(value).map_err(|error| format!("the value of {key:?} {error}"))?;
        if !node_may_set_label(key) {
            return Err(format!(
                "a node may not set {key:?} on itself; of the labels under kubernetes.io and k8s.io only those \
                 under kubelet.kubernetes.io and node.kubernetes.io and the ones that describe the machine are \
                 its own"
            ));
        }
        labels.insert(key.to_owned(), value.to_owned());
    }
    Ok(labels)
}

/// Taints, each key and effect once.
pub(super) fn taints(list: &[String]) -> Result<Vec<Taint>, String> {
    let mut taints: Vec<Taint> = Vec::new();
    for entry in entries(list) {
        let taint: Taint = entry.parse().map_err(|error| format!("{entry:?} {error}"))?;
        if taints.iter().any(|held| held.matches(&taint)) {
            return Err(format!("{entry:?} has the key and effect of an earlier taint"));
        }
        taints.push(taint);
    }
    Ok(taints)
}

/// Amounts reserved, by resource.
pub(super) fn reservations(list: &[String]) -> Result<Resources, String> {
    let mut resources = Resources::new();
    for entry in entries(list) {
        let (name, amount) = pair(entry)?;
        if !RESERVABLE.contains(&name) {
            return Err(format!("{name:?} cannot be reserved; {} can", RESERVABLE.join(", ")));
        }
        let amount: Quantity = amount.parse().map_err(|error| format!("the amount of {name} {error}"))?;
        if amount.is_negative() {
            return Err(format!("the amount of {name} must not be negative"));
        }
        if resources.insert(name.to_owned(), amount).is_some() {
            return Err(format!("{name} is given twice"));
        }
    }
    Ok(resources)
}

/// Grace periods of pods by priority, in ascending order.
pub(super) fn priorities(list: &[String]) -> Result<Vec<(i32, Duration)>, String> {
    let mut groups: Vec<(i32, Duration)> = Vec::new();
    for entry in entries(list) {
        let (priority, seconds) = pair(entry)?;
        let wrong = || format!("{entry:?} must be a priority and whole seconds, such as 1000=60");
        let priority: i32 = priority.parse().map_err(|_| wrong())?;
        let seconds: u32 = seconds.parse().map_err(|_| wrong())?;
        if groups.iter().any(|(held, _)| *held == priority) {
            return Err(format!("priority {priority} is given twice"));
        }
        groups.push((priority, Duration::from_secs(seconds.into())));
    }
    groups.sort_unstable();
    Ok(groups)
}

fn pair(entry: &str) -> Result<(&str, &str), String> {
    let (key, value) = entry.split_once('=').ok_or_else(|| format!("{entry:?} must be written key=value"))?;
    Ok((key.trim(), value.trim()))
}

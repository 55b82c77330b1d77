//! What follows from a node's record alone: NoSchedule taints for its conditions and cordon, and the beta names of
//! labels.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::node::Node;
use muster_proto::taint::{self, Taint, TaintEffect};
use muster_proto::wellknown::{label, taint as keys};

use muster_proto::time::Now;

/// The keys of the taints managed here, all with the effect NoSchedule.
const MANAGED: [&str; 7] = [
    keys::NOT_READY,
    keys::UNREACHABLE,
    keys::MEMORY_PRESSURE,
    keys::DISK_PRESSURE,
    keys::PID_PRESSURE,
    keys::NETWORK_UNAVAILABLE,
    keys::UNSCHEDULABLE,
];

const PRESSURES: [(&str, &str); 4] = [
    (types::MEMORY_PRESSURE, keys::MEMORY_PRESSURE),
    (types::DISK_PRESSURE, keys::DISK_PRESSURE),
    (types::PID_PRESSURE, keys::PID_PRESSURE),
    (types::NETWORK_UNAVAILABLE, keys::NETWORK_UNAVAILABLE),
];

const BETA_LABELS: [(&str, &str); 2] = [(label::OS, label::OS_BETA), (label::ARCH, label::ARCH_BETA)];

/// Writes the taints and labels that the record itself requires. A node without a Ready condition is trusted or not.
pub fn apply_to(node: &mut Node, trust_unreported: bool, now: Now) {
    let wanted = wanted(node, trust_unreported);
    for key in MANAGED {
        let held = node.spec.taints.iter().any(|taint| taint.is(key, TaintEffect::NoSchedule));
        match (held, wanted.contains(&key)) {
            (true, false) => drop(taint::remove(&mut node.spec.taints, key, TaintEffect::NoSchedule)),
            (false, true) => {
                node.spec.taints.push(Taint::new(key, "", TaintEffect::NoSchedule).added_at(now.wall));
            }
            _ => {}
        }
    }
    for (name, beta) in BETA_LABELS {
        if let Some(value) = node.meta.labels.get(name).cloned() {
            node.meta.labels.insert(beta.to_owned(), value);
        }
    }
}

/// The key of the taints that belong to this Ready condition: NoSchedule at once, NoExecute when the node took a token.
pub fn ready_taint(ready: Option<ConditionStatus>) -> Option<&'static str> {
    match ready {
        Some(ConditionStatus::False) => Some(keys::NOT_READY),
        Some(ConditionStatus::Unknown) => Some(keys::UNREACHABLE),
        Some(ConditionStatus::True) | None => None,
    }
}

fn wanted(node: &Node, trust_unreported: bool) -> Vec<&'static str> {
    let status = |kind: &str| node.condition(kind).map(|condition| condition.status);
    let ready = match status(types::READY) {
        // Nobody has said that the machine exists and works: it keeps the taint that it was created with.
        None if !trust_unreported => Some(keys::NOT_READY),
        ready => ready_taint(ready),
    };
    let pressures = PRESSURES.iter().filter(|(kind, _)| status(kind) == Some(ConditionStatus::True));
    let cordon = node.spec.unschedulable.then_some(keys::UNSCHEDULABLE);
    ready.into_iter().chain(pressures.map(|&(_, key)| key)).chain(cordon).collect()
}

#[cfg(test)]
mod tests {
    use muster_proto::condition::ConditionStatus::{False, True, Unknown};

    use super::*;
    use crate::fixtures::{NodeSample, at, node};

    /// The taints of a node that is trusted although it has no Ready condition, so that they are those of the others.
    fn taints(sample: NodeSample) -> String {
        taints_with(sample, true)
    }

    fn taints_with(sample: NodeSample, trust_unreported: bool) -> String {
        let mut node = sample.build();
        apply_to(&mut node, trust_unreported, at(1));
        let texts: Vec<String> = node.spec.taints.iter().map(ToString::to_string).collect();
        texts
            .join(" ")
            .replace("node.kubernetes.io/", "")
            .replace("NoSchedule", "NS")
            .replace("NoExecute", "NE")
    }

    #[test]
    fn s098_each_condition_has_its_taint() {
        for (kind, key) in PRESSURES {
            let short = key.trim_start_matches("node.kubernetes.io/");
            assert_eq!(taints(node("a").condition(kind, True)), format!("{short}:NS"), "{kind}");
            for status in [False, Unknown] {
                assert_eq!(taints(node("a").condition(kind, status)), "", "{kind} {status}");
                let tainted = node("a").condition(kind, status).taint(&format!("{key}:NoSchedule"));
                assert_eq!(taints(tainted), "", "{kind} {status}: the taint goes");
            }
        }
        assert_eq!(taints(node("a").ready(False)), "not-ready:NS");
        assert_eq!(taints(node("a").ready(Unknown)), "unreachable:NS");
        assert_eq!(taints(node("a").ready(True).taint("node.kubernetes.io/not-ready:NoSchedule")), "");
    }

    #[test]
    fn a_node_without_a_ready_condition_keeps_its_creation_taint_unless_it_is_trusted() {
        let created = || node("a").taint("node.kubernetes.io/not-ready:NoSchedule");
        assert_eq!(taints_with(created(), false), "not-ready:NS");
        assert_eq!(taints_with(node("a"), false), "not-ready:NS", "also if somebody removed it");
        assert_eq!(taints_with(created(), true), "", "as Kubernetes does it");
        for trusted in [true, false] {
            assert_eq!(taints_with(created().ready(True), trusted), "");
            assert_eq!(taints_with(created().ready(False), trusted), "not-ready:NS");
            assert_eq!(
                taints_with(created().ready(Unknown), trusted),
                "unreachable:NS",
                "its grace has passed"
            );
        }
    }

    #[test]
    fn s099_a_cordoned_node_is_tainted_and_a_taint_does_not_cordon() {
        assert_eq!(taints(node("a").cordoned()), "unschedulable:NS");
        assert_eq!(taints(node("a").taint("node.kubernetes.io/unschedulable:NoSchedule")), "");
    }

    #[test]
    fn s100_taints_of_other_writers_are_kept() {
        let own = "dedicated=x:NS memory-pressure:NE";
        let tainted =
            node("a").taint("dedicated=x:NoSchedule").taint("node.kubernetes.io/memory-pressure:NoExecute");
        assert_eq!(taints(tainted), own);
    }

    #[test]
    fn s101_an_obsolete_condition_has_no_taint() {
        assert_eq!(taints(node("a").condition("OutOfDisk", True)), "");
    }

    #[test]
    fn a_taint_that_is_there_keeps_its_time_and_a_new_one_has_the_current_time() {
        let mut held = node("a").cordoned().build();
        apply_to(&mut held, true, at(1));
        let first = held.clone();
        apply_to(&mut held, true, at(9));
        assert_eq!(held, first);
        assert_eq!(held.spec.taints[0].time_added, Some(at(1).wall));
    }

    #[test]
    fn s102_beta_labels_follow_the_stable_labels() {
        for (labels, expected) in [
            (vec![(label::OS, "linux")], Some("linux")),
            (vec![(label::OS, "linux"), (label::OS_BETA, "windows")], Some("linux")),
            (vec![(label::OS_BETA, "windows")], Some("windows")),
            (vec![], None),
        ] {
            let mut sample =
                labels.iter().fold(node("a"), |node, (key, value)| node.label(key, value)).build();
            apply_to(&mut sample, true, at(1));
            assert_eq!(sample.meta.labels.get(label::OS_BETA).map(String::as_str), expected, "{labels:?}");
            assert!(!sample.meta.labels.contains_key(label::ARCH_BETA));
        }
    }
}

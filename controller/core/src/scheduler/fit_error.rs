//! Why a pod fits no node: how many nodes each reason rules out.

use std::collections::BTreeMap;
use std::fmt;

use super::filter::UnfitReason;
use super::resources::ResourceAmounts;

/// The reasons why a pod fits none of the nodes, with their counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FitError {
    nodes: usize,
    /// By [`index`].
    counts: [usize; PLAIN_REASONS.len()],
    /// Nodes with too little of each resource.
    insufficient: BTreeMap<String, usize>,
}

/// The reasons that name no resource.
const PLAIN_REASONS: [UnfitReason<'static>; 6] = [
    UnfitReason::Cordoned,
    UnfitReason::NodeName,
    UnfitReason::Tainted,
    UnfitReason::NodeAffinity,
    UnfitReason::HostPorts,
    UnfitReason::TooManyPods,
];

impl FitError {
    /// For that many nodes, none of them examined yet.
    pub(crate) fn of(nodes: usize) -> FitError {
        FitError { nodes, ..FitError::default() }
    }

    /// The same counts for another number of nodes.
    pub(crate) fn with_nodes(&self, nodes: usize) -> FitError {
        FitError { nodes, ..self.clone() }
    }

    /// Removes a reason that was counted before.
    pub(crate) fn uncount(&mut self, reason: UnfitReason<'_>) {
        match reason {
            UnfitReason::Insufficient(resource) => {
                if let Some(count) = self.insufficient.get_mut(resource) {
                    *count -= 1;
                    if *count == 0 {
                        self.insufficient.remove(resource);
                    }
                }
            }
            other => self.counts[index(other)] -= 1,
        }
    }

    pub(crate) fn count(&mut self, reason: UnfitReason<'_>) {
        match reason {
            UnfitReason::Insufficient(resource) => match self.insufficient.get_mut(resource) {
                Some(count) => *count += 1,
                None => drop(self.insufficient.insert(resource.to_owned(), 1)),
            },
            other => self.counts[index(other)] += 1,
        }
    }

    /// Each reason and the number of nodes it rules out, ordered by its text.
    ///
    /// A node that is short of several resources counts for each.
    pub fn reasons(&self) -> Vec<(UnfitReason<'_>, usize)> {
        let plain = PLAIN_REASONS.into_iter().zip(self.counts).filter(|(_, count)| *count > 0);
        let insufficient =
            self.insufficient.iter().map(|(resource, count)| (UnfitReason::Insufficient(resource), *count));
        let mut all: Vec<_> = plain.chain(insufficient).collect();
        all.sort_by_cached_key(|(reason, _)| reason.to_string());
        all
    }
}

/// The reasons for one node in a few bytes: one bit each. Shortages come last, in the order in which the pod's request
/// lists the resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReasonSet(u64);

impl ReasonSet {
    /// Requests of more resources than this have no set of reasons.
    pub(crate) const MAX_RESOURCES: usize = u64::BITS as usize - PLAIN_REASONS.len();

    pub(crate) fn add(&mut self, reason: UnfitReason<'_>, wanted: &ResourceAmounts) {
        let bit = match reason {
            UnfitReason::Insufficient(resource) => {
                let position = wanted.names().position(|name| name == resource);
                PLAIN_REASONS.len() + position.expect("only requested resources are short")
            }
            other => index(other),
        };
        self.0 |= 1 << bit;
    }

    pub(crate) fn each(self, wanted: &ResourceAmounts) -> impl Iterator<Item = UnfitReason<'_>> {
        let all = PLAIN_REASONS.into_iter().chain(wanted.names().map(UnfitReason::Insufficient));
        all.enumerate().filter(move |(bit, _)| self.0 >> bit & 1 == 1).map(|(_, reason)| reason)
    }
}

fn index(reason: UnfitReason<'_>) -> usize {
    PLAIN_REASONS
        .iter()
        .position(|listed| *listed == reason)
        .expect("every reason that names no resource is listed")
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0/{} nodes are available", self.nodes)?;
        for (i, (reason, count)) in self.reasons().into_iter().enumerate() {
            write!(f, "{} {count} {reason}", if i == 0 { ":" } else { "," })?;
        }
        f.write_str(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_error_says_how_many_nodes_each_reason_rules_out() {
        use UnfitReason::{Cordoned, Insufficient, Tainted, TooManyPods};
        for (nodes, found, expected) in [
            (0, &[][..], "0/0 nodes are available."),
            (1, &[TooManyPods], "0/1 nodes are available: 1 Too many pods."),
            (
                3,
                &[Insufficient("cpu"), Cordoned, Insufficient("cpu")],
                "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) were unschedulable.",
            ),
            (
                3,
                &[Tainted, Tainted, TooManyPods, Insufficient("a/b"), Insufficient("cpu")],
                "0/3 nodes are available: 1 Insufficient a/b, 1 Insufficient cpu, 1 Too many pods, \
                 2 node(s) had untolerated taint(s).",
            ),
        ] {
            let mut fit_error = FitError::of(nodes);
            found.iter().for_each(|reason| fit_error.count(*reason));
            assert_eq!(fit_error.to_string(), expected);
        }
    }
}

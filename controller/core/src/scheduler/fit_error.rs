//! Why no node will do: how many nodes each thing keeps the pod from.

use std::collections::BTreeMap;
use std::fmt;

use super::filter::Obstacle;
use super::resources::Amounts;

/// What was found on a look at all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    nodes: usize,
    /// By [`slot`].
    counts: [usize; OBSTACLES.len()],
    /// By resource.
    short: BTreeMap<String, usize>,
}

/// Those that name no resource.
const OBSTACLES: [Obstacle<'static>; 6] = [
    Obstacle::Cordoned,
    Obstacle::OtherName,
    Obstacle::Tainted,
    Obstacle::Unmatched,
    Obstacle::PortsTaken,
    Obstacle::Full,
];

impl Verdict {
    /// Of a fleet of so many nodes, none of them looked at yet.
    pub(crate) fn of(nodes: usize) -> Verdict {
        Verdict { nodes, ..Verdict::default() }
    }

    /// The same of a fleet of so many nodes.
    pub(crate) fn with_nodes(&self, nodes: usize) -> Verdict {
        Verdict { nodes, ..self.clone() }
    }

    /// Takes back what was counted.
    pub(crate) fn take_back(&mut self, obstacle: Obstacle<'_>) {
        match obstacle {
            Obstacle::Short(resource) => {
                if let Some(count) = self.short.get_mut(resource) {
                    *count -= 1;
                    if *count == 0 {
                        self.short.remove(resource);
                    }
                }
            }
            other => self.counts[slot(other)] -= 1,
        }
    }

    pub(crate) fn count(&mut self, obstacle: Obstacle<'_>) {
        match obstacle {
            Obstacle::Short(resource) => match self.short.get_mut(resource) {
                Some(count) => *count += 1,
                None => drop(self.short.insert(resource.to_owned(), 1)),
            },
            other => self.counts[slot(other)] += 1,
        }
    }

    /// Each thing that is in the way and the number of nodes it is in the way on, by its text.
    ///
    /// A node can be short of several resources and counts for each.
    pub fn obstacles(&self) -> Vec<(Obstacle<'_>, usize)> {
        let plain = OBSTACLES.into_iter().zip(self.counts).filter(|(_, count)| *count > 0);
        let short = self.short.iter().map(|(resource, count)| (Obstacle::Short(resource), *count));
        let mut all: Vec<_> = plain.chain(short).collect();
        all.sort_by_cached_key(|(obstacle, _)| obstacle.to_string());
        all
    }
}

/// What is in the way on one node, in few bytes: a bit for each obstacle. Shortages come last, by where the resource
/// stands among those that the pod asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings(u64);

impl Findings {
    /// Pods that ask for more resources than this find no room here.
    pub(crate) const MOST_RESOURCES: usize = u64::BITS as usize - OBSTACLES.len();

    pub(crate) fn add(&mut self, obstacle: Obstacle<'_>, wanted: &Amounts) {
        let bit = match obstacle {
            Obstacle::Short(resource) => {
                let place = wanted.names().position(|name| name == resource);
                OBSTACLES.len() + place.expect("nothing is short that is not wanted")
            }
            other => slot(other),
        };
        self.0 |= 1 << bit;
    }

    pub(crate) fn each(self, wanted: &Amounts) -> impl Iterator<Item = Obstacle<'_>> {
        let all = OBSTACLES.into_iter().chain(wanted.names().map(Obstacle::Short));
        all.enumerate().filter(move |(bit, _)| self.0 >> bit & 1 == 1).map(|(_, obstacle)| obstacle)
    }
}

fn slot(obstacle: Obstacle<'_>) -> usize {
    OBSTACLES.iter().position(|listed| *listed == obstacle).expect("all but shortages are listed")
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0/{} nodes are available", self.nodes)?;
        for (i, (obstacle, count)) in self.obstacles().into_iter().enumerate() {
            write!(f, "{} {count} {obstacle}", if i == 0 { ":" } else { "," })?;
        }
        f.write_str(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_says_how_many_nodes_each_thing_rules_out() {
        use Obstacle::{Cordoned, Full, Short, Tainted};
        for (nodes, found, expected) in [
            (0, &[][..], "0/0 nodes are available."),
            (1, &[Full], "0/1 nodes are available: 1 Too many pods."),
            (
                3,
                &[Short("cpu"), Cordoned, Short("cpu")],
                "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) were unschedulable.",
            ),
            (
                3,
                &[Tainted, Tainted, Full, Short("a/b"), Short("cpu")],
                "0/3 nodes are available: 1 Insufficient a/b, 1 Insufficient cpu, 1 Too many pods, \
                 2 node(s) had untolerated taint(s).",
            ),
        ] {
            let mut verdict = Verdict::of(nodes);
            found.iter().for_each(|obstacle| verdict.count(*obstacle));
            assert_eq!(verdict.to_string(), expected);
        }
    }
}

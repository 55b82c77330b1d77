//! The order of a graceful shutdown: pods are stopped in groups, the lowest priority first.
//!
//! A [`Schedule`] comes from flags; a [`GroupShutdown`] is one shutdown in progress. A group's turn ends when all its
//! pods have stopped or its time is over, whichever is first; a group without pods takes no time.

use std::time::Duration;

use muster_proto::name::Uid;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use crate::pod_lifecycle::{PodTermination, TERM_BEFORE_KILL};
use crate::resources::priority::{self, SYSTEM_CRITICAL};

mod node_shutdown;
#[cfg(test)]
mod tests;

pub use node_shutdown::{LAST_STATUS_WITHIN, NodeShutdown, ShutdownStep};

/// Pods of this priority and above, up to the next group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub priority: i32,
    pub period: Duration,
}

impl Group {
    /// How long its turn lasts at most: also a group without time gets TERM and has a moment to react to it.
    fn turn(&self) -> Duration {
        self.period.max(TERM_BEFORE_KILL)
    }
}

/// The groups, the lowest priority first; none means that shutdowns are not graceful.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    groups: Vec<Group>,
}

impl Schedule {
    /// The schedule of the groups given, or else of the two durations.
    ///
    /// Two durations make two groups: what is not kept for critical pods is for all others. Keeping more for critical
    /// pods than the total, or a total of 0, disables graceful shutdown.
    pub fn new(total: Duration, critical: Duration, by_priority: &[(i32, Duration)]) -> Self {
        if !by_priority.is_empty() {
            let group = |&(priority, period): &(i32, Duration)| Group { priority, period };
            let mut groups: Vec<Group> = by_priority.iter().map(group).collect();
            groups.sort_by_key(|group| group.priority);
            return Self { groups };
        }
        let Some(rest) = total.checked_sub(critical).filter(|_| !total.is_zero()) else {
            return Self::default();
        };
        let others = Group { priority: 0, period: rest };
        Self { groups: vec![others, Group { priority: SYSTEM_CRITICAL, period: critical }] }
    }

    /// Whether shutdowns are graceful at all.
    pub fn is_on(&self) -> bool {
        self.groups.iter().any(|group| !group.period.is_zero())
    }

    /// The longest time that a shutdown takes.
    pub fn total(&self) -> Duration {
        self.groups.iter().map(Group::turn).fold(Duration::ZERO, Duration::saturating_add)
    }

    /// The highest group that is not above the priority; the lowest group if all are above.
    pub fn group_of(&self, priority: i32) -> Option<Group> {
        let at_or_below = self.groups.iter().rev().find(|group| group.priority <= priority);
        at_or_below.or(self.groups.first()).copied()
    }
}

/// What to do now.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupStep {
    /// Stop these pods, all at once; then call [`GroupShutdown::begun`].
    Stop(Vec<(Uid, PodTermination)>),
    /// A group is stopping; look again when one of its pods has stopped, or by then.
    Wait { until: Mono },
    /// Every group had its turn.
    Done,
}

/// One shutdown in progress.
#[derive(Clone, Debug)]
pub struct GroupShutdown {
    /// The groups that have pods, in order.
    turns: Vec<(Group, Vec<(Uid, Duration)>)>,
    current: usize,
    began: Option<Mono>,
}

impl GroupShutdown {
    /// The shutdown of these pods. A pod without a grace period of its own gets its group's.
    pub fn new<'a>(schedule: &Schedule, pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut turns: Vec<(Group, Vec<(Uid, Duration)>)> =
            schedule.groups.iter().map(|group| (*group, Vec::new())).collect();
        for pod in pods {
            let (Some(uid), Some(group)) = (pod.meta.uid, schedule.group_of(priority::of(pod))) else {
                continue;
            };
            let grace = priority::stated_grace(pod).map_or(group.period, |own| own.min(group.period));
            if let Some((_, members)) = turns.iter_mut().find(|(each, _)| *each == group) {
                members.push((uid, grace));
            }
        }
        turns.retain(|(_, members)| !members.is_empty());
        Self { turns, current: 0, began: None }
    }

    /// What to do now.
    pub fn decide(&self) -> GroupStep {
        let Some((group, members)) = self.turns.get(self.current) else {
            return GroupStep::Done;
        };
        match self.began {
            Some(began) => GroupStep::Wait { until: began + group.turn() },
            None => GroupStep::Stop(members.iter().map(|(uid, grace)| (*uid, termination(*grace))).collect()),
        }
    }

    /// The current group was told to stop.
    pub fn begun(&mut self, now: Mono) {
        self.began = Some(now);
    }

    /// Moves on to the next group if the current one has stopped or its time is over.
    pub fn observe(&mut self, is_present: impl Fn(Uid) -> bool, now: Mono) {
        let (Some(began), Some((group, members))) = (self.began, self.turns.get(self.current)) else {
            return;
        };
        if now >= began + group.turn() || !members.iter().any(|(uid, _)| is_present(*uid)) {
            self.current += 1;
            self.began = None;
        }
    }
}

fn termination(grace: Duration) -> PodTermination {
    PodTermination {
        reason: "Terminated".to_owned(),
        message: "Pod was terminated in response to imminent node shutdown.".to_owned(),
        grace,
        is_disruption: true,
    }
}

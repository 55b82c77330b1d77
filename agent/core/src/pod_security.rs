//! Which user a pod's containers run as, and how much they may ask for on this node.
//!
//! Containers are processes of the machine: a user of the machine that a pod runs as has that user's files. So each pod
//! has a user of its own unless the operator allows more, and no two pods of a node share one.

use std::fmt;
use std::str::FromStr;

use muster_proto::name::Uid;
use muster_proto::pod::{Container, Pod};

use crate::admission::Rejection;

#[cfg(test)]
mod tests;

const REASON: &str = "SecurityContextDenied";
const ROOT: u32 = 0;

/// Ids of users and groups, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    first: u32,
    last: u32,
}

/// What pods may ask for on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSecurityPolicy {
    /// The ids that pods have of their own; `None` where the agent is not root, so that pods run as its user.
    pub own_ids: Option<IdRange>,
    /// The agent's user and group.
    pub agent: (u32, u32),
    /// Users and groups that a pod may ask for.
    pub allowed_ids: Vec<IdRange>,
    /// Whether containers may be privileged, gain privileges, and run as any user.
    pub allow_privileged: bool,
}

/// What a container asks for: in its own security context, else in its pod's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub non_root: bool,
    pub privileged: bool,
    pub escalation: bool,
}

/// The text is not a range of ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} must be an id such as 1000, or a range such as 3000-3999, below 4294967295")]
pub struct IdRangeError(String);

impl IdRange {
    pub fn contains(&self, id: u32) -> bool {
        (self.first..=self.last).contains(&id)
    }

    pub fn overlaps(&self, other: &IdRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// An id that is not taken; `None` if all are.
    ///
    /// The pod's uid says where to look first, so that the id of a pod that is gone is not the next pod's: what it left
    /// behind, such as files in /tmp, belongs to its id.
    pub fn pick(&self, pod: Uid, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
        let count = u64::from(self.last - self.first) + 1;
        let start = u64::try_from(pod.as_u128() % u128::from(count)).ok()?;
        let ids = (0..count).filter_map(|step| u32::try_from((start + step) % count).ok());
        ids.map(|offset| self.first + offset).find(|id| !is_taken(*id))
    }
}

impl FromStr for IdRange {
    type Err = IdRangeError;

    fn from_str(text: &str) -> Result<Self, IdRangeError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            // The largest number means "no change" to the kernel.
            (Ok(first), Ok(last)) if first <= last && last < u32::MAX => Ok(Self { first, last }),
            _ => Err(IdRangeError(text.to_owned())),
        }
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Asked {
    pub fn by(pod: &Pod, container: &Container) -> Asked {
        let of_pod = pod.spec.security_context.unwrap_or_default();
        let own = container.security_context.unwrap_or_default();
        // The store accepts ids of 31 bits only.
        let id = |id: Option<i64>| id.and_then(|id| u32::try_from(id).ok());
        let privileged = own.privileged == Some(true);
        Asked {
            user: id(own.run_as_user.or(of_pod.run_as_user)),
            group: id(own.run_as_group.or(of_pod.run_as_group)),
            non_root: own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true),
            privileged,
            escalation: privileged || own.allow_privilege_escalation == Some(true),
        }
    }
}

impl PodSecurityPolicy {
    /// What the pod asks for and this node does not allow; the first objection.
    pub fn rejection(&self, pod: &Pod) -> Option<Rejection> {
        pod.spec.all_containers().find_map(|container| {
            let objection = self.objection(Asked::by(pod, container))?;
            Some(Rejection::new(REASON, format_args!("container {} asks for {objection}", container.name)))
        })
    }

    fn objection(&self, asked: Asked) -> Option<String> {
        let flag = "which this node does not allow (--allow-privileged of its agent)";
        if asked.privileged && !self.allow_privileged {
            return Some(format!("privileged, {flag}"));
        }
        if asked.escalation && !self.allow_privileged {
            return Some(format!("allowPrivilegeEscalation, {flag}"));
        }
        if asked.non_root && self.is_root(asked) {
            return Some("runAsNonRoot, and would run as root".to_owned());
        }
        let (agent_user, agent_group) = self.agent;
        let users = ("runAsUser", asked.user, agent_user);
        let groups = ("runAsGroup", asked.group, agent_group);
        [users, groups].into_iter().find_map(|(field, id, agents)| self.id_objection(field, id?, agents))
    }

    fn id_objection(&self, field: &str, id: u32, agents: u32) -> Option<String> {
        if self.own_ids.is_none() {
            // Root's privileges are needed to become another user.
            let why = format!("and this node's agent runs without root, as {agents}");
            return (id != agents).then(|| format!("{field} {id}, {why}"));
        }
        if self.allow_privileged || self.allowed_ids.iter().any(|range| range.contains(id)) {
            return None;
        }
        Some(format!("{field} {id}, which this node does not allow (--allow-run-as of its agent)"))
    }

    /// Whether the container would run as root. Without a request it runs as the pod's own user, or if it is privileged
    /// as the agent's.
    fn is_root(&self, asked: Asked) -> bool {
        let agent_user = self.agent.0;
        let default = if asked.privileged || self.own_ids.is_none() { Some(agent_user) } else { None };
        asked.user.or(default) == Some(ROOT)
    }
}

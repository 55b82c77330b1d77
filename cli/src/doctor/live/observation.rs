//! What the servers of a fleet answered. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use muster_proto::condition::types;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;

use crate::failure::Failure;
use crate::print::fleet::duration;

/// Everything that was asked, and when.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) client_version: String,
    pub(super) stores: Vec<Server<StoreState>>,
    pub(super) controllers: Vec<Server<ControllerState>>,
    /// Those that the operator named.
    pub(super) agents: Vec<Server<AgentState>>,
    /// `None` if no store could be asked.
    pub(super) records: Option<Result<Records, Trouble>>,
    /// By this machine's clock.
    pub(super) now: Timestamp,
}

/// One address, and what it answered.
#[derive(Clone, Debug)]
pub(super) struct Server<S> {
    pub(super) address: String,
    /// Whether it can be reached and is certified for what it is called as.
    pub(super) hello: Result<Hello, Trouble>,
    /// What it says about its work. If it cannot be reached, the same trouble again.
    pub(super) state: Result<S, Trouble>,
}

/// The answer to a health check, which needs no rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: Option<String>,
    /// Of stores only.
    pub(super) store_id: Option<String>,
    pub(super) offset: Option<Offset>,
}

/// Why a server did not answer as expected, in the words of every other command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) message: String,
    pub(super) hint: String,
}

/// What a store says.
#[derive(Clone, Debug)]
pub(super) enum StoreState {
    Leads(pb::GetStoreStatusResponse),
    /// Another store leads; the text says which.
    StandsBy(String),
}

/// What a controller says.
#[derive(Clone, Debug)]
pub(super) struct ControllerState {
    pub(super) fleet: pb::Fleet,
    /// `None` for a release that does not say.
    pub(super) settings: Option<pb::ControllerSettings>,
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AgentState {
    pub(super) node_name: String,
    pub(super) registered: bool,
    /// The store in use, or why none can be used.
    pub(super) store: String,
}

/// What the store holds about agents and the leading controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Records {
    pub(super) agents: Vec<AgentRecord>,
    pub(super) leader: Option<Leader>,
}

/// A node as its agent keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AgentRecord {
    pub(super) name: String,
    /// Empty before the agent's first report.
    pub(super) version: String,
    /// When the agent computed its last status, by its own clock.
    pub(super) reported_at: Option<Timestamp>,
    /// `None` without a lease.
    pub(super) lease: Option<AgentLease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AgentLease {
    pub(super) duration: Duration,
    /// By the store's clock.
    pub(super) renewed_at: Option<Timestamp>,
}

/// The lease of the leading controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leader {
    /// Empty after it was released.
    pub(super) holder: String,
    pub(super) since: Option<Timestamp>,
}

/// How far a server's clock is ahead of this machine's: somewhere between two bounds, since a header has whole seconds
/// and an answer takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offset {
    least: SignedDuration,
    most: SignedDuration,
}

/// A server takes the time for its header once a second.
const HEADER_RESOLUTION: SignedDuration = SignedDuration::from_secs(2);

impl Offset {
    /// From the time in an answer, which was asked for and received at these times of ours.
    pub(super) fn of(date: Timestamp, sent: Timestamp, received: Timestamp) -> Offset {
        Offset { least: date.duration_since(received), most: date.duration_since(sent) + HEADER_RESOLUTION }
    }

    /// The smallest difference that explains the answer: 0 if the clocks may agree, less than 0 for a clock that is
    /// behind.
    pub(super) fn certain(self) -> SignedDuration {
        let zero = SignedDuration::ZERO;
        if self.least > zero {
            self.least
        } else if self.most < zero {
            self.most
        } else {
            zero
        }
    }
}

impl Observation {
    /// Whether each address answered.
    pub(super) fn all_reached(&self) -> bool {
        self.stores.iter().all(|server| server.hello.is_ok())
            && self.controllers.iter().all(|server| server.hello.is_ok())
            && self.agents.iter().all(|server| server.hello.is_ok())
    }

    /// The store that leads. Several that are asked at different times may say so while the lead changes.
    pub(super) fn leading_store(&self) -> Option<(&Server<StoreState>, &pb::GetStoreStatusResponse)> {
        self.stores.iter().find_map(|server| match &server.state {
            Ok(StoreState::Leads(status)) => Some((server, status)),
            _ => None,
        })
    }

    /// The controller whose answer counts: that of the leader, else that of the first one that answers.
    pub(super) fn controller(&self) -> Option<&ControllerState> {
        let mut answers = self.controllers.iter().filter_map(|server| server.state.as_ref().ok());
        let leads = |state: &&ControllerState| state.leads();
        answers.clone().find(leads).or_else(|| answers.next())
    }

    pub(super) fn known_records(&self) -> Option<&Records> {
        self.records.as_ref().and_then(|records| records.as_ref().ok())
    }

    /// The store's time now, as far as it is known; else this machine's.
    pub(super) fn store_now(&self) -> Timestamp {
        let offset = self.leading_store().and_then(|(server, _)| server.hello.as_ref().ok()?.offset);
        let offset = offset.map_or(SignedDuration::ZERO, Offset::certain);
        self.now.checked_add(offset).unwrap_or(self.now)
    }
}

impl ControllerState {
    pub(super) fn leads(&self) -> bool {
        let pb::Fleet { leader, controller, .. } = &self.fleet;
        !leader.is_empty() && leader == controller && self.fleet.state() != pb::FleetState::Standby
    }
}

impl Records {
    pub(super) fn of(nodes: &[Node], leases: &[Lease], leader: Option<&Lease>) -> Records {
        let leases: BTreeMap<&str, AgentLease> = leases
            .iter()
            .filter_map(|lease| Some((lease.meta.name.as_str(), AgentLease::of(lease)?)))
            .collect();
        let agent = |node: &Node| AgentRecord {
            name: node.meta.name.as_str().to_owned(),
            version: node.status.node_info.kubelet_version.clone(),
            reported_at: node.condition(types::READY).and_then(|ready| ready.last_heartbeat_time),
            lease: leases.get(node.meta.name.as_str()).copied(),
        };
        let leader = leader.map(|lease| Leader {
            holder: lease.spec.holder_identity.clone(),
            since: lease.spec.acquire_time,
        });
        Records { agents: nodes.iter().map(agent).collect(), leader }
    }

    /// How many agents hold leases of each duration.
    pub(super) fn lease_durations(&self) -> BTreeMap<Duration, Vec<&str>> {
        let mut durations: BTreeMap<Duration, Vec<&str>> = BTreeMap::new();
        for agent in &self.agents {
            if let Some(lease) = agent.lease {
                durations.entry(lease.duration).or_default().push(&agent.name);
            }
        }
        durations
    }
}

impl AgentLease {
    fn of(lease: &Lease) -> Option<AgentLease> {
        let seconds = u64::try_from(lease.spec.lease_duration_seconds?).ok()?;
        Some(AgentLease { duration: Duration::from_secs(seconds), renewed_at: lease.spec.renew_time })
    }

    /// Whether the agent has renewed it in time: it is alive and can reach the store.
    pub(super) fn is_live(self, store_now: Timestamp) -> bool {
        let silence = self.renewed_at.map(|renewed| store_now.duration_since(renewed));
        silence.is_some_and(|silence| {
            silence < SignedDuration::try_from(self.duration).unwrap_or(SignedDuration::MAX)
        })
    }
}

/// A duration of the schema; 0 if it is absent.
pub(super) fn time(wire: Option<&prost_types::Duration>) -> Duration {
    wire.map(duration).unwrap_or_default()
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        let (message, hint) = failure.into_text();
        Trouble { message, hint: hint.unwrap_or_else(|| "see the log of the server".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_differ_only_as_far_as_an_answer_proves_it() {
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        // Asked at 100.0 s and answered at 100.2 s, by our clock.
        for (date, certain_millis) in
            [(100, 0), (99, 0), (98, 0), (97, -1000), (101, 800), (160, 59_800), (40, -58_000)]
        {
            let offset = Offset::of(at(date * 1000), at(100_000), at(100_200));
            assert_eq!(offset.certain(), SignedDuration::from_millis(certain_millis), "{date}");
        }
    }
}

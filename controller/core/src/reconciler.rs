//! The whole judgement: a fold of what is heard, and a function of that and the time.
//!
//! [`Controllers`] exist only while we judge: they are built from the world when we come to lead and hear everything, so that
//! every start is the same start. While the store is not heard nothing is decided, and afterwards everybody has a new
//! grace. So they have when it was we who stood still.

use jiff::Timestamp;
use muster_proto::lease::Lease;
use muster_proto::name::{Name, Namespace};
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;
use muster_proto::watch_event::WatchEvent;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;

use crate::controllers::Controllers;
use crate::plan::{Answer, Outcome, Plan, PlannedAction};
use crate::policy::Policy;
use crate::world::{Delta, Reach, World};
use muster_proto::time::Now;

/// What reaches the reconciler.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "each is moved once, from its stream into the fold")]
pub enum Observation {
    Node(WatchEvent<Node>),
    Pod(WatchEvent<Pod>),
    Lease(WatchEvent<Lease>),
    /// Whether it is for us to act.
    Leading(bool),
    /// How far the store had come when it fell to us to act: nothing is judged by a world that is behind that.
    Horizon(Reach),
    Outcome(Outcome),
}

#[derive(Debug)]
pub struct Reconciler {
    policy: Policy,
    world: World,
    nodes_heard: bool,
    pods_heard: bool,
    leases_heard: bool,
    leading: bool,
    /// What the world must have been told before the controllers are built.
    horizon: Reach,
    controllers: Option<Controllers>,
    /// There are controllers, and the store has not been heard since they last decided.
    interrupted: bool,
    /// When they last decided.
    decided_at: Mono,
}

/// How far the controller is from acting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Another leads.
    Standby,
    /// The store is not heard, or has not told yet what was done before it fell to us to act.
    Blind,
    Judging,
}

impl Reconciler {
    pub fn new(policy: Policy) -> Reconciler {
        Reconciler {
            policy,
            world: World::new(),
            nodes_heard: false,
            pods_heard: false,
            leases_heard: false,
            leading: false,
            horizon: Reach::default(),
            controllers: None,
            interrupted: false,
            decided_at: Mono::ZERO,
        }
    }

    pub fn observe(&mut self, news: Observation, now: Now) {
        match news {
            Observation::Node(event) => {
                let deltas = match event {
                    WatchEvent::Applied { record, .. } => self.world.apply_node(record),
                    WatchEvent::Gone { key, uid, revision, .. } => {
                        self.world.remove_node(&key.name, uid, revision)
                    }
                    WatchEvent::Synced { revision } => {
                        self.world.reach_nodes(revision);
                        self.nodes_heard = true;
                        return;
                    }
                    WatchEvent::Lost(_) => return lose(&mut self.nodes_heard, &mut self.interrupted),
                };
                self.tell(&deltas, now);
            }
            Observation::Pod(event) => {
                let deltas = match event {
                    WatchEvent::Applied { record, .. } => self.world.apply_pod(record),
                    WatchEvent::Gone { key, uid, revision, .. } => self.world.remove_pod(&key, uid, revision),
                    WatchEvent::Synced { revision } => {
                        self.world.reach_pods(revision);
                        self.pods_heard = true;
                        return;
                    }
                    WatchEvent::Lost(_) => return lose(&mut self.pods_heard, &mut self.interrupted),
                };
                self.tell(&deltas, now);
            }
            Observation::Lease(event) => self.observe_lease(&event, now),
            Observation::Leading(leading) => {
                self.leading = leading;
                if !leading {
                    self.controllers = None;
                    self.horizon = Reach::default();
                }
            }
            Observation::Horizon(horizon) => self.horizon = horizon,
            Observation::Outcome(outcome) => self.settle(&outcome, now),
        }
    }

    /// Takes in what arrived together, in its order. Renewals, most of what a fleet says, are looked up together.
    pub fn observe_all(&mut self, news: impl IntoIterator<Item = Observation>, now: Now) {
        let mut renewals = Vec::new();
        for news in news {
            if let Observation::Lease(WatchEvent::Applied { record, .. }) = &news
                && let Some(renewal) = renewal(record)
            {
                renewals.push(renewal);
            } else {
                self.renew(&std::mem::take(&mut renewals), now);
                self.observe(news, now);
            }
        }
        self.renew(&renewals, now);
    }

    fn renew(&mut self, renewals: &[(Name, Timestamp)], now: Now) {
        let numbers = self.world.apply_renewals(renewals);
        if let Some(controllers) = &mut self.controllers {
            controllers.observe_renewals(numbers.into_iter().flatten(), &self.world, &self.policy, now);
        }
    }

    fn observe_lease(&mut self, event: &WatchEvent<Lease>, now: Now) {
        match event {
            WatchEvent::Applied { record, .. } => self.renew(renewal(record).as_slice(), now),
            WatchEvent::Gone { key, .. } => {
                if key.namespace.as_ref().is_some_and(|n| n.as_str() == NODE_LEASE_NAMESPACE) {
                    self.world.remove_renewal(&key.name);
                }
            }
            WatchEvent::Synced { .. } => self.leases_heard = true,
            WatchEvent::Lost(_) => lose(&mut self.leases_heard, &mut self.interrupted),
        }
    }

    fn settle(&mut self, outcome: &Outcome, now: Now) {
        if let Some(controllers) = &mut self.controllers {
            controllers.settle(outcome, &self.world, now);
        }
        // What a write returned is news like any other, only earlier.
        let deltas = match &outcome.result {
            Ok(Answer::Node(node)) => self.world.learn_node((**node).clone()),
            Ok(Answer::Pod(pod)) => self.world.learn_pod((**pod).clone()),
            _ => return,
        };
        self.tell(&deltas, now);
    }

    /// A node that was just written on somebody's behalf.
    pub fn learn_node(&mut self, node: Node, now: Now) {
        let deltas = self.world.learn_node(node);
        self.tell(&deltas, now);
    }

    fn tell(&mut self, deltas: &[Delta], now: Now) {
        let Some(controllers) = &mut self.controllers else { return };
        for delta in deltas {
            controllers.observe(delta, &self.world, &self.policy, now);
        }
    }

    /// What to do now, and when to look again.
    pub fn decide(&mut self, now: Now) -> Plan {
        if self.stance() != Phase::Judging {
            return Plan::default();
        }
        let pause = now.mono - std::mem::replace(&mut self.decided_at, now.mono);
        let controllers = match &mut self.controllers {
            Some(controllers) => {
                let stood_still = pause > self.policy.longest_pause();
                if std::mem::take(&mut self.interrupted) || stood_still {
                    controllers.resume(&self.world, &self.policy, now);
                }
                controllers
            }
            none => {
                self.interrupted = false;
                self.horizon = Reach::default();
                none.insert(Controllers::begin(&self.world, &self.policy, now))
            }
        };
        controllers.decide(&self.world, &self.policy, now)
    }

    /// Why a proposal that had to wait is not to be performed any more: what it was judged by has changed, and no
    /// version tells the store so.
    pub fn obsolete(&self, proposal: &PlannedAction, now: Now) -> Option<&'static str> {
        match &self.controllers {
            Some(controllers) if self.stance() == Phase::Judging => {
                controllers.obsolete(proposal, &self.world, now)
            }
            _ => Some("nothing is judged now"),
        }
    }

    pub fn stance(&self) -> Phase {
        if !self.leading {
            Phase::Standby
        } else if self.is_in_step() && self.world.told().covers(self.horizon) {
            Phase::Judging
        } else {
            Phase::Blind
        }
    }

    /// Whether every stream is heard.
    pub fn is_in_step(&self) -> bool {
        self.nodes_heard && self.pods_heard && self.leases_heard
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What is being judged; `None` before the first decision and on a standby.
    pub fn controllers(&self) -> Option<&Controllers> {
        self.controllers.as_ref()
    }
}

/// A stream tells nothing any more.
fn lose(heard: &mut bool, interrupted: &mut bool) {
    *heard = false;
    *interrupted = true;
}

/// Which node's lease it is and when it was renewed, if it is one and ever was.
fn renewal(lease: &Lease) -> Option<(Name, Timestamp)> {
    let namespace = lease.meta.namespace.as_ref().map(Namespace::as_str);
    let renewed = lease.spec.renew_time.filter(|_| namespace == Some(NODE_LEASE_NAMESPACE))?;
    Some((lease.meta.name.clone(), renewed))
}

#[cfg(test)]
mod tests;

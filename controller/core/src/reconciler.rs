//! The reconciler: a fold of what was observed, and a function from that and the time to a plan.
//!
//! The [`Controllers`] exist only while this process leads: they are built from the world once it leads and is synced,
//! so that every start is the same. While a watch is disconnected nothing is decided, and that time counts against no
//! node. The same holds for a pause of this process.

use jiff::Timestamp;
use muster_proto::budget::DisruptionBudget;
use muster_proto::lease::Lease;
use muster_proto::name::{Name, Namespace};
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;
use muster_proto::watch_event::WatchEvent;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;

use crate::controllers::Controllers;
use crate::decision::Completion;
use crate::decision::takeover::Seed;
use crate::plan::{Answer, Outcome, Plan, PlannedAction};
use crate::policy::Policy;
use crate::world::{Delta, Revisions, World};
use muster_proto::time::Now;

/// An input of the reconciler.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "each is moved once, from its stream into the fold")]
pub enum Observation {
    Node(WatchEvent<Node>),
    Pod(WatchEvent<Pod>),
    Lease(WatchEvent<Lease>),
    Budget(WatchEvent<DisruptionBudget>),
    /// Whether this process leads.
    Leading(bool),
    /// The store's revisions when this process became the leader. Nothing is decided before the world has applied them,
    /// because they include all writes of the leader before.
    RequiredRevisions(Revisions),
    Outcome(Outcome),
    /// The outcome of an action, with what the log of decisions says of how it was performed.
    Completed(Outcome, Completion),
    /// The newest decisions of the log, which this leader continues. Until they are known no decision is recorded.
    DecisionLog(Seed),
}

#[derive(Debug)]
pub struct Reconciler {
    policy: Policy,
    world: World,
    nodes_synced: bool,
    pods_synced: bool,
    leases_synced: bool,
    leading: bool,
    /// What the world must have applied before the controllers are built.
    required: Revisions,
    controllers: Option<Controllers>,
    /// The newest decisions of the log, until the controllers have them.
    seed: Option<Seed>,
    /// When the controllers last decided.
    decided_at: Mono,
}

/// Whether the controller acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Another process leads.
    Standby,
    /// A watch is disconnected, or the writes of the leader before are not applied yet.
    Syncing,
    Active,
}

impl Reconciler {
    pub fn new(policy: Policy) -> Reconciler {
        Reconciler {
            policy,
            world: World::new(),
            nodes_synced: false,
            pods_synced: false,
            leases_synced: false,
            leading: false,
            required: Revisions::default(),
            controllers: None,
            seed: None,
            decided_at: Mono::ZERO,
        }
    }

    pub fn observe(&mut self, observation: Observation, now: Now) {
        self.notice_pause(now.mono);
        match observation {
            Observation::Node(event) => {
                let deltas = match event {
                    WatchEvent::Applied { record, .. } => self.world.apply_node(record),
                    WatchEvent::Gone { key, uid, revision, .. } => {
                        self.world.remove_node(&key.name, uid, revision)
                    }
                    WatchEvent::Synced { revision } => {
                        self.world.nodes_synced(revision);
                        self.nodes_synced = true;
                        return;
                    }
                    WatchEvent::Lost(_) => {
                        self.nodes_synced = false;
                        return self.interrupt(now.mono);
                    }
                };
                self.notify_controllers(&deltas, now);
            }
            Observation::Pod(event) => {
                let deltas = match event {
                    WatchEvent::Applied { record, .. } => self.world.apply_pod(record),
                    WatchEvent::Gone { key, uid, revision, .. } => self.world.remove_pod(&key, uid, revision),
                    WatchEvent::Synced { revision } => {
                        self.world.pods_synced(revision);
                        self.pods_synced = true;
                        return;
                    }
                    WatchEvent::Lost(_) => {
                        self.pods_synced = false;
                        return self.interrupt(now.mono);
                    }
                };
                self.notify_controllers(&deltas, now);
            }
            Observation::Lease(event) => self.observe_lease(&event, now),
            Observation::Budget(event) => self.observe_budget(event),
            Observation::Leading(leading) => {
                self.leading = leading;
                if !leading {
                    self.controllers = None;
                    self.seed = None;
                    self.required = Revisions::default();
                }
            }
            Observation::RequiredRevisions(required) => self.required = required,
            Observation::Outcome(outcome) => self.settle(&outcome, &Completion::default(), now),
            Observation::Completed(outcome, completion) => self.settle(&outcome, &completion, now),
            Observation::DecisionLog(seed) => self.seed = Some(seed),
        }
    }

    /// Observes what arrived together, in its order. Renewals, which are most of it, are looked up in batches.
    pub fn observe_all(&mut self, observations: impl IntoIterator<Item = Observation>, now: Now) {
        self.notice_pause(now.mono);
        let mut renewals = Vec::new();
        for observation in observations {
            if let Observation::Lease(WatchEvent::Applied { record, .. }) = &observation
                && let Some(renewal) = renewal(record)
            {
                renewals.push(renewal);
            } else {
                self.apply_renewals(&std::mem::take(&mut renewals), now);
                self.observe(observation, now);
            }
        }
        self.apply_renewals(&renewals, now);
    }

    fn apply_renewals(&mut self, renewals: &[(Name, Timestamp)], now: Now) {
        let indices = self.world.apply_renewals(renewals);
        if let Some(controllers) = &mut self.controllers {
            controllers.observe_renewals(indices.into_iter().flatten(), &self.world, &self.policy, now);
        }
    }

    fn observe_lease(&mut self, event: &WatchEvent<Lease>, now: Now) {
        match event {
            WatchEvent::Applied { record, .. } => self.apply_renewals(renewal(record).as_slice(), now),
            WatchEvent::Gone { key, .. } => {
                if key.namespace.as_ref().is_some_and(|n| n.as_str() == NODE_LEASE_NAMESPACE) {
                    self.world.remove_renewal(&key.name);
                }
            }
            WatchEvent::Synced { .. } => self.leases_synced = true,
            WatchEvent::Lost(_) => {
                self.leases_synced = false;
                self.interrupt(now.mono);
            }
        }
    }

    /// Without the budgets no pod is displaced; nothing else waits for them.
    fn observe_budget(&mut self, event: WatchEvent<DisruptionBudget>) {
        let budgets = &mut self.world.budgets;
        match event {
            WatchEvent::Applied { record, .. } => budgets.apply(record),
            WatchEvent::Gone { key, .. } => budgets.remove(&key),
            WatchEvent::Synced { .. } => budgets.set_synced(true),
            WatchEvent::Lost(_) => budgets.set_synced(false),
        }
    }

    fn settle(&mut self, outcome: &Outcome, completion: &Completion, now: Now) {
        if let Some(controllers) = &mut self.controllers {
            controllers.settle(outcome, completion, &self.world, now);
        }
        // The record that a write returned is the same as a watch event, only earlier.
        let deltas = match &outcome.result {
            Ok(Answer::Node(node)) => self.world.apply_written_node((**node).clone()),
            Ok(Answer::Pod(pod)) => self.world.apply_written_pod((**pod).clone()),
            _ => return,
        };
        self.notify_controllers(&deltas, now);
    }

    fn interrupt(&mut self, since: Mono) {
        if let Some(controllers) = &mut self.controllers {
            controllers.interrupt(since);
        }
    }

    /// If the last decision was too long ago, this process did not run, and what it observes now is late.
    fn notice_pause(&mut self, now: Mono) {
        if now - self.decided_at > self.policy.longest_pause() {
            self.interrupt(self.decided_at);
        }
    }

    /// Observes a node that was just written for a client, before the watch delivers it.
    pub fn observe_written_node(&mut self, node: Node, now: Now) {
        let deltas = self.world.apply_written_node(node);
        self.notify_controllers(&deltas, now);
    }

    fn notify_controllers(&mut self, deltas: &[Delta], now: Now) {
        let Some(controllers) = &mut self.controllers else { return };
        for delta in deltas {
            controllers.observe(delta, &self.world, &self.policy, now);
        }
    }

    /// What to do now, and when to decide again.
    pub fn decide(&mut self, now: Now) -> Plan {
        if self.phase() != Phase::Active {
            return Plan::default();
        }
        self.notice_pause(now.mono);
        self.decided_at = now.mono;
        let controllers = match &mut self.controllers {
            Some(controllers) => {
                controllers.resume(&self.policy, now);
                controllers
            }
            none => {
                self.required = Revisions::default();
                none.insert(Controllers::begin(&self.world, &self.policy, now))
            }
        };
        if let Some(seed) = self.seed.take() {
            controllers.continue_log(&seed, &self.world, now);
        }
        controllers.decide(&self.world, &self.policy, now)
    }

    /// Why a planned action that had to wait is obsolete: what it was decided from has changed, and no version of a
    /// record would make the store refuse it.
    pub fn obsolete(&self, planned: &PlannedAction, now: Now) -> Option<&'static str> {
        match &self.controllers {
            Some(controllers) if self.phase() == Phase::Active => {
                controllers.obsolete(planned, &self.world, now)
            }
            _ => Some("this controller is not active"),
        }
    }

    pub fn phase(&self) -> Phase {
        if !self.leading {
            Phase::Standby
        } else if self.is_synced() && self.world.applied().cover(self.required) {
            Phase::Active
        } else {
            Phase::Syncing
        }
    }

    /// Whether every watch is connected and synced.
    pub fn is_synced(&self) -> bool {
        self.nodes_synced && self.pods_synced && self.leases_synced
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The controllers; `None` before the first decision and on a standby.
    pub fn controllers(&self) -> Option<&Controllers> {
        self.controllers.as_ref()
    }
}

/// The node's name and the time of the renewal, if this is a node lease that was ever renewed.
fn renewal(lease: &Lease) -> Option<(Name, Timestamp)> {
    let namespace = lease.meta.namespace.as_ref().map(Namespace::as_str);
    let renewed = lease.spec.renew_time.filter(|_| namespace == Some(NODE_LEASE_NAMESPACE))?;
    Some((lease.meta.name.clone(), renewed))
}

#[cfg(test)]
mod tests;

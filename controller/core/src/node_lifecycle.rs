//! Node lifecycle: which nodes are alive, and what that means for their records and pods.
//!
//! [`liveness`] finds silent nodes; their status becomes [`unknown_status`], and [`pod_readiness`] marks their pods not
//! ready. [`zones`] counts unhealthy nodes and computes each [`zone_state`], which sets the rate at which
//! [`noexecute_taints`] taints them through the [`taint_queue`] of their zone. [`eviction_hold`] delays that while this
//! controller may have missed heartbeats. [`noschedule_taints`] follow from a node's own conditions.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::event::{Event, EventType};
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::time::{Mono, Now};

use crate::deadlines::Deadlines;
use crate::decision::{DecisionSubject, Note, causes};
use crate::plan::{Action, ControllerName, Outcome, Plan, Subject, event};
use crate::policy::Policy;
use crate::trace_event::TraceEvent;
use crate::world::{Change, Delta, NodeIndex, World};

pub mod eviction_hold;
pub mod liveness;
pub mod noexecute_taints;
pub mod noschedule_taints;
pub mod pod_readiness;
pub mod taint_queue;
pub mod unknown_status;
pub mod zone_report;
pub mod zone_state;
pub mod zones;

use eviction_hold::{EvictionHold, Interruptions};
use liveness::{Liveness, Silence};
use noexecute_taints::NoExecuteTaints;
use pod_readiness::PodReadiness;
use zones::{Assessment, Transition, Zones};

#[derive(Debug)]
pub struct NodeLifecycle {
    pub(crate) liveness: Liveness,
    pub(crate) zones: Zones,
    taints: NoExecuteTaints,
    pod_readiness: PodReadiness,
    /// Silent nodes whose record may not say Unknown yet.
    silent: Deadlines<Name>,
    pub(crate) hold: EvictionHold,
    interruptions: Interruptions,
    /// When the last pass was.
    pub(crate) last_pass: Option<Mono>,
    /// When the next regular pass is.
    next_regular_pass: Mono,
    /// Events since the last decision.
    events: Vec<Event>,
    /// Trace events since the last decision.
    trace_events: Vec<TraceEvent>,
    /// What was seen since the last decision.
    notes: Vec<Note>,
}

impl NodeLifecycle {
    pub fn new(policy: &Policy, now: Now) -> NodeLifecycle {
        let mut lifecycle = NodeLifecycle {
            liveness: Liveness::new(),
            zones: Zones::new(),
            taints: NoExecuteTaints::new(),
            pod_readiness: PodReadiness::default(),
            silent: Deadlines::default(),
            hold: EvictionHold::at_start(policy, now.mono),
            interruptions: Interruptions::default(),
            last_pass: None,
            next_regular_pass: now.mono,
            events: Vec::new(),
            trace_events: Vec::new(),
            notes: Vec::new(),
        };
        lifecycle.note_hold(now);
        lifecycle
    }

    fn note_hold(&mut self, now: Now) {
        if self.hold.is_active(now.mono) {
            let cause = causes::eviction_hold(&self.hold, now);
            self.notes.push(cause.waiting(ControllerName::NodeLifecycle, DecisionSubject::Fleet));
        }
    }

    fn note_ready(&mut self, name: &Name) {
        let subject = DecisionSubject::Node(name.clone());
        self.notes.push(causes::node_ready().observed(ControllerName::NodeLifecycle, subject));
    }

    /// The whole world has been observed for the first time. Nodes that existed before this controller started cause no
    /// events.
    pub fn start(&mut self, world: &World) {
        self.events.clear();
        self.trace_events.clear();
        self.notes.retain(|note| note.subject == DecisionSubject::Fleet);
        self.pod_readiness = PodReadiness::begin(world);
    }

    /// A watch has been disconnected or this process paused since then.
    pub fn interrupt(&mut self, since: Mono) {
        self.liveness.interrupt(since);
    }

    /// All watches are synced, and this process runs. The time of an interruption counts against no node.
    pub fn resume(&mut self, policy: &Policy, now: Now) {
        let Some(since) = self.liveness.resume(now.mono) else { return };
        let is_long = self.interruptions.add(since, policy, now.mono);
        self.hold = self.hold.after_interruption(is_long, policy, now.mono);
        if is_long {
            self.liveness.restart_count();
            self.note_hold(now);
        }
    }

    /// Gives a new grace to every node that is not marked Unknown already.
    fn renew_graces(&mut self, world: &World, policy: &Policy, now: Mono) {
        let status =
            |name: &Name| world.node(name.as_str())?.condition(types::READY).map(|ready| ready.status);
        let unmarked = |name: &Name| {
            (status(name) != Some(ConditionStatus::Unknown))
                .then(|| world.node_index(name.as_str()))
                .flatten()
        };
        for name in self.liveness.renew_graces(policy, now, unmarked) {
            self.zones.set_silent(&name, false);
            self.silent.forget(&name);
        }
    }

    pub fn observe(&mut self, delta: &Delta, world: &World, policy: &Policy, now: Now) {
        match delta {
            Delta::Node(change) => self.observe_node(change, world, policy, now),
            Delta::Pod(change) => self.pod_readiness.observe(change, world),
        }
    }

    fn observe_node(&mut self, change: &Change<Node>, world: &World, policy: &Policy, now: Now) {
        let node = change.either();
        let name = &node.meta.name;
        let index =
            world.node_index(name.as_str()).expect("a removed node keeps its index while it is observed");
        let has_lease = world.renewal(name.as_str()).is_some();
        let is_revived = self.liveness.observe(change, index, has_lease, policy, now);
        self.zones.observe(change);
        self.taints.observe(change, &self.zones, policy, now);
        if is_revived {
            self.zones.set_silent(name, false);
        }
        let was_ready = change.old.as_ref().is_some_and(|old| old.is_ready());
        if node.is_ready() && (is_revived || !was_ready) {
            self.trace_events.push(TraceEvent::Recovered { node: name.clone() });
            self.note_ready(name);
        }
        match (&change.old, &change.new) {
            (None, Some(_)) => {
                let message = format!("Node {name} event: Registered Node {name} in Controller");
                self.events.push(event(&**node, EventType::Normal, "RegisteredNode", message));
            }
            (Some(_), None) => {
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                self.events.push(event(&**node, EventType::Normal, "RemovingNode", message));
                self.trace_events.push(TraceEvent::Gone { node: name.clone() });
                self.silent.forget(name);
                return;
            }
            (Some(old), Some(new)) if old.is_ready() && unknown_status::is_marked_unknown(new) => {
                let message = format!("Node {name} status is now: NodeNotReady");
                self.events.push(event(&**new, EventType::Normal, "NodeNotReady", message));
                self.pod_readiness.node_marked_unknown(new, world);
            }
            _ => {}
        }
        if self.liveness.is_silent(name) {
            self.silent.add(name.clone());
        }
    }

    /// Observes leases whose `renewTime` changed.
    pub fn observe_renewals(
        &mut self,
        indices: impl IntoIterator<Item = NodeIndex>,
        world: &World,
        policy: &Policy,
        now: Now,
    ) {
        for node in self.liveness.observe_renewals(indices, policy, now.mono) {
            self.zones.set_silent(&node, false);
            if world.node(node.as_str()).is_some_and(|node| node.is_ready()) {
                self.note_ready(&node);
                self.trace_events.push(TraceEvent::Recovered { node });
            }
        }
    }

    pub fn settle(&mut self, outcome: &Outcome, now: Now) {
        match &outcome.subject {
            Subject::Node(name, _) => {
                self.silent.settle(name, &outcome.result, now.mono);
            }
            Subject::Pod(key, _) => self.pod_readiness.settle(key, outcome, now.mono),
            Subject::Lease(_) => {}
        }
    }

    pub fn decide(&mut self, world: &World, policy: &Policy, now: Now, plan: &mut Plan) {
        // Nodes whose grace has passed are counted before zone states are computed.
        for (name, Silence { seen_at, seen_by, .. }) in self.liveness.take_silent(policy, now.mono) {
            self.zones.set_silent(&name, true);
            plan.trace(TraceEvent::DeadlinePassed { node: name.clone(), seen_at, seen_by });
            self.silent.add(name);
        }
        self.note_gaps(policy);
        self.notes.drain(..).for_each(|note| plan.note(note));
        self.mark_silent(world, policy, now, plan);
        self.pass_if_due(world, policy, now, plan);
        self.pod_readiness.decide(world, now, plan);
        plan.events.append(&mut self.events);
        plan.wake_by(self.next_pass());
        for at in [self.liveness.next_check(), self.silent.next()].into_iter().flatten() {
            plan.wake_by(at);
        }
    }

    fn note_gaps(&mut self, policy: &Policy) {
        for (node, gap) in self.liveness.take_gaps() {
            let cause = causes::heartbeat_gap(&gap, policy);
            self.notes.push(cause.observed(ControllerName::NodeLifecycle, DecisionSubject::Node(node)));
        }
    }

    fn mark_silent(&mut self, world: &World, policy: &Policy, now: Now, plan: &mut Plan) {
        for name in self.silent.take(now.mono) {
            let node = world.node(name.as_str()).filter(|_| self.liveness.is_silent(&name));
            let Some(marked) = node.and_then(|node| unknown_status::mark_unknown(node, now)) else {
                self.silent.forget(&name);
                continue;
            };
            let subject = Subject::of_node(&marked);
            let action = Action::UpdateNodeStatus(Box::new(marked));
            let silence = self.silence(&name, world, policy);
            let cause = silence.map(|silence| causes::grace_period_passed(&silence, now));
            plan.act(ControllerName::NodeLifecycle, subject, action, "its grace has passed", cause);
            self.silent.begin(name);
        }
    }

    /// When the zones are assessed and nodes tainted next.
    pub(crate) fn next_pass(&self) -> Mono {
        let token = self.taints.next_token().map(|at| at.max(self.hold.until));
        // Evictions that the hold delayed depend on the zone states at its end.
        let hold_ends = (self.last_pass < Some(self.hold.until)).then_some(self.hold.until);
        token.into_iter().chain(hold_ends).fold(self.next_regular_pass, Mono::min)
    }

    /// Assesses the zones and taints nodes. Regular passes are once per monitor period; others come when there is a
    /// token for a node that waits, and when the hold ends.
    fn pass_if_due(&mut self, world: &World, policy: &Policy, now: Now, plan: &mut Plan) {
        if now.mono < self.next_pass() {
            return;
        }
        // Regular passes are at fixed multiples of the period, so that a late pass does not delay those after it.
        if self.next_regular_pass <= now.mono {
            let late = now.mono - self.next_regular_pass;
            let missed = late.as_nanos() / policy.monitor_period.as_nanos().max(1);
            self.next_regular_pass += times(policy.monitor_period, missed + 1);
        }
        self.last_pass = Some(now.mono);
        let held = self.hold.is_active(now.mono);
        let assessment = self.zones.assess(policy.unhealthy_zone_threshold);
        let before = plan.trace_events.len();
        self.taints.pass(&self.zones, &assessment, policy, now.mono, held, &mut plan.trace_events);
        self.note_zones(&assessment, policy, plan);
        self.note_waiting(before, now, plan);
        if assessment.transition == Transition::Left {
            self.renew_graces(world, policy, now.mono);
        }
    }

    /// Notes which zones have another state, and whether full disruption began or ended.
    fn note_zones(&self, assessment: &Assessment, policy: &Policy, plan: &mut Plan) {
        let controller = ControllerName::NodeLifecycle;
        for key in &assessment.changed {
            let subject = DecisionSubject::Zone(key.clone());
            let Some(report) = self.zone_report(key) else { continue };
            let note = causes::zone_state(&report, policy).observed(controller, subject);
            // It follows from the node that fell silent last.
            let last = self.liveness.last_silent().filter(|_| report.unhealthy > 0);
            let is_here = |name: &&Name| self.zones.zone_of(name).is_some_and(|(zone, _)| zone == key);
            plan.note(match last.filter(is_here) {
                Some(name) => note.following(DecisionSubject::Node(name.clone())),
                None => note,
            });
        }
        if assessment.transition != Transition::Unchanged {
            let cause = causes::full_disruption(self.zones.is_full_disruption());
            let note = cause.observed(controller, DecisionSubject::Fleet);
            plan.note(match assessment.changed.last() {
                Some(zone) => note.following(DecisionSubject::Zone(zone.clone())),
                None => note,
            });
        }
    }

    /// Notes why the nodes that joined a queue in this pass were not tainted in it.
    fn note_waiting(&self, before: usize, now: Now, plan: &mut Plan) {
        let hold = self.hold.is_active(now.mono).then_some(&self.hold);
        let events = &plan.trace_events[before..];
        let taken = events.iter().filter_map(|event| match event {
            TraceEvent::TokenTaken { node, .. } => Some(node),
            _ => None,
        });
        let taken: BTreeSet<&Name> = taken.collect();
        let mut notes = Vec::new();
        for event in events {
            if let TraceEvent::TaintQueued { node, zone } = event
                && !taken.contains(node)
                && let Some(report) = self.zone_report(zone)
            {
                let cause = causes::taint_wait(&report, hold, self.zones.is_full_disruption(), now);
                let subject = DecisionSubject::Node(node.clone());
                notes.push(cause.waiting(ControllerName::NodeLifecycle, subject));
            }
        }
        notes.into_iter().for_each(|note| plan.note(note));
    }

    /// Whether a node's grace has passed.
    pub fn is_silent(&self, name: &Name) -> bool {
        self.liveness.is_silent(name)
    }

    /// From when on pods may be evicted because of a health taint; `None` in full disruption.
    pub fn health_evictions_from(&self) -> Option<Mono> {
        (!self.zones.is_full_disruption()).then_some(self.hold.until)
    }

    /// How long a node has been silent and may be; `None` if there is no such node.
    pub fn silence(&self, name: &Name, world: &World, policy: &Policy) -> Option<Silence> {
        self.liveness.silence(world.node_index(name.as_str())?, policy)
    }

    pub(crate) fn take_trace_events(&mut self) -> Vec<TraceEvent> {
        std::mem::take(&mut self.trace_events)
    }

    /// Nodes whose taints may have to change, besides those whose record changed.
    pub fn take_changed(&mut self) -> Vec<Name> {
        self.taints.take_changed()
    }

    /// Writes the taints that a node is to have.
    pub fn apply_to(&self, node: &mut Node, policy: &Policy, now: Now) {
        noschedule_taints::apply_to(node, policy.trust_unreported_nodes, now);
        self.taints.apply_to(node, now);
    }
}

fn times(period: Duration, count: u128) -> Duration {
    period.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

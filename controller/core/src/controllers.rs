//! The controllers together: who is told what, in which order they decide, and what they want of one node's record.

use std::time::Duration;

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::event::EventType;
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::time::Mono;

use crate::cloud_nodes::Cloud;
use crate::deadlines::Deadlines;
use crate::drain::Drains;
use crate::ipam::Ipam;
use crate::node_lifecycle::liveness::{Health, Heard, Silence};
use crate::node_lifecycle::noexecute_taints::{Turn, Zones, is_health_taint};
use crate::node_lifecycle::noschedule_taints;
use crate::node_lifecycle::pod_readiness::PodReadiness;
use crate::node_lifecycle::unknown_status;
use crate::plan::{Action, ControllerName, Outcome, Plan, PlannedAction, Subject, event};
use crate::pod_gc::PodGc;
use crate::policy::Policy;
use crate::scheduler::Scheduler;
use crate::taint_eviction::TaintEvictions;
use crate::trace_event::TraceEvent;
use crate::world::{Change, Delta, Number, World};
use muster_proto::time::Now;

#[derive(Debug)]
pub struct Controllers {
    pub(crate) health: Health,
    pub(crate) zones: Zones,
    pub(crate) evictions: TaintEvictions,
    pub drains: Drains,
    pub(crate) cidrs: Option<Ipam>,
    pub(crate) cloud: Option<Cloud>,
    pub(crate) placement: Scheduler,
    pub(crate) collection: PodGc,
    marks: PodReadiness,
    /// Nodes that are silent and whose record may not say so.
    silent: Deadlines<Name>,
    /// Nodes whose record may not be as the controllers want it.
    records: Deadlines<Name>,
    pub(crate) hold: Hold,
    /// Until when we only listen: a stream that runs again tells what we missed after it says that it runs.
    catching_up_until: Mono,
    /// When the zones were assessed.
    pub(crate) last_pass: Option<Mono>,
    /// When they are assessed next, whether or not anybody waits for it.
    next_pass: Mono,
    /// What happened since the last decision, for people.
    events: Vec<muster_proto::event::Event>,
    /// The same for whoever tells of it.
    trace_events: Vec<TraceEvent>,
}

/// How long a stream that runs again is given to tell what was missed.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Why and until when nobody is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    pub since: Mono,
    pub until: Mono,
    pub cause: HoldCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldCause {
    /// We have only begun to listen.
    Start,
    /// We did not hear the store for a while, or stood still ourselves.
    Interruption,
}

impl Controllers {
    /// The controllers as of now: everybody is met for the first time.
    pub fn begin(world: &World, policy: &Policy, now: Now) -> Controllers {
        let mut controllers = Controllers {
            health: Health::new(),
            zones: Zones::new(),
            evictions: TaintEvictions::new(),
            drains: Drains::new(),
            cidrs: policy.cidrs.as_ref().map(Ipam::new),
            cloud: policy.cloud.map(Cloud::new),
            placement: Scheduler::new(policy.placement.clone()),
            collection: PodGc::new(policy.collection.clone()),
            marks: PodReadiness::default(),
            silent: Deadlines::default(),
            records: Deadlines::default(),
            hold: Hold { since: now.mono, until: now.mono + policy.hold, cause: HoldCause::Start },
            catching_up_until: now.mono,
            last_pass: None,
            next_pass: now.mono,
            events: Vec::new(),
            trace_events: Vec::new(),
        };
        for node in world.nodes() {
            let change = Change { old: None, new: Some(node.clone()) };
            controllers.observe(&Delta::Node(change), world, policy, now);
        }
        for pod in world.pods() {
            let change = Change { old: None, new: Some(pod.clone()) };
            controllers.observe(&Delta::Pod(change), world, policy, now);
        }
        // That a node was there before us is no event.
        controllers.events.clear();
        controllers.trace_events.clear();
        controllers.marks = PodReadiness::begin(world);
        if let Some(cidrs) = &mut controllers.cidrs {
            cidrs.start(world);
        }
        controllers
    }

    /// The store is heard again, or we are awake again. That silence was not the nodes'.
    pub fn resume(&mut self, world: &World, policy: &Policy, now: Now) {
        self.renew_graces(world, policy, now.mono);
        self.catching_up_until = now.mono + CATCH_UP;
        // What we missed counts from when we are told: a node whose last renewal that was falls silent a little later.
        let until = if policy.hold.is_zero() { now.mono } else { self.catching_up_until + policy.hold };
        self.hold = Hold { since: now.mono, until, cause: HoldCause::Interruption };
    }

    /// Everybody gets a new grace who is not marked as lost already.
    fn renew_graces(&mut self, world: &World, policy: &Policy, now: Mono) {
        let status =
            |name: &Name| world.node(name.as_str())?.condition(types::READY).map(|ready| ready.status);
        let unmarked = |name: &Name| {
            (status(name) != Some(ConditionStatus::Unknown)).then(|| world.number(name.as_str())).flatten()
        };
        for name in self.health.refresh(policy, now, unmarked) {
            self.zones.set_silent(&name, false);
            self.silent.forget(&name);
        }
    }

    pub fn observe(&mut self, delta: &Delta, world: &World, policy: &Policy, now: Now) {
        match delta {
            Delta::Node(change) => self.observe_node(change, world, policy, now),
            Delta::Pod(change) => self.marks.observe(change, world),
        }
        self.evictions.observe(delta, world, now);
        self.drains.observe(delta, world, now);
        self.placement.observe(delta, world, now);
        self.collection.observe(delta, world, now);
        if let Some(cidrs) = &mut self.cidrs {
            cidrs.observe(delta, world, now);
        }
        if let Some(cloud) = &mut self.cloud {
            cloud.observe(delta, world, now);
        }
    }

    fn observe_node(&mut self, change: &Change<Node>, world: &World, policy: &Policy, now: Now) {
        let node = change.either();
        let name = &node.meta.name;
        let number = world.number(name.as_str()).expect("the world knows whom it tells of");
        let heard = self.health.observe(change, number, world.renewal(name.as_str()).is_some(), policy, now);
        self.zones.observe(change, policy, now);
        if heard == Heard::Again {
            self.zones.set_silent(name, false);
        }
        let was_ready = change.old.as_ref().is_some_and(|old| old.is_ready());
        if node.is_ready() && (heard == Heard::Again || !was_ready) {
            self.trace_events.push(TraceEvent::Recovered { node: name.clone() });
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
                self.records.forget(name);
                return;
            }
            (Some(old), Some(new)) if old.is_ready() && unknown_status::is_marked(new) => {
                let message = format!("Node {name} status is now: NodeNotReady");
                self.events.push(event(&**new, EventType::Normal, "NodeNotReady", message));
                self.marks.node_lost(new, world);
            }
            _ => {}
        }
        self.records.add(name.clone());
        if self.health.is_silent(name) {
            self.silent.add(name.clone());
        }
    }

    pub fn observe_renewals(
        &mut self,
        numbers: impl IntoIterator<Item = Number>,
        world: &World,
        policy: &Policy,
        now: Now,
    ) {
        for node in self.health.observe_renewals(numbers, policy, now.mono) {
            self.zones.set_silent(&node, false);
            if world.node(node.as_str()).is_some_and(|node| node.is_ready()) {
                self.trace_events.push(TraceEvent::Recovered { node });
            }
        }
    }

    pub fn settle(&mut self, outcome: &Outcome, world: &World, now: Now) {
        match (outcome.controller, &outcome.subject) {
            (ControllerName::NodeLifecycle, Subject::Node(name, _)) => {
                self.silent.settle(name, &outcome.result, now.mono);
            }
            (ControllerName::NodeLifecycle, Subject::Pod(key, _)) => {
                self.marks.settle(key, outcome, now.mono)
            }
            (ControllerName::NodeRecords, Subject::Node(name, _)) => {
                self.records.settle(name, &outcome.result, now.mono);
                if let (Some(cidrs), Err(failure)) = (&mut self.cidrs, &outcome.result) {
                    cidrs.assignment_failed(&outcome.subject, failure, now);
                }
            }
            (ControllerName::TaintEviction, _) => self.evictions.settle(outcome, now),
            (ControllerName::Drain, _) => self.drains.settle(outcome, world, now),
            (ControllerName::Scheduler, _) => self.placement.settle(outcome, world, now),
            (ControllerName::PodGc, _) => self.collection.settle(outcome, world, now),
            (ControllerName::CloudNodes, _) => {
                if let Some(cloud) = &mut self.cloud {
                    cloud.settle(outcome, world, now);
                }
            }
            (ControllerName::NodeRecords, Subject::Pod(..))
            | (ControllerName::NodeLifecycle | ControllerName::NodeRecords, Subject::Lease(_)) => {}
        }
    }

    /// Why a proposal that had to wait does not hold any more, as far as no version of a record tells.
    pub fn obsolete(&self, proposal: &PlannedAction, world: &World, now: Now) -> Option<&'static str> {
        match (proposal.controller, &proposal.subject) {
            (ControllerName::NodeLifecycle, Subject::Node(name, _)) if !self.health.is_silent(name) => {
                Some("the node was heard meanwhile")
            }
            (ControllerName::TaintEviction, Subject::Pod(key, uid)) => {
                let from = self.health_evictions_from();
                (!self.evictions.is_due(key, *uid, from, now.mono))
                    .then_some("nothing drives it off any more")
            }
            (ControllerName::Scheduler, Subject::Pod(key, uid)) => match &proposal.action {
                Action::BindPod { node } if self.placement.is_cordoned_off(key, *uid, node) => {
                    Some("the node was cordoned meanwhile")
                }
                _ => None,
            },
            (ControllerName::PodGc, Subject::Pod(key, uid)) => {
                (!self.collection.is_due(key, *uid, world)).then_some("somebody can see to its end again")
            }
            (ControllerName::Drain, Subject::Pod(key, uid)) => {
                (!self.drains.is_due(key, *uid, &proposal.action, world, now))
                    .then_some("no drain asks for it like that any more")
            }
            _ => None,
        }
    }

    pub fn decide(&mut self, world: &World, policy: &Policy, now: Now) -> Plan {
        let mut plan = Plan { trace_events: std::mem::take(&mut self.trace_events), ..Plan::default() };
        if now.mono < self.catching_up_until {
            plan.wake_by(self.catching_up_until);
            return plan;
        }
        // Whoever fell silent by now counts before the zones are assessed.
        for (name, Silence { heard_at, heard_by, .. }) in self.health.take_silent(policy, now.mono) {
            self.zones.set_silent(&name, true);
            plan.trace(TraceEvent::DeadlinePassed { node: name.clone(), heard_at, heard_by });
            self.silent.add(name);
        }
        self.mark_silent(world, now, &mut plan);
        self.assess(world, policy, now, &mut plan);
        self.marks.decide(world, now, &mut plan);
        self.evictions.decide(world, self.health_evictions_from(), now, &mut plan);
        self.placement.decide(world, now, &mut plan);
        self.drains.stir(self.placement.take_released());
        self.drains.decide(world, |node| self.placement.coming_to(node), now, &mut plan);
        if let Some(cidrs) = &mut self.cidrs {
            cidrs.decide(world, now, &mut plan);
        }
        if let Some(cloud) = &mut self.cloud {
            cloud.decide(world, self.hold.until, now, &mut plan);
        }
        self.collection.decide(world, now, &mut plan);
        // Last, when every room has made up its mind about the nodes' records.
        self.write_records(world, now, &mut plan);
        plan.events.append(&mut self.events);
        plan.wake_by(self.next_pass());
        for at in [self.health.next_deadline(), self.silent.next(), self.records.next()].into_iter().flatten()
        {
            plan.wake_by(at);
        }
        plan
    }

    /// From when on our own judgement may drive pods off; `None` while every zone is lost.
    pub fn health_evictions_from(&self) -> Option<Mono> {
        (!self.zones.is_disrupted()).then_some(self.hold.until)
    }

    fn mark_silent(&mut self, world: &World, now: Now, plan: &mut Plan) {
        for name in self.silent.take(now.mono) {
            let node = world.node(name.as_str()).filter(|_| self.health.is_silent(&name));
            let Some(marked) = node.and_then(|node| unknown_status::mark(node, now)) else {
                self.silent.forget(&name);
                continue;
            };
            let subject = Subject::of_node(&marked);
            plan.act(
                ControllerName::NodeLifecycle,
                subject,
                Action::UpdateNodeStatus(Box::new(marked)),
                "its grace has passed",
            );
            self.silent.begin(name);
        }
    }

    /// When the zones are assessed next.
    pub(crate) fn next_pass(&self) -> Mono {
        let token = self.zones.next_token().map(|at| at.max(self.hold.until));
        // Who may leave when the hold ends is judged by how the zones are then.
        let hold_ends = (self.last_pass < Some(self.hold.until)).then_some(self.hold.until);
        token.into_iter().chain(hold_ends).fold(self.next_pass, Mono::min)
    }

    fn assess(&mut self, world: &World, policy: &Policy, now: Now, plan: &mut Plan) {
        if now.mono < self.next_pass() {
            return;
        }
        // The passes of each period lie on a grid, so that a late one does not put off those after it.
        if self.next_pass <= now.mono {
            let missed = (now.mono - self.next_pass).as_nanos() / policy.monitor_period.as_nanos().max(1);
            self.next_pass += times(policy.monitor_period, missed + 1);
        }
        self.last_pass = Some(now.mono);
        let held = now.mono < self.hold.until;
        if self.zones.pass(policy, now.mono, held, &mut plan.trace_events) == Turn::Left {
            self.renew_graces(world, policy, now.mono);
        }
    }

    /// Nodes about whose record a room has changed its mind.
    fn take_changed(&mut self) -> Vec<Name> {
        let mut touched = self.zones.take_changed();
        touched.extend(self.drains.take_changed());
        touched.extend(self.cidrs.iter_mut().flat_map(Ipam::take_changed));
        touched.extend(self.cloud.iter_mut().flat_map(Cloud::take_changed));
        touched
    }

    /// Puts together what the controllers want of each node's record.
    fn write_records(&mut self, world: &World, now: Now, plan: &mut Plan) {
        for name in self.take_changed() {
            self.records.add(name);
        }
        for name in self.records.take(now.mono) {
            let Some(node) = world.node(name.as_str()) else {
                self.records.forget(&name);
                continue;
            };
            let mut next = Node::clone(node);
            noschedule_taints::apply_to(&mut next, now);
            self.zones.apply_to(&mut next, now);
            self.drains.apply_to(&mut next, now);
            if let Some(cidrs) = &self.cidrs {
                cidrs.apply_to(&mut next, now);
            }
            if let Some(cloud) = &self.cloud {
                cloud.apply_to(&mut next, now);
            }
            if next == **node {
                self.records.forget(&name);
                continue;
            }
            let gained = next.spec.taints.iter().find(|taint| {
                is_health_taint(taint)
                    && !node.spec.taints.iter().any(|held| held.is(&taint.key, taint.effect))
            });
            if let Some(taint) = gained {
                plan.trace(TraceEvent::GivenUp { node: name.clone(), taint: taint.to_string() });
            }
            let subject = Subject::of_node(&next);
            plan.act(ControllerName::NodeRecords, subject, Action::UpdateNode(Box::new(next)), "its record");
            self.records.begin(name);
        }
    }
}

fn times(period: Duration, count: u128) -> Duration {
    period.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

//! Dispatch to the controllers: what each observes, in which order they decide, and which gets which outcome.

use muster_proto::name::Name;

use crate::cloud_nodes::CloudNodes;
use crate::cordon_expiry::{self, CordonExpiry};
use crate::decision::takeover::Seed;
use crate::decision::{Completion, Recorder, causes};
use crate::drain::Drains;
use crate::ipam::Ipam;
use crate::node_lifecycle::NodeLifecycle;
use crate::node_records::NodeRecords;
use crate::plan::{Action, ControllerName, Outcome, Plan, PlannedAction, Subject};
use crate::pod_gc::PodGc;
use crate::policy::Policy;
use crate::scheduler::Scheduler;
use crate::taint_eviction::TaintEvictions;
use crate::world::{Change, Delta, NodeIndex, World};
use muster_proto::time::{Mono, Now};

#[derive(Debug)]
pub struct Controllers {
    pub(crate) node_lifecycle: NodeLifecycle,
    pub(crate) taint_evictions: TaintEvictions,
    pub(crate) scheduler: Scheduler,
    pub drains: Drains,
    cordon_expiry: CordonExpiry,
    pub(crate) ipam: Option<Ipam>,
    pub(crate) cloud_nodes: Option<CloudNodes>,
    pub(crate) pod_gc: PodGc,
    node_records: NodeRecords,
    pub(crate) decisions: Recorder,
}

impl Controllers {
    /// New controllers, which observe the whole world for the first time.
    pub fn begin(world: &World, policy: &Policy, now: Now) -> Controllers {
        let mut controllers = Controllers {
            node_lifecycle: NodeLifecycle::new(policy, now),
            taint_evictions: TaintEvictions::new(),
            scheduler: Scheduler::new(policy.scheduler.clone()),
            drains: Drains::new(),
            cordon_expiry: CordonExpiry::default(),
            ipam: policy.ipam.as_ref().map(Ipam::new),
            cloud_nodes: policy.cloud_nodes.map(CloudNodes::new),
            pod_gc: PodGc::new(policy.pod_gc.clone()),
            node_records: NodeRecords::default(),
            decisions: Recorder::default(),
        };
        for node in world.nodes() {
            let change = Change { old: None, new: Some(node.clone()) };
            controllers.observe(&Delta::Node(change), world, policy, now);
        }
        for pod in world.pods() {
            let change = Change { old: None, new: Some(pod.clone()) };
            controllers.observe(&Delta::Pod(change), world, policy, now);
        }
        controllers.node_lifecycle.start(world);
        if let Some(ipam) = &mut controllers.ipam {
            ipam.start(world);
        }
        controllers
    }

    /// A watch has been disconnected or this process paused since then, so heartbeats may have been missed.
    pub fn interrupt(&mut self, since: Mono) {
        self.node_lifecycle.interrupt(since);
    }

    /// All watches are synced, and this process runs.
    pub fn resume(&mut self, policy: &Policy, now: Now) {
        self.node_lifecycle.resume(policy, now);
    }

    pub fn observe(&mut self, delta: &Delta, world: &World, policy: &Policy, now: Now) {
        self.node_lifecycle.observe(delta, world, policy, now);
        self.taint_evictions.observe(delta, world, now);
        self.drains.observe(delta, world, now);
        self.cordon_expiry.observe(delta, world, now);
        self.scheduler.observe(delta, world, now);
        self.pod_gc.observe(delta, world, now);
        if let Some(ipam) = &mut self.ipam {
            ipam.observe(delta, world, now);
        }
        if let Some(cloud_nodes) = &mut self.cloud_nodes {
            cloud_nodes.observe(delta, world, now);
        }
        match delta {
            Delta::Node(change) => {
                self.node_records.observe(change);
                if let (Some(node), None) = (&change.old, &change.new) {
                    self.decisions.node_gone(node, world, now);
                }
            }
            Delta::Pod(change) => {
                if let (Some(pod), None) = (&change.old, &change.new) {
                    self.decisions.pod_gone(pod, world, now);
                }
            }
        }
    }

    /// The newest decisions of the leader before are known.
    pub fn continue_log(&mut self, seed: &Seed, world: &World, now: Now) {
        self.decisions.seed(seed, world, now);
    }

    /// Observes node leases whose `renewTime` changed.
    pub fn observe_renewals(
        &mut self,
        indices: impl IntoIterator<Item = NodeIndex>,
        world: &World,
        policy: &Policy,
        now: Now,
    ) {
        self.node_lifecycle.observe_renewals(indices, world, policy, now);
    }

    pub fn settle(&mut self, outcome: &Outcome, completion: &Completion, world: &World, now: Now) {
        self.decisions.settle(outcome, completion, now);
        match outcome.controller {
            ControllerName::NodeLifecycle => self.node_lifecycle.settle(outcome, now),
            ControllerName::NodeRecords => {
                self.node_records.settle(outcome, now.mono);
                if let (Some(ipam), Err(failure)) = (&mut self.ipam, &outcome.result) {
                    ipam.assignment_failed(&outcome.subject, failure, now);
                }
            }
            ControllerName::Ipam => {
                if let Some(ipam) = &mut self.ipam {
                    ipam.settle(outcome, now);
                }
            }
            ControllerName::TaintEviction => self.taint_evictions.settle(outcome, now),
            ControllerName::Drain => self.drains.settle(outcome, world, now),
            ControllerName::Scheduler => self.scheduler.settle(outcome, world, now),
            ControllerName::PodGc => self.pod_gc.settle(outcome, world, now),
            ControllerName::CloudNodes => {
                if let Some(cloud_nodes) = &mut self.cloud_nodes {
                    cloud_nodes.settle(outcome, world, now);
                }
            }
        }
    }

    /// Why a planned action that had to wait is obsolete, where no version of a record would make the store refuse it.
    pub fn obsolete(&self, planned: &PlannedAction, world: &World, now: Now) -> Option<&'static str> {
        match (planned.controller, &planned.subject) {
            (ControllerName::NodeLifecycle, Subject::Node(name, _)) => {
                (!self.node_lifecycle.is_silent(name)).then_some("the node sent a heartbeat meanwhile")
            }
            (ControllerName::TaintEviction, Subject::Pod(key, uid)) => {
                let from = self.node_lifecycle.health_evictions_from();
                (!self.taint_evictions.is_due(key, *uid, from, now.mono))
                    .then_some("no taint of its node requires it any more")
            }
            (ControllerName::Scheduler, Subject::Pod(key, uid)) => match &planned.action {
                Action::BindPod { node } if self.scheduler.is_cordoned_off(key, *uid, node) => {
                    Some("the node was cordoned meanwhile")
                }
                Action::EndPod { .. } if !self.scheduler.is_victim(key, *uid) => {
                    Some("no other pod needs its space any more")
                }
                _ => None,
            },
            (ControllerName::PodGc, Subject::Pod(key, uid)) => (!self.pod_gc.is_due(key, *uid, world))
                .then_some("the pod's node is back, so its agent can stop the pod"),
            (ControllerName::Drain, Subject::Pod(key, uid)) => {
                (!self.drains.is_due(key, *uid, &planned.action, world, now))
                    .then_some("no drain requests this any more")
            }
            _ => None,
        }
    }

    pub fn decide(&mut self, world: &World, policy: &Policy, now: Now) -> Plan {
        let mut plan = Plan { trace_events: self.node_lifecycle.take_trace_events(), ..Plan::default() };
        if let Some(until) = self.node_lifecycle.hold.catching_up(now.mono) {
            self.record(world, now, &mut plan);
            plan.wake_by(until);
            return plan;
        }
        self.node_lifecycle.decide(world, policy, now, &mut plan);
        self.taint_evictions.decide(world, self.node_lifecycle.health_evictions_from(), now, &mut plan);
        self.scheduler.decide(world, now, &mut plan);
        self.drains.recheck(self.scheduler.take_released());
        self.drains.decide(world, |node| self.scheduler.binding_to(node), now, &mut plan);
        self.cordon_expiry.decide(now, &mut plan);
        if let Some(ipam) = &mut self.ipam {
            ipam.decide(world, now, &mut plan);
        }
        if let Some(cloud_nodes) = &mut self.cloud_nodes {
            cloud_nodes.decide(world, self.node_lifecycle.hold.until, now, &mut plan);
        }
        self.pod_gc.decide(world, now, &mut plan);
        // Last, when every controller has decided what it wants of the nodes' records.
        self.write_records(world, policy, now, &mut plan);
        self.record(world, now, &mut plan);
        plan
    }

    /// Turns notes and planned actions into decisions, and takes those that can be recorded.
    fn record(&mut self, world: &World, now: Now, plan: &mut Plan) {
        let mut notes = std::mem::take(&mut plan.notes).into_iter().peekable();
        // In the order in which they were made, so that a note can follow from an action of the same plan.
        for (index, action) in plan.actions.iter().enumerate() {
            while let Some(planned) = notes.next_if(|planned| planned.after <= index) {
                self.decisions.note(planned.note, world, now);
            }
            self.decisions.planned(action, world, now);
        }
        for planned in notes {
            self.decisions.note(planned.note, world, now);
        }
        let (decisions, next) = self.decisions.take(now);
        plan.decisions = decisions;
        next.into_iter().for_each(|at| plan.wake_by(at));
    }

    fn write_records(&mut self, world: &World, policy: &Policy, now: Now, plan: &mut Plan) {
        for name in self.take_changed() {
            self.node_records.add(name);
        }
        let apply_all = |node: &mut muster_proto::node::Node| {
            cordon_expiry::apply_to(node, now);
            self.node_lifecycle.apply_to(node, policy, now);
            self.drains.apply_to(node, now);
            if let Some(ipam) = &self.ipam {
                ipam.apply_to(node, now);
            }
            if let Some(cloud_nodes) = &self.cloud_nodes {
                cloud_nodes.apply_to(node, now);
            }
        };
        let zone = |node: &muster_proto::node::Node| self.node_lifecycle.zone_report_of(&node.meta.name);
        let causes = |before: &_, after: &_| causes::node_write(before, after, zone(before).as_ref());
        self.node_records.decide(world, apply_all, causes, now, plan);
    }

    /// Nodes whose record a controller now wants to be different.
    fn take_changed(&mut self) -> Vec<Name> {
        let mut changed = self.node_lifecycle.take_changed();
        changed.extend(self.drains.take_changed());
        changed.extend(self.cordon_expiry.take_changed());
        changed.extend(self.ipam.iter_mut().flat_map(Ipam::take_changed));
        changed.extend(self.cloud_nodes.iter_mut().flat_map(CloudNodes::take_changed));
        changed
    }
}

//! Why a node is in its state, and what happens to the node and its pods at which time.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::drain::Cordon;
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::time::Mono;

use super::convert::{count, duration, timestamp};
use super::eviction::PodEviction;
use super::fleet::{full_disruption, hold_reason, pod_gc, words, zone, zone_reason};
use super::{Explanation, ExplanationAction, ExplanationState, NOTHING_DECIDED};
use crate::controllers::Controllers;
use crate::decision::DecisionSubject;
use crate::drain::progress::{DrainProgress, ProgressState};
use crate::node_lifecycle::liveness::{SignOfLife, Silence};
use crate::node_lifecycle::noschedule_taints::ready_taint;
use crate::node_lifecycle::zone_report::TaintStatus;
use crate::plan::uid;
use crate::policy::Policy;
use crate::reconciler::{Phase, Reconciler};
use muster_proto::time::Now;

/// Explains a node; `None` if there is no node of that name and no pod is bound to one.
pub fn explain(reconciler: &Reconciler, name: &Name, now: Now) -> Option<pb::ExplainNodeResponse> {
    let Some(node) = reconciler.world().node(name.as_str()) else {
        return explain_deleted(reconciler, name, now);
    };
    let ready = node.condition(types::READY).map(|ready| ready.status);
    let mut response = pb::ExplainNodeResponse {
        name: name.to_string(),
        uid: uid(&node.meta).to_string(),
        ready: ready.map(|ready| ready.to_string()).unwrap_or_default(),
        as_of: timestamp(now, now.mono),
        ..pb::ExplainNodeResponse::default()
    };
    let Some((controllers, status)) = reconciler
        .controllers()
        .filter(|_| reconciler.phase() == Phase::Active)
        .and_then(|controllers| Some((controllers, controllers.node_lifecycle.taint_status(name)?)))
    else {
        response.summary = NOTHING_DECIDED.to_owned();
        return Some(response);
    };
    let view = View::new(reconciler, controllers, node, status, now);
    let silence = controllers.node_lifecycle.silence(name, reconciler.world(), reconciler.policy());
    let mark_unknown = view.mark_unknown(silence);
    let taint = view.taint();
    response.summary = view.summary(silence, &taint);
    response.silence = silence.map(|silence| silence_pb(silence, now));
    response.zone = Some(zone(controllers, &view.status.zone, reconciler.policy(), now));
    response.excluded = !view.status.counted;
    response.queue_position = view.status.position.map_or(0, count);
    response.pods = reconciler
        .world()
        .pods_on(name.as_str())
        .map(|pod| {
            let decision_id = controllers.decisions.latest(&DecisionSubject::Pod(Key::of(&**pod)));
            pb::PodExplanation { decision_id, ..view.eviction(pod, &taint).into_pb(pod, now) }
        })
        .collect();
    let others = view.other_controllers();
    response.explanations = [mark_unknown, taint]
        .into_iter()
        .chain(others)
        .map(|explanation| view.with_decision(explanation).into_pb(now))
        .collect();
    Some(response)
}

/// Explains a node that does not exist, if pods are bound to it.
fn explain_deleted(reconciler: &Reconciler, name: &Name, now: Now) -> Option<pb::ExplainNodeResponse> {
    let controllers = reconciler.controllers().filter(|_| reconciler.phase() == Phase::Active)?;
    let explanation = pod_gc(controllers, name, now)?;
    let pods = reconciler.world().pods_on(name.as_str());
    let pods: Vec<pb::PodExplanation> =
        pods.map(|pod| PodEviction::of_orphan(&explanation).into_pb(pod, now)).collect();
    Some(pb::ExplainNodeResponse {
        name: name.to_string(),
        summary: format!("Node {name} does not exist; pods bound to it: {}.", pods.len()),
        explanations: vec![explanation.into_pb(now)],
        pods,
        as_of: timestamp(now, now.mono),
        ..pb::ExplainNodeResponse::default()
    })
}

/// What the explanations of one node are made from.
pub(super) struct View<'a> {
    pub(super) reconciler: &'a Reconciler,
    pub(super) controllers: &'a Controllers,
    pub(super) node: &'a Node,
    pub(super) ready: Option<ConditionStatus>,
    pub(super) status: TaintStatus,
    /// How far the node's drain has come, if it has one.
    pub(super) drain: Option<DrainProgress>,
    pub(super) now: Now,
}

impl<'a> View<'a> {
    pub(super) fn new(
        reconciler: &'a Reconciler,
        controllers: &'a Controllers,
        node: &'a Node,
        status: TaintStatus,
        now: Now,
    ) -> View<'a> {
        let ready = node.condition(types::READY).map(|ready| ready.status);
        let drain = controllers.drains.progress(reconciler.world(), node.meta.name.as_str(), now);
        View { reconciler, controllers, node, ready, status, drain, now }
    }

    fn policy(&self) -> &Policy {
        self.reconciler.policy()
    }

    /// Why the node is or is not Unknown, and when it will be.
    fn mark_unknown(&self, silence: Option<Silence>) -> Explanation {
        let Some(silence) = silence else {
            let reason = "The controller has not seen the node yet.";
            return Explanation::new(ExplanationAction::MarkUnknown, ExplanationState::None, reason);
        };
        let (silent_for, grace) = (words(self.now.mono - silence.seen_at), words(silence.grace));
        let last_sign = match silence.seen_by {
            Some(SignOfLife::Lease | SignOfLife::Status) => format!("Last heartbeat {silent_for} ago"),
            Some(SignOfLife::FirstSeen) => {
                format!("No heartbeat since the controller first saw the node {silent_for} ago")
            }
            Some(SignOfLife::Created) => format!("No heartbeat since the node was created {silent_for} ago"),
            None => format!("No heartbeat since all nodes got a new grace period {silent_for} ago"),
        };
        let last_sign = if silence.cut_off.is_zero() {
            last_sign
        } else {
            let cut_off = words(silence.cut_off);
            format!("{last_sign}, of which {cut_off} do not count because the controller was cut off")
        };
        let is_silent = self.controllers.node_lifecycle.is_silent(&self.node.meta.name);
        let (state, next, earliest) = match (is_silent, self.ready) {
            (true, Some(ConditionStatus::Unknown)) => {
                (ExplanationState::Done, format!("the node is Unknown after {grace} of silence"), None)
            }
            (true, _) => {
                let next = format!(
                    "that is longer than the grace period of {grace}, so Ready is being set to Unknown"
                );
                (ExplanationState::Due, next, Some(self.now.mono))
            }
            (false, Some(ConditionStatus::Unknown)) => (
                ExplanationState::Done,
                "Ready stays Unknown until the agent reports its status".to_owned(),
                None,
            ),
            (false, _) => {
                let next = format!("the node becomes Unknown after {grace} of silence");
                (ExplanationState::Waiting, next, Some(silence.deadline))
            }
        };
        Explanation::new(ExplanationAction::MarkUnknown, state, format!("{last_sign}; {next}."))
            .input("silentFor", silent_for)
            .input("grace", grace)
            .earliest(earliest)
    }

    /// Why the node has a NoExecute taint for its health or has none, and when it gets one.
    pub(super) fn taint(&self) -> Explanation {
        let zone = &self.status.zone;
        let taint = |state, reason: String| {
            Explanation::new(ExplanationAction::Taint, state, reason)
                .input("zone", &zone.key)
                .input("zoneState", zone.state)
                .input("unhealthy", format!("{} of {}", zone.unhealthy, zone.nodes))
                .input("rate", zone.rate)
        };
        let Some(key) = ready_taint(self.ready) else {
            let reason = match self.ready {
                Some(_) => "The node is Ready, so it is not tainted NoExecute.",
                None => "The node never reported whether it is Ready, so it is not tainted NoExecute.",
            };
            return taint(ExplanationState::None, reason.to_owned());
        };
        if self.status.strip {
            let reason =
                "A NoExecute taint from before is removed first; then the node joins the zone's queue again.";
            return taint(ExplanationState::Waiting, reason.to_owned());
        }
        if self.node.spec.taints.iter().any(|taint| taint.is(key, TaintEffect::NoExecute)) {
            let reason = format!(
                "The node has the taint {key}:NoExecute; each pod is evicted when its toleration time is over."
            );
            return taint(ExplanationState::Done, reason);
        }
        if self.controllers.node_lifecycle.zones.is_full_disruption() {
            return taint(ExplanationState::Paused, full_disruption(&self.controllers.node_lifecycle));
        }
        if self.status.granted {
            let reason = format!("The taint {key}:NoExecute is being written.");
            return taint(ExplanationState::Due, reason).earliest(self.now.mono);
        }
        let zone_reason = zone_reason(zone, false, self.policy());
        let Some(earliest) = self.earliest_taint() else {
            return taint(ExplanationState::Paused, zone_reason);
        };
        let taint = |state, reason: String| taint(state, reason).earliest(earliest);
        let hold = self.controllers.node_lifecycle.hold;
        if self.now.mono < hold.until {
            let reason = hold_reason(self.controllers, self.reconciler.world().node_count(), self.now);
            return taint(ExplanationState::Paused, reason).input("holdUntil", self.now.wall_of(hold.until));
        }
        let Some(position) = self.status.position else {
            let reason = "The node joins the zone's queue when the states of the zones are next computed.";
            return taint(ExplanationState::Waiting, reason.to_owned());
        };
        let is_slowed = zone.rate < self.policy().eviction_rate;
        let state = if is_slowed { ExplanationState::Slowed } else { ExplanationState::Queued };
        let reason = format!(
            "The node is number {position} of {} in the zone's queue. {zone_reason}",
            zone.queue_length
        );
        taint(state, reason).input("position", position)
    }

    /// The explanation with the newest decision that it follows from.
    fn with_decision(&self, explanation: Explanation) -> Explanation {
        let name = self.node.meta.name.clone();
        let subject = match explanation.action {
            ExplanationAction::AssignCidr => DecisionSubject::Block(name),
            ExplanationAction::Drain => DecisionSubject::Drain(name),
            _ => DecisionSubject::Node(name),
        };
        explanation.following(self.controllers.decisions.latest(&subject))
    }

    /// The explanations of the other controllers.
    fn other_controllers(&self) -> Vec<Explanation> {
        let mut all = vec![self.schedule()];
        all.extend(self.controllers.ipam.as_ref().map(|cidrs| cidrs.explain(self.node)));
        let hold_until = self.controllers.node_lifecycle.hold.until;
        all.extend(
            self.controllers
                .cloud_nodes
                .iter()
                .flat_map(|cloud| cloud.explain(self.node, hold_until, self.now)),
        );
        all.extend(self.drain());
        all.extend(pod_gc(self.controllers, &self.node.meta.name, self.now));
        all
    }

    /// Whether new pods may be scheduled onto the node.
    fn schedule(&self) -> Explanation {
        let keeps_away = |taint: &&Taint| taint.effect != TaintEffect::PreferNoSchedule;
        let taints: Vec<String> =
            self.node.spec.taints.iter().filter(keeps_away).map(ToString::to_string).collect();
        let spec = &self.node.spec;
        let ends = spec.cordons.iter().map(|held| held.expires_at.map(|at| self.now.mono_of(at)));
        // When the last one ends, unless one has no end.
        let end = ends.collect::<Option<Vec<Mono>>>().and_then(|ends| ends.into_iter().max());
        let (state, reason) = match spec.cordons.as_slice() {
            _ if !spec.unschedulable && taints.is_empty() => {
                (ExplanationState::Done, "New pods may be scheduled onto the node.".to_owned())
            }
            [] if spec.unschedulable => {
                (ExplanationState::Refused, "The node is cordoned; no reason was recorded.".to_owned())
            }
            [cordon] if spec.unschedulable => {
                (ExplanationState::Refused, format!("The node is cordoned by {}.", self.cordon(cordon)))
            }
            cordons if spec.unschedulable => {
                let each: Vec<String> = cordons.iter().map(|cordon| self.cordon(cordon)).collect();
                let reason = format!(
                    "The node has {} cordons and takes new pods when none is left: by {}.",
                    cordons.len(),
                    each.join("; by ")
                );
                (ExplanationState::Refused, reason)
            }
            _ if self.ready.is_none() && !self.policy().trust_unreported_nodes => {
                let reason = "The node gets no pods until its agent reports that it is Ready.";
                (ExplanationState::Refused, reason.to_owned())
            }
            _ => {
                let reason = "Only pods that tolerate the node's taints may be scheduled onto it.";
                (ExplanationState::Refused, reason.to_owned())
            }
        };
        let explanation = Explanation::new(ExplanationAction::Schedule, state, reason)
            .earliest(end.filter(|_| spec.unschedulable));
        if taints.is_empty() { explanation } else { explanation.input("taints", taints.join(" ")) }
    }

    /// A cordon in words: `eva (new disk), for 2 min 0 s more`.
    fn cordon(&self, cordon: &Cordon) -> String {
        let text = format!("{} ({})", cordon.who(), cordon.reason);
        match cordon.expires_at {
            Some(at) => format!("{text}, for {} more", words(self.now.mono_of(at) - self.now.mono)),
            None => text,
        }
    }

    /// How far the node's drain has come, if it has one.
    fn drain(&self) -> Option<Explanation> {
        let drain = self.node.spec.drain.as_ref()?;
        let progress = self.drain.as_ref()?;
        let state = match progress.state {
            ProgressState::Complete => ExplanationState::Done,
            ProgressState::Draining => ExplanationState::Waiting,
            _ => ExplanationState::Refused,
        };
        // Then the evictions of blocked pods are retried.
        let retry_at = progress.pods.iter().filter_map(|pod| pod.retry_at).min();
        let explanation = Explanation::new(ExplanationAction::Drain, state, progress.message.clone())
            .earliest(retry_at)
            .input("requestedBy", &drain.requested_by)
            .input("reason", &drain.reason);
        Some(match drain.deadline {
            Some(deadline) => explanation.input("deadline", deadline),
            None => explanation,
        })
    }

    /// When the node can be tainted if nothing changes; `None` if never.
    fn earliest_taint(&self) -> Option<Mono> {
        let zone = &self.status.zone;
        let token = zone.next_token?;
        let wait = zone.interval.saturating_mul(u32::try_from(self.status.ahead).unwrap_or(u32::MAX));
        // A node that is not in the queue joins it at the next pass.
        Some(
            token
                .max(self.controllers.node_lifecycle.hold.until)
                .max(self.controllers.node_lifecycle.next_pass())
                + wait,
        )
    }

    fn summary(&self, silence: Option<Silence>, taint: &Explanation) -> String {
        let name = &self.node.meta.name;
        let health = match (self.ready, silence) {
            (Some(ConditionStatus::True), _) => format!("{name} is Ready."),
            (Some(ConditionStatus::False), _) => format!("{name} reports that it is not Ready."),
            (Some(ConditionStatus::Unknown), Some(silence)) => {
                format!("{name} has sent no heartbeat for {}.", words(self.now.mono - silence.seen_at))
            }
            (Some(ConditionStatus::Unknown), None) => format!("{name} sends no heartbeats."),
            (None, _) => format!("{name} never reported whether it is Ready."),
        };
        let health = match &self.drain {
            Some(drain) if drain.state == ProgressState::Draining => {
                format!("{health} It is being drained: {}.", drain.message)
            }
            _ => health,
        };
        if taint.state == ExplanationState::None { health } else { format!("{health} {}", taint.reason) }
    }
}

fn silence_pb(silence: Silence, now: Now) -> pb::NodeSilence {
    pb::NodeSilence {
        seen_at: timestamp(now, silence.seen_at),
        seen_by: silence.seen_by.map_or(pb::SignOfLife::Reset, Into::into).into(),
        silent_for: Some(duration(now.mono - silence.seen_at)),
        grace: Some(duration(silence.grace)),
        deadline: timestamp(now, silence.deadline),
    }
}
